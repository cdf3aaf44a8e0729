"""How does a whole cluster start in one folder: ZooKeeper, from pyspark's jars, and brokers?"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from etl.testkit.brokers import DEFAULT_VERSION, Kafka, NewTopic, make_chroot, release
from etl.testkit.java_and_jars import find_java, spark_jars
from etl.testkit.server_process import HOST, Server

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

# Only what ZooKeeper needs of Spark's three hundred jars: opening all of them takes longer than its
# whole start.
_JARS = (
    "zookeeper-",
    "netty-",
    "slf4j-api-",
    "log4j-",
    "metrics-core-",
    "snappy-java-",
    "commons-io-",
    "commons-lang",
    "commons-cli-",
)

_PROPERTIES = {
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
}


class ZooKeeper(Server):
    """A standalone ZooKeeper: `with ZooKeeper() as zookeeper: zookeeper.connect`.

    Sessions may be as short as one second, so that tests see one end soon. `properties` go into its
    zoo.cfg, `options` to its JVM.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__("zookeeper", folder, port)
        self._properties, self._options = {**_PROPERTIES, **(properties or {})}, options

    @property
    def connect(self) -> str:
        """`127.0.0.1:port`, without a path."""
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        """See Server."""
        places = {
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
        }
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            "".join(f"{key}={value}\n" for key, value in {**places, **self._properties}.items())
        )
        classes = os.pathsep.join(map(str, spark_jars(*_JARS)))
        java = [str(find_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # No fsync: data only has to survive the end of the process.
        options = ["-Dzookeeper.forceSync=no", "-Dorg.apache.logging.log4j.level=INFO"]
        return [*java, *options, *self._options, "-cp", classes, _MAIN, str(settings)]

    def is_ready(self) -> bool:
        """True if it serves requests; before that it answers `srvr` differently."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(b"srvr")
                with connection.makefile("rb") as answer:
                    return b"Mode: standalone" in answer.read()
        except OSError:
            return False


class EmbeddedCluster:
    """ZooKeeper and brokers: `with EmbeddedCluster(brokers=1) as cluster:` starts and stops them.

    `version` is a row of `brokers.RELEASES`, of Kafka or of Jafka. If its brokers need no
    ZooKeeper, this one is for the ledger only. `properties` and `java_options` are for the brokers.

    Without a `folder` it gets a temporary one, deleted at the end unless `keep` is set; after a
    failed start it stays, as the error names a log file in it. A `folder` of the caller is never
    deleted. Raises SettingsError for a version that cannot be embedded.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = DEFAULT_VERSION,
        chroot: str = "/kafka",
        folder: Path | str | None = None,
        keep: bool = False,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        release(version)  # raises before a temporary folder is made
        self._is_temporary = folder is None
        if folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="etl-cluster-"))
        else:
            self.folder = Path(folder).absolute()
        self.zookeeper = ZooKeeper(self.folder / "zookeeper")
        self.brokers: list[Kafka] = []
        for number in range(brokers):
            self.brokers.append(
                Kafka(
                    zookeeper=self.zookeeper.connect,
                    version=version,
                    broker_id=number,
                    chroot=chroot,
                    voters=self.brokers[0].voters if self.brokers else None,
                    folder=self.folder / f"kafka-{number}",
                    properties=properties,
                    java_options=java_options,
                )
            )
        self._chroot = chroot
        self._keep = keep
        self._running = ExitStack()

    @property
    def zookeeper_connect(self) -> str:
        """ZooKeeper's address with the cluster's path: the value of `zookeeper.connect`."""
        return self.zookeeper.connect + self._chroot

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, with commas between them."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and return when every partition has a leader.

        On Jafka each broker has `partitions`. Raises as the release's `Administration` does.
        """
        topic = NewTopic(name, partitions, replication_factor, config)
        self.brokers[0].release.administration.create_topic(
            [broker.place for broker in self.brokers], topic
        )

    def __enter__(self) -> Self:
        with ExitStack() as started:  # a server that does not start takes those before it down
            started.enter_context(self.zookeeper)
            make_chroot(self.zookeeper_connect)
            for broker in self.brokers:
                started.enter_context(broker)
            self._running = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()
        if self._is_temporary and not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)
