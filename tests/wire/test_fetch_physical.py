"""The fetch loop of a task on Jafka partitions."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
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
from tests.builders import split_fetch_options
from tests.fakes.jafka import FETCH, OFFSETS, JafkaBroker, entry, wrapped

Brokers = tuple[JafkaBroker, JafkaBroker]
ONE, TWO = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
COLUMNS = ("value", "topic", "partition", "offset", "broker_id", "message_index", "incarnation")


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """The same topic on two brokers, with other messages; on the first in two segments."""
    with JafkaBroker().listening() as first, JafkaBroker().listening() as second:
        first.append("clicks", 0, entry(b"a0") + wrapped(entry(b"a1"), entry(b"a2")))
        first.logs["clicks", 0].roll()
        first.append("clicks", 0, entry(b"a3"))
        second.append("clicks", 0, b"".join(entry(b"b%d" % number) for number in range(100)))
        yield first, second


def leader(partition: TopicPartition, brokers: Brokers) -> Leader:
    broker = brokers[(partition.broker_id or 0) - 1]
    return Leader(Broker(partition.broker_id or 0, broker.host, broker.port, "jafka"))


def end_of(partition: TopicPartition, brokers: Brokers) -> int:
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


def whole(partition: TopicPartition, brokers: Brokers) -> OffsetRange:
    return OffsetRange(partition, 0, end_of(partition, brokers), leader(partition, brokers))


def test_a_partition_of_two_brokers_is_read_from_each(brokers: Brokers) -> None:
    rows, results = read([whole(ONE, brokers), whole(TWO, brokers)])
    found: dict[int, list[tuple[bytes, int]]] = {1: [], 2: []}
    for row in rows:
        found[row["broker_id"]].append((row["value"], row["message_index"]))
    assert found[1] == [(b"a0", 0), (b"a1", 0), (b"a2", 1), (b"a3", 0)]
    assert found[2] == [(b"b%d" % number, 0) for number in range(100)]
    assert [results[index].rows for index in range(2)] == [4, 100]
    assert [results[index].missing_offsets for index in range(2)] == [0, 0]


def test_an_absent_broker_has_no_replacement(brokers: Brokers) -> None:
    gone = OffsetRange(TWO, 0, 8, Leader(Broker(2, "127.0.0.1", 1, "jafka")))
    with pytest.raises(BrokerUnreachable) as caught:
        read([gone], retry=2, bootstrap=[(brokers[0].host, brokers[0].port)])
    assert (caught.value.exit_code, caught.value.retriable) == (6, True)
    assert [kind for kind, _ in brokers[0].requests] == []


def test_offsets_that_expired_are_lost(brokers: Brokers) -> None:
    request = whole(ONE, brokers)
    brokers[0].logs["clicks", 0].expire()
    with pytest.raises(DataLoss):
        read([request])
    rows, _ = read([request], fails_on_data_loss=False)
    assert [row["value"] for row in rows] == [b"a3"]


def test_a_missing_topic_has_no_new_messages(brokers: Brokers) -> None:
    missing = TopicPartition("no-such-topic", 0, 1)
    with pytest.raises(
        RanOutBeforeUntil, match="The partition ends at 0, the range at 10"
    ) as refused:
        read([OffsetRange(missing, 0, 10, leader(missing, brokers))], deadline_s=60)
    assert "deleted" in refused.value.action and "leader" not in refused.value.action


def test_a_lost_end_is_reported_or_skipped(brokers: Brokers) -> None:
    request, partition, size = whole(TWO, brokers), brokers[1].logs["clicks", 0], len(entry(b"b0"))
    partition.flushed = 3 * size + 4
    partition.content = partition.content[: partition.flushed]
    text = f"The partition ends at {partition.flushed}, the range at {request.until_offset}"
    with pytest.raises(RanOutBeforeUntil, match=text) as refused:
        read([request], deadline_s=60)
    assert refused.value.where["offset"] == 3 * size
    rows, results = read([request], deadline_s=60, fails_on_data_loss=False)
    assert [row["value"] for row in rows] == [b"b0", b"b1", b"b2"]
    assert results[0].rows == 3


def nothing(connection: socket.socket, frame: bytes) -> None:
    del frame
    connection.sendall(b"\0\0\0\2\0\0")


def some_bytes(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(b"\0\0\0\x08" + frame[4:12])


@pytest.mark.parametrize("fails", [True, False])
def test_messages_that_are_withheld_are_not_lost(brokers: Brokers, fails: bool) -> None:
    brokers[1].script[FETCH].extend([nothing] * 1000)
    results: dict[int, RangeResult] = {}
    with pytest.raises(NotYetReadable, match="returned no message for 0.2 s") as refused:
        read(
            [whole(TWO, brokers)],
            deadline_s=0.2,
            fails_on_data_loss=fails,
            on_result=results.__setitem__,
        )
    assert not results
    assert refused.value.where == {"topic": "clicks", "partition": 0, "broker_id": 2, "offset": 0}
    assert refused.value.retriable
    assert not any(word in str(refused.value) for word in ("quota", "leader", "transaction"))


@pytest.mark.parametrize("fails_on_data_loss", [True, False])
def test_a_repeated_part_is_misaligned(brokers: Brokers, fails_on_data_loss: bool) -> None:
    brokers[1].script[FETCH].extend([some_bytes] * 1000)
    with pytest.raises(MisalignedOffset, match="its segment has 6 bytes from there on"):
        read([whole(TWO, brokers)], deadline_s=60, fails_on_data_loss=fails_on_data_loss)


def known(partition: TopicPartition, brokers: Brokers) -> dict[TopicPartition, Fingerprint]:
    """By what the log is known: its last ten bytes."""
    led = leader(partition, brokers)
    with Cluster([(led.broker.host, led.broker.port)], broker_type="jafka") as cluster:
        return read_fingerprints(
            cluster, {partition: (end_of(partition, brokers), 10)}, {partition: led}
        )


def test_a_fingerprint_may_span_two_segments(brokers: Brokers) -> None:
    led, end = leader(ONE, brokers), end_of(ONE, brokers)
    with Cluster([(led.broker.host, led.broker.port)], broker_type="jafka") as cluster:
        [found] = read_fingerprints(cluster, {ONE: (end, end - 1)}, {ONE: led}).values()
        content = (entry(b"a0") + wrapped(entry(b"a1"), entry(b"a2")) + entry(b"a3"))[1:]
        assert found == Fingerprint(
            end, end - 1, hashlib.blake2b(content, digest_size=8).hexdigest()
        )
        beyond = read_fingerprints(cluster, {ONE: (end + 5, end + 5)}, {ONE: led})[ONE]
    assert beyond.digest == hashlib.blake2b(entry(b"a0")[:1] + content, digest_size=8).hexdigest()


@pytest.mark.parametrize("messages", [1, 100, 200])
def test_a_log_recreated_since_the_plan_fails_the_task(brokers: Brokers, messages: int) -> None:
    planned, r = known(TWO, brokers), whole(TWO, brokers)
    part = OffsetRange(TWO, 0, 12, r.leader)
    assert len(read([r], fingerprints=planned)[0]) == 100
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


def test_expired_bytes_prove_nothing(brokers: Brokers) -> None:
    partition, led = brokers[0].logs["clicks", 0], leader(ONE, brokers)
    cut, end = partition.starts[1], end_of(ONE, brokers)
    with Cluster([(led.broker.host, led.broker.port)], broker_type="jafka") as cluster:
        planned = read_fingerprints(cluster, {ONE: (cut, 10)}, {ONE: led})
        partition.expire()
        assert read_fingerprints(cluster, {ONE: (cut, 10)}, {ONE: led}) == {}
    rows, _ = read([OffsetRange(ONE, cut, end, led)], fingerprints=planned)
    assert [row["value"] for row in rows] == [b"a3"]


def refused(connection: socket.socket, frame: bytes) -> None:
    del frame
    connection.sendall(b"\0\0\0\2\xff\xff")


def test_a_refused_start_is_an_error_and_no_other_log(brokers: Brokers) -> None:
    led, broker = leader(ONE, brokers), brokers[0]
    cut = broker.logs["clicks", 0].starts[1]
    broker.logs["clicks", 0].expire()
    broker.script[OFFSETS].append(refused)
    with (
        Cluster([(broker.host, broker.port)], broker_type="jafka") as cluster,
        pytest.raises(BrokerError, match=r"refused to list offsets: UNKNOWN \(code -1\)") as caught,
    ):
        read_fingerprints(cluster, {ONE: (cut, 10)}, {ONE: led})
    assert caught.value.where == {**ONE.place, "broker": f"{broker.host}:{broker.port}"}
