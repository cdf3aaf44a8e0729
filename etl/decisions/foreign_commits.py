"""What others did to the table, and whether a run stops for it. Pure functions of values."""

from __future__ import annotations

from collections.abc import Sequence

from etl.decisions.acceptance import accepted_version
from etl.decisions.other_pipelines import name_of, take_over_command
from etl.errors import LedgersDisagree
from etl.model.snapshot import Acknowledgement, ForeignCommit, Table
from etl.settings.choices import OnRowsRemoved

DELETE, RESTORE = "DELETE", "RESTORE"
"""Delta's names for them in a commit, Spark's and delta-rs's alike."""


def refuse_what_others_did(
    table: Table | None,
    acknowledged: Acknowledgement | None = None,
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL,
) -> None:
    """Stop when somebody else removed rows or redefined the table since our last commit. Raises
    LedgersDisagree.
    """
    stopping = [
        found
        for found in unacknowledged(table, acknowledged)
        if not is_let_pass(found, on_rows_removed)
    ]
    if stopping:
        raise refusal_of(stopping, table.version if table else None)


def refusal_of(done: Sequence[ForeignCommit], newest_version: int | None) -> LedgersDisagree:
    """The error for what others did to the table, oldest first, whose newest version an operator
    may accept; not that rows come twice.
    """
    found, later = done[0], [one for one in done[1:] if one.operation == RESTORE]
    if found.by:
        what = f"since our last commit {name_of(found.by.app_id)} {found.why} in this table"
        check = (
            "whether it took the place of this pipeline: then run that one, and this one never again. To go on with this one instead, "
            f"{take_over_command(found.by.app_id)}; `etl verify CONF` names rows that are there twice"
        )
        return LedgersDisagree(what, table_version=found.delta_version, check=check)
    what = f"since our last commit somebody else's {found.operation} {found.why}"
    accept = f"etl plans acknowledge CONF {found.delta_version if newest_version is None else newest_version} --reason ..."
    check = (
        "who did it and why (DESCRIBE HISTORY); then RESTORE the table to the version before it, or accept it, and what is gone stays "
        f"gone: {accept}"
    )
    if later:
        what += f", and a RESTORE came after it, at version {later[-1].delta_version}"
        check = f"whether that RESTORE put the rows back (`etl verify CONF` counts them); then accept the table as it is now: {accept}"
    return LedgersDisagree(what, table_version=found.delta_version, check=check)


def unacknowledged(
    table: Table | None, acknowledged: Acknowledgement | None
) -> tuple[ForeignCommit, ...]:
    """What others did to the table since our last commit and since an operator's last
    acknowledgement.

    No acknowledgement accepts that another pipeline loads the same topics: going on would load them
    twice.
    """
    if not table:
        return ()
    accepted = accepted_version(acknowledged, table)
    return tuple(
        found
        for found in table.foreign
        if found.by or accepted is None or found.delta_version > accepted
    )


def is_let_pass(found: ForeignCommit, on_rows_removed: OnRowsRemoved) -> bool:
    """Whether policy lets what somebody else did to the table pass without an operator's
    acknowledgement.
    """
    return on_rows_removed is OnRowsRemoved.RECORD and found.operation == DELETE
