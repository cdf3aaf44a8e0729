"""Interruptions and errors of a consumer's poll or a stream's next record: no record is skipped,
and no call waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from etl import (
    Consumer,
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeout,
    Group,
    MessageStream,
    RebalanceListener,
    Record,
)
from etl.errors import ConsumerInUse, CorruptData, MembershipLost, SettingsError
from etl.model.partitions import BrokerPartition, MemberAssignment
from etl.streams.consumer_connector import StreamQueue
from etl.streams.fetches import Fetches
from etl.streams.positions import KafkaOffsetStore
from etl.streams.records import records_of
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.coordinator import JOIN, ConsumerMember, FakeCoordinator, coordinator_of_clicks
from tests.fakes.group_readers import GroupReader

P0, P1 = (BrokerPartition("clicks", number) for number in range(2))


@pytest.fixture
def broker() -> Iterator[FakeCoordinator]:
    with coordinator_of_clicks(2) as broker:
        yield broker


def append(broker: FakeCoordinator, partition: int, *values: bytes) -> None:
    start = broker.log("clicks", partition).log_end
    broker.append(
        "clicks", partition, encode(Batch(start, [Rec(at, one) for at, one in enumerate(values)]))
    )


def conf(
    broker: FakeCoordinator, *, group: dict[str, Any] | None = None, **settings: Any
) -> ConsumerConfig:
    terms = Group("g", **{"session_timeout_s": 0.6, "join_timeout_s": 20.0, **(group or {})})
    return ConsumerConfig(
        f"127.0.0.1:{broker.port}",
        group=terms,
        **{
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 20,
            "request_timeout_s": 5,
            **settings,
        },
    )


def opened(
    broker: FakeCoordinator, *, group: dict[str, Any] | None = None, **given: Any
) -> Consumer:
    reported = conf(broker, group=group)
    return Consumer(
        reported.bootstrap_servers,
        group=reported.group,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
        request_timeout_s=5,
        **given,
    )


def streamed(connector: ConsumerConnector, **given: Any) -> MessageStream:
    return connector.create_message_streams({"clicks": 1}, **{"timeout_s": 20, **given})["clicks"][
        0
    ]


def polled(consumer: Consumer, count: int, *, most: int = 500) -> list[int]:
    found: list[Record] = []

    def has_enough() -> bool:
        found.extend(one for some in consumer.poll(0.05, most).values() for one in some)
        return len(found) >= count

    assert wait_until(has_enough, 20)
    return [one.offset for one in found]


class Interrupted:
    """A decoder that Ctrl-C meets once, at one record."""

    def __init__(self, at: bytes) -> None:
        self._at: bytes | None = at

    def __call__(self, content: bytes) -> bytes:
        if content == self._at:
            self._at = None
            raise KeyboardInterrupt
        return content


# Of a consumer


def test_a_poll_that_ctrl_c_ends_amid_its_records_leaves_none_of_them_out(
    broker: FakeCoordinator,
) -> None:
    append(broker, 0, b"0", b"1", b"2", b"3")
    with opened(broker, value_decoder=Interrupted(b"2")) as consumer:
        consumer.assign([P0])
        with pytest.raises(KeyboardInterrupt):
            while True:
                assert not consumer.poll(0.05)
        assert consumer.position(P0) == 0
        assert polled(consumer, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SettingsError("not now")])
def test_records_that_were_taken_are_handed_out_also_where_the_next_fetch_cannot_be_sent(
    broker: FakeCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
) -> None:
    append(broker, 0, b"0", b"1", b"2", b"3")
    with opened(broker) as consumer:
        consumer.assign([P0])
        found = polled(consumer, 1, most=1)

        def fails(*_: object) -> None:
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr(Fetches, "begin", fails)
            try:
                found += [one.offset for one in consumer.poll(0, 1).get(P0, [])]
            except KeyboardInterrupt:
                pass
        assert found + polled(consumer, 4 - len(found)) == [0, 1, 2, 3]


@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe"])
def test_a_listener_that_ends_its_caller_is_rejected_and_leaves_no_member(
    broker: FakeCoordinator, call: str
) -> None:
    refused: list[str] = []

    class Ending(RebalanceListener):
        def revoked(self, logs: Collection[BrokerPartition]) -> None:
            if not refused:
                try:
                    getattr(consumer, call)()
                except ConsumerInUse as error:
                    refused.append(error.message)

    with opened(broker) as consumer:
        consumer.subscribe(["clicks"], listener=Ending())
        consumer.poll(0.05)
        broker.call_for_a_rebalance()
        assert wait_until(lambda: bool(consumer.poll(0.05)) or bool(refused), 20)
    assert "listener" in refused[0]
    assert not broker.group.members and not [
        one for one in threading.enumerate() if one.name == "member of g"
    ]


def test_partitions_revoked_while_a_member_only_waits_for_its_epoch_are_reported_before_they_go(
    broker: FakeCoordinator,
) -> None:
    heard: list[tuple[str, int]] = []

    class RebalanceLog(RebalanceListener):
        def revoked(self, logs: Collection[BrokerPartition]) -> None:
            heard.append(("revoked", len(logs)))
            consumer.commit()

        def lost(self, logs: Collection[BrokerPartition]) -> None:
            heard.append(("lost", len(logs)))

    append(broker, 0, b"0")
    append(broker, 1, b"0")
    with opened(broker, group={"protocol": "consumer", "session_timeout_s": 10.0}) as consumer:
        consumer.subscribe(["clicks"], listener=RebalanceLog())
        polled(consumer, 2)
        broker.epoch += 1
        member = consumer._group._member
        assert member is not None and wait_until(lambda: member.needs_rebalance, 20)
        broker.consumers["other"] = ConsumerMember()
        broker.epoch += 1
        assert wait_until(lambda: bool(consumer.poll(0.05)) or len(consumer.assigned) == 1, 20)
        assert heard == [("revoked", 1)]
        del broker.consumers["other"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_one_that_was_given_nothing_is_in_nobodys_way_and_takes_over_from_who_leaves(
    broker: FakeCoordinator, protocol: str
) -> None:
    terms = {
        "protocol": protocol,
        "session_timeout_s": 10.0,
        "rebalance_timeout_s": 600.0,
        "join_timeout_s": 600.0,
    }
    with ExitStack() as ending:
        readers = [GroupReader(opened(broker, group=terms), ["clicks"]) for _ in range(3)]
        for reader in readers:
            ending.callback(reader.end)
        assert wait_until(lambda: sorted(len(reader.owned) for reader in readers) == [0, 1, 1], 20)
        next(reader for reader in readers if reader.owned).end()
        assert wait_until(
            lambda: sorted(len(reader.owned) for reader in readers if not reader.is_over) == [1, 1],
            20,
        )


def test_a_pattern_that_nothing_matches_any_more_leaves_the_group(broker: FakeCoordinator) -> None:
    broker.log("orders", 0)
    with opened(broker, group={"topics_max_age_s": 0.05}) as consumer:
        consumer.subscribe(pattern="ord.*")
        assert wait_until(lambda: bool(consumer.poll(0.05)) or bool(consumer.assigned), 20)
        del broker.world.logs["orders", 0]
        assert wait_until(lambda: bool(consumer.poll(0.05)) or not consumer.assigned, 20)
        joins = len(broker.decoded_requests[JOIN])
        for _ in range(3):
            assert consumer.poll(0.05) == {}
        assert not broker.group.members and len(broker.decoded_requests[JOIN]) == joins


# Of streams


def test_a_stream_that_ctrl_c_ends_amid_a_record_gives_that_one_next(
    broker: FakeCoordinator,
) -> None:
    append(broker, 0, b"0", b"1", b"2", b"3")
    with ConsumerConnector(conf(broker)) as here:
        stream = streamed(here, value_decoder=Interrupted(b"2"))
        found = [next(stream).offset, next(stream).offset]
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert found + [next(stream).offset, next(stream).offset] == [0, 1, 2, 3]


def test_a_last_record_that_no_decoder_reads_takes_no_position_back(
    broker: FakeCoordinator,
) -> None:
    append(broker, 0, b"0", b"x")
    append(broker, 0, b"2", b"3")
    size = len(broker.log("clicks", 0).batches[0])
    with ConsumerConnector(
        conf(broker, max_partition_fetch_bytes=size, fetch_max_wait_ms=3000)
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
    assert found == [0, 2, 3] and broker.world.committed["g", "clicks", 0][0] == 4


def test_empty_batches_are_queued_once_for_each_log() -> None:
    queue = StreamQueue(10, 10)
    for offset in range(100):
        queue.put(records_of(P0, (), offset))
        queue.put(records_of(P1, (), offset))
    ends = []
    while queue.head is not None:
        ends.append((queue.head.log, queue.head.end))
        queue.end(queue.head)
    assert ends == [(P0, 99), (P1, 99)]


def test_while_returned_records_are_committed_at_a_release_no_further_ones_are_returned(
    broker: FakeCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append(broker, 0, *[b"%d" % number for number in range(10)])
    meanwhile: list[Record] = []
    commit = KafkaOffsetStore.commit
    with ConsumerConnector(conf(broker, group={"auto_commit_s": 3600.0})) as here:
        stream = streamed(here)
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]

        def commits(
            kept: KafkaOffsetStore,
            offsets: Mapping[BrokerPartition, int],
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


def test_records_in_process_at_a_revocation_are_not_committed_with_the_next_assignment(
    broker: FakeCoordinator,
) -> None:
    append(broker, 0, *[b"%d" % number for number in range(10)])
    with ConsumerConnector(conf(broker, group={"auto_commit_s": 3600.0})) as here:
        stream = streamed(here)
        assert [next(stream).offset for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        generation, before = broker.group.generation, stream.queue.head
        broker.forget()
        broker.world.committed["g", "clicks", 0] = (1, "")
        assert wait_until(
            lambda: (
                broker.group.generation > generation and stream.queue.head not in (None, before)
            ),
            20,
        )
        assert [next(stream).offset for _ in range(2)] == [1, 2]
    assert broker.world.committed["g", "clicks", 0][0] == 2


def test_a_commit_does_not_wait_for_a_group_that_does_not_settle(broker: FakeCoordinator) -> None:
    broker.refusals[JOIN].extend([27] * 100_000)
    with ConsumerConnector(conf(broker, group={"join_timeout_s": 0.1})) as here:
        streamed(here)
        thread = threading.Thread(target=here.commit, daemon=True)
        thread.start()
        thread.join(5)
        broker.refusals[JOIN].clear()
        assert not thread.is_alive(), "nothing was handed out, and there is nothing to commit"


def test_what_a_commit_fails_with_is_raised_by_it_whatever_it_is(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(broker, 0, b"0", b"1")

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    with ConsumerConnector(conf(broker)) as here:
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

    here = ConsumerConnector(conf(broker, group={"auto_commit_s": 3600.0}))
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
