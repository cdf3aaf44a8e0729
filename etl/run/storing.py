"""What a run stores before its first fetch; as a member of its group it moves the group's offsets with it, in the same step or the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from etl.decisions.offsets_storage import refuse_another_storage
from etl.decisions.open_hand_overs import HandOver as Found
from etl.decisions.open_hand_overs import found_out
from etl.edges.brokers.cluster import Cluster
from etl.edges.brokers.coordinator import CoordinatedMember
from etl.edges.delta.taking import Takes
from etl.edges.zookeeper.documents import Part
from etl.edges.zookeeper.driver_lock import DriverLock
from etl.edges.zookeeper.hand_over import HandOver
from etl.edges.zookeeper.hand_over_marks import write_mark
from etl.edges.zookeeper.ledger import PlanLedger
from etl.edges.zookeeper.membership import ZooKeeperMember
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import LedgersDisagree
from etl.model.committed import OffsetsStorage
from etl.model.ledger import Ledger
from etl.model.membership import Membership, Share, Void
from etl.model.plans import Plan
from etl.run.claims import ClaimsOfRun
from etl.run.discovery import Discovery
from etl.run.formats import try_on_no_rows
from etl.run.group_offsets import GroupOffsets
from etl.run.members import Member
from etl.run.memberships import coordinated_member, zookeeper_member
from etl.run.rows import writer_of
from etl.run.spark import RunSpark
from etl.settings.sections import Settings


class PlanStore:
    """The part of a live world that stores plans; see `world.World` for what each is asked."""

    settings: Settings
    zookeeper: ZooKeeper
    run_id: str
    ledger: PlanLedger
    claims: ClaimsOfRun
    _lock: DriverLock
    _spark: RunSpark
    _discovery: Discovery
    offsets: GroupOffsets
    _pipelines_version: int | None
    _registered: ZooKeeperMember | None = None
    _coordinated: CoordinatedMember | None = None

    def refuse_unwritable(self, plan: Plan) -> None:
        """Refuse what could not be finished."""
        raise NotImplementedError

    def member(self) -> Member | None:
        """See `world.World`."""
        if self.settings.membership is Membership.ZOOKEEPER:
            self._registered = zookeeper_member(self.settings, self.zookeeper, self.run_id)
            return self._registered
        if self.settings.membership is Membership.COORDINATOR:
            self._coordinated = coordinated_member(self.settings, self._discovery)
            return self._coordinated
        return None

    def fence(self, plan: Plan) -> None:
        """See `world.World`."""
        if plan.share is None or plan.share.membership is not Membership.COORDINATOR:
            return
        if plan.is_open:
            refuse_another_storage(plan, self.offsets.storage)
        member = self._coordinated or coordinated_member(self.settings, self._discovery)
        with self._discovery.open_cluster() as cluster:
            found = self._found_out(plan, cluster) if plan.is_open else None
            if found is not Found.TAKEN or plan.share.instance_id is None:
                member.end(plan.share)
            if found is not None and found is not Found.TAKEN:  # its commit may have come since; at once, before others write over it
                found = self._found_out(plan, cluster)
        if found in (Found.TAKEN, Found.NOT_TAKEN):
            write_mark(self.ledger, replace(plan, handed_over=True) if found is Found.TAKEN else replace(plan, is_void=True))

    def _found_out(self, plan: Plan, cluster: Cluster) -> Found:
        return found_out(plan, self.offsets.committed(plan.offsets_to_hand_over, cluster, behind=plan))

    def store(self, plan: Plan) -> Void | None:
        """See `world.World`. Refuses a table that cannot be written and a transform that fails: a plan is stored to be executed."""
        self.refuse_unwritable(plan)
        if self.settings.transform and writer_of(plan, self.settings).writer.takes is Takes.DATA_FRAME:
            try_on_no_rows(self._spark.session(), self.settings)  # stored, the plan would bind the conf to a transform that never works

        def write(parts: Sequence[Part]) -> None:
            self.ledger.store_plan(plan, beside=self._pipelines_version, also=(*self.claims.writes(plan), *parts))
            self.claims.stored(plan)

        return self._written(plan, write, is_handed_over=bool(plan.handed_over))

    def supersede(self, plan: Plan, ledger: Ledger) -> Void | None:
        """See `world.World`."""
        version = ledger.newest_version
        if version is None:
            raise LedgersDisagree(f"there is no plan {plan.number} to supersede", check="`etl plans list`")
        self.refuse_unwritable(plan)
        was_handed_over = ledger.newest is not None and bool(ledger.newest.handed_over)

        def write(parts: Sequence[Part]) -> None:
            self.ledger.supersede_plan(plan, version, beside=self._pipelines_version, also=(*self.claims.writes(plan), *parts))
            self.claims.stored(plan)

        return self._written(plan, write, is_handed_over=bool(plan.handed_over) and not was_handed_over)

    def hand_over(self, plan: Plan) -> Plan | Void:
        """See `world.World`. A commit of which an answer was lost may still be under way, so that its membership ends then."""
        if plan.share is None or plan.share.membership is not Membership.COORDINATOR:
            return plan
        if plan.is_open:
            void = self.offsets.hand_over(plan, unsure=self._coordinated.leave if self._coordinated else lambda: None)
            if void:
                write_mark(self.ledger, replace(plan, is_void=True))
                return void
            plan = replace(plan, handed_over=True)
        write_mark(self.ledger, plan)
        return plan

    def share_of_now(self) -> Share | None:
        """What a coordinator's member owns by now, where the run is one: nobody else may commit while the group has members."""
        return self._coordinated.rejoin() if self._coordinated and self._coordinated.is_member else None

    def _written(self, plan: Plan, write: Callable[[Sequence[Part]], None], *, is_handed_over: bool) -> Void | None:
        """`is_handed_over`: in the same step."""
        hand_over = HandOver(self.zookeeper, self.settings.group, self._lock)
        if is_handed_over and plan.offsets_in is OffsetsStorage.ZOOKEEPER:
            checks = self._registered.owner_checks(plan.offsets_to_hand_over) if self._registered else ()
            return hand_over.store(plan, checks, write)
        if plan.is_open or is_handed_over:
            return hand_over.store_under_lock(plan, write)
        write(())
        return None
