"""A topic that is recreated on some of its brokers, each with its own partition, while one of them
may be unreachable.

Two brokers, one Jafka partition on each, two drivers and their crashes, an operator who follows the
advice. The topic's znode is created again, with another id, if no other broker keeps the topic: so
its id does not identify one partition. A plan keeps for each partition the id with which it was
decided, and the content of the partition right before the plan's end (its tail fingerprint), unless
that has expired.

    python -m tests.model.making_again

Laws: no row's key (partition, incarnation, offset) and no record is in the table twice, and once
all brokers are available an operator and undisturbed runs bring every record of the partitions into
the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from tests.model.exploring import explored

T = TypeVar("T")
Log = tuple[int, ...]
Row = tuple[int, int, int, int]
Tail = int | None
"""The content right before a position; None: unknown."""
NO_BROKER = -1


class Plan(NamedTuple):
    """Offsets [start, until) of both logs; a reset has none."""

    number: int
    id: int
    starts: tuple[int, int]
    untils: tuple[int, int]
    lives: tuple[int, int]
    topic_ids: tuple[int, int]
    """Under which id of the topic each log was decided."""
    tails: tuple[Tail, Tail]
    """Of what the plan ends with."""
    born: tuple[int, int]
    """Which log it was: the truth, which only an operator finds out who looks at records."""


LOADED = Plan(1, 0, (0, 0), (2, 2), (0, 0), (0, 0), (1, 3), (0, 0))


class State(NamedTuple):
    """Brokers, ledger, table, two drivers, and what may still happen."""

    logs: tuple[Log, Log] = ((0, 1), (2, 3))
    born: tuple[int, int] = (0, 0)
    topic_id: int = 0
    away: int = NO_BROKER
    plan: Plan = LOADED
    """The newest of the ledger."""
    last: Plan = LOADED
    """The newest of the table."""
    rows: tuple[Row, ...] = ((0, 0, 0, 0), (0, 0, 1, 1), (1, 0, 0, 2), (1, 0, 1, 3))
    drivers: tuple[tuple[str, Plan | None, tuple[Log, Log]], ...] = (
        ("idle", None, ((), ())),
        ("idle", None, ((), ())),
    )
    made: int = 4
    ids: int = 1
    grows: int = 1
    again: int = 1
    kept: int = 1
    """True if it may be recreated while another broker keeps it: its znode is then unchanged."""
    leaves: int = 1
    crashes: int = 1
    accepts: int = 2


SMALL = State(drivers=(("idle", None, ((), ())),))
"""One driver; `State()` has two and takes minutes."""
EXPIRED = LOADED._replace(tails=(None, None))
UNTOLD = SMALL._replace(plan=EXPIRED, last=EXPIRED, kept=0)
"""The records that were read last have expired: only the topic's id is left to compare."""


def content(record: int) -> int:
    """What of a record can be seen: records of one content are alike."""
    return record


def in_force(state: State) -> tuple[Plan, bool]:
    """The newest plan, and whether it is in the table; where the table has another one of its
    number, that is right.
    """
    return (state.last, True) if state.last.number >= state.plan.number else (state.plan, False)


def is_there(state: State, i: int) -> bool:
    return state.away != i


def summary(state: State, plan: Plan, i: int) -> bool | None:
    """True if the partition is the same incarnation; None: undecidable."""
    tail, until = plan.tails[i], plan.untils[i]
    if len(state.logs[i]) < until:
        return False
    return None if tail is None else content(state.logs[i][until - 1]) == content(tail)


def undecided(state: State, plan: Plan) -> list[int]:
    """The partitions that stop every run until an operator decides: those that were decided with
    another id of the topic, if they are available.
    """
    return [
        i
        for i in (0, 1)
        if is_there(state, i) and plan.topic_ids[i] != state.topic_id and plan.untils[i]
    ]


def lost(state: State, plan: Plan) -> list[int]:
    """The partitions without the records that were read there, whatever the topic's id."""
    return [i for i in (0, 1) if is_there(state, i) and summary(state, plan, i) is False]


def stops(state: State, plan: Plan) -> list[int]:
    return sorted({*undecided(state, plan), *lost(state, plan)})


def is_another(state: State, plan: Plan, i: int) -> bool:
    """Return the accepted state of a partition that stops the runs: by its content, and if that is
    undecidable, by an operator's inspection of its records.
    """
    reported = summary(state, plan, i)
    return state.born[i] != plan.born[i] if reported is None else not reported


def accepted(state: State) -> State:
    """The reset: after the plan in the table, or in place of a stored one. An unreachable partition
    stays undecided.
    """
    plan, applied = in_force(state)
    stopped = stops(state, plan)
    anew = [i in stopped and is_another(state, plan, i) for i in (0, 1)]
    before = plan.untils if applied else plan.starts
    at = _two(0 if anew[i] else before[i] for i in (0, 1))
    reset = Plan(
        plan.number + 1 if applied else plan.number,
        state.ids,
        at,
        at,
        _two(plan.lives[i] + anew[i] for i in (0, 1)),
        decided(state, plan, stopped),
        _two(plan.tails[i] if at[i] == plan.untils[i] else None for i in (0, 1)),
        _two(state.born[i] if i in stopped else plan.born[i] for i in (0, 1)),
    )
    return state._replace(plan=reset, ids=state.ids + 1)


def decided(state: State, plan: Plan, stopped: list[int]) -> tuple[int, int]:
    """The ids that a reset keeps."""
    return _two(state.topic_id if i in stopped else plan.topic_ids[i] for i in (0, 1))


def _two(found: Iterable[T]) -> tuple[T, T]:
    first, second = found
    return first, second


def with_driver(
    state: State, i: int, at: str, plan: Plan | None = None, read: tuple[Log, Log] = ((), ())
) -> State:
    return state._replace(drivers=(*state.drivers[:i], (at, plan, read), *state.drivers[i + 1 :]))


def driven(state: State, i: int) -> State:
    """The driver's next step."""
    at, plan, read = state.drivers[i]
    newest, applied = in_force(state)
    if at == "idle":
        if stops(state, newest):
            return state
        if not applied:
            return with_driver(state, i, "fetch", newest)
        untils = _two(
            len(state.logs[j]) if is_there(state, j) else newest.untils[j] for j in (0, 1)
        )
        if untils == newest.untils:
            return state
        # of a log of which nothing was read it does not matter which it is
        ids = _two(state.topic_id if is_there(state, j) else newest.topic_ids[j] for j in (0, 1))
        born = _two(
            newest.born[j] if newest.untils[j] or not is_there(state, j) else state.born[j]
            for j in (0, 1)
        )
        seen = _two(
            state.logs[j][untils[j] - 1] if untils[j] > newest.untils[j] else newest.tails[j]
            for j in (0, 1)
        )
        new = Plan(
            newest.number + 1, state.ids, newest.untils, untils, newest.lives, ids, seen, born
        )
        return with_driver(state._replace(ids=state.ids + 1), i, "store", new)
    assert plan is not None
    if at == "store":
        is_free = state.plan.number < plan.number
        if is_free:
            return with_driver(state._replace(plan=plan), i, "fetch", plan)
        return with_driver(state, i, "idle")
    if (
        at == "fetch"
    ):  # tasks read, and check at their end whether the partitions still have the planned records
        if is_readable(state, plan):
            return with_driver(state, i, "append", plan, state.logs)
        return with_driver(state, i, "idle")
    if at == "append":
        if state.last.number < plan.number:
            read_now = (
                (j, plan.lives[j], n, read[j][n])
                for j in (0, 1)
                for n in range(plan.starts[j], plan.untils[j])
            )
            state = state._replace(last=plan, rows=(*state.rows, *read_now))
    return with_driver(state, i, "idle")


def is_readable(state: State, plan: Plan) -> bool:
    read = [i for i in (0, 1) if plan.untils[i] > plan.starts[i]]
    return all(
        is_there(state, i)
        and len(state.logs[i]) >= plan.untils[i]
        and summary(state, plan, i) is not False
        for i in read
    )


def recreate(state: State, *brokers: int) -> Iterator[State]:
    """The topic is deleted on these brokers and created again; if no other broker keeps it, its
    znode is another one.
    """
    is_kept = any(is_there(state, i) and i not in brokers for i in (0, 1))
    for length in (1, 3) if state.kept or not is_kept else ():
        logs, born, made = list(state.logs), list(state.born), state.made
        for i in brokers:
            logs[i], born[i], made = tuple(range(made, made + length)), born[i] + 1, made + length
        yield state._replace(
            logs=_two(logs),
            born=_two(born),
            made=made,
            topic_id=state.topic_id + (not is_kept),
            again=state.again - 1,
        )


def steps(state: State) -> Iterator[tuple[str, State]]:
    there = [i for i in (0, 1) if is_there(state, i)]
    if state.grows:
        for i in there:
            yield f"log {i} grows", _grown(state, i)._replace(grows=state.grows - 1)
    if state.again:
        for brokers in {(there[0],), tuple(there[-1:]), tuple(there)}:
            for after in recreate(state, *brokers):
                yield f"recreated on {brokers}", after
    if state.away != NO_BROKER:
        yield f"broker {state.away} comes back", state._replace(away=NO_BROKER)
    elif state.leaves:
        for i in (0, 1):
            yield f"broker {i} goes away", state._replace(away=i, leaves=state.leaves - 1)
    if state.accepts and stops(state, in_force(state)[0]):
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


def _grown(state: State, i: int) -> State:
    logs = list(state.logs)
    logs[i] = (*logs[i], state.made)
    return state._replace(logs=_two(logs), made=state.made + 1)


def broken(state: State) -> str | None:
    """Which law does not hold."""
    if len({row[:3] for row in state.rows}) < len(state.rows):
        return f"two rows have one key: {state.rows}"
    if len({row[3] for row in state.rows}) < len(state.rows):
        return f"a record is there twice: {state.rows}"
    return None


def quiet(state: State) -> str | None:
    """All brokers are available, one driver runs alone, an operator follows the advice; None if
    everything is loaded in the end.
    """
    state = state._replace(drivers=SMALL.drivers, away=NO_BROKER, ids=1_000)
    for _ in range(60):
        after = accepted(state) if stops(state, in_force(state)[0]) else driven(state, 0)
        if after == state:
            break
        state = after
    missing = {record for log in state.logs for record in log} - {row[3] for row in state.rows}
    return broken(state) or (f"missing {missing}: {state}" if missing else None)


def explore(start: State = State()) -> tuple[int, str | None]:
    """How many states there are, and the first way to one in which a law does not hold."""
    calm = set[State]()

    def law(state: State) -> str | None:
        left = state._replace(
            drivers=SMALL.drivers,
            away=NO_BROKER,
            ids=0,
            grows=0,
            again=0,
            leaves=0,
            crashes=0,
            accepts=0,
        )  # all that a quiet run goes by
        wrong = broken(state)
        if wrong or left in calm:
            return wrong
        calm.add(left)
        return quiet(state)

    return explored(start, steps, law)


if __name__ == "__main__":
    states, law = explore()
    print(f"{states:,} states", law or "every law holds")
    sys.exit(law is not None)
