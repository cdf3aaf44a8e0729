"""Every way in which planned offsets are given up, and the rows of the losses table for each.

A plan is stored and its driver dies; then a partition changes, and another plan replaces the stored
one. The table of cases is `WAYS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from etl.decide.next_step import next_step, plan_superseding
from etl.decide.partition_owners import leave_to_owners
from etl.decide.reconcile import where_we_stand
from etl.errors import EtlError, NeedsDecision, PartitionTruncated
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, Plan
from etl.model.snapshot import Supersede, Table
from etl.report.describe import describe_continuation, describe_given_up, describe_left
from etl.settings.sections import Settings
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    PHYSICAL_LOGS,
    PHYSICAL_SETTINGS,
    SETTINGS,
    SKIPPING,
    At,
    accept,
    crash_at,
    physical_outside_of,
    run,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

A, B, _ = LOGS
OTHER = TopicPartition("clicks-2", 0)
Deed = Callable[[Outside], object]


def stored(*, topic_id: str = "id-1") -> Outside:
    """A was loaded up to 15, B to 4, OTHER to 6; the stored plan 2 reads ten more each."""
    outside = Outside({A: FakeLog(15), B: FakeLog(4), OTHER: FakeLog(6)})
    outside.topic_ids = {"clicks": topic_id, "clicks-2": f"{topic_id}-2"}
    run(outside)
    for partition in outside.logs.values():
        partition.end += 10
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    return outside


def supersede(
    outside: Outside, *skips: Loss, settings: Settings = SETTINGS, at: At | None = None
) -> Plan:
    """What `etl plans supersede` does with the outside."""
    world = FakeWorld(outside, settings, at or (lambda step, when: None))
    snapshot = leave_to_owners(world.observe(), settings)
    state = where_we_stand(snapshot, settings)
    assert snapshot.ledger.newest and state
    plan = plan_superseding(
        Supersede(snapshot.ledger.newest, "seen", skips), snapshot, settings, now_ms=1
    )
    world.supersede(plan, snapshot.ledger)
    return plan


def delete(outside: Outside) -> None:
    del outside.logs[OTHER]
    del outside.topic_ids["clicks-2"]


def recreate(outside: Outside, end: int = 3, topic_id: str = "id-3") -> None:
    outside.logs[OTHER] = replace(FakeLog(6).recreated(), end=end)
    outside.topic_ids["clicks-2"] = topic_id


def recreate_both(outside: Outside) -> None:
    recreate(outside)
    for partition in (A, B):
        outside.logs[partition] = replace(outside.logs[partition].recreated(), end=2)
    outside.topic_ids["clicks"] = "id-4"


def cut(outside: Outside, at: int = 20, end: int = 40) -> None:
    outside.logs[A].cut(at)
    outside.logs[A].end = end


def expire(outside: Outside) -> None:
    outside.logs[A].log_start = 20


def nothing(outside: Outside) -> None:
    """All stays as it is."""


DELETED = Loss(OTHER, 6, 16, LossReason.DELETED)
RECREATED = Loss(OTHER, 6, 16, LossReason.RECREATED)
TRUNCATED = Loss(A, 20, 25, LossReason.TRUNCATED)


@dataclass(frozen=True)
class Way:
    """The change of the partitions, the action after it, and the rows of losses."""

    happens: Deed
    done: Deed
    lost: tuple[Loss, ...] = ()
    settings: Settings = SETTINGS


def both(*deeds: Deed) -> Deed:
    def do(outside: Outside) -> None:
        for deed in deeds:
            deed(outside)

    return do


def skipping(partition: TopicPartition, start: int, until: int) -> Deed:
    return lambda outside: supersede(outside, Loss(partition, start, until, LossReason.SKIPPED))


def accepting(*names: str, **value: Any) -> Deed:
    return lambda outside: accept(outside, *names, **value)


WAYS = {
    "deleted, supersede": Way(delete, supersede, (DELETED,)),
    "deleted, supersede --skip of a part": Way(
        delete,
        skipping(OTHER, 8, 10),
        (
            Loss(OTHER, 8, 10, LossReason.SKIPPED),
            replace(DELETED, until_offset=8),
            replace(DELETED, from_offset=10),
        ),
    ),
    "deleted, supersede, and once more": Way(delete, both(supersede, supersede), (DELETED,)),
    "deleted, offsets set of another topic": Way(
        delete,
        lambda outside: set_to(outside, a=18),
        (DELETED, Loss(A, 15, 18, LossReason.SKIPPED)),
    ),
    "deleted, supersede, recreated, accept-changes": Way(
        delete, both(supersede, recreate, accepting("clicks-2")), (DELETED,)
    ),
    "recreated, accept-changes": Way(recreate, accepting("clicks-2"), (RECREATED,)),
    "two topics recreated, accept-changes of one and then of the other": Way(
        recreate_both,
        both(accepting("clicks"), accepting("clicks-2")),
        (Loss(A, 15, 25, LossReason.RECREATED), Loss(B, 4, 14, LossReason.RECREATED), RECREATED),
    ),
    "truncated inside the range, accept-changes": Way(cut, accepting("clicks:0"), (TRUNCATED,)),
    "truncated inside the range, supersede": Way(cut, supersede, (TRUNCATED,)),
    "truncated below the range, accept-changes": Way(
        lambda outside: cut(outside, at=10),
        accepting("clicks:0"),
        (replace(TRUNCATED, from_offset=15),),
    ),
    "expired, on_data_loss: skip": Way(
        expire, nothing, (Loss(A, 15, 20, LossReason.EXPIRED),), SKIPPING
    ),
    "skipped by hand": Way(nothing, skipping(A, 17, 19), (Loss(A, 17, 19, LossReason.SKIPPED),)),
    "offsets set forwards": Way(
        nothing, lambda outside: set_to(outside, a=18), (Loss(A, 15, 18, LossReason.SKIPPED),)
    ),
    "skipped by hand, and offsets set back": Way(
        nothing, both(skipping(A, 15, 19), lambda outside: set_to(outside, a=15))
    ),
    "skipped by hand, and offsets set into the middle": Way(
        nothing,
        both(skipping(A, 15, 19), lambda outside: set_to(outside, a=17)),
        (Loss(A, 15, 17, LossReason.SKIPPED),),
    ),
    "offsets set forwards, supersede, and offsets set back": Way(
        nothing,
        both(
            lambda outside: set_to(outside, a=18),
            supersede,
            lambda outside: set_to(outside, a=15),
        ),
    ),
    "supersede of a plan that can be read": Way(nothing, supersede),
}
"""Offsets of partitions that are left out are not given up: see the tests below."""


def losses_of(outside: Outside) -> list[Loss]:
    return sorted(loss for _, loss in outside.losses)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_each_way_to_abandon_offsets_is_recorded_once_and_reported_by_the_run(way: Way) -> None:
    outside = stored()
    way.happens(outside)
    way.done(outside)
    report = run(outside, way.settings)
    assert losses_of(outside) == sorted(way.lost)
    assert report.lost_records == bool(way.lost)
    run(outside, way.settings)
    assert losses_of(outside) == sorted(way.lost)
    assert not [key for key, times in outside.keys().items() if times > 1]
    lost = {
        (loss.partition, loss.incarnation, offset)
        for loss in way.lost
        for offset in range(loss.from_offset, loss.until_offset)
    }
    loaded = set(outside.keys())
    planned = {
        (partition, 0, offset)
        for partition, until in ((A, 25), (B, 14), (OTHER, 16))
        for offset in range(until)
    }
    assert planned <= loaded | lost, sorted(planned - loaded - lost)
    if TRUNCATED not in way.lost:  # other records have the offsets of truncated ones
        assert not loaded & lost


COMMANDS: dict[str, Callable[[Outside, At], Plan]] = {
    "deleted, supersede": lambda outside, at: supersede(outside, at=at),
    "recreated, accept-changes": lambda outside, at: accept(outside, "clicks-2", at=at),
    "truncated inside the range, accept-changes": lambda outside, at: accept(
        outside, "clicks:0", at=at
    ),
}


@pytest.mark.parametrize(
    "step", ["supersede", "append", "record losses", "record", "commit from 0", "tidy"]
)
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_crash_at_any_step_of_giving_up_records_each_loss_once(
    name: str, step: str, when: When
) -> None:
    outside, way = stored(), WAYS[name]
    way.happens(outside)
    if step == "supersede":
        with pytest.raises(Crash):
            COMMANDS[name](outside, crash_at(step, when))
    if step != "supersede" or when is When.BEFORE:
        way.done(outside)
    if step != "supersede":
        with pytest.raises(Crash):
            run(outside, at=crash_at(step, when))
    run(outside)
    run(outside)
    assert losses_of(outside) == sorted(way.lost)
    assert not [key for key, times in outside.keys().items() if times > 1]


def test_a_run_stops_and_names_the_loss_unless_an_operator_accepted_it() -> None:
    outside = stored()
    delete(outside)
    with pytest.raises(NeedsDecision) as caught:
        run(outside, SKIPPING)
    assert (
        caught.value.action
        and "10 offsets of plan 2, the first of them clicks-2 0 from 6 to 16, are lost"
        in caught.value.action
    )


@pytest.mark.parametrize(
    ("happens", "error"),
    [(delete, NeedsDecision), (recreate, NeedsDecision), (cut, PartitionTruncated)],
)
def test_no_run_gives_up_offsets_with_a_plan_that_another_table_takes_the_place_of(
    happens: Deed, error: type[EtlError]
) -> None:
    """Another plan takes the number of the stored one: a person decides."""
    outside = Outside({A: FakeLog(25), OTHER: FakeLog(16)})
    outside.topic_ids = {"clicks": "id-1", "clicks-2": "id-2"}
    with pytest.raises(Crash):
        run(outside, SKIPPING, at=crash_at("store plan", When.AFTER))
    before = dict(outside.plans)
    happens(outside)
    world = FakeWorld(outside, SKIPPING)
    snapshot = world.observe()
    of_others = replace(snapshot, table=Table("theirs", 3, None, is_of_others_alone=True))
    step = next_step(of_others, SKIPPING, now_ms=1, uid="u")
    assert isinstance(step.state, Supersede) and isinstance(step.refusal, error)
    assert outside.plans == before


@pytest.mark.parametrize(
    ("happens", "settings"),
    [
        (
            lambda outside: setattr(outside.logs[OTHER], "has_leader", False),
            settings_of(on_no_leader="skip"),
        ),
        (nothing, settings_of(topics=["clicks"])),
    ],
    ids=["no_leader", "the conf does not name the topic any more"],
)
def test_offsets_that_the_superseding_plan_cannot_read_are_not_lost_and_are_reported(
    happens: Deed, settings: Settings
) -> None:
    outside = stored()
    happens(outside)
    old = outside.newest_plan()
    plan = supersede(outside, settings=settings)
    assert old and describe_left(old, plan) == [
        "Not read by this plan: clicks-2 0: offsets 6 to 16 of plan 2; its loaded-until "
        "offset stays 6"
    ]
    run(outside, settings)
    assert losses_of(outside) == []
    outside.logs[OTHER].has_leader = True
    run(outside)
    assert {offset for partition, _, offset in outside.keys() if partition == OTHER} == set(
        range(16)
    )


def test_a_topic_with_a_new_znode_in_a_copied_zookeeper_loses_nothing() -> None:
    outside = stored(topic_id="zxid-5")
    outside.topic_ids = {"clicks": "zxid-7", "clicks-2": "zxid-8"}
    accept(outside, "clicks", is_same_log=True)
    accept(outside, "clicks-2", is_same_log=True)
    run(outside)
    assert losses_of(outside) == []
    assert set(outside.keys()) == {
        (partition, 0, offset)
        for partition, until in ((A, 25), (B, 14), (OTHER, 16))
        for offset in range(until)
    }


def test_of_a_recreated_or_truncated_physical_log_every_planned_offset_is_lost() -> None:
    outside = physical_outside_of(3, 2)
    run(outside)
    starts = {partition: found.end for partition, found in outside.logs.items()}
    for partition in PHYSICAL_LOGS[:2]:
        outside.logs[partition].grow(2)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    first, second = PHYSICAL_LOGS[:2]
    ends = {partition: found.end for partition, found in outside.logs.items()}
    outside.logs[first].cut(starts[first])
    with pytest.raises(PartitionTruncated):
        run(outside)
    accept(outside, "clicks:1-0", at_offset=starts[first], settings=PHYSICAL_SETTINGS)
    run(outside)
    assert losses_of(outside) == [Loss(first, starts[first], ends[first], LossReason.TRUNCATED)]
    assert outside.offsets[second][0] == ends[second]


def test_without_a_stored_plan_the_command_reports_the_end_of_the_former_log() -> None:
    outside = Outside({A: FakeLog(10)})
    outside.topic_ids = {"clicks": "one"}
    run(outside)
    old = outside.newest_plan()
    outside.logs[A] = replace(outside.logs[A].recreated(), end=2)
    outside.topic_ids = {"clicks": "two"}
    plan = accept(outside, "clicks")
    assert old and plan.losses.lost == ()
    result = describe_continuation(plan, old, A, is_stored=False)
    assert (
        result.startswith(
            "clicks 0 continues at 0. The former log was loaded up to 10; records after that are"
        )
        and "number is unknown" in result
    )


def test_a_command_names_what_it_gives_up_with_its_offsets_and_their_number() -> None:
    outside = stored()
    recreate(outside)
    old = outside.newest_plan()
    plan = accept(outside, "clicks-2")
    assert describe_given_up(plan.losses.lost) == [
        "Lost: clicks-2 0: 10 offsets (6 to 16), topic_recreated"
    ]
    assert (
        old
        and "was loaded up to 6 and planned up to 16; records after that"
        in describe_continuation(plan, old, OTHER, is_stored=True)
    )
