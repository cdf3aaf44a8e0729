"""Runs with a key, in every interleaving of two drivers with crashes, lost sessions, caps, pruned
and superseded plans.

Two partitions. The record at offset CUT is the first at or after the end of the key's runs; until
it exists, a partition's end is the bound. The second partition may be unreachable: it does not grow
then, and its end is unknown. A scheduler passes the key K again and again; a run without a key
comes in between.

    python -m tests.model.run_keys

A key is stored in the plan that was made with it, with the offsets that its run must reach and this
plan does not (`left`): a cap ends it before, or the partition was unreachable. A partition that was
unreachable when the first plan was made has no bound yet; the first plan of the key that can read
it freezes one. Once that plan is pruned, and if there was nothing to read, the key is in a list,
unless a part of it is left: then it is forgotten. An observation reads the newest number first,
then the plans, then the list: pruning moves a key from the plans to the list, and a driver that
plans after the newest number that it read stores nothing if another driver stored since.

Laws: the applied offsets are contiguous and disjoint; no plan of K reaches beyond the bound that
was frozen first; after a run of K that ends with exit 0 and does not report a rest, the table is at
that bound or beyond, also in a partition that was unreachable; and no run that begins after such an
end stores a plan of K.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

CUT, CAP = 2, 1
ENDS = (3, 2)
"""How far each log grows."""
UNKNOWN = -1
"""The bound of a log that was away when it was to be frozen."""
Offsets = tuple[int, int]
Left = tuple[int | None, int | None]
"""Of each log the bound that is not reached; None: it is."""


class At(IntEnum):
    """What a driver does next."""

    IDLE, NEWEST, PLANS, KEYS, STORE, SUPERSEDE, APPEND, CHECK, REMEMBER, BROKEN = range(10)


class Plan(NamedTuple):
    """Offsets [start, until) of each log under a number; under K also how far its run is to go."""

    number: int
    start: Offsets
    until: Offsets
    id: int
    is_keyed: bool = False
    left: Left = (None, None)
    held: Offsets = (0, 0)
    """With K: the bounds by the partitions' content, also of an unreachable one. Only the laws read
    it.
    """


class Driver(NamedTuple):
    """One driver: what it does next, and what it knows."""

    at: At = At.IDLE
    is_keyed: bool = False
    is_late: bool = False
    """Its run began after one of K had ended with exit 0 and had left nothing."""
    newest: Plan | None = None
    of_key: Plan | None = None
    """The newest plan under K that it found."""
    plan: Plan | None = None
    old: Plan | None = None


class State(NamedTuple):
    """Everything at one moment, and how often each thing may still happen."""

    ends: Offsets = (1, 1)
    is_away: bool = False
    plans: tuple[Plan, ...] = ()
    list_has_key: bool = False
    applied: tuple[Plan, ...] = ()
    lock: int | None = None
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    frozen: Left = (None, None)
    """The first bounds of K; only the laws read them."""
    owed: Offsets = (0, 0)
    """`held` of the first plan with K, if no run of K had ended with exit 0 before: a driver that
    lost its session may store a plan with K after such an end, and its rows are as right as those
    of any later run.
    """
    is_done: bool = False
    """A run of K has ended with exit 0 and left nothing; only the laws read it."""
    runs: int = 2
    others: int = 1
    """How many runs without a key there may be."""
    crashes: int = 1
    losses: int = 0
    supersedes: int = 1
    prunes: int = 1
    absences: int = 1
    next: int = 1

    @property
    def positions(self) -> Offsets:
        """Up to where the table holds each log."""
        return self.applied[-1].until if self.applied else (0, 0)

    def is_there(self, log: int) -> bool:
        """Whether the log can be read."""
        return log == 0 or not self.is_away


def bound_of(end: int) -> int:
    """Up to where a run of K reads a log of which no bound is frozen: the first record that is late
    enough, or the log's end.
    """
    return min(end, CUT)


def pair(of: Callable[[int], int]) -> Offsets:
    """The same of each log."""
    return of(0), of(1)


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    for log in (0, 1):
        if s.ends[log] < ENDS[log] and s.is_there(log):
            yield (
                f"log {log} grows",
                s._replace(ends=(s.ends[0] + (log == 0), s.ends[1] + (log == 1))),
            )
    if s.is_away:
        yield "log 1 is back", s._replace(is_away=False)
    elif s.absences:
        yield "log 1 is away", s._replace(is_away=True, absences=s.absences - 1)
    if s.lock is not None and s.losses:
        yield "a session is lost", s._replace(lock=None, losses=s.losses - 1)
    if s.prunes and len(s.plans) > 1 and s.plans[0] in s.applied:
        yield "the oldest plan is pruned", pruned(s)
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if s.lock is None and s.runs:
                yield (
                    f"{i} begins under K",
                    _put(s, i, Driver(At.NEWEST, True, s.is_done))._replace(
                        lock=i, runs=s.runs - 1
                    ),
                )
            if s.lock is None and s.others:
                yield (
                    f"{i} begins",
                    _put(s, i, Driver(At.NEWEST))._replace(lock=i, others=s.others - 1),
                )
            continue
        if s.crashes:
            yield f"{i} dies", _ended(s, i)._replace(crashes=s.crashes - 1)
        yield from DOES[driver.at](s, i, driver)


def pruned(s: State) -> State:
    """One transaction: the oldest plan is removed, and its key is added to the list if nothing of
    it is left. Otherwise the key is forgotten: passed again it is a new one, and its bounds are
    frozen again.
    """
    oldest, more = s.plans[0], s._replace(plans=s.plans[1:], prunes=s.prunes - 1)
    if not oldest.is_keyed or any(plan.is_keyed for plan in s.plans[1:]):
        return more
    if is_reached(oldest.left, s.positions):
        return more._replace(list_has_key=True)
    return more if s.is_done else more._replace(frozen=(None, None))


def is_reached(left: Left, positions: Offsets) -> bool:
    """Whether each log stands where the key's run was to read it."""
    return all(
        bound is None or UNKNOWN != bound <= positions[log] for log, bound in enumerate(left)
    )


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=(driver, s.drivers[1]) if i == 0 else (s.drivers[0], driver))


def _ended(s: State, i: int) -> State:
    return _put(s, i, Driver())._replace(lock=None if s.lock == i else s.lock)


def _done(s: State, i: int) -> State:
    """The run has ended with exit 0, and reports no rest."""
    is_kept = not s.drivers[i].is_keyed or all(s.positions[log] >= s.owed[log] for log in (0, 1))
    after = _ended(s, i) if is_kept else _put(s, i, Driver(At.BROKEN))
    return after._replace(is_done=s.is_done or s.drivers[i].is_keyed)


def _newest(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    newest = s.plans[-1] if s.plans else None
    if newest and newest not in s.applied:
        knows = Driver(At.APPEND, driver.is_keyed, driver.is_late, newest, None, newest)
        yield f"{i} replays {newest.number}", _put(s, i, knows)
        if s.supersedes:
            wants = driver._replace(at=At.SUPERSEDE, plan=instead_of(newest, s), old=newest)
            yield (
                f"{i} wants another {newest.number}",
                _put(s, i, wants)._replace(supersedes=s.supersedes - 1, next=s.next + 1),
            )
    else:
        yield f"{i} reads the newest", _put(s, i, driver._replace(at=At.PLANS, newest=newest))


def instead_of(old: Plan, s: State) -> Plan:
    """Return the replacement of a plan: to the present ends, but within the bounds of a plan of K;
    unreachable partitions are left. No bound is frozen here: the run need not be one of K.
    """
    if not old.is_keyed:
        return old._replace(
            until=pair(lambda log: s.ends[log] if s.is_there(log) else old.start[log]), id=s.next
        )
    bounds = tuple(old.until[log] if bound is None else bound for log, bound in enumerate(old.left))
    until = pair(
        lambda log: bounds[log] if s.is_there(log) and bounds[log] != UNKNOWN else old.start[log]
    )
    return old._replace(until=until, left=_left(bounds, until), id=s.next)


def _left(bounds: tuple[int, ...], until: Offsets) -> Left:
    first, second = (
        None if UNKNOWN != bound <= until[log] else bound for log, bound in enumerate(bounds)
    )
    return first, second


def _plans(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    found = [plan for plan in s.plans if plan.is_keyed]
    yield (
        f"{i} reads the plans",
        _put(s, i, driver._replace(at=At.KEYS, of_key=found[-1] if found else None)),
    )


def _keys(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The list, and what follows from all that was read."""
    of_key, newest = driver.of_key, driver.newest
    if (
        of_key and of_key != newest and of_key.number >= (newest.number if newest else 0)
    ):  # since then: it is not known to be in the table
        yield f"{i} finds K stored meanwhile", _ended(s, i)
        return
    if driver.is_keyed and s.list_has_key:
        yield f"{i} finds K applied", _done(s, i)
        return
    start = newest.until if newest else (0, 0)
    bounds = pair(lambda log: bound_now(s, log, driver, start))
    plan = Plan(
        (newest.number if newest else 0) + 1,
        start,
        _until(s, start, bounds, driver.is_keyed),
        s.next,
        driver.is_keyed,
    )
    if driver.is_keyed:
        plan = plan._replace(
            left=_left(bounds, plan.until),
            held=pair(lambda log: bound_of(s.ends[log])) if of_key is None else (0, 0),
        )
    if plan.until != start:
        yield (
            f"{i} plans {plan.number}",
            _put(s, i, driver._replace(at=At.STORE, plan=plan))._replace(next=s.next + 1),
        )
    elif not driver.is_keyed:
        yield f"{i} finds nothing new", _done(s, i)
    elif not is_reached(plan.left, start):
        yield f"{i} reports that K is not complete", _ended(s, i)
    elif of_key and UNKNOWN not in of_key.left:
        yield f"{i} finds K applied", _done(s, i)
    else:  # also if a returned log has no record after the loaded ones: later ones are not K's
        yield f"{i} has nothing to read up to there", _put(s, i, driver._replace(at=At.REMEMBER))


def bound_now(s: State, log: int, driver: Driver, start: Offsets) -> int:
    """The end of the run's read of the partition; UNKNOWN if it is unreachable. After a plan of K
    by that plan, or not at all.
    """
    if not driver.is_keyed:
        return s.ends[log] if s.is_there(log) else start[log]
    frozen = driver.of_key.left[log] if driver.of_key else UNKNOWN
    if frozen is None:
        return start[log]
    if frozen != UNKNOWN:
        return frozen
    return max(start[log], bound_of(s.ends[log])) if s.is_there(log) else UNKNOWN


def _until(s: State, start: Offsets, bounds: Offsets, is_keyed: bool) -> Offsets:
    """Where the plan ends: under K a cap holds for both logs together."""
    room, until = CAP, list(start)
    for log in (0, 1):
        if s.is_there(log) and bounds[log] > start[log]:
            until[log] = min(bounds[log], start[log] + room) if is_keyed else bounds[log]
            room -= until[log] - start[log]
    return until[0], until[1]


def _store(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent; plans that were pruned meanwhile have smaller numbers than the stored ones."""
    plan = driver.plan
    assert plan is not None
    if s.plans and s.plans[-1].number >= plan.number:
        yield f"{i} finds its number taken", _ended(s, i)
        return
    stored = _put(s, i, driver._replace(at=At.APPEND))._replace(plans=(*s.plans, plan))
    if not plan.is_keyed:
        yield f"{i} stores {plan.number}", stored
    elif driver.is_late:
        yield f"{i} stores {plan.number} under a key that was done", _put(s, i, Driver(At.BROKEN))
    else:
        is_first = s.frozen == (None, None)
        owed = plan.held if is_first and not s.is_done else s.owed
        yield (
            f"{i} stores {plan.number} under K",
            stored._replace(frozen=frozen_by(plan, s.frozen), owed=owed),
        )


def frozen_by(plan: Plan, before: Left) -> Left:
    """The first bounds, one more plan of K being stored."""
    reported = [plan.until[log] if bound is None else bound for log, bound in enumerate(plan.left)]
    first, second = (
        reported[log] if bound in (None, UNKNOWN) else bound for log, bound in enumerate(before)
    )
    return first, second


def _supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's znode."""
    assert driver.plan is not None
    if s.plans and s.plans[-1] == driver.old:
        yield (
            f"{i} supersedes",
            _put(s, i, driver._replace(at=At.APPEND))._replace(plans=(*s.plans[:-1], driver.plan)),
        )
    else:
        yield f"{i} finds the plan changed", _ended(s, i)


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The table takes each number once."""
    assert driver.plan is not None
    bit = s.applied[-1].number if s.applied else 0
    checking = _put(s, i, driver._replace(at=At.CHECK))
    if bit < driver.plan.number:
        yield (
            f"{i} appends {driver.plan.number}",
            checking._replace(applied=(*s.applied, driver.plan)),
        )
    else:
        yield f"{i}'s append is skipped", checking


def _check(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Was it our plan? Whatever it was, it is the ledger's from here on. The run ends with a plan
    of its own that left nothing.
    """
    plan = driver.plan
    assert plan is not None
    held = next(one for one in s.applied if one.number == plan.number)
    known = s._replace(plans=tuple(held if one.number == held.number else one for one in s.plans))
    is_own = held == plan and driver.newest != plan and driver.old is None
    if is_own and plan.left == (None, None):
        yield f"{i} is done", _done(known, i)
    else:
        yield f"{i} looks again", _put(known, i, Driver(At.NEWEST, driver.is_keyed, driver.is_late))


def _remember(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """In one transaction with the look whether the next number is still free: else another driver
    may have stored a plan under K.
    """
    number = driver.newest.number if driver.newest else 0
    if s.plans and s.plans[-1].number > number:
        yield f"{i} finds a plan stored meanwhile", _ended(s, i)
    else:
        yield f"{i} remembers K", _done(s._replace(list_has_key=True), i)


DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.NEWEST: _newest,
    At.PLANS: _plans,
    At.KEYS: _keys,
    At.STORE: _store,
    At.SUPERSEDE: _supersede,
    At.APPEND: _append,
    At.CHECK: _check,
    At.REMEMBER: _remember,
    At.BROKEN: lambda s, i, driver: iter(()),
}


def is_within(plan: Plan, frozen: Left) -> bool:
    """Whether no log is read beyond the bound that was frozen first."""
    bounds = (
        (log, bound)
        for log, bound in enumerate(frozen)
        if bound not in (None, UNKNOWN) and plan.until[log] != plan.start[log]
    )
    return all(plan.until[log] <= bound for log, bound in bounds if bound is not None)


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks."""
    positions = (0, 0)
    for plan in s.applied:
        if plan.start != positions or any(plan.until[log] < plan.start[log] for log in (0, 1)):
            return f"the table holds {s.applied}"
        positions = plan.until
        if plan.is_keyed and not is_within(plan, s.frozen):
            return f"{plan} goes beyond the bounds {s.frozen}"
    if any(driver.at is At.BROKEN for driver in s.drivers):
        return "a run of K ended before its bound, or one stored a plan under K again"
    return None


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    return explored(start, steps, broken_law)


LOST = State(others=0, crashes=0, losses=1, prunes=0)
"""All of them together exceed a machine's memory; lost sessions are combined with superseded plans
and unreachable partitions.
"""


if __name__ == "__main__":
    for start in (State(), LOST):
        states, law = explore(start)
        print(f"{states:,} states", law or "every law holds")
        if law:
            sys.exit(1)
