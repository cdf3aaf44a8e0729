"""What others removed from the table, and policy or an operator let pass: told once, and kept for
`etl verify`.
"""

from __future__ import annotations

from collections.abc import Collection

from etl.decide.table_changes import unacknowledged
from etl.model.snapshot import Acknowledgement, ForeignCommit, Table
from etl.report.run_report import Report
from etl.report.run_state import Outcome
from etl.run.world import World


def note_removals(
    world: World,
    table: Table | None,
    acknowledged: Acknowledgement | None,
    report: Report,
    *,
    told: Collection[ForeignCommit] = (),
) -> None:
    """What others removed and policy or an operator let pass is told, and kept for `verify`: but
    for what was `told` before.

    Before the record: from then on nobody looks at the commits before ours again.
    """
    new = [
        found for found in (table.foreign if table else ()) if found not in told and not found.by
    ]
    if new:
        world.note_removals(new)
    for found in unacknowledged(table, acknowledged):
        if found in new:
            report.add(
                Outcome.ROWS_REMOVED,
                f"somebody else's {found.operation} {found.why} at version {found.delta_version} of the table",
            )
