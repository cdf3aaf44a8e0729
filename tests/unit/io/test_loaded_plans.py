"""The plans and pipelines in a table's log, also after a copy was restored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from etl.decide.table_changes import accepted_version
from etl.errors import FileLost, LedgersDisagree
from etl.io.delta.loaded_plans import (
    holds,
    holds_commits,
    holds_rows_of,
    is_of_others_alone,
    loaded_by,
    other_pipelines,
    read_table,
    with_others,
)
from etl.io.delta.log import hash_of_commit, open_log
from etl.ledger.plan_document import render_commit_metadata, with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, Predecessor, TableExpectation
from etl.model.snapshot import Acknowledgement, ForeignCommit, OtherPipeline, Table
from tests.builders import changed, plain_plan

OURS, OLD, NEW = (
    f"offset-range-etl/c/{name}" for name in ("ours/clicks", "old/clicks", "new/clicks")
)
ROWS = pyarrow.table({"topic": ["clicks"], "offset": [1]})


def plan_of(
    number: int, topic: str = "clicks", *, reads: bool = True, inherits: Predecessor | None = None
) -> Plan:
    partition = TopicPartition(topic, 0)
    return with_id(
        plain_plan(
            number,
            ranges=(OffsetRange(partition, 0, number),) if reads else (),
            loaded_until={partition: number},
            inherits=inherits,
        )
    )


def commit(path: Path, app_id: str, plan: Plan, *, replaces: str | None = None) -> None:
    """Append a row under the plan's number; `replaces`: in place of the rows of this predicate."""
    properties = CommitProperties(
        custom_metadata={"userMetadata": render_commit_metadata(plan, app_id)},
        app_transactions=[Transaction(app_id, plan.number)],
    )
    if replaces is None:
        write_deltalake(str(path), ROWS, mode="append", commit_properties=properties)
        return
    write_deltalake(
        str(path), ROWS, mode="overwrite", predicate=replaces, commit_properties=properties
    )


def log_files(path: Path) -> list[Path]:
    return sorted(path.glob("_delta_log/*[0-9].json"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two plans of the old pipeline, one of ours, and rows of another writer."""
    for app_id, number in ((OLD, 1), (OLD, 2), (OURS, 1)):
        commit(tmp_path, app_id, plan_of(number))
    properties = CommitProperties(app_transactions=[Transaction("a stream", 7)])
    write_deltalake(str(tmp_path), ROWS, mode="append", commit_properties=properties)
    return tmp_path


def test_other_pipelines_are_listed_with_their_newest_plan_and_foreign_streams_are_not(
    table: Path,
) -> None:
    assert other_pipelines(str(table), OURS) == (OtherPipeline(OLD, 2, 1, plan_of(2)),)
    assert [one.app_id for one in other_pipelines(str(table), NEW)] == [OLD, OURS]


def test_a_table_has_the_names_under_which_a_pipeline_committed(table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    log_files(table)[2].unlink()
    assert [holds_commits(str(table), one) for one in (OURS, OLD, NEW)] == [True, True, False], (
        "also where clean-up took the commit itself"
    )
    assert not holds_commits(str(table / "none"), OURS)


def test_a_plan_is_not_appended_to_an_older_copy_of_its_table(table: Path) -> None:
    current = DeltaTable(str(table))
    expected = TableExpectation(str(current.metadata().id), transaction_version=1)
    plan = replace(plan_of(3), table=expected)
    assert not holds(plan, current, OURS)
    newer = replace(plan, table=replace(expected, transaction_version=2))
    with pytest.raises(LedgersDisagree, match="had plan 2 when plan 3 was made; now .* plan is 1"):
        holds(newer, current, OURS)


def test_a_pipeline_with_expired_commits_is_known_by_a_checkpoint_and_its_plan_is_not(
    table: Path, tmp_path: Path
) -> None:
    DeltaTable(str(table)).create_checkpoint()
    for file in log_files(table)[:3]:
        file.unlink()
    commit(table, NEW, plan_of(5))
    ours = OtherPipeline(NEW, 5, 4, plan_of(5))
    assert other_pipelines(str(table), OURS) == (ours, OtherPipeline(OLD, 2))
    assert other_pipelines(str(tmp_path / "none"), OURS) == ()


def test_a_checkpoint_of_version_2_in_json_has_the_same_content(table: Path) -> None:
    actions, last = [], {}
    for file in log_files(table):
        for line in file.read_text().splitlines():
            action = json.loads(line)
            if "txn" in action:
                last[action["txn"]["appId"]] = action
            elif "commitInfo" not in action:
                actions.append(action)
    kept = [{"checkpointMetadata": {"version": 3}}, *last.values(), *actions]
    name = f"{3:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (table / "_delta_log" / name).write_text("\n".join(map(json.dumps, kept)))
    for file in log_files(table)[:3]:
        file.unlink()
    assert other_pipelines(str(table), OURS) == (OtherPipeline(OLD, 2),)


def test_a_commit_that_carries_no_plan_that_can_be_read_leaves_what_it_loaded_unknown(
    tmp_path: Path,
) -> None:
    properties = CommitProperties(
        custom_metadata={"userMetadata": "?"}, app_transactions=[Transaction(OLD, 3)]
    )
    write_deltalake(str(tmp_path), ROWS, commit_properties=properties)
    assert other_pipelines(str(tmp_path), OURS) == (OtherPipeline(OLD, 3, 0),)
    there = with_others(Table("t", 0, None), str(tmp_path), OURS, {"clicks", "orders"})
    assert there.topics_with_rows == {"clicks"}


def test_a_table_may_have_rows_of_a_topic_if_it_is_undecidable(table: Path, tmp_path: Path) -> None:
    assert holds_rows_of(str(table), "clicks") and not holds_rows_of(str(table), "orders")
    write_deltalake(str(tmp_path / "odd"), pyarrow.table({"another": [1]}))
    assert holds_rows_of(str(tmp_path / "odd"), "clicks")


def test_a_table_is_of_others_alone_while_only_pipelines_that_are_not_we_have_added_rows(
    tmp_path: Path,
) -> None:
    path = str(tmp_path)
    DeltaTable.create(path, ROWS.schema)
    assert is_of_others_alone(path, OURS)
    commit(tmp_path, OLD, plan_of(1))
    commit(tmp_path, OLD, plan_of(2))
    DeltaTable(path).optimize.compact()
    assert is_of_others_alone(path, OURS) and not is_of_others_alone(path, OLD)
    write_deltalake(path, ROWS, mode="append")
    assert not is_of_others_alone(path, OURS)


def test_the_owner_of_rows_is_unknown_if_the_tables_log_does_not_reach_its_first_commit(
    tmp_path: Path,
) -> None:
    commit(tmp_path, OLD, plan_of(1))
    commit(tmp_path, OLD, plan_of(2))
    DeltaTable(str(tmp_path)).create_checkpoint()
    log_files(tmp_path)[0].unlink()
    assert not is_of_others_alone(str(tmp_path), OURS)


def loads(
    path: Path, known: int | None = None, inherits: Predecessor | None = None, **plan: Any
) -> tuple[ForeignCommit, ...]:
    newest = changed(plan_of(2, inherits=inherits), **plan) if inherits or plan else None
    found = read_table(
        str(path), OURS, known=known, is_ours=lambda topic: topic == "clicks", plan=newest
    )
    assert found is not None
    return found.foreign


def test_a_later_load_of_our_topic_is_reported_and_other_topics_and_kept_positions_are_not(
    table: Path,
) -> None:
    commit(table, NEW, plan_of(1, "orders"))
    commit(table, NEW, plan_of(2, reads=False))
    assert loads(table) == ()
    commit(table, NEW, plan_of(3))
    assert loads(table) == (ForeignCommit(6, "WRITE", "loaded topic clicks", Predecessor(NEW, 3)),)


@pytest.mark.parametrize("place", [Predecessor(OURS, 1), Predecessor(OLD, 2)])
def test_who_takes_our_place_or_the_one_that_we_took_is_named_before_it_has_loaded_a_row(
    table: Path, place: Predecessor
) -> None:
    commit(table, NEW, plan_of(1, reads=False, inherits=place))
    took_over = ForeignCommit(4, "WRITE", "took over topic clicks", Predecessor(NEW, 1))
    is_ours = place.app_id == OURS
    assert loads(table) == ((took_over,) if is_ours else ())
    assert loads(table, predecessors=(Predecessor(OLD, 2),)) == (took_over,)


def test_rows_that_another_pipeline_removes_are_judged_by_its_plan(table: Path) -> None:
    commit(table, NEW, plan_of(1, "orders"), replaces="topic = 'clicks'")
    assert loads(table) == (), "a replay removes rows of its own ranges alone"
    commit(table, OLD, plan_of(3), replaces="topic = 'clicks'")
    [replayed] = loads(table)
    assert (replayed.by, replayed.why) == (Predecessor(OLD, 3), "loaded topic clicks")
    assert loads(table, predecessors=(Predecessor(OLD, 3),)) == (), "inherited plans are ours"
    unreadable = CommitProperties(
        custom_metadata={"userMetadata": "?"}, app_transactions=[Transaction(NEW, 2)]
    )
    DeltaTable(str(table)).delete("topic = 'clicks'", commit_properties=unreadable)
    assert loads(table)[-1] == ForeignCommit(
        6, "DELETE", "removed rows", unread=Predecessor(NEW, 2)
    )


def test_inherited_plans_are_no_loads_and_later_loads_are_wherever_our_commit_is(
    table: Path,
) -> None:
    assert loads(table, inherits=Predecessor(OLD, 2)) == ()
    [found] = loads(table, inherits=Predecessor(OLD, 1))
    assert found.by == Predecessor(OLD, 2)
    plan = plan_of(1, inherits=Predecessor(OLD, 1))
    is_ours = "clicks".__eq__
    nothing_of_ours = read_table(str(table), NEW, known=None, is_ours=is_ours, plan=plan)
    assert nothing_of_ours
    later = [found.by for found in nothing_of_ours.foreign]
    assert later == [Predecessor(OLD, 2), Predecessor(OURS, 1)]


def test_loads_of_a_pipeline_inherited_long_ago_are_found_below_the_last_inheritance(
    table: Path,
) -> None:
    commit(table, OLD, plan_of(3))
    commit(table, NEW, plan_of(1))
    for newest, found in ((3, []), (2, [Predecessor(OLD, 3)])):
        heirs = (Predecessor(OLD, newest),)
        loaded = loads(table, known=5, inherits=Predecessor(NEW, 1), predecessors=heirs)
        assert [one.by for one in loaded] == found


def test_where_no_commit_of_ours_is_recorded_others_are_looked_for_from_where_the_plan_was_made(
    table: Path,
) -> None:
    table_id = str(DeltaTable(str(table)).metadata().id)
    assert loads(table, table_version=1, table_id=table_id) == ()
    assert [one.by for one in loads(table, table_version=0, table_id=table_id)] == [
        Predecessor(OLD, 2)
    ]
    assert loads(table, known=2, table_version=0, table_id=table_id) == ()


def test_the_loads_of_a_pipeline_are_read_from_its_plans(table: Path) -> None:
    assert loaded_by(str(table), OLD) == {TopicPartition("clicks", 0): [(0, 0, 2), (0, 0, 1)]}


def put_back(copy: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(copy, path)


def acknowledgement_on(path: Path) -> Acknowledgement:
    table = DeltaTable(str(path))
    version = table.version()
    commit_hash = hash_of_commit(open_log(str(path)), version)
    table_id = str(table.metadata().id)
    return Acknowledgement(table_id, version, 1, "seen", 1, commit=commit_hash)


def read(path: Path, known: int | None, acknowledgement: Acknowledgement | None = None) -> Table:
    table = read_table(str(path), OURS, known=known, acknowledgement=acknowledgement)
    assert table is not None
    return table


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A table with one plan, and a copy of it."""
    commit(tmp_path / "table", OURS, plan_of(1))
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    return tmp_path / "table", tmp_path / "copy"


def test_a_word_covers_a_copy_of_the_commit_that_was_seen_and_no_other_one_of_its_number(
    places: tuple[Path, Path],
) -> None:
    path, copy = places
    DeltaTable(str(path)).delete("offset = 1")
    acknowledgement = acknowledgement_on(path)
    shutil.copytree(path, path.with_name("later copy"))
    put_back(copy, path)
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) is None
    DeltaTable(str(path)).delete("offset = 1")
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) is None
    put_back(path.with_name("later copy"), path)
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) == 1


def test_a_word_is_about_nothing_once_clean_up_took_the_commit_that_it_names(
    places: tuple[Path, Path],
) -> None:
    path, _ = places
    DeltaTable(str(path)).delete("offset = 1")
    acknowledgement = acknowledgement_on(path)
    DeltaTable(str(path)).restore(0)
    DeltaTable(str(path)).create_checkpoint()
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) is None
    assert read(path, 0).foreign == (ForeignCommit(2, "RESTORE", "brought rows back"),)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_table_with_a_missing_commit_in_its_log_is_a_permanent_error(
    places: tuple[Path, Path], gone: int
) -> None:
    path, _ = places
    for number in (2, 3):
        commit(path, OURS, plan_of(number))
    (path / "_delta_log" / f"{gone:020}.json").unlink()
    with pytest.raises(FileLost, match="The table's log lacks files:") as caught:
        read(path, 2)
    assert not caught.value.retriable and len(caught.value.message) < 100


@pytest.mark.parametrize("plans", [1, 3])
@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_commit_file_is_damaged_and_the_table_is_not_another_one(
    tmp_path: Path, plans: int, content: bytes
) -> None:
    write_deltalake(str(tmp_path), ROWS)
    for number in range(plans):
        commit(tmp_path, OURS, plan_of(number + 1))
    newest = log_files(tmp_path)[-1]
    newest.write_bytes(content)
    with pytest.raises(FileLost, match="A commit file of the table's log is damaged") as caught:
        read(tmp_path, None)
    assert caught.value.where["file"] == newest.name


def test_what_others_do_to_an_old_copy_is_seen_also_below_the_version_that_our_last_commit_had(
    places: tuple[Path, Path],
) -> None:
    path, copy = places
    commit(path, OURS, plan_of(2))
    put_back(copy, path)
    DeltaTable(str(path)).delete("offset = 1")
    assert read(path, known=1).foreign == (ForeignCommit(1, "DELETE", "removed rows"),)
