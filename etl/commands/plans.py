"""What would the next run do, and which plans are stored?

`etl run --dry-run` uses the decisions of a run and does not start Spark, so a transform is checked as far as
possible without it. `etl plans list` and `etl plans show` read the ledger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.decide.lag import Expiring, expiring, lag_in_all, reached
from etl.decide.next_step import Action, NextStep, steps_ahead
from etl.decide.plan import tasks_of_plan
from etl.decide.table_rules import not_there
from etl.decide.table_storage import describe_time_zones
from etl.decide.tasks import bytes_of
from etl.errors import NotOurTable, Owned, SettingsError
from etl.io.delta.append import Takes
from etl.io.delta.table import open_table
from etl.ledger.plan_document import reject_oversized_plan
from etl.model.plans import OffsetRange, Plan, Request
from etl.model.snapshot import Snapshot
from etl.report.describe import (
    at,
    describe_by_owner,
    describe_cluster_id,
    describe_leaderless,
    describe_open,
    describe_purpose,
    describe_skipped,
)
from etl.report.lag import describe_paused
from etl.report.plan_json import describe_done_before, describe_plan
from etl.run.rows import check_rows, check_without_spark, writer_of
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_services
from etl.settings.sections import Settings


def list_plans(settings: Settings) -> list[dict[str, Any]]:
    """The stored plans, ascending."""
    rows = []
    with open_services(settings, ALONE) as services:
        for number in services.ledger.plan_numbers():
            plan = services.ledger.read_plan(number)
            if plan is None:
                continue
            applied = services.ledger.read_record_of(plan)
            rows.append(
                {
                    "number": number,
                    "id": plan.id,
                    "kind": plan.kind.value,
                    "created_at": at(plan.created_at_ms),
                    "run_key": plan.run_key,
                    "bounds": plan.bounds.said or None,
                    "ranges": len(plan.ranges),
                    "offsets": sum(r.size for r in plan.ranges),
                    "unit": next((f"{log.unit}s" for log in plan.positions), "offsets"),
                    "rows": applied.rows if applied else None,
                    "table_version": applied.delta_version if applied else None,
                }
            )
    return rows


def show_plan(settings: Settings, number: int | None) -> dict[str, Any]:
    """One plan, the newest where no number is given. Raises SettingsError when it is not stored."""
    with open_services(settings, ALONE) as services:
        numbers = services.ledger.plan_numbers()
        wanted = number or (numbers[-1] if numbers else 0)
        plan = services.ledger.read_plan(wanted) if wanted in numbers else None
        if plan is None:
            if numbers:
                stored = f"Plans {numbers[0]} to {numbers[-1]} are stored"
            else:
                stored = "This pipeline has made no plan yet"
            check = "Check with `etl plans list`; older ones live on in the coverage"
            raise SettingsError(
                f"Plan {wanted} is not there: {stored}" if wanted else stored, action=check
            )
        return describe_plan(plan, services.ledger.read_applied(wanted))


_UNTRIED = "what the transform makes of rows is not looked at here, for that takes Spark: `etl doctor` tries it"


@dataclass(frozen=True, slots=True)
class Preview:
    """What the next run would do."""

    says: str
    plans: tuple[Plan, ...]
    """The plans it would execute, in order: a stored one, and its own."""
    snapshot: Snapshot
    tasks: tuple[int, int]
    """At least and at most: the same where it is known how many of them Spark works on at once."""
    lag: int = 0
    """Readable offsets that are not in the table yet, of partitions with a known end."""
    left: tuple[str, ...] = ()
    """Which logs it would leave to their owners, a sentence for each owner."""
    leaderless: tuple[str, ...] = ()
    """Partitions without a leader that it would leave out, a sentence for each topic."""
    paused: tuple[str, ...] = ()
    """Which logs are paused, a sentence for what each command paused."""
    expires_soon: tuple[Expiring, ...] = ()
    not_checked: tuple[str, ...] = ()
    """What may still stop the run."""

    @property
    def open_transactions(self) -> tuple[str, ...]:
        """Which logs an open transaction holds back, a sentence for each topic."""
        return tuple(describe_open(self.snapshot))

    @property
    def let_go(self) -> tuple[str, ...]:
        """Which offsets it would let go, by `source.on_data_loss`, an offset that was moved or an
        operator's decision.
        """
        return tuple(describe_skipped(loss for plan in self.plans for loss in plan.losses))

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges that would be read."""
        return tuple(r for plan in self.plans for r in plan.ranges)

    def as_json(self) -> dict[str, Any]:
        """The document of `etl run --dry-run`."""
        sizes, is_physical = (
            self.snapshot.bytes_per_offset,
            any(r.log.is_physical for r in self.ranges),
        )
        return {
            "message": self.says,
            "records_at_most": None if is_physical else sum(r.size for r in self.ranges),
            "estimated_bytes": round(bytes_of(self.ranges, sizes)),
            "bytes_are_assumed": any(
                r.log not in sizes and not r.log.is_physical for r in self.ranges
            ),
            "tasks": self.tasks[0] if self.tasks[0] == self.tasks[1] else None,
            "tasks_at_least": self.tasks[0],
            "tasks_at_most": self.tasks[1],
            "left_to_owners": list(self.left),
            "leaderless": list(self.leaderless),
            "paused": list(self.paused),
            "expires_soon": [str(one) for one in self.expires_soon],
            "open_transactions": list(self.open_transactions),
            "lag": self.lag,
            "not_checked": list(self.not_checked),
            "least_headroom": min(
                (
                    r.from_offset - self.snapshot.extents[r.log].log_start_offset
                    for r in self.ranges
                    if r.log in self.snapshot.extents
                ),
                default=None,
            ),
            **{
                field: [
                    {"plan": plan.number, **r}
                    for plan in self.plans
                    for r in describe_plan(plan, None)[field]
                ]
                for field in ("ranges", "losses")
            },
        }


def preview(settings: Settings, request: Request | None = None) -> Preview:
    """Return what the next run would do, by its own decisions; nothing is stored or moved."""
    with open_services(settings, ALONE, request=request) as services:
        return with_transform_checked(preview_of(services.observe(), settings), settings)


def reject_before_creating_table(settings: Settings, request: Request | None = None) -> None:
    """Raise what a run would raise that creates this table in its catalog, as far as possible, so
    that none is created then.

    The catalog itself rejects what is at the location; owners are reported by the run, which may
    wait for them. Raises NotOurTable for a pipeline that has plans: their table was another one.
    """
    if _is_taken(settings.table.path):
        return
    by_path = settings.model_copy(
        update={"table": settings.table.model_copy(update={"name": None})}
    )  # a named one would be gone
    with open_services(by_path, ALONE, request=request) as services, contextlib.suppress(Owned):
        snapshot = services.observe()
        if snapshot.ledger.newest is not None:
            raise not_there(settings.table.called)
        for plan in preview_of(snapshot, by_path).plans:
            services.reject_unwritable(plan)


def _is_taken(path: str) -> bool:
    try:
        return open_table(path) is not None
    except NotOurTable:
        return True


def with_transform_checked(found: Preview, settings: Settings) -> Preview:
    """Return the preview if the table accepts the rows and the transform exists. Raises as the run."""
    for plan in found.plans:
        check_rows(plan, settings)
    if not settings.transform.dataframe or not any(
        _takes_rows_of_spark(plan, settings) for plan in found.plans
    ):
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
    soon = expiring(
        [r for plan in plans for r in plan.ranges],
        snapshot,
        within_s=settings.source.expiry_warning_s,
        now_ms=now,
    )
    first = steps[0]
    by_id = "".join(
        f"; {cluster_sentence}"
        for plan in plans[-1:]
        if (cluster_sentence := describe_cluster_id(plan, snapshot.ledger.newest))
    )
    by_id += "".join(
        f"; {cluster_sentence}"
        for plan in plans[:1]
        for cluster_sentence in describe_time_zones(plan, snapshot)
    )
    lag = lag_in_all(snapshot, reached(first.state, snapshot), settings) if first.state else 0
    return Preview(
        f"the next run {'; then it '.join(map(_said, steps))}{by_id}",
        plans,
        snapshot,
        tasks,
        lag,
        tuple(describe_by_owner(first.snapshot.owners)),
        tuple(describe_leaderless(first.snapshot.leaderless, snapshot.leaders)),
        tuple(describe_paused(snapshot, now_ms=now)),
        soon,
    )


def _tasks(
    plans: Sequence[Plan], snapshot: Snapshot, settings: Settings, now: int
) -> tuple[int, int]:
    """How many tasks a run will have, at least and at most; the same where it is known how many
    work at once.
    """

    def packed(parallelism: int) -> int:
        return sum(
            len(tasks_of_plan(plan, snapshot, settings, parallelism=parallelism, now_ms=now).tasks)
            for plan in plans
        )

    most = sum(len(plan.ranges) for plan in plans)
    return packed(snapshot.parallelism or 1), packed(snapshot.parallelism or max(1, most))


def _said(step: NextStep) -> str:
    """One step, as the end of a sentence about the run."""
    text = _action_said(step)
    if step.repair and step.repair.offsets:
        text = f"first moves {len(step.repair.offsets)} offsets of plan {step.repair.plan.number}; {text}"
    if step.repair and step.repair.adopts:
        text = f"first takes over plan {step.repair.adopts.number} from the table, then {text}"
    return text


def _action_said(step: NextStep) -> str:
    plan = step.plan
    if plan is None:
        if step.done_before:
            return f"does nothing: {describe_done_before(step.done_before)}"
        return "finds nothing new"
    if step.action is Action.REPLAY:
        return f"replays plan {plan.number}, which is stored and not in the table"
    if step.action is Action.SUPERSEDE:
        return f"supersedes plan {plan.number}: {step.reason}"
    return f"makes plan {plan.number}" + (
        "" if plan.ranges else f", which {describe_purpose(plan)}"
    )
