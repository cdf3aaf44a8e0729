"""Offsets of a group on each release, also with `group.offsets_storage: dual`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etl.errors import MembershipLost, SettingsError
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import TopicPartition
from etl.run.discovery import Discovery
from etl.run.observe import GroupOffsets
from etl.settings.load import load_settings
from etl.testkit.server_process import HOST
from tests.brokers.compiling import number_of
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.brokers.writing import ForeignPipeline, many
from tests.command_result import CommandResult, refused, run_etl

END = 10
CASES = tuple(itertools.product((None, 3, 7), repeat=2))
"""The committed offsets in ZooKeeper and in Kafka, of one partition each."""
of_both = pytest.mark.parametrize("stage", ["0.8.2.2", "3.9.1"], indirect=True)


@dataclass
class TwoPlaces:
    """A pipeline on a topic with a partition per case, and another client of each place."""

    pipeline: ForeignPipeline
    zookeeper: ZooKeeper
    kafka: SimpleConsumer

    @property
    def logs(self) -> list[TopicPartition]:
        return [TopicPartition(self.pipeline.topic, number) for number in range(len(CASES))]

    def in_zookeeper(self, partition: TopicPartition, offset: int) -> None:
        """As an old consumer writes: whatever stands there."""
        path = GroupPaths(self.pipeline.group).offset(partition)
        self.zookeeper.client.ensure_path(path)
        self.zookeeper.client.set(path, b"%d" % offset)

    def in_kafka(self, partition: TopicPartition, offset: int) -> None:
        self.kafka.commit_offsets(self.pipeline.group, {partition: offset}, metadata="theirs")

    def there(self) -> list[tuple[int | None, int | None]]:
        reported = self.kafka.fetch_offsets(self.pipeline.group, self.logs)
        found = [
            self.zookeeper.read(GroupPaths(self.pipeline.group).offset(partition))
            for partition in self.logs
        ]
        return [
            (int(one[0]) if one else None, reported[partition].offset)
            for one, partition in zip(found, self.logs, strict=True)
        ]

    def restored(self) -> CommandResult:
        words = ("ledger", "restore", str(self.pipeline.conf), "--reason", "seen")
        return run_etl(*words, "--yes", "--json")


@pytest.fixture
def places(stage: KafkaStage, unused_group: str, tmp_path: Path) -> Iterator[TwoPlaces]:
    topic = stage.new_topic(len(CASES))
    settings = {
        **stage.conf,
        "table": {"writer": "auto"},
        "limits": {"local_below_bytes": 2**30},
        "group": {"offsets_storage": "dual"},
    }
    pipeline = ForeignPipeline(stage.cluster, tmp_path, topic, unused_group, settings, stage=stage)
    with (
        ZooKeeper(stage.cluster.zookeeper_connect) as session,
        SimpleConsumer(HOST, stage.cluster.brokers[0].port) as consumer,
    ):
        found = TwoPlaces(pipeline, session, consumer)
        for partition, (zookeeper, kafka) in zip(found.logs, CASES, strict=True):
            if zookeeper is not None:
                found.in_zookeeper(partition, zookeeper)
            if kafka is not None:
                found.in_kafka(partition, kafka)
        yield found


@of_both
def test_of_two_places_the_larger_offset_is_read_in_each_of_the_nine_cases(
    places: TwoPlaces,
) -> None:
    settings = load_settings(str(places.pipeline.conf))
    found = GroupOffsets(
        settings, places.zookeeper, Discovery(settings, places.zookeeper)
    ).committed(places.logs)
    for partition, (zookeeper, kafka) in zip(places.logs, CASES, strict=True):
        larger = max((one for one in (zookeeper, kafka) if one is not None), default=None)
        there = found.get(partition)
        assert (there and there.offset) == larger
        assert (there and there.differing) == (
            None if zookeeper == kafka else (zookeeper, kafka)
        ), "that they differ is known"


@pytest.mark.brokers
@of_both
def test_a_run_begins_at_the_larger_offset_commits_both_and_stops_if_one_goes_back(
    places: TwoPlaces,
    stage: KafkaStage,
) -> None:
    pipeline, plain = places.pipeline, next(iter(stage.writers.values()))

    def produce() -> None:
        for partition in places.logs:
            plain(pipeline.topic, partition.partition, many(END))

    produce()
    assert pipeline.ran().outcomes == ["ingested"]
    assert places.there() == [(END, END)] * len(CASES)
    starts = [max((one for one in case if one is not None), default=0) for case in CASES]
    assert len(pipeline.in_table_seen()) == sum(END - start for start in starts)
    goes_back: list[Callable[[TopicPartition, int], None]] = [places.in_zookeeper, places.in_kafka]
    for set_back in goes_back:
        partition, before = places.logs[4], len(pipeline.in_table_seen())
        set_back(partition, 4)
        refused(pipeline.run(), 5, "it is 4, ours is ")
        assert 4 in places.there()[4] and len(pipeline.in_table_seen()) == before, (
            "the run reports the moved offset and does not undo it"
        )
        assert places.restored().code == 0
        produce()
        assert pipeline.ran().code == 0
        [end] = {offset for one in places.there() for offset in one}
        assert len(pipeline.in_table_seen()) == before + END * len(CASES), end
    assert pipeline.door("verify").code == 0


@pytest.mark.brokers
def test_offsets_are_kept_with_their_metadata_and_a_former_member_stores_none(
    stage: KafkaStage | JafkaStage,
    unused_group: str,
) -> None:
    host, _, port = stage.cluster.brokers[0].bootstrap.rpartition(":")
    topic = stage.new_topic()
    first, second = (TopicPartition(topic, partition) for partition in range(2))
    broker_type = "jafka" if isinstance(stage, JafkaStage) else None
    with SimpleConsumer(host, int(port), request_timeout_s=60, broker_type=broker_type) as consumer:
        if isinstance(stage, JafkaStage):
            with pytest.raises(SettingsError, match="cannot report the coordinator"):
                consumer.commit_offsets(unused_group, {first: 42})
            return
        consumer.commit_offsets(
            unused_group, {first: 42}, metadata="etl:clicks:7:abc", leader_epochs={first: 0}
        )
        found = consumer.fetch_offsets(unused_group, [first, second], require_stable=True)
        assert (found[first].offset, found[first].metadata) == (42, "etl:clicks:7:abc")
        assert (found[second].offset, found[second].metadata) == (None, "")
        if stage.release >= (0, 9):  # before that, any commit is accepted
            with pytest.raises(MembershipLost):
                consumer.commit_offsets(
                    unused_group, {first: 43}, generation=5, member_id="never-joined"
                )

        def offset(**where: Any) -> int | None:
            return consumer.fetch_offsets(unused_group, [first], **where)[first].offset

        if number_of(stage.version) < (4,):
            assert offset(in_zookeeper=True) is None
            consumer.commit_offsets(unused_group, {first: 7}, in_zookeeper=True)
            assert offset(in_zookeeper=True) == 7
        if number_of(stage.version) >= (4, 1):
            topic_ids = {topic: consumer.topic_metadata([topic]).topics[topic].topic_id or ""}
            consumer.commit_offsets(unused_group, {first: 44}, topic_ids=topic_ids)
            assert offset(topic_ids=topic_ids) == 44
        elif stage.release >= (0, 9):
            assert offset() == 42
