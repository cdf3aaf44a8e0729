"""What a run stores before its first fetch; as a member of its group it moves the group's offsets in the same step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etl.decisions.membership.assignment import Strategy
from etl.decisions.membership.rebalancing import Timing
from etl.edges.delta.taking import Takes
from etl.edges.zookeeper.documents import Part
from etl.edges.zookeeper.driver_lock import DriverLock
from etl.edges.zookeeper.hand_over import HandOver
from etl.edges.zookeeper.ledger import PlanLedger
from etl.edges.zookeeper.membership import ZooKeeperMember
from etl.edges.zookeeper.rebalance import MemberOptions
from etl.edges.zookeeper.registry import read_topics
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import LedgersDisagree
from etl.model.ledger import Ledger
from etl.model.membership import Void
from etl.model.plans import Plan
from etl.protocol.messages import INTERNAL_TOPICS
from etl.run.claims import ClaimsOfRun
from etl.run.formats import try_on_no_rows
from etl.run.members import Member
from etl.run.rows import writer_of
from etl.run.spark import RunSpark
from etl.settings.policies import OwnershipMode
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
    _pipelines_version: int | None
    _member: ZooKeeperMember | None = None

    def refuse_unwritable(self, plan: Plan) -> None:
        """Refuse what could not be finished."""
        raise NotImplementedError

    def member(self) -> Member | None:
        """See `world.World`."""
        ownership, source = self.settings.ownership, self.settings.source
        if ownership.mode is not OwnershipMode.JOIN:
            return None
        hidden = INTERNAL_TOPICS.difference(source.topics.literal_names)
        topics = frozenset(topic for topic in read_topics(self.zookeeper) if source.topics.admits(topic) and topic not in hidden)
        options = MemberOptions(
            source.dialect, topics, Strategy(ownership.strategy.value), ownership.threads, ownership.member_id,
            Timing(ownership.join_timeout_s, ownership.backoff_s))
        self._member = ZooKeeperMember(self.zookeeper, self.settings.group, self.settings.pipeline, self.run_id, options)
        return self._member

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

    def _written(self, plan: Plan, write: Callable[[Sequence[Part]], None], *, is_handed_over: bool) -> Void | None:
        if not is_handed_over:
            write(())
            return None
        checks = self._member.owner_checks(plan.offsets_to_hand_over) if self._member else ()
        return HandOver(self.zookeeper, self.settings.group, self._lock).store(plan, checks, write)
