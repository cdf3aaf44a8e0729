"""Messages about many partitions, compared with kafka-python's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import DescribeLogDirsRequest, DescribeLogDirsResponse
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import MetadataResponse

from etl.errors import CorruptData
from etl.kafka import kafka_python_messages, many_partition_messages
from etl.kafka.request_values import EpochEndResponse, ListedOffset
from etl.kafka.versions import Api
from etl.model.partitions import Isolation, TopicPartition
from tests.fuzz.seeds import built

INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
LOGS = st.builds(
    TopicPartition,
    st.sampled_from(["clicks", "orders", "ü" * 80]),
    st.integers(0, 2**31 - 1),
    st.none(),
)
NAMED: dict[str, Any] = {"correlation_id": 7, "client_id": "t"}


def in_topics(partitions: Mapping[TopicPartition, Any], name: str = "name", **fields: Any) -> Any:
    """Topics of a message of kafka-python, by values and functions of each partition."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for partition in sorted(partitions):
        values = {key: of(partition) if callable(of) else of for key, of in fields.items()}
        by_name.setdefault(partition.topic, []).append(values)
    return [{name: topic, "partitions": found} for topic, found in by_name.items()]


def number(partition: TopicPartition) -> int:
    return partition.partition


def framed(kind: Any, version: int, **values: Any) -> bytes:
    request = built(kind[version], values)
    request.with_header(7, "t")
    return bytes(request.encode(header=True, framed=True))


def answered(kind: Any, version: int, **values: Any) -> memoryview:
    response = built(kind, values)
    flexible = b"\0" if response.flexible_version_q(version) else b""
    return memoryview(b"\0\0\0\7" + flexible + bytes(response.encode(version=version)))


@given(
    times=st.dictionaries(LOGS, st.integers(-2, 2**63 - 1)),
    version=st.integers(1, 7),
    epoch=st.none() | INT32,
)
def test_a_request_for_offsets_has_the_bytes_of_kafka_python(
    times: dict[TopicPartition, int], version: int, epoch: int | None
) -> None:
    topics = in_topics(
        times,
        partition_index=number,
        timestamp=times.__getitem__,
        current_leader_epoch=-1 if epoch is None else epoch,
        max_num_offsets=1,
    )
    theirs = framed(ListOffsetsRequest, version, replica_id=-1, isolation_level=1, topics=topics)
    ours = many_partition_messages.encode_list_offsets(
        version, times, Isolation.READ_COMMITTED, dict.fromkeys(times, epoch), **NAMED
    )
    assert ours == theirs


@given(epochs=st.dictionaries(LOGS, INT32), version=st.integers(2, 4))
def test_a_request_for_ends_of_epochs_has_the_bytes_of_kafka_python(
    epochs: dict[TopicPartition, int], version: int
) -> None:
    fields = {"current_leader_epoch": -1, "leader_epoch": epochs.__getitem__}
    topics = in_topics(epochs, "topic", partition=number, **fields)
    theirs = framed(OffsetForLeaderEpochRequest, version, replica_id=-1, topics=topics)
    assert many_partition_messages.encode_epoch_ends(version, epochs, {}, **NAMED) == theirs


@given(partitions=st.frozensets(LOGS), version=st.integers(0, 4))
def test_a_request_for_sizes_has_the_bytes_of_kafka_python(
    partitions: frozenset[TopicPartition], version: int
) -> None:
    topics = in_topics(dict.fromkeys(partitions), "topic", number=number)
    for topic in topics:
        topic["partitions"] = [one["number"] for one in topic["partitions"]]
    theirs = framed(DescribeLogDirsRequest, version, topics=topics)
    assert many_partition_messages.encode_log_dirs(version, partitions, **NAMED) == theirs


@given(offsets=st.dictionaries(LOGS, st.integers(-1, 2**63 - 1)), version=st.integers(1, 7))
def test_offsets_are_read_as_written(offsets: dict[TopicPartition, int], version: int) -> None:
    topics = in_topics(
        offsets,
        partition_index=number,
        error_code=0,
        timestamp=-1,
        offset=offsets.__getitem__,
        leader_epoch=3,
        old_style_offsets=[],
    )
    response = answered(ListOffsetsResponse, version, throttle_time_ms=9, topics=topics)
    reported = many_partition_messages.parse_offsets(version, response)
    epoch = 3 if version >= 4 else None
    assert reported.throttled_ms == (9 if version >= 2 else 0)
    assert reported.answer == {
        partition: ListedOffset(partition, None, offset if offset >= 0 else None, None, epoch)
        for partition, offset in offsets.items()
    }


@given(ends=st.dictionaries(LOGS, INT64), version=st.integers(2, 4))
def test_epoch_ends_are_read_as_written(ends: dict[TopicPartition, int], version: int) -> None:
    fields = {"error_code": 0, "leader_epoch": 2, "end_offset": ends.__getitem__}
    topics = in_topics(ends, "topic", partition=number, **fields)
    response = answered(OffsetForLeaderEpochResponse, version, throttle_time_ms=9, topics=topics)
    expected = {partition: EpochEndResponse(None, 2, end) for partition, end in ends.items()}
    assert many_partition_messages.parse_epoch_ends(version, response) == (expected, 9)
    # Also by the objects of the request, whatever else the response names.
    requested = list(ends)[::2]
    reported = many_partition_messages.parse_epoch_ends(version, response, requested).answer
    assert reported == expected
    assert {id(partition) for partition in reported} >= {id(partition) for partition in requested}


@given(sizes=st.dictionaries(LOGS, INT64), version=st.integers(0, 4))
def test_sizes_are_those_of_working_folders_and_present_copies(
    sizes: dict[TopicPartition, int], version: int
) -> None:
    def folder(code: int, size_of: Mapping[TopicPartition, int], is_future: bool) -> Any:
        fields: dict[str, Any] = {"partition_size": size_of.__getitem__, "offset_lag": 0}
        topics = in_topics(size_of, partition_index=number, is_future_key=is_future, **fields)
        common = {"log_dir": "/logs", "total_bytes": -1, "usable_bytes": -1}
        return {"error_code": code, "topics": topics, **common}

    others = dict.fromkeys(sizes, 1)
    folders = [folder(0, sizes, False), folder(0, others, True), folder(56, others, False)]
    response = answered(
        DescribeLogDirsResponse, version, throttle_time_ms=9, error_code=0, results=folders
    )
    assert many_partition_messages.parse_log_dirs(version, response) == (sizes, 9)


def test_logs_with_unknown_tagged_fields_are_read_without_them() -> None:
    first = "00000003 0000 ffffffffffffffff 0000000000000011 00000002"
    second = "00000004 0000 ffffffffffffffff 0000000000000012 00000002"
    answer = bytes.fromhex(
        f"00000007 00 00000000 02 07 636c69636b73 03 {first} 01 05 02 abcd {second} 00 00 00"
    )
    reported = many_partition_messages.parse_offsets(7, memoryview(answer)).answer
    assert {partition.partition: one.offset for partition, one in reported.items()} == {
        3: 17,
        4: 18,
    }


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            "00000007 00 00000000 02 07 636c69636b73 02 ffffffff 0000 ffffffffffffffff "
            "0000000000000011 00000002 00 00 00",
            "is negative",
        ),
        (
            "00000007 00 00000000 02 07 636c69636b73 03 00000003 0000",
            "claims 46 bytes where 6 are left|claims 54 bytes where 6 are left",
        ),
        ("00000007 00 00000000 ffffffff0f", "items where 0 bytes are left"),
        ("00000007 00 00000000 01 00 00", "1 bytes follow"),
        ("00000007 00 00000000 02 00", "impossible length -1"),
    ],
)
def test_bytes_that_are_no_response_are_rejected_with_the_reason(answer: str, message: str) -> None:
    with pytest.raises(CorruptData, match=message):
        many_partition_messages.parse_offsets(7, memoryview(bytes.fromhex(answer)), broker="b:9092")


@given(
    partitions=st.frozensets(LOGS, min_size=1),
    version=st.integers(9, 12),
    led=st.booleans(),
    topic_id=st.uuids() | st.just(UUID(int=0)),
    in_sync=st.integers(1, 3),
)
def test_metadata_is_what_kafka_python_reads_of_it(
    partitions: frozenset[TopicPartition], version: int, led: bool, topic_id: UUID, in_sync: int
) -> None:
    """`in_sync`: 1 where all partitions of a topic have as many replicas in sync."""
    topics = in_topics(
        dict.fromkeys(partitions),
        error_code=0 if led else 5,
        partition_index=number,
        leader_id=2 if led else -1,
        leader_epoch=5,
        replica_nodes=[1, 2],
        isr_nodes=lambda partition: [2] * (partition.partition % in_sync),
        offline_replicas=[],
    )
    identity = {"topic_id": topic_id.hex} if version >= 10 else {}
    for topic in topics:
        topic.update(error_code=0, is_internal=led, **identity)
        topic["partitions"].reverse()
    answer = answered(
        MetadataResponse,
        version,
        throttle_time_ms=9,
        cluster_id="c1" if led else None,
        controller_id=1,
        brokers=[
            {"node_id": 1, "host": "b1", "port": 9092, "rack": None},
            {"node_id": 2, "host": "::1", "port": 9093, "rack": "r"},
        ],
        topics=topics,
    )
    for chosen in (None, ["clicks", "none"]):
        decoded = kafka_python_messages.decode(Api.METADATA, version, answer)
        theirs = kafka_python_messages.parse_metadata(decoded, chosen)
        assert many_partition_messages.parse_cluster(version, answer, chosen) == (theirs, 9)
