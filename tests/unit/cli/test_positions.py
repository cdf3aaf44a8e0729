"""Messages of `etl offsets set --to` about an offset."""

from __future__ import annotations

import time

import pytest

from etl.cli.operator_commands import parse_position
from etl.errors import SettingsError
from etl.settings.choices import StartAt
from etl.settings.source import BeforeEnd, Timestamp


def test_a_position_counts_back_from_now_or_from_the_end_or_is_absolute() -> None:
    assert parse_position("-10000", "--to") == BeforeEnd(10000)
    assert parse_position("1200", "--to") == 1200
    assert parse_position("latest", "--to") is StartAt.LATEST
    before = time.time() * 1000 - 3_600_000
    found = parse_position("-1h", "--to")
    assert isinstance(found, Timestamp) and before - 1 <= found.ms <= time.time() * 1000 - 3_600_000


@pytest.mark.parametrize(
    "text", ["-1y", "-", "- 5", "-5x", "since-last-success", "2026-01-31T00:00:00"]
)
def test_an_invalid_position_is_rejected_by_the_options_name(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_position(text, "--to")
    assert refused.value.exit_code == 2
