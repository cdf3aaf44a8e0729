"""The demo's events as message sets of Jafka: the requested number, each once, plain and gzipped,
evenly over the partitions.
"""

from __future__ import annotations

import json
from collections import Counter

from etl.demo.story import click_messages
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.partitions import BrokerPartition, Isolation
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor


def events_of(messages: bytes, partition: int) -> list[tuple[int, int]]:
    """The number of each event, and its place in its entry."""
    log = BrokerPartition("clicks", partition, 0)
    whole = OffsetRange(log, 0, len(messages))
    cursor = Cursor(
        whole,
        isolation=Isolation.READ_UNCOMMITTED,
        fetch_max_bytes=1 << 20,
        max_batch_bytes=1 << 20,
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
    logs = [b""] * 4
    for partition, messages in click_messages(100, 1_010, partitions=4, messages_per_set=50):
        logs[partition] += messages
    found = [
        event for partition, messages in enumerate(logs) for event in events_of(messages, partition)
    ]
    assert sorted(number for number, _ in found) == list(range(100, 1_110))
    assert Counter(index > 0 for _, index in found)[True] > 300, (
        "messages after the first one of a gzipped set"
    )
    assert all(
        len(events_of(messages, partition)) >= 200 for partition, messages in enumerate(logs)
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
