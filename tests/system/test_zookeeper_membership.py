"""Our members on a real ZooKeeper, without brokers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import TransactionRequest
from kazoo.exceptions import ConnectionLoss

from etl.decide.group_assignment import AssignmentContext, Strategy, Timing, assign, assignment_of
from etl.errors import Owned, SessionLost, SettingsError
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.owners import GroupMembers, Owners
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.topic_filters import FilterKind, TopicFilter
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import BrokerFamily, TopicPartition
from etl.testkit.server_process import wait_until
from tests.system.driving import lose_session

GROUP = "group"
LOGS = [TopicPartition("clicks", p) for p in range(4)]
IDS = GroupPaths(GROUP).consumer_ids
STATIC = b'{"version":1,"subscription":{"%b":1},"pattern":"static","timestamp":"1"}'
TIMING = Timing(join_timeout_s=30, backoff_s=0.2, others_backoff_s=60)
Make = Callable[..., ZooKeeperMember]


def set_partitions(zookeeper: ZooKeeper, topic: str, count: int) -> None:
    path = f"/brokers/topics/{topic}"
    payload = json.dumps({"partitions": {n: [0] for n in range(count)}}).encode()
    if not zookeeper.create(path, payload):
        zookeeper.client.set(path, payload)


@pytest.fixture
def make(connect: str, zookeeper: ZooKeeper) -> Iterator[Make]:
    """`make("run-1")`: a member on a session of its own; the topic clicks has four partitions."""
    set_partitions(zookeeper, "clicks", 4)
    with contextlib.ExitStack() as opened:

        def member(
            run_id: str = "run-1", *, timing: Timing = TIMING, **options: Any
        ) -> ZooKeeperMember:
            session = opened.enter_context(ZooKeeper(connect))
            topics = frozenset({"clicks"})
            wanted = MemberOptions(BrokerFamily.KAFKA, topics, timing=timing, **options)
            made = ZooKeeperMember(session, GROUP, "clicks", run_id, wanted)
            opened.callback(made.leave)
            return made

        yield member


@pytest.fixture
def consumer(connect: str) -> Iterator[ZooKeeper]:
    with ZooKeeper(connect) as session:
        yield session


def owners_in(zookeeper: ZooKeeper) -> dict[TopicPartition, str]:
    zookeeper.sync("/")
    return ConsumerGroup(zookeeper, GROUP).owners(["clicks"])


def test_a_member_is_called_in_the_group_as_the_owner_of_its_logs_is(
    make: Make, zookeeper: ZooKeeper
) -> None:
    member = make(threads=2)
    share = member.join()
    assert share.partitions == set(LOGS)
    assert zookeeper.children(IDS) == [member.id] == [share.member_id]
    threads = [f"{member.id}-{thread}" for thread in (0, 0, 1, 1)]
    assert sorted(owners_in(zookeeper).values()) == threads
    member.leave()
    member.leave()
    assert (zookeeper.children(IDS), owners_in(zookeeper)) == ([], {})


def test_two_of_ours_share_and_who_stays_has_everything(make: Make, zookeeper: ZooKeeper) -> None:
    first, second = make("run-1"), make("run-2")
    first.join()
    first.follow()
    assert len(second.join().partitions) == 2

    def owners() -> list[str]:
        return sorted(owners_in(zookeeper).values())

    shared = [f"{member.id}-0" for member in (first, first, second, second)]
    assert wait_until(lambda: owners() == shared, 60)
    second.leave()
    assert wait_until(lambda: owners() == [f"{first.id}-0"] * 4, 60)
    assert first.rejoin().partitions == set(LOGS)


def test_a_hundred_events_are_one_rebalance_and_none_where_the_group_is_the_same(
    make: Make, consumer: ZooKeeper
) -> None:
    member = make()
    member.join()
    assert member.is_current
    members = GroupMembers(consumer, GROUP)
    for number in range(50):
        members.register(f"group_a{number}", STATIC % b"clicks", is_ours=False)
    for number in range(1, 50):
        members.deregister(f"group_a{number}")
    assert wait_until(lambda: not member.is_current, 30)
    assert member.rejoin().partitions == set(LOGS[2:])
    assert member.statistics.rebalances == 2
    for _ in range(100):
        members.nudge()
    assert wait_until(lambda: not member.is_current, 30)
    member.follow()
    assert wait_until(lambda: member.is_current, 30)
    assert member.statistics.rebalances == 2


def test_a_nudge_triggers_a_rebalance_and_registers_no_consumer(
    zookeeper: ZooKeeper, consumer: ZooKeeper
) -> None:
    consumer.ensure(IDS)
    heard, members = threading.Event(), GroupMembers(zookeeper, GROUP)
    assert consumer.client.get_children(IDS, watch=lambda _: heard.set()) == []
    members.nudge()
    assert heard.wait(30)
    assert consumer.client.get_children(IDS) == []


def test_a_nudge_in_a_group_without_members_makes_nothing(zookeeper: ZooKeeper) -> None:
    GroupMembers(zookeeper, GROUP).nudge()
    assert zookeeper.children("/consumers") is None


@pytest.mark.parametrize(
    ("registration", "is_called"),
    [
        (STATIC % b"clicks", True),
        (STATIC % b"other", False),
        (b"{}", False),
        (b"unknown format", True),
    ],
)
def test_a_claim_that_ends_notifies_consumers_of_the_topic_and_those_of_unknown_formats(
    zookeeper: ZooKeeper, consumer: ZooKeeper, registration: bytes, is_called: bool
) -> None:
    GroupMembers(consumer, GROUP).register("group_a", registration, is_ours=False)

    def changes() -> int:
        zookeeper.sync(IDS)
        return int(zookeeper.client.exists(IDS).cversion)

    before = changes()
    with Owners(zookeeper, GROUP, "clicks").claiming(LOGS, "run-1"):
        assert changes() == before
    assert (changes() > before) == is_called


def test_under_a_name_that_stays_a_member_waits_until_the_session_of_the_last_one_ends(
    make: Make, consumer: ZooKeeper, zookeeper: ZooKeeper
) -> None:
    GroupMembers(consumer, GROUP).register("group_loader", STATIC % b"clicks", is_ours=False)
    impatient = make(member_id="loader", timing=Timing(0.2, 0.1, 60))
    another_session = "Consumer group_loader is registered in another session"
    with pytest.raises(Owned, match=f"did not settle within 0.2 s: {another_session}"):
        impatient.join()
    assert zookeeper.children(IDS) == ["group_loader"], "the registration of another session stays"
    member = make(member_id="loader")
    joined: list[int] = []
    joining = threading.Thread(target=lambda: joined.append(len(member.join().partitions)))
    joining.start()
    consumer.close()
    joining.join(60)
    assert joined == [4] and member.id == "group_loader"


def test_a_member_with_a_deleted_registration_registers_again(
    make: Make, zookeeper: ZooKeeper
) -> None:
    member = make()
    member.join()
    member.follow()
    zookeeper.client.delete(f"{IDS}/{member.id}")
    assert wait_until(lambda: zookeeper.children(IDS) == [member.id], 60)
    assert member.rejoin().partitions == set(LOGS) and member.statistics.rebalances == 1


def answers_once_with_a_broken_connection(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction of that session does nothing: deleting what a member lets go is one."""
    transaction = zookeeper.client.transaction

    def broken() -> TransactionRequest:
        monkeypatch.undo()
        request: TransactionRequest = transaction()
        answer = zookeeper.client.handler.async_result()
        answer.set_exception(ConnectionLoss())
        request.commit_async = lambda: answer
        return request

    monkeypatch.setattr(zookeeper.client, "transaction", broken)


def test_partitions_that_a_member_could_not_release_are_released_before_it_claims_again(
    make: Make, zookeeper: ZooKeeper, consumer: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other member could own it, and no event would report it."""
    member = make()
    member.join()
    GroupMembers(consumer, GROUP).register("group_a", STATIC % b"clicks", is_ours=False)
    assert wait_until(lambda: not member.is_current, 30)
    answers_once_with_a_broken_connection(member._zookeeper, monkeypatch)
    assert member.rejoin().partitions == set(LOGS[2:]) == owners_in(zookeeper).keys()


def test_a_member_that_leaves_deletes_its_registration_although_its_session_continues(
    make: Make, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = make()
    member.join()
    answers_once_with_a_broken_connection(member._zookeeper, monkeypatch)
    member.leave()
    assert (zookeeper.children(IDS), owners_in(zookeeper)) == ([], {})


def test_a_new_partition_is_shared_at_once(make: Make, zookeeper: ZooKeeper) -> None:
    member = make()
    member.join()
    member.follow()
    set_partitions(zookeeper, "clicks", 5)
    assert wait_until(lambda: len(owners_in(zookeeper)) == 5, 60)


def dealt(
    zookeeper: ZooKeeper, member: ZooKeeperMember, counts: dict[str, int], theirs: dict[str, int]
) -> bool:
    """True if it owns its round-robin assignment next to `group_a`, which reads `theirs`."""
    partitions = {
        topic: [TopicPartition(topic, p) for p in range(count)] for topic, count in counts.items()
    }
    context = AssignmentContext({member.id: {"clicks": 1}, "group_a": theirs}, partitions)
    expected = assignment_of(member.id, assign(context, Strategy.ROUND_ROBIN_0_10, member.id))
    owners = owners_in(zookeeper).items()
    return {log for log, owner in owners if owner.startswith(member.id)} == expected.keys()


def test_round_robin_deals_what_others_read_too_and_calls_us_when_that_changes(
    make: Make, consumer: ZooKeeper, zookeeper: ZooKeeper
) -> None:
    set_partitions(zookeeper, "orders", 3)
    filtered = STATIC.replace(b"static", b"white_list") % b"clicks|orders.*"
    GroupMembers(consumer, GROUP).register("group_a", filtered, is_ours=False)
    member = make(strategy=Strategy.ROUND_ROBIN_0_10)
    member.join()
    both = {"clicks": 1, "orders": 1}
    assert dealt(zookeeper, member, {"clicks": 4, "orders": 3}, both)
    assert not dealt(zookeeper, member, {"clicks": 4}, {"clicks": 1}), "or the test shows nothing"
    member.follow()
    set_partitions(zookeeper, "orders", 8)
    assert wait_until(lambda: dealt(zookeeper, member, {"clicks": 4, "orders": 8}, both), 60)
    set_partitions(zookeeper, "orders-2", 5)
    three = {"clicks": 4, "orders": 8, "orders-2": 5}
    assert wait_until(lambda: dealt(zookeeper, member, three, {**both, "orders-2": 1}), 60)


def test_a_member_that_loses_its_session_after_the_offset_commit_has_no_membership_and_reports_it(
    make: Make,
) -> None:
    member = make()
    member.join()
    member.follow()
    lose_session(member._zookeeper)
    assert wait_until(lambda: member.ended is not None, 60)
    assert isinstance(member.ended, SessionLost)
    assert member.statistics.lost == 1 and not member.is_current
    member.leave()
    with pytest.raises(SessionLost):
        member.join()


def test_with_consumers_that_know_no_filter_one_is_registered_by_the_matching_names(
    connect: str, zookeeper: ZooKeeper
) -> None:
    def add(topic: str, partitions: int) -> None:
        zookeeper.client.create(f"/brokers/topics/{topic}/3", b"%d" % partitions, makepath=True)

    def registered() -> bytes:
        [(_, payload)] = GroupMembers(zookeeper, GROUP).read().items()
        return payload

    wanted = MemberOptions(
        BrokerFamily.JAFKA,
        frozenset(),
        timing=TIMING,
        filter=TopicFilter(FilterKind.WHITE_LIST, "cl.*"),
    )
    add("clicks", 2)
    with ZooKeeper(connect) as session:
        member = ZooKeeperMember(session, GROUP, "clicks", "run-1", wanted)
        assert (len(member.join().partitions), registered()) == (2, b'{"clicks":1}')
        add("orders", 1)
        add("clerks", 1)
        assert wait_until(lambda: not member.is_current, 60)
        assert (len(member.rejoin().partitions), registered()) == (3, b'{"clerks":1,"clicks":1}')
        member.leave()


@pytest.mark.parametrize("registration", [b'{"clicks":1}', b"*1*clicks", b"unknown format"])
def test_a_group_of_another_broker_type_is_rejected_and_our_registration_is_deleted(
    make: Make, consumer: ZooKeeper, registration: bytes
) -> None:
    GroupMembers(consumer, GROUP).register("group_a", registration, is_ours=False)
    with pytest.raises(SettingsError) as caught:
        make().join()
    assert caught.value.exit_code == 2 and caught.value.where["znode"] == f"{IDS}/group_a"
    assert consumer.children(IDS) == ["group_a"] and owners_in(consumer) == {}


@pytest.mark.parametrize(
    ("meanwhile", "is_done"), [("nothing", True), ("another owner", False), ("no owner", False)]
)
def test_a_hand_over_happens_only_while_each_log_is_ours(
    make: Make, consumer: ZooKeeper, meanwhile: str, is_done: bool
) -> None:
    member = make()
    partitions = member.join().partitions
    path = GroupPaths(GROUP).owner(LOGS[2])
    if meanwhile != "nothing":
        consumer.client.delete(path)
    if meanwhile == "another owner":
        consumer.client.create(path, b"group_host-1-0", ephemeral=True)
    request = consumer.client.transaction()
    request.create("/plan", b"")
    for check in member.owner_checks(partitions):
        check.add_to(request)
    assert consumer.transact(request, "/plan") is is_done
    assert (consumer.read("/plan") is not None) is is_done
