"""The stretch of time that a scheduled run is for, and the run key by which the same stretch is the
same run, whoever starts it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from etl.errors import SettingsError

_1970 = datetime(1970, 1, 1, tzinfo=UTC)
INTERVALS_MAX = 10_000
"""More of them than anybody looks at: a period was meant in hours and written in seconds. Each is a
question to every leader.
"""


@dataclass(frozen=True, slots=True, order=True)
class TimeInterval:
    """[start, end) in UTC; start lies before end."""

    start: datetime
    end: datetime

    @property
    def run_key(self) -> str:
        """`20260131T050000Z-20260131T060000Z`: the same for a schedule, a retry, a replay by hand
        and a backfill of this interval.
        """
        return f"{_compact(self.start)}-{_compact(self.end)}"

    @property
    def start_ms(self) -> int:
        """Milliseconds since 1970."""
        return milliseconds(self.start)

    @property
    def end_ms(self) -> int:
        """Milliseconds since 1970."""
        return milliseconds(self.end)

    def as_json(self) -> dict[str, str]:
        """In the words of the options of `etl run`."""
        return {
            "from_time": self.start.isoformat(),
            "until_time": self.end.isoformat(),
            "run_key": self.run_key,
        }


def interval_between(start: object, end: object) -> TimeInterval:
    """The interval from one time to another, each ISO 8601 text with a UTC offset, or a datetime
    that has one.

    Raises SettingsError for a time that is none, for no offset, and for an interval that is empty
    or runs backwards.
    """
    found = TimeInterval(moment(start, "from_time"), moment(end, "until_time"))
    if found.start >= found.end:
        how = "is empty" if found.start == found.end else "runs backwards"
        raise SettingsError(
            f"the interval {how}: it ends at {found.end.isoformat()}",
            from_time=found.start.isoformat(),
            check="the two times; an interval begins before it ends, and holds its start and not its end",
        )
    return found


def moment(told: object, name: str) -> datetime:
    """The time that was told, in UTC; `name` is what it was told as. Raises SettingsError."""
    form = "its form, which is 2026-01-31T05:00:00+00:00"
    try:
        # also of a datetime: Airflow's are pendulum's, which lose their zone when a time in UTC is
        # reckoned with
        found = datetime.fromisoformat(
            told.isoformat() if isinstance(told, datetime) else str(told).strip()
        )
        in_utc = found.astimezone(UTC) if found.tzinfo is not None else None
    except (
        ValueError,
        OverflowError,
    ) as error:  # OverflowError: the first or last day of the calendar, in UTC
        raise SettingsError(f"{name} is no time: {told}", check=form) from error
    if in_utc is None:
        raise SettingsError(
            f"{name} has no UTC offset: {told}",
            check=f"{form}; without its end nobody knows the zone",
        )
    if in_utc < _1970:
        raise SettingsError(
            f"{name} lies before 1970, where no record's timestamp lies: {told}", check=form
        )
    return in_utc


def divided(whole: TimeInterval, every: timedelta) -> Iterator[TimeInterval]:
    """The whole in intervals of that length, from its start on; the last one ends where the whole
    does.

    Raises SettingsError for a length that is none, or so short that there are more than
    INTERVALS_MAX.
    """
    if every <= timedelta():
        raise SettingsError(
            "an interval lasts no time", check="--every: how long each one is, such as 1h"
        )
    if (whole.end - whole.start) / every > INTERVALS_MAX:
        raise SettingsError(
            f"these are more than {INTERVALS_MAX:,} intervals",
            check="--every, and from when until when is asked for",
        )
    start = whole.start
    while start < whole.end:
        yield TimeInterval(start, min(start + every, whole.end))
        start += every


def looked_back_at(
    end: datetime, *, behind: timedelta, back: timedelta, every: timedelta
) -> TimeInterval:
    """Whole intervals of the length `every`, as long as `back` in all, of which the last ended
    `behind` before `end` or earlier.

    Each begins at a multiple of its length since 1970. What is younger no run may have been for
    yet.
    """
    last = end - behind
    last -= (last - _1970) % every
    return TimeInterval(last - back, last)


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def length(text: str) -> timedelta:
    """`90s`, `15m`, `1h`, `7d`. Raises SettingsError."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if not found:
        raise SettingsError(
            f"--every is no length of time: {text}", check="its form: 90s, 15m, 1h or 7d"
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def milliseconds(when: datetime) -> int:
    """Since 1970; what lies between two milliseconds belongs to the later one, for no record of the
    earlier one is at it or after it.
    """
    micros = (when - _1970) // timedelta(microseconds=1)
    return -(-micros // 1000)


def _compact(when: datetime) -> str:
    fraction = f".{when.microsecond:06d}" if when.microsecond else ""
    return f"{when:%Y%m%dT%H%M%S}{fraction}Z"
