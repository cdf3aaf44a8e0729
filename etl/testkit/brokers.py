"""Which brokers can be started, and when are they ready?

`RELEASES` has a row for each release of Kafka and Jafka, with all differences as values; the few
requests that detect readiness and create topics follow.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from etl.errors import SettingsError, Unreachable
from etl.testkit.java_and_jars import Artifact, fetched, find_java
from etl.testkit.server_process import HOST, Server, answers, free_port, wait_until

_WITHIN_S = 60.0
_METADATA = 3
_JAFKA_PRODUCE, _JAFKA_CREATE = 0, 5


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of a broker's cluster."""

    brokers: frozenset[int]
    controller: int | None
    """None if the version does not report it (0); -1 without one."""
    leaders: Mapping[str, Mapping[int, int]]
    """Of each topic's partitions; -1 for none."""


def metadata(port: int, *, version: int) -> Metadata:
    """Metadata of version 0 (0.8 on) with all topics, for by name it may create one; or of 1 (0.10
    to 4.x) with none.

    Raises OSError, also when the connection ends early.
    """
    return parse_metadata(
        _asked(port, struct.pack(">hhihi", _METADATA, version, 0, 0, 0)), version=version
    )


def parse_metadata(content: bytes, *, version: int) -> Metadata:
    """The body of an answer, from its correlation id on."""
    answer = _Answer(content)
    answer.integer()
    brokers = set()
    for _ in range(answer.integer()):
        brokers.add(answer.integer())
        answer.text()
        answer.integer()
        if version:
            answer.text()
    controller = answer.integer() if version else None
    leaders: dict[str, dict[int, int]] = {}
    for _ in range(answer.integer()):
        answer.short()
        led = leaders[answer.text()] = {}
        for _ in range(answer.integer()):
            answer.short()
            partition, led[partition] = answer.integer(), answer.integer()
            for _replicas_then_in_sync in range(2):
                for _ in range(answer.integer()):
                    answer.integer()
    return Metadata(frozenset(brokers), controller, leaders)


def create_jafka_topic(port: int, name: str, partitions: int) -> None:
    """Make the logs of a topic on one Jafka broker. Raises OSError."""
    topic = struct.pack(">h", len(name.encode())) + name.encode()
    _asked(port, struct.pack(">h", _JAFKA_CREATE) + topic + struct.pack(">iB", partitions, 1))
    # The create request does nothing for as many partitions as the broker gives by itself. A
    # produce request makes the logs, and no message is in it.
    with _told(
        port, struct.pack(">h", _JAFKA_PRODUCE) + topic + struct.pack(">ii", 0, 0)
    ) as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # it has no answer: the broker hangs up when it has read it


def _asked(port: int, request: bytes) -> bytes:
    """One request and the body of its answer."""
    with _told(port, request) as connection, connection.makefile("rb") as answer:
        return _exactly(answer, *struct.unpack(">i", _exactly(answer, 4)))


def _exactly(answer: io.BufferedReader, size: int) -> bytes:
    read = answer.read(size)
    if len(read) < size:
        raise ConnectionError("the broker hung up")
    return read


def _told(port: int, request: bytes) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=_WITHIN_S)
    connection.sendall(struct.pack(">i", len(request)) + request)
    return connection


class _Answer(io.BytesIO):
    def short(self) -> int:
        return int.from_bytes(self.read(2), signed=True)

    def integer(self) -> int:
        return int.from_bytes(self.read(4), signed=True)

    def text(self) -> str:
        return self.read(max(self.short(), 0)).decode()


@dataclass(frozen=True, slots=True)
class Place:
    """Address of one broker: id, local port, and ZooKeeper with the cluster's path, empty without
    one.
    """

    broker_id: int
    port: int
    zookeeper: str

    @property
    def address(self) -> str:
        """`127.0.0.1:port`."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str] | None = None


class Administration(Protocol):
    """Administration of brokers of one type."""

    def is_ready(self, broker: Place) -> bool:
        """True if clients learn of this broker: an open port is not yet a cluster."""

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """Create it, and return when every partition can be written and read."""


class ByAdminClient:
    """Kafka from 0.10.1 on: a request to the brokers, by kafka-python. Raises its errors."""

    def is_ready(self, broker: Place) -> bool:
        """True if the broker reports itself and a controller."""
        try:
            answer = metadata(broker.port, version=1)
        except OSError:
            return False
        return broker.broker_id in answer.brokers and answer.controller in answer.brokers

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration."""
        from kafka.admin import KafkaAdminClient

        wanted = {
            "num_partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.config or {}),
        }
        with KafkaAdminClient(
            bootstrap_servers=",".join(broker.address for broker in brokers)
        ) as admin:
            admin.create_topics({topic.name: wanted}, wait_for_metadata=True)


class ByZooKeeper:
    """Kafka before 0.10.1: its own tool writes the topic's assignment into ZooKeeper, and the
    controller does the rest.
    """

    def is_ready(self, broker: Place) -> bool:
        """True if it is registered and a registered broker is the controller."""
        if not answers(broker.port):
            return False
        with session(broker.zookeeper) as client:
            ids = client.get_children("/brokers/ids") if client.exists("/brokers/ids") else []
            return (
                str(broker.broker_id) in ids
                and str(_json(client, "/controller").get("brokerid")) in ids
            )

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration. Raises Unreachable if a partition has no leader after a minute."""
        ids = [broker.broker_id for broker in brokers]
        replicas = {
            str(p): [ids[(p + n) % len(ids)] for n in range(topic.replication_factor)]
            for p in range(topic.partitions)
        }
        config = {"version": 1, "config": dict(topic.config or {})}
        path = f"/brokers/topics/{topic.name}"
        with session(brokers[0].zookeeper) as client:
            client.create(
                f"/config/topics/{topic.name}", json.dumps(config).encode(), makepath=True
            )
            client.create(
                path, json.dumps({"version": 1, "partitions": replicas}).encode(), makepath=True
            )

            def is_led() -> bool:
                states = [
                    _json(client, f"{path}/partitions/{partition}/state") for partition in replicas
                ]
                return all(state.get("leader", -1) >= 0 for state in states) and all(
                    _tells_of(one, topic) for one in brokers
                )

            if not wait_until(is_led, _WITHIN_S):
                raise Unreachable(
                    "A new topic has no leaders",
                    action="Check the brokers' log files",
                    topic=topic.name,
                )


class ByCreateRequest:
    """Jafka: each broker creates its own partitions."""

    def is_ready(self, broker: Place) -> bool:
        """True if it is registered with this port."""
        if not answers(broker.port):
            return False
        with session(broker.zookeeper) as client:
            path = f"/brokers/ids/{broker.broker_id}"
            return (
                client.exists(path) is not None
                and f":{broker.port}" in client.get(path)[0].decode()
            )

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration: `partitions` on each broker. Raises SettingsError for what Jafka
        lacks.
        """
        if topic.replication_factor != 1 or topic.config:
            raise SettingsError(
                "Jafka has no replicas and no settings of a topic",
                action="Create the topic with one replica and without settings",
                topic=topic.name,
            )
        for broker in brokers:
            create_jafka_topic(broker.port, topic.name, topic.partitions)
        with session(brokers[0].zookeeper) as client:
            paths = [f"/brokers/topics/{topic.name}/{broker.broker_id}" for broker in brokers]
            if not wait_until(lambda: all(client.exists(path) for path in paths), _WITHIN_S):
                raise Unreachable(
                    "A new topic is not registered",
                    action="Check the brokers' log files",
                    topic=topic.name,
                )


def end_older_session(broker: Place) -> None:
    """End the session of a killed broker: its znodes stay until then, and a broker that finds its
    own id taken gives up. The process that registered this port is dead, since this broker is about
    to listen there.
    """
    with session(broker.zookeeper) as client:
        path = f"/brokers/ids/{broker.broker_id}"
        if not client.exists(path):
            return
        text, stat = client.get(path)
        if not re.search(rf"\b{broker.port}\b", text.decode()):
            return
        topics = client.get_children("/brokers/topics") if client.exists("/brokers/topics") else []
        for znode in (
            path,
            "/controller",
            *(f"/brokers/topics/{topic}/{broker.broker_id}" for topic in topics),
        ):
            found = client.exists(znode)
            if found is not None and found.ephemeralOwner == stat.ephemeralOwner:
                client.delete(znode)


def make_chroot(connect: str, *, within_s: float = _WITHIN_S) -> None:
    """Make the path of a ZooKeeper connection string, which only Kafka's own brokers do. Raises as
    `session` does.
    """
    hosts, slash, path = connect.partition("/")
    with session(hosts, within_s=within_s) as client:
        client.ensure_path(slash + path)


@contextlib.contextmanager
def session(connect: str, *, within_s: float = _WITHIN_S) -> Iterator[Any]:
    """A session of kazoo's. Raises Unreachable when ZooKeeper does not answer in time."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=connect)
    try:
        client.start(timeout=within_s)
        yield client
    except KazooTimeoutError as error:
        raise Unreachable(
            "ZooKeeper does not answer", action="Check that it is running", zookeeper=connect
        ) from error
    finally:
        client.stop()
        client.close()


def _json(client: Any, path: str) -> dict[str, Any]:
    """A znode's document, empty while there is none."""
    found: dict[str, Any] = json.loads(client.get(path)[0]) if client.exists(path) else {}
    return found


def _tells_of(broker: Place, topic: NewTopic) -> bool:
    """True if the broker names a leader of each partition."""
    leaders = metadata(broker.port, version=0).leaders.get(topic.name, {})
    return len(leaders) == topic.partitions and min(leaders.values()) >= 0


DEFAULT_VERSION = "3.9.1"
JAFKA = "jafka-3.0.6"


@dataclass(frozen=True, slots=True)
class Release:
    """The artifacts of one release, and how it is started."""

    artifacts: tuple[Artifact, ...]
    """Their dependencies are added; those named here have this version in any case."""
    properties: Mapping[str, str]
    """Its server.properties. In braces stands what differs from broker to broker: see
    `kafka.Kafka.command`.
    """
    administration: Administration = field(default_factory=ByAdminClient)
    main: str = "kafka.Kafka"
    has_zookeeper: bool = True
    """True if its brokers register in ZooKeeper; False: a quorum of their own (KRaft)."""


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
    # Records with timestamps of another day stay. A topic that must lose some sets its retention.
    "log.retention.ms": "-1",
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
    "broker.session.timeout.ms": "4000",  # a killed broker can register again after it
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",  # members get an assignment within a second
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",  # and missed within seconds
    "group.consumer.max.session.timeout.ms": "300000",  # unless the group sets another one
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
"""Modules that Java contained until 11."""


def _kafka(scala: str, version: str, *besides: Artifact) -> tuple[Artifact, ...]:
    return (Artifact("org.apache.kafka", f"kafka_{scala}", version), *besides)


RELEASES: Mapping[str, Release] = {
    JAFKA: Release(
        (
            Artifact("io.jafka", "jafka", "3.0.6"),
            # jafka depends on any version from 2.9.8 on
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
            "This version cannot be embedded",
            action=f"Use one of {', '.join(RELEASES)}",
            version=version,
        )
    return RELEASES[version]


def release_jars(version: str = DEFAULT_VERSION) -> list[Path]:
    """The jars of one version, fetched once. Raises as `release` and `java.fetched` do."""
    name = version if version == JAFKA else f"kafka-{version}"
    return fetched(name, release(version).artifacts)


# For those that log with log4j 1, which without it writes nothing.
_LOG4J = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_CLUSTER_ID = "ZXRsLWVtYmVkZGVkLTAwMQ"


class Kafka(Server):
    """One broker: `with Kafka(zookeeper=zookeeper.connect) as broker: broker.bootstrap`.

    `properties` go into server.properties over those of the release, `java_options` onto the
    command line. Brokers of one cluster have the same `zookeeper` and `chroot` and different
    `broker_id`; where the release needs no ZooKeeper, the same `voters`: those of the first.
    """

    def __init__(
        self,
        *,
        zookeeper: str | None = None,
        version: str = DEFAULT_VERSION,
        broker_id: int = 0,
        chroot: str = "/kafka",
        voters: str | None = None,
        folder: Path | str | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.release = release(version)
        if self.release.has_zookeeper and zookeeper is None:
            raise SettingsError(
                "This version needs a ZooKeeper", action="Pass zookeeper=...", version=version
            )
        super().__init__(f"kafka-{broker_id}", folder, port)
        self.version = version
        self.broker_id = broker_id
        self.zookeeper_connect = f"{zookeeper}{chroot}" if self.release.has_zookeeper else ""
        self._votes_at = None if voters else f"{HOST}:{free_port()}"
        self.voters = voters or f"{broker_id}@{self._votes_at}"
        self._properties = dict(properties or {})
        self._java_options = tuple(java_options)

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port`."""
        return self.place.address

    @property
    def place(self) -> Place:
        """Return its address."""
        return Place(self.broker_id, self.port, self.zookeeper_connect)

    def command(self) -> list[str]:
        """See Server."""
        if self.release.has_zookeeper:
            make_chroot(self.zookeeper_connect, within_s=self.start_within_s)
            end_older_session(self.place)
        else:
            self._format()
        settings = self.folder / "server.properties"
        own = {
            key: value.format_map(self._facts()) for key, value in self.release.properties.items()
        }
        settings.write_text(
            "".join(f"{key}={value}\n" for key, value in {**own, **self._properties}.items())
        )
        (self.folder / "log4j.properties").write_text(_LOG4J)
        java = [
            str(find_java()),
            "-Xms128m",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ]
        log = [
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        ]
        classes = os.pathsep.join(map(str, [self.folder, *release_jars(self.version)]))
        return [*java, *self._java_options, *log, "-cp", classes, self.release.main, str(settings)]

    def is_ready(self) -> bool:
        """See Administration."""
        return self.release.administration.is_ready(self.place)

    def _facts(self) -> dict[str, object]:
        """Return the values for braces in a release's properties."""
        ours = f"PLAINTEXT://{self.bootstrap}"
        return {
            "id": self.broker_id,
            "host": HOST,
            "port": self.port,
            "folder": self.folder,
            "zookeeper": self.zookeeper_connect,
            "voters": self.voters,
            "roles": "broker,controller" if self._votes_at else "broker",
            "listeners": f"{ours},CONTROLLER://{self._votes_at}" if self._votes_at else ours,
        }

    def _format(self) -> None:
        """Format a new data directory by Kafka's storage tool."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={_CLUSTER_ID}\nnode.id={self.broker_id}\n"
        )
