"""What is a run doing, how far is it, and what was the result?

Lives here: verbs and phases with their timings; outcomes; progress of reading, its speed and
estimated end; counts of records, bytes and requests. Range results are exact and arrive when a task
ends; progress that tasks send while they read may be late or lost, and is used for tasks without
results only. At most `MOST` topics and brokers are listed, the rest is added up.
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
    CLOSED = "closed"
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
        """True if a person should look at it."""
        return self in _LOUD


_LOUD = frozenset(
    (
        Outcome.OPEN_TRANSACTION,
        Outcome.RECORDS_LOST,
        Outcome.LOADED_BY_ANOTHER_RUN,
        Outcome.ROWS_REMOVED,
        Outcome.REPORT_NOT_WRITTEN,
        Outcome.METRICS_NOT_WRITTEN,
        Outcome.LINEAGE_NOT_SENT,
        Outcome.TABLE_NOT_COMPACTED,
        Outcome.OTHER_TIME_ZONE,
        Outcome.FAILED,
    )
)


def log_outcome(outcome: Outcome, sentence: str) -> None:
    """Log an outcome; the run's error is logged by whoever catches it."""
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
    """The process that runs: where, by which conf, of which versions."""

    host: str | None = None
    pid: int | None = None
    conf: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    changes: Mapping[str, str | None] = field(default_factory=dict)
    """Keys set by `--set`, with values; null for possible secrets."""


@dataclass(slots=True)
class Executed:
    """One plan of the run, and what came of it; None: it is not known to be in the table."""

    plan: Plan
    applied: CommitResult | None = None
    writer: str | None = None
    """Which one appended it, and why; None where the run did not come so far."""

    @property
    def records(self) -> int:
        """Rows that the plan gave."""
        return sum(r.rows or 0 for r in self.applied.receipts) if self.applied else 0


def fetched_bytes_of(plans: Iterable[Executed]) -> int | None:
    """Bytes that the brokers sent for these plans; None where a crash took that knowledge along."""
    told = [r.fetched_bytes for one in plans if one.applied for r in one.applied.receipts]
    known = [size for size in told if size is not None]
    return sum(known) if len(known) == len(told) else None


_WINDOW_S = 30.0
"""The pace is that of the last seconds: tasks wait for a broker, and begin cold."""
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
    """How far all tasks together are."""

    ranges: int
    ranges_in_all: int
    offsets: int
    offsets_in_all: int
    records: int
    bytes: int


class Reckoning:
    """Tasks of one reading (indices of `ranges`) and what is known of each. A task's number is its
    first index.
    """

    def __init__(self, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]]) -> None:
        self._ranges = len(ranges)
        self._left = {task[0]: tuple(task) for task in tasks}
        self.planned = {task[0]: sum(ranges[i].size for i in task) for task in tasks}
        """Offsets by task."""
        self._ended = AttemptProgress(0, 0, 0, 0)

    def reached(
        self, receipts: Mapping[int, RangeResult], told: Mapping[int, AttemptProgress]
    ) -> ReadSoFar:
        """Return the progress of the tasks by results (per range) and reported progress (per task)."""
        for number in [
            number for number, task in self._left.items() if all(i in receipts for i in task)
        ]:
            came = [receipts[i] for i in self._left.pop(number)]
            self._ended = _and(
                self._ended,
                AttemptProgress(
                    0,
                    self.planned[number],
                    sum(r.rows or 0 for r in came),
                    sum(r.fetched_bytes or 0 for r in came),
                ),
            )
        so_far = self._ended
        for number in self._left.keys() & told.keys():
            so_far = _and(so_far, told[number])
        return ReadSoFar(
            min(len(receipts), self._ranges),
            self._ranges,
            so_far.offsets,
            sum(self.planned.values()),
            so_far.records,
            so_far.bytes,
        )


def _and(a: AttemptProgress, b: AttemptProgress) -> AttemptProgress:
    return AttemptProgress(0, a.offsets + b.offsets, a.records + b.records, a.bytes + b.bytes)


class Pace:
    """How fast the reading goes of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ReadSoFar]] = deque()

    def see(self, now: float, reached: ReadSoFar) -> None:
        """Add the progress at that time, in seconds of a monotonic clock."""
        if self._seen and reached.offsets < self._seen[-1][1].offsets:
            self._seen.clear()  # a task began anew
        self._seen.append((now, reached))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()

    @property
    def records_per_second(self) -> float | None:
        """None while it is not known."""
        first, last, passed = self._window()
        return (last.records - first.records) / passed if passed else None

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace; None while that is not known."""
        first, last, passed = self._window()
        done = last.offsets - first.offsets if passed else 0
        return (last.offsets_in_all - last.offsets) * passed / done if done else None

    def _window(self) -> tuple[ReadSoFar, ReadSoFar, float]:
        """Return the ends of recent observations and the seconds between; none if that is too
        short.
        """
        (began, first), (now, last) = (
            (self._seen[0], self._seen[-1]) if self._seen else ((0.0, _NOTHING), (0.0, _NOTHING))
        )
        return first, last, now - began if now - began >= _LEAST_S else 0.0


def format_progress(reached: ReadSoFar, pace: Pace | None = None) -> str:
    """How far, and where that is of interest still how fast and for how long: one line."""
    done = 100 * reached.offsets // max(reached.offsets_in_all, 1)
    words = [f"{done}%", f"{reached.records:,} records", size_in_words(reached.bytes)]
    if pace is not None and pace.records_per_second is not None:
        words.append(f"{pace.records_per_second:,.0f} records/s")
    if pace is not None and pace.seconds_left is not None:
        words.append(f"about {time_in_words(pace.seconds_left)} left")
    return ", ".join(words)


def size_in_words(size: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def time_in_words(seconds: float) -> str:
    """A duration for a person: 45 s, 2:05 min, 3:20 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60}:{whole % 60:02} min"
        if whole < 3600
        else f"{whole // 3600}:{whole % 3600 // 60:02} h"
    )


_NOTHING = ReadSoFar(0, 0, 0, 0, 0, 0)


class Verb(str, Enum):
    """The phases of a run, in their order. Six are the verbs of the story; the others are what the
    world around it takes.
    """

    CONNECT = "connect"
    """ZooKeeper's session, and waiting for another driver."""
    OBSERVE = "observe"
    RECONCILE = "reconcile"
    PLAN = "plan"
    START_SPARK = "start_spark"
    """From nothing to a session: mostly the start of the JVM."""
    FIRST_JOB = "first_job"
    """From a session to the first reading task: Delta reads the table, Python workers start."""
    FETCH = "fetch"
    """Tasks read the brokers, and write the table's files while they read."""
    APPEND = "append"
    """From the last task's end: the table's commit, and reading the table again."""
    COMMIT = "commit"
    COMPACT = "compact"
    """Compaction of small files, if configured."""
    CLOSE = "close"
    """Spark's end, and giving up the driver's lock."""


@dataclass(frozen=True, slots=True)
class Doing:
    """The current activity of a run."""

    verb: Verb | None
    reached: ReadSoFar | None = None


class Phases(Protocol):
    """Records which verb a run is in, for timings and progress output."""

    def timed(self, verb: Verb) -> contextlib.AbstractContextManager[None]:
        """Context manager: time inside belongs to `verb`, except nested verbs."""

    def reckon(self, verb: Verb, seconds: float) -> None:
        """Move seconds of the current verb to `verb`, where that is known only afterwards."""

    def reading(self, doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        """Context manager: tasks read inside; `doing` returns the current verb and progress."""


class Stopwatch:
    """Seconds by verb. Nested time is subtracted from the outer verb, so that the sum is the
    elapsed time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[Verb, float] = {}
        self._clock = clock
        self._inside = 0.0
        """Seconds of the open verb that were given to others."""
        self._open: list[Verb] = []
        self._reading: Callable[[], Doing] | None = None

    @contextlib.contextmanager
    def timed(self, verb: Verb) -> Iterator[None]:
        """See `Phases`; also after an exception."""
        began, around, self._inside = self._clock(), self._inside, 0.0
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
        """Return the current activity; callable from another thread."""
        reading, verbs = self._reading, self._open[-1:]
        return reading() if reading else Doing(verbs[0] if verbs else None)

    def _add(self, verb: Verb, seconds: float) -> None:
        self.seconds[verb] = self.seconds.get(verb, 0.0) + seconds


MOST, OTHERS = 1000, "(others)"
HELP: Mapping[str, str] = {
    "run_topic_rows": "Rows that the plans of the last run gave of the topic, as far as they were counted.",
    "run_topic_fetched_bytes": "Bytes that the brokers sent for them.",
    "run_broker_requests": "Requests that the broker answered in the last run; by the driver, or by tasks whose rows are in the table.",
    "run_broker_request_seconds": "How long the driver, or tasks, waited for the broker.",
    "run_broker_sent_bytes": "Bytes that were sent to the broker.",
    "run_broker_received_bytes": "Bytes that came from the broker.",
    "run_table_commits": "Commits of the table that the last run saw done.",
    "run_rebalances": "How often the last run took a share of its group.",
    "run_rebalance_seconds": "How long that took.",
    "run_rebalance_tries": "How often other members were in the way of it.",
    "run_memberships_lost": "How often the membership ended without the run's wish.",
    "run_heartbeat_age_seconds": "How long before its end the run last heard that it is a member.",
}
_Counts = dict[str, float]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one run, so far."""

    plans: Sequence[Executed] = ()
    asked_by_driver: ByBroker = field(default_factory=dict)
    offsets_committed: int = 0
    membership: RebalanceStatistics | None = None
    """None: the run is no member of its group."""

    @property
    def topics(self) -> dict[str, _Counts]:
        """Messages and bytes by topic, largest first."""
        found: dict[str, _Counts] = {}
        for one in self.plans:
            for r, receipt in zip(
                one.plan.ranges, one.applied.receipts if one.applied else (), strict=False
            ):
                counts = found.setdefault(r.log.topic, {"messages": 0, "bytes": 0})
                counts["messages"] += receipt.rows or 0
                counts["bytes"] += receipt.fetched_bytes or 0
        return _largest(found, "bytes")

    @property
    def brokers(self) -> dict[str, dict[str, _Counts]]:
        """Return requests by origin, `driver` or `tasks`, and broker, longest waits first."""
        of_tasks = together(
            dict(receipt.requests)
            for one in self.plans
            if one.applied
            for receipt in one.applied.receipts
        )
        return {
            who: _largest(
                {broker: asdict(requests) for broker, requests in asked.items()}, "seconds"
            )
            for who, asked in (("driver", self.asked_by_driver), ("tasks", of_tasks))
        }

    @property
    def table_commits(self) -> int:
        """Plans of which the run saw that the table has them."""
        return sum(one.applied is not None for one in self.plans)

    def as_json(self) -> dict[str, Any]:
        """The statistics in a report."""
        return {
            "topics": [{"topic": topic, **counts} for topic, counts in self.topics.items()],
            "brokers": [
                {
                    "asked_by": who,
                    "broker": broker,
                    **{**counts, "seconds": round(counts["seconds"], 6)},
                }
                for who, found in self.brokers.items()
                for broker, counts in found.items()
            ],
            "commits": {"table": self.table_commits, "offsets": self.offsets_committed},
            "membership": asdict(self.membership) if self.membership else None,
        }

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """Return the same for Prometheus: name, labels, value."""
        for topic, counts in self.topics.items():
            yield "run_topic_rows", (("topic", topic),), counts["messages"]
            yield "run_topic_fetched_bytes", (("topic", topic),), counts["bytes"]
        for who, found in self.brokers.items():
            for broker, counts in found.items():
                labels = (("asked_by", who), ("broker", broker))
                yield "run_broker_requests", labels, counts["answers"]
                yield "run_broker_request_seconds", labels, counts["seconds"]
                yield "run_broker_sent_bytes", labels, counts["sent_bytes"]
                yield "run_broker_received_bytes", labels, counts["received_bytes"]
        yield "run_table_commits", (), self.table_commits
        yield from _of_membership(self.membership)


def _of_membership(told: RebalanceStatistics | None) -> Iterator[tuple[str, Labels, float]]:
    if told is None:
        return
    values = {
        "run_rebalances": told.rebalances,
        "run_rebalance_seconds": told.seconds,
        "run_rebalance_tries": told.tries,
        "run_memberships_lost": told.lost,
        "run_heartbeat_age_seconds": told.heartbeat_age_s,
    }
    yield from ((name, (), value) for name, value in values.items() if value is not None)


def _largest(found: Mapping[str, _Counts], by: str) -> dict[str, _Counts]:
    names = sorted(found, key=lambda name: (-found[name][by], name))
    kept = {name: found[name] for name in names[:MOST]}
    if left := names[MOST:]:
        kept[OTHERS] = _summed(found[name] for name in left)
    return kept


def _summed(several: Iterable[_Counts]) -> _Counts:
    total: _Counts = {}
    for one in several:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total
