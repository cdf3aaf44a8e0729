"""What does the page of a run's report show?

One HTML file without scripts, fonts or images from elsewhere. It is made from the report's JSON
alone, so it can be made again for any report, also of a run that was killed.

    page.html    what the page looks like: a jinja2 template with every title, label and unit
    page.css     its style sheet, which the template includes
    page.py      values that are computed from the report, and formats of numbers and times
    charts.py    the bars of its charts

Topics, errors and paths come from outside: the template escapes every value. Charts are SVG without
text, stretched to the width of the page.

Not here: figures of earlier runs (etl/report/run_history.py), files (etl/io/report_files.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.report.charts import Chart, lag_chart, throughput_chart
from etl.report.describe import aggregate_known, counted
from etl.report.run_history import PastRun, run_of
from etl.report.run_progress import Outcome, State, Verb, size_in_words, time_in_words

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Template

MOST_PARTITIONS = 200
MOST_TOPICS = 50
MOST_UNFOLDED = 24
"""Above so many partitions their table is folded."""
MOST_OUTCOMES = 100

Link = Callable[[PastRun], str | None]
"""Relative link to the page of a run; None: it has no page."""

_INVALID_TEXT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
"""Characters that are invalid in HTML or UTF-8, and those that change the text direction."""


def page_of(
    report: Mapping[str, Any], before: Sequence[PastRun] = (), link: Link = lambda run: None
) -> str:
    """Return the page of a report as HTML. `before`: earlier runs, oldest first.

    Raises KeyError, TypeError, AttributeError or ValueError for an invalid report.
    """
    # Imported here and in _template: only a process that writes a page needs jinja2.
    from jinja2 import UndefinedError

    page = page_values(report, before, link)
    try:
        html = _template().render(report=report, page=page)
    except UndefinedError as error:
        raise KeyError(str(error)) from error
    return _INVALID_TEXT.sub("\N{REPLACEMENT CHARACTER}", html)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=_bytecode_cache(),
    )
    formats = (number, short_number, size, duration, percent, moment, day_and_time)
    for function in (*formats, split_code, state_label):
        environment.filters[function.__name__] = function
    return environment.get_template("page.html")


def _bytecode_cache() -> BytecodeCache | None:
    """Return a cache beside Python's own bytecode; None where no file can be written.

    Each short run would otherwise spend 35 ms on compiling the template.
    """
    from jinja2 import FileSystemBytecodeCache

    folder = Path(cache_from_source(__file__)).parent
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return FileSystemBytecodeCache(str(folder))


@dataclass(frozen=True, slots=True)
class Page:
    """The values that the template shows besides those of the report. None: unknown."""

    status: Status
    summary: str
    rows_differ: bool
    """The run wrote another number of rows than it read records."""
    lag_unit: str
    """`offsets`, or `bytes` where offsets are byte positions."""
    lag_before: int | None
    lag_after: int | None
    outcomes: Sequence[Mapping[str, Any]]
    """Names and messages, warnings first; the error of the run is not repeated."""
    outcomes_left: int
    """How many more outcomes the report has."""
    offsets_without_row: str
    """Empty if every offset has a row."""
    phases: Sequence[Phase]
    history: History | None
    """None: this is the first run."""
    topics: Table
    partitions: Table
    partitions_read: int
    are_partitions_folded: bool
    versions: str


def page_values(report: Mapping[str, Any], before: Sequence[PastRun], link: Link) -> Page:
    """Return the values of a report's page. Arguments and errors: see `page_of`."""
    rows = partition_rows(report)
    outcomes = _outcomes(report)
    has_byte_positions = any("broker_id" in partition for partition in report["lag"])
    return Page(
        status=_status(report),
        summary=summarize_run(report, rows),
        rows_differ=rows_differ(report),
        lag_unit="bytes" if has_byte_positions else "offsets",
        lag_before=aggregate_known(sum, [row.lag_before for row in rows]),
        lag_after=aggregate_known(sum, [row.lag_after for row in rows]),
        outcomes=outcomes[:MOST_OUTCOMES],
        outcomes_left=max(len(outcomes) - MOST_OUTCOMES, 0),
        offsets_without_row=_describe_offsets_without_row(report),
        phases=_phases(report),
        history=_history([*before, run_of(report)], link),
        topics=_table(topic_rows(rows), MOST_TOPICS),
        partitions=_table(rows, MOST_PARTITIONS),
        partitions_read=sum(row.is_read for row in rows),
        are_partitions_folded=len(rows) > MOST_UNFOLDED,
        versions=_versions(report),
    )


# -- the result of the run


@dataclass(frozen=True, slots=True)
class Status:
    """The result of the run in a word or three."""

    tone: str
    """CSS class: good, warn or bad."""
    label: str


def _status(report: Mapping[str, Any]) -> Status:
    outcomes = {outcome["outcome"] for outcome in report["outcomes"]}
    if report["state"] == State.RUNNING.value:
        return Status("warn", "Not finished")
    if report["state"] == State.FAILED.value:
        return Status("bad", "Failed")
    if Outcome.RECORDS_LOST.value in outcomes:
        return Status("warn", "Done, records lost")
    if outcomes & _WARNINGS:
        return Status("warn", "Done, with warnings")
    return Status("good", "Done")


_WARNINGS = frozenset(outcome.value for outcome in Outcome if outcome.is_loud)


def summarize_run(report: Mapping[str, Any], rows: Sequence[TableRow]) -> str:
    """Describe the result of the run in up to three sentences. `rows`: its partitions."""
    loaded = counted(report["records_read"], "record")
    if rows_differ(report):
        loaded += f" read and {counted(report['rows_written'], 'row')} written"
    else:
        loaded += " loaded"
    loaded += f" in {duration(report['total_seconds'])}."
    if report["state"] == State.RUNNING.value:
        process = ""
        if report["host"]:
            process = f" Its process is {report['pid']} on {report['host']}."
        return (
            "This run has not finished: it is still running, or it was killed. The next run "
            f"finishes its stored plan.{process}"
        )
    if report["state"] == State.FAILED.value:
        if report["records_read"]:
            return f"The run failed. Before that: {loaded}"
        return "The run failed and loaded no records."
    sentences = [loaded if report["records_read"] else "No new records."]
    if any(one["outcome"] == Outcome.RECORDS_LOST.value for one in report["outcomes"]):
        sentences.append("Records were lost, as the policy allows.")
    sentences += _describe_lag(rows, "read" if rows_differ(report) else "in the table")
    return " ".join(sentences)


def rows_differ(report: Mapping[str, Any]) -> bool:
    """Return whether the run wrote another number of rows than it read records."""
    return report["rows_written"] not in (None, report["records_read"])


def _describe_lag(rows: Sequence[TableRow], done: str) -> list[str]:
    lagging = sum(1 for row in rows if row.lag_after)
    unknown = sum(row.lag_after is None for row in rows)
    if lagging:
        verb = "has" if lagging == 1 else "have"
        return [f"{counted(lagging, 'partition')} still {verb} a lag."]
    if unknown:
        return [f"The lag of {counted(unknown, 'partition')} is unknown."]
    if rows:
        return [f"All records that were readable when the run began are {done}."]
    return []


def _outcomes(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    outcomes = []
    for one in report["outcomes"]:
        is_error = one["outcome"] == Outcome.FAILED.value
        if is_error and report["error"]:
            continue
        is_warning = one["outcome"] in _WARNINGS
        outcomes.append({**one, "is_warning": is_warning})
    return sorted(outcomes, key=lambda one: not one["is_warning"])


_WITHOUT_ROW = {
    "control_records": "transaction markers",
    "aborted_records": "records of aborted transactions",
}


def _describe_offsets_without_row(report: Mapping[str, Any]) -> str:
    """Describe why offsets have no row, as far as it was counted; empty if all have one."""
    ranges = []
    for plan in _plans_of(report):
        ranges += [one for one in plan["ranges"] if one.get("missing_offsets")]
    if not ranges:
        return ""
    missing = sum(one["missing_offsets"] for one in ranges)
    counts = {}
    for key, label in _WITHOUT_ROW.items():
        counts[label] = sum(one.get(key) or 0 for one in ranges)
    counts["compacted or unexplained"] = missing - sum(counts.values())
    reasons = ", ".join(f"{number(count)} {label}" for label, count in counts.items() if count > 0)
    return f"{counted(missing, 'offset')} in {counted(len(ranges), 'range')}: {reasons}"


def _plans_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the plans that the run executed, the newest last."""
    plans = list(report["previous_plans"])
    if report["plan"]:
        plans.append(report["plan"])
    return plans


def _versions(report: Mapping[str, Any]) -> str:
    versions = []
    for name, version in report["versions"].items():
        if version:
            versions.append(f"{name.replace('_', '-')} {version}")
    return ", ".join(versions)


# -- time by phase

_PHASES = {
    Verb.CONNECT.value: "Connect",
    Verb.OBSERVE.value: "Observe brokers and table",
    Verb.RECONCILE.value: "Reconcile",
    Verb.PLAN.value: "Plan",
    Verb.START_SPARK.value: "Start Spark",
    Verb.FIRST_JOB.value: "Until the first task",
    Verb.FETCH.value: "Fetch and write",
    Verb.APPEND.value: "Commit to the table",
    Verb.COMMIT.value: "Commit offsets",
    Verb.COMPACT.value: "Compact small files",
    Verb.CLOSE.value: "Close",
}
_LEAST_SECONDS = 0.0005
_LEAST_PERCENT = 0.4
"""The bar of a phase that is too short to see."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that took time."""

    name: str
    seconds: float
    percent: float
    bar_width: float
    """Percent."""


def _phases(report: Mapping[str, Any]) -> list[Phase]:
    if not report["total_seconds"]:
        return []
    spent = {verb: s for verb, s in report["seconds"].items() if s >= _LEAST_SECONDS}
    total = sum(spent.values())
    phases = []
    for verb, seconds in spent.items():
        share = 100 * seconds / total
        bar_width = round(max(share, _LEAST_PERCENT), 2)
        phases.append(Phase(_PHASES.get(verb, verb), seconds, share, bar_width))
    return phases


# -- the last runs


@dataclass(frozen=True, slots=True)
class History:
    """The last runs of the pipeline, this one included."""

    throughput: Chart
    lag: Chart
    rows: Sequence[HistoryRow]
    """The table of the runs, newest first."""

    @property
    def has_failed(self) -> bool:
        """True if a run failed or did not finish."""
        return any(row.run.has_failed for row in self.rows)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One run in the table of runs."""

    run: PastRun
    link: str | None
    result: str


def _history(runs: Sequence[PastRun], link: Link) -> History | None:
    """Return the history; `runs`: oldest first, the last one is the page's own."""
    if len(runs) < 2:
        return None
    this_run = runs[-1]
    rows = []
    for run in reversed(runs):
        address = None if run is this_run else link(run)
        rows.append(HistoryRow(run, address, _describe_result(run)))
    return History(throughput_chart(runs), lag_chart(runs), rows)


_STATES = {
    State.DONE.value: "Done",
    State.FAILED.value: "Failed",
    State.RUNNING.value: "Not finished",
}


def state_label(state: str) -> str:
    """Return the label of a run's state."""
    return _STATES.get(state, state)


def _describe_result(run: PastRun) -> str:
    state = state_label(run.state)
    if run.exit_code:
        return f"{state}, exit {run.exit_code}"
    if run.has_failed:
        return state
    outcomes = [outcome for outcome in run.outcomes if outcome != Outcome.FAILED.value]
    return ", ".join(dict.fromkeys(outcomes)) or state


# -- topics and partitions


@dataclass(slots=True)
class TableRow:
    """What the plans of the run read of a partition or a topic, and the lag of it.

    None: unknown, or nothing was read.
    """

    topic: str
    partition: str = ""
    """Empty: a topic."""
    partitions: int = 0
    """Number of partitions of a topic."""
    from_offset: int | None = None
    until_offset: int | None = None
    records: int | None = None
    fetched_bytes: int | None = None
    missing: int = 0
    """Offsets without a row: transactions, compaction, losses."""
    lag_before: int | None = None
    lag_after: int | None = None
    is_read: bool = False

    def add_range(self, planned: Mapping[str, Any]) -> None:
        """Add a range that a plan read of the partition."""
        self.from_offset = aggregate_known(min, (self.from_offset, planned["from"]))
        self.until_offset = aggregate_known(max, (self.until_offset, planned["until"]))
        self.records = _plus(self.records, planned.get("records", planned.get("rows")))
        self.fetched_bytes = _plus(self.fetched_bytes, planned.get("fetched_bytes"))
        self.missing += planned.get("missing_offsets") or 0
        self.is_read = True

    def add_partition(self, row: TableRow) -> None:
        """Add a partition to its topic."""
        self.partitions += 1
        self.records = _plus(self.records, row.records)
        self.fetched_bytes = _plus(self.fetched_bytes, row.fetched_bytes)
        self.missing += row.missing
        self.lag_before = _plus(self.lag_before, row.lag_before)
        self.lag_after = _plus(self.lag_after, row.lag_after)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Return the key that sorts by lag: unknown first, then the largest."""
        return (
            self.lag_after is not None,
            -(self.lag_after or 0),
            -self.missing,
            -(self.lag_before or 0),
            -(self.records or 0),
            self.topic,
            self.partition,
        )


def _plus(one: int | None, other: int | None) -> int | None:
    """Add two counts, of which an unknown one is left out."""
    return aggregate_known(sum, (one, other))


def partition_rows(report: Mapping[str, Any]) -> list[TableRow]:
    """Return a row for each partition of a report, by lag."""
    rows: dict[tuple[str, str], TableRow] = {}
    for document in report["lag"]:
        row = _row_of(document, rows)
        row.lag_before = document["before"]
        row.lag_after = document["after"]
    for plan in _plans_of(report):
        for planned in plan["ranges"]:
            _row_of(planned, rows).add_range(planned)
    return sorted(rows.values(), key=lambda row: row.sort_key)


def _row_of(document: Mapping[str, Any], rows: dict[tuple[str, str], TableRow]) -> TableRow:
    """Return the row of the document's partition; add a missing one."""
    partition = str(document["partition"])
    if "broker_id" in document:
        partition = f"{document['broker_id']}-{partition}"
    topic = document["topic"]
    return rows.setdefault((topic, partition), TableRow(topic, partition))


def topic_rows(partitions: Iterable[TableRow]) -> list[TableRow]:
    """Return a row for each topic with the sums of its partitions, by lag."""
    topics: dict[str, TableRow] = {}
    for row in partitions:
        topics.setdefault(row.topic, TableRow(row.topic)).add_partition(row)
    return sorted(topics.values(), key=lambda row: row.sort_key)


@dataclass(frozen=True, slots=True)
class Table:
    """The first rows of a table, and the sums of the others."""

    rows: Sequence[TableRow]
    others: int
    records_of_others: int
    lag_of_others: int

    @property
    def count(self) -> int:
        """Return the number of all rows."""
        return len(self.rows) + self.others


def _table(rows: Sequence[TableRow], most: int) -> Table:
    others = rows[most:]
    records = sum(row.records or 0 for row in others)
    lag = sum(row.lag_after or 0 for row in others)
    return Table(rows[:most], len(others), records, lag)


# -- formats: filters of the template

UNKNOWN = "–"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def number(value: float | None) -> str:
    """1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short_number(value: float) -> str:
    """Format a number in little space: 940, 1.2 k, 34 M."""
    for unit in ("", " k", " M", " G"):
        if value < 999.5:
            digits = 1 if unit and value < 9.95 else 0
            return f"{value:.{digits}f}{unit}"
        value /= 1000
    return f"{value:,.0f} T"


def size(value: float | None) -> str:
    """1.2 MB."""
    return UNKNOWN if value is None else size_in_words(value)


def duration(seconds: float | None) -> str:
    """0.42 s, 4.2 s, 42 s, 2:05 min."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.01:
        return "<0.01 s"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return time_in_words(seconds)


def percent(value: float) -> str:
    """27 %."""
    return "<1 %" if value < 1 else f"{value:.0f} %"


def moment(time: str) -> str:
    """22 Nov 2026, 15:09:14 UTC; `time`: ISO 8601 in UTC."""
    at = datetime.fromisoformat(time)
    return f"{_day(at)} {at.year}, {at:%H:%M:%S} UTC"


def day_and_time(time: str) -> str:
    """22 Nov, 15:09; `time`: ISO 8601 in UTC."""
    at = datetime.fromisoformat(time)
    return f"{_day(at)}, {at:%H:%M}"


def _day(at: datetime) -> str:
    return f"{at.day} {_MONTHS[at.month - 1]}"  # strftime's month depends on the locale


def split_code(text: str, most: int) -> list[str]:
    """Split a message at its backticks: every second part is code.

    The message is truncated after `most` characters, with a note.
    """
    parts = re.split(r"`([^`\n]+)`", text[:most])
    left = len(text) - most
    if left > 0:
        parts[-1] += f" ... and {left:,} more characters"
    return parts
