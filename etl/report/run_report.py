"""What does a run's report hold?

State, outcomes, timings, records and bytes per partition, lag, the plan, snapshots, and the
progress of a backfill as a whole; as the document of its file and of `--json`. Times are text
(`at`) under names ending in `_at`; durations are seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.group_commits import ReadTwice
from etl.decide.lag import Reached, lag_of, reached
from etl.decide.offsets import starts_of
from etl.decide.run_requests import loaded_beyond, up_to_bound
from etl.decide.table_changes import name_of
from etl.errors import DataLost, EtlError
from etl.model.partitions import BrokerPartition, OldestRecord, RebalanceStatistics
from etl.model.plans import (
    ByBroker,
    CommitResult,
    LossReason,
    Plan,
    PlanKind,
    Request,
    RunKeyRecord,
)
from etl.model.snapshot import PipelineState, Reservation, Snapshot
from etl.report.describe import (
    at,
    describe_by_owner,
    describe_capped,
    describe_changed_owners,
    describe_cluster_id,
    describe_duplicate_reads,
    describe_leaderless,
    describe_lost,
    describe_open,
    describe_partition_offsets,
    describe_purpose,
    describe_replaced,
    describe_vanished,
    doubt_of,
    logs_of,
)
from etl.report.lag import Lags, Resting, lags_at, resting, unread_from
from etl.report.plan_json import (
    describe_asked,
    describe_beyond_bound,
    describe_left_of_key,
    describe_open_without_plan,
    describe_plan,
    describe_without_plan,
    snapshots_as_json,
)
from etl.report.plan_json import (
    describe_open as told_open_end,
)
from etl.report.run_state import (
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
class _Look:
    """One snapshot, and the pipeline's positions then; None: unknown, the run ended before the
    decision.
    """

    snapshot: Snapshot
    reached: Reached | None = None
    settings: Settings | None = None

    def lag_of(self, log: BrokerPartition) -> int | None:
        if self.reached is None or self.settings is None:
            return None
        return lag_of(log, self.snapshot, self.reached, self.settings)


class SnapshotPair:
    """The first and the last snapshot of a run."""

    def __init__(self) -> None:
        self._count = 0
        self._first: _Look | None = None
        self._last: _Look | None = None

    def saw(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self._count += 1
        self._last = _Look(snapshot)
        self._first = self._first or self._last

    @property
    def claim(self) -> Reservation | None:
        """Return the reservation of a backfill, by the last snapshot."""
        return self._last.snapshot.backfill if self._last else None

    def stands(self, state: PipelineState, settings: Settings) -> None:
        """Set the state of the pipeline at that snapshot."""
        if self._last:
            is_first = self._first is self._last
            self._last = replace(
                self._last, reached=reached(state, self._last.snapshot), settings=settings
            )
            self._first = self._last if is_first else self._first

    def reached(self, plan: Plan) -> None:
        """The plan is in the table since."""
        if self._last:
            self._last = replace(self._last, reached=Reached(plan, plan.positions))

    def lag_as_json(self) -> list[dict[str, Any]]:
        """Offsets between position and readable end per log, before and after."""
        first, last = self._first, self._last
        if not first or not last:
            return []
        return [
            {
                **log.place,
                **describe_partition_offsets(last.snapshot, log),
                "before": first.lag_of(log),
                "after": last.lag_of(log),
            }
            for log in sorted(logs_of(last.snapshot))
        ]

    def unread(self) -> tuple[Snapshot, dict[BrokerPartition, int]] | None:
        """Return the last snapshot, and the first unread offset of each partition that lags; None
        before the first snapshot.
        """
        last = self._last
        if last is None:
            return None
        return last.snapshot, unread_from(
            last.snapshot, last.reached, last.settings
        ) if last.settings else {}

    def lags(
        self, oldest: Mapping[BrokerPartition, OldestRecord], settings: Settings, *, now_ms: int
    ) -> Lags | None:
        """Return the lag at the last snapshot; `oldest`: see `lags_at`. None before the first
        snapshot.
        """
        last = self._last
        return (
            lags_at(last.snapshot, last.reached, settings, oldest, now_ms=now_ms) if last else None
        )

    def as_json(self, settings: Settings | None) -> dict[str, Any] | None:
        """Return the snapshots for computing decisions again; None before the first one, and
        without settings.
        """
        if not self._first or not self._last or settings is None:
            return None
        return snapshots_as_json(self._first.snapshot, self._last.snapshot, self._count, settings)


def describe_without_ranges(plan: Plan) -> Iterator[tuple[Outcome, str]]:
    """Describe what a plan without ranges did, a sentence each."""
    decided = f"plan {plan.number}, by an operator's decision: {plan.reason}"
    if plan.kind is PlanKind.RESET:
        yield Outcome.TOPIC_CHANGES_ACCEPTED, decided
        yield from (
            (Outcome.TOPIC_CHANGES_ACCEPTED, sentence)
            for sentence in describe_vanished(plan.vanished)
        )
    elif plan.kind is PlanKind.BACKFILL and not plan.losses:
        yield Outcome.CLOSED, f"plan {plan.number} closes the backfill: {plan.reason}"
    elif plan.kind is PlanKind.SET:
        yield Outcome.OFFSETS_SET, decided
    elif plan.took_over and plan.kind is PlanKind.TAKE_OVER:
        yield (
            Outcome.INHERITED,
            f"plan {plan.number} goes on where {name_of(plan.took_over.app_id)} ended",
        )
    else:
        yield (
            (Outcome.OFFSETS_STORED if plan.losses else Outcome.OFFSETS_STORED),
            f"plan {plan.number} {describe_purpose(plan)}",
        )


def document_of(report: Report) -> dict[str, Any]:
    """See `Report.as_json`."""
    ended, seconds = report.finished_at_ms is not None, sum(report.seconds.values())
    plans = [{**describe_plan(one.plan, one.applied), "writer": one.writer} for one in report.plans]
    return {
        "run_id": report.run_id,
        "state": report.state.value,
        "pipeline": report.pipeline,
        "group": report.group,
        "table": report.table_path,
        "conf": report.process.conf,
        "overrides": dict(report.process.changes),
        "host": report.process.host,
        "pid": report.process.pid,
        "versions": dict(report.process.versions),
        "started_at": at(report.started_at_ms),
        "finished_at": at(report.finished_at_ms),
        "outcomes": [{"outcome": o.value, "message": s} for o, s in report.outcomes],
        "exit_code": report.exit_code if ended else None,
        "error": report.error.as_json() if report.error else None,
        "seconds": {verb.value: round(report.seconds.get(verb, 0.0), 3) for verb in Verb},
        "total_seconds": round(seconds, 3),
        "records": report.records,
        "bytes": report.fetched_bytes,
        "records_per_second": round(report.records / seconds) if ended and seconds else None,
        "offsets_committed": report.offsets_committed,
        "table_version": report.result.delta_version if report.result else None,
        "request": describe_asked(report.request),
        "plan": plans[-1] if plans else None,
        "previous_plans": plans[:-1],
        "lag": report.looks.lag_as_json(),
        "paused": [one.as_json() for one in report.paused],
        "statistics": report.statistics.as_json(),
    }


_LEFT = (Outcome.OWNED_BY_OTHERS, Outcome.NO_LEADER, Outcome.OPEN_TRANSACTION, Outcome.PAUSED)


@dataclass(slots=True)
class Report:
    """Filled while the run goes on; `as_json` at any time."""

    run_id: str
    pipeline: str
    group: str
    table_path: str
    started_at_ms: int
    process: Process = Process()
    finished_at_ms: int | None = None
    outcomes: list[tuple[Outcome, str]] = field(default_factory=list)
    _said: set[tuple[Outcome, str]] = field(default_factory=set)
    watch: Stopwatch = field(default_factory=Stopwatch)
    plans: list[Executed] = field(default_factory=list)
    """In the order in which the run executed them: those that were left by an earlier run come
    first.
    """
    offsets_committed: int = 0
    error: EtlError | None = None
    strict: bool = False
    """`--fail-on-loss`: a loss that policy allowed is an exit code of its own."""
    why_lost: set[LossReason] = field(default_factory=set)
    """Reasons of the offsets lost or reported again in this run."""
    settings: Settings | None = None
    """By which the run decides; None: what it saw is not kept."""
    request: Request | None = None
    """What the run is asked to load, in addition to its conf."""
    looks: SnapshotPair = field(default_factory=SnapshotPair)
    paused: tuple[Resting, ...] = ()
    asked_by_driver: ByBroker = field(default_factory=dict)
    membership: RebalanceStatistics | None = None
    oldest: Mapping[BrokerPartition, OldestRecord] = field(
        default_factory=dict
    )  # of what is left, where asked at the end

    def timed(self, verb: Verb) -> contextlib.AbstractContextManager[None]:
        """Add what passes inside to the verb's seconds, however it ends."""
        return self.watch.timed(verb)

    def add(self, outcome: Outcome, sentence: str) -> None:
        """Add an outcome once; a repeated snapshot does not repeat it."""
        if (outcome, sentence) not in self._said:
            self._said.add((outcome, sentence))
            self.outcomes.append((outcome, sentence))
            log_outcome(outcome, sentence)

    def saw(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self.looks.saw(snapshot)

    def stands(self, state: PipelineState, settings: Settings) -> None:
        """Set the state of the pipeline at that snapshot."""
        self.looks.stands(state, settings)

    def left(self, snapshot: Snapshot, *, now_ms: int) -> None:
        """Report what the run leaves out, and why; a later snapshot replaces earlier findings."""
        self.outcomes = [said for said in self.outcomes if said[0] not in _LEFT]
        self._said = set(self.outcomes)
        leaderless = describe_leaderless(snapshot.leaderless, snapshot.leaders)
        self.paused = resting(snapshot, now_ms=now_ms)
        told = (
            describe_by_owner(snapshot.owners),
            leaderless,
            describe_open(snapshot),
            (one.says for one in self.paused),
        )
        for outcome, sentences in zip(_LEFT, told, strict=True):
            for sentence in sentences:
                self.add(outcome, sentence)

    def planned(self, plan: Plan, *, goes_on: bool = False) -> None:
        """Report the plan that is executed now, possibly instead of another. If another plan of its
        key follows, that one reports what is open.
        """
        if self.plan and self.plan.number == plan.number and not self.plans[-1].applied:
            self.plans.pop()
        if not self.plan or self.plan.id != plan.id:
            self.plans.append(Executed(plan))
        if plan.bounds.open_logs and not goes_on:
            self.add(Outcome.NOT_COMPLETE, told_open_end(plan))
        self.lost(plan)

    def beyond_bound(self, snapshot: Snapshot) -> None:
        """Report what the table has beyond the run's bound, before its own plan."""
        beyond = loaded_beyond(snapshot)
        if beyond and self.request and self.request.bounds.until:
            self.add(
                Outcome.ALREADY_BEYOND_UNTIL,
                describe_beyond_bound(beyond, self.request.bounds.until.said),
            )

    def called(self, plan: Plan, newest: Plan | None) -> None:
        """Report that brokers which reported no cluster id now do, by the plan."""
        sentence = describe_cluster_id(plan, newest)
        if sentence:
            self.add(Outcome.BROKER_CLUSTER_ID_IGNORED, sentence)

    def lost(self, plan: Plan) -> None:
        """Report a plan's losses: by the run that plans it, and again by one that finishes it after
        a crash.
        """
        self.why_lost |= {loss.why for loss in plan.losses}
        for sentence in describe_lost(plan.losses):
            self.add(Outcome.RECORDS_LOST, sentence)

    def applied(self, applied: CommitResult) -> None:
        """The plan is in the table."""
        executed = self.plans[-1]
        executed.applied, plan = applied, executed.plan
        self.looks.reached(plan)
        how_many = "its" if applied.rows is None else f"{applied.rows:,}"
        in_table = f"records are in the table at version {applied.delta_version}"
        if applied.run_id not in (None, self.run_id):
            its = how_many if applied.rows is None else f"its {how_many}"
            self.add(
                Outcome.LOADED_BY_ANOTHER_RUN,
                f"plan {plan.number}: {its} {in_table}, by run {applied.run_id}{doubt_of(applied)}",
            )
        elif plan.ranges:
            did = describe_replaced(plan, applied) or in_table
            self.add(
                Outcome.ROWS_REPLACED if did != in_table else Outcome.INGESTED,
                f"plan {plan.number}: {how_many} {did}{doubt_of(applied)}",
            )
        else:
            for outcome, sentence in describe_without_ranges(plan):
                self.add(outcome, sentence)

    def committed(self, plan: Plan, taken: Collection[ReadTwice] = ()) -> None:
        """The offsets are moved, but for those that are other members' by now."""
        self.offsets_committed += len(plan.offsets_to_move) - len(taken)
        for sentence in describe_changed_owners(plan, taken):
            self.add(Outcome.OWNER_CHANGED, sentence)

    def read_twice(self, found: Iterable[ReadTwice]) -> None:
        """Report what others may also have read."""
        for sentence in describe_duplicate_reads(found):
            self.add(Outcome.DUPLICATE_READS, sentence)

    def left_by_caps(self, plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
        """Report what caps left: the lag after the run's own plan."""
        behind = Reached(plan, plan.positions)
        lags = {
            log: lag for log in plan.positions if (lag := lag_of(log, snapshot, behind, settings))
        }
        left = up_to_bound(lags, plan, snapshot)
        if left:
            self.add(Outcome.LIMIT_REACHED, describe_capped(left, settings.limits))

    def left_of_key(self, left: Collection[BrokerPartition]) -> None:
        """Logs that could not be read, and that the run's key is to load."""
        if left and self.request and self.request.run_key:
            self.add(Outcome.NOT_COMPLETE, describe_left_of_key(self.request.run_key, left))

    def found_nothing_new(
        self,
        done_before: RunKeyRecord | None,
        remembered: RunKeyRecord | None,
        *,
        open_logs: int = 0,
    ) -> None:
        """Report that the run has no plan of its own, if it had none to finish either, and always
        with a run key.
        """
        if done_before or remembered or not any(one.applied for one in self.plans):
            self.add(*describe_without_plan(done_before, remembered))
        if open_logs and self.request and self.request.bounds.until:
            self.add(
                Outcome.NOT_COMPLETE,
                describe_open_without_plan(self.request.bounds.until, open_logs),
            )

    def failed(self, error: EtlError) -> None:
        """The run ended early."""
        self.error = error
        self.add(Outcome.FAILED, str(error))

    def finished(self, now_ms: int) -> None:
        """Nothing comes after this."""
        self.finished_at_ms = now_ms

    @property
    def seconds(self) -> Mapping[Verb, float]:
        """Return seconds by verb; their sum is the run's time."""
        return self.watch.seconds

    @property
    def state(self) -> State:
        """How far the run is."""
        if self.finished_at_ms is None:
            return State.RUNNING
        return State.FAILED if self.error else State.DONE

    @property
    def plan(self) -> Plan | None:
        """The newest plan that the run executed, or began to."""
        return self.plans[-1].plan if self.plans else None

    @property
    def result(self) -> CommitResult | None:
        """Return the result of the newest plan in the table."""
        return next((one.applied for one in reversed(self.plans) if one.applied), None)

    @property
    def lost_records(self) -> bool:
        """True if policy gave up records in this run."""
        return any(outcome is Outcome.RECORDS_LOST for outcome, _ in self.outcomes)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the run's process."""
        if self.error:
            return self.error.exit_code
        return DataLost.exit_code if self.strict and self.lost_records else 0

    @property
    def records(self) -> int:
        """Rows that this run's plans gave, as far as they were counted."""
        return sum(one.records for one in self.plans)

    @property
    def statistics(self) -> Statistics:
        """Return what reading cost."""
        return Statistics(self.plans, self.asked_by_driver, self.offsets_committed, self.membership)

    @property
    def fetched_bytes(self) -> int | None:
        """Bytes that the brokers sent for them; None where a crash took that knowledge along."""
        return fetched_bytes_of(self.plans)

    def as_json(self) -> dict[str, Any]:
        """Return the run's document. What is known only at the end is null before. `plan` is the
        newest one, `previous_plans` those finished before.
        """
        return document_of(self)

    def snapshots_as_json(self) -> dict[str, Any] | None:
        """Return the snapshots for the report's file; None before the first one."""
        return self.looks.as_json(self.settings)


def loaded_before(claim: Reservation, plan: Plan) -> int:
    """How many offsets of the backfill lie before this plan of it."""
    left = claim.left_from(starts_of(plan))
    return claim.offsets - sum(until - start for parts in left.values() for start, until in parts)


def of_the_whole(doing: Doing, report: Report) -> Doing:
    """Return the progress of a backfill's run relative to the whole backfill; unchanged if that is
    unknown.
    """
    claim, plan, reached = report.looks.claim, report.plan, doing.reached
    if claim is None or plan is None or reached is None:
        return doing
    return replace(
        doing,
        reached=replace(
            reached,
            offsets=loaded_before(claim, plan) + reached.offsets,
            offsets_in_all=claim.offsets,
            records=reached.records + report.records,
            bytes=reached.bytes + (report.fetched_bytes or 0),
        ),
    )
