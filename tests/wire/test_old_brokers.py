"""Brokers of Kafka 0.8 and 0.9, as a driver and a task read them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from etl.errors import BrokerError, CorruptData, RanOutBeforeUntil, SettingsError, TopicMissing
from etl.io.brokers import exchange
from etl.io.brokers.cluster_requests import Cluster, unknown_topics
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka import kafka_broker_type
from etl.kafka.request_values import EARLIEST, LATEST
from etl.model.partitions import (
    Broker,
    Isolation,
    KafkaGroup,
    Leader,
    PartitionOffsets,
    TopicPartition,
)
from etl.model.plans import OffsetRange, RangeResult
from etl.reader.fetch import read_ranges
from tests.builders import split_fetch_options
from tests.fakes.broker import (
    API_VERSIONS,
    LIST_OFFSETS,
    METADATA,
    hang_up,
    instead,
)
from tests.fakes.old_broker import OldBroker

DEMO, OTHER = TopicPartition("demo", 0), TopicPartition("demo", 1)
COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_unanswering", set())
    monkeypatch.setattr(kafka_broker_type, "HANDSHAKE_PATIENCE_S", 0.05)


@pytest.fixture(params=["0.8", "0.9"])
def old(request: pytest.FixtureRequest) -> Iterator[OldBroker]:
    """`demo` has ten messages in its first partition, from 20 on, and none in its second."""
    with OldBroker(request.param) as broker:
        first = broker.log("demo", 0)
        first.log_start, first.segments = 20, [(20, 1000), (25, 2000)]
        first.append(*(b"%d" % number for number in range(20, 30)))
        broker.log("demo", 1)
        yield broker


@pytest.fixture
def consumer(old: OldBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", old.port, request_timeout_s=5) as connected:
        yield connected


@pytest.fixture
def cluster(old: OldBroker) -> Iterator[Cluster]:
    with Cluster([("127.0.0.1", old.port)], timeout_s=5) as connected:
        yield connected


def rows(
    ranges: list[OffsetRange], old: OldBroker, **more: object
) -> tuple[list[tuple[int, bytes]], dict[int, RangeResult]]:
    results: dict[int, RangeResult] = {}
    options, others = split_fetch_options(
        {
            "isolation": COMMITTED,
            "bootstrap": (("127.0.0.1", old.port),),
            "backoff_s": 0.001,
            "retry": 2,
            "max_wait_ms": 20,
            "timeout_s": 5,
            "on_result": results.__setitem__,
            **more,
        }
    )
    found = [
        (row["offset"], row["value"])
        for batch in read_ranges(ranges, options, **others)
        for row in batch.to_pylist()
    ]
    return sorted(found), results


def values(start: int, until: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(start, until)]


# One broker


def test_segments_have_their_time_of_writing(consumer: SimpleConsumer) -> None:
    assert consumer.offsets_before("demo", 0, LATEST, 10) == (30, 25, 20)
    assert consumer.offsets_before("demo", 0, LATEST) == (30,)
    assert consumer.offsets_before("demo", 0, EARLIEST, 10) == (20,)
    assert [consumer.offsets_before("demo", 0, when, 10) for when in (999, 1000, 2500)] == [
        (),
        (20,),
        (25, 20),
    ]
    assert consumer.offsets_before("demo", 0, LATEST, 0) == ()
    with pytest.raises(TopicMissing):
        consumer.offsets_before("gone", 0, LATEST)


def test_each_storage_of_offsets_is_its_own(old: OldBroker, consumer: SimpleConsumer) -> None:
    assert consumer.find_coordinator("g").port == old.port
    for in_zookeeper, offset in ((True, 21), (False, 22)):
        before = consumer.fetch_offsets("g", [DEMO], in_zookeeper=in_zookeeper)
        assert before[DEMO].offset is None
        consumer.commit_offsets("g", {DEMO: offset}, in_zookeeper=in_zookeeper)
        after = consumer.fetch_offsets("g", [DEMO, OTHER], in_zookeeper=in_zookeeper)
        assert (after[DEMO].offset, after[OTHER].offset) == (offset, None)
    assert old.committed == {("g", "demo", 0, True): 21, ("g", "demo", 0, False): 22}


# A cluster of them


def test_a_cluster_reports_its_partition_offsets_only(old: OldBroker, cluster: Cluster) -> None:
    metadata = cluster.describe(["demo", "gone"])
    assert (metadata.cluster_id, metadata.topic_ids) == (None, {})
    assert unknown_topics(metadata, ["demo", "gone"]) == {"gone"}
    found = cluster.extents([DEMO, OTHER], isolation=COMMITTED, metadata=metadata)
    assert dict(found.extents) == {DEMO: PartitionOffsets(20, 30), OTHER: PartitionOffsets(0, 0)}
    assert found.epochs == {}
    assert cluster.bytes_per_offset(found) == {}
    assert cluster.retention(["demo"]) == {}
    assert cluster.open_transactions(found) == {}
    assert cluster.retained_from(found, {DEMO: 5}, isolation=COMMITTED) == {}
    assert cluster.epoch_ends({DEMO: 1}, leaders=found.leaders) == {}
    assert cluster.members_of("g", metadata.brokers.values()) == KafkaGroup()


def test_the_end_is_requested_once(old: OldBroker, cluster: Cluster) -> None:
    metadata = cluster.describe(["demo"])
    request_count = len(old.requests)
    cluster.extents([DEMO], isolation=COMMITTED, metadata=metadata)
    assert old.requests[request_count:] == [(LIST_OFFSETS, 0)] * 2, "there is one end only"


def test_a_time_is_a_segment_written_by_then(old: OldBroker, cluster: Cluster) -> None:
    for moment, offset in ((999, 20), (1000, 20), (1999, 20), (2000, 25), (9999, 25)):
        assert cluster.offsets_at({DEMO: moment}, may_be_earlier=True) == {DEMO: offset}
    led_by_nobody = TopicPartition("demo", 7)
    assert cluster.offsets_at(
        {DEMO: 1000, led_by_nobody: 1000}, may_be_earlier=True, wait_for_leader_s=0
    ) == {DEMO: 20}


def test_the_detected_release_goes_to_tasks(old: OldBroker, cluster: Cluster) -> None:
    found = cluster.extents([DEMO], isolation=COMMITTED)
    assert found.leaders[DEMO].broker.broker_type == f"kafka-{old.release}"
    reported = old.requests.count((API_VERSIONS, 0))
    assert rows([OffsetRange(DEMO, 22, 27, found.leaders[DEMO])], old)[0] == values(22, 27)
    assert old.requests.count((API_VERSIONS, 0)) == reported, (
        "a task does not request API versions again"
    )


def test_a_configured_release_is_probed_once_under_read_committed(old: OldBroker) -> None:
    with Cluster(
        [("127.0.0.1", old.port)], timeout_s=5, broker_type=f"kafka-{old.release}"
    ) as cluster:
        metadata = cluster.describe(["demo"])
        for _ in range(2):
            assert cluster.extents([DEMO], isolation=COMMITTED, metadata=metadata).extents == {
                DEMO: PartitionOffsets(20, 30)
            }
        request = old.requests.count((API_VERSIONS, 0))
        assert request == (2 if old.release == "0.8" else 1), (
            "a broker that hangs up gets one more request, after another one"
        )
        cluster.extents([DEMO], isolation=COMMITTED)
        assert old.requests.count((API_VERSIONS, 0)) == request


# A task


@pytest.mark.parametrize("size", [1, 11, 12, 26, 40, 77])
def test_a_larger_message_is_requested_with_more_bytes(old: OldBroker, size: int) -> None:
    assert rows([OffsetRange(DEMO, 20, 30)], old, fetch_max_bytes=size, max_batch_bytes=1000)[
        0
    ] == values(20, 30)


def test_offsets_above_the_high_watermark_are_not_skipped(old: OldBroker) -> None:
    """These releases return an error; later ones no records and the high watermark."""
    old.log("demo", 0).hidden = 5
    with pytest.raises(
        RanOutBeforeUntil, match="cannot be read up to 30: its readable end stays below"
    ):
        rows([OffsetRange(DEMO, 27, 30)], old, deadline_s=0.2)


def test_an_unrelated_error_below_the_high_watermark_is_a_broker_error(old: OldBroker) -> None:
    old.log("demo", 0).hidden, old.fails = 5, True
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
        rows([OffsetRange(DEMO, 22, 25)], old)


# A version in the conf above the brokers' own


@pytest.mark.parametrize("text", ["0.9", "0.10.2", "4.1"])
@pytest.mark.parametrize("hangs_up", [None, True])
def test_a_version_above_the_brokers_own_names_the_setting(
    old: OldBroker, text: str, hangs_up: bool | None
) -> None:
    if text == old.release:
        return
    old.hangs_up, newer = hangs_up, f"kafka-{text}"
    leader = Leader(Broker(1, "127.0.0.1", old.port, newer))
    with pytest.raises(SettingsError) as raised:
        with Cluster([("127.0.0.1", old.port)], timeout_s=1, broker_type=newer) as cluster:
            cluster.extents([DEMO], isolation=COMMITTED, metadata=cluster.describe(["demo"]))
            cluster.members_of("g", [leader.broker])
            rows([OffsetRange(DEMO, 20, 30, leader)], old, broker_type=newer)
    assert raised.value.where == {"key": "source.broker_version", "broker": f"127.0.0.1:{old.port}"}
    assert (
        f"is treated as Kafka {text}, and answers like Kafka {old.release}" in raised.value.message
    )
    assert f"'{old.release}'" in raised.value.action


def test_a_broker_that_only_fails_is_not_reported_as_an_older_one(old: OldBroker) -> None:
    def metadata() -> object:
        release = f"kafka-{old.release}"
        with SimpleConsumer("127.0.0.1", old.port, broker_type=release) as consumer:
            return consumer.topic_metadata().topics.keys()

    old.script[METADATA].append(hang_up)
    assert metadata() == {"demo"}
    half = struct.pack(">iib", 5, 1, 0)
    old.script[METADATA].append(instead(half))
    with pytest.raises(CorruptData):
        metadata()
