"""A pipeline, and a member of a group, on each release, compared with its own consumer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.errors import NotKafka, SettingsError
from etl.model.partitions import BrokerFamily, GroupProtocol
from tests.brokers.compiling import number_of
from tests.brokers.groups import Group
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.brokers.writing import FETCH_BYTES, ForeignPipeline
from tests.command_result import refused, run_etl
from tests.system.driving import broken_off_before


def test_records_of_foreign_producers_are_in_the_table_once_also_after_a_crash(
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    """Every codec, null and size; and a run that ends between its Delta commit and the offsets."""
    pipeline = make_pipeline(source={"fetch_max_bytes": FETCH_BYTES})
    pipeline.write_every_kind()
    assert pipeline.door("run", after=["--dry-run"]).code == 0
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    pipeline.write_more()
    broken_off_before("commit", pipeline)
    pipeline.write_more()
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0


def test_the_consumers_of_a_release_follow_what_we_assign_and_we_what_they_do(
    stage: KafkaStage | JafkaStage,
) -> None:
    if isinstance(stage, JafkaStage) or stage.release < (0, 9):
        return  # these have no coordinator
    group = Group(stage, stage.new_topic(), GroupProtocol.CLASSIC, "range")
    with group.joined() as (first, share):
        assert share.partitions == group.logs
        with group.foreign():
            group.divided(first)
            first.leave()
            group.theirs(group.logs)
            with group.joined() as (second, _):
                group.divided(second)
    with group.joined() as (third, share):
        assert share.partitions == group.logs and third.statistics.lost == 0, (
            "the last member owns all partitions again"
        )


def test_what_a_release_has_no_group_protocol_for_is_refused_with_what_it_speaks(
    stage: KafkaStage | JafkaStage,
) -> None:
    topic = stage.new_topic()
    error = SettingsError if isinstance(stage, KafkaStage) else NotKafka
    for protocol, least in ((GroupProtocol.CLASSIC, (0, 9)), (GroupProtocol.CONSUMER, (4,))):
        if isinstance(stage, KafkaStage) and number_of(stage.version) >= least:
            continue
        with pytest.raises(error):
            Group(stage, topic, protocol, "range").member().join()  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["0.8.2.2"], indirect=True)
def test_a_broker_version_above_the_brokers_own_is_reported_as_that_setting(
    stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline]
) -> None:
    for version in ("0.9", "0.10.0", "0.11", "2.8", "4.1"):
        pipeline = make_pipeline(source={"broker_version": version, "request_timeout_s": 5})
        result = pipeline.door("run", after=["--dry-run"])
        refused(result, 2, f"treated as Kafka {version}", "like Kafka 0.8", "source.broker_version")
    pipeline = make_pipeline(source={"broker_version": "0.8"})
    assert pipeline.door("run", after=["--dry-run"]).code == 0


KEY_COLUMNS = {
    BrokerFamily.KAFKA: ["partition", "offset"],
    BrokerFamily.JAFKA: ["broker_id", "partition", "offset", "message_index"],
}


@pytest.mark.brokers
@pytest.mark.parametrize("family", [pytest.param(one, id=one.value) for one in BrokerFamily])
def test_the_demo_ends_with_every_record_in_its_table_once(
    family: BrokerFamily, tmp_path: Path
) -> None:
    options = ("--broker-type", family.value, "--records", "8000")
    result = run_etl("demo", *options, "--folder", str(tmp_path / "demo"), "--json")
    assert result.code == 0, result.err
    reported = result.document
    assert (reported["produced"], reported["in_the_table"]) == (9600, 9600)
    assert (reported["verified"], reported["killed_by_signal"]) == (True, 9)
    columns = KEY_COLUMNS[family]
    rows = DeltaTable(reported["table"]).to_pyarrow_table(columns=columns).to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows) == 9600
    outcomes = [[one["outcome"] for one in run["outcomes"]] for run in reported["runs"]]
    assert outcomes == [["ingested"], ["plan_completed", "ingested"], ["up_to_date"]]
    assert not (tmp_path / "demo" / "cluster").exists()
