"""What a member of a group in ZooKeeper does next, by tables: where it stands, what happened, where
it stands then.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etl.decide.group_assignment import (
    Do,
    Phase,
    Standing,
    Step,
    Timing,
    backoff_s,
    claimed,
    ended,
    let_go,
    looked,
    nudge_after_s,
    nudged,
    ownerless,
    refused,
    registered,
    to_join,
    waited,
)
from etl.model.partitions import BrokerPartition

TIMING = Timing(join_timeout_s=60, backoff_s=2, others_backoff_s=2)
UNJOINED, JOINING = Standing(), Standing(Phase.JOINING, "ab")
STABLE, LETTING_GO = Standing(Phase.STABLE, "ab", 1), Standing(Phase.LETTING_GO, "ab", 1)
LOGS = [BrokerPartition("clicks", p) for p in range(4)]


@pytest.mark.parametrize(
    ("before", "happens", "after", "does"),
    [
        (UNJOINED, to_join, Phase.JOINING, Do.REGISTER),
        (JOINING, registered, Phase.JOINING, Do.LOOK),
        (JOINING, lambda s: looked(s, "ab", owns_its_share=False), Phase.JOINING, Do.CLAIM),
        (JOINING, lambda s: refused(s, TIMING, elapsed_s=59.9), Phase.JOINING, Do.WAIT),
        (JOINING, lambda s: refused(s, TIMING, elapsed_s=60), Phase.UNJOINED, Do.LEAVE),
        (JOINING, waited, Phase.JOINING, Do.LOOK),
        (JOINING, lambda s: claimed(s, is_called=False), Phase.STABLE, Do.REST),
        (JOINING, lambda s: claimed(s, is_called=True), Phase.STABLE, Do.LOOK),
        (STABLE, lambda s: looked(s, "ab", owns_its_share=True), Phase.STABLE, Do.REST),
        (STABLE, lambda s: looked(s, "abc", owns_its_share=True), Phase.LETTING_GO, Do.LET_GO),
        (STABLE, lambda s: looked(s, "ab", owns_its_share=False), Phase.LETTING_GO, Do.LET_GO),
        (LETTING_GO, let_go, Phase.JOINING, Do.LOOK),
    ],
)
def test_each_thing_that_happens_has_one_answer(
    before: Standing, happens: Callable[[Standing], Step], after: Phase, does: Do
) -> None:
    found, what = happens(before)
    assert (found.phase, what) == (after, does)


@pytest.mark.parametrize("before", [UNJOINED, JOINING, STABLE, LETTING_GO], ids=str)
def test_who_lost_the_session_is_no_member_wherever_it_stood(before: Standing) -> None:
    assert ended(before).phase is Phase.UNJOINED


def test_a_hundred_events_that_change_nothing_let_nobody_go() -> None:
    standing = STABLE
    for _ in range(100):
        standing, does = looked(standing, "ab", owns_its_share=True)
        assert does is Do.REST
    assert standing == STABLE


def test_a_backoff_ends_with_the_time_to_join() -> None:
    assert [backoff_s(TIMING, elapsed_s=elapsed) for elapsed in (0, 57, 59, 60, 61)] == [
        2,
        2,
        1,
        0,
        0,
    ]


def test_others_are_called_after_their_backoff_then_half_as_often_each_time_and_no_longer_than_they_may_take() -> (
    None
):
    standing, after = Standing(Phase.STABLE, "ab"), []
    while (wait_s := nudge_after_s(standing, TIMING)) is not None:
        after.append(wait_s)
        standing = nudged(standing)
    assert after == [3, 6, 12, 24, 48]
    seen_again = looked(Standing(Phase.JOINING, "ab", len(after)), "abc", owns_its_share=False)[0]
    assert nudge_after_s(seen_again, TIMING) == 3, "another group is another matter"


def test_others_with_a_longer_backoff_than_the_time_to_join_are_called_once() -> None:
    timing = Timing(join_timeout_s=5, others_backoff_s=10)
    assert nudge_after_s(Standing(), timing) == 15
    assert nudge_after_s(nudged(Standing()), timing) is None


def test_a_log_of_others_without_an_owner_is_ownerless_and_one_of_ours_is_our_own_matter() -> None:
    assert ownerless(LOGS[1:], LOGS[2:3]) == {LOGS[1], LOGS[3]}
    assert ownerless([], LOGS) == frozenset()
