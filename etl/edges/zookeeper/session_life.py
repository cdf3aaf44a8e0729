"""Whether our ZooKeeper session lives, as kazoo hears it."""

from __future__ import annotations

import threading

from kazoo.client import KazooClient, KazooState

from etl.errors import SessionLost


class SessionLife:
    """Of the session of one client."""

    def __init__(self, client: KazooClient, hosts: str) -> None:
        self._hosts = hosts
        self._ended = threading.Event()
        self._settled = threading.Event()
        """Not set while the connection is broken and nobody knows what became of the session."""
        self._settled.set()
        self.connections = 0
        """How many times the connection broke: another server may be behind the next one."""
        client.add_listener(self.hear)

    @property
    def is_over(self) -> bool:
        """Whether it ended."""
        return self._ended.is_set()

    def require(self) -> None:
        """Refuse to go on after the session ended: nothing that was read before is used to commit.
        Raises SessionLost.
        """
        if self._ended.is_set():
            check = "zookeeper.session_timeout_s against pauses of this host; run again, it goes on from what is stored"
            raise SessionLost(
                "our ZooKeeper session ended during the run", connect=self._hosts, check=check
            )

    def require_soon(self, within_s: float) -> None:
        """The same where a connection broke: it may break just before the server says that the
        session is gone, so wait for that.
        """
        self._settled.wait(within_s)
        self.require()

    def hear(self, state: str) -> None:
        """What kazoo says of it, a `KazooState`."""
        if state == KazooState.LOST:
            self._ended.set()
        if state == KazooState.SUSPENDED:
            self.connections += 1
            self._settled.clear()
        else:
            self._settled.set()
