"""Owns a real Kafka broker on this machine, of any version that has a row in RELEASES."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etl.embedded.jars import Artifact, fetched
from etl.embedded.java import find_java
from etl.embedded.server import HOST, Server, answers
from etl.errors import SettingsError, Unreachable

DEFAULT_VERSION = "3.9.1"
_MAIN = "kafka.Kafka"


@dataclass(frozen=True, slots=True)
class Release:
    """What one version of Kafka needs besides its own jars. Without a log binding it would write no log at all."""

    scala: str
    besides: tuple[Artifact, ...] = (Artifact("org.slf4j", "slf4j-simple", "1.7.36"),)


RELEASES: Mapping[str, Release] = {"3.9.1": Release(scala="2.13")}

# A broker for tests: small, quick, and nothing happens by itself.
_PROPERTIES = {
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
    "zookeeper.session.timeout.ms": "6000",
}


def kafka_jars(version: str = DEFAULT_VERSION) -> list[Path]:
    """The jars of one version, fetched once. Raises SettingsError for a version without a row, else as `fetched` does."""
    release = RELEASES.get(version)
    if release is None:
        raise SettingsError("this version of Kafka cannot be embedded", check=f"one of {', '.join(RELEASES)}", version=version)
    return fetched(f"kafka-{version}", [Artifact("org.apache.kafka", f"kafka_{release.scala}", version), *release.besides])


class Kafka(Server):
    """One broker: `with Kafka(zookeeper=zookeeper.connect) as broker: broker.bootstrap`.

    `properties` go into server.properties over the defaults here, `java_options` onto the command line. Brokers of
    one cluster have the same `zookeeper` and `chroot` and different `broker_id`.
    """

    def __init__(
        self,
        *,
        zookeeper: str,
        version: str = DEFAULT_VERSION,
        broker_id: int = 0,
        chroot: str = "/kafka",
        folder: Path | str | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        super().__init__(f"kafka-{broker_id}", folder, port)
        self.version = version
        self.broker_id = broker_id
        self.zookeeper_connect = zookeeper + chroot
        self._properties = {**_PROPERTIES, **(properties or {})}
        self._java_options = tuple(java_options)

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port`."""
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        """See Server."""
        self._end_an_older_session()
        places = {
            "broker.id": str(self.broker_id),
            "zookeeper.connect": self.zookeeper_connect,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.folder / "data"),
        }
        settings = self.folder / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in {**places, **self._properties}.items()))
        java = [str(find_java()), "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        log = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS"]
        classes = os.pathsep.join(map(str, kafka_jars(self.version)))
        return [*java, *self._java_options, *log, "-cp", classes, _MAIN, str(settings)]

    def is_ready(self) -> bool:
        """Whether clients are told of this broker and of a controller: a port that answers is not yet a cluster."""
        if not answers(self.port):
            return False
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError

        try:
            with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
                cluster = admin.describe_cluster()
        except (KafkaError, OSError):
            return False
        brokers = {broker["broker_id"] for broker in cluster["brokers"]}
        return self.broker_id in brokers and cluster["controller_id"] in brokers

    def _end_an_older_session(self) -> None:
        """End the session of a killed broker: its znodes stay until then, and a broker that finds its own id taken gives up.

        Whoever registered this broker's port is dead, for we are about to listen there: what the end of its session
        would remove is removed now.
        """
        from kazoo.client import KazooClient
        from kazoo.exceptions import NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError

        hosts, slash, path = self.zookeeper_connect.partition("/")
        client = KazooClient(hosts=hosts)
        ours = {f"/brokers/ids/{self.broker_id}": ("port", self.port), "/controller": ("brokerid", self.broker_id)}
        try:
            client.start(timeout=self.start_within_s)
            for znode, (key, value) in ours.items():
                try:
                    if json.loads(client.get(slash + path + znode)[0]).get(key) == value:
                        client.delete(slash + path + znode)
                except NoNodeError:
                    continue
        except KazooTimeoutError as error:
            raise Unreachable("ZooKeeper does not answer", check="that it is running", zookeeper=self.zookeeper_connect) from error
        finally:
            client.stop()
            client.close()
