"""Offsets at a coordinator without compare-and-set: read, then written, in every interleaving of
two drivers with crashes, another client that commits in between, and brokers that expire offsets
of a group without members.

One partition, one table; a driver may lose its lock without noticing and continue, so both may be
at any step at the same time.

    python -m tests.model.committing_in_kafka

Each offset has commit metadata: the number of the plan that committed it, or that of another
client. Laws: the applied offsets are contiguous and disjoint, wherever the offset went; a driver
that has read another client's commit never overwrites it; and from every state one undisturbed run
brings table and offset to the end of the partition, or stops for an operator, which it may only do
if another client committed last.

A driver that reads, sleeps and writes later sets the offset back to its plan's end: its metadata is
ours, older than the newest plan, and the offset is committed again as if it had never moved. A
commit of another client between a driver's read and its write is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored


class At(IntEnum):
    """What a driver does next."""

    IDLE, LOOK, STORE, APPEND, READ, WRITE, BROKEN = range(7)


class Offset(NamedTuple):
    """The group's state: the next offset, None without one, and its metadata: a plan's number, 0 or
    below for another client.
    """

    at: int | None = None
    word: int = 0


class Plan(NamedTuple):
    """Offsets [start, until) under a number, and what the group had when it was made."""

    number: int
    start: int
    until: int
    seen: Offset


class Driver(NamedTuple):
    """One driver: what it does next, the plan at work, and what it read of the group's offset."""

    at: At = At.IDLE
    plan: Plan | None = None
    read: Offset = Offset()
    is_stopped: bool = False
    """It stopped for a decision of an operator."""


class Left(NamedTuple):
    """How often each thing may still happen."""

    runs: int = 4
    crashes: int = 1
    others: int = 1
    drops: int = 1
    end: int = 3
    """Up to where the log may grow."""


class State(NamedTuple):
    """Everything at one moment."""

    plans: tuple[Plan, ...]
    applied: tuple[Plan, ...]
    offset: Offset
    end: int
    drivers: tuple[Driver, ...]
    left: Left


def is_ours_to_move(plan: Plan, found: Offset) -> bool:
    """`etl.decide.offsets.place_moved` in small: True if no other client has moved it since the
    plan was made.
    """
    return found == plan.seen or found.at is None or 0 < found.word < plan.number


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    left = s.left
    if s.end < left.end:
        yield "the log grows", s._replace(end=s.end + 1)
    if left.drops and s.offset.at is not None:
        yield (
            "the group is forgotten",
            s._replace(offset=Offset(), left=left._replace(drops=left.drops - 1)),
        )
    if left.others:
        for at in range(s.end + 1):
            there = Offset(at, -left.others)
            yield (
                f"another client commits {at}",
                s._replace(offset=there, left=left._replace(others=left.others - 1)),
            )
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if left.runs:
                yield (
                    f"{i} starts",
                    _put(s, i, Driver(At.LOOK))._replace(left=left._replace(runs=left.runs - 1)),
                )
            continue
        if left.crashes:
            yield (
                f"{i} dies at {driver.at.name}",
                _put(s, i, Driver())._replace(left=left._replace(crashes=left.crashes - 1)),
            )
        yield from _DOES[driver.at](s, i, driver)


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=s.drivers[:i] + (driver,) + s.drivers[i + 1 :])


def _look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    newest = s.plans[-1] if s.plans else None
    if newest and newest not in s.applied:
        yield f"{i} executes {newest.number}", _put(s, i, Driver(At.APPEND, newest))
    elif newest and s.offset.at != newest.until and is_ours_to_move(newest, s.offset):
        yield f"{i} repairs {newest.number}", _put(s, i, Driver(At.READ, newest))
    elif newest and s.offset.at != newest.until:
        yield f"{i} stops for an operator", _put(s, i, Driver(is_stopped=True))
    else:
        yield from _next(s, i, newest.until if newest else s.offset.at or 0)


def _next(s: State, i: int, start: int) -> Iterator[tuple[str, State]]:
    if s.end > start:
        plan = Plan(len(s.plans) + 1, start, s.end, s.offset)
        yield f"{i} plans {plan.number}", _put(s, i, Driver(At.STORE, plan))
    else:
        yield f"{i} finds nothing new", _put(s, i, Driver())


def _store(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent, in ZooKeeper."""
    assert driver.plan is not None
    if len(s.plans) >= driver.plan.number:
        yield f"{i} finds its number taken", _put(s, i, Driver())
    else:
        yield (
            f"{i} stores {driver.plan.number}",
            _put(s, i, driver._replace(at=At.APPEND))._replace(plans=(*s.plans, driver.plan)),
        )


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    assert driver.plan is not None
    is_there = len(s.applied) >= driver.plan.number
    applied = s.applied if is_there else (*s.applied, driver.plan)
    yield (
        f"{i} appends {driver.plan.number}",
        _put(s, i, driver._replace(at=At.READ))._replace(applied=applied),
    )


def _read(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    assert driver.plan is not None
    if s.offset.at == driver.plan.until:
        yield f"{i} finds the offset moved there", _put(s, i, Driver(At.LOOK))
    elif is_ours_to_move(driver.plan, s.offset):
        yield f"{i} reads the offset", _put(s, i, driver._replace(at=At.WRITE, read=s.offset))
    else:
        yield f"{i} finds the offset moved", _put(s, i, Driver(is_stopped=True))


def _write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Overwrite the present offset; the answer may be lost, and then the offset is read again."""
    assert driver.plan is not None
    over = s.offset.word < 0 and s.offset == driver.read != driver.plan.seen
    done = _put(s, i, Driver(At.BROKEN if over else At.LOOK))._replace(
        offset=Offset(driver.plan.until, driver.plan.number)
    )
    yield f"{i} commits {driver.plan.number}", done
    yield (
        f"{i} commits {driver.plan.number}, unanswered",
        _put(done, i, Driver(At.BROKEN) if over else driver._replace(at=At.READ)),
    )


_DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.LOOK: _look,
    At.STORE: _store,
    At.APPEND: _append,
    At.READ: _read,
    At.WRITE: _write,
    At.BROKEN: lambda s, i, driver: iter(()),
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about quiet runs apart."""
    for before, after in zip(s.applied, s.applied[1:], strict=False):
        if after.start != before.until:
            return f"the table holds {s.applied}"
    if any(driver.at is At.BROKEN for driver in s.drivers):
        return "what another client wrote was read, and written over"
    return None


def after_one_quiet_run(s: State) -> State:
    """What one driver alone makes of it, with nothing else happening, and no answer lost."""
    now: State | None = s._replace(
        drivers=(Driver(),), left=Left(runs=1, crashes=0, others=0, drops=0, end=s.end)
    )
    last = s
    while now:
        last, now = (
            now,
            next((after for what, after in steps(now) if not what.endswith("unanswered")), None),
        )
    return last


def explore(left: Left) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[State]()

    def law(s: State) -> str | None:
        bad, there = broken_law(s), s._replace(drivers=(), left=Left())
        if bad or there in calm:
            return bad
        calm.add(there)
        last = after_one_quiet_run(there)
        is_whole = (
            (last.offset.at or 0)
            == (last.applied[-1].until if last.applied else last.offset.at or 0)
            >= s.end
        )
        may_stop = last.drivers[0].is_stopped and s.offset.word < 0
        bad = broken_law(last)
        return (
            None if bad is None and (is_whole or may_stop) else f"a quiet run ends: {bad or last}"
        )

    return explored(State((), (), Offset(), 1, (Driver(), Driver()), left), steps, law)


if __name__ == "__main__":
    states, broken = explore(Left())
    print(f"{states:,} states, " + (f"BROKEN: {broken}" if broken else "every law holds"))
    sys.exit(bool(broken))
