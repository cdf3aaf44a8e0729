"""Which brokers and topics are registered?

Kafka 0.8 to 3.x: brokers, cluster id, and what the controller stores about topics.

Jafka and Kafka 0.7, whose brokers report neither each other nor topics:

    /brokers/ids/[b]          `creator:host:port[:autocreate]`, ephemeral
    /brokers/topics/[t]/[b]   partition count of topic t on broker b, ephemeral; the topic stays

A partition is (topic, broker, partition) and its leader is that broker. While the broker is away
both znodes are gone: partitions known from before have no leader. A partition is requested only
while its broker counts it: the broker closes the connection on any other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from etl.errors import CorruptData, SettingsError, WrongChroot, ZooKeeperUnreachable
from etl.io.zookeeper.session import ZooKeeper
from etl.kafka.messages import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.ledger.paths import (
    BROKER_IDS,
    BROKER_TOPICS,
    CLUSTER_ID,
    DELETED_TOPICS,
    TOPIC_CONFIGS,
    partition_state,
)
from etl.ledger.registrations import (
    CREATION_ID,
    PartitionState,
    dialect_of,
    parse_broker,
    parse_cluster_id,
    parse_count,
    parse_listeners,
    parse_partition_state,
    parse_physical_broker,
    parse_replicas,
    parse_topic_config,
)
from etl.model.partitions import Broker, BrokerFamily, BrokerPartition, Leader
from etl.model.security import OPEN, Security

_FAMILIES: Mapping[BrokerFamily, str] = {
    BrokerFamily.KAFKA: "Kafka 0.8 or later",
    BrokerFamily.JAFKA: "Jafka or Kafka 0.7",
}


def read_creation_ids(zookeeper: ZooKeeper, topics: Iterable[str]) -> dict[str, str]:
    """Return ids of the topics' znodes, for brokers without topic ids: a recreated topic has
    another one. Topics without a znode are left out.
    """
    wanted = sorted(topics)

    def ask() -> dict[str, str]:
        requests = [zookeeper.client.exists_async(f"{BROKER_TOPICS}/{topic}") for topic in wanted]
        stats = {topic: answer.get() for topic, answer in zip(wanted, requests, strict=True)}
        return {
            topic: f"{CREATION_ID}{stat.czxid:x}"
            for topic, stat in stats.items()
            if stat is not None
        }

    found: dict[str, str] = zookeeper.guarded(lambda: zookeeper.client.retry(ask))
    return found


def read_brokers(zookeeper: ZooKeeper, security: Security = OPEN) -> tuple[Broker, ...]:
    """The brokers of Kafka 0.8 or later registered under our chroot, in order of id; those without
    such a listener are left out.

    Raises WrongChroot when there is no cluster there, SettingsError when it is one of Jafka or
    Kafka 0.7, or none has such a listener.
    """
    registrations = read_registrations(zookeeper, BrokerFamily.KAFKA)
    brokers = tuple(
        sorted(
            b
            for b in (parse_broker(i, payload, security) for i, payload in registrations.items())
            if b
        )
    )
    if not brokers and not registrations:
        message, action = (
            "No broker is registered",
            "Check that the brokers run, or give source.bootstrap_servers",
        )
        raise ZooKeeperUnreachable(message, connect=zookeeper.connect, action=action)
    if not brokers:
        raise _no_listener(registrations, security, zookeeper.connect)
    return brokers


def _no_listener(
    registrations: Mapping[str, bytes], security: Security, connect: str
) -> SettingsError:
    named = f" by the name {security.listener}" if security.listener else ""
    message = f"None of the {len(registrations)} registered brokers has a listener of {security.protocol.value}{named}"
    there = sorted(
        {listener for payload in registrations.values() for listener in parse_listeners(payload)}
    )
    action = f"Check source.security.protocol and source.listener; registered are {', '.join(there) or 'none'}; or give source.bootstrap_servers"
    return SettingsError(
        message,
        key="source.listener" if security.listener else "source.security.protocol",
        connect=connect,
        action=action,
    )


def are_registered(
    zookeeper: ZooKeeper, brokers: Collection[Broker], security: Security = OPEN
) -> bool:
    """True if all of these Kafka brokers are registered under our chroot with their addresses."""
    ids = zookeeper.children(BROKER_IDS) or ()
    payloads = zookeeper.read_all([f"{BROKER_IDS}/{i}" for i in ids])
    there = {parse_broker(i, p[0], security) for i, p in zip(ids, payloads, strict=True) if p}
    return bool(brokers) and there.issuperset(brokers)


def read_registrations(zookeeper: ZooKeeper, dialect: BrokerFamily) -> dict[str, bytes]:
    """Return broker id -> registration. Raises WrongChroot if there is no cluster under our chroot,
    SettingsError for a broker of the other type, which would close the connection, or wait.
    """
    ids = zookeeper.children(BROKER_IDS)
    if ids is None:
        message = f"There is no Kafka cluster under {zookeeper.chroot or '/'}: no {BROKER_IDS}"
        action = "Check the chroot at the end of zookeeper.connect"
        if dialect is BrokerFamily.KAFKA:
            action += "; for a cluster without ZooKeeper give source.bootstrap_servers"
        raise WrongChroot(message, connect=zookeeper.connect, action=action)
    payloads = zookeeper.read_all([f"{BROKER_IDS}/{i}" for i in ids])
    found = {i: p[0] for i, p in sorted(zip(ids, payloads, strict=True)) if p}
    others = {
        i: there
        for i, payload in found.items()
        if (there := dialect_of(payload)) not in (dialect, None)
    }
    if others:
        broker, there = min(others.items())
        message = f"Broker {broker} under {zookeeper.chroot or '/'} is of {_FAMILIES[there]}, and source.broker_type is {dialect.value}"
        action = (
            f"Set source.broker_type: {there.value}, or the chroot at the end of zookeeper.connect"
        )
        raise SettingsError(
            message, key="source.broker_type", connect=zookeeper.connect, action=action
        )
    return found


def read_topics(zookeeper: ZooKeeper) -> list[str]:
    """Topics that are registered and not about to be deleted; none where the cluster keeps them
    elsewhere (KRaft).
    """
    there = zookeeper.children(BROKER_TOPICS) or ()
    gone = set(zookeeper.children(DELETED_TOPICS) or ()) if there else set()
    return sorted(set(there) - gone)


def read_replicas(
    zookeeper: ZooKeeper, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, tuple[int, ...]]:
    """The ids of the brokers that hold each log, the preferred leader first (Kafka 0.8 to 3.x);
    without those not registered.
    """
    topics = sorted({log.topic for log in logs})
    payloads = zookeeper.read_all([f"{BROKER_TOPICS}/{topic}" for topic in topics])
    replicas = {topic: parse_replicas(p[0]) for topic, p in zip(topics, payloads, strict=True) if p}
    return {
        log: replicas[log.topic][log.partition]
        for log in logs
        if log.partition in replicas.get(log.topic, ())
    }


def read_partition_states(
    zookeeper: ZooKeeper, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, PartitionState]:
    """Return the state of each partition as last written by the controller (Kafka 0.8 to 3.x);
    missing ones are left out.
    """
    wanted = sorted(logs)
    payloads = zookeeper.read_all([partition_state(log) for log in wanted])
    found = {log: parse_partition_state(p[0]) for log, p in zip(wanted, payloads, strict=True) if p}
    return {log: state for log, state in found.items() if state}


def read_compacted(zookeeper: ZooKeeper, topics: Collection[str]) -> frozenset[str]:
    """Those of the topics for which compaction was set (Kafka 0.8.1 to 3.x); what brokers do by
    default stands nowhere.
    """
    names = sorted(topics)
    payloads = zookeeper.read_all([f"{TOPIC_CONFIGS}/{topic}" for topic in names])
    policies = {
        topic: parse_topic_config(p[0]).get("cleanup.policy", "")
        for topic, p in zip(names, payloads, strict=True)
        if p
    }
    return frozenset(
        topic for topic, policy in policies.items() if "compact" in re.split(r"[,\s]+", policy)
    )


def read_cluster_id(zookeeper: ZooKeeper) -> str | None:
    """Kafka's cluster id (0.10.1 and later), or None."""
    found = zookeeper.read(CLUSTER_ID)
    return parse_cluster_id(found[0]) if found else None


_BROKER_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_LOOKS_MAX = 3
"""Tries: a broker that adds partitions deletes its count and creates it again."""


def read_physical_brokers(zookeeper: ZooKeeper) -> dict[int, Broker]:
    """Broker id -> broker, of those that are registered now, in order of id.

    Raises WrongChroot when there is no cluster there, ZooKeeperUnreachable when none of its brokers
    is there, SettingsError for a broker of Kafka 0.8 or later, CorruptData for a registration in a
    form that we do not know.
    """
    registrations = read_registrations(zookeeper, BrokerFamily.JAFKA)
    brokers = {}
    for broker_id, payload in registrations.items():
        broker = parse_physical_broker(broker_id, payload)
        if broker is None:
            raise unknown_registration(
                f"{BROKER_IDS}/{broker_id}",
                payload,
                "creator:host:port, with true or false behind it",
            )
        brokers[broker.id] = broker
    if not brokers:
        action = "Check that the brokers run with enable.zookeeper=true and this zk.connect"
        raise ZooKeeperUnreachable(
            "No broker is registered", connect=zookeeper.connect, action=action
        )
    return dict(sorted(brokers.items()))


def read_physical_cluster(
    zookeeper: ZooKeeper,
    topics: Collection[str] | None = None,
    known: Iterable[BrokerPartition] = (),
) -> ClusterMetadata:
    """Return registered brokers and topics as a Metadata response; missing topics are left out.

    `topics`: None for all. `known`: earlier partitions; those that no broker counts now are
    included without a leader. Partitions are sorted as these consumers do, by key as text. Raises
    as `read_physical_brokers`.
    """
    brokers, before = read_physical_brokers(zookeeper), set(known)
    topics_found = {}
    for name, logs in sorted(_registered(zookeeper, topics).items()):
        away = {log for log in before if log.topic == name and log.is_physical} - logs
        leaders = {log: brokers.get(log.broker_id) for log in logs if log.broker_id is not None}
        partitions = tuple(
            PartitionMetadata(log, None, Leader(leader) if (leader := leaders.get(log)) else None)
            for log in sorted(logs | away, key=lambda log: log.key)
        )
        topics_found[name] = TopicMetadata(name, None, None, False, partitions)
    return ClusterMetadata(None, brokers, topics_found)


def _registered(
    zookeeper: ZooKeeper, topics: Collection[str] | None
) -> dict[str, set[BrokerPartition]]:
    """Return topic -> partitions of registered brokers; none if all its brokers are away."""
    for _ in range(_LOOKS_MAX):
        names = zookeeper.children(BROKER_TOPICS) or () if topics is None else topics
        children = {
            name: below
            for name in sorted(names)
            if (below := zookeeper.children(f"{BROKER_TOPICS}/{name}")) is not None
        }
        wanted = [
            (name, broker)
            for name, below in children.items()
            for broker in below
            if _BROKER_ID.fullmatch(broker)
        ]
        payloads = zookeeper.read_all(
            [f"{BROKER_TOPICS}/{name}/{broker}" for name, broker in wanted]
        )
        if None not in payloads:
            break
    logs: dict[str, set[BrokerPartition]] = {name: set() for name in children}
    for (name, broker), payload in zip(wanted, payloads, strict=True):
        if payload is None:
            continue
        count = parse_count(payload[0])
        if count is None:
            raise unknown_registration(
                f"{BROKER_TOPICS}/{name}/{broker}", payload[0], "a number of partitions"
            )
        logs[name] |= {BrokerPartition(name, number, int(broker)) for number in range(count)}
    return logs


def unknown_registration(znode: str, payload: bytes, form: str) -> CorruptData:
    """The error for a znode that a broker writes and that is not of the form."""
    text = payload[:60].decode("utf-8", "backslashreplace")
    return CorruptData(
        f"A registration is not {form}: {text!r}", znode=znode, action="Check who wrote that znode"
    )
