"""Small pictures of numbers, as SVG in the page: bars of a run's time, and columns of what the last
runs came to.

Pictures are stretched to the width there is, so no text stands in them: what they say stands beside
them, and above each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etl.report.page.markup import Html, joined, tag
from etl.report.page.words import seconds

_WIDTH, _HEIGHT, _LEAST = 600.0, 120.0, 1.5
"""In the picture's own units; `_LEAST` is the height of what is there and too little to be seen."""
_MOST_WIDE = 34.0
VERBS = {
    "connect": "Connecting",
    "observe": "Looking at brokers and table",
    "reconcile": "Reconciling",
    "plan": "Planning",
    "start_spark": "Starting Spark",
    "first_job": "First job of Spark",
    "fetch": "Fetching and writing",
    "append": "Commit to the table",
    "commit": "Moving the offsets",
    "compact": "Putting small files together",
    "close": "Stopping Spark",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One run in a picture of several."""

    value: float | None
    """None: not known; nothing is drawn."""
    says: str
    behind: float | None = None
    """Drawn behind it, paler."""
    is_now: bool = False
    has_failed: bool = False


def time_by_verb(took: Mapping[str, float]) -> Html:
    """A bar for each verb that took time, in the order of a run, with its seconds and its share."""
    spent = {verb: s for verb, s in took.items() if s >= 0.0005}
    whole = sum(spent.values())
    return tag(
        "div",
        *(_bar(VERBS.get(verb, verb), s, s / whole) for verb, s in spent.items()),
        class_="verbs",
    )


def _bar(name: str, took: float, share: float) -> Html:
    picture = tag(
        "svg",
        tag("rect", width=f"{100 * max(share, 0.004):.2f}", height=1, class_="bar"),
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    told = "<1 %" if share < 0.01 else f"{100 * share:.0f} %"
    return joined(
        (
            tag("span", name, class_="name"),
            picture,
            tag("span", seconds(took), tag("span", told, class_="share"), class_="took"),
        )
    )


def columns(of: Sequence[Column], says: str) -> Html:
    """A column for each run, oldest first; `says` is what the picture shows, for who does not see
    it.
    """
    top = max((value for one in of for value in (one.value, one.behind) if value), default=1.0)
    step = min(_WIDTH / max(len(of), 1), 2 * _MOST_WIDE)
    drawn = (_column(one, _WIDTH - step * (len(of) - i), step, top) for i, one in enumerate(of))
    base = tag("line", x1=0, x2=_WIDTH, y1=_HEIGHT - 0.5, y2=_HEIGHT - 0.5, class_="base")
    return tag(
        "svg",
        base,
        *drawn,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=says,
    )


def _column(one: Column, left: float, step: float, top: float) -> Html:
    """A run: what it came to, a stump where that failed, and over all of its place what it says."""
    width, own = step * 0.72, "fail" if one.has_failed else "now" if one.is_now else "past"
    x = left + (step - width) / 2
    parts: list[Html] = list(
        _rect(x, width, one.behind, top, "past" if not one.has_failed else "fail")
    )
    parts += _rect(x, width, one.value, top, own if one.behind is None or one.has_failed else "now")
    if one.has_failed and not one.value and not one.behind:
        parts.append(
            tag(
                "rect",
                x=f"{x:.1f}",
                y=f"{_HEIGHT - 6:.1f}",
                width=f"{width:.1f}",
                height=6,
                class_="fail",
            )
        )
    place = tag(
        "rect",
        x=f"{left:.1f}",
        y=0,
        width=f"{step:.1f}",
        height=f"{_HEIGHT:.0f}",
        fill="transparent",
    )
    return tag("g", tag("title", one.says), *parts, place)


def _rect(x: float, width: float, value: float | None, top: float, kind: str) -> Iterable[Html]:
    if value:
        height = max(value / top * _HEIGHT, _LEAST)
        yield tag(
            "rect",
            x=f"{x:.1f}",
            y=f"{_HEIGHT - height:.1f}",
            width=f"{width:.1f}",
            height=f"{height:.1f}",
            class_=kind,
        )
