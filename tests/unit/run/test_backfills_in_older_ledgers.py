"""An older copy of ZooKeeper, and a word of an operator that is older than the table: nothing that
a backfill gave back is loaded twice.
"""

from __future__ import annotations

import copy

import pytest

from etl.errors import NeedsDecision, SettingsError
from etl.model.snapshot import Acknowledgement, ReservationState
from etl.settings.load import settings_of_backfill
from tests.fakes.backfill_stories import CAPPED, backfill_request, filled, given_up, live
from tests.fakes.outside import Outside
from tests.fakes.stories import crash_at, grow, run
from tests.fakes.world import Crash, FakeWorld, When

IN_ZOOKEEPER = ("plans", "plan_versions", "applied", "claim", "claim_version", "uid")


def copied(outside: Outside) -> dict[str, object]:
    """What ZooKeeper has of the backfill."""
    return {name: copy.deepcopy(getattr(outside.backfill("old"), name)) for name in IN_ZOOKEEPER}


def reject_twice(outside: Outside) -> None:
    assert not [row for row, times in outside.rows().items() if times > 1]


def test_a_backfill_deleted_during_a_forgotten_append_stays_so_in_an_older_zookeeper() -> None:
    """The closing plan finds its number taken in the table, so that nothing there would show the
    abandonment.
    """
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("store plan", When.AFTER))
    plan, saved = outside.backfill("old").newest_plan(), copied(outside)
    assert plan and plan.number == 2
    forgotten = FakeWorld(outside.backfill("old"), settings_of_backfill(CAPPED, "old"))

    def at_moment(step: str, when: When) -> None:
        if (step, when) == ("close", When.AFTER) and outside.backfill(
            "old"
        ).transaction_version() == 1:
            forgotten.append(plan, list(plan.ranges))

    claim = given_up(outside, at_moment)
    assert claim.state is ReservationState.GIVEN_UP and claim.offsets == 8
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    for name, value in saved.items():
        setattr(outside.backfill("old"), name, value)
    for what in (backfill_request(0, 3), None):
        with pytest.raises(SettingsError, match="Backfill old was given up: not needed"):
            filled(outside, what)
        reject_twice(outside)
    assert given_up(outside).offsets == 8
    reject_twice(outside)


def test_the_accepted_absence_of_a_former_table_does_not_cover_that_of_a_backfill() -> None:
    """The table was dropped, and that accepted; of the next one the disk is away for a while."""
    outside = live(3, 3, 3)
    newest = outside.newest_plan()
    assert newest
    outside.table, outside.table_id = None, "another"
    outside.acknowledged = Acknowledgement(
        None, None, newest.number, "dropped", 1, plan_id=newest.id, was_recorded=True
    )
    grow(outside, 1, 1, 1)
    run(outside, CAPPED)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("begin", When.AFTER))
    plan, before = outside.backfill("old").newest_plan(), outside.backfill("old").claim
    assert plan and plan.table.id == "another"
    there, outside.table = outside.table, None
    with pytest.raises(NeedsDecision, match="No table exists at this path") as refused:
        given_up(outside)
    assert refused.value.action and refused.value.action.endswith(
        "and runs continued since, run `etl run CONF` first, which creates the table"
    )
    assert outside.backfill("old").claim == before
    outside.table = there
    FakeWorld(outside.backfill("old"), settings_of_backfill(CAPPED, "old")).append(
        plan, list(plan.ranges)
    )
    filled(outside, backfill_request(0, 3))
    assert len(outside.rows()) == 3 + 9
    reject_twice(outside)
