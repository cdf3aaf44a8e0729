"""What does the next run do?

A pure function of the snapshot, so that commands that describe the next run and the run itself
cannot differ:

    ownership   partitions that others own, or that are paused     group_ownership, set_offsets
    reconcile   where the pipeline stands                          reconcile
    repair      what an earlier run left unfinished                here
    plan        the stored plan, its replacement, or a new plan    plan, replacement

A run executes one step, observes again, and repeats until a step is the last. `etl run --dry-run` and
`etl doctor` compute the same steps (`steps_ahead`); operator commands begin as a run does
(`repair_of`, `plan_superseding`) and store their own plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from etl.decide.backfill import next_backfill_plan
from etl.decide.group_commits import as_if_alone, of_member, with_commit_settled
from etl.decide.group_ownership import leave_to_owners, reject_owned_ranges
from etl.decide.lag import Expiring, expiring
from etl.decide.plan import plan_next
from etl.decide.reconcile import reject_retired_or_shared
from etl.decide.replacement import (
    reject_abandoning_lost_offsets,
    replacement_plan,
    replay_or_supersede,
)
from etl.decide.reservations import reject_claimed
from etl.decide.run_requests import (
    asking_of,
    done_before,
    is_found_out,
    key_without_plan,
    left_under_key,
)
from etl.decide.set_offsets import leave_paused, standing_without_paused
from etl.errors import EtlError
from etl.ledger.plan_document import with_id
from etl.model.partitions import BrokerPartition
from etl.model.plans import NOT_COUNTED, CommitResult, Plan, RunKeyRecord
from etl.model.snapshot import (
    FirstRun,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.sections import Settings

Settled = FirstRun | Replay | Supersede | UpToDate
"""The state of the pipeline after the ledger is restored."""


class Action(str, Enum):
    """What a step does with its plan."""

    LOOK_AGAIN = "look again"
    """No plan yet: the ledger was restored, and only then the run's key can be looked up."""
    REPLAY = "replay"
    """It is stored already, and executed word for word."""
    SUPERSEDE = "supersede"
    """It takes the place of the stored one."""
    STORE = "store"
    """It is the next one."""
    NOTHING = "nothing"
    """There is no plan: nothing new."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What is finished of a plan in the table, before anything new."""

    plan: Plan
    """The newest one; `seen` is what its offsets are moved from."""
    offsets: tuple[BrokerPartition, ...] = ()
    """Partitions whose offset is not committed."""
    lacks_record: bool = False
    """True if its result is not recorded."""
    adopts: Plan | None = None
    """The same plan, if the ledger lacks it and is restored from the table; else None."""
    knew: Plan | None = None
    """The newest plan of the ledger."""
    followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Partitions whose offset another client moved, and its new value: they continue there."""
    not_followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The same for partitions that do not continue there: no plan moves their offset."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """One step of a run, complete: after the repair only its plan is to be stored, read and
    committed.
    """

    snapshot: Snapshot
    """By what the plan was decided: without the logs that are left to their owners, and as it is
    once the repair is done.
    """
    state: PipelineState | None = None
    """State before the repair; None: `refusal` says why it is unknown."""
    repair: Repair | None = None
    action: Action | None = None
    """None where there is a `refusal`."""
    plan: Plan | None = None
    reason: str | None = None
    """Why the stored plan cannot be finished."""
    expires_soon: tuple[Expiring, ...] = ()
    """Logs of the plan that are read first: their ranges may lose their start."""
    done_before: RunKeyRecord | None = None
    """The run's key, where it was done before: so there is no plan."""
    remembers: RunKeyRecord | None = None
    """The run's key, where there was nothing to read up to its bound, and no log was left out: it
    is kept, so that it stays at that.
    """
    left_of_key: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Partitions that the run key requests and that are unreadable after this step, with the bound;
    None: unknown.
    """
    open_logs: int = 0
    """In how many logs no record was as late as the run's bound, where it made no plan."""
    refusal: EtlError | None = None
    """The error that the run ends with after the repair."""

    @property
    def is_last(self) -> bool:
        """True if no further step follows. Otherwise the run observes again: a stored plan was
        finished first, or the run key's bound is not reached.
        """
        return self.action is Action.NOTHING or (self.action is Action.STORE and not self.goes_on)

    @property
    def newest(self) -> int:
        """The number of the newest plan when it was decided."""
        return self.snapshot.ledger.newest.number if self.snapshot.ledger.newest else 0

    @property
    def goes_on(self) -> bool:
        """True if another plan follows the one it makes: a cap ends it before the run key's bound,
        or it is a backfill's.
        """
        return self.action is Action.STORE and (self.is_cut or self.snapshot.backfill is not None)

    @property
    def is_cut(self) -> bool:
        """True if its plan, new or stored, ends before the run key's bound in a readable partition."""
        return self.plan is not None and any(
            log in self.snapshot.extents for log in self.plan.key_ends
        )


def next_step(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, uid: str, is_foreseen: bool = False
) -> NextStep:
    """Return the next step of a run with this snapshot.

    `uid` names a pipeline that has no plan yet. `is_foreseen`: nothing will be executed. Raises
    what stops the run before it does anything: NeedsDecision or SettingsError for a pipeline that
    may not run, Owned. What stops it later is the step's `refusal`.
    """
    reject_retired_or_shared(snapshot)
    left = leave_to_owners(with_commit_settled(snapshot), settings)
    try:
        left, state = standing_without_paused(left, settings)
    except EtlError as refusal:
        return NextStep(left, refusal=refusal)
    repair = repair_of(state, left)
    step = NextStep(repaired(left, repair), state, repair)
    if (
        isinstance(state, RebuildFromTable)
        and left.asked
        and left.asked.request.run_key
        and not is_foreseen
    ):
        return replace(step, action=Action.LOOK_AGAIN)
    try:
        return _planned(
            step,
            state.state if isinstance(state, RebuildFromTable) else state,
            settings,
            now_ms=now_ms,
            uid=uid,
        )
    except EtlError as refusal:
        return replace(step, refusal=refusal)


def steps_ahead(
    snapshot: Snapshot, settings: Settings, *, now_ms: int, uid: str
) -> tuple[NextStep, ...]:
    """Return all steps of a run with this snapshot if nothing else happens; of the plans of a
    capped run key the first. Raises as `next_step`, and each refusal.
    """
    steps: list[NextStep] = []
    while not steps or not (steps[-1].is_last or steps[-1].goes_on):
        step = next_step(
            foreseen(as_if_alone(snapshot, settings), *steps),
            settings,
            now_ms=now_ms,
            uid=uid,
            is_foreseen=True,
        )
        if step.refusal:
            raise step.refusal
        steps.append(step)
    return tuple(steps)


def repair_of(state: PipelineState, snapshot: Snapshot) -> Repair | None:
    """Return what is finished first; None if the newest plan is not in the table."""
    if isinstance(state, RebuildFromTable):
        last, knew = state.state, snapshot.ledger.newest
        return replace(_left_by(last), adopts=state.plan, knew=knew)
    return (
        replace(_left_by(state), lacks_record=snapshot.ledger.applied is None)
        if isinstance(state, UpToDate)
        else None
    )


def _left_by(state: UpToDate) -> Repair:
    return Repair(
        state.last, state.uncommitted, followed=state.followed, not_followed=state.not_followed
    )


def repaired(snapshot: Snapshot, repair: Repair | None) -> Snapshot:
    """Return the snapshot after the repair: offsets move by compare-and-set, so their new values
    are known.
    """
    if repair is None:
        return snapshot
    committed = {
        **snapshot.committed,
        **{log: repair.plan.moved(log) for log in repair.offsets},
        **{log: repair.plan.left(log) for log in repair.not_followed},
    }
    ledger = snapshot.ledger
    if repair.adopts:
        ledger = replace(ledger, uid=repair.adopts.uid, newest=repair.adopts, applied=None)
    return replace(snapshot, committed=committed, ledger=ledger)


def plan_superseding(
    state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int
) -> Plan:
    """The plan in the place of one that cannot be finished, by policy or by an operator's decision.
    Raises as `replacement_plan`, and Owned.
    """
    reject_owned_ranges(state.plan, snapshot)
    return with_id(replacement_plan(state, leave_paused(snapshot), settings, now_ms=now_ms))


def _planned(
    step: NextStep, state: Settled, settings: Settings, *, now_ms: int, uid: str
) -> NextStep:
    snapshot, reason = step.snapshot, None
    if isinstance(state, Replay):
        reject_owned_ranges(state.plan, snapshot)
        state = replay_or_supersede(state, snapshot, settings)
    elif isinstance(state, Supersede):
        reject_abandoning_lost_offsets(state.plan, snapshot)
    if isinstance(state, Replay):
        action, plan = Action.REPLAY, state.plan
    elif isinstance(state, Supersede):
        action, plan, reason = (
            Action.SUPERSEDE,
            plan_superseding(state, snapshot, settings, now_ms=now_ms),
            state.reason,
        )
    elif snapshot.backfill:
        next_part = (
            next_backfill_plan(snapshot.backfill, state, snapshot, settings, now_ms=now_ms)
            if isinstance(state, UpToDate)
            else None
        )
        if next_part is None:
            return replace(step, action=Action.NOTHING)
        action, plan = Action.STORE, with_id(next_part)
    else:
        last = state.last if isinstance(state, UpToDate) else None
        done = done_before(snapshot.asked, last, snapshot)
        if done:
            return replace(
                step,
                action=Action.NOTHING,
                done_before=done,
                remembers=done if is_found_out(snapshot.asked, last) else None,
            )
        found = plan_next(snapshot, state, settings, uid=snapshot.ledger.uid or uid, now_ms=now_ms)
        if found is None:
            return _without_plan(step, last)
        action, plan = Action.STORE, with_id(of_member(found, snapshot, settings))
        step = replace(
            step,
            left_of_key={
                log: end for log, end in plan.key_ends.items() if log not in snapshot.extents
            },
        )
    if action is not Action.REPLAY:
        reject_claimed(plan, snapshot.ledger.newest, snapshot.claims)
    soon = expiring(plan.ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms)
    return replace(step, action=action, plan=plan, reason=reason, expires_soon=soon)


def _without_plan(step: NextStep, last: Plan | None) -> NextStep:
    """Return the step without a plan. A run key that leaves partitions out is not kept, so that it
    is requested again.
    """
    request, asking = step.snapshot.asked, asking_of(step.snapshot.asked, last, step.snapshot)
    left = left_under_key(request, last, step.snapshot) or asking.waits
    return replace(
        step,
        action=Action.NOTHING,
        left_of_key=left,
        open_logs=asking.bounds.open_logs,
        remembers=None if left else key_without_plan(request, last),
    )


def foreseen(snapshot: Snapshot, *steps: NextStep) -> Snapshot:
    """Return the snapshot that a run would make after these steps."""
    for step in steps:
        snapshot = repaired(snapshot, step.repair)
        if step.plan:
            snapshot = _once_committed(step.plan, snapshot)
    return snapshot


def _once_committed(plan: Plan, snapshot: Snapshot) -> Snapshot:
    moved = {log: plan.moved(log) for log in (*plan.offsets_to_move, *plan.offsets_to_commit)}
    there = (
        {**{log: plan.seen[log] for log in plan.positions}, **moved} if plan.moves_offsets else {}
    )
    known = snapshot.table or Table(plan.table_id or "", -1, None)
    table = replace(
        known, version=known.version + 1, transaction_version=plan.number, metadata=None, foreign=()
    )
    applied = CommitResult(
        plan.number, plan.id, table.version, table.id, (NOT_COUNTED,) * len(plan.ranges)
    )
    ledger = replace(snapshot.ledger, uid=plan.uid, newest=plan, applied=applied)
    return replace(snapshot, committed={**snapshot.committed, **there}, ledger=ledger, table=table)
