"""Backfills and a live pipeline in every interleaving of a small model; `python -m
tests.model.backfilling` explores more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model import backfilling
from tests.model.backfilling import At, Driver, Load, State, explore

RACING = State(runs=3, crashes=0, losses=0, given_up=0)
GIVEN_UP = State(runs=3, crashes=0, losses=1, given_up=1, live_starts=(0,))
LARGER = State(runs=4, crashes=0, losses=1, given_up=1, live_starts=(2,))


@pytest.mark.parametrize(("start", "at_least"), [(RACING, 300), (GIVEN_UP, 5_000)])
def test_an_offset_is_loaded_at_most_once_over_a_live_pipeline_and_its_backfills(
    start: State, at_least: int
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > at_least


def test_a_claim_without_a_fence_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "is_moved", lambda s, driver: False)
    assert "claims overlap" in (explore(RACING)[1] or "")


def test_a_backfill_that_is_given_up_with_no_plan_in_the_way_of_a_forgotten_driver_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def close(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
        assert load.claim is not None
        closed = backfilling._load(
            s, driver.of, load._replace(claim=load.claim._replace(is_open=False))
        )
        yield "it is closed", backfilling._put(closed, i, driver._replace(at=At.RELEASE))

    monkeypatch.setitem(backfilling.DOES, At.SHUT, close)
    assert explore(LARGER)[1]


def test_a_backfill_that_gives_its_claim_back_before_its_last_plan_is_settled_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def close(s: State, i: int, driver: Driver, load: Load) -> Iterator[tuple[str, State]]:
        for what, after in _as_it_is(s, i, driver, load):
            yield (
                what,
                backfilling._put(after, i, after.drivers[i]._replace(at=At.RELEASE))
                if after.drivers[i].at is At.APPEND
                else after,
            )

    _as_it_is = backfilling._shut
    monkeypatch.setitem(backfilling.DOES, At.SHUT, close)
    assert "twice" in (explore(GIVEN_UP)[1] or "")


def test_a_plan_that_is_stored_whatever_became_of_its_claim_meanwhile_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfilling, "is_changed", lambda load, driver: False)
    assert "twice" in (explore(GIVEN_UP)[1] or "")
