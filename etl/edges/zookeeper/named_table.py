"""Where the table is that a catalog names, in the ledger of a pipeline: one document, written over
whatever was there.
"""

from __future__ import annotations

from etl.edges.zookeeper.ledger import PlanLedger
from etl.errors import Owned
from etl.ledger.documents import parse_named_table, render_named_table
from etl.model.snapshot import NamedTable, live_and_name


def read_named_table(ledger: PlanLedger) -> NamedTable | None:
    """What is kept; None where nobody has resolved a name yet. A backfill goes by its pipeline's.
    Raises LedgersDisagree.
    """
    live = _of_live(ledger)
    stored = live.documents.read(live.paths.named_table)
    return parse_named_table(stored[0], path=live.paths.named_table) if stored else None


def write_named_table(ledger: PlanLedger, found: NamedTable) -> None:
    """Keep it, in the place of what was kept; the driver's lock has made the znode above. Raises
    Owned where somebody wrote meanwhile.
    """
    live = _of_live(ledger)
    live.zookeeper.ensure(live.paths.root)
    if not live.documents.put(live.paths.named_table, render_named_table(found)):
        raise Owned(
            "somebody else resolved the table's name at this moment",
            znode=live.paths.named_table,
            check="nothing; run again",
        )


def _of_live(ledger: PlanLedger) -> PlanLedger:
    live, backfill = live_and_name(ledger.pipeline)
    return ledger.beside(live) if backfill else ledger
