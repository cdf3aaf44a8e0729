"""Backfills of a predecessor pipeline, and pipelines that are retired during a backfill."""

from __future__ import annotations

from collections import Counter

import pytest

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
def test_a_backfill_of_a_retired_pipeline_loads_no_more(late: Pipeline) -> None:
    backfill_broken_off_before("record", late, "old", "0", "100")
    assert late.door("pipelines", "retire", after=("--reason", "no more")).code == 0
    rows = late.in_table()
    refused(late.door("backfills", "run", after=("old",)), 5, "This pipeline was retired")
    assert late.in_table() == rows and set(rows.values()) == {1}
