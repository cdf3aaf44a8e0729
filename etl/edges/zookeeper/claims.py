"""What backfills claim beside a live pipeline, and the fence that all who claim write."""

from __future__ import annotations

from etl.edges.zookeeper.documents import Write
from etl.edges.zookeeper.ledger import PlanLedger
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import Owned
from etl.ledger.documents import parse_claim, render_claim
from etl.ledger.paths import GroupPaths, PipelinePaths
from etl.model.plans import Plan
from etl.model.snapshot import NO_CLAIMS, Claimed, Reservation, Reservations, backfill_pipeline


class ClaimsBeside:
    """The claims of one live pipeline's backfills. Raises what `ZooKeeper` raises, and
    LedgersDisagree on documents that are not ours.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, live: str) -> None:
        self._zookeeper, self._group, self._live = zookeeper, group, live
        self._fence = PipelinePaths(group, live).fence

    def ledger_of(self, name: str) -> PlanLedger:
        """The plans of a backfill."""
        return PlanLedger(self._zookeeper, self._group, backfill_pipeline(self._live, name))

    def read(self) -> Reservations:
        """The fence, and behind it all claims. Of a follower that lags behind both are old, and
        then nothing can be written at them.
        """
        found = self._zookeeper.read(self._fence)
        if found is None:
            return NO_CLAIMS
        prefix = backfill_pipeline(self._live, "")
        names = sorted(self._zookeeper.children(GroupPaths(self._group).pipelines) or ())
        claimed = (
            self.read_one(name.removeprefix(prefix)) for name in names if name.startswith(prefix)
        )
        return Reservations(found[1], tuple(one for one in claimed if one))

    def read_one(self, name: str) -> Claimed | None:
        """One claim; None where nobody began a backfill of that name."""
        ledger = self.ledger_of(name)
        found = ledger.documents.read(ledger.paths.claim)
        return Claimed(parse_claim(found[0], path=ledger.paths.claim), found[1]) if found else None

    def begin(self, claim: Reservation, plan: Plan, fence: int | None) -> None:
        """Store a claim and its first plan, if nobody has claimed since the fence had that version.
        Raises Owned.
        """
        self.ledger_of(claim.name).store_plan(
            plan, also=[self.write_of(claim, None), self.write_of_fence(fence)]
        )

    def settle(self, claim: Reservation, version: int) -> None:
        """Write a claim again, of which no plan is stored any more. Raises Owned where somebody
        else did meanwhile.
        """
        write = self.write_of(claim, version)
        if not self._zookeeper.replace(write.path, write.payload, version=version):
            raise Owned(
                "somebody else changed the backfill at this moment",
                znode=write.path,
                check="nothing; say it again",
            )

    def write_of(self, claim: Reservation, version: int | None) -> Write:
        """The claim as a part of what is written with a plan."""
        ledger = self.ledger_of(claim.name)
        return Write(ledger.paths.claim, ledger.documents.head(render_claim(claim)), version)

    def write_of_fence(self, version: int | None) -> Write:
        """The fence as a part of what is written with a plan that claims."""
        return Write(self._fence, b"", version)
