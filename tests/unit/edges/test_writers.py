"""Which writer appends a plan: decided by plan, table and settings alone."""

from __future__ import annotations

from typing import Any

import pytest

from etl.edges.delta.empty_commit import EmptyCommit
from etl.edges.delta.spark_writer import SparkWriter
from etl.edges.delta.writers import choose_writer
from etl.model.logs import BrokerPartition
from etl.model.plans import OffsetRange, Plan
from tests.builders import plain_plan, plain_settings

LOG = BrokerPartition("clicks", 0)


def plan_of(*ranges: OffsetRange, table_id: str | None = None) -> Plan:
    return plain_plan(ranges=ranges, positions={LOG: 10}, table_id=table_id)


def unasked() -> frozenset[str]:
    raise AssertionError("the table was opened")


@pytest.mark.parametrize("table_id", [None, "t"])
@pytest.mark.parametrize("more", [{}, {"transform": "module:function"}])
def test_ranges_are_appended_by_spark_and_the_table_is_not_opened_for_that(table_id: str | None, more: dict[str, Any]) -> None:
    assert isinstance(choose_writer(plan_of(OffsetRange(LOG, 0, 10), table_id=table_id), plain_settings(**more), unasked), SparkWriter)


@pytest.mark.parametrize(("more", "writer"), [({}, EmptyCommit), ({"transform": "module:function"}, SparkWriter)])
def test_a_new_table_is_made_without_spark_where_no_transform_says_its_columns(more: dict[str, Any], writer: type) -> None:
    assert isinstance(choose_writer(plan_of(), plain_settings(**more), unasked), writer)


@pytest.mark.parametrize("more", [{}, {"transform": "module:function"}])
@pytest.mark.parametrize(("features", "writer"), [((), EmptyCommit), (("rowTracking",), SparkWriter)])
def test_a_plan_without_ranges_takes_spark_only_for_a_table_that_delta_rs_cannot_commit_to(
    features: tuple[str, ...], writer: type, more: dict[str, Any],
) -> None:
    assert isinstance(choose_writer(plan_of(table_id="t"), plain_settings(**more), lambda: features), writer)
