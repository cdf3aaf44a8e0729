"""A run after another client moved the committed offsets: it stops, or follows them once and
records that in a plan.
"""

from __future__ import annotations

import pytest

from etl.decide.offsets import RESTORE
from etl.errors import OffsetMoved, PartitionTruncated
from etl.model.partitions import TopicPartition
from etl.model.snapshot import Pause
from etl.report.run_progress import Outcome
from etl.settings.choices import OnOwned
from tests.fakes.fake_log import FakeLog
from tests.fakes.stories import (
    LOGS,
    grow,
    outcomes,
    outside_of,
    reject_unfinished,
    run,
    settings_of,
)


def test_a_moved_offset_stops_the_run_and_nothing_is_touched() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.move_offset(LOGS[1], 1)
    grow(outside, 1, 1, 1)
    with pytest.raises(OffsetMoved):
        run(outside)
    assert set(outside.plans) == {1}


def test_a_moved_offset_is_followed_once_and_kept_in_the_next_plan() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(on_offset_changed="follow")
    run(outside, settings)
    outside.logs[LOGS[1]].end = 9
    outside.move_offset(LOGS[1], 7)
    report = run(outside, settings)
    assert outcomes(report) == [Outcome.OFFSET_CHANGED, Outcome.RECORDS_LOST, Outcome.INGESTED]
    assert report.outcomes[0][1] == "clicks 1: another client committed 7 (+4), followed"
    assert report.plan is not None
    assert [(r.from_offset, r.until_offset) for r in report.plan.ranges] == [(7, 9)]
    assert outcomes(run(outside, settings)) == [Outcome.UP_TO_DATE]


@pytest.mark.parametrize("is_owned", [False, True], ids=["paused", "owned"])
def test_an_offset_is_not_followed_past_a_truncation_of_a_partition_that_is_left_out(
    is_owned: bool,
) -> None:
    """Otherwise the new records below our offset would be neither loaded nor recorded as lost."""
    outside, settings = outside_of(4, 3, 4), settings_of(on_offset_changed="follow")
    group = settings.group.model_copy(update={"on_owned": OnOwned.SKIP})
    settings = settings.model_copy(update={"group": group})
    run(outside, settings)
    partition = LOGS[0]
    if is_owned:
        outside.owners[partition] = "group_host-1-0"
    else:
        outside.pauses = (Pause(partition.topic, partition, "seen", "kim@host", 5),)
    outside.logs[partition].cut(3)
    outside.logs[partition].grow(2)
    outside.move_offset(partition, 5)
    with pytest.raises(PartitionTruncated):
        run(outside, settings)


@pytest.mark.parametrize("owner", [None, "group_host-1-0"])
@pytest.mark.parametrize("has_leader", [True, False])
def test_an_offset_after_the_end_of_its_log_is_not_followed_until_it_is_set_back(
    owner: str | None,
    has_leader: bool,
) -> None:
    outside, settings = (
        outside_of(5, 3, 4),
        settings_of(on_offset_changed="follow", on_no_leader="skip"),
    )
    settings = settings.model_copy(
        update={"group": settings.group.model_copy(update={"on_owned": OnOwned.SKIP})}
    )
    run(outside, settings)
    outside.owners = {LOGS[1]: owner} if owner else {}
    outside.logs[LOGS[1]].has_leader = has_leader
    outside.move_offset(LOGS[1], 1_000_000)
    with pytest.raises(OffsetMoved) as caught:
        run(outside, settings)
    assert caught.value.action.endswith(f"set it back to 3: {RESTORE}") and not outside.losses
    outside.move_offset(LOGS[1], 3)
    grow(outside, 1, 1, 1)
    outside.owners, outside.logs[LOGS[1]].has_leader = {}, True
    run(outside, settings)
    reject_unfinished(outside)


@pytest.mark.parametrize(
    ("moved_to", "named_again"), [(1_000_000, OffsetMoved), (7, Outcome.OFFSET_CHANGED)]
)
def test_an_offset_of_a_topic_that_is_not_named_any_longer_is_left_alone_until_it_is_named_again(
    moved_to: int,
    named_again: type[OffsetMoved] | Outcome,
) -> None:
    orders = TopicPartition("clicks-orders", 0)
    outside, both = outside_of(5, 3, 4), settings_of(on_offset_changed="follow")
    outside.logs[orders] = FakeLog(2)
    run(outside, both)
    one = settings_of(on_offset_changed="follow", topics=["clicks"])
    outside.logs[orders].end = 9
    outside.move_offset(orders, moved_to)
    found = outside.offsets[orders]
    for _ in range(2):
        grow(outside, 1, 1, 1)
        report = run(outside, one)
        assert outcomes(report) == [Outcome.OFFSET_CHANGED, Outcome.INGESTED]
        assert report.outcomes[0][1].startswith(
            f"clicks-orders 0: another client committed {moved_to} ({moved_to - 2:+,}), "
        )
        assert report.plan is not None and (
            report.plan.loaded_until[orders],
            outside.offsets[orders],
        ) == (2, found)
    assert not outside.losses
    if named_again is OffsetMoved:
        with pytest.raises(OffsetMoved) as caught:
            run(outside, both)
        assert caught.value.action.endswith(f"set it back to 2: {RESTORE}")
        outside.move_offset(orders, 2)
        run(outside, both)
        reject_unfinished(outside)
    else:
        assert outcomes(run(outside, both)) == [
            Outcome.OFFSET_CHANGED,
            Outcome.RECORDS_LOST,
            Outcome.INGESTED,
        ]
        assert [
            (loss.partition, loss.from_offset, loss.until_offset) for _, loss in outside.losses
        ] == [(orders, 2, 7)]


def test_an_offset_that_was_left_alone_and_is_set_back_is_ours_again() -> None:
    orders = TopicPartition("clicks-orders", 0)
    outside, both = outside_of(5, 3, 4), settings_of(on_offset_changed="follow")
    outside.logs[orders] = FakeLog(2)
    run(outside, both)
    outside.move_offset(orders, 50)
    one = settings_of(on_offset_changed="follow", topics=["clicks"])
    assert outcomes(run(outside, one)) == [Outcome.OFFSET_CHANGED, Outcome.UP_TO_DATE]
    outside.move_offset(orders, 2)
    assert outcomes(run(outside, one)) == [Outcome.UP_TO_DATE]
    outside.logs[orders].end = 9
    assert outcomes(run(outside, both)) == [Outcome.INGESTED]
    reject_unfinished(outside)


def test_a_follow_without_new_records_is_kept_in_a_plan_too() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(on_offset_changed="follow")
    run(outside, settings)
    outside.logs[LOGS[1]].end = 9
    run(outside, settings)
    outside.move_offset(LOGS[1], 9)
    assert outcomes(run(outside, settings)) == [Outcome.UP_TO_DATE]
    outside.logs[LOGS[1]].log_start = 9
    outside.logs[LOGS[1]].end = 12
    outside.move_offset(LOGS[1], 12)
    report = run(outside, settings)
    assert outcomes(report) == [
        Outcome.OFFSET_CHANGED,
        Outcome.RECORDS_LOST,
        Outcome.OFFSETS_STORED,
    ]
    assert outcomes(run(outside)) == [Outcome.UP_TO_DATE]
