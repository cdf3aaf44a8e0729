"""How numbered plans and their results are stored in ZooKeeper, by one driver at a time.

A document that is too large for one znode is written in pieces first. One znode then holds the
hash of the pieces, so readers find the whole document or none.

The driver lock is a queue of ephemeral znodes: the first driver drives, and a run waits for as long
as the plan of a backfill takes (ADR 39). It only saves work: correctness rests on the numbered
plans, since two drivers that execute the same plan cannot double a row.

Lives here: documents, plans and their results, operator decisions, the driver lock.
Not here: other records of the ledger (ledger_side_documents.py), the pipelines of a group
(pipelines.py), formats (etl/ledger/).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import CheckVersion, Create, SetData

from etl.decide.loaded_intervals import is_better
from etl.errors import (
    LedgersDisagree,
    Owned,
    PermissionDenied,
    SessionLost,
    Unreachable,
    ZooKeeperUnreachable,
)
from etl.io.process import is_dead, this_driver
from etl.io.zookeeper.session_requests import NODE_MAX_BYTES, ZooKeeper
from etl.ledger import documents as ledger_documents
from etl.ledger import owner_nodes, plan_document, registrations, znode_paths
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Acknowledgement, Ledger, LoadedIntervals, Retirement

_log = logging.getLogger(__name__)

REQUEST_MAX_BYTES = 1_000_000
"""Largest transaction. A server accepts 1,048,575 bytes per request by default (jute.maxbuffer)."""
_OPERATION_BYTES = 25
"""Size of a check or write without path and data."""
_PIECES_MAX = 10_000
"""Most pieces of a document. An index with more was not written by this program."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The content of a znode that refers to a document in pieces."""

    digest: str
    """SHA-256 of the whole document, in hex; part of the path of each piece."""
    count: int
    """Number of pieces."""
    size: int
    """Bytes of the whole document."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write of one znode, as a part of a transaction."""

    path: str
    payload: bytes
    version: int | None
    """The expected version. None: the znode does not exist and is created."""

    def add_to(self, request: TransactionRequest) -> None:
        """Add the write to a transaction.

        Bypasses kazoo's check of each path, which takes most of the time for thousands of writes.
        """
        path = request.client.chroot + self.path
        if self.version is None:
            request.operations.append(
                Create(path, self.payload, request.client.acl_of(self.path), 0)
            )
        else:
            request.operations.append(SetData(path, self.payload, self.version))


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the version of one znode, as a part of a transaction."""

    path: str
    version: int

    def add_to(self, request: TransactionRequest) -> None:
        """Add the check to a transaction.

        The server rejects the transaction if the znode has another version or is missing.
        """
        request.operations.append(CheckVersion(request.client.chroot + self.path, self.version))


@dataclass(frozen=True, slots=True)
class Absent:
    """A check that one znode does not exist, as a part of a transaction."""

    path: str

    def add_to(self, request: TransactionRequest) -> None:
        """Add the check to a transaction.

        ZooKeeper has none for a missing znode: creating and deleting it fails if it exists.
        """
        request.create(self.path, b"")
        request.delete(self.path)


Part = Write | Check | Absent
"""A part of a transaction."""


def size_of(parts: Iterable[Part]) -> int:
    """Return the approximate size of the parts in a request, in bytes without the chroot."""
    total = 0
    for part in parts:
        total += _OPERATION_BYTES + len(part.path)
        if isinstance(part, Write):
            total += len(part.payload)
    return total


class Documents:
    """The documents of one pipeline.

    Raises what `ZooKeeper` raises, and LedgersDisagree if a document is invalid.
    """

    def __init__(self, zookeeper: ZooKeeper, paths: PipelinePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths

    def read(self, path: str) -> tuple[bytes, int] | None:
        """Return a document and the version of its znode; None if there is no document."""
        found = self._zookeeper.read(path)
        if not found or not found[0]:
            return None
        payload, version = found
        if not payload.startswith(b"{"):
            return found
        index = _parse_index(payload, path)
        paths = [self._paths.chunk(index.digest, i) for i in range(index.count)]
        pieces = []
        for piece in self._zookeeper.read_all(paths):
            if piece:
                pieces.append(piece[0])
        whole = b"".join(pieces)
        if hashlib.sha256(whole).hexdigest() != index.digest:
            raise LedgersDisagree(
                "Pieces of the document are missing",
                znode=path,
                action="Check whether ZooKeeper was restored from a copy",
            )
        return whole, version

    def create(self, path: str, payload: bytes) -> bool:
        """Create a document; False if one exists."""
        return self._zookeeper.create(path, self.head(payload))

    def put(self, path: str, payload: bytes) -> bool:
        """Create or overwrite a document; False if another client changes it at the same time."""
        found = self._zookeeper.read(path)
        version = found[1] if found else None
        return self.replace(path, payload, version=version)

    def replace(
        self,
        path: str,
        payload: bytes,
        *,
        version: int | None,
        deleting: Sequence[str] = (),
        absent: Sequence[str] = (),
    ) -> bool:
        """Replace a document and delete others, all or nothing.

        `version`: the expected version of the document; None: it does not exist.
        Returns False, without a change, if one of them changed or a znode of `absent` exists.
        """
        head = self.head(payload)
        request = self._zookeeper.client.transaction()
        if version is not None:
            request.set_data(path, head, version=version)
        else:
            request.create(path, head)
        for obsolete in deleting:
            request.delete(obsolete)
        for free in absent:
            Absent(free).add_to(request)
        return self._zookeeper.transact(request, path)

    def head(self, payload: bytes, *, also: Iterable[Part] = ()) -> bytes:
        """Return the data of the document's znode: the document, or the index of its pieces.

        Pieces are written here, before the znode that refers to them. `also`: the other parts of
        the same request, for its size; the sender rejects a request that is too large without
        the document.
        """
        if len(payload) <= min(NODE_MAX_BYTES, REQUEST_MAX_BYTES - size_of(also)):
            return payload
        digest = hashlib.sha256(payload).hexdigest()
        pieces = [payload[i : i + NODE_MAX_BYTES] for i in range(0, len(payload), NODE_MAX_BYTES)]
        for i, piece in enumerate(pieces):
            self._zookeeper.create(self._paths.chunk(digest, i), piece)
        return json.dumps({"chunks": digest, "count": len(pieces), "bytes": len(payload)}).encode()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the bytes of each whole document; None for a missing one."""
        stored = self._zookeeper.read_all(paths)
        sizes: list[int | None] = []
        for found, path in zip(stored, paths, strict=True):
            size = _size(found[0], path) if found else None
            sizes.append(size)
        return sizes

    def pieces(self) -> list[str]:
        """Return the hash of each document in pieces, with or without a znode that refers to it."""
        return self._zookeeper.children(self._paths.all_chunks) or []

    def drop_pieces(self, digests: Collection[str], *, referenced_at: Sequence[str]) -> None:
        """Delete the pieces of these hashes that no document at `referenced_at` refers to."""
        indexes = []
        for found in self._zookeeper.read_all([*referenced_at]):
            if found and found[0].startswith(b"{"):
                indexes.append(found[0])
        referenced = b" ".join(indexes)
        for digest in digests:
            if digest.encode() not in referenced:
                self._zookeeper.delete_tree(self._paths.chunks(digest))


def _size(payload: bytes, path: str) -> int:
    if payload.startswith(b"{"):
        return _parse_index(payload, path).size
    return len(payload)


def _parse_index(payload: bytes, path: str) -> _Index:
    try:
        found = json.loads(payload)
        index = _Index(found["chunks"], int(found["count"]), int(found["bytes"]))
        is_digest = re.fullmatch("[0-9a-f]{64}", index.digest)
        if not is_digest or not 0 < index.count <= min(index.size, _PIECES_MAX):
            raise ValueError("invalid index of pieces")
        return index
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LedgersDisagree(
            "A stored document is invalid",
            znode=path,
            action="Check which client wrote the znode",
        ) from error


class PlanLedger:
    """The plans of one pipeline.

    Raises what `ZooKeeper` raises, and LedgersDisagree if a document is invalid.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self.zookeeper = zookeeper
        self.paths = PipelinePaths(group, pipeline)
        self._pipelines = GroupPaths(group).pipelines
        self.documents = Documents(zookeeper, self.paths)

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""
        return self.paths.pipeline

    def read_ledger(self) -> Ledger:
        """Return the pipeline's uid, newest plan and its result, and the operator's decisions."""
        self.zookeeper.sync(self.paths.root)  # a follower may lag behind the last driver's writes
        found = self.zookeeper.read(self.paths.root)
        uid = registrations.parse_uid(found[0], path=self.paths.root) if found else None
        numbers = self.plan_numbers()
        if not numbers:
            return Ledger(uid, acknowledged=self.read_acknowledgement())

        path = self.paths.plan(numbers[-1])
        stored = self.documents.read(path)
        plan = None
        plan_version = None
        if stored:
            plan = plan_document.parse_plan(stored[0], path=path)
            plan_version = stored[1]
        applied = None
        known_commit = None
        if plan:
            applied = self.read_record_of(plan)
            last_result = applied or self._read_previous_result(plan)
            if last_result:
                known_commit = last_result.delta_version
        return Ledger(
            uid,
            plan,
            applied,
            known_commit,
            newest_version=plan_version,
            acknowledged=self.read_acknowledgement(),
            retired=self.read_retirement(),
        )

    def mark(self) -> tuple[int, int | None]:
        """Return number and znode version of the newest plan.

        While both are unchanged, no other driver stored or superseded a plan.
        """
        newest = max(self.plan_numbers(), default=0)
        found = self.zookeeper.read(self.paths.plan(newest)) if newest else None
        version = found[1] if found else None
        return newest, version

    def topics(self) -> frozenset[str]:
        """Return the topics of the newest plan. No other pipeline of the group may read them."""
        newest = max(self.plan_numbers(), default=0)
        plan = self.read_plan(newest) if newest else None
        return plan.known_topics if plan else frozenset()

    def plan_numbers(self) -> list[int]:
        """Return the numbers of the stored plans, ascending."""
        numbers = []
        for name in self.zookeeper.children(self.paths.plans) or ():
            if name.isdecimal():
                numbers.append(int(name))
        return sorted(numbers)

    def read_plan(self, number: int) -> Plan | None:
        """Return plan `number`; None if it is not stored or was pruned."""
        path = self.paths.plan(number)
        stored = self.documents.read(path)
        return plan_document.parse_plan(stored[0], path=path) if stored else None

    def read_plans(self) -> list[Plan]:
        """Return the stored plans, ascending, without those that are pruned meanwhile."""
        plans = (self.read_plan(number) for number in self.plan_numbers())
        return [plan for plan in plans if plan]

    def read_applied(self, number: int) -> CommitResult | None:
        """Return the result of plan `number`; None if it is not recorded."""
        path = self.paths.applied(number)
        stored = self.documents.read(path)
        return ledger_documents.parse(CommitResult, stored[0], path=path) if stored else None

    def read_record_of(self, plan: Plan) -> CommitResult | None:
        """Return the result of this plan; None if it is not recorded.

        After ZooKeeper was restored from a copy, the result may belong to another plan of the same
        number. It is ignored.
        """
        found = self.read_applied(plan.number)
        return found if found and found.is_of(plan) else None

    def _read_previous_result(self, plan: Plan) -> CommitResult | None:
        found = self.read_applied(plan.number - 1)
        return found if found and plan.origin.previous in (None, found.plan_id) else None

    def read_loaded_intervals(self) -> LoadedIntervals:
        """Return the loaded intervals of pruned plans."""
        return self.read_loaded_intervals_with_version()[0]

    def read_loaded_intervals_with_version(self) -> tuple[LoadedIntervals, int | None]:
        """Return the loaded intervals of pruned plans and the version of their znode.

        The version is the expected one of a later write; None: no znode.
        """
        path = self.paths.loaded
        stored = self.documents.read(path)
        if stored is None:
            return LoadedIntervals(), None
        return ledger_documents.parse(LoadedIntervals, stored[0], path=path), stored[1]

    def store_uid(self, uid: str) -> None:
        """Store the uid of a new pipeline. The driver lock has created its znode.

        Raises Owned if another driver stored another uid meanwhile.
        """
        payload = uid.encode("ascii")
        found = self.zookeeper.read(self.paths.root)
        if found and found[0] == payload:
            return
        is_unnamed = found is not None and not found[0]
        if (
            found is None
            or not is_unnamed
            or not self.zookeeper.replace(self.paths.root, payload, version=found[1])
        ):
            raise self._other_uid_stored()

    def _other_uid_stored(self) -> Owned:
        return Owned(
            "Another driver named this pipeline at the same time",
            znode=self.paths.root,
            action="Run again",
        )

    def store_plan(
        self,
        plan: Plan,
        *,
        pipelines_version: int | None = None,
        also: Sequence[Part] = (),
        is_after_record: bool = False,
    ) -> None:
        """Store plan N before its first fetch, if N is free.

        The transaction includes the uid of a new pipeline and the parts `also`, all or nothing. If
        the plan adds a topic and `pipelines_version` is given, the group's znode must still have
        that version. `is_after_record`: the result of plan N - 1 was recorded, and must still be.
        Otherwise a ledger that is restored from a copy meanwhile would get a plan after plans that
        it does not know (ADR 39). Raises Owned if another driver stored another plan N, another
        pipeline of the group added a topic, or a znode of `also` was written meanwhile.
        """
        if is_after_record:
            also = (*also, self._check_of_record(plan))
        head = self.documents.head(plan_document.render_plan(plan), also=also)
        self.zookeeper.ensure(self.paths.root)
        request = self.zookeeper.client.transaction()
        self._add_uid(request, plan.origin.pipeline_id)
        self._add_others(request, plan, pipelines_version, also)
        if self.zookeeper.children(self.paths.plans) is None:
            request.create(self.paths.plans, b"")
        request.create(self.paths.plan(plan.number), head)
        self._transact_plan(request, plan)

    def _check_of_record(self, plan: Plan) -> Check:
        """Return the check that the result before this plan is recorded. Raises Owned."""
        path = self.paths.applied(plan.number - 1)
        stored = self.documents.read(path)
        if stored:
            applied = ledger_documents.parse(CommitResult, stored[0], path=path)
            if applied.plan_id == plan.origin.previous:
                return Check(path, stored[1])
        raise Owned(
            f"The ledger does not have the result of plan {plan.number - 1} any more",
            znode=path,
            action="Check whether ZooKeeper was restored from a copy. Run again: the next run "
            "continues after the table's newest plan",
        )

    def _check_of_no_record(self, plan: Plan) -> Check | Absent:
        """Return the check that the plan which this one replaces has no recorded result.

        Its driver may have slept, appended and recorded it since. Raises Owned.
        """
        path = self.paths.applied(plan.number)
        stored = self.documents.read(path)
        if stored is None:
            self.zookeeper.ensure(self.paths.applied_plans)
            return Absent(path)
        applied = ledger_documents.parse(CommitResult, stored[0], path=path)
        if applied.plan_id == plan.origin.supersedes:
            raise Owned(
                f"Another driver executed plan {plan.number} meanwhile",
                znode=path,
                action="Run again; the next run continues after it",
            )
        return Check(path, stored[1])

    def supersede_plan(
        self,
        plan: Plan,
        version: int,
        *,
        pipelines_version: int | None = None,
        also: Sequence[Part] = (),
    ) -> None:
        """Replace the stored plan of the same number, if its znode still has that version and no
        result of it is recorded.

        Raises Owned if it has not, and as `store_plan`.
        """
        also = (*also, self._check_of_no_record(plan))
        head = self.documents.head(plan_document.render_plan(plan), also=also)
        request = self.zookeeper.client.transaction()
        self._add_others(request, plan, pipelines_version, also)
        request.set_data(self.paths.plan(plan.number), head, version=version)
        self._transact_plan(request, plan)

    def _add_uid(self, request: TransactionRequest, uid: str) -> None:
        found = self.zookeeper.read(self.paths.root)
        if found and not found[0]:
            request.set_data(self.paths.root, uid.encode("ascii"), version=found[1])
        elif found and found[0] != uid.encode("ascii"):
            raise self._other_uid_stored()

    def _add_others(
        self,
        request: TransactionRequest,
        plan: Plan,
        pipelines_version: int | None,
        also: Sequence[Part],
    ) -> None:
        """Add the parts `also`, and the compare-and-set of the group's znode for a new topic.

        Two pipelines that add topics at the same time write the same znode, and ZooKeeper rejects
        one of the two transactions.
        """
        for part in also:
            part.add_to(request)
        if pipelines_version is not None and plan.known_topics - self.topics():
            request.set_data(self._pipelines, b"", version=pipelines_version)

    def _transact_plan(self, request: TransactionRequest, plan: Plan) -> None:
        path = self.paths.plan(plan.number)
        changed = None
        try:
            changed = self.zookeeper.refused_at(request, path)
            if changed is None:
                return
        except ZooKeeperUnreachable:
            # The answer may be lost although the write succeeded.
            if not self._is_stored(plan):
                raise
        if self._is_stored(plan):
            return
        message = (
            "Another pipeline of this group took a topic at the same time, "
            "or the ledger was restored from a copy"
        )
        if self.read_plan(plan.number):
            message = (
                f"Another driver stored or changed plan {plan.number} at the same time, "
                "or another pipeline of this group took a topic"
            )
        raise Owned(
            message,
            znode=path,
            changed=changed,
            action="Run again; the next run continues from the stored plan",
        )

    def _is_stored(self, plan: Plan) -> bool:
        found = self.read_plan(plan.number)
        return found is not None and found.id == plan.id

    def read_retirement(self) -> Retirement | None:
        """Return why this pipeline is retired; None while it is in service."""
        path = self.paths.retired
        found = self.zookeeper.read(path)
        return ledger_documents.parse(Retirement, found[0], path=path) if found else None

    def adopt_plan(self, plan: Plan, applied: CommitResult | None) -> None:
        """Write plan and result as the table has them, over those stored under the same number.

        Raises Owned if another driver changes one of them at the same time.
        """
        documents = [(self.paths.plan(plan.number), plan_document.render_plan(plan))]
        if applied:
            path = self.paths.applied(plan.number)
            documents.insert(0, (path, ledger_documents.render(applied)))
        for path, payload in documents:
            self.zookeeper.ensure(path.rpartition("/")[0])
            if not self.documents.put(path, payload):
                raise Owned(
                    f"Another driver changed plan {plan.number} at the same time",
                    znode=path,
                    action="Run again",
                )

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Store an operator's decision, over an earlier one.

        Raises Owned if another operator stores one at the same time.
        """
        payload = ledger_documents.render(acknowledgement)
        if not self.documents.put(self.paths.acknowledged, payload):
            raise Owned(
                "Another operator decision was stored at the same time",
                znode=self.paths.acknowledged,
                action="Check it with `etl offsets diff`, then run the command again if needed",
            )

    def record_applied(self, applied: CommitResult) -> None:
        """Record a plan's result. An earlier one stays unless this one is more complete.

        What is more complete is decided in `loaded_intervals.is_better`.
        """
        path = self.paths.applied(applied.number)
        payload = ledger_documents.render(applied)
        if not self.documents.create(path, payload):
            found = self.read_applied(applied.number)
            if found and is_better(applied, found):
                self.documents.put(path, payload)

    def read_acknowledgement(self) -> Acknowledgement | None:
        """Return the operator's last decision; None without one."""
        path = self.paths.acknowledged
        found = self.zookeeper.read(path)
        if not found or not found[0]:
            return None
        return ledger_documents.parse(Acknowledgement, found[0], path=path)


_WAIT_SLICE_S = 30.0
"""Longest wait for one change of the queue."""


class DriverLock:
    """The driver lock of one pipeline. Raises what `ZooKeeper` raises.

    Drivers queue as ephemeral sequential znodes, and the first one drives. Each has a name of its
    own, so a transaction that checks its znode fails once the session is over.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self._zookeeper = zookeeper
        self._paths = znode_paths.PipelinePaths(group, pipeline)
        self._pipelines = znode_paths.GroupPaths(group).pipelines
        self._own: str | None = None
        """Name of the driver's znode while it drives."""

    @contextlib.contextmanager
    def driving(
        self, run_id: str, *, wait_s: float | None, backfill: str | None = None
    ) -> Iterator[None]:
        """Hold the driver lock of the pipeline while the context is open.

        Znodes that dead processes of this host left are deleted at once. While a backfill's plan is
        at work, the wait has no limit. Raises Owned if another driver holds the lock for `wait_s`
        seconds (None: no limit). `backfill`: the name of the backfill that this driver loads.
        """
        driver = this_driver(run_id, backfill)
        created = self._zookeeper.missing(self._paths.root)
        own = self._enqueue(driver)
        try:
            self._wait_for_turn(own, driver, wait_s)
            self._own = own
            yield
        finally:
            self._own = None
            with contextlib.suppress(
                KazooException, KazooTimeoutError, Unreachable, PermissionDenied
            ):
                self._delete(own)
                self._delete_unused(created)

    @contextlib.contextmanager
    def proven(self) -> Iterator[Check]:
        """Yield a check that makes a transaction fail once the lock is lost. Raises SessionLost."""
        self._zookeeper.require_session()
        queue = self._queue()
        if self._own is None or not queue or queue[0] != self._own:
            raise self._lost()
        yield Check(self._path(self._own), 0)

    def driver(self) -> owner_nodes.DriverNode | None:
        """Return the active driver; None if there is none or it is a dead process of this host."""
        drivers = self.drivers()
        return drivers[0] if drivers else None

    def drivers(self) -> list[owner_nodes.DriverNode]:
        """Return the active driver and those that wait, without dead processes of this host."""
        found = []
        for name in self._queue():
            driver = self._read(name)
            if driver and not is_dead(driver):
                found.append(driver)
        return found

    def _enqueue(self, driver: owner_nodes.DriverNode) -> str:
        """Add the driver to the queue; return the name of its znode."""
        payload = owner_nodes.render_driver(driver)
        prefix = f"{uuid.uuid4().hex}-"
        client = self._zookeeper.client

        def create() -> str:
            # The create is retried when its answer is lost: it may have succeeded.
            for name in self._queue():
                if name.startswith(prefix):
                    return name
            path = client.create(self._path(prefix), payload, ephemeral=True, sequence=True)
            return str(path).rpartition("/")[2]

        while True:
            self._zookeeper.ensure(self._paths.drivers)
            try:
                name: str = self._zookeeper.guarded(
                    lambda: client.retry(create), self._paths.drivers
                )
                return name
            except NoNodeError:
                # Between the two steps, a driver that stored nothing deleted the znode above.
                continue

    def _queue(self, changed: threading.Event | None = None) -> list[str]:
        """Return the names in the order of the queue. `changed` is set when it changes."""
        client = self._zookeeper.client
        watch = None
        if changed:
            watch = _setting(changed)
        try:
            names = self._zookeeper.guarded(
                lambda: client.get_children(self._paths.drivers, watch=watch)
            )
        except NoNodeError:
            return []
        return sorted(names, key=lambda name: name.rpartition("-")[2])

    def _wait_for_turn(
        self, own: str, driver: owner_nodes.DriverNode, wait_s: float | None
    ) -> None:
        deadline = None
        waited_for = None
        while True:
            changed = threading.Event()
            queue = self._queue(changed)
            if own not in queue:
                raise self._lost()
            if queue[0] == own:
                return
            found = self._zookeeper.read(self._path(queue[0]))
            if found is None:
                continue
            first = owner_nodes.parse_driver(found[0])
            # This driver's own earlier turn is over, too: its znode stays if the connection breaks
            # during the delete and the session survives.
            if first and (is_dead(first) or first == driver):
                self._delete(queue[0])
                continue
            left_s = _WAIT_SLICE_S
            if wait_s is None or (first and first.backfill):
                deadline = None
            else:
                deadline = deadline or time.monotonic() + wait_s
                left_s = min(left_s, deadline - time.monotonic())
            if left_s <= 0:
                raise Owned(
                    f"Another driver is at work on this pipeline: {first or 'unknown'}",
                    znode=self._path(queue[0]),
                    action="Check whether that run is intended; "
                    "a second one waits ledger.lock_timeout_s for it",
                )
            if waited_for != queue[0]:
                waited_for = queue[0]
                _log.warning("Waiting for another driver of this pipeline: %s", first or "unknown")
            changed.wait(left_s)

    def _read(self, name: str) -> owner_nodes.DriverNode | None:
        found = self._zookeeper.read(self._path(name))
        return owner_nodes.parse_driver(found[0]) if found else None

    def _path(self, name: str) -> str:
        return f"{self._paths.drivers}/{name}"

    def _lost(self) -> SessionLost:
        return SessionLost(
            "This run lost the driver lock", znode=self._paths.drivers, action="Run again"
        )

    def _delete(self, name: str) -> None:
        with contextlib.suppress(NoNodeError, BadVersionError):
            self._zookeeper.guarded(
                lambda: self._zookeeper.client.delete(self._path(name), version=0)
            )

    def _delete_unused(self, created: Collection[str]) -> None:
        """Delete the empty znodes of a run that stored nothing, and those above that it created.

        ZooKeeper deletes no znode with a child, such as the lock of a driver that came meanwhile.
        """
        own = (self._paths.drivers, self._paths.root, self._pipelines)
        above = [path for path in created if path not in own]
        for path in (*own, *above):
            if not self._zookeeper.delete_unused(path):
                return


def _setting(changed: threading.Event) -> Callable[[object], None]:
    return lambda event: changed.set()
