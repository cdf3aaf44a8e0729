"""What does the page of a run's report show?

One HTML file without scripts, fonts or images from elsewhere, made from the report's JSON alone, so
it can be made again for any report, also of a run that was killed. From top to bottom: the outcome
and six figures, the last runs, the partitions (the worst first).

The history reads only the heads of earlier reports, because a report may have ten thousand
partitions; the lag is summed line by line in the form of `plan_json.as_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.report.describe import aggregate_known, counted
from etl.report.page_markup import (
    SHEET,
    UNKNOWN,
    Column,
    Html,
    columns,
    day_and_time,
    joined,
    moment,
    number,
    prose,
    seconds,
    short,
    size,
    tag,
    time_by_verb,
)
from etl.report.run_progress import Outcome, State

MOST_PARTITIONS, MOST_TOPICS, MOST_UNFOLDED = 200, 50, 24


@dataclass(slots=True)
class LogRead:
    """One partition, or a topic: what the run's plans read of it, and its lag. None: not known, or
    nothing was read.
    """

    topic: str
    key: str = ""
    begin: int | None = None
    until: int | None = None
    rows: int | None = None
    bytes: int | None = None
    missing: int = 0
    """Offsets that gave no row: transactions, compaction, losses."""
    before: int | None = None
    after: int | None = None
    is_read: bool = field(default=False)

    def add_range(self, document: Mapping[str, Any]) -> None:
        """One range that a plan has of it."""
        self.begin = document["from"] if self.begin is None else min(self.begin, document["from"])
        self.until = document["until"] if self.until is None else max(self.until, document["until"])
        if document.get("rows") is not None:
            self.rows = _plus(self.rows, document.get("rows"))
        else:
            self.rows = self.rows
        self.bytes = _plus(self.bytes, document.get("fetched_bytes"))
        self.missing += document.get("missing_offsets") or 0
        self.is_read = True

    @property
    def worst_first(self) -> tuple[Any, ...]:
        """Return the sort key: unknown first, then lag, then missing offsets."""
        return (
            self.after is not None,
            -(self.after or 0),
            -self.missing,
            -(self.before or 0),
            -(self.rows or 0),
            self.topic,
            self.key,
        )


def logs_of(report: Mapping[str, Any]) -> list[LogRead]:
    """The partitions of a report, worst first."""
    found: dict[tuple[str, str], LogRead] = {}
    for document in report["lag"]:
        one = _of(found, document)
        one.before, one.after = document["before"], document["after"]
    for plan in plans_of(report):
        for document in plan["ranges"]:
            _of(found, document).add_range(document)
    return sorted(found.values(), key=lambda one: one.worst_first)


def plans_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The plans that the run executed, the newest last."""
    return [*report["previous_plans"], *([report["plan"]] if report["plan"] else [])]


def topics_of(logs: Iterable[LogRead]) -> list[LogRead]:
    """Their sums by topic, worst first."""
    found: dict[str, LogRead] = {}
    for log in logs:
        topic = found.setdefault(log.topic, LogRead(log.topic))
        topic.begin = (topic.begin or 0) + 1  # how many partitions it has
        topic.rows, topic.bytes = _plus(topic.rows, log.rows), _plus(topic.bytes, log.bytes)
        topic.before, topic.after = _plus(topic.before, log.before), _plus(topic.after, log.after)
        topic.missing += log.missing
    return sorted(found.values(), key=lambda one: one.worst_first)


def _of(found: dict[tuple[str, str], LogRead], document: Mapping[str, Any]) -> LogRead:
    if "broker_id" in document:
        key = f"{document['broker_id']}-{document['partition']}"
    else:
        key = str(document["partition"])
    return found.setdefault((document["topic"], key), LogRead(document["topic"], key))


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def partitions(logs: Sequence[LogRead], unit: str) -> Html | None:
    """The tables: topics, where there are several, and partitions."""
    if not logs:
        return None
    topics, lag = topics_of(logs), number if unit != "bytes" else size
    read = sum(log.is_read for log in logs)
    if read:
        summary = f"{number(read)} of {counted(len(logs), 'partition')} read"
    else:
        summary = f"{counted(len(logs), 'partition')}, nothing read"
    inside = [_topics(topics, lag)] if topics[1:] else []
    inside.append(
        _fold(
            "Partitions",
            summary + ", the furthest behind first",
            _partitions(logs, lag),
            is_open=len(logs) <= MOST_UNFOLDED,
        )
    )
    return tag("section", tag("h2", "What was read"), *inside)


def _topics(topics: Sequence[LogRead], lag: Any) -> Html:
    rows = (
        tag(
            "tr",
            tag("th", one.topic, scope="row", title=one.topic),
            *_cells(
                number(one.begin),
                number(one.rows),
                size(one.bytes),
                lag(one.before),
                lag(one.after),
            ),
        )
        for one in topics[:MOST_TOPICS]
    )
    names = ("Topic", "Partitions", "Records", "Fetched", "Lag before", "Lag after")
    table = _scrolled_table(names, rows, "Topics", _more(topics[MOST_TOPICS:], "topic", lag))
    return _fold("Topics", counted(len(topics), "topic"), table, is_open=True)


def _partitions(logs: Sequence[LogRead], lag: Any) -> Html:
    names = (
        "Topic",
        "Partition",
        "From",
        "Until",
        "Records",
        "Fetched",
        "Without a row",
        "Lag before",
        "Lag after",
    )
    rows = (
        tag(
            "tr",
            tag("th", one.topic, scope="row", title=one.topic),
            *_cells(
                one.key,
                number(one.begin),
                number(one.until),
                number(one.rows),
                size(one.bytes),
                number(one.missing) if one.is_read else UNKNOWN,
                lag(one.before),
                lag(one.after),
            ),
        )
        for one in logs[:MOST_PARTITIONS]
    )
    return _scrolled_table(
        names, rows, "Partitions", _more(logs[MOST_PARTITIONS:], "partition", lag)
    )


def _cells(*texts: str) -> Iterable[Html]:
    return (tag("td", text) for text in texts)


def _more(left: Sequence[LogRead], noun: str, lag: Any) -> str | None:
    if not left:
        return None
    rows, after = sum(one.rows or 0 for one in left), sum(one.after or 0 for one in left)
    return (
        f"and {counted(len(left), noun)} more, with {counted(rows, 'record')} in all and a lag of "
        f"{lag(after)} after the run; "
        "the report's JSON file has all of them"
    )


def _scrolled_table(
    names: Sequence[str], rows: Iterable[Html], label: str, more: str | None
) -> Html:
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    scroll = tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", *rows)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=label,
    )
    return tag("div", scroll, tag("p", more, class_="notes") if more else None)


def _fold(title: str, summary: str, inside: Html, *, is_open: bool) -> Html:
    return tag("details", tag("summary", title, tag("span", summary)), inside, open=is_open)


def standing(report: Mapping[str, Any]) -> tuple[str, str]:
    """How the run stands: the tone of it (good, warn, bad), and in a word or three."""
    outcomes = {one["outcome"] for one in report["outcomes"]}
    if report["state"] == State.RUNNING.value:
        return "warn", "Not ended"
    if report["state"] == State.FAILED.value:
        return "bad", "Failed"
    if Outcome.RECORDS_LOST.value in outcomes:
        return "warn", "Done, records lost"
    is_loud = any(one.is_loud and one.value in outcomes for one in Outcome)
    return ("warn", "Done, with warnings") if is_loud else ("good", "Done")


def summarize_outcome(report: Mapping[str, Any], logs: Sequence[LogRead]) -> str:
    """Describe the result in a sentence or two."""
    if report["state"] == State.RUNNING.value:
        where = f" It is process {report['pid']} on {report['host']}." if report["host"] else ""
        return (
            f"This run has not come to its end: it is still at work, or it was killed. The "
            f"next run finishes what it left.{where}"
        )
    loaded = (
        f"{counted(report['records_read'], 'record')} loaded in {seconds(report['total_seconds'])}"
    )
    if report["state"] == State.FAILED.value:
        if report["records_read"]:
            return f"The run ended early. {loaded} before that."
        return "The run ended early, and loaded nothing."
    came = f"{loaded}." if report["records_read"] else "There was nothing new to load."
    has_lost = any(one["outcome"] == Outcome.RECORDS_LOST.value for one in report["outcomes"])
    lost = "Records were lost, as policy allows. " if has_lost else ""
    return f"{came} {lost}{_left(logs)}".strip()


def _left(logs: Sequence[LogRead]) -> str:
    unknown, lagging = sum(log.after is None for log in logs), [log for log in logs if log.after]
    if lagging:
        return f"{counted(len(lagging), 'partition')} still had something to read when it ended."
    if unknown:
        return f"How far the table is behind {counted(unknown, 'partition')} is not known."
    return "The table holds everything that could be read when the run began." if logs else ""


def figures(report: Mapping[str, Any], logs: Sequence[LogRead], unit: str) -> Html:
    """Records, bytes, throughput, time, lag, partitions."""
    lag = size if unit == "bytes" else number
    before, after = (
        aggregate_known(sum, (log.before for log in logs)),
        aggregate_known(sum, (log.after for log in logs)),
    )
    read = sum(log.is_read for log in logs)
    if before is None:
        was = "of what could be read"
    else:
        was = f"{lag(before)} before" + (", in offsets" if unit == "offsets" else "")
    rows = (
        ("Records", number(report["records_read"]), None),
        ("Fetched", size(report["bytes"]) if read else UNKNOWN, "from the brokers"),
        ("Throughput", number(report["records_per_second"]), "records/s of the whole run"),
        ("Time", seconds(report["total_seconds"]), None),
        ("Lag after the run", lag(after), was),
        ("Partitions read", number(read), f"of {number(len(logs))}"),
    )
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else None))
            for name, value, note in rows
        ),
        class_="tiles",
    )


_PLAN, _LAG, _SAW = '\n  "plan": ', '\n  "lag": ', '\n  "snapshot": '
_OF_A_LOG = re.compile(r'"before": (\d+|null),\s+"after": (\d+|null)\s*\}')


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of the pipeline. None: not known; of one that was killed most is."""

    run_id: str
    state: str
    started_at: str
    exit_code: int | None = None
    seconds: float | None = None
    records_read: int = 0
    bytes: int | None = None
    records_per_second: int | None = None
    lag_before: int | None = None
    """Of partitions with a known lag."""
    lag_after: int | None = None
    outcomes: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """True if it failed or never ended."""
        return self.state != "done"


def past_run(text: str) -> PastRun | None:
    """The run of a report as its file has it; None for a text that is none of our reports."""
    head, found, rest = text.partition(_PLAN)
    try:
        document = json.loads(head.rstrip().rstrip(",") + "}") if found else None
        if document is None:
            return None
        return _run_of(document, _OF_A_LOG.findall(rest.partition(_LAG)[2].partition(_SAW)[0]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def run_of(report: Mapping[str, Any]) -> PastRun:
    """Return the same of a report's document. Raises KeyError for an invalid one."""
    return _run_of(report, [(str(one["before"]), str(one["after"])) for one in report["lag"]])


def _run_of(document: Mapping[str, Any], lags: Iterable[tuple[str, str]]) -> PastRun:
    before, after = zip(*lags, strict=True) if lags else ((), ())
    return PastRun(
        document["run_id"],
        document["state"],
        document["started_at"],
        document["exit_code"],
        document["total_seconds"] or None,
        document["records_read"] or 0,
        document["bytes"],
        document["records_per_second"],
        _sum(before),
        _sum(after),
        tuple(one["outcome"] for one in document["outcomes"]),
    )


def _sum(texts: Iterable[str]) -> int | None:
    return aggregate_known(sum, (int(one) if one.isdecimal() else None for one in texts))


Link = Callable[[PastRun], str | None]
"""Relative link to a run's page; None: unknown."""
_HAPPENED = {"done": "Done", "failed": "Failed", "running": "Not ended"}


def history(runs: Sequence[PastRun], unit: str, link: Link) -> Html | None:
    """Return the history, oldest first, ending with the page's own run; nothing if that is the only
    one. `unit`: of the lag.
    """
    if len(runs) < 2:
        return None
    speed = [
        _column(
            run,
            run.records_per_second,
            f"{number(run.records_per_second)} records/s",
            is_now=run is runs[-1],
        )
        for run in runs
    ]
    lag = [
        _column(
            run,
            run.lag_after,
            f"{number(run.lag_before)} {unit} before, {number(run.lag_after)} after",
            behind=run.lag_before,
            is_now=run is runs[-1],
        )
        for run in runs
    ]
    fastest = aggregate_known(max, (run.records_per_second for run in runs)) or 0
    longest = aggregate_known(max, (run.lag_before for run in runs)) or 0
    has_failed = any(run.has_failed for run in runs)
    return tag(
        "section",
        tag("h2", f"The last {len(runs)} runs"),
        tag(
            "div",
            _figure(
                "Throughput, records per second",
                fastest,
                speed,
                runs,
                _keys(("now", "this run"), has_failed=has_failed),
            ),
            _figure(
                f"Lag, in {unit}",
                longest,
                lag,
                runs,
                _keys(("", "before the run"), ("now", "after it"), has_failed=has_failed),
            ),
            class_="pair",
        ),
        tag(
            "details",
            tag("summary", "Run by run", tag("span", "newest first")),
            _history_table(runs, unit, link),
            style="margin-top:1rem",
        ),
    )


def _column(
    run: PastRun, value: int | None, values: str, *, behind: int | None = None, is_now: bool
) -> Column:
    label = (
        f"{day_and_time(run.started_at)} UTC: {values}, "
        f"{_HAPPENED.get(run.state, run.state).lower()}"
    )
    return Column(value, label, behind, is_now, run.has_failed)


def _figure(
    title: str, most: int, drawn: Sequence[Column], runs: Sequence[PastRun], keys: Html
) -> Html:
    ends = tag(
        "div",
        tag("span", day_and_time(runs[0].started_at)),
        tag("span", day_and_time(runs[-1].started_at)),
        class_="ends",
    )
    head = tag(
        "div",
        tag("h3", title),
        tag("span", f"up to {short(most)}", class_="soft small"),
        class_="head",
    )
    return tag(
        "figure",
        head,
        columns(drawn, f"{title}, of the last {len(runs)} runs"),
        ends,
        tag("div", keys),
        class_="card",
    )


def _keys(*kinds: tuple[str, str], has_failed: bool) -> Html:
    shown = [*kinds, ("fail", "did not end well")] if has_failed else kinds
    return joined(
        tag("span", tag("i", class_=kind or None), label, class_="key") for kind, label in shown
    )


def _history_table(runs: Sequence[PastRun], unit: str, link: Link) -> Html:
    names = ("Began (UTC)", "Came to", "Records", "Records/s", "Time", "Lag before", "Lag after")
    head = tag(
        "tr",
        *(
            tag("th", name, scope="col", class_="text" if name == "Came to" else None)
            for name in names
        ),
    )
    rows = (_row(run, None if run is runs[-1] else link(run)) for run in reversed(runs))
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", *rows)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=f"The last runs, lag in {unit}",
    )


def _row(run: PastRun, to: str | None) -> Html:
    began = day_and_time(run.started_at)
    happened = _HAPPENED.get(run.state, run.state)
    outcomes = ", ".join(dict.fromkeys(one for one in run.outcomes if one != "failed"))
    if run.exit_code:
        result = f"{happened}, exit {run.exit_code}"
    else:
        result = happened if run.has_failed else outcomes or happened
    return tag(
        "tr",
        tag("th", tag("a", began, href=to) if to else began, scope="row"),
        tag("td", result, class_="text cut" + (" bad" if run.has_failed else ""), title=result),
        *(
            tag("td", text)
            for text in (
                number(run.records_read),
                number(run.records_per_second),
                UNKNOWN if run.seconds is None else seconds(run.seconds),
                number(run.lag_before),
                number(run.lag_after),
            )
        ),
    )


MOST_SENTENCES = 100
_LOUD = frozenset(outcome.value for outcome in Outcome if outcome.is_loud)
_NOTHING_FROM_ELSEWHERE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A browser keeps the page from loading anything, and from running anything."""


def page_of(
    report: Mapping[str, Any], before: Sequence[PastRun] = (), link: Link = lambda run: None
) -> str:
    """Return the page of a report. `before`: earlier runs, oldest first. Raises KeyError or
    TypeError for an invalid report.
    """
    logs, runs = logs_of(report), [*before, run_of(report)]
    unit = "bytes" if any("broker_id" in one for one in report["lag"]) else "offsets"
    title = f"{report['pipeline']}: {standing(report)[1].lower()}"
    body = tag(
        "main",
        _header(report, logs),
        _error(report["error"]),
        figures(report, logs, unit),
        _said(report),
        _time(report),
        history(runs, unit, link),
        partitions(logs, unit),
        _footer(report),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_NOTHING_FROM_ELSEWHERE),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(SHEET)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _header(report: Mapping[str, Any], logs: Sequence[Any]) -> Html:
    tone, state = standing(report)
    when = joined(
        (
            "began ",
            moment(report["started_at"]),
            *((", ended ", moment(report["finished_at"])) if report["finished_at"] else ()),
        )
    )
    return tag(
        "header",
        tag(
            "div",
            tag("h1", report["pipeline"]),
            tag("span", state, class_=f"pill {tone}"),
            class_="top",
        ),
        tag("p", when, class_="soft small"),
        tag("p", prose(summarize_outcome(report, logs)), class_="message"),
    )


def _error(error: Mapping[str, Any] | None) -> Html | None:
    """Return the run's error, its place, and what to check."""
    if not error:
        return None
    places = [(name.replace("_", " "), str(value)) for name, value in error["where"].items()]
    retry = "may help" if error["retriable"] else "does not help by itself"
    return tag(
        "section",
        tag("h2", "What went wrong"),
        tag("p", prose(error["message"]), class_="message"),
        tag("p", tag("b", "What to do: "), prose(error["action"]), class_="action")
        if error["action"]
        else None,
        _places(
            (*places, ("exit code", f"{error['exit_code']} ({error['error']})"), ("a retry", retry))
        ),
        class_="error",
    )


def _places(rows: Sequence[tuple[str, object]]) -> Html:
    return tag(
        "dl",
        *(
            (
                tag("dt", name),
                tag("dd", value if isinstance(value, Html) else prose(str(value), 1000)),
            )
            for name, value in rows
        ),
        class_="places",
    )


def _said(report: Mapping[str, Any]) -> Html | None:
    """Return the outcomes, loud ones first, and why offsets gave no row; the error is shown above."""
    shown = [
        one
        for one in report["outcomes"]
        if not (one["outcome"] == Outcome.FAILED.value and report["error"])
    ]
    shown.sort(key=lambda one: one["outcome"] not in _LOUD)
    rows = [
        _sentence(
            one["outcome"].replace("_", " ").capitalize(),
            one["message"],
            is_loud=one["outcome"] in _LOUD,
        )
        for one in shown[:MOST_SENTENCES]
    ]
    gaps = _gaps(
        [one for plan in plans_of(report) for one in plan["ranges"] if one.get("missing_offsets")]
    )
    if gaps:
        rows.append(_sentence("Without a row", gaps))
    if not rows:
        return None
    more = len(shown) - MOST_SENTENCES
    return tag(
        "section",
        tag("h2", "What happened"),
        tag("div", tag("ul", *rows, class_="said"), class_="card"),
        tag(
            "p",
            f"and {counted(more, 'sentence')} more; the report's JSON file has all of them",
            class_="notes",
        )
        if more > 0
        else None,
    )


def _sentence(name: str, text: str, *, is_loud: bool = False) -> Html:
    return tag(
        "li", tag("b", name, class_="warn" if is_loud else None), tag("span", prose(text, 1000))
    )


def _gaps(ranges: Sequence[Mapping[str, Any]]) -> str:
    """Why offsets have no row, as far as their readers counted it."""
    if not ranges:
        return ""
    kinds = {
        "control_records": "markers of transactions",
        "aborted_records": "records of aborted transactions",
    }
    counts = {label: sum(one.get(key) or 0 for one in ranges) for key, label in kinds.items()}
    missing = sum(one["missing_offsets"] for one in ranges)
    counts["compacted, or not explained"] = missing - sum(counts.values())
    counted_kinds = ", ".join(
        f"{number(count)} {label}" for label, count in counts.items() if count > 0
    )
    return (
        f"{counted(missing, 'offset')} in {counted(len(ranges), 'range')} gave no row: "
        f"{counted_kinds}"
    )


def _time(report: Mapping[str, Any]) -> Html | None:
    if not report["total_seconds"]:
        return None
    return tag(
        "section",
        tag("h2", "Where the time went"),
        tag("div", time_by_verb(report["seconds"]), class_="card"),
    )


def _footer(report: Mapping[str, Any]) -> Html:
    versions = ", ".join(
        f"{name.replace('_', '-')} {version}"
        for name, version in report["versions"].items()
        if version
    )
    plan = report["plan"]
    facts = [("run", report["run_id"]), ("group", report["group"]), ("table", report["table"])]
    if report["table_version"] is not None:
        facts.append(("table version", str(report["table_version"])))
    if plan:
        facts.append(("plan", f"{plan['number']} ({plan['kind']}), id {plan['id']}"))
    process = f"{report['pid']} on {report['host']}" if report["host"] else ""
    facts += [("conf", report["conf"] or ""), ("process", process), ("versions", versions)]
    return tag("footer", _places([(name, value) for name, value in facts if value]))


def run_ids(names: Iterable[str], ours_called: str) -> list[str]:
    """The runs that have a report in the folder under the pipeline's name there
    (`Settings.name_in_files`), oldest first.
    """
    ours = re.compile(re.escape(ours_called) + r"-(\d{8}T\d{6}-[0-9a-f]{6})\.json")
    return sorted(found[1] for name in names if (found := ours.fullmatch(name)))


def outdated(names: Iterable[str], ours_called: str, keep: int) -> list[str]:
    """Return the files of this pipeline's oldest runs beyond the newest `keep`, with pages and
    logs. Names begin with the start in UTC, so they sort by time.
    """
    ours = re.compile(
        re.escape(ours_called)
        + r"-(\d{8}T\d{6}-[0-9a-f]{6})(?:-verify|-maintain|-into)?(\.json|\.html|\.spark\.log)"
    )
    runs = {name: (found[1], found[2]) for name in names if (found := ours.fullmatch(name))}
    kept = sorted(run_id for run_id, kind in runs.values() if kind == ".json")[-keep:]
    return sorted(name for name, (run_id, _) in runs.items() if kept and run_id < kept[0])
