"""A broker of Kafka 0.8.2 or 0.9.0 on a real socket, its requests and answers written by hand after
the protocol's tables.

It speaks what those releases speak, reads nothing of what it does not know, and does with that what
they do: 0.8 closes the connection, 0.9 leaves the request unanswered and reads on. A topic that
Metadata names is made, as with `auto.create.topics.enable`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tests.fakes.listening import listening

Item = TypeVar("Item")
SPOKEN = {
    "0.8": {1: (0,), 2: (0,), 3: (0,), 8: (0, 1), 9: (0, 1), 10: (0,)},
    "0.9": {1: (0, 1), 2: (0,), 3: (0,), 8: (0, 1, 2), 9: (0, 1), 10: (0,), 15: (0,)},
}
FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, COORDINATOR, GROUPS, API_VERSIONS = (
    1,
    2,
    3,
    8,
    9,
    10,
    15,
    18,
)
LATEST, EARLIEST = -1, -2


def message(offset: int, value: bytes | None, key: bytes | None = None) -> bytes:
    """One entry of a message set of format v0."""
    body = struct.pack(">bb", 0, 0) + _bytes32(key) + _bytes32(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@dataclass
class OldLog:
    """Messages by their bytes, and when the segments were written."""

    messages: list[bytes] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """First offset and time of the last write in milliseconds, oldest first."""
    hidden: int = 0
    """Messages at the end that are above the high watermark."""

    @property
    def start(self) -> int:
        return self.segments[0][0]

    @property
    def end(self) -> int:
        return struct.unpack_from(">q", self.messages[-1])[0] + 1 if self.messages else self.start

    @property
    def high(self) -> int:
        return self.end - self.hidden

    def append(self, *values: bytes) -> None:
        for value in values:
            self.messages.append(message(self.end, value))


@dataclass
class OldBroker:
    """`with OldBroker("0.9").listening() as broker:` answers at `broker.port`.

    requests   (api key, version) of every request that came, whether it was understood or not
    """

    release: str
    logs: dict[tuple[str, int], OldLog] = field(default_factory=dict)
    committed: dict[tuple[str, str, int, bool], int] = field(default_factory=dict)
    """(group, topic, partition, whether in ZooKeeper) -> offset."""
    requests: list[tuple[int, int]] = field(default_factory=list)
    before_answer: dict[int, Callable[[socket.socket], None]] = field(default_factory=dict)
    """Api key -> what happens once instead of the next answer."""
    hangs_up: bool | None = None
    """On what it does not know; None: as its release does. Some distributors' 0.9 do
    (0.9.0-kafka-2.0.2 of CDH).
    """
    fails: bool = False
    """Fetches are answered with the error without details."""
    port: int = 0
    connections: int = 0

    def log(self, topic: str, partition: int = 0) -> OldLog:
        return self.logs.setdefault((topic, partition), OldLog())

    @contextlib.contextmanager
    def listening(self) -> Iterator[OldBroker]:
        with listening(self._serve, side_by_side=True) as self.port:
            yield self

    def _serve(self, connection: socket.socket) -> None:
        self.connections += 1
        with connection.makefile("rb") as stream:
            while size := stream.read(4):
                request = stream.read(int.from_bytes(size, "big"))
                key, version, number = struct.unpack_from(">hhi", request)
                self.requests.append((key, version))
                if version not in SPOKEN[self.release].get(key, ()):
                    if self.release == "0.8" if self.hangs_up is None else self.hangs_up:
                        return
                    continue
                if instead := self.before_answer.pop(key, None):
                    instead(connection)
                requested = _RequestReader(request)
                requested.take(">hhi")
                requested.string()
                answer = struct.pack(">i", number) + _ANSWERS[key](self, requested, version)
                assert not requested.left, "the request is longer than its version"
                connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _metadata(self, request: _RequestReader, version: int) -> bytes:
        named = request.array(request.string)
        for topic in named:
            self.log(topic)
        names = named or sorted({topic for topic, _ in self.logs})
        topics = [
            struct.pack(">h", 0)
            + _string(name)
            + _array(
                struct.pack(">hii", 0, partition, 1) + _array([_int32(1)]) + _array([_int32(1)])
                for topic, partition in sorted(self.logs)
                if topic == name
            )
            for name in names
        ]
        return _array([_int32(1) + _string("127.0.0.1") + _int32(self.port)]) + _array(topics)

    def _list_offsets(self, request: _RequestReader, version: int) -> bytes:
        request.take(">i")

        def partition(topic: str) -> bytes:
            number, time_ms, most = request.take(">iqi")
            topic_partition = self.logs.get((topic, number))
            found = (
                [] if topic_partition is None else _offsets_before(topic_partition, time_ms)[:most]
            )
            return struct.pack(">ih", number, 3 if topic_partition is None else 0) + _array(
                struct.pack(">q", offset) for offset in found
            )

        return _by_topic(request, partition)

    def _fetch(self, request: _RequestReader, version: int) -> bytes:
        request.take(">iii")

        def partition(topic: str) -> bytes:
            number, offset, max_bytes = request.take(">iqi")
            topic_partition = self.logs.get((topic, number))
            is_hidden = (
                topic_partition is not None and topic_partition.high < offset <= topic_partition.end
            )
            if topic_partition is None:
                code = 3
            elif self.fails or is_hidden:
                code = -1
            elif topic_partition.start <= offset <= topic_partition.high:
                code = 0
            else:
                code = 1
            if topic_partition is None or code:
                found = b""
            else:
                found = b"".join(
                    each
                    for each in topic_partition.messages
                    if offset <= struct.unpack_from(">q", each)[0] < topic_partition.high
                )
            return struct.pack(
                ">ihq",
                number,
                code,
                -1 if topic_partition is None or code else topic_partition.high,
            ) + _bytes32(found[:max_bytes])

        return (_int32(0) if version else b"") + _by_topic(request, partition)

    def _offset_commit(self, request: _RequestReader, version: int) -> bytes:
        group = request.string()
        if version >= 1:
            assert request.take(">i") == (-1,) and request.string() == "", (
                "a commit from outside of any membership"
            )
        if version >= 2:
            request.take(">q")

        def partition(topic: str) -> bytes:
            number, offset = request.take(">iq")
            if version == 1:
                request.take(">q")
            request.string()
            self.committed[group, topic, number, version == 0] = offset
            return struct.pack(">ih", number, 0)

        return _by_topic(request, partition)

    def _offset_fetch(self, request: _RequestReader, version: int) -> bytes:
        group = request.string()

        def partition(topic: str) -> bytes:
            (number,) = request.take(">i")
            offset = self.committed.get((group, topic, number, version == 0), -1)
            return (
                struct.pack(">iq", number, offset)
                + _string("")
                + struct.pack(">h", 3 if version == 0 and offset < 0 else 0)
            )

        return _by_topic(request, partition)

    def _coordinator(self, request: _RequestReader, version: int) -> bytes:
        request.string()
        return struct.pack(">hi", 0, 1) + _string("127.0.0.1") + _int32(self.port)

    def _groups(self, request: _RequestReader, version: int) -> bytes:
        names = request.array(request.string)
        return _array(
            struct.pack(">h", 0)
            + _string(name)
            + _string("Dead")
            + _string("")
            + _string("")
            + _int32(0)
            for name in names
        )


_ANSWERS: dict[int, Callable[[OldBroker, _RequestReader, int], bytes]] = {
    FETCH: OldBroker._fetch,
    LIST_OFFSETS: OldBroker._list_offsets,
    METADATA: OldBroker._metadata,
    OFFSET_COMMIT: OldBroker._offset_commit,
    OFFSET_FETCH: OldBroker._offset_fetch,
    COORDINATOR: OldBroker._coordinator,
    GROUPS: OldBroker._groups,
}


def _offsets_before(partition: OldLog, time_ms: int) -> list[int]:
    """Newest first; the end counts as written now."""
    if time_ms == EARLIEST:
        return [partition.start]
    starts = [
        first
        for first, written_ms in partition.segments
        if time_ms == LATEST or written_ms <= time_ms
    ]
    return [*([partition.high] if time_ms == LATEST else []), *reversed(starts)]


def _by_topic(request: _RequestReader, partition: Callable[[str], bytes]) -> bytes:
    def topic() -> bytes:
        name = request.string()
        return _string(name) + _array(request.array(lambda: partition(name)))

    return _array(request.array(topic))


class _RequestReader:
    """The bytes of a request, front to back."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return found

    def string(self) -> str:
        (length,) = self.take(">h")
        self._at += length
        return self._content[self._at - length : self._at].decode()

    def array(self, item: Callable[[], Item]) -> list[Item]:
        return [item() for _ in range(self.take(">i")[0])]


def _array(items: Iterable[bytes]) -> bytes:
    found = list(items)
    return _int32(len(found)) + b"".join(found)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _int32(number: int) -> bytes:
    return struct.pack(">i", number)


def _bytes32(content: bytes | None) -> bytes:
    return _int32(-1) if content is None else _int32(len(content)) + content
