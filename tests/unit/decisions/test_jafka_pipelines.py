"""Runs of a pipeline on Jafka: situations that differ from those on Kafka, on the fake cluster."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from etl.commands.lag import offsets_of
from etl.decide.inherit_pipeline import predecessor_of
from etl.decide.offsets import pending_partitions
from etl.decide.reconcile import where_we_stand
from etl.decide.recreated_or_truncated import TAIL_BYTES, end_places
from etl.errors import DataLoss, LedgersDisagree, PartitionTruncated, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import PartitionOffsets, TopicPartition
from etl.model.plans import (
    CommitResult,
    Loss,
    LossReason,
    PendingPartition,
    RangeResult,
)
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
    assert report.outcomes[0][1] == "clicks 2-0: its broker is unavailable; left out"
    assert outside.offsets[TWO] == before
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
    superseded, _, left_out = (message for _, message in report.outcomes)
    assert "the broker of clicks 1-1 is available and has fewer partitions now" in superseded
    assert left_out.startswith("clicks 1-1: its broker has fewer partitions now; left out")
    outside.logs[ALSO_ONE] = outside.logs[ALSO_ONE].recreated()
    outside.logs[ALSO_ONE].grow(9)
    with pytest.raises(PartitionTruncated, match="holds other bytes"):
        run(outside)


def test_offsets_left_by_a_cap_are_reported_in_bytes() -> None:
    outside = physical_outside_of(6)
    settings = settings_of(broker_type="jafka", limits={"max_bytes_per_plan": 1})
    boundaries = of(outside, ONE).extent.boundaries
    assert boundaries
    left = f"{of(outside, ONE).end - boundaries[1]} bytes of 1 partition remain"
    outcome = (Outcome.LIMIT_REACHED, f"limits.max_bytes_per_plan (1): {left}")
    assert run(outside, settings).outcomes[-1] == outcome


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


def test_a_partition_of_one_broker_is_not_meant_by_its_number_alone() -> None:
    outside = physical_outside_of(6, 6, 4)
    run(outside)
    for partition in (ONE, TWO):
        of(outside, partition).cut(at=of(outside, partition).entries[4][0])
    with pytest.raises(SettingsError, match="There is no partition clicks:0") as refused:
        accept(outside, "clicks:0", at_offset=0, settings=PHYSICAL_SETTINGS)
    assert "BROKER-PARTITION, e.g. 0-3" in refused.value.action


def test_a_jafka_partition_unreadable_at_the_decision_starts_at_its_first_record() -> None:
    on_kafka = settings_of(starting_offsets="latest")
    on_jafka = settings_of(broker_type="jafka", starting_offsets="latest")
    starts = pending_partitions([ONE], {}, None, {}, on_jafka, now_ms=NOW_MS)
    assert starts == {ONE: PendingPartition(None)}
    starts = pending_partitions([A], {}, None, {}, on_kafka, now_ms=NOW_MS)
    assert starts == {A: PendingPartition(NOW_MS)}


@pytest.mark.parametrize(
    ("outside", "settings"),
    [(physical_outside_of(5, 3, 4), SETTINGS), (outside_of(5, 3, 4), PHYSICAL_SETTINGS)],
)
def test_a_conf_with_another_broker_type_is_rejected_and_nothing_is_changed(
    outside: Outside, settings: Settings
) -> None:
    run(outside)
    grow(outside, 1, 1, 1)
    before = copy.deepcopy(outside)
    now = settings.source.broker_type.value
    message = f"but source.broker_type is {now}: offsets of one mean nothing on the other"
    with pytest.raises(SettingsError, match=message) as refused:
        run(outside, settings)
    assert refused.value.where["key"] == "source.broker_type" and outside == before


def test_where_only_the_table_knows_the_pipeline_another_family_of_brokers_is_refused_too() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    outside.uid, outside.plans, outside.applied = None, {}, {}
    with pytest.raises(SettingsError, match="This pipeline has loaded from jafka brokers,"):
        run(outside, SETTINGS)


def test_a_pipeline_of_another_family_of_brokers_is_not_inherited() -> None:
    plan = with_id(plain_plan(1, loaded_until={A: 5}, cluster=kafka_named("c")))
    other = OtherPipeline("offset-range-etl/c/g/other", 1, 1, plan)
    with pytest.raises(SettingsError, match="has loaded from kafka brokers"):
        predecessor_of(other, {}, snapshot_of({}), PHYSICAL_SETTINGS)


def test_without_the_plan_in_the_tables_log_no_error_advises_to_restore_it() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    plans = dict(outside.plans)
    grow(outside, 1, 1, 1)
    run(outside)
    outside.plans, outside.forgotten_commits = plans, True
    with pytest.raises(LedgersDisagree, match="the table's log no longer has that plan") as refused:
        run(outside)
    assert "take-over" not in refused.value.action
    assert "rows tell where a message begins and not where it ends" in refused.value.action
    outside.uid, outside.plans, outside.applied = None, {}, {}
    with pytest.raises(LedgersDisagree) as refused:
        run(outside)
    assert "--reason ...; on Jafka, where rows tell where a message begins" in refused.value.action


def test_without_a_known_end_of_the_other_pipeline_no_error_advises_to_inherit_it() -> None:
    other = OtherPipeline("offset-range-etl/cluster-1/old/clicks", 3)
    table = Table("t", 5, None, others=(other,), topics_with_rows=frozenset({"clicks"}))
    seen = FakeWorld(physical_outside_of(5, 3, 4), PHYSICAL_SETTINGS).observe()
    message = "pipeline clicks of group old on cluster cluster-1 may have loaded this topic"
    with pytest.raises(LedgersDisagree, match=message) as refused:
        where_we_stand(replace(seen, table=table), PHYSICAL_SETTINGS)
    assert "The other pipeline cannot be inherited" in refused.value.action
    assert "pipelines inherit" not in refused.value.action


@pytest.mark.parametrize("is_transformed", [True, False])
def test_rows_recounted_after_a_transform_are_reported_as_doubtful(is_transformed: bool) -> None:
    counted = RangeResult(rows=3, gaps_complete=False, behind_transform=is_transformed)
    found = describe_uncounted(CommitResult(1, "p", 1, "t", (counted,)))
    assert ("whether the transform left out records is unknown" in found) is is_transformed
    assert bool(found) is is_transformed


def test_offsets_are_shown_with_the_broker_and_the_boundaries_and_their_lag_is_bytes() -> None:
    outside = physical_outside_of(5, 3, 4)
    run(outside)
    grow(outside, 1, 0, 0)
    rows = offsets_of(FakeWorld(outside, PHYSICAL_SETTINGS).observe(), PHYSICAL_SETTINGS).rows
    assert [(row["partition"], row["broker_id"]) for row in rows] == [(0, 1), (0, 2), (1, 1)]
    partition = of(outside, ONE)
    assert rows[0]["lag"] == partition.end - outside.offsets[ONE][0]
    assert rows[0]["boundaries"] == list(partition.extent.boundaries or ())


@pytest.mark.parametrize(
    ("boundaries", "places"),
    [
        ((0, 2500, 5000, 5010), {ONE: (5010, TAIL_BYTES)}),
        ((4800, 5000, 5010), {ONE: (5010, 210)}),
        ((5010,), {}),
    ],
)
def test_the_last_bytes_are_compared_all_of_a_smaller_log_and_none_of_an_empty_one(
    boundaries: tuple[int, ...], places: dict[TopicPartition, tuple[int, int]]
) -> None:
    offsets = PartitionOffsets(boundaries[0], 5010, boundaries=boundaries)
    assert end_places({ONE: offsets, A: PartitionOffsets(0, 9)}) == places
