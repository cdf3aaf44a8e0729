"""`etl verify`: every record of every applied plan is in the table once, or it is said which is not, and why.

Owns the order of the questions: what should be there (the ledger), what is there (Spark reads the rows), and, only where rows are
missing, whether they were in their own commit and who removed rows since. What the answers mean is decided in `audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.audit.audit import AuditedLog, Expected, LogFindings, IncompleteInterval, audit
from etl.audit.explain import Doubt, LogProof, Origin, blame, doubt_of, gaps_of, origin_of
from etl.commands.neighbours import refuse_lost_ledger, refuse_what_others_loaded, stops_a_run, without_others
from etl.commands.run import new_run_id
from etl.decisions.acceptance import accepted_version
from etl.decisions.coverage import Ancestry, ancestry
from etl.decisions.foreign_commits import is_let_pass, unacknowledged
from etl.decisions.shape import may_be_transformed
from etl.decisions.reconcile import compare, naming_table
from etl.edges.spark.failures import translating_spark_errors
from etl.errors import LedgersDisagree, Owned
from etl.model.ledger import Coverage, Ledger
from etl.model.plans import Applied, Loss, OffsetRange, Plan
from etl.model.snapshot import RebuildFromTable, FirstRun, Replay, PipelineState
from etl.model.table import ForeignCommit, Table
from etl.report.phases import Stopwatch
from etl.report.proof import Proof
from etl.report.sentences import told_vanished
from etl.run.context import ALONE, RunContext
from etl.run.live_world import LiveWorld
from etl.run.wiring import open_world
from etl.settings.sections import Settings

_LOOKS_MAX = 3
_Place = tuple[AuditedLog, int, int]
"""A range: its log, from, until."""


def verify(settings: Settings, run_context: RunContext = ALONE) -> Proof:
    """Compare the table's rows with the ledger: ranges and receipts of the kept plans, coverage of the pruned ones.

    Raises LedgersDisagree where a run would, and for a table that is ahead of the ledger.
    """
    from etl.edges.delta.scan import Scan, doubled_offsets

    watch = Stopwatch()
    opened = open_world(settings, run_context, name=f"{new_run_id()}-verify", phases=watch)
    with run_context.progress(watch.doing), opened as world, translating_spark_errors():
        told = _look(world)
        ledger, table = told.ledger, told.table
        with naming_table(settings):
            state = _compared(ledger, table, settings.table.place)
            if isinstance(state, FirstRun):
                refuse_lost_ledger(world)
            if table is not None:
                refuse_what_others_loaded(world, state, table, ledger)
        if table is None or isinstance(state, FirstRun):
            return Proof((), (), None, (_nothing_there(state),))
        by_others = tuple(
            found for found in unacknowledged(table, ledger.acknowledged)
            if stops_a_run(found, ledger) and not is_let_pass(found, settings.table.on_rows_removed))
        loaded, led = _loaded(world, told, table)
        expected, losses, notes = _expected(world, told, table, loaded, led)
        spark = world.spark()
        scan = Scan(spark, settings.table.path, table.version)
        found, others_rows = without_others(world, ledger, table, expected, tuple(audit(expected, scan.buckets())))
        doubles = tuple(
            (f.audited, offset, rows) for f in found for bucket in f.double_buckets[:1]
            for offset, rows in doubled_offsets(spark, settings.table.path, f.audited, bucket, delta_version=table.version))
        logs = tuple(_explained(world, told, table, loaded, found, expected, losses))
        if others_rows:
            notes += (f"{others_rows:,} rows are of topics that other pipelines load into this table: they are not judged",)
        given_up = sum(f.given_up_rows for f in found)
        if given_up:
            notes += (f"{given_up:,} rows are of plans that were given up: each is there once, and whether more of them came is not asked",)
        of_no_log = tuple(scan.first_of_no_log()) if scan.rows_of_no_log else ()
    return Proof(logs, doubles, table.version, notes, settings.transform, by_others, scan.rows_of_no_log, of_no_log)


@dataclass(frozen=True, slots=True)
class _Told:
    """What both ledgers tell, each of the same moment."""

    ledger: Ledger
    table: Table | None
    kept: tuple[tuple[Plan, Applied | None], ...]
    """The kept plans, and the record of each."""
    coverage: Coverage


def _look(world: LiveWorld) -> _Told:
    """Read both ledgers, and read them again where a run beside us stored a plan or pruned plans meanwhile. Raises Owned."""
    for _ in range(_LOOKS_MAX):
        before = world.ledger.mark()
        ledger = world.ledger.read_ledger()
        table = world.read_table(ledger)
        kept = tuple((plan, world.ledger.read_record_of(plan)) for plan in world.ledger.read_plans())
        coverage = world.ledger.read_coverage()  # after the plans: one that was pruned meanwhile is in it, and counts once
        if world.ledger.mark() == before:
            return _Told(ledger, table, tuple(one for one in kept if one[0].number > coverage.through), coverage)
    raise Owned("runs of this pipeline change its ledger while it is read", check="nothing; verify again")


def _compared(ledger: Ledger, table: Table | None, place: str) -> PipelineState:
    """The state of the pipeline by ledger and table, as a run would see it. Raises LedgersDisagree."""
    state = compare(ledger, table, place)
    if isinstance(state, RebuildFromTable):
        knows = ledger.newest.number if ledger.newest else "none"
        what = f"the table holds plan {state.plan.number} ({state.plan.id}), ZooKeeper knows {knows}"
        raise LedgersDisagree(what, check="`etl plan CONF`; the next run writes the ledger anew from the table")
    return state


def _nothing_there(state: PipelineState) -> str:
    if isinstance(state, (FirstRun, Replay)):
        return "nothing was applied yet"
    return "there is no table, and that was accepted: what its plans put there is given up"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kept plan and what came of it."""

    plan: Plan
    applied: Applied
    was_recorded: bool
    """Else it was counted again."""
    is_given_up: bool
    """It went to another table, or to a state of this one that an old copy replaced, and an operator accepted that."""


def _loaded(world: LiveWorld, told: _Told, table: Table) -> tuple[list[_Loaded], Ancestry]:
    """The kept plans that were applied, and which of all plans led to the table as it is."""
    led = ancestry({plan.number: plan.table_transaction_version for plan, _ in told.kept}, table.transaction_version or 0)
    found = []
    for plan, recorded in told.kept:
        if recorded is None and plan.number not in led.numbers:
            continue
        applied = recorded or world.recount(plan)
        if applied is None:
            what = f"the table holds another plan {plan.number} than ZooKeeper"
            raise LedgersDisagree(what, path=world.settings.table.path, check="`etl plan CONF`; the next run takes over the table's")
        is_given_up = plan.number not in led.numbers or applied.table_id != table.id
        found.append(_Loaded(plan, _as_known_now(plan, applied, world.settings), recorded is not None, is_given_up))
    return found, led


def _covered(coverage: Coverage, table: Table, led: Ancestry) -> dict[AuditedLog, Expected]:
    """What pruned plans loaded; where they did not all lead to this table nobody knows any more which of it should be there."""
    held_through = coverage.through if coverage.held_through is None else coverage.held_through
    is_judged = coverage.table_id in (None, table.id) and held_through <= led.before
    expected: dict[AuditedLog, Expected] = {}
    for intervals, is_held in ((coverage.intervals, is_judged), (coverage.given_up, False)):
        for log, found in intervals.items():
            for one in found:
                audited = AuditedLog(log, one.log_epoch)
                known = expected.get(audited, Expected())
                expected[audited] = replace(known, coverage=(*known.coverage, one)) if is_held else (
                    replace(known, given_up=(*known.given_up, one)))
    return expected


def _expected(
    world: LiveWorld, told: _Told, table: Table, loaded: Sequence[_Loaded], led: Ancestry,
) -> tuple[dict[AuditedLog, Expected], dict[AuditedLog, set[Loss]], tuple[str, ...]]:
    """What the table should hold, what its plans let go, and what a reader of the proof should know."""
    from etl.edges.delta.losses import read_losses, recorded

    notes: list[str] = []
    path = world.settings.table.losses_at
    if world.settings.transform:
        notes.append("the pipeline has a transform: the proof holds as long as it keeps topic, partition and offset and drops no row")
    lost = set(read_losses(path, uid=told.ledger.uid) if told.ledger.uid else ())
    expected = _covered(told.coverage, table, led)
    for one in loaded:
        plan = one.plan
        if not one.was_recorded:
            notes.append(
                f"plan {plan.number} has no receipts, so its rows were counted from the commit's files: the next run writes them down")
        if not recorded(plan, app_id=world.app_id, path=path):
            notes.append(f"what plan {plan.number} let go is not in the losses table: the next run writes it down")
        lost.update(plan.losses)
        for r, receipt in zip(plan.ranges, one.applied.receipts, strict=True):
            audited = audited_as(plan, r)
            known = expected.get(audited, Expected())
            expected[audited] = replace(known, applied=(*known.applied, (r, receipt)))
    losses: dict[AuditedLog, set[Loss]] = {}
    for loss in lost:
        losses.setdefault(AuditedLog(loss.log, loss.log_epoch), set()).add(loss)
        expected.setdefault(AuditedLog(loss.log, loss.log_epoch), Expected())
    notes += told_vanished((*told.coverage.vanished, *(gone for one in loaded for gone in one.plan.vanished)))
    return expected, losses, tuple(notes)


def audited_as(plan: Plan, r: OffsetRange) -> AuditedLog:
    """The life of the log that the range's rows are of."""
    return AuditedLog(r.log, plan.log_epochs.get(r.log, 0))


def _as_known_now(plan: Plan, applied: Applied, settings: Settings) -> Applied:
    """The record, corrected: an older version did not write down that it had counted rows behind a transform."""
    if not may_be_transformed(plan, settings):
        return applied
    return replace(applied, receipts=tuple(
        replace(receipt, behind_transform=True) if receipt.fetched_bytes is None else receipt for receipt in applied.receipts))


def _explained(
    world: LiveWorld, told: _Told, table: Table, loaded: Sequence[_Loaded], found: Sequence[LogFindings],
    expected: Mapping[AuditedLog, Expected], losses: Mapping[AuditedLog, set[Loss]],
) -> Iterator[LogProof]:
    """The findings with the reasons; only where rows are missing is anything more read."""
    short = {(f.audited, s.from_offset, s.until_offset): s for f in found for s in f.short}
    known = dict(_origins(world, loaded, short)) if short else {}
    origins = {place: known.get(place, Origin(s)) for place, s in short.items()}
    removals, allowed = _removals(world, told.ledger, table, origins.values()) if short else ((), frozenset[int]())
    for f in found:
        gaps = gaps_of(expected.get(f.audited, Expected()), losses.get(f.audited, ()))
        mine = [origins[f.audited, s.from_offset, s.until_offset] for s in f.short]
        yield LogProof(f, gaps, blame(mine, removals, allowed), _doubt(told, table, loaded, f) if f.unproven else Doubt())


def _doubt(told: _Told, table: Table, loaded: Sequence[_Loaded], found: LogFindings) -> Doubt:
    acknowledgement = told.ledger.acknowledged
    accepted = acknowledgement.number if acknowledgement and acknowledgement.table_id == table.id else 0
    plans = {(r.from_offset, r.until_offset): one.plan.number for one in loaded for r in one.plan.ranges
             if audited_as(one.plan, r) == found.audited}
    return doubt_of(found.unproven, plans, pruned=told.coverage.unproven_through, accepted=accepted)


def _origins(world: LiveWorld, loaded: Sequence[_Loaded], short: Mapping[_Place, IncompleteInterval]) -> Iterator[tuple[_Place, Origin]]:
    """Whether the commit that should hold the rows of a short range did hold them."""
    from etl.edges.delta.recount import recount_commit

    for one in loaded:
        ranges, applied = one.plan.ranges, one.applied
        places = {i: place for i, r in enumerate(ranges) if (place := (audited_as(one.plan, r), r.from_offset, r.until_offset)) in short}
        if one.is_given_up:
            yield from ((place, Origin(short[place], is_elsewhere=True)) for place in places.values())
        elif places:
            path, version = world.settings.table.path, applied.delta_version
            committed = recount_commit(path, version, ranges, one.plan.log_epochs)
            for i, place in places.items():
                yield place, origin_of(short[place], version, applied.receipts[i], committed[i] if committed else None)


def _removals(
    world: LiveWorld, ledger: Ledger, table: Table, origins: Iterable[Origin],
) -> tuple[tuple[ForeignCommit, ...], frozenset[int]]:
    """Commits of others that removed rows, and the versions of those that policy or an operator let pass."""
    from etl.edges.delta.log import open_log, removals_since
    from etl.edges.delta.path import rust_path

    settings, acknowledgement = world.settings.table, ledger.acknowledged
    noted = world.ledger.read_coverage().removals
    versions = [o.delta_version for o in origins]
    known = [version for version in versions if version is not None]
    after = min(known) if known and len(known) == len(versions) else None
    logged = removals_since(open_log(rust_path(settings.path)), table.version, after, world.app_id)
    found = sorted({*logged, *noted}, key=lambda one: one.delta_version)
    accepted = accepted_version(acknowledgement, table)
    allowed = frozenset(
        one.delta_version for one in found
        if one in noted or is_let_pass(one, settings.on_rows_removed) or (accepted is not None and one.delta_version <= accepted))
    return tuple(found), allowed
