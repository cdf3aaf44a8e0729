"""What does a run's report contain?

Lives here: state, outcomes, timings, records and bytes per partition, lag, the plan, snapshots, and
the progress of a backfill as a whole.
Not here: the sentences of outcomes (etl/report/describe.py), the report as JSON
(etl/report/report_json.py), the snapshots in its file (etl/report/incident.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.lag import (
    Progress,
    lag_of,
    progress_of,
    progress_of_table,
    unread_starts,
)
from etl.decide.member_offsets import ReadTwice
from etl.decide.run_requests import loaded_beyond, up_to_bound
from etl.decide.table_changes import name_of
from etl.errors import DataLost, EtlError
from etl.model.partitions import OldestRecord, RebalanceStatistics, TopicPartition
from etl.model.plans import (
    ByBroker,
    CommitResult,
    LossReason,
    Plan,
    PlanKind,
    Request,
    RunKeyRecord,
)
from etl.model.snapshot import PipelineState, Snapshot
from etl.report.describe import (
    describe_beyond_bound,
    describe_by_owner,
    describe_capped,
    describe_changed_owners,
    describe_cluster_id,
    describe_done_before,
    describe_duplicate_reads,
    describe_empty_key,
    describe_leaderless,
    describe_left_of_key,
    describe_left_out,
    describe_lost,
    describe_open,
    describe_open_end,
    describe_open_without_plan,
    describe_partition_offsets,
    describe_purpose,
    describe_stale_rows,
    describe_uncounted,
    existing_partitions,
)
from etl.report.lag import Lags, PausedPartitions, lags_at, paused_partitions
from etl.report.run_progress import (
    Doing,
    Executed,
    Outcome,
    Process,
    State,
    Statistics,
    Stopwatch,
    Verb,
    fetched_bytes_of,
    log_outcome,
)
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class _Observation:
    """One snapshot and the loaded-until offsets at that time."""

    snapshot: Snapshot
    reached: Progress | None = None
    """None, as `settings`: the run ended before the offsets were decided."""
    settings: Settings | None = None

    def lag_of(self, partition: TopicPartition) -> int | None:
        if self.reached is None or self.settings is None:
            return None
        return lag_of(partition, self.snapshot, self.reached, self.settings)


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How far a backfill was before the present plan."""

    loaded_before: int
    """Offsets that are loaded or lost."""
    offsets: int
    """All requested offsets."""


class SnapshotPair:
    """The first and the last snapshot of a run."""

    def __init__(self) -> None:
        self._count = 0
        self._first: _Observation | None = None
        self._last: _Observation | None = None

    def saw(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self._count += 1
        self._last = _Observation(snapshot)
        self._first = self._first or self._last

    def stands(self, state: PipelineState, settings: Settings) -> None:
        """Set the state of the pipeline at that snapshot."""
        if self._last is None:
            return
        is_first = self._first is self._last
        loaded = progress_of(state, self._last.snapshot)
        self._last = replace(self._last, reached=loaded, settings=settings)
        if is_first:
            self._first = self._last

    def reached(self, plan: Plan) -> None:
        """Record that the plan is in the table."""
        if self._last:
            self._last = replace(self._last, reached=Progress(plan, plan.loaded_until))

    def lag_as_json(self) -> list[dict[str, Any]]:
        """Return the lag of each partition before and after the run."""
        first, last = self._first, self._last
        if not first or not last:
            return []
        rows = []
        for partition in sorted(existing_partitions(last.snapshot)):
            offsets = describe_partition_offsets(last.snapshot, partition)
            lags = {"before": first.lag_of(partition), "after": last.lag_of(partition)}
            rows.append({**partition.place, **offsets, **lags})
        return rows

    def unread(self) -> tuple[Snapshot, dict[TopicPartition, int]] | None:
        """Return the last snapshot, and the first unread offset of each partition that lags.

        None before the first snapshot.
        """
        last = self._last
        if last is None:
            return None
        if last.settings is None:
            return last.snapshot, {}
        unread = unread_starts(last.snapshot.readable, last.snapshot, last.reached, last.settings)
        return last.snapshot, unread

    def lags(
        self, oldest: Mapping[TopicPartition, OldestRecord], settings: Settings, *, now_ms: int
    ) -> Lags | None:
        """Return the lag at the last snapshot; None before the first. `oldest`: see `lags_at`."""
        last = self._last
        if last is None:
            return None
        return lags_at(last.snapshot, last.reached, settings, oldest, now_ms=now_ms)

    @property
    def ends(self) -> tuple[Snapshot, Snapshot, int] | None:
        """Return the first and the last snapshot, and their number; None before the first."""
        if not self._first or not self._last:
            return None
        return self._first.snapshot, self._last.snapshot, self._count


def describe_without_ranges(plan: Plan) -> Iterator[tuple[Outcome, str]]:
    """Describe what a plan without ranges did: an outcome with its sentence each."""
    decision = f"Plan {plan.number}, by an operator's decision: {plan.origin.reason}"
    if plan.kind is PlanKind.RESET:
        yield Outcome.TOPIC_CHANGES_ACCEPTED, decision
        for sentence in describe_stale_rows(plan.losses.stale_rows):
            yield Outcome.TOPIC_CHANGES_ACCEPTED, sentence
    elif plan.kind is PlanKind.SET:
        yield Outcome.OFFSETS_SET, decision
    elif plan.inherits and plan.kind is PlanKind.TAKE_OVER:
        predecessor = name_of(plan.inherits.app_id)
        yield Outcome.INHERITED, f"Plan {plan.number} continues where {predecessor} ended"
    else:
        yield Outcome.OFFSETS_STORED, f"Plan {plan.number} {describe_purpose(plan)}"


def describe_without_plan(
    done_before: RunKeyRecord | None, remembered: RunKeyRecord | None
) -> tuple[Outcome, str]:
    """Describe a run without a plan."""
    if done_before:
        return Outcome.ALREADY_LOADED, describe_done_before(done_before)
    if remembered:
        return Outcome.UP_TO_DATE, describe_empty_key(remembered)
    return Outcome.UP_TO_DATE, "No new records"


_LEFT = (Outcome.OWNED_BY_OTHERS, Outcome.NO_LEADER, Outcome.OPEN_TRANSACTION, Outcome.PAUSED)


@dataclass(slots=True)
class Report:
    """The report of a run, filled while it is active. It may be read at any time."""

    run_id: str
    pipeline: str
    group: str
    table_path: str
    started_at_ms: int
    process: Process = Process()
    finished_at_ms: int | None = None
    outcomes: list[tuple[Outcome, str]] = field(default_factory=list)
    _added: set[tuple[Outcome, str]] = field(default_factory=set)
    watch: Stopwatch = field(default_factory=Stopwatch)
    plans: list[Executed] = field(default_factory=list)
    """In the order of execution: stored plans of an earlier run come first."""
    offsets_committed: int = 0
    error: EtlError | None = None
    strict: bool = False
    """`--fail-on-loss`: a loss that policy allows ends with exit code 3."""
    why_lost: dict[LossReason, set[int]] = field(default_factory=dict)
    """Reasons of the offsets lost or reported again in this run."""
    settings: Settings | None = None
    """Settings of the run; None: its snapshots are not kept."""
    request: Request | None = None
    """Run key and end of the run, in addition to its conf."""
    looks: SnapshotPair = field(default_factory=SnapshotPair)
    paused: tuple[PausedPartitions, ...] = ()
    asked_by_driver: ByBroker = field(default_factory=dict)
    membership: RebalanceStatistics | None = None
    oldest: Mapping[TopicPartition, OldestRecord] = field(default_factory=dict)
    """Oldest unread records, if they were looked up at the end."""
    backfill: BackfillProgress | None = None
    """How far the backfill was before its present plan; None: the run is of no backfill."""

    def timed(self, verb: Verb) -> contextlib.AbstractContextManager[None]:
        """Context manager: add the time inside to the verb's seconds, also after an exception."""
        return self.watch.timed(verb)

    def add(self, outcome: Outcome, sentence: str) -> None:
        """Add an outcome once; a repeated snapshot does not repeat it."""
        if (outcome, sentence) not in self._added:
            self._added.add((outcome, sentence))
            self.outcomes.append((outcome, sentence))
            log_outcome(outcome, sentence)

    def saw(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self.looks.saw(snapshot)

    def stands(self, state: PipelineState, settings: Settings) -> None:
        """Set the state of the pipeline at that snapshot."""
        self.looks.stands(state, settings)

    def left(self, snapshot: Snapshot, settings: Settings, *, now_ms: int) -> None:
        """Report what the run leaves out, and why; a later snapshot replaces earlier findings."""
        self.outcomes = [added for added in self.outcomes if added[0] not in _LEFT]
        self._added = set(self.outcomes)
        self.paused = ()
        if snapshot.ledger.pauses:
            so_far = progress_of_table(snapshot, settings)
            self.paused = paused_partitions(snapshot, so_far, settings, now_ms=now_ms)
        for sentence in describe_by_owner(snapshot.owners):
            self.add(Outcome.OWNED_BY_OTHERS, sentence)
        for sentence in describe_leaderless(snapshot.leaderless, snapshot.leaders):
            self.add(Outcome.NO_LEADER, sentence)
        for sentence in describe_open(snapshot):
            self.add(Outcome.OPEN_TRANSACTION, sentence)
        for one in self.paused:
            self.add(Outcome.PAUSED, one.summary)

    def planned(self, plan: Plan, *, goes_on: bool = False) -> None:
        """Report the plan that is executed now, possibly in place of another one.

        `goes_on`: another plan of its run key follows, and that one reports partitions without a
        record at the end.
        """
        if self.plan and self.plan.number == plan.number and not self.plans[-1].applied:
            self.plans.pop()
        if not self.plan or self.plan.id != plan.id:
            self.plans.append(Executed(plan))
        if plan.request.bounds.open_partitions and not goes_on:
            self.add(Outcome.NOT_COMPLETE, describe_open_end(plan))
        self.lost(plan)

    def beyond_bound(self, snapshot: Snapshot) -> None:
        """Report offsets beyond the run's end that were loaded before its own plan."""
        beyond = loaded_beyond(snapshot)
        if beyond and self.request and self.request.bounds.until:
            sentence = describe_beyond_bound(beyond, self.request.bounds.until.said)
            self.add(Outcome.ALREADY_BEYOND_UNTIL, sentence)

    def called(self, plan: Plan, newest: Plan | None) -> None:
        """Report that the plan is the first with a cluster id from the brokers."""
        sentence = describe_cluster_id(plan, newest)
        if sentence:
            self.add(Outcome.BROKER_CLUSTER_ID_IGNORED, sentence)

    def lost(self, plan: Plan) -> None:
        """Report a plan's losses. A run that finishes the plan after a crash reports them again."""
        for loss in plan.losses.lost:
            self.why_lost.setdefault(loss.why, set()).add(plan.number)
        for sentence in describe_lost(plan.losses.lost):
            self.add(Outcome.RECORDS_LOST, sentence)

    def applied(self, applied: CommitResult) -> None:
        """Report that the plan is in the table."""
        executed = self.plans[-1]
        executed.applied = applied
        plan = executed.plan
        self.looks.reached(plan)
        rows = "rows" if applied.rows is None else f"{applied.rows:,} rows"
        version = f"table version {applied.delta_version}"
        uncounted = describe_left_out(applied) + describe_uncounted(applied)
        if applied.run_id not in (None, self.run_id):
            sentence = (
                f"Plan {plan.number} was loaded by run {applied.run_id}: {rows} written, {version}"
            )
            self.add(Outcome.LOADED_BY_ANOTHER_RUN, sentence + uncounted)
        elif plan.ranges and plan.kind is PlanKind.REPLAY:
            replaced = sum(plan.replaced_rows.values())
            sentence = f"Plan {plan.number}: {replaced:,} rows replaced by {rows}, {version}"
            self.add(Outcome.ROWS_REPLACED, sentence + uncounted)
        elif plan.ranges:
            sentence = f"Plan {plan.number}: {rows} written, {version}"
            self.add(Outcome.INGESTED, sentence + uncounted)
        else:
            for outcome, description in describe_without_ranges(plan):
                self.add(outcome, description)

    def committed(self, plan: Plan, taken: Collection[ReadTwice] = ()) -> None:
        """Report that the offsets are committed, except of partitions with another owner now."""
        self.offsets_committed += len(plan.offsets_to_move) - len(taken)
        for sentence in describe_changed_owners(plan, taken):
            self.add(Outcome.OWNER_CHANGED, sentence)

    def read_twice(self, found: Iterable[ReadTwice]) -> None:
        """Report offsets that other members may also have read."""
        for sentence in describe_duplicate_reads(found):
            self.add(Outcome.DUPLICATE_READS, sentence)

    def left_by_caps(self, plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
        """Report what caps left: the lag after the run's own plan."""
        loaded = Progress(plan, plan.loaded_until)
        lags = {}
        for partition in plan.loaded_until:
            lag = lag_of(partition, snapshot, loaded, settings)
            if lag:
                lags[partition] = lag
        left = up_to_bound(lags, plan, snapshot)
        if left:
            self.add(Outcome.LIMIT_REACHED, describe_capped(left, settings.limits))

    def left_of_key(self, left: Collection[TopicPartition]) -> None:
        """Report partitions of the run's key that could not be read."""
        if left and self.request and self.request.run_key:
            self.add(Outcome.NOT_COMPLETE, describe_left_of_key(self.request.run_key, left))

    def found_nothing_new(
        self,
        done_before: RunKeyRecord | None,
        remembered: RunKeyRecord | None,
        *,
        open_partitions: int = 0,
    ) -> None:
        """Report that the run has no plan of its own.

        Without a run key, only if it finished no stored plan either.
        """
        if done_before or remembered or self.result is None:
            self.add(*describe_without_plan(done_before, remembered))
        if open_partitions and self.request and self.request.bounds.until:
            sentence = describe_open_without_plan(self.request.bounds.until, open_partitions)
            self.add(Outcome.NOT_COMPLETE, sentence)

    def failed(self, error: EtlError) -> None:
        """Report the error that ended the run."""
        self.error = error
        self.add(Outcome.FAILED, str(error))

    def finished(self, now_ms: int) -> None:
        """Set the end of the run."""
        self.finished_at_ms = now_ms

    @property
    def seconds(self) -> Mapping[Verb, float]:
        """Return seconds by verb; their sum is the run's time."""
        return self.watch.seconds

    @property
    def state(self) -> State:
        """Return the state of the run."""
        if self.finished_at_ms is None:
            return State.RUNNING
        if self.error:
            return State.FAILED
        return State.DONE

    @property
    def plan(self) -> Plan | None:
        """Return the newest plan that the run executed, or started to."""
        if not self.plans:
            return None
        return self.plans[-1].plan

    @property
    def result(self) -> CommitResult | None:
        """Return the result of the newest plan in the table."""
        for one in reversed(self.plans):
            if one.applied:
                return one.applied
        return None

    @property
    def lost_records(self) -> bool:
        """True if policy gave up records in this run."""
        return any(outcome is Outcome.RECORDS_LOST for outcome, _ in self.outcomes)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the run's process."""
        if self.error:
            return self.error.exit_code
        if self.strict and self.lost_records:
            return DataLost.exit_code
        return 0

    @property
    def records(self) -> int:
        """Return the counted records that this run's plans read."""
        return sum(one.records for one in self.plans)

    @property
    def rows_written(self) -> int | None:
        """Return the rows written by this run's plans; None if they could not be counted."""
        rows = 0
        for one in self.plans:
            if one.rows is None:
                return None
            rows += one.rows
        return rows

    @property
    def statistics(self) -> Statistics:
        """Return the counts of requests, commits and rebalances."""
        return Statistics(self.plans, self.asked_by_driver, self.offsets_committed, self.membership)

    @property
    def fetched_bytes(self) -> int | None:
        """Return the bytes fetched for this run's plans; None if a crash lost the count."""
        return fetched_bytes_of(self.plans)


def progress_of_backfill(doing: Doing, report: Report) -> Doing:
    """Return the progress of a backfill's run relative to the whole backfill.

    Returns it unchanged if that is unknown, or if no plan of a backfill is at work.
    """
    backfill = report.backfill
    progress = doing.reached
    if backfill is None or progress is None:
        return doing
    whole = replace(
        progress,
        offsets=backfill.loaded_before + progress.offsets,
        offsets_in_all=backfill.offsets,
        records=progress.records + report.records,
        bytes=progress.bytes + (report.fetched_bytes or 0),
    )
    return replace(doing, reached=whole)
