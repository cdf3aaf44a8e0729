"""Numbers, sizes, durations and times as the page says them; what is not known is a dash."""

from __future__ import annotations

from datetime import datetime

from etl.report.page.markup import Html, tag
from etl.report.progress import size_in_words, time_in_words

UNKNOWN = "–"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def number(value: float | None) -> str:
    """1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """1.2 MB."""
    return UNKNOWN if value is None else size_in_words(value)


def seconds(value: float | None) -> str:
    """0.42 s, 4.2 s, 42 s, 2:05 min."""
    if value is None:
        return UNKNOWN
    if value < 0.01:
        return "<0.01 s"
    return (
        f"{value:.2f} s"
        if value < 1
        else f"{value:.1f} s"
        if value < 9.95
        else time_in_words(value)
    )


def short(value: float) -> str:
    """A number where there is little room: 940, 1.2 k, 34 M."""
    for unit in ("", " k", " M", " G"):
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:,.0f} T"


def moment(told: str | None) -> Html:
    """22 Nov 2026, 15:09:14 UTC; `told` is as documents have it."""
    if told is None:
        return Html(UNKNOWN)
    at = datetime.fromisoformat(told)
    return tag("time", f"{day(told)} {at.year}, {at:%H:%M:%S} UTC", datetime=told)


def day(told: str) -> str:
    """22 Nov."""
    at = datetime.fromisoformat(told)
    return f"{at.day} {_MONTHS[at.month - 1]}"


def day_and_time(told: str) -> str:
    """22 Nov, 15:09."""
    return f"{day(told)}, {datetime.fromisoformat(told):%H:%M}"
