"""A group's offsets on each release: kept with their words, in two places where there are two, and
fenced where there are members.
"""

from __future__ import annotations

import pytest

from etl.errors import MembershipLost, SettingsError
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import TopicPartition
from tests.brokers.compiling import number_of
from tests.brokers.stage import JafkaStage, KafkaStage


@pytest.mark.brokers
def test_offsets_are_kept_with_their_words_by_every_kafka_and_a_member_of_the_past_stores_none(
    stage: KafkaStage | JafkaStage,
    unused_group: str,
) -> None:
    host, _, port = stage.cluster.brokers[0].bootstrap.rpartition(":")
    topic = stage.new_topic()
    first, second = (TopicPartition(topic, partition) for partition in range(2))
    generation = "jafka" if isinstance(stage, JafkaStage) else None
    with SimpleConsumer(host, int(port), request_timeout_s=60, generation=generation) as consumer:
        if isinstance(stage, JafkaStage):
            with pytest.raises(
                SettingsError, match="Brokers of this type cannot report the coordinator"
            ):
                consumer.commit_offsets(unused_group, {first: 42})
            return
        consumer.commit_offsets(
            unused_group, {first: 42}, metadata="etl:clicks:7:abc", leader_epochs={first: 0}
        )
        found = consumer.fetch_offsets(unused_group, [first, second], require_stable=True)
        assert {
            topic_partition: (reported.offset, reported.metadata)
            for topic_partition, reported in found.items()
        } == {
            first: (42, "etl:clicks:7:abc"),
            second: (None, ""),
        }
        if stage.release >= (0, 9):  # before that, any commit is accepted
            with pytest.raises(MembershipLost):
                consumer.commit_offsets(
                    unused_group, {first: 43}, generation=5, member_id="never-joined"
                )
        if number_of(stage.version) < (4,):
            assert (
                consumer.fetch_offsets(unused_group, [first], in_zookeeper=True)[first].offset
                is None
            )
            consumer.commit_offsets(unused_group, {first: 7}, in_zookeeper=True)
            assert (
                consumer.fetch_offsets(unused_group, [first], in_zookeeper=True)[first].offset == 7
            )
        if number_of(stage.version) >= (4, 1):
            topic_ids = {topic: consumer.topic_metadata([topic]).topics[topic].topic_id or ""}
            consumer.commit_offsets(unused_group, {first: 44}, topic_ids=topic_ids)
            assert (
                consumer.fetch_offsets(unused_group, [first], topic_ids=topic_ids)[first].offset
                == 44
            )
        elif stage.release >= (0, 9):
            assert consumer.fetch_offsets(unused_group, [first])[first].offset == 42
