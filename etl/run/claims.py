"""What a run writes beside its plans so that nobody else loads the same offsets: the fence of a
live pipeline, a backfill's claim.

Both at the version that was seen before all that the plan was decided by (ADR 22). What claims, and
what is refused, is `claiming`'s.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decide.reservations import moves_fence, refuse_claimed
from etl.errors import Owned
from etl.io.delta.table import open_table
from etl.io.zookeeper.ledger import PlanLedger, Write
from etl.io.zookeeper.ledger_records import ClaimsBeside
from etl.io.zookeeper.session import ZooKeeper
from etl.model.plans import Plan
from etl.model.snapshot import (
    NO_CLAIMS,
    Claimed,
    Ledger,
    Reservation,
    Reservations,
    backfill_pipeline,
    live_and_name,
)
from etl.run.observe import Seen
from etl.settings.sections import Settings


class ClaimsOfRun:
    """The claims as a run has seen them, and as it has written them since."""

    def __init__(self, settings: Settings, zookeeper: ZooKeeper) -> None:
        self.beside = ClaimsBeside(zookeeper, settings.group, live_and_name(settings.pipeline)[0])
        self.seen: Reservations = NO_CLAIMS
        self.own: Claimed | None = None
        """What this pipeline claims, which is a backfill's."""
        self._newest: Plan | None = None

    def saw(self, seen: Seen) -> None:
        """What one look found."""
        self.seen, self.own, self._newest = (
            seen.snapshot.claims,
            seen.claimed,
            seen.snapshot.ledger.newest,
        )

    def writes(self, plan: Plan) -> list[Write]:
        """What is written in one transaction with the plan. Raises NeedsDecision where a backfill
        claims what it would begin.
        """
        if self.own:
            return [self.beside.write_of(self.own.claim, self.own.version)]
        refuse_claimed(plan, self._newest, self.seen)
        return (
            [self.beside.write_of_fence(self.seen.fence)] if moves_fence(plan, self._newest) else []
        )

    def stored(self, plan: Plan) -> None:
        """The plan is stored, and all that was written with it."""
        if self.own:
            self.own = replace(self.own, version=self.own.version + 1)
        elif moves_fence(plan, self._newest):
            self.seen = replace(
                self.seen, fence=0 if self.seen.fence is None else self.seen.fence + 1
            )
        self._newest = plan


class BackfillVerbs:
    """The part of a live world that begins backfills and gives them up; see `world.World` for what
    each is asked.
    """

    settings: Settings
    ledger: PlanLedger
    claims: ClaimsOfRun

    def refuse_unwritable(self, plan: Plan) -> None:
        """Refuse what could not be finished."""
        raise NotImplementedError

    def claim(self) -> Claimed | None:
        """See `world.World`."""
        name = live_and_name(self.settings.pipeline)[1]
        return self.claims.beside.read_one(name) if name else None

    def stored_plans(self) -> tuple[tuple[Plan, bool], ...]:
        """See `world.World`."""
        return tuple(
            (plan, self.ledger.read_record_of(plan) is not None)
            for plan in self.ledger.read_plans()
        )

    def begin_backfill(self, claim: Reservation, plan: Plan) -> None:
        """See `world.World`."""
        self.refuse_unwritable(plan)
        self.claims.beside.begin(claim, plan, self.claims.seen.fence)

    @property
    def app_id(self) -> str:
        """The table's application id of this pipeline."""
        raise NotImplementedError

    def backfill_in_table(self, name: str) -> int | None:
        """See `world.World`."""
        table = open_table(self.settings.table.path)
        return table.transaction_version(backfill_pipeline(self.app_id, name)) if table else None

    def close_backfill(self, claim: Reservation, plan: Plan, ledger: Ledger) -> None:
        """See `world.World`."""
        own = self.claims.own
        if own is None:
            raise Owned("nobody has looked at the backfill", check="nothing; say it again")
        also = [self.claims.beside.write_of(claim, own.version)]
        if plan.supersedes and ledger.newest_version is not None:
            self.ledger.supersede_plan(plan, ledger.newest_version, also=also)
        else:
            self.ledger.store_plan(plan, also=also)
        self.claims.own = Claimed(claim, own.version + 1)

    def settle_backfill(self, claim: Reservation) -> None:
        """See `world.World`."""
        if self.claims.own is None:
            raise Owned("nobody has looked at the backfill", check="nothing; say it again")
        self.claims.beside.settle(claim, self.claims.own.version)
