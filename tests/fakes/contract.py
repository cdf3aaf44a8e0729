"""The contract of a broker, for the fake and for real ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from kafka.record import MemoryRecords

from etl.errors import BrokerError, CommitUnknown, Meaning, MembershipLost, TopicMissing
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    FetchedPartition,
    FetchTarget,
)
from etl.model.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class Served:
    """A broker that runs, and how to get a topic on it."""

    host: str
    port: int
    make_topic: Callable[[int], str]

    def consumer(self) -> SimpleConsumer:
        return SimpleConsumer(self.host, self.port, request_timeout_s=20)


class BrokerContract:
    def test_a_broker_shows_what_it_is_by_the_versions_that_it_speaks(self, served: Served) -> None:
        with served.consumer() as consumer:
            assert re.fullmatch(
                r"Kafka [34]\.[0-9.]+ by its API versions, Fetch v13", consumer.introduction()
            )

    def test_records_that_were_sent_are_fetched_from_their_offset_on(self, served: Served) -> None:
        topic = served.make_topic(1)
        with served.consumer() as consumer:
            assert consumer.produce(topic, 0, [(b"k", b"one"), (None, b"two")]) == 0
            assert consumer.produce(topic, 0, [(None, None)]) == 2
            fetched = consumer.fetch(topic, 0, 1)
        assert offsets(fetched) == [[0, 1], [2]]
        assert (
            fetched.high_watermark,
            fetched.last_stable_offset,
            fetched.log_start_offset,
            fetched.refusal,
        ) == (3, 3, 0, None)

    def test_a_fetch_at_the_end_is_empty_and_proves_it(self, served: Served) -> None:
        topic = served.make_topic(1)
        with served.consumer() as consumer:
            consumer.produce(topic, 0, [(None, b"one")])
            fetched = consumer.fetch(topic, 0, 1, fetch_max_wait_ms=1)
        assert (len(fetched.records), fetched.proves_empty) == (0, True)

    def test_one_request_returns_several_logs_in_the_requested_order(self, served: Served) -> None:
        topic = served.make_topic(3)
        with served.consumer() as consumer:
            for partition in range(3):
                consumer.produce(topic, partition, [(None, b"x" * (partition + 1))])
            answer = consumer.multifetch(
                [
                    FetchTarget(TopicPartition(topic, partition), 0, 1 << 20)
                    for partition in (2, 0, 1)
                ]
            )
        assert [each.partition for each in answer.partitions] == [2, 0, 1]
        assert [offsets(each) for each in answer.partitions] == [[[0]]] * 3

    def test_a_record_batch_larger_than_the_fetch_comes_whole_when_its_log_is_first(
        self, served: Served
    ) -> None:
        topic = served.make_topic(2)
        with served.consumer() as consumer:
            for partition in range(2):
                consumer.produce(topic, partition, [(None, b"x" * 5000)])
            answer = consumer.multifetch(
                [FetchTarget(TopicPartition(topic, partition), 0, 100) for partition in range(2)],
                max_bytes=100,
            )
        first, second = answer.partitions
        assert offsets(first) == [[0]]
        assert (len(second.records), second.proves_empty) == (0, False)

    def test_an_offset_outside_of_the_log_is_refused_as_such(self, served: Served) -> None:
        topic = served.make_topic(1)
        with served.consumer() as consumer:
            answer = consumer.multifetch([FetchTarget(TopicPartition(topic, 0), 5, 100)])
        assert [each.refusal and each.refusal.meaning for each in answer.partitions] == [
            Meaning.OUT_OF_RANGE
        ]

    def test_a_fetch_of_a_topic_that_is_not_there_raises(self, served: Served) -> None:
        with (
            served.consumer() as consumer,
            pytest.raises(TopicMissing, match="UNKNOWN_TOPIC_OR_PARTITION"),
        ):
            consumer.fetch("no-such-topic", 0, 0)

    def test_the_next_fetch_may_be_under_way_while_an_answer_is_read(self, served: Served) -> None:
        topic = served.make_topic(1)
        partition = TopicPartition(topic, 0)
        with served.consumer() as consumer:
            for number in range(3):
                consumer.produce(topic, 0, [(None, b"%d" % number)])
            consumer.begin_fetch([FetchTarget(partition, 0, 1)])
            first = consumer.end_fetch().partitions[0]
            consumer.begin_fetch([FetchTarget(partition, 1, 1)])
            second = consumer.end_fetch().partitions[0]
            assert [offsets(each)[0] for each in (first, second)] == [[0], [1]]

    def test_earliest_and_latest_offsets_are_start_and_end(self, served: Served) -> None:
        topic = served.make_topic(1)
        with served.consumer() as consumer:
            consumer.produce(topic, 0, [(None, b"one"), (None, b"two")])
            assert consumer.earliest_or_latest_offset(topic, 0, EARLIEST) == 0
            assert consumer.earliest_or_latest_offset(topic, 0, LATEST) == 2
            assert consumer.offsets_before(topic, 0, LATEST) == (2,)

    def test_a_time_finds_the_first_record_that_is_not_older(self, served: Served) -> None:
        topic = served.make_topic(1)
        with served.consumer() as consumer:
            consumer.produce(topic, 0, [(None, b"one")])
            assert consumer.offsets_before(topic, 0, 1) == (0,)
            assert consumer.offsets_before(topic, 0, int(time.time() * 1000) + 3_600_000) == ()

    def test_metadata_names_leaders_and_cluster(self, served: Served) -> None:
        topic = served.make_topic(2)
        with served.consumer() as consumer:
            metadata = consumer.topic_metadata([topic])
        assert metadata.cluster_id
        assert {
            partition: (leader.broker.host, leader.broker.port)
            for partition, leader in metadata.leaders.items()
        } == {TopicPartition(topic, number): (served.host, served.port) for number in range(2)}

    def test_asking_for_a_topic_does_not_create_it(self, served: Served) -> None:
        with served.consumer() as consumer:
            refusal = consumer.topic_metadata(["never-made"]).topics["never-made"].refusal
            assert refusal and refusal.meaning is Meaning.UNKNOWN_TOPIC
            assert "never-made" not in consumer.topic_metadata().topics

    def test_log_sizes_are_the_bytes_of_the_segments(self, served: Served) -> None:
        topic = served.make_topic(1)
        partition = TopicPartition(topic, 0)
        with served.consumer() as consumer:
            consumer.produce(topic, 0, [(None, b"x" * 1000)])
            assert consumer.log_sizes([partition]) == {
                partition: len(consumer.fetch(topic, 0, 0).records)
            }

    def test_a_group_gets_back_the_offset_that_it_stored(self, served: Served) -> None:
        topic = served.make_topic(2)
        first, second = (TopicPartition(topic, number) for number in range(2))
        with served.consumer() as consumer:
            _once_it_passes(
                lambda: consumer.commit_offsets("a-group", {first: 42}, metadata="by hand")
            )
            assert consumer.fetch_offsets("a-group", [first, second]) == {
                first: CommittedOffset(None, 42, "by hand"),
                second: CommittedOffset(None, None),
            }

    def test_a_commit_of_a_member_that_the_group_never_had_stores_nothing(
        self, served: Served
    ) -> None:
        partition = TopicPartition(served.make_topic(1), 0)
        with served.consumer() as consumer:
            _once_it_passes(lambda: consumer.commit_offsets("another-group", {partition: 42}))
            with pytest.raises(MembershipLost):
                consumer.commit_offsets(
                    "another-group", {partition: 43}, generation=5, member_id="never-joined"
                )
            assert (
                consumer.fetch_offsets("another-group", [partition], require_stable=True)[
                    partition
                ].offset
                == 42
            )


def offsets(fetched: FetchedPartition) -> list[list[int]]:
    """Record offsets by batch, as kafka-python reads them, without a cut-off last one."""
    return [
        [record.offset for record in record_batch]
        for record_batch in MemoryRecords(bytes(fetched.records))
    ]


def _once_it_passes(ask: Callable[[], object]) -> None:
    """A broker's first group takes it a moment: the topic of the offsets is only then made."""
    deadline = time.monotonic() + 60
    while True:
        try:
            ask()
            return
        except (BrokerError, CommitUnknown):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
