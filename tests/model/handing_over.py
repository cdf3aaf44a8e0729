"""Offset commits before the read: a pipeline that is one member of a group commits the group's
offset when its plan is stored, in every interleaving.

One partition, one table, two drivers of one pipeline, and the group's other members, which own the
partition in turn with us, read on from the group's offset and commit their records. Each of our
drivers may die, lose its lock or its ownership without noticing, and continue; a dead one is a
member as long as its session, and its last commit may arrive after it.

    python -m tests.model.handing_over

With offsets in ZooKeeper the plan is created, its owner node checked and the offset set in one
step. With offsets in Kafka there are three steps: the plan is stored, one commit fenced by the
membership moves the offset and carries the plan's id, and the plan is marked as committed. A
rejected commit makes the plan void before its first fetch, and that is stored, too; another plan
replaces it under its number. A driver that finds a plan that is neither ends the membership of the
plan first, so that no commit of it can arrive any more, and then checks whether one arrived: the
metadata of the offset is the plan's, until others commit.

A plan lists the offsets that others read between the table and its start. If it was not committed,
its replacement continues from the same position, lists them again with later ones, and starts after
all of them.

Laws: no offset is in the table twice, nor in the table and in the commits of others; every offset
before the group's offset is in the table, or was read by others, or is in a committed plan; a plan
is fetched only after its commit; the offsets between the plans in the table are those that others
read, and the plans list them; and from every state one undisturbed run, with no other members in
the group, ends with the partition's end in the table or among the others' reads. It may stop for an
operator instead only if the commit of a plan is undecidable: the offset is beyond the plan's end,
and others have committed since.
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

    (
        IDLE,
        LOOK,
        FIND_OUT,
        CLAIM,
        READ,
        STORE,
        HAND_OVER,
        MARK,
        VOID,
        SUPERSEDE,
        APPEND,
        WRITE,
        STOPPED,
    ) = range(13)


class Plan(NamedTuple):
    """Offsets [start, until) under a number; `id` stands for the rest of its content."""

    number: int
    start: int
    until: int
    id: int
    membership: int
    """With which its run owned the log, or others of its logs."""
    position: int
    """The position after the plan before it in the table. Others read the offsets from there to
    `start`, and the plan lists them.
    """
    is_handed_over: bool = False
    is_void: bool = False
    """Its commit was refused."""

    @property
    def is_open(self) -> bool:
        """True if the result of its commit is not stored."""
        return not self.is_handed_over and not self.is_void


class Group(NamedTuple):
    """The group's state: the next offset to read, the plan that committed it last (0: others), the
    owner of the partition.
    """

    offset: int = 0
    by: int = 0
    owner: int | None = None
    membership: int = 0
    """Of the owner; every claim has another. It stands for the session of an owner node, and for
    generation and member id.
    """
    claims: int = 0


class Driver(NamedTuple):
    """One driver: what it does next, and what it knows."""

    at: At = At.IDLE
    membership: int = 0
    """With which it owned the log; 0: it never did."""
    offset: int = 0
    """The group's, as it read it."""
    plan: Plan | None = None
    old: Plan | None = None
    bit: int = 0
    is_unsure: bool = False
    """It sent the commit, and no answer came."""


class Left(NamedTuple):
    """How often each thing may still happen."""

    runs: int = 3
    crashes: int = 1
    losses: int = 1
    lost_memberships: int = 2
    others: int = 2
    """Turns of the other members."""
    lost_answers: int = 1
    end: int = 3
    id: int = 1


class Rules(NamedTuple):
    """What the protocol consists of; one that is taken away breaks a law, each in its own test."""

    is_fenced: bool = True
    """The commit is of the membership that the driver owned the log with, and refused under
    another.
    """
    read_after_claim: bool = True
    starts_at_group: bool = True
    """A plan starts at the group's offset, not at the end of our last plan."""
    refused_is_void: bool = True
    stores_under_lock: bool = True
    """A plan is stored, or takes another's place, only while its run has the pipeline's lock: the
    lock's node is of the same step.
    """
    always_anew: bool = True
    """A plan that was not handed over is never handed over later: a plan of the run that owns the
    log now takes its place.
    """
    names_again: bool = True
    """The replacement of an uncommitted plan lists the same reads of others: it continues from the
    same position.
    """
    starts_behind_named: bool = True
    """It starts after them, too. Otherwise, if the offset is still as that plan observed it, it
    takes the offset for one that a plan of ours did not commit, and starts at the position.
    """
    evicts: bool = True
    """Before anybody looks whether a plan was handed over, the membership that it was made with is
    ended.
    """
    stops_in_doubt: bool = True
    """If the commit of a plan is undecidable, the run stops for an operator."""
    taken_for_handed_over: bool = False
    """Without `stops_in_doubt`: the run takes the commit for accepted."""


class State(NamedTuple):
    """Everything at one moment."""

    group: Group = Group()
    plan: Plan | None = None
    """The newest of the ledger."""
    lock: int | None = None
    bit: int = 0
    applied: tuple[Plan, ...] = ()
    others_read: frozenset[int] = frozenset()
    end: int = 1
    under_way: Plan | None = None
    """The plan of a commit that is still in flight, without a client that waits for its answer."""
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    left: Left = Left()
    is_one_step: bool = False
    """Offsets are in ZooKeeper."""
    rules: Rules = Rules()


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    group, left = s.group, s.left
    if s.end < left.end:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.lock is not None and left.losses:
        lost = s._replace(lock=None, left=left._replace(losses=left.losses - 1))
        # an owner node is of the session that holds the lock
        yield (
            "a session is lost",
            lost._replace(group=_without(group, s.lock)) if s.is_one_step else lost,
        )
    if group.owner is not None and group.owner != OTHERS and left.lost_memberships:
        let_go = s._replace(
            group=group._replace(owner=None),
            left=left._replace(lost_memberships=left.lost_memberships - 1),
        )
        yield f"{group.owner} is no owner any more", let_go
    if s.under_way:
        if _is_of_owner(group, s.under_way.membership) or not s.rules.is_fenced:
            landed = _moved(group, s.under_way)
        else:
            landed = group
        yield (
            f"the commit of {s.under_way.number} arrives",
            s._replace(group=landed, under_way=None),
        )
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
        elif driver.at is not At.STOPPED:
            if left.crashes:
                dead = _dead(s, i)._replace(left=left._replace(crashes=left.crashes - 1))
                yield f"{i} dies at {driver.at.name}", dead
                if driver.at is At.HAND_OVER:
                    yield (
                        f"{i} dies, and its commit is under way",
                        dead._replace(under_way=driver.plan),
                    )
            yield from _DOES[driver.at](s, i, driver)


def _without(group: Group, who: int) -> Group:
    return group._replace(owner=None) if group.owner == who else group


def _is_of_owner(group: Group, membership: int) -> bool:
    return group.owner is not None and group.membership == membership


def _evicted(group: Group, membership: int) -> Group:
    """Return the group without that membership, which is invalid from now on."""
    return group._replace(owner=None) if _is_of_owner(group, membership) else group


def _moved(group: Group, plan: Plan) -> Group:
    return group._replace(offset=plan.until, by=plan.id)


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=s.drivers[:i] + (driver,) + s.drivers[i + 1 :])


def _ended(s: State, i: int, at: At = At.IDLE) -> State:
    """The run has ended, and let go of what it owns."""
    group = _without(s.group, i) if s.is_one_step else _evicted(s.group, s.drivers[i].membership)
    return _put(s, i, Driver(at))._replace(lock=None if s.lock == i else s.lock, group=group)


def _dead(s: State, i: int) -> State:
    """The same for a silent member: at a coordinator it stays a member until its session ends."""
    if s.is_one_step:
        return _ended(s, i)
    return _put(s, i, Driver())._replace(lock=None if s.lock == i else s.lock)


def _owns(s: State, driver: Driver) -> bool:
    return driver.membership > 0 and _is_of_owner(s.group, driver.membership)


def _may_store(s: State, i: int) -> bool:
    return s.lock == i or not s.rules.stores_under_lock


def _look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Any driver executes a committed plan, member or not. If the commit is in doubt, the
    membership ends first.
    """
    if s.plan and s.bit < s.plan.number and s.plan.is_open and not s.is_one_step:
        ended = s._replace(group=_evicted(s.group, s.plan.membership)) if s.rules.evicts else s
        yield (
            f"{i} ends the membership of {s.plan.number}",
            _put(ended, i, driver._replace(at=At.FIND_OUT, plan=s.plan)),
        )
    elif s.plan and s.bit < s.plan.number and s.plan.is_handed_over:
        yield (
            f"{i} executes {s.plan.number} again",
            _put(s, i, driver._replace(at=At.APPEND, plan=s.plan)),
        )
    elif s.rules.read_after_claim:
        yield f"{i} wants the log", _put(s, i, driver._replace(at=At.CLAIM))
    else:
        yield (
            f"{i} reads the offset first",
            _put(s, i, driver._replace(at=At.CLAIM, offset=s.group.offset)),
        )


def _find_out(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's node, if the offset decides; else the present owner of the
    partition observes once more.
    """
    plan, wants = driver.plan, driver._replace(at=At.CLAIM, plan=None)
    assert plan is not None
    if s.group.by == plan.id:
        yield (
            f"{i} finds out that {plan.number} was handed over",
            _put(s, i, driver._replace(at=At.MARK)),
        )
    elif _is_untold(plan, s.group.offset) or s.plan != plan:
        yield f"{i} does not find out", _put(s, i, wants)
    else:
        yield (
            f"{i} finds out that {plan.number} is void",
            _put(s, i, wants)._replace(plan=plan._replace(is_void=True)),
        )


def _claim(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """No membership that is not the owner's can move the offset from here on. Without it a run may
    have a share of other logs.
    """
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
    """The offset of now, and what becomes of a plan that is not known to be handed over."""
    offset = s.group.offset if s.rules.read_after_claim else driver.offset
    plan, knows = s.plan, driver._replace(offset=offset)
    replaced, position = plan if plan and s.bit < plan.number else None, _position(s, offset)
    if replaced:
        number = replaced.number
    elif plan:
        number = plan.number + 1
    else:
        number = 1
    forgets = replaced is not None and offset == replaced.start and not s.rules.starts_behind_named
    start = offset if s.rules.starts_at_group and not forgets else position
    new = Plan(number, start, s.end, s.left.id, driver.membership, position)
    counted = s._replace(left=s.left._replace(id=s.left.id + 1))
    if plan and s.bit < plan.number:
        if plan.is_handed_over:
            yield (
                f"{i} executes {plan.number} again, marked meanwhile",
                _put(s, i, knows._replace(at=At.APPEND, plan=plan)),
            )
        elif s.group.by == plan.id:
            yield (
                f"{i} sees that {plan.number} was handed over",
                _put(s, i, knows._replace(at=At.MARK, plan=plan)),
            )
        elif _is_untold(plan, offset):
            if s.rules.stops_in_doubt:
                yield f"{i} cannot decide if {plan.number} was committed", _ended(s, i, At.STOPPED)
            elif s.rules.taken_for_handed_over:
                yield (
                    f"{i} believes that {plan.number} was handed over",
                    _put(s, i, knows._replace(at=At.MARK, plan=plan)),
                )
            elif driver.membership and s.end > start:
                yield (
                    f"{i} believes that {plan.number} was not",
                    _put(counted, i, knows._replace(at=At.SUPERSEDE, plan=new, old=plan)),
                )
        elif not driver.membership:
            yield f"{i} leaves {plan.number} to a run that owns the log", _ended(s, i)
            if (
                s.group.owner is not None
            ):  # it may own others: its plan leaves this one where it was
                empty = Plan(number, position, position, s.left.id, 0, position)
                yield (
                    f"{i} puts one of other logs in the place of {plan.number}",
                    _put(counted, i, knows._replace(at=At.SUPERSEDE, plan=empty, old=plan)),
                )
        else:
            yield (
                f"{i} puts another in the place of {plan.number}",
                _put(counted, i, knows._replace(at=At.SUPERSEDE, plan=new, old=plan)),
            )
            if not s.rules.always_anew and offset == plan.start:
                yield (
                    f"{i} hands {plan.number} over",
                    _put(s, i, knows._replace(at=At.HAND_OVER, plan=plan)),
                )
    elif driver.membership and s.end > start:
        yield f"{i} plans {new.number}", _put(counted, i, knows._replace(at=At.STORE, plan=new))
    else:
        yield f"{i} has nothing to do", _ended(s, i)


def _position(s: State, offset: int) -> int:
    """The end of the table: after the newest plan, or before one that is replaced. None: at the
    group's offset.
    """
    plan = s.plan
    if plan is None:
        return offset
    if s.bit >= plan.number:
        return plan.until
    return plan.position if s.rules.names_again else plan.start


def _store(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent; in ZooKeeper with the owner node's check and the offset in the same step."""
    plan = driver.plan
    assert plan is not None
    if not _may_store(s, i) or s.plan is not None and s.plan.number >= plan.number:
        yield f"{i} finds its number or its lock taken", _ended(s, i)
    elif not s.is_one_step:
        yield (
            f"{i} stores {plan.number}",
            _put(s, i, driver._replace(at=At.HAND_OVER))._replace(plan=plan),
        )
    elif (_owns(s, driver) or not s.rules.is_fenced) and s.group.offset == driver.offset:
        handed = plan._replace(is_handed_over=True)
        moved = s.group._replace(offset=plan.until, by=plan.id)
        stored = _put(s, i, driver._replace(at=At.APPEND, plan=handed))._replace(
            plan=handed, group=moved
        )
        yield f"{i} stores {plan.number} and hands it over", stored
    else:
        yield f"{i} is refused", _ended(s, i)


def _commit_to_group(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Kafka's commit. Without a fence it is one with today's membership, whatever happened since
    the claim.
    """
    plan = driver.plan
    assert plan is not None
    if plan.start == plan.until:
        yield f"{i} commits nothing of this log", _put(s, i, driver._replace(at=At.MARK))
    elif _owns(s, driver) or not s.rules.is_fenced:
        moved = s._replace(group=_moved(s.group, plan))
        yield f"{i} commits {plan.number}'s end", _put(moved, i, driver._replace(at=At.MARK))
        if s.left.lost_answers:
            unsure = driver._replace(is_unsure=True)
            fewer = s.left._replace(lost_answers=s.left.lost_answers - 1)
            yield (
                f"{i} commits {plan.number}'s end, and the answer is lost",
                _put(moved, i, unsure)._replace(left=fewer),
            )
            yield (
                f"{i}'s commit is under way",
                _put(s, i, unsure)._replace(left=fewer, under_way=plan),
            )
    elif driver.is_unsure and s.group.by == plan.id:
        yield (
            f"{i} is refused, and reads that its commit arrived before",
            _put(s, i, driver._replace(at=At.MARK)),
        )
    elif driver.is_unsure and _is_untold(plan, s.group.offset):
        yield (
            f"{i} is rejected, and cannot decide if its commit arrived before",
            _ended(s, i, At.STOPPED),
        )
    elif s.rules.refused_is_void:
        yield f"{i}'s commit is refused", _put(s, i, driver._replace(at=At.VOID))
    else:
        yield (
            f"{i}'s commit is rejected, and it continues",
            _put(s, i, driver._replace(at=At.APPEND)),
        )


def _mark(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's node."""
    plan = driver.plan
    assert plan is not None
    if s.plan is not None and s.plan.id == plan.id:
        handed = plan._replace(is_handed_over=True, is_void=False)
        yield (
            f"{i} marks {plan.number}",
            _put(s, i, driver._replace(at=At.APPEND, plan=handed))._replace(plan=handed),
        )
    else:
        yield f"{i} finds the plan changed", _ended(s, i)


def _void(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's node."""
    if s.plan == driver.plan and s.plan is not None:
        s = s._replace(plan=s.plan._replace(is_void=True))
    yield f"{i} writes that its plan is void", _ended(s, i)


def _supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's node: one that was marked meanwhile is another content. One of
    a run that has the lock now may be about to be handed over.
    """
    plan = driver.plan
    assert plan is not None
    if s.plan == driver.old and _may_store(s, i):
        yield (
            f"{i} supersedes {plan.number}",
            _put(s, i, driver._replace(at=At.HAND_OVER, old=None))._replace(plan=plan),
        )
    else:
        yield f"{i} finds the plan changed", _ended(s, i)


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Fetch, and open a transaction of the table: it remembers the bit that it read. The membership
    is not checked any more.
    """
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
        yield (
            f"{i} appends {plan.number}",
            _ended(s, i)._replace(bit=plan.number, applied=(*s.applied, plan)),
        )
    else:
        yield f"{i} loses {plan.number}", _ended(s, i)


_DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.LOOK: _look,
    At.FIND_OUT: _find_out,
    At.CLAIM: _claim,
    At.READ: _read,
    At.STORE: _store,
    At.HAND_OVER: _commit_to_group,
    At.MARK: _mark,
    At.VOID: _void,
    At.SUPERSEDE: _supersede,
    At.APPEND: _append,
    At.WRITE: _write,
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about quiet runs apart."""
    ours = [offset for plan in s.applied for offset in range(plan.start, plan.until)]
    if len(ours) != len(set(ours)):
        return f"the table holds {s.applied}"
    if both := s.others_read.intersection(ours):
        return f"{sorted(both)} are in the table, and others read them"
    if s.plan and s.plan.is_handed_over or s.plan and s.group.by == s.plan.id:
        promised = set(range(s.plan.start, s.plan.until))
    else:
        promised = set()
    if s.plan and s.plan.is_open and s.group.offset >= s.plan.until:
        unmarked = set(range(s.plan.start, s.plan.until))
    else:
        unmarked = set()
    if lost := set(range(s.group.offset)) - s.others_read - set(ours) - promised - unmarked:
        return f"{sorted(lost)} are passed, and no member has them"
    result = {offset for plan in s.applied for offset in range(plan.position, plan.start)}
    first, last = (s.applied[0].position, s.applied[-1].until) if s.applied else (0, 0)
    if set(range(first, last)) - set(ours) != result or result - s.others_read:
        return f"others read {sorted(s.others_read)}, and the table's plans record {sorted(result)}"
    if any(not plan.is_handed_over for plan in s.applied):
        return "a plan was fetched that was not handed over"
    return None


def after_one_quiet_run(s: State) -> State:
    """The result of one driver alone, with no other member in the group and no other event."""
    alone = Left(
        runs=1,
        crashes=0,
        losses=0,
        lost_memberships=0,
        others=0,
        lost_answers=0,
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


def is_whole(s: State) -> bool:
    """Whether all that the log holds is in the table or among the others' reads, and the group's
    offset is at the end.
    """
    ours = {offset for plan in s.applied for offset in range(plan.start, plan.until)}
    return ours | s.others_read == set(range(s.end)) and s.group.offset == s.end


def is_untold(s: State) -> bool:
    """True if the commit of the newest plan is undecidable."""
    plan = s.plan
    return (
        plan is not None
        and s.bit < plan.number
        and plan.is_open
        and s.group.by != plan.id
        and _is_untold(plan, s.group.offset)
    )


def _is_untold(plan: Plan, offset: int) -> bool:
    """Return if the offset has other metadata than the plan. A plan without offsets of this
    partition has no commit: another replaces it.
    """
    return plan.is_open and plan.start < plan.until <= offset


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
        last = s
        for _ in range(2):  # the first may finish an earlier run, and make no plan of its own
            last = after_one_quiet_run(last)
        if any(driver.at is At.STOPPED for driver in last.drivers):
            return None if is_untold(s) else "a quiet run stops for a decidable commit"
        bad = broken_law(last)
        return None if is_whole(last) and not bad else f"quiet runs end with {bad or last}"

    return explored(start, steps, law)


SMALL = State(left=Left(runs=2, lost_memberships=1, others=1, lost_answers=0, end=2))
UNANSWERED = State(left=Left(runs=2, crashes=0, losses=0, lost_memberships=1, others=1, end=2))
"""The same with a lost answer of a commit, and without deaths."""
_LOADED = Plan(1, 0, 1, 1, 1, 0, is_handed_over=True)
READ_ON = State(
    Group(offset=1, by=1, claims=1),
    _LOADED,
    bit=1,
    applied=(_LOADED,),
    end=2,
    left=Left(runs=2, losses=0, lost_memberships=1, others=1, lost_answers=0, end=3, id=2),
)
"""After a plan in the table: the next one may list later reads of others, and another may replace
it.
"""
STARTS = State(), State(is_one_step=True)
"""Offsets in Kafka, and in ZooKeeper."""


if __name__ == "__main__":
    for one in STARTS:
        states, broken = explore(one)
        print(f"{states:,} states", broken or "every law holds")
        if broken:
            sys.exit(1)
