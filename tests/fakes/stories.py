"""Runs on the fake services that grow and crash, and what must hold at every moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from etl.commands.operator_session import (
    as_member,
    finish_earlier_work,
    plan_of_command,
    store_decided,
)
from etl.decide.accept_partitions import AcceptRequest, plan_reset
from etl.decide.next_step import repair_of
from etl.decide.partition_owners import (
    leave_to_owners,
    reject_partitions_of_other_members,
    reject_unknown_incarnations,
    reject_unrecorded_commit,
)
from etl.decide.reconcile import where_we_stand
from etl.decide.set_offsets import intervals_to_look_up, moves_to, plan_set, reject_loaded, standing
from etl.errors import NeedsDecision
from etl.ledger.plan_document import parse_plan, with_id
from etl.model.partitions import Committed, TopicPartition, parse_named
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import OtherPipeline, Resume, Snapshot, StoredBackfill, Supersede, UpToDate
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.sections import Settings
from tests.builders import changed, plain_settings, with_facts
from tests.fakes.fake_log import FakeLog, offset_of
from tests.fakes.members import member_with
from tests.fakes.outside import CLUSTER, Outside
from tests.fakes.physical_log import physical_log
from tests.fakes.world import Crash, FakeWorld, When

LOGS = [TopicPartition("clicks", p) for p in range(3)]
PHYSICAL_LOGS = [
    TopicPartition("clicks", partition, broker) for partition, broker in ((0, 1), (0, 2), (1, 1))
]
"""The same topic on two brokers."""
At = Callable[[str, When], None]

STEPS = [
    "observe",
    "store plan",
    "claim: parents",
    "claim: parents",
    "claim",
    "fetch",
    "open table",
    "append",
    "record: parents",
    "record",
    "commit from 0: parents",
    "commit from 0: parents",
    "commit from 0",
    "commit from 2",
    "tidy",
    "release",
]
"""Every change of a first run; `parents`: of empty znodes above those that are written next. A new
one makes the test of this list fail: it needs its crash rows.
"""
FIRST_CRASHES = [(step, when) for step in dict.fromkeys(STEPS) for when in When]
CRASHES = [(step, when) for step, when in FIRST_CRASHES if "parents" not in step]
"""Those of a later run, too: parents are there then."""


def settings_of(**source: Any) -> Settings:
    """A pipeline over topics with names that start with `clicks`."""
    limits, table = source.pop("limits", {}), source.pop("table", {})
    group = {}
    if "on_offset_changed" in source:
        group["on_offset_changed"] = source.pop("on_offset_changed")
    return plain_settings(
        source={"topics": ["clicks.*"], "assume_cluster_id": "cluster-1", **source},
        table=table,
        limits=limits,
        group=group,
    )


SETTINGS = settings_of()


PHYSICAL_SETTINGS = settings_of(broker_type="jafka")


def outside_of(*ends: int) -> Outside:
    return Outside({LOGS[i]: FakeLog(end) for i, end in enumerate(ends)})


def physical_outside_of(*entries: int) -> Outside:
    """The same for partitions with byte offsets, each with this number of entries."""
    return Outside(
        {
            partition: physical_log(count)
            for partition, count in zip(PHYSICAL_LOGS, entries, strict=False)
        }
    )


of_both_kinds = pytest.mark.parametrize(
    "outside_of",
    [pytest.param(outside_of, id="logical"), pytest.param(physical_outside_of, id="physical")],
)
"""A law that holds whether offsets count records or bytes."""
OutsideOf = Callable[..., Outside]


def settings_for(outside: Outside) -> Settings:
    return (
        PHYSICAL_SETTINGS if any(partition.is_physical for partition in outside.logs) else SETTINGS
    )


def new_report() -> Report:
    return Report("run-1", "clicks", "group", "clicks", 0)


def run(
    outside: Outside,
    settings: Settings | None = None,
    at: At | None = None,
    *,
    logs_per_request: int = 2,
) -> Report:
    report = new_report()
    settings = settings or settings_for(outside)
    ingest(
        FakeWorld(
            outside, settings, at or (lambda step, when: None), logs_per_request=logs_per_request
        ),
        settings,
        report,
    )
    return report


def outcomes(report: Report) -> list[Outcome]:
    return [outcome for outcome, _ in report.outcomes]


def crash_at(step: str, when: When) -> At:
    """Crash the first time this change is reached."""

    def at(reached: str, side: When) -> None:
        if (reached, side) == (step, when):
            raise Crash(f"{side.value} {reached}")

    return at


def crash_at_moment(number: int) -> At:
    """Crash at a moment, counted from 0: one before and one after each change."""
    moments = itertools.count()

    def at(reached: str, side: When) -> None:
        if next(moments) == number:
            raise Crash(f"{side.value} {reached}")

    return at


def once(step: str, when: When, do: Callable[[], object]) -> At:
    """Do this the first time that the change is reached."""
    left = [do]

    def at(reached: str, side: When) -> None:
        if (reached, side) == (step, when) and left:
            left.pop()()

    return at


def grow(outside: Outside, *more: int) -> None:
    for found, count in zip(list(outside.logs.values())[:3], more, strict=True):
        found.grow(count)


def offsets_of(outside: Outside) -> dict[TopicPartition, int]:
    """The group's offset of each log, in whichever place."""
    return {
        partition: found.offset
        for partition, found in outside.committed().items()
        if found.offset is not None
    }


def reject_broken(outside: Outside) -> None:
    """What must hold at every moment: no record twice, and no offset ahead of the table."""
    rows = outside.rows()
    assert not [row for row, times in rows.items() if times > 1]
    for partition, offset in offsets_of(outside).items():
        loaded = {row[1] for row in rows if row[0] == partition}
        assert loaded >= outside.logs[partition].held(outside.logs[partition].log_start, offset)


def reject_unfinished(outside: Outside) -> None:
    """Check the state after a quiet run: each record once, and offsets at the end of the table."""
    reject_broken(outside)
    there = {
        (partition, place)
        for partition, found in outside.logs.items()
        for place in found.read(found.log_start, found.end)
    }
    assert set(outside.rows()) == there
    assert offsets_of(outside) == {
        partition: found.end for partition, found in outside.logs.items()
    }
    assert set(outside.applied) == set(outside.plans)
    assert {commit.uid for commit in outside.table or ()} == {outside.uid}
    assert outside.losses == [
        (commit.number, loss) for commit in outside.table or () for loss in commit.plan.losses.lost
    ]


def reject_doubled_records(outside: Outside) -> None:
    """No record of truncated or recreated logs is there twice or under another's key."""
    assert not [record for record, times in outside.records().items() if times > 1]
    assert not [key for key, times in outside.keys().items() if times > 1]


def reject_missing_records(outside: Outside) -> None:
    """Every record of such logs is there, with offsets at the ends, and each plan's result."""
    reject_doubled_records(outside)
    there = {
        (partition, kept.incarnation_of(offset_of(place)), place)
        for partition, kept in outside.logs.items()
        for place in kept.read(kept.log_start, kept.end)
    }
    assert set(outside.records()) >= there
    assert offsets_of(outside) == {
        partition: found.end for partition, found in outside.logs.items()
    }
    assert set(outside.applied) == set(outside.plans)


SKIPPING = settings_of(on_data_loss="skip")


def expired_plan(settings: Settings = SKIPPING) -> Outside:
    """A plan is stored, its driver died, and retention took the start of one of its ranges."""
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at("store plan", When.AFTER))
    outside.logs[LOGS[0]].log_start = 2
    return outside


def accept(
    outside: Outside,
    *names: str,
    at_offset: int | None = None,
    is_same_log: bool = False,
    settings: Settings = SETTINGS,
    at: At | None = None,
    share: Collection[TopicPartition] | None = None,
) -> Plan:
    """As `etl topics accept-changes`; `share`: what it owns as a member of the group."""
    world = _world_of_command(outside, settings, at, share)
    wanted = AcceptRequest(tuple(map(parse_named, names)), "seen", at_offset, is_same_log)
    with as_member(world, settings) as owned:
        snapshot = with_facts(world.observe(wanted.offsets_of), share=owned)
        state = where_we_stand(snapshot, settings)
        reject_unrecorded_commit(state, snapshot, settings)
        if isinstance(state, Supersede):
            state = Resume(state.plan)
        repair = repair_of(state, snapshot)
        stored = None
        if isinstance(state, StoredBackfill):
            stored, state = state.plan, state.state
        if not isinstance(state, (UpToDate, Resume)):
            raise NeedsDecision(
                "there is no plan yet, or only the table has it", action="Run `etl run CONF`"
            )
        snapshot = finish_earlier_work(world, repair, snapshot, settings, "run-1")
        plan = plan_reset(state, snapshot, settings, wanted, now_ms=world.now_ms())
        old = state.last if isinstance(state, UpToDate) else state.plan
        anew = [
            partition
            for partition, incarnation in plan.incarnations.items()
            if incarnation != old.incarnations.get(partition, 0)
        ]
        reject_partitions_of_other_members(anew, snapshot, settings)
        reject_unknown_incarnations(state, anew)
        plan = plan_of_command(plan, snapshot, settings, stored)
        store_decided(world, plan, snapshot.ledger)
    return plan


def set_to(
    outside: Outside,
    settings: Settings = SETTINGS,
    at: At | None = None,
    share: Collection[TopicPartition] | None = None,
    **targets: int,
) -> Plan | None:
    """What `etl offsets set` does with the outside; logs are named a, b and c. None: they are there
    already.

    `share`: what it owns as a member of the group.
    """
    named = {dict(zip("abc", outside.logs))[name]: to for name, to in targets.items()}
    world = _world_of_command(outside, settings, at, share)
    with as_member(world, settings) as owned:
        seen = world.observe(lambda partition: [named[partition]] if partition in named else ())
        snapshot = with_facts(seen, share=owned)
        if owned:
            snapshot = leave_to_owners(snapshot, settings)
        state, newest = where_we_stand(snapshot, settings), snapshot.ledger.newest
        reject_unrecorded_commit(state, snapshot, settings)
        base = outside.plans.get(newest.number - 1) if newest else None
        stands = standing(state, parse_plan(base, path="plans") if base else None)
        repair = repair_of(state, snapshot)
        snapshot = finish_earlier_work(world, repair, snapshot, settings, "run-1")
        moves = moves_to(named, stands, snapshot)
        rows = {
            partition: _rows_between(outside, partition, start, until)
            for partition, (start, until) in intervals_to_look_up(moves).items()
        }
        reject_loaded(moves, {}, rows)
        if not moves:
            return None
        reject_partitions_of_other_members(named, snapshot, settings)
        plan = plan_set(stands, moves, snapshot, settings, reason="seen", now_ms=world.now_ms())
        stored = state.plan if isinstance(state, StoredBackfill) else None
        plan = plan_of_command(plan, snapshot, settings, stored)
        store_decided(world, plan, snapshot.ledger)
    return plan


def _rows_between(outside: Outside, partition: TopicPartition, start: int, until: int) -> int:
    rows = outside.rows().elements()
    return sum(of == partition and start <= offset_of(place) < until for of, place in rows)


def _world_of_command(
    outside: Outside, settings: Settings, at: At | None, share: Collection[TopicPartition] | None
) -> FakeWorld:
    return FakeWorld(
        outside,
        settings,
        at or (lambda step, when: None),
        member=None if share is None else member_with(share),
    )


OLD = f"offset-range-etl/{CLUSTER}/old-group/clicks"
ENDED = {LOGS[0]: 5, LOGS[1]: 3, LOGS[2]: 4}


def old_pipeline(
    positions: Mapping[TopicPartition, int] = ENDED, **changes: object
) -> OtherPipeline:
    """The pipeline of another group that has loaded this table until now."""
    loaded = outside_of(*(1 for _ in LOGS))
    run(loaded)
    newest = loaded.newest_plan()
    assert newest is not None
    plan = changed(
        newest,
        number=4,
        loaded_until=dict(positions),
        expected_commits={partition: Committed() for partition in positions},
        ranges=tuple(
            OffsetRange(partition, 0, position) for partition, position in positions.items()
        ),
        log_starts={},
        leader_epochs={},
        record_epochs={},
        topic_ids={"clicks": "id-1"},
        incarnations={LOGS[0]: 1},
        **changes,
    )
    return OtherPipeline(OLD, 4, 9, with_id(plan))


def loaded_by_another(*ends: int, other: OtherPipeline | None = None) -> Outside:
    """Logs that another pipeline has loaded up to `ENDED`, and a ledger without its plans."""
    outside = outside_of(*ends)
    outside.table = []
    outside.others = (other or old_pipeline(),)
    outside.topic_ids = {"clicks": "id-1"}
    return outside


def snapshot_of(outside: Outside) -> Snapshot:
    return FakeWorld(outside, SETTINGS).observe()
