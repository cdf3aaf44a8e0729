"""A backfill that continued after an older copy of the table, with rows that cannot be counted:
giving it up releases the offsets that it has not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from etl.errors import NeedsDecision
from etl.model.plans import Plan, RangeResult
from etl.model.snapshot import ReservationState
from etl.run.backfill import abandon
from etl.settings.load import settings_of_backfill
from tests.fakes import fake_ledger
from tests.fakes.backfill_stories import (
    CAPPED,
    accept_table,
    backfill_request,
    filled,
    given_up,
    live,
    nothing,
)
from tests.fakes.outside import Outside
from tests.fakes.stories import crash_at, new_report
from tests.fakes.world import Crash, FakeWorld, When


class Unreadable(FakeWorld):
    """The columns that identify a row's record were renamed."""

    def results_from_table(self, plan: Plan) -> Sequence[RangeResult] | None:  # type: ignore[override]
        """See World."""
        return None


class Transformed(FakeWorld):
    """A transform made the rows."""

    def results_from_table(self, plan: Plan) -> list[RangeResult]:
        """See World."""
        return [RangeResult(None, behind_transform=True) for _ in plan.ranges]


def with_an_older_copy() -> Outside:
    """Of nine offsets the first four were loaded before the copy, and the next four after it."""
    outside = live(3, 3, 3)
    for is_copied in (True, False):
        with pytest.raises(Crash):
            filled(outside, backfill_request(0, 3), crash_at("record", When.AFTER))
        if is_copied and outside.table:
            outside.table.pop()
            accept_table(outside)
    return outside


@pytest.mark.parametrize("world", [Unreadable, Transformed])
def test_what_it_has_loaded_stays_claimed_and_the_rest_is_free(world: type[FakeWorld]) -> None:
    outside, own = with_an_older_copy(), settings_of_backfill(CAPPED, "old")
    for _ in range(2):
        with pytest.raises(
            NeedsDecision, match="The rows of backfill old in the table cannot be counted"
        ):
            abandon(world(outside.backfill("old"), own, nothing), own, new_report(), "not needed")
        found = fake_ledger.read_claim(outside.backfill("old"))
        assert found and (found.claim.state, found.claim.offsets) == (ReservationState.GIVEN_UP, 8)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    assert given_up(outside).offsets == 4, "after the column offset makes them countable"
    filled(outside, backfill_request(0, 3, only_missing=True), name="lacking")
    assert set(outside.rows().values()) == {1}
    assert set(outside.rows()) == {
        (log, at) for log, found in outside.logs.items() for at in range(found.end)
    }
