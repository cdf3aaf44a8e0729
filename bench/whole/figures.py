"""Medians and ratios of results, as cells of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
MISSING = ""


def to_commit(one: Result) -> float:
    """Seconds from the stored plan, or from the beginning where there is none, to the commit, or to
    the end where there is none.
    """
    return float(one.get("to_commit", one["seconds"]))


def all_of_it(one: Result) -> float:
    """Seconds from beginning to end."""
    return float(one["seconds"])


def cpu(one: Result) -> float:
    """Seconds of processor time."""
    return float(one.get("cpu", 0.0))


def median(results: Sequence[Result], of: Callable[[Result], float]) -> float:
    """Of the rounds."""
    return statistics.median(map(of, results))


def seconds(results: Sequence[Result], of: Callable[[Result], float] = all_of_it) -> str:
    """Their median; nothing where there are no results."""
    return f"{median(results, of):.2f}" if results else MISSING


def speed(results: Sequence[Result], of: Callable[[Result], float], size: float = 1.0) -> str:
    """Millions a second: of records, or of bytes where each record has so many."""
    if not results:
        return MISSING
    found = results[0]["records"] * size / max(median(results, of), 1e-9) / 1e6
    return f"{found:.2f}" if size == 1.0 else f"{found:,.0f}"


def per_gb(results: Sequence[Result], size: int) -> str:
    """Processor seconds for 10^9 bytes of values."""
    return f"{median(results, cpu) * 1e9 / results[0]['records'] / size:.1f}"


def ratio(above: Sequence[Result], below: Sequence[Result], of: Callable[[Result], float]) -> str:
    """Of the medians; nothing where one of both was not measured."""
    if not (above and below):
        return MISSING
    return f"{median(above, of) / max(median(below, of), 1e-9):.2f}"


def megabytes(results: Sequence[Result], of: Callable[[Result], float | None]) -> str:
    """The maximum of the rounds, in millions of bytes; nothing if it was not measured."""
    found = [value for value in map(of, results) if value is not None]
    return f"{max(found) / 1e6:,.0f}" if found else MISSING


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def head(first: str, *others: str) -> str:
    """The first two lines of a table: names to the left, figures to the right."""
    return row(first, *others) + row("---", *["---:"] * len(others))
