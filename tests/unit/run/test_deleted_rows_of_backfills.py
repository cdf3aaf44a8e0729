"""Rows of a backfill were deleted, and the deletion was accepted: `abandon` releases the offsets
without rows, and no others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from etl.errors import NeedsDecision, Owned, SettingsError
from etl.model.partitions import BrokerPartition
from etl.model.snapshot import ReservationState
from tests.fakes.backfill_stories import (
    CAPPED,
    accept_table,
    backfill_request,
    filled,
    given_up,
    live,
)
from tests.fakes.fake_log import offset_of
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    crash_at,
    crash_at_moment,
    outside_of,
    physical_outside_of,
    run,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, When


def deleted(
    outside: Outside,
    start: int,
    until: int,
    log: BrokerPartition | None = None,
    *,
    by: str = "@old",
) -> None:
    """Rows of a backfill are deleted, and the deletion is accepted."""

    def is_gone(of: BrokerPartition, offset: int) -> bool:
        return start <= offset < until and log in (None, of)

    outside.table = [
        replace(
            one,
            replaced=one.replaced | {row for row in one.rows if is_gone(row[0], offset_of(row[1]))},
        )
        if by in one.app_id
        else one
        for one in outside.table or ()
    ]


def whole() -> Outside:
    outside = live(3, 3, 3)
    filled(outside, backfill_request(0, 3))
    return outside


def given_up_in_between() -> Outside:
    """It has loaded its first plan: four offsets of partitions 0 and 1."""
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("record", When.AFTER))
    given_up(outside)
    return outside


def reject_lacking(outside: Outside) -> None:
    assert set(outside.rows().values()) == {1}
    assert set(outside.rows()) == {
        (log, at) for log, found in outside.logs.items() for at in range(found.end)
    }


@pytest.mark.parametrize("begun", [whole, given_up_in_between])
def test_what_the_table_has_no_row_of_is_given_back_and_another_backfill_loads_it(
    begun: Callable[[], Outside],
) -> None:
    outside = begun()
    deleted(outside, 0, 3)
    claim = given_up(outside)
    assert (claim.state, dict(claim.stretches)) == (ReservationState.GIVEN_UP, {})
    filled(outside, backfill_request(0, 3), name="new")
    reject_lacking(outside)


def test_offsets_with_a_row_stay_reserved_one_by_one() -> None:
    outside = whole()
    deleted(outside, 1, 2)
    claim = given_up(outside)
    assert dict(claim.stretches) == dict.fromkeys(LOGS, ((0, 1), (2, 3)))
    with pytest.raises(SettingsError, match="Backfill old has loaded offsets 0 to 1, or will"):
        filled(outside, backfill_request(0, 2), name="new")
    found = filled(outside, backfill_request(0, 3, only_missing=True), name="new")
    assert found and dict(found.stretches) == dict.fromkeys(LOGS, ((1, 2),))
    reject_lacking(outside)
    assert given_up(outside) == claim, (
        "a second release returns nothing more: another backfill has the rows"
    )
    reject_lacking(outside)


def test_released_offsets_are_not_reserved_again_with_an_older_copy_of_the_table() -> None:
    """Another backfill has loaded it since: reserved twice, the table would be unprovable."""
    outside = whole()
    deleted(outside, 1, 2)
    without_old = [one for one in outside.table or () if "@old" not in one.app_id]
    given_up(outside)
    outside.table = without_old
    accept_table(outside)
    filled(outside, backfill_request(0, 3, only_missing=True), name="new")
    assert dict(given_up(outside).stretches) == {}
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    reject_lacking(outside)


def test_the_offset_may_be_set_back_over_released_offsets() -> None:
    outside = outside_of(3, 3, 3)
    run(outside, CAPPED)
    filled(outside, backfill_request(0, 3))
    deleted(outside, 0, 3, LOGS[0])
    with pytest.raises(NeedsDecision, match="backfill old has reserved offsets 1 to 3") as refused:
        set_to(outside, CAPPED, a=1)
    assert "`etl backfills delete CONF old --reason ...`" in str(refused.value.action)
    given_up(outside)
    set_to(outside, CAPPED, a=1)
    run(outside, CAPPED)
    assert {at for log, at in outside.rows() if log == LOGS[0]} == {1, 2}
    assert set(outside.rows().values()) == {1}


def test_offsets_that_never_had_a_row_are_not_given_back_where_nothing_was_deleted() -> None:
    skipping = settings_of(
        starting_offsets="latest", on_data_loss="skip", limits={"max_records_per_plan": 4}
    )
    outside = live(5, 5, 5, settings=skipping)
    outside.logs[LOGS[0]].lost = {1}
    filled(outside, settings=skipping)
    with pytest.raises(SettingsError, match="There is nothing to give up"):
        given_up(outside, settings=skipping)
    assert outside.backfill("old").claim


@pytest.mark.parametrize("moment", range(8))
def test_a_release_killed_at_any_moment_is_completed_by_its_repetition(moment: int) -> None:
    outside = whole()
    deleted(outside, 0, 2)
    with contextlib.suppress(Crash):
        given_up(outside, crash_at_moment(moment))
    assert dict(given_up(outside).stretches) == dict.fromkeys(LOGS, ((2, 3),))
    filled(outside, backfill_request(0, 3, only_missing=True), name="new")
    reject_lacking(outside)


def test_of_two_who_give_back_at_one_moment_the_second_is_refused() -> None:
    outside, done = whole(), list[int]()
    deleted(outside, 0, 2)

    def at_moment(step: str, when: When) -> None:
        if (step, when) == ("settle", When.BEFORE) and not done:
            done.append(1)
            given_up(outside)
            filled(outside, backfill_request(0, 3, only_missing=True), name="new")

    with pytest.raises(Owned):
        given_up(outside, at_moment)
    reject_lacking(outside)


def test_of_physical_logs_a_stretch_is_given_back_where_none_of_its_rows_is_left() -> None:
    settings = settings_of(broker_type="jafka", starting_offsets="latest")
    outside = physical_outside_of(5, 5)
    run(outside, settings)
    one, other = list(outside.logs)[:2]
    ends = {log: found.end for log, found in outside.logs.items()}
    for log in (one, other):
        outside.logs[log].grow(1)
    run(outside, settings)
    assert ends[one] == ends[other]
    claim = filled(
        outside, backfill_request(0, ends[one], "clicks:1-0", "clicks:2-0"), settings=settings
    )
    assert claim and set(claim.stretches) == {one, other}
    deleted(outside, 0, ends[one], one)
    deleted(outside, 0, 1, other)
    assert dict(given_up(outside, settings=settings).stretches) == {other: ((0, ends[other]),)}
