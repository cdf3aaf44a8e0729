"""One sequence of plans: runs, backfills, replays and operators' plans under the same numbers.

Every interleaving of a few drivers of one pipeline with one partition is explored, with crashes,
lost sessions (the driver goes on without its lock), a growing log, retention, an offset that
another client commits, a topic that is recreated, a backfill that is deleted, and a ledger that is
restored from an older copy. The pipeline starts at offset START of the first incarnation; a
backfill requests offsets below and loads them in plans of one offset.

Rules:

- store: a plan is stored under the next number (create), or replaces the newest stored plan that
  is not in the table, in one transaction with a check that the newest plan and its recorded result
  are those observed.
- number: the table takes each number once.
- oblige: a stored plan of a backfill obliges nobody. A run replaces it under its number, or leaves
  it where there is nothing to read.
- forget: what a backfill still has to load is its request minus the loaded offsets, which the
  ledger keeps, and which are restored from the table's commits.
- carry: a plan that moves no committed offset carries the expected commit, and whoever plans next
  compares it.
- incarnation: the request of a backfill is of one incarnation of the partition.

Laws, in every state: no record is in the table twice; a run begins where the plan before it left
the pipeline; the committed offset is never ahead of the table; no plan overwrites an offset of
another client unless an operator decided it. From every state, quiet commands load each record that
the log still has once, up to its end, and commit that end.

    python docs/adr/0039_model.py [SCENARIO] [--large] [--without RULE]

An appendix of ADR 39: a change of the protocol is made here first. The product's own laws are in
tests/unit/run/test_stateful_law.py.

Not here: what the plans of a group's members commit before they read
(tests/unit/run/test_joining.py), older copies of the table (tests/unit/run/test_stateful_law.py).
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

START = 2
"""The first offset that runs load."""
END = 4
"""The log grows to this end."""
RULES = ("store", "number", "oblige", "forget", "carry", "incarnation")


class Kind(str, Enum):
    """What a plan is for; `OPERATOR` is a plan that reads nothing and sets where runs continue."""

    RUN = "run"
    BACKFILL = "backfill"
    REPLAY = "replay"
    OPERATOR = "operator"


class Step(str, Enum):
    """What a driver does next."""

    IDLE = "idle"
    OBSERVE = "observe"
    STORE = "store"
    READ = "read"
    APPEND = "append"
    CHECK = "check"
    RESTORE = "restore"
    RECORD = "record"
    COMMIT = "commit"


class Plan(NamedTuple):
    """Offsets [start, until) of an incarnation under a number, and where runs continue after it."""

    number: int
    kind: Kind
    start: int
    until: int
    loaded_until: int
    incarnation: int
    expected: int
    """Version of the committed offset when the plan was made."""
    id: int


class Committed(NamedTuple):
    """The committed offset and the version of its znode."""

    offset: int = START
    version: int = 0
    is_foreign: bool = False
    """True if another client moved it and no operator has decided about that yet."""


class Ledger(NamedTuple):
    """What ZooKeeper knows of the pipeline."""

    newest: Plan | None = None
    recorded: int = 0
    """Number of the newest plan whose result is recorded."""
    loaded: frozenset[tuple[int, int]] = frozenset()
    """Incarnation and offset of each loaded record."""
    committed: Committed = Committed()
    backfills: frozenset[str] = frozenset()
    """Names of the backfills whose documents exist."""


class Driver(NamedTuple):
    """One command, or the next of its kind once it has ended."""

    kind: Kind
    name: str = ""
    """Of a backfill."""
    step: Step = Step.IDLE
    plan: Plan | None = None
    observed: tuple[Plan | None, int] | None = None
    """The newest plan and its recorded number, as observed."""
    version: int = 0
    """What the table's transaction version, or that of the committed offset, is expected to be."""


class Budget(NamedTuple):
    """How often each thing may still happen."""

    runs: int = 2
    backfills: int = 2
    replays: int = 0
    operators: int = 0
    crashes: int = 1
    expiries: int = 1
    restores: int = 0
    retention: int = 1
    foreign: int = 0
    recreations: int = 0
    deletions: int = 0
    ids: int = 1


class State(NamedTuple):
    """Everything at one moment."""

    ledger: Ledger
    table: tuple[Plan, ...] = ()
    log_start: int = 0
    log_end: int = START
    incarnation: int = 0
    drivers: tuple[Driver, ...] = ()
    lock: int | None = None
    copy: Ledger | None = None
    budget: Budget = Budget()


REQUESTS: Mapping[str, tuple[int, int]] = {"all": (0, 2), "second": (1, 2)}
"""The intervals of the backfills, of incarnation 0."""


class Scenario(NamedTuple):
    """Which drivers there are, and what may happen, in the gate and in the long form."""

    drivers: tuple[Driver, ...]
    small: Budget
    large: Budget


_RUN = Driver(Kind.RUN)
_BACKFILL = Driver(Kind.BACKFILL, "all")
_SECOND = Driver(Kind.BACKFILL, "second")
_REPLAY = Driver(Kind.REPLAY)
_OPERATOR = Driver(Kind.OPERATOR)

SCENARIOS: Mapping[str, Scenario] = {
    "two runs and a backfill": Scenario(
        (_RUN, _RUN, _BACKFILL),
        Budget(runs=2, backfills=1, expiries=1, retention=0, restores=0),
        Budget(runs=2, backfills=2, restores=1),
    ),
    "a restored ledger": Scenario(
        (_RUN, _BACKFILL),
        Budget(runs=2, backfills=2, crashes=0, restores=1),
        Budget(runs=3, backfills=3, crashes=1, expiries=2, restores=1),
    ),
    "overlapping backfills": Scenario(
        (_RUN, _BACKFILL, _SECOND),
        Budget(runs=1, backfills=2, deletions=1),
        Budget(runs=2, backfills=3, deletions=1, restores=1),
    ),
    "another client": Scenario(
        (_RUN, _BACKFILL, _OPERATOR),
        Budget(runs=2, backfills=1, operators=1, foreign=1, retention=0, crashes=0),
        Budget(runs=2, backfills=2, operators=1, foreign=1),
    ),
    "a replay": Scenario(
        (_RUN, _BACKFILL, _REPLAY),
        Budget(runs=1, backfills=1, replays=1, retention=0),
        Budget(runs=2, backfills=1, replays=2, retention=0, restores=1),
    ),
    "set offsets": Scenario(
        (_RUN, _BACKFILL, _OPERATOR),
        Budget(runs=1, backfills=2, operators=1),
        Budget(runs=2, backfills=2, operators=2, restores=1),
    ),
    "a recreated topic": Scenario(
        (_RUN, _BACKFILL, _OPERATOR),
        Budget(runs=2, backfills=1, operators=1, recreations=1, retention=0, expiries=0),
        Budget(runs=2, backfills=2, operators=1, recreations=1, retention=0),
    ),
}


def begin(scenario: Scenario, budget: Budget) -> State:
    """The state before anything happened: the documents of the backfills exist."""
    names = frozenset(driver.name for driver in scenario.drivers if driver.name)
    return State(Ledger(backfills=names), drivers=scenario.drivers, budget=budget)


class Model:
    """The steps and laws, with all rules, or without one."""

    def __init__(self, without: str = "") -> None:
        self._without = without
        self._ends_well = lru_cache(maxsize=None)(self._ends_well_uncached)

    # ---------------------------------------------------------------- what may happen

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        """Every state that may come next, with what happened."""
        yield from self._world(s)
        for index, driver in enumerate(s.drivers):
            who = f"{driver.kind.value} {index}"
            if driver.step is not Step.IDLE and s.budget.crashes:
                crashed = _stopped(s, index)
                yield f"{who} dies at {driver.step.value}", _spent(crashed, "crashes")
            for label, following in self._driver(s, index, driver):
                yield f"{who} {label}", following

    def _world(self, s: State) -> Iterator[tuple[str, State]]:
        ledger, budget = s.ledger, s.budget
        if s.log_end < END:
            yield "the log grows", s._replace(log_end=s.log_end + 1)
        if s.log_start == 0 and s.log_end and budget.retention:
            yield "retention deletes offset 0", _spent(s._replace(log_start=1), "retention")
        if s.incarnation == 0 and ledger.newest and budget.recreations:
            recreated = s._replace(incarnation=1, log_start=0, log_end=0)
            yield "the topic is recreated", _spent(recreated, "recreations")
        if budget.foreign and ledger.newest:
            moved = Committed(s.log_end, ledger.committed.version + 1, is_foreign=True)
            if moved.offset != ledger.committed.offset:
                changed = s._replace(ledger=ledger._replace(committed=moved))
                yield "another client commits the end", _spent(changed, "foreign")
        if budget.deletions and ledger.backfills:
            deleted = ledger._replace(backfills=ledger.backfills - {max(ledger.backfills)})
            yield "a backfill is deleted", _spent(s._replace(ledger=deleted), "deletions")
        if s.copy is None and ledger.newest and budget.restores:
            yield "the ledger is copied", s._replace(copy=ledger)
        if s.copy is not None and budget.restores:
            restored = s._replace(ledger=s.copy, lock=None, copy=None)
            yield "the ledger is restored", _spent(restored, "restores")
        if s.lock is not None and budget.expiries:
            yield "a session is lost", _spent(s._replace(lock=None), "expiries")

    def _driver(self, s: State, index: int, driver: Driver) -> Iterator[tuple[str, State]]:
        if driver.step is Step.IDLE:
            yield from _started(s, index, driver)
        elif driver.step is Step.OBSERVE:
            yield self._observed(s, index, driver)
        elif driver.step is Step.STORE:
            yield self._stored(s, index, driver)
        elif driver.step is Step.READ:
            yield self._read(s, index, driver)
        elif driver.step is Step.APPEND:
            yield self._appended(s, index, driver)
        elif driver.step is Step.CHECK:
            yield _checked(s, index, driver)
        elif driver.step is Step.RESTORE:
            yield self._restored(s, index, driver)
        elif driver.step is Step.RECORD:
            yield _recorded(s, index, driver)
        elif driver.step is Step.COMMIT:
            yield _committed(s, index, driver)

    # ---------------------------------------------------------------- observe and decide

    def _observed(self, s: State, index: int, driver: Driver) -> tuple[str, State]:
        ledger = s.ledger
        newest = ledger.newest
        in_table = _transaction_version(s)
        applied = s.table[-1] if s.table else None
        is_ahead = newest is None or in_table > newest.number
        if applied and newest and in_table == newest.number:
            is_ahead = applied.id != newest.id
        if applied and is_ahead:
            # Offsets first: once the ledger has the plan, an offset below would count as moved.
            version = ledger.committed.version
            ahead = _with(s, index, step=Step.RESTORE, plan=applied, version=version)
            return "finds the table ahead", ahead
        if newest and in_table < newest.number:
            return self._unfinished(s, index, driver, newest)
        if newest and ledger.recorded < newest.number:
            return "repairs the result", _with(s, index, step=Step.RECORD, plan=newest)
        if newest and ledger.committed.offset != newest.loaded_until:
            if ledger.committed.version == newest.expected:
                repairing = _with(s, index, step=Step.COMMIT, plan=newest, version=newest.expected)
                return "repairs the offset", repairing
            is_compared = self._without != "carry" or newest.kind is not Kind.BACKFILL
            if is_compared and driver.kind is not Kind.OPERATOR:
                return "finds an offset that another client moved", _stopped(s, index)
        return self._planned(s, index, driver, newest.number + 1 if newest else 1)

    def _unfinished(self, s: State, index: int, driver: Driver, stored: Plan) -> tuple[str, State]:
        """A stored plan is not in the table: execute it, replace it, or leave it."""
        is_readable = stored.start == stored.until or (
            stored.incarnation == s.incarnation and stored.start >= s.log_start
        )
        is_left = driver.kind is Kind.OPERATOR
        if stored.kind is Kind.BACKFILL and self._without != "oblige":
            is_left = is_left or driver.kind is not Kind.BACKFILL or not is_readable
        if not is_left:
            return f"executes {stored.number}", _with(s, index, step=Step.READ, plan=stored)
        committed = s.ledger.committed
        if committed.offset != stored.loaded_until and committed.version != stored.expected:
            if driver.kind is not Kind.OPERATOR:
                return "finds an offset that another client moved", _stopped(s, index)
        return self._planned(s, index, driver, stored.number)

    def _planned(self, s: State, index: int, driver: Driver, number: int) -> tuple[str, State]:
        """Decide the next plan under this number; without one the driver ends."""
        plan = self._next_plan(s, driver, number)
        if plan is None:
            return "has nothing to do", _stopped(s, index)
        plan = plan._replace(id=s.budget.ids)
        observed = s.ledger.newest, s.ledger.recorded
        planned = _with(s, index, step=Step.STORE, plan=plan, observed=observed)
        budget = s.budget._replace(ids=plan.id + 1)
        return f"plans {number}", planned._replace(budget=budget)

    def _next_plan(self, s: State, driver: Driver, number: int) -> Plan | None:
        where = _before(s, number)
        expected = s.ledger.committed.version
        carried = Plan(number, driver.kind, 0, 0, where.offset, where.incarnation, expected, 0)
        if driver.kind is Kind.OPERATOR:
            return _operators_plan(s, carried)
        if where.incarnation != s.incarnation:
            return None  # the run stops: an operator decides
        if driver.kind is Kind.RUN:
            if s.log_end <= where.offset:
                return None
            return carried._replace(start=where.offset, until=s.log_end, loaded_until=s.log_end)
        if driver.kind is Kind.REPLAY:
            first = (where.incarnation, START)
            if first not in s.ledger.loaded or where.offset <= START:
                return None
            return carried._replace(start=START, until=START + 1)
        missing = self._missing(s, driver.name, where)
        if not missing or s.ledger.newest is None:
            return None  # it is unknown where runs begin before the first of them
        return carried._replace(start=missing[0], until=missing[0] + 1)

    def _missing(self, s: State, name: str, where: _Where) -> list[int]:
        """The offsets that a backfill has to load; none once its document is deleted."""
        if name not in s.ledger.backfills:
            return []
        if s.incarnation != 0 and self._without != "incarnation":
            return []
        start, until = REQUESTS[name]
        missing = []
        for offset in range(max(start, s.log_start), min(until, where.offset)):
            if (0, offset) not in s.ledger.loaded:
                missing.append(offset)
        return missing

    # ---------------------------------------------------------------- execute

    def _stored(self, s: State, index: int, driver: Driver) -> tuple[str, State]:
        """Create or replace, in one transaction with the check of what was observed."""
        assert driver.observed is not None and driver.plan is not None
        newest, recorded = driver.observed
        is_as_observed = s.ledger.recorded == recorded or self._without == "store"
        if s.ledger.newest != newest or not is_as_observed:
            return "finds another plan", _stopped(s, index)
        ledger = s.ledger._replace(newest=driver.plan)
        return "stores", _with(s, index, step=Step.READ)._replace(ledger=ledger)

    def _read(self, s: State, index: int, driver: Driver) -> tuple[str, State]:
        """Read the records, then open a transaction on the table's version."""
        plan = driver.plan
        assert plan is not None
        in_table = _transaction_version(s)
        if in_table >= plan.number:
            return "skips the append", _with(s, index, step=Step.CHECK)
        if plan.start < plan.until:
            if plan.incarnation != s.incarnation or plan.start < s.log_start:
                return "cannot read the plan's offsets", _stopped(s, index)
        return "writes files", _with(s, index, step=Step.APPEND, version=in_table)

    def _appended(self, s: State, index: int, driver: Driver) -> tuple[str, State]:
        """Commit, unless the table's transaction version changed since."""
        assert driver.plan is not None
        if _transaction_version(s) != driver.version and self._without != "number":
            return "loses the append", _with(s, index, step=Step.CHECK)
        appended = s._replace(table=(*s.table, driver.plan))
        return "appends", _with(appended, index, step=Step.CHECK)

    def _restored(self, s: State, index: int, driver: Driver) -> tuple[str, State]:
        """Commit the offset of the table's newest plan, then give the ledger that plan."""
        plan = driver.plan
        assert plan is not None
        committed = s.ledger.committed
        # Beyond the plan it is another client's: it stays, and whoever plans next finds it.
        if committed.offset < plan.loaded_until:
            if committed.version != driver.version:
                return "finds the offset changed", _stopped(s, index)
            committed = Committed(plan.loaded_until, committed.version + 1)
        loaded = s.ledger.loaded
        if self._without != "forget":
            loaded = loaded | _offsets_of(s.table)
        ledger = s.ledger._replace(
            newest=plan, recorded=plan.number, loaded=loaded, committed=committed
        )
        return "restores the ledger", _stopped(s._replace(ledger=ledger), index)

    # ---------------------------------------------------------------- laws

    def broken_law(self, s: State) -> str | None:
        """The law that the state breaks, or None."""
        rows = _rows_of(s.table)
        if len(rows) != len(set(rows)):
            return f"a record is in the table twice: {rows}"
        before = _Where(START, 0)
        for plan in s.table:
            if plan.kind is Kind.RUN and (plan.start, plan.incarnation) != before:
                return f"a run does not begin where the plan before it ended: {plan}"
            before = _Where(plan.loaded_until, plan.incarnation)
        for driver in s.drivers:
            if driver.step is Step.STORE and _overwrites(driver.plan, s.ledger.committed):
                return f"a plan would overwrite the offset of another client: {driver.plan}"
        if _is_ahead_of_table(s):
            return "the committed offset is ahead of the table"
        if not self._ends_well(s.ledger, s.table, s.log_start, s.log_end, s.incarnation):
            return "quiet commands do not end well"
        return None

    def _ends_well_uncached(
        self,
        ledger: Ledger,
        table: tuple[Plan, ...],
        log_start: int,
        log_end: int,
        incarnation: int,
    ) -> bool:
        """True if commands, one after the other, leave nothing to do and everything loaded once."""
        s = State(ledger, table, log_start, END, incarnation)
        quiet = Budget(
            runs=9,
            backfills=9,
            replays=9,
            operators=9,
            crashes=0,
            expiries=0,
            retention=0,
            ids=1000,
        )
        names = sorted(ledger.backfills)
        backfills = [Driver(Kind.BACKFILL, name) for name in names]
        commands = [_RUN, *backfills, _OPERATOR, _RUN, *backfills, _RUN]
        for command in commands:
            if command.kind is Kind.OPERATOR and not _needs_operator(s):
                continue
            s = s._replace(lock=None, copy=None, drivers=(command,), budget=quiet)
            for _ in range(60):
                label_and_next = next(self._driver(s, 0, s.drivers[0]), None)
                if label_and_next is None:
                    break
                s = label_and_next[1]
                if s.drivers[0].step is Step.IDLE and label_and_next[0] == "has nothing to do":
                    break
        return _is_complete(s)


# -------------------------------------------------------------------- a few functions of values


class _Where(NamedTuple):
    offset: int
    incarnation: int


def _before(s: State, number: int) -> _Where:
    """Where the pipeline stood before the plan of this number."""
    newest = s.ledger.newest
    if newest is None:
        return _Where(START, 0)
    if newest.number < number:
        return _Where(newest.loaded_until, newest.incarnation)
    if newest.start < newest.until and newest.kind is Kind.RUN:
        return _Where(newest.start, newest.incarnation)
    before = [plan for plan in s.table if plan.number == number - 1]
    if before:
        return _Where(before[0].loaded_until, before[0].incarnation)
    return _Where(START, 0)


def _operators_plan(s: State, carried: Plan) -> Plan | None:
    """An operator's decision: the new incarnation from its beginning; else, where another client
    moved the offset, the pipeline's own; else one offset back or forth.
    """
    if carried.incarnation != s.incarnation:
        return carried._replace(loaded_until=0, incarnation=s.incarnation)
    if _needs_operator(s):
        return carried
    back = carried.loaded_until - 1
    loaded = s.ledger.loaded
    if back >= s.log_start and (carried.incarnation, back) not in loaded:
        return carried._replace(loaded_until=back)
    if carried.loaded_until < s.log_end:
        return carried._replace(loaded_until=carried.loaded_until + 1)
    return None


def _needs_operator(s: State) -> bool:
    """True if runs stop until an operator decides."""
    newest, committed = s.ledger.newest, s.ledger.committed
    if newest is None:
        return False
    is_moved = committed.offset != newest.loaded_until and committed.version != newest.expected
    return committed.is_foreign or is_moved or newest.incarnation != s.incarnation


def _is_complete(s: State) -> bool:
    """True if each record that the log has is loaded, but those that an operator left out and those
    that nobody requested, and the end is committed.
    """
    loaded = _offsets_of(s.table)
    if s.incarnation:
        wanted = set(range(s.log_start, END))
    else:
        wanted = set(range(START, END))
        for name in s.ledger.backfills:
            wanted |= set(range(*REQUESTS[name]))
        wanted -= set(range(s.log_start))
    before = START
    for plan in s.table:
        if plan.kind is Kind.OPERATOR and plan.incarnation == s.incarnation:
            wanted -= set(range(before, plan.loaded_until))
        before = plan.loaded_until
    missing = [offset for offset in wanted if (s.incarnation, offset) not in loaded]
    return not missing and s.ledger.committed.offset == END


def _offsets_of(plans: tuple[Plan, ...]) -> frozenset[tuple[int, int]]:
    offsets = []
    for plan in plans:
        for offset in range(plan.start, plan.until):
            offsets.append((plan.incarnation, offset))
    return frozenset(offsets)


def _rows_of(table: tuple[Plan, ...]) -> list[tuple[int, int]]:
    """Incarnation and offset of each row; a replay removes the rows that it writes again."""
    rows: list[tuple[int, int]] = []
    for plan in table:
        offsets = [(plan.incarnation, offset) for offset in range(plan.start, plan.until)]
        if plan.kind is Kind.REPLAY:
            rows = [row for row in rows if row not in offsets]
        rows += offsets
    return rows


def _overwrites(plan: Plan | None, committed: Committed) -> bool:
    """True if the plan accepts the offset of another client as its own without continuing there."""
    if plan is None or plan.kind is Kind.OPERATOR or not committed.is_foreign:
        return False
    stands_at = plan.start if plan.kind is Kind.RUN else plan.loaded_until
    return plan.expected == committed.version and stands_at != committed.offset


def _is_ahead_of_table(s: State) -> bool:
    """True if an offset of ours is above each loaded-until offset in the table."""
    if s.ledger.committed.is_foreign:
        return False
    ends = [plan.loaded_until for plan in s.table]
    return s.ledger.committed.offset > max([START, *ends])


def _transaction_version(s: State) -> int:
    return s.table[-1].number if s.table else 0


def _with(s: State, index: int, **changes: Any) -> State:
    driver = s.drivers[index]._replace(**changes)
    return s._replace(drivers=(*s.drivers[:index], driver, *s.drivers[index + 1 :]))


def _spent(s: State, name: str) -> State:
    left = getattr(s.budget, name) - 1
    return s._replace(budget=s.budget._replace(**{name: left}))


def _stopped(s: State, index: int) -> State:
    s = _with(s, index, step=Step.IDLE, plan=None, observed=None, version=0)
    if s.lock == index:
        return s._replace(lock=None)
    return s


def _started(s: State, index: int, driver: Driver) -> Iterator[tuple[str, State]]:
    kinds = {
        Kind.RUN: "runs",
        Kind.BACKFILL: "backfills",
        Kind.REPLAY: "replays",
        Kind.OPERATOR: "operators",
    }
    name = kinds[driver.kind]
    if s.lock is None and getattr(s.budget, name):
        yield "starts", _spent(_with(s, index, step=Step.OBSERVE)._replace(lock=index), name)


def _checked(s: State, index: int, driver: Driver) -> tuple[str, State]:
    """Read back which plan the table has under the number."""
    plan = driver.plan
    if plan not in s.table:
        return "sees another plan", _stopped(s, index)
    return "sees its plan", _with(s, index, step=Step.RECORD)


def _recorded(s: State, index: int, driver: Driver) -> tuple[str, State]:
    """Record the result of the newest plan, whose number is in the table."""
    plan = driver.plan
    assert plan is not None
    if s.ledger.newest != plan:
        return "finds the ledger changed", _stopped(s, index)
    loaded = s.ledger.loaded | _offsets_of((plan,))
    s = s._replace(ledger=s.ledger._replace(recorded=plan.number, loaded=loaded))
    return "records", _with(s, index, step=Step.COMMIT, version=plan.expected)


def _committed(s: State, index: int, driver: Driver) -> tuple[str, State]:
    """Move the committed offset by compare-and-set, then look for more to do."""
    plan = driver.plan
    assert plan is not None
    committed = s.ledger.committed
    if committed.offset != plan.loaded_until or committed.is_foreign:
        if committed.version != driver.version:
            return "finds an offset that another client moved", _stopped(s, index)
        committed = Committed(plan.loaded_until, committed.version + 1)
    s = s._replace(ledger=s.ledger._replace(committed=committed))
    return "commits", _stopped(s, index)


S = TypeVar("S")


def explored(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    broken_law: Callable[[S], str | None],
) -> tuple[int, str | None]:
    """How many states there are, and the shortest way to one that breaks a law, a line each step;
    None where every law holds.

    `steps` gives (what happens, the state after it) for all that can happen next, `broken_law`
    which law a state breaks.
    """
    before: dict[S, tuple[str, S] | None] = {start: None}
    queue = deque([start])
    with _without_collector():
        while queue:
            state = queue.popleft()
            law = broken_law(state)
            if law:
                return len(before), "\n".join([law, *_way_to(state, before)])
            for what, after in steps(state):
                if after not in before:
                    before[after] = what, state
                    queue.append(after)
    return len(before), None


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """States are tuples, all are kept and none leads back to itself: to look for some that do costs
    a quarter of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _way_to(state: S, before: Mapping[S, tuple[str, S] | None]) -> list[str]:
    way: list[str] = []
    while origin := before[state]:
        what, state = origin
        way.append(what)
    return way[::-1]


def explore(name: str, *, large: bool = False, without: str = "") -> tuple[int, str | None]:
    """The number of states of a scenario, and the way to a broken law or None."""
    scenario = SCENARIOS[name]
    budget = scenario.large if large else scenario.small
    model = Model(without)
    return explored(begin(scenario, budget), model.steps, model.broken_law)


def main(arguments: list[str]) -> int:
    """Explore the scenarios that are named, or all."""
    without = ""
    if "--without" in arguments:
        at = arguments.index("--without")
        without = arguments[at + 1]
        del arguments[at : at + 2]
    large = "--large" in arguments
    names = [name for name in arguments if not name.startswith("--")] or list(SCENARIOS)
    failed = 0
    for name in names:
        states, broken = explore(name, large=large, without=without)
        print(f"{name}: {states:,} states, " + (broken or "every law holds"), flush=True)
        failed += broken is not None
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
