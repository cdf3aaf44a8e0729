"""What a ZooKeeper server and its ACLs permit.

Lives here: reading and setting ACLs, the probes of `etl doctor`.
Not here: which ACL a new znode gets (login_and_acl.py).

An ACL stays as its znode was created and holds for that znode only; deletion is permitted by the
parent's ACL (ZooKeeper Programmer's Guide, "ZooKeeper access control using ACLs").

`etl doctor` tests permissions without leaving a trace: a server checks ACLs before versions, so a
write with an impossible version is rejected for one reason or the other; a `multi` whose last
operation fails is rolled back and still reports which operation was rejected; a request above
`jute.maxbuffer` closes the connection.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError, NotEmptyError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from etl.errors import PermissionDenied, ZooKeeperUnreachable
from etl.io.zookeeper import login_and_acl
from etl.io.zookeeper.session_requests import NO_ANSWER, ZooKeeper, children_of_each
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.security import EVERYBODY, OPEN_ZOOKEEPER, Access

_ANY_VERSION = -1
_NO_VERSION = 2**31 - 2
"""A version that no znode reaches."""


def kept_by(zookeeper: ZooKeeper, group: str, pipeline: str) -> list[str]:
    """Return the paths of all znodes of a pipeline, parents first.

    Empty if there is no such pipeline.
    """
    level = []
    if pipeline in (zookeeper.children(GroupPaths(group).pipelines) or ()):
        level.append(PipelinePaths(group, pipeline).root)
    paths = []
    while level:
        paths.extend(level)
        below: list[str] = []
        for path, names in zip(level, children_of_each(zookeeper, level), strict=True):
            for name in sorted(names):
                below.append(f"{path}/{name}")
        level = below
    return paths


def writers_of(zookeeper: ZooKeeper, paths: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return which identities may do more than read each znode, as `scheme:id`.

    EVERYBODY for open znodes; missing znodes and hidden ACLs are left out.
    """
    client = zookeeper.client

    def request() -> list[list[ACL] | None]:
        sent = [client.get_acls_async(path) for path in paths]
        return [_acls(pending) for pending in sent]

    writers = {}
    for path, acls in zip(paths, zookeeper.guarded(lambda: client.retry(request)), strict=True):
        if acls:
            identities = set()
            for acl in acls:
                if acl.perms & ~Permissions.READ:
                    identities.add(_identity(acl))
            writers[path] = frozenset(identities)
    return writers


def apply_acls(zookeeper: ZooKeeper, paths: Sequence[str], *, dry_run: bool = False) -> int:
    """Set the ACL of each znode to that of a new one; return the number of znodes set.

    dry_run   set none, and return how many would be set: servers check permissions before the
              impossible version that is sent

    Raises PermissionDenied for the first that cannot be changed; others may be set by then.
    """
    client = zookeeper.client
    version = _NO_VERSION if dry_run else _ANY_VERSION
    requests = []
    for path in paths:
        requests.append((path, client.set_acls_async(path, client.acl_of(path), version)))
    applied = 0
    for path, pending in requests:
        try:
            zookeeper.guarded(pending.get, path)
        except NoNodeError:
            continue
        except BadVersionError:
            pass  # a dry run: it may be set
        applied += 1
    return applied


def _acls(pending: Any) -> list[ACL] | None:
    try:
        return list(pending.get()[0])
    except (NoNodeError, NoAuthError):
        return None


def _identity(acl: ACL) -> str:
    return EVERYBODY if acl.id == ANYONE_ID_UNSAFE else f"{acl.id.scheme}:{acl.id.id}"


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What one server of the ensemble reports."""

    address: str
    version: str | None
    """None: the server does not answer `srvr` (4lw.commands.whitelist)."""
    mode: str | None
    """standalone, leader, follower, observer."""
    granted_s: float
    """The session timeout that the server granted."""


def ask_server(
    host: str,
    port: int,
    *,
    session_timeout_s: float,
    timeout_s: float,
    access: Access = OPEN_ZOOKEEPER,
) -> ServerAnswer:
    """Return version and mode of one server, after a handshake and a login if one is configured.

    Raises ZooKeeperUnreachable, and SettingsError and PermissionDenied for TLS and login.
    """
    address = f"{host}:{port}"
    try:
        status = login_and_acl.srvr(host, port, access, timeout_s)
        granted_ms = login_and_acl.granted_ms(
            host, port, access, asked_ms=round(session_timeout_s * 1000), timeout_s=timeout_s
        )
    except (OSError, login_and_acl.NoHandshake) as error:
        encryption_error = login_and_acl.of_encryption(error, host, port, access, timeout_s)
        if encryption_error is not None:
            raise encryption_error from None
        reason = str(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise ZooKeeperUnreachable(
            f"ZooKeeper does not answer: {reason}",
            server=address,
            action="Check that ZooKeeper runs there, and that zookeeper.connect names it",
        ) from error
    if access.auth is not None:
        connect = f"[{host}]:{port}" if ":" in host else address
        with ZooKeeper(connect, connect_timeout_s=timeout_s, access=access):
            pass
    version = _search(r"^Zookeeper version: ([\w.]+)", status, re.IGNORECASE)
    mode = _search(r"^Mode: (\w+)", status)
    return ServerAnswer(address, version, mode, granted_ms / 1000)


def _search(pattern: str, status: str, flags: int = 0) -> str | None:
    """Return the group of the first line that matches; None if no line does."""
    found = re.search(pattern, status, re.MULTILINE | flags)
    return found[1] if found else None


def takes_request(zookeeper: ZooKeeper, size: int) -> bool:
    """Return True if the server accepts a request of `size` bytes.

    Reads a znode with a name of that length, in a separate session.
    """
    with zookeeper.at_root() as probe:
        try:
            probe.client.exists("/" + "x" * size)
        except NO_ANSWER:
            return False
    return True


def nearest(zookeeper: ZooKeeper, path: str) -> str:
    """Return `path`, or the nearest existing znode above it.

    If an ACL hides whether znodes exist, return the topmost hidden path.
    """
    hidden = None
    while path != "/":
        try:
            exists = functools.partial(zookeeper.client.retry, zookeeper.client.exists, path)
            if zookeeper.guarded(exists):
                break
            hidden = None
        except PermissionDenied:
            # `exists` needs READ (ZooKeeper 3.9). The znode is hidden, or it is missing and the
            # znode above it is hidden.
            hidden = path
        path = path.rpartition("/")[0] or "/"
    return hidden or path


def children_shown(zookeeper: ZooKeeper, path: str) -> list[str]:
    """Return the sorted names of the children; empty for a missing or hidden znode."""
    try:
        return sorted(zookeeper.children(path) or ())
    except PermissionDenied:
        return []


def may_read(zookeeper: ZooKeeper, path: str) -> bool:
    """Return True if this login may read data and children of the znode."""
    return _is_allowed(zookeeper, lambda: zookeeper.client.get_children(path))


def may_write(zookeeper: ZooKeeper, path: str) -> bool:
    """Return True if this login may change the znode's data."""
    return _is_allowed(zookeeper, lambda: zookeeper.client.set(path, b"", version=_NO_VERSION))


def refused_below(zookeeper: ZooKeeper, path: str) -> str | None:
    """Return the denied operation on children of the znode: `create` or `delete`; None: both work.

    ZooKeeper checks ACLs before versions, so the impossible version rejects the transaction, and no
    znode changes.
    """
    child = f"{path.rstrip('/')}/etl-doctor-{secrets.token_hex(8)}"
    request = zookeeper.client.transaction()
    request.create(child, b"", ephemeral=True)
    request.delete(child)
    request.check(path, _NO_VERSION)  # always rejected
    created, deleted, *_ = zookeeper.guarded(request.commit)
    if isinstance(created, NoAuthError):
        return "create"
    return "delete" if isinstance(deleted, NoAuthError) else None


def _is_allowed(zookeeper: ZooKeeper, call: Callable[[], object]) -> bool:
    try:
        zookeeper.guarded(lambda: zookeeper.client.retry(call))
    except PermissionDenied:
        return False
    except (BadVersionError, NoNodeError, NotEmptyError):
        pass
    return True
