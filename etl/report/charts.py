"""Where are the bars of the charts on a run's page?

A chart of the last runs has a column for each run, oldest first, and the newest at the right edge.
A column has bars that are drawn over each other. Here are places, sizes and colors; titles, labels
and the SVG elements are in page.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etl.report.run_history import PastRun

WIDTH = 600
HEIGHT = 120
"""Units of the SVG, which is stretched to the width of the page."""
_MAX_COLUMN_WIDTH = 68
_BAR_PART = 0.72
"""How much of a column's width its bars take."""
_LEAST_HEIGHT = 1.5
"""The bar of a value that is too small to see."""
_FAILED_HEIGHT = 6
"""The bar of a failed run without values."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle."""

    color: str
    """CSS class: past, now or fail."""
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """One run, with its bars from the back to the front."""

    run: PastRun
    x: float
    width: float
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the last runs."""

    highest: int
    """The value of the full height."""
    columns: Sequence[Column]
    width: int = WIDTH
    height: int = HEIGHT


_Values = Sequence[tuple[str, int | None]]
"""Color and value of each bar of a run, from the back to the front. None: unknown."""


def throughput_chart(runs: Sequence[PastRun]) -> Chart:
    """Return the chart of records per second. The last run has another color."""
    values: list[_Values] = []
    for run in runs:
        color = "now" if run is runs[-1] else "past"
        values.append([(color, run.records_per_second)])
    return _chart(runs, values)


def lag_chart(runs: Sequence[PastRun]) -> Chart:
    """Return the chart of the lag before each run, and over it the lag after the run."""
    return _chart(runs, [[("past", run.lag_before), ("now", run.lag_after)] for run in runs])


def _chart(runs: Sequence[PastRun], values: Sequence[_Values]) -> Chart:
    """`values`: the bars of each run."""
    highest = max(value or 0 for of_run in values for _, value in of_run)
    width = min(WIDTH / len(runs), _MAX_COLUMN_WIDTH)
    columns = []
    for index, run in enumerate(runs):
        x = WIDTH - width * (len(runs) - index)
        bars = _bars(values[index], run.has_failed, x, width, highest)
        columns.append(Column(run, round(x, 1), round(width, 1), bars))
    return Chart(highest, columns)


def _bars(values: _Values, has_failed: bool, x: float, width: float, highest: int) -> list[Bar]:
    """Return the bars of a column at `x`. `highest`: the value of the full height."""
    heights = []
    for color, value in values:
        if value:
            height = max(value / highest * HEIGHT, _LEAST_HEIGHT)
            heights.append(("fail" if has_failed else color, height))
    if has_failed and not heights:
        heights.append(("fail", _FAILED_HEIGHT))
    bar_width = width * _BAR_PART
    bar_x = x + (width - bar_width) / 2
    bars = []
    for color, height in heights:
        y = HEIGHT - height
        bars.append(Bar(color, round(bar_x, 1), round(y, 1), round(bar_width, 1), round(height, 1)))
    return bars
