"""A plan that was made when there was no table, and a table that another pipeline makes meanwhile:
a small explicit-state model.

One log, plan 1 alone, two drivers of which one may be forgotten (its session is lost, and it works
on). The table may appear by another pipeline's first commit, be put away for a new one of another
pipeline's, or for a copy of its rows that carries no commit of ours.

    python -m tests.model.arriving

Laws: the table that is there holds each offset at most once; and from every state one quiet run
loads all that the log has, or refuses because the table was exchanged: never because another
pipeline made the table first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored


class At(IntEnum):
    """What a driver does next."""

    IDLE, LOOK, STORE, SUPERSEDE, OPEN, WRITE, CHECK, RECORD = range(8)


class Plan(NamedTuple):
    """Offsets [0, until) for the table of this id, 0: for none; `id` stands for the content."""

    id: int
    until: int
    table: int


class Table(NamedTuple):
    """A table at the path: its id, our plan 1 if it has its commit, and rows of plans without a
    commit of ours.
    """

    id: int
    held: Plan | None = None
    copied: tuple[Plan, ...] = ()

    @property
    def is_of_others_alone(self) -> bool:
        """Every commit that added rows is another pipeline's."""
        return not self.held and not self.copied


class Driver(NamedTuple):
    """One driver: what it does next, the plan at work, and the plan that one is to replace."""

    at: At = At.IDLE
    plan: Plan | None = None
    old: Plan | None = None
    opened: int | None = None
    """The id of the table that its append began on; 0: there was none."""


class State(NamedTuple):
    """Everything at one moment, and how often each thing may still happen."""

    end: int = 1
    table: Table | None = None
    plan: Plan | None = None
    recorded: tuple[Plan, int] | None = None
    """Which plan the ledger knows to be in which table."""
    lock: int | None = None
    drivers: tuple[Driver, Driver] = (Driver(), Driver())
    runs: int = 3
    crashes: int = 1
    lost: int = 1
    made: int = 1
    """How often another pipeline may make the table where none is."""
    exchanged: int = 1
    next: int = 1
    """The id of the next plan or table."""


END = 2
REFUSED = "refused"


def found(s: State) -> str:
    """`etl.decide.reconcile` in small: what a run is to do."""
    plan, table = s.plan, s.table
    there = table.id if table else 0
    if plan is None:
        return "new"
    recorded = s.recorded and s.recorded[0] == plan
    if s.recorded and recorded and s.recorded[1] != there:
        return REFUSED
    if table and table.held:
        return "done" if recorded and table.held == plan else "record"
    if plan.table == there:
        return "replay"
    return "supersede" if plan.table == 0 and table and table.is_of_others_alone else REFUSED


def steps(s: State) -> Iterator[tuple[str, State]]:
    """What may happen next."""
    if s.end < END:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.table is None and s.made:
        yield (
            "another pipeline makes the table",
            s._replace(table=Table(s.next), next=s.next + 1, made=s.made - 1),
        )
    # in the middle of an append this is undecidable, whatever the plan contains: it is left out
    if s.table and s.exchanged and not any(driver.at is At.WRITE for driver in s.drivers):
        put_away = s._replace(next=s.next + 1, exchanged=s.exchanged - 1)
        yield "another table takes its place", put_away._replace(table=Table(s.next))
        rows = (*s.table.copied, *((s.table.held,) if s.table.held else ()))
        yield "a copy takes its place", put_away._replace(table=Table(s.next, None, rows))
    if s.lock is not None and s.lost:
        yield f"{s.lock} loses its session", s._replace(lock=None, lost=s.lost - 1)
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if s.lock is None and s.runs:
                yield f"{i} begins", _put(s, i, Driver(At.LOOK))._replace(lock=i, runs=s.runs - 1)
            continue
        if s.crashes:
            yield f"{i} dies", _ended(s, i)._replace(crashes=s.crashes - 1)
        yield DOES[driver.at](s, i, driver)


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=(driver, s.drivers[1]) if i == 0 else (s.drivers[0], driver))


def _ended(s: State, i: int) -> State:
    return _put(s, i, Driver())._replace(lock=None if s.lock == i else s.lock)


def _look(s: State, i: int, driver: Driver) -> tuple[str, State]:
    what = found(s)
    fresh = Plan(s.next, s.end, s.table.id if s.table else 0)
    if what == "new":
        return f"{i} plans", _put(s, i, Driver(At.STORE, fresh))._replace(next=s.next + 1)
    if what == "supersede":
        return f"{i} wants another plan", _put(s, i, Driver(At.SUPERSEDE, fresh, s.plan))._replace(
            next=s.next + 1
        )
    if what == "replay":
        return f"{i} replays", _put(s, i, Driver(At.OPEN, s.plan))
    if what == "record":
        return f"{i} finds the plan in the table", _put(s, i, Driver(At.CHECK, s.plan))
    return f"{i} ends: {what}", _ended(s, i)


def _store(s: State, i: int, driver: Driver) -> tuple[str, State]:
    if s.plan is not None:
        return f"{i} finds a plan stored", _ended(s, i)
    return f"{i} stores", _put(s, i, driver._replace(at=At.OPEN))._replace(plan=driver.plan)


def _supersede(s: State, i: int, driver: Driver) -> tuple[str, State]:
    if s.plan != driver.old:
        return f"{i} finds another plan", _ended(s, i)
    return f"{i} supersedes", _put(s, i, driver._replace(at=At.OPEN, old=None))._replace(
        plan=driver.plan
    )


def _open(s: State, i: int, driver: Driver) -> tuple[str, State]:
    """A plan that was made for another table, or for none, is not appended to the one that is
    there: the run looks again.
    """
    assert driver.plan is not None
    there = s.table.id if s.table else 0
    if s.table and s.table.held:
        return f"{i} is skipped", _put(s, i, driver._replace(at=At.CHECK))
    if there != driver.plan.table:
        return f"{i} finds another table", _put(
            s, i, Driver(At.LOOK) if driver.plan.table == 0 else Driver()
        )._replace(lock=s.lock if driver.plan.table == 0 or s.lock != i else None)
    return f"{i} opens", _put(s, i, driver._replace(at=At.WRITE, opened=there))


def _write(s: State, i: int, driver: Driver) -> tuple[str, State]:
    """The writer knows a table by its path: one that appeared since takes the append, too, unless
    it has the number.
    """
    assert driver.plan is not None
    checking = _put(s, i, driver._replace(at=At.CHECK))
    if s.table and s.table.held:
        return f"{i} is skipped", checking
    if s.table:
        return f"{i} appends", checking._replace(table=s.table._replace(held=driver.plan))
    return f"{i} makes the table", checking._replace(
        table=Table(s.next, driver.plan), next=s.next + 1
    )


def _check(s: State, i: int, driver: Driver) -> tuple[str, State]:
    """The table decides which plan 1 it holds; a ledger that has another one learns it."""
    held = s.table.held if s.table else None
    if held is None:
        return f"{i} finds no commit", _ended(s, i)
    return f"{i} sees {held.id}", _put(
        s, i, driver._replace(at=At.RECORD, plan=held, opened=s.table.id if s.table else 0)
    )


def _record(s: State, i: int, driver: Driver) -> tuple[str, State]:
    assert driver.plan is not None and driver.opened is not None
    return f"{i} records", _ended(s, i)._replace(
        plan=driver.plan, recorded=(driver.plan, driver.opened)
    )


DOES: dict[At, Callable[[State, int, Driver], tuple[str, State]]] = {
    At.LOOK: _look,
    At.STORE: _store,
    At.SUPERSEDE: _supersede,
    At.OPEN: _open,
    At.WRITE: _write,
    At.CHECK: _check,
    At.RECORD: _record,
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks."""
    if s.table and s.table.held and s.table.copied:
        return f"offsets are in the table twice: {s.table}"
    alone: State = s._replace(
        lock=None, drivers=(Driver(), Driver()), runs=1, crashes=0, lost=0, made=0, exchanged=0
    )
    while following := [after for what, after in steps(alone) if what != "the log grows"]:
        alone = following[0]
    if alone.table and alone.table.held:
        if alone.recorded and alone.plan == alone.table.held or found(alone) == REFUSED:
            return None
        return f"a quiet run ends with {alone}"
    if s.exchanged == 0 and found(alone) == REFUSED:
        return None
    return f"a quiet run loads nothing: {alone}"


def explore() -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    known = dict[State, str | None]()

    def law(s: State) -> str | None:
        there = s._replace(
            lock=None, drivers=(Driver(), Driver()), runs=0, crashes=0, lost=0, made=0
        )
        if there not in known:
            known[there] = broken_law(there)
        return known[there]

    return explored(State(), steps, law)


if __name__ == "__main__":
    states, law = explore()
    print(f"{states:,} states", law or "every law holds")
    sys.exit(law is not None)
