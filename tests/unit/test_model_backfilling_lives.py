"""Backfills over a log that is cut, in every interleaving of a small model;
`python -m tests.model.backfilling_lives` looks at more of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model import backfilling_lives
from tests.model.backfilling_lives import FROM_START, OLDER, Load, Plan, State, explore

REPORTED = State(losses=0, given_up=0, fills=1, runs=2)
UNREPORTED = REPORTED._replace(reports_epochs=False)
GIVEN_UP = State(reports_epochs=False, fills=1, runs=2, losses=0)


@pytest.mark.parametrize(
    ("start", "at_least"),
    [
        pytest.param(State(fills=1), 50_000, id="brokers report the truncation"),
        pytest.param(GIVEN_UP, 15_000, id="an operator alone knows of it"),
        pytest.param(FROM_START, 10_000, id="the position is set back"),
        pytest.param(OLDER, 400, id="accepted by an earlier version"),
    ],
)
def test_no_record_is_loaded_twice_from_a_truncated_log_with_backfills(
    start: State, at_least: int
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > at_least


def rows_of_now(s: State, start: int, until: int) -> bool:
    assert s.live.plan
    return any(start <= offset < until and life == s.live.plan.life for offset, _, life in s.rows)


def counts_stored_plans(load: Load) -> bool:
    claim = load.claim
    return (
        claim is not None
        and not claim.is_settled
        and load.plan is not None
        and load.plan.until < claim.until
    )


def of_this_life(plan: Plan) -> bool:
    return plan.moves and plan.life == 0


@pytest.mark.parametrize(
    ("start", "rule", "instead"),
    [
        pytest.param(
            FROM_START, "may_begin_in", lambda life: True, id="begun in a log that was cut"
        ),
        pytest.param(
            UNREPORTED,
            "left_of",
            lambda load: False,
            id="accepted while a backfill has something left",
        ),
        pytest.param(UNREPORTED, "left_of", counts_stored_plans, id="stored plans count as loaded"),
        pytest.param(
            UNREPORTED, "updates_reservation_lock", of_this_life, id="accepted without the fence"
        ),
        pytest.param(OLDER, "may_read_on", lambda life: True, id="read on in another life"),
        pytest.param(
            REPORTED,
            "is_found_at_end",
            lambda s, plan: False,
            id="tasks that do not check epochs at their end",
        ),
        pytest.param(
            FROM_START, "is_loaded", rows_of_now, id="set back by the rows of the life of now"
        ),
        pytest.param(
            REPORTED._replace(sets=1),
            "held_before",
            lambda claims, start, before: False,
            id="set back into a claim",
        ),
    ],
)
def test_each_rule_over_a_log_that_is_cut_is_missed_where_it_is_taken_away(
    start: State,
    rule: str,
    instead: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfilling_lives, rule, instead)
    assert "in the table twice" in (explore(start)[1] or "")
