"""Another consumer of a pipeline's group in ZooKeeper: it owns, reads and commits on request of a
case.

It has only those parts of a Kafka 0.8 consumer that a run can observe: a registration, owner nodes,
and offsets that it overwrites in any state.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from etl.ledger.znode_paths import GroupPaths
from etl.testkit.server_process import wait_until
from tests.chaos.sources import between
from tests.system.driving import Pipeline
from tests.traffic.rows import Row

PARTITIONS = 4
JOIN: Mapping[str, Any] = {"mode": "join"}
"""`ownership` of a member. By range it comes before `z`, and has the first partitions."""
_NAME = "z"
_SOON_S = 60.0


class OtherConsumer:
    """A ZooKeeper session with its registration and its owner nodes."""

    def __init__(self, pipeline: Pipeline, connect: str | None = None) -> None:
        self._pipeline, self._paths = pipeline, GroupPaths(pipeline.group)
        self._client = KazooClient(hosts=connect or pipeline.cluster.zookeeper_connect)
        self._read: list[tuple[int, int, int]] = []
        self._waiting: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._client.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for thread in self._waiting:
            thread.join()
        self._client.stop()
        self._client.close()

    @property
    def rows(self) -> Counter[Row]:
        rows = self._pipeline.in_topic()
        return sum((between(rows, *interval) for interval in self._read), Counter[Row]())

    def register(self) -> None:
        result = (
            '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}'
            % self._pipeline.topic
        )
        self._client.create(
            f"{self._paths.consumer_ids}/{self._id}", result.encode(), ephemeral=True, makepath=True
        )

    def claim(self, *partitions: int) -> None:
        """Own these, and take them from any other owner."""
        for partition in partitions:
            self.take_away(partition)
            self._client.create(
                self._owner(partition), f"{self._id}-0".encode(), ephemeral=True, makepath=True
            )

    def claim_as_we_do(self, partition: int) -> None:
        """The same by a member of this package: its owner nodes have the version that ours have."""
        self.claim(partition)
        self._client.set(self._owner(partition), f"{self._id}-0".encode())

    def take_away(self, partition: int) -> None:
        with contextlib.suppress(NoNodeError):
            self._client.delete(self._owner(partition))

    def let_go(self, *partitions: int) -> None:
        for partition in partitions:
            self._client.delete(self._owner(partition))

    def let_go_behind_us(self, partition: int) -> None:
        """Own it until our run has released its assignment."""

        def wait() -> None:
            if wait_until(lambda: self.owned() == [partition], _SOON_S):
                self.let_go(partition)

        self._waiting.append(threading.Thread(target=wait, name="the other consumer"))
        self._waiting[-1].start()

    def leave(self) -> None:
        for path in (
            *(self._owner(partition) for partition in range(PARTITIONS)),
            f"{self._paths.consumer_ids}/{self._id}",
        ):
            found = self._client.exists(path)
            if (
                found
                and self._client.client_id
                and found.owner_session_id == self._client.client_id[0]
            ):
                self._client.delete(path)

    def read(self, partition: int, count: int) -> None:
        """Read the next records of a partition from the group's offset on, and commit after them."""
        path = f"{self._paths.offsets_of(self._pipeline.topic)}/{partition}"
        self._client.ensure_path(path)
        start = int(self._client.get(path)[0] or b"0")
        self._client.set(path, b"%d" % (start + count))
        self._read.append((partition, start, start + count))

    def owned(self) -> list[int]:
        with contextlib.suppress(NoNodeError):
            return sorted(
                int(key.rpartition("-")[2])
                for key in self._client.get_children(self._paths.owners_of(self._pipeline.topic))
            )
        return []

    def members(self) -> list[str]:
        with contextlib.suppress(NoNodeError):
            return sorted(set(self._client.get_children(self._paths.consumer_ids)) - {self._id})
        return []

    @property
    def _id(self) -> str:
        return f"{self._pipeline.group}_{_NAME}"

    def _owner(self, partition: int) -> str:
        return f"{self._paths.owners_of(self._pipeline.topic)}/{partition}"


def without(rows: Counter[Row], partitions: Collection[int]) -> Counter[Row]:
    return Counter({row: count for row, count in rows.items() if row[0] not in partitions})
