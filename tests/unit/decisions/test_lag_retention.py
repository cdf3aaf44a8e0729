"""Which offsets retention deletes soon: their tasks come first, and reports have the time left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.decide.lag import Expiring, Headroom, find_expiring, headroom
from etl.decide.tasks import pack_tasks
from etl.model.partitions import Broker, Leader, OldestRecord, Retention, TopicPartition, cleanup_of
from etl.model.plans import OffsetRange
from etl.model.snapshot import Ledger, Snapshot
from tests.builders import plain_plan, plain_snapshot

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
NOW_MS, HOUR = 1_700_000_000_000, 3600


def snapshot_of(**changes: Any) -> Snapshot:
    facts = {"bytes_per_offset": {A: 10.0, B: 10.0}, **changes}
    return plain_snapshot({A: (100, 1_000), B: (0, 50)}, **facts)


def soon(snapshot: Snapshot, *ranges: OffsetRange, within_s: float = HOUR) -> tuple[Expiring, ...]:
    return find_expiring(ranges, snapshot, within_s=within_s, now_ms=NOW_MS)


def ledger_of(log_starts: dict[TopicPartition, int], ago_s: int) -> Ledger:
    then_ms = NOW_MS - ago_s * 1000
    plan = plain_plan(created_at_ms=then_ms, loaded_until={A: 400}, log_starts=log_starts)
    return Ledger("u", plan)


@pytest.mark.parametrize(
    ("reported", "value", "explains", "ends"),
    [
        (None, False, False, False),
        (None, True, True, True),
        (Retention(), False, False, False),
        (Retention(), True, True, True),
        (Retention(is_compacted=True), False, True, True),
        (Retention(is_tiered=True), True, True, False),
        (Retention(is_tiered=True), False, False, False),
    ],
)
def test_missing_offsets_are_explained_by_the_brokers_or_by_an_operator(
    reported: Retention | None, value: bool, explains: bool, ends: bool
) -> None:
    found = cleanup_of(reported, said_to_be_compacted=value)
    assert (found.explains_missing, found.ends_in_silence) == (explains, ends)


def test_a_start_below_the_first_offset_that_lasts_expires_by_time() -> None:
    snapshot = snapshot_of(
        retention={"clicks": Retention(ms=7_200_000)}, retained_from={A: 500, B: 0}
    )
    found = soon(
        snapshot, OffsetRange(A, 700, 1_000), OffsetRange(A, 400, 700), OffsetRange(B, 0, 50)
    )
    assert found == (
        Expiring(
            A, 400, "records up to offset 500 may expire within 60 min (retention.ms 7,200,000)"
        ),
    )
    assert str(found[0]).endswith("its range (from 400) is read first")


@pytest.mark.parametrize("start", [500, 900])
def test_a_start_that_does_not_expire_soon_is_not_reported(start: int) -> None:
    snapshot = snapshot_of(retention={"clicks": Retention(ms=7_200_000)}, retained_from={A: 500})
    assert soon(snapshot, OffsetRange(A, start, 1_000)) == ()


@pytest.mark.parametrize(
    ("start", "is_told"), [(100, True), (190, True), (191, False), (900, False)]
)
def test_a_start_expires_by_size_when_the_bytes_after_it_nearly_reach_the_limit(
    start: int, is_told: bool
) -> None:
    snapshot = snapshot_of(retention={"clicks": Retention(bytes=9_000)})
    assert bool(soon(snapshot, OffsetRange(A, start, 1_000))) is is_told


def test_a_tiered_topic_is_not_reported_by_size_since_its_logs_are_local_parts_only() -> None:
    snapshot = snapshot_of(retention={"clicks": Retention(bytes=9_000, is_tiered=True)})
    assert soon(snapshot, OffsetRange(A, 100, 1_000)) == ()


@pytest.mark.parametrize(("ago_s", "is_told"), [(1_200, True), (1_201, False), (59, False)])
def test_without_retention_of_brokers_the_movement_of_the_log_start_counts(
    ago_s: int, is_told: bool
) -> None:
    """100 expired since the plan and 300 are left: three times the time that passed. One deleted
    segment in the first minute is no rate.
    """
    found = soon(snapshot_of(ledger=ledger_of({A: 0}, ago_s)), OffsetRange(A, 400, 1_000))
    assert bool(found) is is_told
    if found:
        assert (
            found[0].why
            == "the log start moved by 100 offsets in 20 min and may pass 400 in 60 min"
        )


@pytest.mark.parametrize(
    "ledger", [Ledger(), ledger_of({}, 60), ledger_of({A: 100}, 60), ledger_of({A: 0}, 0)]
)
def test_a_log_start_without_a_known_movement_predicts_nothing(ledger: Ledger) -> None:
    snapshot = snapshot_of(ledger=ledger)
    assert soon(snapshot, OffsetRange(A, 100, 1_000)) == ()
    found = room(snapshot)
    assert (found.seconds_left, found.bytes_left, found.estimated_from) == (None, None, None)
    assert found.unknown_because


def test_a_topic_without_limits_never_expires() -> None:
    snapshot = snapshot_of(retention={"clicks": Retention()}, ledger=ledger_of({A: 0}, 60))
    assert soon(snapshot, OffsetRange(A, 100, 1_000)) == ()


def test_with_a_warning_time_of_zero_no_start_is_reported() -> None:
    snapshot = snapshot_of(retention={"clicks": Retention(ms=1)}, retained_from={A: 1_000})
    assert soon(snapshot, OffsetRange(A, 100, 1_000))
    assert soon(snapshot, OffsetRange(A, 100, 1_000), within_s=0) == ()


def room(
    snapshot: Snapshot, offset: int = 400, *, age_s: float | None = 60, why: str | None = None
) -> Headroom:
    oldest = OldestRecord(None if age_s is None else NOW_MS - round(age_s * 1000), why)
    return headroom(A, offset, oldest, snapshot, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("age_s", "left_s"), [(0, HOUR), (600, 3000), (HOUR, 0), (2 * HOUR, 0), (-60, HOUR + 60)]
)
def test_a_record_outlasts_retention_ms_from_its_own_time_on(age_s: float, left_s: float) -> None:
    assert room(
        snapshot_of(retention={"clicks": Retention(ms=HOUR * 1000)}), age_s=age_s
    ) == Headroom(left_s, estimated_from="retention.ms")


@pytest.mark.parametrize(("offset", "left"), [(1_000, 9_000), (400, 3_000), (100, 0)])
def test_expiry_by_size_is_reported_in_bytes_that_may_arrive_and_not_as_a_time(
    offset: int, left: int
) -> None:
    found = room(snapshot_of(retention={"clicks": Retention(bytes=9_000)}), offset)
    assert (found.bytes_left, found.seconds_left) == (left, None)
    why = "only retention.bytes limits the partition, and its growth rate is unknown"
    assert found.unknown_because == why


def test_of_two_limits_both_are_reported() -> None:
    found = room(snapshot_of(retention={"clicks": Retention(ms=HOUR * 1000, bytes=9_000)}))
    assert found == Headroom(3540.0, 3_000, "retention.ms")


@pytest.mark.parametrize(
    "changes",
    [
        {"retention": {"clicks": Retention(ms=1, bytes=9_000, is_tiered=True)}},
        {"retention": {"clicks": Retention(ms=1, bytes=9_000)}, "bytes_per_offset": {}},
    ],
    ids=["part of it elsewhere", "no sizes"],
)
def test_without_a_known_size_of_the_log_no_bytes_are_estimated(changes: dict[str, Any]) -> None:
    assert room(snapshot_of(**changes)).bytes_left is None


def test_a_record_without_a_timestamp_has_no_time_of_expiry() -> None:
    found = room(
        snapshot_of(retention={"clicks": Retention(ms=1)}), age_s=None, why="its format has none"
    )
    assert found.seconds_left is None
    assert found.unknown_because and found.unknown_because.endswith("its format has none")


@pytest.mark.parametrize(
    ("retention", "why"),
    [
        (Retention(), "the topic keeps its records"),
        (Retention(is_compacted=True), "a newer record of its key may replace it at any time"),
    ],
)
def test_without_a_limit_none_is_reported(retention: Retention, why: str) -> None:
    assert room(snapshot_of(retention={"clicks": retention})) == Headroom(unknown_because=why)


@pytest.mark.parametrize(("offset", "left_s"), [(400, HOUR), (100, 0)])
def test_without_limits_of_brokers_the_headroom_follows_the_movement_of_the_log_start(
    offset: int, left_s: float
) -> None:
    found = room(snapshot_of(ledger=ledger_of({A: 0}, 1_200)), offset, age_s=None)
    assert found == Headroom(
        left_s, estimated_from="the movement of the log start since the newest plan"
    )


def test_tasks_with_endangered_ranges_come_first_and_those_ranges_first_in_them() -> None:
    leaders = [Leader(Broker(i, "h", 9092)) for i in range(2)]
    ranges = [OffsetRange(TopicPartition("clicks", p), 0, 10_000, leaders[p % 2]) for p in range(6)]
    small = [replace(r, until_offset=10) for r in ranges]
    endangered = {ranges[3].partition}
    assert pack_tasks(ranges, {}, 2**28, 1) == ((0, 2, 4), (1, 3, 5))
    assert pack_tasks(ranges, {}, 2**28, 1, first=endangered) == ((3, 1, 5), (0, 2, 4))
    assert pack_tasks(small, {}, 2**28, 1, first=endangered) == ((3, 0, 1, 2, 4, 5),)
