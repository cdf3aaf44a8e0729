"""Which rows should the table hold, by the ledgers?

Lives here: the plans that led to the table, the loaded intervals of pruned plans and the lost
offsets, of the pipeline and its backfills, at one version of the table.
Not here: the rows of the table, and the comparison (etl/commands/verify.py).

A backfill's ledger is read after that version is known. Each plan is stored before its commit, so
the plans of all commits up to the version are known; later commits are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from etl.audit.compare_rows import (
    AuditedPartition,
    Expected,
    replaced_expected,
    without_reloaded,
)
from etl.decide.loaded_intervals import (
    Ancestry,
    ancestry,
    merged_holes,
    result_of_unknown_plan,
    spans_of,
    subtract_intervals,
)
from etl.decide.plan import may_be_transformed
from etl.errors import LedgersDisagree, Owned
from etl.model.columns import names_of_key
from etl.model.plans import CommitResult, Loss, LossReason, OffsetRange, Plan, PlanKind, RangeResult
from etl.model.snapshot import Ledger, LoadedIntervals, Table
from etl.report.describe import describe_jafka_proof, describe_stale_rows
from etl.run.live_services import LiveServices
from etl.settings.sections import Settings

_READS_MAX = 3


@dataclass(frozen=True, slots=True)
class BothLedgers:
    """The ledger in ZooKeeper and the table's state, with the kept plans."""

    ledger: Ledger
    table: Table | None
    kept: tuple[tuple[Plan, CommitResult | None], ...]
    """The stored plans that are not pruned, each with its recorded result."""
    loaded: LoadedIntervals


def read_both_ledgers(services: LiveServices) -> BothLedgers:
    """Read both ledgers, and again if a run stored or pruned plans meanwhile. Raises Owned."""
    for _ in range(_READS_MAX):
        before = services.ledger.mark()
        ledger = services.ledger.read_ledger()
        table = services.read_table(ledger)
        plans = []
        for plan in services.ledger.read_plans():
            plans.append((plan, services.ledger.read_record_of(plan)))
        # after the plans: it has the plans that are pruned meanwhile, and each counts once
        loaded = services.ledger.read_loaded_intervals()
        if services.ledger.mark() == before:
            kept = []
            for plan, recorded in plans:
                if plan.number > loaded.through:
                    kept.append((plan, recorded))
            return BothLedgers(ledger, table, tuple(kept), loaded)
    raise Owned(
        "Runs of this pipeline change its ledger while it is read",
        action="Run this command again",
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kept plan and the result of its commit."""

    plan: Plan
    applied: CommitResult
    was_recorded: bool
    """False: the ledger had no result, and the rows were counted from the commit's files."""
    is_given_up: bool
    """The commit went to another table, or to a state of this one that an old copy replaced, and an
    operator accepted that.
    """


def loaded_plans(
    services: LiveServices, ledgers: BothLedgers, table: Table
) -> tuple[list[Loaded], Ancestry]:
    """Return the kept plans that were applied, and which of all plans led to the table.

    Raises LedgersDisagree if the table holds another plan of the same number.
    """
    versions = {plan.number: plan.table.transaction_version for plan, _ in ledgers.kept}
    led = ancestry(versions, table.transaction_version or 0)
    newest = max(versions, default=0)
    found = []
    for plan, recorded in ledgers.kept:
        if recorded is None and plan.number not in led.numbers:
            continue
        if recorded is None and plan.number < newest:
            unknown = result_of_unknown_plan(plan)
            found.append(Loaded(plan, unknown, was_recorded=True, is_given_up=True))
            continue
        applied = recorded or services.recount(plan)
        if applied is None:
            raise LedgersDisagree(
                f"The table holds another plan {plan.number} than ZooKeeper",
                path=services.settings.table.path,
                action=(
                    "Check with `etl run CONF --dry-run`. "
                    "The next run continues with the table's plan"
                ),
            )
        applied = _with_transform(plan, applied, services.settings)
        is_given_up = plan.number not in led.numbers or applied.table_id != table.id
        found.append(Loaded(plan, applied, recorded is not None, is_given_up))
    return found, led


def _expected_of_pruned(
    loaded: LoadedIntervals, table: Table, led: Ancestry
) -> dict[AuditedPartition, Expected]:
    """Return the intervals of pruned plans.

    Their rows are required only if all of these plans led to this table.
    """
    held_through = loaded.held_through
    if held_through is None:
        held_through = loaded.through
    is_required = loaded.table_id in (None, table.id) and held_through <= led.before
    expected: dict[AuditedPartition, Expected] = {}
    for partition, intervals in loaded.intervals.items():
        for interval in intervals:
            audited = AuditedPartition(partition, interval.incarnation)
            known = expected.get(audited, Expected())
            if is_required:
                expected[audited] = replace(known, loaded=(*known.loaded, interval))
            else:
                expected[audited] = replace(known, given_up=(*known.given_up, interval))
    for partition, intervals in loaded.given_up.items():
        for interval in intervals:
            audited = AuditedPartition(partition, interval.incarnation)
            known = expected.get(audited, Expected())
            expected[audited] = replace(known, given_up=(*known.given_up, interval))
    return expected


def expected_rows(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    loaded: Sequence[Loaded],
    led: Ancestry,
) -> tuple[dict[AuditedPartition, Expected], dict[AuditedPartition, set[Loss]], tuple[str, ...]]:
    """Return the rows that the table should hold, the losses, and notes for people."""
    from etl.io.delta.losses import read_losses, recorded

    settings = services.settings
    notes: list[str] = []
    path = settings.table.losses_at
    if settings.transform.function:
        key = names_of_key(physical=settings.source.is_physical)
        notes.append(
            f"the pipeline has a transform: the proof is valid if the transform keeps {key}"
        )
    if settings.source.is_physical:
        recounted = []
        for one in loaded:
            if one.plan.ranges and one.applied.is_recounted:
                recounted.append(one.plan.number)
        notes.append(describe_jafka_proof(recounted))
    all_losses = set[Loss]()
    if ledgers.ledger.uid:
        all_losses.update(read_losses(path, uid=ledgers.ledger.uid))
    expected = _expected_of_pruned(ledgers.loaded, table, led)
    read_by_others = list(ledgers.loaded.read_by_others)
    vanished = list(ledgers.loaded.vanished)
    for one in loaded:
        plan = one.plan
        if not one.was_recorded:
            notes.append(
                f"plan {plan.number} has no recorded results, so its rows were counted from the "
                "commit's files: the next run records the results"
            )
        if not recorded(plan, app_id=services.app_id, path=path):
            notes.append(
                f"the lost offsets of plan {plan.number} are not in the losses table: "
                "the next run records them"
            )
        all_losses.update(plan.losses.lost)
        read_by_others += plan.losses.read_by_others
        vanished += plan.losses.stale_rows
        _add_plan(expected, one, is_counted=not ledgers.loaded.removals)
    for hole in merged_holes(read_by_others):
        audited = AuditedPartition(hole.partition, hole.incarnation)
        known = expected.get(audited, Expected())
        interval = (hole.from_offset, hole.until_offset)
        expected[audited] = replace(known, read_by_others=(*known.read_by_others, interval))
    losses: dict[AuditedPartition, set[Loss]] = {}
    for loss in all_losses:
        audited = AuditedPartition(loss.partition, loss.incarnation)
        known = expected.setdefault(audited, Expected())
        losses.setdefault(audited, set()).update(still_lost(loss, known))
    notes += describe_stale_rows(vanished)
    return expected, losses, tuple(notes)


def still_lost(loss: Loss, expected: Expected) -> list[Loss]:
    """Return the parts of a loss that were not loaded later, after an operator set offsets back.

    At offsets of a truncated partition other records were loaded: the loss stays.
    """
    if loss.why is LossReason.TRUNCATED:
        return [loss]
    loaded = [
        *((interval.from_offset, interval.until_offset) for interval in expected.loaded),
        *((r.from_offset, r.until_offset) for r, _ in expected.ranges),
    ]
    left = []
    for start, until in subtract_intervals((loss.from_offset, loss.until_offset), loaded):
        left.append(replace(loss, from_offset=start, until_offset=until))
    return left


def _add_plan(expected: dict[AuditedPartition, Expected], one: Loaded, *, is_counted: bool) -> None:
    """Add the plan's ranges to the expected rows.

    Rows of a replay replace those of earlier plans, unless the replay was given up itself.
    """
    pairs_of: dict[AuditedPartition, list[tuple[OffsetRange, RangeResult]]] = {}
    for r, result in zip(one.plan.ranges, one.applied.results, strict=True):
        pairs_of.setdefault(incarnation_of_range(one.plan, r), []).append((r, result))
    spans = {}
    for span in spans_of(one.plan, is_counted=is_counted):
        spans[AuditedPartition(span.partition, span.incarnation)] = span
    for audited, pairs in pairs_of.items():
        known = expected.get(audited, Expected())
        if one.is_given_up:
            expected[audited] = replace(known, elsewhere=(*known.elsewhere, *pairs))
        elif one.plan.kind is PlanKind.REPLAY:
            expected[audited] = replaced_expected(known, spans[audited], pairs)
        else:
            expected[audited] = replace(known, applied=(*known.applied, *pairs))


def incarnation_of_range(plan: Plan, r: OffsetRange) -> AuditedPartition:
    """Return the incarnation of the partition that the range reads."""
    return AuditedPartition(r.partition, plan.incarnations.get(r.partition, 0))


def _with_transform(plan: Plan, applied: CommitResult, settings: Settings) -> CommitResult:
    """Return the result, marked as counted after a transform if it was.

    An older version did not record that.
    """
    if not may_be_transformed(plan, settings):
        return applied
    results = []
    for result in applied.results:
        if result.fetched_bytes is None:
            results.append(replace(result, behind_transform=True))
        else:
            results.append(result)
    return replace(applied, results=tuple(results))


# -- all rows of the pipeline


@dataclass(frozen=True, slots=True)
class ExpectedOfAll:
    """The rows that the pipeline should have loaded."""

    loaded: tuple[Loaded, ...]
    rows: dict[AuditedPartition, Expected]
    losses: dict[AuditedPartition, set[Loss]]
    """Losses, without offsets that were loaded later."""
    notes: tuple[str, ...]


def expected_of_all(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    loaded: Sequence[Loaded],
    led: Ancestry,
) -> ExpectedOfAll:
    """Return the expected rows of the pipeline. Raises as `expected_rows`."""
    rows, losses, notes = expected_rows(services, ledgers, table, loaded, led)
    once = {audited: without_reloaded(found, audited) for audited, found in rows.items()}
    return ExpectedOfAll(tuple(loaded), once, _never_loaded(losses, rows), notes)


def _never_loaded(
    losses: Mapping[AuditedPartition, set[Loss]], rows: Mapping[AuditedPartition, Expected]
) -> dict[AuditedPartition, set[Loss]]:
    """Return the losses without offsets that the pipeline loaded later."""
    left: dict[AuditedPartition, set[Loss]] = {}
    for audited, lost in losses.items():
        parts = left.setdefault(audited, set())
        for loss in lost:
            parts.update(still_lost(loss, rows.get(audited, Expected())))
    return left
