"""The stretch of time that a run is for, and its run key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from etl.decide.run_requests import (
    TimeInterval,
    checked_period,
    duration,
    interval_between,
    milliseconds,
    moment,
    split_into_intervals,
)
from etl.errors import SettingsError

FIVE, SIX = "2026-11-10T05:00:00+00:00", "2026-11-10T06:00:00+00:00"


def test_an_interval_has_one_run_key_however_its_times_are_written() -> None:
    found = {
        interval_between(*times).run_key
        for times in (
            (FIVE, SIX),
            ("2026-11-10T05:00:00Z", "2026-11-10T07:00:00+01:00"),
            (" 2026-11-10T05:00:00.000Z", "2026-11-10 06:00:00Z"),
            (
                datetime(2026, 11, 10, 5, tzinfo=UTC),
                datetime(2026, 11, 10, 1, tzinfo=timezone(timedelta(hours=-5))),
            ),
        )
    }
    assert found == {"20261110T050000Z-20261110T060000Z"}


def test_two_intervals_that_differ_by_a_microsecond_have_two_run_keys() -> None:
    one, other = interval_between(FIVE, SIX), interval_between(FIVE, "2026-11-10T06:00:00.000001Z")
    assert other.run_key == "20261110T050000Z-20261110T060000.000001Z" != one.run_key


def test_an_empty_or_reversed_interval_is_reported_with_both_ends() -> None:
    with pytest.raises(SettingsError, match="is empty: it ends at 2026-11-10T05:00:00") as empty:
        interval_between(FIVE, FIVE)
    assert empty.value.where == {"from_time": FIVE}
    with pytest.raises(SettingsError, match="runs backwards: it ends at 2026-11-10T05:00:00"):
        interval_between(SIX, FIVE)


@pytest.mark.parametrize(
    ("reported", "text"),
    [
        ("yesterday", "until_time is not a time: yesterday"),
        ("", "until_time is not a time"),
        ("2026-11-10T06:00:00", "has no UTC offset"),
        (datetime(2026, 11, 10), "has no UTC offset"),
        ("1969-12-31T23:59:59.999+00:00", "is before 1970"),
        ("1970-01-01T00:59:59+01:00", "is before 1970"),
        (5, "is not a time: 5"),
        ("0001-01-01T00:00:00+14:00", "is not a time"),
        (None, "is not a time"),
    ],
    ids=repr,
)
def test_an_invalid_time_or_one_without_a_zone_is_reported_with_the_expected_form(
    reported: object, text: str
) -> None:
    with pytest.raises(SettingsError, match=text) as found:
        moment(reported, "until_time")
    assert "2026-01-31T05:00:00+00:00" in found.value.action


class OfAnotherLibrary(datetime):
    """As in pendulum, which Airflow uses: a time in UTC loses its zone after a subtraction."""

    def __sub__(self, other: Any) -> Any:
        found = super().__sub__(other)
        return found.replace(tzinfo=None) if isinstance(found, datetime) else found


def test_a_time_of_another_library_is_a_plain_one_from_there_on() -> None:
    found = moment(
        OfAnotherLibrary(2026, 11, 10, 6, 0, 0, 1, tzinfo=timezone(timedelta(hours=1))),
        "until_time",
    )
    assert (
        type(found) is datetime
        and (found - timedelta(hours=1)).isoformat() == "2026-11-10T04:00:00.000001+00:00"
    )


def test_a_whole_is_divided_without_a_hole_and_its_last_interval_may_be_short() -> None:
    whole = interval_between(FIVE, "2026-11-10T07:30:00Z")
    found = list(split_into_intervals(whole, timedelta(hours=1)))
    assert [one.run_key for one in found] == [
        "20261110T050000Z-20261110T060000Z",
        "20261110T060000Z-20261110T070000Z",
        "20261110T070000Z-20261110T073000Z",
    ]
    assert (found[0].start, found[-1].end) == (whole.start, whole.end)
    assert [one.end for one in found[:-1]] == [one.start for one in found[1:]]


@pytest.mark.parametrize(
    "every", [timedelta(), timedelta(hours=-1), timedelta(milliseconds=1)], ids=str
)
def test_a_length_that_makes_no_intervals_or_too_many_is_refused(every: timedelta) -> None:
    with pytest.raises(SettingsError, match="interval"):
        list(split_into_intervals(interval_between(FIVE, SIX), every))


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("2026-11-10T02:30:00Z", "2026-11-09T23:00:00Z"),
        ("2026-11-10T02:00:00Z", "2026-11-09T23:00:00Z"),
        ("2026-11-10T01:59:59Z", "2026-11-09T22:00:00Z"),
    ],
)
def test_intervals_looked_back_at_are_whole_and_none_is_one_that_no_run_may_have_been_for_yet(
    end: str, last: str
) -> None:
    found = checked_period(
        moment(end, "end"),
        behind=timedelta(hours=3),
        back=timedelta(days=7),
        every=timedelta(hours=1),
    )
    assert (found.end, found.end - found.start) == (moment(last, "last"), timedelta(days=7))
    assert all(
        one.end - one.start == timedelta(hours=1)
        for one in split_into_intervals(found, timedelta(hours=1))
    )


def test_a_length_is_a_number_and_a_unit() -> None:
    assert [duration(text, "--every") for text in ("90s", "15m", " 1h ", "7d")] == [
        timedelta(seconds=90),
        timedelta(minutes=15),
        timedelta(hours=1),
        timedelta(days=7),
    ]
    for wrong in ("", "1", "h", "-1h", "1.5h", "1 h", "1w", "9999999999d"):
        with pytest.raises(SettingsError, match="--every is not a duration"):
            duration(wrong, "--every")


def test_a_time_between_two_milliseconds_is_the_later_one_for_no_record_lies_between() -> None:
    second = datetime(2026, 11, 10, 5, tzinfo=UTC)
    found = TimeInterval(second, second + timedelta(microseconds=1))
    assert (found.start_ms, found.end_ms) == (milliseconds(second), milliseconds(second) + 1)
    assert milliseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1000
