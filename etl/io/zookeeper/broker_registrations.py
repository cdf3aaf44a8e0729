"""Which brokers and topics are registered in ZooKeeper.

Lives here: reading registrations. Not here: their formats (etl/ledger/registrations.py).

Kafka 0.8 to 3.x: brokers, cluster id, and what the controller stores about topics.

Jafka and Kafka 0.7, whose brokers report neither each other nor topics:

    /brokers/ids/[b]          `creator:host:port[:autocreate]`, ephemeral
    /brokers/topics/[t]/[b]   partition count of topic t on broker b, ephemeral; the topic stays

A partition is (topic, broker, partition) and its leader is that broker. While the broker is away
both znodes are gone: partitions known from before have no leader. A partition is requested only
while its broker counts it: the broker closes the connection on any other. A broker that comes back
registers itself before the partition counts of its topics.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping

from etl.errors import (
    CorruptData,
    EtlError,
    PermissionDenied,
    SettingsError,
    WrongChroot,
    ZooKeeperUnreachable,
)
from etl.io.zookeeper.session_requests import ZooKeeper, children_of_each, payload_of_each
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.ledger.registrations import (
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
from etl.ledger.znode_paths import (
    BROKER_IDS,
    BROKER_TOPICS,
    CLUSTER_ID,
    DELETED_TOPICS,
    TOPIC_CONFIGS,
    partition_state,
)
from etl.model.partitions import Broker, BrokerFamily, Leader, TopicPartition
from etl.model.plans import CREATION_ID
from etl.model.security import OPEN, Security

_MAX_CHROOTS_TRIED = 100
_MAX_CHROOTS_SHOWN = 5
_BROKER_TYPES: Mapping[BrokerFamily, str] = {
    BrokerFamily.KAFKA: "Kafka 0.8 or later",
    BrokerFamily.JAFKA: "Jafka or Kafka 0.7",
}


def read_creation_ids(zookeeper: ZooKeeper, topics: Iterable[str]) -> dict[str, str]:
    """Return the creation ids of the topics' znodes, for brokers without topic ids.

    A recreated topic has another id. The topic's znode stays while a broker restarts or adds
    partitions. Topics without a znode are left out.
    """
    wanted = sorted(topics)

    def request() -> dict[str, str]:
        pending = [zookeeper.client.exists_async(f"{BROKER_TOPICS}/{topic}") for topic in wanted]
        ids = {}
        for topic, answer in zip(wanted, pending, strict=True):
            stat = answer.get()
            if stat is not None:
                ids[topic] = f"{CREATION_ID}{stat.czxid:x}-{stat.ctime:x}"
        return ids

    found: dict[str, str] = zookeeper.guarded(lambda: zookeeper.client.retry(request))
    return found


def read_brokers(zookeeper: ZooKeeper, security: Security = OPEN) -> tuple[Broker, ...]:
    """Return the registered brokers of Kafka 0.8 or later, by id.

    Brokers without a listener for `security` are left out. Raises WrongChroot if there is no
    cluster under the chroot, ZooKeeperUnreachable if no broker is registered, SettingsError for
    Jafka or Kafka 0.7, or if no broker has such a listener.
    """
    registrations = read_registrations(zookeeper, BrokerFamily.KAFKA)
    if not registrations:
        raise ZooKeeperUnreachable(
            "No broker is registered",
            connect=zookeeper.connect,
            action="Check that the brokers run, or set source.bootstrap_servers",
        )
    usable = []
    for broker_id, payload in registrations.items():
        broker = parse_broker(broker_id, payload, security)
        if broker:
            usable.append(broker)
    if not usable:
        raise _no_listener(registrations, security, zookeeper.connect)
    return tuple(sorted(usable))


def read_listeners(zookeeper: ZooKeeper) -> list[str]:
    """Return the listeners of the registered brokers, each with its protocol; none if ZooKeeper
    does not answer.
    """
    registered: set[str] = set()
    with contextlib.suppress(EtlError):
        for payload in read_registrations(zookeeper, BrokerFamily.KAFKA).values():
            registered.update(parse_listeners(payload))
    return sorted(registered)


def _no_listener(
    registrations: Mapping[str, bytes], security: Security, connect: str
) -> SettingsError:
    listener = security.protocol.value
    key = "source.security.protocol"
    if security.listener:
        listener += f" by the name {security.listener}"
        key = "source.listener"
    registered: set[str] = set()
    for payload in registrations.values():
        registered.update(parse_listeners(payload))
    return SettingsError(
        f"None of the {len(registrations)} registered brokers has a listener of {listener}",
        key=key,
        connect=connect,
        action="Check source.security.protocol and source.listener; registered are "
        f"{', '.join(sorted(registered)) or 'none'}. Or set source.bootstrap_servers",
    )


def are_registered(
    zookeeper: ZooKeeper, brokers: Collection[Broker], security: Security = OPEN
) -> bool:
    """Return True if all of these Kafka brokers are registered with their addresses.

    False for no brokers.
    """
    ids = zookeeper.children(BROKER_IDS) or ()
    registered = set()
    for broker_id, payload in payload_of_each(zookeeper, ids, _registration_of).items():
        registered.add(parse_broker(broker_id, payload, security))
    return bool(brokers) and registered.issuperset(brokers)


def _registration_of(broker_id: str) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def _znode_of_topic(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}"


def _znode_of_topic_config(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def chroots_with_brokers(zookeeper: ZooKeeper) -> list[str]:
    """Return the root and its children that have a cluster, as far as this login may see them."""
    found = []
    with contextlib.suppress(EtlError), zookeeper.at_root() as root:
        names = sorted(root.children("/") or ())[:_MAX_CHROOTS_TRIED]
        for chroot in ("", *(f"/{name}" for name in names)):
            with contextlib.suppress(PermissionDenied):
                if root.children(f"{chroot}{BROKER_IDS}") is not None:
                    found.append(chroot or "/")
    return found


def read_registrations(zookeeper: ZooKeeper, dialect: BrokerFamily) -> dict[str, bytes]:
    """Return broker id -> registration.

    Raises WrongChroot if there is no cluster under the chroot, and SettingsError for a broker of
    the other type, which would close the connection or never answer.
    """
    chroot = zookeeper.chroot or "/"
    ids = zookeeper.children(BROKER_IDS)
    if ids is None:
        action = "Check the chroot at the end of zookeeper.connect"
        chroots = chroots_with_brokers(zookeeper)[:_MAX_CHROOTS_SHOWN]
        if chroots:
            action += f": clusters are under {', '.join(chroots)}"
        if dialect is BrokerFamily.KAFKA:
            action += ". For a cluster without ZooKeeper set source.bootstrap_servers"
        raise WrongChroot(
            f"There is no Kafka cluster under {chroot}: no {BROKER_IDS}",
            connect=zookeeper.connect,
            action=action,
        )
    registrations = payload_of_each(zookeeper, sorted(ids), _registration_of)
    for broker, payload in registrations.items():
        broker_type = dialect_of(payload)
        if broker_type is None or broker_type is dialect:
            continue
        raise SettingsError(
            f"Broker {broker} under {chroot} is of {_BROKER_TYPES[broker_type]}, "
            f"but source.broker_type is {dialect.value}",
            key="source.broker_type",
            connect=zookeeper.connect,
            action=f"Set source.broker_type: {broker_type.value}, "
            "or check the chroot at the end of zookeeper.connect",
        )
    return registrations


def read_topics(zookeeper: ZooKeeper) -> list[str]:
    """Return the registered topics that are not about to be deleted.

    Empty if the cluster stores its topics elsewhere (KRaft).
    """
    registered = zookeeper.children(BROKER_TOPICS) or ()
    if not registered:
        return []
    deleted = zookeeper.children(DELETED_TOPICS) or ()
    return sorted(set(registered) - set(deleted))


def read_replicas(
    zookeeper: ZooKeeper, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the ids of the replicas of each partition, the preferred leader first.

    Kafka 0.8 to 3.x. Unregistered partitions are left out.
    """
    topics = sorted({partition.topic for partition in partitions})
    by_topic = {}
    for topic, payload in payload_of_each(zookeeper, topics, _znode_of_topic).items():
        by_topic[topic] = parse_replicas(payload)
    replicas = {}
    for partition in partitions:
        of_topic = by_topic.get(partition.topic, {})
        if partition.partition in of_topic:
            replicas[partition] = of_topic[partition.partition]
    return replicas


def read_partition_states(
    zookeeper: ZooKeeper, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionState]:
    """Return the state of each partition as last written by the controller.

    Kafka 0.8 to 3.x. Missing states are left out.
    """
    states = {}
    for partition, payload in payload_of_each(
        zookeeper, sorted(partitions), partition_state
    ).items():
        state = parse_partition_state(payload)
        if state:
            states[partition] = state
    return states


def read_compacted(zookeeper: ZooKeeper, topics: Collection[str]) -> frozenset[str]:
    """Return those of the topics that are configured as compacted.

    Kafka 0.8.1 to 3.x. The default of the brokers is not stored in ZooKeeper.
    """
    configs = payload_of_each(zookeeper, sorted(topics), _znode_of_topic_config)
    compacted = set()
    for topic, payload in configs.items():
        policy = parse_topic_config(payload).get("cleanup.policy", "")
        if "compact" in re.split(r"[,\s]+", policy):
            compacted.add(topic)
    return frozenset(compacted)


def read_cluster_id(zookeeper: ZooKeeper) -> str | None:
    """Return Kafka's cluster id (0.10.1 and later); None without one."""
    found = zookeeper.read(CLUSTER_ID)
    return parse_cluster_id(found[0]) if found else None


_BROKER_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_TRIES_MAX = 3
"""Tries: a broker that adds partitions deletes its count and creates it again."""


def read_physical_brokers(zookeeper: ZooKeeper) -> dict[int, Broker]:
    """Return broker id -> broker of the registered Jafka or Kafka 0.7 brokers, by id.

    Raises WrongChroot if there is no cluster under the chroot, ZooKeeperUnreachable if no broker is
    registered, SettingsError for a broker of Kafka 0.8 or later, CorruptData for a registration of
    an unknown form.
    """
    registrations = read_registrations(zookeeper, BrokerFamily.JAFKA)
    brokers = {}
    for broker_id, payload in registrations.items():
        broker = parse_physical_broker(broker_id, payload)
        if broker is None:
            raise unknown_registration(
                f"{BROKER_IDS}/{broker_id}",
                payload,
                "creator:host:port, optionally followed by :true or :false",
            )
        brokers[broker.id] = broker
    if not brokers:
        raise ZooKeeperUnreachable(
            "No broker is registered",
            connect=zookeeper.connect,
            action="Check that the brokers run with enable.zookeeper=true and this zk.connect",
        )
    return dict(sorted(brokers.items()))


def read_physical_cluster(
    zookeeper: ZooKeeper,
    topics: Collection[str] | None = None,
    known: Iterable[TopicPartition] = (),
) -> ClusterMetadata:
    """Return registered brokers and topics as a Metadata response; missing topics are left out.

    `topics`: None for all. `known`: earlier partitions; those that no registered broker counts are
    included without a leader. Partitions are sorted as these consumers do, by key as text. Raises
    as `read_physical_brokers`.
    """
    brokers = read_physical_brokers(zookeeper)
    earlier = set(known)
    metadata = {}
    for name, topic_partitions in sorted(_registered(zookeeper, topics).items()):
        unregistered = {
            partition for partition in earlier if partition.topic == name and partition.is_physical
        } - topic_partitions
        partitions = []
        for partition in sorted(
            topic_partitions | unregistered, key=lambda partition: partition.key
        ):
            leader = None
            if partition in topic_partitions and partition.broker_id in brokers:
                leader = Leader(brokers[partition.broker_id])
            partitions.append(PartitionMetadata(partition, None, leader))
        metadata[name] = TopicMetadata(name, None, None, False, tuple(partitions))
    return ClusterMetadata(None, brokers, metadata)


def _registered(
    zookeeper: ZooKeeper, topics: Collection[str] | None
) -> dict[str, set[TopicPartition]]:
    """Return topic -> partitions of registered brokers; empty if all its brokers are away."""
    for _ in range(_TRIES_MAX):
        names = set(zookeeper.children(BROKER_TOPICS) or ())
        if topics is not None:
            names &= set(topics)
        partitions: dict[str, set[TopicPartition]] = {name: set() for name in sorted(names)}
        wanted: list[tuple[str, str]] = []
        paths = [f"{BROKER_TOPICS}/{name}" for name in partitions]
        for name, below in zip(partitions, children_of_each(zookeeper, paths), strict=True):
            for broker in below:
                if _BROKER_ID.fullmatch(broker):
                    wanted.append((name, broker))
        counts = payload_of_each(zookeeper, wanted, _znode_of_count)
        if len(counts) == len(wanted):
            break
    for (name, broker), payload in counts.items():
        count = parse_count(payload)
        if count is None:
            raise unknown_registration(
                _znode_of_count((name, broker)), payload, "a number of partitions"
            )
        for number in range(count):
            partitions[name].add(TopicPartition(name, number, int(broker)))
    return partitions


def _znode_of_count(topic_and_broker: tuple[str, str]) -> str:
    topic, broker = topic_and_broker
    return f"{BROKER_TOPICS}/{topic}/{broker}"


def unknown_registration(znode: str, payload: bytes, form: str) -> CorruptData:
    """Return the error for a znode of a broker whose content has an unknown form."""
    text = payload[:60].decode("utf-8", "backslashreplace")
    return CorruptData(
        f"The registration is not {form}: {text!r}",
        znode=znode,
        action="Check which client wrote that znode",
    )
