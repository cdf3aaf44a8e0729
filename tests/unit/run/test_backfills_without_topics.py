"""A backfill of deleted topics or unreachable brokers: actions that need no record still work."""

from __future__ import annotations

from typing import Any

import pytest

from etl.errors import BrokerUnreachable
from etl.model.snapshot import ReservationState
from etl.report.run_progress import Outcome
from tests.fakes.backfill_stories import backfill_request, filled, given_up, live
from tests.fakes.outside import Outside
from tests.fakes.stories import crash_at, new_report, outcomes
from tests.fakes.world import Crash, FakeWorld, When


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From when it is called on no broker answers."""

    def unreachable(*_: Any) -> Any:
        raise BrokerUnreachable("no broker answers")

    return lambda: monkeypatch.setattr(FakeWorld, "observe", unreachable)


def whole() -> Outside:
    outside = live(3, 3, 3)
    filled(outside, backfill_request(0, 3))
    return outside


@pytest.mark.parametrize("stop", ["begin", "store plan", "append", "record"])
def test_it_is_given_up_at_any_moment(stop: str, away: Any) -> None:
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at(stop, When.AFTER))
    away()
    with pytest.raises(BrokerUnreachable):
        filled(outside, backfill_request(0, 3))
    assert given_up(outside).state is ReservationState.GIVEN_UP


@pytest.mark.parametrize("what", [backfill_request(0, 3), None])
def test_a_complete_backfill_is_reported_as_applied_already(what: Any, away: Any) -> None:
    outside, report = whole(), new_report()
    away()
    filled(outside, what, report=report)
    assert outcomes(report) == [Outcome.ALREADY_LOADED]
