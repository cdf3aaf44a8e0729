"""Commands that set offsets among other members of a group, in every interleaving of the small
model.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.commanding import Rules, State, explore


def test_a_command_that_is_a_member_loses_nothing_and_gives_nothing_to_two() -> None:
    states, broken = explore()
    assert broken is None, broken
    assert states > 1_000


@pytest.mark.parametrize(
    ("without", "law"),
    [
        ({"joins": False}, "reported as lost, and a member has them"),
        ({"one_step": False}, "reported as lost, and a member has them"),
        ({"starts_at_group": False}, "reported as lost, and a member has them"),
        ({"leaves_theirs": False}, "others read something twice"),
    ],
    ids=str,
)
def test_each_rule_keeps_a_law(without: dict[str, Any], law: str) -> None:
    assert law in (explore(State(rules=Rules()._replace(**without)))[1] or "")
