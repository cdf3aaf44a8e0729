"""The story of a backfill: look at the live pipeline, claim, then one bounded plan after the other as any run makes them.

The claim and its first plan are stored in one transaction, so a kill at any moment leaves either nothing or a backfill that whoever says it
again goes on with. Giving up puts a plan without offsets in the way of a forgotten driver before anything is given back (ADR 22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etl.decisions.backfills.backfill_plans import closing_plan, first_backfill_plan
from etl.decisions.backfills.backfilling import Asked, intervals_of, logs_of, refuse_other_bounds, stretches_of
from etl.decisions.backfills.claiming import held_by_live, joined
from etl.decisions.next_step import repair_of, repaired
from etl.decisions.reconcile import compare, is_of_another_era, naming_table, reconciled
from etl.decisions.refusals import refuse_another_dialect, refuse_retired
from etl.decisions.replaying import moments_of
from etl.decisions.start import starts_of
from etl.errors import BrokerUnreachable, NeedsDecision, Owned, SettingsError
from etl.model.claims import Claim, ClaimState, live_and_name
from etl.model.logs import BrokerPartition
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import RebuildFromTable, Replay, Snapshot, Supersede, UpToDate
from etl.protocol.zookeeper.plan_documents import with_id
from etl.report.phases import Verb
from etl.report.run_report import Report
from etl.report.run_state import Outcome
from etl.report.words import at, counted
from etl.run.ingest import TURNS_MAX, execute, ingest
from etl.run.repair import finish_repair
from etl.run.world import World
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a backfill that is not begun yet would claim."""

    claim: Claim
    plan: Plan | None
    """Its first one; None where nothing of the interval is missing."""
    snapshot: Snapshot
    """What was seen of the live pipeline."""


def look_ahead(live: World, settings: Settings, own: Settings, asked: Asked) -> Beginning:
    """What a backfill would claim; nothing is stored. `settings` are the live pipeline's, `own` the backfill's.

    Raises what `decisions.backfills.backfilling` and `claiming` refuse, and LedgersDisagree for a table that is not the pipeline's.
    """
    snapshot = live.observe(asked.offsets_of)
    refuse_retired(snapshot.ledger)
    refuse_another_dialect(snapshot.ledger.newest, settings)
    with naming_table(settings):
        state = compare(snapshot.ledger, snapshot.table, settings.table.place)
    if snapshot.table is None or not isinstance(state, (UpToDate, Replay, Supersede)) or not snapshot.table.transaction_version:
        what = "the pipeline has loaded nothing yet, so nobody knows what is left for a backfill"
        if isinstance(state, RebuildFromTable):
            what = "ZooKeeper does not know the pipeline's newest plan, which the table holds"
        raise SettingsError(what, check="`etl run CONF`; then say this again")
    name = live_and_name(own.pipeline)[1] or ""
    held_there = live.backfill_in_table(name)
    if held_there:
        what = f"the table holds plan {held_there} of a backfill of this name, and no ledger tells of it: ZooKeeper lost it"
        raise SettingsError(what, key="--name", check="another --name: of plans under this one the table takes none")
    newest = state.last if isinstance(state, UpToDate) else state.plan
    logs = logs_of(asked, newest, snapshot)
    moments = moments_of(asked, logs)
    intervals = intervals_of(asked, logs, live.first_at(moments) if moments else {}, snapshot, now_ms=live.now_ms())
    stored = live.stored_plans()
    held = held_by_live(state, stored, live.loaded(snapshot.table.transaction_version), snapshot.table.transaction_version)
    stretches = stretches_of(asked, intervals, held, newest.log_epochs, snapshot.claims.of(snapshot.table.id))
    lives = {log: life for log, life in newest.log_epochs.items() if log in stretches}
    claim = Claim(name, stretches, lives, asked.asked, live.now_ms(), table_id=snapshot.table.id)
    plan = first_backfill_plan(claim, newest, snapshot, own, uid=live.new_uid(), now_ms=live.now_ms()) if stretches else None
    if plan:
        _refuse_rows(live, claim, plan, own)
    return Beginning(claim, plan, snapshot)


def _refuse_rows(live: World, claim: Claim, plan: Plan, own: Settings) -> None:
    """Refuse offsets of which the table has rows that no ledger tells of: of a ledger that was lost, say. Raises NeedsDecision."""
    whole = [OffsetRange(log, start, until) for log, parts in sorted(claim.stretches.items()) for start, until in parts]
    rows = live.rows_of(replace(plan, ranges=tuple(whole)))
    if rows == 0:
        return
    what = "nobody can tell whether the table holds rows of these offsets already"
    check = "the table's columns and files: what is missing there"
    if rows:
        what = f"the table holds {rows:,} rows of these offsets, and no plan of the pipeline or of a backfill tells who loaded them"
        check = "who did (`DESCRIBE HISTORY`), and whether ZooKeeper was emptied: loaded again they would be there twice"
    raise NeedsDecision(what, path=own.table.path, check=check)


def backfill(world: World, live: World, own: Settings, settings: Settings, report: Report, asked: Asked | None) -> Claim | None:
    """Begin it, unless it is begun, and load all that is left of it; what it claims. None: nothing of the interval is missing.

    `asked` is None where one that is begun is to go on. Raises what a run raises, SettingsError for other bounds than it was begun with
    and for one that was given up, and as `look_ahead`.
    """
    found = world.claim()
    if found is None and asked is None:
        raise SettingsError("nobody has begun a backfill of this name", key="--name", check="`etl backfill list CONF`")
    claim = found.claim if found else None
    if claim:
        if asked:
            refuse_other_bounds(claim, asked.asked)
        refuse_given_up(claim)
        _refuse_closed(claim, world)
        if not left_of(claim, world.stored_plans()):
            with naming_table(own):
                reconciled(world.observe(), own)  # what is whole is so in the table that it was loaded into
            report.add(Outcome.ALREADY_APPLIED, f"{told_whole(claim)}; it was begun at {at(claim.made_at_ms)} {claim.asked}")
            return claim
    elif asked:
        with report.timed(Verb.PLAN):
            ahead = look_ahead(live, settings, own, asked)
            if ahead.plan is None:
                report.add(Outcome.NOTHING_NEW, f"backfill {ahead.claim.name}: nothing is missing, all of it is loaded or claimed")
                return None
            live.begin_backfill(ahead.claim, with_id(ahead.plan))
            claim = ahead.claim
    ingest(world, own, report)
    if claim is None:
        return None
    _refuse_closed(claim, world)
    left = left_of(claim, world.stored_plans())
    if left:
        log = min(left)
        what = f"the rest of backfill {claim.name} is not loaded yet: nobody leads {log}, or it was stopped meanwhile"
        raise BrokerUnreachable(what, **log.place, check=f"its brokers; `etl backfill resume CONF --name {claim.name}` goes on")
    report.add(Outcome.BACKFILLED, told_whole(claim))
    return claim


def told_whole(claim: Claim) -> str:
    """That all of it is in the table."""
    unit = next((log.unit for log in claim.stretches), "offset")
    return f"backfill {claim.name} is whole: {counted(claim.offsets, unit)} of {counted(len(claim.stretches), 'partition')}"


def left_of(claim: Claim, stored: Sequence[tuple[Plan, bool]]) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """What of the claim is not known to be in the table, by the stored plans of the backfill and their records."""
    if not stored:
        return dict(claim.stretches)
    newest, is_recorded = stored[-1]
    return claim.left_from(newest.positions if is_recorded else starts_of(newest))


def refuse_given_up(claim: Claim) -> None:
    """Raises SettingsError for a backfill that was given up: what it had not loaded may be another one's by now."""
    if claim.state is not ClaimState.OPEN:
        what = f"backfill {claim.name} was given up: {claim.reason}"
        check = "another --name, for what it had not loaded"
        if claim.state is ClaimState.CLOSING:
            check = f"`etl backfill abandon CONF --name {claim.name} --reason ...`, which ends that first; then another --name"
        raise SettingsError(what, key="--name", check=check)


def _refuse_closed(claim: Claim, world: World) -> None:
    """The same where only the newest plan tells: ZooKeeper was restored from a copy from before. Raises SettingsError."""
    newest = world.read_ledger().newest
    if newest and newest.closes:
        refuse_given_up(replace(claim, state=ClaimState.CLOSING, reason=newest.reason))


def abandon(world: World, own: Settings, report: Report, reason: str) -> Claim:
    """Give a backfill up: what it loaded stays, and stays claimed; the rest is free. What it claims then.

    Killed anywhere, it goes on when it is said again. One whose table is gone, or another by now, claims nothing any more.
    Raises SettingsError for one that has loaded all, or that nobody began, Owned.
    """
    for _ in range(TURNS_MAX):
        with report.timed(Verb.OBSERVE):
            snapshot = world.observe()
        claim = snapshot.backfill
        if claim is None:
            raise SettingsError("nobody has begun a backfill of this name", key="--name", check="`etl backfill list CONF`")
        stored = snapshot.ledger.newest
        if stored and (snapshot.table is None or snapshot.table.id != stored.table_id):
            _refuse_unaccepted(snapshot, own)
            world.settle_backfill(kept := replace(claim, state=ClaimState.GIVEN_UP, stretches={}, reason=claim.reason or reason))
            return kept  # the table that is there takes none of its plans, and has none
        if claim.state is ClaimState.GIVEN_UP:
            return claim
        if _is_shut_out(world, snapshot):
            world.settle_backfill(kept := replace(claim, state=ClaimState.GIVEN_UP, stretches={}, reason=reason))
            return kept
        with naming_table(own):
            state = reconciled(snapshot, own)
        repair = repair_of(state, snapshot)
        finish_repair(world, repair, report)
        snapshot = repaired(snapshot, repair)
        left = isinstance(state, (Replay, Supersede))
        newest = state.plan if isinstance(state, (Replay, Supersede, RebuildFromTable)) else snapshot.ledger.newest
        if newest is None:
            raise Owned("the backfill has no plan", check="nothing; say it again")
        if newest.closes:  # in an older copy of ZooKeeper the claim may be open again
            claim = replace(claim, state=ClaimState.CLOSING, reason=newest.reason)
        if claim.state is ClaimState.CLOSING:
            if left:
                report.planned(newest)
                execute(world, newest, snapshot, own, report)
                continue
            if newest.closes:
                world.settle_backfill(kept := replace(claim, state=ClaimState.GIVEN_UP, stretches=_loaded(world)))
                return kept
            # a forgotten driver's plan has taken its number; in an older copy of ZooKeeper the table alone tells that it was given up
        elif not left and not claim.left_from(newest.positions):
            raise SettingsError(f"{told_whole(claim)}: there is nothing to give up", key="--name", check="`etl backfill show`")
        plan = with_id(closing_plan(newest, is_stored=left, snapshot=snapshot, reason=reason, now_ms=world.now_ms()))
        world.close_backfill(replace(claim, state=ClaimState.CLOSING, reason=claim.reason or reason), plan, snapshot.ledger)
        report.planned(plan)
        execute(world, plan, snapshot, own, report)
    raise Owned("another driver worked at the same moments", check="who else runs this backfill; then say it again")


def _refuse_unaccepted(snapshot: Snapshot, own: Settings) -> None:
    """Refuse to give back what may be loaded, where the path may be wrong, or not mounted. Raises NeedsDecision."""
    table, said = snapshot.table, snapshot.ledger.acknowledged
    if said is None or said.table_id != (table.id if table else None):
        what = "the table at this path is not the one that the backfill has loaded into" if table else "there is no table at this path"
        check = (
            "table.path, and that what it lies on is mounted; where that table is gone for good: "
            f"`etl plans acknowledge CONF {table.version if table else 'none'} --reason ...`, and then this again"
            + ("" if table else "; where that was said before, and runs went on since: `etl run CONF` first, which makes the table"))
        raise NeedsDecision(what, path=own.table.path, check=check)


def _is_shut_out(world: World, snapshot: Snapshot) -> bool:
    """Whether another ledger of this name has taken all numbers of this one's plans in the table, so that none is there, or will be."""
    stored, table = snapshot.ledger.newest, snapshot.table
    if stored is None or table is None or not is_of_another_era(snapshot.ledger, table):
        return False
    return stored.number <= (table.transaction_version or 0) and not any(is_recorded for _, is_recorded in world.stored_plans())


def _loaded(world: World) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """What the plans of the backfill loaded; none is stored that is not in the table."""
    coverage = world.loaded()
    found: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for intervals in (coverage.intervals, coverage.given_up):
        for log, some in intervals.items():
            found.setdefault(log, []).extend((one.from_offset, one.until_offset) for one in some)
    for plan, _ in world.stored_plans():
        for r in plan.ranges:
            found.setdefault(r.log, []).append((r.from_offset, r.until_offset))
    return {log: tuple(joined(some)) for log, some in found.items()}
