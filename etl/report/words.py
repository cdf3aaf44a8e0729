"""How times and counts are said, the same everywhere, and what counts come to of which some are not
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

Number = TypeVar("Number", int, float)

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int | None) -> str | None:
    """An instant, given in milliseconds since 1970, as every document of ours has it: ISO 8601 in
    UTC. None outside the years 1 to 9999.
    """
    try:
        return (
            None
            if ms is None
            else (_1970 + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
        )
    except OverflowError:
        return None


def counted(count: int, noun: str) -> str:
    """1 task, 2 tasks."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def of_known(
    whole: Callable[[list[Number]], Number], values: Iterable[Number | None]
) -> Number | None:
    """The sum, or whatever else `whole` makes of them, of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return whole(known) if known else None
