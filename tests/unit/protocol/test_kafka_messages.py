"""Fetch requests and responses compared with those of kafka-python, and the choice of a version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from etl.errors import CorruptData, SettingsError
from etl.kafka import fetch_messages, kafka_python_messages, versions
from etl.kafka.primitives import Reader
from etl.kafka.request_values import FetchTarget, in_serving_order
from etl.kafka.versions import Api
from etl.model.partitions import Isolation, TopicPartition
from tests.fuzz.seeds import built

DEMO, DEMO_ID = TopicPartition("demo", 0), UUID(int=0xDE)
TARGETS = [FetchTarget(DEMO, 0, 1, topic_id=str(DEMO_ID))]
PLACE: dict[str, Any] = {"broker": "b:9092"}


def fetch_bytes(version: int, wanted: list[FetchTarget]) -> bytes:
    return fetch_messages.encode_fetch(
        version,
        wanted,
        correlation_id=1,
        client_id="t",
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation=Isolation.READ_COMMITTED,
    )


PARTITION: dict[str, Any] = {
    "error_code": 0,
    "high_watermark": 7,
    "last_stable_offset": 6,
    "log_start_offset": 2,
    "records": b"",
    "aborted_transactions": None,
    "preferred_read_replica": -1,
}


def response(version: int, *partitions: dict[str, Any], throttle_ms: int = 0) -> memoryview:
    """A Fetch response of topic `demo` as kafka-python writes it, without the correlation id."""
    answered = [{**PARTITION, **partition} for partition in partitions]
    topic = {"topic": "demo", "topic_id": DEMO_ID.hex, "partitions": answered}
    values = {"throttle_time_ms": throttle_ms, "error_code": 0, "session_id": 0}
    made = built(FetchResponse, {**values, "responses": [topic]})
    flexible = b"\0" if made.flexible_version_q(version) else b""
    return memoryview(flexible + bytes(made.encode(version=version)))


ABCDEF = {"partition_index": 3, "records": b"abcdef"}


@pytest.mark.parametrize("version", range(14))
def test_every_fetch_version_equals_that_of_kafka_python(version: int) -> None:
    a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    a_id, b_id = (UUID(int=number) for number in (0xA, 0xB))
    wanted = [
        FetchTarget(a1, 5, 100, 3, str(a_id)),
        FetchTarget(b0, 6, 200, None, str(b_id)),
        FetchTarget(a0, 7, 300, 4, str(a_id)),
    ]

    def partition(number: int, offset: int, max_bytes: int, epoch: int) -> dict[str, int]:
        return {
            "partition": number,
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": max_bytes,
        }

    of_a = [partition(1, 5, 100, 3), partition(0, 7, 300, 4)]
    fields = {
        "replica_id": -1,
        "max_wait_ms": 100,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
        "rack_id": "",
        "topics": [
            {"topic": "a", "topic_id": a_id.hex, "partitions": of_a},
            {"topic": "b", "topic_id": b_id.hex, "partitions": [partition(0, 6, 200, -1)]},
        ],
    }
    theirs = built(FetchRequest[version], fields)
    theirs.with_header(1, "t")
    assert fetch_bytes(version, wanted) == bytes(theirs.encode(header=True, framed=True))


def test_a_fetch_that_names_a_log_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="has a partition twice: demo/0, demo/0"):
        fetch_bytes(11, [FetchTarget(DEMO, 1, 10), FetchTarget(DEMO, 5, 10)])


def test_a_fetch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="A fetch needs a partition"):
        fetch_bytes(11, [])


def test_logs_of_one_topic_are_served_together() -> None:
    a1, b0, a0 = (
        FetchTarget(TopicPartition(topic, number), 0, 1)
        for topic, number in (("a", 1), ("b", 0), ("a", 0))
    )
    assert in_serving_order([a1, b0, a0]) == (a1, a0, b0)


def test_no_topics_and_all_topics_are_not_the_same_question() -> None:
    def topics(names: list[str] | None) -> bytes:
        return kafka_python_messages.encode(
            Api.METADATA,
            4,
            correlation_id=1,
            client_id="",
            fields=kafka_python_messages.metadata_fields(names),
        )[14:]

    assert topics(None) == bytes.fromhex("ffffffff 00")
    assert topics([]) == bytes.fromhex("00000000 00")


@pytest.mark.parametrize("version", range(14))
def test_every_fetch_version_is_parsed_as_kafka_python_wrote_it(version: int) -> None:
    aborted = [{"producer_id": 9, "first_offset": 4}]
    unknown = dict.fromkeys(("high_watermark", "last_stable_offset", "log_start_offset"), -1)
    body = response(
        version,
        {**ABCDEF, "aborted_transactions": aborted},
        {"partition_index": 4, "error_code": 6, **unknown},
        throttle_ms=250,
    )
    answer = fetch_messages.parse_fetch(version, body, TARGETS, **PLACE)
    first, second = answer.partitions
    assert (answer.throttle_ms, answer.refusal) == (250 if version >= 1 else 0, None)
    assert (first.topic, first.partition, first.refusal) == ("demo", 3, None)
    assert (first.high_watermark, bytes(first.records)) == (7, b"abcdef")
    assert first.last_stable_offset == (6 if version >= 4 else None)
    assert first.aborted == (((9, 4),) if version >= 4 else ())
    assert first.log_start_offset == (2 if version >= 5 else None)
    assert (second.partition, second.refusal, len(second.records)) == (4, versions.CODES[6], 0)
    assert (second.last_stable_offset, second.log_start_offset) == (None, None)


def test_records_are_slices_of_the_buffer_and_not_copies() -> None:
    buffer = bytearray(response(11, {"partition_index": 0, "records": b"abc"}))
    records = fetch_messages.parse_fetch(11, memoryview(buffer), **PLACE).partitions[0].records
    buffer[-3:] = b"xyz"
    assert bytes(records) == b"xyz"


def test_null_records_are_empty() -> None:
    body = response(4, {"partition_index": 0, "records": None})
    [found] = fetch_messages.parse_fetch(4, body, **PLACE).partitions
    assert len(found.records) == 0


def test_an_empty_partition_after_records_or_a_throttled_one_proves_nothing() -> None:
    body = response(
        11, {"partition_index": 0}, {"partition_index": 1, "records": b"x"}, {"partition_index": 2}
    )
    answer = fetch_messages.parse_fetch(11, body, **PLACE)
    assert [each.proves_empty for each in answer.partitions] == [True, True, False]
    throttled = response(11, {"partition_index": 0}, throttle_ms=1)
    [found] = fetch_messages.parse_fetch(11, throttled, **PLACE).partitions
    assert not found.proves_empty


def test_every_truncation_of_a_fetch_response_is_corrupt_data() -> None:
    whole = response(11, ABCDEF)
    for length in range(len(whole)):
        with pytest.raises(CorruptData) as raised:
            fetch_messages.parse_fetch(11, whole[:length], **PLACE)
        assert raised.value.where["broker"] == "b:9092"


def test_an_absurd_length_of_records_names_topic_and_partition() -> None:
    body = bytearray(response(4, ABCDEF))
    body[-10:-6] = (0x7FFFFFFF).to_bytes(4, "big")
    with pytest.raises(CorruptData, match="claims 2147483647 bytes where 6 are left") as raised:
        fetch_messages.parse_fetch(4, memoryview(body), **PLACE)
    assert (raised.value.where["topic"], raised.value.where["partition"]) == ("demo", 3)


def test_an_absurd_count_of_aborted_transactions_is_refused_before_any_is_read() -> None:
    body = bytearray(response(4, {"partition_index": 3}))
    body[-8:-4] = (0x7FFFFFFF).to_bytes(4, "big")
    with pytest.raises(CorruptData, match="aborted transactions claims 2147483647 items"):
        fetch_messages.parse_fetch(4, memoryview(body), **PLACE)


def test_bytes_after_the_end_of_a_fetch_response_are_corrupt_data() -> None:
    body = memoryview(bytes(response(4, {"partition_index": 3})) + b"\0")
    with pytest.raises(CorruptData, match="1 bytes follow"):
        fetch_messages.parse_fetch(4, body, **PLACE)


@pytest.mark.parametrize(
    ("theirs", "chosen"), [((0, 17), 13), ((4, 17), 13), ((0, 5), 5), ((0, 0), 0), ((11, 11), 11)]
)
def test_the_highest_common_version_is_chosen(theirs: tuple[int, int], chosen: int) -> None:
    assert versions.choose_version(Api.FETCH, {1: theirs}) == chosen


@pytest.mark.parametrize("spoken", [{1: (14, 17)}, {}])
def test_a_broker_without_a_common_version_is_named(spoken: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(SettingsError, match="no version of FETCH from 0 to 13"):
        versions.choose_version(Api.FETCH, spoken, **PLACE)


def test_a_string_that_is_not_utf8_is_corrupt_data() -> None:
    with pytest.raises(CorruptData, match="not UTF-8"):
        Reader(memoryview(b"\x00\x01\xff")).string16("a name")
