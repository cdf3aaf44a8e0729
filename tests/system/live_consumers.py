"""Kafka's own groups by another client: a live consumer that holds its partitions while a test looks, and the offsets of a group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from etl.embedded.server import wait_until
from tests.system.driving import Pipeline


@contextlib.contextmanager
def consuming(pipeline: Pipeline, group: str, *, partitions: int) -> Iterator[KafkaConsumer]:
    """A member of `group` called `somebody` that has all `partitions` of the pipeline's topic, until the context ends.

    A poll that ends before the group let its member in begins anew, and the broker waits 3 s for more members of a new
    group: a short poll may never get in on a slow machine. A member that joined before it knew the topic's partitions
    gets none, and joins again when it looks at the topics next, which by default is five minutes later.
    """
    with contextlib.closing(KafkaConsumer(
            pipeline.topic, bootstrap_servers=pipeline.cluster.bootstrap, group_id=group, client_id="somebody", enable_auto_commit=False,
            session_timeout_ms=120_000, metadata_max_age_ms=2_000)) as consumer:
        assert wait_until(lambda: consumer.poll(timeout_ms=10_000) is not None and len(consumer.assignment()) == partitions, 180)
        yield consumer


def offsets_of(pipeline: Pipeline, group: str) -> dict[int, tuple[int, str]]:
    """Offset and word of each partition of the pipeline's topic, as Kafka's group has them."""
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap)) as admin:
        found: Any = admin.list_group_offsets(group)
        return {at.partition: (one.offset, one.metadata) for at, one in found[group].items() if at.topic == pipeline.topic}


def committed_by_another(pipeline: Pipeline, offsets: Mapping[int, int]) -> None:
    """Offsets that somebody commits from outside of the group, which has no members."""
    consumer = KafkaConsumer(bootstrap_servers=pipeline.cluster.bootstrap, group_id=pipeline.group, enable_auto_commit=False)
    with contextlib.closing(consumer):
        logs = {TopicPartition(pipeline.topic, partition): OffsetAndMetadata(offset, "mine", -1) for partition, offset in offsets.items()}
        consumer.assign(list(logs))
        consumer.commit(logs)


def forget_group(pipeline: Pipeline) -> None:
    """As a broker does once `offsets.retention.minutes` are over."""
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap)) as admin:
        admin.delete_groups([pipeline.group])
