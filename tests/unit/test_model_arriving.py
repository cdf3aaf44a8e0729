"""The laws of a table that another pipeline creates after a plan was stored, in every interleaving
of a small model.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model import arriving
from tests.model.arriving import explore


def test_every_interleaving_of_two_drivers_with_a_new_or_exchanged_table_keeps_every_law() -> None:
    states, law = explore()
    assert law is None, law
    assert states > 50_000


def test_a_model_with_a_plan_for_any_table_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    always: Any = property(lambda table: not table.held)
    monkeypatch.setattr(arriving.Table, "is_of_others_alone", always)
    assert "twice" in (explore()[1] or "")


def test_a_plan_that_waits_for_an_operator_wherever_another_pipeline_made_the_table_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never: Any = property(lambda table: False)
    monkeypatch.setattr(arriving.Table, "is_of_others_alone", never)
    assert "a quiet run loads nothing" in (explore()[1] or "")
