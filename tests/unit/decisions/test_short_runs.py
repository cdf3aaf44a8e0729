"""Which runs are so short that Spark is started for a short life."""

from __future__ import annotations

from typing import Any

import pytest

from etl.decide.plan import SHORT_RUN_BELOW_BYTES, is_short
from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange
from tests.builders import plain_plan, plain_settings, plain_snapshot

LOG, OTHER = BrokerPartition("clicks", 0), BrokerPartition("clicks", 1)
MANY = SHORT_RUN_BELOW_BYTES // 100
"""So many offsets of 100 bytes are just too many, or as many."""


def short(until: int, ends: dict[BrokerPartition, int], **sections: Any) -> bool:
    snapshot = plain_snapshot(
        {log: (0, end) for log, end in ends.items()}, bytes_per_offset={LOG: 100.0, OTHER: 100.0}
    )
    plan = plain_plan(ranges=(OffsetRange(LOG, 0, until),), loaded_until={LOG: until})
    return is_short(plan, snapshot, plain_settings(**sections))


def test_a_run_with_little_to_read_is_short() -> None:
    assert (
        short(10, {LOG: 10}) and short(MANY, {LOG: MANY}) and not short(MANY + 1, {LOG: MANY + 1})
    )


def test_a_small_plan_is_not_short_with_a_large_one_after_it() -> None:
    assert not short(10, {LOG: 10 + MANY + 1})
    assert not short(10, {LOG: 10, OTHER: MANY + 1}), (
        "a log that has no position yet counts from its start"
    )
    assert short(10, {LOG: 5}), "an end before the loaded-until offset subtracts nothing"


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
    assert not short(10, {LOG: 10}, **section)
