"""A cluster of very many brokers and partitions in one thread: each listens on its own port and
answers Kafka's bytes, written by hand.

`tests.fakes.broker` is the complete one, with records and every request; this one has only what
planning needs, and is cheap: one selector for all connections, numpy for the partitions of an
answer. All partitions of a topic are led in turn (`leader_of`), start at 0 and end at `end_offset`;
each record is younger than any requested time.

`python -m bench.many_brokers BROKERS TOPICS PARTITIONS` prints the first port; a line of
input is the new end of all partitions.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy

from etl.kafka.primitives import Reader

LIST_OFFSETS, METADATA, GROUPS, API_VERSIONS, LEADER_EPOCHS, CONFIGS, LOG_DIRS = (
    2,
    3,
    15,
    18,
    23,
    32,
    35,
)
FETCH, KAFKA_3_9 = (
    1,
    {1: (4, 13), 2: (1, 7), 3: (0, 12), 15: (0, 4), 18: (0, 0), 23: (2, 4), 32: (1, 3), 35: (1, 4)},
)
BYTES_PER_OFFSET, REPLICAS = 100, 3
_ASKED_OFFSETS = numpy.dtype(
    [("partition", ">i4"), ("epoch", ">i4"), ("time", ">i8"), ("tags", "u1")]
)
_OFFSETS = numpy.dtype(
    [
        ("partition", ">i4"),
        ("error", ">i2"),
        ("time", ">i8"),
        ("offset", ">i8"),
        ("epoch", ">i4"),
        ("tags", "u1"),
    ]
)
_ASKED_EPOCHS = numpy.dtype(
    [("partition", ">i4"), ("current", ">i4"), ("epoch", ">i4"), ("tags", "u1")]
)
_EPOCHS = numpy.dtype(
    [("error", ">i2"), ("partition", ">i4"), ("epoch", ">i4"), ("end", ">i8"), ("tags", "u1")]
)
_ASKED_SIZES = numpy.dtype([("partition", ">i4")])
_SIZES = numpy.dtype(
    [("partition", ">i4"), ("size", ">i8"), ("lag", ">i8"), ("future", "u1"), ("tags", "u1")]
)


class ManyBrokers:
    """`with ManyBrokers(brokers=3, topics=2, partitions=4) as cluster:` brokers 1 to 3 listen on
    127.0.0.1 at `ports`.

    requests    the number of requests of each kind to every broker: (broker, api key) -> count
    most_open   the largest number of open connections
    silent      brokers that read requests and answer none
    """

    def __init__(self, *, brokers: int, topics: int, partitions: int, end_offset: int = 0) -> None:
        self.topics = [f"topic-{number:04}" for number in range(topics)]
        self._numbers = {name: number for number, name in enumerate(self.topics)}
        self.partitions, self.end_offset, self.epoch = partitions, end_offset, 5
        self.requests: Counter[tuple[int, int]] = Counter()
        self.silent: set[int] = set()
        self.open = self.most_open = 0
        self._listeners = [
            socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(brokers)
        ]
        self.ports = [listener.getsockname()[1] for listener in self._listeners]
        self._selector = selectors.DefaultSelector()
        for broker_id, listener in enumerate(self._listeners, 1):
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, (broker_id, None))
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, (0, None))
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._bodies: dict[str, bytes] = {}

    def leader_of(self, topic: int, partition: int) -> int:
        """The broker's id."""
        return (topic * self.partitions + partition) % len(self.ports) + 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(b"\0")
        self._thread.join(5)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._wake.close()

    def serve(self) -> None:
        """Until the context ends."""
        while True:
            for key, _ in self._selector.select():
                broker_id, held = key.data
                if not broker_id:
                    return
                if held is None:
                    self._accept(key.fileobj, broker_id)  # type: ignore[arg-type]
                elif not self._read(key.fileobj, broker_id, held):  # type: ignore[arg-type]
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    self.open -= 1

    def _accept(self, listener: socket.socket, broker_id: int) -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, (broker_id, bytearray()))
        self.open += 1
        self.most_open = max(self.most_open, self.open)

    def _read(self, connection: socket.socket, broker_id: int, held: bytearray) -> bool:
        try:
            got = connection.recv(1 << 20)
        except OSError:
            return False
        held += got
        while len(held) >= 4 and len(held) >= 4 + int.from_bytes(held[:4], "big"):
            size = int.from_bytes(held[:4], "big")
            request = bytes(held[4 : 4 + size])
            del held[: 4 + size]
            self.requests[broker_id, int.from_bytes(request[:2], "big")] += 1
            if broker_id not in self.silent:
                answer = self._answer(broker_id, request)
                connection.sendall(len(answer).to_bytes(4, "big") + answer)
        return bool(got)

    def _answer(self, broker_id: int, request: bytes) -> bytes:
        key, version = struct.unpack_from(">hh", request)
        assert version == KAFKA_3_9[key][1], f"request {key} in version {version}"
        body = Reader(memoryview(request)[8:])
        body.span(body.int16(), "client id")
        is_flexible = key in (LIST_OFFSETS, METADATA, LEADER_EPOCHS, LOG_DIRS)
        if is_flexible:
            body.span(1, "tags")
        answer: bytes = _ANSWERS[key](self, broker_id, body)
        return request[4:8] + (b"\0" if is_flexible else b"") + answer

    def _api_versions(self, broker_id: int, body: Reader) -> bytes:
        return struct.pack(">hi", 0, len(KAFKA_3_9)) + b"".join(
            struct.pack(">hhh", key, *both) for key, both in KAFKA_3_9.items()
        )

    def _metadata(self, broker_id: int, body: Reader) -> bytes:
        count = body.unsigned_varint() - 1
        names = self.topics if count < 0 else [_asked_name(body) for _ in range(count)]
        brokers = b"".join(
            struct.pack(">i", number) + _text("127.0.0.1") + struct.pack(">iBB", port, 0, 0)
            for number, port in enumerate(self.ports, 1)
        )
        topics = b"".join(self._topic(name) for name in names)
        return (
            b"\0\0\0\0"
            + _count(len(self.ports))
            + brokers
            + _text("many-brokers")
            + struct.pack(">i", 1)
            + _count(len(names))
            + topics
            + b"\0"
        )

    def _topic(self, name: str) -> bytes:
        if name not in self._bodies:
            at = self._numbers[name]
            replicas = min(REPLICAS, len(self.ports))
            array = bytearray()
            for partition in range(self.partitions):
                leader = self.leader_of(at, partition)
                held = _count(replicas) + b"".join(
                    struct.pack(">i", (leader - 1 + more) % len(self.ports) + 1)
                    for more in range(replicas)
                )
                array += (
                    struct.pack(">hiii", 0, partition, leader, self.epoch)
                    + held
                    + held
                    + _count(0)
                    + b"\0"
                )
            self._bodies[name] = (
                struct.pack(">h", 0)
                + _text(name)
                + (at + 1).to_bytes(16, "big")
                + b"\0"
                + _count(self.partitions)
                + bytes(array)
                + struct.pack(">iB", -(2**31), 0)
            )
        return self._bodies[name]

    def _list_offsets(self, broker_id: int, body: Reader) -> bytes:
        body.span(5, "replica id and isolation")

        def answer_of(targets: Any) -> Any:
            reported = numpy.zeros(len(targets), _OFFSETS)
            reported["partition"], reported["epoch"], reported["time"] = (
                targets["partition"],
                self.epoch,
                -1,
            )
            reported["offset"] = numpy.where(targets["time"] == -1, self.end_offset, 0)
            return reported

        return b"\0\0\0\0" + _by_topic(body, _ASKED_OFFSETS, answer_of) + b"\0"

    def _leader_epochs(self, broker_id: int, body: Reader) -> bytes:
        body.span(4, "replica id")

        def answer_of(targets: Any) -> Any:
            reported = numpy.zeros(len(targets), _EPOCHS)
            reported["partition"], reported["epoch"], reported["end"] = (
                targets["partition"],
                targets["epoch"],
                self.end_offset,
            )
            return reported

        return b"\0\0\0\0" + _by_topic(body, _ASKED_EPOCHS, answer_of) + b"\0"

    def _log_dirs(self, broker_id: int, body: Reader) -> bytes:
        def answer_of(targets: Any) -> Any:
            reported = numpy.zeros(len(targets), _SIZES)
            reported["partition"], reported["size"] = (
                targets["partition"],
                self.end_offset * BYTES_PER_OFFSET,
            )
            return reported

        folder = (
            struct.pack(">h", 0)
            + _text("/logs")
            + _by_topic(body, _ASKED_SIZES, answer_of)
            + struct.pack(">qqB", -1, -1, 0)
        )
        return struct.pack(">ih", 0, 0) + _count(1) + folder + b"\0"

    def _groups(self, broker_id: int, body: Reader) -> bytes:
        body.span(4, "count")
        group = bytes(body.span(body.int16(), "group"))
        nothing = b"\0\0"
        return (
            struct.pack(">iih", 0, 1, 16)
            + _old_text(group)
            + nothing * 3
            + struct.pack(">ii", 0, -(2**31))
        )

    def _configs(self, broker_id: int, body: Reader) -> bytes:
        results = bytearray()
        count = body.int32()
        for _ in range(count):
            body.span(1, "type")
            name = bytes(body.span(body.int16(), "name"))
            for _ in range(body.int32()):
                body.span(body.int16(), "key")
            configs = b"".join(
                _old_text(key) + _old_text(value) + struct.pack(">BbBiBh", 0, 5, 0, 0, 2, -1)
                for key, value in ((b"cleanup.policy", b"delete"), (b"retention.ms", b"604800000"))
            )
            results += (
                struct.pack(">hhb", 0, -1, 2) + _old_text(name) + struct.pack(">i", 2) + configs
            )
        return struct.pack(">ii", 0, count) + bytes(results)


_ANSWERS: dict[int, Any] = {
    API_VERSIONS: ManyBrokers._api_versions,
    METADATA: ManyBrokers._metadata,
    LIST_OFFSETS: ManyBrokers._list_offsets,
    LEADER_EPOCHS: ManyBrokers._leader_epochs,
    LOG_DIRS: ManyBrokers._log_dirs,
    GROUPS: ManyBrokers._groups,
    CONFIGS: ManyBrokers._configs,
}


def _asked_name(body: Reader) -> str:
    body.span(16, "topic id")
    name = bytes(body.span(body.unsigned_varint() - 1, "topic")).decode()
    body.span(1, "tags")
    return name


def _by_topic(body: Reader, kind: numpy.dtype[Any], answer_of: Callable[[Any], Any]) -> bytes:
    """The topics of the answer to a question that names partitions topic by topic: a row for each
    of them.
    """
    topics, count = bytearray(), body.unsigned_varint() - 1
    for _ in range(count):
        name, request = _topic_of(body, kind)
        reported = answer_of(request)
        topics += name + _count(len(reported)) + reported.tobytes() + b"\0"
    return _count(count) + bytes(topics)


def _topic_of(body: Reader, kind: numpy.dtype[Any]) -> tuple[bytes, Any]:
    """The name as in the request, and the requested partitions."""
    name = bytes(body.span(body.unsigned_varint() - 1, "topic"))
    count = body.unsigned_varint() - 1
    request = numpy.frombuffer(body.span(count * kind.itemsize, "partitions"), kind)
    body.span(1, "tags")
    return _count(len(name)) + name, request


def _count(number: int) -> bytes:
    """A compact array's or text's length: one more, as an unsigned varint."""
    left, reported = number + 1, bytearray()
    while left > 0x7F:
        reported.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*reported, left))


def _text(text: str) -> bytes:
    return _count(len(text)) + text.encode()


def _old_text(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _ends(lines: Iterator[str], cluster: ManyBrokers) -> None:
    for line in lines:
        cluster.end_offset = int(line)
        print("done", flush=True)


def main(brokers: int, topics: int, partitions: int) -> None:
    """Until input ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # two files for each broker, plus the clients' own files
    with ManyBrokers(brokers=brokers, topics=topics, partitions=partitions) as cluster:
        print(*cluster.ports, flush=True)
        _ends(iter(sys.stdin), cluster)
        print(
            f"{cluster.most_open} connections at once, {sum(cluster.requests.values())} requests",
            file=sys.stderr,
        )
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
