"""Row 13: what others do to the table, between two runs and in the middle of an append."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pyarrow
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from etl.cli import main
from tests.chaos.driver import Driver
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, checked, held, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline


def table_of(pipeline: Pipeline) -> DeltaTable:
    return DeltaTable(str(pipeline.table))


def sql(statement: str) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None, "the stage has no Spark session"
    spark.sql(statement)


def loaded(stage: Stage, runs: int = 2, **settings: Any) -> Pipeline:
    """A pipeline after some runs, each with records of its own."""
    pipeline = stage.pipeline(**settings)
    for _ in range(runs):
        pipeline.produce(120)
        pipeline.ran()
    return pipeline


def _acknowledge(pipeline: Pipeline, version: str) -> None:
    """The advice of the error."""
    assert (
        main(
            [
                "table",
                "accept-changes",
                str(pipeline.conf),
                version,
                "--reason",
                "it was us",
                "--yes",
            ]
        )
        == 0
    )


def between(change: Callable[[Pipeline, int], None]) -> Callable[[Stage], CaseResult]:
    """Another writer changes the table after two runs; the next one stops, the rows are restored,
    the change is accepted.
    """

    def play(stage: Stage) -> CaseResult:
        pipeline = loaded(stage)
        before = table_of(pipeline).version()
        change(pipeline, before)
        after = held(pipeline)
        pipeline.produce(80)
        result = stopped(
            pipeline.run(),
            5,
            "of another writer",
            "table accept-changes",
        )
        sql(f"RESTORE TABLE delta.`{pipeline.table}` TO VERSION AS OF {before}")
        _acknowledge(pipeline, str(table_of(pipeline).version()))
        return stage.finish(pipeline, after=after, next_run=result)

    return play


def restored(pipeline: Pipeline, before: int) -> None:
    sql(f"RESTORE TABLE delta.`{pipeline.table}` TO VERSION AS OF {before - 1}")


def overwritten(pipeline: Pipeline, before: int) -> None:
    write_deltalake(
        str(pipeline.table), table_of(pipeline).to_pyarrow_table().slice(0, 1), mode="overwrite"
    )


def deleted(pipeline: Pipeline, before: int) -> None:
    sql(f"DELETE FROM delta.`{pipeline.table}` WHERE offset < 5")


def truncated(pipeline: Pipeline, before: int) -> None:
    sql(f"TRUNCATE TABLE delta.`{pipeline.table}`")


def deleted_by_rule(stage: Stage) -> CaseResult:
    pipeline = loaded(stage, table={"on_rows_removed": "record"})
    deleted(pipeline, 0)
    after, gone = (
        held(pipeline),
        Counter({row: n for row, n in pipeline.in_topic().items() if row[1] < 5}),
    )
    pipeline.produce(80)
    result = pipeline.ran()
    assert result.outcomes == ["rows_removed", "ingested"], result.outcomes
    return stage.finish(pipeline, after=after, next_run=result, expected=pipeline.in_topic() - gone)


def dropped(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    shutil.rmtree(pipeline.table)
    gone = pipeline.in_topic()
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "there is no table", "table accept-changes CONF none")
    _acknowledge(pipeline, "none")
    return stage.finish(
        pipeline, after="nothing", next_run=result, expected=pipeline.in_topic() - gone
    )


def dropped_with_a_plan_stored(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    gone = pipeline.in_topic()
    pipeline.produce(80)
    with Driver(pipeline, sends=(SIGKILL, "fetch")) as driver:
        driver.wait()
    shutil.rmtree(pipeline.table)
    result = stopped(
        pipeline.run(),
        5,
        "There is no table at this path, and ZooKeeper knows plan",
        "table accept-changes CONF none",
    )
    _acknowledge(pipeline, "none")
    again = pipeline.ran()
    assert again.outcomes == ["plan_superseded", "ingested"], again.outcomes
    return stage.finish(
        pipeline, after="nothing", next_run=result, expected=pipeline.in_topic() - gone
    )


def replaced(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    ours = pipeline.folder / "ours"
    pipeline.table.rename(ours)
    DeltaTable.create(str(pipeline.table), DeltaTable(str(ours)).schema())
    after = held(pipeline)
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "The table at this path has id", "table accept-changes")
    shutil.rmtree(pipeline.table)
    ours.rename(pipeline.table)
    return stage.finish(pipeline, after=after, next_run=result)


def replaced_in_place(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    before = table_of(pipeline).version()
    sql(
        f"CREATE OR REPLACE TABLE delta.`{pipeline.table}` USING delta AS SELECT * FROM "
        f"delta.`{pipeline.table}` WHERE offset < 3"
    )
    after = held(pipeline)
    result = stopped(pipeline.run(), 5, "table accept-changes")
    sql(f"RESTORE TABLE delta.`{pipeline.table}` TO VERSION AS OF {before}")
    _acknowledge(pipeline, str(table_of(pipeline).version()))
    pipeline.produce(80)
    return stage.finish(pipeline, after=after, next_run=result)


def copied(stage: Stage) -> CaseResult:
    """A copy of the rows without our commits: as a clone, it has the rows and no transaction
    version.
    """
    pipeline = loaded(stage)
    ours = pipeline.folder / "ours"
    pipeline.table.rename(ours)
    write_deltalake(str(pipeline.table), DeltaTable(str(ours)).to_pyarrow_table())
    after = held(pipeline)
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "table accept-changes")
    _acknowledge(pipeline, str(table_of(pipeline).version()))
    return stage.finish(pipeline, after=after, next_run=result)


def cloned(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    ours = pipeline.folder / "ours"
    pipeline.table.rename(ours)
    sql(f"CREATE TABLE delta.`{pipeline.table}` SHALLOW CLONE delta.`{ours}`")
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "table accept-changes")
    _acknowledge(pipeline, str(table_of(pipeline).version()))
    pipeline.ran()
    rows = SparkSession.getActiveSession().read.format("delta").load(str(pipeline.table))  # type: ignore[union-attr]
    copy = pipeline.folder / "copy"
    rows.write.format("delta").save(str(copy))  # delta-rs does not follow a clone's absolute paths
    shutil.rmtree(pipeline.table)
    copy.rename(pipeline.table)
    return CaseResult(
        "the rows of 2 plans, none of our commits", summary_of(result), checked(pipeline)
    )


def tidied_between(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    sql(f"OPTIMIZE delta.`{pipeline.table}`")
    sql(f"VACUUM delta.`{pipeline.table}`")
    after = held(pipeline)
    pipeline.produce(80)
    return stage.finish(pipeline, after=after, next_run=pipeline.ran())


def during_append(
    change: Callable[[Pipeline], None],
    then: Callable[[Stage, Pipeline, CommandResult, str], CaseResult],
) -> Callable[[Stage], CaseResult]:
    """Another writer changes the table while the rows of a run are written."""

    def play(stage: Stage) -> CaseResult:
        pipeline = loaded(stage, runs=1, transform=TRANSFORM)
        pipeline.produce(80)
        hold = Hold(stage.folder / "marks", 0)
        with Driver(pipeline, hold=hold) as driver:
            driver.wait_for("a task with its first rows", lambda: bool(hold.workers()))
            change(pipeline)
            hold.release()
            result = driver.wait()
        return then(stage, pipeline, result, held(pipeline))

    return play


def _tidy_now(pipeline: Pipeline) -> None:
    table_of(pipeline).optimize.compact()
    table_of(pipeline).vacuum(dry_run=False)


def _add_column(pipeline: Pipeline) -> None:
    table_of(pipeline).alter.add_columns(
        Field("added_by_others", PrimitiveType("string"), nullable=True)
    )


def _remove_all(pipeline: Pipeline) -> None:
    table_of(pipeline).delete()


def _restore_first(pipeline: Pipeline) -> None:
    """A RESTORE that takes rows away needs an older version: the first run made version 0, an empty
    append makes 1.
    """
    table = table_of(pipeline)
    table.delete("offset < 5")
    table_of(pipeline).restore(table.version() - 1)


def _run_succeeds(
    stage: Stage, pipeline: Pipeline, result: CommandResult, after: str
) -> CaseResult:
    assert result.code == 0, f"{summary_of(result)}\n{result.err}"
    return stage.finish(pipeline, after=after, next_run=result)


def _next_run_is_whole(
    stage: Stage, pipeline: Pipeline, result: CommandResult, after: str
) -> CaseResult:
    assert result.code in (0, 7), f"{summary_of(result)}\n{result.err}"
    return stage.finish(pipeline, after=after, next_run=pipeline.ran())


def _put_back(stage: Stage, pipeline: Pipeline, result: CommandResult, after: str) -> CaseResult:
    """The append is in the table, the rows of the plan before are not: the run stops, and a person
    puts them back.
    """
    stopped(result, 5, "Since our last commit the")
    first = DeltaTable(str(pipeline.table), version=0).to_pyarrow_table()
    here = {
        (row["partition"], row["offset"])
        for row in table_of(pipeline).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    }
    lost = [
        i
        for i, row in enumerate(first.select(["partition", "offset"]).to_pylist())
        if (row["partition"], row["offset"]) not in here
    ]
    if lost:
        write_deltalake(str(pipeline.table), first.take(pyarrow.array(lost)), mode="append")
    stopped(pipeline.run(), 5, "table accept-changes")
    _acknowledge(pipeline, str(table_of(pipeline).version()))
    return stage.finish(pipeline, after=after, next_run=result)


def history_cleaned(stage: Stage) -> CaseResult:
    """Only checkpoints cover the commit whose offsets were not committed; its result is counted
    from the current rows.
    """
    pipeline = loaded(stage)
    pipeline.produce(80)
    with Driver(pipeline, sends=(SIGKILL, "record")) as driver:
        driver.wait()
    after = held(pipeline)
    _forget_commits(pipeline)
    result = pipeline.ran()
    assert "plan_completed" in result.outcomes, result.outcomes
    return stage.finish(pipeline, after=after, next_run=result)


def history_cleaned_and_ledger_lost(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    after = held(pipeline)
    _forget_commits(pipeline)
    kept = _empty_ledger(pipeline)
    result = stopped(pipeline.run(), 5, "the table's log no longer has that plan")
    _put_ledger_back(pipeline, kept)
    pipeline.produce(80)
    return stage.finish(pipeline, after=after, next_run=result)


def retention_of_ids(stage: Stage) -> CaseResult:
    pipeline = loaded(stage, runs=1)
    after, table = held(pipeline), pipeline.table
    sql(
        f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES "
        f"('delta.setTransactionRetentionDuration' = 'interval 1 days')"
    )
    pipeline.produce(80)
    result = stopped(pipeline.run(), 2, "forgets transaction ids", "UNSET TBLPROPERTIES")
    sql(
        f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')"
    )
    return stage.finish(pipeline, after=after, next_run=result)


def other_uid(stage: Stage) -> CaseResult:
    """Another pipeline of the same name wrote a commit of its own."""
    pipeline = loaded(stage, runs=1)
    table = table_of(pipeline)
    commit = json.loads(
        (pipeline.table / f"_delta_log/{table.version():020}.json").read_text().splitlines()[0]
    )["commitInfo"]
    stamp = json.loads(commit["userMetadata"])
    forged = CommitProperties(
        custom_metadata={"userMetadata": json.dumps({**stamp, "uid": "another", "number": 2})},
        app_transactions=[Transaction(stamp["app_id"], 2)],
    )
    table.create_write_transaction([], "append", table.schema(), commit_properties=forged)
    after, loaded_by_us = held(pipeline), pipeline.in_topic()
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "another pipeline of the same name")
    return CaseResult(after, summary_of(result), checked(pipeline, loaded_by_us))


def _forget_commits(pipeline: Pipeline) -> None:
    """As log retention does it: a checkpoint, and the commit files before it are gone."""
    table = table_of(pipeline)
    write_deltalake(
        table,
        table.to_pyarrow_table().slice(0, 0),
        mode="append",
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    )
    table_of(pipeline).create_checkpoint()
    partition = pipeline.table / "_delta_log"
    newest = table_of(pipeline).version()
    for version in range(newest):
        (partition / f"{version:020}.json").unlink(missing_ok=True)


def _empty_ledger(pipeline: Pipeline) -> dict[str, bytes]:
    root = f"/consumers/{pipeline.group}/etl/clicks"
    with pipeline.zookeeper() as client:
        kept = _payloads(client, root)
        client.delete(root, recursive=True)
    return kept


def _put_ledger_back(pipeline: Pipeline, kept: dict[str, bytes]) -> None:
    with pipeline.zookeeper() as client:
        for path, payload in sorted(kept.items()):
            client.ensure_path(path)
            client.set(path, payload)


def _payloads(client: KazooClient, path: str) -> dict[str, bytes]:
    found = {path: client.get(path)[0]}
    for child in client.get_children(path):
        found.update(_payloads(client, str(Path(path, child))))
    return found


CASES = (
    Case(
        13,
        "restored between runs",
        "RESTORE to the version before the last plan; then put right and acknowledged",
        between(restored),
    ),
    Case(
        13,
        "overwritten between runs",
        "the table is overwritten with one row; then put right and acknowledged",
        between(overwritten),
    ),
    Case(
        13,
        "rows deleted between runs",
        "DELETE of some rows; then put right and acknowledged",
        between(deleted),
    ),
    Case(
        13,
        "truncated between runs",
        "TRUNCATE; then put right and acknowledged",
        between(truncated),
    ),
    Case(
        13,
        "rows deleted by rule",
        "DELETE of some rows under `on_rows_removed: record`",
        deleted_by_rule,
    ),
    Case(
        13,
        "dropped",
        "the table is dropped; that is acknowledged, and the next run goes on",
        dropped,
        short=True,
    ),
    Case(
        13,
        "dropped with a plan stored",
        "killed before the fetch, the table dropped, that acknowledged",
        dropped_with_a_plan_stored,
    ),
    Case(
        13,
        "replaced by another table",
        "another empty table at the path; then ours is put back",
        replaced,
    ),
    Case(
        13,
        "replaced in place",
        "CREATE OR REPLACE TABLE; then put right and acknowledged",
        replaced_in_place,
    ),
    Case(
        13,
        "copied without its log",
        "the rows in a new table at the path; that is acknowledged, and the next run goes on",
        copied,
    ),
    Case(
        13,
        "cloned to the path",
        "a SHALLOW CLONE at the path; that is acknowledged, and the next run goes on",
        cloned,
    ),
    Case(13, "optimized and vacuumed between runs", "OPTIMIZE and VACUUM", tidied_between),
    Case(
        13,
        "optimized and vacuumed during an append",
        "compaction and vacuum while files are written",
        during_append(_tidy_now, _run_succeeds),
    ),
    Case(
        13,
        "column added during an append",
        "ALTER TABLE ADD COLUMN while files are written",
        during_append(_add_column, _next_run_is_whole),
    ),
    Case(
        13,
        "rows deleted during an append",
        "DELETE of all rows while files are written; then put back",
        during_append(_remove_all, _put_back),
    ),
    Case(
        13,
        "restored during an append",
        "DELETE and RESTORE while files are written",
        during_append(_restore_first, _put_back),
    ),
    Case(
        13,
        "commit history cleaned up",
        "killed after the commit, and the commit's file removed behind a checkpoint",
        history_cleaned,
    ),
    Case(
        13,
        "commit history and ledger gone",
        "the ledger emptied and the commits' files removed; then the ledger is put back",
        history_cleaned_and_ledger_lost,
    ),
    Case(
        13,
        "transaction ids expire",
        "`delta.setTransactionRetentionDuration` is set; then unset",
        retention_of_ids,
    ),
    Case(
        13,
        "another pipeline of the same name",
        "a commit of our application id with another uid",
        other_uid,
    ),
)
