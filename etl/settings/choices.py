"""Which policies can a conf choose, and how are addresses, sizes and table paths written?

Lives here: the enums of conf keys, default fetch sizes and timeouts, the parser of `host:port`
(for conf files and data source options alike), and the syntax of table paths: an object store
is recognised by its `scheme://`; any other path, and `file://`, is a local directory.

Plain Python, no file access.
"""

from __future__ import annotations

import ipaddress
import os
import re
from enum import Enum
from typing import TypeVar

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily


class StartAt(str, Enum):
    """Start of a partition without a committed offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


Choice = TypeVar("Choice", bound=Enum)


def choice_of(kind: type[Choice], value: object, key: str) -> Choice:
    """Return the member with this value. Raises SettingsError that lists the choices."""
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        raise SettingsError(
            f"{value!r} is not a valid {key}", key=key, action=f"Use one of {choices}"
        ) from None


FIRST_WITH_TIMES = (0, 10, 1)
"""KIP-79: ListOffsets finds the first record at or after a time."""


def finds_times(broker_type: object, broker_version: object) -> bool:
    """Return whether brokers find the first record of a time, as far as a conf says.

    False with `source.broker_type: jafka`, and with a `source.broker_version` before 0.10.1.
    """
    if broker_type == BrokerFamily.JAFKA.value:
        return False
    version = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", str(broker_version))
    if version is None:
        return True
    numbers = tuple(int(number or 0) for number in version.groups())
    return numbers >= FIRST_WITH_TIMES


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
    """How the consumers of a group divide its partitions, in ZooKeeper or with Kafka's coordinator.
    All members use the same strategy.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    """Where it can assign at all, it assigns as ROUND_ROBIN_0_10 does."""
    ROUND_ROBIN_0_10 = "roundrobin-0.10"
    ROUND_ROBIN_1_0 = "roundrobin-1.0"
    STICKY = "sticky"
    COOPERATIVE_STICKY = "cooperative-sticky"


class CommitWhen(str, Enum):
    """When a member commits the group's offsets."""

    BEFORE_READ = "before_read"
    AFTER_APPEND = "after_append"
    """By the membership that planned."""


class LeaveAfter(str, Enum):
    """When a run leaves its group."""

    RUN = "run"
    COMMIT = "commit"


class OnOwned(str, Enum):
    """Policy for a partition with another owner."""

    FAIL = "fail"
    WAIT = "wait"
    SKIP = "skip"


class OnActiveMembers(str, Enum):
    """Policy for live consumers of the group."""

    FAIL = "fail"
    SKIP = "skip"


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
    """Split `host:port`, or `[v6]:port`. Raises ValueError."""
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not is_number or not 0 < int(port) < 65536 or not _is_host(host):
        raise ValueError(f"{address!r} is not host:port")
    try:
        # A connect encodes the name, too, and would raise this error instead of an OSError.
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host!r} is not a host name: {error}") from None
    return host.strip("[]"), int(port)


def _is_host(text: str) -> bool:
    """True for a name or an IPv4 address, and for an IPv6 address in brackets.

    Names may have an underscore and letters of all languages. Other characters have a meaning in
    URLs, as which kazoo reads addresses.
    """
    if not text.startswith("["):
        return re.fullmatch(r"[\w.-]+", text) is not None
    try:
        ipaddress.IPv6Address(text[1:].removesuffix("]"))
    except ValueError:
        return False
    return text.endswith("]")


def split_connect(connect: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Split a connect string, `host:port,host:port/chroot`, into servers and the chroot: empty, or
    with a slash at its start. Raises ValueError.
    """
    hosts, slash, chroot = connect.partition("/")
    servers = tuple(split_address(address.strip()) for address in hosts.split(","))
    if not _CHROOT.fullmatch(slash + chroot):
        raise ValueError(
            f"{slash + chroot!r} is not a path in ZooKeeper; one chroot follows the last host: "
            "host:port,host:port/chroot"
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
    """Return the local directory of a path; None for an object store."""
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
    """Return the key of a path inside a table's directory, and a sentence; None without overlap.

    Delta does not create a table in a directory that contains a report, and VACUUM deletes the
    files of another table inside.
    """
    for place, name in ((table, "the table"), (losses, "the losses table")):
        if lies_in(reports, place):
            return "report.path", f"The reports are inside the directory of {name}, {place}"
        if metrics and lies_in(metrics, place):
            return "metrics.path", f"The metrics are inside the directory of {name}, {place}"
    if lies_in(losses, table) or lies_in(table, losses):
        return "table.losses_path", f"The losses table and the table overlap: {table}"
    return None


def lies_in(path: str, other: str) -> bool:
    """True if a path is the other location, or inside it."""
    place, outer = one_scheme(place_of(path)), one_scheme(place_of(other))
    return place == outer or place.startswith(outer.rstrip("/") + "/")


def one_scheme(place: str) -> str:
    """Return the same for stores with several schemes."""
    return re.sub("^(s3a|s3n)://", "s3://", re.sub("^abfs://", "abfss://", place))


def check_place(path: str) -> str:
    """Return the path. Raises ValueError for one that an engine reads as another location."""
    if path != path.strip() or "\0" in path:
        raise ValueError("it begins or ends with a blank, or contains a NUL")
    if re.search(r"[\x00-\x1f\x7f]", path):
        raise ValueError(
            "it contains a tab, a line end or another control character, which delta-rs cannot read"
        )
    if path.startswith("~"):
        raise ValueError("it begins with ~, which only a shell expands; write the directory")
    if _ONE_SLASH.match(path) or (is_url(path) and not _URL.match(path)):
        raise ValueError("it is not a URL of the form SCHEME://PLACE")
    if is_url(path):
        _check_url(path)
    elif "\\" in path:
        raise ValueError(
            "it contains a backslash, which delta-rs reads as a slash, and Spark does not"
        )
    if path.startswith("memory:"):
        raise ValueError("it is a store in memory, which ends with the process")
    if path.startswith("file:") and not re.match("file:/(?!/)|file:///", path):
        raise ValueError(
            "it is not a local directory; write file:///DIRECTORY, or the directory alone"
        )
    return path


def _check_url(path: str) -> None:
    """Raise ValueError for a URL that Spark and delta-rs read as different locations."""
    scheme, _, rest = path.partition("://")
    if scheme != scheme.lower():
        raise ValueError(
            f"its scheme is in capitals, which one of the engines rejects; write "
            f"{scheme.lower()}://"
        )
    before, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (":" in before or scheme not in _CONTAINER_FIRST):
        raise ValueError("it has credentials before the @; set them in table.store")
    odd = re.search(r"[%?#\\]", rest)
    if odd:
        raise ValueError(
            f"it contains {odd[0]}, which delta-rs and Spark read as different locations"
        )
    if any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")[1:]):
        raise ValueError(
            "it contains //, . or .. as a part, which a store may read as a name and an "
            "engine does not"
        )
