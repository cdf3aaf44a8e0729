"""The conf and the brokers of the demo for each family, without starting them, and its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etl.demo.story import SOURCES, TOPIC, click_messages, conf_of
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.partitions import BrokerFamily, Isolation, TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from etl.reader.fetch_options import FetchOptions
from etl.settings.load import load_settings
from etl.testkit.brokers import DEFAULT_VERSION, JAFKA


def events_of(messages: bytes, partition: int) -> list[tuple[int, int]]:
    """The number of each event, and its place in its entry."""
    whole = OffsetRange(TopicPartition("clicks", partition, 0), 0, len(messages))
    sizes: dict[str, Any] = {"fetch_max_bytes": 1 << 20, "max_batch_bytes": 1 << 20}
    cursor = Cursor(whole, FetchOptions(isolation=Isolation.READ_UNCOMMITTED, **sizes))
    unknown = (None, None, None, None, ())
    fetched = FetchedPartition(
        *("clicks", partition, *unknown, memoryview(messages)),
        layout=EntryLayout.PHYSICAL,
        broker_id=0,
    )
    found = []
    for batch in cursor.feed(fetched):
        for row in batch.to_pylist():
            found.append((json.loads(row["value"])["event"], row["message_index"]))
    assert cursor.done
    return found


def test_events_come_once_each_in_sets_of_both_kinds_on_every_partition() -> None:
    partitions = [b""] * 4
    for partition, messages in click_messages(100, 1_010, partitions=4, messages_per_set=50):
        partitions[partition] += messages
    found = [events_of(messages, partition) for partition, messages in enumerate(partitions)]
    assert all(len(events) >= 200 for events in found)
    events = [event for events in found for event in events]
    assert sorted(number for number, _ in events) == list(range(100, 1_110))
    in_sets = [index for _, index in events if index > 0]
    assert len(in_sets) > 300, "messages after the first one of a gzipped set"


def test_the_same_numbers_are_the_same_events_in_every_run() -> None:
    first, second = (
        [messages for _, messages in click_messages(0, 100, partitions=8, messages_per_set=10)]
        for _ in range(2)
    )
    assert first[:8] == second[:8]


@pytest.mark.parametrize(
    ("family", "partition_by", "brokers"),
    [
        (BrokerFamily.KAFKA, ("event_date",), [DEFAULT_VERSION]),
        (BrokerFamily.JAFKA, ("broker_id",), [JAFKA, JAFKA]),
    ],
)
def test_each_family_has_its_brokers_and_a_conf_that_a_run_takes(
    tmp_path: Path, family: BrokerFamily, partition_by: tuple[str, ...], brokers: list[str]
) -> None:
    conf = tmp_path / "clicks.yaml"
    conf.write_text(conf_of(SOURCES[family], "127.0.0.1:2181/x", tmp_path))
    found = load_settings(conf)
    assert found.source.broker_type == family
    assert found.source.topic_filter.literal_names == (TOPIC,)
    assert found.table.partition_by == partition_by
    cluster = SOURCES[family].cluster(tmp_path)
    assert [broker.version for broker in cluster.brokers] == brokers
    assert SOURCES[family].who.format(version=brokers[0])
    assert set(SOURCES) == set(BrokerFamily)
