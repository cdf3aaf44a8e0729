"""Backfills and a live pipeline when an older copy of ZooKeeper is restored, and when the table is
dropped and created again: in every interleaving of two drivers with lost sessions and crashes.

    python -m tests.model.backfilling_copies

ZooKeeper is copied at any moment, and the copy restored at any later one: reservations are open
again that were given up, others are missing while their rows exist, and the name of plans
in the table may be used again. The restore ends all drivers first (`drivers_end`): the copy knows
nothing of their pending appends. The table is dropped once; an operator confirms that it is gone
for good, and the live pipeline creates another one; offsets that it had loaded into the first may
be loaded by a backfill, or read again by a replay. Or its disk is not mounted for a while, which
must not be confused with that.

A driver reads the lock and the reservations first, or the version of its own reservation; then
ledgers and table; and then stores in one transaction at the versions of the first read. Laws: no
offset is in the table twice; a backfill that is reported as complete has all of its offsets in the
present table; and from every state commands lead on: each backfill becomes complete or is given up,
and then offsets that the table lacks are not reserved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model.exploring import explored

END = 3
WANTED: tuple[tuple[tuple[int, int], ...], ...] = (((0, 2),), ((0, 1), (1, 2)))
"""What each backfill may be begun for."""
AGAIN = 0, 2
"""What a replay reads again of what the live pipeline loaded."""
LIVE = 2
"""The live pipeline's index, after them."""
NONE = 0
"""The id of no table."""


class Does(IntEnum):
    """Which command a driver was started with."""

    FILL, GIVE_UP, RUN, SET, REPLAY = range(5)


class At(IntEnum):
    """What a driver does next."""

    IDLE, READ, DECIDE, STORE, APPEND, RECORD, SETTLE = range(7)


class Plan(NamedTuple):
    """Offsets [start, until) under a number, for one table; `uid` is that of its ledger, and of no
    other one of the same name.
    """

    number: int
    start: int
    until: int
    table: int = 1
    uid: int = 0
    closes: bool = False
    moves: bool = False
    """It sets the live pipeline back."""
    again: tuple[int, int] = (0, 0)
    """Offsets below the loaded-until offset: it replaces their rows, or loads them again if they
    were lost with the former table.
    """


class Claim(NamedTuple):
    """Offsets [start, until) of one table; `is_open`: it loads; `is_settled`: what it has not
    loaded is given back.
    """

    start: int
    until: int
    table: int
    is_open: bool = True
    is_settled: bool = False


class Ledger(NamedTuple):
    """Of one backfill, or of the live pipeline: its claim, its newest plan, and whether it is known
    that this came into the table.
    """

    claim: Claim | None = None
    plan: Plan | None = None
    is_recorded: bool = False
    version: int = 0
    """Of the claim's znode."""


class Accepted(NamedTuple):
    """What an operator accepted in the place of the table: another one, or that there is none,
    after a plan of the live pipeline.
    """

    table: int
    plan: Plan | None
    was_recorded: bool


class ZooKeeper(NamedTuple):
    """The content of a copy: the lock, the ledgers, and the last decision of an operator."""

    fence: int = 0
    ledgers: tuple[Ledger, ...] = (Ledger(), Ledger(), Ledger(plan=Plan(1, 2, 2), is_recorded=True))
    accepted: Accepted | None = None


class Table(NamedTuple):
    """Its id, or NONE; the newest plan of each in it, and the offsets of its rows."""

    id: int = 1
    applied: tuple[Plan | None, ...] = (None, None, Plan(1, 2, 2))
    rows: tuple[int, ...] = ()


class Driver(NamedTuple):
    """One driver: what it does, for whom, and what it knows."""

    at: At = At.IDLE
    does: Does = Does.FILL
    of: int = 0
    version: int = 0
    """Of the fence, or of its own claim."""
    claims: tuple[Claim | None, ...] = ()
    plan: Plan | None = None
    claim: Claim | None = None
    """As it is to be written with the plan."""
    old: Plan | None = None
    """The newest plan that was stored when it decided."""


class State(NamedTuple):
    """Everything at one moment, and how often each thing may still happen."""

    zk: ZooKeeper = ZooKeeper()
    table: Table = Table()
    is_away: bool = False
    """The table is there, and its disk is not mounted."""
    saved: ZooKeeper | None = None
    locks: tuple[int | None, ...] = (None, None, None)
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    uid: int = 1
    fills: int = 3
    given_up: int = 1
    runs: int = 1
    sets: int = 0
    replays: int = 0
    crashes: int = 0
    losses: int = 0
    restores: int = 1
    drops: int = 0
    absences: int = 0

    @property
    def seen(self) -> Table:
        """The table at the path."""
        return Table(NONE, (None, None, None)) if self.is_away else self.table


_BEGUN = Plan(1, 0, 1, uid=1)
FORGOTTEN = State(
    zk=ZooKeeper(1, (Ledger(Claim(0, 2, 1), _BEGUN), *ZooKeeper().ledgers[1:])),
    uid=2,
    drivers=(Driver(At.APPEND, Does.FILL, 0, plan=_BEGUN), Driver()),
    fills=2,
    runs=0,
)
"""A driver of the first backfill lost its session before it appended plan 1."""
_SECOND, _MADE = Plan(1, 0, 1, 2, uid=1), Plan(2, 2, 3, NONE)
REPLACED = State(
    zk=ZooKeeper(
        1,
        (Ledger(Claim(0, 2, 2), _SECOND), Ledger(), Ledger(plan=_MADE, is_recorded=True)),
        Accepted(NONE, Plan(1, 2, 2), True),
    ),
    table=Table(2, (None, None, _MADE), (2,)),
    uid=2,
    drivers=(Driver(At.APPEND, Does.FILL, 0, plan=_SECOND), Driver()),
    fills=1,
    runs=0,
    restores=0,
    absences=1,
)
"""The same in a table that was made anew, after an operator had accepted that there was none."""
REPLAYED = REPLACED._replace(
    zk=REPLACED.zk._replace(ledgers=(Ledger(), *REPLACED.zk.ledgers[1:])),
    uid=1,
    drivers=(Driver(), Driver()),
    fills=2,
    given_up=0,
    runs=1,
    replays=1,
    absences=0,
    losses=1,
)
"""What the live pipeline loaded went with the table before: a backfill may load it again, and so
may a replay.
"""


def in_force(s: State, of: int) -> Plan | None:
    """The newest plan; where the table has another one of its number, or a later one, that is
    right.
    """
    stored, applied = s.zk.ledgers[of].plan, s.seen.applied[of]
    return applied if applied and (stored is None or applied.number >= stored.number) else stored


def is_left(s: State, of: int) -> bool:
    """Whether the newest plan is not in the table, and was in none."""
    plan, ledger = in_force(s, of), s.zk.ledgers[of]
    return plan is not None and plan != s.seen.applied[of] and not ledger.is_recorded


def drivers_end() -> bool:
    """The restore of a copy of ZooKeeper ends the drivers first."""
    return True


def is_closed(plan: Plan) -> bool:
    """The plan that closed a backfill is believed more than its claim."""
    return plan.closes


def is_settled_by(plan: Plan) -> bool:
    """True if a backfill that is being given up may release the rest after this plan, the newest in
    the table.

    A forgotten driver may have appended the plan that the closing plan was to replace: then another
    one has to close.
    """
    return plan.closes


def has_rows(s: State, start: int, until: int) -> bool:
    """The rows of the offsets to be reserved, or read again, are counted: a reservation may be
    lost.
    """
    return any(start <= offset < until for offset in s.seen.rows)


def updates_reservation_lock(plan: Plan) -> bool:
    """True if a plan of the live pipeline reserves free offsets."""
    return plan.moves or plan.again != (0, 0)


def is_older(s: State) -> bool:
    """True if the table has plans of the live pipeline that its ledger does not know: its
    reservation is unknown then.
    """
    return in_force(s, LIVE) != s.zk.ledgers[LIVE].plan


def is_used(s: State, of: int) -> bool:
    """Whether the table holds plans under the name of a backfill that is to be begun."""
    return s.seen.applied[of] is not None


def is_of_another_era(s: State, of: int) -> bool:
    """Whether the plans in the table are of another ledger of this name."""
    applied, stored = s.seen.applied[of], s.zk.ledgers[of].plan
    return bool(applied and stored and applied.uid != stored.uid)


def is_shut_out(s: State, of: int) -> bool:
    """Whether none of this ledger's plans is in the table, or will be: another ledger of the name
    has taken their numbers.
    """
    applied, ledger = s.seen.applied[of], s.zk.ledgers[of]
    return bool(
        is_of_another_era(s, of)
        and applied
        and ledger.plan
        and ledger.plan.number <= applied.number
        and not ledger.is_recorded
    )


def is_of_table(s: State, plan: Plan) -> bool:
    """True if a plan was made for the present table: no driver continues after a plan of another
    one.
    """
    return plan.table == s.seen.id or plan in s.seen.applied


def may_append(s: State, plan: Plan) -> bool:
    """The same, when the table is opened to write."""
    return plan.table == s.seen.id


def is_accepted(s: State) -> bool:
    """True if an operator has accepted that the table at the path replaced the former one; or no
    table, while nothing is planned.
    """
    result = s.zk.accepted
    return (
        result is not None
        and result.table == s.seen.id
        and (result.table != NONE or result.plan == s.zk.ledgers[LIVE].plan)
    )


def is_gone(s: State) -> bool:
    """True if that holds for backfills, too. The plan after which it was accepted must not have
    created a table since.
    """
    result = s.zk.accepted
    return (
        is_accepted(s)
        and result is not None
        and (
            result.table != NONE
            or result.was_recorded
            or result.plan is None
            or result.plan.table != NONE
        )
    )


def may_accept(s: State) -> bool:
    """An operator accepts it only for a table that is gone for good."""
    plan = s.zk.ledgers[LIVE].plan
    made_for = {ledger.plan.table for ledger in s.zk.ledgers if ledger.plan}
    return plan is not None and not s.is_away and not is_accepted(s) and made_for != {s.table.id}


def steps(s: State) -> Iterator[tuple[str, State]]:
    """Every state that may come next, with what happened."""
    if s.restores and s.saved is None:
        yield "ZooKeeper is copied", s._replace(saved=s.zk)
    if s.restores and s.saved is not None and s.saved != s.zk:
        back = s._replace(zk=s.saved, saved=None, restores=0, locks=(None, None, None))
        yield (
            "the copy is put back",
            back._replace(drivers=(Driver(), Driver())) if drivers_end() else back,
        )
    if s.drops and not s.is_away and s.table.id:
        yield "the table is dropped", s._replace(table=Table(NONE, (None, None, None)), drops=0)
    if s.is_away:
        yield "the disk is mounted", s._replace(is_away=False)
    elif s.absences and s.table.id:
        yield "the disk is not mounted", s._replace(is_away=True, absences=0)
    if may_accept(s):
        yield "an operator accepts the table", s._replace(zk=_accepting(s))
    for of, lock in enumerate(s.locks):
        if lock is not None and s.losses:
            yield f"the session of {of} is lost", _lock(s, of, None)._replace(losses=s.losses - 1)
    for i, driver in enumerate(s.drivers):
        if driver.at is At.IDLE:
            yield from _begin(s, i)
            continue
        if s.crashes:
            yield f"driver {i} dies", _ended(s, i)._replace(crashes=s.crashes - 1)
        yield from _DOES[driver.at](s, i, driver)


def _accepting(s: State) -> ZooKeeper:
    live = s.zk.ledgers[LIVE]
    return s.zk._replace(accepted=Accepted(s.table.id, live.plan, live.is_recorded))


def _begin(s: State, i: int) -> Iterator[tuple[str, State]]:
    for of, ledger in enumerate(s.zk.ledgers):
        if s.locks[of] is not None:
            continue
        held = _lock(s, of, i)
        if of == LIVE:
            if s.runs:
                yield (
                    f"{i} begins to run",
                    _put(held, i, Driver(At.READ, Does.RUN, of))._replace(runs=s.runs - 1),
                )
            if s.sets:
                yield (
                    f"{i} begins to set back",
                    _put(held, i, Driver(At.READ, Does.SET, of))._replace(sets=s.sets - 1),
                )
            if s.replays:
                yield (
                    f"{i} begins to replay",
                    _put(held, i, Driver(At.READ, Does.REPLAY, of))._replace(replays=s.replays - 1),
                )
            continue
        if s.fills and (ledger.claim is None or ledger.claim.is_open):
            yield (
                f"{i} begins to fill {of}",
                _put(held, i, Driver(At.READ, Does.FILL, of))._replace(fills=s.fills - 1),
            )
        is_closing = (
            ledger.claim is not None and not ledger.claim.is_open and not ledger.claim.is_settled
        )
        if ledger.claim and (s.given_up or is_closing):
            yield (
                f"{i} gives up {of}",
                _put(held, i, Driver(At.READ, Does.GIVE_UP, of))._replace(
                    given_up=s.given_up - (not is_closing)
                ),
            )


def _lock(s: State, of: int, i: int | None) -> State:
    return s._replace(locks=tuple(i if n == of else one for n, one in enumerate(s.locks)))


def _put(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=(driver, s.drivers[1]) if i == 0 else (s.drivers[0], driver))


def _ended(s: State, i: int) -> State:
    of = s.drivers[i].of
    return _put(_lock(s, of, None) if s.locks[of] == i else s, i, Driver())


def _ledger(s: State, of: int, ledger: Ledger, *, anew: bool = False) -> State:
    ledgers = tuple(ledger if n == of else one for n, one in enumerate(s.zk.ledgers))
    return s._replace(zk=s.zk._replace(ledgers=ledgers, fence=s.zk.fence + anew))


def _read(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The fence and the claims, or one's own."""
    ledger = s.zk.ledgers[driver.of]
    version = ledger.version if ledger.claim else s.zk.fence
    claims = tuple(one.claim for of, one in enumerate(s.zk.ledgers) if of != driver.of)
    yield f"{i} reads", _put(s, i, driver._replace(at=At.DECIDE, version=version, claims=claims))


def _decide(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """By ledgers and table of now."""
    found, of, stored = False, driver.of, s.zk.ledgers[driver.of].plan
    for plan, claim in _PLANS[driver.does](s, driver):
        found = True
        if plan is None:
            at = At.SETTLE
        elif plan == stored and is_left(s, of):
            at = At.APPEND
        else:
            at = At.STORE
        yield (
            f"{i} decides on {plan or claim}",
            _put(s, i, driver._replace(at=at, plan=plan, claim=claim, old=stored, claims=())),
        )
    if not found:
        yield f"{i} has nothing to do, or is refused", _ended(s, i)


_Decided = Iterator[tuple[Plan | None, Claim | None]]
"""A plan, and the claim as it is to be written with it; without a plan the claim alone."""


def _run(s: State, driver: Driver) -> _Decided:
    del driver
    plan, here = in_force(s, LIVE), s.seen.id
    assert plan
    if not is_of_table(s, plan) and not is_accepted(s):
        return
    if is_left(s, LIVE):
        yield plan._replace(table=here), None  # another one in its place where the table is gone
    elif (
        plan.until < END or here == NONE
    ):  # what makes the table anew stands for records that came since
        yield Plan(plan.number + 1, plan.until, END, here), None


def _set(s: State, driver: Driver) -> _Decided:
    """Set back to unloaded and unreserved offsets."""
    plan = in_force(s, LIVE)
    assert plan
    if is_left(s, LIVE) or is_older(s) or not is_of_table(s, plan):
        return
    for to in range(plan.until):
        if not _is_held(s, driver, to, plan.until) and not has_rows(s, to, plan.until):
            yield Plan(plan.number + 1, to, to, s.seen.id, moves=True), None


def _is_held(s: State, driver: Driver, start: int, until: int) -> bool:
    """True if a backfill reserves any of these offsets of this table, by the read state."""
    return any(
        one and one.table == s.seen.id and max(start, one.start) < min(until, one.until)
        for one in driver.claims
    )


def _replay(s: State, driver: Driver) -> _Decided:
    """What the pipeline loaded, be it into this table or into the one before."""
    plan = in_force(s, LIVE)
    assert plan
    if not (is_left(s, LIVE) or is_older(s) or _is_held(s, driver, *AGAIN)) and is_of_table(
        s, plan
    ):
        yield Plan(plan.number + 1, plan.until, plan.until, s.seen.id, again=AGAIN), None


def _fill(s: State, driver: Driver) -> _Decided:
    ledger = s.zk.ledgers[driver.of]
    if ledger.claim is None:
        yield from _first(s, driver)
        return
    plan = in_force(s, driver.of)
    assert plan
    if (
        not ledger.claim.is_open
        or is_closed(plan)
        or not is_of_table(s, plan)
        or is_of_another_era(s, driver.of)
    ):
        return
    if is_left(s, driver.of):
        yield plan, ledger.claim
    elif plan.until < ledger.claim.until:
        yield (
            plan._replace(number=plan.number + 1, start=plan.until, until=plan.until + 1),
            ledger.claim,
        )


def _first(s: State, driver: Driver) -> _Decided:
    """Plan 1, of offsets that are as free for the live pipeline as for another backfill."""
    live, applied, here = s.zk.ledgers[LIVE].plan, s.seen.applied[LIVE], s.seen.id
    if (
        live is None
        or applied is None
        or is_older(s)
        or is_used(s, driver.of)
        or (is_left(s, LIVE) and live.moves)
    ):
        return
    position = min(live.start, applied.until) if is_left(s, LIVE) else live.until
    for start, until in WANTED[driver.of]:
        is_read_again = is_left(s, LIVE) and max(start, live.again[0]) < min(until, live.again[1])
        if (
            until <= position
            and not is_read_again
            and not _is_held(s, driver, start, until)
            and not has_rows(s, start, until)
        ):
            yield Plan(1, start, start + 1, here, s.uid), Claim(start, until, here)


def _give_up(s: State, driver: Driver) -> _Decided:
    """A plan that closes, in the place of one that is not in the table, or the next; of what
    another table has nothing is kept.
    """
    ledger, plan = s.zk.ledgers[driver.of], in_force(s, driver.of)
    assert ledger.claim and ledger.plan and plan
    nothing = ledger.claim._replace(until=ledger.claim.start, is_open=False, is_settled=True)
    if not is_of_table(s, ledger.plan):
        if is_gone(s):
            yield None, nothing
    elif ledger.claim.is_settled:
        return
    elif is_shut_out(s, driver.of):
        yield None, nothing
    elif is_of_another_era(s, driver.of):
        return
    elif is_left(s, driver.of) and not ledger.claim.is_open:
        yield plan, ledger.claim
    elif is_closed(plan) or (not ledger.claim.is_open and is_settled_by(plan)):
        yield None, ledger.claim._replace(until=plan.until, is_open=False, is_settled=True)
    else:
        at = plan.start if is_left(s, driver.of) else plan.until
        if at < ledger.claim.until or not ledger.claim.is_open:
            closing = plan._replace(
                number=plan.number + (not is_left(s, driver.of)), start=at, until=at, closes=True
            )
            yield closing, ledger.claim._replace(is_open=False)


def _store(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """One transaction: the plan, if its place is as it was, and the fence or the claim at the
    version that was read first.
    """
    plan, ledger = driver.plan, s.zk.ledgers[driver.of]
    assert plan
    is_anew = updates_reservation_lock(plan) if driver.of == LIVE else ledger.claim is None
    if is_anew:
        is_moved = s.zk.fence != driver.version
    else:
        is_moved = driver.of != LIVE and ledger.version != driver.version
    if is_moved or ledger.plan != driver.old:
        yield f"{i} stores nothing", _ended(s, i)
        return
    stored = _ledger(
        s, driver.of, Ledger(driver.claim, plan, version=ledger.version + 1), anew=is_anew
    )
    stored = stored._replace(uid=s.uid + (driver.of != LIVE and is_anew))
    after = _put(stored, i, driver._replace(at=At.APPEND, version=0, claim=None, old=None))
    yield (
        f"{i} stores {plan} of {driver.of}",
        _ended(stored, i) if driver.does is Does.SET else after,
    )


def _append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The table takes each number once, and no plan that was made for another one."""
    plan, table, of = driver.plan, s.table, driver.of
    assert plan
    applied = s.seen.applied[of]
    if applied is None or applied.number < plan.number:
        if s.is_away or not may_append(s, plan):
            yield f"{i} finds another table than {plan} is for", _ended(s, i)
            return
        if table.id == NONE:
            table = table._replace(id=2)
        left = (at for at in table.rows if not plan.again[0] <= at < plan.again[1])
        rows = tuple(sorted((*left, *range(*plan.again), *range(plan.start, plan.until))))
        s = s._replace(
            table=Table(
                table.id,
                tuple(plan if n == of else one for n, one in enumerate(table.applied)),
                rows,
            )
        )
    yield f"{i} appends {plan} of {of}", _put(s, i, Driver(At.RECORD, driver.does, of, plan=plan))


def _record(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """What the table holds under that number is the ledger's from here on."""
    ledger, plan, applied = s.zk.ledgers[driver.of], driver.plan, s.seen.applied[driver.of]
    assert plan
    if (
        applied
        and ledger.plan
        and (applied.number, applied.uid) == (ledger.plan.number, ledger.plan.uid)
    ):
        s = _ledger(s, driver.of, ledger._replace(plan=applied, is_recorded=True))
    if driver.of == LIVE:
        yield f"{i} is done", _ended(s, i)
    else:
        yield f"{i} looks again", _put(s, i, Driver(At.READ, driver.does, driver.of))


def _settle(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
    """The claim alone: nothing is loaded under it any more."""
    ledger = s.zk.ledgers[driver.of]
    if ledger.version != driver.version:
        yield f"{i} settles nothing", _ended(s, i)
    else:
        kept = ledger._replace(claim=driver.claim, version=ledger.version + 1)
        yield (
            f"{i} gives back what {driver.of} did not load",
            _ended(_ledger(s, driver.of, kept), i),
        )


_PLANS: dict[Does, Callable[[State, Driver], _Decided]] = {
    Does.FILL: _fill,
    Does.GIVE_UP: _give_up,
    Does.RUN: _run,
    Does.SET: _set,
    Does.REPLAY: _replay,
}
_DOES: dict[At, Callable[[State, int, Driver], Iterator[tuple[str, State]]]] = {
    At.READ: _read,
    At.DECIDE: _decide,
    At.STORE: _store,
    At.APPEND: _append,
    At.RECORD: _record,
    At.SETTLE: _settle,
}


def is_whole(s: State, of: int) -> bool:
    """True if a backfill that is begun or resumed now reports that it is complete."""
    claim, plan = s.zk.ledgers[of].claim, in_force(s, of)
    if (
        claim is None
        or plan is None
        or not claim.is_open
        or is_closed(plan)
        or not is_of_table(s, plan)
        or is_of_another_era(s, of)
    ):
        return False
    return not is_left(s, of) and plan.until >= claim.until


def broken_law(s: State) -> str | None:
    """What of the laws this state breaks, the one about commands that lead on apart."""
    if len(set(s.table.rows)) < len(s.table.rows):
        return f"offsets are in the table twice: {s.table.rows}"
    for of in range(LIVE):
        claim = s.zk.ledgers[of].claim
        if (
            claim
            and is_whole(s, of)
            and not set(range(claim.start, claim.until)) <= set(s.table.rows)
        ):
            return f"{of} is complete by its ledger, and the table lacks some of it"
    return None


def _alone(s: State, does: Does, of: int) -> State:
    """The result of one command without any other driver."""
    s = _put(s, 0, Driver(At.READ, does, of))
    while s.drivers[0].at is not At.IDLE:
        _, s = next(iter(_DOES[s.drivers[0].at](s, 0, s.drivers[0])))
    return s


def led_on(s: State) -> str | None:
    """None where commands lead out of this state: see the laws."""
    s = s._replace(drivers=(Driver(), Driver()), locks=(None, None, None), is_away=False)
    for _ in range(3):
        s = _alone(s._replace(zk=_accepting(s)) if may_accept(s) else s, Does.RUN, LIVE)
    s = s._replace(zk=_accepting(s)) if may_accept(s) else s
    for of in range(LIVE):
        claim = s.zk.ledgers[of].claim
        if claim is None:
            continue
        s = _alone(s, Does.FILL, of) if claim.is_open else s
        s = s if is_whole(s, of) else _alone(s, Does.GIVE_UP, of)
        claim = s.zk.ledgers[of].claim
        assert claim
        if not is_whole(s, of) and not claim.is_settled:
            return f"{of} is neither whole nor given up: {s}"
        if claim.table == s.table.id and not set(range(claim.start, claim.until)) <= set(
            s.table.rows
        ):
            return f"{of} claims what the table lacks, for ever: {s}"
    plan = in_force(s, LIVE)
    return broken_law(s) or (
        f"the live pipeline does not come to the end: {s}"
        if plan is None or plan.until < END
        else None
    )


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the way to the first that breaks a law."""
    calm = set[tuple[object, ...]]()

    def law(s: State) -> str | None:
        wrong, there = broken_law(s), (s.zk, s.table)
        if wrong or there in calm:
            return wrong
        calm.add(there)
        return led_on(s)

    return explored(start, steps, law)


DROPPED = State(restores=0, drops=1, fills=2, losses=1)

if __name__ == "__main__":
    for start in (
        State(),
        State(losses=1, fills=2),
        DROPPED,
        REPLACED,
        REPLAYED,
        FORGOTTEN._replace(drops=1, runs=1),
    ):
        states, law = explore(start)
        print(f"{states:,} states", law or "every law holds")
        if law:
            sys.exit(1)
