"""A `Consumer` with assigned partitions, on fake brokers of each generation."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import count, islice
from types import FrameType
from typing import Any

import pytest

from etl import Consumer, FetchTarget, Group, Messages, Record, SimpleConsumer
from etl.errors import (
    BrokerUnreachable,
    ConsumerInUse,
    CorruptData,
    EtlError,
    ExpiredOffsets,
    NeedsDecision,
    NotAssigned,
    NotKafka,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.connection import not_kafka
from etl.model.partitions import Isolation, TopicPartition
from etl.reader.fetch_options import FetchOptions
from etl.streams import consumer as room
from etl.streams.background import Lane, Results
from etl.streams.conf import ConsumerConfig, naming_arguments
from etl.streams.fetches import bytes_per_partition
from etl.streams.group_member import ConsumerResources
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    FakeBroker,
    World,
    altered,
    never,
    stalls_after,
)
from tests.fakes.group_readers import polled
from tests.fakes.jafka import JafkaBroker, entry, registry_of, wrapped
from tests.fakes.old_broker import OldBroker

P0, P1 = (TopicPartition("clicks", p) for p in range(2))
LEADER_NOT_AVAILABLE, NOT_LEADER = 5, 6
AT = 1_700_000_000_000


def batch(start: int, count: int = 4) -> bytes:
    records = [Rec(delta, b"%d" % (start + delta), b"k", ((b"h", b"v"),)) for delta in range(count)]
    return encode(Batch(start, records, base_timestamp=AT, max_timestamp=AT))


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.append("clicks", 0, batch(0), batch(4))
        broker.append("clicks", 1, batch(0))
        yield broker


def opened(*brokers: FakeBroker, assigned: Any = (P0,), **settings: Any) -> Consumer:
    defaults = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "request_timeout_s": 5}
    servers = [f"127.0.0.1:{broker.port}" for broker in brokers]
    consumer = Consumer(servers, **{**defaults, **settings})
    consumer.assign(assigned)
    return consumer


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


# Returned records


def test_a_record_has_all_that_the_broker_has_of_it(kafka: FakeBroker) -> None:
    with opened(kafka) as consumer:
        first = polled(consumer, 1, most=1)[0]
    assert first == Record("clicks", 0, 0, AT, b"k", b"0", (("h", b"v"),), None, None, 1, False)
    assert first.topic_partition == P0


def test_the_next_fetch_is_sent_before_records_are_returned(kafka: FakeBroker) -> None:
    with opened(kafka, assigned=[P0, P1], fetch_max_wait_ms=5000) as consumer:
        assert len(polled(consumer, 12)) == 12
        kafka.append("clicks", 1, batch(4))
        assert offsets(polled(consumer, 4)) == [4, 5, 6, 7], "of the fetch under way"
        assert wait_until(lambda: len(kafka.fetched) == 3, 10)
        both = [("clicks", 0), ("clicks", 1)]
        assert [sorted(request) for request in kafka.fetched] == [both] * 3


def test_a_leader_that_moved_is_looked_up_again_and_nothing_is_read_twice() -> None:
    world = World()
    with FakeBroker(world, broker_id=1) as one, FakeBroker(world, broker_id=2) as two:
        one.append("clicks", 0, batch(0), batch(4))
        with opened(one, two, max_partition_fetch_bytes=len(batch(0))) as consumer:
            assert offsets(polled(consumer, 2, most=2)) == [0, 1]
            with world.changed:
                one.log("clicks").leader_id = 2
            assert offsets(polled(consumer, 6)) == [2, 3, 4, 5, 6, 7]
        assert two.fetched


def test_a_decoder_is_not_called_with_null_and_a_failing_one_loses_no_record() -> None:
    with FakeBroker() as broker:
        broker.append(
            "clicks",
            0,
            encode(Batch(0, [Rec(0, b"1", None), Rec(1, b"x", b"k"), Rec(2, None, b"k")])),
        )
        with opened(broker, key_decoder=bytes.decode, value_decoder=int) as consumer:
            assert [(one.key, one.value) for one in polled(consumer, 1)] == [(None, 1)]
            for _ in range(2):
                with pytest.raises(CorruptData, match="value decoder failed: ValueError") as raised:
                    consumer.poll(5)
            consumer.seek(P0, raised.value.where["next_offset"])
            assert [(one.key, one.value) for one in polled(consumer, 1)] == [("k", None)]


def test_a_damaged_record_batch_is_raised_again_until_a_seek_after_it(kafka: FakeBroker) -> None:
    kafka.script[FETCH].append(altered(lambda frame: b"8".join(frame.rsplit(b"7", 1))))
    with opened(kafka, assigned=[P0]) as consumer:
        assert offsets(polled(consumer, 4)) == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(CorruptData, match="Seek to next_offset") as raised:
                consumer.poll(5)
        assert raised.value.next_offset == 8
        consumer.seek(P0, 4)
        assert offsets(polled(consumer, 4)) == [4, 5, 6, 7], "it was damaged on the way"


def test_a_damaged_partition_delays_no_other() -> None:
    with FakeBroker() as broker:
        broker.append("clicks", 0, encode(Batch(0, [Rec(0, b"x")])))
        broker.append("clicks", 1, batch(0))
        with opened(broker, assigned=[P0, P1], value_decoder=int) as consumer:
            found: list[Record] = []

            def has_read(count: int) -> bool:
                try:
                    for records in consumer.poll(0).values():
                        found.extend(records)
                except CorruptData:
                    pass
                return len(found) == count

            assert wait_until(lambda: has_read(4), 5)
            assert not wait_until(lambda: has_read(5), 0.3), (
                "its fetches return nothing for a while"
            )
            broker.append("clicks", 1, batch(4))
            assert wait_until(lambda: has_read(8), 5)


def test_a_record_batch_larger_than_the_request_is_requested_with_more() -> None:
    with FakeBroker() as broker:
        broker.append("clicks", 1, encode(Batch(0, [Rec(0, b"x")])))
        broker.append("clicks", 0, encode(Batch(0, [Rec(0, b"y" * 5000)])))
        with opened(broker, assigned=[P1, P0], max_partition_fetch_bytes=200) as consumer:
            assert [len(one.value) for one in polled(consumer, 2)] == [1, 5000]


def test_the_bytes_requested_of_each_log_let_all_of_them_fit_into_a_response() -> None:
    options = FetchOptions(
        Isolation.READ_COMMITTED, fetch_max_bytes=16 << 20, partition_max_bytes=1 << 20
    )
    assert [bytes_per_partition(options, partitions) for partitions in (1, 16, 64, 10_000)] == [
        1 << 20,
        1 << 20,
        256 << 10,
        64 << 10,
    ]


# Where it is


def test_it_begins_at_either_end_and_continues_at_a_seek(kafka: FakeBroker) -> None:
    with opened(kafka, auto_offset_reset="latest", assigned=[P0, P1]) as consumer:
        assert (consumer.position(P0), consumer.poll(0.2)) == (8, {})
        consumer.seek_to_beginning([P0])
        assert consumer.position(P0) == 0
        assert offsets(polled(consumer, 8)) == list(range(8))
        consumer.seek(P0, 6)
        assert offsets(polled(consumer, 2)) == [6, 7]
        consumer.seek_to_end()
        kafka.append("clicks", 1, batch(4))
        assert offsets(polled(consumer, 4)) == [4, 5, 6, 7]
        assert consumer.offsets_for_times({P0: AT, P1: 2 * AT}) == {P0: 0, P1: None}
        assert consumer.partitions_of("clicks") == (P0, P1)
        assert consumer.partitions_of("nothing") == ()


@pytest.mark.parametrize("when", [-1, -2, -3, -4, 2**63])
def test_a_time_with_a_special_meaning_is_rejected(kafka: FakeBroker, when: int) -> None:
    with opened(kafka) as consumer:
        with pytest.raises(ValueError, match=f"The target time for partition clicks-1 is {when}"):
            consumer.offsets_for_times({P0: 0, P1: when})
    assert LIST_OFFSETS not in {key for key, _ in kafka.requests}


def test_a_reassigned_partition_begins_anew(kafka: FakeBroker) -> None:
    with opened(kafka, assigned=[P0, P1]) as consumer:
        consumer.pause([P0])
        assert consumer.paused == {P0} and {one.topic_partition for one in polled(consumer, 4)} == {
            P1
        }
        consumer.resume([P0])
        assert offsets(polled(consumer, 3, most=3)) == [0, 1, 2]
        consumer.assign([P1])
        consumer.assign([P1, P0])
        assert consumer.assigned == {P0, P1} and offsets(polled(consumer, 8)) == list(range(8))


@pytest.mark.parametrize(
    "start, error, position", [(2, ExpiredOffsets, 4), (99, RanOutBeforeUntil, 8)]
)
def test_an_offset_outside_the_log_is_raised_until_a_seek(
    kafka: FakeBroker, start: int, error: type[EtlError], position: int
) -> None:
    kafka.log("clicks").log_start, kafka.log("clicks").batches = 4, [batch(4)]
    with opened(kafka, assigned=[P0, P1]) as consumer:
        consumer.seek(P0, start)
        with pytest.raises(error, match="seek_to_beginning"):
            polled(consumer, 1)
        assert {one.topic_partition for one in polled(consumer, 4)} == {P1}
        with pytest.raises(error, match="seek_to_beginning"):
            polled(consumer, 1)
        (consumer.seek_to_beginning if position == 4 else consumer.seek_to_end)([P0])
        kafka.append("clicks", 0, batch(8))
        assert offsets(polled(consumer, 12 - position)) == list(range(position, 12))


# The group's offsets


def test_a_group_continues_at_its_commit(kafka: FakeBroker) -> None:
    with opened(kafka, assigned=[P0, P1], group="readers") as consumer:
        assert consumer.committed([P0]) == {}
        consumer.pause([P1])
        assert offsets(polled(consumer, 3, most=3)) == [0, 1, 2]
        consumer.commit()
        assert consumer.committed([P0, P1]) == {P0: 3, P1: 0}
    with opened(kafka, group="readers", auto_offset_reset=None) as again:
        assert offsets(polled(again, 5)) == [3, 4, 5, 6, 7]
        again.commit({P0: 1})
        assert again.committed([P0]) == {P0: 1} and again.position(P0) == 8


def test_without_an_offset_and_without_a_start_the_poll_fails(kafka: FakeBroker) -> None:
    with opened(kafka, group="new", auto_offset_reset=None) as consumer:
        with pytest.raises(NeedsDecision, match="of the partition, and auto_offset_reset is None"):
            polled(consumer, 1)
        consumer.seek(P0, 7)
        assert offsets(polled(consumer, 1)) == [7]


# Refused by name


def test_only_assigned_partitions_are_read(kafka: FakeBroker) -> None:
    consumer = opened(kafka, assigned=[])
    for refused in (
        consumer.poll,
        lambda: consumer.seek(P0, 1),
        lambda: consumer.position(P0),
        lambda: consumer.pause([P0]),
        lambda: consumer.seek_to_end([P0]),
    ):
        with pytest.raises(NotAssigned, match="assign"):
            refused()
    with pytest.raises(SettingsError, match="no group"):
        consumer.commit()
    consumer.close()
    consumer.close()
    with pytest.raises(NotAssigned, match="closed"):
        consumer.poll()


def test_a_second_thread_is_refused_while_the_first_one_polls(kafka: FakeBroker) -> None:
    with opened(kafka, auto_offset_reset="latest") as consumer, ThreadPoolExecutor(1) as pool:
        assert consumer.poll(0) == {}
        polling = pool.submit(consumer.poll, 2)
        assert not wait([polling], 0.2).done, "it waits for records"
        with pytest.raises(ConsumerInUse, match="Another thread"):
            consumer.position(P0)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"bootstrap_servers": "nowhere"},
        {"bootstrap_servers": "a:1", "broker_type": "jafka"},
        {"bootstrap_servers": "a:1", "group": "g", "offsets_storage": "dual"},
        {"bootstrap_servers": "a:1", "group": "g", "offsets_storage": "zookeeper"},
        {"zookeeper": "a:1", "group": "g", "offsets_storage": "kafka", "broker_type": "jafka"},
        {"bootstrap_servers": "a:1", "group": Group("g", membership="zookeeper")},
        {"bootstrap_servers": "a:1", "group": Group("g", membership="unknown")},
        {"zookeeper": "a:1", "group": Group("g", membership="coordinator")},
        {"zookeeper": "a:1", "broker_type": "jafka", "group": Group("g", membership="coordinator")},
        {"bootstrap_servers": "a:1", "group": Group("g", assignment_strategy="roundrobin-1.0")},
        {"bootstrap_servers": "a:1", "group": Group("g", protocol="newer")},
        {"zookeeper": "a:1", "group": Group("g", protocol="consumer")},
        *(
            {"bootstrap_servers": "a:1", name: -1}
            for name in (
                "fetch_max_bytes",
                "max_partition_fetch_bytes",
                "max_batch_bytes",
                "fetch_max_wait_ms",
                "fetch_min_bytes",
                "request_timeout_s",
            )
        ),
        *(
            {"bootstrap_servers": "a:1", "group": wrong}
            for wrong in (
                Group("g", session_timeout_s=-1),
                Group("g", join_timeout_s=-1),
                Group("g", rebalance_timeout_s=-1),
                Group("g", max_poll_interval_s=-1),
                Group("g", topics_max_age_s=-1),
                Group("g", auto_commit_s=-1),
            )
        ),
    ],
)
def test_invalid_options_are_rejected_before_any_request(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Consumer(**wrong)


def test_an_unreachable_partition_continues_later(kafka: FakeBroker) -> None:
    with opened(kafka, request_timeout_s=0.3) as consumer:
        consumer.seek(P0, 6)
        kafka.log("clicks").refusals.extend([NOT_LEADER] * 100)
        with pytest.raises(BrokerUnreachable, match="NOT_LEADER"):
            polled(consumer, 1)
        kafka.log("clicks").refusals.clear()
        assert offsets(polled(consumer, 2)) == [6, 7]


def test_a_silent_broker_is_raised_and_delays_no_other() -> None:
    world = World()
    with FakeBroker(world, broker_id=1) as one, FakeBroker(world, broker_id=2) as two:
        one.append("clicks", 0, batch(0))
        two.append("clicks", 1, batch(0))
        one.script[FETCH].append(never)
        with opened(one, two, assigned=[P0, P1], request_timeout_s=0.3) as consumer:
            assert {record.topic_partition for record in polled(consumer, 4)} == {P1}
            with pytest.raises(BrokerUnreachable, match="answer"):
                polled(consumer, 1)
            assert {record.topic_partition for record in polled(consumer, 4)} == {P0}


def test_batches_of_a_response_that_the_deadline_cut_are_returned(kafka: FakeBroker) -> None:
    kafka.script[FETCH].append(stalls_after(4 + 70 + len(batch(0)) + 10))
    with opened(kafka, request_timeout_s=0.3) as consumer:
        assert offsets(polled(consumer, 8)) == list(range(8))
        kafka.append("clicks", 0, batch(8))
        assert offsets(polled(consumer, 4)) == [8, 9, 10, 11]
    assert [offset for offset, _ in kafka.wanted][:2] == [0, 4]
    sizes = [size for _, size in kafka.wanted]
    assert sizes[1] == sizes[0] // 2 and sizes[-1] == sizes[0], "until one arrives whole"


def test_a_batch_that_the_line_does_not_carry_is_raised_and_delays_no_other() -> None:
    with FakeBroker() as broker:
        broker.append("clicks", 1, encode(Batch(0, [Rec(0, b"x" * 100_000)])))
        broker.script[FETCH].extend([stalls_after(90_000)] * 40)
        returned: list[int] = []
        failures = 0
        settings = {"request_timeout_s": 0.1, "max_partition_fetch_bytes": 128 << 10}
        with opened(broker, assigned=[P1, P0], **settings) as consumer:
            while len(broker.fetched) < 16:
                if broker.log("clicks").log_end == len(returned):
                    broker.append("clicks", 0, batch(len(returned)))
                try:
                    returned += offsets(consumer.poll(0.5).get(P0, []))
                except BrokerUnreachable:
                    failures += 1
    assert failures and len(returned) >= 16 and returned == list(range(len(returned)))


def test_the_throttle_time_of_a_response_that_the_deadline_cut_counts() -> None:
    def throttles_and_stalls(connection: socket.socket, frame: bytes) -> None:
        throttled = frame[:8] + struct.pack(">i", 5000) + frame[12:]
        stalls_after(40)(connection, throttled)

    with FakeBroker(versions={FETCH: (0, 11)}) as broker:
        broker.append("clicks", 0, batch(0))
        broker.script[FETCH].append(throttles_and_stalls)
        with SimpleConsumer("127.0.0.1", broker.port, request_timeout_s=0.3) as consumer:
            answer = consumer.multifetch([FetchTarget(P0, 0, 1 << 20)], keeps_arrived=True)
            assert answer.cut is not None and answer.throttle_ms == 5000
            assert consumer._exchange.deadline() > time.monotonic() + 4


@pytest.mark.parametrize("key", [FIND_COORDINATOR, OFFSET_FETCH, METADATA, LIST_OFFSETS, FETCH])
def test_a_poll_takes_no_longer_than_its_timeout(kafka: FakeBroker, key: int) -> None:
    kafka.script[key].append(never)
    with opened(kafka, group="readers", request_timeout_s=1.5) as consumer:
        began = time.monotonic()
        assert consumer.poll(0) == {} and consumer.poll(0.2) == {}
        assert time.monotonic() - began < 1
        assert wait_until(lambda: _reads(consumer), 20), "a later poll continues"


def _reads(consumer: Consumer) -> bool:
    try:
        return bool(consumer.poll(0.1))
    except BrokerUnreachable:
        return False


def test_partitions_that_cannot_be_read_delay_no_other(kafka: FakeBroker) -> None:
    missing = TopicPartition("clicks", 9)
    kafka.world.refused_leaders["clicks", 1] = LEADER_NOT_AVAILABLE
    with opened(kafka, assigned=[P1, missing, P0], request_timeout_s=1) as consumer:
        began = time.monotonic()
        assert offsets(polled(consumer, 8)) == list(range(8))
        assert time.monotonic() - began < 1
        raised: dict[int, str] = {}
        while len(raised) < 2:
            with pytest.raises((BrokerUnreachable, TopicMissing)) as error:
                polled(consumer, 1)
            raised[error.value.where["partition"]] = error.value.message
        assert raised == {
            1: "The partition has no leader",
            9: "The topic has 2 partitions, numbered from 0, and not this one",
        }
        for call in (
            lambda: consumer.position(missing),
            lambda: consumer.offsets_for_times({P0: AT, missing: AT}),
            lambda: consumer.seek_to_end([missing]),
        ):
            with pytest.raises(TopicMissing, match="not this one"):
                call()
        assert consumer.position(P0) == 8


def test_a_name_that_no_topic_can_have_is_rejected_at_once(kafka: FakeBroker) -> None:
    with opened(kafka, assigned=[("topic abc", 0)], request_timeout_s=30) as consumer:
        with pytest.raises(TopicMissing, match="INVALID_TOPIC"):
            polled(consumer, 1)
        with pytest.raises(SettingsError, match="topic abc"):
            Consumer("127.0.0.1:1", group="g").subscribe(["topic abc"])


# What programs ask for


def test_a_partition_is_found_by_its_name(kafka: FakeBroker) -> None:
    name: Any = ("clicks", 0)
    with opened(kafka, assigned=[name], group="readers") as consumer:
        found = consumer.poll(5)
        assert name in found and found[name] == found[P0] == found.get(name)
        assert (*name[:1], 1) not in found and found.get(("clicks", 1)) is None
        consumer.commit({name: 3})
        assert consumer.committed([name])[name] == 3
    with SimpleConsumer(kafka.host, kafka.port) as broker:
        assert broker.list_offsets({name: "latest"})[name].offset == 8
        broker.commit_offsets("readers", {name: 4})
        assert broker.fetch_offsets("readers", [name])[name].offset == 4
        [fetched] = broker.multifetch([FetchTarget(name, 4, 1 << 20)]).partitions
        assert [message.offset for message in Messages(fetched)] == [4, 5, 6, 7]
        with pytest.raises(SettingsError, match="Use one of read_committed, read_uncommitted"):
            broker.fetch("clicks", 0, 0, isolation_level="dirty")


def test_ends_lag_topics_and_records_one_by_one(kafka: FakeBroker) -> None:
    with opened(kafka, assigned=[P0, P1], auto_offset_reset="smallest") as consumer:
        assert consumer.beginning_offsets([P0]) == {P0: 0}
        assert consumer.end_offsets([P0, P1]) == {P0: 8, P1: 4}
        assert consumer.topics() == {"clicks"}
        assert [record.offset for record in islice(consumer, 3)] == [0, 1, 2]
        assert consumer.position(P0) == 3
        assert consumer.lag() == {P0: 5, P1: 4}
        assert repr(consumer) == f"<Consumer of 127.0.0.1:{kafka.port}, 2 partitions>"


def test_another_thread_ends_a_poll(kafka: FakeBroker) -> None:
    with opened(kafka, auto_offset_reset="latest") as consumer, ThreadPoolExecutor(1) as pool:
        polling = pool.submit(consumer.poll, 60)
        assert not wait([polling], 0.2).done
        consumer.wakeup()
        assert polling.result(10) == {}


def test_a_connection_without_partitions_is_closed() -> None:
    world = World()
    with FakeBroker(world, broker_id=1) as one, FakeBroker(world, broker_id=2) as two:
        one.append("clicks", 0, batch(0))
        two.append("clicks", 1, batch(0))
        with opened(one, assigned=[P0, P1]) as consumer:
            assert len(polled(consumer, 8)) == 8
            consumer.assign([P0])
            assert wait_until(lambda: not consumer.poll(0.1) and not two.open_connections(), 20)


def test_an_error_names_arguments_of_the_consumer(kafka: FakeBroker) -> None:
    with pytest.raises(SettingsError, match="Use one of earliest, latest"):
        opened(kafka, auto_offset_reset="first")
    with pytest.raises(SettingsError, match="Use one of zookeeper, kafka"):
        opened(kafka, group="g", offsets_storage="disk")
    with pytest.raises(NotKafka) as raised, naming_arguments():
        raise not_kafka("h:1", b"\x15\x03\x03\x00")
    assert raised.value.where["key"] == "security.protocol"
    assert raised.value.action.startswith("Set security.protocol: SSL")
    conf = ConsumerConfig("no-such-host.invalid:9092", request_timeout_s=1)
    with Consumer.of_conf(conf) as consumer, pytest.raises(BrokerUnreachable) as of_conf:
        consumer.beginning_offsets([P0])
    assert "source.bootstrap_servers" in of_conf.value.action
    damaged = CorruptData("damaged", next_offset=8)
    assert (damaged.next_offset, CorruptData("damaged").next_offset) == (8, None)


# Other generations


def test_a_broker_of_0_8_is_read_and_the_end_of_its_log_is_reported() -> None:
    with OldBroker("0.8") as broker:
        broker.log("clicks").append(b"0", b"1", b"2")
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "broker_version": "0.8.2"}
        with Consumer(f"127.0.0.1:{broker.port}", fetch_max_wait_ms=50, **settings) as consumer:
            consumer.assign([P0])
            found = [(one.offset, one.value) for one in polled(consumer, 3)]
            assert found == [(0, b"0"), (1, b"1"), (2, b"2")]
            consumer.seek(P0, 99)
            with pytest.raises(RanOutBeforeUntil):
                polled(consumer, 1)


def test_ctrl_c_at_any_line_of_a_wait_leaves_it_usable() -> None:
    for line in count(1):
        results = Results()
        if not interrupted_at(line, lambda: results.wait(time.monotonic() + 0.001)):  # noqa: B023
            break
        lane = Lane("after", results)
        done = lane.submit(lambda: "a result")
        deadline = time.monotonic() + 20
        results.wait(deadline)
        assert time.monotonic() < deadline, "the result wakes the wait"
        assert done.result(20) == "a result"
        lane.close(lambda: None)
    assert line > 5


def interrupted_at(nth: int, call: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt at the nth line of Python that `call` executes; False if it ends."""
    lines = count(1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and next(lines) == nth:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_position_in_a_jafka_log_is_that_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    here = TopicPartition("clicks", 0, 3)
    with JafkaBroker().listening() as broker:
        end = broker.append("clicks", 0, entry(b"a"), wrapped(entry(b"b"), entry(b"c")))
        bootstrap, registry = [(broker.host, broker.port)], registry_of(broker, 3)

        def open_cluster(conf: ConsumerConfig, until: ExitStack) -> ConsumerResources:
            cluster = Cluster(bootstrap, timeout_s=5, registry=registry, broker_type="jafka")
            until.enter_context(cluster)
            results = Results()
            return ConsumerResources(cluster, Lane("requests", results), results)

        monkeypatch.setattr(room, "open_cluster", open_cluster)
        with Consumer(
            zookeeper="fake", broker_type="jafka", auto_offset_reset="earliest", request_timeout_s=5
        ) as consumer:
            consumer.assign([("clicks", 0, 3)])
            first = polled(consumer, 2, most=2)
            second = first[1].offset
            assert [(one.value, one.message_index, one.broker_id) for one in first] == [
                (b"a", 0, 3),
                (b"b", 0, 3),
            ]
            assert consumer.position(here) == second, (
                "a reader that continues there gets the entry again"
            )
            assert [(one.value, one.message_index, one.offset) for one in polled(consumer, 1)] == [
                (b"c", 1, second)
            ]
            assert consumer.position(here) == end
            broker.append("clicks", 0, entry(b"d"))
            assert [one.value for one in polled(consumer, 1)] == [b"d"]
            with pytest.raises(SettingsError):
                consumer.offsets_for_times({here: 1_700_000_000_000})


def test_importing_the_package_imports_no_client() -> None:
    program = "import sys, etl.streams; print([n for n in sys.modules if n.startswith('etl.')])"
    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert imported.stdout.strip() == "['etl.streams']"
