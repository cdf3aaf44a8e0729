"""Every interleaving of the small models keeps their laws, and each of their rules is needed: one
sequence of plans for runs, backfills, replays and operators, and the rebalances of a group in
ZooKeeper. `python -m tests.model.one_sequence --large` explores more of the first one.
"""

from __future__ import annotations

import pytest

from tests.model.one_sequence import RULES, SCENARIOS, explore
from tests.model.rebalancing import LARGE, STARTS, Rules, State
from tests.model.rebalancing import explore as explore_rebalances

BREAKS = {
    "store": ("a restored ledger", "a record is in the table twice"),
    "number": ("a replay", "a record is in the table twice"),
    "oblige": ("a restored ledger", "quiet commands do not end well"),
    "forget": ("a restored ledger", "a record is in the table twice"),
    "carry": ("another client", "a plan would overwrite the offset of another client"),
    "incarnation": ("a recreated topic", "a record is in the table twice"),
}
"""The scenario in which the absence of a rule breaks a law, and the law."""


SMALL = ("two runs and a backfill", "a replay")
"""Scenarios of fewer states; the others are marked long."""


def by_size(name: str, scenario: str) -> object:
    """Return the parameter, marked long where its scenario has many states."""
    marks = () if scenario in SMALL else pytest.mark.long
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("scenario", [by_size(name, name) for name in SCENARIOS])
def test_every_interleaving_keeps_the_laws(scenario: str) -> None:
    states, broken = explore(scenario)
    assert broken is None, broken
    assert states > 5_000


@pytest.mark.parametrize("rule", [by_size(rule, BREAKS[rule][0]) for rule in RULES])
def test_without_one_of_its_rules_the_sequence_breaks_a_law(rule: str) -> None:
    scenario, law = BREAKS[rule]
    _, broken = explore(scenario, without=rule)
    assert broken is not None
    assert broken.startswith(law)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_log_has_two_owners_and_everybody_settles(start: State) -> None:
    states, broken = explore_rebalances(start)
    assert broken is None, broken
    assert states >= 50


@pytest.mark.long
@pytest.mark.parametrize("start", LARGE.values(), ids=LARGE)
def test_the_same_holds_when_members_come_and_go_more_often(start: State) -> None:
    states, broken = explore_rebalances(start)
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
    broken = explore_rebalances(STARTS[start]._replace(rules=Rules()._replace(**{rule: False})))[1]
    assert broken is not None and "no member makes a step any more" in broken
