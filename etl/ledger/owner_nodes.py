"""Which process holds the driver lock, and which consumer owns a partition?

The driver's znode names the process of a run. An owner's znode has the id of a consumer's thread,
as original consumers write it; that of a run also names its process, so that a later run can tell
whether its owner is dead.

Lives here: the contents of both znodes, and the names of consumers and threads.
Not here: registrations of consumers and brokers (registrations.py), paths (znode_paths.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_OWNER = re.compile(
    r"etl:(?P<pipeline>[^:]+):(?P<run_id>[^:]*):(?P<pid>[0-9]{1,10}):(?P<started>[^:]*):"
    r"((?P<pids>[0-9a-f]{8}-[0-9]{1,20}):)?(?P<host>.*)-[0-9]{1,9}"
)


@dataclass(frozen=True, slots=True)
class DriverNode:
    """Identity of the active driver."""

    host: str
    pid: int
    started: str | None
    """Start time of the process, which differs from that of a later one with the same pid.

    None if the host does not provide it.
    """
    run_id: str
    pids: str | None = None
    """Name of the pid's namespace (host boot, PID namespace); None if unknown.

    A pid is a number of one namespace, and containers may share a host name. A driver of another
    namespace never counts as dead: its session decides.
    """

    backfill: str | None = None
    """Name of the backfill of which it loads a plan; None for other commands."""

    def __str__(self) -> str:
        text = f"run {self.run_id}, pid {self.pid} on {self.host}"
        if self.backfill:
            text += f", with a plan of backfill {self.backfill}"
        return text


def render_driver(driver: DriverNode) -> bytes:
    """Return the payload of the driver's znode."""
    document = {
        "host": driver.host,
        "pid": driver.pid,
        "started": driver.started,
        "run_id": driver.run_id,
        "pids": driver.pids,
        "backfill": driver.backfill,
    }
    return json.dumps(document).encode()


def parse_driver(payload: bytes) -> DriverNode | None:
    """Parse the driver's znode; None if it is invalid."""
    try:
        found = json.loads(payload)
        driver = DriverNode(
            str(found["host"]),
            int(found["pid"]),
            found.get("started"),
            str(found["run_id"]),
            found.get("pids"),
            found.get("backfill"),
        )
        if not 0 < driver.pid < 2**31:
            return None
        return driver
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """A driver of this program as the owner of a partition."""

    pipeline: str
    driver: DriverNode


def driver_consumer_id(group: str, owner: OwnerNode) -> str:
    """Return the consumer id of a driver of this program: `<group>_<consumer>`."""
    driver = owner.driver
    process = f"{driver.run_id}:{driver.pid}:{driver.started or ''}"
    namespace = ""
    if driver.pids:
        namespace = f"{driver.pids}:"
    return f"{group}_etl:{owner.pipeline}:{process}:{namespace}{driver.host}"


def render_owner(group: str, owner: OwnerNode) -> bytes:
    """Return the payload of an owner's znode: a thread id, as original consumers write it."""
    return f"{driver_consumer_id(group, owner)}-0".encode()


def parse_owner(group: str, owner: str) -> OwnerNode | None:
    """Return the driver of this program in an owner's thread id; None for other consumers."""
    prefix = f"{group}_"
    if not owner.startswith(prefix):
        return None
    found = _OWNER.fullmatch(owner.removeprefix(prefix))
    if not found or not 0 < int(found["pid"]) < 2**31:
        return None
    driver = DriverNode(
        found["host"], int(found["pid"]), found["started"] or None, found["run_id"], found["pids"]
    )
    return OwnerNode(found["pipeline"], driver)


def consumer_id(group: str, name: str) -> str:
    """Return the consumer's id: the name of its znode, and the prefix of its thread ids."""
    return f"{group}_{name}"


def generated_name(host: str, now_ms: int, unique: int) -> str:
    """Return a name for a consumer without a configured one.

    `unique`: 128 random bits; the first eight hex digits of the upper half are used.
    """
    prefix = f"{host}-{now_ms}-"
    return f"{prefix}{unique >> 64:x}"[: len(prefix) + 8]


def thread_id(consumer: str, number: int) -> str:
    """Return the id of a thread, as in owner znodes; numbers begin at 0 for each topic."""
    return f"{consumer}-{number}"


def consumer_of(thread: str) -> str:
    """Return the consumer of a thread id: hosts and groups may contain `-`, numbers do not."""
    return thread.rpartition("-")[0] or thread
