"""What the demo writes down and starts, for each family of brokers, without starting it; its events as
message sets of Jafka.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from etl.demo.story import SOURCES, TOPIC, click_messages, conf_of
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.partitions import BrokerFamily, Isolation, TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from etl.reader.fetch_options import FetchOptions
from etl.settings.load import load_settings
from etl.testkit.brokers import DEFAULT_VERSION, JAFKA


@pytest.mark.parametrize(
    ("dialect", "partition_by"),
    [(BrokerFamily.KAFKA, ("event_date",)), (BrokerFamily.JAFKA, ("broker_id",))],
)
def test_its_conf_is_one_that_a_run_takes(
    tmp_path: Path, dialect: BrokerFamily, partition_by: tuple[str, ...]
) -> None:
    conf = tmp_path / "clicks.yaml"
    conf.write_text(conf_of(SOURCES[dialect], "127.0.0.1:2181/x", tmp_path))
    found = load_settings(conf)
    assert found.source.broker_type == dialect
    assert found.source.topic_filter.literal_names == (TOPIC,)
    assert found.table.partition_by == partition_by


@pytest.mark.parametrize(
    ("dialect", "brokers"),
    [(BrokerFamily.KAFKA, [DEFAULT_VERSION]), (BrokerFamily.JAFKA, [JAFKA, JAFKA])],
)
def test_its_brokers_are_one_of_kafka_or_two_of_jafka(
    tmp_path: Path, dialect: BrokerFamily, brokers: list[str]
) -> None:
    cluster = SOURCES[dialect].cluster(tmp_path)
    assert [broker.version for broker in cluster.brokers] == brokers
    assert SOURCES[dialect].who.format(version=brokers[0])


def test_every_family_has_its_demo() -> None:
    assert set(SOURCES) == set(BrokerFamily)


def events_of(messages: bytes, partition: int) -> list[tuple[int, int]]:
    """The number of each event, and its place in its entry."""
    topic_partition = TopicPartition("clicks", partition, 0)
    whole = OffsetRange(topic_partition, 0, len(messages))
    cursor = Cursor(
        whole,
        FetchOptions(
            isolation=Isolation.READ_UNCOMMITTED, fetch_max_bytes=1 << 20, max_batch_bytes=1 << 20
        ),
    )
    rows = cursor.feed(
        FetchedPartition(
            "clicks",
            partition,
            None,
            None,
            None,
            None,
            (),
            memoryview(messages),
            layout=EntryLayout.PHYSICAL,
            broker_id=0,
        )
    )
    found = [
        (json.loads(row["value"])["event"], row["message_index"])
        for arrow_batch in rows
        for row in arrow_batch.to_pylist()
    ]
    assert cursor.done
    return found


def test_events_come_once_each_in_sets_of_both_kinds_on_every_partition() -> None:
    partitions = [b""] * 4
    for partition, messages in click_messages(100, 1_010, partitions=4, messages_per_set=50):
        partitions[partition] += messages
    found = [
        event
        for partition, messages in enumerate(partitions)
        for event in events_of(messages, partition)
    ]
    assert sorted(number for number, _ in found) == list(range(100, 1_110))
    assert Counter(index > 0 for _, index in found)[True] > 300, (
        "messages after the first one of a gzipped set"
    )
    assert all(
        len(events_of(messages, partition)) >= 200 for partition, messages in enumerate(partitions)
    )


def test_the_same_numbers_are_the_same_events_in_every_run() -> None:
    plain = [messages for _, messages in click_messages(0, 100, partitions=8, messages_per_set=10)][
        :8
    ]
    assert (
        plain
        == [messages for _, messages in click_messages(0, 100, partitions=8, messages_per_set=10)][
            :8
        ]
    )
