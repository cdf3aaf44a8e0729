"""What came of a plan that is in the table: with the receipts of the run that read it, or with its
rows counted again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from etl.decide.plan import may_be_transformed
from etl.errors import TableUnreachable
from etl.io.delta.recover_results import rows_in_null_partition
from etl.io.delta.table import EVENT_DATE
from etl.io.delta.table_state import Outcome
from etl.ledger.plan_document import receipts_of
from etl.model.plans import GAPS_KEPT, CommitResult, Plan, RangeResult
from etl.model.snapshot import CommitMetadata
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from etl.io.delta.recover_results import Recount
    from etl.reader.following import Following


def applied_in_run(
    outcome: Outcome, plan: Plan, reading: Following | None, run_id: str, settings: Settings
) -> CommitResult:
    """What came of `plan`, of which this run may have read the rows itself."""
    # what this run read is what is in the table only where the append was its own: compaction may
    # lie between two readings
    was_ours = outcome.metadata is not None and outcome.metadata.run_id == run_id
    ours = reading if was_ours and reading and reading.plan_id == plan.id else None
    receipts = ours.receipts.in_order(len(plan.ranges)) if ours and ours.receipts else None
    return applied_by(outcome, plan, receipts, settings)


def applied_by(
    outcome: Outcome, plan: Plan, receipts: tuple[RangeResult, ...] | None, settings: Settings
) -> CommitResult:
    """What came of `plan`, which the outcome found in the table.

    Its commit may say what reading came to; else, without `receipts`, its rows are counted in the
    table's files.
    """
    if outcome.table is None:
        raise TableUnreachable(
            f"the table that held plan {plan.number} is gone", path=settings.table.path
        )
    version = outcome.table.version if outcome.delta_version is None else outcome.delta_version
    run_id = outcome.metadata.run_id if outcome.metadata else None
    undated = _undated(outcome.delta_version, settings)
    receipts = _with_requests(receipts_said(outcome.metadata, plan), receipts) or receipts
    if receipts is not None:
        return CommitResult(
            plan.number, plan.id, version, outcome.table.id, receipts, run_id, undated=undated
        )
    counted = count_again(plan, outcome.delta_version, settings)
    return CommitResult(
        plan.number,
        plan.id,
        version,
        outcome.table.id,
        counted.receipts,
        run_id,
        counted.uncounted,
        undated,
    )


def _with_requests(
    said: tuple[RangeResult, ...] | None, ours: tuple[RangeResult, ...] | None
) -> tuple[RangeResult, ...] | None:
    """What the commit says, with what the tasks asked of whom, which no commit keeps."""
    return (
        tuple(replace(one, requests=own.requests) for one, own in zip(said, ours, strict=True))
        if said and ours
        else said
    )


def receipts_said(metadata: CommitMetadata | None, plan: Plan) -> tuple[RangeResult, ...] | None:
    """What the plan's own commit says that reading it came to; None where it does not say."""
    said = receipts_of(metadata) if metadata is not None and metadata.plan_id == plan.id else None
    return said if said is not None and len(said) == len(plan.ranges) else None


def count_again(
    plan: Plan, delta_version: int | None, settings: Settings, *, gaps_max: int = GAPS_KEPT
) -> Recount:
    """The plan's rows in the files of that commit; without one, in the table of today, whoever put
    them there.
    """
    from etl.io.delta.recover_results import recount

    behind = may_be_transformed(plan, settings)
    return recount(
        settings.table.path,
        delta_version,
        plan.ranges,
        plan.log_epochs,
        behind_transform=behind,
        gaps_max=gaps_max,
    )


def _undated(delta_version: int | None, settings: Settings) -> int | None:
    is_asked = EVENT_DATE in settings.table.partition_by
    return (
        rows_in_null_partition(settings.table.path, delta_version, EVENT_DATE)
        if is_asked and delta_version is not None
        else None
    )
