"""How owner nodes of partitions are claimed and released, and members registered.

An owner node is the only thing that original consumers respect: their rebalance fails if this
program owns a partition. Claims are all or nothing. Correctness does not depend on them (ADR 1).

Only our own nodes are deleted. Between reading a node and deleting it, it may vanish and be created
by a consumer, with version 0. Ours are written twice in the request that creates them and have
version 1, which each delete expects.

Any change below `ids` makes original consumers release everything and rebalance. A consumer that
failed too often owns nothing until the next change.

Lives here: registrations of members, owner nodes.
Not here: what owners mean for a run (etl/decide/partition_owners.py), formats
(etl/ledger/owner_nodes.py, registrations.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import KazooTimeoutError

from etl.decide.partition_owners import owned_error
from etl.errors import Owned, PermissionDenied, SettingsError, Unreachable, ZooKeeperUnreachable
from etl.io.process import is_dead, this_driver
from etl.io.zookeeper.session_requests import (
    OPERATION_BYTES,
    Changes,
    Outcome,
    ZooKeeper,
    causes_in,
    ensure_each,
    in_requests,
    outcomes,
    payload_of_each,
)
from etl.ledger import owner_nodes
from etl.ledger.owner_nodes import OwnerNode, parse_owner, thread_id
from etl.ledger.registrations import parse_registration
from etl.ledger.znode_paths import GroupPaths
from etl.model import partitions
from etl.model.partitions import TopicPartition

_REBALANCE_TRIGGER = "etl:nudge"


class GroupMembers:
    """The registrations of one group's members. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._ids = GroupPaths(group).consumer_ids

    def path(self, member: str) -> str:
        """Return the path of a member's registration."""
        return f"{self._ids}/{member}"

    def read(self, members: Collection[str] | None = None) -> dict[str, bytes]:
        """Return consumer id -> registration, of these members or of all (None).

        Members that leave meanwhile are left out.
        """
        names = self._zookeeper.children(self._ids) or () if members is None else members
        return payload_of_each(self._zookeeper, sorted(names), self.path)

    def register(self, member: str, payload: bytes, *, is_ours: bool) -> bool:
        """Create the member's node, unless our session has created it; return success.

        False while the node is of another session. `is_ours`: no other process uses that id. Then
        a node of another session was left by a lost session of ours, and is replaced.
        """
        self._zookeeper.ensure(self._ids)
        path = self.path(member)
        client = self._zookeeper.client
        try:
            self._zookeeper.guarded(
                lambda: client.retry(client.create, path, payload, ephemeral=True), path
            )
            return True
        except NodeExistsError:
            found = self._zookeeper.read_znodes([path])[0]
        if found is None:  # deleted since
            return self.register(member, payload, is_ours=is_ours)
        if found.owner_session == self._session:
            return True
        if not is_ours:
            return False
        return self._replace(path, payload) or self.register(member, payload, is_ours=is_ours)

    def replace(self, member: str, payload: bytes) -> None:
        """Replace the registration of our member, which triggers a rebalance."""
        if not self._replace(self.path(member), payload):
            self.register(member, payload, is_ours=True)

    def is_registered(self, member: str) -> bool:
        """Return True if the node exists and is of our session."""
        found = self._zookeeper.read_znodes([self.path(member)])[0]
        return found is not None and found.owner_session == self._session

    def wait_until_gone(self, member: str, *, wait_s: float) -> None:
        """Wait until the node is deleted, or `wait_s` seconds."""
        deleted = threading.Event()
        client = self._zookeeper.client
        path = self.path(member)
        if self._zookeeper.guarded(
            lambda: client.retry(client.exists, path, watch=lambda _: deleted.set())
        ):
            deleted.wait(wait_s)

    def deregister(self, member: str) -> None:
        """Delete the member's node if it is of our session."""
        if self.is_registered(member):
            self._delete(member)

    def delete_stale_nodes(self, us: OwnerNode) -> None:
        """Delete the nodes of our pipeline's earlier drivers: dead processes of this host."""
        for member in self._zookeeper.children(self._ids) or ():
            owner = parse_owner(self._group, thread_id(member, 0))
            if owner is None or owner.pipeline != us.pipeline or owner.driver == us.driver:
                continue
            if is_dead(owner.driver):
                self._delete(member)

    def nudge(self) -> None:
        """Trigger a rebalance of the group's consumers.

        A registration is created and deleted in one request, so the watch fires, and no consumer
        reads the registration.
        """
        path = self.path(f"{self._group}_{_REBALANCE_TRIGGER}")
        changes = Changes(self._zookeeper)
        changes.create(path, b"", ephemeral=True)
        changes.delete(path, 0)
        self._zookeeper.transact(changes.request, path)

    def _replace(self, path: str, payload: bytes) -> bool:
        """Delete and create the node in one transaction; False if it was deleted meanwhile."""
        changes = Changes(self._zookeeper)
        changes.delete(path, -1)
        changes.create(path, payload, ephemeral=True)
        return self._zookeeper.transact(changes.request, path)

    def _delete(self, member: str) -> None:
        path = self.path(member)
        client = self._zookeeper.client
        with contextlib.suppress(NoNodeError):
            self._zookeeper.guarded(lambda: client.retry(client.delete, path), path)

    @property
    def _session(self) -> int | None:
        found = self._zookeeper.client.client_id
        return found[0] if found else None


def readers_of(topics: Iterable[str], registrations: Mapping[str, bytes]) -> list[str]:
    """Return the members that read one of the topics; unparsable registrations count."""
    wanted = set(topics)
    readers = []
    for member, payload in registrations.items():
        if _may_read(payload, wanted):
            readers.append(member)
    return readers


def _may_read(payload: bytes, topics: set[str]) -> bool:
    try:
        return not topics.isdisjoint(parse_registration(payload, path="").threads(topics))
    except SettingsError:
        return True


_ATTEMPTS = 5
"""Tries of one request: an answer is lost, a dead driver left nodes, an owner comes and goes."""
OUR_VERSION = 1
"""Version of owner nodes that this program created, which commits check."""


@dataclass(frozen=True, slots=True)
class _Node:
    """An owner node."""

    owner: str
    session: int
    version: int


class Owners:
    """The owner nodes of one pipeline, under the driver lock. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self._zookeeper = zookeeper
        self._pipeline = pipeline
        self._paths = GroupPaths(group)
        self._members = GroupMembers(zookeeper, group)

    @contextlib.contextmanager
    def claiming(self, topic_partitions: Collection[TopicPartition], run_id: str) -> Iterator[None]:
        """Own all of these partitions while the context is open.

        Raises Owned if another consumer owns one, SessionLost if the session ended. At the end, and
        if only a part could be claimed, all our nodes are deleted. Nodes of a dead process of this
        host, or of a lost session of this run, are replaced at once.
        """
        us = owner_nodes.OwnerNode(self._pipeline, this_driver(run_id))
        payload = owner_nodes.render_owner(self._paths.group, us)
        try:
            self.claim(dict.fromkeys(topic_partitions, payload), us)
            yield
        finally:
            self.release(topic_partitions, calling_others=True)

    def claim(self, threads: Mapping[TopicPartition, bytes], us: owner_nodes.OwnerNode) -> None:
        """Own each partition as its thread. Raises as `claiming`; a part may then be claimed."""
        wanted = sorted(threads)
        requests = list(
            in_requests(wanted, lambda partition: self._cost(partition, threads[partition]))
        )
        self._ensure_topics(wanted)
        sent = [self._send(request, (), threads) for request in requests]
        for request, outcome in zip(requests, outcomes(sent), strict=True):
            self._claim(request, us, threads, self._rejection(request, outcome))

    def owns(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Return True if our session owns all of these partitions."""
        found = self._read(topic_partitions)
        if len(found) != len(topic_partitions):
            return False
        return all(node.session == self._session for node in found.values())

    def wait_until_gone(
        self, topic_partitions: Collection[TopicPartition], *, wait_s: float
    ) -> None:
        """Wait until none of these partitions has an owner. Raises Owned after `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        while True:
            changed = threading.Event()
            owned = self.owned_of(topic_partitions, changed)
            if not owned:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise _owned_by(self._read(owned), f"; waited {wait_s:g} s")
            changed.wait(left)

    def _cost(self, partition: TopicPartition, payload: bytes) -> int:
        """Return the bytes of a delete, a create and a write."""
        operation = (
            OPERATION_BYTES + len(self._zookeeper.chroot) + len(self._paths.owner(partition))
        )
        return 3 * operation + len(payload)

    def _claim(
        self,
        topic_partitions: Sequence[TopicPartition],
        us: owner_nodes.OwnerNode,
        threads: Mapping[TopicPartition, bytes],
        rejection: Exception | None,
    ) -> None:
        """Repeat a rejected claim until all of its partitions are owned.

        `rejection`: of the first try; None if it succeeded.
        """
        for attempt in range(_ATTEMPTS):
            self._zookeeper.require_session()
            if rejection is None:
                return
            found = self._read(topic_partitions)
            ours = set()
            stale = set()
            foreign = {}
            for partition, node in found.items():
                if node.session == self._session:
                    ours.add(partition)
                elif self._is_stale(node, us):
                    stale.add(partition)
                else:
                    foreign[partition] = node
            if foreign:
                raise _owned_by(foreign) from rejection
            missing = [partition for partition in topic_partitions if partition not in ours]
            if not missing:
                return
            if attempt < _ATTEMPTS - 1:
                self._ensure_topics(missing)
                [outcome] = outcomes([self._send(missing, stale, threads)])
                rejection = self._rejection(missing, outcome)
        reason = rejection or type(rejection).__name__
        raise ZooKeeperUnreachable(
            f"{len(missing):,} partitions could not be claimed: {reason}",
            znode=self._paths.owner(missing[0]),
            action="Check ZooKeeper's log, then run again",
        ) from rejection

    def _ensure_topics(self, topic_partitions: Collection[TopicPartition]) -> None:
        topics = {partition.topic for partition in topic_partitions}
        ensure_each(self._zookeeper, [self._paths.owners_of(topic) for topic in topics])

    def _send(
        self,
        topic_partitions: Sequence[TopicPartition],
        stale: Collection[TopicPartition],
        threads: Mapping[TopicPartition, bytes],
    ) -> Any:
        """Send one claim without waiting; `stale` nodes are deleted first."""
        changes = Changes(self._zookeeper)
        for partition in topic_partitions:
            path = self._paths.owner(partition)
            if partition in stale:
                changes.delete(path, OUR_VERSION)
            changes.create(path, b"", ephemeral=True)
            changes.write(path, threads[partition], OUR_VERSION - 1)
        return changes.send()

    def _rejection(
        self, topic_partitions: Sequence[TopicPartition], outcome: Outcome
    ) -> Exception | None:
        """Return why a claim was rejected or has no answer; None if it succeeded.

        Raises PermissionDenied.
        """
        if isinstance(outcome, Exception):
            return outcome
        causes = causes_in(outcome)
        if not causes:
            return None
        if isinstance(causes[0], NoAuthError):
            raise PermissionDenied(
                "ZooKeeper does not let this login claim partitions",
                key="zookeeper.auth",
                znode=self._paths.owner(topic_partitions[0]),
                action="Check the ACLs of the znodes, or set group.mode: observe",
            ) from causes[0]
        return causes[0]

    def _is_stale(self, node: _Node, us: owner_nodes.OwnerNode) -> bool:
        owner = owner_nodes.parse_owner(self._paths.group, node.owner)
        if owner is None or owner.pipeline != us.pipeline or node.version != OUR_VERSION:
            return False
        return owner.driver == us.driver or is_dead(owner.driver)

    def release(
        self, topic_partitions: Collection[TopicPartition], *, calling_others: bool = False
    ) -> bool:
        """Delete our session's owner nodes; return success. Never raises for ZooKeeper's errors.

        False: some may be left, and end with the session. `calling_others`: trigger a rebalance
        for consumers that may have given up while we owned the partitions.
        """
        if not topic_partitions:
            return True
        if not self._zookeeper.client.connected:
            return False
        with contextlib.suppress(KazooException, KazooTimeoutError, Unreachable, PermissionDenied):
            ours = []
            for partition, node in self._read(topic_partitions).items():
                if node.session == self._session:
                    ours.append(partition)
            self._delete(ours)
            if ours and calling_others:
                topics = {partition.topic for partition in ours}
                if readers_of(topics, self._members.read()):
                    self._members.nudge()
            return True
        return False

    def release_stale_owners(self, topics: Collection[str], us: owner_nodes.OwnerNode) -> None:
        """Delete the nodes that dead drivers of our pipeline left in these topics."""
        owned: list[TopicPartition] = []
        for topic in topics:
            owned.extend(self._owned_in(topic, None))
        stale = []
        for partition, node in self._read(owned).items():
            if self._is_stale(node, us):
                stale.append(partition)
        self._delete(stale)

    def _delete(self, topic_partitions: Sequence[TopicPartition]) -> None:
        requests = list(in_requests(topic_partitions, lambda partition: self._cost(partition, b"")))
        sent = [self._send_deletes(request) for request in requests]
        for request, outcome in zip(requests, outcomes(sent), strict=True):
            self._delete_each_left(request, outcome)

    def _send_deletes(self, topic_partitions: Sequence[TopicPartition]) -> Any:
        changes = Changes(self._zookeeper)
        for partition in topic_partitions:
            changes.delete(self._paths.owner(partition), OUR_VERSION)
        return changes.request.commit_async()

    def _delete_each_left(
        self, topic_partitions: Sequence[TopicPartition], outcome: Outcome
    ) -> None:
        """Delete the nodes one by one if another client changed one and so rejected the request."""
        if isinstance(outcome, Exception):
            raise outcome
        if any(isinstance(result, Exception) for result in outcome):
            for partition in topic_partitions:
                with contextlib.suppress(NoNodeError, BadVersionError):
                    self._zookeeper.client.delete(self._paths.owner(partition), version=OUR_VERSION)

    @property
    def _session(self) -> int | None:
        found = self._zookeeper.client.client_id
        return found[0] if found else None

    def _read(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, _Node]:
        """Return the owner node of each partition that has one."""
        paths = [self._paths.owner(partition) for partition in topic_partitions]
        nodes = {}
        for partition, found in zip(
            topic_partitions, self._zookeeper.read_znodes(paths), strict=True
        ):
            if found:
                owner = found.payload.decode("utf-8", "replace")
                nodes[partition] = _Node(owner, found.owner_session, found.version)
        return nodes

    def owned_of(
        self, topic_partitions: Collection[TopicPartition], changed: threading.Event | None = None
    ) -> list[TopicPartition]:
        """Return those of these partitions that have an owner.

        `changed` is set once owners in their topics are created or deleted afterwards.
        """
        owned: set[TopicPartition] = set()
        for topic in sorted({partition.topic for partition in topic_partitions}):
            owned.update(self._owned_in(topic, changed))
        return sorted(owned.intersection(topic_partitions))

    def _owned_in(self, topic: str, changed: threading.Event | None) -> list[TopicPartition]:
        client = self._zookeeper.client
        path = self._paths.owners_of(topic)
        watch = (lambda _: changed.set()) if changed else None
        try:
            keys = self._zookeeper.guarded(
                lambda: client.retry(client.get_children, path, watch=watch)
            )
        except NoNodeError:
            return []
        topic_partitions = []
        for key in keys:
            partition = partitions.parse_partition_key(topic, key)
            if partition:
                topic_partitions.append(partition)
        return topic_partitions


def _owned_by(owners: Mapping[TopicPartition, _Node], waited: str = "") -> Owned:
    if not owners:  # deleted since
        return Owned(
            f"The partitions had owners until a moment ago{waited}",
            action="Run again",
        )
    return owned_error({partition: node.owner for partition, node in owners.items()}, waited=waited)
