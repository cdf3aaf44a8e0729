"""Rebalances of a group in ZooKeeper, in every interleaving of the small model; `LARGE` has more
budgets.
"""

from __future__ import annotations

import pytest

from tests.model.rebalancing import LARGE, STARTS, Rules, State, explore


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_log_has_two_owners_and_everybody_settles(start: State) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states >= 50


@pytest.mark.long
@pytest.mark.parametrize("start", LARGE.values(), ids=LARGE)
def test_the_same_holds_when_members_come_and_go_more_often(start: State) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > 50_000


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        ("nudges", "an old consumer"),
        ("claimer_nudges", "an old consumer and a run that claims"),
        ("watches_first", "two of ours"),
        ("leaves", "two of ours"),
        ("lets_go_first", "an old consumer"),
    ],
)
def test_without_one_of_the_rules_a_member_never_settles(rule: str, start: str) -> None:
    broken = explore(STARTS[start]._replace(rules=Rules()._replace(**{rule: False})))[1]
    assert broken is not None and "no member makes a step any more" in broken
