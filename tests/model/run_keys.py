"""Runs under a key, in every interleaving of two drivers with crashes, lost sessions, caps, pruned and superseded plans.

One log, whose record at offset CUT is the first that is as late as the runs of the key are to read up to; until it is there, the log's end
is the bound. The key K is handed in by a scheduler, again and again; a run without a key comes in between.

    python -m tests.model.run_keys

Where a key is kept: in the plan that was made under it, with the offsets that its run is to reach and a cap left (`left`); once that plan
is pruned, and where there was nothing to read, in the list of keys. A look reads the newest number first, then the plans, then the list:
pruning moves a key from the plans to the list, and whoever plans behind the newest number that was read stores nothing where another
driver stored since.

Laws: what was applied is contiguous and disjoint; no plan under K reaches beyond the bound that its first one froze; a run of K that ends
with exit 0 leaves the table at that bound or beyond; and no run that begins after such an end stores a plan under K.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.ways import way_to

CUT, END, CAP = 2, 4, 1


class At(IntEnum):
    """What a driver does next."""

    IDLE, NEWEST, PLANS, KEYS, STORE, SUPERSEDE, APPEND, CHECK, REMEMBER, BROKEN = range(10)


class Plan(NamedTuple):
    """Offsets [start, until) under a number; under K also how far its run is to go."""

    number: int
    start: int
    until: int
    id: int
    is_keyed: bool = False
    left: int | None = None
    """The bound that K froze, where a cap keeps this plan from reaching it."""

    @property
    def bound(self) -> int:
        """Up to where a run under K goes, by this plan."""
        return self.until if self.left is None else self.left


class Driver(NamedTuple):
    """One driver: what it does next, and what it knows."""

    at: At = At.IDLE
    is_keyed: bool = False
    is_late: bool = False
    """Its run began after one of K had ended with exit 0."""
    newest: Plan | None = None
    of_key: Plan | None = None
    """The newest plan under K that it found."""
    plan: Plan | None = None
    old: Plan | None = None


class State(NamedTuple):
    """Everything at one moment, and how often each thing may still happen."""

    end: int = 1
    plans: tuple[Plan, ...] = ()
    list_has_key: bool = False
    applied: tuple[Plan, ...] = ()
    lock: int | None = None
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    frozen: int | None = None
    """The bound of K's first plan; nobody reads it: the laws do."""
    owed: int = 0
    """The same, where no run of K had ended with exit 0 by then: a driver that lost its session may store a plan under K behind such an
    end, and what that loads is as right as what any later run loads."""
    is_done: bool = False
    """A run of K has ended with exit 0; nobody reads it either."""
    runs: int = 3
    others: int = 1
    """How many runs without a key there may be."""
    crashes: int = 1
    losses: int = 1
    supersedes: int = 1
    prunes: int = 1
    next: int = 1

    @property
    def position(self) -> int:
        """Up to where the table holds the log."""
        return self.applied[-1].until if self.applied else 0


def bound_of(end: int) -> int:
    """Up to where a run of K goes that nobody has begun: the first record that is late enough, or the log's end."""
    return min(end, CUT)


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    if s.end < END:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.lock is not None and s.losses:
        yield "a session is lost", s._replace(lock=None, losses=s.losses - 1)
    if s.prunes and len(s.plans) > 1 and s.plans[0] in s.applied:
        yield "the oldest plan is pruned", pruned(s)
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if s.lock is None and s.runs:
                yield f"{i} begins under K", _put(s, i, Driver(At.NEWEST, True, s.is_done))._replace(lock=i, runs=s.runs - 1)
            if s.lock is None and s.others:
                yield f"{i} begins", _put(s, i, Driver(At.NEWEST))._replace(lock=i, others=s.others - 1)
            continue
        if s.crashes:
            yield f"{i} dies", _ended(s, i)._replace(crashes=s.crashes - 1)
        yield from DOES[driver.at](s, i, driver)


def pruned(s: State) -> State:
    """One transaction: the oldest plan goes, and its key into the list. What a cap left of the key is forgotten: no bound is kept of it."""
    oldest = s.plans[0]
    is_settled = oldest.is_keyed and oldest.left is None
    return s._replace(plans=s.plans[1:], list_has_key=s.list_has_key or is_settled, prunes=s.prunes - 1)


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=(driver, s.drivers[1]) if i == 0 else (s.drivers[0], driver))


def _ended(s: State, i: int) -> State:
    return _put(s, i, Driver())._replace(lock=None if s.lock == i else s.lock)


def _done(s: State, i: int) -> State:
    """The run has ended with exit 0."""
    is_kept = not s.drivers[i].is_keyed or s.position >= s.owed
    after = _ended(s, i) if is_kept else _put(s, i, Driver(At.BROKEN))
    return after._replace(is_done=s.is_done or s.drivers[i].is_keyed)


def _newest(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    newest = s.plans[-1] if s.plans else None
    if newest and newest not in s.applied:
        knows = Driver(At.APPEND, driver.is_keyed, driver.is_late, newest, None, newest)
        yield f"{i} replays {newest.number}", _put(s, i, knows)
        if s.supersedes:
            # the ends of now, but for a plan of K: its bound stays
            until = newest.bound if newest.is_keyed else s.end
            instead = newest._replace(until=until, left=None, id=s.next)
            wants = driver._replace(at=At.SUPERSEDE, plan=instead, old=newest)
            yield f"{i} wants another {newest.number}", _put(s, i, wants)._replace(supersedes=s.supersedes - 1, next=s.next + 1)
    else:
        yield f"{i} reads the newest", _put(s, i, driver._replace(at=At.PLANS, newest=newest))


def _plans(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    found = [plan for plan in s.plans if plan.is_keyed]
    yield f"{i} reads the plans", _put(s, i, driver._replace(at=At.KEYS, of_key=found[-1] if found else None))


def _keys(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The list, and what follows from all that was read."""
    of_key, newest = driver.of_key, driver.newest
    if of_key and of_key != newest and of_key.number >= (newest.number if newest else 0):  # since then: it is not known to be in the table
        yield f"{i} finds K stored meanwhile", _ended(s, i)
        return
    is_settled = of_key is not None and of_key.left is None or (of_key is None and s.list_has_key)
    if driver.is_keyed and is_settled:
        yield f"{i} finds K applied", _done(s, i)
        return
    start = newest.until if newest else 0
    bound = s.end if not driver.is_keyed else of_key.bound if of_key else bound_of(s.end)
    until = min(bound, start + CAP) if driver.is_keyed else bound
    if until > start:
        plan = Plan((newest.number if newest else 0) + 1, start, until, s.next, driver.is_keyed, bound if until < bound else None)
        yield f"{i} plans {plan.number}", _put(s, i, driver._replace(at=At.STORE, plan=plan))._replace(next=s.next + 1)
    elif driver.is_keyed:
        yield f"{i} has nothing to read up to there", _put(s, i, driver._replace(at=At.REMEMBER))
    else:
        yield f"{i} finds nothing new", _done(s, i)


def _store(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent; what is pruned by then has a smaller number than what is there."""
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
        first = plan.bound if s.frozen is None else s.frozen
        yield f"{i} stores {plan.number} under K", stored._replace(frozen=first, owed=s.owed if s.is_done else first)


def _supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's znode."""
    assert driver.plan is not None
    if s.plans and s.plans[-1] == driver.old:
        yield f"{i} supersedes", _put(s, i, driver._replace(at=At.APPEND))._replace(plans=(*s.plans[:-1], driver.plan))
    else:
        yield f"{i} finds the plan changed", _ended(s, i)


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The table takes each number once."""
    assert driver.plan is not None
    bit = s.applied[-1].number if s.applied else 0
    checking = _put(s, i, driver._replace(at=At.CHECK))
    if bit < driver.plan.number:
        yield f"{i} appends {driver.plan.number}", checking._replace(applied=(*s.applied, driver.plan))
    else:
        yield f"{i}'s append is skipped", checking


def _check(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Was it our plan? Whatever it was, it is the ledger's from here on. The run ends with a plan of its own that no cap cut."""
    plan = driver.plan
    assert plan is not None
    held = next(one for one in s.applied if one.number == plan.number)
    known = s._replace(plans=tuple(held if one.number == held.number else one for one in s.plans))
    is_own = held == plan and driver.newest != plan and driver.old is None
    if is_own and plan.left is None:
        yield f"{i} is done", _done(known, i)
    else:
        yield f"{i} looks again", _put(known, i, Driver(At.NEWEST, driver.is_keyed, driver.is_late))


def _remember(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """In one transaction with the look whether the next number is still free: else another driver may have stored a plan under K."""
    number = driver.newest.number if driver.newest else 0
    if s.plans and s.plans[-1].number > number:
        yield f"{i} finds a plan stored meanwhile", _ended(s, i)
    else:
        yield f"{i} remembers K", _done(s._replace(list_has_key=True), i)


DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.NEWEST: _newest, At.PLANS: _plans, At.KEYS: _keys, At.STORE: _store, At.SUPERSEDE: _supersede, At.APPEND: _append,
    At.CHECK: _check, At.REMEMBER: _remember, At.BROKEN: lambda s, i, driver: iter(()),
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks."""
    position = 0
    for plan in s.applied:
        if plan.start != position or plan.until <= plan.start:
            return f"the table holds {s.applied}"
        position = plan.until
    beyond = [plan for plan in s.applied if plan.is_keyed and plan.until > (s.frozen or 0)]
    if beyond:
        return f"{beyond[0]} goes beyond the bound {s.frozen}"
    if any(driver.at is At.BROKEN for driver in s.drivers):
        return "a run of K ended before its bound, or one stored a plan under K again"
    return None


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    before: dict[State, tuple[str, State] | None] = {start: None}
    queue = deque([start])
    while queue:
        s = queue.popleft()
        bad = broken_law(s)
        if bad:
            return len(before), "\n".join([bad, *way_to(s, before)])
        for what, after in steps(s):
            if after not in before:
                before[after] = what, s
                queue.append(after)
    return len(before), None


if __name__ == "__main__":
    states, law = explore()
    print(f"{states:,} states", law or "every law holds")
    sys.exit(law is not None)
