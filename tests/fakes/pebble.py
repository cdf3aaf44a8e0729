"""Pebble, an invented broker type, and one such broker: the minimum that a broker type must
implement.

A request is a letter and JSON after its size, without numbers, and answers come in order. Records
are record batches v2.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from etl.errors import BrokerError, BrokerRefusal, Meaning, TopicMissing
from etl.kafka.broker_type_interface import BrokerProtocol, BrokerType, Greeting, Reply, Request
from etl.kafka.request_values import (
    EARLIEST,
    ClusterMetadata,
    Fetch,
    FetchAnswer,
    FetchedPartition,
    ListedOffset,
    PartitionMetadata,
    TopicMetadata,
)
from etl.model.partitions import Broker, BrokerPartition, Isolation, Leader
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.listening import listening

HELLO = b"pebble at your service"
REFUSALS = {
    "gone": BrokerRefusal(1, "gone", True, TopicMissing, "the topic's name", Meaning.UNKNOWN_TOPIC),
    "outside": BrokerRefusal(2, "outside", False, BrokerError, "the offset", Meaning.OUT_OF_RANGE),
}


class Pebble(BrokerType):
    """Greeted with the letter h."""

    names = ("pebble",)
    is_told = False

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        return Greeting(
            "hello",
            _framed("h", client_id),
            lambda start: bytes(start) == HELLO[:4],
            lambda answer: PebbleDialect(),
        )


class PebbleDialect(BrokerProtocol):
    """The five operations that every broker type has."""

    def introduction(self) -> str:
        return "a pebble"

    def number_of(self, start: memoryview) -> int | None:
        return None

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        def read(value: Any) -> ClusterMetadata:
            broker = Broker(7, value["host"], value["port"])
            return ClusterMetadata(
                "pebbles",
                {7: broker},
                {name: _topic(name, count, broker) for name, count in value["topics"].items()},
            )

        return _request(
            "t",
            None if topics is None else sorted(topics),
            lambda answer: read(json.loads(bytes(answer))),
        )

    def list_offsets(
        self,
        times: Mapping[BrokerPartition, int],
        isolation: Isolation,
        epochs: Mapping[BrokerPartition, int | None],
    ) -> Request[dict[BrokerPartition, ListedOffset]]:
        logs = list(times)

        def read(answer: memoryview) -> dict[BrokerPartition, ListedOffset]:
            return {
                log: ListedOffset(log, None, offset, None, None)
                for log, offset in zip(logs, json.loads(bytes(answer)), strict=True)
            }

        return _request(
            "o", [[log.topic, log.partition, times[log] == EARLIEST] for log in logs], read
        )

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        def read(answer: memoryview) -> FetchAnswer:
            at = 4 + int.from_bytes(answer[:4], "big")
            partitions = []
            for target, (refusal, end, size) in zip(
                fetch.wanted, json.loads(bytes(answer[4:at])), strict=True
            ):
                records, at = answer[at : at + size], at + size
                partitions.append(
                    FetchedPartition(
                        target.log.topic,
                        target.log.partition,
                        REFUSALS.get(refusal),
                        end,
                        None,
                        0,
                        (),
                        records,
                        proves_empty=len(fetch.wanted) == 1,
                    )
                )
            return FetchAnswer(0, None, tuple(partitions))

        return _request(
            "f",
            [
                [each.log.topic, each.log.partition, each.offset, each.max_bytes]
                for each in fetch.wanted
            ],
            read,
        )


def _topic(name: str, partitions: int, broker: Broker) -> TopicMetadata:
    logs = tuple(
        PartitionMetadata(BrokerPartition(name, number), None, Leader(broker, None))
        for number in range(partitions)
    )
    return TopicMetadata(name, None if partitions else REFUSALS["gone"], None, False, logs)


def _request(letter: str, request: Any, read: Callable[[memoryview], Any]) -> Request[Any]:
    return Request(lambda number: _framed(letter, request), lambda answer: Reply(read(answer)))


def _framed(letter: str, request: Any) -> bytes:
    content = letter.encode() + json.dumps(request).encode()
    return len(content).to_bytes(4, "big") + content


@dataclass
class PebbleBroker:
    """Stores record batches of ten; closes the connection of a client with another protocol."""

    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    port: int = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[PebbleBroker]:
        with listening(self._serve) as self.port:
            yield self

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as requests:
            while size := requests.read(4):
                request = requests.read(int.from_bytes(size, "big"))
                if request[:1] not in b"htof":
                    return
                answer = {
                    "h": lambda request: HELLO,
                    "t": self._topics,
                    "o": self._offsets,
                    "f": self._fetch,
                }[chr(request[0])](json.loads(request[1:]))
                connection.sendall(len(answer).to_bytes(4, "big") + answer)

    def _topics(self, request: list[str] | None) -> bytes:
        names = {topic for topic, _ in self.ends} if request is None else request
        counts = {name: sum(topic == name for topic, _ in self.ends) for name in names}
        return json.dumps({"host": "127.0.0.1", "port": self.port, "topics": counts}).encode()

    def _offsets(self, request: list[tuple[str, int, bool]]) -> bytes:
        return (
            json.dumps(
                [
                    0 if is_start else self.ends[topic, partition]
                    for topic, partition, is_start in request
                ]
            )
            .encode()
            .ljust(4)
        )

    def _fetch(self, request: list[tuple[str, int, int, int]]) -> bytes:
        reported, records = [], b""
        for topic, partition, offset, _ in request:
            end = self.ends[topic, partition]
            found = b"" if offset >= end else encode(_ten_from(offset // 10 * 10))
            reported.append(["outside" if offset > end else None, end, len(found)])
            records += found
        head = json.dumps(reported).encode()
        return len(head).to_bytes(4, "big") + head + records


def _ten_from(base_offset: int) -> Batch:
    return Batch(base_offset, [Rec(delta, b"%d" % (base_offset + delta)) for delta in range(10)])
