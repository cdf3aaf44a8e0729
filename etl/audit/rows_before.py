"""Rows that were in the table before plan 1, as `etl verify` tells them from those that plans
loaded.

A row is from before plan 1 if its offset and its life of the log are among those that the plan
found in the table, and no plan loaded that offset in that life. So two rows of such an offset are
not judged, and neither is one that is gone. More rows than there were are.
"""

from __future__ import annotations

from collections.abc import Mapping

from etl.audit.findings import AuditedLog, Expected
from etl.decide.loaded_intervals import without
from etl.model.plans import Plan
from etl.model.snapshot import Table

Parts = list[tuple[int, int]]


def rows_before_of(
    newest: Plan | None, table: Table, expected: Mapping[AuditedLog, Expected]
) -> dict[AuditedLog, Parts]:
    """Offsets [from, until) of each log whose rows are from before plan 1; without what plans and
    backfills loaded since.
    """
    before = newest.rows_before if newest else None
    if before is None or before.table_id != table.id:
        return {}
    found = dict[AuditedLog, Parts]()
    for one in before.held:
        audited = AuditedLog(one.log, one.log_epoch)
        known = expected.get(audited, Expected())
        loaded = [(r.from_offset, r.until_offset) for r, _ in known.ranges]
        loaded += [(interval.from_offset, interval.until_offset) for interval in known.coverage]
        parts = without((one.from_offset, one.until_offset), loaded)
        if parts:
            found[audited] = parts
    return found


def more_than_before(
    newest: Plan | None, counted: Mapping[AuditedLog, int]
) -> tuple[tuple[AuditedLog, int], ...]:
    """Logs that have more such rows than the plan found, and how many more: somebody wrote them
    since.
    """
    before = newest.rows_before if newest else None
    known = {AuditedLog(one.log, one.log_epoch): one.rows for one in before.held} if before else {}
    return tuple(
        (audited, rows - known[audited])
        for audited, rows in sorted(counted.items())
        if rows > known[audited]
    )
