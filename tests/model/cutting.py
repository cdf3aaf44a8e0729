"""Partitions that are truncated, in every interleaving with two drivers, their crashes, and an
operator who accepts the rest.

One partition with different records, one table. The leader epochs of a plan are represented by the
partition's content up to the plan's end: a plan belongs to the present partition as long as it
still begins so. Laws: no row's key (incarnation, offset) and no record is in the table twice, and
from every state an operator and undisturbed runs bring every record of the partition into the table
and the offset to its end.

A truncation between observation and append is found by the tasks at the end of their read
(`fetch`), one between that and the commit by the next run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.exploring import explored

Log = tuple[int, ...]


class Plan(NamedTuple):
    """Offsets [start, until) under a life of the log; a reset has none and moves the position to
    `until`.
    """

    number: int
    start: int
    until: int
    life: int
    line: Log
    id: int

    @property
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(
            (self.life, offset, self.line[offset]) for offset in range(self.start, self.until)
        )


class State(NamedTuple):
    """Log, ledger, table, two drivers, and what may still happen."""

    log: Log = (0, 1)
    plan: Plan | None = None
    """The newest of the ledger."""
    last: Plan | None = None
    """The newest of the table."""
    rows: tuple[tuple[int, int, int], ...] = ()
    offset: int = 0
    drivers: tuple[tuple[str, Plan | None, Log], ...] = (("idle", None, ()), ("idle", None, ()))
    made: int = 2
    ids: int = 0
    grows: int = 2
    cuts: int = 2
    crashes: int = 1
    accepts: int = 3


SMALL = State(grows=1, cuts=1, crashes=0, accepts=1)
"""Budgets for a few seconds; `State()` takes minutes."""


def common(one: Log, other: Log) -> int:
    """Up to where two logs are the same."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def in_force(state: State) -> tuple[Plan | None, bool]:
    """The newest plan, and whether it is in the table; where the table has another one of its
    number, that is right.
    """
    applied = state.last.number if state.last else 0
    if state.plan is None or applied >= state.plan.number:
        return state.last, True
    return state.plan, False


def is_cut(plan: Plan | None, log: Log) -> bool:
    return plan is not None and common(plan.line, log) < plan.until


def grown(state: State) -> State:
    return state._replace(log=(*state.log, state.made), made=state.made + 1)


def accepted(state: State) -> State:
    """The reset: after the plan in the table, or in place of a stored one."""
    plan, applied = in_force(state)
    assert plan is not None
    position = plan.until if applied else plan.start
    left = min(position, common(plan.line, state.log))
    life = plan.life + (left < position)
    number = plan.number + 1 if applied else plan.number
    return state._replace(
        plan=Plan(number, left, left, life, state.log[:left], state.ids), ids=state.ids + 1
    )


def with_driver(state: State, i: int, at: str, plan: Plan | None = None, read: Log = ()) -> State:
    return state._replace(drivers=(*state.drivers[:i], (at, plan, read), *state.drivers[i + 1 :]))


def driven(state: State, i: int) -> State:
    """The driver's next step."""
    at, plan, read = state.drivers[i]
    if at == "idle":
        newest, applied = in_force(state)
        if is_cut(newest, state.log):
            return with_driver(state, i, "idle")
        if newest and not applied:
            return with_driver(state, i, "fetch", newest)
        start = newest.until if newest else 0
        if start == len(state.log):
            if state.offset == start:
                return with_driver(state, i, "idle")
            return with_driver(state, i, "commit", newest)
        new = Plan(
            newest.number + 1 if newest else 1,
            start,
            len(state.log),
            newest.life if newest else 0,
            state.log,
            state.ids,
        )
        return with_driver(state._replace(ids=state.ids + 1), i, "store", new)
    if at == "store":
        stored = state.plan.number if state.plan else 0
        is_free = plan is not None and stored < plan.number
        if is_free:
            return with_driver(state._replace(plan=plan), i, "fetch", plan)
        return with_driver(state, i, "idle")
    if (
        at == "fetch"
    ):  # the tasks read, and ask at their end whether the log is still the one that was planned
        if is_cut(plan, state.log):
            return with_driver(state, i, "idle")
        return with_driver(state, i, "append", plan, state.log)
    if at == "append":
        assert plan is not None
        if (state.last.number if state.last else 0) < plan.number:
            state = state._replace(
                last=plan, rows=(*state.rows, *((life, n, read[n]) for life, n, _ in plan.rows))
            )
        ours = state.last is not None and state.last.id == plan.id
        return with_driver(state, i, "commit", plan) if ours else with_driver(state, i, "idle")
    newest, _ = in_force(state)
    if (
        plan is not None and newest is not None and newest.number == plan.number
    ):  # compare-and-set on what the plan saw
        state = state._replace(offset=plan.until)
    return with_driver(state, i, "idle")


def steps(state: State) -> Iterator[tuple[str, State]]:
    if state.grows:
        yield "the log grows", grown(state)._replace(grows=state.grows - 1)
    if state.cuts and state.log:
        for at in range(len(state.log)):
            yield (
                f"the log is cut at {at}",
                grown(state._replace(log=state.log[:at]))._replace(cuts=state.cuts - 1),
            )
    if state.accepts and is_cut(in_force(state)[0], state.log):
        yield "an operator accepts it", accepted(state)._replace(accepts=state.accepts - 1)
    for i, (doing, _, _) in enumerate(state.drivers):
        after = driven(state, i)
        if after != state:
            yield f"driver {i} at {doing}", after
        if doing != "idle" and state.crashes:
            yield (
                f"driver {i} dies at {doing}",
                with_driver(state, i, "idle")._replace(crashes=state.crashes - 1),
            )


def broken(state: State) -> str | None:
    """Which law does not hold."""
    keys, records = [row[:2] for row in state.rows], [row[2] for row in state.rows]
    if len(set(keys)) < len(keys):
        return f"two rows have one key: {state.rows}"
    return f"a record is there twice: {state.rows}" if len(set(records)) < len(records) else None


def quiet(state: State) -> str | None:
    """One driver alone and an operator who follows the advice; None if everything is loaded in the
    end.
    """
    state = state._replace(drivers=(("idle", None, ()), ("idle", None, ())), ids=1_000)
    for _ in range(60):
        after = accepted(state) if is_cut(in_force(state)[0], state.log) else driven(state, 0)
        if after == state:
            break
        state = after
    missing = set(enumerate(state.log)) - {(offset, record) for _, offset, record in state.rows}
    return broken(state) or (
        f"missing {missing}, offset {state.offset}: {state}"
        if missing or state.offset != len(state.log)
        else None
    )


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the first way to one in which a law does not hold."""
    calm = set[tuple[object, ...]]()

    def law(state: State) -> str | None:
        wrong, left = (
            broken(state),
            (state.log, state.plan, state.last, state.rows, state.offset),
        )  # all that a quiet run goes by
        if wrong or left in calm:
            return wrong
        calm.add(left)
        return quiet(state)

    return explored(start, steps, law)
