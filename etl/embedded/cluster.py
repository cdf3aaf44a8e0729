"""Owns a whole cluster on this machine, ZooKeeper and brokers in one folder, for the demo and for
tests.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from etl.embedded.administration import NewTopic, make_chroot
from etl.embedded.kafka import Kafka
from etl.embedded.releases import DEFAULT_VERSION
from etl.embedded.zookeeper import ZooKeeper


class Cluster:
    """`with Cluster(brokers=1) as cluster:` gives a running cluster, and nothing of it is left
    afterwards.

    `version` is a row of `releases.RELEASES`, of Kafka or of Jafka. Where brokers do without
    ZooKeeper, this one is for the ledger alone. Without a `folder` a temporary one is made. The
    folder is deleted at the end unless `keep` is set or a server did not start. `properties` are
    the brokers', and so are `java_options`.
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
        self.folder = (
            Path(tempfile.mkdtemp(prefix="etl-cluster-"))
            if folder is None
            else Path(folder).absolute()
        )
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
        """ZooKeeper's address with the cluster's path, as the conf's `zookeeper.connect` wants it."""
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
        """Create a topic and return when every partition has a leader. Raises as the release's
        `Administration` does.

        On Jafka `partitions` is what each broker has.
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
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)
