"""Other members of a Kafka group: confluent-kafka's consumers, with their reads and commits."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from etl.testkit.server_process import wait_until
from tests.system.driving import WITHOUT_SPARK, Pipeline
from tests.traffic.rows import Row, hash_of

WITHIN_S = 60
ASKED_WITHIN_S = 2
"""In a rebalance the coordinator may not answer before its end."""
MEMBER: dict[str, Any] = {
    **WITHOUT_SPARK,
    "group": {"offsets_storage": "kafka", "mode": "join", "join": {"session_timeout_s": 6}},
}
"""What a conf has of a run that is a member of Kafka's own group, and reads without Spark."""


class OtherMember:
    """One consumer in a thread. A record counts as read once an offset after it is committed.

    A commit may be rejected although the partition stays (KIP-848); the record then belongs to the
    next commit.
    """

    def __init__(self, pipeline: Pipeline, **settings: Any) -> None:
        self._topic, self._ends = pipeline.topic, threading.Event()
        self.read: Counter[Row] = Counter()
        self.owned = frozenset[int]()
        self._alone, self._rested = 0, threading.Event()
        self._uncommitted: dict[int, list[Row]] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": pipeline.cluster.bootstrap,
                "group.id": pipeline.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(WITHIN_S)

    def owns(self, count: int) -> None:
        assert wait_until(lambda: len(self.owned) == count, WITHIN_S), self.owned

    def owns_some(self) -> None:
        assert wait_until(lambda: bool(self.owned), WITHIN_S), "it gets none"

    def has_read(self, count: int) -> None:
        assert wait_until(lambda: self.read.total() >= count, WITHIN_S), self.read.total()

    def rests_while_it_owns(self, count: int) -> None:
        """Wait until it reads nothing, which it does not while it owns so many partitions."""
        self._alone = count
        assert self._rested.wait(WITHIN_S), f"it reads on, and owns {self.owned}"

    def _run(self) -> None:
        consumer = self._consumer
        consumer.subscribe([self._topic], on_revoke=self._revoked, on_lost=self._lost)
        while not self._ends.is_set():
            self._rest(consumer.assignment())
            message = consumer.poll(0.05)
            self.owned = frozenset(each.partition for each in consumer.assignment())
            if message is None or message.error():
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            row = (partition, offset, hash_of(message.value()))
            self._uncommitted.setdefault(partition, []).append(row)
            with contextlib.suppress(KafkaException):
                consumer.commit(message=message, asynchronous=False)
                self._count(partition, offset + 1)
        consumer.close()

    def _rest(self, owned: list[TopicPartition]) -> None:
        """Or continue, once another one owns some partitions."""
        if owned and len(owned) == self._alone:
            self._consumer.pause(owned)
            self._rested.set()
        elif self._rested.is_set():
            self._consumer.resume(owned)
            self._rested.clear()

    def _count(self, partition: int, until: int) -> None:
        there = self._uncommitted.get(partition, [])
        self.read.update(row for row in there if row[1] < until)
        self._uncommitted[partition] = [row for row in there if row[1] >= until]

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """No other member has them yet: the committed offsets are ours, whichever answer came."""
        with contextlib.suppress(KafkaException):
            for found in consumer.committed(partitions, timeout=ASKED_WITHIN_S):
                self._count(found.partition, found.offset)
        self._lost(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._uncommitted.pop(each.partition, None)


CLASSIC: Mapping[str, Any] = {
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 300,
    "partition.assignment.strategy": "range",
}


@contextlib.contextmanager
def another_member(pipeline: Pipeline, **settings: Any) -> Iterator[OtherMember]:
    member = OtherMember(pipeline, **(settings or CLASSIC))
    try:
        yield member
    finally:
        member.close()


def at_first(
    kind: type, name: str, patched: pytest.MonkeyPatch, do: Callable[[Any], object], *, before: bool
) -> None:
    """Something else happens at the first call of this method."""
    real, left = getattr(kind, name), [do]

    def called(self: Any, *given: Any, **more: Any) -> Any:
        first = left.pop() if left else None
        if first and before:
            first(None)
        found = real(self, *given, **more)
        if first and not before:
            first(found)
        return found

    patched.setattr(kind, name, called)
