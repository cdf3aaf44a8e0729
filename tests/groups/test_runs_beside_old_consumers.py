"""Runs next to old consumers: what only groups in ZooKeeper have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from etl.io.zookeeper.owners import GroupMembers
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.registrations import FixedTopics, Registration, render_registration
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import BrokerFamily, TopicPartition
from etl.testkit.server_process import wait_until
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.groups.kinds import OLD
from tests.groups.others import BACKOFF_MS
from tests.groups.shared import WITHIN_S, Shared, end_session

HALF = PARTITIONS // 2
FEW = 4
"""Tries of a consumer that may give up."""
GIVEN_UP_S = 2 * FEW * BACKOFF_MS / 1000
"""Twice the time of all its attempts: no partition is without a reader for longer."""
Make = Callable[..., Shared]
pytestmark = pytest.mark.parametrize("kind", OLD, ids=lambda kind: kind.name, indirect=True)


def test_a_run_that_loses_its_session_before_each_of_three_commits_ends_with_exit_6(
    make: Make,
) -> None:
    shared = make()
    shared.enter("a")
    with shared.running("claimed") as run:
        for times in (1, 2, 3):
            session = run.comes_to("claimed", times)
            shared.send(8)
            end_session(shared.pipeline.cluster.zookeeper_connect, session)
            shared.are_owned(a=PARTITIONS)
            run.release_once("claimed")
        result = run.wait()
    assert result.code == 6, result.out
    shared.others_read_the_rest()
    shared.end()


def dialect_of(stage: JafkaStage | KafkaStage) -> BrokerFamily:
    return BrokerFamily.JAFKA if isinstance(stage, JafkaStage) else BrokerFamily.KAFKA


def log_of(stage: JafkaStage | KafkaStage, topic: str, number: int) -> TopicPartition:
    """As the group divides them: by the texts of their names."""
    if isinstance(stage, JafkaStage):
        return TopicPartition(topic, number % 2, number // 2)
    return TopicPartition(topic, number)


@pytest.mark.parametrize("point", ["claimed", "leaving"])
def test_consumers_that_gave_up_during_a_killed_run_are_notified_by_the_next_one(
    make: Make, point: str
) -> None:
    """What the dead one owned stood in the way of all their tries."""
    shared = make(others={"tries": FEW})
    shared.enter("a")
    with shared.held_at(point) as run:
        run.kill()
    shared.ran()
    shared.are_owned(GIVEN_UP_S)
    shared.others_read_the_rest()
    shared.end()


@contextlib.contextmanager
def registered(shared: Shared, dialect: BrokerFamily, name: str) -> Iterator[ZooKeeper]:
    """A member of that family that only registers, and its session."""
    with ZooKeeper(shared.pipeline.cluster.zookeeper_connect) as session:
        threads = Registration(dialect, FixedTopics({shared.pipeline.topic: 1}))
        group = shared.pipeline.group
        GroupMembers(session, group).register(
            f"{group}_{name}", render_registration(threads, now_ms=1), is_ours=False
        )
        yield session


def test_a_run_that_cannot_settle_ends_with_exit_4_and_leaves_no_partition_without_a_reader(
    stage: JafkaStage | KafkaStage, make: Make
) -> None:
    """Of three members `zz` owns a part of our assignment, and never releases it."""
    shared = make(others={"tries": FEW}, join_timeout_s=3)
    shared.enter("a")
    group, partition = shared.pipeline.group, log_of(stage, shared.pipeline.topic, HALF)
    with registered(shared, dialect_of(stage), "zz") as rival:
        assert wait_until(
            lambda: rival.read(GroupPaths(group).owner(partition)) is None, WITHIN_S
        ), "it is to be another's"
        rival.client.create(
            GroupPaths(group).owner(partition), f"{group}_zz-0".encode(), ephemeral=True
        )
        result = shared.pipeline.run()
        assert result.code == 4 and "did not settle within 3 s" in result.err, result.err
        assert sorted(GroupMembers(rival, group).read()) == [f"{group}_a", f"{group}_zz"]
        shared.are_owned(GIVEN_UP_S, a=HALF, zz=1)
    shared.are_owned()
    shared.send(8)
    shared.others_read_the_rest()
    shared.end()


def test_consumers_that_gave_up_while_a_run_planned_are_notified_after_the_offset_commit(
    make: Make,
) -> None:
    """A run releases nothing before its offset commit. No event comes from outside after that."""
    shared = make(others={"tries": FEW})
    shared.enter("a")
    with shared.held_at("storing", "fetched") as run:
        with pytest.raises(AssertionError, match="rebalance"):
            shared.enter("c")
        run.release("storing")
        run.comes_to("fetched")
        shared.are_owned(GIVEN_UP_S, a=2, c=1, etl=1)
        run.release("fetched")
        assert run.wait().code == 0
    shared.exit("c")  # it still owns its partitions and does not read them
    shared.are_owned(GIVEN_UP_S)
    shared.others_read_the_rest()
    shared.end()


def test_a_membership_that_ends_after_the_offset_commit_is_reported_and_the_run_continues(
    stage: JafkaStage | KafkaStage, make: Make
) -> None:
    """Another client keeps our partitions: the run leaves, and its plan is executed."""
    shared = make(join_timeout_s=2)
    shared.enter("a")
    group = shared.pipeline.group
    with (
        shared.held_at("fetched") as run,
        ZooKeeper(shared.pipeline.cluster.zookeeper_connect) as rival,
    ):
        owners = [
            GroupPaths(group).owner(log_of(stage, shared.pipeline.topic, number))
            for number in range(PARTITIONS)
        ]
        ours = next(path for path in owners if b"_etl:" in (rival.read(path) or (b"", 0))[0])
        rival.client.delete(ours)
        rival.client.create(ours, f"{group}_zz-0".encode(), ephemeral=True)
        GroupMembers(rival, group).nudge()
        run.comes_to("leaving")
        run.release("fetched")
        result = run.wait()
    assert result.code == 0 and "membership_ended" in result.outcomes, result.out
    shared.are_owned()
    shared.end()


def test_a_run_is_no_member_of_a_group_of_the_other_family(
    stage: JafkaStage | KafkaStage, make: Make
) -> None:
    shared = make()
    other = BrokerFamily.KAFKA if isinstance(stage, JafkaStage) else BrokerFamily.JAFKA
    with registered(shared, other, "b") as session:
        result = shared.pipeline.run()
        assert result.code == 2 and f"{shared.pipeline.group}_b" in result.err, result.err
        assert sorted(GroupMembers(session, shared.pipeline.group).read()) == [
            f"{shared.pipeline.group}_b"
        ]
    shared.send(8)
    shared.end()
