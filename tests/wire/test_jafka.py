"""A Jafka broker: the contract, refusals of the fake one, and ports that are no Jafka."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from itertools import count

import pytest

from etl.errors import NotKafka
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import LATEST
from etl.model.partitions import TopicPartition
from tests.fakes.broker import FakeBroker
from tests.fakes.jafka import OFFSETS, JafkaBroker, entry
from tests.fakes.jafka_contract import PARTITIONS, SEGMENT_BYTES, JafkaContract, ServedJafka
from tests.fakes.sockets import listening

DEMO = TopicPartition("demo", 0, 3)
HELLO, WORLD = entry(b"hello"), entry(b"world!")


@pytest.fixture
def broker() -> Iterator[JafkaBroker]:
    with JafkaBroker(partitions=3).listening() as running:
        yield running


@pytest.fixture
def consumer(broker: JafkaBroker) -> Iterator[SimpleConsumer]:
    with consumer_of(broker) as connected:
        yield connected


def consumer_of(broker: JafkaBroker, timeout_s: float = 5.0) -> SimpleConsumer:
    return SimpleConsumer(
        broker.host, broker.port, request_timeout_s=timeout_s, broker_type="jafka"
    )


class TestFakeJafka(JafkaContract):
    @pytest.fixture
    def served(self) -> Iterator[ServedJafka]:
        numbers = count()
        with JafkaBroker(partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES).listening() as running:
            yield ServedJafka(running.host, running.port, lambda: f"topic-{next(numbers)}")


def requests_of(broker: JafkaBroker) -> list[int]:
    """Return the kinds of the requests after the greeting."""
    return [kind for kind, _ in broker.requests[1:]]


@pytest.mark.parametrize("partitions", [1, 2, 64, 65, 1000])
def test_many_ends_are_matched_by_their_order(partitions: int) -> None:
    with JafkaBroker(partitions=partitions).listening() as broker, consumer_of(broker) as consumer:
        for number in range(0, partitions, 7):
            broker.append("demo", number, *[HELLO] * (number % 5))
        times = {
            TopicPartition("demo", number, 3): LATEST for number in reversed(range(partitions))
        }
        found = consumer.list_offsets(times)
        assert {partition.partition: listed.offset for partition, listed in found.items()} == {
            number: len(HELLO) * (number % 5) if number % 7 == 0 else 0
            for number in range(partitions)
        }
        assert (requests_of(broker), broker.connections) == ([OFFSETS] * partitions, 1)


def test_answers_are_read_between_many_requests() -> None:
    request = bytes.fromhex("00000018 0004 0004 64656d6f 00000000 ffffffffffffffff 7fffffff")
    one, unanswered = len(request), list[int]()

    def serve(connection: socket.socket) -> None:
        connection.sendall(bytes.fromhex("00000002 0000"))
        connection.recv(8)
        while requests := connection.recv(1 << 20):
            while (
                len(requests) < 64 * one
                and len(requests) % one
                or select.select([connection], [], [], 0.05)[0]
            ):
                requests += connection.recv(1 << 20)
            unanswered.append(len(requests) // one)
            connection.sendall(
                bytes.fromhex("0000000e 0000 00000001 0000000000000007") * unanswered[-1]
            )

    with (
        listening(serve) as port,
        SimpleConsumer("127.0.0.1", port, request_timeout_s=5, broker_type="jafka") as consumer,
    ):
        times = {TopicPartition("demo", number): LATEST for number in range(150)}
        assert len(consumer.list_offsets(times)) == 150
        assert unanswered == [64, 64, 22]


# Quirks


# Other servers


def test_a_kafka_configured_as_a_jafka_is_rejected() -> None:
    text = "closed on the first request.*that a Jafka or Kafka 0.7 broker listens there"
    with FakeBroker() as kafka:
        with SimpleConsumer(kafka.host, kafka.port, broker_type="jafka") as consumer:
            with pytest.raises(NotKafka, match=text):
                consumer.introduction()


def test_another_server_configured_as_a_jafka_is_rejected() -> None:
    def http(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        listening(http) as port,
        SimpleConsumer("127.0.0.1", port, request_timeout_s=5, broker_type="jafka") as consumer,
    ):
        with pytest.raises(NotKafka, match="speaks HTTP"):
            consumer.introduction()


@pytest.mark.parametrize("text", [None, "kafka-0.8"])
def test_a_jafka_configured_as_kafka_is_named(broker: JafkaBroker, text: str | None) -> None:
    with SimpleConsumer(
        broker.host, broker.port, request_timeout_s=5, broker_type=text
    ) as consumer:
        with pytest.raises(NotKafka, match="as Jafka and Kafka 0.7 do") as caught:
            consumer.topic_metadata()
    assert "Set source.broker_type: jafka" in caught.value.action
