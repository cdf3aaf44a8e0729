"""Consumers as members of a group at a fake coordinator, of both protocols."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from etl import Consumer, Group, RebalanceListener
from etl.errors import (
    ConsumerInUse,
    MembershipLost,
    NotAssigned,
    Owned,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.model.partitions import TopicPartition
from etl.streams.fetches import Fetches
from etl.streams.group_member import MemberWithCoordinator
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import never
from tests.fakes.coordinator import (
    JOIN,
    SYNC,
    ConsumerMember,
    FakeCoordinator,
    coordinator_of_clicks,
)
from tests.fakes.group_readers import GroupReader, Interrupted, all_read_once, polled

PARTITIONS = 4
LOGS = [TopicPartition("clicks", number) for number in range(PARTITIONS)]
GROUP_MAX_SIZE_REACHED = 81
of_each = pytest.mark.parametrize("protocol", ["classic", "consumer"])
of_two = pytest.mark.parametrize("broker", [2], indirect=True)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[FakeCoordinator]:
    with coordinator_of_clicks(getattr(request, "param", PARTITIONS)) as broker:
        yield broker


def more(broker: FakeCoordinator, count: int = 5, topic: str = "clicks") -> None:
    """The given number of records after the existing ones in each partition."""
    for (name, number), partition in broker.world.logs.items():
        if name == topic:
            start = partition.log_end
            records = [Rec(delta, b"%d" % (start + delta)) for delta in range(count)]
            broker.append(topic, number, encode(Batch(start, records)))


def written(broker: FakeCoordinator) -> Counter[TopicPartition]:
    return Counter(
        {
            TopicPartition(name, number): partition.log_end
            for (name, number), partition in broker.world.logs.items()
        }
    )


def opened(
    broker: FakeCoordinator,
    protocol: str = "classic",
    group: dict[str, Any] | None = None,
    **settings: Any,
) -> Consumer:
    terms = {"session_timeout_s": 0.6, "rebalance_timeout_s": 20.0, "join_timeout_s": 20.0}
    defaults = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 20, "request_timeout_s": 5}
    return Consumer(
        f"127.0.0.1:{broker.port}",
        group=Group("g", protocol=protocol, **{**terms, **(group or {})}),
        **{**defaults, **settings},
    )


class RebalanceLog(RebalanceListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("revoked", len(partitions)))

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("assigned", len(partitions)))

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("lost", len(partitions)))


def is_member_again(broker: FakeCoordinator, consumer: Consumer) -> bool:
    """Wait, without a poll, until the member that the group removed has joined again."""
    member = consumer._group._member
    assert isinstance(member, MemberWithCoordinator)
    former = member.assignment

    def has_joined() -> bool:
        newest = member._member.newest if member._member is not None else None
        return newest not in (None, former)

    broker.forget()
    return wait_until(has_joined, 20)


# While members come and go


@of_each
def test_each_record_is_read_once(broker: FakeCoordinator, protocol: str) -> None:
    readers: list[GroupReader] = []
    with ExitStack() as ending:

        def comes() -> GroupReader:
            reader = GroupReader(opened(broker, protocol), ["clicks"])
            ending.callback(reader.end)
            readers.append(reader)
            return reader

        more(broker)
        first = comes()
        assert first.owns(4)
        more(broker)
        second = comes()
        assert first.owns(2) and second.owns(2)
        more(broker)
        third = comes()
        assert wait_until(
            lambda: sum(len(reader.owned) for reader in readers) == 4 and bool(third.owned), 20
        )
        first.end()
        more(broker)
        assert second.owns(2) and third.owns(2)
        second.end()
        more(broker)
        assert third.owns(4)
        all_read_once(readers, lambda: written(broker))
    assert broker.world.committed.keys() == {
        ("g", "clicks", number) for number in range(PARTITIONS)
    }
    assert {offset for offset, _ in broker.world.committed.values()} == {25}
    assert not any(reader.lost_logs for reader in readers)


@of_each
def test_partitions_are_kept_until_the_next_poll(broker: FakeCoordinator, protocol: str) -> None:
    more(broker)
    with opened(broker, protocol) as first:
        first.subscribe(["clicks"])
        read = polled(first, 20)
        second = GroupReader(opened(broker, protocol), ["clicks"])
        try:
            assert wait_until(lambda: broker.group.is_rebalancing or len(broker.consumers) == 2, 20)
            threading.Event().wait(0.8)  # longer than its session: no poll, and it stays a member
            assert not second.owned and not second.read
            first.commit()
            assert {offset for offset, _ in broker.world.committed.values()} == {5}
            assert wait_until(lambda: bool(first.poll(0.05)) or len(second.owned) == 2, 20)
        finally:
            first.close()
            second.end()
    assert len(read) == 20 and not second.read, "it begins at the committed offset"


def test_records_of_a_revoked_log_are_read_again(broker: FakeCoordinator) -> None:
    more(broker)
    listener = RebalanceLog()
    with opened(broker) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        assert len(polled(consumer, 2, most=2)) == 2
        broker.call_for_a_rebalance()
        assert wait_until(lambda: bool(consumer.poll(0.05, 0)) or len(listener.heard) == 3, 20)
        assert listener.heard == [("assigned", 4), ("revoked", 4), ("assigned", 4)]
        assert Counter(record.topic_partition for record in polled(consumer, 20)) == Counter(
            dict.fromkeys(LOGS, 5)
        ), "nothing was committed"


# Lost


@of_each
def test_a_lost_member_joins_again(broker: FakeCoordinator, protocol: str) -> None:
    more(broker)
    listener = RebalanceLog()
    with opened(broker, protocol) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        polled(consumer, 20)
        consumer.commit({LOGS[0]: 2})
        broker.forget()
        with pytest.raises(MembershipLost):
            while True:  # its coordinator does not know it, whether or not it knows that by now
                consumer.commit()
        assert [one.offset for one in polled(consumer, 18) if one.topic_partition == LOGS[0]] == [
            2,
            3,
            4,
        ]
        assert listener.heard == [("assigned", 4), ("lost", 4), ("assigned", 4)]


@of_each
def test_a_commit_before_a_loss_is_reported_is_rejected(
    broker: FakeCoordinator, protocol: str
) -> None:
    """The next assignment does not cover it: others may have owned the partitions in between."""
    more(broker)
    listener = RebalanceLog()
    with opened(broker, protocol) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        polled(consumer, 20)
        assert is_member_again(broker, consumer)
        assert consumer.poll(0) == {} and wait_until(lambda: bool(consumer._group._calls), 20)
        with pytest.raises(MembershipLost):
            consumer.commit()
        assert len(polled(consumer, 20)) == 20
    assert listener.heard[:3] == [("assigned", 4), ("lost", 4), ("assigned", 4)]


def test_a_rejected_commit_is_not_repeated_by_the_next_membership(broker: FakeCoordinator) -> None:
    more(broker)
    with opened(broker, "consumer") as consumer:
        consumer.subscribe(["clicks"])
        polled(consumer, 20)
        member = consumer._group._member
        assert member is not None
        rejected = member.assignment
        assert rejected is not None and is_member_again(broker, consumer)
        assert len(polled(consumer, 20)) == 20
        assert member.renewed_assignment(rejected) is None


def test_an_auto_commit_of_a_lost_membership_is_not_raised(broker: FakeCoordinator) -> None:
    more(broker)
    with opened(broker, group={"auto_commit_s": 60.0}) as consumer:
        consumer.subscribe(["clicks"])
        polled(consumer, 20)
        assert is_member_again(broker, consumer)
        rejected = Future[None]()
        rejected.set_exception(MembershipLost("late"))
        consumer._group._commit_in_flight = rejected
        assert len(polled(consumer, 20)) == 20


def test_a_member_that_is_not_polled_after_its_join_leaves(broker: FakeCoordinator) -> None:
    with opened(broker, group={"max_poll_interval_s": 1.0}) as consumer:
        consumer.subscribe(["clicks"])
        assert consumer.poll(0) == {}
        assert wait_until(lambda: bool(broker.group.members), 20)
        assert wait_until(lambda: not broker.group.members, 5)
        assert owns(consumer)


@of_each
def test_a_member_without_polls_leaves(broker: FakeCoordinator, protocol: str) -> None:
    more(broker)
    listener = RebalanceLog()
    with opened(broker, protocol, {"max_poll_interval_s": 0.3}) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        polled(consumer, 20)
        assert wait_until(lambda: not broker.group.members and not broker.consumers, 20)
        with pytest.raises(MembershipLost, match="between two polls"):
            consumer.commit()
        assert len(polled(consumer, 20)) == 20
        assert listener.heard == [("assigned", 4), ("lost", 4), ("assigned", 4)]


def test_a_member_leaves_a_group_that_waits_for_it(broker: FakeCoordinator) -> None:
    with opened(broker, group={"rebalance_timeout_s": 0.3}) as consumer:
        consumer.subscribe(["clicks"])
        assert owns(consumer)
        broker.call_for_a_rebalance()
        assert wait_until(lambda: not broker.group.members, 20)


# Commits


def test_a_commit_of_a_former_epoch_is_repeated_in_the_present_one(broker: FakeCoordinator) -> None:
    more(broker)
    with opened(broker, "consumer") as consumer:
        consumer.subscribe(["clicks"])
        polled(consumer, 20)
        broker.epoch += 1
        for member in broker.consumers.values():
            member.epoch = broker.epoch
        consumer.commit()
    assert {offset for offset, _ in broker.world.committed.values()} == {5}


def test_nothing_is_committed_automatically_by_default(broker: FakeCoordinator) -> None:
    more(broker)
    with opened(broker) as consumer:
        consumer.subscribe(["clicks"])
        polled(consumer, 20)
    assert not broker.world.committed
    with opened(broker, group={"auto_commit_s": 0.0}) as consumer:
        consumer.subscribe(["clicks"])
        first = polled(consumer, 3, most=3)

        def is_committed() -> bool:
            consumer.poll(0, 0)
            return sum(offset for offset, _ in broker.world.committed.values()) == len(first)

        assert wait_until(is_committed, 20), "what the polls before returned"
        assert len(polled(consumer, 1, most=1)) == 1
    assert sum(offset for offset, _ in broker.world.committed.values()) == len(first) + 1, (
        "and all of it when it closes"
    )


def test_close_in_a_rebalance_commits_what_was_returned(broker: FakeCoordinator) -> None:
    more(broker)
    listener = RebalanceLog()
    with opened(broker, group={"auto_commit_s": 60.0}) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        polled(consumer, 3, most=3)
        rebalance_begun(broker, consumer)
    assert sum(offset for offset, _ in broker.world.committed.values()) == 3
    assert listener.heard == [("assigned", 4), ("revoked", 4)] and not broker.group.members


def test_close_raises_the_error_of_a_release(broker: FakeCoordinator) -> None:
    more(broker)

    class Failing(RebalanceListener):
        def revoked(self, partitions: Collection[TopicPartition]) -> None:
            raise ZeroDivisionError

    consumer = opened(broker)
    consumer.subscribe(["clicks"], listener=Failing())
    polled(consumer, 3, most=3)
    rebalance_begun(broker, consumer)
    with pytest.raises(ZeroDivisionError):
        consumer.close()
    assert not broker.group.members


def rebalance_begun(broker: FakeCoordinator, consumer: Consumer) -> None:
    """Poll until the member waits for the next poll, to release its partitions."""
    member = consumer._group._member
    assert member is not None
    broker.call_for_a_rebalance()
    assert wait_until(lambda: member.needs_rebalance, 20)
    assert consumer.poll(0) == {} and wait_until(lambda: bool(consumer._group._calls), 20)


def test_periodic_work_delays_no_rebalance(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = RebalanceLog()
    with opened(broker) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        assert owns(consumer)
        monkeypatch.setattr(MemberWithCoordinator, "has_periodic_work", True)
        broker.call_for_a_rebalance()
        assert wait_until(lambda: bool(consumer.poll(0.05)) or len(listener.heard) == 3, 5)


def test_records_of_a_failing_program_are_not_committed(broker: FakeCoordinator) -> None:
    """It may not have processed all that the last poll returned."""
    more(broker)
    with (
        pytest.raises(ZeroDivisionError),
        opened(broker, group={"auto_commit_s": 60.0}) as consumer,
    ):
        consumer.subscribe(["clicks"])
        assert 1 / (len(polled(consumer, 3, most=3)) - 3)
    assert not broker.world.committed


@pytest.mark.parametrize("offset", [-1, 3.5, "3", 2**63], ids=str)
def test_an_invalid_offset_is_rejected(broker: FakeCoordinator, offset: Any) -> None:
    """Old consumers die of a znode that holds no number."""
    more(broker)
    with opened(broker) as consumer:
        consumer.assign(LOGS[:1])
        with pytest.raises(ValueError, match="is not an offset"):
            consumer.commit({LOGS[0]: offset})
        with pytest.raises(ValueError, match="is not an offset"):
            consumer.seek(LOGS[0], offset)
    assert not broker.world.committed


def test_a_listener_may_commit_and_seek_and_may_not_poll(broker: FakeCoordinator) -> None:
    more(broker)

    class Seeking(RebalanceListener):
        def assigned(self, partitions: Collection[TopicPartition]) -> None:
            with pytest.raises(ConsumerInUse, match="listener"):
                consumer.poll()
            for partition in partitions:
                consumer.seek(partition, 4)

        def revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.commit()

    with opened(broker) as consumer:
        consumer.subscribe(["clicks"], listener=Seeking())
        assert {record.offset for record in polled(consumer, 4)} == {4}
    assert {offset for offset, _ in broker.world.committed.values()} == {5}


def test_a_log_that_is_not_in_our_share_is_not_committed(broker: FakeCoordinator) -> None:
    with opened(broker) as consumer:
        consumer.subscribe(["clicks"])
        assert owns(consumer)
        with pytest.raises(NotAssigned, match="group does not assign the partition"):
            consumer.commit({("orders", 0): 1})


# Subscriptions


def test_a_topic_that_matches_the_pattern_joins_once_it_is_made(broker: FakeCoordinator) -> None:
    more(broker)
    with opened(broker, group={"topics_max_age_s": 0.1}) as consumer:
        consumer.subscribe(pattern="cl{1,2}.*|orders")
        assert len(polled(consumer, 20)) == 20
        for topic in ("orders", "others"):
            broker.log(topic, 0)
            more(broker, topic=topic)
        found = polled(consumer, 25)
        assert {record.topic for record in found} == {"clicks", "orders"}, (
            "nothing was committed, so all is read again"
        )
    with opened(broker, group={"topics_max_age_s": 0.1}) as consumer:
        consumer.subscribe(pattern="later")
        assert consumer.poll(0.1) == {} and consumer.assigned == frozenset()
        broker.log("later", 0)
        assert wait_until(lambda: bool(consumer.poll(0.05)) or bool(consumer.assigned), 20)


def test_a_deleted_topic_is_reported_once(broker: FakeCoordinator) -> None:
    broker.log("orders", 0)
    with opened(broker, group={"topics_max_age_s": 0.1}) as consumer:
        consumer.subscribe(["clicks", "orders"])
        assert wait_until(lambda: bool(consumer.poll(0.05)) or len(consumer.assigned) == 5, 20)
        del broker.world.logs["orders", 0]
        with pytest.raises(TopicMissing, match="A subscribed topic was deleted .topic orders"):
            polled(consumer, 1)
        more(broker)
        assert len(polled(consumer, 20)) == 20


def test_a_named_topic_joins_once_it_is_made(broker: FakeCoordinator) -> None:
    with opened(broker, group={"topics_max_age_s": 0.1}) as consumer:
        consumer.subscribe(["clicks", "orders"])
        assert owns(consumer)
        broker.log("orders", 0)
        broker.log("clicks", PARTITIONS)
        assert wait_until(
            lambda: bool(consumer.poll(0.05)) or len(consumer.assigned) == PARTITIONS + 2, 20
        )


def test_subscribing_and_assigning_are_never_mixed(broker: FakeCoordinator) -> None:
    with opened(broker) as consumer:
        consumer.assign(LOGS)
        with pytest.raises(SettingsError, match="by hand"):
            consumer.subscribe(["clicks"])
        consumer.unsubscribe()
        consumer.subscribe(["clicks"])
        with pytest.raises(SettingsError, match="its group assigns the partitions"):
            consumer.assign(LOGS)
        assert owns(consumer)
        consumer.unsubscribe()
        assert not consumer.assigned and not broker.group.members
        with pytest.raises(NotAssigned, match="subscribe"):
            consumer.poll()
        consumer.assign(LOGS[:1])
        assert consumer.assigned == {LOGS[0]}


@pytest.mark.parametrize(
    "wrong", [{}, {"topics": ["a"], "pattern": "a"}, {"topics": "clicks"}, {"pattern": "("}]
)
def test_a_subscription_may_be_invalid(broker: FakeCoordinator, wrong: dict[str, Any]) -> None:
    with opened(broker) as consumer, pytest.raises(SettingsError):
        consumer.subscribe(**wrong)
    with Consumer(f"127.0.0.1:{broker.port}") as consumer:
        with pytest.raises(SettingsError, match="no group"):
            consumer.subscribe(["clicks"])


def test_the_next_poll_retries_to_join(broker: FakeCoordinator) -> None:
    with opened(broker, group={"join_timeout_s": 0.2}) as consumer:
        consumer.subscribe(["clicks"])
        broker.refusals[JOIN].extend([27] * 1000)
        with pytest.raises(Owned, match="did not settle"):
            polled(consumer, 1)
        broker.refusals[JOIN].clear()
        assert wait_until(lambda: owns(consumer), 20)


def test_a_full_group_rejects_a_member_at_once(broker: FakeCoordinator) -> None:
    with opened(broker, group={"join_timeout_s": 60}) as consumer:
        consumer.subscribe(["clicks"])
        broker.refusals[JOIN].extend([GROUP_MAX_SIZE_REACHED] * 1000)
        began = time.monotonic()
        with pytest.raises(Owned, match="GROUP_MAX_SIZE_REACHED"):
            polled(consumer, 1)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("protocol, key", [("classic", JOIN), ("classic", SYNC), ("consumer", 68)])
def test_a_poll_does_not_wait_for_a_group_or_a_listener(
    broker: FakeCoordinator, protocol: str, key: int
) -> None:
    more(broker)
    broker.script[key].append(never)
    with opened(broker, protocol, {"session_timeout_s": 2.0}, request_timeout_s=2) as consumer:
        consumer.subscribe(["clicks"])
        began = time.monotonic()
        assert consumer.poll(0) == {} and consumer.poll(0.2) == {}
        assert time.monotonic() - began < 1
        began = time.monotonic()
    assert time.monotonic() - began < 10, "and close interrupts the join"


def test_an_interrupted_member_does_not_wait_for_its_join(broker: FakeCoordinator) -> None:
    """Close may interrupt it before its join has begun."""
    broker.script[JOIN].append(never)
    terms = MemberTerms("g", ("clicks",), join_timeout_s=5.0, answers_in_s=0.5)
    member = CoordinatedMember([("127.0.0.1", broker.port)], terms)
    member.interrupt()
    began = time.monotonic()
    with pytest.raises(Owned):
        member.join()
    assert time.monotonic() - began < 3


def owns(consumer: Consumer) -> bool:
    try:
        return wait_until(
            lambda: bool(consumer.poll(0.05, 0)) or consumer.assigned == set(LOGS), 20
        )
    except Owned:
        return False


# Interruptions: no record is left out, and no call waits for ever


def test_ctrl_c_in_a_poll_leaves_no_record_out(broker: FakeCoordinator) -> None:
    more(broker, 4)
    with opened(broker, value_decoder=Interrupted(b"2")) as consumer:
        consumer.assign([LOGS[0]])
        with pytest.raises(KeyboardInterrupt):
            while True:
                assert not consumer.poll(0.05)
        assert consumer.position(LOGS[0]) == 0
        assert [one.offset for one in polled(consumer, 4)] == [0, 1, 2, 3]


def test_ctrl_c_in_a_listener_is_raised_once(broker: FakeCoordinator) -> None:
    more(broker)

    class Interrupting(RebalanceLog):
        def revoked(self, partitions: Collection[TopicPartition]) -> None:
            super().revoked(partitions)
            if len(self.heard) == 2:
                raise KeyboardInterrupt

    listener = Interrupting()
    with opened(broker) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        polled(consumer, 20)
        rebalance_begun(broker, consumer)
        with pytest.raises(KeyboardInterrupt):
            polled(consumer, 1)
        assert len(polled(consumer, 20)) == 20
    assert listener.heard[:3] == [("assigned", 4), ("revoked", 4), ("assigned", 4)]


def test_ctrl_c_in_close_leaves_the_group(broker: FakeCoordinator) -> None:
    class Interrupting(RebalanceListener):
        def revoked(self, partitions: Collection[TopicPartition]) -> None:
            raise KeyboardInterrupt

    consumer = opened(broker)
    consumer.subscribe(["clicks"], listener=Interrupting())
    assert owns(consumer)
    rebalance_begun(broker, consumer)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert not broker.group.members


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SettingsError("not now")])
def test_records_are_returned_where_the_next_fetch_fails(
    broker: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    more(broker, 4)
    with opened(broker) as consumer:
        consumer.assign([LOGS[0]])
        found = [one.offset for one in polled(consumer, 1, most=1)]

        def fails(*_: object) -> None:
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr(Fetches, "begin", fails)
            try:
                found += [one.offset for one in consumer.poll(0, 1).get(LOGS[0], [])]
            except KeyboardInterrupt:
                pass
        found += [one.offset for one in polled(consumer, 4 - len(found))]
        assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe"])
def test_a_listener_may_not_end_its_caller(broker: FakeCoordinator, call: str) -> None:
    refused: list[str] = []

    class Ending(RebalanceListener):
        def revoked(self, partitions: Collection[TopicPartition]) -> None:
            if not refused:
                try:
                    getattr(consumer, call)()
                except ConsumerInUse as error:
                    refused.append(error.message)

    with opened(broker) as consumer:
        consumer.subscribe(["clicks"], listener=Ending())
        assert owns(consumer)
        broker.call_for_a_rebalance()
        assert wait_until(lambda: bool(consumer.poll(0.05)) or bool(refused), 20)
    assert "listener" in refused[0]
    assert not broker.group.members and not [
        one for one in threading.enumerate() if one.name == "member of g"
    ]


@of_two
def test_partitions_are_reported_before_they_go(broker: FakeCoordinator) -> None:
    class Committing(RebalanceLog):
        def revoked(self, partitions: Collection[TopicPartition]) -> None:
            super().revoked(partitions)
            consumer.commit()

    more(broker, 1)
    listener = Committing()
    with opened(broker, "consumer", {"session_timeout_s": 10.0}) as consumer:
        consumer.subscribe(["clicks"], listener=listener)
        polled(consumer, 2)
        broker.epoch += 1
        member = consumer._group._member
        assert member is not None and wait_until(lambda: member.needs_rebalance, 20)
        broker.consumers["other"] = ConsumerMember()
        broker.epoch += 1
        assert wait_until(lambda: bool(consumer.poll(0.05)) or len(consumer.assigned) == 1, 20)
        assert [each for each in listener.heard if each[0] != "assigned"] == [("revoked", 1)]
        del broker.consumers["other"]


@of_two
@of_each
def test_a_member_without_partitions_takes_over(broker: FakeCoordinator, protocol: str) -> None:
    terms = {"session_timeout_s": 3.0, "rebalance_timeout_s": 600.0, "join_timeout_s": 600.0}
    with ExitStack() as ending:
        readers = [GroupReader(opened(broker, protocol, terms), ["clicks"]) for _ in range(3)]
        for reader in readers:
            ending.callback(reader.end)
        assert wait_until(lambda: sorted(len(reader.owned) for reader in readers) == [0, 1, 1], 20)
        next(reader for reader in readers if reader.owned).end()
        assert wait_until(
            lambda: sorted(len(reader.owned) for reader in readers if not reader.is_over) == [1, 1],
            20,
        )


def test_a_pattern_without_topics_leaves_the_group(broker: FakeCoordinator) -> None:
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
