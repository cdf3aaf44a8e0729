"""One operation that takes several requests, and the start of a connection with a configured broker
type.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.errors import BrokerUnreachable, SettingsError
from etl.io.brokers.exchange import Exchange
from etl.kafka.broker_type_interface import BrokerProtocol, Reply, Request
from tests.fakes.broker import METADATA, FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running


def exchange_with(broker: FakeBroker, generation: str | None = None) -> Exchange:
    return Exchange(
        broker.host,
        broker.port,
        client_id="t",
        connect_timeout_s=5,
        timeout_s=5,
        max_response_bytes=1 << 20,
        generation=generation,
    )


def twice(dialect: BrokerProtocol) -> Request[bytes]:
    one = dialect.metadata(None)
    return Request(
        lambda number: one.frame(number) * 2, lambda answers: Reply(bytes(answers)), answers=2
    )


def test_the_answers_to_one_request_are_read_together_each_with_its_size(
    broker: FakeBroker,
) -> None:
    answers = exchange_with(broker).ask(twice)
    first, second = answers[: len(answers) // 2], answers[len(answers) // 2 :]
    assert first == second and int.from_bytes(first[:4], "big") == len(first) - 4
    assert [each for each, _ in broker.requests].count(METADATA) == 2


def test_a_connection_that_breaks_between_two_answers_is_not_used_again(
    broker: FakeBroker,
) -> None:
    broker.script[METADATA].extend(
        [
            lambda connection, frame: connection.sendall(frame),
            lambda connection, frame: connection.close(),
        ]
    )
    with pytest.raises(BrokerUnreachable, match="The connection broke"):
        exchange_with(broker).ask(twice)
    assert [each for each, _ in broker.requests].count(METADATA) == 2


def test_a_configured_generation_is_used_for_the_handshake_and_an_unknown_one_is_named(
    broker: FakeBroker,
) -> None:
    assert exchange_with(broker, "kafka").dialect().introduction().startswith("Kafka ")
    with pytest.raises(SettingsError, match="There is no broker type granite"):
        exchange_with(broker, "granite").dialect()
