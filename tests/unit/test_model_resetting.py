"""Positions that an operator sets, in every interleaving of the small model; `State()` has more
budgets and takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model import resetting
from tests.model.resetting import COPIED, SMALL, Actor, Plan, State, explore


@pytest.mark.parametrize(
    "start",
    [pytest.param(SMALL, id="two-drivers"), pytest.param(COPIED, id="old-copies-of-the-ledger")],
)
def test_a_position_that_is_set_doubles_no_row_and_passes_none_over_without_a_word(
    start: State,
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > 1_000


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(
            State(runs=2, sets=2, crashes=0, losses=1, restores=0, longest=2), id="two-positions"
        ),
        pytest.param(
            State(runs=2, sets=1, crashes=1, losses=1, restores=1, longest=2), id="crashes"
        ),
    ],
)
def test_the_same_holds_with_crashes_and_a_second_position(start: State) -> None:
    assert explore(start)[1] is None


def test_a_position_that_goes_back_over_loaded_offsets_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resetting, "may_go_to", lambda target, position, applied: True)
    assert "rows are there twice" in (explore(SMALL)[1] or "")


def test_a_model_with_a_command_that_sets_offsets_below_a_newer_table_breaks_a_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looks(s: State, i: int, actor: Actor) -> Iterator[tuple[str, State]]:
        what, newest = resetting.found_by(s)
        if actor.sets and what == "adopt" and s.ledger.plans:
            last = s.ledger.plans[-1]
            plan = Plan(s.bit + 1, last.until, s.end, s.ids, is_reset=True)
            yield (
                "sets by the ledger alone",
                resetting._put(s, i, actor._replace(at="store", plan=plan))._replace(ids=s.ids + 1),
            )
        else:
            yield from _as_it_is(s, i, actor)

    _as_it_is: Any = resetting._looks
    monkeypatch.setitem(resetting._DOES, "look", looks)
    assert "does not begin where the last one ended" in (explore(COPIED)[1] or "")


def test_a_reset_in_the_place_of_another_that_forgets_what_that_one_let_go_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resets(s: State, number: int, position: int, old: Plan | None = None) -> Iterator[Plan]:
        for plan in _as_it_is(s, number, position, old):
            yield plan._replace(start=position)

    _as_it_is: Any = resetting._resets
    monkeypatch.setattr(resetting, "_resets", resets)
    assert explore(State(runs=2, sets=2, crashes=0, losses=0, restores=0, longest=2))[1] is not None
