"""What does the next run do?

A pure function of the snapshot. Commands that describe the next run use it too, so that they cannot
differ from the run:

    ownership   partitions that others own, or that are paused     partition_owners, set_offsets
    reconcile   where the pipeline stands                          reconcile
    repair      the unfinished work of an earlier run              here
    plan        the stored plan, its replacement, or a new plan    plan, replacement

A run executes one step, observes again, and repeats until a step is the last. `etl run --dry-run`
and `etl doctor` compute the same steps (`steps_ahead`); operator commands begin as a run does
(`repair_of`, `plan_superseding`) and store their own plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from etl.decide.lag import Expiring, find_expiring
from etl.decide.member_offsets import as_if_alone, with_assignment, with_commit_resolved
from etl.decide.partition_owners import leave_to_owners, reject_owned_ranges
from etl.decide.plan import plan_next
from etl.decide.plan_replacement import (
    in_place_of,
    reject_abandoning_lost_offsets,
    replacement_plan,
    resume_or_supersede,
)
from etl.decide.reconcile import reject_retired_or_shared
from etl.decide.run_requests import (
    finished_key,
    is_bound_now_known,
    key_without_plan,
    left_under_key,
    plan_request,
)
from etl.decide.set_offsets import leave_paused, standing_without_paused
from etl.errors import EtlError
from etl.ledger.plan_document import with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import NOT_COUNTED, CommitResult, Plan, RunKeyRecord
from etl.model.snapshot import (
    FirstRun,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.sections import Settings

Restored = FirstRun | Resume | Supersede | UpToDate
"""The state of the pipeline after the ledger is restored."""


class Action(str, Enum):
    """What a step does with its plan."""

    LOOK_AGAIN = "look again"
    """No plan yet: the run key can only be looked up after the ledger is restored."""
    RESUME = "resume"
    """Execute the stored plan unchanged."""
    SUPERSEDE = "supersede"
    """Replace the stored plan."""
    STORE = "store"
    """Store the next plan, also in place of a stored plan of a backfill."""
    NOTHING = "nothing"
    """No plan: there are no new records."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Unfinished work of a plan in the table, done before anything new."""

    plan: Plan
    """The newest plan; `seen` is the expected side of its offset commits."""
    offsets: tuple[TopicPartition, ...] = ()
    """Partitions without committed offset of this plan."""
    lacks_record: bool = False
    """True if its result is not recorded."""
    adopts: Plan | None = None
    """The same plan, if the ledger lacks it and is restored from the table; else None."""
    knew: Plan | None = None
    """The newest plan of the ledger before it is restored."""
    followed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets that another client moved, for partitions that continue there."""
    not_followed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The same for partitions that do not continue there: no plan moves their offset."""


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far the run's request (`--until`, `--run-key`) is after a step."""

    done_before: RunKeyRecord | None = None
    """The record of a run key that is done already: then there is no plan."""
    remembers: RunKeyRecord | None = None
    """The run key to record: there was nothing to read up to its bound, and no partition was left
    out. With the record, later runs with this key load nothing.
    """
    left: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """Partitions that the run key requests and that are not readable up to their bound after this
    step, with the bound; None: unknown.
    """
    open_partitions: int = 0
    """Without a plan: number of partitions that have no record at or after the run's bound."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """One complete step of a run: after the repair only its plan is stored, read and committed."""

    snapshot: Snapshot
    """The snapshot that the plan is decided by: after the repair, without partitions that are left
    to their owners. Before the repair, with paused partitions, if there is no `state`.
    """
    state: PipelineState | None = None
    """State before the repair; None: unknown for the reason in `refusal`."""
    repair: Repair | None = None
    """None: no plan is in the table (a first run), or the newest plan is still to be executed. It
    may be empty: all of the newest plan is done.
    """
    action: Action | None = None
    """None if there is a `refusal`."""
    plan: Plan | None = None
    reason: str | None = None
    """Why the stored plan cannot be finished."""
    expires_soon: tuple[Expiring, ...] = ()
    """Partitions to read first: the start of their ranges may expire soon."""
    request: RequestProgress = field(default_factory=RequestProgress)
    refusal: EtlError | None = None
    """The error that the run ends with after the repair."""

    @property
    def is_last(self) -> bool:
        """True if no further step follows. Otherwise the run observes again: a stored plan was
        finished first, the run key's bound is not reached, or the key can be looked up only now
        (`LOOK_AGAIN`).
        """
        if self.action is Action.NOTHING:
            return True
        return self.action is Action.STORE and not self.goes_on

    @property
    def newest(self) -> int:
        """The number of the newest plan in the snapshot; 0: there is none."""
        newest = self.snapshot.ledger.newest
        if newest is None:
            return 0
        return newest.number

    @property
    def goes_on(self) -> bool:
        """True if another plan follows the one that this step makes, since a cap ends it before
        the run key's bound.
        """
        return self.action is Action.STORE and self.is_cut

    @property
    def is_cut(self) -> bool:
        """True if its plan, new or stored, ends before the run key's known bound in a readable
        partition.
        """
        if self.plan is None:
            return False
        unfinished = self.plan.request.unfinished
        return len(_left_of_key(self.plan, self.snapshot)) < len(unfinished)


def next_step(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, uid: str, is_foreseen: bool = False
) -> NextStep:
    """Return the next step of a run with this snapshot.

    `uid` is the id of a pipeline that has no plan yet. `is_foreseen`: nothing will be executed.

    Raises NeedsDecision or SettingsError for a pipeline that may not run, and Owned: they stop the
    run before it does anything. Errors that stop it later are the step's `refusal`.
    """
    reject_retired_or_shared(snapshot)
    available = leave_to_owners(with_commit_resolved(snapshot), settings)
    try:
        unpaused, state = standing_without_paused(available, settings)
    except EtlError as refusal:
        return NextStep(available, refusal=refusal)

    repair = repair_of(state, unpaused)
    step = NextStep(repaired(unpaused, repair), state, repair)
    restored: Restored
    if isinstance(state, RebuildFromTable):
        has_run_key = unpaused.request is not None and bool(unpaused.request.request.run_key)
        if has_run_key and not is_foreseen:
            # The run key can only be looked up after the ledger is restored.
            return replace(step, action=Action.LOOK_AGAIN)
        restored = state.state
    elif isinstance(state, StoredBackfill):
        restored = state.state
    else:
        restored = state

    try:
        step = _with_plan(step, restored, settings, now_ms=now_ms, uid=uid)
    except EtlError as refusal:
        return replace(step, refusal=refusal)
    if step.plan and isinstance(state, StoredBackfill):
        return replace(step, plan=with_id(in_place_of(step.plan, state.plan)))
    return step


def steps_ahead(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, uid: str
) -> tuple[NextStep, ...]:
    """Return all steps of a run with this snapshot if nothing else happens.

    Of a run key whose plans are capped, only the first plan. Raises as `next_step`, and each
    refusal.
    """
    alone = as_if_alone(snapshot, settings)
    steps: list[NextStep] = []
    while True:
        expected = snapshot_after(alone, *steps)
        step = next_step(expected, settings, now_ms=now_ms, uid=uid, is_foreseen=True)
        if step.refusal:
            raise step.refusal
        steps.append(step)
        if step.is_last or step.goes_on:
            return tuple(steps)


def repair_of(state: PipelineState, snapshot: Snapshot) -> Repair | None:
    """Return what is finished first.

    None for a first run, and if the newest plan is still to be executed; empty if all of it is
    done.
    """
    if isinstance(state, RebuildFromTable):
        repair = _offset_repair(state.state)
        return replace(repair, adopts=state.plan, knew=snapshot.ledger.newest)
    if isinstance(state, StoredBackfill):
        return _offset_repair(state.state)
    if isinstance(state, UpToDate):
        return replace(_offset_repair(state), lacks_record=snapshot.ledger.applied is None)
    return None


def _offset_repair(state: UpToDate) -> Repair:
    return Repair(
        state.last, state.uncommitted, followed=state.followed, not_followed=state.not_followed
    )


def repaired(snapshot: Snapshot, repair: Repair | None) -> Snapshot:
    """Return the snapshot after the repair: offsets move by compare-and-set, so their new values
    are known.
    """
    if repair is None:
        return snapshot

    committed = {}
    for partition in repair.offsets:
        committed[partition] = repair.plan.moved(partition)
    for partition in repair.not_followed:
        committed[partition] = repair.plan.committed_after(partition)
    ledger = snapshot.ledger
    if repair.adopts:
        ledger = replace(
            ledger, uid=repair.adopts.origin.pipeline_id, newest=repair.adopts, applied=None
        )
    return replace(snapshot.with_committed(committed), ledger=ledger)


def plan_superseding(
    state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """Return the plan that replaces one that cannot be finished, by policy or by an operator's
    decision. Raises as `replacement_plan`, and Owned.
    """
    reject_owned_ranges(state.plan, snapshot)
    return with_id(replacement_plan(state, leave_paused(snapshot), settings, now_ms=now_ms))


def _with_plan(
    step: NextStep, state: Restored, settings: Settings, *, now_ms: int, uid: str
) -> NextStep:
    snapshot = step.snapshot
    if isinstance(state, Resume):
        reject_owned_ranges(state.plan, snapshot)
        state = resume_or_supersede(state, snapshot, settings)
    elif isinstance(state, Supersede):
        reject_abandoning_lost_offsets(state.plan, snapshot)

    if isinstance(state, Resume):
        step = replace(step, action=Action.RESUME, plan=state.plan)
    elif isinstance(state, Supersede):
        plan = plan_superseding(state, snapshot, settings, now_ms=now_ms)
        step = replace(step, action=Action.SUPERSEDE, plan=plan, reason=state.reason)
    else:
        step = _with_new_plan(step, state, settings, now_ms=now_ms, uid=uid)

    if step.plan is None:
        return step
    soon = find_expiring(
        step.plan.ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms
    )
    return replace(step, expires_soon=soon)


def _with_new_plan(
    step: NextStep, state: FirstRun | UpToDate, settings: Settings, *, now_ms: int, uid: str
) -> NextStep:
    snapshot = step.snapshot
    last = None
    if isinstance(state, UpToDate):
        last = state.last
    done = finished_key(snapshot.request, last, snapshot)
    if done:
        remembers = None
        if is_bound_now_known(snapshot.request, last):
            remembers = done
        request = RequestProgress(done_before=done, remembers=remembers)
        return replace(step, action=Action.NOTHING, request=request)

    new = plan_next(snapshot, state, settings, uid=snapshot.ledger.uid or uid, now_ms=now_ms)
    if new is None:
        return _without_plan(step, last)
    plan = with_id(with_assignment(new, snapshot, settings))
    progress = RequestProgress(left=_left_of_key(plan, snapshot))
    return replace(step, action=Action.STORE, plan=plan, request=progress)


def _left_of_key(plan: Plan, snapshot: Snapshot) -> dict[TopicPartition, int | None]:
    """Return the partitions that the plan's run key leaves to later runs, with their bounds.

    The other unfinished ones are cut by a cap, and the same run goes on with them.
    """
    left = {}
    for partition, end in plan.request.unfinished.items():
        if end is None or partition not in snapshot.readable:
            left[partition] = end
    return left


def _without_plan(step: NextStep, last: Plan | None) -> NextStep:
    """Return the step without a plan.

    A run key that leaves partitions out is not recorded: a later run with it loads them.
    """
    request = step.snapshot.request
    asking = plan_request(request, last, step.snapshot)
    left = left_under_key(request, last, step.snapshot) or asking.waits
    remembers = None
    if not left:
        remembers = key_without_plan(request, last)
    progress = RequestProgress(
        remembers=remembers, left=left, open_partitions=asking.bounds.open_partitions
    )
    return replace(step, action=Action.NOTHING, request=progress)


def snapshot_after(snapshot: Snapshot, *steps: NextStep) -> Snapshot:
    """Return the snapshot that a run would make after these steps."""
    for step in steps:
        snapshot = repaired(snapshot, step.repair)
        if step.plan:
            snapshot = _snapshot_after_plan(step.plan, snapshot)
    return snapshot


def _snapshot_after_plan(plan: Plan, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot after the plan is in the table and its offsets are committed."""
    committed = dict(plan.expected_commits)
    for partition in (*plan.offsets_to_move, *plan.offsets_to_commit):
        committed[partition] = plan.moved(partition)

    before = snapshot.table
    if before is None:
        before = Table(id=plan.table.id or "", version=-1, transaction_version=None)
    table = replace(
        before,
        version=before.version + 1,
        transaction_version=plan.number,
        metadata=None,
        foreign=(),
    )
    uncounted = (NOT_COUNTED,) * len(plan.ranges)
    applied = CommitResult(plan.number, plan.id, table.version, table.id, uncounted)
    ledger = replace(snapshot.ledger, uid=plan.origin.pipeline_id, newest=plan, applied=applied)
    return replace(snapshot.with_committed(committed), ledger=ledger, table=table)
