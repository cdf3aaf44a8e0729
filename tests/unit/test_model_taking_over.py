"""The laws of one pipeline taking another's place, in every interleaving of a small model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model import taking_over
from tests.model.taking_over import OPERATOR, At, State, Who, explore


def test_every_interleaving_of_a_take_over_with_both_pipelines_keeps_every_law() -> None:
    states, law = explore()
    assert law is None, law
    assert states > 50_000


def test_an_operator_who_does_not_wait_for_the_old_driver_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(s: State, found: Who) -> Iterator[tuple[str, State]]:
        for what, after in _as_it_is(s._replace(lock=None if found.at is At.IDLE else OPERATOR), found):
            yield what, after._replace(lock=s.lock)

    _as_it_is: Any = taking_over._operator
    monkeypatch.setitem(taking_over.DOES, OPERATOR, rule)
    assert "no session was lost" in (explore()[1] or "")


def test_a_new_pipeline_that_looks_only_behind_its_own_newest_commit_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is: Any = taking_over.new_refuses
    monkeypatch.setattr(taking_over, "new_refuses", lambda s, plan, known: not (plan and plan.took) and as_it_is(s, plan, known))
    assert "the new pipeline goes on" in (explore()[1] or "")
