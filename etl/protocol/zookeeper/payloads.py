"""The payloads of znodes, parsed and rendered, but for plans and what came of them, and for what
brokers write (`registrations`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from etl.errors import BadOffset, LedgersDisagree
from etl.model.partitions import BrokerPartition

CREATION_ID = "zxid-"
"""Before the transaction that made a topic's znode: what stands for a topic's id where brokers have
none (before 2.8).
"""
MAX_OFFSET = 2**63 - 1
_OWNER = re.compile(
    r"etl:(?P<pipeline>[^:]+):(?P<run_id>[^:]*):(?P<pid>[0-9]{1,10}):(?P<started>[^:]*):"
    r"((?P<pids>[0-9a-f]{8}-[0-9]{1,20}):)?(?P<host>.*)-[0-9]{1,9}"
)


def render_offset(offset: int) -> bytes:
    """ASCII decimal and nothing else: old consumers refuse a trailing newline or blank."""
    return str(offset).encode("ascii")


def parse_offset(payload: bytes, *, path: str, log: BrokerPartition) -> int:
    """A committed offset. Raises BadOffset with the znode and what it holds."""
    text = payload.decode("latin-1")
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_OFFSET):
        what = f"the committed offset is no number: {text[:40]!r}"
        check = (
            "who wrote that znode; where the pipeline has a plan `etl offsets restore CONF --from-table --reason ...` writes its "
            "position there, before that set it to the next offset to read, as plain decimal text"
        )
        raise BadOffset(what, **log.place, znode=path, check=check)
    return int(text)


@dataclass(frozen=True, slots=True)
class DriverNode:
    """Who the driver at work is. `started` tells a process from a later one with the same pid,
    where the host can.
    """

    host: str
    pid: int
    started: str | None
    run_id: str
    pids: str | None = None
    """Which set of processes `pid` is a number of, a name of any host's boots and PID namespaces:
    containers may share a host name. None where the host does not tell, or a driver of an earlier
    version wrote the znode."""

    def __str__(self) -> str:
        return f"run {self.run_id}, pid {self.pid} on {self.host}"


def render_driver(driver: DriverNode) -> bytes:
    """The driver's znode."""
    document = {
        "host": driver.host,
        "pid": driver.pid,
        "started": driver.started,
        "run_id": driver.run_id,
        "pids": driver.pids,
    }
    return json.dumps(document).encode()


def parse_driver(payload: bytes) -> DriverNode | None:
    """The driver's znode, or None when it is not ours to understand."""
    try:
        found = json.loads(payload)
        driver = DriverNode(
            str(found["host"]),
            int(found["pid"]),
            found.get("started"),
            str(found["run_id"]),
            found.get("pids"),
        )
        return driver if 0 < driver.pid < 2**31 else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """A driver of ours as the owner of a log."""

    pipeline: str
    driver: DriverNode


def driver_consumer_id(group: str, owner: OwnerNode) -> str:
    """The consumer id, `<group>_<consumer>`, of a driver of ours."""
    us = owner.driver
    pids = f"{us.pids}:" if us.pids else ""
    return f"{group}_etl:{owner.pipeline}:{us.run_id}:{us.pid}:{us.started or ''}:{pids}{us.host}"


def render_owner(group: str, owner: OwnerNode) -> bytes:
    """The owner's znode: a thread id, the consumer's with `-<thread>` behind it, which is all that
    old consumers put there and show.
    """
    return f"{driver_consumer_id(group, owner)}-0".encode()


def parse_owner(group: str, owner: str) -> OwnerNode | None:
    """The driver of ours that an owner's thread id names, whichever its thread, or None when it is
    somebody else's.
    """
    prefix = f"{group}_"
    found = _OWNER.fullmatch(owner.removeprefix(prefix)) if owner.startswith(prefix) else None
    if not found or not 0 < int(found["pid"]) < 2**31:
        return None
    driver = DriverNode(
        found["host"], int(found["pid"]), found["started"] or None, found["run_id"], found["pids"]
    )
    return OwnerNode(found["pipeline"], driver)


def parse_uid(payload: bytes, *, path: str) -> str | None:
    """The pipeline's uid, or None when the znode is only a parent."""
    if not payload:
        return None
    text = payload.decode("latin-1")
    if not (text.isascii() and text.isalnum() and len(text) <= 64):
        raise LedgersDisagree(
            f"the pipeline's uid is not one of ours: {text[:40]!r}",
            znode=path,
            check="who wrote that znode",
        )
    return text
