"""Who may load which offsets of a log: the live pipeline, or one of the backfills beside it. Pure
functions of values.

    who                what it claims
    ----------------   ----------------------------------------------------------------------------------------------------------
    a backfill         its stretches, from when it is begun; once it is given up, what of them it has loaded
    the live pipeline  all that its plans have loaded, and everything from where the newest plan that is in the table ends

What lies before the live pipeline's end and was never loaded (before its start, expired, passed
over by hand) is nobody's, until a backfill claims it, an operator sets the position back over it,
or a replay reads it again where it was given up with another table. All write the fence, at the
version that they read before the others' claims: of two at the same moment one is refused (ADR 22).
A plan that goes on where the one before ended claims nothing anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from etl.decisions.coverage import OFFSETS_END, ancestry
from etl.decisions.start import starts_of
from etl.errors import NeedsDecision, Owned
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import (
    Coverage,
    Replay,
    Reservation,
    Reservations,
    Snapshot,
    Supersede,
    UpToDate,
)

Stretches = Mapping[BrokerPartition, Sequence[tuple[int, int]]]
_MOVES = (PlanKind.RESET, PlanKind.SET, PlanKind.TAKE_OVER)


def claimed_anew(plan: Plan, last: Plan | None) -> dict[BrokerPartition, int]:
    """From where on a plan of the live pipeline claims logs that the plan before it did not: new
    ones, other lives, and set back.

    `last` is the newest stored plan, in the table or not, whose place this one may take.
    """
    before = starts_of(last) if last else {}
    lives = last.log_epochs if last else {}
    return {
        log: start
        for log, start in starts_of(plan).items()
        if log not in before
        or plan.log_epochs.get(log, 0) != lives.get(log, 0)
        or start < before[log]
    }


def moves_fence(plan: Plan, last: Plan | None) -> bool:
    """Whether a plan of the live pipeline claims what nobody did: behind a new position, or what
    was given up and a replay reads again.
    """
    return plan.kind is PlanKind.REPLAY or bool(claimed_anew(plan, last))


def refuse_claimed(plan: Plan, last: Plan | None, claims: Reservations) -> None:
    """Refuse a plan of the live pipeline that begins before or inside of what a backfill claims.
    Raises NeedsDecision.
    """
    for log, start in sorted(claimed_anew(plan, last).items()):
        for claim in claims.of(plan.table_id):
            met = [part for part in _held_before(claim, log, plan, last) if start < part[1]]
            if not met:
                continue
            low, high = met[0]
            what = f"the pipeline would begin at offset {start}, and backfill {claim.name} has claimed {max(low, start)} to {high}"
            check = (
                f"`etl backfill show CONF --name {claim.name}`; a position behind {met[-1][1]}; or {_abandon(claim.name)}, which "
                "gives back what it has not loaded, and what somebody deleted of it since"
            )
            raise NeedsDecision(what, **log.place, offset=start, check=check)


def _abandon(name: str) -> str:
    return f"`etl backfill abandon CONF --name {name} --reason ...`"


def _held_before(
    claim: Reservation, log: BrokerPartition, plan: Plan, last: Plan | None
) -> list[tuple[int, int]]:
    """What a claim holds of a log against a plan. One of an earlier life holds what lies before the
    position.
    """
    life, parts = plan.log_epochs.get(log, 0), list(claim.stretches.get(log, ()))
    if last is None or log not in last.positions or claim.life_of(log) == life:
        return parts
    stood = starts_of(last)[log] if last.log_epochs.get(log, 0) == life else 0
    return [(start, min(until, stood)) for start, until in parts if start < stood]


def refuse_left_to_load(
    plan: Plan, last: Plan, left: Mapping[str, Collection[BrokerPartition]]
) -> None:
    """Refuse a plan that begins another life of a log which a backfill has still to load. Raises
    NeedsDecision.

    `left`: the logs of which each backfill has not loaded all that it claims. Read on, it would
    take other records for those.
    """
    begun = {log for log, life in plan.log_epochs.items() if life != last.log_epochs.get(log, 0)}
    for name, logs in sorted(left.items()):
        for log in sorted(begun.intersection(logs)):
            what = f"backfill {name} has not loaded all that it claims of this partition, as it was before"
            check = f"{_abandon(name)}, which keeps what it has loaded; then say this again"
            raise NeedsDecision(what, **log.place, check=check)


def held_by_live(
    state: UpToDate | Replay | Supersede,
    stored: Sequence[tuple[Plan, bool]],
    coverage: Coverage,
    transaction_version: int,
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    """What the live pipeline claims, of the life that each log has now.

    `stored`: the plans that are kept, and whether each is recorded; `coverage`: all that is
    recorded, for the table at this transaction version. Of a plan that is not in it, and that an
    operator gave up with another state of it, nothing is claimed. Raises Owned where a stored plan
    must be executed first.
    """
    newest = state.last if isinstance(state, UpToDate) else state.plan
    before = next((plan for plan, _ in stored if plan.number == newest.number - 1), None)
    ends = newest.positions if isinstance(state, UpToDate) else _settled(newest, before)
    led = ancestry(
        {plan.number: plan.table_transaction_version for plan, _ in stored}, transaction_version
    ).numbers
    unrecorded = [
        plan
        for plan, is_recorded in stored
        if not is_recorded and (plan.number in led or plan.number >= newest.number)
    ]
    if not isinstance(state, UpToDate) or newest.number <= transaction_version:
        unrecorded.append(newest)
    held = {log: [(end, OFFSETS_END)] for log, end in ends.items()}
    for log, intervals in coverage.intervals.items():
        held.setdefault(log, []).extend(
            (one.from_offset, one.until_offset)
            for one in intervals
            if one.log_epoch == newest.log_epochs.get(log, 0)
        )
    for plan in unrecorded:
        for r in plan.ranges:
            if plan.log_epochs.get(r.log, 0) == newest.log_epochs.get(r.log, 0):
                held.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    return {log: joined(parts) for log, parts in held.items()}


def read_by_others_now(
    state: UpToDate | Replay | Supersede, coverage: Coverage
) -> dict[BrokerPartition, list[tuple[int, int]]]:
    """What other members of the group read, of the life that each log has now: nobody claims it,
    and who asks for what is missing does not mean it.
    """
    newest = state.last if isinstance(state, UpToDate) else state.plan
    found: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for hole in (*coverage.read_by_others, *newest.read_by_others):
        if hole.log_epoch == newest.log_epochs.get(hole.log, 0):
            found.setdefault(hole.log, []).append((hole.from_offset, hole.until_offset))
    return {log: joined(parts) for log, parts in found.items()}


def lives_of(newest: Plan | None) -> dict[BrokerPartition, int]:
    """Which life of each log the live pipeline has."""
    return {log: newest.log_epochs.get(log, 0) for log in newest.positions} if newest else {}


def refuse_another_life(snapshot: Snapshot, positions: Mapping[BrokerPartition, int]) -> None:
    """Refuse a backfill that would read on where the live pipeline reads another life of the log by
    now. Raises NeedsDecision.
    """
    claim = snapshot.backfill
    for log in sorted(claim.left_from(positions)) if claim else ():
        if claim and snapshot.live_epochs.get(log, claim.life_of(log)) != claim.life_of(log):
            what = "the pipeline goes on with this partition as one that was cut or made again, and the backfill was begun before that"
            check = f"{_abandon(claim.name)}, which keeps what it has loaded"
            raise NeedsDecision(what, **log.place, check=check)


def joined(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in order, those that touch or overlap as one."""
    found = list[tuple[int, int]]()
    for start, until in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((start, until))
    return found


def common(
    parts: Iterable[tuple[int, int]], others: Collection[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The offsets that are in both, in order."""
    met = ((max(start, low), min(until, high)) for start, until in parts for low, high in others)
    return joined((start, until) for start, until in met if start < until)


def _settled(stored: Plan, before: Plan | None) -> dict[BrokerPartition, int]:
    """Where each log ended before a plan that is not in the table: another one in its place may
    begin there.

    Where it is in the place of another one itself, nobody knows any more what whoever works on that
    one may append: a replay, say.
    """
    if stored.kind in _MOVES or stored.supersedes or before is None or before.id != stored.previous:
        what = f"plan {stored.number} of the pipeline is stored and not in the table"
        raise Owned(what, check="`etl run CONF`, which executes it; then say this again")
    return {
        log: min(start, before.positions.get(log, 0)) for log, start in starts_of(stored).items()
    }
