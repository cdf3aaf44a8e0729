"""Whether a table lacks what a backfill has loaded into it: an older copy of it, or of its log, was
put back. Pure functions of values.
"""

from __future__ import annotations

from etl.decisions.acceptance import known_in_table
from etl.errors import LedgersDisagree
from etl.model.snapshot import Ledger, Table


def refuse_what_lacks_a_backfill(name: str, ledger: Ledger, table: Table, in_table: int) -> None:
    """Refuse a table that lacks a plan which a backfill has loaded into it.

    `ledger` is the backfill's, read before the table; `in_table`: its newest plan there, 0 for
    none. Raises LedgersDisagree.
    """
    newest = known_in_table(ledger, table)
    if in_table < newest:
        there = (
            f"the newest of it there is plan {in_table}"
            if in_table
            else "the table holds none of its plans"
        )
        what = f"backfill {name} has loaded plan {newest} into this table, and now {there}"
        check = (
            "whether an older copy of the table, or of its log, was put back: a newer one has those rows, and needs its files; "
            "`etl verify` with the conf of the pipeline whose backfill it is counts what is missing"
        )
        raise LedgersDisagree(what, table_version=table.version, check=check)
