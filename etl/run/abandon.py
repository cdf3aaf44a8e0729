"""How a backfill is given up: a plan without offsets in the way of a forgotten driver first, and
only then anything is given back (ADR 22).

One that has loaded all, or was given up before, has nothing in the way of anybody any more. Said of
such a one, it gives back what the table has no row of: rows that somebody deleted, or that an older
copy of the table lacks, once that is accepted. No broker is asked.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decide.backfill import closing_plan
from etl.decide.next_step import repair_of, repaired
from etl.decide.reconcile import is_of_another_era, naming_table, reconciled
from etl.decide.reservations import common
from etl.errors import NeedsDecision, Owned, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import (
    Coverage,
    RebuildFromTable,
    Replay,
    Reservation,
    ReservationState,
    Snapshot,
    Supersede,
)
from etl.report.run_report import Report
from etl.report.run_state import Verb
from etl.run.backfill import Kept, told_whole, with_rows
from etl.run.ingest import TURNS_MAX, execute
from etl.run.repair import finish_repair
from etl.run.world import World
from etl.settings.sections import Settings


def abandon(world: World, own: Settings, report: Report, reason: str) -> Reservation:
    """Give a backfill up: what it loaded stays, and stays claimed; the rest is free. What it claims
    then.

    Killed anywhere, it goes on when it is said again. One whose table is gone, or another by now,
    claims nothing any more; one that has loaded all, or was given up before, what the table has
    rows of. Raises SettingsError for one that nobody began, or that has loaded all and of which all
    is there; NeedsDecision where nobody can tell what the table has; Owned.
    """
    for _ in range(TURNS_MAX):
        with report.timed(Verb.OBSERVE):
            snapshot = world.observe_ledgers()
        claim = snapshot.backfill
        if claim is None:
            raise SettingsError(
                "nobody has begun a backfill of this name",
                key="--name",
                check="`etl backfill list CONF`",
            )
        if _can_never_be_there(world, snapshot, own):
            return _settled(world, claim, {}, reason)
        with naming_table(own):
            state = reconciled(snapshot, own)
        repair = repair_of(state, snapshot)
        finish_repair(world, repair, report)
        snapshot = repaired(snapshot, repair)
        is_stored = isinstance(state, (Replay, Supersede))
        newest = (
            state.plan
            if isinstance(state, (Replay, Supersede, RebuildFromTable))
            else snapshot.ledger.newest
        )
        if newest is None:
            raise Owned("the backfill has no plan", check="nothing; say it again")
        if newest.closes and claim.state is ReservationState.OPEN:  # in an older copy of ZooKeeper
            claim = replace(claim, state=ReservationState.CLOSING, reason=newest.reason)
        if is_stored and claim.state is not ReservationState.OPEN and not newest.ranges:
            plan = newest
        elif _may_load(claim, newest, snapshot, is_stored=is_stored):
            plan = with_id(
                closing_plan(
                    newest,
                    is_stored=is_stored,
                    snapshot=snapshot,
                    reason=reason,
                    now_ms=world.now_ms(),
                )
            )
            world.close_backfill(
                replace(claim, state=ReservationState.CLOSING, reason=claim.reason or reason),
                plan,
                snapshot.ledger,
            )
        else:
            return _ended(world, claim, newest, own, reason)
        report.planned(plan)
        execute(world, plan, snapshot, own, report)
    raise Owned(
        "another driver worked at the same moments",
        check="who else runs this backfill; then say it again",
    )


def _may_load(claim: Reservation, newest: Plan, snapshot: Snapshot, *, is_stored: bool) -> bool:
    """Whether a plan of it may be stored or appended yet, also by whoever has an older copy of the
    table or of ZooKeeper.

    Where a forgotten driver's plan has taken the closing one's number, the table alone would not
    tell that it was given up.
    """
    in_table = (snapshot.table.transaction_version or 0) if snapshot.table else 0
    if claim.state is ReservationState.CLOSING and not newest.closes:
        return True
    return (
        is_stored
        or in_table < newest.number
        or (claim.state is ReservationState.OPEN and bool(claim.left_from(newest.positions)))
    )


def _ended(
    world: World, claim: Reservation, newest: Plan, own: Settings, reason: str
) -> Reservation:
    """Nothing of it comes into the table any more: what it keeps is decided by what is there."""
    coverage = world.loaded()
    stretches = (
        dict(claim.stretches)
        if claim.state is ReservationState.GIVEN_UP
        else _loaded(world, claim, coverage)
    )
    kept = stretches
    if claim.state is not ReservationState.CLOSING or _went_on_in_a_copy(world, coverage):
        try:
            kept = with_rows(world, claim, newest, stretches, coverage, own)
        except NeedsDecision:
            if (
                claim.state is ReservationState.CLOSING
            ):  # whoever can count or not, what it has not loaded is free
                _settled(world, claim, stretches, reason)
            raise
    if claim.state is ReservationState.GIVEN_UP and kept == claim.stretches:
        return claim
    if claim.state is ReservationState.OPEN and kept == stretches:
        raise SettingsError(
            f"{told_whole(claim, coverage)}: there is nothing to give up",
            key="--name",
            check="`etl backfill show`",
        )
    return _settled(world, claim, kept, reason)


def _went_on_in_a_copy(world: World, coverage: Coverage) -> bool:
    """Whether a plan came behind an older copy of the table that lacked one before it: of a plan
    without a record the next one tells it.
    """
    return bool(coverage.given_up) or any(
        plan.table_transaction_version < plan.number - 1 for plan, _ in world.stored_plans()
    )


def _settled(world: World, claim: Reservation, kept: Kept, reason: str) -> Reservation:
    settled = replace(
        claim, state=ReservationState.GIVEN_UP, stretches=kept, reason=claim.reason or reason
    )
    world.settle_backfill(settled)
    return settled


def _can_never_be_there(world: World, snapshot: Snapshot, own: Settings) -> bool:
    """Whether the table that is there has no plan of this ledger, and takes none. Raises
    NeedsDecision where nobody accepted that table.
    """
    stored = snapshot.ledger.newest
    if stored and (snapshot.table is None or snapshot.table.id != stored.table_id):
        _refuse_unaccepted(snapshot, own)
        return True
    return _is_shut_out(world, snapshot)


def _refuse_unaccepted(snapshot: Snapshot, own: Settings) -> None:
    """Refuse to give back what may be loaded, where the path may be wrong, or not mounted. Raises
    NeedsDecision.
    """
    table, said = snapshot.table, snapshot.ledger.acknowledged
    if said is None or said.table_id != (table.id if table else None):
        what = (
            "the table at this path is not the one that the backfill has loaded into"
            if table
            else "there is no table at this path"
        )
        check = (
            "table.path, and that what it lies on is mounted; where that table is gone for good: "
            f"`etl plans acknowledge CONF {table.version if table else 'none'} --reason ...`, and then this again"
            + (
                ""
                if table
                else "; where that was said before, and runs went on since: `etl run CONF` first, which makes the table"
            )
        )
        raise NeedsDecision(what, path=own.table.path, check=check)


def _is_shut_out(world: World, snapshot: Snapshot) -> bool:
    """Whether another ledger of this name has taken all numbers of this one's plans in the table,
    so that none is there, or will be.
    """
    stored, table = snapshot.ledger.newest, snapshot.table
    if stored is None or table is None or not is_of_another_era(snapshot.ledger, table):
        return False
    return stored.number <= (table.transaction_version or 0) and not any(
        is_recorded for _, is_recorded in world.stored_plans()
    )


def _loaded(world: World, claim: Reservation, coverage: Coverage) -> Kept:
    """What the plans of the backfill loaded of its claim; none is stored that may come into the
    table.

    What it has given back since, and another one may have loaded, is not in the claim any more: a
    claim never grows.
    """
    found: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for intervals in (coverage.intervals, coverage.given_up):
        for log, some in intervals.items():
            found.setdefault(log, []).extend((one.from_offset, one.until_offset) for one in some)
    for plan, _ in world.stored_plans():
        for r in plan.ranges:
            found.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    kept = {log: tuple(common(some, claim.stretches.get(log, ()))) for log, some in found.items()}
    return {log: parts for log, parts in kept.items() if parts}
