"""A cluster of Jafka or Kafka 0.7 as ZooKeeper has it: such brokers tell neither of each other nor
of topics, so this is all there is.

    /brokers/ids/[b]          `creator:host:port[:autocreate]`, ephemeral
    /brokers/topics/[t]/[b]   how many partitions of the topic broker b has, ephemeral; the topic's own znode stays

A log is (topic, broker, partition), and its leader is that broker: no other ever has it. While the
broker is away both znodes are gone, so the logs that somebody knows from before are told as
leaderless, and so are those that their broker counts no more: it makes its count of the directories
that it finds. A log is asked of its broker only while that one counts it: it hangs up on whoever
asks for a partition that it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from etl.edges.zookeeper.registry import read_registrations
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import CorruptData, ZooKeeperUnreachable
from etl.kafka.messages import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.ledger.paths import BROKER_IDS, BROKER_TOPICS
from etl.ledger.registrations import parse_count, parse_physical_broker
from etl.model.partitions import Broker, BrokerFamily, BrokerPartition, Leader

_BROKER_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_LOOKS_MAX = 3
"""A broker that adds partitions deletes its count and makes it again: whoever lists in between
looks once more.
"""


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
        check = "that the brokers run with enable.zookeeper=true and this zk.connect"
        raise ZooKeeperUnreachable(
            "no broker is registered", connect=zookeeper.connect, check=check
        )
    return dict(sorted(brokers.items()))


def read_physical_cluster(
    zookeeper: ZooKeeper,
    topics: Collection[str] | None = None,
    known: Iterable[BrokerPartition] = (),
) -> ClusterMetadata:
    """The brokers and topics that are registered now, as a Metadata answer tells them; a topic that
    is not there is left out.

    topics   the topics to tell of; None: all known    logs that were there before: those that no
    broker counts now are among the topic's, and have no leader

    Partitions are in the order in which consumers of these brokers share them: their keys compared
    as text. Raises what `read_physical_brokers` raises.
    """
    brokers, before = read_physical_brokers(zookeeper), set(known)
    told = {}
    for name, logs in sorted(_registered(zookeeper, topics).items()):
        away = {log for log in before if log.topic == name and log.is_physical} - logs
        leaders = {log: brokers.get(log.broker_id) for log in logs if log.broker_id is not None}
        partitions = tuple(
            PartitionMetadata(log, None, Leader(leader) if (leader := leaders.get(log)) else None)
            for log in sorted(logs | away, key=lambda log: log.key)
        )
        told[name] = TopicMetadata(name, None, None, False, partitions)
    return ClusterMetadata(None, brokers, told)


def _registered(
    zookeeper: ZooKeeper, topics: Collection[str] | None
) -> dict[str, set[BrokerPartition]]:
    """Topic -> its logs on the brokers that are there; a topic whose brokers are all away has none."""
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
        f"a registration is not {form}: {text!r}", znode=znode, check="who wrote that znode"
    )
