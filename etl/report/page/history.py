"""The last runs of the pipeline: how fast they were and how far they came, as pictures, and each in
a line of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etl.report.page.charts import Column, columns
from etl.report.page.markup import Html, joined, tag
from etl.report.page.words import UNKNOWN, day_and_time, number, seconds, short
from etl.report.past_runs import PastRun
from etl.report.words import of_known

Link = Callable[[PastRun], str | None]
"""Where a run's own page is, seen from this one; None: not known."""
_HAPPENED = {"done": "Done", "failed": "Failed", "running": "Not ended"}


def history(runs: Sequence[PastRun], unit: str, link: Link) -> Html | None:
    """The runs, oldest first, of which the last one is the page's own; nothing where that is the
    only one. `unit`: what lag is told in.
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
    fastest = of_known(max, (run.records_per_second for run in runs)) or 0
    longest = of_known(max, (run.lag_before for run in runs)) or 0
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
            _table(runs, unit, link),
            style="margin-top:1rem",
        ),
    )


def _column(
    run: PastRun, value: int | None, says: str, *, behind: int | None = None, is_now: bool
) -> Column:
    told = (
        f"{day_and_time(run.started_at)} UTC: {says}, {_HAPPENED.get(run.state, run.state).lower()}"
    )
    return Column(value, told, behind, is_now, run.has_failed)


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
        tag("span", tag("i", class_=kind or None), says, class_="key") for kind, says in shown
    )


def _table(runs: Sequence[PastRun], unit: str, link: Link) -> Html:
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
        told = f"{happened}, exit {run.exit_code}"
    else:
        told = happened if run.has_failed else outcomes or happened
    return tag(
        "tr",
        tag("th", tag("a", began, href=to) if to else began, scope="row"),
        tag("td", told, class_="text cut" + (" bad" if run.has_failed else ""), title=told),
        *(
            tag("td", text)
            for text in (
                number(run.records),
                number(run.records_per_second),
                UNKNOWN if run.seconds is None else seconds(run.seconds),
                number(run.lag_before),
                number(run.lag_after),
            )
        ),
    )
