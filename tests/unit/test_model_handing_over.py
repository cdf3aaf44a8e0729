"""Hand-overs to other members of a group, in every interleaving of the small model; `STARTS` have
more budgets and take minutes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.handing_over import READ_ON, SMALL, STARTS, UNANSWERED, Rules, State, explore


@pytest.mark.parametrize(
    "is_one_step", [False, True], ids=["offsets in Kafka", "offsets in ZooKeeper"]
)
def test_committed_plans_are_loaded_once_and_without_records_that_others_read(
    is_one_step: bool,
) -> None:
    states, broken = explore(SMALL._replace(is_one_step=is_one_step))
    assert broken is None, broken
    assert states > 10_000


def test_the_same_holds_where_the_answer_to_a_hand_over_is_lost() -> None:
    assert explore(UNANSWERED)[1] is None


def test_records_read_by_others_before_an_uncommitted_plan_are_recorded_and_not_read_again() -> (
    None
):
    states, broken = explore(READ_ON)
    assert broken is None, broken
    assert states > 5_000


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS, ids=["offsets in Kafka", "offsets in ZooKeeper"])
def test_the_same_holds_with_more_of_everything(start: State) -> None:
    assert explore(start)[1] is None


@pytest.mark.parametrize(
    ("without", "law"),
    [
        ({"is_fenced": False}, "quiet runs end with"),
        ({"read_after_claim": False}, "quiet runs end with"),
        ({"starts_at_group": False}, "quiet runs end with"),
        ({"refused_is_void": False}, "a plan was fetched that was not handed over"),
        ({"stores_under_lock": False}, "are passed, and no member has them"),
        ({"evicts": False}, "are passed, and no member has them"),
        ({"stops_in_doubt": False}, "quiet runs end with"),
        ({"stops_in_doubt": False, "taken_for_handed_over": True}, "quiet runs end with"),
        ({"always_anew": False}, "are passed, and no member has them"),
    ],
    ids=str,
)
def test_each_rule_keeps_a_law(without: dict[str, Any], law: str) -> None:
    assert law in (explore(SMALL._replace(rules=Rules()._replace(**without)))[1] or "")


@pytest.mark.parametrize(
    ("without", "law"),
    [
        ({"starts_behind_named": False}, "are in the table, and others read them"),
        ({"names_again": False}, "and the table's plans record []"),
    ],
    ids=str,
)
def test_each_rule_about_what_others_read_before_a_plan_keeps_a_law(
    without: dict[str, Any], law: str
) -> None:
    assert law in (explore(READ_ON._replace(rules=Rules()._replace(**without)))[1] or "")
