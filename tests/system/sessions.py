"""ZooKeeper sessions that end."""

from __future__ import annotations

from kazoo.client import KazooClient

from etl.edges.zookeeper.session import ZooKeeper


def lose_session(zookeeper: ZooKeeper) -> None:
    """As its timeout would."""
    twin = KazooClient(hosts=zookeeper.hosts, client_id=zookeeper.client.client_id)
    twin.start()
    twin.stop()
    twin.close()
