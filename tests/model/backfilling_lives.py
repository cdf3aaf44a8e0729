"""Backfills and a live pipeline on a partition that is truncated once and grows again with other
records: in every interleaving of two drivers.

One partition of END offsets. It loses its records from some offset on, and others are written
there. The live pipeline reads them as another incarnation of the partition, once an operator has
accepted the truncation: by a plan without rows, which moves the position back. Backfills read their
reservation, in plans of one offset. In addition an operator sets the position back, and gives
backfills up.

    python -m tests.model.backfilling_lives

Some brokers report a truncation by leader epochs, to any client: tasks check at the end of their
read. On others only an operator knows: then no driver gets records of the partition before the
truncation is accepted (`reports_epochs`).

Every driver first reads the lock and the reservations, or the version of its own reservation; then
ledgers, table and partition; and then stores in one transaction at the versions of the first read.
Laws: no record that ever existed is in the table twice, and no key (incarnation, offset); and from
every state commands lead on: a backfill that cannot continue is given up, the truncation is
accepted, and the live pipeline comes to the end of the partition.

The code uses loaded intervals, reservations and rows together to find the loaded offsets; the model
uses rows only, as none of them is ever deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

END = 3
WANTED = (0, 2), (1, 2)
"""What the two backfills are to load."""
LIVE = 2
"""The live pipeline's index, after them."""


class Does(IntEnum):
    """Which command a driver was started with."""

    FILL, GIVE_UP, RUN, SET, ACCEPT = range(5)


class At(IntEnum):
    """What a driver does next."""

    IDLE, READ, DECIDE, STORE, APPEND, SETTLE = range(6)


class Plan(NamedTuple):
    """Offsets [start, until) of one life of the log, under a number."""

    number: int
    start: int
    until: int
    life: int = 0
    of: int = 0
    """The number of truncations that this plan knows: the leader epoch in its request."""
    moves: bool = False
    """It reads nothing, and sets the position."""


class Claim(NamedTuple):
    """Offsets [start, until) of the life that the log had; `is_open`: it loads; `is_settled`: what
    it has not loaded is given back.
    """

    start: int
    until: int
    is_open: bool = True
    is_settled: bool = False


class Load(NamedTuple):
    """One backfill, or the live pipeline: its claim, its newest stored plan, the newest in the
    table, and who drives it.
    """

    claim: Claim | None = None
    stored: Plan | None = None
    applied: Plan | None = None
    lock: int | None = None
    version: int = 0
    """Of the claim's znode."""

    @property
    def plan(self) -> Plan | None:
        """The newest one; where the table has another one of its number, that is right."""
        is_there = self.applied and (
            self.stored is None or self.applied.number >= self.stored.number
        )
        return self.applied if is_there else self.stored

    @property
    def is_left(self) -> bool:
        """Whether the newest plan is not in the table."""
        return self.plan != self.applied


class Driver(NamedTuple):
    """One driver: what it does, for whom, and what it knows."""

    at: At = At.IDLE
    does: Does = Does.FILL
    of: int = 0
    version: int = 0
    """Of the fence, or of its own claim."""
    claims: tuple[Claim | None, ...] = ()
    plan: Plan | None = None
    old: Plan | None = None
    """The newest plan that was stored when it decided."""


class State(NamedTuple):
    """Everything at one moment, and how often each thing may still happen."""

    reports_epochs: bool = True
    cut: int | None = None
    """Where the log was cut."""
    fence: int = 0
    loads: tuple[Load, ...] = (Load(), Load(), Load(applied=Plan(1, 2, 2, moves=True)))
    rows: tuple[tuple[int, int, int], ...] = ()
    """Of each row its offset, whether its record came after the cut, and its life."""
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    fills: int = 2
    given_up: int = 1
    runs: int = 1
    sets: int = 0
    accepts: int = 1
    crashes: int = 0
    losses: int = 1
    cuts: int = 1

    @property
    def live(self) -> Load:
        return self.loads[LIVE]

    @property
    def is_held(self) -> bool:
        """True if no driver gets records: no broker reports the truncation, and the operator's
        knowledge of it is not in the table yet.
        """
        applied, plan = self.live.applied, self.live.plan
        assert applied and plan
        return not self.reports_epochs and (
            is_cut(self, applied, applied.until)
            or is_cut(self, plan, plan.until)
            or plan.life > applied.life
        )


_FROM_START = (Load(), Load(), Load(applied=Plan(1, 0, 0, moves=True)))
FROM_START = State(loads=_FROM_START, losses=0, fills=1, given_up=0, runs=3, sets=1)
"""The live pipeline begins at the first record, and also reads offsets that are set back."""
OLDER = State(
    reports_epochs=False,
    cut=1,
    cuts=0,
    accepts=0,
    losses=0,
    runs=2,
    fills=1,
    loads=(Load(Claim(0, 2), Plan(1, 0, 1)), Load(), Load(applied=Plan(3, 1, 1, 1, 1, moves=True))),
)
"""The cut was accepted by an earlier version, which did not ask what backfills have left to load.
"""


def is_cut(s: State, plan: Plan, until: int) -> bool:
    """True if the partition differs from the plan's knowledge, up to there, by brokers or by the
    operator.
    """
    return s.cut is not None and s.cut < until and plan.of == 0


def may_begin_in(life: int) -> bool:
    """The table's rows from before the truncation are unknown to every request of a backfill."""
    return life == 0


def may_read_on(life: int) -> bool:
    """A backfill is of the first life: it stops where the live pipeline has another."""
    return life == 0


def left_of(load: Load) -> bool:
    """Whether a backfill may still load: a plan of it that is stored and not in the table has
    loaded nothing.
    """
    if load.claim is None or load.claim.is_settled:
        return False
    assert load.plan
    return (load.plan.start if load.is_left else load.plan.until) < load.claim.until


def updates_reservation_lock(plan: Plan) -> bool:
    """Whether a plan of the live pipeline claims anew: set back, or as another life."""
    return plan.moves


def is_loaded(s: State, start: int, until: int) -> bool:
    """Whether the table holds records of these offsets that the log still has, of whatever life."""
    return any(
        start <= offset < until and (is_new or s.cut is None or offset < s.cut)
        for offset, is_new, _ in s.rows
    )


def is_found_at_end(s: State, plan: Plan) -> bool:
    """Whether the tasks see, when they have read, that they read another log."""
    return s.reports_epochs and is_cut(s, plan, plan.until)


def held_before(claims: tuple[Claim | None, ...], start: int, before: int) -> bool:
    """Whether a position that is set back from `before` comes into a claim, of whatever life."""
    return any(claim and start < min(claim.until, before) for claim in claims)


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    plan = s.live.plan
    assert plan
    if s.cuts:
        for at in range(
            END if s.reports_epochs else plan.until
        ):  # after the position it needs no acceptance
            yield f"the log is cut at {at}", s._replace(cut=at, cuts=0)
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
        yield from _DOES[driver.at](s, i, driver, s.loads[driver.of])


def _begin(s: State, i: int) -> Iterator[tuple[str, State]]:
    for of, load in enumerate(s.loads):
        if load.lock is not None:
            continue
        held = _load(s, of, load._replace(lock=i))
        if of == LIVE:
            for does, left in ((Does.RUN, "runs"), (Does.SET, "sets"), (Does.ACCEPT, "accepts")):
                if getattr(s, left):
                    yield (
                        f"{i} begins {does.name}",
                        _put(held, i, Driver(At.READ, does, of))._replace(
                            **{left: getattr(s, left) - 1}
                        ),
                    )
        else:
            if s.fills and (load.claim is None or load.claim.is_open):
                yield (
                    f"{i} begins to fill {of}",
                    _put(held, i, Driver(At.READ, Does.FILL, of))._replace(fills=s.fills - 1),
                )
            if load.claim and not load.claim.is_settled and (s.given_up or not load.claim.is_open):
                left_now = s.given_up - load.claim.is_open
                yield (
                    f"{i} gives up {of}",
                    _put(held, i, Driver(At.READ, Does.GIVE_UP, of))._replace(given_up=left_now),
                )


def _load(s: State, of: int, load: Load) -> State:
    return s._replace(loads=tuple(load if i == of else one for i, one in enumerate(s.loads)))


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=(driver, s.drivers[1]) if i == 0 else (s.drivers[0], driver))


def _ended(s: State, i: int) -> State:
    load = s.loads[s.drivers[i].of]
    return _put(
        _load(s, s.drivers[i].of, load._replace(lock=None)) if load.lock == i else s, i, Driver()
    )


def _read(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """The fence and the claims, or one's own."""
    version = load.version if load.claim else s.fence
    claims = tuple(one.claim for of, one in enumerate(s.loads) if of != driver.of)
    yield f"{i} reads", _put(s, i, driver._replace(at=At.DECIDE, version=version, claims=claims))


def _decide(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """By ledgers, table and log of now."""
    found = False
    for plan in _PLANS[driver.does](s, driver, load):
        found = True
        is_there = plan == load.stored and load.is_left
        after = driver._replace(
            at=At.APPEND if is_there else At.STORE, plan=plan, old=load.plan, claims=()
        )
        yield f"{i} decides on {plan}", _put(s, i, after)
    if not found:
        yield f"{i} has nothing to do, or is refused", _ended(s, i)


def _run(s: State, driver: Driver, load: Load) -> Iterator[Plan]:
    del driver
    assert load.plan
    if load.is_left:
        yield load.plan
    elif load.plan.until < END and not is_cut(s, load.plan, load.plan.until):
        yield Plan(
            load.plan.number + 1, load.plan.until, END, load.plan.life, int(s.cut is not None)
        )


def _set(s: State, driver: Driver, load: Load) -> Iterator[Plan]:
    """Set back to unloaded and unreserved offsets."""
    plan = load.plan
    assert plan
    if load.is_left or is_cut(s, plan, plan.until):
        return
    for to in range(plan.until):
        if not is_loaded(s, to, plan.until) and not held_before(driver.claims, to, plan.until):
            yield Plan(plan.number + 1, to, to, plan.life, plan.of, moves=True)


def _accept(s: State, driver: Driver, load: Load) -> Iterator[Plan]:
    """After the last plan, or in place of one that is not in the table."""
    del driver
    plan = load.plan
    assert plan
    position = plan.start if load.is_left else plan.until
    if (
        s.cut is not None
        and is_cut(s, plan, plan.until)
        and not any(left_of(one) for one in s.loads)
    ):
        left = min(position, s.cut)
        yield Plan(plan.number + (not load.is_left), left, left, plan.life + 1, 1, moves=True)


def _fill(s: State, driver: Driver, load: Load) -> Iterator[Plan]:
    """Of a claim that is not there yet plan 1."""
    live = s.live.plan
    assert live and s.live.applied
    if load.claim is None:
        start, until = WANTED[driver.of]
        position = min(live.start, s.live.applied.until) if s.live.is_left else live.until
        is_claimed = any(
            one and max(start, one.start) < min(until, one.until) for one in driver.claims
        )
        if (
            (s.live.is_left and live.moves)
            or position < until
            or is_claimed
            or (s.reports_epochs and is_cut(s, live, until))
        ):
            return
        if may_begin_in(live.life) and not any(
            start <= offset < until and life == live.life for offset, _, life in s.rows
        ):
            yield Plan(1, start, start + 1, live.life, live.of)
    elif load.claim.is_open and load.plan and may_read_on(live.life):
        if load.is_left:
            yield load.plan
        elif load.plan.until < load.claim.until and not (
            s.reports_epochs and is_cut(s, load.plan, load.claim.until)
        ):
            yield Plan(
                load.plan.number + 1,
                load.plan.until,
                load.plan.until + 1,
                load.plan.life,
                load.plan.of,
            )


def _give_up(s: State, driver: Driver, load: Load) -> Iterator[Plan]:
    """A plan that reads nothing, in the place of one that is not in the table, or the next."""
    del s, driver
    assert load.claim and load.plan
    plan, at = load.plan, load.plan.start if load.is_left else load.plan.until
    if not load.claim.is_open:
        yield plan
    elif load.is_left or at < load.claim.until:
        yield plan._replace(number=plan.number + (not load.is_left), start=at, until=at, moves=True)


def _store(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """One transaction: the plan, if its place is as it was, and the fence or the claim at the
    version that was read first.
    """
    plan = driver.plan
    assert plan
    is_anew = updates_reservation_lock(plan) if driver.of == LIVE else load.claim is None
    if is_anew:
        is_moved = s.fence != driver.version
    else:
        is_moved = driver.of != LIVE and load.version != driver.version
    if is_moved or load.plan != driver.old:
        yield f"{i} stores nothing", _ended(s, i)
        return
    claim = load.claim
    if driver.of != LIVE:
        claim = (claim or Claim(*WANTED[driver.of]))._replace(is_open=driver.does is Does.FILL)
    then = At.APPEND if driver.does in (Does.FILL, Does.RUN, Does.GIVE_UP) else At.IDLE
    stored = _load(
        s, driver.of, load._replace(stored=plan, claim=claim, version=load.version + 1)
    )._replace(fence=s.fence + is_anew)
    yield (
        f"{i} stores {plan} of {driver.of}",
        _put(stored, i, driver._replace(at=then, version=0)) if then else _ended(stored, i),
    )


def _append(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """The table takes each number once; rows are read at the same moment, and then the tasks look
    once more which log it was.
    """
    plan = driver.plan
    assert plan
    after = s
    if load.applied is None or load.applied.number < plan.number:
        if plan.start < plan.until and (s.is_held or is_found_at_end(s, plan)):
            yield f"{i} cannot read {plan} of {driver.of}", _ended(s, i)
            return
        read = (
            (at, int(s.cut is not None and at >= s.cut), plan.life)
            for at in range(plan.start, plan.until)
        )
        after = _load(s, driver.of, load._replace(applied=plan))._replace(
            rows=tuple(sorted((*s.rows, *read)))
        )
    then = {Does.GIVE_UP: At.SETTLE, Does.FILL: At.READ}.get(driver.does, At.IDLE)
    yield (
        f"{i} appends {plan} of {driver.of}",
        _put(after, i, Driver(then, driver.does, driver.of)) if then else _ended(after, i),
    )


def _settle(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
    """Release the offsets that were not loaded."""
    assert load.claim and load.applied
    kept = load.claim._replace(until=load.applied.until, is_settled=True)
    yield (
        f"{i} gives back what {driver.of} did not load",
        _ended(_load(s, driver.of, load._replace(claim=kept)), i),
    )


_PLANS: dict[Does, Callable[[State, Driver, Load], Iterator[Plan]]] = {
    Does.FILL: _fill,
    Does.GIVE_UP: _give_up,
    Does.RUN: _run,
    Does.SET: _set,
    Does.ACCEPT: _accept,
}
_DOES: dict[At, Callable[[State, int, Driver, Load], Iterator[tuple[str, State]]]] = {
    At.READ: _read,
    At.DECIDE: _decide,
    At.STORE: _store,
    At.APPEND: _append,
    At.SETTLE: _settle,
}


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about commands that lead on apart."""
    records, keys = [row[:2] for row in s.rows], [(offset, life) for offset, _, life in s.rows]
    if len(set(records)) < len(records):
        return f"records are in the table twice: {s.rows}"
    return f"two rows have one key: {s.rows}" if len(set(keys)) < len(keys) else None


def _alone(s: State, does: Does, of: int) -> State:
    """The result of one command without any other driver."""
    s = _put(s, 0, Driver(At.READ, does, of))
    while s.drivers[0].at is not At.IDLE:
        _, s = next(iter(_DOES[s.drivers[0].at](s, 0, s.drivers[0], s.loads[s.drivers[0].of])))
    return s


def led_on(s: State) -> str | None:
    """None where commands lead out of this state: see the laws."""
    s = s._replace(
        drivers=(Driver(), Driver()), loads=tuple(load._replace(lock=None) for load in s.loads)
    )
    for of in range(LIVE):
        if s.loads[of].claim:
            s = _alone(s, Does.FILL, of)
            if left_of(s.loads[of]):
                s = _alone(s, Does.GIVE_UP, of)
            if left_of(s.loads[of]):
                return f"{of} is neither whole nor given up: {s}"
    for does in (Does.RUN, Does.ACCEPT, Does.RUN, Does.RUN):
        s = _alone(s, does, LIVE)
    assert s.live.plan
    return broken_law(s) or (
        f"the live pipeline does not come to the end: {s}"
        if s.live.is_left or s.live.plan.until < END
        else None
    )


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[tuple[object, ...]]()

    def law(s: State) -> str | None:
        wrong, there = (
            broken_law(s),
            (s.cut, s.rows, tuple((load.claim, load.stored, load.applied) for load in s.loads)),
        )
        if wrong or there in calm:
            return wrong
        calm.add(there)
        return led_on(s)

    return explored(start, steps, law)


if __name__ == "__main__":
    early = State(loads=_FROM_START, sets=1, runs=3, fills=1)
    for start in (
        State(),
        State(reports_epochs=False),
        State(sets=1),
        early,
        early._replace(reports_epochs=False),
    ):
        states, law = explore(start)
        print(f"{states:,} states", law or "every law holds")
        if law:
            sys.exit(1)
