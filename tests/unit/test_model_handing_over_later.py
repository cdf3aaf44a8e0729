"""Offset commits after the append, in every interleaving of the small model; `STARTS` have more
budgets and take minutes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.handing_over_later import SMALL, STARTS, UNANSWERED, Rules, State, explore


@pytest.mark.parametrize(
    "start",
    [SMALL, SMALL._replace(is_in_zookeeper=True), UNANSWERED],
    ids=["Kafka", "ZooKeeper", "unanswered"],
)
def test_no_record_is_lost_or_loaded_twice_and_records_that_others_read_too_are_reported(
    start: State,
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > 500


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS, ids=["offsets in Kafka", "offsets in ZooKeeper"])
def test_the_same_holds_with_more_of_everything(start: State) -> None:
    assert explore(start)[1] is None


@pytest.mark.parametrize(
    ("start", "without", "law"),
    [
        (SMALL, {"is_fenced": False}, "the group's offset went back"),
        (SMALL, {"starts_at_larger": False, "repairs": False}, "the table holds"),
        (UNANSWERED, {"unsure_ends": False}, "the group's offset went back"),
        (SMALL, {"reports": False}, "read twice, and no run reported it"),
        (SMALL, {"records_last": False}, "read twice, and no run reported it"),
        (SMALL, {"repairs": False}, "quiet runs end with"),
    ],
    ids=str,
)
def test_each_rule_keeps_a_law(start: State, without: dict[str, Any], law: str) -> None:
    assert law in (explore(start._replace(rules=Rules()._replace(**without)))[1] or "")
