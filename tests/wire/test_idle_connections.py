"""Idle connections: reused for the same broker, but never one that is not as good as new."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from etl.errors import BrokerUnreachable, CorruptData
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.connection import IDLE_CONNECTIONS, IdleConnections
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import LATEST, FetchTarget
from etl.model.partitions import Broker, Isolation, Leader, TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    API_VERSIONS,
    FETCH,
    METADATA,
    FakeBroker,
    altered,
    never,
    reset_after,
)
from tests.fakes.jafka import JafkaBroker, entry

LOG = TopicPartition("demo", 0)
BATCH = encode(Batch(0, [Rec(0, b"hello"), Rec(1, b"world")]))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.append("demo", 0, BATCH)
        yield running


@pytest.fixture
def idle() -> Iterator[IdleConnections]:
    kept = IdleConnections()
    yield kept
    kept.close()


def consumer_of(broker: FakeBroker, idle: IdleConnections, **changes: Any) -> SimpleConsumer:
    settings = {"request_timeout_s": 5.0, "idle_connections": idle, **changes}
    return SimpleConsumer(broker.host, broker.port, **settings)


def ask(broker: FakeBroker, idle: IdleConnections, **changes: Any) -> int:
    with consumer_of(broker, idle, **changes) as consumer:
        return consumer.earliest_or_latest_offset("demo", 0, LATEST)


def test_the_next_consumer_takes_the_connection(broker: FakeBroker, idle: IdleConnections) -> None:
    assert [ask(broker, idle) for _ in range(5)] == [2] * 5
    assert broker.connections == 1
    assert [key for key, _ in broker.requests].count(API_VERSIONS) == 1
    assert len(idle) == 1


def test_a_closed_consumer_may_ask_again(broker: FakeBroker, idle: IdleConnections) -> None:
    consumer = consumer_of(broker, idle)
    for _ in range(3):
        assert consumer.earliest_or_latest_offset("demo", 0, LATEST) == 2
        consumer.close()
        consumer.close()
    assert (broker.connections, len(idle)) == (1, 1)


def test_another_client_has_its_own_connection(broker: FakeBroker, idle: IdleConnections) -> None:
    for changes in ({}, {"client_id": "other"}, {"broker_type": "kafka"}, {}):
        ask(broker, idle, **changes)
    assert (broker.connections, len(idle)) == (3, 3)


def test_a_closed_connection_is_not_taken(broker: FakeBroker, idle: IdleConnections) -> None:
    ask(broker, idle)
    broker.hang_up_on_everybody()
    assert ask(broker, idle) == 2
    assert (broker.connections, len(idle)) == (2, 1)


def test_unexpected_bytes_end_a_connection(broker: FakeBroker, idle: IdleConnections) -> None:
    ask(broker, idle)
    broker._sockets[0].sendall(b"\0\0\0\4\0\0\0\1")
    assert wait_until(lambda: idle._kept[0][1].connection.is_answering(0), 10)
    assert ask(broker, idle) == 2
    assert broker.connections == 2


def test_a_connection_that_breaks_is_made_anew(broker: FakeBroker, idle: IdleConnections) -> None:
    with consumer_of(broker, idle) as one, consumer_of(broker, idle) as other:
        one.introduction(), other.introduction()
    broker.script[METADATA].append(reset_after(0))
    with consumer_of(broker, idle) as consumer:
        assert consumer.topic_metadata().leaders
    assert broker.connections == 3, "no other idle one is tried"


def test_a_connection_idle_for_too_long_is_closed_without_a_request(broker: FakeBroker) -> None:
    idle = IdleConnections(idle_s=0.3)
    ask(broker, idle)
    ask(broker, idle, client_id="other")
    assert len(idle) == 2
    assert wait_until(lambda: len(idle) == 0, 10)
    assert wait_until(lambda: all(_is_closed_by_peer(each) for each in broker._sockets), 10)
    ask(broker, idle)
    assert wait_until(lambda: len(idle) == 0, 10), "the sweeper comes again"


def test_no_more_are_kept_than_may_be_and_the_oldest_makes_room(broker: FakeBroker) -> None:
    idle = IdleConnections(most=2)
    for name in ("a", "b", "c"):
        ask(broker, idle, client_id=name)
    assert [maker.client_id for maker, _ in idle._kept] == ["b", "c"]
    idle.close()
    assert wait_until(lambda: all(_is_closed_by_peer(each) for each in broker._sockets), 10)


def _is_closed_by_peer(connection: socket.socket) -> bool:
    try:
        return (
            connection.fileno() < 0
            or connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        )
    except BlockingIOError:
        return False
    except OSError:
        return True


# Connections that are never returned


def test_a_pending_answer_is_closed(broker: FakeBroker, idle: IdleConnections) -> None:
    with consumer_of(broker, idle) as consumer:
        consumer.begin_fetch([FetchTarget(LOG, 0, 1000)])
    assert len(idle) == 0
    assert ask(broker, idle) == 2


@pytest.mark.parametrize(
    "act",
    [
        never,
        reset_after(6),
        altered(lambda body: body[:6]),
        altered(lambda body: b"\0\0\0\x99" + body[4:]),
    ],
)
def test_a_connection_is_closed_after_an_error(
    broker: FakeBroker, idle: IdleConnections, act: Any
) -> None:
    broker.script[FETCH].append(act)
    with consumer_of(broker, idle, request_timeout_s=0.5) as consumer:
        with pytest.raises((BrokerUnreachable, CorruptData)):
            consumer.fetch("demo", 0, 0, fetch_max_wait_ms=1)
    assert len(idle) == 0


def test_a_connection_is_kept_after_the_last_of_several_answers(idle: IdleConnections) -> None:
    with JafkaBroker(partitions=3).listening() as jafka:

        def consumer() -> SimpleConsumer:
            return SimpleConsumer(
                jafka.host, jafka.port, broker_type="jafka", idle_connections=idle
            )

        jafka.append("demo", 0, entry(b"hello"))
        with consumer() as one, pytest.raises(BrokerUnreachable):
            one.list_offsets({TopicPartition("demo", number): LATEST for number in (0, 9, 1)})
        assert len(idle) == 0
        for _ in range(3):
            with consumer() as one:
                assert one.offsets_before("demo", 0, LATEST) == (15,)
        assert (jafka.connections, len(idle)) == (2, 1)


def test_the_next_user_is_throttled_too(broker: FakeBroker, idle: IdleConnections) -> None:
    broker.throttle.append(700)
    with consumer_of(broker, idle) as consumer:
        consumer.multifetch([FetchTarget(LOG, 0, 1000)])
    with consumer_of(broker, idle) as consumer:
        consumer.introduction()
        assert consumer._exchange.deadline() - time.monotonic() > 5.3


# Processes, threads, tasks


def test_a_process_that_was_forked_leaves_the_parents_connections_alone(broker: FakeBroker) -> None:
    ask(broker, IDLE_CONNECTIONS)
    before = broker.connections
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        is_right = False
        try:
            is_right = (
                len(IDLE_CONNECTIONS) == 0
                and ask(broker, IDLE_CONNECTIONS) == 2
                and len(IDLE_CONNECTIONS) == 1
            )
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(broker, IDLE_CONNECTIONS) == 2
    assert broker.connections == before + 1, "the child made its own, and the parent's still works"
    IDLE_CONNECTIONS.close()


def test_a_fork_under_the_lock_leaves_a_child_that_works() -> None:
    with IDLE_CONNECTIONS._lock:
        child = os.fork()
        if child == 0:
            taken = IDLE_CONNECTIONS._lock.acquire(timeout=5)
            os._exit(0 if taken else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_threads_share_idle_connections(broker: FakeBroker, idle: IdleConnections) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, broker, idle, request_timeout_s=20.0) for _ in range(160)]
    assert [one.result() for one in asked] == [2] * 160
    assert broker.connections <= 8


def test_the_tasks_of_a_process_read_over_one_connection(broker: FakeBroker) -> None:
    ranges = [OffsetRange(LOG, 0, 2, Leader(Broker(1, broker.host, broker.port, "kafka")))]
    options = FetchOptions(isolation=Isolation.READ_COMMITTED)
    for _ in range(4):
        batches = read_ranges(ranges, options, on_result=lambda index, result: None)
        assert sum(batch.num_rows for batch in batches) == 2
    assert broker.connections == 1
    IDLE_CONNECTIONS.close()


def test_a_cluster_gives_its_connections_back(broker: FakeBroker, idle: IdleConnections) -> None:
    for _ in range(3):
        with Cluster([(broker.host, broker.port)], timeout_s=5, idle_connections=idle) as cluster:
            found = cluster.extents([LOG], isolation=Isolation.READ_COMMITTED)
            assert found.extents[LOG].end_offset == 2
    assert broker.connections == 1
