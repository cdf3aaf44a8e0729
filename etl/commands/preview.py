"""`etl plan`: what the next run would do, decided by the very functions a run uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etl.decisions.expiry import Expiring, expiring
from etl.decisions.lag import lag_in_all, reached
from etl.decisions.ownership import leave_to_owners, refuse_owned_ranges
from etl.decisions.plan import plan_next
from etl.decisions.reconcile import where_we_stand
from etl.decisions.refusals import refuse_what_cannot_run
from etl.decisions.replacement import plan_instead
from etl.decisions.replay import replay_or_supersede
from etl.decisions.tasks import ASSUMED_BYTES_PER_OFFSET, pack_tasks
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import RebuildFromTable, UpToDate, Replay, Snapshot, PipelineState, Supersede
from etl.protocol.zookeeper.commit_metadata import refuse_too_large
from etl.report.plan_json import describe_plan
from etl.report.sentences import told_by_owner, told_leaderless, told_let_go, told_open, told_purpose
from etl.run.context import ALONE, now_ms
from etl.run.wiring import open_world
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Preview:
    """What the next run would do."""

    says: str
    plans: tuple[Plan, ...]
    """What it would execute, in that order: a plan that is left, and one of its own."""
    snapshot: Snapshot
    tasks: tuple[int, int]
    """At least and at most: the same where it is known how many of them Spark works on at once."""
    lag: int = 0
    """Offsets that could be read and are not in the table yet, of all partitions whose end is known."""
    left: tuple[str, ...] = ()
    """Which logs it would leave to their owners, a sentence for each owner."""
    leaderless: tuple[str, ...] = ()
    """Which logs it would leave out because nobody leads them, a sentence for each topic."""
    expires_soon: tuple[Expiring, ...] = ()

    @property
    def open_transactions(self) -> tuple[str, ...]:
        """Which logs an open transaction holds back, a sentence for each topic."""
        return tuple(told_open(self.snapshot))

    @property
    def let_go(self) -> tuple[str, ...]:
        """Which offsets it would let go, by `source.on_data_loss`, an offset that was moved or an operator's decision."""
        return tuple(told_let_go(loss for plan in self.plans for loss in plan.losses))

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges that would be read."""
        return tuple(r for plan in self.plans for r in plan.ranges)

    def as_json(self) -> dict[str, Any]:
        """The document of `etl plan`."""
        cost = self.snapshot.bytes_per_offset
        return {
            "says": self.says,
            "records_at_most": sum(r.size for r in self.ranges),
            "estimated_bytes": round(sum(r.size * cost.get(r.log, ASSUMED_BYTES_PER_OFFSET) for r in self.ranges)),
            "bytes_are_assumed": any(r.log not in cost for r in self.ranges),
            "tasks": self.tasks[0] if self.tasks[0] == self.tasks[1] else None,
            "tasks_at_least": self.tasks[0], "tasks_at_most": self.tasks[1],
            "left_to_owners": list(self.left), "leaderless": list(self.leaderless),
            "expires_soon": [str(one) for one in self.expires_soon], "open_transactions": list(self.open_transactions),
            "lag": self.lag,
            "least_headroom": min((r.from_offset - self.snapshot.extents[r.log].log_start_offset
                                   for r in self.ranges if r.log in self.snapshot.extents), default=None),
            **{what: [{"plan": plan.number, **r} for plan in self.plans for r in describe_plan(plan, None)[what]]
               for what in ("ranges", "losses")},
        }


def preview(settings: Settings) -> Preview:
    """What the next run would do, decided by the very functions a run uses; nothing is stored or moved."""
    with open_world(settings, ALONE) as world:
        return preview_of(world.observe(), settings)


def preview_of(snapshot: Snapshot, settings: Settings) -> Preview:
    """What a run would do that saw this."""
    refuse_what_cannot_run(snapshot)
    left = leave_to_owners(snapshot, settings)
    state = where_we_stand(snapshot, settings)
    says, plans = _next(left, state, settings)
    for plan in plans:
        refuse_too_large(plan)
    tasks = _tasks(plans, snapshot, settings)
    ranges = [r for plan in plans for r in plan.ranges]
    soon = expiring(ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms())
    return Preview(
        says, plans, snapshot, tasks, lag_in_all(snapshot, reached(state, snapshot), settings), tuple(told_by_owner(left.owners)),
        tuple(told_leaderless(left.leaderless)), soon)


def _tasks(plans: Sequence[Plan], snapshot: Snapshot, settings: Settings) -> tuple[int, int]:
    """How many tasks a run will have, at least and at most; the same where it is known how many work at once."""
    def packed(parallelism: int) -> int:
        target = settings.limits.target_task_bytes
        return sum(len(pack_tasks(plan.ranges, snapshot.bytes_per_offset, target, parallelism)) for plan in plans)

    most = sum(len(plan.ranges) for plan in plans)
    return packed(snapshot.parallelism or 1), packed(snapshot.parallelism or max(1, most))


def _next(snapshot: Snapshot, state: PipelineState, settings: Settings) -> tuple[str, tuple[Plan, ...]]:
    """What the next run would do, in a sentence, and the plans that it would execute."""
    if isinstance(state, (Replay, Supersede)):
        refuse_owned_ranges(state.plan, snapshot)
    if isinstance(state, Replay):
        state = replay_or_supersede(state, snapshot, settings)
    if isinstance(state, Replay):
        says = f"the next run replays plan {state.plan.number}, which is stored and not in the table"
        return _and_then(says, state.plan, snapshot, settings)
    if isinstance(state, Supersede):
        instead = plan_instead(state, snapshot, settings, now_ms=now_ms())
        return _and_then(f"the next run supersedes plan {instead.number}: {state.reason}", instead, snapshot, settings)
    if isinstance(state, RebuildFromTable):
        says, plans = _next(snapshot, state.state, settings)
        return f"the next run first takes over plan {state.plan.number} from the table, then {says.removeprefix('the next run ')}", plans
    plan = plan_next(snapshot, state, settings, uid=snapshot.ledger.uid or "unnamed", now_ms=now_ms())
    repair = f"the next run first moves {len(state.uncommitted)} offsets of plan {state.last.number}; " if (
        isinstance(state, UpToDate) and state.uncommitted) else "the next run "
    if plan is None:
        return repair + "finds nothing new", ()
    if not plan.ranges:
        return repair + f"makes plan {plan.number}, which {told_purpose(plan)}", (plan,)
    return repair + f"makes plan {plan.number}", (plan,)


def _and_then(says: str, left: Plan, snapshot: Snapshot, settings: Settings) -> tuple[str, tuple[Plan, ...]]:
    """What follows a plan that is executed first: the run's own plan, from there on."""
    after, plans = _next(snapshot, UpToDate(left, left.positions), settings)
    return f"{says}; then it {after.removeprefix('the next run ')}", (left, *plans)
