"""A second generation of brokers is read through everything above without a change there: it is
registered, and that is all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.errors import Meaning, NotKafka, RanOutBeforeUntil, SettingsError
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka import broker_types
from etl.kafka.request_values import EARLIEST, LATEST
from etl.model.partitions import BrokerPartition, Isolation, PartitionOffsets
from etl.model.plans import OffsetRange, RangeResult
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from tests.fakes.broker import FakeBroker
from tests.fakes.listening import listening
from tests.fakes.pebble import Pebble, PebbleBroker

LOGS = [BrokerPartition("stones", number) for number in range(2)]


@pytest.fixture(autouse=True)
def two_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_types, "BROKER_TYPES", (*broker_types.BROKER_TYPES, Pebble()))


@pytest.fixture
def broker() -> Iterator[PebbleBroker]:
    with PebbleBroker({("stones", 0): 30, ("stones", 1): 50}).listening() as running:
        yield running


@pytest.fixture
def consumer(broker: PebbleBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", broker.port, request_timeout_s=5) as connected:
        yield connected


def test_a_broker_gets_requests_of_its_generation(consumer: SimpleConsumer) -> None:
    assert consumer.introduction() == "a pebble"
    assert consumer.earliest_or_latest_offset("stones", 1, EARLIEST) == 0
    assert consumer.earliest_or_latest_offset("stones", 1, LATEST) == 50
    assert sorted(consumer.topic_metadata().leaders) == LOGS


def test_a_broker_that_the_newest_generation_knows_is_of_that_one() -> None:
    with (
        FakeBroker() as kafka,
        SimpleConsumer(kafka.host, kafka.port, request_timeout_s=5) as consumer,
    ):
        assert consumer.introduction().startswith("Kafka ")


def test_a_port_of_no_generation_fails_with_the_error_of_the_newest() -> None:
    with (
        listening(lambda connection: None) as port,
        SimpleConsumer("127.0.0.1", port, request_timeout_s=5) as consumer,
    ):
        with pytest.raises(NotKafka, match="closed on the first request"):
            consumer.topic_metadata()


def test_a_refusal_means_the_same_in_every_generation(consumer: SimpleConsumer) -> None:
    refusal = consumer.topic_metadata(["no-such-topic"]).topics["no-such-topic"].refusal
    assert refusal is not None and refusal.meaning is Meaning.UNKNOWN_TOPIC


def test_a_request_unknown_to_a_generation_has_its_own_error(consumer: SimpleConsumer) -> None:
    with pytest.raises(SettingsError, match="cannot report the sizes of partitions"):
        consumer.log_sizes(LOGS)
    assert consumer.epoch_ends({LOGS[0]: 1}, {}) == {}


def test_a_cluster_of_it_reports_the_start_and_end_of_its_logs(broker: PebbleBroker) -> None:
    with Cluster([("127.0.0.1", broker.port)], timeout_s=5) as cluster:
        found = cluster.extents(LOGS, isolation=Isolation.READ_COMMITTED)
        assert dict(found.extents) == {
            LOGS[0]: PartitionOffsets(0, 30),
            LOGS[1]: PartitionOffsets(0, 50),
        }
        assert (cluster.bytes_per_offset(found), cluster.retention(["stones"])) == ({}, {})


def test_a_task_reads_its_ranges_to_the_row(broker: PebbleBroker) -> None:
    receipts: dict[int, RangeResult] = {}
    ranges = [OffsetRange(LOGS[0], 3, 27), OffsetRange(LOGS[1], 40, 50)]
    rows = [
        (row["partition"], row["offset"], int(row["value"]))
        for arrow_batch in read_ranges(
            ranges,
            FetchOptions(
                isolation=Isolation.READ_COMMITTED, bootstrap=(("127.0.0.1", broker.port),)
            ),
            on_receipt=receipts.__setitem__,
            columns=("partition", "offset", "value"),
        )
        for row in arrow_batch.to_pylist()
    ]
    assert sorted(rows) == [(0, offset, offset) for offset in range(3, 27)] + [
        (1, offset, offset) for offset in range(40, 50)
    ]
    assert {index: receipt.rows for index, receipt in receipts.items()} == {0: 24, 1: 10}


def test_a_range_beyond_the_log_ran_out(broker: PebbleBroker) -> None:
    with pytest.raises(RanOutBeforeUntil):
        list(
            read_ranges(
                [OffsetRange(LOGS[0], 35, 40)],
                FetchOptions(
                    isolation=Isolation.READ_COMMITTED, bootstrap=(("127.0.0.1", broker.port),)
                ),
                on_receipt=lambda index, receipt: None,
            )
        )
