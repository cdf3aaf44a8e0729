"""The few requests that embedded brokers of every generation are asked, as bytes: whether they are
ready, and for a topic of Jafka's.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from etl.embedded.server import HOST

_WITHIN_S = 60.0
_METADATA = 3
_JAFKA_PRODUCE, _JAFKA_CREATE = 0, 5


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a broker tells of its cluster."""

    brokers: frozenset[int]
    controller: int | None
    """None where the version does not tell (0); -1 while there is none."""
    leaders: Mapping[str, Mapping[int, int]]
    """Of each topic's partitions; -1 for none."""


def metadata(port: int, *, version: int) -> Metadata:
    """Metadata of version 0 (0.8 on) with all topics, for by name it may create one; or of 1 (0.10
    to 4.x) with none.

    Raises OSError, also when the connection ends early.
    """
    return parse_metadata(
        _asked(port, struct.pack(">hhihi", _METADATA, version, 0, 0, 0)), version=version
    )


def parse_metadata(content: bytes, *, version: int) -> Metadata:
    """The body of an answer, from its correlation id on."""
    answer = _Answer(content)
    answer.integer()
    brokers = set()
    for _ in range(answer.integer()):
        brokers.add(answer.integer())
        answer.text()
        answer.integer()
        if version:
            answer.text()
    controller = answer.integer() if version else None
    leaders: dict[str, dict[int, int]] = {}
    for _ in range(answer.integer()):
        answer.short()
        led = leaders[answer.text()] = {}
        for _ in range(answer.integer()):
            answer.short()
            partition, led[partition] = answer.integer(), answer.integer()
            for _replicas_then_in_sync in range(2):
                for _ in range(answer.integer()):
                    answer.integer()
    return Metadata(frozenset(brokers), controller, leaders)


def create_jafka_topic(port: int, name: str, partitions: int) -> None:
    """Make the logs of a topic on one Jafka broker. Raises OSError."""
    topic = struct.pack(">h", len(name.encode())) + name.encode()
    _asked(port, struct.pack(">h", _JAFKA_CREATE) + topic + struct.pack(">iB", partitions, 1))
    # The create request does nothing for as many partitions as the broker gives by itself. A
    # produce request makes the logs, and no message is in it.
    with _told(
        port, struct.pack(">h", _JAFKA_PRODUCE) + topic + struct.pack(">ii", 0, 0)
    ) as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # it has no answer: the broker hangs up when it has read it


def _asked(port: int, request: bytes) -> bytes:
    """One request and the body of its answer."""
    with _told(port, request) as connection, connection.makefile("rb") as answer:
        return _exactly(answer, *struct.unpack(">i", _exactly(answer, 4)))


def _exactly(answer: io.BufferedReader, size: int) -> bytes:
    read = answer.read(size)
    if len(read) < size:
        raise ConnectionError("the broker hung up")
    return read


def _told(port: int, request: bytes) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=_WITHIN_S)
    connection.sendall(struct.pack(">i", len(request)) + request)
    return connection


class _Answer(io.BytesIO):
    def short(self) -> int:
        return int.from_bytes(self.read(2), signed=True)

    def integer(self) -> int:
        return int.from_bytes(self.read(4), signed=True)

    def text(self) -> str:
        return self.read(max(self.short(), 0)).decode()
