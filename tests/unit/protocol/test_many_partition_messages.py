"""Requests about many partitions and their answers, compared with kafka-python's: bytes for bytes,
value for value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
LOGS = st.builds(
    TopicPartition,
    st.sampled_from(["clicks", "orders", "ü" * 80]),
    st.integers(0, 2**31 - 1),
    st.none(),
)
NAMED: dict[str, Any] = {"correlation_id": 7, "client_id": "t"}


def by_topic(partitions: Mapping[TopicPartition, Any]) -> dict[str, list[TopicPartition]]:
    return {
        topic: sorted(partition for partition in partitions if partition.topic == topic)
        for topic in sorted({partition.topic for partition in partitions})
    }


def in_topics(
    kind: Any,
    partition: Any,
    partitions: Mapping[TopicPartition, Any],
    named: str = "name",
    /,
    **fields: Callable[[TopicPartition], Any],
) -> list[Any]:
    """Topics of a message of kafka-python; each field of a partition is a function of it."""
    return [
        kind(
            **{named: topic},
            partitions=[
                partition(**{name: of(topic_partition) for name, of in fields.items()})
                for topic_partition in some
            ],
        )
        for topic, some in by_topic(partitions).items()
    ]


def number(partition: TopicPartition) -> int:
    return partition.partition


def always(value: Any) -> Callable[[TopicPartition], Any]:
    return lambda partition: value


def framed(request: Any) -> bytes:
    request.with_header(7, "t")
    return bytes(request.encode(header=True, framed=True))


def answered(response: Any, version: int) -> memoryview:
    return memoryview(
        b"\0\0\0\7"
        + (b"\0" if response.flexible_version_q(version) else b"")
        + bytes(response.encode(version=version))
    )


@given(
    times=st.dictionaries(LOGS, st.integers(-2, 2**63 - 1)),
    version=st.integers(1, 7),
    epoch=st.none() | INT32,
)
def test_a_question_for_offsets_is_the_bytes_that_kafka_python_writes(
    times: dict[TopicPartition, int], version: int, epoch: int | None
) -> None:
    kind = ListOffsetsRequest.ListOffsetsTopic
    topics = in_topics(
        kind,
        kind.ListOffsetsPartition,
        times,
        partition_index=number,
        timestamp=times.__getitem__,
        current_leader_epoch=always(-1 if epoch is None else epoch),
        max_num_offsets=always(1),
    )
    theirs = ListOffsetsRequest[version](replica_id=-1, isolation_level=1, topics=topics)
    ours = many_partition_messages.encode_list_offsets(
        version, times, Isolation.READ_COMMITTED, dict.fromkeys(times, epoch), **NAMED
    )
    assert ours == framed(theirs)


@given(epochs=st.dictionaries(LOGS, INT32), version=st.integers(2, 4))
def test_a_question_for_ends_of_epochs_is_the_bytes_that_kafka_python_writes(
    epochs: dict[TopicPartition, int], version: int
) -> None:
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = in_topics(
        kind,
        kind.OffsetForLeaderPartition,
        epochs,
        "topic",
        partition=number,
        current_leader_epoch=always(-1),
        leader_epoch=epochs.__getitem__,
    )
    theirs = OffsetForLeaderEpochRequest[version](replica_id=-1, topics=topics)
    assert many_partition_messages.encode_epoch_ends(version, epochs, {}, **NAMED) == framed(theirs)


@given(partitions=st.frozensets(LOGS), version=st.integers(0, 4))
def test_a_question_for_sizes_is_the_bytes_that_kafka_python_writes(
    partitions: frozenset[TopicPartition], version: int
) -> None:
    kind = DescribeLogDirsRequest.DescribableLogDirTopic
    theirs = DescribeLogDirsRequest[version](
        topics=[
            kind(topic=topic, partitions=[partition.partition for partition in some])
            for topic, some in by_topic(dict.fromkeys(partitions)).items()
        ]
    )
    assert many_partition_messages.encode_log_dirs(version, partitions, **NAMED) == framed(theirs)


@given(offsets=st.dictionaries(LOGS, st.integers(-1, 2**63 - 1)), version=st.integers(1, 7))
def test_offsets_are_read_as_they_were_written(
    offsets: dict[TopicPartition, int], version: int
) -> None:
    kind = ListOffsetsResponse.ListOffsetsTopicResponse
    topics = in_topics(
        kind,
        kind.ListOffsetsPartitionResponse,
        offsets,
        partition_index=number,
        error_code=always(0),
        timestamp=always(-1),
        offset=offsets.__getitem__,
        leader_epoch=always(3),
        old_style_offsets=always([]),
    )
    theirs = ListOffsetsResponse(throttle_time_ms=9, topics=topics)
    reported = many_partition_messages.parse_offsets(version, answered(theirs, version))
    epoch = 3 if version >= 4 else None
    assert reported.throttled_ms == (9 if version >= 2 else 0)
    assert reported.answer == {
        partition: ListedOffset(partition, None, offset if offset >= 0 else None, None, epoch)
        for partition, offset in offsets.items()
    }


@given(ends=st.dictionaries(LOGS, INT64), version=st.integers(2, 4))
def test_ends_of_epochs_are_read_as_they_were_written(
    ends: dict[TopicPartition, int], version: int
) -> None:
    kind = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = in_topics(
        kind,
        kind.EpochEndOffset,
        ends,
        "topic",
        error_code=always(0),
        partition=number,
        leader_epoch=always(2),
        end_offset=ends.__getitem__,
    )
    theirs = OffsetForLeaderEpochResponse(throttle_time_ms=9, topics=topics)
    assert many_partition_messages.parse_epoch_ends(version, answered(theirs, version)) == (
        {partition: EpochEndResponse(None, 2, end) for partition, end in ends.items()},
        9,
    )


@given(sizes=st.dictionaries(LOGS, INT64), version=st.integers(0, 4))
def test_sizes_are_those_of_folders_that_work_and_of_copies_that_stay(
    sizes: dict[TopicPartition, int], version: int
) -> None:
    folder = DescribeLogDirsResponse.DescribeLogDirsResult
    kind = folder.DescribeLogDirsTopic

    def topics(size_of: Mapping[TopicPartition, int], is_future: bool) -> list[Any]:
        return in_topics(
            kind,
            kind.DescribeLogDirsPartition,
            size_of,
            partition_index=number,
            partition_size=size_of.__getitem__,
            offset_lag=always(0),
            is_future_key=always(is_future),
        )

    one_more = dict.fromkeys(sizes, 1)
    theirs = DescribeLogDirsResponse(
        throttle_time_ms=9,
        error_code=0,
        results=[
            folder(
                error_code=code, log_dir="/logs", topics=reported, total_bytes=-1, usable_bytes=-1
            )
            for code, reported in (
                (0, topics(sizes, False)),
                (0, topics(one_more, True)),
                (56, topics(one_more, False)),
            )
        ],
    )
    assert many_partition_messages.parse_log_dirs(version, answered(theirs, version)) == (sizes, 9)


def test_logs_with_unknown_tagged_fields_are_read_without_them() -> None:
    first, second = (
        "00000003 0000 ffffffffffffffff 0000000000000011 00000002",
        "00000004 0000 ffffffffffffffff 0000000000000012 00000002",
    )
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
)
def test_metadata_is_what_kafka_python_reads_of_it(
    partitions: frozenset[TopicPartition], version: int, led: bool, topic_id: UUID
) -> None:
    topic, broker = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseBroker
    reported = MetadataResponse(
        throttle_time_ms=9,
        cluster_id="c1" if led else None,
        controller_id=1,
        brokers=[
            broker(node_id=1, host="b1", port=9092, rack=None),
            broker(node_id=2, host="::1", port=9093, rack="r"),
        ],
        topics=[
            topic(
                error_code=0,
                name=name,
                is_internal=led,
                **({"topic_id": topic_id} if version >= 10 else {}),
                partitions=[
                    topic.MetadataResponsePartition(
                        error_code=0 if led else 5,
                        partition_index=partition.partition,
                        leader_id=2 if led else -1,
                        leader_epoch=5,
                        replica_nodes=[1, 2],
                        isr_nodes=[2],
                        offline_replicas=[],
                    )
                    for partition in reversed(some)
                ],
            )
            for name, some in by_topic(dict.fromkeys(partitions)).items()
        ],
    )
    answer = answered(reported, version)
    theirs = kafka_python_messages.parse_metadata(
        kafka_python_messages.decode(Api.METADATA, version, answer)
    )
    assert many_partition_messages.parse_cluster(version, answer) == (theirs, 9)
    chosen = ["clicks", "none"]
    theirs = kafka_python_messages.parse_metadata(
        kafka_python_messages.decode(Api.METADATA, version, answer), chosen
    )
    assert many_partition_messages.parse_cluster(version, answer, chosen).answer == theirs
