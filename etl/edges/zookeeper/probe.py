"""What a ZooKeeper server says of itself, and what it would let us do, found out without leaving a
trace.

Owns the questions that only `etl doctor` asks; everything a run needs is in the modules beside this
one.

Facts of ZooKeeper this edge is built around: a server checks ACLs before versions, so a write or a
delete that names a version no znode has is refused for the one or for the other reason; a `multi`
whose last operation fails is rolled back as a whole, and its answer still says which of the
operations before it was refused; a request above `jute.maxbuffer` closes the connection, also one
that reads.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError, NotEmptyError

from etl.edges.zookeeper import by_hand
from etl.edges.zookeeper.session import NO_ANSWER, ZooKeeper
from etl.errors import PermissionRefused, ZooKeeperUnreachable
from etl.model.security import OPEN_ZOOKEEPER, Access

_NO_VERSION = 2**31 - 2
"""A version that no znode reaches."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What one server of the ensemble said."""

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

    Raises ZooKeeperUnreachable, and SettingsError and PermissionRefused of the way in.
    """
    address = f"{host}:{port}"
    try:
        said = by_hand.srvr(host, port, access, timeout_s)
        granted_ms = by_hand.granted_ms(
            host, port, access, asked_ms=round(session_timeout_s * 1000), timeout_s=timeout_s
        )
    except (OSError, by_hand.NoHandshake) as error:
        wrong = by_hand.of_encryption(error, host, port, access, timeout_s)
        if wrong is not None:
            raise wrong from None
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        check = "that ZooKeeper runs there and zookeeper.connect names it"
        raise ZooKeeperUnreachable(
            f"ZooKeeper does not answer: {reason}", server=address, check=check
        ) from error
    if access.auth is not None:
        with ZooKeeper(
            f"[{host}]:{port}" if ":" in host else address,
            connect_timeout_s=timeout_s,
            access=access,
        ):
            pass
    version = re.search(r"^Zookeeper version: ([\w.]+)", said, re.MULTILINE | re.IGNORECASE)
    mode = re.search(r"^Mode: (\w+)", said, re.MULTILINE)
    return ServerAnswer(
        address, version[1] if version else None, mode[1] if mode else None, granted_ms / 1000
    )


def takes_request(zookeeper: ZooKeeper, size: int) -> bool:
    """Whether a request of `size` bytes passes: a question about a znode with so long a name, in a
    session of its own.
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
            PermissionRefused
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
    except PermissionRefused:
        return []


def may_read(zookeeper: ZooKeeper, path: str) -> bool:
    """Whether payload and children of the znode are shown to us."""
    return _is_allowed(zookeeper, lambda: zookeeper.client.get_children(path))


def may_write(zookeeper: ZooKeeper, path: str) -> bool:
    """Whether we may change the znode's payload."""
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
    except PermissionRefused:
        return False
    except (BadVersionError, NoNodeError, NotEmptyError):
        pass
    return True
