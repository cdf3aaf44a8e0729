"""What do a server and its ACLs permit?

An ACL stays as its znode was created and holds for that znode only; deletion is permitted by the
parent's ACL (ZooKeeper Programmer's Guide, "ZooKeeper access control using ACLs").

`etl doctor` tests permissions without leaving a trace: a server checks ACLs before versions, so a
write with an impossible version is rejected for one reason or the other; a `multi` whose last
operation fails is rolled back and still says which operation was rejected; a request above
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
from etl.io.zookeeper import connection
from etl.io.zookeeper.session import NO_ANSWER, ZooKeeper, children_of_each
from etl.ledger.paths import GroupPaths, PipelinePaths
from etl.model.security import EVERYBODY, OPEN_ZOOKEEPER, Access
from etl.model.snapshot import backfill_pipeline


def kept_by(zookeeper: ZooKeeper, group: str, pipeline: str) -> list[str]:
    """Return each znode of a pipeline and its backfills, parents first; empty without such a
    pipeline.
    """
    of_backfill = backfill_pipeline(pipeline, "")
    names = sorted(zookeeper.children(GroupPaths(group).pipelines) or ())
    found = level = [
        PipelinePaths(group, name).root
        for name in names
        if name == pipeline or name.startswith(of_backfill)
    ]
    while level:
        level = [
            f"{path}/{name}"
            for path, names in zip(level, children_of_each(zookeeper, level), strict=True)
            for name in sorted(names)
        ]
        found = [*found, *level]
    return found


def writers_of(zookeeper: ZooKeeper, paths: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return who may do more than read each znode, as `scheme:id`; EVERYBODY for open ones. Without
    missing znodes and hidden ACLs.
    """
    client = zookeeper.client

    def ask() -> list[list[ACL] | None]:
        return [_answer(requests) for requests in [client.get_acls_async(path) for path in paths]]

    requests = zip(paths, zookeeper.guarded(lambda: client.retry(ask)), strict=True)
    return {
        path: frozenset(_named(acl) for acl in acls if acl.perms & ~Permissions.READ)
        for path, acls in requests
        if acls
    }


def apply_acls(zookeeper: ZooKeeper, paths: Sequence[str]) -> int:
    """Set each znode's ACL as for a new one; return their number. Raises PermissionDenied with the
    first one that cannot be changed; others may be done by then.
    """
    client, given = zookeeper.client, 0
    for path, request in [
        (path, client.set_acls_async(path, client.acl_of(path))) for path in paths
    ]:
        try:
            zookeeper.guarded(request.get, path)
        except NoNodeError:
            continue
        given += 1
    return given


def _answer(request: Any) -> list[ACL] | None:
    try:
        return list(request.get()[0])
    except (NoNodeError, NoAuthError):
        return None


def _named(acl: ACL) -> str:
    return EVERYBODY if acl.id == ANYONE_ID_UNSAFE else f"{acl.id.scheme}:{acl.id.id}"


_NO_VERSION = 2**31 - 2
"""A version that no znode reaches."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What one server of the ensemble reports."""

    address: str
    version: str | None
    """None: it does not answer `srvr` (4lw.commands.whitelist)."""
    mode: str | None
    """standalone, leader, follower, observer."""
    granted_s: float
    """The session timeout that it granted."""


def ask_server(
    host: str,
    port: int,
    *,
    session_timeout_s: float,
    timeout_s: float,
    access: Access = OPEN_ZOOKEEPER,
) -> ServerAnswer:
    """Shake hands with one server, ask what it is, log in there where we do, and hang up.

    Raises ZooKeeperUnreachable, and SettingsError and PermissionDenied of the way in.
    """
    address = f"{host}:{port}"
    try:
        answer = connection.srvr(host, port, access, timeout_s)
        granted_ms = connection.granted_ms(
            host, port, access, asked_ms=round(session_timeout_s * 1000), timeout_s=timeout_s
        )
    except (OSError, connection.NoHandshake) as error:
        wrong = connection.of_encryption(error, host, port, access, timeout_s)
        if wrong is not None:
            raise wrong from None
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        action = "Check that ZooKeeper runs there and zookeeper.connect names it"
        raise ZooKeeperUnreachable(
            f"ZooKeeper does not answer: {reason}", server=address, action=action
        ) from error
    if access.auth is not None:
        with ZooKeeper(
            f"[{host}]:{port}" if ":" in host else address,
            connect_timeout_s=timeout_s,
            access=access,
        ):
            pass
    version = re.search(r"^Zookeeper version: ([\w.]+)", answer, re.MULTILINE | re.IGNORECASE)
    mode = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
    return ServerAnswer(
        address, version[1] if version else None, mode[1] if mode else None, granted_ms / 1000
    )


def takes_request(zookeeper: ZooKeeper, size: int) -> bool:
    """True if a request of `size` bytes passes: a read of a znode with so long a name, in a session
    of its own.
    """
    with zookeeper.at_root() as probe:
        try:
            probe.client.exists("/" + "x" * size)
        except NO_ANSWER:
            return False
    return True


def nearest(zookeeper: ZooKeeper, path: str) -> str:
    """`path`, or the nearest znode above it that is there; the topmost one that we may not even ask
    about, where that is the end.
    """
    hidden = None
    while path != "/":
        try:
            exists = functools.partial(zookeeper.client.retry, zookeeper.client.exists, path)
            if zookeeper.guarded(exists):
                break
            hidden = None
        except (
            PermissionDenied
        ):  # it is there and hidden, or it is not and the znode above it is hidden (ZooKeeper 3.9)
            hidden = path
        path = path.rpartition("/")[0] or "/"
    return hidden or path


def children_shown(zookeeper: ZooKeeper, path: str) -> list[str]:
    """Names of the children in order; none where the znode is not there, or they are not shown to
    us.
    """
    try:
        return sorted(zookeeper.children(path) or ())
    except PermissionDenied:
        return []


def may_read(zookeeper: ZooKeeper, path: str) -> bool:
    """True if we may read data and children of the znode."""
    return _is_allowed(zookeeper, lambda: zookeeper.client.get_children(path))


def may_write(zookeeper: ZooKeeper, path: str) -> bool:
    """True if we may change the znode's data."""
    return _is_allowed(zookeeper, lambda: zookeeper.client.set(path, b"", version=_NO_VERSION))


def refused_below(zookeeper: ZooKeeper, path: str) -> str | None:
    """`create` or `delete`, the first of the two that we may not do to children of the znode; None
    when we may do both.
    """
    child = f"{path.rstrip('/')}/etl-doctor-{secrets.token_hex(8)}"
    request = zookeeper.client.transaction()
    request.create(child, b"", ephemeral=True)
    request.delete(child)
    request.check(path, _NO_VERSION)  # refused, and so nothing of it ever happens
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
