"""A member of a group in ZooKeeper: its next step by its state and what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etl.decide.group_assignment import (
    MemberAction,
    MemberState,
    Phase,
    Step,
    Timing,
    after_backoff,
    after_claim,
    after_nudge,
    after_observation,
    after_registration,
    after_rejected_claim,
    after_release,
    after_session_end,
    backoff_s,
    find_unowned,
    nudge_after_s,
    start_join,
)
from etl.model.partitions import TopicPartition

TIMING = Timing(join_timeout_s=60, backoff_s=2, others_backoff_s=2)
UNJOINED, JOINING = MemberState(), MemberState(Phase.JOINING, "ab")
STABLE, LETTING_GO = MemberState(Phase.STABLE, "ab", 1), MemberState(Phase.LETTING_GO, "ab", 1)
LOGS = [TopicPartition("clicks", p) for p in range(4)]
Event = Callable[[MemberState], Step]


def observes(members: str, *, owns_its_share: bool) -> Event:
    return lambda state: after_observation(state, members, owns_its_share=owns_its_share)


def is_rejected_after(elapsed_s: float) -> Event:
    return lambda state: after_rejected_claim(state, TIMING, elapsed_s=elapsed_s)


def claims(*, is_called: bool) -> Event:
    return lambda state: after_claim(state, is_called=is_called)


@pytest.mark.parametrize(
    ("before", "happens", "after", "does"),
    [
        (UNJOINED, start_join, Phase.JOINING, MemberAction.REGISTER),
        (JOINING, after_registration, Phase.JOINING, MemberAction.LOOK),
        (JOINING, observes("ab", owns_its_share=False), Phase.JOINING, MemberAction.CLAIM),
        (JOINING, is_rejected_after(59.9), Phase.JOINING, MemberAction.WAIT),
        (JOINING, is_rejected_after(60), Phase.UNJOINED, MemberAction.LEAVE),
        (JOINING, after_backoff, Phase.JOINING, MemberAction.LOOK),
        (JOINING, claims(is_called=False), Phase.STABLE, MemberAction.REST),
        (JOINING, claims(is_called=True), Phase.STABLE, MemberAction.LOOK),
        (STABLE, observes("ab", owns_its_share=True), Phase.STABLE, MemberAction.REST),
        (STABLE, observes("abc", owns_its_share=True), Phase.LETTING_GO, MemberAction.LET_GO),
        (STABLE, observes("ab", owns_its_share=False), Phase.LETTING_GO, MemberAction.LET_GO),
        (LETTING_GO, after_release, Phase.JOINING, MemberAction.LOOK),
    ],
)
def test_each_event_has_one_answer(
    before: MemberState, happens: Event, after: Phase, does: MemberAction
) -> None:
    found, action = happens(before)
    assert (found.phase, action) == (after, does)


@pytest.mark.parametrize("before", [UNJOINED, JOINING, STABLE, LETTING_GO], ids=str)
def test_a_member_whose_session_ended_is_no_member_in_any_state(before: MemberState) -> None:
    assert after_session_end(before).phase is Phase.UNJOINED


def test_a_hundred_events_without_a_change_remove_no_member() -> None:
    standing = STABLE
    for _ in range(100):
        standing, does = after_observation(standing, "ab", owns_its_share=True)
        assert does is MemberAction.REST
    assert standing == STABLE


def test_a_backoff_ends_with_the_time_to_join() -> None:
    found = [backoff_s(TIMING, elapsed_s=elapsed) for elapsed in (0, 57, 59, 60, 61)]
    assert found == [2, 2, 1, 0, 0]


def test_others_are_notified_after_their_backoff_then_half_as_often_up_to_a_limit() -> None:
    standing, after = MemberState(Phase.STABLE, "ab"), []
    while (wait_s := nudge_after_s(standing, TIMING)) is not None:
        after.append(wait_s)
        standing = after_nudge(standing)
    assert after == [3, 6, 12, 24, 48]
    seen_again = after_observation(
        MemberState(Phase.JOINING, "ab", len(after)), "abc", owns_its_share=False
    )[0]
    assert nudge_after_s(seen_again, TIMING) == 3, "another group is another matter"


def test_others_with_a_longer_backoff_than_the_time_to_join_are_called_once() -> None:
    timing = Timing(join_timeout_s=5, others_backoff_s=10)
    assert nudge_after_s(MemberState(), timing) == 15
    assert nudge_after_s(after_nudge(MemberState()), timing) is None


def test_a_log_of_others_without_an_owner_is_ownerless_and_one_of_ours_is_our_own_matter() -> None:
    assert find_unowned(LOGS[1:], LOGS[2:3]) == {LOGS[1], LOGS[3]}
    assert find_unowned([], LOGS) == frozenset()
