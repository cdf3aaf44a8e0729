"""The kinds of groups in which our runs are tested: other consumers, and their storage."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etl.io.zookeeper.session_requests import ZooKeeper
from etl.testkit.brokers import JAFKA
from tests.brokers.foreign import JavaClients
from tests.brokers.groups import with_consumer_protocol
from tests.brokers.stage import JafkaStage, KafkaStage, begin
from tests.groups.librdkafka import LibrdkafkaConsumers
from tests.groups.others import JavaConsumers, OldConsumers, Others

SESSION_S = 6
"""Of every member, and of our runs in ZooKeeper."""
_SESSION = {"session.timeout.ms": SESSION_S * 1000, "heartbeat.interval.ms": 500}
_ASSIGNORS = "org.apache.kafka.clients.consumer."


@dataclass(frozen=True)
class Kind:
    """One release's consumers in one kind of group."""

    name: str
    version: str
    join: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `group.join` for Kafka's groups; empty for ZooKeeper's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_librdkafka: bool = False

    @property
    def is_old(self) -> bool:
        """Whether the group is kept in ZooKeeper."""
        return not self.join

    @property
    def offsets_storage(self) -> str:
        return "zookeeper" if self.is_old else "kafka"

    def begin(self, folder: Path, running: ExitStack) -> JafkaStage | KafkaStage:
        stage = begin(self.version, folder, running)
        if self.join.get("protocol") == "consumer":
            with_consumer_protocol(stage.cluster)
        return stage

    def others(
        self, stage: JafkaStage | KafkaStage, group: str, topic: str, opened: ExitStack, **more: Any
    ) -> Others:
        if self.is_old:
            session = opened.enter_context(ZooKeeper(stage.cluster.zookeeper_connect))
            return OldConsumers(stage, group, topic, session, **more)
        if self.by_librdkafka:
            return LibrdkafkaConsumers(stage.cluster.bootstrap, group, topic, self.settings)
        assert isinstance(stage, KafkaStage) and isinstance(stage.java, JavaClients)
        return JavaConsumers(
            stage.java,
            group,
            topic,
            {key.replace(".", "_"): value for key, value in self.settings.items()},
        )


def _by_librdkafka(kind: Kind) -> Kind:
    theirs = {}
    if "assignment_strategy" in kind.join:
        theirs["partition.assignment.strategy"] = kind.join["assignment_strategy"]
    name = f"{kind.version} librdkafka {kind.name.partition(' ')[2]}"
    return Kind(name, kind.version, kind.join, {**kind.settings, **theirs}, by_librdkafka=True)


def _classic(version: str, strategy: str, assignor: str) -> Kind:
    ours = {
        "assignment_strategy": strategy,
        "session_timeout_s": SESSION_S,
        "rebalance_timeout_s": 20,
    }
    theirs = {**_SESSION, "partition.assignment.strategy": _ASSIGNORS + assignor}
    return Kind(f"{version} {strategy}", version, ours, theirs)


OLD = (Kind(JAFKA, JAFKA), Kind("0.8.2.2", "0.8.2.2"))
CONSUMER_PROTOCOL = Kind(
    "4.1.0 consumer",
    "4.1.0",
    {"protocol": "consumer", "rebalance_timeout_s": 20},
    {"group.protocol": "consumer"},
)
BY_JAVA = (
    _classic("0.9.0.1", "range", "RangeAssignor"),
    _classic("2.8.2", "cooperative-sticky", "CooperativeStickyAssignor"),
    _classic("3.9.1", "range", "RangeAssignor"),
    _classic("4.1.0", "range", "RangeAssignor"),
    CONSUMER_PROTOCOL,
)
_COOPERATIVE = _classic("3.9.1", "cooperative-sticky", "CooperativeStickyAssignor")
BY_LIBRDKAFKA = tuple(map(_by_librdkafka, (*BY_JAVA[2:], _COOPERATIVE)))
