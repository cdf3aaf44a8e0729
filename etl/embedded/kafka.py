"""Owns a real broker on this machine, of any version that has a row in `releases.RELEASES`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from etl.embedded.administration import Place, end_older_session, make_chroot
from etl.embedded.java import find_java
from etl.embedded.releases import DEFAULT_VERSION, release, release_jars
from etl.embedded.server import HOST, Server, free_port
from etl.errors import SettingsError

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
                "this version needs a ZooKeeper", check="zookeeper=", version=version
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
        """Where it is."""
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
        """What stands in braces in a release's properties."""
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
        """What Kafka's storage tool writes into a new data folder: whose it is."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={_CLUSTER_ID}\nnode.id={self.broker_id}\n"
        )
