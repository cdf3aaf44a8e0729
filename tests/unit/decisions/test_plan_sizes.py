"""Which plans are read without Spark, and which runs are short, by reported sizes."""

from __future__ import annotations

from typing import Any

import pytest

from etl.decide.plan import SHORT_RUN_BELOW_BYTES, is_short, is_small
from etl.errors import SettingsError
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
from tests.builders import plain_plan, plain_settings, plain_snapshot

A, B, PHYSICAL = (
    TopicPartition("clicks", 0),
    TopicPartition("clicks", 1),
    TopicPartition("clicks", 0, 3),
)
MANY = SHORT_RUN_BELOW_BYTES // 100
"""So many offsets of 100 bytes are just too many, or as many."""


def short(until: int, ends: dict[TopicPartition, int], **sections: Any) -> bool:
    snapshot = plain_snapshot(
        {partition: (0, end) for partition, end in ends.items()},
        bytes_per_offset={A: 100.0, B: 100.0},
    )
    plan = plain_plan(ranges=(OffsetRange(A, 0, until),), loaded_until={A: until})
    return is_short(plan, snapshot, plain_settings(**sections))


def test_a_run_with_little_to_read_is_short() -> None:
    assert short(10, {A: 10}) and short(MANY, {A: MANY}) and not short(MANY + 1, {A: MANY + 1})


def test_a_small_plan_is_not_short_with_a_large_one_after_it() -> None:
    assert not short(10, {A: 10 + MANY + 1})
    assert not short(10, {A: 10, B: MANY + 1}), (
        "a log that has no position yet counts from its start"
    )
    assert short(10, {A: 5}), "an end before the loaded-until offset subtracts nothing"


@pytest.mark.parametrize(
    "section",
    [
        {"transform": "module:function"},
        {"table": {"path": "t", "auto_compact_min_files": 20}},
    ],
)
def test_a_run_is_not_short_if_the_further_reads_of_its_session_are_unknown(
    section: dict[str, Any],
) -> None:
    assert not short(10, {A: 10}, **section)


def small(limit: int, *ranges: OffsetRange) -> bool:
    settings = plain_settings(table={"writer": "arrow"}, limits={"local_below_bytes": limit})
    return is_small(plain_plan(ranges=ranges, loaded_until={}), {A: 100.0, B: 10.0}, settings)


def test_a_plan_is_small_below_the_limit_by_all_of_its_ranges_together() -> None:
    both = OffsetRange(A, 0, 10), OffsetRange(B, 5, 15)
    assert small(1101, *both) and not small(1100, *both)
    assert small(101, OffsetRange(PHYSICAL, 0, 100)) and not small(
        100, OffsetRange(PHYSICAL, 0, 100)
    ), "their offsets are bytes"
    assert not small(1000, OffsetRange(TopicPartition("others", 0), 0, 10)), (
        "records of unknown size count as large"
    )


def test_by_default_no_plan_is_small_not_even_one_of_nothing() -> None:
    assert not small(0) and not small(0, OffsetRange(A, 0, 1))


def test_a_limit_that_has_no_effect_under_sparks_writer_is_refused() -> None:
    limits = {"local_below_bytes": 1}
    with pytest.raises(
        SettingsError,
        match=r"effect under table\.writer: spark \(key limits\.local_below_bytes\)\. Set "
        r"table\.writer: auto or arrow,",
    ):
        plain_settings(limits=limits)
    allowed = plain_settings(limits=limits, table={"writer": "auto"})
    assert allowed.limits.local_below_bytes == 1
