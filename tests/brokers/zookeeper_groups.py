"""A group in ZooKeeper with members of ours and a release's consumers, and its owner nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from etl.decide.group_assignment import Timing
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.owners import GroupMembers
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.registrations import FixedTopics, Registration, render_registration
from etl.model.partitions import BrokerFamily, TopicPartition
from etl.testkit.brokers import JAFKA
from etl.testkit.server_process import wait_until
from tests.brokers.foreign import Seen
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage

BACKOFF_MS, MANY = 200, 100
SETTLES_S = 60
TIMING = Timing(join_timeout_s=SETTLES_S, backoff_s=0.5, others_backoff_s=BACKOFF_MS / 1000)
of_both_families = pytest.mark.parametrize("stage", [JAFKA, "0.8.2.2"], indirect=True)


class Group:
    """A group on a new topic: sessions of ours, and members of theirs."""

    def __init__(
        self, stage: JafkaStage | KafkaStage, name: str, opened: contextlib.ExitStack
    ) -> None:
        self.name, self._opened = name, opened
        self.connect = stage.cluster.zookeeper_connect
        self.topic = stage.new_topic()
        self.dialect = BrokerFamily.JAFKA if isinstance(stage, JafkaStage) else BrokerFamily.KAFKA
        clients = stage.clients if isinstance(stage, JafkaStage) else stage.scala
        assert clients is not None
        self._clients = clients
        self.session = opened.enter_context(ZooKeeper(self.connect))
        self.logs = frozenset(
            TopicPartition(self.topic, n // 2, n % 2)
            if self.dialect is BrokerFamily.JAFKA
            else TopicPartition(self.topic, n)
            for n in range(PARTITIONS)
        )
        self.in_order = sorted(self.logs, key=lambda partition: partition.key)

    def open(self, name: str, *, tries: int = MANY, backoff_ms: int = BACKOFF_MS) -> None:
        """A consumer of theirs, once it has its share. Fails the test if it gives up."""
        self._opened.callback(self._close_left, name)
        self._clients.open(name, self.name, self.topic, backoff_ms=backoff_ms, tries=tries)

    def close(self, name: str) -> list[bytes | None]:
        return [
            seen.value if isinstance(seen, Seen) else seen for seen in self._clients.close(name)
        ]

    @contextlib.contextmanager
    def registered(self, name: str) -> Iterator[ZooKeeper]:
        """A member of theirs that never gets to its claims, and its session."""
        with ZooKeeper(self.connect) as session:
            threads = Registration(self.dialect, FixedTopics({self.topic: 1}))
            GroupMembers(session, self.name).register(
                f"{self.name}_{name}", render_registration(threads, now_ms=1), is_ours=False
            )
            yield session

    def deregister(self, name: str) -> None:
        self.session.client.delete(
            GroupMembers(self.session, self.name).path(f"{self.name}_{name}")
        )

    def _close_left(self, name: str) -> None:
        if f"{self.name}_{name}" in GroupMembers(self.session, self.name).read():
            self.close(name)

    def member(
        self, timing: Timing = TIMING, *, member_id: str | None = None, run_id: str = "run-1"
    ) -> ZooKeeperMember:
        session = self._opened.enter_context(ZooKeeper(self.connect))
        options = MemberOptions(
            self.dialect, frozenset({self.topic}), member_id=member_id, timing=timing
        )
        member = ZooKeeperMember(session, self.name, "clicks", run_id, options)
        self._opened.callback(member.leave)
        return member

    def owned(self) -> dict[str, set[TopicPartition]]:
        """Consumer -> what it owns now: `etl` for us."""
        found: dict[str, set[TopicPartition]] = {}
        for partition, owner in (
            ConsumerGroup(self.session, self.name, physical=self.dialect is BrokerFamily.JAFKA)
            .owners([self.topic])
            .items()
        ):
            name = owner.removeprefix(f"{self.name}_").rpartition("-")[0]
            found.setdefault(name.partition(":")[0], set()).add(partition)
        return found

    def counts(self) -> dict[str, int]:
        return {name: len(partitions) for name, partitions in self.owned().items()}

    def has(self, within_s: float = SETTLES_S, **counts: int) -> bool:
        """Whether it comes to that within the time."""
        return wait_until(lambda: self.counts() == counts, within_s)
