"""Members of ours together with each release's own consumer, for as long as a night: rebalances,
crashes, pauses and static members.

Not in CI; the short form is `tests/brokers/test_every_generation.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from etl import Consumer
from etl import Group as StreamsGroup
from etl.model.partitions import GroupProtocol
from etl.testkit.server_process import wait_until
from tests.brokers.groups import WITHIN_S, Group, with_consumer_protocol
from tests.brokers.stage import PARTITIONS, KafkaStage, begin
from tests.fakes.group_readers import GroupReader
from tests.groups.coordinator_golden import RELEASES
from tests.groups.librdkafka import LibrdkafkaConsumers

CLASSIC, CONSUMERS = GroupProtocol.CLASSIC, GroupProtocol.CONSUMER
ROUNDS = 20
_WITH_STATIC = (2, 3)
_WITH_COOPERATIVE = (2, 4)
_QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


@pytest.fixture(scope="module", params=RELEASES)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaStage]:
    with contextlib.ExitStack() as running:
        stage = begin(request.param, tmp_path_factory.mktemp("stage"), running)
        assert isinstance(stage, KafkaStage)
        if stage.release >= (4,):
            with_consumer_protocol(stage.cluster)
        yield stage


def group_of(stage: KafkaStage, protocol: GroupProtocol, strategy: str = "range") -> Group:
    if protocol is CONSUMERS and stage.release < (4,):
        pytest.skip("the consumer protocol is of 4.0 on")
    return Group(stage, stage.new_topic(), protocol, strategy)


of_each = pytest.mark.parametrize("protocol", [CLASSIC, CONSUMERS])


class Alone:
    """A member of ours in a process of its own."""

    def __init__(self, group: Group, output: Path, instance_id: str = "") -> None:
        self._output = output
        command = [
            sys.executable,
            "-m",
            "tests.groups.lone_member",
            str(group.stage.cluster.brokers[0].port),
            group.name,
            group.topic,
            group.protocol.value,
            instance_id,
        ]
        with output.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2]
            )

    @property
    def shares(self) -> Sequence[tuple[int, ...]]:
        """Logs, generation and how often it was lost, of each share."""
        return [tuple(map(int, line.split())) for line in self._output.read_text().splitlines()]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def owns(self, count: int, after: int = 0) -> tuple[int, ...]:
        """Its newest assignment, once it has so many partitions after so many of them."""
        assert wait_until(
            lambda: len(self.shares) > after and self.shares[-1][0] == count, WITHIN_S
        ), self.shares
        return self.shares[-1]


@contextlib.contextmanager
def alone(group: Group, tmp_path: Path, instance_id: str = "") -> Iterator[Alone]:
    path = tmp_path / f"{instance_id or 'dynamic'}-{len(list(tmp_path.iterdir()))}"
    process = Alone(group, path, instance_id)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


@pytest.mark.parametrize("is_leader", [True, False], ids=["as leader", "as follower"])
def test_beside_cooperative_consumers_of_librdkafka_each_record_is_read_by_one(
    stage: KafkaStage, is_leader: bool
) -> None:
    """KIP-429: librdkafka crashes where a member's subscription lacks the owned partitions."""
    if stage.release < _WITH_COOPERATIVE:
        pytest.skip("cooperative rebalances are of 2.4 on")
    strategy, topic, name = "cooperative-sticky", stage.new_topic(), f"librdkafka-{is_leader}"
    bootstrap = stage.cluster.bootstrap
    theirs = LibrdkafkaConsumers(
        bootstrap, name, topic, {"partition.assignment.strategy": strategy, **_QUICK}
    )

    def send() -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(200):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()

    with contextlib.ExitStack() as ending:

        def ours() -> GroupReader:
            group = StreamsGroup(name, assignment_strategy=strategy, session_timeout_s=6)
            reader = GroupReader(
                Consumer(bootstrap, group=group, auto_offset_reset="earliest"), [topic]
            )
            ending.callback(reader.end)
            return reader

        readers = [ours()] if is_leader else []
        assert not readers or readers[0].owns(PARTITIONS)
        theirs.enter("a")
        assert wait_until(lambda: "a" in theirs.owned(), WITHIN_S)
        readers += [] if is_leader else [ours()]
        read = []
        for _ in range(5):
            send()
            assert readers[0].owns(PARTITIONS // 2)
            theirs.enter("b")
            assert wait_until(lambda: len(theirs.owned()) == 2, WITHIN_S)
            read += theirs.exit("b")
        assert wait_until(
            lambda: len(readers[0].read) + len(read) + theirs.count("a") >= 1000, WITHIN_S
        )
        read += theirs.exit("a")
    union = Counter((each.partition, each.offset) for each in read)
    union.update((partition.partition, offset) for partition, offset in readers[0].read)
    assert len(union) == 1000 and max(union.values()) == 1


@of_each
def test_however_often_consumers_of_the_release_come_and_go_every_log_has_one_owner(
    stage: KafkaStage, protocol: GroupProtocol
) -> None:
    group = group_of(stage, protocol)
    with group.joined() as (member, _):
        member.follow()
        for _ in range(ROUNDS):
            with group.foreign():
                group.divided(member)
            assert group.ours(member, PARTITIONS).partitions == group.logs
        assert member.statistics.rebalances > 2 * ROUNDS and member.statistics.lost == 0


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_other_strategies_are_divided_by_us_for_others_and_by_others_for_us(
    stage: KafkaStage, strategy: str
) -> None:
    if strategy == "cooperative-sticky" and stage.release < (2, 4):
        pytest.skip("the strategy is of 2.4 on")
    group = group_of(stage, CLASSIC, strategy)
    with group.joined() as (first, _):
        with group.foreign():
            group.divided(first)
            first.leave()
            group.theirs(group.logs)
            with group.joined() as (second, _):
                group.divided(second)


@of_each
def test_one_of_ours_that_is_killed_is_missed_and_its_logs_go_to_others_within_its_session(
    stage: KafkaStage,
    protocol: GroupProtocol,
    tmp_path: Path,
) -> None:
    group = group_of(stage, protocol)
    with alone(group, tmp_path) as killed, group.foreign():
        killed.owns(PARTITIONS // 2)
        group.is_half_theirs()
        killed.signal(signal.SIGKILL)
        group.theirs(group.logs)
        with alone(group, tmp_path) as late:
            late.owns(PARTITIONS // 2)


@of_each
def test_a_member_that_slept_longer_than_its_session_gets_an_error_and_returns_as_a_new_member(
    stage: KafkaStage,
    protocol: GroupProtocol,
    tmp_path: Path,
) -> None:
    group = group_of(stage, protocol)
    with alone(group, tmp_path) as sleeper, group.foreign():
        sleeper.owns(PARTITIONS // 2)
        group.is_half_theirs()
        before = len(sleeper.shares)
        sleeper.signal(signal.SIGSTOP)
        try:
            group.theirs(group.logs)
        finally:
            sleeper.signal(signal.SIGCONT)
        assert sleeper.owns(PARTITIONS // 2, before)[2] == 1, (
            "its statistics count one lost membership"
        )
        group.is_half_theirs()


@of_each
def test_a_static_member_that_goes_and_comes_back_within_its_session_is_not_noticed(
    stage: KafkaStage, protocol: GroupProtocol
) -> None:
    group = group_of(stage, protocol)
    if stage.release < _WITH_STATIC:
        pytest.skip("static members are of 2.3 on")
    with group.foreign(), group.joined("static") as (member, _):
        share = group.divided(member)
        for _ in range(3):
            member.leave()
            back = member.join()
            assert (
                back.partitions == share.partitions
                and group.java.owns("java") == group.logs - share.partitions
            )
            assert protocol is CONSUMERS or back.generation == share.generation


def test_held_partitions_have_no_other_owner_before_their_release(stage: KafkaStage) -> None:
    group = group_of(stage, CONSUMERS)
    with group.joined() as (member, share):
        member.hold()
        with group.foreign():
            assert not wait_until(lambda: bool(group.java.owns("java")), 5), (
                "others are given nothing"
            )
            assert member.is_current and share.partitions == group.logs
            member.release()
            group.divided(member)
