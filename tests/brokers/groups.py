"""A group with our members and those of a release's own consumer on its broker: assignments."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from etl.errors import BrokerUnreachable, Owned, SettingsError
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.model.partitions import GroupProtocol, MemberAssignment, TopicPartition
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST, wait_until
from tests.brokers.foreign import JavaClients
from tests.brokers.stage import PARTITIONS, KafkaStage

WITHIN_S = 60
_numbers = itertools.count(1)
_CLASSIC = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 300}
_STRATEGIES = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


def with_consumer_protocol(cluster: EmbeddedCluster) -> None:
    """Let a cluster of 4.0 or later, formatted without it, take the consumer protocol."""
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.update_features({"group.version": 1}) == {"group.version": "OK"}

    def is_on() -> bool:
        [port] = {broker.port for broker in cluster.brokers}
        terms = MemberTerms(
            f"any-{next(_numbers)}", ("any",), session_timeout_s=6, join_timeout_s=0.2
        )
        member = CoordinatedMember([(HOST, port)], terms, protocol=GroupProtocol.CONSUMER)
        try:
            member.join()
        except Owned:
            return True
        except (SettingsError, BrokerUnreachable):
            return False
        member.leave()
        return True

    assert wait_until(is_on, WITHIN_S), "the feature is on, and the broker does not know it"


def with_session(cluster: EmbeddedCluster, group: str, seconds: int) -> None:
    """Set the initial rebalance delay of one group of the consumer protocol."""
    wanted = ConfigResource(
        ConfigResourceType.GROUP, group, {"consumer.session.timeout.ms": str(seconds * 1000)}
    )
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.alter_configs([wanted]) == {"group": {group: "OK"}}


@dataclass
class Group:
    """A group on a new topic of PARTITIONS partitions; all members leave in the end."""

    stage: KafkaStage
    topic: str
    protocol: GroupProtocol
    strategy: str
    name: str = field(default_factory=lambda: f"divided-{next(_numbers)}-{time.time_ns()}")

    @property
    def logs(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self.topic, number) for number in range(PARTITIONS))

    @property
    def java(self) -> JavaClients:
        assert isinstance(self.stage.java, JavaClients)
        return self.stage.java

    def terms(self, instance_id: str | None = None) -> MemberTerms:
        return MemberTerms(
            self.name,
            (self.topic,),
            strategies=(self.strategy,),
            instance_id=instance_id,
            session_timeout_s=6,
            rebalance_timeout_s=20,
            join_timeout_s=WITHIN_S,
        )

    def member(self, instance_id: str | None = None) -> CoordinatedMember:
        """One of ours that has not joined."""
        return CoordinatedMember(
            [(HOST, self.stage.cluster.brokers[0].port)],
            self.terms(instance_id),
            protocol=self.protocol,
        )

    @contextlib.contextmanager
    def joined(
        self, instance_id: str | None = None
    ) -> Iterator[tuple[CoordinatedMember, MemberAssignment]]:
        member = self.member(instance_id)
        try:
            yield member, member.join()
        finally:
            member.leave()

    @contextlib.contextmanager
    def foreign(self, name: str = "java") -> Iterator[None]:
        settings: dict[str, object] = {"group_protocol": "consumer"}
        if self.protocol is GroupProtocol.CLASSIC:
            strategy = f"org.apache.kafka.clients.consumer.{_STRATEGIES[self.strategy]}"
            settings = {**_CLASSIC, "partition_assignment_strategy": strategy}
        self.java.enter(name, self.name, self.topic, **settings)
        try:
            yield
        finally:
            self.java.exit(name)

    def theirs(self, partitions: frozenset[TopicPartition], name: str = "java") -> None:
        """Wait until the release's own member owns exactly these."""
        assert wait_until(lambda: self.java.owns(name) == partitions, WITHIN_S), (
            self.java.owns(name),
            partitions,
        )

    def is_half_theirs(self, name: str = "java") -> None:
        """Wait until the release's own member knows that it owns one half."""
        assert wait_until(lambda: len(self.java.owns(name)) == PARTITIONS // 2, WITHIN_S), (
            self.java.owns(name)
        )

    def ours(self, member: CoordinatedMember, count: int) -> MemberAssignment:
        """The share of one of ours, once it is so large."""
        deadline = time.monotonic() + WITHIN_S
        share = member.rejoin()
        while len(share.partitions) != count:
            assert time.monotonic() < deadline, share
            time.sleep(0.02)
            share = share if member.is_current else member.rejoin()
        return share

    def divided(self, member: CoordinatedMember, name: str = "java") -> MemberAssignment:
        """The share of one of ours, once it and the release's own own one half each."""
        share = self.ours(member, PARTITIONS // 2)
        self.theirs(self.logs - share.partitions, name)
        return share
