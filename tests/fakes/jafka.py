"""A Jafka broker in memory, written after the protocol's description and its source; nothing of
ours but the scripts' acts and `registry_of`.

What it imitates: one request after the other and answers in their order, segments that no answer
crosses, a flushed mark, error codes of fetches, a closed connection for any other request that
cannot be served, logs that the first message makes. What it does not: ZooKeeper, time (every
segment was written "now"), retention by itself.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import socketserver
import struct
import threading
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.partitions import Broker, Leader, TopicPartition
from tests.fakes.broker import Act, as_it_is
from tests.fakes.sockets import exactly

PRODUCE, FETCH, MULTIFETCH, MULTIPRODUCE, OFFSETS, CREATE, DELETE = range(7)
OUT_OF_RANGE, WRONG_PARTITION, UNKNOWN = 1, 3, -1
GZIP, SNAPPY = 1, 2


def entry(payload: bytes, codec: int = 0) -> bytes:
    """One entry of a message set, magic 1."""
    return struct.pack(">ibbI", 6 + len(payload), 1, codec, zlib.crc32(payload)) + payload


def old_entry(payload: bytes) -> bytes:
    return struct.pack(">ibI", 5 + len(payload), 0, zlib.crc32(payload)) + payload


def wrapped(*entries: bytes) -> bytes:
    return entry(gzip.compress(b"".join(entries), mtime=0), GZIP)


def registry_of(
    broker: JafkaBroker, broker_id: int, *topics: str
) -> Callable[[Collection[str] | None], ClusterMetadata]:
    """ZooKeeper's word for one broker and its topics; without topics: those that have a log."""
    there = Broker(broker_id, broker.host, broker.port, "jafka")

    def registered(_: Collection[str] | None) -> ClusterMetadata:
        known = topics or sorted({topic for topic, _ in broker.logs})
        partitions = {
            topic: tuple(
                PartitionMetadata(TopicPartition(topic, number, broker_id), None, Leader(there))
                for number in range(broker.partitions)
            )
            for topic in known
        }
        reported = {
            topic: TopicMetadata(topic, None, None, False, its) for topic, its in partitions.items()
        }
        return ClusterMetadata(None, {broker_id: there}, reported)

    return registered


class HangUp(Exception):
    """What the broker does about a request that it cannot serve."""


@dataclass
class JafkaLog:
    """One log: its entries, where its segments begin, and how far it is flushed."""

    content: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=lambda: [0])
    """Of the segments; the first one moves when the oldest is deleted."""
    flushed: int = 0

    @property
    def end(self) -> int:
        return len(self.content)

    def roll(self) -> None:
        """A new segment, from the end on; the data before it is flushed."""
        self.flushed = self.end
        if self.starts[-1] != self.end:
            self.starts.append(self.end)

    def expire(self) -> None:
        self.starts.pop(0)

    def offsets(self, time: int, most: int) -> list[int]:
        # The broker's own list ends with the flushed end, if its last segment has a byte.
        known = self.starts + ([self.flushed] if self.end > self.starts[-1] else [])
        if time == -2:
            return known[:1][:most]
        # Its search by time goes one entry too far; every segment is younger than any requested
        # time.
        return known[::-1][:most] if time == -1 else []

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        if not self.starts[0] <= offset <= self.flushed:
            return OUT_OF_RANGE, b""
        until = min([start for start in self.starts if start > offset] + [self.flushed])
        return 0, bytes(self.content[offset : min(until, offset + size)])


@dataclass
class JafkaBroker:
    """Topics with partitions; its requests are recorded, its answers may be scripted."""

    partitions: int = 1
    flush_every: int = 1
    max_message_bytes: int = 1 << 20
    segment_bytes: int = 1 << 30
    counts: dict[str, int] = field(default_factory=dict)
    logs: dict[tuple[str, int], JafkaLog] = field(default_factory=dict)
    requests: list[tuple[int, bytes]] = field(default_factory=list)
    script: defaultdict[int, deque[Act]] = field(default_factory=lambda: defaultdict(deque))
    connections: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    _unflushed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def listening(self) -> Iterator[JafkaBroker]:
        broker = self

        class Serve(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, EOFError, HangUp):
                    broker._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close = True, False

        with Server((self.host, self.port), Serve) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(
                target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
            )
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join(10)

    def append(self, topic: str, partition: int, *entries: bytes) -> int:
        """As a producer's request would; where the log ends then."""
        self._append(topic, partition, b"".join(entries))
        return self.logs[topic, partition].end

    def flush(self) -> None:
        for partition in self.logs.values():
            partition.flushed = partition.end

    def _serve(self, connection: socket.socket) -> None:
        self.connections += 1
        while True:
            size = int.from_bytes(exactly(connection, 4), "big", signed=True)
            if not 0 < size <= 100 << 20:
                return
            request = exactly(connection, size)
            kind = int.from_bytes(request[:2], "big", signed=True)
            with self._lock:
                self.requests.append((kind, request[2:]))
                acts = self.script[kind]
                act = acts.popleft() if acts else as_it_is
                answer = self._answer(kind, _Body(request[2:]))
            if answer is not None:
                act(connection, struct.pack(">i", len(answer)) + answer)

    def _answer(self, kind: int, body: _Body) -> bytes | None:
        if kind == PRODUCE:
            topic, partition, size = body.string(), body.int32(), body.int32()
            self._append(topic, partition, body.take(size))
            return None
        if kind == FETCH:
            return self._fetch(body)
        if kind == MULTIFETCH:
            parts = [self._fetch(body) for _ in range(body.int16())]
            return b"\0\0" + b"".join(struct.pack(">i", len(part)) + part for part in parts)
        if kind == OFFSETS:
            return self._offsets(body.string(), body.int32(), body.int64(), body.int32())
        if kind == CREATE:
            topic, wanted, enlarges = body.string(), body.int32(), body.take(1) == b"\1"
            self._valid(topic)
            if enlarges and wanted > self._count(topic):
                self.counts[topic] = wanted
            return struct.pack(">hii", 0, 1, self._count(topic))
        if kind == DELETE:
            return struct.pack(">hii", 0, 1, self._delete(body.string()))
        raise HangUp

    def _count(self, topic: str) -> int:
        return self.counts.get(topic, self.partitions)

    def _valid(self, topic: str) -> None:
        if (
            not topic
            or len(topic) > 255
            or topic in (".", "..")
            or "/" in topic
            or any(ord(each) < 32 for each in topic)
        ):
            raise HangUp

    def _fetch(self, body: _Body) -> bytes:
        topic, partition, offset, size = body.string(), body.int32(), body.int64(), body.int32()
        if size < 0:
            raise AssertionError("a negative size was sent")
        try:
            self._valid(topic)
        except HangUp:
            return struct.pack(">h", UNKNOWN)
        if not 0 <= partition < self._count(topic):
            return struct.pack(">h", WRONG_PARTITION)
        topic_partition = self.logs.get((topic, partition))
        code, found = (0, b"") if topic_partition is None else topic_partition.read(offset, size)
        return struct.pack(">h", code) + found

    def _offsets(self, topic: str, partition: int, time: int, most: int) -> bytes:
        self._valid(topic)
        if not 0 <= partition < self._count(topic):
            raise HangUp
        topic_partition = self.logs.get((topic, partition))
        found = [] if topic_partition is None else topic_partition.offsets(time, most)
        return struct.pack(f">hi{len(found)}q", 0, len(found), *found)

    def _append(self, topic: str, partition: int, messages: bytes) -> None:
        self._valid(topic)
        if partition >= self._count(topic):
            raise HangUp
        at = 0
        while at < len(messages):
            size, magic, attributes = struct.unpack_from(">ibb", messages, at)
            payload, crc = (
                messages[at + 10 : at + 4 + size],
                int.from_bytes(messages[at + 6 : at + 10], "big"),
            )
            if (
                magic != 1
                or attributes & 3 not in (0, GZIP)
                or len(payload) > self.max_message_bytes
                or zlib.crc32(payload) != crc
            ):
                raise HangUp
            at += 4 + size
            self._unflushed += 1
        for number in range(self._count(topic)):
            self.logs.setdefault((topic, number), JafkaLog())
        topic_partition = self.logs[topic, max(partition, 0)]
        topic_partition.content += messages
        if self._unflushed >= self.flush_every:
            self._unflushed = 0
            self.flush()
        if topic_partition.end - topic_partition.starts[-1] >= self.segment_bytes:
            topic_partition.roll()

    def _delete(self, topic: str) -> int:
        gone = [partition for partition in self.logs if partition[0] == topic]
        for partition in gone:
            del self.logs[partition]
        return len(gone)


@dataclass
class _Body:
    content: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.content):
            raise HangUp
        self.at += size
        return self.content[self.at - size : self.at]

    def string(self) -> str:
        return self.take(self.int16()).decode()

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)
