"""How is a run exported as Prometheus metrics and as OpenLineage events?

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
    "run_start_timestamp_seconds": "Start of the last run.",
    "run_end_timestamp_seconds": "End of the last run.",
    LAST_SUCCESS: "End of the last run with exit code 0, since metrics are written.",
    "run_success": "1 if the exit code of the last run was 0, else 0.",
    "run_exit_code": "The exit code of the last run.",
    "run_retriable": "1 if the last run failed and a retry may help, else 0.",
    "run_duration_seconds": "Duration of the last run.",
    "run_phase_duration_seconds": "Duration of each phase of the last run.",
    "run_rows": "Counted rows of the plans of the last run.",
    "run_fetched_bytes": "Bytes fetched for them.",
    "run_offsets_committed": "Partitions whose offset the last run committed.",
    "run_lost_offsets": "Offsets that the plans of the last run gave up, as policy or an operator allows.",
    "run_outcome": "1 for each outcome of the last run, 0 for the others.",
    "table_version": "Table version after the last run's plan.",
    "partitions": "Partitions that the last run observed.",
    "partitions_unknown": "Partitions with an unknown lag.",
    "lag_records": "Readable offsets that are not in the table: records at most.",
    "lag_bytes": "Estimated bytes of the lag; exact for Jafka and Kafka 0.7.",
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
    """Return the metrics file of a run that ended. `last_success_s`: the value of the previous file,
    in seconds since 1970; None: unknown.
    """
    lags = None
    if report.settings:
        lags = report.looks.lags(report.oldest, report.settings, now_ms=now_ms)
    samples = list(_of_run(report, last_success_s))
    if lags:
        samples += _of_lags(lags, per_partition)
    samples += _of_pauses(report.paused)
    samples += report.statistics.samples()

    common: Labels = (("pipeline", report.pipeline), ("group", report.group))
    by_name: dict[str, list[str]] = {}
    for name, labels, value in samples:
        line = f"{PREFIX}{name}{format_labels((*common, *labels))} {_number(value)}\n"
        by_name.setdefault(name, []).append(line)
    parts = []
    for name, text in HELP.items():
        if name in by_name:
            parts.append(f"# HELP {PREFIX}{name} {text}\n# TYPE {PREFIX}{name} gauge\n")
            parts += by_name[name]
    return "".join(parts)


def format_labels(labels: Labels) -> str:
    """Format labels of a metric."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _of_run(report: Report, last_success_s: float | None) -> Iterator[Sample]:
    ended_s = (report.finished_at_ms or 0) / 1000
    code = report.exit_code
    lost = 0
    for one in report.plans:
        lost += sum(loss.until_offset - loss.from_offset for loss in one.plan.losses)
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
    for name, value in plain.items():
        if value is not None:
            yield name, (), value
    for verb in Verb:
        seconds = report.seconds.get(verb, 0.0)
        yield "run_phase_duration_seconds", (("phase", verb.value),), seconds
    outcomes = {outcome for outcome, _ in report.outcomes}
    for outcome in Outcome:
        yield "run_outcome", (("outcome", outcome.value),), int(outcome in outcomes)


def _of_pauses(paused: Sequence[Resting]) -> Iterator[Sample]:
    """Yield samples by topic, of topics with a pause."""
    topics: dict[str, list[Resting]] = {}
    for one in paused:
        topics.setdefault(one.pauses[0].topic, []).append(one)
    names = sorted(topics)
    groups = {name: topics[name] for name in names[:MOST_SERIES]}
    for name in names[MOST_SERIES:]:
        groups.setdefault(OTHERS, []).extend(topics[name])
    for topic, pauses in groups.items():
        values = {
            "paused_partitions": sum(len(one.logs) for one in pauses),
            "paused_unread": of_known(sum, (one.unread for one in pauses)),
            "paused_since_timestamp_seconds": min(one.pauses[0].since_ms for one in pauses) / 1000,
            "paused_headroom_seconds": of_known(min, (one.headroom_s for one in pauses)),
        }
        for name, value in values.items():
            if value is not None:
                yield name, (("topic", topic),), value


@dataclass(slots=True)
class _Series:
    """The partitions that are added up in one series of each lag metric."""

    logs: list[LogLag] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(one.lag or 0 for one in self.logs)

    def samples(self, labels: Labels) -> Iterator[Sample]:
        logs = self.logs
        lag = of_known(sum, (one.lag for one in logs))
        if logs[0].log.is_physical:
            records, size = None, lag
        else:
            records, size = lag, of_known(sum, (one.estimated_bytes for one in logs))
        ages = [one.behind_s for one in logs if one.lag is not None]
        values = {
            "partitions": len(logs),
            "partitions_unknown": sum(one.lag is None for one in logs),
            "lag_records": records,
            "lag_bytes": size,
            "oldest_unread_age_seconds": of_known(max, ages),
            "retention_headroom_seconds": of_known(min, (one.headroom.seconds for one in logs)),
            "retention_headroom_bytes": of_known(min, (one.headroom.bytes for one in logs)),
        }
        for name, value in values.items():
            if value is not None:
                yield name, labels, value


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
    if not left:
        return
    together = _Series()
    for series in left:
        together.logs += series.logs
    labels = tuple((name, OTHERS if name == "topic" else "") for name, _ in names[0])
    yield from together.samples(labels)


@dataclass(frozen=True, slots=True)
class RunLineage:
    """One event of a run."""

    event_type: str
    """START, COMPLETE, FAIL or ABORT."""
    run_id: str
    """A UUID derived from the run's own id."""
    namespace: str
    job: str
    inputs: tuple[tuple[str, str], ...]
    """Namespace and name of each topic that a plan of the run reads; empty at its start."""
    output: tuple[str, str] | None
    """None: a named table whose path is not looked up yet."""
    records: int | None
    """Rows of the run's plans; None at its start."""
    version: int | None
    """The table's version after the newest plan."""
    error: str | None


def lineage_of(report: Report, settings: Settings, namespace: str) -> RunLineage:
    """Return the event of a run: START until it ended."""
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
    if settings.source.bootstrap_servers:
        return f"kafka://{settings.source.bootstrap_servers[0]}"
    return f"kafka://{settings.zookeeper.connect.partition(',')[0]}"


def _place(path: str) -> tuple[str, str]:
    """Return namespace and name of a path: `file` and the directory, or the bucket and the key."""
    folder = folder_of(path)
    if folder is not None:
        return "file", str(folder)
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
