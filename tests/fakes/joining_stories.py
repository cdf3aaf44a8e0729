"""Runs of a pipeline that is a member of its group, among other members, on the fake world."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from etl.decide.next_step import plan_superseding
from etl.model.partitions import OffsetsStorage, TopicPartition
from etl.model.plans import Loss, Plan
from etl.model.snapshot import Supersede
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.choices import CommitWhen, OwnershipMode
from etl.settings.sections import Settings
from tests.builders import with_keys
from tests.fakes.members import FakeMember, Others, member_with
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, At, crash_at, grow, new_report, outside_of, settings_of
from tests.fakes.world import Crash, FakeWorld, When

A, B, C = LOGS
ZOOKEEPER, KAFKA = OffsetsStorage.ZOOKEEPER, OffsetsStorage.KAFKA
both_places = pytest.mark.parametrize("place", [ZOOKEEPER, KAFKA])
both_orders = pytest.mark.parametrize("commit_when", CommitWhen)


def member_of(
    place: OffsetsStorage = ZOOKEEPER,
    commit_when: CommitWhen = CommitWhen.BEFORE_READ,
    settings: Settings | None = None,
) -> Settings:
    keys = {
        "mode": OwnershipMode.JOIN,
        "offsets_storage": place,
        "join": {"commit_when": commit_when},
    }
    return with_keys(settings or settings_of(), group=keys)


def group_of(place: OffsetsStorage, *ends: int) -> Outside:
    outside = outside_of(*ends)
    outside.offsets_in = place
    return outside


def run(
    outside: Outside,
    *shares: Collection[TopicPartition] | None,
    settings: Settings | None = None,
    at: At = lambda step, when: None,
    made: Callable[[FakeMember], object] = lambda member: None,
) -> Report:
    """A run whose member is given these assignments, one after the other."""
    report, settings = new_report(), settings or member_of(outside.offsets_in)
    world = FakeWorld(outside, settings, at, member=member_with(*shares, made=made))
    ingest(world, settings, report)
    return report


def newest(outside: Outside) -> Plan:
    plan = outside.newest_plan()
    assert plan is not None
    return plan


def offset_of(outside: Outside, partition: TopicPartition) -> int:
    """The group's offset, wherever it is; 0 without one."""
    found = outside.committed().get(partition)
    return (found.offset or 0) if found else 0


def reject_broken(outside: Outside, others: Others, *, is_read_twice: bool = False) -> None:
    """No offset is in the table twice, and none that the group has passed is missing."""
    rows = outside.rows()
    assert set(rows.values()) <= {1}
    for partition in outside.logs:
        ours, theirs = (
            {place for one, place in rows if one == partition},
            others.read.get(partition, set()),
        )
        passed = set(range(offset_of(outside, partition)))
        if is_read_twice:
            assert passed <= ours | theirs, partition
        else:
            assert not ours & theirs and ours | theirs == passed, partition


def left_unfinished(
    outside: Outside, step: str, when: When, settings: Settings | None = None
) -> Others:
    """A run loads all, and the next one dies there. Nobody owns a partition then."""
    run(outside, [A, B], settings=settings)
    grow(outside, 4, 4)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at(step, when), settings=settings)
    outside.owners.clear()
    return Others(outside)


def superseded(outside: Outside, *skips: Loss, settings: Settings) -> None:
    """What `etl plans supersede` does with the outside."""
    world = FakeWorld(outside, settings)
    snapshot = world.observe()
    instead = Supersede(newest(outside), "seen", skips)
    world.supersede(plan_superseding(instead, snapshot, settings, now_ms=1), snapshot.ledger)
