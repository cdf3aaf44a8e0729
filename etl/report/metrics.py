"""How does a run become Prometheus metrics and OpenLineage events?

Prometheus: gauges of the last run in the text exposition format. Unknown values have no sample. At
most `MOST_SERIES` topics or partitions have a series; the rest is added up in one, so that sums are
right.

OpenLineage ("Naming", "Run state"): topics that the run read, the table that it wrote. Topics are
named by `source.bootstrap_servers`, or by ZooKeeper with its chroot, because those stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from etl.errors import Stopped
from etl.report import run_state
from etl.report.describe import of_known
from etl.report.lag import Lags, LogLag, Resting
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.settings.choices import folder_of
from etl.settings.sections import Settings

PREFIX, MOST_SERIES, OTHERS = "offset_range_etl_", 1000, "(others)"
LAST_SUCCESS = "last_success_timestamp_seconds"
HELP: Mapping[str, str] = {
    "run_info": "The last run; the value is 1.",
    "run_start_timestamp_seconds": "When the last run began.",
    "run_end_timestamp_seconds": "When the last run ended.",
    LAST_SUCCESS: "When the last run ended whose exit code was 0; of the runs since metrics are written.",
    "run_success": "1 where the last run's exit code was 0, else 0.",
    "run_exit_code": "The exit code of the last run.",
    "run_retriable": "1 where the last run failed and a retry may help, else 0.",
    "run_duration_seconds": "How long the last run took.",
    "run_verb_duration_seconds": "How much of that each verb took.",
    "run_rows": "Rows that the plans of the last run gave, as far as they were counted.",
    "run_fetched_bytes": "Bytes that the brokers sent for them.",
    "run_offsets_committed": "Committed offsets that the last run moved.",
    "run_lost_offsets": "Offsets that the plans of the last run let go, as policy or an operator allows.",
    "run_outcome": "1 for each outcome that the last run came to, 0 for the others.",
    "table_version": "The version of the table behind the last run's plan.",
    "partitions": "Partitions that the last run saw.",
    "partitions_unknown": "Of those, the ones of which nobody knows how far the table is behind.",
    "lag_records": "Offsets that could be read when the last run looked and are not in the table: records at most.",
    "lag_bytes": "About how many bytes that is; of Jafka and Kafka 0.7 exactly so many.",
    "oldest_unread_age_seconds": "How old the oldest record is that is not in the table; 0 where nothing lags.",
    "retention_headroom_seconds": "How long until retention may take the first record that is not in the table.",
    "paused_partitions": "Partitions that an operator paused: no run reads them until they are resumed.",
    "paused_unread": "Offsets (bytes of Jafka and Kafka 0.7) that wait in them.",
    "paused_since_timestamp_seconds": "Since when the first of them is paused.",
    "paused_headroom_seconds": "How long until retention may take the first record that waits in them.",
    "retention_headroom_bytes": "About how much may still be written before retention by size may take it.",
    **run_state.HELP,
}
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
"""The metric without its prefix, labels, value."""


def metrics_of(
    report: Report, *, now_ms: int, per_partition: bool, last_success_s: float | None
) -> str:
    """The file of a run that has ended. `last_success_s`: that of the runs before it, in seconds
    since 1970; None: not known.
    """
    ours: Labels = (("pipeline", report.pipeline), ("group", report.group))
    lags = (
        report.looks.lags(report.oldest, report.settings, now_ms=now_ms)
        if report.settings
        else None
    )
    samples = [
        *_of_run(report, last_success_s),
        *(_of_lags(lags, per_partition) if lags else ()),
        *_of_pauses(report.paused),
        *report.statistics.samples(),
    ]
    by_name: dict[str, list[str]] = {}
    for name, labels, value in samples:
        by_name.setdefault(name, []).append(
            f"{PREFIX}{name}{format_labels((*ours, *labels))} {_number(value)}\n"
        )
    return "".join(
        f"# HELP {PREFIX}{name} {text}\n# TYPE {PREFIX}{name} gauge\n{''.join(by_name[name])}"
        for name, text in HELP.items()
        if name in by_name
    )


def format_labels(labels: Labels) -> str:
    """Format labels of a metric."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _of_run(report: Report, last_success_s: float | None) -> Iterator[Sample]:
    ended_s, code = (report.finished_at_ms or 0) / 1000, report.exit_code
    told = {outcome for outcome, _ in report.outcomes}
    lost = sum(
        loss.until_offset - loss.from_offset for one in report.plans for loss in one.plan.losses
    )
    plain: dict[str, float | None] = {
        "run_start_timestamp_seconds": report.started_at_ms / 1000,
        "run_end_timestamp_seconds": ended_s,
        LAST_SUCCESS: ended_s if code == 0 else last_success_s,
        "run_success": int(code == 0),
        "run_exit_code": code,
        "run_retriable": int(bool(report.error and report.error.retriable)),
        "run_duration_seconds": sum(report.seconds.values()),
        "run_rows": report.records,
        "run_fetched_bytes": report.fetched_bytes,
        "run_offsets_committed": report.offsets_committed,
        "run_lost_offsets": lost,
        "table_version": report.result.delta_version if report.result else None,
    }
    yield "run_info", (("run_id", report.run_id), ("state", report.state.value)), 1
    yield from ((name, (), value) for name, value in plain.items() if value is not None)
    yield from (
        ("run_verb_duration_seconds", (("verb", verb.value),), report.seconds.get(verb, 0.0))
        for verb in Verb
    )
    yield from (
        ("run_outcome", (("outcome", outcome.value),), int(outcome in told)) for outcome in Outcome
    )


def _of_pauses(paused: Sequence[Resting]) -> Iterator[Sample]:
    """By topic, of those that have a pause."""
    topics: dict[str, list[Resting]] = {}
    for one in paused:
        topics.setdefault(one.pauses[0].topic, []).append(one)
    names = sorted(topics)
    groups = [((("topic", name),), topics[name]) for name in names[:MOST_SERIES]]
    if left := names[MOST_SERIES:]:
        groups.append(((("topic", OTHERS),), [one for name in left for one in topics[name]]))
    for labels, some in groups:
        told = {
            "paused_partitions": sum(len(one.logs) for one in some),
            "paused_unread": of_known(sum, (one.unread for one in some)),
            "paused_since_timestamp_seconds": min(one.pauses[0].since_ms for one in some) / 1000,
            "paused_headroom_seconds": of_known(min, (one.headroom_s for one in some)),
        }
        yield from ((name, labels, value) for name, value in told.items() if value is not None)


@dataclass(slots=True)
class _Series:
    """Labels of one series of each lag metric."""

    logs: list[LogLag] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(one.lag or 0 for one in self.logs)

    def samples(self, labels: Labels) -> Iterator[Sample]:
        logs, is_physical = self.logs, self.logs[0].log.is_physical
        lag = of_known(sum, (one.lag for one in logs))
        ages = [one.behind_s for one in logs if one.lag is not None]
        told = {
            "partitions": len(logs),
            "partitions_unknown": sum(one.lag is None for one in logs),
            "lag_records": None if is_physical else lag,
            "lag_bytes": lag
            if is_physical
            else of_known(sum, (one.estimated_bytes for one in logs)),
            "oldest_unread_age_seconds": of_known(max, ages),
            "retention_headroom_seconds": of_known(min, (one.headroom.seconds for one in logs)),
            "retention_headroom_bytes": of_known(min, (one.headroom.bytes for one in logs)),
        }
        yield from ((name, labels, value) for name, value in told.items() if value is not None)


def _of_lags(lags: Lags, per_partition: bool) -> Iterator[Sample]:
    found: dict[Labels, _Series] = {}
    for one in lags.logs:
        partition = (("partition", one.log.key),) if per_partition else ()
        found.setdefault((("topic", one.log.topic), *partition), _Series()).logs.append(one)
    names = sorted(found, key=lambda labels: (-found[labels].lag, labels))
    for labels in names[:MOST_SERIES]:
        yield from found[labels].samples(labels)
    yield from _others([found[labels] for labels in names[MOST_SERIES:]], names)


def _others(left: Sequence[_Series], names: Sequence[Labels]) -> Iterator[Sample]:
    if left:
        together = _Series([one for series in left for one in series.logs])
        yield from together.samples(
            tuple((name, OTHERS if name == "topic" else "") for name, _ in names[0])
        )


@dataclass(frozen=True, slots=True)
class RunLineage:
    """One event of a run."""

    event_type: str
    """START, COMPLETE, FAIL or ABORT."""
    run_id: str
    """A UUID that follows from the run's own id."""
    namespace: str
    job: str
    inputs: tuple[tuple[str, str], ...]
    """Namespace and name of each topic that a plan of the run reads; at its start none is known."""
    output: tuple[str, str] | None
    """None: a named table whose location the run has not asked for."""
    records: int | None
    """Rows of the run's plans; None at its start."""
    version: int | None
    """The table's version after the newest plan."""
    error: str | None


def lineage_of(report: Report, settings: Settings, namespace: str) -> RunLineage:
    """The event for what the run is at: its start until it has ended."""
    has_ended = report.finished_at_ms is not None
    topics = sorted({r.log.topic for one in report.plans for r in one.plan.ranges})
    return RunLineage(
        _event_type(report) if has_ended else "START",
        str(uuid.uuid5(uuid.NAMESPACE_URL, f"offset-range-etl:{report.run_id}")),
        namespace,
        f"{report.group}.{report.pipeline}",
        tuple((_brokers(settings), topic) for topic in topics),
        _place(settings.table.path) if settings.table.is_placed else None,
        report.records if has_ended else None,
        report.result.delta_version if report.result else None,
        report.error.message if report.error else None,
    )


def _event_type(report: Report) -> str:
    if report.error is None:
        return "COMPLETE"
    return "ABORT" if isinstance(report.error, Stopped) else "FAIL"


def _brokers(settings: Settings) -> str:
    named = settings.source.bootstrap_servers
    return f"kafka://{named[0] if named else settings.zookeeper.connect.partition(',')[0]}"


def _place(path: str) -> tuple[str, str]:
    """A folder is a name in the namespace `file`; of an object store the bucket is the namespace."""
    folder = folder_of(path)
    if folder is not None:
        return "file", str(folder)
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
