"""Where a server listens, as people write it: the one parser of `host:port`, for a conf file and
for Spark's options alike.
"""

from __future__ import annotations

import re

_CHROOT = re.compile(r"(/(?!\.{1,2}(/|$))[^/,\x00-\x20]+)*/?")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` (or `[v6]:port`) to its parts. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if (
        not host
        or not (port.isascii() and port.isdecimal())
        or len(port) > 5
        or not 0 < int(port) < 65536
    ):
        raise ValueError(f"{address!r} is not host:port")
    try:
        host.encode(
            "idna"
        )  # as a connect does, which would fail with this very error and with no OSError
    except UnicodeError as error:
        raise ValueError(f"{host!r} can be no host's name: {error}") from None
    return host.strip("[]"), int(port)


def split_connect(connect: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """`host:port,host:port/chroot` of a ZooKeeper to its servers and the chroot, empty or with its
    slash. Raises ValueError.
    """
    hosts, slash, chroot = connect.partition("/")
    servers = tuple(split_address(address.strip()) for address in hosts.split(","))
    if not _CHROOT.fullmatch(slash + chroot):
        raise ValueError(
            f"{slash + chroot!r} is no path in ZooKeeper; one chroot follows the last host: host:port,host:port/chroot"
        )
    return servers, (slash + chroot).rstrip("/")
