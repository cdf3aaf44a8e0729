"""The sentences that hold for the fake Jafka as for a real one; each suite brings a `served`
fixture of its own.

The broker of either has three partitions in every topic, flushes every message, and begins a new
segment after `SEGMENT_BYTES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from etl.errors import BrokerError, BrokerUnreachable, SettingsError
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.partition_ends import read_fingerprints
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.broker_type_interface import Reply, Request
from etl.kafka.request_values import EARLIEST, LATEST, FetchTarget
from etl.model.partitions import Broker, Fingerprint, Leader, TopicPartition
from etl.records.decode import Messages
from tests.fakes.jafka import SNAPPY, entry, old_entry, wrapped

SEGMENT_BYTES = 200
PARTITIONS = 3
HELLO, WORLD = entry(b"hello"), entry(b"world!")
EXAMPLE = bytes.fromhex("0000000b 01 00 3610a686 68656c6c6f 0000000c 01 00 5a09ed37 e4b8ade69687")
"""`hello`, and the six bytes of U+4E2D U+6587."""


@dataclass(frozen=True, slots=True)
class ServedJafka:
    host: str
    port: int
    new_topic: Callable[[], str]

    def consumer(self) -> SimpleConsumer:
        return SimpleConsumer(self.host, self.port, request_timeout_s=20, broker_type="jafka")


def end_of(consumer: SimpleConsumer, partition: TopicPartition) -> int:
    return consumer.earliest_or_latest_offset(partition.topic, partition.partition, LATEST)


class JafkaContract:
    @pytest.fixture
    def consumer(self, served: ServedJafka) -> Iterator[SimpleConsumer]:
        with served.consumer() as connected:
            yield connected

    @pytest.fixture
    def topic(self, served: ServedJafka) -> str:
        return served.new_topic()

    def test_a_jafka_is_greeted_with_nothing_and_answers_nothing(
        self, consumer: SimpleConsumer
    ) -> None:
        assert consumer.introduction() == "Jafka, or Kafka 0.7"

    def test_the_worked_example_of_the_protocol_is_answered_byte_for_byte(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        name = len(topic).to_bytes(2, "big") + topic.encode()

        def fetch(partition: int, offset: int, size: int, name: bytes = name) -> bytes:
            return (
                name
                + partition.to_bytes(4, "big")
                + offset.to_bytes(8, "big")
                + size.to_bytes(4, "big")
            )

        def answered(kind: int, body: bytes) -> str:
            frame = (2 + len(body)).to_bytes(4, "big") + kind.to_bytes(2, "big") + body
            return consumer.send(
                Request(lambda number: frame, lambda answer: Reply(bytes(answer).hex()), answers=1)
            )

        consumer.produce(topic, 0, EXAMPLE)
        assert answered(1, fetch(0, 0, 1 << 20)) == "0000" + EXAMPLE.hex()
        assert answered(1, fetch(0, 15, 1 << 20)) == "0000" + EXAMPLE[15:].hex()
        assert answered(1, fetch(0, 0, 20)) == "0000" + EXAMPLE[:20].hex()
        assert answered(1, fetch(0, 0, 10)) == "0000" + EXAMPLE[:10].hex()
        assert (
            answered(1, fetch(0, 31, 100)),
            answered(1, fetch(0, 32, 100)),
            answered(1, fetch(3, 0, 100)),
        ) == ("0000", "0001", "0003")
        topic_partition, latest = name + bytes(4), b"\xff" * 8
        assert (
            answered(4, topic_partition + latest + (1).to_bytes(4, "big"))
            == "0000" + "00000001" + "000000000000001f"
        )
        assert (
            answered(4, topic_partition + latest + (10).to_bytes(4, "big"))
            == "0000" + "00000002" + "000000000000001f" + "0000000000000000"
        )
        several = [
            fetch(0, 0, 100),
            fetch(1, 0, 100),
            fetch(7, 0, 100),
            fetch(0, 0, 100, b"\0\x06nosuch"),
        ]
        assert answered(2, (4).to_bytes(2, "big") + b"".join(several)) == (
            "0000"
            + "00000021"
            + "0000"
            + EXAMPLE.hex()
            + "00000002"
            + "0000"
            + "00000002"
            + "0003"
            + "00000002"
            + "0000"
        )

    def test_produced_messages_are_read_from_a_boundary_on(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        assert consumer.produce(topic, 0, [(None, b"hello"), (None, b"world!")]) is None
        assert bytes(consumer.fetch(topic, 0, len(HELLO)).records) == WORLD
        assert consumer.earliest_or_latest_offset(topic, 0, EARLIEST) == 0
        assert consumer.earliest_or_latest_offset(topic, 0, LATEST) == len(HELLO + WORLD)

    def test_one_request_returns_several_logs_each_with_its_own_error(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        consumer.produce(topic, 0, HELLO)
        consumer.produce(topic, 1, WORLD)
        wanted = [
            FetchTarget(TopicPartition(topic, number), offset, 100)
            for number, offset in ((1, 0), (9, 0), (0, 0), (2, 5))
        ]
        answer = consumer.multifetch(wanted)
        assert [
            (each.partition, bytes(each.records), each.refusal and each.refusal.name)
            for each in answer.partitions
        ] == [
            (1, WORLD, None),
            (9, b"", "WRONG_PARTITION"),
            (0, HELLO, None),
            (2, b"", "OFFSET_OUT_OF_RANGE"),
        ]

    def test_segments_are_boundaries_that_no_answer_crosses(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        for _ in range(40):
            consumer.produce(topic, 0, HELLO)
        partition = TopicPartition(topic, 0)
        listed = consumer.list_offsets({partition: LATEST})[partition]
        boundaries = listed.boundaries or ()
        assert (boundaries[0], boundaries[-1], listed.offset) == (0, 600, 600) and len(
            boundaries
        ) > 2
        assert not any(boundary % len(HELLO) for boundary in boundaries)
        assert consumer.offsets_before(topic, 0, LATEST, 3) == tuple(reversed(boundaries))[:3]
        assert [len(consumer.fetch(topic, 0, start).records) for start in boundaries[:-1]] == [
            until - start for start, until in zip(boundaries, boundaries[1:])
        ]

    def test_a_topic_that_is_not_there_looks_like_an_empty_log(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        for offset in (0, 500):
            fetched = consumer.fetch(topic, 0, offset)
            assert (bytes(fetched.records), fetched.refusal, fetched.proves_empty) == (
                b"",
                None,
                True,
            )
        assert consumer.offsets_before(topic, 0, LATEST) == (0,)
        assert consumer.earliest_or_latest_offset(topic, 0, EARLIEST) == 0

    def test_a_topic_that_was_made_has_no_log_before_its_first_message(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        assert consumer.create_topic(topic, 2) == PARTITIONS, (
            "it gives every topic its num.partitions"
        )
        assert consumer.create_topic(topic, 5) == 5
        assert consumer.earliest_or_latest_offset(topic, 4, LATEST) == 0
        consumer.produce(topic, 4, [(None, b"hello")])
        assert consumer.earliest_or_latest_offset(topic, 4, LATEST) == len(HELLO)
        assert (consumer.delete_topic(topic), consumer.delete_topic(topic)) == (5, 0)

    def test_a_log_is_recognized_by_the_bytes_before_an_offset_and_a_recreated_one_is_reported(
        self, served: ServedJafka, consumer: SimpleConsumer, topic: str
    ) -> None:
        partitions = [TopicPartition(topic, number, 1) for number in range(2)]
        consumer.produce(topic, 0, HELLO + HELLO)
        consumer.produce(topic, 1, HELLO)
        with Cluster([(served.host, served.port)], broker_type="jafka") as cluster:
            leaders = dict.fromkeys(
                partitions, Leader(Broker(1, served.host, served.port, "jafka"))
            )
            places = {partition: (end_of(consumer, partition), 15) for partition in partitions}
            before = read_fingerprints(cluster, places, leaders)
            consumer.produce(topic, 0, WORLD)
            assert (
                read_fingerprints(cluster, places, leaders) == before
                and len({tail.digest for tail in before.values()}) == 1
            )
            consumer.delete_topic(topic)
            for number in range(2):
                consumer.produce(topic, number, WORLD)
            now = read_fingerprints(cluster, places, leaders)
        assert now.keys() == before.keys() and not [
            partition for partition in partitions if now[partition] == before[partition]
        ]

    def test_of_a_log_that_ends_before_an_offset_there_is_nothing_before_it(
        self, served: ServedJafka, consumer: SimpleConsumer, topic: str
    ) -> None:
        partition = TopicPartition(topic, 0, 1)
        consumer.produce(topic, 0, HELLO)
        with Cluster([(served.host, served.port)], broker_type="jafka") as cluster:
            leaders = {partition: Leader(Broker(1, served.host, served.port, "jafka"))}
            beyond = read_fingerprints(cluster, {partition: (500, 15)}, leaders)
        assert beyond == {
            partition: Fingerprint(500, 15, hashlib.blake2b(b"", digest_size=8).hexdigest())
        }

    def test_a_partition_beyond_the_last_is_refused_by_a_fetch_and_hung_up_on_by_an_offsets_request(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        consumer.produce(topic, 0, HELLO)
        with pytest.raises(
            BrokerError,
            match=r"WRONG_PARTITION \(code 3\).*partition 3.*how many partitions the topic has on "
            r"this broker",
        ):
            consumer.fetch(topic, 3, 0)
        with pytest.raises(
            BrokerUnreachable,
            match="The connection broke.*the number of its partitions on this broker",
        ):
            consumer.offsets_before(topic, 3, LATEST)
        with pytest.raises(BrokerUnreachable, match="the number of its partitions on this broker"):
            consumer.list_offsets({TopicPartition(topic, number): LATEST for number in (0, 9, 1)})
        assert consumer.offsets_before(topic, 0, LATEST) == (len(HELLO),), (
            "the next question is answered"
        )

    def test_an_invalid_name_has_another_error_than_a_missing_topic(
        self, consumer: SimpleConsumer
    ) -> None:
        with pytest.raises(
            BrokerError, match=r"UNKNOWN \(code -1\).*a topic name that it does not allow"
        ):
            consumer.fetch("a/b", 0, 0)
        with pytest.raises(BrokerUnreachable, match="the topic's name"):
            consumer.offsets_before("a/b", 0, LATEST)

    def test_offsets_by_time_are_rejected_before_any_request(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        with pytest.raises(
            SettingsError, match="cannot find offsets by time: its search is off by one"
        ):
            consumer.offsets_before(topic, 0, 1_700_000_000_000)

    @pytest.mark.parametrize(
        "refused",
        [
            pytest.param(entry(b"\0", SNAPPY), id="snappy"),
            pytest.param(entry(b"\0", 3), id="unknown codec"),
            pytest.param(old_entry(b"hello"), id="magic 0"),
            pytest.param(entry(b"x" * ((1 << 20) + 1)), id="too large"),
            pytest.param(HELLO[:-1] + b"?", id="wrong checksum"),
        ],
    )
    def test_what_a_jafka_does_not_take_is_not_reported_as_taken(
        self, consumer: SimpleConsumer, topic: str, refused: bytes
    ) -> None:
        with pytest.raises(BrokerUnreachable, match="The connection broke.*max.message.size"):
            consumer.produce(topic, 0, refused)
        assert consumer.earliest_or_latest_offset(topic, 0, LATEST) == 0

    def test_an_entry_that_holds_others_is_given_as_it_is_and_read_as_what_it_holds(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        whole = wrapped(HELLO, wrapped(WORLD, HELLO))
        consumer.produce(topic, 0, whole + WORLD)
        fetched = consumer.fetch(topic, 0, 0)
        assert bytes(fetched.records) == whole + WORLD
        assert [(each.offset, each.message_index, each.value) for each in Messages(fetched)] == [
            (0, 0, b"hello"),
            (0, 1, b"world!"),
            (0, 2, b"hello"),
            (len(whole), 0, b"world!"),
        ]

    def test_a_log_is_read_through_by_the_next_offset_whatever_a_fetch_holds(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        values = [b"%d" % number for number in range(100)]
        for value in values:
            consumer.produce(topic, 1, [(None, value)])
        for size in (12, 50, 1000):
            found, offset = list[bytes | None](), 0
            while (
                messages := Messages(consumer.fetch(topic, 1, offset, max_bytes=size))
            ).next_offset > offset:
                found += [each.value for each in messages]
                offset = messages.next_offset
            assert found == values

    def test_the_ends_of_very_many_logs_are_requested_on_one_connection(
        self, consumer: SimpleConsumer, topic: str
    ) -> None:
        consumer.produce(topic, 2, HELLO)
        partitions = [TopicPartition(f"{topic}-{number}", 0) for number in range(500)] + [
            TopicPartition(topic, 2)
        ]
        found = consumer.list_offsets(dict.fromkeys(partitions, LATEST))
        assert [found[partition].offset for partition in partitions] == [0] * 500 + [len(HELLO)]
