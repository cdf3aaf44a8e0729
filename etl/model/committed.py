"""Where a group keeps its offsets, and what one of them was when somebody looked: the expected side
of compare-and-set.

In ZooKeeper the version of a znode tells that somebody wrote it since. A group's coordinator has no
such thing: there the word beside the offset tells whose commit it is, and every plan of ours writes
another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class OffsetsStorage(str, Enum):
    """Where the group's offsets are; plans are in ZooKeeper in every case."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    """In the group's coordinator (0.8.2 and later)."""
    DUAL = "dual"
    """In both, while consumers go from one to the other; the larger one counts."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's **next** offset, and what tells whether it was written since."""

    offset: int | None = None
    """None: there is none. Kept in both places, the larger one."""
    version: int | None = None
    """Of its znode; None without one, or where offsets are in Kafka."""
    word: str | None = None
    """What stands beside it in Kafka: of a plan of this pipeline `<number>:<id>`, else as it is
    there; None: nothing is stored there.
    """
    apart: tuple[int | None, int | None] | None = None
    """Kept in both places, where they differ: the offset in ZooKeeper, and in Kafka."""

    @property
    def in_zookeeper(self) -> Committed:
        """That side of it."""
        return Committed(self.apart[0] if self.apart else self.offset, self.version)

    @property
    def in_kafka(self) -> Committed:
        """The other one."""
        return Committed(self.apart[1] if self.apart else self.offset, None, self.word)

    def moved(self, to: int, word: str, storage: OffsetsStorage) -> Committed:
        """What there is once a plan with that word has moved it there: one write further, in the
        places that were elsewhere.
        """
        if storage is OffsetsStorage.ZOOKEEPER:
            return Committed(to, 0 if self.version is None else self.version + 1)
        if storage is OffsetsStorage.KAFKA:
            return Committed(to, None, word)
        zookeeper, kafka = self.in_zookeeper, self.in_kafka
        if zookeeper.offset != to:
            zookeeper = zookeeper.moved(to, word, OffsetsStorage.ZOOKEEPER)
        if kafka.offset != to:
            kafka = replace(kafka, offset=to, word=word)
        return Committed(to, zookeeper.version, kafka.word)

    def is_at(self, position: int) -> bool:
        """Whether it is there in each place."""
        return self.offset == position and self.apart is None


NOTHING_COMMITTED = Committed()
