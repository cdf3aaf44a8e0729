"""Clients that are not ours, each from the jars of the broker's own version: they write what we
read, and read it too.

One process of it takes many commands, for a JVM's start is half of a test.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from etl.model.partitions import TopicPartition
from etl.testkit.brokers import JAFKA, Kafka, release_jars
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import find_java
from tests.brokers.compiling import SOURCES, compiled

KeyValue = tuple[bytes | None, bytes | None]
WITHIN_S = 240
_JVM = ("-Xmx512m", "-XX:+UseSerialGC")
_SHORT = "-XX:TieredStopAtLevel=1"
_AHEAD = 100
"""How many commands Java has of us beyond the one that it is at."""


@dataclass(frozen=True, slots=True, order=True)
class Seen:
    """One message as a client that is not ours saw it."""

    broker: int
    partition: int
    offset: int
    index: int
    """Within its outer entry on Jafka, else 0."""
    key: bytes | None
    value: bytes | None


class Process:
    """A Java program of ours that answers lines with lines."""

    def __init__(
        self,
        name: str,
        version: str,
        folder: Path,
        *arguments: str,
        sources: Path = SOURCES,
        is_short: bool = True,
    ) -> None:
        """`is_short`: what it computes is not worth a JVM's second compiler."""
        self._said = folder / f"{name}.log"
        path = ":".join(map(str, [compiled(version, sources), *release_jars(version)]))
        java = [str(find_java()), *_JVM, *([_SHORT] if is_short else [])]
        self._command = [*java, "-cp", path, name, *arguments]
        self._answers: queue.Queue[str] = queue.Queue()

    def ask(self, *words: object) -> list[list[str]]:
        """One command; the words of each line of its answer. Fails the test if it failed."""
        return next(self.ask_each([words]))

    def ask_each(self, commands: Iterable[Sequence[object]]) -> Iterator[list[list[str]]]:
        """The answers to many commands that are sent at once. Fails the test as `ask`."""
        under_way: deque[Sequence[object]] = deque()
        for words in commands:
            self._send(words)
            under_way.append(words)
            if len(under_way) > _AHEAD:
                yield self._answer(under_way.popleft())
        while under_way:
            yield self._answer(under_way.popleft())

    def _send(self, words: Sequence[object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def _answer(self, words: Sequence[object]) -> list[list[str]]:
        lines = list(self._lines())
        assert lines[-1] == ["done"], (
            f"{words[:6]}: {' '.join(lines[-1])}\n{self._said.read_text()[-3000:]}"
        )
        return lines[:-1]

    @property
    def pid(self) -> int:
        return self._process.pid

    def count(self, name: str) -> int:
        """How many records a member of a group, of that name, has read by now."""
        return int(self.ask("count", name)[0][0])

    def _lines(self) -> Iterator[list[str]]:
        while True:
            words = self._answers.get(timeout=WITHIN_S).split(" ")
            yield words
            if words[0] in ("done", "failed"):
                return

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.rstrip("\n"))
        self._answers.put("failed it ended")

    def __enter__(self) -> Self:
        with self._said.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class JafkaClients(Process):
    """Jafka's producer, simple consumer and high-level consumer."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        super().__init__("Jafka", JAFKA, folder, cluster.zookeeper_connect)

    def send(
        self, broker: Kafka, topic: str, partition: int, values: Sequence[bytes], codec: int = 0
    ) -> None:
        """One produce request; codec 1 is gzip. It has no answer; `end` is the log end after it."""
        self.ask("send", *broker.bootstrap.split(":"), topic, partition, codec, *map(_word, values))

    def scatter(self, topic: str, values: Sequence[bytes], codec: int = 0) -> None:
        """One request each, to the broker that the producer finds in ZooKeeper."""
        self.ask("scatter", topic, codec, *map(_word, values))

    def read(
        self, broker: Kafka, topic: str, partition: int, fetch_size: int = 1 << 20
    ) -> list[Seen]:
        """Return all messages, with the offset of their entry, and their index in it.

        Jafka's consumer reports another offset: the start of the entry, and for the last message
        in it its end.
        """
        found: list[Seen] = []
        start = index = 0
        place = (*broker.bootstrap.split(":"), topic, partition, 0, fetch_size)
        for offset, key, value in self.ask("read", *place):
            message = (_bytes(key), _bytes(value))
            found.append(Seen(broker.broker_id, partition, start, index, *message))
            start, index = (start, index + 1) if int(offset) == start else (int(offset), 0)
        return found

    def end(self, broker: Kafka, topic: str, partition: int) -> int:
        return int(self.ask("end", *broker.bootstrap.split(":"), topic, partition)[0][0])

    def join(self, group: str, topic: str, count: int) -> list[bytes | None]:
        """The `count` messages that a member of a group reads before it commits and goes."""
        return [_bytes(value) for _, value in self.ask("join", group, topic, count)]

    def open(
        self, name: str, group: str, topic: str, *, backoff_ms: int, tries: int, threads: int = 1
    ) -> None:
        """A member of a group. Fails the test if it gets no share by so many tries."""
        settings = ("rebalance.backoff.ms", backoff_ms, "rebalance.retries.max", tries)
        self.ask("open", name, group, topic, threads, *settings)

    def close(self, name: str) -> list[bytes | None]:
        return [_bytes(value) for (value,) in self.ask("close", name)]


class ScalaClients(Process):
    """Kafka's producer, simple consumer and high-level consumer in Scala, of 0.8 to 1.1."""

    def __init__(self, cluster: EmbeddedCluster, version: str, folder: Path) -> None:
        super().__init__(
            "ScalaClients", version, folder, cluster.bootstrap, cluster.zookeeper_connect
        )

    def send(
        self, topic: str, partition: int, records: Sequence[KeyValue], codec: str = "none"
    ) -> None:
        """One produce request; with a codec one wrapper."""
        self.ask("send", topic, partition, codec, *_words(records))

    def read(
        self, broker: Kafka, topic: str, partition: int, fetch_size: int = 1 << 20
    ) -> list[Seen]:
        lines = self.ask("read", *broker.bootstrap.split(":"), topic, partition, 0, fetch_size)
        return [
            Seen(0, partition, int(offset), 0, _bytes(key), _bytes(value))
            for offset, key, value in lines
        ]

    def join(self, group: str, topic: str, count: int) -> list[Seen]:
        """The `count` messages that a member of a group reads before it commits and goes."""
        return _seen(self.ask("join", group, topic, count))

    def open(
        self,
        name: str,
        group: str,
        topic: str,
        *,
        backoff_ms: int,
        tries: int,
        threads: int = 1,
        strategy: str = "range",
    ) -> None:
        """A member of a group. Fails the test if it gets no share by so many tries."""
        settings = ("rebalance.backoff.ms", backoff_ms, "rebalance.max.retries", tries)
        strategies = ("partition.assignment.strategy", strategy)
        self.ask("open", name, group, topic, threads, *settings, *strategies)

    def close(self, name: str) -> list[Seen]:
        return _seen(self.ask("close", name))


class JavaProducer(Process):
    """Kafka's producer in Java, 0.8.2 on."""

    def __init__(
        self, cluster: EmbeddedCluster, version: str, folder: Path, *, name: str = "JavaProducer"
    ) -> None:
        super().__init__(name, version, folder, cluster.bootstrap)

    def send(
        self,
        topic: str,
        partition: int,
        records: Sequence[KeyValue],
        codec: str = "none",
        *,
        ending: str = "plain",
    ) -> None:
        """One batch; `ending` is "commit" or "abort" when it is a transaction's."""
        self.ask("send", topic, partition, codec, ending, *_words(records))


class JavaClients(JavaProducer):
    """With Kafka's consumer in Java, 0.9 on."""

    def __init__(self, cluster: EmbeddedCluster, version: str, folder: Path) -> None:
        super().__init__(cluster, version, folder, name="JavaClients")

    def read(self, topic: str, partition: int) -> list[Seen]:
        """Everything that a reader of committed records is given."""
        lines = self.ask("read", topic, partition, 0)
        return [
            Seen(0, partition, int(offset), 0, _bytes(key), _bytes(value))
            for offset, key, value, _ in lines
        ]

    def enter(self, name: str, group: str, topic: str, **settings: object) -> None:
        """Have a consumer join a group, and poll; settings with `_` for `.`."""
        words = (word for key, value in settings.items() for word in (key.replace("_", "."), value))
        self.ask("enter", name, group, topic, *words)

    def owns(self, name: str) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic, int(partition)) for topic, partition in self.ask("owns", name)
        )

    def changes(self, name: str) -> int:
        """How often it was given logs, or some were taken from it."""
        return int(self.ask("changes", name)[0][0])

    def exit(self, name: str) -> list[Seen]:
        """Have it leave; what it read and committed."""
        return _seen(self.ask("exit", name))


def _seen(lines: Sequence[Sequence[str]]) -> list[Seen]:
    """Of lines "PARTITION OFFSET KEY VALUE"."""
    return [
        Seen(0, int(partition), int(offset), 0, _bytes(key), _bytes(value))
        for partition, offset, key, value in lines
    ]


def _words(records: Sequence[KeyValue]) -> list[str]:
    return [_word(one) for record in records for one in record]


def _word(value: bytes | None) -> str:
    return "-" if value is None else f"x{value.hex()}"


def _bytes(word: str) -> bytes | None:
    return None if word == "-" else bytes.fromhex(word[1:])
