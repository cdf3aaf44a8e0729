"""A backfill of truncated or recreated partitions: nothing is loaded twice, and a command leads out
of every state.
"""

from __future__ import annotations

import contextlib

import pytest

from etl.commands.backfill import _suggest_backfill_commands
from etl.errors import NeedsDecision, PartitionTruncated
from etl.model.plans import Plan
from etl.model.snapshot import ReservationState
from etl.report.run_progress import Outcome
from tests.fakes.backfill_stories import CAPPED, backfill_request, filled, given_up, live
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    accept,
    crash_at,
    new_report,
    outcomes,
    outside_of,
    run,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, When

EARLIEST = settings_of()
FIRST = "clicks:0"


def cut_at(outside: Outside, at: int, more: int = 0) -> None:
    """The first log loses what comes from there on, and others write so much to it."""
    outside.logs[LOGS[0]].cut(at)
    outside.logs[LOGS[0]].grow(more)


def accepted_by_an_earlier_version(outside: Outside, at: int | None = None) -> Plan:
    """Without the check of the reservations of backfills."""
    hidden, outside.backfills = outside.backfills, {}
    plan = accept(outside, FIRST, settings=CAPPED, at_offset=at)
    outside.backfills = hidden
    return plan


def reject_doubled(outside: Outside) -> None:
    """No record that ever was is in the table twice."""
    assert not [row for row, times in outside.records().items() if times > 1]


def begun(until: int = 5) -> Outside:
    """A backfill has claimed up to there, and one plan of it is in the table."""
    outside = live(9, 9, 9)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, until, FIRST), crash_at("tidy", When.AFTER))
    assert sum(log == LOGS[0] and int(str(at)) < until for log, at in outside.rows()) == 4
    return outside


@pytest.mark.parametrize("only_missing", [True, False])
def test_the_rest_of_a_truncated_log_is_not_loaded_again_by_a_backfill(
    only_missing: bool,
) -> None:
    outside = outside_of(6, 2, 2)
    run(outside, EARLIEST)
    cut_at(outside, 3, 2)
    accept(outside, FIRST)
    run(outside, EARLIEST)
    run(outside, EARLIEST)
    with pytest.raises(
        NeedsDecision,
        match="This partition was truncated or recreated since the pipeline began it.",
    ):
        filled(outside, backfill_request(0, 3, FIRST, only_missing=only_missing), settings=EARLIEST)
    assert outside.backfill("old").claim is None
    reject_doubled(outside)
    assert (
        filled(outside, backfill_request(0, 2, "clicks:1", only_missing=True), settings=EARLIEST)
        is None
    ), "the others are not refused"


def test_what_the_pipeline_reads_of_a_log_that_was_cut_is_not_missing() -> None:
    outside = live(5, 5, 5)
    cut_at(outside, 4, 3)
    accept(outside, FIRST, settings=CAPPED)
    run(outside, CAPPED)
    report = new_report()
    assert filled(outside, backfill_request(4, 7, FIRST, only_missing=True), report=report) is None
    assert outcomes(report) == [Outcome.UP_TO_DATE]


@pytest.mark.parametrize("step", ["tidy", "store plan"])
def test_a_backfill_does_not_read_on_where_the_pipeline_has_another_life_of_the_log(
    step: str,
) -> None:
    outside = live(9, 9, 9)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 8, FIRST), crash_at(step, When.AFTER))
    cut_at(outside, 5, 9)
    accepted_by_an_earlier_version(outside)
    run(outside, CAPPED)
    with pytest.raises(
        NeedsDecision,
        match="as truncated or recreated, and the backfill was begun before that",
    ) as refused:
        filled(outside, None)
    assert "`etl backfills delete CONF old --reason ...`" in refused.value.action
    assert given_up(outside).state is ReservationState.GIVEN_UP
    for _ in range(4):
        run(outside, CAPPED)
    reject_doubled(outside)


@pytest.mark.parametrize("more", [0, 9], ids=["it is short", "others wrote more"])
def test_a_log_that_was_cut_inside_of_a_claim_is_read_no_further_before_anybody_accepts_it(
    more: int,
) -> None:
    outside = begun(8)
    cut_at(outside, 5, more)
    before = outside.rows()
    with pytest.raises(
        PartitionTruncated,
        match="The partition was truncated at offset 5, and the backfill loads it up to 8",
    ):
        filled(outside, None)
    assert outside.rows() == before


def test_a_log_that_a_backfill_has_still_to_load_is_not_accepted_before_that_is_given_up() -> None:
    outside = begun(8)
    cut_at(outside, 5, 9)
    with pytest.raises(
        NeedsDecision,
        match="Backfill old has not loaded all offsets that it has reserved of this partition "
        "before",
    ) as refused:
        accept(outside, FIRST, settings=CAPPED)
    assert "`etl backfills delete CONF old --reason ...`" in refused.value.action
    kept = given_up(outside)
    assert dict(kept.stretches) == {LOGS[0]: ((0, 4),)}
    accept(outside, FIRST, settings=CAPPED)
    for _ in range(4):
        run(outside, CAPPED)
    reject_doubled(outside)


@pytest.mark.parametrize("ids", ["topic_ids", "creation_ids"])
def test_a_recreated_topic_is_accepted_after_the_backfill_is_deleted(ids: str) -> None:
    outside = outside_of(5, 5, 5)
    getattr(outside, ids)["clicks"] = "@1" if ids == "creation_ids" else "first"
    run(outside, CAPPED)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 5), crash_at("store plan", When.AFTER))
    for log in LOGS:
        outside.logs[log] = outside.logs[log].recreated()
        outside.logs[log].grow(7)
    getattr(outside, ids)["clicks"] = "@2" if ids == "creation_ids" else "second"
    with pytest.raises(NeedsDecision, match="Backfill old has not loaded all"):
        accept(outside, "clicks", settings=CAPPED)
    assert given_up(outside).state is ReservationState.GIVEN_UP
    accept(outside, "clicks", settings=CAPPED)
    for _ in range(8):
        run(outside, CAPPED)
    reject_doubled(outside)


def test_a_complete_backfill_does_not_prevent_the_acceptance_of_a_log() -> None:
    outside = live(9, 9, 9)
    filled(outside, backfill_request(0, 8, FIRST))
    cut_at(outside, 5, 9)
    assert accept(outside, FIRST, settings=CAPPED).positions[LOGS[0]] == 5


def test_a_position_is_not_set_back_into_what_a_backfill_claimed_before_the_log_was_cut() -> None:
    outside = begun(8)
    cut_at(outside, 6, 9)
    accepted_by_an_earlier_version(outside)
    with pytest.raises(
        NeedsDecision, match="would begin at offset 4, and backfill old has reserved offsets 4 to 6"
    ):
        set_to(outside, CAPPED, a=4)


def test_the_action_of_a_truncation_is_replaced_for_a_backfill_that_is_begun() -> None:
    for answers, message in (
        ([True], "`etl backfills delete CONF old --reason ...`"),
        ([False], "etl topics accept-changes"),
    ):
        is_begun = answers[0]
        error = PartitionTruncated(
            "cut",
            action="Check the disk. To continue from that offset, run "
            "`etl topics accept-changes CONF -p clicks:0 --reason ...`",
        )
        with (
            contextlib.suppress(PartitionTruncated),
            _suggest_backfill_commands("old", answers.pop),
        ):
            raise error
        assert message in error.action and ("accept-changes" in error.action) is not is_begun
