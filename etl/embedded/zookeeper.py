"""Owns a real ZooKeeper on this machine, from the jars that pyspark brings."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from etl.embedded.jars import spark_jars
from etl.embedded.java import find_java
from etl.embedded.server import HOST, Server

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
        # What was written survives the end of the process, which is all that is asked of it here:
        # no fsync.
        options = ["-Dzookeeper.forceSync=no", "-Dorg.apache.logging.log4j.level=INFO"]
        return [*java, *options, *self._options, "-cp", classes, _MAIN, str(settings)]

    def is_ready(self) -> bool:
        """Whether it serves requests: before that it answers `srvr` with another line."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(b"srvr")
                with connection.makefile("rb") as answer:
                    return b"Mode: standalone" in answer.read()
        except OSError:
            return False
