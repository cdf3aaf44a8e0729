"""Backfills and a live pipeline in one table: in every interleaving with crashes, lost sessions,
and backfills that are given up.

One partition. The live pipeline reads from its start on, for ever; a backfill reads an interval
that it reserved, in plans of one offset, under numbers and an application id of its own. No driver
waits for another: they are separated by the version of the reservation lock, one znode; every
reservation increments it.

    python -m tests.model.backfilling

A driver that reserves reads the lock first, then all other reservations, and writes its reservation
and the lock in one transaction at the version that it read. The live pipeline reserves with the
plan that decides its start (or by which an operator sets it back), everything from there on. A
backfill that is given up keeps the reservation of its loaded offsets. Offsets that a forgotten
driver may still store or append are released only after a plan without offsets has taken that
driver's number, in the ledger and in the table.

ZooKeeper and the table are not read at one moment. So each plan of a backfill is stored at the
version of its reservation that was read before both, and increments it: a driver that closes the
reservation knows that no plan was stored since its observation, and that none will be.

Laws: the table has each offset at most once; reservations are disjoint; and a backfill that runs
alone comes to its end.

`backfilling_lives` has a partition that is truncated; `backfilling_copies` an older copy of
ZooKeeper, for which a backfill is closed by another plan if a forgotten driver was faster, and a
table that is created again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

END = 4
"""Offsets of the log, all of them there."""
WANTED = ((0, 2), (1, 3))
"""What the two backfills are to load."""
LIVE = 2
"""The live pipeline's index, after the backfills."""


class At(IntEnum):
    """What a driver does next."""

    IDLE, READ, CLAIM, LOOK, STORE, APPEND, CLOSE, SHUT, SETTLE, RELEASE = range(10)


class Plan(NamedTuple):
    """Offset `offset` under a number; None: it reads nothing, and closes a backfill that is given
    up.
    """

    number: int
    offset: int | None


class Claim(NamedTuple):
    """Offsets [start, until); `until` END: and all that come later."""

    start: int
    until: int
    is_open: bool = True

    def overlaps(self, other: Claim) -> bool:
        return max(self.start, other.start) < min(self.until, other.until)


class Load(NamedTuple):
    """One backfill, or the live pipeline: its claim, its newest stored plan, its commits, and who
    drives it.
    """

    claim: Claim | None = None
    plan: Plan | None = None
    commits: tuple[Plan, ...] = ()
    lock: int | None = None
    version: int = 0
    """Of the claim's znode."""

    @property
    def bit(self) -> int:
        """The table's transaction version of its application id."""
        return self.commits[-1].number if self.commits else 0

    @property
    def position(self) -> int:
        """The offset that it reads next."""
        assert self.claim is not None
        loaded = [one.offset for one in self.commits if one.offset is not None]
        return loaded[-1] + 1 if loaded else self.claim.start


class Driver(NamedTuple):
    """One driver: for whom it works, what it does next, and what it knows."""

    at: At = At.IDLE
    of: int = 0
    fence: int = 0
    others: tuple[Claim, ...] = ()
    """What it read of the others' claims."""
    plan: Plan | None = None
    gives_up: bool = False
    version: int = 0
    """That of the claim when it looked."""


class State(NamedTuple):
    """Everything at one moment, and how often each thing may still happen."""

    fence: int = 0
    loads: tuple[Load, ...] = (Load(), Load(), Load())
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    runs: int = 4
    crashes: int = 1
    losses: int = 1
    given_up: int = 1
    live_starts: tuple[int, ...] = (0, 2)
    """Where the live pipeline may begin, by policy or by an operator."""


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    for of, load in enumerate(s.loads):
        if load.lock is not None and s.losses:
            yield (
                f"the session of {of} is lost",
                _load(s, of, load._replace(lock=None))._replace(losses=s.losses - 1),
            )
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            yield from _begin(s, i)
            continue
        if s.crashes:
            yield f"driver {i} dies", _ended(s, i)._replace(crashes=s.crashes - 1)
        yield from DOES[driver.at](s, i, driver, s.loads[driver.of])


def _begin(s: State, i: int) -> Iterator[tuple[str, State]]:
    for of, load in enumerate(s.loads):
        if load.lock is None and s.runs and (load.claim is None or load.claim.is_open):
            at = At.LOOK if load.claim else At.READ
            begun = _load(s, of, load._replace(lock=i))._replace(runs=s.runs - 1)
            yield f"driver {i} begins for {of}", _put(begun, i, Driver(at, of, s.fence))
            if s.given_up and of != LIVE and load.claim:
                yield (
                    f"{i} gives up {of}",
                    _put(begun, i, Driver(At.CLOSE, of, gives_up=True))._replace(
                        given_up=s.given_up - 1
                    ),
                )
        elif load.lock is None and s.runs and load.claim:
            begun = _load(s, of, load._replace(lock=i))._replace(runs=s.runs - 1)
            yield (
                f"driver {i} continues to give up {of}",
                _put(begun, i, Driver(At.LOOK, of, gives_up=True)),
            )


def _load(s: State, of: int, load: Load) -> State:
    return s._replace(loads=tuple(load if i == of else one for i, one in enumerate(s.loads)))


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=(driver, s.drivers[1]) if i == 0 else (s.drivers[0], driver))


def _ended(s: State, i: int) -> State:
    of = s.drivers[i].of
    load = s.loads[of]
    return _put(_load(s, of, load._replace(lock=None)) if load.lock == i else s, i, Driver())


def _read(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """All other reservations, after the lock."""
    del load
    others = tuple(one.claim for of, one in enumerate(s.loads) if one.claim and of != driver.of)
    yield f"{i} reads the claims", _put(s, i, driver._replace(at=At.CLAIM, others=others))


def _claim(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """Compare-and-set on the lock as it was read before the reservations: any later reservation
    incremented it.
    """
    if driver.of == LIVE:
        wanted = [Claim(start, END) for start in s.live_starts]
    else:
        wanted = [Claim(*WANTED[driver.of])]
    for claim in wanted:
        if (
            is_moved(s, driver)
            or load.claim
            or any(claim.overlaps(other) for other in driver.others)
        ):
            yield f"{i} may not claim {claim.start} to {claim.until}", _ended(s, i)
        else:
            claimed = _load(s, driver.of, load._replace(claim=claim))._replace(fence=s.fence + 1)
            yield (
                f"{i} claims {claim.start} to {claim.until}",
                _put(claimed, i, driver._replace(at=At.LOOK)),
            )


def is_moved(s: State, driver: Driver) -> bool:
    """True if another driver reserved since this driver read the lock."""
    return s.fence != driver.fence


def _look(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    assert load.claim is not None
    if load.plan and load.plan.number > load.bit:
        yield (
            f"{i} replays {load.plan.number} of {driver.of}",
            _put(s, i, driver._replace(at=At.APPEND, plan=load.plan)),
        )
    elif driver.gives_up:
        yield f"{i} finds {driver.of} closed", _put(s, i, driver._replace(at=At.SETTLE))
    elif load.position >= load.claim.until or not load.claim.is_open:
        yield f"{i} finds {driver.of} done", _ended(s, i)
    else:
        plan = Plan(load.bit + 1, load.position)
        planned = driver._replace(at=At.STORE, plan=plan, version=load.version)
        yield f"{i} plans {plan.number} of {driver.of}", _put(s, i, planned)


def _store(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """Put-if-absent, of a backfill at the version of its claim that was read when it looked."""
    assert driver.plan is not None
    if load.plan and load.plan.number >= driver.plan.number or is_changed(load, driver):
        yield f"{i} stores nothing", _ended(s, i)
    else:
        stored = _load(
            s, driver.of, load._replace(plan=driver.plan, version=_moved(load, driver.of))
        )
        yield (
            f"{i} stores {driver.plan.number} of {driver.of}",
            _put(stored, i, driver._replace(at=At.APPEND)),
        )


def is_changed(load: Load, driver: Driver) -> bool:
    """True if another driver stored a plan of the backfill, or closed it, since this driver
    observed.
    """
    return driver.of != LIVE and load.version != driver.version


def _moved(load: Load, of: int) -> int:
    return load.version if of == LIVE else load.version + 1


def _append(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """The table takes each number of an application id once."""
    assert driver.plan is not None
    then = At.SETTLE if driver.gives_up else At.LOOK
    if load.bit < driver.plan.number:
        after = _load(s, driver.of, load._replace(commits=(*load.commits, driver.plan)))
    else:
        after = s
    yield (
        f"{i} appends {driver.plan.number} of {driver.of}",
        _put(after, i, driver._replace(at=then)),
    )


def _close(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """Which number the plan without offsets takes: that of a stored one that is not in the table,
    or the next.
    """
    is_left = load.plan is not None and load.plan.number > load.bit
    closing = Plan(load.plan.number if load.plan and is_left else load.bit + 1, None)
    yield (
        f"{i} looks what to close of {driver.of}",
        _put(s, i, driver._replace(at=At.SHUT, plan=closing, version=load.version)),
    )


def _shut(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """The plan and the claim's end in one transaction: from here on nothing is stored."""
    assert load.claim is not None
    if is_changed(load, driver):
        yield f"{i} closes nothing: {driver.of} went on", _ended(s, i)
        return
    closed = _load(
        s,
        driver.of,
        load._replace(
            plan=driver.plan, claim=load.claim._replace(is_open=False), version=load.version + 1
        ),
    )
    yield f"{i} closes {driver.of}", _put(closed, i, driver._replace(at=At.APPEND))


def _settle(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """The table's plan of that number decides which offsets were loaded."""
    yield f"{i} reads what {driver.of} loaded", _put(s, i, driver._replace(at=At.RELEASE))


def _release(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """Release the offsets that were not loaded; that needs no lock."""
    assert load.claim is not None
    kept = load.claim._replace(until=load.position)
    yield (
        f"{i} gives back what {driver.of} did not load",
        _ended(_load(s, driver.of, load._replace(claim=kept)), i),
    )


DOES: dict[At, Callable[[State, int, Driver, Load], Iterator[tuple[str, State]]]] = {
    At.READ: _read,
    At.CLAIM: _claim,
    At.LOOK: _look,
    At.STORE: _store,
    At.APPEND: _append,
    At.CLOSE: _close,
    At.SHUT: _shut,
    At.SETTLE: _settle,
    At.RELEASE: _release,
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks."""
    loaded = sorted(
        plan.offset for load in s.loads for plan in load.commits if plan.offset is not None
    )
    if len(set(loaded)) < len(loaded):
        return f"offsets are in the table twice: {loaded}"
    claims = [load.claim for load in s.loads if load.claim]
    if any(one.overlaps(other) for n, one in enumerate(claims) for other in claims[:n]):
        return f"claims overlap: {claims}"
    return next(
        (
            f"{of} does not come to its end"
            for of, load in enumerate(s.loads)
            if not _is_finished(s, of, load)
        ),
        None,
    )


def _is_finished(s: State, of: int, load: Load) -> bool:
    """True if one undisturbed run of each reservation loads all of it."""
    if load.claim is None or not load.claim.is_open:
        return True
    alone: State = _load(s, of, load._replace(lock=None))._replace(
        drivers=(Driver(At.LOOK, of), Driver()), runs=0, crashes=0, losses=0, given_up=0
    )
    while alone.drivers[0].at is not At.IDLE:
        alone = next(after for _, after in steps(alone))
    return alone.loads[of].position == load.claim.until


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    return explored(start, steps, broken_law)


if __name__ == "__main__":
    states, law = explore()
    print(f"{states:,} states", law or "every law holds")
    sys.exit(law is not None)
