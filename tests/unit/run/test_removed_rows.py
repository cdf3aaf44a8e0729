"""Rows that other writers remove before, between and during a run's steps."""

from __future__ import annotations

import pytest

from etl.errors import LedgersDisagree
from etl.model.snapshot import ForeignCommit
from etl.report.run_progress import Outcome
from tests.fakes.stories import grow, outcomes, outside_of, run, settings_of
from tests.fakes.world import When


def test_a_permitted_delete_before_the_append_is_reported_and_recorded_before_the_result() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(table={"on_rows_removed": "record"})
    deleted = ForeignCommit(2, "DELETE", "removed rows")

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("open table", When.AFTER):
            outside.foreign = (deleted,)
        if (reached, side) == ("record", When.BEFORE):
            assert outside.removals == [deleted]

    assert outcomes(run(outside, settings, at=at)) == [Outcome.ROWS_REMOVED, Outcome.INGESTED]
    assert outside.removals == [deleted]


def test_a_delete_reported_before_the_append_is_not_reported_again_after_it() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(table={"on_rows_removed": "record"})
    run(outside, settings)
    outside.foreign = (ForeignCommit(2, "DELETE", "removed rows"),)
    grow(outside, 1, 1, 1)
    assert outcomes(run(outside, settings)) == [Outcome.ROWS_REMOVED, Outcome.INGESTED]
    assert outside.removals == [ForeignCommit(2, "DELETE", "removed rows")]


def test_rows_removed_during_the_append_stop_the_run_before_an_offset_moves() -> None:
    outside = outside_of(5, 3, 4)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("append", When.AFTER):
            outside.foreign = (ForeignCommit(2, "DELETE", "removed rows"),)

    with pytest.raises(LedgersDisagree, match="DELETE of another writer removed rows"):
        run(outside, at=at)
    assert not outside.offsets


def test_nothing_is_appended_to_an_older_copy_of_the_table_that_was_put_back_during_the_run() -> (
    None
):
    outside = outside_of(5, 3, 4)
    run(outside)
    grow(outside, 1, 1, 1)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("fetch", When.AFTER):
            outside.table = []

    with pytest.raises(LedgersDisagree, match="lacks plans before plan 2"):
        run(outside, at=at)
    assert outside.table == []
    with pytest.raises(LedgersDisagree, match="ZooKeeper"):
        run(outside)
