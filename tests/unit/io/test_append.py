"""Commits of data files to real tables, without Spark."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from etl.errors import EtlError, LedgersDisagree, NotOurTable, TableUnreachable
from etl.io.delta.append import ArrowWriter, Destination, EmptyCommit, Load, SparkWriter, append
from etl.io.delta.data_files import DataFiles
from etl.io.delta.loaded_plans import Outcome, Result, read_table
from etl.ledger import plan_document
from etl.ledger.plan_document import parse_plan, results_of, with_id
from etl.model.columns import arrow_schema
from etl.model.plans import FileOptions, Plan, PlanKind, Written
from tests.builders import plain_plan
from tests.fakes.file_tasks import APP, LOG, READ, Tasks, plan_of


def one_row_of_nulls() -> pa.RecordBatch:
    filled = {"topic": ["t"], "partition": [0], "offset": [0], "incarnation": [0]}
    return pa.record_batch(
        [pa.array(filled.get(field.name, [None]), field.type) for field in arrow_schema()],
        schema=arrow_schema(),
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def appended(path: str, plan: Plan, tasks: Tasks | None = None, **to: Any) -> Outcome:
    return append(
        Load(ArrowWriter(), tasks or Tasks(plan)),
        plan,
        Destination(path, APP, run_id="run-1", **to),
    )


def offsets(path: str) -> list[tuple[int, int]]:
    table = DeltaTable(path).to_pyarrow_table(columns=["partition", "offset"])
    return sorted(
        zip(*(table.column(name).to_pylist() for name in ("partition", "offset")), strict=True)
    )


def id_of(path: str) -> str:
    return str(DeltaTable(path).metadata().id)


def test_two_plans_are_two_commits_with_their_numbers_rows_and_results(path: str) -> None:
    by = ("topic", "event_date")
    assert appended(path, plan_of(), partition_by=by).result is Result.APPLIED
    second = plan_of(2, table_id=id_of(path))
    outcome = appended(path, second, partition_by=by, known=0)
    assert (outcome.result, outcome.delta_version) == (Result.APPLIED, 1)
    assert outcome.metadata is not None and results_of(outcome.metadata) == READ
    assert outcome.metadata.document is not None
    assert parse_plan(outcome.metadata.document, path="").id == second.id
    assert offsets(path) == sorted([*((0, n) for n in range(20)), *[(1, n) for n in range(5)] * 2])
    blind = [commit["isBlindAppend"] for commit in DeltaTable(path).history()]
    assert blind == [True, True], "as Spark's commits are"
    again = Tasks(second)
    assert appended(path, second, again, partition_by=by).result is Result.APPLIED
    assert again.wanted is None, "no task writes a number that the table has"


def test_a_table_that_files_make_is_the_one_that_a_plan_without_ranges_makes(
    path: str, tmp_path: Path
) -> None:
    by, empty = ("topic", "event_date"), str(tmp_path / "empty")
    appended(path, plan_of(), partition_by=by)
    load = Load(EmptyCommit(arrow_schema()))
    append(load, plan_of(), Destination(empty, APP, partition_by=by))
    by_files, by_none = DeltaTable(path), DeltaTable(empty)
    assert by_files.schema().to_json() == by_none.schema().to_json()
    assert by_files.protocol() == by_none.protocol()
    assert by_files.metadata().partition_columns == [*by]
    assert by_files.metadata().configuration == by_none.metadata().configuration == {}


def with_other_rows(path: str, found: list[Written]) -> list[Written]:
    return [replace(found[0], results={0: replace(READ[0], rows=11)}), *found[1:]]


def with_a_missing_file(path: str, found: list[Written]) -> list[Written]:
    Path(path, found[1].files[0].path).unlink()
    return found


def with_a_longer_file(path: str, found: list[Written]) -> list[Written]:
    file = Path(path, found[1].files[0].path)
    file.write_bytes(file.read_bytes() + b"x")
    return found


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda _, found: found[:1], "Range 1 of plan 1 came back 0 times"),
        (lambda _, found: [*found, found[0]], "Range 0 of plan 1 came back 2 times"),
        (lambda _, found: [*found, replace(found[0], indices=(2,))], "Range 2 of plan 1 came back"),
        (with_other_rows, "15 rows of the 16"),
        (with_a_missing_file, "is missing"),
        (with_a_longer_file, "bytes of"),
    ],
)
def test_what_tasks_give_back_is_checked_and_nothing_is_committed_if_it_is_wrong(
    path: str, spoil: Callable[[str, list[Written]], list[Written]], why: str
) -> None:
    with pytest.raises(TableUnreachable, match=why):
        appended(path, plan_of(), Tasks(plan_of(), spoil=partial(spoil, path)))
    assert read_table(path, APP, known=None) is None
    assert appended(path, plan_of()).result is Result.APPLIED
    assert len(offsets(path)) == 15, "no commit names the files of the lost attempt"


@pytest.mark.parametrize("number", [1, 2], ids=["first write", "later write"])
def test_a_commit_during_the_tasks_wins_and_the_error_names_its_pipeline(
    path: str, number: int
) -> None:
    if number == 2:
        appended(path, plan_of())
    table_id = id_of(path) if number == 2 else None
    ours = plan_of(number, table_id=table_id)
    theirs = plan_of(number, table_id=table_id, created_at_ms=9)
    outcome = appended(path, ours, Tasks(ours, meanwhile=lambda: appended(path, theirs)))
    assert outcome.result is Result.APPLIED_BY_ANOTHER
    assert outcome.metadata is not None and outcome.metadata.plan_id == theirs.id
    assert (len(offsets(path)), DeltaTable(path).version()) == (15 * number, number - 1)


OTHER = "offset-range-etl/cluster/group/other"


def appended_by_another(path: str, table_id: str | None = None) -> None:
    plan = plan_of(table_id=table_id)
    append(Load(ArrowWriter(), Tasks(plan)), plan, Destination(path, OTHER))


def test_a_table_created_during_the_first_files_is_not_appended_to(path: str) -> None:
    tasks = Tasks(plan_of(), meanwhile=lambda: appended_by_another(path))
    with pytest.raises(LedgersDisagree, match="no table"):
        appended(path, plan_of(), tasks)
    assert len(offsets(path)) == 15


def test_a_column_added_during_the_tasks_does_not_discard_their_files(path: str) -> None:
    appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path))
    note = Field("note", PrimitiveType("string"))
    outcome = appended(
        path, plan, Tasks(plan, meanwhile=lambda: DeltaTable(path).alter.add_columns([note]))
    )
    assert (outcome.result, len(offsets(path))) == (Result.APPLIED, 30)
    assert DeltaTable(path).to_pyarrow_table(columns=["note"]).column("note").null_count == 30


@pytest.mark.parametrize(
    ("is_late", "gives_way"),
    [(False, False), (True, False), (True, True)],
    ids=["before tasks write", "while tasks write", "under auto"],
)
def test_a_table_that_became_unfit_since_the_writer_was_chosen_is_refused_and_nothing_is_committed(
    path: str, is_late: bool, gives_way: bool
) -> None:
    def constrain() -> None:
        DeltaTable(path).alter.add_constraint({"small": "partition < 9"})

    appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path))
    tasks = Tasks(plan, meanwhile=constrain if is_late else lambda: None)
    if not is_late:
        constrain()
    error = TableUnreachable if gives_way else NotOurTable
    with pytest.raises(error, match="constraint small") as raised:
        append(Load(ArrowWriter(gives_way=gives_way), tasks), plan, Destination(path, APP))
    assert len(offsets(path)) == 15 and (tasks.wanted is not None) == is_late
    assert ("the next run uses Spark's" in str(raised.value)) == gives_way
    assert ("table.writer" in str(raised.value)) != gives_way


@pytest.mark.parametrize("table", [True, False], ids=["a table", "a table to be"])
@pytest.mark.parametrize("what", ["a task failed", "a file was lost"])
def test_a_write_that_comes_to_nothing_leaves_no_file_and_takes_none_of_another_write(
    path: str, what: str, *, table: bool
) -> None:
    """Otherwise retries on a full disk would each leave their files until no space is left."""
    if table:
        appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path)) if table else plan_of()
    before = sorted(Path(path).rglob("*.parquet"))
    append_others = DataFiles(FileOptions(path, tuple(arrow_schema().names), write_id="another"))
    Path(path, "_delta_log").mkdir(parents=True, exist_ok=True)

    def fail() -> None:
        raise TableUnreachable("no space left", action="free space")

    def lose(found: list[Written]) -> list[Written]:
        Path(path, found[0].files[0].path).unlink()
        return found

    failing = Tasks(plan, meanwhile=fail) if what == "a task failed" else Tasks(plan, spoil=lose)
    append_others.take(one_row_of_nulls())
    [other] = append_others.end()
    with pytest.raises(TableUnreachable):
        appended(path, plan, failing)
    assert sorted(Path(path).rglob("*.parquet")) == sorted([*before, Path(path, other.path)])
    assert appended(path, plan).result is Result.APPLIED


def test_an_error_of_the_file_system_at_the_commit_is_reported_as_that_and_not_as_a_bug(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: Any, **__: Any) -> None:
        """NFS after a restart of its server, as delta-rs reports it."""
        raise OSError("Generic LocalFileSystem error: Stale file handle (os error 116)")

    appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path))
    with monkeypatch.context() as failing:
        failing.setattr(DeltaTable, "create_write_transaction", stale)
        with pytest.raises(TableUnreachable, match="Stale file handle"):
            appended(path, plan)
    assert appended(path, plan).result is Result.APPLIED


@pytest.mark.parametrize(
    ("cause", "code"),
    [("Function not implemented (os error 38)", 2), ("Disk quota exceeded (os error 122)", 7)],
)
def test_a_commit_that_a_mount_rejects_shows_the_innermost_cause(
    path: str, monkeypatch: pytest.MonkeyPatch, cause: str, code: int
) -> None:
    """With the text of delta-rs 1.6, colours and arrows included."""
    arrow = "\n  \x1b[31m↳\x1b[0m "
    text = f"Generic LocalFileSystem error{arrow}Unable to rename file{arrow}{cause}\n"

    def reject(*_: object) -> None:
        raise OSError(text)

    monkeypatch.setattr(ArrowWriter, "_commit", reject)
    with pytest.raises(EtlError) as caught:
        appended(path, plan_of())
    assert (caught.value.exit_code, cause in caught.value.message) == (code, True)
    assert "\x1b" not in str(caught.value)


def test_files_stay_if_the_work_after_a_commit_fails(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs deletes expired files of the log after the commit, in the same call."""
    commit = ArrowWriter._commit

    def fail_afterwards(*given: Any) -> None:
        commit(*given)
        raise OSError("Unable to delete file 0.json: Operation not permitted (os error 1)")

    monkeypatch.setattr(ArrowWriter, "_commit", fail_afterwards)
    assert appended(path, plan_of()).result is Result.APPLIED
    assert len(offsets(path)) == DeltaTable(path).to_pyarrow_table().num_rows > 0


def test_rows_of_another_pipeline_that_come_meanwhile_are_no_conflict(path: str) -> None:
    appended(path, plan_of())
    table_id = id_of(path)
    plan = plan_of(2, table_id=table_id)
    tasks = Tasks(plan, meanwhile=lambda: appended_by_another(path, table_id))
    outcome = appended(path, plan, tasks)
    assert (outcome.result, DeltaTable(path).version()) == (Result.APPLIED, 2)
    assert len(offsets(path)) == 45


def test_a_lower_number_than_the_tables_makes_no_task_write_and_takes_nothing_back(
    path: str,
) -> None:
    """delta-rs itself would take it, and the number would go back for everybody."""
    appended(path, plan_of())
    appended(path, plan_of(2, table_id=id_of(path)))
    late = plan_of(1, table_id=id_of(path), created_at_ms=9)
    tasks = Tasks(late)
    assert appended(path, late, tasks).result is Result.APPLIED_BY_ANOTHER
    assert tasks.wanted is None and DeltaTable(path).transaction_version(APP) == 2


@pytest.mark.parametrize("is_late", [False, True], ids=["before tasks write", "while tasks write"])
def test_a_table_recreated_since_the_plan_gets_none_of_its_rows(path: str, is_late: bool) -> None:
    appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path))

    def make_again() -> None:
        shutil.rmtree(path)
        appended_by_another(path)

    tasks = Tasks(plan, meanwhile=make_again if is_late else lambda: None)
    if not is_late:
        make_again()
    with pytest.raises(LedgersDisagree, match="made for the table with id"):
        appended(path, plan, tasks)
    assert len(offsets(path)) == 15 and (tasks.wanted is not None) == is_late


@pytest.mark.parametrize("has_rows", [True, False], ids=["rows", "no rows"])
def test_the_log_has_the_time_of_a_transaction_because_ids_may_expire(
    path: str, has_rows: bool
) -> None:
    """delta-rs omits it by default."""
    before = time.time() * 1000
    if has_rows:
        appended(path, plan_of())
    else:
        plan = with_id(plain_plan(1, ranges=(), loaded_until={LOG: 0}))
        append(Load(EmptyCommit(arrow_schema())), plan, Destination(path, APP))
    first = Path(path, "_delta_log", f"{0:020d}.json").read_text()
    actions = [json.loads(line) for line in first.splitlines()]
    [taken] = [action["txn"] for action in actions if "txn" in action]
    assert before - 1 <= taken["lastUpdated"] <= time.time() * 1000


def test_a_table_of_other_columns_or_partitions_is_refused_and_no_task_writes(path: str) -> None:
    appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path))
    for physical, partition_by, why in (
        (True, (), "no column broker_id"),
        (False, ("topic",), "partitioned by nothing"),
    ):
        tasks = Tasks(plan)
        with pytest.raises(NotOurTable, match=why):
            append(
                Load(ArrowWriter(physical), tasks),
                plan,
                Destination(path, APP, partition_by=partition_by),
            )
        assert tasks.wanted is None


def test_results_make_the_text_for_people_give_way_and_else_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of()
    text = plan_document.render_commit_metadata(plan, APP, "run-1")
    monkeypatch.setattr(plan_document, "METADATA_FULL_BYTES", len(text))
    short = plan_document.with_results(text, plan, READ)
    found = plan_document.parse_commit_metadata(short, 7)
    assert '"ranges"' in text and '"ranges"' not in short and found is not None
    assert (found.plan_id, found.run_id, results_of(found)) == (plan.id, "run-1", READ)
    monkeypatch.setattr(plan_document, "METADATA_MAX_BYTES", 10)
    assert plan_document.with_results(text, plan, READ) == text


@pytest.mark.parametrize("damage", [b"", b"x", b"\x78\x9c"])
def test_results_that_cannot_be_read_are_none(damage: bytes) -> None:
    plan = plan_of()
    found = plan_document.parse_commit_metadata(
        plan_document.with_results(plan_document.render_commit_metadata(plan, APP), plan, READ), 1
    )
    assert found is not None and results_of(replace(found, results=damage)) is None
    assert results_of(replace(found, plan_id="another")) is None


@pytest.mark.parametrize("writer", [ArrowWriter(), EmptyCommit(arrow_schema())])
def test_a_table_deleted_since_the_plan_is_reported_and_no_other_is_created(
    path: str, writer: Any
) -> None:
    appended(path, plan_of())
    plan = plan_of(2, table_id=id_of(path))
    shutil.rmtree(path)
    with pytest.raises(TableUnreachable, match="there is no table any more"):
        append(Load(writer, Tasks(plan)), plan, Destination(path, APP))
    assert not Path(path).exists()


def test_a_stored_replay_of_a_table_that_became_append_only_names_its_plan_and_the_ways_out(
    path: str,
) -> None:
    appended(path, plan_of())
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    stored = replace(plan_of(2, table_id=id_of(path)), kind=PlanKind.REPLAY)
    with pytest.raises(NotOurTable, match="Plan 2 is a stored replay") as rejected:
        SparkWriter().commit(stored, Mock(), DeltaTable(path), "", Destination(path, APP))
    assert "Unset it" in rejected.value.action
    assert "etl plans supersede CONF 2 --reason ..." in rejected.value.action


def test_of_two_plans_that_create_one_table_at_once_only_one_is_appended(tmp_path: Path) -> None:
    empty = with_id(plain_plan(1, ranges=(), loaded_until={LOG: 0}))
    for turn in range(12):
        path, ready, reported = str(tmp_path / str(turn)), threading.Barrier(2), list[bool]()

        def go(app_id: str) -> None:
            load, to = Load(EmptyCommit(arrow_schema())), Destination(path, app_id)
            ready.wait()
            try:
                reported.append(append(load, empty, to).result is Result.APPLIED)
            except EtlError:
                reported.append(False)

        both = [threading.Thread(target=go, args=(app_id,)) for app_id in (APP, APP + "-2")]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert (DeltaTable(path).version(), sorted(reported)) == (0, [False, True])
