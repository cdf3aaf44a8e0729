"""Requests of scheduled runs: their intervals of time, arguments, and reactions to exit codes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from etl.commands.lag import TopicsReady
from etl.decide.run_requests import (
    TimeInterval,
    Verdict,
    backfill_arguments,
    checked_period,
    duration,
    incomplete_partitions,
    interval_between,
    interval_of_run,
    milliseconds,
    moment,
    point_in_time,
    range_arguments,
    run_arguments,
    split_into_intervals,
    verdict_of,
)
from etl.errors import EtlError, SettingsError, family
from etl.model.partitions import TopicPartition

KEY = "20261110T050000Z-20261110T060000Z"
FIVE, SIX = "2026-11-10T05:00:00+00:00", "2026-11-10T06:00:00+00:00"


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (FIVE, SIX),
        ("2026-11-10T05:00:00Z", "2026-11-10T07:00:00+01:00"),
        (" 2026-11-10T05:00:00.000Z", "2026-11-10 06:00:00Z"),
        (
            datetime(2026, 11, 10, 5, tzinfo=UTC),
            datetime(2026, 11, 10, 1, tzinfo=timezone(timedelta(hours=-5))),
        ),
    ],
)
def test_an_interval_has_one_run_key_however_its_times_are_written(start: Any, end: Any) -> None:
    assert interval_between(start, end).run_key == KEY


def test_two_intervals_that_differ_by_a_microsecond_have_two_run_keys() -> None:
    other = interval_between(FIVE, "2026-11-10T06:00:00.000001Z")
    assert other.run_key == "20261110T050000Z-20261110T060000.000001Z" != KEY


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
    zone = timezone(timedelta(hours=1))
    found = moment(OfAnotherLibrary(2026, 11, 10, 6, 0, 0, 1, tzinfo=zone), "until_time")
    assert type(found) is datetime
    assert (found - timedelta(hours=1)).isoformat() == "2026-11-10T04:00:00.000001+00:00"


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


def test_a_whole_that_ends_with_the_calendar_is_one_interval() -> None:
    whole = interval_between("9999-12-31T00:00Z", "9999-12-31T23:59Z")
    assert list(split_into_intervals(whole, timedelta(days=999_999_999))) == [whole]


def test_a_time_before_the_calendar_is_an_invalid_argument() -> None:
    with pytest.raises(SettingsError, match="before the year 1") as caught:
        point_in_time("-9999999d", "--until", 1_750_000_000_000)
    assert caught.value.exit_code == 2


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
    hour, week = timedelta(hours=1), timedelta(days=7)
    found = checked_period(moment(end, "end"), behind=3 * hour, back=week, every=hour)
    assert (found.end, found.end - found.start) == (moment(last, "last"), week)
    assert all(one.end - one.start == hour for one in split_into_intervals(found, hour))


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


FIVE_UTC, SIX_UTC = datetime(2026, 11, 10, 5, tzinfo=UTC), datetime(2026, 11, 10, 6, tzinfo=UTC)
KINDS = sorted(set(family(EtlError)), key=lambda kind: kind.__name__)


def test_a_run_with_a_data_interval_is_for_that_one() -> None:
    assert interval_of_run(None, None, (FIVE_UTC, SIX_UTC)).run_key == KEY
    assert interval_of_run("", "", (FIVE_UTC, SIX_UTC)).run_key == KEY, (
        "the trigger form of Airflow gives empty texts"
    )


def test_params_take_precedence_over_any_data_interval_of_airflow() -> None:
    later = datetime(2026, 11, 20, 10, tzinfo=UTC), datetime(2026, 11, 20, 11, tzinfo=UTC)
    for made_up in ((None, None), (SIX_UTC, SIX_UTC), later):
        assert interval_of_run(FIVE, SIX, made_up).run_key == KEY


@pytest.mark.parametrize(
    "interval",
    [(None, None), (FIVE_UTC, None), (None, SIX_UTC)],
    ids=["none", "no end", "no start"],
)
def test_a_run_without_an_interval_is_refused_with_the_ways_to_give_it_one(
    interval: tuple[object, object],
) -> None:
    with pytest.raises(SettingsError, match="The run has no interval:") as found:
        interval_of_run(None, None, interval)
    ways = (
        "from and until",
        "data_interval_start and data_interval_end",
        "airflow backfill create",
    )
    assert all(way in found.value.action for way in ways)


def test_the_empty_data_interval_of_a_cron_string_is_rejected_with_the_right_timetable() -> None:
    with pytest.raises(SettingsError, match="The run's data interval is empty:") as found:
        interval_of_run(None, None, (FIVE_UTC, FIVE_UTC))
    assert "CronDataIntervalTimetable" in found.value.action


def test_a_data_interval_that_does_not_match_a_named_logical_date_is_rejected() -> None:
    named, interval = datetime(2026, 11, 2, 5, tzinfo=UTC), (FIVE_UTC, SIX_UTC)
    message = "not that of its logical date 2026-11-02T05:00:00"
    with pytest.raises(SettingsError, match=message) as found:
        interval_of_run(None, None, interval, named)
    assert "from and until" in found.value.action
    # its start, or the last whole interval before it
    for fitting in (FIVE_UTC, SIX_UTC, datetime(2026, 11, 10, 6, 30, tzinfo=UTC)):
        assert interval_of_run(None, None, interval, fitting).run_key == KEY
    assert interval_of_run(FIVE, SIX, interval, named).run_key == KEY


def test_one_param_without_the_other_is_rejected_also_with_a_data_interval() -> None:
    for from_time, until_time in ((FIVE_UTC.isoformat(), None), ("", FIVE_UTC.isoformat())):
        with pytest.raises(SettingsError, match="only one is given: 2026-11-10T05"):
            interval_of_run(from_time, until_time, (FIVE_UTC, SIX_UTC))


def test_params_that_run_backwards_are_refused() -> None:
    with pytest.raises(SettingsError, match="runs backwards"):
        interval_of_run(SIX_UTC.isoformat(), FIVE_UTC.isoformat())


def test_a_run_loads_up_to_the_end_of_its_interval_under_the_intervals_key() -> None:
    interval, conf = interval_between(FIVE_UTC, SIX_UTC), "/conf/clicks.yaml"
    found = run_arguments(conf, interval, finds_times=True)
    assert found == [conf, "--run-key", KEY, "--until", SIX]
    assert "--until" not in run_arguments(conf, interval, finds_times=False)


def test_a_range_is_given_by_the_params_that_are_set() -> None:
    params = {"partitions": ["clicks"], "from": "10", "until": 20, "else": "x"}
    assert range_arguments(params) == ["--partition", "clicks", "--from", "10", "--until", "20"]
    params = {"partitions": ["clicks:0", "clicks:1"], "from": " ", "until": ""}
    assert range_arguments(params) == ["--partition", "clicks:0", "--partition", "clicks:1"]
    assert range_arguments({"partitions": None}) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_may_help_by_the_class_of_an_error_is_tried_again_and_nothing_else_is(
    kind: type[EtlError],
) -> None:
    document = kind("something").as_json()
    expected = Verdict.RETRY if kind.retriable else Verdict.FAIL
    assert verdict_of(kind.exit_code, document) is expected
    assert verdict_of(1, document) is expected, "cluster managers have exit codes of their own"
    assert verdict_of(None, document) is expected


@pytest.mark.parametrize(
    ("verdict", "codes", "document"),
    [
        (Verdict.DONE, [0], None),
        (Verdict.DONE, [0], {"outcomes": [], "exit_code": 0, "error": None}),
        (Verdict.DONE, [0], {"rows": 5}),
        (Verdict.FAIL, [3], {"outcomes": [], "exit_code": 3, "error": None}),
        (Verdict.FAIL, [2, 3, 5, 126, 127], None),
        (Verdict.RETRY, [4, 6, 7, 130], None),
        (Verdict.RETRY, [-9, -15, 1, 134, 137, 143, 255, None], None),
        (Verdict.RETRY, [-9, -15, 1, 134, 137, 143, 255, None], {"exit_code": 0, "error": None}),
    ],
    ids=[
        "done",
        "a run that is done",
        "another command that is done",
        "what policy let go under --strict",
        "misuse, or a command that is missing",
        "codes that are retriable",
        "killed, or Spark did not come up",
        "killed behind its end",
    ],
)
def test_without_the_class_of_an_error_the_exit_code_decides(
    verdict: Verdict, codes: list[int | None], document: dict[str, object] | None
) -> None:
    assert {verdict_of(code, document) for code in codes} == {verdict}


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({}, []),
        ({"only_unloaded": False, "topic": None}, []),
        ({"only_unloaded": True}, ["--only-unloaded"]),
    ],
)
def test_a_backfill_keeps_its_name_in_each_retry_and_loads_only_missing_offsets_on_request(
    params: dict[str, object], options: list[str]
) -> None:
    given = {"name": "old", "from": "2026-01-01T00:00:00Z", "until": 500, **params}
    words = ["conf.yaml", "old", "--from", "2026-01-01T00:00:00Z", "--until", "500"]
    assert backfill_arguments("conf.yaml", given) == [*words, *options, "--yes"]
    dry = backfill_arguments("conf.yaml", {**given, "dry_run": True})
    assert dry == [*words, *options, "--dry-run"]


PARTITION, B, C = (TopicPartition("clicks", number) for number in range(3))
T = 1_700_000_000_000


@pytest.mark.parametrize(
    ("first_after", "now_ms", "grace_s", "incomplete"),
    [
        ({C: None, PARTITION: 5, B: None}, T + 1000, 600, (B, C)),
        ({PARTITION: 5, B: 0}, T + 1000, 600, ()),
        # without new records: until the time plus the grace
        ({PARTITION: None}, T + 599_999, 600, (PARTITION,)),
        ({PARTITION: None}, T + 600_000, 600, ()),
        # before the time: a producer's clock may be ahead
        ({PARTITION: 5}, T - 1, 0, (PARTITION,)),
        ({PARTITION: 5}, T, 600, ()),
        ({}, T - 1, 600, ()),
    ],
)
def test_a_partition_with_a_record_at_the_time_or_later_is_complete(
    first_after: dict[TopicPartition, int | None],
    now_ms: int,
    grace_s: int,
    incomplete: tuple[TopicPartition, ...],
) -> None:
    found = incomplete_partitions(first_after, until_ms=T, now_ms=now_ms, grace_s=grace_s)
    assert found == incomplete


def test_no_clock_completes_a_partition_without_a_leader_under_fail() -> None:
    late_ms, there = T + 10**9, {PARTITION: 5, B: 5}
    found = incomplete_partitions(there, until_ms=T, now_ms=late_ms, grace_s=600, unled=(B,))
    assert found == (B,)
    refusal = TopicsReady(T, late_ms, 600, 2, (B,), (B,)).refusal
    assert refusal and refusal.message.endswith("clicks 1 has no leader")
    assert "source.on_no_leader: skip" in refusal.action
