"""Whether the ZooKeeper of a conf is that of the brokers: only then topic ids are read there."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import ClusterMetadata, TopicMetadata
from etl.model.partitions import Broker
from etl.run.discovery import Discovery
from tests.builders import plain_settings

REGISTERED = {
    "/brokers/ids/1": b'{"host":"kafka-1","port":9092}',
    "/cluster/id": b'{"version":"1","id":"abc"}',
}


class Kept:
    """A ZooKeeper of one broker and one topic."""

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self._nodes = nodes
        stat = SimpleNamespace(czxid=31, ctime=1_700_000_000_000)
        found = SimpleNamespace(get=lambda: stat)
        self.client = SimpleNamespace(retry=lambda ask: ask(), exists_async=lambda path: found)

    def children(self, path: str) -> list[str] | None:
        return [
            node.rpartition("/")[2] for node in self._nodes if node.startswith(path + "/")
        ] or None

    def read(self, path: str) -> tuple[bytes, int] | None:
        return (self._nodes[path], 0) if path in self._nodes else None

    def read_all(self, paths: Sequence[str]) -> list[tuple[bytes, int] | None]:
        return [self.read(path) for path in paths]

    def guarded(self, call: Any) -> Any:
        return call()


def ids_of(
    cluster_id: str | None,
    host: str = "kafka-1",
    *,
    bootstrap: bool = True,
    nodes: dict[str, bytes] | None = None,
) -> dict[str, str]:
    settings = plain_settings(source={"bootstrap_servers": ["kafka-1:9092"]} if bootstrap else {})
    zookeeper = cast(ZooKeeper, Kept(REGISTERED if nodes is None else nodes))
    reported = ClusterMetadata(
        cluster_id,
        {1: Broker(1, host, 9092)},
        {"clicks": TopicMetadata("clicks", None, None, False, ())},
    )
    return Discovery(settings, zookeeper).creation_ids(reported)


@pytest.mark.parametrize("bootstrap", [True, False], ids=["bootstrap", "registered"])
@pytest.mark.parametrize("cluster_id", ["abc", None], ids=["with an id", "before 0.10.1"])
def test_the_creation_of_a_topics_znode_stands_for_its_id_in_the_brokers_own_zookeeper(
    cluster_id: str | None, bootstrap: bool
) -> None:
    assert ids_of(cluster_id, bootstrap=bootstrap) == {"clicks": "zxid-1f-18bcfe56800"}


@pytest.mark.parametrize(
    ("cluster_id", "host"),
    [("xyz", "kafka-1"), (None, "kafka-9")],
    ids=["another id", "another address"],
)
def test_a_topic_of_the_same_name_in_another_clusters_zookeeper_is_ignored(
    cluster_id: str | None, host: str
) -> None:
    assert ids_of(cluster_id, host) == {}


@pytest.mark.parametrize("cluster_id", ["abc", None], ids=["with an id", "before 0.10.1"])
def test_a_zookeeper_without_a_cluster_has_no_topics(cluster_id: str | None) -> None:
    assert ids_of(cluster_id, nodes={}) == {}
