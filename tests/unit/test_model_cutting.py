"""Truncated logs in every interleaving of the small model; `State()` has more and takes minutes."""

from __future__ import annotations

import pytest

from tests.model import cutting
from tests.model.cutting import SMALL, Log, Plan, explore


def test_every_law_holds_in_every_interleaving_of_a_log_that_is_cut() -> None:
    states, broken = explore(SMALL)
    assert broken is None, broken
    assert states > 1_000


def test_the_model_sees_a_rule_that_looks_at_the_logs_end_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_shorter(plan: Plan | None, log: Log) -> bool:
        return plan is not None and len(log) < plan.until

    monkeypatch.setattr(cutting, "is_cut", is_shorter)
    assert "missing" in str(explore(SMALL)[1])
