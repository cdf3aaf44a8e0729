"""What reading a range came to, and what appending a plan did."""

from __future__ import annotations

from dataclasses import dataclass, field

from etl.model.logs import Lineage
from etl.model.plans import Plan
from etl.model.statistics import Requests

GAPS_KEPT = 1000  # that a receipt keeps one by one


@dataclass(frozen=True, slots=True)
class Receipt:
    """What reading one range came to. Counts are of records; `fetched_bytes` is what came over the
    wire.
    """

    rows: int | None = 0
    """None: a crash took the reader's count, and nobody could count them in the table."""
    fetched_bytes: int | None = None
    """None: counted again from the table's files after a crash, where nobody knows it any more."""
    control_records: int = 0
    aborted_records: int = 0
    missing_offsets: int = 0
    """Offsets that no batch of the log covers any more (compaction). In a physical log none can be
    told from those inside an entry: 0.
    """
    gaps: tuple[tuple[int, int], ...] = ()
    """Intervals [from, until) inside the range that gave no row, for whatever of the three reasons,
    merged.
    """
    gaps_complete: bool = True
    """False: there were more than GAPS_KEPT, or nobody can tell of any (a physical log's, counted
    again); the counts still hold.
    """
    last_epoch: int | None = None
    """The leader epoch of the record batch that holds the range's last offset; None where none does
    (compaction), or nobody knows it.
    """
    behind_transform: bool = False
    """Counted again from rows that a transform had made: nobody knows whether it dropped records at
    missing offsets (any, if physical).
    """
    epochs: Lineage = ()
    """The leader epochs of the record batches that were read."""
    requests: tuple[tuple[str, Requests], ...] = field(default=(), compare=False)
    """What its task asked which brokers since the receipt before it. For the report alone: neither
    ledger nor table keeps it, and two attempts differ in it."""

    @property
    def is_doubtful(self) -> bool:
        """Whether records may be lost of which this receipt cannot tell."""
        return self.rows is None or (
            self.behind_transform and (self.missing_offsets > 0 or not self.gaps_complete)
        )

    @property
    def compacted(self) -> int:
        """Missing offsets that are known to be compaction's: none of a receipt that was counted
        again, where nobody knows.
        """
        return 0 if self.fetched_bytes is None else self.missing_offsets


NOT_COUNTED = Receipt(rows=None, gaps_complete=False)


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of plan `number`: the Delta version that holds it and a receipt for each of its
    ranges.
    """

    number: int
    plan_id: str
    delta_version: int
    table_id: str
    receipts: tuple[Receipt, ...]
    run_id: str | None = None
    """The run whose append it was; None when the commit does not say."""
    uncounted: str | None = None
    """Why nobody could count the rows after a crash; the receipts are then `NOT_COUNTED`."""
    undated: int | None = field(default=None, compare=False)
    """Rows without an `event_date`, of a table that is partitioned by it. For the report alone: the
    ledger does not keep it.
    """

    @property
    def rows(self) -> int | None:
        """Of all ranges together; None when nobody could count them."""
        counts = [r.rows for r in self.receipts if r.rows is not None]
        return sum(counts) if len(counts) == len(self.receipts) else None

    def is_of(self, plan: Plan) -> bool:
        """Whether this is what came of that very plan; a ledger restored from a copy may hold the
        record of another with its number.
        """
        return self.plan_id == plan.id and len(self.receipts) == len(plan.ranges)

    @property
    def is_recounted(self) -> bool:
        """Counted again from the table: nobody knew any more why offsets gave no row."""
        return all(receipt.fetched_bytes is None for receipt in self.receipts)
