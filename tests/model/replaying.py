"""Replays: the commit of a plan removes the rows of an interval and adds those of the present
partition, in every interleaving.

One partition, one table, two drivers: each run or replay takes the lock, and may die or lose its
session and continue. In addition the partition grows, retention deletes its first record, the
ledger is restored from an old copy, and an operator gives up a stored plan.

    python -m tests.model.replaying

A row is represented by its writer: the id of its plan. Laws: every record that was ever loaded is
in the table once, at every moment; only a replay of its own interval writes a row again; a replay
that ends with exit 0 has written all rows of its interval; the offset is never ahead of the table,
unless the ledger was just restored; and from every state one undisturbed run brings table and
offset to the end of the partition.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

TURNS = 3
"""How often one command looks."""
INTERVAL = 0, 2
"""The interval of the replay, once it is loaded."""


class At(IntEnum):
    """What a driver does next."""

    IDLE, LOOK, PLAN, SUPERSEDE, APPEND, WRITE, CHECK, COMMIT, BROKEN = range(9)


class Plan(NamedTuple):
    """Offsets [start, until) under a number, and where the pipeline is after it; `id` stands for
    the rest of its content.
    """

    number: int
    start: int
    until: int
    position: int
    id: int
    is_replay: bool = False


class Commit(NamedTuple):
    """A plan in the table, and the first of its offsets that the log had at its read."""

    plan: Plan
    came_from: int


class Ledger(NamedTuple):
    """ZooKeeper: the newest plan, the offset with the version of its znode, and which driver holds
    the lock.
    """

    plan: Plan | None = None
    offset: int = 0
    version: int = 0
    lock: int | None = None


class Driver(NamedTuple):
    """One driver: what it does next, and what it knows."""

    at: At = At.IDLE
    replays: bool = False
    turn: int = 0
    plan: Plan | None = None
    """The plan at work; at SUPERSEDE the one that takes the old one's place."""
    version: int = 0
    bit: int = 0
    old: Plan | None = None
    is_own: bool = False


class Left(NamedTuple):
    """How often each thing may still happen."""

    runs: int = 2
    replays: int = 2
    crashes: int = 1
    losses: int = 1
    restores: int = 1
    given_up: int = 1
    expires: int = 1
    end: int = 3
    id: int = 1


class State(NamedTuple):
    """Everything at one moment."""

    ledger: Ledger = Ledger()
    table: tuple[Commit, ...] = ()
    log_start: int = 0
    end: int = 2
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    saved: Ledger | None = None
    left: Left = Left()


SMALL = Left(runs=1, replays=2, crashes=1, losses=1, restores=0, given_up=1, expires=1, end=2)
COPIED = Left(runs=1, replays=1, crashes=1, losses=1, restores=1, given_up=0, expires=0, end=3)


def bit(s: State) -> int:
    """The table's transaction version."""
    return s.table[-1].plan.number if s.table else 0


def position(plan: Plan | None) -> int:
    return plan.position if plan else 0


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    ledger, left = s.ledger, s.left
    if s.end < left.end:
        yield "the log grows", s._replace(end=s.end + 1)
    # Expiry of unloaded records is not in this model: the live pipeline reports it, and
    # `exactly_once` has it.
    if left.expires and s.log_start < sum(len(rows) > 0 for rows in rows_of(s).values()):
        yield (
            "a record expires",
            s._replace(log_start=s.log_start + 1, left=left._replace(expires=left.expires - 1)),
        )
    if s.saved is None and ledger.plan and left.restores:
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
    if left.given_up and ledger.lock is None and ledger.plan and bit(s) < ledger.plan.number:
        instead = _instead(s, ledger.plan)
        yield (
            "an operator gives the plan up",
            s._replace(
                ledger=ledger._replace(plan=instead),
                left=left._replace(given_up=left.given_up - 1, id=left.id + 1),
            ),
        )
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            if ledger.lock is None:
                yield from _begun(s, i)
            continue
        if left.crashes:
            yield (
                f"{i} dies at {driver.at.name}",
                _ended(s, i)._replace(left=left._replace(crashes=left.crashes - 1)),
            )
        yield from DOES[driver.at](s, i, driver)


def _begun(s: State, i: int) -> Iterator[tuple[str, State]]:
    locked = s._replace(ledger=s.ledger._replace(lock=i))
    if s.left.runs:
        yield (
            f"{i} runs",
            _put(locked, i, Driver(At.LOOK))._replace(left=s.left._replace(runs=s.left.runs - 1)),
        )
    if s.left.replays:
        yield (
            f"{i} replays",
            _put(locked, i, Driver(At.LOOK, True))._replace(
                left=s.left._replace(replays=s.left.replays - 1)
            ),
        )


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=s.drivers[:i] + (driver,) + s.drivers[i + 1 :])


def _ended(s: State, i: int) -> State:
    """However it did: with an exit code that is not 0 it promises nothing."""
    return _put(s, i, Driver())._replace(
        ledger=s.ledger._replace(lock=None if s.ledger.lock == i else s.ledger.lock)
    )


def _done(s: State, i: int) -> State:
    """With exit 0: the interval of a replay is written by it, or by another one after it."""
    driver, rows = s.drivers[i], rows_of(s)
    is_older = (
        driver.replays
        and driver.plan
        and any(not rows[at] or rows[at][0] < driver.plan.id for at in range(*INTERVAL))
    )
    return _put(s, i, Driver(At.BROKEN)) if is_older else _ended(s, i)


def _again(s: State, i: int, driver: Driver) -> State:
    turn = driver.turn + 1
    return _put(s, i, Driver(At.LOOK, driver.replays, turn)) if turn < TURNS else _ended(s, i)


def _instead(s: State, old: Plan) -> Plan:
    """Return the replacement of an abandoned plan: the new records from its start; a replay's start
    is the loaded-until offset.
    """
    start = old.position if old.is_replay else old.start
    return Plan(old.number, start, s.end, s.end, s.left.id)


def _look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    newest, held = s.ledger.plan, {one.plan.number: one.plan for one in s.table}
    number, in_table = newest.number if newest else 0, bit(s)
    knows = Driver(driver.at, driver.replays, driver.turn, newest, s.ledger.version)
    budget = s.left._replace(id=s.left.id + 1)
    if in_table > number or (newest and in_table == number and held[number].id != newest.id):
        adopted = held[in_table]
        yield (
            f"{i} adopts {in_table}",
            _put(s, i, knows._replace(at=At.COMMIT, plan=adopted))._replace(
                ledger=s.ledger._replace(plan=adopted)
            ),
        )
    elif newest and in_table < number:
        if (
            newest.is_replay and newest.start < s.log_start
        ):  # its rows stand, and could not come again
            wants = knows._replace(at=At.SUPERSEDE, plan=_instead(s, newest), old=newest)
            yield f"{i} wants another {number}", _put(s, i, wants)._replace(left=budget)
        else:
            yield f"{i} executes {number}", _put(s, i, knows._replace(at=At.APPEND))
    elif newest and s.ledger.offset != newest.position:
        yield f"{i} repairs", _put(s, i, knows._replace(at=At.COMMIT))
    elif driver.replays:
        start, until = INTERVAL
        if start < s.log_start or until > position(newest):
            yield f"{i} refuses", _ended(s, i)
            return
        plan = Plan(number + 1, start, until, position(newest), s.left.id, is_replay=True)
        yield (
            f"{i} plans the replay {plan.number}",
            _put(s, i, knows._replace(at=At.PLAN, plan=plan, is_own=True))._replace(left=budget),
        )
    elif s.end > position(newest):
        plan = Plan(number + 1, position(newest), s.end, s.end, s.left.id)
        yield (
            f"{i} plans {plan.number}",
            _put(s, i, knows._replace(at=At.PLAN, plan=plan, is_own=True))._replace(left=budget),
        )
    else:
        yield f"{i} finds nothing new", _done(s, i)


def _plan(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Put-if-absent."""
    assert driver.plan is not None
    if s.ledger.plan and s.ledger.plan.number >= driver.plan.number:
        yield f"{i} finds its number taken", _ended(s, i)
    else:
        yield (
            f"{i} stores {driver.plan.number}",
            _put(s, i, driver._replace(at=At.APPEND))._replace(
                ledger=s.ledger._replace(plan=driver.plan)
            ),
        )


def _supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the plan's znode."""
    assert driver.plan is not None
    if s.ledger.plan == driver.old:
        yield (
            f"{i} supersedes {driver.plan.number}",
            _put(s, i, driver._replace(at=At.APPEND, old=None))._replace(
                ledger=s.ledger._replace(plan=driver.plan)
            ),
        )
    else:
        yield f"{i} finds the plan changed", _ended(s, i)


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Open a transaction of the table, and read; offsets that are gone stop the reader, and the
    command looks again.
    """
    assert driver.plan is not None
    if bit(s) >= driver.plan.number:
        yield (
            f"{i}'s commit of {driver.plan.number} is skipped",
            _put(s, i, driver._replace(at=At.CHECK)),
        )
    elif driver.plan.is_replay and driver.plan.start < s.log_start:
        yield f"{i} finds offsets of {driver.plan.number} gone", _again(s, i, driver)
    else:
        yield (
            f"{i} writes {driver.plan.number}",
            _put(s, i, driver._replace(at=At.WRITE, bit=bit(s))),
        )


def _write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Commit once, only without another commit under our application id since. Retention has no
    effect any more: all records are read.
    """
    assert driver.plan is not None
    read = _put(s, i, driver._replace(at=At.CHECK, bit=0))
    if bit(s) == driver.bit:
        yield (
            f"{i} commits {driver.plan.number}",
            read._replace(table=(*s.table, Commit(driver.plan, driver.plan.start))),
        )
    else:
        yield f"{i} loses {driver.plan.number}", read


def _check(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    if driver.plan in [one.plan for one in s.table]:
        yield f"{i} sees its plan", _put(s, i, driver._replace(at=At.COMMIT))
    else:
        yield f"{i} sees another's plan", _again(s, i, driver)


def _commit(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the observed version; a replay leaves the offset unchanged."""
    assert driver.plan is not None
    if not driver.plan.is_replay or s.ledger.offset != driver.plan.position:
        if s.ledger.version != driver.version:
            yield f"{i} finds the offset moved", _ended(s, i)
            return
        s = s._replace(
            ledger=s.ledger._replace(offset=driver.plan.position, version=driver.version + 1)
        )
    if driver.is_own:
        yield f"{i} is done with {driver.plan.number}", _done(s, i)
    else:
        yield f"{i} is done with {driver.plan.number}, looks again", _again(s, i, driver)


DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.LOOK: _look,
    At.PLAN: _plan,
    At.SUPERSEDE: _supersede,
    At.APPEND: _append,
    At.WRITE: _write,
    At.CHECK: _check,
    At.COMMIT: _commit,
    At.BROKEN: lambda s, i, driver: iter(()),
}


def rows_of(s: State) -> dict[int, list[int]]:
    """Who wrote the rows of each offset: the ids of their plans."""
    rows: dict[int, list[int]] = {at: [] for at in range(max(s.left.end, INTERVAL[1]))}
    for plan, came_from in s.table:
        for at in range(plan.start, plan.until):
            came = [plan.id] if at >= came_from else []
            rows[at] = came if plan.is_replay else rows[at] + came
    return rows


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about quiet runs apart."""
    loaded = max((one.plan.position for one in s.table), default=0)
    replays = {one.plan.id: one.plan for one in s.table if one.plan.is_replay}
    for at, by in rows_of(s).items():
        if len(by) != (at < loaded):
            return f"offset {at} is in the table {len(by)} times, and {loaded} were loaded"
        if by and by[0] in replays and not replays[by[0]].start <= at < replays[by[0]].until:
            return f"offset {at} was written anew by a replay of others"
    if s.ledger.offset > loaded:
        return f"the offset {s.ledger.offset} is ahead of the table's {loaded}"
    if any(driver.at is At.BROKEN for driver in s.drivers):
        return "a replay ended with exit 0, and older rows of its interval are in the table"
    return None


def after_one_quiet_run(s: State) -> State:
    """What one run alone makes of it, with nothing else happening."""
    alone = Left(
        runs=1,
        replays=0,
        crashes=0,
        losses=0,
        restores=0,
        given_up=0,
        expires=0,
        end=s.end,
        id=10_000,
    )
    quiet: State | None = s._replace(
        ledger=s.ledger._replace(lock=None), drivers=(Driver(),), saved=None, left=alone
    )
    while quiet:
        last, quiet = quiet, next((after for _, after in steps(quiet)), None)
    return last


def explore(left: Left) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[State]()

    def law(s: State) -> str | None:
        bad, there = broken_law(s), s._replace(drivers=(), saved=None, left=Left())
        if bad or there in calm:
            return bad
        calm.add(there)
        last = after_one_quiet_run(s)
        is_whole = (
            last.ledger.offset == max((one.plan.position for one in last.table), default=0) == s.end
        )
        if broken_law(last) or not is_whole:
            return f"a quiet run ends with {last.ledger}, {last.table}"
        return None

    return explored(State(left=left), steps, law)


if __name__ == "__main__":
    for one in (SMALL, COPIED, *((Left(),) if "--large" in sys.argv else ())):
        states, law = explore(one)
        print(f"{states:,} states, " + (f"BROKEN: {law}" if law else "every law holds"))
        if law:
            sys.exit(1)
