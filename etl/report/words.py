"""How times and counts are said, the same everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int | None) -> str | None:
    """An instant, given in milliseconds since 1970, as every document of ours has it: ISO 8601 in UTC. None outside the years 1 to 9999."""
    try:
        return None if ms is None else (_1970 + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None


def counted(count: int, noun: str) -> str:
    """1 task, 2 tasks."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
