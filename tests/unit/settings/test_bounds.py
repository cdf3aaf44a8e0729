"""What `--from-time`, `--until-time` and `--run-key` may say, and what is refused before anybody is
asked.
"""

from __future__ import annotations

import pytest

from etl.errors import EtlError, NotYetReadable, SettingsError
from etl.model.plans import Bound, Request
from etl.settings.load import parse_bound, request_of, starting_by
from etl.settings.sections import Settings
from etl.settings.source import Timestamp
from tests.builders import plain_settings

NOW = 1_769_817_600_000
"""2026-01-31T00:00:00Z."""
KAFKA, JAFKA = (
    plain_settings(),
    plain_settings(source={"assume_cluster_id": "c", "broker_type": "jafka"}),
)


def asked(
    until: str | None = None,
    start: str | None = None,
    key: str | None = None,
    settings: Settings = KAFKA,
) -> Request | None:
    return request_of(settings, run_key=key, from_time=start, until_time=until, now_ms=NOW)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("2026-01-31T00:00:00Z", Bound("2026-01-31T00:00:00Z", NOW)),
        ("2026-01-31T05:30:00+05:30", Bound("2026-01-31T00:00:00Z", NOW)),
        (" 1769817600000 ", Bound("2026-01-31T00:00:00Z", NOW)),
        ("1769817600001", Bound("2026-01-31T00:00:00.001Z", NOW + 1)),
        ("0", Bound("1970-01-01T00:00:00Z", 0)),
        ("-1h", Bound("-1h", NOW - 3_600_000)),
        ("-90s", Bound("-90s", NOW - 90_000)),
        ("-15m", Bound("-15m", NOW - 900_000)),
        ("-7d", Bound("-7d", NOW - 7 * 86_400_000)),
        ("-10000", Bound("-10000", back=10_000)),
        ("-0", Bound("-0", back=0)),
        ("since-last-success", Bound("since-last-success")),
    ],
)
def test_a_time_is_said_in_utc_and_a_relative_form_in_its_own_words(
    text: str, bound: Bound
) -> None:
    assert parse_bound(text, NOW, key="--from-time") == bound


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "1h",
        "-1w",
        "2026-01-31T00:00:00",
        "2026-01-31",
        "-1.5h",
        "+5",
        "99999999999999999",
        "-999999999d",
        "1e5",
        "٣",
        "1700000000.5",
        "9999-12-31T23:59:59-23:59",
    ],
)
def test_a_time_that_nobody_can_be_sure_of_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_bound(text, NOW, key="--until-time")
    assert refused.value.where["key"] == "--until-time"
    assert "2026-01-31T00:00:00+00:00" in refused.value.action


def test_what_is_wrong_with_a_time_is_said() -> None:
    with pytest.raises(SettingsError, match="has no UTC offset"):
        parse_bound("2026-01-31T00:00:00", NOW, key="--until-time")


@pytest.mark.parametrize(
    ("start", "until", "says"),
    [
        ("2026-01-30T10:00:00Z", "2026-01-30T10:00:00Z", "is empty"),
        ("2026-01-30T11:00:00Z", "2026-01-30T10:00:00Z", "runs backwards"),
        ("-1h", "-2h", "runs backwards"),
        ("-1h", "-60m", "is empty"),
        ("-5", "-5", "is empty"),
        ("-5", "-10", "runs backwards"),
    ],
)
def test_an_interval_that_is_empty_or_runs_backwards_is_refused(
    start: str, until: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        asked(until, start)


def test_a_key_for_an_interval_that_is_not_over_waits_for_its_end_and_without_a_key_what_is_there_is_read() -> (
    None
):
    with pytest.raises(NotYetReadable, match="in the future by 3,600 s") as refused:
        asked("2026-01-31T01:00:00Z", key="k")
    assert refused.value.retriable
    assert asked("2026-01-31T00:00:00Z", key="k") and asked("2026-01-31T01:00:00Z")


@pytest.mark.parametrize("key", ["", " ", "a\nb", "a" * 201])
def test_a_run_key_is_a_line_of_text(key: str) -> None:
    with pytest.raises(SettingsError, match="printable"):
        asked(key=key)


def test_what_is_not_asked_for_is_no_request() -> None:
    assert asked() is None
    assert asked(key=" k ") == Request("k")
    with pytest.raises(SettingsError, match="no end"):
        asked("since-last-success")


@pytest.mark.parametrize(
    ("until", "start"),
    [("-1h", None), ("-5", None), (None, "2026-01-31T00:00:00Z"), (None, "since-last-success")],
)
def test_of_logs_without_times_no_bound_can_be_asked_for_and_what_can_is_told(
    until: str | None, start: str | None
) -> None:
    with pytest.raises(EtlError) as refused:
        asked(until, start, settings=JAFKA)
    assert refused.value.exit_code == 2 and "--run-key alone" in refused.value.action
    assert asked(key="k", settings=JAFKA) == Request("k")


def test_a_pipeline_that_has_no_plan_yet_begins_at_the_bound_and_its_rows_have_the_same_shape() -> (
    None
):
    begun = starting_by(KAFKA, asked(start="2026-01-31T00:00:00Z"))
    assert (
        isinstance(begun.source.starting_offsets, Timestamp)
        and begun.source.starting_offsets.ms == NOW
    )
    assert begun.model_copy(update={"source": KAFKA.source}) == KAFKA
    for start in (None, "-5", "since-last-success"):
        assert starting_by(KAFKA, asked(start=start, key="k")) is KAFKA
