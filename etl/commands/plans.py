"""What would the next run do, and which plans are stored?

`etl run --dry-run` uses the decisions of a run and does not start Spark, so a transform is checked
as far as possible without it. `etl plans list` and `etl plans show` read the ledger.

Not here: replacing a stored plan (operator_decisions.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.decide.lag import Expiring, find_expiring, progress_of, progress_of_table, total_lag
from etl.decide.next_step import Action, NextStep, steps_ahead
from etl.decide.plan import tasks_of_plan
from etl.decide.table_rules import unknown_name_error
from etl.decide.tasks import bytes_of
from etl.decide.time_zones import describe_time_zones
from etl.errors import NotOurTable, Owned, SettingsError
from etl.io.delta.append import Takes
from etl.io.delta.table_shape import open_table
from etl.ledger.plan_document import reject_oversized_plan
from etl.model.plans import CommitResult, Loss, OffsetRange, Plan, Request
from etl.model.snapshot import Snapshot
from etl.report.describe import (
    describe_by_owner,
    describe_cluster_id,
    describe_done_before,
    describe_leaderless,
    describe_open,
    describe_purpose,
    describe_skipped,
    format_time,
)
from etl.report.lag import describe_paused
from etl.report.report_json import describe_plan
from etl.run.open_services import open_services
from etl.run.read_rows import check_rows, check_without_spark, writer_of
from etl.run.run_context import ALONE
from etl.run.service_interfaces import now_ms
from etl.settings.sections import Settings


def list_plans(settings: Settings) -> list[dict[str, Any]]:
    """Return the stored plans, ascending by number."""
    rows = []
    with open_services(settings, ALONE) as services:
        for number in services.ledger.plan_numbers():
            plan = services.ledger.read_plan(number)
            if plan is None:
                continue
            applied = services.ledger.read_record_of(plan)
            rows.append(_describe_in_list(plan, applied))
    return rows


def _describe_in_list(plan: Plan, applied: CommitResult | None) -> dict[str, Any]:
    unit = "bytes" if plan.is_physical else "offsets"
    return {
        "number": plan.number,
        "id": plan.id,
        "kind": plan.kind.value,
        "reason": plan.origin.reason,
        "supersedes": plan.origin.supersedes,
        "created_at": format_time(plan.origin.created_at_ms),
        "run_key": plan.request.run_key,
        "bounds": plan.request.bounds.said or None,
        "ranges": len(plan.ranges),
        "offsets": sum(r.size for r in plan.ranges),
        "unit": unit,
        "records": applied.records_read if applied else None,
        "rows": applied.rows if applied else None,
        "table_version": applied.delta_version if applied else None,
    }


def show_plan(settings: Settings, number: int | None) -> dict[str, Any]:
    """Return one plan; without a number the newest. Raises SettingsError if it is not stored."""
    with open_services(settings, ALONE) as services:
        numbers = services.ledger.plan_numbers()
        if number:
            wanted = number
        else:
            wanted = numbers[-1] if numbers else 0
        plan = None
        if wanted in numbers:
            plan = services.ledger.read_plan(wanted)
        if plan is None:
            raise _not_stored(wanted, numbers)
        return describe_plan(plan, services.ledger.read_applied(wanted))


def _not_stored(wanted: int, numbers: Sequence[int]) -> SettingsError:
    message = "This pipeline has made no plan yet"
    if numbers:
        message = f"Plans {numbers[0]} to {numbers[-1]} are stored"
    if wanted:
        message = f"Plan {wanted} is not stored: {message}"
    return SettingsError(
        message,
        action="Check with `etl plans list`. The ledger keeps only the loaded intervals of older "
        "plans",
    )


_UNTRIED = (
    "the rows of the transform are not checked here, because that needs Spark: `etl doctor` "
    "checks them"
)


@dataclass(frozen=True, slots=True)
class Preview:
    """What the next run would do."""

    summary: str
    plans: tuple[Plan, ...]
    """The plans to execute, in order: a stored one, and the new one."""
    snapshot: Snapshot
    tasks: tuple[int, int]
    """Smallest and largest number of tasks; equal if the parallelism of Spark is known."""
    lag: int = 0
    """Readable offsets that are not in the table, of partitions with a known end."""
    left: tuple[str, ...] = ()
    """Partitions left to their owners, a sentence per owner."""
    leaderless: tuple[str, ...] = ()
    """Partitions without a leader that are left out, a sentence per topic."""
    paused: tuple[str, ...] = ()
    """Paused partitions, a sentence per pause command."""
    expires_soon: tuple[Expiring, ...] = ()
    not_checked: tuple[str, ...] = ()
    """Checks that only a run makes."""

    @property
    def open_transactions(self) -> tuple[str, ...]:
        """Describe partitions with an open transaction, a sentence per topic."""
        return tuple(describe_open(self.snapshot))

    @property
    def let_go(self) -> tuple[str, ...]:
        """Describe offsets that the plans record as lost.

        Reasons: `source.on_data_loss`, a committed offset that was moved, or an operator's
        decision.
        """
        losses: list[Loss] = []
        for plan in self.plans:
            losses += plan.losses.lost
        return tuple(describe_skipped(losses))

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """Return the ranges of all plans."""
        ranges: list[OffsetRange] = []
        for plan in self.plans:
            ranges += plan.ranges
        return tuple(ranges)

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl run --dry-run`."""
        ranges = self.ranges
        sizes = self.snapshot.bytes_per_offset
        max_records = None
        if not any(r.partition.is_physical for r in ranges):
            max_records = sum(r.size for r in ranges)
        assumed = [r for r in ranges if r.partition not in sizes and not r.partition.is_physical]
        fewest, most = self.tasks
        ranges_document: list[dict[str, Any]] = []
        losses_document: list[dict[str, Any]] = []
        for plan in self.plans:
            described = describe_plan(plan, None)
            ranges_document += [{"plan": plan.number, **r} for r in described["ranges"]]
            losses_document += [{"plan": plan.number, **loss} for loss in described["losses"]]
        return {
            "message": self.summary,
            "records_at_most": max_records,
            "estimated_bytes": round(bytes_of(ranges, sizes)),
            "bytes_are_assumed": bool(assumed),
            "tasks": fewest if fewest == most else None,
            "tasks_at_least": fewest,
            "tasks_at_most": most,
            "left_to_owners": list(self.left),
            "leaderless": list(self.leaderless),
            "paused": list(self.paused),
            "expires_soon": [str(one) for one in self.expires_soon],
            "open_transactions": list(self.open_transactions),
            "lag": self.lag,
            "not_checked": list(self.not_checked),
            "least_headroom": self._least_headroom(),
            "ranges": ranges_document,
            "losses": losses_document,
        }

    def _least_headroom(self) -> int | None:
        """Return the smallest distance of a range from its log start; None if all are unknown."""
        distances = []
        for r in self.ranges:
            offsets = self.snapshot.readable.get(r.partition)
            if offsets is not None:
                distances.append(r.from_offset - offsets.log_start_offset)
        return min(distances, default=None)


def preview(settings: Settings, request: Request | None = None) -> Preview:
    """Return what the next run would do, by its own decisions; nothing is stored or moved."""
    with open_services(settings, ALONE, request=request) as services:
        return with_transform_checked(preview_of(services.observe(), settings), settings)


def reject_before_creating_table(settings: Settings, request: Request | None = None) -> None:
    """Raise the errors of a run before it creates the table in its catalog.

    The catalog itself rejects an occupied location. The run reports owners, since it may wait for
    them. Raises NotOurTable for a pipeline that has plans: their table was another one.
    """
    if _is_taken(settings.table.path):
        return
    # Without a name, since a named table that is missing is an error.
    table = settings.table.model_copy(update={"name": None})
    by_path = settings.model_copy(update={"table": table})
    with open_services(by_path, ALONE, request=request) as services, contextlib.suppress(Owned):
        snapshot = services.observe()
        if snapshot.ledger.newest is not None:
            raise unknown_name_error(settings.table.called)
        for plan in preview_of(snapshot, by_path).plans:
            services.reject_unwritable(plan)


def _is_taken(path: str) -> bool:
    try:
        return open_table(path) is not None
    except NotOurTable:
        return True


def with_transform_checked(found: Preview, settings: Settings) -> Preview:
    """Return the preview if the table accepts the rows and the transform exists.

    Raises as a run.
    """
    for plan in found.plans:
        check_rows(plan, settings)
    if not settings.transform.dataframe:
        return found
    if not any(_takes_rows_of_spark(plan, settings) for plan in found.plans):
        return found
    check_without_spark(settings)
    return replace(found, not_checked=(_UNTRIED,))


def _takes_rows_of_spark(plan: Plan, settings: Settings) -> bool:
    return writer_of(plan, settings).writer.takes is Takes.DATA_FRAME


def preview_of(snapshot: Snapshot, settings: Settings) -> Preview:
    """Return what a run with this snapshot would do."""
    now = now_ms()
    steps = steps_ahead(snapshot, settings, now_ms=now, uid="unnamed")
    plans = tuple(step.plan for step in steps if step.plan)
    for plan in plans:
        reject_oversized_plan(plan)
    tasks = _tasks(plans, snapshot, settings, now)
    ranges: list[OffsetRange] = []
    for plan in plans:
        ranges += plan.ranges
    expires_soon = find_expiring(
        ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now
    )
    notes = []
    if plans:
        cluster_sentence = describe_cluster_id(plans[-1], snapshot.ledger.newest)
        if cluster_sentence:
            notes.append(cluster_sentence)
        notes += describe_time_zones(plans[0], snapshot)
    first = steps[0]
    so_far = progress_of_table(snapshot, settings)
    lag = 0
    if first.state:
        so_far = progress_of(first.state, snapshot)
        lag = total_lag(snapshot, so_far, settings)
    summary = "the next run " + "; then it ".join(_describe_step(step) for step in steps)
    return Preview(
        "; ".join([summary, *notes]),
        plans,
        snapshot,
        tasks,
        lag,
        left=tuple(describe_by_owner(first.snapshot.owners)),
        leaderless=tuple(describe_leaderless(first.snapshot.leaderless, snapshot.leaders)),
        paused=tuple(describe_paused(snapshot, so_far, settings, now_ms=now)),
        expires_soon=expires_soon,
    )


def _tasks(
    plans: Sequence[Plan], snapshot: Snapshot, settings: Settings, now: int
) -> tuple[int, int]:
    """Return the smallest and largest number of tasks; equal if the parallelism is known."""

    def count(parallelism: int) -> int:
        number = 0
        for plan in plans:
            packed = tasks_of_plan(plan, snapshot, settings, parallelism=parallelism, now_ms=now)
            number += len(packed.tasks)
        return number

    if snapshot.parallelism:
        known = count(snapshot.parallelism)
        return known, known
    ranges = sum(len(plan.ranges) for plan in plans)
    return count(1), count(max(1, ranges))


def _describe_step(step: NextStep) -> str:
    """Describe one step, as the end of a sentence about the run."""
    text = _describe_action(step)
    repair = step.repair
    if repair and repair.offsets:
        count = len(repair.offsets)
        text = f"first moves {count} offsets of plan {repair.plan.number}; {text}"
    if repair and repair.adopts:
        text = f"first takes over plan {repair.adopts.number} from the table, then {text}"
    return text


def _describe_action(step: NextStep) -> str:
    plan = step.plan
    if plan is None:
        done_before = step.request.done_before
        if done_before:
            return f"does nothing: {describe_done_before(done_before)}"
        return "finds nothing new"
    if step.action is Action.RESUME:
        return f"executes plan {plan.number}, which is stored and not in the table"
    if step.action is Action.SUPERSEDE:
        return f"supersedes plan {plan.number}: {step.reason}"
    if plan.ranges:
        return f"makes plan {plan.number}"
    return f"makes plan {plan.number}, which {describe_purpose(plan)}"
