"""The fetch loop of a task on Jafka partitions: the same topic on two brokers, whole messages, and
a broker that no other can replace.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from etl.errors import (
    BrokerUnreachable,
    CorruptData,
    DataLoss,
    MisalignedOffset,
    NotYetReadable,
    PartitionTruncated,
    RanOutBeforeUntil,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.partition_ends import read_fingerprints
from etl.model.partitions import Broker, Fingerprint, Isolation, Leader, TopicPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from tests.builders import split_fetch_options
from tests.fakes.broker import hang_up
from tests.fakes.jafka import FETCH, JafkaBroker, entry, wrapped

ONE, TWO = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
COLUMNS = ("value", "topic", "partition", "offset", "broker_id", "message_index", "incarnation")


@pytest.fixture
def brokers() -> Iterator[tuple[JafkaBroker, JafkaBroker]]:
    """The same topic on two brokers, with other messages; on the first in two segments."""
    with JafkaBroker().listening() as first, JafkaBroker().listening() as second:
        first.append("clicks", 0, entry(b"a0") + wrapped(entry(b"a1"), entry(b"a2")))
        first.logs["clicks", 0].roll()
        first.append("clicks", 0, entry(b"a3"))
        second.append("clicks", 0, b"".join(entry(b"b%d" % number) for number in range(100)))
        yield first, second


def leader(partition: TopicPartition, brokers: tuple[JafkaBroker, JafkaBroker]) -> Leader:
    broker = brokers[(partition.broker_id or 0) - 1]
    return Leader(Broker(partition.broker_id or 0, broker.host, broker.port, "jafka"))


def end_of(partition: TopicPartition, brokers: tuple[JafkaBroker, JafkaBroker]) -> int:
    return (
        brokers[(partition.broker_id or 0) - 1].logs[partition.topic, partition.partition].flushed
    )


def read(
    ranges: Sequence[OffsetRange], **options: Any
) -> tuple[list[dict[str, Any]], dict[int, RangeResult]]:
    results: dict[int, RangeResult] = {}
    fetch_options, others = split_fetch_options(
        {
            "isolation": Isolation.READ_UNCOMMITTED,
            "timeout_s": 5,
            "backoff_s": 0.01,
            "columns": COLUMNS,
            "on_result": results.__setitem__,
            **options,
        }
    )
    batches = read_ranges(ranges, fetch_options, **others)
    return [row for arrow_batch in batches for row in arrow_batch.to_pylist()], results


def whole(partition: TopicPartition, brokers: tuple[JafkaBroker, JafkaBroker]) -> OffsetRange:
    return OffsetRange(partition, 0, end_of(partition, brokers), leader(partition, brokers))


def test_the_same_partition_of_two_brokers_is_read_from_each(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    rows, results = read([whole(ONE, brokers), whole(TWO, brokers)])
    found = [
        (row["value"], row["broker_id"], row["message_index"])
        for row in rows
        if row["broker_id"] == 1
    ]
    assert found == [(b"a0", 1, 0), (b"a1", 1, 0), (b"a2", 1, 1), (b"a3", 1, 0)]
    assert [row["value"] for row in rows if row["broker_id"] == 2] == [
        b"b%d" % number for number in range(100)
    ]
    assert {index: (result.rows, result.missing_offsets) for index, result in results.items()} == {
        0: (4, 0),
        1: (100, 0),
    }


def test_a_range_that_ends_inside_an_entry_is_an_error(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    with pytest.raises(CorruptData):
        read([OffsetRange(TWO, 0, end_of(TWO, brokers) - 1, leader(TWO, brokers))])


def test_after_a_broker_hangs_up_the_request_is_repeated_at_the_same_offset(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    brokers[1].script[FETCH].extend([hang_up] * 3)
    rows, _ = read([whole(TWO, brokers)])
    assert len(rows) == 100


def test_a_broker_that_stays_away_is_unreachable_and_no_other_is_used(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    gone = OffsetRange(TWO, 0, 8, Leader(Broker(2, "127.0.0.1", 1, "jafka")))
    with pytest.raises(BrokerUnreachable) as caught:
        read([gone], retry=2, bootstrap=[(brokers[0].host, brokers[0].port)])
    assert (caught.value.exit_code, caught.value.retriable) == (6, True)
    assert [kind for kind, _ in brokers[0].requests] == []


def test_offsets_that_expired_are_lost(brokers: tuple[JafkaBroker, JafkaBroker]) -> None:
    request = whole(ONE, brokers)
    brokers[0].logs["clicks", 0].expire()
    with pytest.raises(DataLoss):
        read([request])
    rows, _ = read([request], fails_on_data_loss=False)
    assert [row["value"] for row in rows] == [b"a3"]


def test_a_topic_that_is_not_there_answers_like_one_without_anything_new(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    missing = TopicPartition("no-such-topic", 0, 1)
    with pytest.raises(
        RanOutBeforeUntil, match="The partition ends at 0, the range at 10"
    ) as refused:
        read([OffsetRange(missing, 0, 10, leader(missing, brokers))], deadline_s=60)
    assert "deleted" in refused.value.action and "leader" not in refused.value.action


def test_a_log_that_lost_its_end_is_reported_at_once_and_read_to_its_end_on_request(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    request, partition = whole(TWO, brokers), brokers[1].logs["clicks", 0]
    partition.content, partition.flushed = (
        partition.content[: len(entry(b"b0")) * 3 + 4],
        len(entry(b"b0")) * 3 + 4,
    )
    with pytest.raises(
        RanOutBeforeUntil,
        match=f"The partition ends at {partition.flushed}, the range at {request.until_offset}",
    ) as refused:
        read([request], deadline_s=60)
    assert refused.value.where["offset"] == len(entry(b"b0")) * 3
    rows, results = read([request], deadline_s=60, fails_on_data_loss=False)
    assert ([row["value"] for row in rows], results[0].rows) == ([b"b0", b"b1", b"b2"], 3)


def nothing(connection: socket.socket, frame: bytes) -> None:
    """An answer without an error and without a byte."""
    del frame
    connection.sendall(b"\0\0\0\2\0\0")


def some_bytes(connection: socket.socket, frame: bytes) -> None:
    """Less than a message."""
    connection.sendall(b"\0\0\0\x08" + frame[4:12])


@pytest.mark.parametrize("fails_on_data_loss", [True, False])
def test_a_log_that_reaches_far_enough_without_data_is_unreachable_and_not_lost(
    brokers: tuple[JafkaBroker, JafkaBroker], fails_on_data_loss: bool
) -> None:
    brokers[1].script[FETCH].extend([nothing] * 1000)
    results: dict[int, RangeResult] = {}
    with pytest.raises(NotYetReadable, match="returned no message for 0.2 s") as refused:
        list(
            read_ranges(
                [whole(TWO, brokers)],
                FetchOptions(
                    isolation=Isolation.READ_UNCOMMITTED,
                    timeout_s=5,
                    deadline_s=0.2,
                    fails_on_data_loss=fails_on_data_loss,
                ),
                on_result=results.__setitem__,
            )
        )
    assert not results and refused.value.where == {
        "topic": "clicks",
        "partition": 0,
        "broker_id": 2,
        "offset": 0,
    }
    assert refused.value.retriable and not any(
        word in str(refused.value) for word in ("quota", "leader", "transaction")
    )


@pytest.mark.parametrize("fails_on_data_loss", [True, False])
def test_a_log_that_reaches_far_enough_and_gives_the_same_piece_of_a_message_again_has_none_there(
    brokers: tuple[JafkaBroker, JafkaBroker], fails_on_data_loss: bool
) -> None:
    brokers[1].script[FETCH].extend([some_bytes] * 1000)
    with pytest.raises(MisalignedOffset, match="its segment has 6 bytes from there on"):
        read([whole(TWO, brokers)], deadline_s=60, fails_on_data_loss=fails_on_data_loss)


def test_a_message_truncated_once_is_requested_again(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    brokers[1].script[FETCH].append(some_bytes)
    assert len(read([whole(TWO, brokers)])[0]) == 100


def known(
    partition: TopicPartition, brokers: tuple[JafkaBroker, JafkaBroker]
) -> dict[TopicPartition, Fingerprint]:
    """By what the log is known: its last ten bytes."""
    led = leader(partition, brokers)
    with Cluster([(led.broker.host, led.broker.port)], generation="jafka") as cluster:
        return read_fingerprints(
            cluster, {partition: (end_of(partition, brokers), 10)}, {partition: led}
        )


def test_a_log_is_known_by_bytes_of_two_segments_where_the_newest_holds_few(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    led, end = leader(ONE, brokers), end_of(ONE, brokers)
    with Cluster([(led.broker.host, led.broker.port)], generation="jafka") as cluster:
        [found] = read_fingerprints(cluster, {ONE: (end, end - 1)}, {ONE: led}).values()
        content = (entry(b"a0") + wrapped(entry(b"a1"), entry(b"a2")) + entry(b"a3"))[1:]
        assert found == Fingerprint(
            end, end - 1, hashlib.blake2b(content, digest_size=8).hexdigest()
        )
        beyond = read_fingerprints(cluster, {ONE: (end + 5, end + 5)}, {ONE: led})[ONE]
    assert beyond.digest == hashlib.blake2b(entry(b"a0")[:1] + content, digest_size=8).hexdigest()


def test_a_log_that_is_the_one_that_was_planned_is_read(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    rows, _ = read([whole(TWO, brokers)], fingerprints=known(TWO, brokers))
    assert len(rows) == 100


@pytest.mark.parametrize("messages", [1, 100, 200])
def test_a_log_recreated_since_the_plan_fails_the_task_at_the_end_of_its_read(
    brokers: tuple[JafkaBroker, JafkaBroker], messages: int
) -> None:
    planned, r = known(TWO, brokers), whole(TWO, brokers)
    part = OffsetRange(TWO, 0, 12, r.leader)
    brokers[1].logs.clear()
    brokers[1].append(
        "clicks", 0, b"".join(entry(b"c%d" % (number % 10)) for number in range(messages))
    )
    with pytest.raises(
        PartitionTruncated,
        match=f"holds other bytes before offset {r.until_offset}.*accept-changes CONF -p "
        f"clicks:2-0 --truncated-at OFFSET",
    ):
        read([part], fingerprints=planned)


def test_bytes_that_expired_while_their_log_was_read_prove_nothing_against_it(
    brokers: tuple[JafkaBroker, JafkaBroker],
) -> None:
    partition, led = brokers[0].logs["clicks", 0], leader(ONE, brokers)
    cut, end = partition.starts[1], end_of(ONE, brokers)
    with Cluster([(led.broker.host, led.broker.port)], generation="jafka") as cluster:
        planned = read_fingerprints(cluster, {ONE: (cut, 10)}, {ONE: led})
        partition.expire()
        assert read_fingerprints(cluster, {ONE: (cut, 10)}, {ONE: led}) == {}
    rows, _ = read([OffsetRange(ONE, cut, end, led)], fingerprints=planned)
    assert [row["value"] for row in rows] == [b"a3"]


@pytest.mark.parametrize("back", [1, 2, 3, 54])
def test_a_range_that_begins_in_the_last_bytes_of_a_segment_is_an_error(
    brokers: tuple[JafkaBroker, JafkaBroker], back: int
) -> None:
    """Bytes that claim more than the segment has left: neither a larger fetch nor waiting would
    bring them.
    """
    segment = brokers[1].append("clicks", 0, entry((6000).to_bytes(4, "big") + b"\0" * 50))
    brokers[1].logs["clicks", 0].roll()
    end = brokers[1].append("clicks", 0, *[entry(b"c" * 1000)] * 9)
    with pytest.raises(
        MisalignedOffset, match=f"its segment has {back} bytes from there on"
    ) as caught:
        read([OffsetRange(TWO, segment - back, end, leader(TWO, brokers))], deadline_s=60)
    assert (caught.value.exit_code, caught.value.where["offset"]) == (5, segment - back)
