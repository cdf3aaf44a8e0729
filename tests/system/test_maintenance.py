"""`etl table maintain` and `compact` on a real table: no row moves, and each refusal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.command_result import CommandResult, refused
from tests.system.driving import Pipeline, broken_off_before, data_files, watched

pytestmark = pytest.mark.without_spark

DAY_S = 86_400
SPARK = {"pyspark", "py4j", "delta"}


def grown_older(table: Path, days: int) -> None:
    """Set the files' times back: VACUUM uses them."""
    for path in table.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - days * DAY_S,) * 2)


def maintain(pipeline: Pipeline, *words: str) -> CommandResult:
    return pipeline.door("table", "maintain", after=(*words, "--yes"))


@pytest.mark.usefixtures("spark")
def test_a_table_that_is_maintained_is_proven_and_loaded_as_before_and_no_row_moves(
    pipeline: Pipeline,
) -> None:
    for _ in range(2):
        pipeline.produce(80)
        pipeline.ran()
    before, committed, rows = data_files(pipeline.table), pipeline.committed(), pipeline.in_table()
    shown = pipeline.door("table", "maintain", after=("--dry-run",))
    assert shown.code == 0, shown.err
    assert (shown.document["small_files"], shown.document["unneeded_files"]) == (len(before), 0)
    compacted = pipeline.door("table", "compact", after=("--dry-run",))
    assert (compacted.code, compacted.document["small_files"]) == (0, len(before))
    assert data_files(pipeline.table) == before and DeltaTable(str(pipeline.table)).version() == 1

    done = maintain(pipeline)
    assert done.code == 0, done.err
    counts = [done.document[name] for name in ("small_files", "large_files", "removed_files")]
    assert counts == [len(before), 1, 0]
    assert before < data_files(pipeline.table), "what OPTIMIZE replaced stays for a week"
    checkpoint = f"{done.document['checkpoint']:020}.checkpoint.parquet"
    assert (pipeline.table / "_delta_log" / checkpoint).exists()
    assert pipeline.in_table() == rows and pipeline.committed() == committed
    assert pipeline.ran().outcomes == ["up_to_date"], "a compaction is no foreign change"
    cost, again = watched(pipeline, "table", "maintain", after=("--yes",))
    assert cost["started"] == [] and not SPARK & set(cost["loaded"]) and not again["small_files"], (
        "where nothing is to be done no Spark is started"
    )

    pipeline.produce(80)
    assert pipeline.ran().document["records_read"] == 80
    assert pipeline.is_whole() and pipeline.door("verify").document["passed"] is True


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_unneeded_files_are_deleted_after_a_week_and_an_unrecorded_plan_is_counted(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    assert maintain(pipeline).code == 0
    left = pipeline.table / "part-00000-of-a-run-that-was-killed.parquet"
    left.write_bytes(b"half a file")
    removed_earlier(pipeline.table, days=8)
    grown_older(pipeline.table, days=8)
    done = maintain(pipeline)
    assert done.code == 0 and done.document["removed_files"] > 1, done.err + done.out
    assert not left.exists() and len(data_files(pipeline.table)) == 1
    assert pipeline.ran().code == 0
    assert pipeline.is_whole() and pipeline.door("verify").document["passed"] is True


def removed_earlier(table: Path, days: int) -> None:
    """Rewrite the moments of removals in the log, and drop the checkpoints, which have them too."""
    log = table / "_delta_log"
    for pattern in ("*.checkpoint*", "_last_checkpoint", ".*.crc", "*.crc"):
        for path in log.glob(pattern):
            path.unlink()
    for path in log.glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= days * DAY_S * 1000
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_a_table_that_cannot_be_maintained_is_reported_and_nothing_is_written(
    pipeline: Pipeline,
) -> None:
    for words in (("maintain",), ("compact",)):
        refused(pipeline.door("table", *words), 2, "There is no table yet", "etl run")
    pipeline.produce(40)
    pipeline.ran()
    refused(maintain(pipeline, "--retain", "6d"), 2, "7 days at least", "--retain 7d")
    refused(pipeline.door("table", "maintain"), 2, "there is no terminal for a confirmation")
    refused(maintain(pipeline.under("other")), 2, "This pipeline has no commit in the table")
    DeltaTable(str(pipeline.table)).delete("offset < 3")
    for result in (maintain(pipeline), pipeline.door("table", "compact")):
        refused(result, 5, "DELETE", "etl table accept-changes")
    assert DeltaTable(str(pipeline.table)).version() == 1


@pytest.mark.usefixtures("spark")
def test_the_run_that_finds_as_many_small_files_as_the_conf_allows_compacts_them(
    pipeline: Pipeline,
) -> None:
    pipeline.settings = {"table": {"auto_compact_min_files": 3}}
    for outcome in ("ingested", "ingested", "table_compacted"):
        pipeline.produce(80)
        assert pipeline.ran().outcomes[-1] == outcome
    assert len(DeltaTable(str(pipeline.table)).file_uris()) == 1 and pipeline.is_whole()
