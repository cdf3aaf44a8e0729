"""One sequence of plans for runs, backfills, replays and operators: every interleaving of a small
model keeps the laws, and each rule is needed. `python -m tests.model.one_sequence --large` explores
more of them.
"""

from __future__ import annotations

import pytest

from tests.model.one_sequence import RULES, SCENARIOS, explore

BREAKS = {
    "store": ("a restored ledger", "a record is in the table twice"),
    "number": ("a replay", "a record is in the table twice"),
    "oblige": ("a restored ledger", "quiet commands do not end well"),
    "forget": ("a restored ledger", "a record is in the table twice"),
    "carry": ("another client", "a plan would overwrite the offset of another client"),
    "incarnation": ("a recreated topic", "a record is in the table twice"),
}
"""The scenario in which the absence of a rule breaks a law, and the law."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_interleaving_keeps_the_laws(scenario: str) -> None:
    states, broken = explore(scenario)
    assert broken is None, broken
    assert states > 5_000


@pytest.mark.parametrize("rule", RULES)
def test_without_one_of_its_rules_the_sequence_breaks_a_law(rule: str) -> None:
    scenario, law = BREAKS[rule]
    _, broken = explore(scenario, without=rule)
    assert broken is not None
    assert broken.startswith(law)
