"""Which policies can a conf choose, and how are addresses, sizes and table paths written?

Lives here: the enums of conf keys, default fetch sizes and timeouts, the parser of `host:port`
(for conf files and data source options alike), and the syntax of table paths: an object store
is recognised by its `scheme://`; any other path, and `file://`, is a local directory.

Plain Python, no file access.
"""

from __future__ import annotations

import os
import re
from enum import Enum


class StartAt(str, Enum):
    """Start of a partition without a committed offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnDataLoss(str, Enum):
    """Policy for requested offsets below the log start."""

    FAIL = "fail"
    SKIP = "skip"


class OnOffsetChanged(str, Enum):
    """Policy for a committed offset that another client moved."""

    FAIL = "fail"
    FOLLOW = "follow"


class OnNoLeader(str, Enum):
    """Policy for a partition that still has no leader after waiting."""

    FAIL = "fail"
    SKIP = "skip"


class OnRowsRemoved(str, Enum):
    """Policy for rows deleted by others. RESTORE and overwrites always stop."""

    FAIL = "fail"
    RECORD = "record"


class OwnershipMode(str, Enum):
    """Whether a run checks owners, claims partitions, or is a group member."""

    OBSERVE = "observe"
    CLAIM = "claim"
    JOIN = "join"


class GroupStrategy(str, Enum):
    """How the consumers of the group divide its partitions: theirs is ours. Those of ZooKeeper, and
    those of Kafka's coordinator.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    """0.8.2 and 0.9; wherever it has an answer, it is that of 0.10 and 0.11."""
    ROUND_ROBIN_0_10 = "roundrobin-0.10"
    """0.10 and 0.11."""
    ROUND_ROBIN_1_0 = "roundrobin-1.0"
    """1.0 and 1.1."""
    STICKY = "sticky"
    COOPERATIVE_STICKY = "cooperative-sticky"


class CommitWhen(str, Enum):
    """When the group's offsets of a member move."""

    BEFORE_READ = "before_read"
    """With the stored plan: no offset is read by two members."""
    AFTER_APPEND = "after_append"
    """After the append, by the membership that planned: for groups with our members only."""


class LeaveAfter(str, Enum):
    """When a run leaves its group."""

    RUN = "run"
    COMMIT = "commit"
    """As soon as the plan's offsets are committed."""


class OnOwned(str, Enum):
    """Policy for a partition with another owner."""

    FAIL = "fail"
    WAIT = "wait"
    SKIP = "skip"


class OnActiveMembers(str, Enum):
    """Policy for live consumers of the group."""

    FAIL = "fail"
    SKIP = "skip"
    """Leave out what they own."""


class WriterName(str, Enum):
    """Which engine writes the table's files."""

    AUTO = "auto"
    SPARK = "spark"
    ARROW = "arrow"


MIB = 1 << 20
FETCH_MAX_BYTES = 16 * MIB
"""Bytes requested by one fetch."""
MAX_BATCH_BYTES = 256 * MIB
"""Largest fetch for one large record batch."""
MAX_RECORD_BYTES = 32 * MIB
"""A JVM with the default memory takes a record of 64 MiB and dies of one of 120 MiB."""
TARGET_TASK_BYTES = 256 * MIB
BACKFILL_PLAN_BYTES = 4096 * MIB
"""Bytes of one plan of a backfill."""
TIMEOUT_S = 30.0
"""Deadline of one request to a broker."""

FETCH_MAX_BYTES_MOST = 2**30
MAX_BATCH_BYTES_MOST = 2**31 - MIB
"""The size in a fetch is an int32, and a response is a little longer."""
MAX_RECORD_BYTES_MOST = 2**30
"""Offsets into the buffers of a column are int32."""


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


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CONTAINER_FIRST = ("abfs", "abfss", "wasb", "wasbs")
"""Azure's: CONTAINER@ACCOUNT."""
_ONE_SLASH = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def is_url(path: str) -> bool:
    """True for the URL of an object store."""
    return "://" in path and not path.startswith("file:")


def folder_of(path: str) -> str | None:
    """The folder that `path` names; None for an object store."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return None if is_url(path) else path


def place_of(path: str) -> str:
    """Return one text for one location, however it is written; to compare, not to open."""
    folder = folder_of(path)
    return path.rstrip("/") if folder is None else os.path.abspath(folder)


def not_apart(
    table: str, losses: str, reports: str, metrics: str | None = None
) -> tuple[str, str] | None:
    """Which key names a folder that is a table's own, or lies in one, and a sentence; None where
    each has its place.

    A report in the folder of a table to be makes it a folder that is no table, and VACUUM takes
    another table in it for rubbish.
    """
    for place, whose in ((table, "the table"), (losses, "the losses table")):
        if lies_in(reports, place):
            return "report.path", f"the reports' folder is in the folder of {whose}, {place}"
        if metrics and lies_in(metrics, place):
            return "metrics.path", f"the metrics are in the folder of {whose}, {place}"
    if lies_in(losses, table) or lies_in(table, losses):
        return "table.losses_path", f"the losses table and the table are in one folder, {table}"
    return None


def lies_in(path: str, other: str) -> bool:
    """True if a path is the other location, or inside it."""
    place, outer = one_scheme(place_of(path)), one_scheme(place_of(other))
    return place == outer or place.startswith(outer.rstrip("/") + "/")


def one_scheme(place: str) -> str:
    """Return the same for stores with several schemes."""
    return re.sub("^(s3a|s3n)://", "s3://", re.sub("^abfs://", "abfss://", place))


def check_place(path: str) -> str:
    """Return the path. Raises ValueError for one that the engines would read as another location."""
    if path != path.strip() or "\0" in path:
        raise ValueError("it begins or ends with a blank, or holds a NUL")
    if re.search(r"[\x00-\x1f\x7f]", path):
        raise ValueError(
            "it holds a tab, a line end or another control character, with which delta-rs finds no path"
        )
    if path.startswith("~"):
        raise ValueError("it begins with ~, which only a shell knows; write the folder out")
    if _ONE_SLASH.match(path) or (is_url(path) and not _URL.match(path)):
        raise ValueError("it is no URL: those are SCHEME://PLACE")
    if is_url(path):
        _check_url(path)
    elif "\\" in path:
        raise ValueError(
            "it holds a backslash, which delta-rs takes for a slash, and Spark does not"
        )
    if path.startswith("memory:"):
        raise ValueError("it is a store that is gone with the process")
    if path.startswith("file:") and not re.match("file:/(?!/)|file:///", path):
        raise ValueError(
            "it names no folder of this machine: file:///FOLDER does, or the folder alone"
        )
    return path


def _check_url(path: str) -> None:
    """Reject a URL that Spark and delta-rs read differently: rows would be where nobody looks."""
    scheme, _, rest = path.partition("://")
    if scheme != scheme.lower():
        raise ValueError(
            f"its scheme is in capitals, which one of the engines does not know; write {scheme.lower()}://"
        )
    before, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (":" in before or scheme not in _CONTAINER_FIRST):
        raise ValueError(
            "it names somebody before the @: keys and passwords are `table.store`'s, and stand in no path"
        )
    odd = re.search(r"[%?#\\]", rest)
    if odd:
        raise ValueError(
            f"it holds {odd[0]}, by which delta-rs finds another place in a store than Spark"
        )
    if any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")[1:]):
        raise ValueError(
            "it holds //, . or .. as a part, which a store may take for a name and an engine does not"
        )
