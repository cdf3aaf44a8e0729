"""Restored copies and missing tables during backfills, on real servers: the rejected
commands, and the command that resolves the situation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.command_result import CommandResult, refused
from tests.system.driving import (
    Pipeline,
    backfill_broken_off_before,
    data_files,
    log_copied,
    put_back,
)

pytestmark = pytest.mark.without_spark
INTERVAL = ("--from", "0", "--until", "100", "--yes")
NAME = ("old",)
GIVING_UP = (*NAME, "--reason", "a test", "--yes")
Znodes = Mapping[str, bytes]


def znodes_below(client: Any, path: str) -> Znodes:
    """All that there is, parents first."""
    found = {path: client.get(path)[0]}
    for child in client.get_children(path):
        found |= znodes_below(client, f"{path}/{child}")
    return found


def abandon(pipeline: Pipeline) -> CommandResult:
    return pipeline.door("backfills", "delete", after=GIVING_UP)


def resume(pipeline: Pipeline) -> CommandResult:
    return pipeline.door("backfills", "run", after=NAME)


def maintain(pipeline: Pipeline) -> CommandResult:
    return pipeline.door("table", "maintain", after=("--yes",))


def test_an_older_copy_of_the_tables_log_that_lacks_a_backfills_commits_alone_is_not_maintained(
    late: Pipeline,
) -> None:
    older = log_copied(late.table, "older")
    assert late.door("backfills", "run", after=(*NAME, *INTERVAL)).code == 0
    newer, files = log_copied(late.table, "newer"), data_files(late.table)
    put_back(older, late.table)
    assert late.ran().outcomes == ["up_to_date"], (
        "of the pipeline's own commits the copy lacks none"
    )
    for words in ("--yes",), ("--dry-run",):
        refused(
            late.door("table", "maintain", after=words), 5, "Backfill old", "plan 3", "older copy"
        )
    assert data_files(late.table) == files
    put_back(newer, late.table)
    assert maintain(late).code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 600


@pytest.mark.long
def test_a_table_without_rows_of_a_backfill_stops_every_command_until_the_newer_copy_is_back(
    late: Pipeline,
) -> None:
    older = log_copied(late.table, "older")
    backfill_broken_off_before("store", late, "old", "0", "100")
    newer = log_copied(late.table, "newer")
    put_back(older, late.table)
    for door in (abandon, resume, maintain):
        refused(door(late), 5)
    assert late.door("verify").code == 5
    put_back(newer, late.table)
    assert late.door("verify").code == 0 and maintain(late).code == 0
    assert resume(late).code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 600


@pytest.mark.long
@pytest.mark.parametrize("verb", ["append", "store"])
def test_without_its_table_a_backfill_is_not_deleted_and_once_it_is_back_the_loaded_rows_stay(
    late: Pipeline, verb: str
) -> None:
    backfill_broken_off_before(verb, late, "old", "0", "100")
    away = late.table.rename(late.table.with_name("away"))
    refused(abandon(late), 5, "No table exists at this path")
    refused(resume(late), 5)
    refused(maintain(late), 2, "There is no table yet")
    away.rename(late.table)
    assert abandon(late).code == 0
    assert (
        late.door("backfills", "list").document["backfills"][0]["loaded"]
        == sum(late.in_table().values()) - 200
    )
    assert late.door("backfills", "run", after=("rest", *INTERVAL, "--only-unloaded")).code == 0
    assert late.is_whole() and late.door("verify").document["found_rows"] == 600


@pytest.mark.long
def test_a_backfill_of_a_lost_table_is_deleted_after_the_acceptance_and_reserves_nothing(
    late: Pipeline,
) -> None:
    backfill_broken_off_before("store", late, "old", "0", "100")
    away = late.table.rename(late.table.with_name("away"))
    DeltaTable.create(str(late.table), DeltaTable(str(away)).schema())
    refused(
        abandon(late),
        5,
        "is not the one that the backfill loaded into",
        "table accept-changes CONF 0",
    )
    refused(maintain(late), 2, "This pipeline has no commit in the table")
    assert (
        late.door("table", "accept-changes", after=("0", "--reason", "a new table", "--yes")).code
        == 0
    )
    assert abandon(late).code == 0
    given_up = late.committed()
    late.produce(40)
    assert late.ran().outcomes[-1] == "ingested"
    late.settings["limits"] = {}
    assert late.door("backfills", "run", after=("new", *INTERVAL)).code == 0
    assert late.in_table() == Counter(
        {row: n for row, n in late.in_topic().items() if not 100 <= row[1] < given_up[row[0]]}
    )
    assert late.door("verify").code == 0 and maintain(late).code == 0


@pytest.mark.long
def test_a_pipeline_with_an_unfinished_backfill_is_not_inherited(
    late: Pipeline,
) -> None:
    backfill_broken_off_before("record", late, "old", "0", "100")
    heir = late.under("heir")
    taking = (
        ("pipelines", "inherit"),
        ("--predecessor", f"{late.group}/clicks", "--reason", "renamed", "--yes"),
    )
    refused(
        heir.door(*taking[0], after=taking[1]),
        5,
        "Backfill old of that pipeline is stopped",
        "etl backfills run",
    )
    assert abandon(late).code == 0
    assert heir.door(*taking[0], after=taking[1]).code == 0
    heir.produce(40)
    assert heir.ran().outcomes[-1] == "ingested"
    rows = late.in_table()
    assert set(rows.values()) == {1} and len(rows) == 200 + 160 + 40
    assert not rows - heir.in_topic()
    assert heir.door("verify").code == 0
    refused(resume(late), 2)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["fetch", "record", "store"])
def test_an_older_copy_of_a_deleted_backfills_znodes_loads_nothing_again(
    late: Pipeline, verb: str
) -> None:
    backfill_broken_off_before(verb, late, "old", "0", "100")
    place = f"/consumers/{late.group}/etl/clicks@old"
    with late.zookeeper() as client:
        older = znodes_below(client, place)
    assert abandon(late).code == 0
    assert late.door("backfills", "run", after=("rest", *INTERVAL, "--only-unloaded")).code == 0
    with late.zookeeper() as client:
        client.delete(place, recursive=True)
        for path, payload in older.items():
            client.create(path, payload)
    refused(resume(late), 2, "was given up: a test")
    refused(late.door("backfills", "run", after=(*NAME, *INTERVAL)), 2, "was given up: a test")
    late.produce(40)
    assert late.ran().outcomes == ["ingested"]
    assert late.is_whole() and late.door("verify").document["found_rows"] == 640
    assert maintain(late).code == 0
    assert abandon(late).code == 0
    assert [one["state"] for one in late.door("backfills", "list").document["backfills"]] == [
        "given up",
        "whole",
    ]
    assert late.is_whole() and late.door("verify").document["found_rows"] == 640


@pytest.mark.long
def test_a_pipeline_is_not_inherited_in_a_copy_of_the_table_without_its_backfills_rows(
    late: Pipeline,
) -> None:
    older = log_copied(late.table, "older")
    assert late.door("backfills", "run", after=(*NAME, *INTERVAL)).code == 0
    newer = log_copied(late.table, "newer")
    heir = late.under("heir")
    taking = "--predecessor", f"{late.group}/clicks", "--reason", "renamed", "--yes"
    put_back(older, late.table)
    refused(
        heir.door("pipelines", "inherit", after=taking),
        5,
        "Backfill old has loaded plan 3",
        "older copy",
    )
    assert late.ran().outcomes == ["up_to_date"], "the heir has not replaced it yet"
    put_back(newer, late.table)
    assert heir.door("pipelines", "inherit", after=taking).code == 0
    late.produce(40)
    assert heir.ran().outcomes[-1] == "ingested"
    assert late.is_whole() and heir.door("verify").code == 0


@pytest.mark.long
def test_where_zookeeper_lost_a_backfills_ledger_its_name_and_its_offsets_are_refused(
    late: Pipeline,
) -> None:
    assert late.door("backfills", "run", after=(*NAME, *INTERVAL)).code == 0
    with late.zookeeper() as client:
        client.delete(f"/consumers/{late.group}/etl/clicks@old", recursive=True)
    refused(
        late.door("backfills", "run", after=(*NAME, *INTERVAL)),
        2,
        "The table holds plan 3 of a backfill of this name",
    )
    for more in (), ("--only-unloaded",):
        refused(
            late.door("backfills", "run", after=("new", *INTERVAL, *more)),
            5,
            "The table holds 400 rows of these offsets",
        )
    late.produce(40)
    assert late.ran().outcomes == ["ingested"]
    assert late.door("backfills", "list").document["backfills"] == [] and late.is_whole()
