"""The second reader of topics without a client library: the brokers' own files, with known bytes,
and never half of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etl.testkit.brokers import JAFKA, Kafka
from tests.traffic.jafka import JafkaTraffic
from tests.traffic.kafka_08 import Kafka08Traffic
from tests.traffic.old import OldLog
from tests.traffic.rows import Row, hash_of

HELLO, CHINESE = b"hello", bytes.fromhex("e4b8ade69687")
PLAIN = bytes.fromhex("0000000b01003610a68668656c6c6f 0000000c01005a09ed37e4b8ade69687")
"""Seen in the log file of a real Jafka."""
IN_GZIP = bytes.fromhex(
    "0000003a01010138c0e3 "
    "1f8b08000000000002ff636060e06664301358d696919a9393cfc0c0c0c3c810c5f9d6fcc98eb5cfa6b50300ebd9cf371f000000"
)
"""The same two in one entry, which a real Jafka took."""
OFFSET_100 = bytes.fromhex("0000000000000064 00000013 87a77ab2 00 00 ffffffff 00000005 68656c6c6f")
OFFSETS_100_AND_102 = bytes.fromhex(
    "0000000000000066 0000004e 32a43408 00 01 ffffffff 00000040"
    "1f8b08000000000002ff636000831420166e5f5eb58981e13f100079ac19a93939f9105986342016f17ab2e5305c9aedc98eb5cfa6b5030015759e1f3f000000"
)

LogOf = Callable[[dict[str, bytes]], OldLog]


@pytest.fixture
def log_of(tmp_path: Path) -> LogOf:
    """`log_of({file name: content})`: partition 2 of a topic on broker 3."""

    def make(files: dict[str, bytes]) -> OldLog:
        folder = tmp_path / "data" / "clicks-2"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return OldLog(
            Kafka(zookeeper="nowhere", version=JAFKA, broker_id=3, folder=tmp_path), "clicks", 2
        )

    return make


def test_a_message_of_jafka_lies_where_its_outer_entry_begins_and_has_its_place_in_there(
    log_of: LogOf,
) -> None:
    partition = log_of(
        {"00000000000000000000.jafka": PLAIN, "00000000000000000031.jafka": IN_GZIP + PLAIN[:15]}
    )
    expected: list[Row] = [
        (3, 2, 0, 0, hash_of(HELLO)),
        (3, 2, 15, 0, hash_of(CHINESE)),
        (3, 2, 31, 0, hash_of(HELLO)),
        (3, 2, 31, 1, hash_of(CHINESE)),
        (3, 2, 93, 0, hash_of(HELLO)),
    ]
    assert list(JafkaTraffic().rows(partition)) == expected


def test_a_message_of_kafka_0_8_has_its_own_offset_in_a_wrapper_too(log_of: LogOf) -> None:
    partition = log_of(
        {"00000000000000000100.log": OFFSET_100, "00000000000000000101.log": OFFSETS_100_AND_102}
    )
    assert list(Kafka08Traffic().rows(partition)) == [
        (2, 100, hash_of(HELLO)),
        (2, 100, hash_of(HELLO)),
        (2, 102, hash_of(CHINESE)),
    ]


@pytest.mark.parametrize(
    ("traffic", "name", "content"),
    [
        (JafkaTraffic(), "00000000000000000000.jafka", PLAIN[:-1]),
        (JafkaTraffic(), "00000000000000000000.jafka", PLAIN[:-1] + b"x"),
        (JafkaTraffic(), "00000000000000000000.jafka", IN_GZIP[:-1]),
        (Kafka08Traffic(), "00000000000000000000.log", OFFSET_100[:-1]),
        (Kafka08Traffic(), "00000000000000000000.log", OFFSET_100[:-1] + b"x"),
    ],
    ids=["cut off", "changed", "cut off wrapper", "cut off 0.8", "changed 0.8"],
)
def test_a_damaged_file_is_not_compared_with_anything(
    log_of: LogOf, traffic: Any, name: str, content: bytes
) -> None:
    with pytest.raises(AssertionError):
        list(traffic.rows(log_of({name: content})))
