"""The ledger: the numbered plans of one pipeline in ZooKeeper, what came of them, and what an
operator said of them.

How a document lies in znodes belongs to `documents`; what plans leave behind that are not kept any
more to `coverage`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.client import TransactionRequest

from etl.decide.loaded_intervals import is_better
from etl.edges.zookeeper.documents import Documents, Part
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import Owned, ZooKeeperUnreachable
from etl.ledger import documents as ledger_documents
from etl.ledger import plan_document, registrations
from etl.ledger.paths import CONSUMERS, GroupPaths, PipelinePaths
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import MARK, Acknowledgement, Coverage, Ledger, Retirement, live_and_name


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
        """What came of plan `number`, or None when nobody wrote it down."""
        stored = self.documents.read(self.paths.applied(number))
        return (
            ledger_documents.parse_applied(stored[0], path=self.paths.applied(number))
            if stored
            else None
        )

    def read_record_of(self, plan: Plan) -> CommitResult | None:
        """What came of this very plan; the record of another one with its number, from before a
        copy was restored, is none.
        """
        found = self.read_applied(plan.number)
        return found if found and found.is_of(plan) else None

    def _read_record_before(self, plan: Plan) -> CommitResult | None:
        found = self.read_applied(plan.number - 1)
        return found if found and plan.previous in (None, found.plan_id) else None

    def read_coverage(self) -> Coverage:
        """The loaded intervals that pruned plans left."""
        return self.read_coverage_at()[0]

    def read_coverage_at(self) -> tuple[Coverage, int | None]:
        """The same, and the version of its znode: what follows from it is written over that one
        alone. None: there is no znode.
        """
        stored = self.documents.read(self.paths.coverage)
        return (
            (ledger_documents.parse_coverage(stored[0], path=self.paths.coverage), stored[1])
            if stored
            else (Coverage(), None)
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
                "another driver named this pipeline at this moment",
                znode=self.paths.root,
                check="nothing; run again",
            )

    def store_plan(
        self, plan: Plan, *, beside: int | None = None, also: Sequence[Part] = ()
    ) -> None:
        """Write plan N ahead of its first fetch, put-if-absent, and with it the uid of a new
        pipeline and `also`: all or nothing.

        A plan that takes a topic is stored only while `pipelines_version` is `beside`, where that
        is given. Raises Owned when another driver stored another plan N, another pipeline of the
        group took a topic, or a znode of `also` was written meanwhile.
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
                "another driver named this pipeline at this moment",
                znode=self.paths.root,
                check="nothing; run again",
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
            what = (
                f"another driver stored or changed plan {plan.number} at this moment, or "
                if self.read_plan(plan.number)
                else ""
            )
            what += "another pipeline of this group took a topic at this moment, or offsets of this one were claimed"
            raise Owned(
                what,
                znode=path,
                changed=changed,
                check="nothing; the next run goes on from what is stored",
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
                "somebody else retired this pipeline at this moment",
                znode=self.paths.retired,
                check="nothing; look again",
            )

    def resume(self, *, beside: int) -> None:
        """Take it into service again, and with it its topics; `beside` as in `store_plan`."""
        request = self.zookeeper.client.transaction()
        request.set_data(self._pipelines, b"", version=beside)
        request.delete(self.paths.retired)
        if not self.zookeeper.transact(request, self.paths.retired):
            what = "another pipeline of this group took a topic at this moment"
            raise Owned(what, znode=self.paths.retired, check="nothing; look again")

    def adopt_plan(self, plan: Plan, applied: CommitResult | None) -> None:
        """Write plan and outcome as the table tells them, whatever was there under that number."""
        documents = [(self.paths.plan(plan.number), plan_document.render_plan(plan))]
        if applied:
            documents.insert(
                0, (self.paths.applied(plan.number), ledger_documents.render_applied(applied))
            )
        for path, payload in documents:
            self.zookeeper.ensure(path.rpartition("/")[0])
            if not self.documents.put(path, payload):
                raise Owned(
                    f"another driver changed plan {plan.number} at this moment",
                    znode=path,
                    check="nothing; run again",
                )

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Keep an operator's acknowledgement; it takes the place of an earlier one."""
        if not self.documents.put(
            self.paths.acknowledged, ledger_documents.render_acknowledgement(acknowledgement)
        ):
            raise Owned(
                "somebody else acknowledged at this moment",
                znode=self.paths.acknowledged,
                check="nothing; look again",
            )

    def record_applied(self, applied: CommitResult) -> None:
        """Keep what came of a plan; what is kept stays, unless this says more
        (`coverage.is_better`).
        """
        path, payload = self.paths.applied(applied.number), ledger_documents.render_applied(applied)
        if not self.documents.create(path, payload):
            found = self.read_applied(applied.number)
            if found and is_better(applied, found):
                self.documents.put(path, payload)

    def read_acknowledgement(self) -> Acknowledgement | None:
        """An operator's last acknowledgement; a backfill's is what that of its pipeline says to it."""
        live, name = live_and_name(self.pipeline)
        path = PipelinePaths(self.paths.group, live).acknowledged
        found = self.zookeeper.read(path)
        said = (
            ledger_documents.parse_acknowledgement(found[0], path=path)
            if found and found[0]
            else None
        )
        return said.of_backfill(name) if said and name else said
