"""What a SimpleConsumer has beyond one question and its answer: any request, records one by one, a
group's offsets, several threads.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest

from etl.errors import BrokerUnreachable, ConsumerInUse
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.broker_type_interface import Reply, Request
from etl.kafka.request_values import LATEST, CommittedOffset, FetchTarget
from etl.model.partitions import BrokerPartition, Isolation
from etl.records.decode import Messages
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    FIND_COORDINATOR,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FakeBroker,
    World,
    hang_up,
)
from tests.fakes.jafka import JafkaBroker, entry

DEMO = BrokerPartition("demo", 0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.append(
            "demo", 0, encode(Batch(0, [Rec(delta, b"%d" % delta) for delta in range(5)]))
        )
        yield running


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as connected:
        yield connected


# Any request


def test_a_request_that_is_made_of_the_brokers_dialect_is_sent_and_read(
    consumer: SimpleConsumer,
) -> None:
    assert set(consumer.send(lambda dialect: dialect.metadata(["demo"])).topics) == {"demo"}
    listed = consumer.send(
        lambda dialect: dialect.list_offsets({DEMO: LATEST}, Isolation.READ_COMMITTED, {})
    )
    assert listed[DEMO].offset == 5


def test_a_request_of_bytes_gets_the_bytes_of_its_answer() -> None:
    offsets = bytes.fromhex("00000018 0004 0004 64656d6f 00000000 ffffffffffffffff 00000001")
    with (
        JafkaBroker().listening() as jafka,
        SimpleConsumer(jafka.host, jafka.port, request_timeout_s=5, generation="jafka") as consumer,
    ):
        jafka.append("demo", 0, entry(b"hello"))
        answer = consumer.send(Request(lambda number: offsets, lambda found: Reply(bytes(found))))
    assert struct.unpack(">hiq", answer) == (0, 1, 15)


@pytest.mark.parametrize("may_repeat", [True, False])
def test_a_request_is_sent_again_over_a_new_connection_unless_it_must_not_happen_twice(
    broker: FakeBroker,
    consumer: SimpleConsumer,
    may_repeat: bool,
) -> None:
    consumer.topic_metadata()
    broker.script[METADATA].append(hang_up)
    before = len(broker.requests)
    if may_repeat:
        consumer.send(lambda dialect: dialect.metadata(None))
    else:
        with pytest.raises(BrokerUnreachable, match="The connection broke"):
            consumer.send(lambda dialect: dialect.metadata(None), may_repeat=False)
    assert [key for key, _ in broker.requests[before:]].count(METADATA) == (2 if may_repeat else 1)


# Records one by one


def test_a_response_is_iterated_from_the_requested_offset(consumer: SimpleConsumer) -> None:
    messages = Messages(consumer.fetch("demo", 0, 3))
    assert [(each.offset, each.next_offset, each.value) for each in messages] == [
        (3, 4, b"3"),
        (4, 5, b"4"),
    ]
    assert messages.next_offset == 5
    assert list(Messages(consumer.fetch("demo", 0, 5, fetch_max_wait_ms=1))) == []


# Offsets


# A group's offsets


def test_offsets_are_kept_by_the_coordinator_wherever_that_is() -> None:
    world = World()
    with (
        FakeBroker(world=world, broker_id=1) as first,
        FakeBroker(world=world, broker_id=2) as second,
    ):
        world.coordinator = 2
        with SimpleConsumer(first.host, first.port, request_timeout_s=5) as consumer:
            consumer.commit_offsets("g", {DEMO: 42}, metadata="etl:clicks:7")
            assert consumer.fetch_offsets("g", [DEMO]) == {
                DEMO: CommittedOffset(None, 42, "etl:clicks:7")
            }
        requests = [
            {key for key, _ in each.requests} & {OFFSET_COMMIT, OFFSET_FETCH}
            for each in (first, second)
        ]
        assert requests == [set(), {OFFSET_COMMIT, OFFSET_FETCH}]


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_coordinator_that_is_not_one_yet_is_retried(
    broker: FakeBroker, consumer: SimpleConsumer, code: int
) -> None:
    broker.world.group_refusals[FIND_COORDINATOR].append(code)
    broker.world.group_refusals[OFFSET_COMMIT].append(code)
    consumer.commit_offsets("g", {DEMO: 42})
    broker.world.group_refusals[OFFSET_FETCH].append(code)
    assert consumer.fetch_offsets("g", [DEMO])[DEMO].offset == 42
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 2
    broker.world.group_refusals[FIND_COORDINATOR].append(code)
    assert consumer.find_coordinator("g").port == broker.port


# Several threads


def test_a_second_thread_gets_the_error_that_the_first_one_waits(broker: FakeBroker) -> None:
    consumer, request, raised = (
        SimpleConsumer(broker.host, broker.port, request_timeout_s=1),
        threading.Event(),
        list[BaseException](),
    )
    consumer.introduction()

    def hold(connection: object, frame: bytes) -> None:
        request.set()

    broker.script[METADATA].append(hold)

    def first() -> None:
        try:
            consumer.topic_metadata()
        except BrokerUnreachable as error:
            raised.append(error)

    thread = threading.Thread(target=first)
    with consumer:
        thread.start()
        assert request.wait(5)
        for ask in (
            consumer.topic_metadata,
            consumer.introduction,
            lambda: consumer.begin_fetch([FetchTarget(DEMO, 0, 1)]),
            lambda: consumer.fetch("demo", 0, 0),
            lambda: consumer.offsets_before("demo", 0, LATEST),
        ):
            with pytest.raises(ConsumerInUse, match="each thread has a SimpleConsumer of its own"):
                ask()
        thread.join(10)
        assert raised and consumer.earliest_or_latest_offset("demo", 0, LATEST) == 5


def test_a_fetch_that_one_thread_began_another_one_may_end(consumer: SimpleConsumer) -> None:
    consumer.begin_fetch([FetchTarget(DEMO, 0, 1000)])
    found = list[int]()
    thread = threading.Thread(
        target=lambda: found.append(len(list(Messages(consumer.end_fetch().partitions[0]))))
    )
    thread.start()
    thread.join(60)
    assert found == [5]
