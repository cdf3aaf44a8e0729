"""`SimpleConsumer` against the fake broker: the contract, broken connections, threads."""

from __future__ import annotations

import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from etl.errors import BrokerUnreachable, ConsumerInUse, CorruptData, MessageTooLarge, NotKafka
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.kafka_broker_type import HANDSHAKE_CORRELATION_ID
from etl.kafka.request_values import EARLIEST, LATEST, FetchTarget
from etl.model.partitions import TopicPartition
from etl.records.decode import Messages
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Act,
    FakeBroker,
    a_byte_at_a_time,
    altered,
    cut_to,
    hang_up,
    instead,
    never,
    reset_after,
    slowly,
    stalls_after,
)
from tests.fakes.contract import BrokerContract, Served
from tests.fakes.sockets import listening

LOG = TopicPartition("demo", 0)
BATCH = encode(Batch(0, [Rec(0, b"hello"), Rec(1, b"world")]))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.append("demo", 0, BATCH)
        yield running


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(
        broker.host, broker.port, request_timeout_s=5, max_response_bytes=1 << 20
    ) as connected:
        yield connected


class TestFakeBroker(BrokerContract):
    @pytest.fixture
    def served(self) -> Iterator[Served]:
        numbers = count()
        with FakeBroker() as running:

            def make_topic(partitions: int) -> str:
                name = f"topic-{next(numbers)}"
                for partition in range(partitions):
                    running.log(name, partition)
                return name

            yield Served(running.host, running.port, make_topic)


def hello(consumer: SimpleConsumer) -> bytes:
    return bytes(consumer.fetch("demo", 0, 0).records)


def test_a_fetch_over_quota_is_retried(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    broker.throttle.extend([1, 1, 1])
    answer = consumer.multifetch([FetchTarget(LOG, 0, 1 << 16)])
    assert (answer.throttle_ms, answer.partitions) == (1, ())
    assert hello(consumer) == BATCH
    assert len(broker.fetched) == 4


def test_a_broker_that_stays_over_quota_is_unreachable(broker: FakeBroker) -> None:
    broker.throttle.extend([1] * 10_000)
    with (
        SimpleConsumer(broker.host, broker.port, request_timeout_s=0.2) as impatient,
        pytest.raises(BrokerUnreachable, match="quota"),
    ):
        hello(impatient)


# Delivery


def test_a_byte_at_a_time_equals_all_at_once(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    at_once = hello(consumer)
    broker.script[FETCH].append(a_byte_at_a_time)
    assert hello(consumer) == at_once == BATCH


@pytest.mark.parametrize("size", [5, 100_000])
def test_an_answer_stays_valid_while_the_next_one_is_received(
    broker: FakeBroker, consumer: SimpleConsumer, size: int
) -> None:
    broker.append("demo", 1, encode(Batch(0, [Rec(0, b"x" * size)])))
    first = consumer.fetch("demo", 0, 0).records
    second = consumer.fetch("demo", 1, 0).records
    assert (bytes(first), len(second) > size) == (BATCH, True)


# Answers that break the protocol


@pytest.mark.parametrize("length", range(4, 90, 6))
def test_the_call_after_a_truncated_response_starts_anew(
    broker: FakeBroker, consumer: SimpleConsumer, length: int
) -> None:
    broker.script[FETCH].append(cut_to(length))
    with pytest.raises(CorruptData) as raised:
        hello(consumer)
    assert raised.value.where["broker"] == consumer.address
    assert hello(consumer) == BATCH
    broker.script[METADATA].append(cut_to(20))
    with pytest.raises(CorruptData, match="METADATA"):
        consumer.topic_metadata()


@pytest.mark.parametrize("size", [0x7FFFFFFF, (1 << 20) + 1, -1, 0, 3])
def test_an_absurd_size_takes_no_memory(
    broker: FakeBroker, consumer: SimpleConsumer, size: int
) -> None:
    for key, ask in ((FETCH, lambda: hello(consumer)), (METADATA, consumer.topic_metadata)):
        broker.script[key].append(instead(size.to_bytes(4, "big", signed=True) + b"junk"))
        with pytest.raises(CorruptData, match=f"claims {size} bytes"):
            ask()


def test_a_batch_beyond_the_largest_response_is_too_large(broker: FakeBroker) -> None:
    broker.append("demo", 2, encode(Batch(0, [Rec(0, b"x" * 100_000)])))
    with SimpleConsumer(broker.host, broker.port, max_response_bytes=50_000) as small:
        with pytest.raises(
            MessageTooLarge, match="the response that it fills has 100,[0-9]+ bytes"
        ) as raised:
            small.fetch("demo", 2, 0)
        assert raised.value.where == {
            "broker": small.address,
            "topic": "demo",
            "partition": 2,
            "offset": 0,
        }
        assert raised.value.exit_code == 2
        both = [FetchTarget(TopicPartition("demo", partition), 0, 1000) for partition in (2, 0)]
        with pytest.raises(MessageTooLarge) as raised:
            small.multifetch(both)
        assert raised.value.where["one_of"] == "demo 2, demo 0"
        assert bytes(small.fetch("demo", 0, 0).records) == BATCH


def test_no_limit_is_raised_to_a_size_that_no_conf_allows(
    broker: FakeBroker, consumer: SimpleConsumer
) -> None:
    first_request = (1).to_bytes(4, "big")
    broker.script[FETCH].append(instead(b"\x7f\xff\xff\xff" + first_request))
    with pytest.raises(CorruptData, match="claims 2147483647 bytes"):
        hello(consumer)


def test_another_response_is_corrupt_data(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    broker.script[FETCH].append(altered(lambda body: b"\0\0\0\x63" + body[4:]))
    text = "A response to request 99 arrived instead of the one to 1"
    with pytest.raises(CorruptData, match=text):
        hello(consumer)


def test_another_partition_is_corrupt_data(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    broker.script[FETCH].append(altered(lambda body: body.replace(b"demo", b"omed")))
    with pytest.raises(CorruptData, match="other partitions"):
        hello(consumer)


# Negative numbers with a meaning in the protocol


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.list_offsets({LOG: -3}),
        lambda one: one.list_offsets({LOG: EARLIEST, TopicPartition("demo", 1): -4}),
        lambda one: one.offsets_before("demo", 0, -3),
        lambda one: one.segment_before(LOG, -1),
        lambda one: one.fetch("demo", 0, -1),
        lambda one: one.fetch("demo", 0, 0, max_bytes=-1),
        lambda one: one.fetch("demo", 0, 0, fetch_max_wait_ms=-1),
        lambda one: one.multifetch([FetchTarget(LOG, 0, 100)], min_bytes=-1),
        lambda one: one.multifetch([FetchTarget(LOG, 0, 100, -1)]),
        lambda one: one.commit_offsets("g", {LOG: -1}),
        lambda one: one.commit_offsets("g", {LOG: -1}, in_zookeeper=True),
        lambda one: one.commit_offsets("g", {LOG: 0}, generation=-1),
        lambda one: one.commit_each("g", {LOG: 0}, leader_epochs={LOG: -1}),
        lambda one: one.fetch_offsets("g", [LOG], generation=-1),
    ],
)
def test_a_negative_number_with_a_meaning_is_rejected(
    broker: FakeBroker, consumer: SimpleConsumer, ask: Callable[[SimpleConsumer], object]
) -> None:
    with pytest.raises(ValueError, match="-[134]"):
        ask(consumer)
    assert broker.requests == []


# Broken connections


@pytest.mark.parametrize("act", [hang_up, reset_after(0)])
def test_a_broken_connection_is_made_anew_once(
    broker: FakeBroker, consumer: SimpleConsumer, act: Act
) -> None:
    broker.script[FETCH].append(act)
    assert hello(consumer) == BATCH
    broker.script[LIST_OFFSETS].append(act)
    assert consumer.offsets_before("demo", 0, -1) == (2,)
    broker.script[FETCH].append(act)
    consumer.begin_fetch([FetchTarget(LOG, 0, 1000)])
    assert bytes(consumer.end_fetch().partitions[0].records) == BATCH


def test_a_second_break_is_unreachable(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    broker.script[FETCH].extend([hang_up, hang_up])
    with pytest.raises(BrokerUnreachable, match="connection broke"):
        hello(consumer)


@pytest.mark.parametrize("length", [1, 4, 30])
def test_a_reset_response_is_unreachable(
    broker: FakeBroker, consumer: SimpleConsumer, length: int
) -> None:
    broker.script[FETCH].append(reset_after(length))
    with pytest.raises(BrokerUnreachable, match="connection broke"):
        hello(consumer)
    assert hello(consumer) == BATCH


def test_records_are_never_sent_twice(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    broker.script[PRODUCE].append(hang_up)
    with pytest.raises(BrokerUnreachable):
        consumer.produce("demo", 0, [(None, b"x")])
    assert [key for key, _ in broker.requests].count(PRODUCE) == 1


def test_a_consumer_works_after_a_deadline(broker: FakeBroker) -> None:
    broker.script[METADATA].append(never)
    with SimpleConsumer(broker.host, broker.port, request_timeout_s=0.3) as impatient:
        with pytest.raises(BrokerUnreachable, match="deadline passed"):
            impatient.topic_metadata()
        assert impatient.topic_metadata().leaders


def test_bytes_that_arrive_renew_the_deadline_and_a_drip_does_not(broker: FakeBroker) -> None:
    broker.append("demo", 0, encode(Batch(2, [Rec(0, b"x" * 300_000)])))
    broker.script[FETCH].extend([slowly(200_000), slowly(200)])
    broker.script[METADATA].append(stalls_after(20))
    with SimpleConsumer(broker.host, broker.port, request_timeout_s=0.5) as consumer:
        assert len(consumer.fetch("demo", 0, 2).records) > 300_000
        with pytest.raises(BrokerUnreachable, match=r"of 300,\d+ bytes arrived in [01]\.") as slow:
            consumer.fetch("demo", 0, 2)
        with pytest.raises(BrokerUnreachable, match="16 of [0-9]+ bytes") as metadata:
            consumer.topic_metadata()
    assert "source.request_timeout_s" in slow.value.action
    assert "source.fetch_max_bytes" in slow.value.action
    assert "fetch_max_bytes" not in metadata.value.action


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a..b", "x" * 64 + ".org"])
def test_a_refused_connection_and_a_host_without_an_address_are_unreachable(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerUnreachable, match="No connection:") as raised:
        SimpleConsumer(host, port, request_timeout_s=5).topic_metadata()
    assert raised.value.where["broker"] == f"{host}:{port}"
    assert ("advertised.listeners" in raised.value.action) == (host != "127.0.0.1")


def test_a_consumer_works_after_ctrl_c(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    def interrupt_instead_of_an_answer(connection: socket.socket, frame: bytes) -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)

    main_thread = threading.get_ident()
    broker.script[FETCH].append(interrupt_instead_of_an_answer)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell starts its background jobs with SIGINT ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            hello(consumer)
    finally:
        signal.signal(signal.SIGINT, before)
    assert hello(consumer) == BATCH


# Use


def test_a_pending_fetch_permits_no_other_request(consumer: SimpleConsumer) -> None:
    consumer.begin_fetch([FetchTarget(LOG, 0, 100)])
    with pytest.raises(
        ValueError, match="a fetch is in flight on this connection: call end_fetch first"
    ):
        consumer.topic_metadata()
    assert consumer.end_fetch().partitions[0].partition == 0


def test_an_answer_needs_no_waiting(broker: FakeBroker, consumer: SimpleConsumer) -> None:
    for ask in (consumer.end_fetch, consumer.is_answered):
        with pytest.raises(ValueError, match="no fetch is in flight"):
            ask()
    consumer.begin_fetch([FetchTarget(LOG, 2, 1000)], fetch_max_wait_ms=5000)
    assert not consumer.is_answered()
    broker.append("demo", 0, encode(Batch(2, [Rec(0)])))
    assert consumer.is_answered(5)
    assert consumer.end_fetch().partitions[0].records


def test_a_second_thread_is_refused_while_the_first_one_waits(broker: FakeBroker) -> None:
    requested = threading.Event()
    broker.script[METADATA].append(lambda connection, frame: requested.set())
    consumer = SimpleConsumer(broker.host, broker.port, request_timeout_s=1)
    with consumer, ThreadPoolExecutor(1) as pool:
        consumer.introduction()
        first = pool.submit(consumer.topic_metadata)
        assert requested.wait(5)
        for ask in (
            consumer.topic_metadata,
            consumer.introduction,
            lambda: consumer.begin_fetch([FetchTarget(LOG, 0, 1)]),
            lambda: consumer.fetch("demo", 0, 0),
            lambda: consumer.offsets_before("demo", 0, LATEST),
        ):
            with pytest.raises(ConsumerInUse, match="each thread has a SimpleConsumer of its own"):
                ask()
        with pytest.raises(BrokerUnreachable):
            first.result(10)
        assert consumer.earliest_or_latest_offset("demo", 0, LATEST) == 2


def test_another_thread_may_end_a_fetch(consumer: SimpleConsumer) -> None:
    consumer.begin_fetch([FetchTarget(LOG, 0, 1000)])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(consumer.end_fetch).result(60)
    assert len(list(Messages(answer.partitions[0]))) == 2


# Ports that are not Kafka


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "The port speaks HTTP, not Kafka"),
        (bytes.fromhex("15 0303 0002 0246"), "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "b'SSH-'"),
        (b"\0\0\0\x08not kafk", ""),
        (b"", "TLS"),
    ],
    ids=["HTTP", "TLS", "SSH", "a short frame", "hangs up"],
)
def test_another_server_is_known_by_its_first_bytes(answer: bytes, text: str) -> None:
    """An HTTP server answers because the handshake ends a line."""
    until = HANDSHAKE_CORRELATION_ID.to_bytes(4, "big")
    assert until == b"\r\n\r\n"

    def answer_with(connection: socket.socket) -> None:
        read = connection.recv(100)
        while answer and until not in read:
            read += connection.recv(100)
        connection.sendall(answer)

    with listening(answer_with) as port, pytest.raises(NotKafka) as raised:
        SimpleConsumer("127.0.0.1", port, request_timeout_s=5).topic_metadata()
    assert text in raised.value.message + raised.value.action and raised.value.exit_code == 2


def test_a_process_without_free_file_descriptors_gets_that_error_and_no_other_advice() -> None:
    """A run has a connection to each broker of the cluster, and shells often allow 1,024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        pytest.raises(BrokerUnreachable, match="Too many open files") as raised,
        SimpleConsumer("127.0.0.1", 9092) as consumer,
    ):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            consumer.topic_metadata(["demo"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in raised.value.action and "broker runs" not in raised.value.action
