"""Offset commits after the append: a pipeline that is one member of a group commits the group's
offset once its plan is in the table.

One partition, one table, two drivers of one pipeline, and the group's other members, as in
`member_offsets`. The plan is stored without a check, and any driver executes it; then one commit of
the plan's membership moves the offset, or is rejected: another member has the partition then, and
reads the same records again. The next plan begins at the larger of our position and the group's
offset. A membership is the same as long as it released nothing: with KIP-848 its epoch changes
meanwhile.

    python -m tests.model.handing_over_later

Laws: no offset is in the table twice; every offset before the group's offset is in the table, or
others committed it; the group's offset never goes back; offsets that are in the table and were
committed by others, too, are in a report, if the offset's metadata identifies its writer (Kafka; in
ZooKeeper others that moved it by one write to exactly our end look like us). From every state
undisturbed runs with no other members in the group end with the partition's end in the table or
among the reads of others, and the group's offset there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

OTHERS = -1
"""Who of the group is not ours."""


class At(IntEnum):
    """What a driver does next."""

    IDLE, LOOK, CLAIM, READ, REPAIR, STORE, APPEND, WRITE, COMMIT, RECORD = range(10)


class Plan(NamedTuple):
    """Offsets [start, until) under a number; without any it is a plan of other partitions, and has
    our position.
    """

    number: int
    start: int
    until: int
    seen: int
    """The group's offset when it was made."""
    id: int
    membership: int
    """With which its run owned the log; 0: it did not."""


class Group(NamedTuple):
    """The group's state: its offset with the metadata (0: others'), and the owner of the partition
    with its claim.
    """

    offset: int = 0
    by: int = 0
    owner: int | None = None
    membership: int = 0
    claims: int = 0


class Driver(NamedTuple):
    """One driver: what it does next, and what it knows."""

    at: At = At.IDLE
    membership: int = 0
    plan: Plan | None = None
    bit: int = 0
    goes_on: bool = False
    """After the result: it makes another plan, or reads the offset again."""


class Left(NamedTuple):
    """How often each thing may still happen."""

    runs: int = 3
    crashes: int = 1
    losses: int = 1
    lost_memberships: int = 1
    others: int = 1
    lost_answers: int = 1
    more: int = 1
    """Plans that a run makes after its first one, as the same member."""
    end: int = 3
    id: int = 1


class Rules(NamedTuple):
    """What the protocol consists of; one that is taken away breaks a law, each in its own test."""

    is_fenced: bool = True
    """The commit is of the membership that the plan was made with, and never of today's."""
    starts_at_larger: bool = True
    """A plan begins at the larger of our position and the group's offset; else at the group's
    offset.
    """
    unsure_ends: bool = True
    """A commit of which no answer came ends its membership: it may still be under way."""
    reports: bool = True
    """An observation finds the offsets that others read of the last plan; for a plan without a
    stored result, those that they may have read.
    """
    records_last: bool = True
    """A plan's result is stored after its commit."""
    repairs: bool = True
    """An offset before our position is committed there by the run that owns the partition now,
    whichever run left it.
    """


class State(NamedTuple):
    """Everything at one moment."""

    group: Group = Group()
    plan: Plan | None = None
    """The newest of the ledger."""
    lock: int | None = None
    bit: int = 0
    applied: tuple[Plan, ...] = ()
    others_read: frozenset[int] = frozenset()
    reported: frozenset[int] = frozenset()
    recorded: int = 0
    """The newest plan with a stored result: after the report of its commit."""
    has_gone_back: bool = False
    end: int = 1
    under_way: Plan | None = None
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    left: Left = Left()
    is_in_zookeeper: bool = False
    rules: Rules = Rules()


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    group, left = s.group, s.left
    if s.end < left.end:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.lock is not None and left.losses:
        lost = s._replace(lock=None, left=left._replace(losses=left.losses - 1))
        yield (
            "a session is lost",
            lost._replace(group=_without(group, s.lock)) if s.is_in_zookeeper else lost,
        )
    if group.owner is not None and group.owner != OTHERS and left.lost_memberships:
        fewer = left._replace(lost_memberships=left.lost_memberships - 1)
        yield (
            f"{group.owner} is no owner any more",
            s._replace(group=group._replace(owner=None), left=fewer),
        )
    if s.under_way:
        if _is_of_owner(group, s.under_way.membership) or not s.rules.is_fenced:
            landed = _moved(s, s.under_way)
        else:
            landed = s
        yield f"the commit of {s.under_way.number} arrives", landed._replace(under_way=None)
    if group.owner is None and left.others:
        theirs = group._replace(owner=OTHERS, membership=group.claims + 1, claims=group.claims + 1)
        yield (
            "others claim the log",
            s._replace(group=theirs, left=left._replace(others=left.others - 1)),
        )
    if group.owner == OTHERS:
        yield "others let go", s._replace(group=group._replace(owner=None))
        if group.offset < s.end:
            read = s.others_read | {group.offset}
            yield (
                f"others read {group.offset}",
                s._replace(group=group._replace(offset=group.offset + 1, by=0), others_read=read),
            )
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if s.lock is None and left.runs:
                yield (
                    f"{i} starts",
                    _put(s, i, Driver(At.LOOK))._replace(
                        lock=i, left=left._replace(runs=left.runs - 1)
                    ),
                )
            continue
        if left.crashes:
            dead = _dead(s, i)._replace(left=left._replace(crashes=left.crashes - 1))
            yield f"{i} dies at {driver.at.name}", dead
            if driver.at is At.COMMIT and not s.is_in_zookeeper:
                yield f"{i} dies, and its commit is under way", dead._replace(under_way=driver.plan)
        yield from _DOES[driver.at](s, i, driver)


def _without(group: Group, who: int) -> Group:
    return group._replace(owner=None) if group.owner == who else group


def _is_of_owner(group: Group, membership: int) -> bool:
    return membership > 0 and group.owner is not None and group.membership == membership


def _evicted(group: Group, membership: int) -> Group:
    return group._replace(owner=None) if _is_of_owner(group, membership) else group


def _moved(s: State, plan: Plan) -> State:
    group = s.group._replace(offset=plan.until, by=plan.id)
    return s._replace(group=group, has_gone_back=s.has_gone_back or plan.until < s.group.offset)


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=s.drivers[:i] + (driver,) + s.drivers[i + 1 :])


def _ended(s: State, i: int) -> State:
    """The run has ended, and let go of what it owns."""
    group = (
        _without(s.group, i) if s.is_in_zookeeper else _evicted(s.group, s.drivers[i].membership)
    )
    return _put(s, i, Driver())._replace(lock=None if s.lock == i else s.lock, group=group)


def _dead(s: State, i: int) -> State:
    """The same for a silent member: at a coordinator it stays a member until its session ends."""
    if s.is_in_zookeeper:
        return _ended(s, i)
    return _put(s, i, Driver())._replace(lock=None if s.lock == i else s.lock)


def _overlap(plan: Plan | None, group: Group, *, until: int | None = None) -> frozenset[int]:
    """What of a plan others have read up to the group's offset, or may have up to `until`: that is
    neither as this plan saw it nor as it moves it.
    """
    if plan is None or (group.offset, group.by) == (plan.until, plan.id):
        return frozenset()
    return frozenset(range(plan.seen, min(group.offset if until is None else until, plan.until)))


def _overlap_of_last(s: State) -> frozenset[int]:
    """The same for the last plan in the table. If its result is stored, its commit was
    accepted or reported as rejected; reads of others beyond its end add nothing. Otherwise that is
    unknown, and they may have read from the plan's start on.
    """
    plan, group = s.plan, s.group
    if plan is None or s.recorded >= plan.number:
        return _overlap(plan, group) if plan and group.offset < plan.until else frozenset()
    return _overlap(plan, group, until=plan.until)


def _reported(s: State, offsets: frozenset[int]) -> State:
    return s._replace(reported=s.reported | offsets) if s.rules.reports else s


def _look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """A stored plan is executed unchanged, whichever member owns the partition now."""
    if s.plan and s.bit < s.plan.number:
        ended = s if s.is_in_zookeeper else s._replace(group=_evicted(s.group, s.plan.membership))
        executes = _put(
            _reported(ended, _overlap(s.plan, s.group)),
            i,
            driver._replace(at=At.APPEND, plan=s.plan),
        )
        yield f"{i} executes {s.plan.number} again", executes
    else:
        yield f"{i} wants the log", _put(s, i, driver._replace(at=At.CLAIM))


def _claim(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    group = s.group
    if group.owner is None:
        ours = group._replace(owner=i, membership=group.claims + 1, claims=group.claims + 1)
        yield (
            f"{i} claims the log",
            _put(s, i, driver._replace(at=At.READ, membership=ours.membership))._replace(
                group=ours
            ),
        )
    else:
        yield f"{i} has no share", _put(s, i, driver._replace(at=At.READ))


def _read(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The group's present offset, compared with our position."""
    last, offset = s.plan, s.group.offset
    position = last.until if last else 0
    if last and s.bit < last.number:
        yield f"{i} finds {last.number} stored meanwhile", _ended(s, i)
        return
    s = _reported(s, _overlap_of_last(s))
    if last and s.recorded < last.number:
        yield (
            f"{i} finds {last.number} without its record",
            _put(s, i, driver._replace(at=At.RECORD, plan=last, goes_on=True)),
        )
        return
    owns = _is_of_owner(s.group, driver.membership)
    if s.rules.repairs and last and owns and offset < position:
        repaired = last._replace(seen=offset)
        yield (
            f"{i} finds that the offset is smaller than the table's end",
            _put(s, i, driver._replace(at=At.REPAIR, plan=repaired)),
        )
        return
    start = max(position, offset) if s.rules.starts_at_larger else offset
    number, counted = (
        (last.number if last else 0) + 1,
        s._replace(left=s.left._replace(id=s.left.id + 1)),
    )
    if owns and s.end > start:
        plan = Plan(number, start, s.end, offset, s.left.id, driver.membership)
        yield f"{i} plans {number}", _put(counted, i, driver._replace(at=At.STORE, plan=plan))
    else:
        yield f"{i} has nothing to do", _ended(s, i)
    if not driver.membership and s.left.runs:
        other = Plan(number, position, position, offset, s.left.id, 0)
        yield (
            f"{i} plans {number} of other logs",
            _put(counted, i, driver._replace(at=At.STORE, plan=other)),
        )


def _repair(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """As the member that it is now: it has read the offset as the owner, and moves it forwards."""
    assert driver.plan is not None
    if _is_of_owner(s.group, driver.membership) and s.group.offset == driver.plan.seen:
        yield (
            f"{i} moves the offset",
            _put(_moved(s, driver.plan), i, driver._replace(at=At.READ, plan=None)),
        )
    else:
        yield f"{i} is refused", _ended(s, i)


def _store(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent, without any other check."""
    plan = driver.plan
    assert plan is not None
    if s.plan is not None and s.plan.number >= plan.number:
        yield f"{i} finds its number taken", _ended(s, i)
    else:
        yield (
            f"{i} stores {plan.number}",
            _put(s, i, driver._replace(at=At.APPEND))._replace(plan=plan),
        )


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Fetch, and open a transaction of the table: it remembers the bit that it saw."""
    assert driver.plan is not None
    if s.bit >= driver.plan.number:
        yield f"{i}'s append of {driver.plan.number} is skipped", _ended(s, i)
    else:
        yield (
            f"{i} writes {driver.plan.number}",
            _put(s, i, driver._replace(at=At.WRITE, bit=s.bit)),
        )


def _write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Commit only if no other commit had our application id since."""
    plan = driver.plan
    assert plan is not None
    if s.bit == driver.bit:
        done = _put(s, i, driver._replace(at=At.COMMIT))._replace(
            bit=plan.number, applied=(*s.applied, plan)
        )
        yield (
            f"{i} appends {plan.number}",
            done if s.rules.records_last else done._replace(recorded=plan.number),
        )
    else:
        yield f"{i} loses {plan.number}", _ended(s, i)


def _commit(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """By the plan's membership; in ZooKeeper by an owner node that is ours, and the offset as the
    plan saw it.
    """
    plan, group = driver.plan, s.group
    assert plan is not None
    if s.is_in_zookeeper:
        is_taken = (
            group.owner not in (None, OTHERS) and group.offset == plan.seen and plan.membership > 0
        )
    else:
        is_taken = _is_of_owner(group, plan.membership)
    records = driver._replace(at=At.RECORD)
    if is_taken or not s.rules.is_fenced:
        moved = _moved(s, plan) if plan.membership else s
        yield f"{i} commits {plan.number}", _put(moved, i, records)
        if s.left.more and driver.membership:
            again = records._replace(goes_on=True)
            yield (
                f"{i} commits {plan.number} and continues",
                _put(moved, i, again)._replace(left=s.left._replace(more=0)),
            )
        if s.left.lost_answers and not s.is_in_zookeeper:
            unsure = s._replace(
                under_way=plan, left=s.left._replace(lost_answers=s.left.lost_answers - 1)
            )
            if s.rules.unsure_ends:
                yield f"{i}'s commit is under way, and it leaves", _ended(unsure, i)
            else:
                yield (
                    f"{i}'s commit is under way, and sent again",
                    _put(_moved(unsure, plan), i, driver._replace(at=At.READ, plan=None)),
                )
    else:
        yield (
            f"{i}'s commit is refused",
            _put(_reported(s, frozenset(range(plan.seen, plan.until))), i, records),
        )


def _record(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    assert driver.plan is not None
    done = s._replace(recorded=max(s.recorded, driver.plan.number))
    again = _put(done, i, driver._replace(at=At.READ, plan=None, goes_on=False))
    yield f"{i} records {driver.plan.number}", again if driver.goes_on else _ended(done, i)


_DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.LOOK: _look,
    At.CLAIM: _claim,
    At.READ: _read,
    At.REPAIR: _repair,
    At.STORE: _store,
    At.APPEND: _append,
    At.WRITE: _write,
    At.COMMIT: _commit,
    At.RECORD: _record,
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, those about quiet runs apart."""
    ours = [offset for plan in s.applied for offset in range(plan.start, plan.until)]
    if len(ours) != len(set(ours)):
        return f"the table holds {s.applied}"
    if lost := set(range(s.group.offset)) - s.others_read - set(ours):
        return f"{sorted(lost)} are passed, and no member has them"
    return "the group's offset went back" if s.has_gone_back else None


def after_one_quiet_run(s: State) -> State:
    """The result of one driver alone, with no other member in the group and no other event."""
    alone = Left(
        runs=1,
        crashes=0,
        losses=0,
        lost_memberships=0,
        others=0,
        lost_answers=0,
        more=0,
        end=s.end,
        id=10_000,
    )
    now: State | None = s._replace(
        lock=None,
        group=s.group._replace(owner=None),
        drivers=(Driver(),),
        left=alone,
        under_way=None,
    )
    last = s
    while now:
        last, now = now, next((after for _, after in steps(now)), None)
    return last


def _of_a_quiet_run(s: State) -> str | None:
    last = s
    for _ in range(2):  # the first may finish an earlier run, and make no plan of its own
        last = after_one_quiet_run(last)
    ours = {offset for plan in last.applied for offset in range(plan.start, plan.until)}
    if bad := broken_law(last):
        return bad
    if ours | last.others_read != set(range(last.end)) or last.group.offset != last.end:
        return f"quiet runs end with {last}"
    unreported = (ours & last.others_read) - last.reported
    if unreported and not s.is_in_zookeeper:
        return f"{sorted(unreported)} are read twice, and no run reported it"
    return None


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[State]()

    def law(s: State) -> str | None:
        there = s._replace(
            lock=None,
            group=s.group._replace(owner=None, membership=0, claims=0),
            drivers=(),
            left=Left(),
            under_way=None,
        )
        if (bad := broken_law(s)) or there in calm:
            return bad
        calm.add(there)
        return _of_a_quiet_run(s)

    return explored(start, steps, law)


SMALL = State(left=Left(runs=2, losses=0, lost_answers=0, more=0, end=2))
UNANSWERED = State(left=Left(runs=2, losses=0, crashes=0, end=2))
"""The same with a lost answer of a commit and a run with two plans, and without deaths."""
STARTS = State(), State(is_in_zookeeper=True)
"""Offsets in Kafka, and in ZooKeeper."""


if __name__ == "__main__":
    for one in STARTS:
        states, broken = explore(one)
        print(f"{states:,} states", broken or "every law holds")
        if broken:
            sys.exit(1)
