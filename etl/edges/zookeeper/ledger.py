"""The ledger: the numbered plans of one pipeline in ZooKeeper, what came of them, and who drives the pipeline now.

A document too large for one znode is written as pieces first and then named by one znode that holds their hash, so that it
is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kazoo.client import TransactionRequest

from etl.decisions.coverage import ancestry, fold, is_better, note, prunable, take_in
from etl.edges.zookeeper.session import NODE_MAX_BYTES, ZooKeeper
from etl.errors import LedgersDisagree, Owned, ZooKeeperUnreachable
from etl.model.ledger import Acknowledgement, Coverage, Ledger, Retirement
from etl.model.logs import BrokerPartition
from etl.model.plans import Applied, Plan
from etl.model.table import ForeignCommit
from etl.protocol.zookeeper import payloads, plan_documents
from etl.protocol.zookeeper.paths import GroupPaths, PipelinePaths


_PIECES_MAX = 10_000
"""A document in more pieces than this is not one of ours."""


@dataclass(frozen=True, slots=True)
class _Index:
    """What the znode of a document in pieces holds."""

    digest: str
    count: int
    size: int


class PlanLedger:
    """The plans of one pipeline. Raises what `ZooKeeper` raises, and LedgersDisagree on documents that are not ours."""

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self._zookeeper = zookeeper
        self._paths = PipelinePaths(group, pipeline)
        self._pipelines = GroupPaths(group).pipelines

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""
        return self._paths.pipeline

    def beside(self, pipeline: str) -> PlanLedger:
        """The ledger of another pipeline of the group."""
        return PlanLedger(self._zookeeper, self._paths.group, pipeline)

    def read_ledger(self) -> Ledger:
        """The pipeline's uid, its newest plan, and what came of it."""
        self._zookeeper.sync(self._paths.root)  # a follower may lag behind what the last driver wrote
        found = self._zookeeper.read(self._paths.root)
        uid = payloads.parse_uid(found[0], path=self._paths.root) if found else None
        numbers = self.plan_numbers()
        if not numbers:
            return Ledger(uid)
        newest = numbers[-1]
        stored = self._read_document(self._paths.plan(newest))
        plan = plan_documents.parse_plan(stored[0], path=self._paths.plan(newest)) if stored else None
        applied = self.read_record_of(plan) if plan else None
        known = applied or (self._read_record_before(plan) if plan else None)
        return Ledger(
            uid, plan, applied, known.delta_version if known else None, newest_version=stored[1] if stored else None,
            acknowledged=self._read_acknowledgement(), retired=self.read_retirement())

    def mark(self) -> tuple[int, int | None]:
        """Number and znode version of the newest plan: while both are the same, no other driver planned or superseded."""
        newest = max(self.plan_numbers(), default=0)
        found = self._zookeeper.read(self._paths.plan(newest)) if newest else None
        return newest, found[1] if found else None

    def other_pipelines(self) -> dict[str, frozenset[str]]:
        """The group's other pipelines at work, those that have made a plan and are not retired, and the topics that they know."""
        found = {}
        for name in self.pipelines():
            other = self.beside(name)
            topics = other.topics() if name != self._paths.pipeline and not other.read_retirement() else None
            if topics:
                found[name] = topics
        return found

    def pipelines(self) -> list[str]:
        """Names of all pipelines of the group."""
        return sorted(self._zookeeper.children(self._pipelines) or ())

    def topics(self) -> frozenset[str]:
        """The topics that the newest plan knows: no other pipeline of the group may read them."""
        newest = max(self.plan_numbers(), default=0)
        plan = self.read_plan(newest) if newest else None
        return _topics_of(plan) if plan else frozenset()

    def pipelines_version(self) -> int | None:
        """A version that changes when a pipeline of the group takes a topic. Read before `other_pipelines`, it lets `store_plan`
        find out that another one took the same topic since."""
        found = self._zookeeper.read(self._pipelines)
        return found[1] if found else None

    def plan_numbers(self) -> list[int]:
        """Numbers of the stored plans, ascending."""
        return sorted(int(n) for n in self._zookeeper.children(self._paths.plans) or () if n.isdecimal())

    def read_plan(self, number: int) -> Plan | None:
        """Plan `number`, or None when it is not stored (any more)."""
        stored = self._read_document(self._paths.plan(number))
        return plan_documents.parse_plan(stored[0], path=self._paths.plan(number)) if stored else None

    def read_plans(self) -> list[Plan]:
        """The stored plans, ascending; one that is pruned meanwhile is left out."""
        plans = (self.read_plan(number) for number in self.plan_numbers())
        return [plan for plan in plans if plan]

    def read_applied(self, number: int) -> Applied | None:
        """What came of plan `number`, or None when nobody wrote it down."""
        stored = self._read_document(self._paths.applied(number))
        return plan_documents.parse_applied(stored[0], path=self._paths.applied(number)) if stored else None

    def read_record_of(self, plan: Plan) -> Applied | None:
        """What came of this very plan; the record of another one with its number, from before a copy was restored, is none."""
        found = self.read_applied(plan.number)
        return found if found and found.is_of(plan) else None

    def _read_record_before(self, plan: Plan) -> Applied | None:
        found = self.read_applied(plan.number - 1)
        return found if found and plan.previous in (None, found.plan_id) else None

    def read_coverage(self) -> Coverage:
        """The loaded intervals that pruned plans left."""
        stored = self._read_document(self._paths.coverage)
        return plan_documents.parse_coverage(stored[0], path=self._paths.coverage) if stored else Coverage()

    def store_uid(self, uid: str) -> None:
        """Keep the uid of a new pipeline; the driver's lock has made its znode. Raises Owned when another was kept meanwhile."""
        found = self._zookeeper.read(self._paths.root)
        if found and found[0] == uid.encode("ascii"):
            return
        if not found or found[0] or not self._zookeeper.replace(self._paths.root, uid.encode("ascii"), version=found[1]):
            raise Owned("another driver named this pipeline at this moment", znode=self._paths.root, check="nothing; run again")

    def store_plan(self, plan: Plan, *, beside: int | None = None) -> None:
        """Write plan N ahead of its first fetch, put-if-absent, and with it the uid of a new pipeline: all or nothing.

        A plan that takes a topic is stored only while `pipelines_version` is `beside`, where that is given. Raises Owned when another
        driver stored another plan N, or another pipeline of the group took a topic meanwhile.
        """
        head = self._head(plan_documents.render_plan(plan))
        self._zookeeper.ensure(self._paths.root)
        request = self._zookeeper.client.transaction()
        self._add_uid(request, plan.uid)
        self._add_topics(request, plan, beside)
        if self._zookeeper.children(self._paths.plans) is None:
            request.create(self._paths.plans, b"")
        request.create(self._paths.plan(plan.number), head)
        self._transact_plan(request, plan)

    def supersede_plan(self, plan: Plan, version: int, *, beside: int | None = None) -> None:
        """Put another plan in the place of one, if its znode still has that version. Raises Owned when it has not, and as `store_plan`."""
        head = self._head(plan_documents.render_plan(plan))
        request = self._zookeeper.client.transaction()
        self._add_topics(request, plan, beside)
        request.set_data(self._paths.plan(plan.number), head, version=version)
        self._transact_plan(request, plan)

    def withdraw_plan(self, number: int, version: int) -> None:
        """Take away a stored plan that nobody executed, if its znode still has that version. Raises Owned when it has not."""
        request, path = self._zookeeper.client.transaction(), self._paths.plan(number)
        request.delete(path, version=version)
        if not self._zookeeper.transact(request, path):
            raise Owned(f"somebody else changed plan {number} at this moment", znode=path, check="nothing; look again")

    def _add_uid(self, request: TransactionRequest, uid: str) -> None:
        found = self._zookeeper.read(self._paths.root)
        if found and not found[0]:
            request.set_data(self._paths.root, uid.encode("ascii"), version=found[1])
        elif found and found[0] != uid.encode("ascii"):
            raise Owned("another driver named this pipeline at this moment", znode=self._paths.root, check="nothing; run again")

    def _add_topics(self, request: TransactionRequest, plan: Plan, beside: int | None) -> None:
        """Two pipelines that take topics at the same moment write the same znode: one of them is refused."""
        if beside is not None and _topics_of(plan) - self.topics():
            request.set_data(self._pipelines, b"", version=beside)

    def _transact_plan(self, request: TransactionRequest, plan: Plan) -> None:
        path = self._paths.plan(plan.number)
        try:
            if self._zookeeper.transact(request, path):
                return
        except ZooKeeperUnreachable:
            if not self._is_stored(plan):  # the answer may be lost, and not the write
                raise
        if not self._is_stored(plan):
            what = "another pipeline of this group took a topic at this moment"
            if self.read_plan(plan.number):
                what = f"another driver stored or changed plan {plan.number} at this moment, or {what}"
            raise Owned(what, znode=path, check="nothing; the next run goes on from what is stored")

    def _is_stored(self, plan: Plan) -> bool:
        found = self.read_plan(plan.number)
        return found is not None and found.id == plan.id

    def read_retirement(self) -> Retirement | None:
        """Why this pipeline was taken out of service; None while it is in service."""
        found = self._zookeeper.read(self._paths.retired)
        return plan_documents.parse_retirement(found[0], path=self._paths.retired) if found else None

    def retire(self, word: Retirement) -> None:
        """Take the pipeline out of service; nothing of it is deleted."""
        if not self._zookeeper.create(self._paths.retired, plan_documents.render_retirement(word)):
            raise Owned("somebody else retired this pipeline at this moment", znode=self._paths.retired, check="nothing; look again")

    def resume(self, *, beside: int) -> None:
        """Take it into service again, and with it its topics; `beside` as in `store_plan`."""
        request = self._zookeeper.client.transaction()
        request.set_data(self._pipelines, b"", version=beside)
        request.delete(self._paths.retired)
        if not self._zookeeper.transact(request, self._paths.retired):
            what = "another pipeline of this group took a topic at this moment"
            raise Owned(what, znode=self._paths.retired, check="nothing; look again")

    def adopt_plan(self, plan: Plan, applied: Applied | None) -> None:
        """Write plan and outcome as the table tells them, whatever was there under that number."""
        documents = [(self._paths.plan(plan.number), plan_documents.render_plan(plan))]
        if applied:
            documents.insert(0, (self._paths.applied(plan.number), plan_documents.render_applied(applied)))
        for path, payload in documents:
            self._zookeeper.ensure(path.rpartition("/")[0])
            if not self._put_document(path, payload, deleting=()):
                raise Owned(f"another driver changed plan {plan.number} at this moment", znode=path, check="nothing; run again")

    def acknowledge(self, word: Acknowledgement) -> None:
        """Keep an operator's acknowledgement; it takes the place of an earlier one."""
        if not self._put_document(self._paths.acknowledged, plan_documents.render_acknowledgement(word), deleting=()):
            raise Owned("somebody else acknowledged at this moment", znode=self._paths.acknowledged, check="nothing; look again")

    def note_removals(self, removals: Sequence[ForeignCommit]) -> None:
        """Keep in the coverage that others removed rows, as policy allowed. Quiet where another driver did it meanwhile."""
        before = self.read_coverage()
        after = note(before, removals)
        if after != before:
            self._put_document(self._paths.coverage, plan_documents.render_coverage(after), deleting=())

    def read_all_coverage(self) -> Coverage:
        """All that the pipeline's recorded plans loaded, those that are kept among them."""
        plans = [plan for number in self.plan_numbers() if (plan := self.read_plan(number))]
        recorded = [(plan, applied) for plan in plans if (applied := self.read_applied(plan.number)) and applied.plan_id == plan.id]
        led = ancestry({plan.number: plan.table_transaction_version for plan, _ in recorded}, max((
            plan.number for plan, _ in recorded), default=0))
        found = self.read_coverage()
        for plan, applied in recorded:
            found = fold(found, plan, applied, is_given_up=plan.number not in led.numbers)
        return found

    def take_in(
        self, theirs: Coverage | None, taken: Mapping[BrokerPartition, int], *, table_id: str, known: Collection[BrokerPartition],
        lives: Mapping[BrokerPartition, int],
    ) -> None:
        """Keep what another pipeline loaded, whose place this one takes. Raises Owned when somebody else changed the coverage meanwhile."""
        after = take_in(self.read_coverage(), theirs, taken, table_id=table_id, known=known, lives=lives)
        if not self._put_document(self._paths.coverage, plan_documents.render_coverage(after), deleting=()):
            raise Owned("another driver changed the coverage at this moment", znode=self._paths.coverage, check="nothing; say it again")

    def record_applied(self, applied: Applied) -> None:
        """Keep what came of a plan; what is kept stays, unless this says more (`coverage.is_better`)."""
        path, payload = self._paths.applied(applied.number), plan_documents.render_applied(applied)
        if not self._zookeeper.create(path, self._head(payload)):
            found = self.read_applied(applied.number)
            if found and is_better(applied, found):
                self._put_document(path, payload, deleting=())

    def prune(self) -> None:
        """Fold plans beyond those kept into coverage, in one transaction each, and drop pieces that no document names.

        Stops quietly where another driver did it meanwhile. Raises SessionLost: pieces that nobody names yet may then be another driver's.
        """
        self._zookeeper.require_session()
        for number in prunable(self._plan_sizes()):
            plan = self.read_plan(number)
            applied = self.read_record_of(plan) if plan else None
            if not plan or not applied:
                return
            folded = fold(self.read_coverage(), plan, applied, is_given_up=self._is_given_up(number))
            coverage = plan_documents.render_coverage(folded)
            if not self._put_document(self._paths.coverage, coverage, deleting=(self._paths.plan(number), self._paths.applied(number))):
                return
        self._drop_loose_chunks()

    def _is_given_up(self, number: int) -> bool:
        """Whether later plans tell that an operator gave this one up; nobody did where no acknowledgement came after it."""
        word = self._read_acknowledgement()
        if word is None or word.number < number:
            return False
        later = [plan for n in self.plan_numbers() if n >= number and (plan := self.read_plan(n))]
        bits = {plan.number: plan.table_transaction_version for plan in later}
        return number not in ancestry(bits, max(bits)).numbers

    def _plan_sizes(self) -> list[tuple[int, int]]:
        """(number, bytes) of each stored plan; one in pieces is as large as its pieces."""
        numbers = self.plan_numbers()
        stored = self._zookeeper.read_all([self._paths.plan(n) for n in numbers])
        found = [(n, p[0]) for n, p in zip(numbers, stored, strict=True) if p]
        return [(n, _index(payload, self._paths.plan(n)).size if payload.startswith(b"{") else len(payload)) for n, payload in found]

    def _read_acknowledgement(self) -> Acknowledgement | None:
        found = self._zookeeper.read(self._paths.acknowledged)
        return plan_documents.parse_acknowledgement(found[0], path=self._paths.acknowledged) if found and found[0] else None

    def _read_document(self, path: str) -> tuple[bytes, int] | None:
        """A document and the version of the znode that holds or names it."""
        found = self._zookeeper.read(path)
        if not found or not found[0]:
            return None
        if not found[0].startswith(b"{"):
            return found
        index = _index(found[0], path)
        pieces = self._zookeeper.read_all([self._paths.chunk(index.digest, i) for i in range(index.count)])
        whole = b"".join(p[0] for p in pieces if p)
        if hashlib.sha256(whole).hexdigest() == index.digest:
            return whole, found[1]
        check = "whether ZooKeeper was restored from a copy"
        raise LedgersDisagree("pieces of the document are missing", znode=path, check=check)

    def _put_document(self, path: str, payload: bytes, *, deleting: Sequence[str]) -> bool:
        """Replace a document and delete others, all or nothing; False when somebody else changed one of them meanwhile."""
        head, found = self._head(payload), self._zookeeper.read(path)
        request = self._zookeeper.client.transaction()
        if found:
            request.set_data(path, head, version=found[1])
        else:
            request.create(path, head)
        for gone in deleting:
            request.delete(gone)
        return self._zookeeper.transact(request, path)

    def _head(self, payload: bytes) -> bytes:
        """What the znode itself holds: the document, or the hash of pieces that were written before."""
        if len(payload) <= NODE_MAX_BYTES:
            return payload
        digest = hashlib.sha256(payload).hexdigest()
        pieces = [payload[i:i + NODE_MAX_BYTES] for i in range(0, len(payload), NODE_MAX_BYTES)]
        for i, piece in enumerate(pieces):
            self._zookeeper.create(self._paths.chunk(digest, i), piece)
        return json.dumps({"chunks": digest, "count": len(pieces), "bytes": len(payload)}).encode()

    def _drop_loose_chunks(self) -> None:
        there = self._zookeeper.children(f"{self._paths.root}/chunks") or ()
        if not there:
            return
        paths = [self._paths.plan(n) for n in self.plan_numbers()] + [self._paths.coverage]
        paths += [f"{self._paths.applied_plans}/{n}" for n in self._zookeeper.children(self._paths.applied_plans) or ()]
        named = b" ".join(p[0] for p in self._zookeeper.read_all(paths) if p and p[0].startswith(b"{"))
        for digest in there:
            if digest.encode() not in named:
                self._zookeeper.delete_tree(self._paths.chunks(digest))


def _index(payload: bytes, path: str) -> _Index:
    try:
        found = json.loads(payload)
        index = _Index(found["chunks"], int(found["count"]), int(found["bytes"]))
        if not re.fullmatch("[0-9a-f]{64}", index.digest) or not 0 < index.count <= min(index.size, _PIECES_MAX):
            raise ValueError("it names no pieces of ours")
        return index
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LedgersDisagree("the znode does not hold what it should", znode=path, check="who wrote it") from error


def _topics_of(plan: Plan) -> frozenset[str]:
    return frozenset(log.topic for log in plan.positions)


def new_uid() -> str:
    """A random id for a new pipeline: 16 hex digits."""
    return secrets.token_hex(8)
