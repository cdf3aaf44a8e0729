"""Values of `--until` and `--run-key`, and values that are rejected before any request."""

from __future__ import annotations

import pytest

from etl.errors import EtlError, NotReady, SettingsError
from etl.model.plans import Bound, Request
from etl.settings.sections import Settings
from etl.settings.until_and_run_key import parse_bound, request_of
from tests.builders import plain_settings

NOW = 1_769_817_600_000
"""2026-01-31T00:00:00Z."""
KAFKA, JAFKA = (
    plain_settings(),
    plain_settings(source={"assume_cluster_id": "c", "broker_type": "jafka"}),
)


def request_with(
    until: str | None = None, key: str | None = None, settings: Settings = KAFKA
) -> Request | None:
    return request_of(settings, run_key=key, until=until, now_ms=NOW)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("2026-01-31T00:00:00Z", Bound("2026-01-31T00:00:00Z", NOW)),
        ("2026-01-31T05:30:00+05:30", Bound("2026-01-31T00:00:00Z", NOW)),
        ("2026-01-31T00:00Z", Bound("2026-01-31T00:00:00Z", NOW)),
        (" 2026-01-31T00:00:00.001Z ", Bound("2026-01-31T00:00:00.001Z", NOW + 1)),
        ("-1h", Bound("-1h", NOW - 3_600_000)),
        ("-90s", Bound("-90s", NOW - 90_000)),
        ("-15m", Bound("-15m", NOW - 900_000)),
        ("-7d", Bound("-7d", NOW - 7 * 86_400_000)),
    ],
)
def test_a_time_is_formatted_in_utc_and_a_relative_form_as_given(text: str, bound: Bound) -> None:
    assert parse_bound(text, NOW, key="--until") == bound


@pytest.mark.parametrize(
    "text",
    "now 1h -1w 2026-01-31T00:00:00 2026-01-31 -1.5h +5 99999999999999999 1769817600000 -10000 "
    "-999999999d 1e5 ٣ 1700000000.5 9999-12-31T23:59:59-23:59".split()
    + [""],
)
def test_an_ambiguous_time_is_rejected_with_the_permitted_forms(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_bound(text, NOW, key="--until")
    assert refused.value.where["key"] == "--until"
    assert "2026-01-31T13:00Z" in refused.value.action
    assert ("has no UTC offset" in refused.value.message) == text.startswith("2026-")


def test_a_key_waits_for_the_end_of_its_interval_and_without_a_key_present_records_are_read() -> (
    None
):
    with pytest.raises(NotReady, match="in the future by 3,600 s") as refused:
        request_with("2026-01-31T01:00:00Z", key="k")
    assert refused.value.retriable
    assert request_with("2026-01-31T00:00:00Z", key="k") and request_with("2026-01-31T01:00:00Z")


@pytest.mark.parametrize("key", ["", " ", "a\nb", "a" * 201])
def test_a_run_key_is_a_line_of_text(key: str) -> None:
    with pytest.raises(SettingsError, match="printable"):
        request_with(key=key)


def test_without_options_there_is_no_request() -> None:
    assert request_with() is None
    assert request_with(key=" k ") == Request("k")


def test_partitions_without_times_have_no_bound_and_the_error_names_the_alternative() -> None:
    with pytest.raises(EtlError) as refused:
        request_with("-1h", settings=JAFKA)
    assert refused.value.exit_code == 2 and "--run-key alone" in refused.value.action
    assert request_with(key="k", settings=JAFKA) == Request("k")
