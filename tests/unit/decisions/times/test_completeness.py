"""When logs are complete up to a time."""

from __future__ import annotations

import pytest

from etl.commands.lag import TopicsReady
from etl.decide.run_requests import incomplete_partitions
from etl.model.partitions import TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))
T = 1_700_000_000_000


def test_logs_with_a_record_at_the_time_or_later_are_complete_and_the_others_are_waited_for() -> (
    None
):
    assert incomplete_partitions(
        {C: None, A: 5, B: None}, until_ms=T, now_ms=T + 1000, grace_s=600
    ) == (
        B,
        C,
    )
    assert incomplete_partitions({A: 5, B: 0}, until_ms=T, now_ms=T + 1000, grace_s=600) == ()


@pytest.mark.parametrize(
    ("now_ms", "is_waited_for"), [(T + 599_999, True), (T + 600_000, False), (T + 10**9, False)]
)
def test_a_log_without_new_records_is_complete_when_the_time_plus_the_grace_is_past(
    now_ms: int, is_waited_for: bool
) -> None:
    assert (
        bool(incomplete_partitions({A: None}, until_ms=T, now_ms=now_ms, grace_s=600))
        is is_waited_for
    )


def test_before_the_time_no_log_is_complete_for_a_producers_clock_may_be_ahead() -> None:
    assert incomplete_partitions({A: 5}, until_ms=T, now_ms=T - 1, grace_s=0) == (A,)
    assert incomplete_partitions({A: 5}, until_ms=T, now_ms=T, grace_s=600) == ()


def test_where_there_is_no_log_nothing_is_waited_for() -> None:
    assert incomplete_partitions({}, until_ms=T, now_ms=T - 1, grace_s=600) == ()


def test_no_clock_completes_a_log_without_a_leader_under_fail_and_its_brokers_are_named() -> None:
    assert incomplete_partitions(
        {A: 5, B: 5}, until_ms=T, now_ms=T + 10**9, grace_s=600, unled=(B,)
    ) == (B,)
    found = TopicsReady(T, T + 10**9, 600, 2, (B,), (B,)).refusal
    assert (
        found
        and found.message.endswith("clicks 1 has no leader")
        and "source.on_no_leader: skip" in (found.action or "")
    )
