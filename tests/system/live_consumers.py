"""A live consumer of a group in Kafka, and the offsets of a group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from etl.testkit.server_process import wait_until
from tests.system.driving import Pipeline


@contextlib.contextmanager
def consuming(pipeline: Pipeline, group: str, *, partitions: int) -> Iterator[None]:
    """The member `other-consumer` of `group` owns all `partitions` of the pipeline's topic, until
    the context ends.

    It is a librdkafka consumer, which joins and stays without polls. kafka-python's joins only
    inside a poll, which takes its whole time without records.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": pipeline.cluster.bootstrap,
            "group.id": group,
            "client.id": "other-consumer",
            "enable.auto.commit": False,
            "session.timeout.ms": 120_000,
        }
    )

    def has_all() -> bool:
        consumer.poll(0.05)
        return len(consumer.assignment()) == partitions

    with contextlib.closing(consumer):
        consumer.subscribe([pipeline.topic])
        assert wait_until(has_all, 180)
        yield


def offsets_of(pipeline: Pipeline, group: str) -> dict[int, tuple[int, str]]:
    """Offset and word of each partition of the pipeline's topic, as Kafka's group has them."""
    with contextlib.closing(
        KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap)
    ) as admin:
        found: Any = admin.list_group_offsets(group)
        return {
            at.partition: (one.offset, one.metadata)
            for at, one in found[group].items()
            if at.topic == pipeline.topic
        }


def committed_by_another(pipeline: Pipeline, offsets: Mapping[int, int]) -> None:
    """Commit offsets without a membership, to a group that has no members."""
    consumer = KafkaConsumer(
        bootstrap_servers=pipeline.cluster.bootstrap,
        group_id=pipeline.group,
        enable_auto_commit=False,
    )
    with contextlib.closing(consumer):
        partitions = {
            TopicPartition(pipeline.topic, partition): OffsetAndMetadata(offset, "mine", -1)
            for partition, offset in offsets.items()
        }
        consumer.assign(list(partitions))
        consumer.commit(partitions)


def forget_group(pipeline: Pipeline) -> None:
    """As a broker does once `offsets.retention.minutes` are over."""
    with contextlib.closing(
        KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap)
    ) as admin:
        admin.delete_groups([pipeline.group])
