"""How is a run exported as Prometheus metrics and as OpenLineage events?

Lives here: names, help texts and values of metrics; the content of a lineage event.
Not here: writing the metrics file and sending events (etl/io/), counts of a run
(etl/report/run_progress.py).

Prometheus: gauges of the last run in the text exposition format. Unknown values have no sample. At
most `MOST_SERIES` topics or partitions have a series; the others are added up in one series, so
that sums are right.

OpenLineage ("Naming", "Run state"): inputs are the topics that the run read, output is the table.
The namespace of a topic is `source.bootstrap_servers`, or ZooKeeper with its chroot: these stay
while brokers change.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from etl.errors import Stopped
from etl.report import run_progress
from etl.report.describe import aggregate_known
from etl.report.lag import Lags, PartitionLag, PausedPartitions
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from etl.settings.choices import folder_of
from etl.settings.sections import Settings

PREFIX = "offset_range_etl_"
MOST_SERIES = 1000
OTHERS = "(others)"
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
    "run_records": "Counted records that the plans of the last run read.",
    "run_rows": "Rows that they wrote, if their number is known.",
    "run_fetched_bytes": "Bytes fetched for them.",
    "run_offsets_committed": "Partitions with an offset committed by the last run.",
    "run_lost_offsets": "Offsets that the plans of the last run gave up, "
    "as policy or an operator allows.",
    "run_outcome": "1 for each outcome of the last run, 0 for the others.",
    "table_version": "Table version after the last run's plan.",
    "partitions": "Partitions that the last run observed.",
    "partitions_unknown": "Partitions with an unknown lag.",
    "lag_records": "Readable offsets that are not in the table: records at most.",
    "lag_bytes": "Estimated bytes of the lag; exact for Jafka and Kafka 0.7.",
    "oldest_unread_age_seconds": "Age of the oldest record that is not in the table; "
    "0 without lag.",
    "retention_headroom_seconds": "Time until retention may delete the first record "
    "that is not in the table.",
    "paused_partitions": "Paused partitions: no run reads them until an operator resumes them.",
    "paused_unread": "Unread offsets of paused partitions (bytes for Jafka and Kafka 0.7).",
    "paused_since_timestamp_seconds": "Start of the first pause.",
    "paused_headroom_seconds": "Time until retention may delete the first unread record "
    "of paused partitions.",
    "retention_headroom_bytes": "About how many bytes may be written before retention by size "
    "may delete the first record that is not in the table.",
    **run_progress.HELP,
}
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
"""The metric without its prefix, labels, value."""
_DECIMALS = 3
"""Times and durations are written in milliseconds."""


def metrics_of(
    report: Report, *, now_ms: int, per_partition: bool, last_success_s: float | None
) -> str:
    """Return the metrics file of a run that ended.

    `last_success_s`: the value of the previous file, in seconds since 1970; None: unknown.
    """
    lags = None
    if report.settings:
        lags = report.looks.lags(report.oldest, report.settings, now_ms=now_ms)
    samples = list(_of_run(report, last_success_s))
    if lags:
        samples += _of_lags(lags, per_partition)
    samples += _of_pauses(report.paused)
    samples += report.statistics.samples()

    return _exposition(samples, _common_labels(report))


def _exposition(samples: Iterable[Sample], common: Labels) -> str:
    """Return samples in the text exposition format. `common`: labels of every sample."""
    # Imported here: only a run that writes metrics needs it.
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    families: dict[str, GaugeMetricFamily] = {}
    for name, own_labels, value in samples:
        labels = _valid_labels((*common, *own_labels))
        if name not in families:
            families[name] = GaugeMetricFamily(PREFIX + name, HELP[name], labels=list(labels))
        families[name].add_metric(list(labels.values()), round(value, _DECIMALS))

    # No Gauge objects: with PROMETHEUS_MULTIPROC_DIR they write files for another process.
    class Families(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            return (families[name] for name in HELP if name in families)

    registry = CollectorRegistry()
    registry.register(Families())
    return generate_latest(registry).decode()


def last_success_of(text: str, report: Report) -> float | None:
    """Return the last success of the report's pipeline in a metrics file, in seconds since 1970.

    None if the text has none, or is not a metrics file.
    """
    from prometheus_client.parser import text_string_to_metric_families

    name = PREFIX + LAST_SUCCESS
    lines = [line for line in text.split("\n") if line.startswith(name)]
    labels = _valid_labels(_common_labels(report))
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                if sample.labels == labels and math.isfinite(sample.value):
                    return sample.value
    except ValueError:
        return None
    return None


def _common_labels(report: Report) -> Labels:
    return (("pipeline", report.pipeline), ("group", report.group))


def _valid_labels(labels: Labels) -> dict[str, str]:
    """Return names and values, with `?` for characters that UTF-8 cannot encode."""
    return {name: value.encode("utf-8", "replace").decode() for name, value in labels}


def _of_run(report: Report, last_success_s: float | None) -> Iterator[Sample]:
    ended_s = (report.finished_at_ms or 0) / 1000
    code = report.exit_code
    lost = 0
    for one in report.plans:
        lost += sum(loss.until_offset - loss.from_offset for loss in one.plan.losses.lost)
    if code == 0:
        last_success_s = ended_s
    table_version = report.result.delta_version if report.result else None
    plain: dict[str, float | None] = {
        "run_start_timestamp_seconds": report.started_at_ms / 1000,
        "run_end_timestamp_seconds": ended_s,
        LAST_SUCCESS: last_success_s,
        "run_success": int(code == 0),
        "run_exit_code": code,
        "run_retriable": int(bool(report.error and report.error.retriable)),
        "run_duration_seconds": sum(report.seconds.values()),
        "run_records": report.records,
        "run_rows": report.rows_written,
        "run_fetched_bytes": report.fetched_bytes,
        "run_offsets_committed": report.offsets_committed,
        "run_lost_offsets": lost,
        "table_version": table_version,
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


def _of_pauses(paused: Sequence[PausedPartitions]) -> Iterator[Sample]:
    """Yield samples by topic, of topics with a pause."""
    topics: dict[str, list[PausedPartitions]] = {}
    for pause in paused:
        topics.setdefault(pause.pauses[0].topic, []).append(pause)
    names = sorted(topics)
    groups = {name: topics[name] for name in names[:MOST_SERIES]}
    for name in names[MOST_SERIES:]:
        groups.setdefault(OTHERS, []).extend(topics[name])
    for topic, pauses in groups.items():
        since_ms = min(pause.pauses[0].since_ms for pause in pauses)
        values = {
            "paused_partitions": sum(len(pause.partitions) for pause in pauses),
            "paused_unread": aggregate_known(sum, (pause.unread for pause in pauses)),
            "paused_since_timestamp_seconds": since_ms / 1000,
            "paused_headroom_seconds": aggregate_known(min, (pause.headroom_s for pause in pauses)),
        }
        for name, value in values.items():
            if value is not None:
                yield name, (("topic", topic),), value


@dataclass(slots=True)
class _Series:
    """The partitions that are added up in one series of each lag metric."""

    partitions: list[PartitionLag] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)

    def samples(self, labels: Labels) -> Iterator[Sample]:
        partitions = self.partitions
        records = aggregate_known(sum, (partition.lag for partition in partitions))
        size = aggregate_known(sum, (partition.estimated_bytes for partition in partitions))
        if partitions[0].partition.is_physical:  # the lag is a number of bytes
            size = records
            records = None
        ages = [partition.behind_s for partition in partitions if partition.lag is not None]
        headrooms = [partition.headroom for partition in partitions]
        values = {
            "partitions": len(partitions),
            "partitions_unknown": sum(partition.lag is None for partition in partitions),
            "lag_records": records,
            "lag_bytes": size,
            "oldest_unread_age_seconds": aggregate_known(max, ages),
            "retention_headroom_seconds": aggregate_known(
                min, (left.seconds_left for left in headrooms)
            ),
            "retention_headroom_bytes": aggregate_known(
                min, (left.bytes_left for left in headrooms)
            ),
        }
        for name, value in values.items():
            if value is not None:
                yield name, labels, value


def _of_lags(lags: Lags, per_partition: bool) -> Iterator[Sample]:
    found: dict[Labels, _Series] = {}
    for partition in lags.partitions:
        labels: Labels = (("topic", partition.partition.topic),)
        if per_partition:
            labels += (("partition", partition.partition.key),)
        found.setdefault(labels, _Series()).partitions.append(partition)
    names = sorted(found, key=lambda labels: (-found[labels].lag, labels))
    for labels in names[:MOST_SERIES]:
        yield from found[labels].samples(labels)
    others = _Series()
    for labels in names[MOST_SERIES:]:
        others.partitions += found[labels].partitions
    if others.partitions:
        labels = (("topic", OTHERS),)
        if per_partition:
            labels += (("partition", ""),)
        yield from others.samples(labels)


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
    """None: the table has a name, and its path is not looked up yet."""
    rows: int | None
    """Rows of the run's plans; None at its start."""
    version: int | None
    """The table's version after the newest plan."""
    error: str | None


def lineage_of(report: Report, settings: Settings, namespace: str) -> RunLineage:
    """Return the event of a run; its type is START until the run has ended."""
    event_type = "START"
    rows = None
    if report.finished_at_ms is not None:
        event_type = _event_type(report)
        rows = report.rows_written
    topics = set()
    for one in report.plans:
        topics |= {r.partition.topic for r in one.plan.ranges}
    brokers = _brokers(settings)
    output = None
    if settings.table.is_placed:
        output = _place(settings.table.path)
    return RunLineage(
        event_type,
        str(uuid.uuid5(uuid.NAMESPACE_URL, f"offset-range-etl:{report.run_id}")),
        namespace,
        f"{report.group}.{report.pipeline}",
        tuple((brokers, topic) for topic in sorted(topics)),
        output,
        rows,
        report.result.delta_version if report.result else None,
        report.error.message if report.error else None,
    )


def _event_type(report: Report) -> str:
    if report.error is None:
        return "COMPLETE"
    if isinstance(report.error, Stopped):
        return "ABORT"
    return "FAIL"


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
