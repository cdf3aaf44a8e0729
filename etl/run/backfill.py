"""How does a backfill run, and how is it abandoned?

Observe the live pipeline, reserve offsets, then load one bounded plan after the other, as a run
does. The reservation and the first plan are stored in one transaction: after a kill there is
nothing, or a backfill that continues when the command is repeated.

Abandoning (ADR 22): a closing plan takes the number of a stored plan first, so that a sleeping
driver cannot append; then unloaded offsets are given back. A backfill that is finished or was
abandoned gives back offsets whose rows are gone (deleted, or missing from an older copy of the
table), once an operator accepted that. Abandoning sends no request to a broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.backfill import (
    BackfillRequest,
    closing_plan,
    first_backfill_plan,
    reject_other_bounds,
    requested_intervals,
    requested_partitions,
    reserved_intervals,
)
from etl.decide.loaded_intervals import subtract_intervals
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
from etl.decide.replay import times_to_look_up
from etl.decide.reservations import (
    current_reads_of_others,
    given_up_offsets,
    intersect_intervals,
    remaining_reservation,
    reserved_by_pipeline,
    split_reservation,
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
from etl.report.describe import counted, describe_also_loaded, format_time
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from etl.run.ingest import CONFLICTS_MAX, execute, finish_repair, ingest
from etl.run.service_interfaces import Services
from etl.settings.sections import Settings

Kept = dict[BrokerPartition, tuple[tuple[int, int], ...]]
"""The offsets [from, until) of each partition that stay reserved."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The reservation and first plan of a backfill that has not begun."""

    claim: Reservation
    plan: Plan | None
    """The first plan; None if no offset of the interval is missing."""
    snapshot: Snapshot
    """Snapshot of the live pipeline."""
    read_by_others: int = 0
    """The number of these offsets that other members of the group read."""


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
        message = (
            "The pipeline has loaded nothing yet, so the offsets left for a backfill are unknown"
        )
        if isinstance(state, RebuildFromTable):
            message = "ZooKeeper does not know the pipeline's newest plan, which the table holds"
        raise SettingsError(message, action="Run `etl run CONF`; then run this command again")
    name = live_and_name(own.pipeline)[1] or ""
    held_there = live.backfill_in_table(name)
    if held_there:
        message = (
            f"The table holds plan {held_there} of a backfill of this name, but ZooKeeper has no "
            "ledger of it"
        )
        raise SettingsError(
            message,
            key="NAME",
            action="Use another name: the table rejects further plans under this name",
        )
    if isinstance(state, UpToDate):
        newest = state.last
    else:
        newest = state.plan
    logs = requested_partitions(request, newest, snapshot)
    timestamps = times_to_look_up(request, logs)
    offsets_at: Mapping[tuple[BrokerPartition, int], int] = {}
    if timestamps:
        offsets_at = live.first_at(timestamps)
    intervals = requested_intervals(request, logs, offsets_at, snapshot, now_ms=live.now_ms())
    transaction_version = snapshot.table.transaction_version
    stored = live.stored_plans()
    loaded = live.loaded(transaction_version)
    held = reserved_by_pipeline(state, stored, loaded, transaction_version)
    read_by_others = current_reads_of_others(state, loaded)
    if request.only_missing:
        held = dict(held)
        for log, intervals_of_others in read_by_others.items():
            held[log] = [*held.get(log, ()), *intervals_of_others]
    reserved = reserved_intervals(
        request, intervals, held, newest.incarnations, snapshot.claims.of(snapshot.table.id)
    )
    incarnations = {log: value for log, value in newest.incarnations.items() if log in reserved}
    claim = Reservation(
        name, reserved, incarnations, request.asked, live.now_ms(), table_id=snapshot.table.id
    )
    plan = None
    if reserved:
        plan = first_backfill_plan(
            claim, newest, snapshot, own, uid=live.new_uid(), now_ms=live.now_ms()
        )
    if plan:
        _reject_rows_without_ledger(live, claim, plan, own)
    in_both = 0
    for log, parts in reserved.items():
        for start, until in intersect_intervals(parts, read_by_others.get(log, ())):
            in_both += until - start
    return Beginning(claim, plan, snapshot, in_both)


def _reject_rows_without_ledger(
    live: Services, claim: Reservation, plan: Plan, own: Settings
) -> None:
    """Reject offsets with rows that no ledger knows, for example of a lost ledger. Raises
    NeedsDecision.
    """
    ranges = []
    for log, parts in sorted(claim.stretches.items()):
        for start, until in parts:
            ranges.append(OffsetRange(log, start, until))
    results = live.results_from_table(replace(plan, ranges=tuple(ranges)))
    if results is None:
        raise NeedsDecision(
            "The table's rows of these offsets cannot be counted, so they may be loaded already",
            path=own.table.path,
            action="Check the table for missing columns and files",
        )
    rows = sum(result.rows or 0 for result in results)
    if rows:
        raise NeedsDecision(
            f"The table holds {rows:,} rows of these offsets, but no plan of the pipeline or of a "
            "backfill loaded them",
            path=own.table.path,
            action="Check which writer loaded them (`DESCRIBE HISTORY`), and whether ZooKeeper was "
            "emptied. Loaded again, these rows would be in the table twice",
        )


def backfill(
    services: Services,
    live: Services,
    own: Settings,
    settings: Settings,
    report: Report,
    request: BackfillRequest | None,
) -> Reservation | None:
    """Begin the backfill, unless it has begun, and load the rest of it. Return its reservation.

    Returns None if no offset of the interval is missing. `request` is None to continue an existing
    one. Raises what a run raises; SettingsError for other bounds than it began with, for an
    abandoned one, and as `estimate_backfill`; NeedsDecision if an accepted older copy of the table
    lacks rows of it.
    """
    found = services.claim()
    if found is None and request is None:
        raise _unknown_backfill()
    claim = None
    if found:
        claim = found.claim
    if claim:
        reject_other_request(claim, request)
        _reject_closed_backfill(claim, services)
        if not left_of(claim, services.stored_plans()):
            seen = services.observe_ledgers()
            with naming_table(own):
                # A backfill is complete only in the table that it was loaded into.
                reconciled(seen, own)
            loaded = services.loaded(_transaction_version(seen))
            _reject_missing_rows(services, claim, own, loaded, is_there=seen.table is not None)
            begun = f"; it began at {format_time(claim.made_at_ms)} {claim.asked}"
            report.add(Outcome.ALREADY_LOADED, describe_whole(claim, loaded) + begun)
            return claim
    elif request:
        with report.timed(Verb.PLAN):
            ahead = estimate_backfill(live, settings, own, request)
            if ahead.plan is None:
                report.add(
                    Outcome.UP_TO_DATE,
                    f"Backfill {ahead.claim.name}: nothing is missing, all of it is loaded or "
                    "reserved",
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
        raise BrokerUnreachable(
            f"The rest of backfill {claim.name} is not loaded yet: {log} has no leader, or the "
            "backfill was stopped meanwhile",
            **log.place,
            action="Check the brokers of the partition, then run "
            f"`etl backfills run CONF {claim.name}` to continue",
        )
    loaded = services.loaded()
    _reject_missing_rows(services, claim, own, loaded)
    report.add(Outcome.BACKFILL_DONE, describe_whole(claim, loaded))
    return claim


def _unknown_backfill() -> SettingsError:
    return SettingsError(
        "No backfill of this name exists",
        key="NAME",
        action="Check with `etl backfills list CONF`",
    )


def _transaction_version(snapshot: Snapshot) -> int:
    """Return the number of the newest plan in the table; 0 without a table or a plan."""
    if snapshot.table is None:
        return 0
    return snapshot.table.transaction_version or 0


def describe_whole(claim: Reservation, loaded: LoadedIntervals) -> str:
    """Describe a complete backfill: offsets loaded and offsets lost. `loaded`: by its plans."""
    unit = next((log.unit for log in claim.stretches), "offset")
    loaded_parts: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for by_partition in (loaded.intervals, loaded.given_up):
        for log, intervals in by_partition.items():
            parts = loaded_parts.setdefault(log, [])
            for interval in intervals:
                parts.append((interval.from_offset, interval.until_offset))
    lost = 0
    for log, reserved in claim.stretches.items():
        for part in reserved:
            for start, until in subtract_intervals(part, loaded_parts.get(log, ())):
                lost += until - start
    offsets = counted(claim.offsets - lost, unit)
    partitions = counted(len(claim.stretches), "partition")
    sentence = f"Backfill {claim.name}: all {offsets} of {partitions} loaded"
    if lost:
        sentence = (
            f"Backfill {claim.name}: {offsets} of {partitions} loaded; {lost:,} more are lost, which the policy allows, and are not in the table: the "
            "losses table lists them"
        )
    return sentence


def _reject_missing_rows(
    services: Services,
    claim: Reservation,
    own: Settings,
    loaded: LoadedIntervals,
    *,
    is_there: bool = True,
) -> None:
    """Reject a complete backfill whose rows are missing because an older state of the table was
    accepted. Raises NeedsDecision.

    Reads only rows that were loaded into a state of the table that was given up since. `is_there`:
    True if the table exists.
    """
    doubtful = given_up_offsets(claim.stretches, loaded)
    if not doubtful:
        return
    newest = services.read_ledger().newest
    if newest is None:
        return
    kept: Kept = {}
    if is_there:
        kept = with_rows(services, claim, newest, doubtful, loaded, own)
    missing = []
    for log, parts in sorted(doubtful.items()):
        for part in parts:
            for start, until in subtract_intervals(part, kept.get(log, ())):
                missing.append((log, start, until))
    if missing:
        log, first, _ = missing[0]
        count = sum(until - start for _, start, until in missing)
        offsets = counted(count, log.unit)
        raise NeedsDecision(
            f"Backfill {claim.name} has loaded its whole reservation, but the table has no row of "
            f"{offsets}: a state of the table without them was accepted, for example an older copy",
            **log.place,
            offset=first,
            path=own.table.path,
            action=f"Run `etl backfills delete CONF {claim.name} --reason ...`, which releases the "
            "offsets without rows. Then load them with a backfill of another name and "
            "--only-unloaded",
        )


def with_rows(
    services: Services,
    claim: Reservation,
    newest: Plan,
    stretches: Kept,
    coverage: LoadedIntervals,
    own: Settings,
) -> Kept:
    """Return the parts of these intervals that have rows in the table. Raises NeedsDecision if they
    cannot be counted.
    """
    held = split_reservation(stretches, coverage)
    ranges = tuple(part.offsets for part in held)
    results = services.results_from_table(
        replace(newest, ranges=ranges, incarnations=dict(claim.incarnations))
    )
    if results is None or any(result.behind_transform for result in results):
        message = f"The rows of backfill {claim.name} in the table cannot be counted"
        if results is not None:
            message += (
                ": a transform wrote them, and may have changed their topic, partition or offset"
            )
        raise NeedsDecision(
            message,
            path=own.table.path,
            action="Check the table for missing columns and files. The offsets that the backfill "
            "loaded stay reserved",
        )
    return remaining_reservation(stretches, held, results)


def left_of(
    claim: Reservation, stored: Sequence[tuple[Plan, bool]]
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return the part of the reservation that is not known to be in the table, by stored plans and
    their results.
    """
    if not stored:
        return dict(claim.stretches)
    newest, is_recorded = stored[-1]
    if is_recorded:
        return claim.left_from(newest.positions)
    return claim.left_from(starts_of(newest))


def reject_other_request(claim: Reservation, request: BackfillRequest | None) -> None:
    """Reject a request that cannot continue this backfill: it was given up, or it has other bounds.

    `request` is None to continue it by its name. Raises SettingsError.
    """
    reject_abandoned_backfill(claim)
    if request:
        reject_other_bounds(claim, request.asked)


def reject_abandoned_backfill(claim: Reservation) -> None:
    """Reject a backfill that was given up, as another one may have reserved the rest since. Raises
    SettingsError.
    """
    if claim.state is not ReservationState.OPEN:
        message = f"Backfill {claim.name} was given up: {claim.reason}"
        action = "Use another name to load the offsets that it had not loaded"
        if claim.state is ReservationState.CLOSING:
            action = (
                f"Run `etl backfills delete CONF {claim.name} --reason ...` to finish that. Then "
                "use another name"
            )
        raise SettingsError(message, key="NAME", action=action)


def _reject_closed_backfill(claim: Reservation, services: Services) -> None:
    """Reject a backfill that only its newest plan shows as abandoned: ZooKeeper was restored from
    an older copy. Raises SettingsError.
    """
    newest = services.read_ledger().newest
    if newest and newest.closes:
        reject_abandoned_backfill(
            replace(claim, state=ReservationState.CLOSING, reason=newest.origin.reason)
        )


def abandon(services: Services, own: Settings, report: Report, reason: str) -> Reservation:
    """Abandon a backfill: release the offsets that it did not load. Return its reservation after
    it.

    The command can be repeated after a kill. A backfill without its table (deleted or replaced)
    keeps no offset reserved; a complete or abandoned one keeps the offsets that have rows in the
    table. Raises SettingsError for a backfill that never began, or that is complete with all its
    rows; NeedsDecision if the rows cannot be counted; Owned.
    """
    for _ in range(CONFLICTS_MAX):
        with report.timed(Verb.OBSERVE):
            snapshot = services.observe_ledgers()
        claim = snapshot.backfill
        if claim is None:
            raise _unknown_backfill()
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
            claim = replace(claim, state=ReservationState.CLOSING, reason=newest.origin.reason)
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
    """Return True if a plan of it may still be stored or appended, also by a driver with an older
    copy of the table or of ZooKeeper.

    If a forgotten driver's plan took the closing plan's number, the table alone would not show the
    abandonment.
    """
    if claim.state is ReservationState.CLOSING and not newest.closes:
        return True
    if is_stored or _transaction_version(snapshot) < newest.number:
        return True
    return claim.state is ReservationState.OPEN and bool(claim.left_from(newest.positions))


def _ended(
    services: Services, claim: Reservation, newest: Plan, own: Settings, reason: str
) -> Reservation:
    """End it, once no plan of it can reach the table. The rows decide which offsets it keeps."""
    coverage = services.loaded()
    if claim.state is ReservationState.GIVEN_UP:
        loaded = dict(claim.stretches)
    else:
        loaded = _loaded(services, claim, coverage)
    kept = loaded
    if claim.state is not ReservationState.CLOSING or _continued_in_older_copy(services, coverage):
        try:
            kept = with_rows(services, claim, newest, loaded, coverage, own)
        except NeedsDecision:
            if claim.state is ReservationState.CLOSING:
                # The offsets that it did not load are free, even if its rows cannot be counted.
                _settled(services, claim, loaded, reason)
            raise
    if claim.state is ReservationState.GIVEN_UP and kept == claim.stretches:
        return claim
    if claim.state is ReservationState.OPEN and kept == loaded:
        raise SettingsError(
            f"{describe_whole(claim, coverage)}. There is nothing to give up",
            key="NAME",
            action="Check with `etl backfills show`",
        )
    return _settled(services, claim, kept, reason)


def _continued_in_older_copy(services: Services, coverage: LoadedIntervals) -> bool:
    """Return True if a plan followed an older copy of the table that lacked an earlier plan.

    A plan without a result counts, too: the next plan shows it.
    """
    if coverage.given_up:
        return True
    for plan, _ in services.stored_plans():
        if plan.table.transaction_version < plan.number - 1:
            return True
    return False


def _settled(services: Services, claim: Reservation, kept: Kept, reason: str) -> Reservation:
    settled = replace(
        claim, state=ReservationState.GIVEN_UP, stretches=kept, reason=claim.reason or reason
    )
    services.settle_backfill(settled)
    return settled


def _can_never_be_there(services: Services, snapshot: Snapshot, own: Settings) -> bool:
    """Return True if the table has no plan of this ledger and accepts none.

    Raises NeedsDecision for a table that no operator accepted.
    """
    stored = snapshot.ledger.newest
    if stored and (snapshot.table is None or snapshot.table.id != stored.table.id):
        _reject_unaccepted_table(snapshot, own)
        return True
    return _is_shut_out(services, snapshot)


def _reject_unaccepted_table(snapshot: Snapshot, own: Settings) -> None:
    """Reject giving back offsets that may be loaded, if the path may be wrong or not mounted.
    Raises NeedsDecision.
    """
    table = snapshot.table
    accepted = snapshot.ledger.acknowledged
    if table:
        table_id: str | None = table.id
        version = str(table.version)
        message = "The table at this path is not the one that the backfill loaded into"
        advice = ""
    else:
        table_id = None
        version = "none"
        message = "No table exists at this path"
        advice = (
            ". If that was accepted before and runs continued since, run `etl run CONF` first, "
            "which creates the table"
        )
    if accepted is None or accepted.table_id != table_id:
        raise NeedsDecision(
            message,
            path=own.table.path,
            action="Check table.path, and that its file system is mounted. If the old table is "
            f"deleted for good, run `etl table accept-changes CONF {version} --reason ...`, then "
            f"run this command again{advice}",
        )


def _is_shut_out(services: Services, snapshot: Snapshot) -> bool:
    """Return True if another ledger of this name used all plan numbers of this one in the table."""
    stored = snapshot.ledger.newest
    table = snapshot.table
    if stored is None or table is None or not is_of_another_era(snapshot.ledger, table):
        return False
    if stored.number > (table.transaction_version or 0):
        return False
    return not any(is_recorded for _, is_recorded in services.stored_plans())


def _loaded(services: Services, claim: Reservation, coverage: LoadedIntervals) -> Kept:
    """Return the reserved offsets that the backfill's plans loaded, once no stored plan can reach
    the table.

    Offsets that it released are not in the reservation any more; a reservation never grows.
    """
    found: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for by_partition in (coverage.intervals, coverage.given_up):
        for log, intervals in by_partition.items():
            parts = found.setdefault(log, [])
            for interval in intervals:
                parts.append((interval.from_offset, interval.until_offset))
    for plan, _ in services.stored_plans():
        for r in plan.ranges:
            found.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    kept = {}
    for log, parts in found.items():
        reserved = tuple(intersect_intervals(parts, claim.stretches.get(log, ())))
        if reserved:
            kept[log] = reserved
    return kept
