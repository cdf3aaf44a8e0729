"""What can be embedded: one row for each release of Kafka and Jafka, all differences between them
as values.

How a row is started is `kafka`'s part, how it is asked for a topic `administration`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etl.embedded.administration import Administration, ByAdminClient, ByCreateRequest, ByZooKeeper
from etl.embedded.jars import Artifact, fetched
from etl.errors import SettingsError

DEFAULT_VERSION = "3.9.1"
JAFKA = "jafka-3.0.6"


@dataclass(frozen=True, slots=True)
class Release:
    """What one release is made of, and how it wants to be started."""

    artifacts: tuple[Artifact, ...]
    """What they depend on comes with them; one that is named here is of this version, whatever
    others ask for.
    """
    properties: Mapping[str, str]
    """Its server.properties. In braces stands what differs from broker to broker: see
    `kafka.Kafka.command`.
    """
    administration: Administration = field(default_factory=ByAdminClient)
    main: str = "kafka.Kafka"
    has_zookeeper: bool = True
    """Whether its brokers register in ZooKeeper; without it they keep a quorum of their own
    (KRaft).
    """


# A broker for tests: small, quick, and nothing happens by itself. A release passes over the keys
# that it does not know.
_SMALL = {
    "log.dirs": "{folder}/data",
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",  # records with the times of another day stay; a topic that is to lose some says so
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.index.size.max.bytes": "1048576",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "controlled.shutdown.retry.backoff.ms": "100",
}
_IN_ZOOKEEPER = {
    "broker.id": "{id}",
    "zookeeper.connect": "{zookeeper}",
    "zookeeper.session.timeout.ms": "6000",
}
_ZOOKEEPER = {**_SMALL, **_IN_ZOOKEEPER, "listeners": "PLAINTEXT://{host}:{port}"}
_BEFORE_LISTENERS = {
    **_SMALL,
    **_IN_ZOOKEEPER,
    "host.name": "{host}",
    "port": "{port}",
    "log.retention.ms": "2147483647",
}
_KRAFT = {
    **_SMALL,
    "process.roles": "{roles}",
    "node.id": "{id}",
    "controller.quorum.voters": "{voters}",
    "listeners": "{listeners}",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",  # a broker that was killed is taken back behind it
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",  # members are told within a second
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",  # and missed within seconds
    "group.consumer.max.session.timeout.ms": "300000",  # unless a group says otherwise
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
_JAFKA = {
    "brokerid": "{id}",
    "hostname": "{host}",
    "port": "{port}",
    "log.dir": "{folder}/data",
    "num.threads": "4",
    "enable.zookeeper": "true",
    "zk.connect": "{zookeeper}",
    "zk.sessiontimeout.ms": "6000",
    "log.flush.interval": "1",  # nothing is readable before it is flushed
}

_SIMPLE_LOG = Artifact("org.slf4j", "slf4j-simple", "1.7.36")
"""Without a log binding a release that brings none would write no log at all."""
_XML = Artifact("javax.xml.bind", "jaxb-api", "2.3.1")
"""What Java had of its own until 11."""


def _kafka(scala: str, version: str, *besides: Artifact) -> tuple[Artifact, ...]:
    return (Artifact("org.apache.kafka", f"kafka_{scala}", version), *besides)


RELEASES: Mapping[str, Release] = {
    JAFKA: Release(
        (
            Artifact("io.jafka", "jafka", "3.0.6"),
            # it asks for any from 2.9.8 on
            *(
                Artifact("com.fasterxml.jackson.core", name, "2.9.8")
                for name in ("jackson-databind", "jackson-core")
            ),
        ),
        _JAFKA,
        ByCreateRequest(),
        main="io.jafka.Jafka",
    ),
    "0.8.2.2": Release(_kafka("2.10", "0.8.2.2"), _BEFORE_LISTENERS, ByZooKeeper()),
    "0.9.0.1": Release(_kafka("2.11", "0.9.0.1"), _ZOOKEEPER, ByZooKeeper()),
    "0.10.2.2": Release(_kafka("2.11", "0.10.2.2", _XML), _ZOOKEEPER),
    "0.11.0.3": Release(_kafka("2.11", "0.11.0.3", _XML), _ZOOKEEPER),
    "1.1.1": Release(_kafka("2.12", "1.1.1", _SIMPLE_LOG), _ZOOKEEPER),
    "2.8.2": Release(_kafka("2.13", "2.8.2", _SIMPLE_LOG), _ZOOKEEPER),
    "3.9.1": Release(_kafka("2.13", "3.9.1", _SIMPLE_LOG), _ZOOKEEPER),
    "4.1.0": Release(_kafka("2.13", "4.1.0", _SIMPLE_LOG), _KRAFT, has_zookeeper=False),
}


def release(version: str) -> Release:
    """The row of one version. Raises SettingsError when there is none."""
    if version not in RELEASES:
        raise SettingsError(
            "this version cannot be embedded",
            check=f"one of {', '.join(RELEASES)}",
            version=version,
        )
    return RELEASES[version]


def release_jars(version: str = DEFAULT_VERSION) -> list[Path]:
    """The jars of one version, fetched once. Raises as `release` and `jars.fetched` do."""
    name = version if version == JAFKA else f"kafka-{version}"
    return fetched(name, release(version).artifacts)
