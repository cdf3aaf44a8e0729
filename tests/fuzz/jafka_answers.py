"""Answers of a Jafka, by their requests: the first byte selects one."""

from __future__ import annotations

from typing import Any

from etl.kafka.broker_type_interface import Request
from etl.kafka.jafka_broker_type import JafkaProtocol
from etl.kafka.request_values import EARLIEST, LATEST, Fetch, FetchTarget
from etl.model.partitions import Isolation, TopicPartition
from tests.fakes.jafka import entry
from tests.fuzz import records

_DIALECT = JafkaProtocol("b:9092")
_LOGS = [TopicPartition("clicks", number, 3) for number in range(3)]
_HELLO = entry(b"hello")


def _fetch(partitions: int) -> Request[Any]:
    return _DIALECT.fetch(
        Fetch(
            tuple(FetchTarget(partition, 0, 100) for partition in _LOGS[:partitions]),
            Isolation.READ_COMMITTED,
            1 << 20,
            0,
            1,
        )
    )


_REQUESTS: tuple[Request[Any], ...] = (
    _fetch(1),
    _fetch(3),
    _DIALECT.list_offsets({_LOGS[0]: LATEST}, Isolation.READ_COMMITTED, {}),
    _DIALECT.list_offsets(dict.fromkeys(_LOGS, EARLIEST), Isolation.READ_COMMITTED, {}),
    _DIALECT.offsets_before(_LOGS[0], LATEST, 5),
    _DIALECT.create_topic("clicks", 3),
    _DIALECT.append(_LOGS[0], _HELLO, timestamp_ms=0, timeout_ms=0),
    _DIALECT.delete_topic("clicks", "secret"),
)
_FETCHES = 2
"""The first requests are fetches."""

ANSWERS = tuple(
    bytes([which]) + bytes.fromhex(answer)
    for which, answer in (
        (0, "0000" + _HELLO.hex()),
        (0, "0001"),
        (1, "0000 00000011 0000" + _HELLO.hex() + "00000002 0003 00000002 ffff"),
        (2, "0000 00000002 000000000000001f 0000000000000000"),
        (
            3,
            "0000000e 0000 00000001 0000000000000007 00000006 0000 00000000 0000000e 0000 "
            "00000001 0000000000000000",
        ),
        (4, "0000 00000002 000000000000001f 0000000000000000"),
        (5, "0000 00000001 00000003"),
        (5, "0000 00000001 ffffffff"),
        (6, "0000 00000001 000000000000001f"),
        (7, "0000 00000001 00000003"),
        (7, "0000 00000001 ffffffff"),
    )
)
FETCHED = (ANSWERS[0], bytes([1]) + bytes.fromhex("0000" + 3 * ("00000011 0000" + _HELLO.hex())))
REFUSED = ANSWERS[1:3]


def read(content: bytes) -> object:
    """Raises CorruptData and nothing else."""
    request = _REQUESTS[content[0] % len(_REQUESTS) if content else 0]
    return request.read(memoryview(content[1:])).answer


def to_rows(content: bytes) -> None:
    """From the bytes of an answer to a fetch to Arrow batches. The high bit of the first byte: let
    the CRCs be wrong.
    """
    mark = content[0] if content else 0
    for fetched in (
        _REQUESTS[(mark & 0x7F) % _FETCHES]
        .read(memoryview(bytearray(content[1:])))
        .answer.partitions
    ):
        records.physical_fetch(fetched, is_sealed=not mark & 0x80)
