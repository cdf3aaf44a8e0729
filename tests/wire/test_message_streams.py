"""Message streams of a `ConsumerConnector` at a fake coordinator."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from etl import ConsumerConfig, ConsumerConnector, ConsumerTimeout, Group, MessageStream, Record
from etl.errors import (
    ConsumerInUse,
    CorruptData,
    EtlError,
    ExpiredOffsets,
    MembershipLost,
    NotAssigned,
    SettingsError,
)
from etl.model.partitions import MemberAssignment, TopicPartition
from etl.streams.consumer_connector import StreamQueue
from etl.streams.positions import KafkaOffsetStore
from etl.streams.records import records_of
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FETCH, never
from tests.fakes.coordinator import JOIN, FakeCoordinator, coordinator_of_clicks
from tests.fakes.group_readers import Interrupted

P0, P1 = (TopicPartition("clicks", number) for number in range(2))


@pytest.fixture
def broker() -> Iterator[FakeCoordinator]:
    with coordinator_of_clicks(2) as broker:
        yield broker


def append(
    broker: FakeCoordinator, partition: int, *values: bytes | None, topic: str = "clicks"
) -> None:
    start = broker.log(topic, partition).log_end
    records = [Rec(at, value) for at, value in enumerate(values)]
    broker.append(topic, partition, encode(Batch(start, records)))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def connector(
    broker: FakeCoordinator,
    *,
    group: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **given: Any,
) -> ConsumerConnector:
    terms = {"session_timeout_s": 0.6, "join_timeout_s": 20.0, **(group or {})}
    defaults = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 20, "request_timeout_s": 5}
    conf = ConsumerConfig(
        f"127.0.0.1:{broker.port}", group=Group("g", **terms), **{**defaults, **(settings or {})}
    )
    return ConsumerConnector(conf, **given)


def streamed(here: ConsumerConnector, **given: Any) -> MessageStream:
    (stream,) = here.create_message_streams({"clicks": 1}, **{"timeout_s": 20, **given})["clicks"]
    return stream


def taken(stream: MessageStream, count: int) -> list[Record]:
    return [next(stream) for _ in range(count)]


@contextmanager
def rebalanced(broker: FakeCoordinator, stream: MessageStream) -> Iterator[None]:
    """Wait at the end for records of the next generation."""
    generation, before = broker.group.generation, stream.queue.head
    yield
    assert wait_until(lambda: broker.group.generation > generation, 20)
    assert wait_until(lambda: stream.queue.head not in (None, before), 20)


def committed(broker: FakeCoordinator) -> dict[int, int]:
    return {number: offset for (_, _, number), (offset, _) in broker.world.committed.items()}


def test_each_partition_goes_to_one_stream_in_its_order(broker: FakeCoordinator) -> None:
    for number in range(2):
        append(broker, number, *numbers(0, 10))
    wanted = {"clicks": 3}
    with connector(broker) as here:
        streams = here.create_message_streams(wanted, value_decoder=int, timeout_s=20)["clicks"]
        *streams, without_partition = streams
        without_partition.timeout_s = 0.2
        with pytest.raises(ConsumerTimeout):
            next(without_partition)
        found = [taken(stream, 10) for stream in streams]
    assert [[record.value for record in some] for some in found] == [list(range(10))] * 2
    assert {record.topic_partition for some in found for record in some} == {P0, P1}


def test_a_stream_times_out_and_then_continues(broker: FakeCoordinator) -> None:
    with connector(broker) as here:
        stream = streamed(here, timeout_s=0.1)
        for _ in range(2):
            with pytest.raises(ConsumerTimeout, match="0.1 s"):
                next(stream)
        append(broker, 0, b"late")
        stream.timeout_s = 20
        assert next(stream).value == b"late"


def test_shutting_down_ends_every_stream_also_one_that_waits(broker: FakeCoordinator) -> None:
    here = connector(broker)
    streams = here.create_message_streams({"clicks": 2})["clicks"]
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(list, stream) for stream in streams]
        assert wait_until(lambda: bool(broker.group.members), 20)
        here.shutdown()
        here.shutdown()
        assert [one.result(20) for one in ended] == [[], []]
    assert not broker.group.members
    assert list(streams[0]) == []
    with pytest.raises(NotAssigned, match="ended"):
        here.commit()


def test_a_stream_continues_after_a_failing_decoder(broker: FakeCoordinator) -> None:
    append(broker, 1, b"0", b"x", None, b"3")
    with connector(broker) as here:
        stream = streamed(here, value_decoder=int)
        assert next(stream).value == 0
        with pytest.raises(CorruptData, match="value decoder failed: ValueError") as raised:
            next(stream)
        where = {name: raised.value.where[name] for name in ("topic", "partition", "offset")}
        assert where == {"topic": "clicks", "partition": 1, "offset": 1}
        here.commit()
        assert committed(broker)[1] == 1, "the offset after the last returned message"
        assert [record.value for record in taken(stream, 2)] == [None, 3]


def test_expired_offsets_delay_no_other_partition(broker: FakeCoordinator) -> None:
    append(broker, 0, *numbers(0, 4))
    append(broker, 1, *numbers(0, 4))
    broker.world.committed["g", "clicks", 0] = (1, "")
    broker.log("clicks", 0).log_start = 3
    with connector(broker) as here:
        stream = streamed(here)
        found, reported = list[Record](), list[EtlError]()
        while len(found) < 4 or len(reported) < 2:
            try:
                found.append(next(stream))
            except ExpiredOffsets as error:
                reported.append(error)
    assert [record.offset for record in found] == [0, 1, 2, 3] and {
        record.topic_partition for record in found
    } == {P1}
    assert reported[-1].where["offset"] == 1


def test_a_silent_broker_is_raised_once(broker: FakeCoordinator) -> None:
    append(broker, 0, b"a")
    broker.script[FETCH].append(never)
    with connector(broker, settings={"request_timeout_s": 0.3}) as here:
        stream = streamed(here)
        with pytest.raises(EtlError) as raised:
            next(stream)
        assert raised.value.retriable
        assert next(stream).value == b"a"


def test_a_group_without_a_start_ends_the_streams_with_the_reason(broker: FakeCoordinator) -> None:
    append(broker, 0, b"a")
    with connector(broker, settings={"auto_offset_reset": None}) as here:
        stream = streamed(here)
        for _ in range(2):
            with pytest.raises(EtlError, match="of the partition, and auto_offset_reset is None"):
                next(stream)
        assert not broker.group.members


# What waits


def test_a_full_queue_stops_the_fetches(broker: FakeCoordinator) -> None:
    for _ in range(40):
        append(broker, 0, *[b"x" * 1000] * 4)
        append(broker, 1, *[b"x" * 1000] * 4)
    size = len(broker.log("clicks", 0).batches[0])
    with connector(
        broker,
        settings={"max_partition_fetch_bytes": size, "fetch_max_bytes": 2 * size},
        queue_records=10,
    ) as here:
        stream = streamed(here)
        assert wait_until(lambda: not stream.queue.has_room, 20)
        fetches = len(broker.fetched)
        time.sleep(0.2)
        assert len(broker.fetched) <= fetches + 1, "a full queue stops the fetches"
        assert 10 <= stream.queue.count <= 10 + 2 * 4
        assert Counter(record.topic_partition for record in taken(stream, 320)) == {
            P0: 160,
            P1: 160,
        }, "and all of it comes"


def test_queued_records_are_columns_until_a_record_is_taken(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(broker, 0, *numbers(0, 1000))
    made = list[object]()

    def counted(*fields: Any) -> Record:
        made.append(fields)
        return Record(*fields)

    monkeypatch.setattr("etl.streams.records.Record", counted)
    with connector(broker) as here:
        stream = streamed(here)
        assert wait_until(lambda: stream.queue.count == 1000, 20)
        assert not made
        next(stream)
        assert len(made) == 1


def test_a_revoked_partition_leaves_the_queue(broker: FakeCoordinator) -> None:
    append(broker, 0, *numbers(0, 10))
    with connector(broker) as here:
        stream = streamed(here, value_decoder=int)
        assert [record.value for record in taken(stream, 4)] == [0, 1, 2, 3]
        here.commit()
        assert next(stream).value == 4
        with rebalanced(broker, stream):
            broker.call_for_a_rebalance()
        assert [record.value for record in taken(stream, 6)] == [4, 5, 6, 7, 8, 9]


# Commits


def test_commit_stores_the_offset_after_the_returned_messages(broker: FakeCoordinator) -> None:
    append(broker, 0, *numbers(0, 4))
    append(broker, 1, *numbers(0, 4))
    with connector(broker) as here:
        streams = here.create_message_streams({"clicks": 2}, timeout_s=20)["clicks"]
        first = taken(streams[0], 3)[0].partition
        taken(streams[1], 1)
        here.commit()
        assert committed(broker) == {first: 3, 1 - first: 1}
    assert committed(broker) == {first: 3, 1 - first: 1}, "shutting down commits nothing"


def test_the_last_record_is_not_committed_by_itself(broker: FakeCoordinator) -> None:
    append(broker, 0, *numbers(0, 4))
    with connector(broker, group={"auto_commit_s": 3600.0}) as here:
        stream = streamed(here)
        taken(stream, 3)
    assert committed(broker)[0] == 2, "the third message may not be processed yet"


# Refused


def test_streams_are_made_once_and_of_something(broker: FakeCoordinator) -> None:
    with connector(broker) as here:
        with pytest.raises(SettingsError, match="no streams yet"):
            here.commit()
        for wrong in ({}, {"clicks": 0}, {"clicks": True}):
            with pytest.raises(SettingsError):
                here.create_message_streams(wrong)
        for pattern, streams in (("(", 1), ("a", 0)):
            with pytest.raises(SettingsError):
                here.create_message_streams_by_filter(pattern, streams)
        here.create_message_streams({"clicks": 1})
        with pytest.raises(SettingsError, match="once"):
            here.create_message_streams({"clicks": 1})
    with pytest.raises(SettingsError, match="no group"):
        ConsumerConnector(ConsumerConfig("a:1"))
    with pytest.raises(SettingsError, match="queue"):
        ConsumerConnector(ConsumerConfig("a:1", group="g"), queue_records=0)


def test_a_second_thread_on_one_stream_is_refused(broker: FakeCoordinator) -> None:
    append(broker, 0, b"a")
    is_decoding, may_end = threading.Event(), threading.Event()

    def slow(content: bytes) -> bytes:
        is_decoding.set()
        may_end.wait(20)
        return content

    with connector(broker) as here, ThreadPoolExecutor(1) as pool:
        stream = streamed(here, value_decoder=slow)
        pool.submit(next, stream)
        assert is_decoding.wait(20)
        with pytest.raises(ConsumerInUse, match="stream of its own"):
            next(stream)
        may_end.set()


# By filter


def test_a_filter_chooses_topics(broker: FakeCoordinator) -> None:
    append(broker, 0, b"1", topic="orders")
    append(broker, 0, b"2", topic="others")
    for number in range(2):
        append(broker, number, b"0")
    with connector(broker) as here:
        streams = here.create_message_streams_by_filter("clicks|orders", 2, timeout_s=20)
        assert sorted(record.topic for record in taken(streams[0], 2)) == ["clicks", "orders"]
        assert next(streams[1]).topic == "clicks"
        partitions = [one for stream in streams for one in stream.queue.partitions]
        assert {partition.topic for partition in partitions} == {"clicks", "orders"}
    black = "clicks|orders"
    with connector(broker) as here:
        (stream,) = here.create_message_streams_by_filter(black, kind="black_list", timeout_s=20)
        assert next(stream).topic == "others"


# Interruptions and errors: no record is skipped, and no call waits for ever


def test_ctrl_c_in_a_record_gives_it_next(broker: FakeCoordinator) -> None:
    append(broker, 0, b"0", b"1", b"2", b"3")
    with connector(broker) as here:
        stream = streamed(here, value_decoder=Interrupted(b"2"))
        found = [next(stream).offset, next(stream).offset]
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert found + [next(stream).offset, next(stream).offset] == [0, 1, 2, 3]


def test_a_failing_decoder_takes_no_position_back(broker: FakeCoordinator) -> None:
    append(broker, 0, b"0", b"x")
    append(broker, 0, b"2", b"3")
    size = len(broker.log("clicks", 0).batches[0])
    with connector(
        broker, settings={"max_partition_fetch_bytes": size, "fetch_max_wait_ms": 3000}
    ) as here:
        stream = streamed(here, value_decoder=int)
        assert wait_until(lambda: stream.queue.count == 4, 20)
        found = [next(stream).offset]
        with pytest.raises(CorruptData):
            next(stream)
        found += [next(stream).offset, next(stream).offset]
        stream.timeout_s = 0.05
        with pytest.raises(ConsumerTimeout):
            next(stream)
        here.commit()
    assert found == [0, 2, 3] and committed(broker)[0] == 4


def test_empty_batches_are_queued_once_for_each_log() -> None:
    queue = StreamQueue(10, 10)
    for offset in range(100):
        queue.put(records_of(P0, (), offset))
        queue.put(records_of(P1, (), offset))
    ends = []
    while queue.head is not None:
        ends.append((queue.head.partition, queue.head.end))
        queue.end(queue.head)
    assert ends == [(P0, 99), (P1, 99)]


def test_no_record_is_returned_during_the_commit_of_a_release(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(broker, 0, *numbers(0, 10))
    meanwhile: list[Record] = []
    commit = KafkaOffsetStore.commit
    with connector(broker, group={"auto_commit_s": 3600.0}) as here:
        stream = streamed(here)
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]

        def commits(
            kept: KafkaOffsetStore,
            offsets: Mapping[TopicPartition, int],
            share: MemberAssignment | None,
        ) -> None:
            before, stream.timeout_s = stream.timeout_s, 0.0
            try:
                meanwhile.append(next(stream))
            except ConsumerTimeout:
                pass
            stream.timeout_s = before
            commit(kept, offsets, share)

        generation = broker.group.generation
        with monkeypatch.context() as patched:
            patched.setattr(KafkaOffsetStore, "commit", commits)
            broker.call_for_a_rebalance()
            assert wait_until(
                lambda: broker.group.generation > generation and bool(stream.queue.count), 20
            )
        assert not meanwhile
        assert next(stream).offset == 2, "the last, which its thread may have been at"


def test_revoked_records_are_not_committed_later(broker: FakeCoordinator) -> None:
    append(broker, 0, *numbers(0, 10))
    with connector(broker, group={"auto_commit_s": 3600.0}) as here:
        stream = streamed(here)
        assert [next(stream).offset for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        with rebalanced(broker, stream):
            broker.forget()
            broker.world.committed["g", "clicks", 0] = (1, "")
        assert [next(stream).offset for _ in range(2)] == [1, 2]
    assert committed(broker)[0] == 2


def test_a_commit_does_not_wait_for_a_group_that_does_not_settle(broker: FakeCoordinator) -> None:
    broker.refusals[JOIN].extend([27] * 100_000)
    with connector(broker, group={"join_timeout_s": 0.1}) as here:
        streamed(here)
        thread = threading.Thread(target=here.commit, daemon=True)
        thread.start()
        thread.join(5)
        broker.refusals[JOIN].clear()
        assert not thread.is_alive(), "nothing was handed out, and there is nothing to commit"


def test_any_error_of_a_commit_is_raised(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(broker, 0, b"0", b"1")

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    with connector(broker) as here:
        stream = streamed(here)
        next(stream)
        with monkeypatch.context() as patched:
            patched.setattr(KafkaOffsetStore, "commit", fails)
            with pytest.raises(RuntimeError, match="a bug"):
                here.commit()
        assert next(stream).offset == 1


def test_a_last_commit_that_fails_is_raised_by_shutdown(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(broker, 0, b"0", b"1")

    def fails(*_: object) -> None:
        raise MembershipLost("gone")

    here = connector(broker, group={"auto_commit_s": 3600.0})
    stream = streamed(here)
    next(stream)
    next(stream)
    monkeypatch.setattr(KafkaOffsetStore, "commit", fails)
    with pytest.raises(MembershipLost, match="gone"):
        here.shutdown()
    here.shutdown()
    assert not broker.group.members


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "a", "instance_id": ""}])
def test_what_names_no_group_or_member_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="is not a valid .* name"):
        ConsumerConfig("a:1", group=Group(**wrong)).checked()
    for name in ("a/b", "..", "."):
        with pytest.raises(SettingsError, match="is not a valid .* name"):
            ConsumerConfig(zookeeper="a:1", group=name).checked()
