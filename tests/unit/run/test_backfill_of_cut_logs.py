"""A backfill of truncated or recreated partitions: nothing is loaded twice, and a command leads out
of every state.
"""

from __future__ import annotations

import pytest

from etl.errors import NeedsDecision, PartitionTruncated
from etl.report.run_progress import Outcome
from tests.fakes.backfill_stories import CAPPED, backfill_request, filled, live
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    accept,
    crash_at,
    outcomes,
    outside_of,
    run,
    settings_of,
)
from tests.fakes.world import Crash, When

EARLIEST = settings_of()
FIRST = "clicks:0"


def cut_at(outside: Outside, at: int, more: int = 0) -> None:
    """The first log loses what comes from there on, and others write so much to it."""
    outside.logs[LOGS[0]].cut(at)
    outside.logs[LOGS[0]].grow(more)


def reject_doubled(outside: Outside) -> None:
    """No record that ever was is in the table twice."""
    assert not [row for row, times in outside.records().items() if times > 1]


def begun(until: int = 5) -> Outside:
    """A backfill has claimed up to there, and one plan of it is in the table."""
    outside = live(9, 9, 9)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, until, FIRST), crash_at("tidy", When.AFTER))
    assert (
        sum(partition == LOGS[0] and int(str(at)) < until for partition, at in outside.rows()) == 4
    )
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
    assert not outside.backfills
    reject_doubled(outside)
    report = filled(
        outside, backfill_request(0, 2, "clicks:1", only_missing=True), settings=EARLIEST
    )
    assert outcomes(report) == [Outcome.UP_TO_DATE], "the others are not refused"


def test_what_the_pipeline_reads_of_a_log_that_was_cut_is_not_missing() -> None:
    outside = live(5, 5, 5)
    cut_at(outside, 4, 3)
    accept(outside, FIRST, settings=CAPPED)
    run(outside, CAPPED)
    report = filled(outside, backfill_request(4, 7, FIRST, only_missing=True))
    assert outcomes(report) == [Outcome.UP_TO_DATE]


@pytest.mark.parametrize("step", ["tidy", "store plan"])
def test_a_backfill_does_not_read_on_where_the_pipeline_has_another_incarnation_of_the_log(
    step: str,
) -> None:
    outside = live(9, 9, 9)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 8, FIRST), crash_at(step, When.AFTER))
    cut_at(outside, 5, 9)
    accept(outside, FIRST, settings=CAPPED)
    run(outside, CAPPED)
    with pytest.raises(
        NeedsDecision,
        match="as truncated or recreated, and the backfill was requested before that",
    ) as refused:
        filled(outside, None)
    assert "`etl backfills delete CONF old --reason ...`" in refused.value.action
    for _ in range(4):
        run(outside, CAPPED)
    reject_doubled(outside)


@pytest.mark.parametrize("more", [0, 9], ids=["it is short", "others wrote more"])
def test_a_log_that_was_cut_inside_of_a_request_is_not_read_before_anybody_accepts_it(
    more: int,
) -> None:
    outside = begun(8)
    cut_at(outside, 5, more)
    before = outside.rows()
    with pytest.raises(PartitionTruncated) as refused:
        filled(outside, None)
    assert "etl topics accept-changes" in refused.value.action
    assert outside.rows() == before


@pytest.mark.parametrize("ids", ["topic_ids", "creation_ids"])
def test_a_recreated_topic_is_accepted_beside_a_stored_plan_of_a_backfill(ids: str) -> None:
    outside = outside_of(5, 5, 5)
    getattr(outside, ids)["clicks"] = "@1" if ids == "creation_ids" else "first"
    run(outside, CAPPED)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 5), crash_at("store plan", When.AFTER))
    for partition in LOGS:
        outside.logs[partition] = outside.logs[partition].recreated()
        outside.logs[partition].grow(7)
    getattr(outside, ids)["clicks"] = "@2" if ids == "creation_ids" else "second"
    with pytest.raises(NeedsDecision):
        run(outside, CAPPED)
    accept(outside, "clicks", settings=CAPPED)
    for _ in range(8):
        run(outside, CAPPED)
    reject_doubled(outside)
    with pytest.raises(NeedsDecision, match="as truncated or recreated"):
        filled(outside, None)


def test_a_complete_backfill_does_not_prevent_the_acceptance_of_a_log() -> None:
    outside = live(9, 9, 9)
    filled(outside, backfill_request(0, 8, FIRST))
    cut_at(outside, 5, 9)
    assert accept(outside, FIRST, settings=CAPPED).loaded_until[LOGS[0]] == 5
