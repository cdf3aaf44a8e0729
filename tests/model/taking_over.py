"""Two pipelines, one log, one table, as a small explicit-state model: the old one works, an operator lets the new one take its place.

Every interleaving of a run of each and of `etl.take_over`, with crashes and with sessions of the old pipeline that are lost without its
knowing: its append may come at any later moment. Both ledgers are in one ZooKeeper.

    python -m tests.model.taking_over

Laws: while no session is lost, no offset is in the table twice. Where one is there twice, the new pipeline refuses whenever it looks.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter, deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

OLD, NEW, OPERATOR = "old", "new", "operator"


class At(IntEnum):
    """What somebody does next."""

    IDLE, LOOK, STORE, APPEND, RECORD, READ, RETIRE = range(7)


class Plan(NamedTuple):
    """Offsets [start, until); of a take-over none, and up to which plan of the old pipeline it took over."""

    number: int
    start: int
    until: int
    took: int | None = None


class Commit(NamedTuple):
    """A plan in the table."""

    by: str
    plan: Plan


class Who(NamedTuple):
    """A run, or the operator."""

    at: At = At.IDLE
    plan: Plan | None = None
    seen: int = 0
    """How many commits the table had when it looked."""


class State(NamedTuple):
    """All of it; the old pipeline has loaded offset 0."""

    end: int = 1
    table: tuple[Commit, ...] = (Commit(OLD, Plan(1, 0, 1)),)
    old: Plan = Plan(1, 0, 1)
    """The newest stored plan of the old pipeline."""
    new: Plan | None = None
    recorded: int = 0
    """Of the new pipeline: the newest plan whose record is written; up to its commit nobody looks again."""
    retired: bool = False
    lock: str | None = None
    """Who holds the driver's lock of the old pipeline."""
    who: tuple[Who, Who, Who] = (Who(), Who(), Who())
    runs: tuple[int, int, int] = (2, 3, 2)
    """How often each may still begin."""
    lost: int = 1
    """How many sessions may still be lost."""
    crashes: int = 1


INDEX = {OLD: 0, NEW: 1, OPERATOR: 2}
END = 3


def steps(s: State) -> Iterator[tuple[str, State]]:
    """What may happen next."""
    if s.end < END:
        yield "the log grows", s._replace(end=s.end + 1)
    if s.lock and s.lost:
        yield f"the session of {s.lock} is lost", s._replace(lock=None, lost=s.lost - 1)
    for name, does in DOES.items():
        found = s.who[INDEX[name]]
        if found.at is not At.IDLE and s.crashes:
            yield f"{name} dies", _end(s, name)._replace(crashes=s.crashes - 1)
        yield from does(s, found)


def _put(s: State, name: str, who: Who) -> State:
    i = INDEX[name]
    return s._replace(who=(*s.who[:i], who, *s.who[i + 1:]))  # type: ignore[arg-type]


def _begin(s: State, name: str, at: At) -> State:
    runs = tuple(left - (i == INDEX[name]) for i, left in enumerate(s.runs))
    return _put(s._replace(runs=runs), name, Who(at))  # type: ignore[arg-type]


def _end(s: State, name: str) -> State:
    return _put(s._replace(lock=None if s.lock == name else s.lock), name, Who())


def bit(s: State, by: str) -> int:
    """The table's transaction version for one of the pipelines."""
    return max((commit.plan.number for commit in s.table if commit.by == by), default=0)


def old_refuses(s: State) -> bool:
    """The old pipeline was retired, or somebody else's commit that took its place, or loaded, came after its last one."""
    last = max(i for i, commit in enumerate(s.table) if commit.by == OLD)
    return s.retired or any(commit.by == NEW for commit in s.table[last:])


def new_refuses(s: State, plan: Plan | None, known: int) -> bool:
    """The old pipeline has loaded what was not taken over, or what nobody took over; `known`: the version of our last recorded commit."""
    if plan is None:
        return True
    if plan.took is not None:
        return bit(s, OLD) > plan.took
    return any(commit.by == OLD for commit in s.table[known + 1:])


def known_by_new(s: State) -> int:
    """The version of the newest recorded commit; without a record, of the newest one."""
    mine = [i for i, commit in enumerate(s.table) if commit.by == NEW and commit.plan.number <= (s.recorded or commit.plan.number)]
    return mine[-1] if mine else -1


def _old(s: State, found: Who) -> Iterator[tuple[str, State]]:
    if found.at is At.IDLE and not s.lock and s.runs[0]:
        yield "old begins", _begin(s, OLD, At.LOOK)._replace(lock=OLD)
    elif found.at is At.LOOK:
        if old_refuses(s) or s.lock != OLD:
            yield "old refuses", _end(s, OLD)
        elif s.old.number > bit(s, OLD):
            yield "old replays", _put(s, OLD, Who(At.APPEND, s.old))
        elif s.end > s.old.until:
            yield "old plans", _put(s, OLD, Who(At.STORE, Plan(s.old.number + 1, s.old.until, s.end)))
        else:
            yield "old has nothing new", _end(s, OLD)
    elif found.at is At.STORE and found.plan:
        if s.lock == OLD:  # its session is there; without it nothing is written
            yield "old stores", _put(s._replace(old=found.plan), OLD, Who(At.APPEND, found.plan))
        else:
            yield "old notices that its session is lost", _end(s, OLD)
    elif found.at is At.APPEND and found.plan:
        written = s._replace(table=(*s.table, Commit(OLD, found.plan))) if bit(s, OLD) < found.plan.number else s
        yield "old appends", _end(written, OLD)


def _operator(s: State, found: Who) -> Iterator[tuple[str, State]]:
    if found.at is At.IDLE and not s.lock and s.runs[2] and bit(s, NEW) == 0:
        yield "the operator begins", _begin(s, OPERATOR, At.READ)._replace(lock=OPERATOR)
    elif found.at is not At.IDLE and s.lock != OPERATOR:
        yield "the operator's session is lost", _end(s, OPERATOR)
    elif found.at is At.READ:
        newest = max((c.plan for c in s.table if c.by == OLD), key=lambda plan: plan.number)
        yield "the operator reads", _put(s, OPERATOR, Who(At.RETIRE, Plan(1, newest.until, newest.until, newest.number)))
    elif found.at is At.RETIRE:
        yield "the old one is retired", _put(s._replace(retired=True), OPERATOR, found._replace(at=At.STORE))
    elif found.at is At.STORE:
        stored = s._replace(new=found.plan) if bit(s, NEW) == 0 else s
        yield "the take-over is stored", _end(stored, OPERATOR)


def _new(s: State, found: Who) -> Iterator[tuple[str, State]]:
    if found.at is At.IDLE and s.runs[1]:
        yield "new begins", _begin(s, NEW, At.LOOK)
    elif found.at is At.LOOK:
        if new_refuses(s, s.new, known_by_new(s)) or s.new is None:
            yield "new refuses", _end(s, NEW)
        elif s.recorded < s.new.number <= bit(s, NEW):
            yield "new repairs", _put(s, NEW, Who(At.RECORD, s.new))
        elif s.new.number > bit(s, NEW):
            yield "new replays", _put(s, NEW, Who(At.APPEND, s.new))
        elif s.end > s.new.until:
            yield "new plans", _put(s, NEW, Who(At.STORE, Plan(s.new.number + 1, s.new.until, s.end)))
        else:
            yield "new has nothing new", _end(s, NEW)
    elif found.at is At.STORE and found.plan:
        yield "new stores", _put(s._replace(new=found.plan), NEW, Who(At.APPEND, found.plan))
    elif found.at is At.APPEND and found.plan:
        written = s._replace(table=(*s.table, Commit(NEW, found.plan))) if bit(s, NEW) < found.plan.number else s
        refuses = new_refuses(written, found.plan, known_by_new(written))
        yield "new appends", _end(written, NEW) if refuses else _put(written, NEW, Who(At.RECORD, found.plan))
    elif found.at is At.RECORD and found.plan:
        yield "new records", _put(s._replace(recorded=max(s.recorded, found.plan.number)), NEW, Who(At.LOOK))


DOES = {OLD: _old, NEW: _new, OPERATOR: _operator}


@functools.cache
def doubled(table: tuple[Commit, ...]) -> bool:
    """Whether an offset is in the table twice."""
    rows = Counter(offset for commit in table for offset in range(commit.plan.start, commit.plan.until))
    return any(count > 1 for count in rows.values())


def broken(s: State) -> str | None:
    """The law that this state breaks."""
    if not doubled(s.table):
        return None
    if s.lost == State().lost:
        return f"rows are doubled and no session was lost: {s.table}"
    if not new_refuses(s, s.new, known_by_new(s)):
        return f"rows are doubled and the new pipeline goes on: {s.table}"
    return None


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the first broken law with the way to it."""
    came: dict[State, tuple[str, State] | None] = {start: None}
    left = deque([start])
    while left:
        s = left.popleft()
        wrong = broken(s)
        if wrong:
            way, at = [], came[s]
            while at:
                way.append(at[0])
                at = came[at[1]]
            return len(came), f"{wrong} after: {', '.join(reversed(way))}"
        for what, after in steps(s):
            if after not in came:
                came[after] = what, s
                left.append(after)
    return len(came), None


if __name__ == "__main__":
    states, law = explore()
    print(f"{states:,} states, " + (f"BROKEN: {law}" if law else "every law holds"))
    sys.exit(bool(law))
