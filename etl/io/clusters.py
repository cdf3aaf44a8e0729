"""How is a cluster found whose brokers are registered in ZooKeeper?

Kafka brokers are found there and report the rest themselves. Jafka and Kafka 0.7 brokers know only
their own partitions: topics and leaders are read from ZooKeeper
(etl/io/zookeeper/broker_registrations.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from etl.io.brokers.cluster_requests import Cluster
from etl.io.zookeeper.broker_registrations import (
    read_brokers,
    read_listeners,
    read_physical_brokers,
    read_physical_cluster,
)
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import Broker, TopicPartition
from etl.model.security import OPEN, Security

CONNECT_WITHIN_S = 10.0


def registered_brokers(
    zookeeper: ZooKeeper, *, physical: bool, security: Security = OPEN
) -> tuple[Broker, ...]:
    """The brokers that are registered now, in order of id. Raises what `registry` and
    `registry` raise.
    """
    if physical:
        return tuple(read_physical_brokers(zookeeper).values())
    return read_brokers(zookeeper, security)


def registered_cluster(
    zookeeper: ZooKeeper,
    *,
    physical: bool,
    timeout_s: float,
    broker_type: str | None = None,
    known: Iterable[TopicPartition] = (),
    connect_timeout_s: float = CONNECT_WITHIN_S,
    security: Security = OPEN,
) -> Cluster:
    """Open the cluster registered in ZooKeeper; the caller closes it before the session. Raises as
    `registered_brokers`.

    `broker_type`: broker type or release, if configured; None: detected. `security`: the listener,
    and how to connect to it. `known`: earlier Jafka partitions, so that those of an unavailable
    broker are reported without leader.
    """
    brokers, before = (
        registered_brokers(zookeeper, physical=physical, security=security),
        tuple(known),
    )
    addresses = [(broker.host, broker.port) for broker in brokers]
    if not physical:
        return Cluster(
            addresses,
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
            broker_type=broker_type,
            security=security,
            listeners=lambda: read_listeners(zookeeper),
        )
    return Cluster(
        addresses,
        connect_timeout_s=connect_timeout_s,
        timeout_s=timeout_s,
        broker_type=min(brokers).broker_type,
        registry=lambda topics: read_physical_cluster(zookeeper, topics, before),
    )
