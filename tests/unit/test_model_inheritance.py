"""The laws of one pipeline taking another's place, in every interleaving of a small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.model import inheritance
from tests.model.inheritance import (
    OPERATOR,
    SCENARIOS,
    At,
    Commit,
    Operator,
    Plan,
    Scenario,
    State,
    explore,
)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(
            title, marks=[pytest.mark.long] if title in ("two heirs", "renamed twice") else []
        )
        for title in SCENARIOS
    ],
)
def test_every_interleaving_of_runs_rulings_and_crashes_keeps_every_law(title: str) -> None:
    states, law = explore(SCENARIOS[title])
    assert law is None, law
    assert states > 1_000


def broken(title: str) -> str:
    return explore(SCENARIOS[title])[1] or ""


def test_an_operator_who_does_not_wait_for_the_old_driver_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_it_is: Any = inheritance.rule

    def rule(scenario: Scenario, s: State, found: Operator) -> Iterator[tuple[str, State]]:
        holder = None if found.at is At.IDLE else OPERATOR
        held = s._replace(pipelines=tuple(one._replace(lock=holder) for one in s.pipelines))
        for what, after in as_it_is(scenario, held, found):
            locks = [one.lock for one in s.pipelines]
            yield (
                what,
                after._replace(
                    pipelines=tuple(
                        one._replace(lock=lock)
                        for one, lock in zip(after.pipelines, locks, strict=True)
                    )
                ),
            )

    monkeypatch.setattr(inheritance, "RULE", rule)
    assert "gn may not continue" in broken("renamed")


def without_heirs(plan: Plan) -> Plan:
    return plan._replace(
        predecessors=tuple(
            (name, number) for name, number in plan.predecessors if name == plan.took
        )
    )


def test_an_heir_without_the_inheritance_of_its_predecessor_may_not_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_it_is: Callable[..., Plan] = inheritance.take_over_plan
    monkeypatch.setattr(
        inheritance,
        "take_over_plan",
        lambda *given: without_heirs(as_it_is(*given)),
    )
    assert "gm may not continue" in broken("renamed twice")
    assert "m may not continue" in broken("merged")


def test_a_take_over_or_retirement_that_does_not_close_a_stored_number_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inheritance, "CLOSING", lambda *_: None)
    assert "rows are doubled" in broken("renamed")
    assert "rows are doubled" in broken("retired")


def after_its_own(s: State, name: str, *_: object) -> int:
    return max((i + 1 for i, commit in enumerate(s.table) if commit.by == name), default=0)


def test_a_pipeline_that_does_not_know_what_the_table_held_when_it_planned_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inheritance, "known_by", after_its_own)
    assert "continues" in broken("at once")
    assert "rows are doubled" in broken("two heirs")


def test_two_pipelines_that_take_one_place_without_seeing_each_other_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_it_is: Any = inheritance.loads

    def loads(scenario: Scenario, name: str, plan: Plan | None, commit: Commit) -> bool:
        return bool(
            as_it_is(scenario, name, plan, commit._replace(plan=commit.plan._replace(took=None)))
        )

    monkeypatch.setattr(inheritance, "loads", loads)
    assert "rows are doubled" in broken("two heirs")
