"""Every znode path and payload, parsed and rendered. No client here; `edges.zookeeper` reads and writes.

    /brokers/ids/<id>                              JSON (0.8+), ephemeral
    /brokers/topics/<topic>                        JSON (0.8+)
    /cluster/id                                    JSON (0.10.1+)
    /consumers/<group>/ids/<consumer id>           live consumers of the group, ephemeral
    /consumers/<group>/owners/<topic>/<key>        thread id of the consumer that reads that log now, ephemeral
    /consumers/<group>/offsets/<topic>/<key>       next offset to read, ASCII decimal
    /consumers/<group>/etl/<pipeline>              uid
    /consumers/<group>/etl/<pipeline>/driver       host, pid, run id of the driver at work, ephemeral
    /consumers/<group>/etl/<pipeline>/plans/<N>    plan N
    /consumers/<group>/etl/<pipeline>/chunks/<hash>/<i>  pieces of a plan that is too large for one znode
    /consumers/<group>/etl/<pipeline>/applied/<N>  what came of it
    /consumers/<group>/etl/<pipeline>/coverage     the loaded intervals that pruned plans leave
    /consumers/<group>/etl/<pipeline>/acknowledged an operator's last word on what others did to the table
    /consumers/<group>/etl/<pipeline>/retired      why this pipeline loads no more

`<key>` is `<partition>` from Kafka 0.8 on and `<broker>-<partition>` on the 0.7 family. All paths are relative to the
chroot of the connection string. Parents that were made on the way hold no data.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from etl.errors import BadOffset, LedgersDisagree
from etl.model.plans import Broker, BrokerPartition

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
CREATION_ID = "zxid-"
"""Before the transaction that made a topic's znode: what stands for a topic's id where brokers have none (before 2.8)."""
MAX_OFFSET = 2**63 - 1

_OWNER = re.compile(
    r"etl:(?P<pipeline>[^:]+):(?P<run_id>[^:]*):(?P<pid>[0-9]{1,10}):(?P<started>[^:]*):"
    r"((?P<pids>[0-9a-f]{8}-[0-9]{1,20}):)?(?P<host>.*)-0")
_KEY = re.compile(r"((0|[1-9][0-9]{0,9})-)?(0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """The part of the tree that belongs to one consumer group."""

    group: str

    @property
    def consumer_ids(self) -> str:
        """Children are the live consumers."""
        return f"/consumers/{self.group}/ids"

    @property
    def offsets(self) -> str:
        """Children are topics."""
        return f"/consumers/{self.group}/offsets"

    @property
    def pipelines(self) -> str:
        """Children are the pipelines of this group. Written, with nothing, each time that one of them takes a topic."""
        return f"/consumers/{self.group}/etl"

    def owner(self, log: BrokerPartition) -> str:
        """Who reads this log now."""
        return f"/consumers/{self.group}/owners/{log.topic}/{partition_key(log)}"

    def owners_of(self, topic: str) -> str:
        """Children are the owned keys of this topic."""
        return f"/consumers/{self.group}/owners/{topic}"

    def offset(self, log: BrokerPartition) -> str:
        """The committed offset of this log."""
        return f"/consumers/{self.group}/offsets/{log.topic}/{partition_key(log)}"

    def offsets_of(self, topic: str) -> str:
        """Children are the keys of this topic with a committed offset."""
        return f"/consumers/{self.group}/offsets/{topic}"


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """The part of the tree that belongs to one pipeline."""

    group: str
    pipeline: str

    @property
    def root(self) -> str:
        """Holds the uid."""
        return f"/consumers/{self.group}/etl/{self.pipeline}"

    @property
    def driver(self) -> str:
        """The driver at work."""
        return f"{self.root}/driver"

    @property
    def plans(self) -> str:
        """Children are plan numbers."""
        return f"{self.root}/plans"

    @property
    def applied_plans(self) -> str:
        """Children are numbers of plans whose outcome is recorded."""
        return f"{self.root}/applied"

    @property
    def coverage(self) -> str:
        """What pruned plans leave."""
        return f"{self.root}/coverage"

    @property
    def acknowledged(self) -> str:
        """An operator's last word."""
        return f"{self.root}/acknowledged"

    @property
    def retired(self) -> str:
        """That it loads no more."""
        return f"{self.root}/retired"

    def plan(self, number: int) -> str:
        """Plan `number`."""
        return f"{self.plans}/{number}"

    def applied(self, number: int) -> str:
        """What came of plan `number`."""
        return f"{self.applied_plans}/{number}"

    def chunk(self, digest: str, index: int) -> str:
        """One piece of a document too large for one znode."""
        return f"{self.root}/chunks/{digest}/{index}"

    def chunks(self, digest: str) -> str:
        """Children are the pieces of that document."""
        return f"{self.root}/chunks/{digest}"


def partition_key(log: BrokerPartition) -> str:
    """The ledger key of a log: `3` from Kafka 0.8 on, `0-3` (broker, partition) on the 0.7 family."""
    return str(log.partition) if log.broker_id is None else f"{log.broker_id}-{log.partition}"


def parse_partition_key(topic: str, key: str) -> BrokerPartition | None:
    """The log that `key` names, or None when it is no key (somebody else's znode). `03` is none: its znode is another than that of `3`."""
    if not _KEY.fullmatch(key):
        return None
    broker, dash, partition = key.rpartition("-")
    return BrokerPartition(topic, int(partition), int(broker) if dash else None)


def render_offset(offset: int) -> bytes:
    """ASCII decimal and nothing else: old consumers refuse a trailing newline or blank."""
    return str(offset).encode("ascii")


def parse_offset(payload: bytes, *, path: str, log: BrokerPartition) -> int:
    """A committed offset. Raises BadOffset with the znode and what it holds."""
    text = payload.decode("latin-1")
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_OFFSET):
        what = f"the committed offset is no number: {text[:40]!r}"
        check = "who wrote that znode; set it to the next offset to read, as plain decimal text"
        raise BadOffset(what, topic=log.topic, partition=log.partition, znode=path, check=check)
    return int(text)


def parse_broker(broker_id: str, payload: bytes) -> Broker | None:
    """A broker of Kafka 0.8 or later, or None when it has no plaintext endpoint or is not registered as JSON.

    `host`/`port` hold the first PLAINTEXT endpoint, or null / -1 when there is none; then `endpoints` counts.
    """
    try:
        registration = json.loads(payload)
        host, port = registration.get("host"), registration.get("port")
        if host and isinstance(port, int) and port > 0:
            return Broker(int(broker_id), str(host), port)
        plain = next(e for e in registration.get("endpoints") or () if str(e).startswith("PLAINTEXT://"))
        host, _, text = str(plain).removeprefix("PLAINTEXT://").rpartition(":")
        return Broker(int(broker_id), host.strip("[]"), int(text))
    except (ValueError, AttributeError, StopIteration, TypeError, OverflowError, RecursionError):
        return None


def parse_cluster_id(payload: bytes) -> str | None:
    """Kafka's cluster id, or None when the payload is not its JSON."""
    try:
        return str(json.loads(payload)["id"] or "") or None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class DriverNode:
    """Who the driver at work is. `started` tells a process from a later one with the same pid, where the host can."""

    host: str
    pid: int
    started: str | None
    run_id: str
    pids: str | None = None
    """Which set of processes `pid` is a number of, a name of any host's boots and PID namespaces: containers may share a host name.
    None where the host does not tell, or a driver of an earlier version wrote the znode."""

    def __str__(self) -> str:
        return f"run {self.run_id}, pid {self.pid} on {self.host}"


def render_driver(driver: DriverNode) -> bytes:
    """The driver's znode."""
    document = {"host": driver.host, "pid": driver.pid, "started": driver.started, "run_id": driver.run_id, "pids": driver.pids}
    return json.dumps(document).encode()


def parse_driver(payload: bytes) -> DriverNode | None:
    """The driver's znode, or None when it is not ours to understand."""
    try:
        found = json.loads(payload)
        driver = DriverNode(str(found["host"]), int(found["pid"]), found.get("started"), str(found["run_id"]), found.get("pids"))
        return driver if 0 < driver.pid < 2**31 else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """A driver of ours as the owner of a log."""

    pipeline: str
    driver: DriverNode


def render_owner(group: str, owner: OwnerNode) -> bytes:
    """The owner's znode: a thread id, `<group>_<consumer>-<thread>`, which is all that old consumers put there and show."""
    us = owner.driver
    pids = f"{us.pids}:" if us.pids else ""
    return f"{group}_etl:{owner.pipeline}:{us.run_id}:{us.pid}:{us.started or ''}:{pids}{us.host}-0".encode()


def parse_owner(group: str, owner: str) -> OwnerNode | None:
    """The driver of ours that an owner's thread id names, or None when it is somebody else's."""
    prefix = f"{group}_"
    found = _OWNER.fullmatch(owner.removeprefix(prefix)) if owner.startswith(prefix) else None
    if not found or not 0 < int(found["pid"]) < 2**31:
        return None
    driver = DriverNode(found["host"], int(found["pid"]), found["started"] or None, found["run_id"], found["pids"])
    return OwnerNode(found["pipeline"], driver)


def parse_uid(payload: bytes, *, path: str) -> str | None:
    """The pipeline's uid, or None when the znode is only a parent."""
    if not payload:
        return None
    text = payload.decode("latin-1")
    if not (text.isascii() and text.isalnum() and len(text) <= 64):
        raise LedgersDisagree(f"the pipeline's uid is not one of ours: {text[:40]!r}", znode=path, check="who wrote that znode")
    return text
