"""Members of Kafka's own group that are not ours: confluent-kafka's consumers, which read, commit, and say what they have committed."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException

from etl.embedded.server import wait_until
from tests.system.driving import Pipeline
from tests.traffic.rows import Row, hash_of

WITHIN_S = 60


class OtherMember:
    """One consumer in a thread of its own. A record counts as read once it is committed."""

    def __init__(self, pipeline: Pipeline, **settings: Any) -> None:
        self._topic, self._ends = pipeline.topic, threading.Event()
        self.read: Counter[Row] = Counter()
        self.owned = frozenset[int]()
        self._consumer = Consumer({
            "bootstrap.servers": pipeline.cluster.bootstrap, "group.id": pipeline.group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", **settings})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the group."""
        self._ends.set()
        self._thread.join(WITHIN_S)

    def owns(self, count: int) -> None:
        """Wait until it owns so many partitions."""
        assert wait_until(lambda: len(self.owned) == count, WITHIN_S), self.owned

    def has_read(self, count: int) -> None:
        """Wait until it has read so many records."""
        assert wait_until(lambda: self.read.total() >= count, WITHIN_S), self.read.total()

    def _run(self) -> None:
        consumer = self._consumer
        consumer.subscribe([self._topic])
        while not self._ends.is_set():
            message = consumer.poll(0.05)
            self.owned = frozenset(each.partition for each in consumer.assignment())
            if message is None or message.error():
                continue
            with contextlib.suppress(KafkaException):  # what it may not commit any more is another member's
                consumer.commit(message=message, asynchronous=False)
                self.read[message.partition(), message.offset(), hash_of(message.value())] += 1
        consumer.close()


CLASSIC: Mapping[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300, "partition.assignment.strategy": "range"}


@contextlib.contextmanager
def another_member(pipeline: Pipeline, **settings: Any) -> Iterator[OtherMember]:
    """A member until the context ends."""
    member = OtherMember(pipeline, **(settings or CLASSIC))
    try:
        yield member
    finally:
        member.close()
