"""The members of a group in ZooKeeper: their registrations, our own among them, and how all of them
are called to a rebalance.

A member is an ephemeral node below `ids`. Whatever happens there, old consumers let go of
everything and share anew; and one that has tried in vain often enough owns nothing until the next
time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping

from kazoo.exceptions import NodeExistsError, NoNodeError

from etl.edges.zookeeper.in_flight import Changes
from etl.edges.zookeeper.process import is_dead
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import SettingsError
from etl.ledger.paths import GroupPaths
from etl.ledger.registrations import OwnerNode, parse_owner, parse_registration, thread_id

_NUDGE = "etl:nudge"


class GroupMembers:
    """Who is registered in one group. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._ids = GroupPaths(group).consumer_ids

    def path(self, member: str) -> str:
        """Where it is registered."""
        return f"{self._ids}/{member}"

    def read(self, members: Collection[str] | None = None) -> dict[str, bytes]:
        """Consumer id -> its registration, of all that are there, or of these; one that goes
        meanwhile is left out.
        """
        asked = (
            sorted(self._zookeeper.children(self._ids) or ())
            if members is None
            else sorted(members)
        )
        found = self._zookeeper.read_all([self.path(member) for member in asked])
        return {member: payload[0] for member, payload in zip(asked, found, strict=True) if payload}

    def register(self, member: str, payload: bytes, *, is_ours: bool) -> bool:
        """Make the member's node, or find that our session has made it; False while another
        session's is there.

        `is_ours`: no other process uses that id. So one of another session is what a lost session
        of ours left, and its place is taken.
        """
        self._zookeeper.ensure(self._ids)
        path, client = self.path(member), self._zookeeper.client
        try:
            self._zookeeper.guarded(
                lambda: client.retry(client.create, path, payload, ephemeral=True), path
            )
            return True
        except NodeExistsError:
            found = self._zookeeper.read_znodes([path])[0]
        if found is None or found.owner_session == self._session:
            return found is not None or self.register(member, payload, is_ours=is_ours)
        if not is_ours:
            return False
        return self._replace(path, payload) or self.register(member, payload, is_ours=is_ours)

    def replace(self, member: str, payload: bytes) -> None:
        """Register the member, which is ours, as something else: all are called to a rebalance."""
        if not self._replace(self.path(member), payload):
            self.register(member, payload, is_ours=True)

    def is_registered(self, member: str) -> bool:
        """Whether the node is there and our session's."""
        found = self._zookeeper.read_znodes([self.path(member)])[0]
        return found is not None and found.owner_session == self._session

    def wait_until_gone(self, member: str, *, wait_s: float) -> None:
        """Return when the node is not there, or the time is over."""
        gone = threading.Event()
        client, path = self._zookeeper.client, self.path(member)
        if self._zookeeper.guarded(
            lambda: client.retry(client.exists, path, watch=lambda _: gone.set())
        ):
            gone.wait(wait_s)

    def deregister(self, member: str) -> None:
        """Delete the member's node where it is our session's."""
        if self.is_registered(member):
            self._delete(member)

    def delete_left_behind(self, us: OwnerNode) -> None:
        """Delete the nodes of drivers of our pipeline that were processes of this host and are
        dead.
        """
        for member in self._zookeeper.children(self._ids) or ():
            owner = parse_owner(self._group, thread_id(member, 0))
            if (
                owner is not None
                and owner.pipeline == us.pipeline
                and owner.driver != us.driver
                and is_dead(owner.driver)
            ):
                self._delete(member)

    def nudge(self) -> None:
        """Call every member to a rebalance: a registration is made and deleted in one request. Its
        watch fires, and nobody sees it.

        So it does not matter which family of consumers could have read it.
        """
        path = self.path(f"{self._group}_{_NUDGE}")
        changes = Changes(self._zookeeper)
        changes.create(path, b"", ephemeral=True)
        changes.delete(path, 0)
        self._zookeeper.transact(changes.request, path)

    def _replace(self, path: str, payload: bytes) -> bool:
        """Delete the node and make it anew, as one; False when it went meanwhile."""
        changes = Changes(self._zookeeper)
        changes.delete(path, -1)
        changes.create(path, payload, ephemeral=True)
        return self._zookeeper.transact(changes.request, path)

    def _delete(self, member: str) -> None:
        path, client = self.path(member), self._zookeeper.client
        with contextlib.suppress(NoNodeError):
            self._zookeeper.guarded(lambda: client.retry(client.delete, path), path)

    @property
    def _session(self) -> int | None:
        found = self._zookeeper.client.client_id
        return found[0] if found else None


def readers_of(topics: Iterable[str], registrations: Mapping[str, bytes]) -> list[str]:
    """Which of these members read one of the topics; of one whose registration nobody understands
    that is taken for granted.
    """
    wanted = set(topics)
    return [member for member, payload in registrations.items() if _may_read(payload, wanted)]


def _may_read(payload: bytes, topics: set[str]) -> bool:
    try:
        return not topics.isdisjoint(parse_registration(payload, path="").threads(topics))
    except SettingsError:
        return True
