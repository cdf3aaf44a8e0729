"""The page, from the run's name down to the process that ran: `page_of` a report as its document,
and of the runs before it.

It is made of the JSON document alone, so the page of any report can be made again, also of one
whose run was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etl.report.page.charts import time_by_verb
from etl.report.page.figures import figures, says_in_short, standing
from etl.report.page.history import Link, history
from etl.report.page.markup import Html, joined, prose, tag
from etl.report.page.partitions import logs_of, partitions, plans_of
from etl.report.page.style import SHEET
from etl.report.page.words import moment, number
from etl.report.past_runs import PastRun, run_of
from etl.report.run_state import Outcome
from etl.report.words import counted

MOST_SENTENCES = 100
_LOUD = frozenset(outcome.value for outcome in Outcome if outcome.is_loud)
_NOTHING_FROM_ELSEWHERE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A browser keeps the page from loading anything, and from running anything."""


def page_of(
    report: Mapping[str, Any], before: Sequence[PastRun] = (), link: Link = lambda run: None
) -> str:
    """The page of a report. `before`: the runs before it, oldest first. Raises KeyError or
    TypeError for what is no report.
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
        tag("p", prose(says_in_short(report, logs)), class_="says"),
    )


def _error(error: Mapping[str, Any] | None) -> Html | None:
    """What ended the run, where, and what to look at."""
    if not error:
        return None
    places = [(name.replace("_", " "), str(value)) for name, value in error["where"].items()]
    retry = "may help" if error["retriable"] else "does not help by itself"
    return tag(
        "section",
        tag("h2", "What went wrong"),
        tag("p", prose(error["what"]), class_="what"),
        tag("p", tag("b", "What to check: "), prose(error["check"]), class_="check")
        if error["check"]
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
    """What the run came to, what somebody should look at first, and why offsets gave no row; why it
    failed is told above.
    """
    told = [
        one
        for one in report["outcomes"]
        if not (one["outcome"] == Outcome.FAILED.value and report["error"])
    ]
    told.sort(key=lambda one: one["outcome"] not in _LOUD)
    rows = [
        _sentence(one["outcome"].capitalize(), one["says"], is_loud=one["outcome"] in _LOUD)
        for one in told[:MOST_SENTENCES]
    ]
    gaps = _gaps(
        [one for plan in plans_of(report) for one in plan["ranges"] if one.get("missing_offsets")]
    )
    if gaps:
        rows.append(_sentence("Without a row", gaps))
    if not rows:
        return None
    more = len(told) - MOST_SENTENCES
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


def _sentence(name: str, says: str, *, is_loud: bool = False) -> Html:
    return tag(
        "li", tag("b", name, class_="warn" if is_loud else None), tag("span", prose(says, 1000))
    )


def _gaps(ranges: Sequence[Mapping[str, Any]]) -> str:
    """Why offsets have no row, as far as their readers counted it."""
    if not ranges:
        return ""
    kinds = {
        "control_records": "markers of transactions",
        "aborted_records": "records of aborted transactions",
    }
    counts = {what: sum(one.get(key) or 0 for one in ranges) for key, what in kinds.items()}
    missing = sum(one["missing_offsets"] for one in ranges)
    counts["compacted, or not explained"] = missing - sum(counts.values())
    told = ", ".join(f"{number(count)} {what}" for what, count in counts.items() if count > 0)
    return f"{counted(missing, 'offset')} in {counted(len(ranges), 'range')} gave no row: {told}"


def _time(report: Mapping[str, Any]) -> Html | None:
    if not report["seconds_in_all"]:
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
    told = [("run", report["run_id"]), ("group", report["group"]), ("table", report["table"])]
    if report["delta_version"] is not None:
        told.append(("table version", str(report["delta_version"])))
    if plan:
        told.append(("plan", f"{plan['number']} ({plan['kind']}), id {plan['id']}"))
    process = f"{report['pid']} on {report['host']}" if report["host"] else ""
    told += [("conf", report["conf"] or ""), ("process", process), ("versions", versions)]
    return tag("footer", _places([(name, value) for name, value in told if value]))
