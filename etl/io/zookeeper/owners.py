"""Who owns which partition, and how are owner nodes claimed and released?

An owner node is the only thing that original consumers respect: their rebalance fails where we own.
Claims are all or nothing. Correctness does not depend on them (ADR 1).

Only our own nodes are deleted. Between reading a node and deleting it, it may vanish and be created
by a consumer, with version 0; ours are written twice in the request that creates them and have
version 1, which each delete names.

Any change below `ids` makes original consumers release everything and rebalance; one that failed
too often owns nothing until the next change.
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
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from etl.decide.group_ownership import owned_by
from etl.errors import Owned, PermissionDenied, SettingsError, Unreachable, ZooKeeperUnreachable
from etl.io.process import is_dead, this_driver
from etl.io.zookeeper.session import (
    OPERATION_BYTES,
    Changes,
    Outcome,
    ZooKeeper,
    ensure_each,
    in_requests,
    outcomes,
)
from etl.ledger import registrations
from etl.ledger.paths import GroupPaths
from etl.ledger.registrations import OwnerNode, parse_owner, parse_registration, thread_id
from etl.model import partitions
from etl.model.partitions import BrokerPartition

_NUDGE = "etl:nudge"


class GroupMembers:
    """Registrations of one group. Raises as `ZooKeeper`."""

    def __init__(self, zookeeper: ZooKeeper, group: str) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._ids = GroupPaths(group).consumer_ids

    def path(self, member: str) -> str:
        """Return its registration's path."""
        return f"{self._ids}/{member}"

    def read(self, members: Collection[str] | None = None) -> dict[str, bytes]:
        """Consumer id -> its registration, of all that are there, or of these; one that goes
        meanwhile is left out.
        """
        ids = (
            sorted(self._zookeeper.children(self._ids) or ())
            if members is None
            else sorted(members)
        )
        found = self._zookeeper.read_all([self.path(member) for member in ids])
        return {member: payload[0] for member, payload in zip(ids, found, strict=True) if payload}

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
        """Change our member's registration, which triggers a rebalance."""
        if not self._replace(self.path(member), payload):
            self.register(member, payload, is_ours=True)

    def is_registered(self, member: str) -> bool:
        """True if the node exists and is our session's."""
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

    def delete_stale_nodes(self, us: OwnerNode) -> None:
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
        """Trigger a rebalance: a registration is created and deleted in one request, so its watch
        fires, and no consumer reads it.
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
    """Return the members that read one of the topics; unparsable registrations count."""
    wanted = set(topics)
    return [member for member, payload in registrations.items() if _may_read(payload, wanted)]


def _may_read(payload: bytes, topics: set[str]) -> bool:
    try:
        return not topics.isdisjoint(parse_registration(payload, path="").threads(topics))
    except SettingsError:
        return True


_ATTEMPTS = 5
"""How often one request is tried: an answer may be lost, a dead driver's nodes are found, an owner
comes and goes.
"""
OUR_VERSION = 1
"""Version of owner nodes that we created, which commits check."""


@dataclass(frozen=True, slots=True)
class _Node:
    owner: str
    session: int
    version: int


class Owners:
    """Owner nodes that one pipeline claims, under the driver lock. Raises as `ZooKeeper`."""

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self._zookeeper = zookeeper
        self._pipeline = pipeline
        self._paths = GroupPaths(group)
        self._members = GroupMembers(zookeeper, group)

    @contextlib.contextmanager
    def claiming(self, logs: Collection[BrokerPartition], run_id: str) -> Iterator[None]:
        """Context manager: own all of these partitions.

        Raises Owned if another consumer owns one, SessionLost if the session ended. At the end, and
        if only a part could be claimed, no node of ours stays. Nodes of a dead process of this
        host, or of a lost session of this run, are taken over at once.
        """
        us = registrations.OwnerNode(self._pipeline, this_driver(run_id))
        payload = registrations.render_owner(self._paths.group, us)
        try:
            self.claim({log: payload for log in logs}, us)
            yield
        finally:
            self.release(logs, calling_others=True)

    def claim(self, threads: Mapping[BrokerPartition, bytes], us: registrations.OwnerNode) -> None:
        """Own each of these logs as the thread that is named for it. Raises as `claiming`, and then
        a part of them may be ours.
        """
        wanted = sorted(threads)
        requests = list(in_requests(wanted, lambda log: self._cost(log, threads[log])))
        self._ensure_topics(wanted)
        found = outcomes(self._send(some, (), threads) for some in requests)
        for some, outcome in zip(requests, found, strict=True):
            self._claim(some, us, threads, self._refusal(some, outcome))

    def owns(self, logs: Collection[BrokerPartition]) -> bool:
        """True if all of these are ours now."""
        found = self._read(logs)
        return len(found) == len(logs) and all(
            node.session == self._session for node in found.values()
        )

    def wait_until_gone(self, logs: Collection[BrokerPartition], *, wait_s: float) -> None:
        """Return when none of these logs has an owner. Raises Owned when that takes longer."""
        deadline = time.monotonic() + wait_s
        while True:
            changed = threading.Event()
            owned = self.owned_of(logs, changed)
            if not owned:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise _owned_by(self._read(owned), f"; waited {wait_s:g} s")
            changed.wait(left)

    def _cost(self, log: BrokerPartition, payload: bytes) -> int:
        """Bytes of a delete, a create and a write."""
        return 3 * (
            OPERATION_BYTES + len(self._zookeeper.chroot) + len(self._paths.owner(log))
        ) + len(payload)

    def _claim(
        self,
        logs: Sequence[BrokerPartition],
        us: registrations.OwnerNode,
        threads: Mapping[BrokerPartition, bytes],
        refusal: Exception | None,
    ) -> None:
        """Repeat a claim after a rejection until all of it is ours."""
        for attempt in range(_ATTEMPTS):
            self._zookeeper.require_session()
            if refusal is None:
                return
            found = self._read(logs)
            ours = {log for log, node in found.items() if node.session == self._session}
            left_behind = {log for log in found.keys() - ours if self._is_stale(found[log], us)}
            foreign = {log: found[log] for log in found.keys() - ours - left_behind}
            if foreign:
                raise _owned_by(foreign) from refusal
            missing = [log for log in logs if log not in ours]
            if not missing:
                return
            if attempt < _ATTEMPTS - 1:
                self._ensure_topics(missing)
                refusal = self._refusal(
                    missing, *outcomes([self._send(missing, left_behind, threads)])
                )
        message = (
            f"{len(missing):,} partitions could not be claimed: {refusal or type(refusal).__name__}"
        )
        raise ZooKeeperUnreachable(
            message, znode=self._paths.owner(missing[0]), action="ZooKeeper's log; then run again"
        ) from refusal

    def _ensure_topics(self, logs: Collection[BrokerPartition]) -> None:
        ensure_each(
            self._zookeeper, (self._paths.owners_of(topic) for topic in {log.topic for log in logs})
        )

    def _send(
        self,
        logs: Sequence[BrokerPartition],
        left_behind: Collection[BrokerPartition],
        threads: Mapping[BrokerPartition, bytes],
    ) -> Any:
        """Send one claim and do not wait."""
        changes = Changes(self._zookeeper)
        for log in logs:
            path = self._paths.owner(log)
            if log in left_behind:
                changes.delete(path, OUR_VERSION)
            changes.create(path, b"", ephemeral=True)
            changes.write(path, threads[log], OUR_VERSION - 1)
        return changes.send()

    def _refusal(self, logs: Sequence[BrokerPartition], outcome: Outcome) -> Exception | None:
        """Return None if all of it is ours; otherwise why not, or that it is unknown. Raises
        PermissionDenied.
        """
        if isinstance(outcome, Exception):
            return outcome
        failures = [result for result in outcome if isinstance(result, Exception)]
        reason = next(
            (f for f in failures if not isinstance(f, (RolledBackError, RuntimeInconsistency))),
            None,
        )
        if isinstance(reason, NoAuthError):
            message = "ZooKeeper does not let us claim partitions"
            action = "Check the znodes' ACLs, or set group.mode: observe"
            raise PermissionDenied(
                message, znode=self._paths.owner(logs[0]), action=action
            ) from reason
        return reason

    def _is_stale(self, node: _Node, us: registrations.OwnerNode) -> bool:
        owner = registrations.parse_owner(self._paths.group, node.owner)
        if owner is None or owner.pipeline != us.pipeline or node.version != OUR_VERSION:
            return False
        return owner.driver == us.driver or is_dead(owner.driver)

    def release(self, logs: Collection[BrokerPartition], *, calling_others: bool = False) -> bool:
        """Delete our session's owner nodes. False: some may be left, and end with the session.
        Never raises. `calling_others`: trigger a rebalance for consumers that may have given up
        because of us.
        """
        if not logs or not self._zookeeper.client.connected:
            return not logs
        with contextlib.suppress(KazooException, KazooTimeoutError, Unreachable, PermissionDenied):
            ours = [log for log, node in self._read(logs).items() if node.session == self._session]
            self._delete(ours)
            if (
                ours
                and calling_others
                and readers_of({log.topic for log in ours}, self._members.read())
            ):
                self._members.nudge()
            return True
        return False

    def release_stale_owners(self, topics: Collection[str], us: registrations.OwnerNode) -> None:
        """Delete the nodes that dead drivers of our pipeline left in these topics."""
        owned = [log for topic in topics for log in self._logs_of(topic, None)]
        self._delete([log for log, node in self._read(owned).items() if self._is_stale(node, us)])

    def _delete(self, logs: Sequence[BrokerPartition]) -> None:
        requests = list(in_requests(logs, lambda log: self._cost(log, b"")))
        for some, outcome in zip(
            requests, outcomes(self._send_deletes(some) for some in requests), strict=True
        ):
            self._delete_each_left(some, outcome)

    def _send_deletes(self, logs: Sequence[BrokerPartition]) -> Any:
        changes = Changes(self._zookeeper)
        for log in logs:
            changes.delete(self._paths.owner(log), OUR_VERSION)
        return changes.request.commit_async()

    def _delete_each_left(self, logs: Sequence[BrokerPartition], outcome: Outcome) -> None:
        """One by one where another client changed one, for then a request does nothing."""
        if isinstance(outcome, Exception):
            raise outcome
        if any(isinstance(result, Exception) for result in outcome):
            for log in logs:
                with contextlib.suppress(NoNodeError, BadVersionError):
                    self._zookeeper.client.delete(self._paths.owner(log), version=OUR_VERSION)

    @property
    def _session(self) -> int | None:
        found = self._zookeeper.client.client_id
        return found[0] if found else None

    def _read(self, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, _Node]:
        """The owner nodes that are there, pipelined."""
        read = self._zookeeper.read_znodes([self._paths.owner(log) for log in logs])
        return {
            log: _Node(found.payload.decode("utf-8", "replace"), found.owner_session, found.version)
            for log, found in zip(logs, read, strict=True)
            if found
        }

    def owned_of(
        self, logs: Collection[BrokerPartition], changed: threading.Event | None = None
    ) -> list[BrokerPartition]:
        """Which of these logs have an owner; `changed` is set once owners of their topics come or
        go after that.
        """
        owned: set[BrokerPartition] = set()
        for topic in sorted({log.topic for log in logs}):
            owned.update(self._logs_of(topic, changed))
        return sorted(owned.intersection(logs))

    def _logs_of(self, topic: str, changed: threading.Event | None) -> list[BrokerPartition]:
        client, path = self._zookeeper.client, self._paths.owners_of(topic)
        watch = (lambda _: changed.set()) if changed else None
        try:
            keys = self._zookeeper.guarded(
                lambda: client.retry(client.get_children, path, watch=watch)
            )
        except NoNodeError:
            return []
        return [log for key in keys if (log := partitions.parse_partition_key(topic, key))]


def _owned_by(owners: Mapping[BrokerPartition, _Node], waited: str = "") -> Owned:
    if not owners:  # gone since
        return Owned(f"The partitions had owners until just now{waited}", action="Run again")
    return owned_by({log: node.owner for log, node in owners.items()}, waited=waited)
