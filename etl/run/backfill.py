"""How does a backfill run, and how is it abandoned?

Observe the live pipeline, reserve offsets, then load one bounded plan after the other, as a run
does. The reservation and the first plan are stored in one transaction: after a kill there is
nothing, or a backfill that continues when the command is repeated.

Abandoning (ADR 22): a closing plan takes the number of a stored plan first, so that a sleeping
driver cannot append; then unloaded offsets are given back. A backfill that is finished or was
abandoned gives back offsets whose rows are gone (deleted, or missing from an older copy of the
table), once an operator accepted that. No broker is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etl.decide.backfill import (
    BackfillRequest,
    closing_plan,
    first_backfill_plan,
    intervals_of,
    logs_of,
    reject_other_bounds,
    reserved_intervals,
)
from etl.decide.loaded_intervals import without
from etl.decide.next_step import repair_of, repaired
from etl.decide.offsets import starts_of
from etl.decide.reconcile import (
    compare,
    is_of_another_era,
    naming_table,
    reconciled,
    reject_other_broker_type,
    reject_retired,
)
from etl.decide.replay import moments_of
from etl.decide.reservations import (
    common,
    given_up_of,
    held_by_live,
    held_parts,
    read_by_others_now,
    still_there,
)
from etl.errors import BrokerUnreachable, NeedsDecision, Owned, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import (
    LoadedIntervals,
    RebuildFromTable,
    Replay,
    Reservation,
    ReservationState,
    Snapshot,
    Supersede,
    UpToDate,
    live_and_name,
)
from etl.report.describe import at, counted, describe_also_loaded
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.ingest import CONFLICTS_MAX, execute, finish_repair, ingest
from etl.run.services import Services
from etl.settings.sections import Settings

Kept = dict[BrokerPartition, tuple[tuple[int, int], ...]]
"""Offsets [from, until) of each log that stay claimed."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a backfill that has not begun would reserve."""

    claim: Reservation
    plan: Plan | None
    """Its first one; None where nothing of the interval is missing."""
    snapshot: Snapshot
    """Snapshot of the live pipeline."""
    read_by_others: int = 0
    """How many of the offsets other members of the group read."""


def estimate_backfill(
    live: Services, settings: Settings, own: Settings, request: BackfillRequest
) -> Beginning:
    """Return what a backfill would reserve; nothing is stored.

    `settings` are the live pipeline's, `own` the backfill's. Raises what `etl.decide.backfill`
    rejects, and LedgersDisagree for a table that is not the pipeline's.
    """
    snapshot = live.observe(request.offsets_of)
    reject_retired(snapshot.ledger)
    reject_other_broker_type(snapshot.ledger.newest, settings)
    with naming_table(settings):
        state = compare(snapshot.ledger, snapshot.table, settings.table.place)
    if (
        snapshot.table is None
        or not isinstance(state, (UpToDate, Replay, Supersede))
        or not snapshot.table.transaction_version
    ):
        message = "The pipeline has loaded nothing yet, so nobody knows what is left for a backfill"
        if isinstance(state, RebuildFromTable):
            message = "ZooKeeper does not know the pipeline's newest plan, which the table holds"
        raise SettingsError(message, action="Run `etl run CONF`; then run this command again")
    name = live_and_name(own.pipeline)[1] or ""
    held_there = live.backfill_in_table(name)
    if held_there:
        message = f"The table holds plan {held_there} of a backfill of this name, and no ledger tells of it: ZooKeeper lost it"
        raise SettingsError(
            message,
            key="NAME",
            action="Use another name: of plans under this one the table takes none",
        )
    newest = state.last if isinstance(state, UpToDate) else state.plan
    logs = logs_of(request, newest, snapshot)
    moments = moments_of(request, logs)
    intervals = intervals_of(
        request, logs, live.first_at(moments) if moments else {}, snapshot, now_ms=live.now_ms()
    )
    stored = live.stored_plans()
    loaded = live.loaded(snapshot.table.transaction_version)
    held, theirs = (
        held_by_live(state, stored, loaded, snapshot.table.transaction_version),
        read_by_others_now(state, loaded),
    )
    if request.only_missing:
        held = {log: [*held.get(log, ()), *theirs.get(log, ())] for log in {**held, **theirs}}
    stretches = reserved_intervals(
        request, intervals, held, newest.incarnations, snapshot.claims.of(snapshot.table.id)
    )
    lives = {log: life for log, life in newest.incarnations.items() if log in stretches}
    claim = Reservation(
        name, stretches, lives, request.asked, live.now_ms(), table_id=snapshot.table.id
    )
    if stretches:
        plan = first_backfill_plan(
            claim, newest, snapshot, own, uid=live.new_uid(), now_ms=live.now_ms()
        )
    else:
        plan = None
    if plan:
        _reject_rows_without_ledger(live, claim, plan, own)
    both = sum(
        until - start
        for log, parts in stretches.items()
        for start, until in common(parts, theirs.get(log, ()))
    )
    return Beginning(claim, plan, snapshot, both)


def _reject_rows_without_ledger(
    live: Services, claim: Reservation, plan: Plan, own: Settings
) -> None:
    """Reject offsets with rows that no ledger knows, for example of a lost ledger. Raises
    NeedsDecision.
    """
    whole = [
        OffsetRange(log, start, until)
        for log, parts in sorted(claim.stretches.items())
        for start, until in parts
    ]
    receipts = live.results_from_table(replace(plan, ranges=tuple(whole)))
    rows = sum(one.rows or 0 for one in receipts) if receipts is not None else None
    if rows == 0:
        return
    message = "Nobody can tell whether the table holds rows of these offsets already"
    action = "Check the table's columns and files: what is missing there"
    if rows:
        message = f"The table holds {rows:,} rows of these offsets, and no plan of the pipeline or of a backfill tells who loaded them"
        action = "Check who did (`DESCRIBE HISTORY`), and whether ZooKeeper was emptied: loaded again they would be there twice"
    raise NeedsDecision(message, path=own.table.path, action=action)


def backfill(
    services: Services,
    live: Services,
    own: Settings,
    settings: Settings,
    report: Report,
    request: BackfillRequest | None,
) -> Reservation | None:
    """Begin the backfill, unless it has begun, and load all that is left of it. Returns its
    reservation.

    None: nothing of the interval is missing. `request` is None to continue an existing one. Raises
    what a run raises; SettingsError for other bounds than it began with, for an abandoned one, and
    as `estimate_backfill`; NeedsDecision if an accepted older copy of the table lacks rows of it.
    """
    found = services.claim()
    if found is None and request is None:
        raise SettingsError(
            "Nobody has begun a backfill of this name",
            key="NAME",
            action="Check with `etl backfills list CONF`",
        )
    claim = found.claim if found else None
    if claim:
        if request:
            reject_other_bounds(claim, request.asked)
        reject_abandoned_backfill(claim)
        _reject_closed_backfill(claim, services)
        if not left_of(claim, services.stored_plans()):
            seen = services.observe_ledgers()
            with naming_table(own):
                reconciled(seen, own)  # what is whole is so in the table that it was loaded into
            loaded = services.loaded((seen.table.transaction_version or 0) if seen.table else 0)
            _reject_missing_rows(services, claim, own, loaded, is_there=seen.table is not None)
            begun = f"; it was begun at {at(claim.made_at_ms)} {claim.asked}"
            report.add(Outcome.ALREADY_LOADED, describe_whole(claim, loaded) + begun)
            return claim
    elif request:
        with report.timed(Verb.PLAN):
            ahead = estimate_backfill(live, settings, own, request)
            if ahead.plan is None:
                report.add(
                    Outcome.UP_TO_DATE,
                    f"backfill {ahead.claim.name}: nothing is missing, all of it is loaded or claimed",
                )
                return None
            live.begin_backfill(ahead.claim, with_id(ahead.plan))
            for sentence in describe_also_loaded(ahead.read_by_others):
                report.add(Outcome.OFFSETS_LEFT_TO_MEMBERS, sentence)
            for sentence in describe_paused_but_loaded(
                ahead.claim.stretches, ahead.snapshot.pauses
            ):
                report.add(Outcome.PAUSED, sentence)
            claim = ahead.claim
    ingest(services, own, report)
    if claim is None:
        return None
    _reject_closed_backfill(claim, services)
    left = left_of(claim, services.stored_plans())
    if left:
        log = min(left)
        message = f"The rest of backfill {claim.name} is not loaded yet: nobody leads {log}, or it was stopped meanwhile"
        raise BrokerUnreachable(
            message,
            **log.place,
            action=f"Check its brokers; `etl backfills run CONF {claim.name}` goes on",
        )
    loaded = services.loaded()
    _reject_missing_rows(services, claim, own, loaded)
    report.add(Outcome.BACKFILL_DONE, describe_whole(claim, loaded))
    return claim


def describe_whole(claim: Reservation, loaded: LoadedIntervals) -> str:
    """Return that nothing is left to load, and how much was given up. `loaded`: by its plans."""
    unit = next((log.unit for log in claim.stretches), "offset")
    plans = [
        (one.from_offset, one.until_offset, log)
        for some in (loaded.intervals, loaded.given_up)
        for log, intervals in some.items()
        for one in intervals
    ]
    let_go = sum(
        until - start
        for log, parts in claim.stretches.items()
        for stretch in parts
        for start, until in without(stretch, ((low, high) for low, high, of in plans if of == log))
    )
    sentence = f"backfill {claim.name} is whole: {counted(claim.offsets - let_go, unit)} of {counted(len(claim.stretches), 'partition')}"
    if let_go:
        sentence += f"; {let_go:,} more were let go, as policy says, and are not in the table: the losses table tells which"
    return sentence


def _reject_missing_rows(
    services: Services,
    claim: Reservation,
    own: Settings,
    loaded: LoadedIntervals,
    *,
    is_there: bool = True,
) -> None:
    """Reject a backfill as complete if its rows are missing since an older state of the table was
    accepted. Raises NeedsDecision.

    Only what was loaded into a given-up state is looked up. `is_there`: whether there is a table.
    """
    doubtful = given_up_of(claim.stretches, loaded)
    newest = services.read_ledger().newest if doubtful else None
    if newest is None:
        return
    kept = with_rows(services, claim, newest, doubtful, loaded, own) if is_there else {}
    lacking = [
        (log, part)
        for log, parts in sorted(doubtful.items())
        for one in parts
        for part in without(one, kept.get(log, ()))
    ]
    if lacking:
        log, (first, _) = lacking[0]
        how_much = counted(sum(until - start for _, (start, until) in lacking), log.unit)
        message = (
            f"Backfill {claim.name} has loaded all that it claims, and the table has no row of {how_much}: "
            "a state of it without them, an older copy, say, was accepted"
        )
        action = (
            f"Run `etl backfills delete CONF {claim.name} --reason ...` gives back what the table has no row of; "
            "then a backfill of another name, with --only-unloaded, loads it"
        )
        raise NeedsDecision(message, **log.place, offset=first, path=own.table.path, action=action)


def with_rows(
    services: Services,
    claim: Reservation,
    newest: Plan,
    stretches: Kept,
    coverage: LoadedIntervals,
    own: Settings,
) -> Kept:
    """Return the parts of these intervals that the table has rows of. Raises NeedsDecision if that
    is unknown.
    """
    held = held_parts(stretches, coverage)
    receipts = services.results_from_table(
        replace(
            newest, ranges=tuple(one.offsets for one in held), incarnations=dict(claim.incarnations)
        )
    )
    if receipts is None or any(one.behind_transform for one in receipts):
        message = f"Nobody can tell which rows of backfill {claim.name} the table holds"
        if receipts is not None:
            message += ": a transform made them, and may have given them another topic, partition or offset"
        raise NeedsDecision(
            message,
            path=own.table.path,
            action="Check the table's columns and files; what the backfill has loaded stays claimed",
        )
    return still_there(stretches, held, receipts)


def left_of(
    claim: Reservation, stored: Sequence[tuple[Plan, bool]]
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return the part of the reservation that is not known to be in the table, by stored plans and
    their results.
    """
    if not stored:
        return dict(claim.stretches)
    newest, is_recorded = stored[-1]
    return claim.left_from(newest.positions if is_recorded else starts_of(newest))


def reject_abandoned_backfill(claim: Reservation) -> None:
    """Raises SettingsError for a backfill that was given up: what it had not loaded may be another
    one's by now.
    """
    if claim.state is not ReservationState.OPEN:
        message = f"Backfill {claim.name} was given up: {claim.reason}"
        action = "Use another name, for what it had not loaded"
        if claim.state is ReservationState.CLOSING:
            action = f"Run `etl backfills delete CONF {claim.name} --reason ...`, which ends that first; then another name"
        raise SettingsError(message, key="NAME", action=action)


def _reject_closed_backfill(claim: Reservation, services: Services) -> None:
    """Reject a backfill that only its newest plan shows as abandoned: ZooKeeper was restored from
    an older copy. Raises SettingsError.
    """
    newest = services.read_ledger().newest
    if newest and newest.closes:
        reject_abandoned_backfill(
            replace(claim, state=ReservationState.CLOSING, reason=newest.reason)
        )


def abandon(services: Services, own: Settings, report: Report, reason: str) -> Reservation:
    """Abandon a backfill: what it loaded stays reserved, the rest is free. Returns its reservation
    then.

    After a kill the command can be repeated. A backfill whose table is gone or was replaced
    reserves nothing any more; one that is complete or was abandoned before, what the table has rows
    of. Raises SettingsError for one that never began, or that is complete with all its rows;
    NeedsDecision if the rows are unknown; Owned.
    """
    for _ in range(CONFLICTS_MAX):
        with report.timed(Verb.OBSERVE):
            snapshot = services.observe_ledgers()
        claim = snapshot.backfill
        if claim is None:
            raise SettingsError(
                "Nobody has begun a backfill of this name",
                key="NAME",
                action="Check with `etl backfills list CONF`",
            )
        if _can_never_be_there(services, snapshot, own):
            return _settled(services, claim, {}, reason)
        with naming_table(own):
            state = reconciled(snapshot, own)
        repair = repair_of(state, snapshot)
        finish_repair(services, repair, report)
        snapshot = repaired(snapshot, repair)
        is_stored = isinstance(state, (Replay, Supersede))
        if isinstance(state, (Replay, Supersede, RebuildFromTable)):
            newest: Plan | None = state.plan
        else:
            newest = snapshot.ledger.newest
        if newest is None:
            raise Owned("The backfill has no plan", action="Run this command again")
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
                    now_ms=services.now_ms(),
                )
            )
            services.close_backfill(
                replace(claim, state=ReservationState.CLOSING, reason=claim.reason or reason),
                plan,
                snapshot.ledger,
            )
        else:
            return _ended(services, claim, newest, own, reason)
        report.planned(plan)
        execute(services, plan, snapshot, own, report)
    raise Owned(
        "Another driver worked at the same moments",
        action="Check who else runs this backfill; then run this command again",
    )


def _may_load(claim: Reservation, newest: Plan, snapshot: Snapshot, *, is_stored: bool) -> bool:
    """True if a plan of it may still be stored or appended, also by a driver with an older copy of
    the table or of ZooKeeper. If a forgotten driver's plan took the closing plan's number, the
    table alone would not show the abandonment.
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
    services: Services, claim: Reservation, newest: Plan, own: Settings, reason: str
) -> Reservation:
    """End it: no plan of it can reach the table any more; what it keeps follows from the rows."""
    coverage = services.loaded()
    if claim.state is ReservationState.GIVEN_UP:
        stretches = dict(claim.stretches)
    else:
        stretches = _loaded(services, claim, coverage)
    kept = stretches
    if claim.state is not ReservationState.CLOSING or _continued_in_older_copy(services, coverage):
        try:
            kept = with_rows(services, claim, newest, stretches, coverage, own)
        except NeedsDecision:
            if (
                claim.state is ReservationState.CLOSING
            ):  # whoever can count or not, what it has not loaded is free
                _settled(services, claim, stretches, reason)
            raise
    if claim.state is ReservationState.GIVEN_UP and kept == claim.stretches:
        return claim
    if claim.state is ReservationState.OPEN and kept == stretches:
        raise SettingsError(
            f"{describe_whole(claim, coverage)}: there is nothing to give up",
            key="NAME",
            action="Check with `etl backfills show`",
        )
    return _settled(services, claim, kept, reason)


def _continued_in_older_copy(services: Services, coverage: LoadedIntervals) -> bool:
    """True if a plan followed an older copy of the table that lacked an earlier one; for a plan
    without a result the next one tells.
    """
    return bool(coverage.given_up) or any(
        plan.table_transaction_version < plan.number - 1 for plan, _ in services.stored_plans()
    )


def _settled(services: Services, claim: Reservation, kept: Kept, reason: str) -> Reservation:
    settled = replace(
        claim, state=ReservationState.GIVEN_UP, stretches=kept, reason=claim.reason or reason
    )
    services.settle_backfill(settled)
    return settled


def _can_never_be_there(services: Services, snapshot: Snapshot, own: Settings) -> bool:
    """True if the table has no plan of this ledger and accepts none. Raises NeedsDecision for a
    table that no operator accepted.
    """
    stored = snapshot.ledger.newest
    if stored and (snapshot.table is None or snapshot.table.id != stored.table_id):
        _reject_unaccepted_table(snapshot, own)
        return True
    return _is_shut_out(services, snapshot)


def _reject_unaccepted_table(snapshot: Snapshot, own: Settings) -> None:
    """Reject giving back offsets that may be loaded, if the path may be wrong or not mounted.
    Raises NeedsDecision.
    """
    table, acknowledged = snapshot.table, snapshot.ledger.acknowledged
    if acknowledged is None or acknowledged.table_id != (table.id if table else None):
        if table:
            message = "The table at this path is not the one that the backfill has loaded into"
        else:
            message = "There is no table at this path"
        action = (
            "Check table.path, and that what it lies on is mounted; where that table is gone for good: "
            f"`etl table accept-changes CONF {table.version if table else 'none'} --reason ...`, and then this again"
            + (
                ""
                if table
                else "; where that was said before, and runs went on since: `etl run CONF` first, which makes the table"
            )
        )
        raise NeedsDecision(message, path=own.table.path, action=action)


def _is_shut_out(services: Services, snapshot: Snapshot) -> bool:
    """True if another ledger of this name used all plan numbers of this one in the table."""
    stored, table = snapshot.ledger.newest, snapshot.table
    if stored is None or table is None or not is_of_another_era(snapshot.ledger, table):
        return False
    return stored.number <= (table.transaction_version or 0) and not any(
        is_recorded for _, is_recorded in services.stored_plans()
    )


def _loaded(services: Services, claim: Reservation, coverage: LoadedIntervals) -> Kept:
    """Return what the backfill's plans loaded of its reservation, once no stored plan can reach the
    table. Offsets that it gave back are not in the reservation any more, which never grows.
    """
    found: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for intervals in (coverage.intervals, coverage.given_up):
        for log, some in intervals.items():
            found.setdefault(log, []).extend((one.from_offset, one.until_offset) for one in some)
    for plan, _ in services.stored_plans():
        for r in plan.ranges:
            found.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    kept = {log: tuple(common(some, claim.stretches.get(log, ()))) for log, some in found.items()}
    return {log: parts for log, parts in kept.items() if parts}
