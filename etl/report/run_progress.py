"""The phase of a run, its progress, its outcomes and its counts.

Lives here: phases with their timings; outcomes; progress of reading, its speed and estimated end;
counts of records, bytes and requests.
Not here: the report of a run (etl/report/run_report.py), printing progress (etl/cli/progress.py).

Range results are exact and arrive when a task ends. Progress that tasks send while they read may be
late or lost, and is used for tasks without results only. At most `MOST` topics and brokers are
listed, the rest is added up.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Protocol

from etl.model.partitions import RebalanceStatistics
from etl.model.plans import ByBroker, CommitResult, OffsetRange, Plan, RangeResult, together

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without any handler Python prints warnings to the terminal


class Outcome(str, Enum):
    """Outcome of a run; a run may have several."""

    INGESTED = "ingested"
    OFFSETS_STORED = "offsets_stored"
    TOPIC_CHANGES_ACCEPTED = "topic_changes_accepted"
    OFFSETS_SET = "offsets_set"
    TABLE_COMPACTED = "table_compacted"
    TABLE_NOT_COMPACTED = "table_not_compacted"
    NOT_MIRRORED = "not_mirrored"
    BACKFILL_DONE = "backfill_done"
    INHERITED = "inherited"
    ROWS_REPLACED = "rows_replaced"
    UP_TO_DATE = "up_to_date"
    ALREADY_LOADED = "already_loaded"
    NOT_COMPLETE = "not_complete"
    ALREADY_BEYOND_UNTIL = "already_beyond_until"
    PLAN_RESUMED = "plan_resumed"
    BROKER_CLUSTER_ID_IGNORED = "broker_cluster_id_ignored"
    OTHER_TIME_ZONE = "another_time_zone"
    PLAN_COMPLETED = "plan_completed"
    OFFSET_CHANGED = "offset_changed"
    LEDGER_RESTORED = "ledger_restored"
    PLAN_SUPERSEDED = "plan_superseded"
    ROWS_REMOVED = "rows_removed"
    SESSION_LOST = "session_lost"
    OWNED_BY_OTHERS = "owned_by_others"
    NO_ASSIGNMENT = "no_assignment"
    REBALANCED = "rebalanced"
    MEMBERSHIP_ENDED = "membership_ended"
    OFFSETS_LEFT_TO_MEMBERS = "offsets_left_to_members"
    DUPLICATE_READS = "duplicate_reads"
    OWNER_CHANGED = "owner_changed"
    NO_LEADER = "no_leader"
    OPEN_TRANSACTION = "open_transaction"
    PAUSED = "paused"
    LOADED_BY_ANOTHER_RUN = "loaded_by_another_run"
    RECORDS_LOST = "records_lost"
    EXPIRES_SOON = "expires_soon"
    ROWS_WITHOUT_EVENT_DATE = "rows_without_event_date"
    LIMIT_REACHED = "limit_reached"
    REPORT_NOT_WRITTEN = "report_not_written"
    METRICS_NOT_WRITTEN = "metrics_not_written"
    LINEAGE_NOT_SENT = "lineage_not_sent"
    FAILED = "failed"

    @property
    def is_loud(self) -> bool:
        """True if it is a warning: left out, lost, changed by others, or not written."""
        return self in _LOUD


_LOUD = frozenset(
    (
        Outcome.OWNED_BY_OTHERS,
        Outcome.NO_LEADER,
        Outcome.OPEN_TRANSACTION,
        Outcome.PAUSED,
        Outcome.RECORDS_LOST,
        Outcome.LOADED_BY_ANOTHER_RUN,
        Outcome.OFFSET_CHANGED,
        Outcome.OWNER_CHANGED,
        Outcome.ROWS_REMOVED,
        Outcome.NOT_MIRRORED,
        Outcome.REPORT_NOT_WRITTEN,
        Outcome.METRICS_NOT_WRITTEN,
        Outcome.LINEAGE_NOT_SENT,
        Outcome.TABLE_NOT_COMPACTED,
        Outcome.OTHER_TIME_ZONE,
        Outcome.FAILED,
    )
)


def log_outcome(outcome: Outcome, sentence: str) -> None:
    """Log an outcome. The run's error is logged where it is caught."""
    if outcome is not Outcome.FAILED:
        level = logging.WARNING if outcome.is_loud else logging.INFO
        _log.log(level, "%s: %s", outcome.value, sentence, extra={"outcome": outcome.value})


class State(str, Enum):
    """State of a run. `running` of a dead process means that it was killed."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a run: host, conf, versions."""

    host: str | None = None
    pid: int | None = None
    conf: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    changes: Mapping[str, str | None] = field(default_factory=dict)
    """Keys set by `--set`, with values; null for possible secrets."""


@dataclass(slots=True)
class Executed:
    """One plan of the run and its result."""

    plan: Plan
    applied: CommitResult | None = None
    """None: it is unknown whether the plan is in the table."""
    writer: str | None = None
    """The writer that appended it, and why it was chosen; None: the run ended before."""

    @property
    def records(self) -> int:
        """Return the counted records that the plan read."""
        if self.applied is None:
            return 0
        return sum(result.records_read or 0 for result in self.applied.results)

    @property
    def rows(self) -> int | None:
        """Return the rows that the plan wrote; None if they could not be counted."""
        if self.applied is None:
            return 0
        return self.applied.rows


def fetched_bytes_of(plans: Iterable[Executed]) -> int | None:
    """Return the bytes fetched for these plans; None if a crash lost a count."""
    total = 0
    for one in plans:
        if one.applied is None:
            continue
        for result in one.applied.results:
            if result.fetched_bytes is None:
                return None
            total += result.fetched_bytes
    return total


_WINDOW_S = 30.0
"""Length of the window for the speed: the first seconds of a task are slower."""
_LEAST_S = 2.0
"""Shortest time for a meaningful speed."""


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """Progress of one attempt of a task."""

    attempt: int
    offsets: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """Progress of all tasks together."""

    ranges: int
    ranges_in_all: int
    offsets: int
    offsets_in_all: int
    records: int
    bytes: int


class TaskProgress:
    """Sum of the progress of tasks.

    A task is a list of indices of `ranges`; its number is the first index.
    """

    def __init__(self, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]]) -> None:
        self._ranges = len(ranges)
        self._left = {task[0]: tuple(task) for task in tasks}
        self.planned = {task[0]: sum(ranges[i].size for i in task) for task in tasks}
        """Offsets by task."""
        self._ended = AttemptProgress(0, 0, 0, 0)

    def reached(
        self, results: Mapping[int, RangeResult], reported: Mapping[int, AttemptProgress]
    ) -> ReadSoFar:
        """Return the progress by range results (by index) and reported progress (by task)."""
        ended = []
        for number, task in self._left.items():
            if all(index in results for index in task):
                ended.append(number)
        for number in ended:
            of_task = [results[index] for index in self._left.pop(number)]
            records = sum(result.records_read or 0 for result in of_task)
            fetched = sum(result.fetched_bytes or 0 for result in of_task)
            done = AttemptProgress(0, self.planned[number], records, fetched)
            self._ended = _added(self._ended, done)
        so_far = self._ended
        for number in self._left.keys() & reported.keys():
            so_far = _added(so_far, reported[number])  # may be late or lost
        return ReadSoFar(
            min(len(results), self._ranges),
            self._ranges,
            so_far.offsets,
            sum(self.planned.values()),
            so_far.records,
            so_far.bytes,
        )


def _added(a: AttemptProgress, b: AttemptProgress) -> AttemptProgress:
    return AttemptProgress(0, a.offsets + b.offsets, a.records + b.records, a.bytes + b.bytes)


class Pace:
    """Speed of reading over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ReadSoFar]] = deque()

    def see(self, now: float, reached: ReadSoFar) -> None:
        """Add the progress at that time, in seconds of a monotonic clock."""
        if self._seen and reached.offsets < self._seen[-1][1].offsets:
            self._seen.clear()  # a task was started again
        self._seen.append((now, reached))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()

    @property
    def records_per_second(self) -> float | None:
        """Return the records per second; None while unknown."""
        first, last, seconds = self._window()
        if not seconds:
            return None
        return (last.records - first.records) / seconds

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated seconds until the end; None while unknown."""
        first, last, seconds = self._window()
        done = last.offsets - first.offsets
        if not seconds or not done:
            return None
        return (last.offsets_in_all - last.offsets) * seconds / done

    def _window(self) -> tuple[ReadSoFar, ReadSoFar, float]:
        """Return first and last recent progress and the seconds between; 0 s if too short."""
        if not self._seen:
            return _NOTHING, _NOTHING, 0.0
        began, first = self._seen[0]
        now, last = self._seen[-1]
        seconds = now - began
        if seconds < _LEAST_S:
            seconds = 0.0
        return first, last, seconds


def format_progress(reached: ReadSoFar, pace: Pace | None = None) -> str:
    """Return the progress as one line; with `pace` also speed and estimated time left.

    The percentage alone until something was read: that of a continued backfill has the offsets of
    earlier runs, and records and bytes are of this run.
    """
    done = 100 * reached.offsets // max(reached.offsets_in_all, 1)
    if not reached.records and not reached.bytes:
        return f"{done}%"
    words = [f"{done}%", f"{reached.records:,} records", size_in_words(reached.bytes)]
    if pace is not None and pace.records_per_second is not None:
        words.append(f"{pace.records_per_second:,.0f} records/s")
    if pace is not None and pace.seconds_left is not None:
        words.append(f"about {time_in_words(pace.seconds_left)} left")
    return ", ".join(words)


def size_in_words(size: float) -> str:
    """Return a size as text: 512 B, 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if size >= 1000:
            size /= 1000
        elif size >= 10 or unit == "B":
            return f"{size:.0f} {unit}"
        else:
            return f"{size:.1f} {unit}"
    return f"{size:,.1f} TB"


def time_in_words(seconds: float) -> str:
    """Return a duration as text: 45 s, 2:05 min, 3:20 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


_NOTHING = ReadSoFar(0, 0, 0, 0, 0, 0)


class Verb(str, Enum):
    """The phases of a run, in order."""

    CONNECT = "connect"
    """Opening a ZooKeeper session and waiting for the driver lock."""
    OBSERVE = "observe"
    RECONCILE = "reconcile"
    PLAN = "plan"
    START_SPARK = "start_spark"
    """Starting a Spark session, mostly its JVM."""
    FIRST_JOB = "first_job"
    """Until the first task, of Spark or of a worker process: Delta reads the table, Python workers
    start.
    """
    FETCH = "fetch"
    """Tasks fetch from brokers and write the table's files."""
    APPEND = "append"
    """From the end of the last task: the commit, and reading the table again."""
    COMMIT = "commit"
    COMPACT = "compact"
    """Compaction of small files, if configured."""
    CLOSE = "close"
    """Stopping Spark and releasing the driver lock."""


@dataclass(frozen=True, slots=True)
class Doing:
    """The current activity of a run."""

    verb: Verb | None
    reached: ReadSoFar | None = None


class Phases(Protocol):
    """Records the phase of a run, for timings and progress output."""

    def timed(self, verb: Verb) -> contextlib.AbstractContextManager[None]:
        """Context manager: the time inside belongs to `verb`, except that of nested phases."""

    def reckon(self, verb: Verb, seconds: float) -> None:
        """Move seconds of the current phase to `verb`, if it is known only afterwards."""

    def reading(self, doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        """Context manager: tasks read inside; `doing` returns the current phase and progress."""


class Stopwatch:
    """Seconds by phase.

    Nested time is subtracted from the outer phase, so the sum is the elapsed time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[Verb, float] = {}
        self._clock = clock
        self._inside = 0.0
        """Seconds of the current phase that nested phases took."""
        self._open: list[Verb] = []
        self._reading: Callable[[], Doing] | None = None

    @contextlib.contextmanager
    def timed(self, verb: Verb) -> Iterator[None]:
        """See `Phases`."""
        began = self._clock()
        around = self._inside
        self._inside = 0.0
        self._open.append(verb)
        _log.info("%s begins", verb.value)
        try:
            yield
        finally:
            self._open.pop()
            spent = self._clock() - began
            self._add(verb, spent - self._inside)
            self._inside = around + spent

    def reckon(self, verb: Verb, seconds: float) -> None:
        """See `Phases`."""
        self._add(verb, seconds)
        self._inside += seconds

    @contextlib.contextmanager
    def reading(self, doing: Callable[[], Doing]) -> Iterator[None]:
        """See `Phases`."""
        self._reading = doing
        try:
            yield
        finally:
            self._reading = None

    def doing(self) -> Doing:
        """Return the current phase and progress. May be called from another thread."""
        reading = self._reading
        if reading:
            return reading()
        open_verbs = self._open[-1:]  # one read: the run's thread may change the list
        if not open_verbs:
            return Doing(None)
        return Doing(open_verbs[0])

    def _add(self, verb: Verb, seconds: float) -> None:
        self.seconds[verb] = self.seconds.get(verb, 0.0) + seconds


MOST = 1000
OTHERS = "(others)"
HELP: Mapping[str, str] = {
    "run_topic_records": "Counted records of the topic that the plans of the last run read.",
    "run_topic_rows": "Rows that they wrote of the topic, if their number is known.",
    "run_topic_fetched_bytes": "Bytes fetched for them.",
    "run_broker_requests": "Requests to the broker in the last run, by the driver or by tasks "
    "whose rows are in the table.",
    "run_broker_request_seconds": "Seconds that the driver, or tasks, waited for the broker.",
    "run_broker_sent_bytes": "Bytes sent to the broker.",
    "run_broker_received_bytes": "Bytes received from the broker.",
    "run_table_commits": "Table commits of the last run.",
    "run_rebalances": "Rebalances of the last run in its group.",
    "run_rebalance_seconds": "Seconds of these rebalances.",
    "run_rebalance_tries": "Failed tries to join during these rebalances.",
    "run_memberships_lost": "Memberships that the group ended.",
    "run_heartbeat_age_seconds": "Seconds between the last heartbeat response and the end of the "
    "run.",
}
_Counts = dict[str, float]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one run, so far."""

    plans: Sequence[Executed] = ()
    asked_by_driver: ByBroker = field(default_factory=dict)
    offsets_committed: int = 0
    membership: RebalanceStatistics | None = None
    """None: the run is not a group member."""

    @property
    def topics(self) -> dict[str, _Counts]:
        """Return messages, rows and bytes by topic, largest first; no rows if a range's rows are
        unknown.
        """
        topics: dict[str, _Counts] = {}
        uncounted = set()
        for one in self.plans:
            if one.applied is None:
                continue
            for planned, result in zip(one.plan.ranges, one.applied.results, strict=False):
                topic = planned.partition.topic
                counts = topics.setdefault(topic, {"messages": 0, "rows": 0, "bytes": 0})
                counts["messages"] += result.records_read or 0
                counts["rows"] += result.rows or 0
                counts["bytes"] += result.fetched_bytes or 0
                if result.rows is None:
                    uncounted.add(topic)
        for topic in uncounted:
            del topics[topic]["rows"]
        return _largest(topics, "bytes")

    @property
    def brokers(self) -> dict[str, dict[str, _Counts]]:
        """Return requests by origin, `driver` or `tasks`, and broker, longest waits first."""
        of_ranges = []
        for one in self.plans:
            if one.applied:
                of_ranges += [dict(result.requests) for result in one.applied.results]
        found = {}
        for origin, by_broker in (("driver", self.asked_by_driver), ("tasks", together(of_ranges))):
            counts = {broker: asdict(requests) for broker, requests in by_broker.items()}
            found[origin] = _largest(counts, "seconds")
        return found

    @property
    def table_commits(self) -> int:
        """Return the number of plans that are in the table."""
        return sum(one.applied is not None for one in self.plans)

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as a JSON object."""
        brokers = []
        for origin, found in self.brokers.items():
            for broker, counts in found.items():
                rounded = {**counts, "seconds": round(counts["seconds"], 6)}
                brokers.append({"asked_by": origin, "broker": broker, **rounded})
        topics = []
        for topic, counts in self.topics.items():
            topics.append({"topic": topic, "rows": None, **counts})
        return {
            "topics": topics,
            "brokers": brokers,
            "commits": {"table": self.table_commits, "offsets": self.offsets_committed},
            "membership": asdict(self.membership) if self.membership else None,
        }

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """Yield the statistics for Prometheus: name, labels, value."""
        for topic, counts in self.topics.items():
            yield "run_topic_records", (("topic", topic),), counts["messages"]
            if "rows" in counts:
                yield "run_topic_rows", (("topic", topic),), counts["rows"]
            yield "run_topic_fetched_bytes", (("topic", topic),), counts["bytes"]
        for origin, found in self.brokers.items():
            for broker, counts in found.items():
                labels = (("asked_by", origin), ("broker", broker))
                yield "run_broker_requests", labels, counts["answers"]
                yield "run_broker_request_seconds", labels, counts["seconds"]
                yield "run_broker_sent_bytes", labels, counts["sent_bytes"]
                yield "run_broker_received_bytes", labels, counts["received_bytes"]
        yield "run_table_commits", (), self.table_commits
        yield from _of_membership(self.membership)


def _of_membership(found: RebalanceStatistics | None) -> Iterator[tuple[str, Labels, float]]:
    if found is None:
        return
    yield "run_rebalances", (), found.rebalances
    yield "run_rebalance_seconds", (), found.seconds
    yield "run_rebalance_tries", (), found.tries
    yield "run_memberships_lost", (), found.lost
    if found.heartbeat_age_s is not None:
        yield "run_heartbeat_age_seconds", (), found.heartbeat_age_s


def _largest(found: Mapping[str, _Counts], by: str) -> dict[str, _Counts]:
    names = sorted(found, key=lambda name: (-found[name][by], name))
    kept = {name: found[name] for name in names[:MOST]}
    left = names[MOST:]
    if left:
        kept[OTHERS] = _summed([found[name] for name in left])
    return kept


def _summed(several: Sequence[_Counts]) -> _Counts:
    """Return the sums of the counts that all have."""
    total: _Counts = {}
    for name in several[0]:
        values = [one[name] for one in several if name in one]
        if len(values) == len(several):
            total[name] = sum(values)
    return total
