"""What a run stores before its first fetch; what a member in ZooKeeper hands over moves the group's
offsets in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etl.errors import LedgersDisagree
from etl.io.delta.append import Takes
from etl.io.zookeeper.group_offsets import HandOver
from etl.io.zookeeper.ledger import DriverLock, Part
from etl.model.partitions import OffsetsStorage, Void
from etl.model.plans import Plan
from etl.model.snapshot import Ledger
from etl.run.claims import ClaimsOfRun
from etl.run.formats import try_on_no_rows
from etl.run.membership_verbs import MembershipVerbs
from etl.run.rows import writer_of
from etl.run.spark import RunSpark


class PlanStore(MembershipVerbs):
    """The part of a live world that stores plans; see `world.World` for what each is asked."""

    claims: ClaimsOfRun
    _lock: DriverLock
    _spark: RunSpark
    _pipelines_version: int | None

    def refuse_unwritable(self, plan: Plan) -> None:
        """Refuse what could not be finished."""
        raise NotImplementedError

    def store(self, plan: Plan) -> Void | None:
        """See `world.World`. Refuses a table that cannot be written and a transform that fails: a
        plan is stored to be executed.
        """
        self.refuse_unwritable(plan)
        if (
            self.settings.transform
            and writer_of(plan, self.settings).writer.takes is Takes.DATA_FRAME
        ):
            try_on_no_rows(
                self._spark.session(), self.settings
            )  # stored, the plan would bind the conf to a transform that never works

        def write(parts: Sequence[Part]) -> None:
            self.ledger.store_plan(
                plan, beside=self._pipelines_version, also=(*self.claims.writes(plan), *parts)
            )
            self.claims.stored(plan)

        return self._written(plan, write, is_handed_over=bool(plan.handed_over))

    def supersede(self, plan: Plan, ledger: Ledger) -> Void | None:
        """See `world.World`."""
        version = ledger.newest_version
        if version is None:
            raise LedgersDisagree(
                f"there is no plan {plan.number} to supersede", check="`etl plans list`"
            )
        self.refuse_unwritable(plan)
        was_handed_over = ledger.newest is not None and bool(ledger.newest.handed_over)

        def write(parts: Sequence[Part]) -> None:
            self.ledger.supersede_plan(
                plan,
                version,
                beside=self._pipelines_version,
                also=(*self.claims.writes(plan), *parts),
            )
            self.claims.stored(plan)

        return self._written(
            plan, write, is_handed_over=bool(plan.handed_over) and not was_handed_over
        )

    def _written(
        self, plan: Plan, write: Callable[[Sequence[Part]], None], *, is_handed_over: bool
    ) -> Void | None:
        """`is_handed_over`: in the same step."""
        hand_over = HandOver(self.zookeeper, self.settings.group, self._lock)
        if is_handed_over and plan.offsets_in is OffsetsStorage.ZOOKEEPER:
            checks = (
                self._registered.owner_checks(plan.offsets_to_hand_over) if self._registered else ()
            )
            return hand_over.store(plan, checks, write)
        if plan.is_open or is_handed_over:
            return hand_over.store_under_lock(plan, write)
        write(())
        return None
