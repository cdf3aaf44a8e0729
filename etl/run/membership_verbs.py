"""What a run does as a member of its group, beside storing plans: joins it, hands plans over in
Kafka, ends what is left of a dead one.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decide.group_commits import HandOverOutcome, found_out
from etl.decide.offsets import refuse_another_storage
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.zookeeper.group_member import ZooKeeperMember
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_records import write_mark
from etl.io.zookeeper.session import ZooKeeper
from etl.model.partitions import Membership, Share, Void
from etl.model.plans import Plan
from etl.run.discovery import Discovery
from etl.run.group_offsets import GroupOffsets
from etl.run.members import Member
from etl.run.memberships import coordinated_member, holds_shares, zookeeper_member
from etl.settings.sections import Settings


class MembershipVerbs:
    """The part of a live world that is a member of its group; see `world.World` for what each is
    asked.
    """

    settings: Settings
    zookeeper: ZooKeeper
    run_id: str
    ledger: PlanLedger
    offsets: GroupOffsets
    _discovery: Discovery
    _registered: ZooKeeperMember | None = None
    _coordinated: CoordinatedMember | None = None

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
            if found is not HandOverOutcome.TAKEN or plan.share.instance_id is None:
                member.end(plan.share)
            if found is not None and found is not HandOverOutcome.TAKEN:
                found = self._found_out(
                    plan, cluster
                )  # its commit may have come since; at once, before others write over it
        if found in (HandOverOutcome.TAKEN, HandOverOutcome.NOT_TAKEN):
            is_taken = found is HandOverOutcome.TAKEN
            write_mark(
                self.ledger,
                replace(plan, handed_over=True) if is_taken else replace(plan, is_void=True),
            )

    def hand_over(self, plan: Plan) -> Plan | Void:
        """See `world.World`. A commit of which an answer was lost may still be under way, so that
        its membership ends then.
        """
        if (
            plan.share is None
            or plan.handed_over is None
            or plan.share.membership is not Membership.COORDINATOR
        ):
            return plan
        if plan.is_open:
            void = self.offsets.hand_over(plan, unsure=self.end_coordinated)
            if void:
                write_mark(self.ledger, replace(plan, is_void=True))
                return void
            plan = replace(plan, handed_over=True)
        write_mark(self.ledger, plan)
        return plan

    @property
    def is_member(self) -> bool:
        """Whether this run or command is to be one of the group's members."""
        return self._registered is not None or self._coordinated is not None

    def share_of_now(self) -> Share | None:
        """What a coordinator's member owns by now, where the run is one: nobody else may commit
        while the group has members.
        """
        member = self._coordinated
        if member is None or not member.is_member:
            return None
        return member.renew() if holds_shares(self.settings) else member.rejoin()

    def unbroken(self, share: Share) -> Share | None:
        """The share of a plan as its epoch is by now, where this run has held all of it since; else
        None.
        """
        return (
            self._coordinated.unbroken(share, within_s=self.settings.source.timeout_s)
            if self._coordinated
            else None
        )

    def end_coordinated(self) -> None:
        """End the membership of a coordinator's group, where the run has one."""
        if self._coordinated:
            self._coordinated.leave()

    def _found_out(self, plan: Plan, cluster: Cluster) -> HandOverOutcome:
        return found_out(
            plan, self.offsets.committed(plan.offsets_to_hand_over, cluster, behind=plan)
        )
