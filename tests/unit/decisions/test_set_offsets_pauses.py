"""Partitions are paused and resumed, and reports describe the pauses."""

from __future__ import annotations

from typing import Any

import pytest

from etl.decide.lag import Progress, progress_of_table, unread_starts
from etl.decide.set_offsets import leave_paused, merged, pauses_of_partitions, pausing, resuming
from etl.errors import SettingsError
from etl.model.partitions import (
    OldestRecord,
    PartitionOffsets,
    Retention,
    TopicPartition,
    parse_named,
)
from etl.model.plans import OffsetRange
from etl.model.snapshot import Ledger, Pause
from etl.report.lag import paused_partitions
from tests.builders import plain_plan, plain_settings, plain_snapshot

A, B, C = (TopicPartition("clicks", p) for p in range(3))
OTHER, PHYSICAL = TopicPartition("orders", 0), TopicPartition("clicks", 0, 7)
KNOWN = (A, B, C, OTHER)
NOW_MS = 1_700_000_000_000


def of(partition: TopicPartition, reason: str = "r", since_ms: int = 5) -> Pause:
    return Pause(partition.topic, partition, reason, "kim@h", since_ms)


def whole(topic: str = "clicks", reason: str = "all") -> Pause:
    return Pause(topic, None, reason, "kim@h", 5)


Changed = tuple[tuple[Pause, ...], tuple[str, ...]]
"""The pauses, and what is reported."""


def paused(*names: str, before: tuple[Pause, ...] = ()) -> Changed:
    found = pausing(before, map(parse_named, names), KNOWN, reason="r", by="kim@h", now_ms=5)
    return found.pauses, found.summary


def resumed(*names: str, before: tuple[Pause, ...]) -> Changed:
    found = resuming(before, map(parse_named, names), KNOWN)
    return found.pauses, found.summary


def test_a_partition_named_twice_is_paused_once() -> None:
    assert paused("clicks:1", "orders", "clicks:1") == (
        (of(B), whole("orders", "r")),
        ("clicks:1 is paused: r", "orders is paused: r"),
    )


@pytest.mark.parametrize(
    ("before", "name", "message"),
    [
        ((of(B, "old", 1),), "clicks:1", "clicks:1 is paused already: old"),
        ((whole(),), "clicks", "clicks is paused already: all"),
        ((whole(),), "clicks:1", "clicks:1 is paused already, with clicks as a whole: all"),
        ((whole(), of(B, "old", 1)), "clicks:1", "clicks:1 is paused already: old"),
    ],
)
def test_a_paused_partition_stays_as_it_was_and_that_is_reported(
    before: tuple[Pause, ...], name: str, message: str
) -> None:
    assert paused(name, before=before) == (before, (message,))


def test_a_topic_is_paused_as_a_whole_in_addition_to_its_paused_partitions() -> None:
    assert paused("clicks", before=(of(B, "old"),))[0] == (of(B, "old"), whole("clicks", "r"))


@pytest.mark.parametrize("name", ["clicks:9", "nosuch", "clicks:1-0"])
def test_an_unknown_log_is_neither_paused_nor_resumed(name: str) -> None:
    with pytest.raises(SettingsError, match="no partition|no topic"):
        paused(name)
    with pytest.raises(SettingsError, match="no partition|no topic"):
        resumed(name, before=(of(B),))


RESUMED = "is resumed: the next plan reads on from its position"


@pytest.mark.parametrize(
    ("before", "name", "left", "message"),
    [
        ((of(A), of(B)), "clicks:1", (of(A),), RESUMED),
        ((whole(), of(B), whole("orders")), "clicks", (whole("orders"),), RESUMED),
        ((of(TopicPartition("gone", 0)),), "gone:0", (), RESUMED),
        ((of(A),), "clicks:1", (of(A),), "is not paused: there is nothing to resume"),
    ],
)
def test_a_resumed_partition_is_not_paused_any_more(
    before: tuple[Pause, ...], name: str, left: tuple[Pause, ...], message: str
) -> None:
    assert resumed(name, before=before) == (left, (f"{name} {message}",))


def test_a_partition_of_a_topic_that_is_paused_as_a_whole_is_not_resumed_by_itself() -> None:
    message = "clicks is paused as a whole, so clicks:1 cannot be resumed by itself: all"
    with pytest.raises(SettingsError, match=message):
        resumed("clicks:1", before=(whole(), of(B)))


def test_a_log_is_paused_by_a_pause_of_its_own_before_that_of_its_topic() -> None:
    assert pauses_of_partitions(KNOWN, (whole(), of(B))) == {A: whole(), B: of(B), C: whole()}
    assert pauses_of_partitions((PHYSICAL, A), (of(A),)) == {A: of(A)}, (
        "one number is another log on each broker"
    )


def test_paused_partitions_are_left_out_and_a_command_that_names_them_sees_them() -> None:
    seen = plain_snapshot(
        {A: (0, 5), B: (0, 5)}, leaderless=frozenset({C, OTHER}), pauses=(of(B), of(C))
    )
    left = leave_paused(seen)
    assert left.readable.keys() == {A} and left.leaderless == {OTHER}
    assert left.paused.keys() == {B, C} and left.left_out.keys() == {B}
    assert leave_paused(left) is left
    again = left.with_paused()
    assert (again.readable, again.leaderless, again.paused) == (seen.readable, seen.leaderless, {})
    assert leave_paused(plain_snapshot({A: (0, 5)}, pauses=(of(B),))).readable == {
        A: PartitionOffsets(0, 5)
    }


def test_a_successor_takes_over_the_pauses_of_the_topics_and_keeps_its_own() -> None:
    theirs = (of(A, "theirs"), whole("orders"), whole("left"))
    found = merged((of(A, "ours"),), theirs, {"clicks", "orders"})
    assert found == (of(A, "ours"), whole("orders"))


def paused_lines(
    pauses: tuple[Pause, ...],
    oldest: OldestRecord | None = None,
    retention: Retention | None = None,
    *,
    at: int = 0,
    others: frozenset[TopicPartition] = frozenset(),
) -> list[str]:
    seen = plain_snapshot(
        {A: (0, 9), B: (2, 12)},
        pauses=pauses,
        oldest_of_paused={A: oldest, B: oldest} if oldest else {},
        retention={"clicks": retention} if retention else {},
    )
    so_far = Progress(plain_plan(), {A: at, B: at}, others)
    found = paused_partitions(seen, so_far, plain_settings(), now_ms=NOW_MS)
    return [one.summary for one in found]


SINCE = "paused since 1970-01-01T00:00:00.005+00:00 by kim@h: "


HIDDEN = "brokers report no such partition: it is deleted, or an ACL hides it"
HOUR = Retention(ms=3_601_000)


@pytest.mark.parametrize(
    ("names", "why", "given"),
    [
        (
            "clicks 0, 1",
            "all; 19 offsets unread, and the oldest may expire in 1:00 h",
            {"pauses": (whole(),), "oldest": OldestRecord(NOW_MS - 1000), "retention": HOUR},
        ),
        (
            "clicks 0, 1",
            "r; 19 offsets unread, and the oldest may expire now",
            {"pauses": (of(A), of(B)), "oldest": OldestRecord(5), "retention": HOUR},
        ),
        ("clicks 0", "r; no unread records", {"pauses": (of(A),), "at": 9}),
        ("clicks 2", f"r; {HIDDEN}", {"pauses": (of(C),)}),
        ("orders", f"all; {HIDDEN}", {"pauses": (whole("orders"),)}),
    ],
)
def test_a_pause_is_reported_with_its_lag_and_the_time_before_expiry(
    names: str, why: str, given: dict[str, Any]
) -> None:
    assert paused_lines(**given) == [f"{names}: {SINCE}{why}"]


def test_unknown_facts_of_a_pause_are_not_reported() -> None:
    [result] = paused_lines((of(A),))
    assert result.startswith(f"clicks 0: {SINCE}r; 9 offsets unread, and their expiry is unknown: ")


def test_a_paused_partition_that_was_recreated_has_an_unknown_number_of_unread_records() -> None:
    [result] = paused_lines((of(A),), at=20, others=frozenset({A}))
    assert result == f"clicks 0: {SINCE}r; the number of unread records is unknown"


def test_a_truncated_partition_that_a_run_leaves_out_is_known_as_such() -> None:
    plan = plain_plan(1, loaded_until={A: 20, B: 3})
    seen = plain_snapshot({A: (0, 9), B: (0, 5)}, pauses=(of(A),), ledger=Ledger("u", plan))
    settings = plain_settings()
    for snapshot in (seen, leave_paused(seen)):
        so_far = progress_of_table(snapshot, settings)
        [one] = paused_partitions(snapshot, so_far, settings, now_ms=NOW_MS)
        assert one.unread is None


def test_a_paused_partition_that_was_never_read_counts_from_where_it_would_start() -> None:
    seen = plain_snapshot({A: (0, 9)}, pauses=(of(A),))
    settings = plain_settings(source={"starting_offsets": "latest"})
    so_far = progress_of_table(seen, settings)
    [latest] = paused_partitions(seen, so_far, settings, now_ms=NOW_MS)
    [unknown] = paused_partitions(seen, None, settings, now_ms=NOW_MS)
    assert (latest.unread, unknown.unread) == (0, None)


def test_a_stored_plan_of_a_paused_partition_is_unread_until_it_is_in_the_table() -> None:
    plan = plain_plan(1, ranges=(OffsetRange(A, 2, 9),), loaded_until={A: 9})
    seen = plain_snapshot({A: (0, 9)}, pauses=(of(A),), ledger=Ledger("u", plan))
    settings = plain_settings()
    so_far = progress_of_table(seen, settings)
    [one] = paused_partitions(seen, so_far, settings, now_ms=NOW_MS)
    assert one.unread == 7
    assert unread_starts([A], seen, so_far, settings) == {A: 2}


def test_a_paused_jafka_partition_of_a_recreated_topic_waits_for_no_decision_in_reports() -> None:
    plan = plain_plan(
        ranges=(OffsetRange(PHYSICAL, 2, 9),),
        loaded_until={PHYSICAL: 9},
        topic_ids={"clicks": "former"},
    )
    seen = plain_snapshot(
        {PHYSICAL: (0, 9)},
        pauses=(of(PHYSICAL),),
        ledger=Ledger("u", plan),
        topic_ids={"clicks": "recreated"},
    )
    so_far = progress_of_table(leave_paused(seen), plain_settings())
    assert so_far is not None and so_far.refusal is None
