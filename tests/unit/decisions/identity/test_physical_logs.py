"""A pipeline on partitions with byte offsets on a single broker: situations on the fake cluster."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from etl.commands.lag import offsets_of
from etl.decide.inherit_pipeline import predecessor_of
from etl.decide.offsets import pending_starts
from etl.decide.reconcile import where_we_stand
from etl.decide.recreated_or_truncated import TAIL_BYTES, end_places
from etl.errors import (
    DataLoss,
    LedgersDisagree,
    OffsetMoved,
    PartitionTruncated,
    SettingsError,
)
from etl.ledger.plan_document import with_id
from etl.model.partitions import PartitionOffsets, TopicPartition
from etl.model.plans import CommitResult, Loss, LossReason, RangeResult, StaleRows
from etl.model.snapshot import OtherPipeline, Table
from etl.report.describe import describe_uncounted
from etl.report.run_progress import Outcome
from etl.settings.sections import Settings
from tests.builders import kafka_named, plain_plan
from tests.fakes.outside import Outside
from tests.fakes.physical_log import PhysicalLog
from tests.fakes.planning import NOW_MS, A, snapshot_of
from tests.fakes.stories import (
    PHYSICAL_LOGS,
    PHYSICAL_SETTINGS,
    SETTINGS,
    accept,
    crash_at,
    grow,
    outcomes,
    outside_of,
    physical_outside_of,
    reject_broken,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

ONE, TWO, ALSO_ONE = PHYSICAL_LOGS
"""Partition 0 of broker 1, partition 0 of broker 2, partition 1 of broker 1."""
SKIPPING = settings_of(broker_type="jafka", on_data_loss="skip")


def of(outside: Outside, partition: TopicPartition) -> PhysicalLog:
    found = outside.logs[partition]
    assert isinstance(found, PhysicalLog)
    return found


def test_logs_of_an_unreachable_broker_are_reported_and_left_and_read_on_after_its_return() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    grow(outside, 2, 2, 2)
    before = outside.offsets[TWO]
    outside.logs[TWO].has_leader = False
    report = run(outside)
    assert outcomes(report) == [Outcome.NO_LEADER, Outcome.INGESTED]
    assert (
        report.outcomes[0][1] == "clicks 2-0: its broker is unavailable; left out"
        and outside.offsets[TWO] == before
    )
    assert outcomes(run(outside)) == [Outcome.NO_LEADER, Outcome.UP_TO_DATE]
    outside.logs[TWO].has_leader = True
    assert outcomes(run(outside)) == [Outcome.INGESTED]
    reject_unfinished(outside)


def test_a_partition_beyond_its_brokers_count_is_reported_and_recreated_as_another() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    grow(outside, 2, 2, 2)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    outside.logs[ALSO_ONE].has_leader = False
    report = run(outside)
    assert outcomes(report) == [Outcome.PLAN_SUPERSEDED, Outcome.INGESTED, Outcome.NO_LEADER]
    assert (
        "the broker of clicks 1-1 is available and has fewer partitions now"
        in report.outcomes[0][1]
    )
    assert report.outcomes[2][1].startswith(
        "clicks 1-1: its broker has fewer partitions now; left out"
    )
    assert outcomes(run(outside)) == [Outcome.NO_LEADER, Outcome.UP_TO_DATE]
    outside.logs[ALSO_ONE] = outside.logs[ALSO_ONE].recreated()
    outside.logs[ALSO_ONE].grow(9)
    with pytest.raises(PartitionTruncated, match="holds other bytes"):
        run(outside)


@pytest.mark.parametrize("most_bytes", [1, 30, 90, 1000])
def test_capped_runs_read_every_log_to_its_end_in_whole_entries(most_bytes: int) -> None:
    outside = physical_outside_of(11, 3, 7)
    settings = settings_of(
        broker_type="jafka", limits={"max_bytes_per_plan": most_bytes, "target_task_bytes": 25}
    )
    while Outcome.INGESTED in outcomes(run(outside, settings)):
        reject_broken(outside)
    reject_unfinished(outside)


def test_offsets_left_by_a_cap_are_reported_in_bytes() -> None:
    outside, settings = (
        physical_outside_of(6),
        settings_of(broker_type="jafka", limits={"max_bytes_per_plan": 1}),
    )
    left = of(outside, ONE).end - of(outside, ONE).extent.boundaries[1]  # type: ignore[index]
    assert run(outside, settings).outcomes[-1] == (
        Outcome.LIMIT_REACHED,
        f"limits.max_bytes_per_plan (1): {left} bytes of 1 partition remain",
    )


def test_a_stored_plan_with_an_expired_segment_is_superseded_by_one_from_the_next_segment() -> None:
    outside = physical_outside_of(7, 3, 4)
    with pytest.raises(Crash):
        run(outside, SKIPPING, at=crash_at("store plan", When.AFTER))
    of(outside, ONE).expire_segment()
    gone = of(outside, ONE).log_start
    with pytest.raises(DataLoss, match=f"{gone} bytes are gone") as refused:
        run(outside)
    assert (refused.value.where["partition"], refused.value.where["broker_id"]) == (0, 1)
    report = run(outside, SKIPPING)
    assert outcomes(report)[:2] == [Outcome.PLAN_SUPERSEDED, Outcome.RECORDS_LOST]
    assert f"clicks 1-0: {gone} bytes (0 to {gone}) lost: expired" in report.outcomes[1][1]
    assert [loss for _, loss in outside.losses] == [Loss(ONE, 0, gone, LossReason.EXPIRED)]
    reject_unfinished(outside)


def test_a_log_truncated_by_its_broker_needs_a_decision_and_continues_as_another_incarnation() -> (
    None
):
    outside = physical_outside_of(6, 3, 4)
    run(outside)
    partition, position = of(outside, ONE), outside.offsets[ONE][0]
    partition.cut(at=partition.entries[4][0])
    with pytest.raises(
        PartitionTruncated, match=f"The log was truncated at offset {partition.end} or below"
    ) as refused:
        run(outside)
    assert (
        "etl topics accept-changes CONF -p clicks:1-0 --truncated-at OFFSET" in refused.value.action
    )
    plan = accept(outside, "clicks:1-0", at_offset=partition.end, settings=PHYSICAL_SETTINGS)
    assert (
        plan.losses.stale_rows == (StaleRows(ONE, partition.end, position),)
        and plan.loaded_until[ONE] == partition.end
    )
    partition.grow(3)
    run(outside)
    assert not [key for key, times in outside.keys().items() if times > 1]
    assert {life for found, life, _ in outside.keys() if found == ONE} == {0, 1}
    assert outside.offsets[ONE][0] == partition.end


def test_a_partition_of_one_broker_is_not_meant_by_its_number_alone() -> None:
    outside = physical_outside_of(6, 6, 4)
    run(outside)
    for partition in (ONE, TWO):
        of(outside, partition).cut(at=of(outside, partition).entries[4][0])
    with pytest.raises(SettingsError, match="There is no partition clicks:0") as refused:
        accept(outside, "clicks:0", at_offset=0, settings=PHYSICAL_SETTINGS)
    assert "BROKER-PARTITION, e.g. 0-3" in refused.value.action


def test_a_moved_offset_is_followed_and_the_skipped_offsets_are_reported_in_bytes() -> None:
    outside = physical_outside_of(6, 3, 4)
    run(outside)
    grow(outside, 3, 0, 0)
    start, partition = outside.offsets[ONE][0], of(outside, ONE)
    outside.move_offset(ONE, partition.entries[7][0])
    with pytest.raises(OffsetMoved) as refused:
        run(outside)
    assert refused.value.where["broker_id"] == 1
    report = run(outside, settings_of(broker_type="jafka", on_offset_changed="follow"))
    assert outcomes(report) == [Outcome.OFFSET_CHANGED, Outcome.RECORDS_LOST, Outcome.INGESTED]
    assert f"{partition.entries[7][0] - start} bytes" in report.outcomes[1][1]
    assert outside.offsets[ONE][0] == partition.end


def test_a_physical_log_unreadable_at_the_decision_starts_at_its_first_record() -> None:
    latest, logical = (
        settings_of(broker_type="jafka", starting_offsets="latest"),
        settings_of(starting_offsets="latest"),
    )
    assert pending_starts([ONE], {}, None, latest, now_ms=NOW_MS) == {ONE: None}
    assert pending_starts([A], {}, None, logical, now_ms=NOW_MS) == {A: NOW_MS}
    outside = physical_outside_of(5, 3, 4)
    outside.logs[TWO].has_leader = False
    run(outside, latest)
    outside.logs[TWO].has_leader = True
    run(outside, latest)
    assert set(outside.rows()) == {
        (TWO, place) for place in outside.logs[TWO].held(0, outside.logs[TWO].end)
    }


@pytest.mark.parametrize(
    ("outside", "settings"),
    [(physical_outside_of(5, 3, 4), SETTINGS), (outside_of(5, 3, 4), PHYSICAL_SETTINGS)],
)
def test_a_conf_with_another_broker_type_is_rejected_and_nothing_is_changed(
    outside: Outside,
    settings: Settings,
) -> None:
    run(outside)
    grow(outside, 1, 1, 1)
    before = copy.deepcopy(outside)
    message = (
        f"but source.broker_type is {settings.source.broker_type.value}: "
        "offsets of one mean nothing on the other"
    )
    with pytest.raises(SettingsError, match=message) as refused:
        run(outside, settings)
    assert refused.value.where["key"] == "source.broker_type" and outside == before


def test_where_only_the_table_knows_the_pipeline_another_family_of_brokers_is_refused_too() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    outside.uid, outside.plans, outside.applied = None, {}, {}
    with pytest.raises(SettingsError, match="This pipeline has loaded from jafka brokers,"):
        run(outside, SETTINGS)


def test_the_place_of_a_pipeline_of_another_family_is_not_taken() -> None:
    plan = with_id(plain_plan(1, loaded_until={A: 5}, cluster=kafka_named("c")))
    with pytest.raises(SettingsError, match="has loaded from kafka brokers"):
        predecessor_of(
            OtherPipeline("offset-range-etl/c/g/other", 1, 1, plan),
            {},
            snapshot_of({}),
            PHYSICAL_SETTINGS,
        )


def test_without_the_plan_in_the_tables_log_no_error_advises_to_restore_it() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    plans = dict(outside.plans)
    grow(outside, 1, 1, 1)
    run(outside)
    outside.plans, outside.forgotten_commits = plans, True
    with pytest.raises(LedgersDisagree, match="the table's log no longer has that plan") as refused:
        run(outside)
    assert (
        "take-over" not in refused.value.action
        and "rows tell where a message begins and not where it ends" in refused.value.action
    )
    outside.uid, outside.plans, outside.applied = None, {}, {}
    with pytest.raises(LedgersDisagree) as refused:
        run(outside)
    assert "--reason ...; on Jafka, where rows tell where a message begins" in refused.value.action


def test_without_a_known_end_of_the_other_pipeline_no_error_advises_to_inherit_it() -> None:
    other = OtherPipeline("offset-range-etl/cluster-1/old/clicks", 3)
    table = Table("t", 5, None, others=(other,), topics_with_rows=frozenset({"clicks"}))
    seen = replace(
        FakeWorld(physical_outside_of(5, 3, 4), PHYSICAL_SETTINGS).observe(), table=table
    )
    with pytest.raises(
        LedgersDisagree,
        match="pipeline clicks of group old on cluster cluster-1 may have loaded this topic",
    ) as refused:
        where_we_stand(seen, PHYSICAL_SETTINGS)
    assert (
        "The other pipeline cannot be inherited" in refused.value.action
        and "pipelines inherit" not in refused.value.action
    )


def test_rows_recounted_after_a_transform_are_reported_as_doubtful() -> None:
    counted = RangeResult(rows=3, gaps_complete=False, behind_transform=True)
    assert "whether the transform left out records is unknown" in describe_uncounted(
        CommitResult(1, "p", 1, "t", (counted,))
    )
    assert (
        describe_uncounted(
            CommitResult(1, "p", 1, "t", (replace(counted, behind_transform=False),))
        )
        == ""
    )


def test_offsets_are_shown_with_the_broker_and_the_boundaries_and_their_lag_is_bytes() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    grow(outside, 1, 0, 0)
    reported = offsets_of(FakeWorld(outside, PHYSICAL_SETTINGS).observe(), PHYSICAL_SETTINGS)
    assert [(row["partition"], row["broker_id"]) for row in reported.rows] == [
        (0, 1),
        (0, 2),
        (1, 1),
    ]
    partition = of(outside, ONE)
    assert (reported.rows[0]["lag"], reported.rows[0]["boundaries"]) == (
        partition.end - outside.offsets[ONE][0],
        list(partition.extent.boundaries or ()),
    )


def test_the_last_bytes_are_compared_all_of_a_smaller_log_and_none_of_an_empty_one() -> None:
    bounds: dict[tuple[int, ...], dict[TopicPartition, tuple[int, int]]] = {
        (0, 2500, 5000, 5010): {ONE: (5010, TAIL_BYTES)},
        (4800, 5000, 5010): {ONE: (5010, 210)},
        (5010,): {},
    }
    for boundaries, places in bounds.items():
        offsets = PartitionOffsets(boundaries[0], 5010, boundaries=boundaries)
        assert end_places({ONE: offsets, A: PartitionOffsets(0, 9)}) == places
