"""Copies of ZooKeeper's persistent znodes, as a backup has them."""

from __future__ import annotations

from tests.fakes.outside import Outside
from tests.fakes.zookeeper_memory import Znode

Znodes = dict[str, Znode]


def znodes_of(outside: Outside) -> Znodes:
    """A copy of ZooKeeper's persistent znodes."""
    return outside.zookeeper.persistent()


def restore_znodes(outside: Outside, found: Znodes) -> None:
    """Put the copy in ZooKeeper's place."""
    outside.zookeeper.restore(found)
