"""What Jafka and Kafka 0.8 have in common here: no client library of today speaks to them.

Messages go over sockets of our own, encoded by `tests.fakes.message_sets`, one set of every codec
in turn; and a topic is read from the brokers' own files, past every broker.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.testkit.brokers import Kafka
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.fakes.sockets import read_frame
from tests.traffic.rows import Message, Row

_AT_ONCE = 20
_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class OldLog:
    """One log and the broker that has it."""

    broker: Kafka
    topic: str
    partition: int

    def files(self, suffix: str) -> list[tuple[int, bytes]]:
        """Its segments: the base offset of each, and its content."""
        folder = self.broker.folder / "data" / f"{self.topic}-{self.partition}"
        return sorted((int(path.stem), path.read_bytes()) for path in folder.glob(f"*{suffix}"))


class OldTraffic(ABC):
    """See `choice.Traffic`. Sending is refused with OSError."""

    place: tuple[str, ...]
    conf: Mapping[str, Any]

    @abstractmethod
    def logs(self, cluster: EmbeddedCluster, topic: str) -> list[OldLog]:
        """All logs of a topic, as ZooKeeper has them."""

    @abstractmethod
    def encode(self, messages: Sequence[Message], number: int) -> bytes:
        """A message set; `number` chooses the codec."""

    @abstractmethod
    def append(self, partition: OldLog, content: bytes) -> None:
        """Return when the broker has it."""

    @abstractmethod
    def rows(self, partition: OldLog) -> Iterator[Row]:
        """Every message of a log."""

    def create_topic(
        self,
        cluster: EmbeddedCluster,
        name: str,
        partitions: int,
        *,
        replication_factor: int,
        config: Mapping[str, str] | None,
    ) -> None:
        cluster.create_topic(name, partitions, replication_factor=replication_factor, config=config)

    def load(
        self, cluster: EmbeddedCluster, topic: str, first: int, count: int, partitions: int
    ) -> None:
        assert len(self.logs(cluster, topic)) == partitions, (
            f"the topic has {len(self.logs(cluster, topic))} logs"
        )
        with self.sending(cluster, topic) as send:
            for start in range(first, first + count, _AT_ONCE):
                send(
                    [
                        _event(number)
                        for number in range(start, min(start + _AT_ONCE, first + count))
                    ]
                )

    @contextlib.contextmanager
    def sending(
        self, cluster: EmbeddedCluster, topic: str
    ) -> Iterator[Callable[[Sequence[Message]], None]]:
        partitions, numbers = self.logs(cluster, topic), itertools.count()

        def send(messages: Sequence[Message]) -> None:
            turn, at = divmod(next(numbers), len(partitions))
            self.append(partitions[at], self.encode(messages, turn))

        yield send

    def in_topic(self, cluster: EmbeddedCluster, topic: str) -> Counter[Row]:
        return Counter(
            row for partition in self.logs(cluster, topic) for row in self.rows(partition)
        )


@contextlib.contextmanager
def asking(broker: Kafka) -> Iterator[Callable[[bytes], Callable[[], bytes]]]:
    """`ask(request)` sends a frame; its result waits. OSError if the broker hangs up."""
    with socket.create_connection((HOST, broker.port), timeout=_WITHIN_S) as connection:

        def answer() -> bytes:
            frame = read_frame(connection)
            if frame is None:
                raise ConnectionError(f"{broker.bootstrap} does not answer")
            return frame[4:]

        def ask(request: bytes) -> Callable[[], bytes]:
            connection.sendall(len(request).to_bytes(4, "big") + request)
            return answer

        yield ask


def string(text: str) -> bytes:
    """Its length in two bytes, then its bytes."""
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def _event(number: int) -> Message:
    """A click event; every fiftieth has no value."""
    return b"user-%d" % (number % 97), None if number % 50 == 49 else b'{"event": %d, "ms": %d}' % (
        number,
        number % 977,
    )
