"""Which plans are small enough to be read without Spark, by the sizes that brokers report."""

from __future__ import annotations

import pytest

from etl.decide.plan import is_small
from etl.errors import SettingsError
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange
from etl.settings.load import parse_settings
from tests.builders import plain_plan, plain_settings

A, B, PHYSICAL = (
    BrokerPartition("clicks", 0),
    BrokerPartition("clicks", 1),
    BrokerPartition("clicks", 0, 3),
)


def small(limit: int, *ranges: OffsetRange, **sizes: float) -> bool:
    settings = plain_settings(
        table={"path": "t", "writer": "arrow"}, limits={"local_below_bytes": limit}
    )
    return is_small(
        plain_plan(ranges=ranges, loaded_until={}), {A: sizes.get("a", 100.0), B: 10.0}, settings
    )


def test_a_plan_is_small_below_the_limit_by_all_of_its_ranges_together() -> None:
    both = OffsetRange(A, 0, 10), OffsetRange(B, 5, 15)
    assert small(1101, *both) and not small(1100, *both)
    assert small(101, OffsetRange(PHYSICAL, 0, 100)) and not small(
        100, OffsetRange(PHYSICAL, 0, 100)
    ), "their offsets are bytes"


def test_by_default_no_plan_is_small_not_even_one_of_nothing() -> None:
    assert not small(0) and not small(0, OffsetRange(A, 0, 1))


def test_records_of_unknown_size_count_as_large() -> None:
    unknown = BrokerPartition("others", 0)
    assert not small(1000, OffsetRange(unknown, 0, 10))


def test_a_limit_that_has_no_effect_under_sparks_writer_is_refused() -> None:
    conf = {
        "pipeline": "clicks",
        "group": "g",
        "zookeeper": {"connect": "127.0.0.1:2181"},
        "source": {"topics": ["clicks"]},
        "table": {"path": "t"},
        "limits": {"local_below_bytes": 1},
    }
    with pytest.raises(
        SettingsError,
        match=r"effect under table\.writer: spark \(key limits\.local_below_bytes\)\. Set "
        r"table\.writer: auto or arrow,",
    ):
        parse_settings(conf)
    assert (
        parse_settings({**conf, "table": {"path": "t", "writer": "auto"}}).limits.local_below_bytes
        == 1
    )
