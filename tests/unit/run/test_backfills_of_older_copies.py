"""An older copy of the table that lacks plans of a backfill: once it is accepted, `resume` and
`abandon` lead out, and double nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from etl.decide.backfill import BackfillRequest
from etl.errors import LedgersDisagree, NeedsDecision, SettingsError
from etl.model.partitions import BrokerPartition
from etl.model.snapshot import Reservation, ReservationState
from etl.report.run_progress import Outcome
from tests.fakes.backfill_stories import (
    CAPPED,
    accept_table,
    backfill_request,
    filled,
    given_up,
    live,
    stored,
)
from tests.fakes.fake_log import offset_of
from tests.fakes.outside import Outside
from tests.fakes.stories import crash_at, crash_at_moment, grow, new_report, outcomes, run
from tests.fakes.world import Crash, When


def begun(each: int = 3) -> Outside:
    """Two plans of it are in the table, of four offsets each; the given number of offsets is
    requested of each of three partitions.
    """
    outside = live(each, each, each)
    load_two(outside, backfill_request(0, each))
    return outside


def load_two(outside: Outside, what: BackfillRequest | None) -> None:
    """Two plans more, and its driver dies."""
    plans = list[int]()

    def at(step: str, when: When) -> None:
        if (step, when) == ("record", When.AFTER):
            plans.append(1)
            if len(plans) == 2:
                raise Crash("two are in the table")

    with pytest.raises(Crash):
        filled(outside, what, at)


def whole() -> Outside:
    outside = live(3, 3, 3)
    filled(outside, backfill_request(0, 3))
    return outside


def closed() -> Outside:
    outside = begun()
    given_up(outside)
    return outside


def older(outside: Outside, commits: int = 1) -> Outside:
    """A copy of the table is put back, from before so many commits; and it is accepted."""
    assert outside.table
    outside.table = outside.table[:-commits]
    return outside


def of_backfill(outside: Outside) -> set[tuple[BrokerPartition, int]]:
    """Where the rows are of that the table has of it."""
    return {
        (log, offset_of(place))
        for one in outside.table or ()
        if one.app_id.endswith("@old")
        for log, place in one.rows
    }


def offsets_of(claim: Reservation) -> set[tuple[BrokerPartition, int]]:
    """All that it claims."""
    return {
        (log, at)
        for log, parts in claim.stretches.items()
        for start, until in parts
        for at in range(start, until)
    }


def reject_whole(outside: Outside, what: BackfillRequest | None) -> str:
    """It loads the rest, and is not reported as complete; return how much is missing."""
    with pytest.raises(
        NeedsDecision, match="has loaded its whole reservation, but the table has no row of"
    ) as refused:
        filled(outside, what)
    assert "`etl backfills delete CONF old --reason ...`" in str(refused.value.action)
    return refused.value.message.partition("no row of ")[2].partition(":")[0]


def reject_twice(outside: Outside) -> None:
    assert set(outside.rows().values()) == {1}


def reject_lacking(outside: Outside) -> None:
    reject_twice(outside)
    assert set(outside.rows()) == {
        (log, at) for log, found in outside.logs.items() for at in range(found.end)
    }


@pytest.mark.parametrize("begin", [begun, whole, closed])
def test_before_the_copy_is_accepted_no_command_continues(begin: Callable[[], Outside]) -> None:
    outside = older(begin())
    with pytest.raises(LedgersDisagree):
        given_up(outside)


def test_an_earlier_decision_does_not_cover_offsets_that_a_backfill_has_loaded_since() -> None:
    outside = live(3, 3, 3)
    accept_table(outside)
    filled(outside, backfill_request(0, 3))
    older(outside)
    for what in (backfill_request(0, 3), None):
        with pytest.raises(LedgersDisagree):
            filled(outside, what)
    with pytest.raises(LedgersDisagree):
        given_up(outside)


@pytest.mark.parametrize("commits", [1, 2])
def test_a_backfill_continues_after_an_accepted_copy_and_releases_missing_offsets(
    commits: int,
) -> None:
    outside = older(begun(), commits)
    accept_table(outside)
    reject_whole(outside, backfill_request(0, 3))
    reject_twice(outside)
    given_up(outside)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    reject_lacking(outside)


@pytest.mark.parametrize(
    ("begin", "commits"),
    [
        *((begin, n) for begin in (begun, stored) for n in (1, 2)),
        *((begin, n) for begin in (whole, closed) for n in (1, 2, 3)),
    ],
)
def test_deleted_with_an_accepted_copy_a_backfill_keeps_the_rows_there_and_another_loads_the_rest(
    begin: Callable[[], Outside],
    commits: int,
) -> None:
    outside = older(begin(), commits)
    accept_table(outside)
    claim = given_up(outside)
    assert claim.state is ReservationState.GIVEN_UP
    assert offsets_of(claim) == of_backfill(outside)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    grow(outside, 1, 0, 2)
    while run(outside, CAPPED).outcomes[-1][0] is not Outcome.UP_TO_DATE:
        pass
    reject_lacking(outside)


def test_deleted_after_an_accepted_copy_a_backfill_keeps_only_offsets_with_rows() -> None:
    """The copy lacked its second plan; two more followed, so the newest of them does not show the
    copy.
    """
    outside = older(begun(6))
    accept_table(outside)
    load_two(outside, None)
    assert offsets_of(given_up(outside)) == of_backfill(outside)
    filled(outside, backfill_request(0, 6, only_missing=True), name="rest")
    reject_lacking(outside)


@pytest.mark.parametrize("what", [None, backfill_request(0, 3)])
@pytest.mark.parametrize("begin", [begun, whole])
def test_it_is_not_called_whole_where_the_copy_lacks_rows_of_it(
    begin: Callable[[], Outside], what: BackfillRequest | None
) -> None:
    """Not after it has loaded the rest, nor on a second run, nor if nothing was left to load."""
    outside = older(begin())
    accept_table(outside)
    lacking = "4 offsets" if begin is begun else "1 offset"
    assert [reject_whole(outside, what) for _ in range(2)] == [lacking, lacking]
    assert offsets_of(given_up(outside)) == of_backfill(outside)


def test_a_backfill_is_complete_if_the_rows_missing_in_the_copy_were_copied_back() -> None:
    outside = begun()
    assert outside.table
    lacked = outside.table[-1]
    older(outside)
    accept_table(outside)
    reject_whole(outside, None)
    outside.table.append(replace(lacked, app_id="by hand"))
    report = new_report()
    filled(outside, None, report=report)
    assert outcomes(report) == [Outcome.ALREADY_LOADED]
    with pytest.raises(SettingsError, match="There is nothing to give up"):
        given_up(outside)


def test_of_a_table_that_is_gone_and_was_accepted_nothing_is_called_whole() -> None:
    outside = whole()
    outside.table = None
    accept_table(outside)
    assert reject_whole(outside, None) == "9 offsets"


@pytest.mark.parametrize("moment", range(14))
def test_a_deletion_killed_at_any_moment_is_completed_by_its_repetition(moment: int) -> None:
    outside = older(whole())
    accept_table(outside)
    with contextlib.suppress(Crash):
        given_up(outside, crash_at_moment(moment))
    reject_twice(outside)
    given_up(outside)
    given_up(outside)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    reject_lacking(outside)


@pytest.mark.parametrize("stop", ["fetch", "open table"])
def test_a_forgotten_driver_of_the_plan_that_the_copy_lacks_doubles_nothing(stop: str) -> None:
    """It stood still before it appended; others appended and recorded the plan, and all that was
    undone since, and accepted.
    """
    outside, done = live(3, 3, 3), list[int]()

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == (stop, When.AFTER) and not done:
            done.append(1)
            with contextlib.suppress(Crash):
                filled(outside, backfill_request(0, 3), crash_at("record", When.AFTER))
            older(outside)
            accept_table(outside)
            given_up(outside)
            filled(outside, backfill_request(0, 3, only_missing=True), name="rest")

    with contextlib.suppress(Exception):
        filled(outside, backfill_request(0, 3), meanwhile)
    assert done
    reject_lacking(outside)


def test_offsets_without_a_recorded_result_are_searched_by_their_rows_in_the_accepted_copy() -> (
    None
):
    """The plan was appended, its driver died before the record, and the copy is from before the
    plan before that.
    """
    outside = live(3, 3, 3)
    seen = list[int]()

    def at(step: str, when: When) -> None:
        if (step, when) == ("append", When.AFTER):
            seen.append(1)
            if len(seen) == 2:
                raise Crash("the second is in the table, and not recorded")

    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), at)
    older(outside, 2)
    accept_table(outside)
    reject_whole(outside, backfill_request(0, 3))
    reject_twice(outside)
    given_up(outside)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    reject_lacking(outside)


def test_a_decision_covers_one_plan_of_each_backfill() -> None:
    outside = older(begun())
    accept_table(outside)
    reject_whole(outside, backfill_request(0, 3))
    assert outside.table
    outside.table = [
        one for one in outside.table if not (one.app_id.endswith("@old") and one.number > 1)
    ]
    with pytest.raises(LedgersDisagree):
        filled(outside, None)
