"""Jafka's requests and answers: bounds, quirks, refusals, and bytes that are no answer.

The bytes of the others are in the contract that the fake broker and a real one keep:
`tests/fakes/jafka_contract.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from etl.errors import (
    BrokerError,
    BrokerRefusal,
    CorruptData,
    EtlError,
    Meaning,
    PermissionDenied,
    SettingsError,
)
from etl.kafka import jafka_broker_type
from etl.kafka.broker_type_interface import Request
from etl.kafka.broker_types import BROKER_TYPES
from etl.kafka.jafka_broker_type import Jafka, JafkaProtocol
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    Fetch,
    FetchAnswer,
    FetchTarget,
    ListedOffset,
    OffsetsCommit,
)
from etl.model.partitions import Isolation, TopicPartition

DEMO = TopicPartition("demo", 0, 3)
DIALECT = JafkaProtocol("b:9092")


def fetch(*wanted: FetchTarget, max_bytes: int = 1 << 30) -> Request[FetchAnswer]:
    return DIALECT.fetch(Fetch(tuple(wanted), Isolation.READ_COMMITTED, max_bytes, 500, 1))


def after_size(answer: str | bytes) -> memoryview:
    """Return the bytes after the size field of one framed answer; check the size."""
    content = bytes.fromhex(answer) if isinstance(answer, str) else answer
    assert int.from_bytes(content[:4], "big") == len(content) - 4
    return memoryview(content)[4:]


def answer_of(request: Request[Any], answer: str | bytes) -> Any:
    return request.read(after_size(answer)).answer


def records(answer: FetchAnswer) -> list[tuple[bytes, str | None]]:
    return [
        (bytes(each.records), None if each.refusal is None else each.refusal.name)
        for each in answer.partitions
    ]


def list_offsets(
    time: int, *partitions: TopicPartition
) -> Request[dict[TopicPartition, ListedOffset]]:
    return DIALECT.list_offsets(
        dict.fromkeys(partitions or (DEMO,), time), Isolation.READ_COMMITTED, {}
    )


def test_a_topic_is_deleted_and_a_wrong_password_refused() -> None:
    request = DIALECT.delete_topic("t2", "pw")
    assert request.frame(1) == bytes.fromhex("0000000a 0006 0002 7432 0002 7077")
    assert answer_of(request, "0000000a 0000 00000001 00000003") == 3
    refusal = answer_of(request, "0000000a 0000 00000001 ffffffff")
    assert isinstance(refusal, BrokerRefusal) and isinstance(
        refusal.error("delete the topic"), PermissionDenied
    )


# The generation


def test_a_connection_needs_the_configured_broker_type_jafka() -> None:
    [jafka] = [each for each in BROKER_TYPES if "jafka" in each.names]
    assert jafka.is_told
    greeting = jafka.greeting("client", "b:9092")
    assert greeting.frame == bytes.fromhex("00000004 0002 0000")
    assert greeting.is_answer(memoryview(b"\0\0")) and not greeting.is_answer(
        memoryview(b"\0\0\0\1")
    )
    assert greeting.dialect(memoryview(b"\0\0")).introduction() == "Jafka, or Kafka 0.7"
    assert isinstance(jafka, Jafka)


def test_requests_unknown_to_a_jafka_broker_are_rejected_with_the_reason() -> None:
    with pytest.raises(
        SettingsError, match="cannot report brokers and topics, which are in ZooKeeper"
    ):
        DIALECT.metadata(None)
    with pytest.raises(SettingsError, match="cannot store committed offsets"):
        DIALECT.groups.commit_offsets(OffsetsCommit("g", {DEMO: 1}))
    with pytest.raises(SettingsError, match="cannot report the sizes of partitions"):
        DIALECT.log_sizes([DEMO])
    assert DIALECT.number_of(memoryview(b"\0\0\0\1")) is None


# Quirks


def test_a_log_that_was_never_written_starts_and_ends_at_0_as_kafka_0_7_reports() -> None:
    for answer in ("00000006 0000 00000000", "0000000e 0000 00000001 0000000000000000"):
        assert answer_of(list_offsets(LATEST), answer) == {
            DEMO: ListedOffset(DEMO, None, 0, None, None, boundaries=(0,))
        }
        assert answer_of(list_offsets(EARLIEST), answer) == {
            DEMO: ListedOffset(DEMO, None, 0, None, None)
        }


def test_the_start_of_an_empty_last_segment_is_the_end_too_and_one_boundary() -> None:
    listed = answer_of(
        list_offsets(LATEST),
        "0000001e 0000 00000003 0000000000000040 0000000000000040 0000000000000008",
    )
    assert listed[DEMO].boundaries == (8, 64)


def test_a_negative_size_is_never_sent_because_its_answer_would_have_no_end() -> None:
    with pytest.raises(ValueError, match="A fetch of -5 bytes cannot be requested"):
        fetch(FetchTarget(DEMO, 0, -5))


def test_the_request_bounds_the_response() -> None:
    partitions = [TopicPartition("demo", number) for number in range(4)]
    request = fetch(
        *(
            FetchTarget(partition, 0, size)
            for partition, size in zip(partitions, [600, 500, 300, 100], strict=True)
        ),
        max_bytes=1000,
    )
    part = "00000005 0000 010203"
    assert request.frame(1)[6:8] == b"\0\3"
    answer = answer_of(request, bytes.fromhex("0000001d 0000" + part * 3))
    assert [
        (each.partition, bytes(each.records), each.proves_empty) for each in answer.partitions
    ] == [(0, b"\1\2\3", True), (1, b"", False), (2, b"\1\2\3", True), (3, b"\1\2\3", True)]


def test_the_first_log_is_requested_whole_however_small_the_bound_is() -> None:
    request = fetch(
        FetchTarget(DEMO, 0, 5000), FetchTarget(TopicPartition("demo", 1), 0, 1), max_bytes=100
    )
    assert request.frame(1)[4:6] == b"\0\1" and request.frame(1)[-4:] == (5000).to_bytes(4, "big")


def test_a_fetch_of_no_bytes_proves_nothing() -> None:
    [fetched] = answer_of(fetch(FetchTarget(DEMO, 0, 0)), "00000002 0000").partitions
    assert not fetched.proves_empty


@pytest.mark.parametrize(
    "code, kind, is_retriable",
    [
        (-1, BrokerError, True),
        (1, BrokerError, False),
        (2, CorruptData, False),
        (3, BrokerError, False),
        (4, EtlError, False),
        (17, EtlError, False),
    ],
)
def test_each_error_code_has_a_meaning(code: int, kind: type[EtlError], is_retriable: bool) -> None:
    refusal = jafka_broker_type.error_of(code)
    assert refusal is not None and (refusal.code, refusal.is_retriable, refusal.kind) == (
        code,
        is_retriable,
        kind,
    )
    assert refusal.action and (refusal.meaning is Meaning.OUT_OF_RANGE) == (code == 1)
    assert jafka_broker_type.error_of(0) is None


@pytest.mark.parametrize(
    "values, match",
    [([], "no record"), ([(b"k", b"v")], "have no key"), ([(None, None)], "always have a value")],
)
def test_what_a_message_of_this_generation_cannot_be_is_refused(
    values: Sequence[tuple[bytes | None, bytes | None]], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        DIALECT.append(DEMO, values, timestamp_ms=0, timeout_ms=0)


def test_a_topic_of_no_partition_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="cannot have 0 partitions"):
        DIALECT.create_topic("t", 0)


# Answers that are none

TWO = fetch(FetchTarget(DEMO, 0, 100), FetchTarget(TopicPartition("demo", 1), 0, 100))


@pytest.mark.parametrize(
    "request_, answer, match",
    [
        (
            fetch(FetchTarget(DEMO, 0, 2)),
            "00000005 0000 010203",
            "3 bytes are returned where 2 were requested",
        ),
        (TWO, "00000008 0000 00000002 0000", "end inside a number"),
        (TWO, "00000008 0000 00000063 0000", "claims 99 bytes"),
        (TWO, "00000008 0000 fffffffd 0000", "impossible length -3"),
        (TWO, "0000000f 0000 00000002 0000 00000002 0000 07", "1 bytes follow"),
        (list_offsets(LATEST), "00000006 0000 00000002", "claims 2 items"),
        (
            list_offsets(LATEST),
            "0000000e 0000 00000001 ffffffffffffff00",
            "are not descending offsets of a partition",
        ),
        (
            list_offsets(LATEST),
            "00000016 0000 00000002 0000000000000001 0000000000000002",
            "are not descending offsets of a partition",
        ),
        (list_offsets(LATEST), "00000007 0000 00000000 07", "1 bytes follow"),
        (
            DIALECT.create_topic("t", 1),
            "0000000e 0000 00000002 00000001 00000001",
            "does not hold one number",
        ),
    ],
)
def test_invalid_answers_are_named(request_: Request[Any], answer: str, match: str) -> None:
    with pytest.raises(CorruptData, match=match) as raised:
        answer_of(request_, answer)
    assert raised.value.where["broker"] == "b:9092"
