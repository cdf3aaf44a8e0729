"""How are numbered plans stored and their results recorded, by one driver at a time?

A document that is too large for a znode is written in pieces first, then named by one znode with
their hash, so it is visible as a whole or not at all. The driver lock is an ephemeral znode; it
saves work, while correctness rests on the numbered plans.

Not here: other records of the ledger (etl/io/zookeeper/ledger_records.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
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
from etl.io.zookeeper.session import NODE_MAX_BYTES, ZooKeeper
from etl.ledger import documents as ledger_documents
from etl.ledger import paths, plan_document, registrations
from etl.ledger.paths import CONSUMERS, GroupPaths, PipelinePaths
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import (
    MARK,
    Acknowledgement,
    Ledger,
    LoadedIntervals,
    Retirement,
    live_and_name,
)

REQUEST_MAX_BYTES = 1_000_000
"""Of a transaction: a server accepts 1,048,575 bytes per request by default."""
_OPERATION_BYTES = 25
"""Size of a check or write besides path and data."""
_PIECES_MAX = 10_000
"""A document in more pieces than this is not one of ours."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The znode of a document in pieces."""

    digest: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Write:
    """The data that a znode shall have."""

    path: str
    payload: bytes
    version: int | None
    """The one that it has now; None: it is not there."""

    def add_to(self, request: TransactionRequest) -> None:
        """Add it to a transaction, without kazoo's check of each path, which takes most of the time
        for thousands.
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
    """The version that a znode must have."""

    path: str
    version: int

    def add_to(self, request: TransactionRequest) -> None:
        """Add it to a transaction, which is rejected if the znode has another version or is
        missing.
        """
        request.operations.append(CheckVersion(request.client.chroot + self.path, self.version))


Part = Write | Check
"""A part of a transaction."""


def size_of(parts: Iterable[Part]) -> int:
    """About how many bytes of a request these are, without the chroot."""
    return sum(
        _OPERATION_BYTES + len(one.path) + (len(one.payload) if isinstance(one, Write) else 0)
        for one in parts
    )


class Documents:
    """The documents of one pipeline. Raises as `ZooKeeper`, and LedgersDisagree for invalid ones."""

    def __init__(self, zookeeper: ZooKeeper, paths: PipelinePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths

    def read(self, path: str) -> tuple[bytes, int] | None:
        """A document and the version of the znode that holds or names it."""
        found = self._zookeeper.read(path)
        if not found or not found[0]:
            return None
        if not found[0].startswith(b"{"):
            return found
        index = _index(found[0], path)
        pieces = self._zookeeper.read_all(
            [self._paths.chunk(index.digest, i) for i in range(index.count)]
        )
        whole = b"".join(p[0] for p in pieces if p)
        if hashlib.sha256(whole).hexdigest() == index.digest:
            return whole, found[1]
        action = "Check whether ZooKeeper was restored from a copy"
        raise LedgersDisagree("Pieces of the document are missing", znode=path, action=action)

    def create(self, path: str, payload: bytes) -> bool:
        """Put a document where there is none; False where there is one."""
        return self._zookeeper.create(path, self.head(payload))

    def put(self, path: str, payload: bytes) -> bool:
        """Write a document, over an earlier one; False if another client changed it at this moment."""
        found = self._zookeeper.read(path)
        return self.replace(path, payload, version=found[1] if found else None)

    def replace(
        self,
        path: str,
        payload: bytes,
        *,
        version: int | None,
        deleting: Sequence[str] = (),
        absent: Sequence[str] = (),
    ) -> bool:
        """Replace the document of that version (None: none) and delete others, all or nothing.
        False, and nothing is done, if one of them changed or a znode of `absent` exists.
        """
        head, request = self.head(payload), self._zookeeper.client.transaction()
        if version is not None:
            request.set_data(path, head, version=version)
        else:
            request.create(path, head)
        for gone in deleting:
            request.delete(gone)
        for free in (
            absent
        ):  # no transaction can ask that: made and deleted in one go, it fails where it is there
            request.create(free, b"")
            request.delete(free)
        return self._zookeeper.transact(request, path)

    def head(self, payload: bytes, *, beside: Iterable[Part] = ()) -> bytes:
        """Return the data of the znode: the document, or the hash of its pieces, which are written
        first. `beside`: what goes with it in one request, whose sender rejects what exceeds it.
        """
        if len(payload) <= min(NODE_MAX_BYTES, REQUEST_MAX_BYTES - size_of(beside)):
            return payload
        digest = hashlib.sha256(payload).hexdigest()
        pieces = [payload[i : i + NODE_MAX_BYTES] for i in range(0, len(payload), NODE_MAX_BYTES)]
        for i, piece in enumerate(pieces):
            self._zookeeper.create(self._paths.chunk(digest, i), piece)
        return json.dumps({"chunks": digest, "count": len(pieces), "bytes": len(payload)}).encode()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each document; one in pieces is as large as its pieces. None where there is
        none.
        """
        stored = self._zookeeper.read_all(paths)
        return [
            _size(found[0], path) if found else None
            for found, path in zip(stored, paths, strict=True)
        ]

    def pieces(self) -> list[str]:
        """The hash of each document that has pieces, whether a znode names it or not."""
        return self._zookeeper.children(self._paths.all_chunks) or []

    def drop_pieces(self, digests: Collection[str], *, but_of: Sequence[str]) -> None:
        """Delete the pieces of these hashes that no document at `but_of` names."""
        named = b" ".join(
            p[0] for p in self._zookeeper.read_all([*but_of]) if p and p[0].startswith(b"{")
        )
        for digest in digests:
            if digest.encode() not in named:
                self._zookeeper.delete_tree(self._paths.chunks(digest))


def _size(payload: bytes, path: str) -> int:
    return _index(payload, path).size if payload.startswith(b"{") else len(payload)


def _index(payload: bytes, path: str) -> _Index:
    try:
        found = json.loads(payload)
        index = _Index(found["chunks"], int(found["count"]), int(found["bytes"]))
        if not re.fullmatch("[0-9a-f]{64}", index.digest) or not 0 < index.count <= min(
            index.size, _PIECES_MAX
        ):
            raise ValueError("it names no pieces of ours")
        return index
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LedgersDisagree(
            "The znode does not hold what it should", znode=path, action="Check who wrote it"
        ) from error


class PlanLedger:
    """The plans of one pipeline. Raises what `ZooKeeper` raises, and LedgersDisagree on documents
    that are not ours.
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

    def beside(self, pipeline: str) -> PlanLedger:
        """The ledger of another pipeline of the group."""
        return PlanLedger(self.zookeeper, self.paths.group, pipeline)

    def read_ledger(self) -> Ledger:
        """The pipeline's uid, its newest plan and what came of it, and what an operator decided."""
        self.zookeeper.sync(self.paths.root)  # a follower may lag behind what the last driver wrote
        found = self.zookeeper.read(self.paths.root)
        uid = registrations.parse_uid(found[0], path=self.paths.root) if found else None
        numbers = self.plan_numbers()
        if not numbers:
            return Ledger(uid, acknowledged=self.read_acknowledgement())
        newest = numbers[-1]
        stored = self.documents.read(self.paths.plan(newest))
        plan = plan_document.parse_plan(stored[0], path=self.paths.plan(newest)) if stored else None
        applied = self.read_record_of(plan) if plan else None
        known = applied or (self._read_record_before(plan) if plan else None)
        return Ledger(
            uid,
            plan,
            applied,
            known.delta_version if known else None,
            newest_version=stored[1] if stored else None,
            acknowledged=self.read_acknowledgement(),
            retired=self.read_retirement(),
        )

    def mark(self) -> tuple[int, int | None]:
        """Number and znode version of the newest plan: while both are the same, no other driver
        planned or superseded.
        """
        newest = max(self.plan_numbers(), default=0)
        found = self.zookeeper.read(self.paths.plan(newest)) if newest else None
        return newest, found[1] if found else None

    def other_pipelines(self) -> dict[str, frozenset[str]]:
        """The group's other pipelines at work, those that have made a plan and are not retired, and
        the topics that they know.
        """
        others = (
            (name, self.beside(name)) for name in self.pipelines() if name != self.paths.pipeline
        )
        found = ((name, other.topics()) for name, other in others if not other.read_retirement())
        return {name: topics for name, topics in found if topics}

    def pipelines(self) -> list[str]:
        """Names of all pipelines of the group, backfills left out."""
        return sorted(
            name for name in self.zookeeper.children(self._pipelines) or () if MARK not in name
        )

    def groups(self) -> list[str]:
        """Names of all groups of this ZooKeeper that have a pipeline."""
        return sorted(
            group
            for group in self.zookeeper.children(CONSUMERS) or ()
            if self.zookeeper.children(GroupPaths(group).pipelines)
        )

    def topics(self) -> frozenset[str]:
        """The topics that the newest plan knows: no other pipeline of the group may read them."""
        newest = max(self.plan_numbers(), default=0)
        plan = self.read_plan(newest) if newest else None
        return plan.topics if plan else frozenset()

    def pipelines_version(self) -> int | None:
        """Changes when a pipeline takes a topic. Read before `other_pipelines`, it lets
        `store_plan` find out that one did since.
        """
        found = self.zookeeper.read(self._pipelines)
        return found[1] if found else None

    def plan_numbers(self) -> list[int]:
        """Numbers of the stored plans, ascending."""
        return sorted(
            int(n) for n in self.zookeeper.children(self.paths.plans) or () if n.isdecimal()
        )

    def read_plan(self, number: int) -> Plan | None:
        """Plan `number`, or None when it is not stored (any more)."""
        stored = self.documents.read(self.paths.plan(number))
        return plan_document.parse_plan(stored[0], path=self.paths.plan(number)) if stored else None

    def read_plans(self) -> list[Plan]:
        """The stored plans, ascending; one that is pruned meanwhile is left out."""
        plans = (self.read_plan(number) for number in self.plan_numbers())
        return [plan for plan in plans if plan]

    def read_applied(self, number: int) -> CommitResult | None:
        """Return the result of plan `number`, or None if it is not recorded."""
        stored = self.documents.read(self.paths.applied(number))
        return (
            ledger_documents.parse_applied(stored[0], path=self.paths.applied(number))
            if stored
            else None
        )

    def read_record_of(self, plan: Plan) -> CommitResult | None:
        """Return the result of this plan; one of another plan with its number, from before a
        restored copy, does not count.
        """
        found = self.read_applied(plan.number)
        return found if found and found.is_of(plan) else None

    def _read_record_before(self, plan: Plan) -> CommitResult | None:
        found = self.read_applied(plan.number - 1)
        return found if found and plan.previous in (None, found.plan_id) else None

    def read_loaded_intervals(self) -> LoadedIntervals:
        """The loaded intervals that pruned plans left."""
        return self.read_loaded_intervals_with_version()[0]

    def read_loaded_intervals_with_version(self) -> tuple[LoadedIntervals, int | None]:
        """Return the same with the version of its znode, over which changes are written. None: no
        znode.
        """
        stored = self.documents.read(self.paths.coverage)
        return (
            (
                ledger_documents.parse_loaded_intervals(stored[0], path=self.paths.coverage),
                stored[1],
            )
            if stored
            else (LoadedIntervals(), None)
        )

    def store_uid(self, uid: str) -> None:
        """Keep the uid of a new pipeline; the driver's lock has made its znode. Raises Owned when
        another was kept meanwhile.
        """
        found = self.zookeeper.read(self.paths.root)
        if found and found[0] == uid.encode("ascii"):
            return
        if (
            not found
            or found[0]
            or not self.zookeeper.replace(self.paths.root, uid.encode("ascii"), version=found[1])
        ):
            raise Owned(
                "Another driver named this pipeline at this moment",
                znode=self.paths.root,
                action="Run again",
            )

    def store_plan(
        self, plan: Plan, *, beside: int | None = None, also: Sequence[Part] = ()
    ) -> None:
        """Store plan N before its first fetch, if N is free, with the uid of a new pipeline and
        `also`: all or nothing.

        A plan that takes a topic is stored only while `pipelines_version` is `beside`, if given.
        Raises Owned if another driver stored another plan N, another pipeline of the group took a
        topic, or a znode of `also` was written meanwhile.
        """
        head = self.documents.head(plan_document.render_plan(plan), beside=also)
        self.zookeeper.ensure(self.paths.root)
        request = self.zookeeper.client.transaction()
        self._add_uid(request, plan.uid)
        self._add_others(request, plan, beside, also)
        if self.zookeeper.children(self.paths.plans) is None:
            request.create(self.paths.plans, b"")
        request.create(self.paths.plan(plan.number), head)
        self._transact_plan(request, plan)

    def supersede_plan(
        self, plan: Plan, version: int, *, beside: int | None = None, also: Sequence[Part] = ()
    ) -> None:
        """Put another plan in the place of one, if its znode still has that version. Raises Owned
        when it has not, and as `store_plan`.
        """
        head = self.documents.head(plan_document.render_plan(plan), beside=also)
        request = self.zookeeper.client.transaction()
        self._add_others(request, plan, beside, also)
        request.set_data(self.paths.plan(plan.number), head, version=version)
        self._transact_plan(request, plan)

    def _add_uid(self, request: TransactionRequest, uid: str) -> None:
        found = self.zookeeper.read(self.paths.root)
        if found and not found[0]:
            request.set_data(self.paths.root, uid.encode("ascii"), version=found[1])
        elif found and found[0] != uid.encode("ascii"):
            raise Owned(
                "Another driver named this pipeline at this moment",
                znode=self.paths.root,
                action="Run again",
            )

    def _add_others(
        self, request: TransactionRequest, plan: Plan, beside: int | None, also: Sequence[Part]
    ) -> None:
        """Two pipelines that take topics at the same moment, or two who claim offsets, write the
        same znode: one of them is refused.
        """
        for one in also:
            one.add_to(request)
        if beside is not None and plan.topics - self.topics():
            request.set_data(self._pipelines, b"", version=beside)

    def _transact_plan(self, request: TransactionRequest, plan: Plan) -> None:
        path, changed = self.paths.plan(plan.number), None
        try:
            changed = self.zookeeper.refused_at(request, path)
            if changed is None:
                return
        except ZooKeeperUnreachable:
            if not self._is_stored(plan):  # the answer may be lost, and not the write
                raise
        if not self._is_stored(plan):
            message = (
                f"Another driver stored or changed plan {plan.number} at this moment, or "
                if self.read_plan(plan.number)
                else ""
            )
            message += "another pipeline of this group took a topic at this moment, or offsets of this one were claimed"
            raise Owned(
                message,
                znode=path,
                changed=changed,
                action="The next run continues from what is stored",
            )

    def _is_stored(self, plan: Plan) -> bool:
        found = self.read_plan(plan.number)
        return found is not None and found.id == plan.id

    def read_retirement(self) -> Retirement | None:
        """Why this pipeline was taken out of service; None while it is in service."""
        found = self.zookeeper.read(self.paths.retired)
        return (
            ledger_documents.parse_retirement(found[0], path=self.paths.retired) if found else None
        )

    def retire(self, retirement: Retirement) -> None:
        """Take the pipeline out of service; nothing of it is deleted."""
        if not self.zookeeper.create(
            self.paths.retired, ledger_documents.render_retirement(retirement)
        ):
            raise Owned(
                "Somebody else retired this pipeline at this moment",
                znode=self.paths.retired,
                action="Look again",
            )

    def resume(self, *, beside: int) -> None:
        """End the retirement, and take its topics again; `beside` as in `store_plan`."""
        request = self.zookeeper.client.transaction()
        request.set_data(self._pipelines, b"", version=beside)
        request.delete(self.paths.retired)
        if not self.zookeeper.transact(request, self.paths.retired):
            message = "Another pipeline of this group took a topic at this moment"
            raise Owned(message, znode=self.paths.retired, action="Look again")

    def adopt_plan(self, plan: Plan, applied: CommitResult | None) -> None:
        """Write plan and result from the table, over what was there under that number."""
        documents = [(self.paths.plan(plan.number), plan_document.render_plan(plan))]
        if applied:
            documents.insert(
                0, (self.paths.applied(plan.number), ledger_documents.render_applied(applied))
            )
        for path, payload in documents:
            self.zookeeper.ensure(path.rpartition("/")[0])
            if not self.documents.put(path, payload):
                raise Owned(
                    f"Another driver changed plan {plan.number} at this moment",
                    znode=path,
                    action="Run again",
                )

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Keep an operator's acknowledgement; it takes the place of an earlier one."""
        if not self.documents.put(
            self.paths.acknowledged, ledger_documents.render_acknowledgement(acknowledgement)
        ):
            raise Owned(
                "Somebody else acknowledged at this moment",
                znode=self.paths.acknowledged,
                action="Look again",
            )

    def record_applied(self, applied: CommitResult) -> None:
        """Record a plan's result; an earlier one stays unless this says more
        (`coverage.is_better`).
        """
        path, payload = self.paths.applied(applied.number), ledger_documents.render_applied(applied)
        if not self.documents.create(path, payload):
            found = self.read_applied(applied.number)
            if found and is_better(applied, found):
                self.documents.put(path, payload)

    def read_acknowledgement(self) -> Acknowledgement | None:
        """Return the operator's last decision; for a backfill as its pipeline's applies to it."""
        live, name = live_and_name(self.pipeline)
        path = PipelinePaths(self.paths.group, live).acknowledged
        found = self.zookeeper.read(path)
        decision = (
            ledger_documents.parse_acknowledgement(found[0], path=path)
            if found and found[0]
            else None
        )
        return decision.of_backfill(name) if decision and name else decision


class DriverLock:
    """The driver's znode of one pipeline. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self._zookeeper = zookeeper
        self._paths, self._pipelines = (
            paths.PipelinePaths(group, pipeline),
            paths.GroupPaths(group).pipelines,
        )

    @contextlib.contextmanager
    def driving(self, run_id: str, *, wait_s: float) -> Iterator[None]:
        """Be the only driver of the pipeline. Raises Owned when another is at work and stays so for
        `wait_s`.

        A node left by a dead process of this host is taken over at once.
        """
        us = this_driver(run_id)
        deadline = time.monotonic() + wait_s
        made = self._zookeeper.missing(self._paths.root)
        while not self._try_driving(us):
            self._wait_for_driver(deadline)
        try:
            yield
        finally:
            with contextlib.suppress(
                KazooException, KazooTimeoutError, Unreachable, PermissionDenied
            ):
                self._delete_own_driver_node()
                self._delete_unused(made)

    @contextlib.contextmanager
    def proven(self) -> Iterator[Check]:
        """Context manager: return a check that makes a transaction fail once the lock is lost.
        Raises SessionLost.

        The driver's node cannot be checked, since a successor's has the same version. A znode that
        only this session creates, and that ends with it, can; while the session lives, the lock is
        ours.
        """
        client = self._zookeeper.client
        session = client.client_id[0] if client.client_id else 0
        path = self._paths.session(session)
        self._zookeeper.require_session()
        with contextlib.suppress(NodeExistsError):  # of a hand-over before
            self._zookeeper.guarded(lambda: client.create(path, b"", ephemeral=True), path)
        try:
            found = self._zookeeper.read_znodes([self._paths.driver])[0]
            if found is None or found.owner_session != session:
                raise SessionLost(
                    "The driver's lock is not ours any more",
                    znode=self._paths.driver,
                    action="Run again",
                )
            yield Check(path, 0)
        finally:
            with contextlib.suppress(
                KazooException, KazooTimeoutError, Unreachable, PermissionDenied
            ):
                client.delete(path, version=0)

    def driver(self) -> registrations.DriverNode | None:
        """Return the active driver; None if there is none, or a dead process of this host is named."""
        found = self._zookeeper.read(self._paths.driver)
        driver = registrations.parse_driver(found[0]) if found else None
        return None if driver is None or is_dead(driver) else driver

    def _try_driving(self, us: registrations.DriverNode) -> bool:
        path, payload = self._paths.driver, registrations.render_driver(us)
        try:
            self._zookeeper.ensure(self._paths.root)
            # tried again when the answer was lost: our own node is then found, and known by its
            # payload
            self._zookeeper.guarded(
                lambda: self._zookeeper.client.retry(
                    self._zookeeper.client.create, path, payload, ephemeral=True
                ),
                path,
            )
        except NoNodeError:
            return self._try_driving(
                us
            )  # a driver that was refused took what it had made away, between our two steps
        except NodeExistsError:
            found = self._zookeeper.read(path)
            other = registrations.parse_driver(found[0]) if found else None
            if found and other == us:
                return True  # the answer to our create was lost, not the create
            if found and other and is_dead(other):
                with contextlib.suppress(NoNodeError, BadVersionError):
                    self._zookeeper.guarded(
                        lambda: self._zookeeper.client.delete(path, version=found[1]), path
                    )
                return self._try_driving(us)
            return False
        return True

    def _wait_for_driver(self, deadline: float) -> None:
        gone = threading.Event()
        found = self._zookeeper.guarded(
            lambda: self._zookeeper.client.exists(self._paths.driver, watch=lambda _: gone.set())
        )
        if (
            found
            and not gone.wait(max(0.0, deadline - time.monotonic()))
            and time.monotonic() >= deadline
        ):
            node = self._zookeeper.read(self._paths.driver)
            other = registrations.parse_driver(node[0]) if node else None
            action = "Check whether that run is meant to be; a second one waits ledger.lock_timeout_s for it"
            raise Owned(
                f"Another driver is at work on this pipeline: {other or 'unknown'}",
                znode=self._paths.driver,
                action=action,
            )

    def _delete_unused(self, made: Collection[str]) -> None:
        """Delete what a run made that stored nothing: empty znodes of our names, and those above
        them that it made.

        ZooKeeper deletes no znode with a child, such as the node of a driver that came meanwhile.
        """
        ours = (self._paths.root, self._pipelines)
        for path in (*ours, *(above for above in made if above not in ours)):
            if not self._zookeeper.delete_unused(path):
                return

    def _delete_own_driver_node(self) -> None:
        stat = self._zookeeper.client.exists(self._paths.driver)
        if (
            stat
            and self._zookeeper.client.client_id
            and stat.owner_session_id == self._zookeeper.client.client_id[0]
        ):
            self._zookeeper.client.delete(self._paths.driver, version=stat.version)
