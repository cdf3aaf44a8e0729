"""Rebalances without a leader: members of one group divide two partitions by registrations and
owner nodes, in every interleaving.

A member of ours takes each step that `etl.decide.group_assignment` returns. The other member is
another of ours, an old consumer, which makes some attempts and then owns nothing until the next
event, or a run that claims partitions without an owner and is no member. Each of ours may die at
every step, with its nodes there until its session ends; any of them may be as slow as it likes.

Laws: a member of ours that believes that it owns a partition has the owner's node, so no two do;
and from every state, when no member joins or leaves any more, the group settles: each partition is
owned by the member of its assignment, without an event from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from etl.decide import group_assignment
from etl.decide.group_assignment import MemberAction, MemberState, Phase, Timing

LOGS = (0, 1)
TIMING = Timing(join_timeout_s=2, backoff_s=1)
"""A member of ours waits twice for others and then leaves."""
OLD_TRIES = 2
Owners = tuple[int | None, ...]


class Kind(IntEnum):
    OURS, OLD, CLAIMER = range(3)


class Old(IntEnum):
    RELEASE, LOOK, CLAIM, UNDO, REST = range(5)


class Holding(IntEnum):
    """What a run does next that claims and is no member."""

    CLAIM, RELEASE, NUDGE, DONE = range(4)


class Who(NamedTuple):
    """One of them: what it does next, and what it knows."""

    kind: Kind
    does: MemberAction | Old | Holding | None = None
    """None: it is not there."""
    standing: MemberState = MemberState()
    share: frozenset[int] = frozenset()
    """By the group that it saw last."""
    tries: int = 0
    is_called: bool = False
    has_watch: bool = False
    is_dead: bool = False
    """Its nodes are still there."""


class Rules(NamedTuple):
    """What the protocol consists of; one that is taken away breaks a law."""

    nudges: bool = True
    """A member calls the others where their logs have no owner."""
    claimer_nudges: bool = True
    """A run that is no member calls the consumers once it has let go."""
    watches_first: bool = True
    """A watch is set before what it watches is read, and not after."""
    leaves: bool = True
    """Who gives up is no member any more."""
    lets_go_first: bool = True
    """What it owned it lets go before it claims anew."""


class Left(NamedTuple):
    """How often each thing may still happen."""

    starts: int = 3
    leaves: int = 1
    crashes: int = 1
    nudges: int = 1


class State(NamedTuple):
    """Everything at one moment."""

    all: tuple[Who, ...]
    ids: frozenset[int] = frozenset()
    owners: Owners = (None, None)
    left: Left = Left()
    rules: Rules = Rules()


def given(ids: frozenset[int], who: int) -> frozenset[int]:
    """The range strategy for one thread each."""
    members = sorted(ids)
    return frozenset(
        partition
        for partition in LOGS
        if members and members[partition * len(members) // len(LOGS)] == who
    )


def steps(s: State, *, is_quiet: bool = False) -> Iterator[tuple[str, State]]:
    """Every possible next state, with its event; if `quiet`, no member joins, leaves or dies."""
    left = s.left
    for i, who in enumerate(s.all):
        if who.is_dead:
            gone = _put(s._replace(owners=_without(s.owners, i)), i, Who(who.kind))
            yield f"the session of {i} ends", _called(gone._replace(ids=s.ids - {i}))
        if who.does is None:
            may_start = not is_quiet and left.starts
            if may_start and not (who.is_dead and who.kind is not Kind.OURS):
                begun = s._replace(left=left._replace(starts=left.starts - 1))
                yield f"{i} starts", _started(begun, i, who)
        elif who.kind is Kind.OURS:
            if left.crashes and not is_quiet:
                dead = _put(s, i, Who(who.kind, is_dead=True))
                yield f"{i} dies", dead._replace(left=left._replace(crashes=left.crashes - 1))
            if left.leaves and not is_quiet and who.does is not MemberAction.LEAVE:
                going = _put(s, i, who._replace(does=MemberAction.LEAVE))
                yield f"{i} is to leave", going._replace(left=left._replace(leaves=left.leaves - 1))
            yield from _ours(s, i, who)
        elif who.kind is Kind.OLD:
            yield from _old(s, i, who)
        else:
            yield from _claimer(s, i, who)


def _put(s: State, i: int, who: Who) -> State:
    return s._replace(all=s.all[:i] + (who,) + s.all[i + 1 :])


def _without(owners: Owners, i: int) -> Owners:
    return tuple(None if owner == i else owner for owner in owners)


def _with(owners: Owners, partitions: frozenset[int], i: int) -> Owners:
    return tuple(
        i if partition in partitions else owner
        for partition, owner in zip(LOGS, owners, strict=True)
    )


def _called(s: State) -> State:
    """The watch on the members fires; old consumers set theirs again."""
    called = []
    for who in s.all:
        if who.has_watch:
            who = who._replace(is_called=True, has_watch=who.kind is Kind.OLD)
        called.append(who)
    return s._replace(all=tuple(called))


def _started(s: State, i: int, who: Who) -> State:
    if who.kind is Kind.OURS:
        standing, does = group_assignment.start_join(MemberState())
        return _put(s, i, Who(who.kind, does, standing, is_dead=who.is_dead))
    if who.kind is Kind.CLAIMER:
        return _put(s, i, Who(who.kind, Holding.CLAIM))
    return _put(_called(s._replace(ids=s.ids | {i})), i, Who(who.kind, Old.RELEASE, has_watch=True))


def _ours(s: State, i: int, who: Who) -> Iterator[tuple[str, State]]:
    standing = who.standing
    freed = s._replace(owners=_without(s.owners, i))
    if who.does is MemberAction.REGISTER:
        after, does = group_assignment.after_registration(standing)
        # What it left when it died is taken over.
        joined = _called(freed._replace(ids=s.ids | {i}))
        yield f"{i} registers", _put(joined, i, _after(who, after, does, is_dead=False))
    elif who.does is MemberAction.LOOK:
        yield from _looks(s, i, who)
    elif who.does is MemberAction.CLAIM:
        free = frozenset(partition for partition in who.share if s.owners[partition] in (None, i))
        if free == who.share:
            after, does = group_assignment.after_claim(standing, is_called=who.is_called)
            owner = _after(who, after, does, has_watch=True, tries=0)
            claimed = s._replace(owners=_with(s.owners, free, i))
            yield f"{i} claims {set(free)}", _put(claimed, i, owner)
        else:
            elapsed_s = who.tries
            after, does = group_assignment.after_rejected_claim(
                standing, TIMING, elapsed_s=elapsed_s
            )
            yield f"{i} is refused", _put(s, i, _after(who, after, does, tries=who.tries + 1))
    elif who.does is MemberAction.WAIT:
        yield f"{i} has waited", _put(s, i, _after(who, *group_assignment.after_backoff(standing)))
    elif who.does is MemberAction.LET_GO:
        released = _after(who, *group_assignment.after_release(standing))
        yield f"{i} lets go", _put(freed, i, released)
    elif who.does is MemberAction.LEAVE and s.rules.leaves:
        left = _put(freed._replace(ids=s.ids - {i}), i, Who(who.kind))
        yield f"{i} leaves", _called(left)
    elif who.does is MemberAction.LEAVE:
        ended = group_assignment.after_session_end(standing)
        yield f"{i} gives up", _put(freed, i, _after(who, ended, MemberAction.REST))
    elif who.is_called and standing.phase is Phase.STABLE:
        yield f"{i} hears that it is called", _put(s, i, who._replace(does=MemberAction.LOOK))
    elif s.rules.nudges and s.left.nudges and standing.phase is Phase.STABLE:
        others = [partition for partition in LOGS if partition not in who.share]
        if any(s.owners[partition] is None for partition in others):
            nudging = who._replace(standing=group_assignment.after_nudge(standing))
            called = _called(_put(s, i, nudging))
            yield f"{i} nudges", called._replace(left=s.left._replace(nudges=s.left.nudges - 1))


def _after(who: Who, standing: MemberState, does: MemberAction, **changes: Any) -> Who:
    return who._replace(standing=standing, does=does, **changes)


def _looks(s: State, i: int, who: Who) -> Iterator[tuple[str, State]]:
    owns = all(s.owners[partition] == i for partition in who.share)
    after, does = group_assignment.after_observation(who.standing, s.ids, owns_its_share=owns)
    share = given(s.ids, i) if does is MemberAction.CLAIM else who.share
    seen = _after(who, after, does, share=share, is_called=False)
    if s.rules.watches_first:
        yield f"{i} looks", _put(s, i, seen._replace(has_watch=True))
    else:
        yield f"{i} looks, without a watch", _put(s, i, seen)
    if does is MemberAction.LET_GO and not s.rules.lets_go_first:
        kept, _ = group_assignment.after_release(after)
        unreleased = _after(seen, kept, MemberAction.LOOK, has_watch=True)
        yield f"{i} does not let go", _put(s, i, unreleased)


def _old(s: State, i: int, who: Who) -> Iterator[tuple[str, State]]:
    freed = s._replace(owners=_without(s.owners, i))
    if who.does is Old.RELEASE:
        yield f"{i} lets go as old consumers do", _put(freed, i, who._replace(does=Old.LOOK))
    elif who.does is Old.LOOK:
        seen = who._replace(does=Old.CLAIM, share=given(s.ids, i))
        yield f"{i} looks as old consumers do", _put(s, i, seen)
    elif who.does is Old.CLAIM:
        free = frozenset(partition for partition in who.share if s.owners[partition] is None)
        claimed = s._replace(owners=_with(s.owners, free, i))
        if free == who.share:
            after = who._replace(does=Old.REST, tries=0)
        else:
            after = who._replace(does=Old.UNDO)
        yield f"{i} claims {set(free)}", _put(claimed, i, after)
    elif who.does is Old.UNDO and who.tries + 1 < OLD_TRIES:
        again = who._replace(does=Old.RELEASE, tries=who.tries + 1)
        yield f"{i} will try again", _put(freed, i, again)
    elif who.does is Old.UNDO:
        yield f"{i} gives up, and stays", _put(freed, i, who._replace(does=Old.REST, tries=0))
    elif who.is_called:
        called = who._replace(does=Old.RELEASE, is_called=False)
        yield f"{i} hears that it is called", _put(s, i, called)


def _claimer(s: State, i: int, who: Who) -> Iterator[tuple[str, State]]:
    if who.does is Holding.CLAIM:
        free = frozenset(partition for partition in LOGS if s.owners[partition] is None)
        claimed = s._replace(owners=_with(s.owners, free, i))
        yield f"{i} claims {set(free)}", _put(claimed, i, who._replace(does=Holding.RELEASE))
    elif who.does is Holding.RELEASE:
        does = Holding.NUDGE if s.rules.claimer_nudges else Holding.DONE
        freed = s._replace(owners=_without(s.owners, i))
        yield f"{i} lets go", _put(freed, i, who._replace(does=does))
    elif who.does is Holding.NUDGE:
        yield f"{i} nudges", _called(_put(s, i, who._replace(does=Holding.DONE)))


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about settling apart."""
    for i, who in enumerate(s.all):
        is_member = who.kind is Kind.OURS and who.does not in (None, MemberAction.LEAVE)
        if is_member and who.standing.phase is Phase.STABLE:
            if missing := [partition for partition in who.share if s.owners[partition] != i]:
                return f"{i} believes that {missing} are its own, and their owners are {s.owners}"
    return None


def after_quiet(s: State) -> State:
    """The final state if no member joins or leaves any more."""
    s = s._replace(left=Left(starts=0, leaves=0, crashes=0, nudges=3))
    for turn in range(200):
        found = list(steps(s, is_quiet=True))
        without_nudges = [after for what, after in found if "nudges" not in what]
        able = without_nudges or [after for _, after in found]
        if not able:
            return s
        s = able[turn % len(able)]
    return s


def is_settled(s: State) -> bool:
    """Whether each log has the owner that the group gives it, or none where the group is empty."""
    return all(
        s.owners[partition] == next((i for i in s.ids if partition in given(s.ids, i)), None)
        for partition in LOGS
    )


def explore(start: State) -> tuple[int, str | None]:
    """The number of states, and the shortest way to one that breaks a law, or None."""
    before: dict[State, tuple[str, State] | None] = {start: None}
    queue = deque([start])
    calm = set[State]()
    while queue:
        state = queue.popleft()
        broken = broken_law(state)
        quiet = state._replace(left=Left(0, 0, 0, 0))
        if broken is None and quiet not in calm:
            calm.add(quiet)
            broken = broken_when_quiet(state)
        if broken:
            return len(before), "\n".join([broken, *way_to(state, before)])
        for event, after in steps(state):
            if after not in before:
                before[after] = event, state
                queue.append(after)
    return len(before), None


def broken_when_quiet(s: State) -> str | None:
    """What is wrong once no member joins or leaves any more."""
    last = after_quiet(s)
    broken = broken_law(last)
    if broken is None and not is_settled(last):
        return f"no member makes a step any more at {last.owners} of {set(last.ids)}"
    return broken


def way_to(state: State, before: dict[State, tuple[str, State] | None]) -> list[str]:
    way = []
    while origin := before[state]:
        event, state = origin
        way.append(event)
    return way[::-1]


STARTS = {
    "two of ours": State((Who(Kind.OURS), Who(Kind.OURS))),
    "an old consumer": State((Who(Kind.OLD), Who(Kind.OURS))),
    "an old consumer that sorts last": State((Who(Kind.OURS), Who(Kind.OLD))),
    "an old consumer and a run that claims": State(
        (Who(Kind.OLD), Who(Kind.CLAIMER)), left=Left(starts=3, leaves=0, crashes=0)
    ),
}
LARGE = {
    "two of ours, again and again": STARTS["two of ours"]._replace(
        left=Left(starts=4, leaves=2, crashes=2, nudges=2)
    ),
    "all of them": State(
        (Who(Kind.OLD), Who(Kind.OURS), Who(Kind.CLAIMER)),
        left=Left(starts=4, leaves=1, crashes=1, nudges=2),
    ),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_log_has_two_owners_and_everybody_settles(start: State) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states >= 50


@pytest.mark.long
@pytest.mark.parametrize("start", LARGE.values(), ids=LARGE)
def test_the_same_holds_when_members_come_and_go_more_often(start: State) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > 50_000


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        ("nudges", "an old consumer"),
        ("claimer_nudges", "an old consumer and a run that claims"),
        ("watches_first", "two of ours"),
        ("leaves", "two of ours"),
        ("lets_go_first", "an old consumer"),
    ],
)
def test_without_one_of_the_rules_a_member_never_settles(rule: str, start: str) -> None:
    broken = explore(STARTS[start]._replace(rules=Rules()._replace(**{rule: False})))[1]
    assert broken is not None and "no member makes a step any more" in broken
