"""What backfills hear of an operator's word about the table: `tests.model.backfilling_copies` has
why.
"""

from __future__ import annotations

import pytest

from etl.ledger.plan_document import render_plan, with_id
from etl.model.plans import Plan
from etl.model.snapshot import Acknowledgement
from tests.builders import plain_plan
from tests.fakes.stories import outside_of

DROPPED, MADE_ANEW = with_id(plain_plan(3, table_id="first")), with_id(plain_plan(4))


def accepted(
    table_id: str | None, plan: Plan, *, was_recorded: bool = True, plan_id: str | None = ""
) -> Acknowledgement:
    of = plan.id if plan_id == "" else plan_id
    return Acknowledgement(
        table_id, None, plan.number, "dropped", 1, plan_id=of, was_recorded=was_recorded
    )


def heard(word: Acknowledgement | None, newest: Plan) -> Acknowledgement | None:
    outside = outside_of(1, 1, 1)
    outside.plans[newest.number], outside.acknowledged = render_plan(newest), word
    return outside.backfill("old").acknowledged


@pytest.mark.parametrize(
    ("word", "newest", "is_heard"),
    [
        pytest.param(accepted(None, DROPPED), DROPPED, True, id="nothing was planned since"),
        pytest.param(
            accepted(None, DROPPED, plan_id=None),
            DROPPED,
            True,
            id="a word from before it named its plan",
        ),
        pytest.param(
            accepted(None, DROPPED, was_recorded=False),
            DROPPED,
            True,
            id="the plan was made for the table that is gone",
        ),
        pytest.param(accepted(None, DROPPED), MADE_ANEW, False, id="a run has planned since"),
        pytest.param(
            accepted(None, with_id(plain_plan(4, table_id="first"))),
            MADE_ANEW,
            False,
            id="another plan took its place since",
        ),
        pytest.param(
            accepted(None, MADE_ANEW, was_recorded=False),
            MADE_ANEW,
            False,
            id="the plan makes a table",
        ),
        pytest.param(accepted("second", DROPPED), MADE_ANEW, True, id="a table that is there"),
    ],
)
def test_that_there_is_no_table_is_heard_while_none_can_have_been_made_since(
    word: Acknowledgement, newest: Plan, is_heard: bool
) -> None:
    found = heard(word, newest)
    assert (found is not None) is is_heard
    if found:
        assert found.table_id == word.table_id
        assert found.number != newest.number, (
            "the plan number of the live pipeline is withheld from its backfill"
        )


def test_without_a_decision_none_is_returned() -> None:
    assert heard(None, DROPPED) is None
