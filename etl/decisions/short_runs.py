"""Which runs have so little to read that what starts Spark for them is chosen for a short life.
Pure.
"""

from __future__ import annotations

from etl.decisions.tasks import bytes_of, cost_of
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.settings.sections import Settings

SHORT_RUN_BELOW_BYTES = 64 << 20
"""What the JVM's first compiler alone reads as fast as both do, in a JVM that has just started
(docs/adr/0033).
"""


def is_short(plan: Plan, snapshot: Snapshot, settings: Settings) -> bool:
    """Whether the plan, and all that its logs hold behind it, is little, by what the brokers tell
    of the size of their logs.

    A session outlives its first plan: a small one that an earlier run left may have a large one
    behind it. What a transform reads, and what is put together behind the commit, nobody knows
    before.
    """
    if settings.transform is not None or settings.table.compact_at_small_files:
        return False
    costs = snapshot.bytes_per_offset
    behind = sum(
        max(0, extent.end_offset - plan.positions.get(log, extent.log_start_offset))
        * cost_of(log, costs)
        for log, extent in snapshot.extents.items()
    )
    return bytes_of(plan.ranges, costs) + behind < SHORT_RUN_BELOW_BYTES
