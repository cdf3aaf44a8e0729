"""What each door does: one function per command, settings in, one value out. How it looks is in `screens`."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etl.decisions.expiry import Expiring, expiring
from etl.decisions.lag import Reached, lag_in_all, lag_of, reached
from etl.decisions.ownership import leave_to_owners, refuse_owned_ranges
from etl.decisions.plan import plan_instead, plan_next, refuse_what_cannot_run, replay_or_supersede
from etl.decisions.reconcile import compare, naming_table, where_we_stand
from etl.decisions.tasks import ASSUMED_BYTES_PER_OFFSET, pack_tasks
from etl.edges.report_file import kept_in, this_process
from etl.edges.spark.session import telling_what_was_lost
from etl.errors import LedgersDisagree, NeedsDecision, OffsetMoved, SessionLost, SettingsError
from etl.model.plans import NOTHING_COMMITTED, Adopt, OffsetRange, Onward, Plan, Replay, Snapshot, Standing, Superseding
from etl.protocol.zookeeper.plan_documents import refuse_too_large
from etl.report.run_report import Outcome, Report, describe_plan
from etl.report.sentences import logs_of, told_by_owner, told_extent, told_leaderless, told_let_go, told_open, told_purpose
from etl.report.words import at
from etl.run.ingest import World, ingest
from etl.run.live_world import Surroundings, open_world
from etl.settings.sections import Settings

ALONE = Surroundings()


SESSIONS_MAX = 3
"""How often one run begins anew after its ZooKeeper session ended under it."""


def run(
    settings: Settings, surroundings: Surroundings = ALONE, *, conf: str | None = None, strict: bool = False,
    around: Callable[[World], World] = lambda world: world,
) -> Report:
    """One run by the settings of the file `conf`. Its report is written to the configured folder however the run ends.

    `around` may wrap the world (tests, demo).
    After a lost session nothing that was read before it is used: a new session, the driver's lock again, and `reconcile` decides
    what is left to do.
    """
    run_id = new_run_id()
    report = Report(run_id, settings.pipeline, settings.group, settings.table.path, now_ms(), this_process(conf), strict=strict)
    kept = kept_in(settings.report.path, report, keep=settings.report.keep)
    with kept, surroundings.progress(report.watch.doing):
        for left in reversed(range(SESSIONS_MAX)):
            try:
                opened = open_world(settings, surroundings, name=run_id, phases=report.watch)
                with opened as world, world.driving(run_id), telling_what_was_lost():
                    ingest(around(world), settings, report)
                break
            except SessionLost as error:
                if not left:
                    raise
                report.add(Outcome.SESSION_LOST, f"{error.what}: begun anew with a new one")
    return report


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
        """Which offsets it would let go, by `source.on_data_loss`, an offset that was moved or an operator's word."""
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
    standing = where_we_stand(snapshot, settings)
    says, plans = _next(left, standing, settings)
    for plan in plans:
        refuse_too_large(plan)
    tasks = _tasks(plans, snapshot, settings)
    ranges = [r for plan in plans for r in plan.ranges]
    soon = expiring(ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms())
    return Preview(
        says, plans, snapshot, tasks, lag_in_all(snapshot, reached(standing, snapshot), settings), tuple(told_by_owner(left.owners)),
        tuple(told_leaderless(left.leaderless)), soon)


def _tasks(plans: Sequence[Plan], snapshot: Snapshot, settings: Settings) -> tuple[int, int]:
    """How many tasks a run will have, at least and at most; the same where it is known how many work at once."""
    def packed(parallelism: int) -> int:
        target = settings.limits.target_task_bytes
        return sum(len(pack_tasks(plan.ranges, snapshot.bytes_per_offset, target, parallelism)) for plan in plans)

    most = sum(len(plan.ranges) for plan in plans)
    return packed(snapshot.parallelism or 1), packed(snapshot.parallelism or max(1, most))


def _next(snapshot: Snapshot, standing: Standing, settings: Settings) -> tuple[str, tuple[Plan, ...]]:
    """What the next run would do, in a sentence, and the plans that it would execute."""
    if isinstance(standing, (Replay, Superseding)):
        refuse_owned_ranges(standing.plan, snapshot)
    if isinstance(standing, Replay):
        standing = replay_or_supersede(standing, snapshot, settings)
    if isinstance(standing, Replay):
        says = f"the next run replays plan {standing.plan.number}, which is stored and not in the table"
        return _and_then(says, standing.plan, snapshot, settings)
    if isinstance(standing, Superseding):
        instead = plan_instead(standing, snapshot, settings, now_ms=now_ms())
        return _and_then(f"the next run supersedes plan {instead.number}: {standing.reason}", instead, snapshot, settings)
    if isinstance(standing, Adopt):
        says, plans = _next(snapshot, standing.standing, settings)
        return f"the next run first takes over plan {standing.plan.number} from the table, then {says.removeprefix('the next run ')}", plans
    plan = plan_next(snapshot, standing, settings, uid=snapshot.ledger.uid or "unnamed", now_ms=now_ms())
    repair = f"the next run first moves {len(standing.uncommitted)} offsets of plan {standing.last.number}; " if (
        isinstance(standing, Onward) and standing.uncommitted) else "the next run "
    if plan is None:
        return repair + "finds nothing new", ()
    if not plan.ranges:
        return repair + f"makes plan {plan.number}, which {told_purpose(plan)}", (plan,)
    return repair + f"makes plan {plan.number}", (plan,)


def _and_then(says: str, left: Plan, snapshot: Snapshot, settings: Settings) -> tuple[str, tuple[Plan, ...]]:
    """What follows a plan that is executed first: the run's own plan, from there on."""
    after, plans = _next(snapshot, Onward(left, left.positions), settings)
    return f"{says}; then it {after.removeprefix('the next run ')}", (left, *plans)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of each partition, and why nobody can say how far the table is."""

    rows: list[dict[str, Any]]
    refusal: NeedsDecision | None = None
    """What a run would stop at: where the ledgers disagree no row has a position or a lag, where logs are others, those have no lag."""


def offsets(settings: Settings) -> Offsets:
    """Committed offset, position and lag of each partition."""
    with open_world(settings, ALONE) as world:
        return offsets_of(world.observe(), settings)


def offsets_of(snapshot: Snapshot, settings: Settings) -> Offsets:
    """The same of what was observed."""
    so_far: Reached | None = None
    refusal: NeedsDecision | None = None
    try:
        with naming_table(settings):
            so_far = reached(compare(snapshot.ledger, snapshot.table, settings.table.place), snapshot)
        with contextlib.suppress(LedgersDisagree, OffsetMoved):  # then a run begins no plan, and what is in the table is known all the same
            so_far = reached(where_we_stand(snapshot, settings), snapshot)
        refusal = so_far.refusal
    except LedgersDisagree as error:
        refusal = error
    rows = [
        {"topic": log.topic, "partition": log.partition, **told_extent(snapshot, log),
         "committed": snapshot.committed.get(log, NOTHING_COMMITTED).offset, "position": so_far.positions.get(log) if so_far else None,
         "lag": lag_of(log, snapshot, so_far, settings) if so_far else None} for log in sorted(logs_of(snapshot))]
    return Offsets(rows, refusal)


def list_plans(settings: Settings) -> list[dict[str, Any]]:
    """The stored plans, ascending."""
    rows = []
    with open_world(settings, ALONE) as world:
        for number in world.ledger.plan_numbers():
            plan = world.ledger.read_plan(number)
            if plan is None:
                continue
            applied = world.ledger.read_record_of(plan)
            rows.append({
                "number": number, "id": plan.id, "kind": plan.kind.value, "created_at": at(plan.created_at_ms),
                "ranges": len(plan.ranges), "offsets": sum(r.size for r in plan.ranges),
                "rows": applied.rows if applied else None,
                "delta_version": applied.delta_version if applied else None,
            })
    return rows


def show_plan(settings: Settings, number: int | None) -> dict[str, Any]:
    """One plan, the newest where no number is given. Raises SettingsError when it is not stored."""
    with open_world(settings, ALONE) as world:
        numbers = world.ledger.plan_numbers()
        wanted = number or (numbers[-1] if numbers else 0)
        plan = world.ledger.read_plan(wanted) if wanted in numbers else None
        if plan is None:
            stored = f"plans {numbers[0]} to {numbers[-1]} are stored" if numbers else "this pipeline has made no plan yet"
            check = "`etl plans list`; older ones live on in the coverage"
            raise SettingsError(f"plan {wanted} is not there: {stored}" if wanted else stored, check=check)
        return describe_plan(plan, world.ledger.read_applied(wanted))


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


def new_run_id() -> str:
    """Names a run: its start in UTC and something random."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
