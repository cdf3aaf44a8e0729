"""ZooKeeper sessions in addition to our own: another client's, and one that ends ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kazoo.client import KazooClient

from etl.io.zookeeper.session_requests import ZooKeeper


@contextlib.contextmanager
def session_at(connect: str, **options: Any) -> Iterator[KazooClient]:
    """A session of kazoo's alone; `client_id`: the one of that id and password."""
    client = KazooClient(hosts=connect, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def lose_session(zookeeper: ZooKeeper, connect: str | None = None) -> None:
    """End a session by its id and password. `connect`: another address of the server."""
    with session_at(connect or zookeeper.hosts, client_id=zookeeper.client.client_id):
        pass
