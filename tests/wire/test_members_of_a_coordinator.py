"""A member at a fake coordinator: both protocols, every error code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    CorruptData,
    EtlError,
    MembershipLost,
    Owned,
    PermissionDenied,
    SettingsError,
)
from etl.io.brokers.member_state import MemberTerms
from etl.model.partitions import GroupProtocol, RebalanceStatistics, TopicPartition
from etl.run.service_interfaces import Member
from etl.testkit.server_process import wait_until
from tests.fakes.broker import FIND_COORDINATOR, GROUPS, World, altered, hang_up, never
from tests.fakes.coordinator import (
    CONSUMER,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    FakeCoordinator,
    coordinator_of_clicks,
)
from tests.fakes.member_contract import PARTITIONS, MemberContract, Stage, eventually

CLASSIC, CONSUMERS = GroupProtocol.CLASSIC, GroupProtocol.CONSUMER
TERMS = MemberTerms(
    "g",
    ("clicks",),
    session_timeout_s=0.6,
    rebalance_timeout_s=5,
    join_timeout_s=20,
    backoff_s=0.01,
    answers_in_s=5,
)


@pytest.fixture
def broker() -> Iterator[FakeCoordinator]:
    with coordinator_of_clicks(PARTITIONS) as broker:
        yield broker


@pytest.fixture
def stage(broker: FakeCoordinator) -> Stage:
    return stage_on(broker)


@pytest.fixture(params=[CLASSIC, CONSUMERS])
def either(request: pytest.FixtureRequest, broker: FakeCoordinator) -> Stage:
    return stage_on(broker, request.param)


def stage_on(broker: FakeCoordinator, protocol: GroupProtocol = CLASSIC) -> Stage:
    return Stage(
        [(broker.host, broker.port)],
        "clicks",
        TERMS,
        protocol,
        static_session_s=3,
        grow=partial(grow, broker),
    )


def grow(broker: FakeCoordinator, topic: str, partitions: int) -> None:
    for number in range(partitions):
        if (topic, number) not in broker.world.logs:
            broker.log(topic, number)
    broker.world.topic_ids.setdefault(topic, UUID(int=len(broker.world.topic_ids) + 1))


class TestClassicMembers(MemberContract):
    """The contract, of the classic protocol."""


class TestConsumerMembers(MemberContract):
    """The contract, of the consumer protocol."""

    @pytest.fixture
    def stage(self, broker: FakeCoordinator) -> Stage:
        return stage_on(broker, CONSUMERS)


def of(stage: Stage, protocol: GroupProtocol) -> Stage:
    return replace(stage, protocol=protocol)


PASSING = [
    *(
        (protocol, api, code)
        for code in (14, 15, 16, 7, -1)
        for protocol, api in ((CLASSIC, JOIN), (CLASSIC, SYNC), (CONSUMERS, CONSUMER))
    ),
    *((CLASSIC, api, code) for api in (JOIN, SYNC) for code in (22, 25, 27)),
    *((CONSUMERS, CONSUMER, code) for code in (25, 110, 111, 113)),
    *((protocol, FIND_COORDINATOR, 15) for protocol in (CLASSIC, CONSUMERS)),
]


@pytest.mark.parametrize(("protocol", "api", "code"), PASSING, ids=str)
def test_a_transient_error_of_a_join_is_waited_for(
    broker: FakeCoordinator, stage: Stage, protocol: GroupProtocol, api: int, code: int
) -> None:
    (broker.world.group_refusals if api == FIND_COORDINATOR else broker.refusals)[api].extend(
        [code, code]
    )
    with of(stage, protocol).joined() as (member, share):
        assert share.partitions == stage.logs and member.is_current


ENDING = [
    *(
        (protocol, api, code, kind)
        for protocol, api in ((CLASSIC, JOIN), (CONSUMERS, CONSUMER))
        for code, kind in (
            (24, SettingsError),
            (30, PermissionDenied),
            (35, SettingsError),
            (42, EtlError),
            (69, SettingsError),
            (82, MembershipLost),
        )
    ),
    (CLASSIC, JOIN, 23, SettingsError),
    (CLASSIC, JOIN, 26, SettingsError),
    (CONSUMERS, CONSUMER, 112, SettingsError),
]


@pytest.mark.parametrize(("protocol", "api", "code", "kind"), ENDING, ids=str)
def test_a_lasting_error_of_a_join_is_raised(
    broker: FakeCoordinator,
    stage: Stage,
    protocol: GroupProtocol,
    api: int,
    code: int,
    kind: type[EtlError],
) -> None:
    broker.refusals[api].append(code)
    with pytest.raises(kind, match=rf"\(code {code}\)") as raised:
        of(stage, protocol).member().join()
    assert type(raised.value) is kind
    assert raised.value.where["group"] == "g"
    assert raised.value.where["broker"] == f"{broker.host}:{broker.port}"
    assert broker.group.members == {} and broker.consumers == {}


def test_a_member_needs_permission(broker: FakeCoordinator, either: Stage) -> None:
    broker.world.group_refusals[FIND_COORDINATOR].append(30)
    with pytest.raises(PermissionDenied, match="name the coordinator of group g"):
        either.member().join()


BEATS = [
    (CLASSIC, HEARTBEAT, 22, 1),
    (CLASSIC, HEARTBEAT, 25, 1),
    (CLASSIC, HEARTBEAT, 27, 0),
    (CONSUMERS, CONSUMER, 25, 1),
    (CONSUMERS, CONSUMER, 110, 1),
]


@pytest.mark.parametrize(("protocol", "api", "code", "lost"), BEATS, ids=str)
def test_a_heartbeat_with_a_rebalance_ends_the_assignment(
    broker: FakeCoordinator, stage: Stage, protocol: GroupProtocol, api: int, code: int, lost: int
) -> None:
    with of(stage, protocol).joined() as (member, share):
        if code == 25:
            broker.forget()
        elif code == 27:
            broker.call_for_a_rebalance()
        else:
            broker.refusals[api].append(code)
        assert wait_until(lambda: not member.is_current, 20), (
            "the member stays lost while the run is busy"
        )
        again = member.rejoin()
        assert protocol is CONSUMERS or again.partitions == stage.logs
        assert protocol is CONSUMERS or again.generation != share.generation
        assert (again.member_id == share.member_id) == (code != 25)
        assert member.statistics.lost == lost


@pytest.mark.parametrize(("protocol", "api"), [(CLASSIC, HEARTBEAT), (CONSUMERS, CONSUMER)])
def test_another_process_of_the_same_name_ends_the_membership(
    broker: FakeCoordinator, stage: Stage, protocol: GroupProtocol, api: int
) -> None:
    with of(stage, protocol).joined(instance_id="static") as (member, _):
        broker.refusals[api].append(82)
        assert wait_until(lambda: not member.is_current, 20)
        with pytest.raises(MembershipLost, match="FENCED_INSTANCE_ID") as raised:
            member.rejoin()
        assert (raised.value.exit_code, raised.value.retriable) == (6, True)


def test_a_group_that_does_not_settle_is_owned(broker: FakeCoordinator, stage: Stage) -> None:
    with stage.joined() as (other, _):
        broker.refusals[HEARTBEAT].extend([0] * 1000)
        [member] = broker.group.members.values()
        asleep = replace(member, member_id="asleep", has_joined=False)
        broker.group.members["asleep"] = asleep
        text = r"The group g did not settle within 0\.3 s\."
        with pytest.raises(Owned, match=text) as raised:
            stage.member(join_timeout_s=0.3).join()
        assert (raised.value.exit_code, raised.value.retriable) == (4, True)
        assert wait_until(lambda: len(broker.decoded_requests[LEAVE]) == 1, 10)
        broker.group.members.pop("asleep")
        other.leave()


def test_a_member_without_partitions_in_time_leaves(broker: FakeCoordinator, stage: Stage) -> None:
    consumers = of(stage, CONSUMERS)
    with consumers.joined() as (holder, _):
        holder.hold()
        with pytest.raises(Owned, match="The group g did not settle"):
            consumers.member(join_timeout_s=0.05).join()
        assert set(broker.consumers) == {holder.rejoin().member_id}


def test_a_member_continues_at_a_moved_coordinator() -> None:
    world = World()
    world.topic_ids["clicks"] = UUID(int=1)
    with (
        FakeCoordinator(world=world, broker_id=1) as first,
        FakeCoordinator(world=world, broker_id=2) as second,
    ):
        first.log("clicks")
        world.coordinator = 1
        with Stage([(first.host, first.port)], "clicks", TERMS).joined() as (member, share):
            first.refusals[HEARTBEAT].extend([16] * 5)
            world.coordinator = 2
            assert wait_until(lambda: bool(second.decoded_requests[JOIN]), 20), "it is unknown"
            there = eventually(member, lambda found: found.member_id in second.group.members)
            assert there.partitions == share.partitions


def test_a_broken_connection_costs_nothing(broker: FakeCoordinator, either: Stage) -> None:
    with either.joined(session_timeout_s=9) as (member, share):
        broker.hang_up_on_everybody()
        assert member.rejoin() == share
        broker.script[HEARTBEAT].append(hang_up)
        broker.script[CONSUMER].append(hang_up)
        assert member.rejoin() == share and member.statistics.lost == 0


def test_a_silent_session_ends_the_share(broker: FakeCoordinator, either: Stage) -> None:
    with either.joined(answers_in_s=0.3) as (member, share):
        assert member.is_current
        broker.script[HEARTBEAT].extend([never] * 50)
        broker.script[CONSUMER].extend([never] * 50)
        assert wait_until(lambda: not member.is_current, 20)
        broker.script.clear()
        assert member.rejoin().partitions == share.partitions


def test_silent_brokers_are_unreachable_and_not_an_owned_group(stage: Stage) -> None:
    gone = replace(stage, bootstrap=[("127.0.0.1", 1)])
    with pytest.raises(BrokerUnreachable, match="No broker answers:"):
        gone.member(join_timeout_s=0.2).join()


def test_a_loading_coordinator_ends_at_a_deadline(broker: FakeCoordinator, stage: Stage) -> None:
    broker.refusals[JOIN].extend([14] * 10_000)
    with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        stage.member(join_timeout_s=0.2).join()


@pytest.mark.parametrize(
    ("protocol", "api"), [(CLASSIC, JOIN), (CLASSIC, SYNC), (CONSUMERS, CONSUMER)]
)
def test_an_invalid_answer_is_corrupt_data(
    broker: FakeCoordinator, stage: Stage, protocol: GroupProtocol, api: int
) -> None:
    broker.script[api].append(altered(lambda body: body[:9]))
    with pytest.raises(CorruptData):
        of(stage, protocol).member().join()


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_leader_returns_without_a_rebalance(
    broker: FakeCoordinator, stage: Stage, version: int
) -> None:
    broker.versions[JOIN] = (0, version)
    with stage.joined(instance_id="static") as (_, before):
        pass
    with stage.joined(instance_id="static") as (_, back):
        assert (back.partitions, back.generation) == (stage.logs, before.generation)
    assert (
        len(broker.decoded_requests[JOIN]) == 2
        and not broker.decoded_requests[SYNC][-1].assignments
    )
    stage.grow("clicks", PARTITIONS + 1)
    with stage.joined(instance_id="static") as (_, again):
        assert (len(again.partitions), len(broker.decoded_requests[JOIN])) == (PARTITIONS + 1, 4)


def test_a_static_follower_returns_to_its_share(broker: FakeCoordinator, stage: Stage) -> None:
    with stage.joined() as (leader, _):
        with stage.joined(instance_id="static") as (_, _):
            half = eventually(leader, lambda share: len(share.partitions) == PARTITIONS // 2)
        stage.grow("clicks", PARTITIONS + 2)
        with stage.joined(instance_id="static") as (_, back):
            assert back.partitions == stage.logs - half.partitions
            assert leader.rejoin().generation == half.generation


def test_an_undescribed_group_is_rebalanced(broker: FakeCoordinator, stage: Stage) -> None:
    with stage.joined(instance_id="static") as (leader, _), stage.joined() as (other, _):
        half = eventually(leader, lambda share: len(share.partitions) == PARTITIONS // 2)
        leader.leave()
        broker.refusals[GROUPS].append(30)
        with stage.joined(instance_id="static") as (_, back):
            assert len(back.partitions) == len(other.rejoin().partitions) == PARTITIONS // 2
            assert back.generation != half.generation


def test_a_follower_stays_undescribed(broker: FakeCoordinator, stage: Stage) -> None:
    with stage.joined() as (leader, _), stage.joined(instance_id="static") as (static, _):
        half = eventually(leader, lambda share: len(share.partitions) == PARTITIONS // 2)
        static.leave()
        broker.refusals[GROUPS].append(69)
        stage.grow("more", 1)
        with stage.joined(instance_id="static", topics=("clicks", "more")) as (_, back):
            assert back.generation == half.generation
            assert leader.rejoin().generation == half.generation


def test_a_held_partition_has_one_owner(broker: FakeCoordinator, stage: Stage) -> None:
    consumers = of(stage, CONSUMERS)
    with (
        consumers.joined() as (holder, share),
        consumers.joined(join_timeout_s=20) as (late, first),
    ):
        holder.rejoin()
        late.leave()
        holding = eventually(holder, lambda found: found.partitions == stage.logs)
        holder.hold()
        other = consumers.member()
        begun = threading.Event()
        found: list[frozenset[TopicPartition]] = []

        def join() -> None:
            begun.set()
            found.append(eventually(other, lambda its: bool(its.partitions)).partitions)

        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        assert begun.wait(10) and wait_until(lambda: len(broker.consumers) == 2, 20)
        reported = len(broker.decoded_requests[CONSUMER])
        assert wait_until(lambda: len(broker.decoded_requests[CONSUMER]) > reported + 6, 20)
        assert holder.is_current and not found, (
            "the epoch of the holder stays, and so does its commit's fence"
        )
        holder.release()
        thread.join(20)
        assert found and found[0] < stage.logs and not holder.is_current
        assert (
            eventually(holder, lambda its: its.partitions == stage.logs - found[0]).generation
            != holding.generation
        )
        other.leave()


def test_a_held_assignment_spans_epochs(broker: FakeCoordinator, stage: Stage) -> None:
    consumers = of(stage, CONSUMERS)
    with consumers.joined(holds_assignment=True) as (holder, share):
        assert holder.unbroken(share, within_s=20) == share
        holder.follow()
        with consumers.joined() as (_, late):
            assert not late.partitions
        now = holder.unbroken(share, within_s=20)
        assert now is not None and now.generation != share.generation
        assert now == replace(share, generation=now.generation)
        broker.forget()
        holder.rejoin()
        assert holder.unbroken(share, within_s=20) is None
    with stage.joined() as (classic, share):
        assert classic.unbroken(share, within_s=20) is None, "a generation is over with its share"


def test_a_join_waits_for_a_held_share(broker: FakeCoordinator, stage: Stage) -> None:
    """Members learn of it and report it with heartbeats."""
    consumers = of(stage, CONSUMERS)
    with consumers.joined() as (holder, share):
        holder.hold()
        late = consumers.member()

        def has_waited() -> bool:
            members = [request.member_id for request in [*broker.decoded_requests[CONSUMER]]]
            return len(members) - members.count(share.member_id) >= 4

        def released() -> None:
            wait_until(has_waited, 20)
            holder.release()

        thread = threading.Thread(target=released, daemon=True)
        thread.start()
        try:
            assert len(late.join().partitions) == PARTITIONS // 2
        finally:
            thread.join(20)
            late.leave()


def test_a_cooperative_strategy_settles(broker: FakeCoordinator, stage: Stage) -> None:
    sticky = {"strategies": ("cooperative-sticky",)}
    with stage.joined(**sticky) as (first, _), stage.joined(**sticky) as (second, share):
        assert share.strategy == "cooperative-sticky"
        assert len(share.partitions) == PARTITIONS // 2, "an empty first half is not believed"
        ours = eventually(first, lambda found: len(found.partitions) == PARTITIONS // 2)
        assert ours.partitions | second.rejoin().partitions == stage.logs


@pytest.mark.parametrize("version", range(10))
def test_a_member_speaks_each_version(broker: FakeCoordinator, stage: Stage, version: int) -> None:
    for api, newest in ((JOIN, 9), (SYNC, 5), (HEARTBEAT, 4), (LEAVE, 5)):
        broker.versions[api] = (0, min(version, newest))
    with stage.joined() as (member, share):
        assert (share.partitions, member.rejoin()) == (stage.logs, share)
        assert {number for key, number in broker.requests if key == JOIN} == {version}
    [join] = broker.decoded_requests[JOIN][-1:]
    assert (join.group_id, join.protocol_type, join.session_timeout_ms) == ("g", "consumer", 600)
    assert version == 0 or join.rebalance_timeout_ms == 5000
    assert [each.name for each in join.protocols] == [*TERMS.strategies]
    assert len(broker.decoded_requests[SYNC][-1].assignments) == 1
    assert broker.group.members == {}


def test_the_membership_may_be_queried_before_the_join(stage: Stage) -> None:
    member: Member = stage.member()
    member.follow()
    assert not member.is_current and member.statistics == RebalanceStatistics()


def test_a_member_may_leave_twice_and_join_again(stage: Stage) -> None:
    member = stage.member()
    member.leave()
    share = member.join()
    member.leave()
    member.leave()
    assert member.join().partitions == share.partitions
    assert member.statistics.rebalances == 2
    member.leave()


def test_an_unknown_strategy_is_rejected(broker: FakeCoordinator, stage: Stage) -> None:
    text = "Assignment strategy random is not supported, and we may become the group's leader"
    with pytest.raises(SettingsError, match=text):
        stage.member(strategies=("random",)).join()
    assert not broker.decoded_requests[JOIN]
