"""Backfills of a predecessor pipeline, and pipelines that are retired during a backfill."""

from __future__ import annotations

from collections import Counter

import pytest
from deltalake import DeltaTable

from tests.command_result import refused
from tests.system.driving import Pipeline, backfill_broken_off_before

pytestmark = pytest.mark.without_spark


def heir_that_fills_the_rest(late: Pipeline) -> Pipeline:
    """It inherits the pipeline, and backfills the unloaded part of offsets 0 to 100: then each
    record is loaded once.
    """
    heir = late.under("heir")
    assert (
        heir.door(
            "pipelines",
            "inherit",
            after=("--predecessor", f"{late.group}/clicks", "--reason", "renamed", "--yes"),
        ).code
        == 0
    )
    assert heir.ran().outcomes[0] in ("plan_resumed", "ingested")
    assert heir.door("verify").code == 0
    filled = heir.door(
        "backfills",
        "run",
        after=("rest", "--from", "0", "--until", "100", "--yes", "--only-unloaded"),
    )
    assert filled.code == 0, filled.err
    assert late.in_table() == Counter(dict.fromkeys(late.in_topic(), 1))
    return heir


@pytest.mark.long
def test_an_heir_knows_the_inherited_pipelines_backfills_and_loads_only_missing_offsets(
    late: Pipeline,
) -> None:
    assert (
        late.door("backfills", "run", after=("jan", "--from", "0", "--until", "50", "--yes")).code
        == 0
    )
    heir = heir_that_fills_the_rest(late)
    assert heir.door("verify").document["found_rows"] == 600


@pytest.mark.long
def test_an_heir_loads_released_offsets_and_those_of_another_backfill_are_there_once(
    late: Pipeline,
) -> None:
    assert (
        late.door("backfills", "run", after=("jan", "--from", "0", "--until", "100", "--yes")).code
        == 0
    )
    DeltaTable(str(late.table)).delete("offset < 60")
    accepted = late.door(
        "table",
        "accept-changes",
        after=(str(DeltaTable(str(late.table)).version()), "--reason", "a test", "--yes"),
    )
    assert accepted.code == 0, accepted.err
    assert late.door("backfills", "delete", after=("jan", "--reason", "deleted", "--yes")).code == 0
    assert (
        late.door("backfills", "run", after=("feb", "--from", "0", "--until", "30", "--yes")).code
        == 0
    )
    heir = heir_that_fills_the_rest(late)
    proof = heir.door("verify")
    assert (proof.code, proof.document["found_rows"]) == (0, len(late.in_topic()))


@pytest.mark.long
def test_a_pipeline_with_a_backfill_that_may_still_load_is_not_retired(
    late: Pipeline,
) -> None:
    backfill_broken_off_before("record", late, "old", "0", "100")
    retiring = ("pipelines", "retire"), ("--reason", "no more")
    refused(
        late.door(*retiring[0], after=retiring[1]),
        5,
        "Backfill old of that pipeline is stopped",
        "etl backfills delete",
    )
    assert late.door("backfills", "run", after=("old",)).code == 0
    assert late.door(*retiring[0], after=retiring[1]).code == 0
    assert late.in_table() == Counter(dict.fromkeys(late.in_topic(), 1))
