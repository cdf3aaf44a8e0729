"""What was read of each partition and how far the table is behind it, the worst ones first, and no
more of them than a page holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.report.page.markup import Html, tag
from etl.report.page.words import UNKNOWN, number, size
from etl.report.words import counted

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

    def add_range(self, told: Mapping[str, Any]) -> None:
        """One range that a plan has of it."""
        self.begin = told["from"] if self.begin is None else min(self.begin, told["from"])
        self.until = told["until"] if self.until is None else max(self.until, told["until"])
        self.rows = (
            _plus(self.rows, told.get("rows")) if told.get("rows") is not None else self.rows
        )
        self.bytes = _plus(self.bytes, told.get("fetched_bytes"))
        self.missing += told.get("missing_offsets") or 0
        self.is_read = True

    @property
    def worst_first(self) -> tuple[Any, ...]:
        """What is not known is worst, then what lags most, then what most offsets are missing from."""
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
    for told in report["lag"]:
        one = _of(found, told)
        one.before, one.after = told["before"], told["after"]
    for plan in plans_of(report):
        for told in plan["ranges"]:
            _of(found, told).add_range(told)
    return sorted(found.values(), key=lambda one: one.worst_first)


def plans_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The plans that the run executed, the newest last."""
    return [*report["earlier_plans"], *([report["plan"]] if report["plan"] else [])]


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


def _of(found: dict[tuple[str, str], LogRead], told: Mapping[str, Any]) -> LogRead:
    key = (
        f"{told['broker_id']}-{told['partition']}"
        if "broker_id" in told
        else str(told["partition"])
    )
    return found.setdefault((told["topic"], key), LogRead(told["topic"], key))


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def partitions(logs: Sequence[LogRead], unit: str) -> Html | None:
    """The tables: topics, where there are several, and partitions."""
    if not logs:
        return None
    topics, lag = topics_of(logs), number if unit != "bytes" else size
    read = sum(log.is_read for log in logs)
    told = (
        f"{number(read)} of {counted(len(logs), 'partition')} read"
        if read
        else f"{counted(len(logs), 'partition')}, nothing read"
    )
    inside = [_topics(topics, lag)] if topics[1:] else []
    inside.append(
        _fold(
            "Partitions",
            told + ", the furthest behind first",
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
    table = _table(names, rows, "Topics", _more(topics[MOST_TOPICS:], "topic", lag))
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
    return _table(names, rows, "Partitions", _more(logs[MOST_PARTITIONS:], "partition", lag))


def _cells(*texts: str) -> Iterable[Html]:
    return (tag("td", text) for text in texts)


def _more(left: Sequence[LogRead], noun: str, lag: Any) -> str | None:
    if not left:
        return None
    rows, after = sum(one.rows or 0 for one in left), sum(one.after or 0 for one in left)
    return (
        f"and {counted(len(left), noun)} more, with {counted(rows, 'record')} in all and a lag of {lag(after)} after the run; "
        "the report's JSON file has all of them"
    )


def _table(names: Sequence[str], rows: Iterable[Html], says: str, more: str | None) -> Html:
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    scroll = tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", *rows)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=says,
    )
    return tag("div", scroll, tag("p", more, class_="notes") if more else None)


def _fold(title: str, told: str, inside: Html, *, is_open: bool) -> Html:
    return tag("details", tag("summary", title, tag("span", told)), inside, open=is_open)
