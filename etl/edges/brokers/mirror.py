"""A pipeline's positions as committed offsets of a Kafka group, so that ordinary lag monitors see
batch jobs. Written, and never gone by.

The group has no members: offsets are committed from outside of any (generation -1), which its
coordinator takes only while nobody is in the group. The word beside each offset says who wrote it,
`etl:<group>/<pipeline>:<number>`, and an offset with another word is somebody else's: a group whose
consumers are stopped for an hour has no members either, and would begin where we wrote; and another
pipeline's positions are no lag of this one. Earlier versions left the group out: such a word is
ours where the pipeline's name is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from etl.edges.brokers.cluster import Cluster
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import BrokerPartition

_MARK = "etl:"


class Writer(NamedTuple):
    """A pipeline as the words beside offsets name it."""

    group: str
    pipeline: str

    @property
    def words(self) -> tuple[str, str]:
        """How its words begin: today, and of earlier versions."""
        return f"{_MARK}{self.group}/{self.pipeline}:", f"{_MARK}{self.pipeline}:"


def mirror_positions(
    cluster: Cluster,
    group: str,
    positions: Mapping[BrokerPartition, int],
    *,
    writer: Writer,
    taken: Collection[Writer] = (),
    number: int,
) -> dict[BrokerPartition, str]:
    """Commit these positions of plan `number`, but where somebody else's offset stands: those logs
    are returned, in order, with its word.

    What pipelines wrote whose place was `taken` is written over. Raises what the brokers refuse it
    with: BrokerError where consumers are alive in the group, SettingsError before Kafka 0.8.2.
    """
    ours = tuple(word for one in (writer, *taken) for word in one.words)

    def write(consumer: SimpleConsumer) -> dict[BrokerPartition, str]:
        there = consumer.fetch_offsets(group, positions.keys())
        words = {
            log: told.metadata for log, told in sorted(there.items()) if told.offset is not None
        }
        others = {log: word for log, word in words.items() if not word.startswith(ours)}
        left = {log: offset for log, offset in positions.items() if log not in others}
        if left:
            consumer.commit_offsets(group, left, metadata=f"{writer.words[0]}{number}")
        return others

    return cluster.first(write)
