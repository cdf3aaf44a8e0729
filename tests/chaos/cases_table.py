"""Row 13: what others do to the table, between two runs and in the middle of an append."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
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

from tests.chaos.driver import Driver, kill_before
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.stage import (
    CaseResult,
    Stage,
    accept_table,
    case_result,
    checked,
    decide,
    ended,
    held,
    stopped,
)
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


def changed_between(stage: Stage, *, change: str) -> CaseResult:
    """Another writer changes the table: the next run stops, then the change is accepted."""
    pipeline = loaded(stage)
    before = table_of(pipeline).version()
    BETWEEN[change](pipeline)
    after = held(pipeline)
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "of another writer", "table accept-changes")
    sql(f"RESTORE TABLE delta.`{pipeline.table}` TO VERSION AS OF {before}")
    accept_table(pipeline)
    return stage.finish(pipeline, after, result)


def _restore(pipeline: Pipeline) -> None:
    before = table_of(pipeline).version() - 1
    sql(f"RESTORE TABLE delta.`{pipeline.table}` TO VERSION AS OF {before}")


def _overwrite(pipeline: Pipeline) -> None:
    first = table_of(pipeline).to_pyarrow_table().slice(0, 1)
    write_deltalake(str(pipeline.table), first, mode="overwrite")


def _delete(pipeline: Pipeline) -> None:
    sql(f"DELETE FROM delta.`{pipeline.table}` WHERE offset < 5")


def _truncate(pipeline: Pipeline) -> None:
    sql(f"TRUNCATE TABLE delta.`{pipeline.table}`")


BETWEEN: Mapping[str, Callable[[Pipeline], None]] = {
    "restore": _restore,
    "overwrite": _overwrite,
    "delete": _delete,
    "truncate": _truncate,
}


def deleted_by_rule(stage: Stage) -> CaseResult:
    pipeline = loaded(stage, table={"on_rows_removed": "record"})
    _delete(pipeline)
    after = held(pipeline)
    gone = Counter({row: n for row, n in pipeline.in_topic().items() if row[1] < 5})
    pipeline.produce(80)
    result = pipeline.ran()
    assert result.outcomes == ["rows_removed", "ingested"], result.outcomes
    return stage.finish(pipeline, after, result, expected=pipeline.in_topic() - gone)


def dropped(stage: Stage, *, plan_stored: bool = False) -> CaseResult:
    """The table is dropped, after a run or where one was killed before its fetch."""
    pipeline = loaded(stage)
    gone = pipeline.in_topic()
    pipeline.produce(80)
    if plan_stored:
        kill_before(pipeline, "fetch")
    shutil.rmtree(pipeline.table)
    found = "There is no table at this path, and ZooKeeper knows plan" if plan_stored else ""
    advice = "table accept-changes CONF none"
    result = stopped(pipeline.run(), 5, found or "there is no table", advice)
    decide(pipeline, "table accept-changes", "none")
    if plan_stored:
        again = pipeline.ran()
        assert again.outcomes == ["plan_superseded", "ingested"], again.outcomes
    return stage.finish(pipeline, "nothing", result, expected=pipeline.in_topic() - gone)


def _moved_away(pipeline: Pipeline) -> Path:
    ours = pipeline.folder / "ours"
    pipeline.table.rename(ours)
    return ours


def replaced(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    ours = _moved_away(pipeline)
    DeltaTable.create(str(pipeline.table), DeltaTable(str(ours)).schema())
    after = held(pipeline)
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "The table at this path has id", "table accept-changes")
    shutil.rmtree(pipeline.table)
    ours.rename(pipeline.table)
    return stage.finish(pipeline, after, result)


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
    accept_table(pipeline)
    pipeline.produce(80)
    return stage.finish(pipeline, after, result)


def copied(stage: Stage) -> CaseResult:
    """A copy of the rows without our commits, as a clone."""
    pipeline = loaded(stage)
    ours = _moved_away(pipeline)
    write_deltalake(str(pipeline.table), DeltaTable(str(ours)).to_pyarrow_table())
    after = held(pipeline)
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "table accept-changes")
    accept_table(pipeline)
    return stage.finish(pipeline, after, result)


def cloned(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    ours = _moved_away(pipeline)
    sql(f"CREATE TABLE delta.`{pipeline.table}` SHALLOW CLONE delta.`{ours}`")
    pipeline.produce(80)
    result = stopped(pipeline.run(), 5, "table accept-changes")
    accept_table(pipeline)
    pipeline.ran()
    rows = SparkSession.getActiveSession().read.format("delta").load(str(pipeline.table))  # type: ignore[union-attr]
    copy = pipeline.folder / "copy"
    rows.write.format("delta").save(str(copy))  # delta-rs does not follow a clone's absolute paths
    shutil.rmtree(pipeline.table)
    copy.rename(pipeline.table)
    return case_result("the rows of 2 plans, none of our commits", result, checked(pipeline))


def tidied_between(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    sql(f"OPTIMIZE delta.`{pipeline.table}`")
    sql(f"VACUUM delta.`{pipeline.table}`")
    after = held(pipeline)
    pipeline.produce(80)
    return stage.finish(pipeline, after, pipeline.ran())


def changed_during_append(stage: Stage, *, change: str) -> CaseResult:
    """Another writer changes the table while the rows of a run are written."""
    pipeline = loaded(stage, runs=1, transform=TRANSFORM)
    pipeline.produce(80)
    hold = Hold(stage.folder / "marks", 0)
    with Driver(pipeline, hold=hold) as driver:
        driver.wait_for("a task with its first rows", lambda: bool(hold.workers()))
        DURING[change](pipeline)
        hold.release()
        result = driver.wait()
    after = held(pipeline)
    if change in ("remove all", "restore"):
        _put_back(pipeline, result)
    elif change == "add a column":
        ended(result, 0, 7)
        result = pipeline.ran()
    else:
        ended(result, 0)
    return stage.finish(pipeline, after, result)


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
    """A RESTORE that removes rows needs an older version: an empty append makes 1."""
    table = table_of(pipeline)
    table.delete("offset < 5")
    table_of(pipeline).restore(table.version() - 1)


DURING: Mapping[str, Callable[[Pipeline], None]] = {
    "tidy": _tidy_now,
    "add a column": _add_column,
    "remove all": _remove_all,
    "restore": _restore_first,
}


def _put_back(pipeline: Pipeline, result: CommandResult) -> None:
    """The rows of the plan before are not in the table: a person puts them back."""
    stopped(result, 5, "Since our last commit the")
    place = ["partition", "offset"]
    first = DeltaTable(str(pipeline.table), version=0).to_pyarrow_table()
    here = table_of(pipeline).to_pyarrow_table(columns=place).to_pylist()
    lost = [n for n, row in enumerate(first.select(place).to_pylist()) if row not in here]
    if lost:
        write_deltalake(str(pipeline.table), first.take(pyarrow.array(lost)), mode="append")
    stopped(pipeline.run(), 5, "table accept-changes")
    accept_table(pipeline)


def history_cleaned(stage: Stage) -> CaseResult:
    """Only checkpoints cover the commit: which plan it was is unknown, also in an accepted table,
    and the rows decide.
    """
    pipeline = loaded(stage)
    pipeline.produce(80)
    after = kill_before(pipeline, "record")
    _forget_commits(pipeline)
    for _ in range(2):
        result = stopped(pipeline.run(), 5, "is unknown: the table's log no longer has the commit")
        accept_table(pipeline)
    decide(pipeline, "ledger restore")
    return stage.finish(pipeline, after, result)


def history_cleaned_and_ledger_lost(stage: Stage) -> CaseResult:
    pipeline = loaded(stage)
    after, root = held(pipeline), f"/consumers/{pipeline.group}/etl/clicks"
    _forget_commits(pipeline)
    with pipeline.zookeeper() as client:
        kept = read_znodes(client, root)
        client.delete(root, recursive=True)
    result = stopped(pipeline.run(), 5, "the table's log no longer has that plan")
    with pipeline.zookeeper() as client:
        write_znodes(client, root, kept)
    pipeline.produce(80)
    return stage.finish(pipeline, after, result)


Znodes = list[tuple[str, bytes, int]]
"""Path below the root, payload and version of each persistent znode, parents first."""


def read_znodes(client: KazooClient, root: str) -> Znodes:
    """A copy of the znodes below `root` as a restore would bring it back."""
    found, paths = Znodes(), [root]
    for path in paths:
        payload, stat = client.get(path)
        if not stat.ephemeralOwner:
            found.append((path.removeprefix(root), payload, stat.version))
            paths += [f"{path}/{name}" for name in client.get_children(path)]
    return found


def write_znodes(client: KazooClient, root: str, copy: Znodes) -> None:
    """Everything below `root` as it was then, versions too: they count the writes."""
    for path, payload, version in copy:
        client.create(root + path, payload, makepath=True)
        for _ in range(version):
            client.set(root + path, payload)


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
    return stage.finish(pipeline, after, result)


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
    return case_result(after, result, checked(pipeline, loaded_by_us))


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
