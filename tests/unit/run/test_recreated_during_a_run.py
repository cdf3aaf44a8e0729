"""Topics, tables and rows that others recreate or remove between a run's steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.errors import LedgersDisagree, TableAppeared, TopicRecreated
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import ForeignCommit, Table
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    accept,
    crash_at,
    grow,
    new_report,
    outcomes,
    outside_of,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When


def loaded(**ids: str) -> Outside:
    outside = outside_of(5, 3, 4)
    outside.topic_ids, outside.creation_ids = ids, {"clicks": "zxid-5"}
    run(outside)
    for partition in outside.logs.values():
        partition.end += 10
    return outside


def recreated_at(outside: Outside, step: str, when: When, **ids: str) -> None:
    """A run in which the topic is recreated at this moment; the new one is longer."""

    def change(now: str, side: When) -> None:
        if (now, side) == (step, when) and outside.creation_ids == {"clicks": "zxid-5"}:
            outside.creation_ids, outside.topic_ids = {"clicks": "zxid-9"}, ids
            outside.logs = {
                partition: replace(outside.logs[partition].recreated(), end=60)
                for partition in LOGS
            }

    run(outside, at=change)


def reject_doubled_or_missing(outside: Outside) -> None:
    assert max(outside.records().values()) == max(outside.keys().values()) == 1
    assert set(outside.records()) >= {(partition, 1, at) for partition in LOGS for at in range(60)}


@pytest.mark.parametrize(
    ("step", "when"), [("store plan", When.AFTER), ("fetch", When.BEFORE), ("fetch", When.AFTER)]
)
def test_a_topic_recreated_before_the_append_stops_the_run_and_no_record_of_the_new_one_is_appended(
    step: str, when: When
) -> None:
    outside = loaded()
    with pytest.raises(TopicRecreated, match="its id is zxid-9, planned was zxid-5") as stopped:
        recreated_at(outside, step, when)
    assert (
        stopped.value.exit_code == 5
        and "etl topics accept-changes CONF -p clicks" in stopped.value.action
    )
    assert (outside.transaction_version(), len(outside.plans)) == (1, 2)
    accept(outside, "clicks")
    run(outside)
    reject_doubled_or_missing(outside)


def test_the_same_holds_while_a_plan_is_replayed() -> None:
    outside = loaded()
    with pytest.raises(Crash):
        run(outside, at=crash_at("fetch", When.AFTER))
    with pytest.raises(TopicRecreated, match="while it was read"):
        recreated_at(outside, "claim", When.AFTER)
    accept(outside, "clicks")
    run(outside)
    reject_doubled_or_missing(outside)


def test_a_topic_recreated_during_the_read_or_append_is_reported_before_any_further_step() -> None:
    outside = loaded()
    before = dict(outside.offsets)
    with pytest.raises(TopicRecreated, match="some of its rows may be records of the new topic"):
        recreated_at(outside, "open table", When.AFTER)
    assert (outside.transaction_version(), outside.offsets) == (2, before)


def test_with_topic_ids_from_brokers_zookeeper_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = loaded(clicks="id-1")
    requests: list[object] = []
    monkeypatch.setattr(FakeWorld, "creation_ids", lambda world, topics: requests.append(topics))
    run(outside)
    assert (requests, outside.transaction_version()) == ([], 2)


SOMEBODYS = Table("table-1", 0, None)
OTHER_PIPELINES = Table("table-1", 0, None, is_of_others_alone=True)


class Arriving(FakeWorld):
    """Before its first append `found` is where no table was."""

    found: Table | None = None
    arrives: Table = OTHER_PIPELINES

    def _table(self) -> Table | None:
        return super()._table() or self.found

    def append(self, plan: Plan, rows: Any) -> tuple[CommitResult | None, Table | None]:
        """As a writer looks at the table that it appends to."""
        if not self.outside.table:
            self.found = self.arrives
            if plan.table.id is None:
                raise TableAppeared("at this path there is a table by now")
        return super().append(plan, rows)


def run_in(world: FakeWorld) -> Report:
    report = new_report()
    ingest(world, SETTINGS, report)
    return report


def test_a_table_that_another_pipeline_creates_meanwhile_gets_every_record_once() -> None:
    outside = outside_of(5, 3, 4)
    assert outcomes(run_in(Arriving(outside, SETTINGS))) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.INGESTED,
    ]
    assert len(outside.table or ()) == 1
    reject_unfinished(outside)


def test_a_table_with_unknown_content_stops_the_run_before_any_record_is_read_again() -> None:
    outside = outside_of(5, 3, 4)
    world = Arriving(outside, SETTINGS)
    world.arrives = SOMEBODYS
    with pytest.raises(LedgersDisagree, match="Plan 1 was made when there was no table,"):
        run_in(world)
    assert world.steps.count("fetch") == 1 and outside.table is None


def test_a_driver_that_still_holds_the_old_plan_and_appends_it_first_is_adopted() -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, SETTINGS, crash_at("append", When.BEFORE))
    zombies = outside.newest_plan()
    assert zombies is not None

    def at(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.BEFORE) and not outside.table:
            append_unnoticed(outside, zombies)

    world = Arriving(outside, SETTINGS, at)
    world.found = OTHER_PIPELINES
    assert Outcome.LOADED_BY_ANOTHER_RUN in outcomes(run_in(world))
    reject_unfinished(outside)


def append_unnoticed(outside: Outside, plan: Plan) -> None:
    FakeWorld(outside, SETTINGS, run_id="the zombie").append(plan, list(plan.ranges))


def test_a_permitted_delete_before_the_append_is_reported_and_recorded_before_the_result() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(table={"on_rows_removed": "record"})
    deleted = ForeignCommit(2, "DELETE", "removed rows")

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("open table", When.AFTER):
            outside.foreign = (deleted,)
        if (reached, side) == ("record", When.BEFORE):
            assert outside.removals == [deleted]

    assert outcomes(run(outside, settings, at=at)) == [Outcome.ROWS_REMOVED, Outcome.INGESTED]
    assert outside.removals == [deleted]


def test_a_delete_reported_before_the_append_is_not_reported_again_after_it() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(table={"on_rows_removed": "record"})
    run(outside, settings)
    outside.foreign = (ForeignCommit(2, "DELETE", "removed rows"),)
    grow(outside, 1, 1, 1)
    assert outcomes(run(outside, settings)) == [Outcome.ROWS_REMOVED, Outcome.INGESTED]
    assert outside.removals == [ForeignCommit(2, "DELETE", "removed rows")]


def test_rows_removed_during_the_append_stop_the_run_before_an_offset_moves() -> None:
    outside = outside_of(5, 3, 4)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("append", When.AFTER):
            outside.foreign = (ForeignCommit(2, "DELETE", "removed rows"),)

    with pytest.raises(LedgersDisagree, match="DELETE of another writer removed rows"):
        run(outside, at=at)
    assert not outside.offsets


def test_nothing_is_appended_to_an_older_copy_of_the_table_that_was_put_back_during_the_run() -> (
    None
):
    outside = outside_of(5, 3, 4)
    run(outside)
    grow(outside, 1, 1, 1)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("fetch", When.AFTER):
            outside.table = []

    with pytest.raises(LedgersDisagree, match="lacks plans before plan 2"):
        run(outside, at=at)
    assert outside.table == []
    with pytest.raises(LedgersDisagree, match="ZooKeeper"):
        run(outside)
