"""The protocol of numbered plans as a small explicit-state model: every interleaving of two drivers
with crashes, lost sessions, a growing partition, a ledger restored from an old copy, a plan
superseded before it was appended, and offsets of a plan that expire before they are read.

One partition, one table. Not in the model: other clients that change the table or move offsets.

    python -m tests.model [--large]

A run of the model is one of `etl.run.ingest`: it observes, finishes an earlier run (executes a
plan, restores a plan from the table, or commits an offset), and continues with one new plan. Laws:
the applied offsets are contiguous from 0 and disjoint; the offset is never ahead of the table,
unless the ledger was just restored; after a run with exit 0 the table has all records that the
partition had at its start; and from every state one undisturbed run brings table and offset to the
end of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

TURNS = 3
"""How often one run looks, as in `etl.run.ingest`."""


class At(IntEnum):
    """What a driver does next."""

    IDLE, LOOK, PLAN, SUPERSEDE, APPEND, WRITE, CHECK, COMMIT, BROKEN = range(9)


class Plan(NamedTuple):
    """Offsets [start, until) under a number; `id` stands for the rest of its content."""

    number: int
    start: int
    until: int
    id: int


class Ledger(NamedTuple):
    """ZooKeeper: the plans, the offset with the version of its znode, and which driver holds the
    lock.
    """

    plans: tuple[Plan, ...] = ()
    offset: int = 0
    version: int = 0
    lock: int | None = None


class Table(NamedTuple):
    """The transaction version, and the applied plans, in order."""

    bit: int = 0
    applied: tuple[Plan, ...] = ()

    @property
    def end(self) -> int:
        """Up to where the log is in the table."""
        return self.applied[-1].until if self.applied else 0


class Driver(NamedTuple):
    """One driver: what it does next, and what it knows."""

    at: At = At.IDLE
    began: int = 0
    """The end of the log when its run began."""
    turn: int = 0
    plan: Plan | None = None
    """The plan at work; at SUPERSEDE the one that takes the old one's place."""
    version: int = 0
    """Of the offset's znode, when it looked."""
    bit: int = 0
    """Of the table, when it opened it to write."""
    old: Plan | None = None
    is_last: bool = False
    """With this plan's offset the run is done: the run made the plan, or had nothing new to plan
    when it looked.
    """
    then: Plan | None = None
    """The plan to make once an earlier one's offset is moved."""


class Left(NamedTuple):
    """How often each thing may still happen."""

    runs: int = 3
    restores: int = 1
    crashes: int = 2
    losses: int = 2
    supersedes: int = 1
    expiries: int = 1
    """How often retention may overtake a plan: the run that finds its offsets gone looks again, as
    the next one would.
    """
    end: int = 3
    """Up to where the log may grow."""
    id: int = 1
    """Of the next plan."""


class State(NamedTuple):
    """Everything at one moment."""

    ledger: Ledger
    table: Table
    end: int
    drivers: tuple[Driver, ...]
    saved: Ledger | None
    left: Left


SMALL = Left(runs=2, restores=1, crashes=1, losses=1, supersedes=1, expiries=0, end=2)
OVERTAKEN = Left(runs=2, restores=0, crashes=0, losses=1, supersedes=1, expiries=1, end=2)
LARGE = Left(runs=4, end=4)


class Found(NamedTuple):
    """The decision of an observation: the action, its plan, and the start of the next plan."""

    what: str
    plan: Plan | None
    start: int


def reconcile(ledger: Ledger, table: Table) -> Found:
    """`etl.decide.reconcile` in small."""
    newest = ledger.plans[-1] if ledger.plans else None
    number = newest.number if newest else 0
    held = {plan.number: plan for plan in table.applied}
    if table.bit > number or (newest and table.bit == number and held[table.bit].id != newest.id):
        return Found("adopt", held[table.bit], held[table.bit].until)
    if newest and table.bit == number - 1:
        return Found("replay", newest, newest.until)
    if newest and ledger.offset != newest.until:
        return Found("repair", newest, newest.until)
    return Found("new", newest, newest.until if newest else ledger.offset)


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    ledger, left = s.ledger, s.left
    if s.end < left.end:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.saved is None and ledger.plans:
        yield "the ledger is copied", s._replace(saved=ledger._replace(lock=None))
    if s.saved and left.restores:
        yield (
            "the ledger is restored",
            s._replace(ledger=s.saved, left=left._replace(restores=left.restores - 1)),
        )
    if ledger.lock is not None and left.losses:
        yield (
            "a session is lost",
            s._replace(
                ledger=ledger._replace(lock=None), left=left._replace(losses=left.losses - 1)
            ),
        )
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if ledger.lock is None and left.runs:
                looking = _put(s, i, Driver(At.LOOK, began=s.end))
                yield (
                    f"{i} starts",
                    looking._replace(
                        ledger=ledger._replace(lock=i), left=left._replace(runs=left.runs - 1)
                    ),
                )
            continue
        if left.crashes:
            yield (
                f"{i} dies at {driver.at.name}",
                _ended(s, i)._replace(left=left._replace(crashes=left.crashes - 1)),
            )
        yield from _DOES[driver.at](s, i, driver)


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=s.drivers[:i] + (driver,) + s.drivers[i + 1 :])


def _ended(s: State, i: int) -> State:
    """The run has ended, however it did: with an exit code that is not 0 it promises nothing."""
    return _put(s, i, Driver())._replace(
        ledger=s.ledger._replace(lock=None if s.ledger.lock == i else s.ledger.lock)
    )


def _done(s: State, i: int) -> State:
    """The run has ended with exit 0."""
    kept = s.table.end >= s.drivers[i].began
    return _ended(s, i) if kept else _put(s, i, Driver(At.BROKEN))


def _again(s: State, i: int, driver: Driver) -> State:
    """The run looks again, or gives up where others have come in between too often."""
    turn = driver.turn + 1
    return _put(s, i, Driver(At.LOOK, driver.began, turn)) if turn < TURNS else _ended(s, i)


def _look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    found, seen = reconcile(s.ledger, s.table), s.ledger.version
    knows = Driver(driver.at, driver.began, driver.turn, found.plan, seen)
    following, left = None, s.left
    if s.end > found.start:
        following = Plan((found.plan.number if found.plan else 0) + 1, found.start, s.end, left.id)
        left = left._replace(id=left.id + 1)
    if found.what == "replay" and found.plan:
        yield f"{i} replays {found.plan.number}", _put(s, i, knows._replace(at=At.APPEND))
        if left.supersedes:
            instead = Plan(found.plan.number, found.plan.start, s.end, s.left.id)
            budget = s.left._replace(supersedes=s.left.supersedes - 1, id=s.left.id + 1)
            wants = knows._replace(at=At.SUPERSEDE, plan=instead, old=found.plan)
            yield f"{i} wants another {instead.number}", _put(s, i, wants)._replace(left=budget)
    elif found.what == "repair":
        yield (
            f"{i} repairs",
            _put(
                s, i, knows._replace(at=At.COMMIT, then=following, is_last=not following)
            )._replace(left=left),
        )
    elif found.what == "adopt" and found.plan:
        plans = (*(plan for plan in s.ledger.plans if plan.number < found.plan.number), found.plan)
        adopting = _put(s, i, knows._replace(at=At.COMMIT, then=following, is_last=not following))
        yield (
            f"{i} adopts {found.plan.number}",
            adopting._replace(ledger=s.ledger._replace(plans=plans), left=left),
        )
    elif following:
        yield (
            f"{i} plans {following.number}",
            _put(s, i, knows._replace(at=At.PLAN, plan=following))._replace(left=left),
        )
    else:
        yield f"{i} finds nothing new", _done(s, i)


def _plan(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent."""
    assert driver.plan is not None
    if any(plan.number == driver.plan.number for plan in s.ledger.plans):
        yield f"{i} finds its number taken", _ended(s, i)
    else:
        stored = s.ledger._replace(plans=tuple(sorted((*s.ledger.plans, driver.plan))))
        yield (
            f"{i} stores {driver.plan.number}",
            _put(s, i, driver._replace(at=At.APPEND, is_last=True))._replace(ledger=stored),
        )


def _supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's znode."""
    assert driver.plan is not None
    if s.ledger.plans and s.ledger.plans[-1] == driver.old:
        ledger = s.ledger._replace(plans=(*s.ledger.plans[:-1], driver.plan))
        yield (
            f"{i} supersedes {driver.plan.number}",
            _put(s, i, driver._replace(at=At.APPEND, old=None))._replace(ledger=ledger),
        )
    else:
        yield f"{i} finds the plan changed", _ended(s, i)


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Open a transaction of the table: it remembers the bit that it saw."""
    assert driver.plan is not None
    if s.table.bit >= driver.plan.number:
        yield (
            f"{i}'s append of {driver.plan.number} is skipped",
            _put(s, i, driver._replace(at=At.CHECK)),
        )
    else:
        yield (
            f"{i} writes {driver.plan.number}",
            _put(s, i, driver._replace(at=At.WRITE, bit=s.table.bit)),
        )
        if s.left.expiries:
            looking = _put(s, i, Driver(At.LOOK, driver.began, driver.turn))
            yield (
                f"{i} finds offsets of {driver.plan.number} gone",
                looking._replace(left=s.left._replace(expiries=s.left.expiries - 1)),
            )


def _write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Commit only if no other commit had our application id since; else an exception, after which
    the table is read again.
    """
    assert driver.plan is not None
    read = _put(s, i, driver._replace(at=At.CHECK, bit=0))
    if s.table.bit == driver.bit:
        yield (
            f"{i} appends {driver.plan.number}",
            read._replace(table=Table(driver.plan.number, (*s.table.applied, driver.plan))),
        )
    else:
        yield f"{i} loses {driver.plan.number}", read


def _check(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Was it our plan that was applied under this number?"""
    if driver.plan in s.table.applied:
        yield f"{i} sees its plan", _put(s, i, driver._replace(at=At.COMMIT))
    else:
        yield f"{i} sees another's plan", _again(s, i, driver)


def _commit(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the version seen when it looked. Then: a plan to make, or the end, or
    another look.
    """
    assert driver.plan is not None
    if s.ledger.version != driver.version:
        yield f"{i} finds the offset moved", _ended(s, i)
        return
    moved = s._replace(
        ledger=s.ledger._replace(offset=driver.plan.until, version=driver.version + 1)
    )
    if driver.then:
        goes_on = Driver(At.PLAN, driver.began, driver.turn, driver.then, driver.version + 1)
        yield (
            f"{i} commits {driver.plan.number}, plans {driver.then.number}",
            _put(moved, i, goes_on),
        )
    elif driver.is_last:
        yield f"{i} commits {driver.plan.number}, done", _done(moved, i)
    else:
        yield f"{i} commits {driver.plan.number}, looks again", _again(moved, i, driver)


_DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.LOOK: _look,
    At.PLAN: _plan,
    At.SUPERSEDE: _supersede,
    At.APPEND: _append,
    At.WRITE: _write,
    At.CHECK: _check,
    At.COMMIT: _commit,
    At.BROKEN: lambda s, i, driver: iter(()),
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about quiet runs apart."""
    position = 0
    for plan in s.table.applied:
        if plan.start != position or plan.until <= plan.start:
            return f"the table holds {s.table.applied}"
        position = plan.until
    if s.ledger.offset > position:
        return f"the offset {s.ledger.offset} is ahead of the table's {position}"
    if any(driver.at is At.BROKEN for driver in s.drivers):
        return "a run ended with exit 0, and records that existed at its start are not in the table"
    return None


def after_one_quiet_run(ledger: Ledger, table: Table, end: int) -> State:
    """What one driver alone makes of it, with nothing else happening."""
    alone = Left(
        runs=1, restores=0, crashes=0, losses=0, supersedes=0, expiries=0, end=end, id=10_000
    )
    s: State | None = State(ledger._replace(lock=None), table, end, (Driver(),), None, alone)
    while s:
        last, s = (
            s,
            next((after for what, after in steps(s) if what != "the ledger is copied"), None),
        )
    return last


def explore(left: Left) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[tuple[Ledger, Table, int]]()

    def law(s: State) -> str | None:
        bad, there = broken_law(s), (s.ledger._replace(lock=None), s.table, s.end)
        if bad or there in calm:
            return bad
        calm.add(there)
        last = after_one_quiet_run(*there)
        is_whole = last.ledger.offset == last.table.end == s.end
        if broken_law(last) or not is_whole:
            return f"a quiet run ends with {last.ledger}, {last.table}"
        return None

    return explored(State(Ledger(), Table(), 1, (Driver(), Driver()), None, left), steps, law)
