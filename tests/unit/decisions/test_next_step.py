"""`etl run` does what `--dry-run` announces, for every row of `etl.decide.reconcile`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from etl.commands.plans import preview_of
from etl.decide import reconcile
from etl.decide.next_step import Action, next_step, steps_ahead
from etl.decide.plan import tasks_of_plan
from etl.errors import DataLoss, EtlError, LedgersDisagree, OffsetMoved
from etl.ledger.plan_document import render_plan, with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import Acknowledgement, ForeignCommit, OtherPipeline, Snapshot, Table
from etl.report.report_json import report_as_json
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.choices import OnOwned
from etl.settings.sections import Settings
from tests.builders import changed, with_keys
from tests.fakes.backfill_stories import CAPPED, backfill_request, filled, live
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    SKIPPING,
    accept,
    crash_at,
    expired_plan,
    grow,
    new_report,
    outcomes,
    outside_of,
    run,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

A, *_ = LOGS
FOLLOWING = settings_of(on_offset_changed="follow")
SMALL_TASKS = settings_of(limits={"target_task_bytes": 200})


@dataclass
class Situation:
    """Cluster and table, the conf, and the table of other pipelines if ours wrote none."""

    outside: Outside
    settings: Settings = SETTINGS
    found: Table | None = None
    stops: type[EtlError] | None = None
    """What a run ends with; None: it comes to its end."""
    finishes: tuple[Outcome, ...] = ()
    """The announced outcomes about partitions that are left out."""


class Watched(FakeWorld):
    def __init__(self, situation: Situation) -> None:
        super().__init__(situation.outside, situation.settings)
        self.found, self.conf = situation.found, situation.settings
        self.tasks: list[tuple[tuple[int, ...], ...]] = []

    def _table(self) -> Table | None:
        return super()._table() or self.found

    def fetch(self, plan: Plan, snapshot: Snapshot) -> list[OffsetRange]:
        """As the world of a run, which knows how many tasks work at once."""
        parallelism = snapshot.parallelism or 1
        self.tasks.append(
            tasks_of_plan(
                plan, snapshot, self.conf, parallelism=parallelism, now_ms=self.now_ms()
            ).tasks
        )
        return super().fetch(plan, snapshot)


def loaded(*more: int, settings: Settings = SETTINGS) -> Outside:
    outside = outside_of(5, 3, 4)
    run(outside, settings)
    grow(outside, *(more or (2, 0, 1)))
    return outside


def crashed(step: str, outside: Outside | None = None, settings: Settings = SETTINGS) -> Outside:
    outside = outside or outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at(step, When.AFTER))
    grow(outside, 2, 0, 1)
    return outside


def left_by_backfill(more: int) -> Outside:
    """A backfill was killed after it stored a plan, and each partition grows by `more`."""
    outside = live(6, 6, 6)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("store plan", When.AFTER))
    grow(outside, more, more, more)
    return outside


def moved_to(offset: int, outside: Outside | None = None) -> Outside:
    outside = outside or loaded()
    outside.move_offset(A, offset)
    return outside


def unnamed_and_moved() -> Outside:
    """Another client moved the offset of a loaded topic that the conf no longer names."""
    outside = outside_of(5, 3, 4)
    orders = TopicPartition("clicks-orders", 0)
    outside.logs[orders] = FakeLog(2)
    run(outside)
    grow(outside, 1, 1, 1)
    outside.move_offset(orders, 99)
    return outside


def reset_and_moved() -> Outside:
    outside = loaded(0, 0, 0)
    outside.logs[A].cut(2)
    accept(outside, "clicks:0")
    run(outside)
    grow(outside, 5, 0, 0)
    return moved_to(4, outside)


def restored_copy() -> Outside:
    outside = loaded()
    plan = outside.newest_plan()
    assert plan
    other = changed(plan, created_at_ms=7, reason="it was put back")
    outside.plans[1] = render_plan(with_id(other))
    outside.applied.clear()
    return outside


def emptied(outside: Outside) -> Outside:
    outside.uid, outside.plans, outside.applied, outside.offsets = None, {}, {}, {}
    return outside


def position_set() -> Outside:
    """What came since the last plan is to be skipped in one log, and read in the others."""
    outside = loaded()
    set_to(outside, a=outside.logs[A].end)
    return outside


def forgotten(outside: Outside) -> Outside:
    outside.forgotten_commits = True
    return outside


def without_table(outside: Outside, *, number: int | None = None) -> Outside:
    outside.table = None
    if number is not None:
        outside.acknowledged = Acknowledgement(None, None, number, "it was me", 1)
    return outside


def of_another_uid() -> Outside:
    outside = loaded()
    outside.uid = "feedbeef"
    return outside


def with_other_pipeline(outside: Outside, topic: str) -> Outside:
    plan = loaded().newest_plan()
    assert plan
    partition = TopicPartition(topic, 0)
    other = changed(
        plan,
        uid="theirs",
        ranges=(),
        loaded_until={partition: 5},
        expected_commits={partition: plan.expected_commits[A]},
    )
    app_id = "offset-range-etl/cluster-1/group/other"
    outside.others = (OtherPipeline(app_id, 1, 1, with_id(other)),)
    outside.table = outside.table or []
    return outside


def deleted(outside: Outside) -> Outside:
    outside.foreign = (ForeignCommit(9, "DELETE", "removed rows"),)
    return outside


def owned() -> Situation:
    outside = loaded(2, 3, 1)
    outside.owners = {A: "group_host-1-0"}
    return Situation(outside, with_keys(SETTINGS, group={"on_owned": OnOwned.SKIP}))


def leaderless(settings: Settings = SETTINGS) -> Outside:
    outside = crashed("store plan", settings=settings)
    outside.logs[A].has_leader = False
    return outside


OTHERS_ALONE = Table("table-1", 0, None, is_of_others_alone=True)
ROWS: dict[str, dict[str, Callable[[], Situation]]] = {
    "none | no table, or no D": {
        "a first run": lambda: Situation(outside_of(5, 3, 4)),
        "a first run under a cap": lambda: Situation(
            outside_of(5, 3, 4), settings_of(limits={"max_records_per_plan": 4})
        ),
        "a first run in small tasks": lambda: Situation(outside_of(5, 3, 4), SMALL_TASKS),
    },
    "N | D = B, plan N's own table": {
        "the first plan was left": lambda: Situation(
            crashed("store plan"), finishes=(Outcome.PLAN_RESUMED,)
        ),
        "a later plan was left": lambda: Situation(
            crashed("store plan", loaded()), finishes=(Outcome.PLAN_RESUMED,)
        ),
        "an operator set positions": lambda: Situation(position_set()),
        "its range has expired": lambda: Situation(
            expired_plan(), SKIPPING, finishes=(Outcome.PLAN_SUPERSEDED,)
        ),
        "a log has no leader": lambda: Situation(
            leaderless(settings_of(on_no_leader="skip")),
            settings_of(on_no_leader="skip"),
            finishes=(Outcome.PLAN_SUPERSEDED,),
        ),
    },
    "N | the same, plan N of a backfill": {
        "there is more to read": lambda: Situation(
            left_by_backfill(1), CAPPED, finishes=(Outcome.PLAN_SUPERSEDED,)
        ),
        "and its offsets are gone": lambda: Situation(
            _expired(left_by_backfill(1)), CAPPED, finishes=(Outcome.PLAN_SUPERSEDED,)
        ),
    },
    "N | D = N, offsets at its positions": {
        "there is more to read": lambda: Situation(loaded()),
        "there is nothing new": lambda: Situation(loaded(0, 0, 0)),
        "records have expired": lambda: Situation(_expired(loaded(4, 0, 0)), SKIPPING),
        "records have expired, and policy fails": lambda: Situation(
            _expired(loaded(4, 0, 0)), stops=DataLoss
        ),
        "a log is left to its owner": owned,
    },
    "N | D = N, offsets as N saw them": {
        "some were moved": lambda: Situation(
            crashed("commit from 0"), finishes=(Outcome.PLAN_COMPLETED,)
        ),
        "and it was not recorded": lambda: Situation(
            crashed("append"), finishes=(Outcome.PLAN_COMPLETED, Outcome.PLAN_COMPLETED)
        ),
        "and the next plan cannot be made": lambda: Situation(
            _expired(crashed("commit from 0")), finishes=(Outcome.PLAN_COMPLETED,), stops=DataLoss
        ),
    },
    "N | D = N, an offset is larger": {
        "and policy fails": lambda: Situation(moved_to(6), stops=OffsetMoved),
        "and is followed": lambda: Situation(
            moved_to(6), FOLLOWING, finishes=(Outcome.OFFSET_CHANGED,)
        ),
        "and its topic is not read": lambda: Situation(
            unnamed_and_moved(),
            settings_of(on_offset_changed="follow", topics=["clicks"]),
            finishes=(Outcome.OFFSET_CHANGED,),
        ),
        "and above the end": lambda: Situation(moved_to(99), FOLLOWING, stops=OffsetMoved),
    },
    "N | D = N, an offset is smaller/gone": {
        "and policy would follow": lambda: Situation(moved_to(1), FOLLOWING, stops=OffsetMoved)
    },
    "N | D >= N, an offset may be of a": {
        "after a reset": lambda: Situation(reset_and_moved(), FOLLOWING, stops=OffsetMoved)
    },
    "N | D = N, another plan's id": {
        "a copy was put back": lambda: Situation(
            restored_copy(), finishes=(Outcome.LEDGER_RESTORED,)
        )
    },
    "N | D = N, id unknown, no result": {
        "it was not recorded": lambda: Situation(
            forgotten(crashed("append")), stops=LedgersDisagree
        )
    },
    "N, none | D > N": {
        "the ledger was lost": lambda: Situation(
            emptied(loaded()), finishes=(Outcome.PLAN_COMPLETED, Outcome.LEDGER_RESTORED)
        ),
        "and the next plan cannot be made": lambda: Situation(
            _expired(emptied(loaded(4, 0, 0))),
            finishes=(Outcome.PLAN_COMPLETED, Outcome.LEDGER_RESTORED),
            stops=DataLoss,
        ),
    },
    "N, none | the same, commit not in the log": {
        "the ledger was lost": lambda: Situation(
            forgotten(emptied(loaded())), stops=LedgersDisagree
        )
    },
    "N | D = B, no table when N was made,": {
        "another pipeline made it": lambda: Situation(
            crashed("store plan"), found=OTHERS_ALONE, finishes=(Outcome.PLAN_SUPERSEDED,)
        )
    },
    "N | D < N otherwise, or no table": {
        "the table is gone": lambda: Situation(without_table(loaded()), stops=LedgersDisagree)
    },
    "N | the same, accepted by operator": {
        "the table is gone": lambda: Situation(without_table(loaded(), number=1)),
        "the table is gone, and a plan was left": lambda: Situation(
            without_table(crashed("store plan", loaded()), number=2),
            finishes=(Outcome.PLAN_SUPERSEDED,),
        ),
    },
    "any | another uid or table id": {
        "another ledger": lambda: Situation(of_another_uid(), stops=LedgersDisagree)
    },
    "any | a topic that another pipeline": {
        "it would be begun": lambda: Situation(
            with_other_pipeline(outside_of(5, 3, 4), "clicks"), stops=LedgersDisagree
        ),
        "it is none of ours": lambda: Situation(with_other_pipeline(outside_of(5, 3, 4), "orders")),
    },
    "any | rows removed, table redefined by": {
        "and policy fails": lambda: Situation(deleted(loaded()), stops=LedgersDisagree),
        "and policy records it": lambda: Situation(
            deleted(loaded()),
            settings_of(table={"on_rows_removed": "record"}),
            finishes=(Outcome.ROWS_REMOVED,),
        ),
    },
}
OF_WHAT_WAS_LEFT = {
    Outcome.PLAN_RESUMED,
    Outcome.PLAN_COMPLETED,
    Outcome.OFFSET_CHANGED,
    Outcome.LEDGER_RESTORED,
    Outcome.PLAN_SUPERSEDED,
    Outcome.ROWS_REMOVED,
}
CASES = [
    pytest.param(situation, id=f"{row}: {case}")
    for row, cases in ROWS.items()
    for case, situation in cases.items()
]


def _expired(outside: Outside) -> Outside:
    outside.logs[A].log_start = 6
    return outside


def rows_of_the_table() -> list[str]:
    """The first line of each row, as the docstring has them."""
    table = (reconcile.__doc__ or "").partition("------")[2].partition("After LedgersDisagree")[0]
    rows = [line for line in table.splitlines()[1:] if re.match(r" {4}\S", line)]
    return [f"{line[4:13].strip()} | {line[13:47].strip()}" for line in rows]


def test_every_row_of_the_table_has_a_situation() -> None:
    assert sorted(ROWS) == sorted(rows_of_the_table())


def executed(world: Watched, situation: Situation) -> tuple[Report, EtlError | None]:
    report = new_report()
    try:
        ingest(world, situation.settings, report)
    except EtlError as error:
        return report, error
    return report, None


def content(plan: Plan) -> Any:
    """Without creation time, uid, table version and values that only the read knows."""
    return changed(
        plan,
        id="",
        uid="",
        created_at_ms=0,
        previous=None,
        supersedes=None,
        table_id=None,
        table_version=None,
        record_epochs={},
    )


@pytest.mark.parametrize("case", CASES)
def test_a_run_does_the_step_that_plan_shows(case: Callable[[], Situation]) -> None:
    situation = case()
    world = Watched(situation)
    snapshot = world.observe()
    uid = f"uid{situation.outside.uids_made + 1}"
    step = next_step(snapshot, situation.settings, now_ms=world.now_ms(), uid=uid)
    try:
        preview = preview_of(snapshot, situation.settings)
    except EtlError as error:
        preview = None
        assert (type(error), str(error)) == (situation.stops, str(step.refusal))
    report, stopped = executed(world, situation)
    assert (type(step.refusal), str(step.refusal)) == (type(stopped), str(stopped))
    first = [_undated(step.plan)] if step.plan else []
    assert first == [_undated(one.plan) for one in report.plans[:1]]
    left = sorted(one for one in outcomes(report) if one in OF_WHAT_WAS_LEFT)
    assert left == sorted(situation.finishes)
    if preview is None:
        return
    assert stopped is None and situation.stops is None
    planned = [content(plan) for plan in preview.plans]
    assert [content(one.plan) for one in report.plans] == planned
    assert sum(map(len, world.tasks)) == preview.tasks[0] == preview.tasks[1]
    assert sum(one["before"] or 0 for one in report_as_json(report)["lag"]) == preview.lag


def _undated(plan: Plan) -> Plan:
    return changed(plan, created_at_ms=0, id="")


def test_a_run_has_one_step_after_a_plan_that_was_left_and_it_is_the_last() -> None:
    snapshot = FakeWorld(crashed("store plan"), SETTINGS).observe()
    steps = steps_ahead(snapshot, SETTINGS, now_ms=1, uid="u")
    assert [(step.action, step.is_last) for step in steps] == [
        (Action.RESUME, False),
        (Action.STORE, True),
    ]
