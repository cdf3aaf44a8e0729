"""A pipeline's positions as committed offsets of a Kafka group, so that ordinary lag monitors see batch jobs. Written, and never gone by.

The group has no members: offsets are committed from outside of any (generation -1), which its coordinator takes only while nobody is in
the group. The word beside each offset says who wrote it, and an offset with another word is somebody else's: a group whose consumers are
stopped for an hour has no members either, and would begin where we wrote.
"""

from __future__ import annotations

from collections.abc import Mapping

from etl.edges.brokers.cluster import Cluster
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.model.logs import BrokerPartition

_MARK = "etl:"


def mirror_positions(
    cluster: Cluster, group: str, positions: Mapping[BrokerPartition, int], *, pipeline: str, number: int,
) -> tuple[BrokerPartition, ...]:
    """Commit these positions of plan `number`, but where somebody else's offset stands: those logs are returned, in order.

    Raises what the brokers refuse it with: BrokerError where consumers are alive in the group, SettingsError before Kafka 0.8.2.
    """
    def write(consumer: SimpleConsumer) -> tuple[BrokerPartition, ...]:
        there = consumer.fetch_offsets(group, positions.keys())
        others = {log for log, told in there.items() if told.offset is not None and not told.metadata.startswith(_MARK)}
        ours = {log: offset for log, offset in positions.items() if log not in others}
        if ours:
            consumer.commit_offsets(group, ours, metadata=f"{_MARK}{pipeline}:{number}")
        return tuple(sorted(others))

    return cluster.first(write)
