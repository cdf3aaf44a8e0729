"""Is every record of every applied plan in the table once?

Expected rows come from the ledgers, actual rows from Spark. If rows are missing, the plan's own
commit and later commits of other writers explain them. Rows of other pipelines are not judged, but
topics that they loaded may stop a run.

Not here: the comparison (etl/audit/audit.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from etl.audit.audit import (
    AuditedLog,
    Expected,
    IncompleteInterval,
    LogFindings,
    more_than_before,
    rows_before_of,
)
from etl.audit.explain import LogProof, Origin, UnprovenOffsets, blame, doubt_of, gaps_of, origin_of
from etl.commands.expected_rows import (
    BothLedgers,
    Loaded,
    audited_as,
    expected_of_all,
    loaded_plans,
    read_both_ledgers,
)
from etl.commands.run import new_run_id
from etl.decide.reconcile import compare, naming_table, reject_other_broker_type
from etl.decide.table_changes import (
    accepted_version,
    is_let_pass,
    is_taken,
    name_of,
    plan_of,
    reject_topics_of_other_pipelines,
    unacknowledged,
)
from etl.errors import LedgersDisagree
from etl.io.delta.table_state import other_pipelines
from etl.io.spark.session import translating_spark_errors
from etl.model.plans import Loss, Plan
from etl.model.snapshot import (
    FirstRun,
    ForeignCommit,
    Ledger,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Replay,
    Table,
)
from etl.report.run_state import Stopwatch
from etl.report.verify import Proof
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext
from etl.run.shell import open_services
from etl.settings.sections import Settings


def reject_lost_ledger(services: LiveServices) -> None:
    """Raises LedgersDisagree for a table that this pipeline has loaded while its ledger is missing."""
    us = f"/{services.settings.group.id}/{services.settings.pipeline}"
    for other in other_pipelines(services.settings.table.path, ""):
        if other.app_id.endswith(us):
            message = f"The table holds plan {other.number} of {name_of(other.app_id)}, ZooKeeper knows none"
            action = "Check that ZooKeeper was not emptied; `etl run CONF --dry-run`: the next run writes the ledger anew from the table"
            raise LedgersDisagree(message, table_version=other.delta_version, action=action)


def reject_topics_loaded_by_others(
    services: LiveServices, state: PipelineState, table: Table, ledger: Ledger
) -> None:
    """Stop as a run would if another pipeline has loaded a topic that it would begin. Raises
    LedgersDisagree. Brokers are asked for their topics only if the table has such a pipeline.
    """
    if ledger.retired:
        return
    plan = None if isinstance(state, FirstRun) else plan_of(state)
    known = plan.topics if plan and table.transaction_version else frozenset[str]()
    others = other_pipelines(services.settings.table.path, services.app_id if plan else "")
    if any(_may_have_loaded(one, plan, known, services) for one in others):
        snapshot = services.observe()
        reject_topics_of_other_pipelines(
            compare(snapshot.ledger, snapshot.table, services.settings.table.place), snapshot
        )


def _may_have_loaded(
    other: OtherPipeline, plan: Plan | None, known: Collection[str], services: LiveServices
) -> bool:
    if other.topics is None:
        return not (known and plan and is_taken(other, plan))
    return any(
        services.settings.source.topic_filter.admits(topic) for topic in other.topics - set(known)
    )


def stops_a_run(found: ForeignCommit, ledger: Ledger) -> bool:
    """True if other pipelines' loads stop this pipeline: not once it is retired."""
    return not (found.by and ledger.retired)


def without_others(
    services: LiveServices,
    ledger: Ledger,
    table: Table,
    expected: Mapping[AuditedLog, Expected],
    found: tuple[LogFindings, ...],
) -> tuple[tuple[LogFindings, ...], int]:
    """Return the findings without rows of other pipelines, and their number: topics that we never
    knew, and rows beyond our own in topics that are another one's now, since this pipeline was
    retired, or its conf leaves them out, or in spite of it, at which a run stops.
    """
    ours = {audited.log.topic for audited in expected} | (
        ledger.newest.topics if ledger.newest else frozenset()
    )
    is_over = bool(ledger.retired) or any(one.by for one in table.foreign)
    gone = {
        f.audited.log.topic
        for f in found
        if f.unexpected
        and (is_over or not services.settings.source.topic_filter.admits(f.audited.log.topic))
    } & ours
    strange = {f.audited.log.topic for f in found} - ours
    if strange or gone:
        others = other_pipelines(services.settings.table.path, services.app_id)
    else:
        others = ()
    theirs = {
        topic
        for topic in strange | gone
        if any(one.topics is None or topic in one.topics for one in others)
    }
    kept = [f for f in found if f.audited.log.topic not in theirs - ours]
    judged = tuple(_without_unexpected(f) if f.audited.log.topic in theirs else f for f in kept)
    left_out = sum(f.found_rows for f in found if f.audited.log.topic in theirs - ours)
    return judged, left_out + sum(
        f.unexpected - one.unexpected for f, one in zip(kept, judged, strict=True)
    )


def _without_unexpected(found: LogFindings) -> LogFindings:
    """Return the findings without unexpected rows, except surplus ones inside of what we loaded."""
    too_many = sum(max(0, one.found_rows - one.expected_rows) for one in found.unequal)
    return replace(found, unexpected=too_many, unexpected_first=())


_Place = tuple[AuditedLog, int, int]
"""A range: its log, from, until."""


def verify(settings: Settings, run_context: RunContext = ALONE) -> Proof:
    """Compare the table's rows with the ledger: ranges and results of kept plans, loaded intervals
    of pruned ones. Raises LedgersDisagree if a run would, and for a table ahead of the ledger.
    """
    from etl.io.delta.scan import EntryScan, Scan, rows_in_intervals

    watch = Stopwatch()
    opened = open_services(settings, run_context, name=f"{new_run_id()}-verify", phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        ledgers = read_both_ledgers(services)
        ledger, table = ledgers.ledger, ledgers.table
        reject_other_broker_type(ledger.newest, settings)
        with naming_table(settings):
            state = _compared(ledger, table, settings.table.place)
            if isinstance(state, FirstRun):
                reject_lost_ledger(services)
            if table is not None:
                reject_topics_loaded_by_others(services, state, table, ledger)
        if table is None or isinstance(state, FirstRun):
            return Proof((), (), None, (_nothing_there(state),))
        by_others = tuple(
            found
            for found in unacknowledged(table, ledger.acknowledged)
            if stops_a_run(found, ledger) and not is_let_pass(found, settings.table.on_rows_removed)
        )
        of_ours, led = loaded_plans(services, ledgers, table)
        of_all = expected_of_all(services, ledgers, table, of_ours, led)
        loaded, expected, losses, notes = of_all.loaded, of_all.rows, of_all.losses, of_all.notes
        spark = services.spark()
        is_physical = settings.source.is_physical
        before = rows_before_of(ledger.newest, table, expected)
        scan = (EntryScan if is_physical else Scan)(
            spark, settings.table.path, table.version, before=before
        )
        found, others_rows = without_others(
            services, ledger, table, expected, tuple(scan.findings(expected))
        )
        doubles = tuple((f.audited, place, rows) for f in found for place, rows in scan.doubles(f))
        lives = ledger.newest.incarnations if ledger.newest else {}
        spans = {
            f.audited: span
            for f in found
            if lives.get(f.audited.log, 0) == f.audited.incarnation
            and (span := scan.doubled_span(f))
        }
        logs = tuple(_explained(services, ledgers, table, loaded, found, expected, losses))
        if others_rows:
            notes += (
                f"{others_rows:,} rows are of topics that other pipelines load into this table: they are not judged",
            )
        given_up = sum(f.given_up_rows for f in found)
        if given_up:
            notes += (
                f"{given_up:,} rows are of plans that were given up: each is there once, and whether more of them came is not asked",
            )
        of_no_log = tuple(scan.first_of_no_log()) if scan.rows_of_no_log else ()
        counted = rows_in_intervals(
            spark, settings.table.path, table.version, before, physical=is_physical
        )
        since = more_than_before(ledger.newest, counted)
        if counted:
            notes += (
                f"{sum(counted.values()):,} rows are from before plan 1: they are counted, and not judged",
            )
    return Proof(
        logs,
        doubles,
        table.version,
        notes,
        settings.transform.function,
        by_others,
        scan.rows_of_no_log,
        of_no_log,
        sum(counted.values()),
        since,
        double_spans=spans,
    )


def _compared(ledger: Ledger, table: Table | None, place: str) -> PipelineState:
    """The state of the pipeline by ledger and table, as a run would see it. Raises LedgersDisagree."""
    state = compare(ledger, table, place)
    if isinstance(state, RebuildFromTable):
        knows = ledger.newest.number if ledger.newest else "none"
        message = (
            f"The table holds plan {state.plan.number} ({state.plan.id}), ZooKeeper knows {knows}"
        )
        raise LedgersDisagree(
            message,
            action="Check with `etl run CONF --dry-run`; the next run writes the ledger anew from the table",
        )
    return state


def _nothing_there(state: PipelineState) -> str:
    if isinstance(state, (FirstRun, Replay)):
        return "nothing was applied yet"
    return "there is no table, and that was accepted: what its plans put there is given up"


def _explained(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    loaded: Sequence[Loaded],
    found: Sequence[LogFindings],
    expected: Mapping[AuditedLog, Expected],
    losses: Mapping[AuditedLog, set[Loss]],
) -> Iterator[LogProof]:
    """The findings with the reasons; only where rows are missing is anything more read."""
    short = {(f.audited, s.from_offset, s.until_offset): s for f in found for s in f.short}
    known = dict(_origins(services, loaded, short)) if short else {}
    elsewhere = {
        (audited, r.from_offset, r.until_offset)
        for audited, known_of in expected.items()
        for r, _ in known_of.elsewhere
    }
    origins = {
        place: known.get(place, Origin(s, is_elsewhere=place in elsewhere))
        for place, s in short.items()
    }
    removals, allowed = (
        _removals(services, ledgers.ledger, table, origins.values())
        if short
        else ((), frozenset[int]())
    )
    for f in found:
        is_physical = f.audited.log.is_physical
        gaps = gaps_of(
            expected.get(f.audited, Expected()), losses.get(f.audited, ()), is_physical=is_physical
        )
        mine = [origins[f.audited, s.from_offset, s.until_offset] for s in f.short]
        yield LogProof(
            f,
            gaps,
            blame(mine, removals, allowed),
            _doubt(ledgers, table, loaded, f) if f.unproven else UnprovenOffsets(),
        )


def _doubt(
    ledgers: BothLedgers, table: Table, loaded: Sequence[Loaded], found: LogFindings
) -> UnprovenOffsets:
    acknowledgement = ledgers.ledger.acknowledged
    if acknowledgement and acknowledgement.table_id == table.id:
        accepted = acknowledgement.number
    else:
        accepted = 0
    plans = {
        (r.from_offset, r.until_offset): one.plan.number
        for one in loaded
        for r in one.plan.ranges
        if audited_as(one.plan, r) == found.audited
    }
    is_physical = found.audited.log.is_physical
    return doubt_of(
        found.unproven,
        plans,
        pruned=ledgers.coverage.unproven_through,
        accepted=accepted,
        is_physical=is_physical,
    )


def _origins(
    services: LiveServices, loaded: Sequence[Loaded], short: Mapping[_Place, IncompleteInterval]
) -> Iterator[tuple[_Place, Origin]]:
    """Return whether the commit of an incomplete range held its rows."""
    from etl.io.delta.recover_results import recount_commit

    for one in loaded:
        ranges, applied = one.plan.ranges, one.applied
        places = {
            i: place
            for i, r in enumerate(ranges)
            if (place := (audited_as(one.plan, r), r.from_offset, r.until_offset)) in short
        }
        if places and not one.is_given_up:
            path, version = services.settings.table.path, applied.delta_version
            committed = recount_commit(path, version, ranges, one.plan.incarnations)
            for i, place in places.items():
                yield (
                    place,
                    origin_of(
                        short[place],
                        version,
                        applied.receipts[i],
                        committed[i] if committed else None,
                    ),
                )


def _removals(
    services: LiveServices,
    ledger: Ledger,
    table: Table,
    origins: Iterable[Origin],
) -> tuple[tuple[ForeignCommit, ...], frozenset[int]]:
    """Commits of others that removed rows, and the versions of those that policy or an operator let
    pass.
    """
    from etl.io.delta.log import open_log, removals_since
    from etl.io.delta.table import rust_path

    settings, acknowledgement = services.settings.table, ledger.acknowledged
    noted = services.ledger.read_loaded_intervals().removals
    versions = [o.delta_version for o in origins]
    known = [version for version in versions if version is not None]
    after = min(known) if known and len(known) == len(versions) else None
    logged = removals_since(
        open_log(rust_path(settings.path)), table.version, after, services.app_id
    )
    found = sorted({*logged, *noted}, key=lambda one: one.delta_version)
    accepted = accepted_version(acknowledgement, table)
    allowed = frozenset(
        one.delta_version
        for one in found
        if one in noted
        or is_let_pass(one, settings.on_rows_removed)
        or (accepted is not None and one.delta_version <= accepted)
    )
    return tuple(found), allowed
