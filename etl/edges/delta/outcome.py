"""What became of an append, whichever writer made it.

It is decided only by reading the table again, after every result: Spark skips a version at or below
the table's without a word, and an exception may come after the commit. Owns the reading of the
table's transaction version (`txn`; ADR 1) for every writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from etl.edges.delta.log import open_log
from etl.edges.delta.others import IsOurs, none_of_ours
from etl.edges.delta.path import rust_path
from etl.edges.delta.shape import id_of
from etl.edges.delta.state import find_commit, read_table
from etl.errors import LedgersDisagree, TableAppeared, TableUnreachable
from etl.model.plans import Plan
from etl.model.snapshot import Acknowledgement, CommitMetadata, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Result(str, Enum):
    """What became of an append, as the table tells."""

    APPLIED = "applied"
    """The table holds this very plan, whoever executed it."""
    APPLIED_BY_ANOTHER = "applied by another run"
    """The table holds another plan under this number."""
    NOT_APPLIED = "not applied"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a read-back found."""

    result: Result
    metadata: CommitMetadata | None = None
    """The commit that carries the plan's number; None when there is none, or the log no longer
    holds it.
    """
    table: Table | None = None
    """The table as it is now, with what others did to it."""

    @property
    def delta_version(self) -> int | None:
        """The Delta version that holds the plan's rows."""
        return self.metadata.delta_version if self.metadata else None


def read_back(
    plan: Plan,
    *,
    app_id: str,
    path: str,
    known: int | None,
    is_ours: IsOurs = none_of_ours,
    acknowledgement: Acknowledgement | None = None,
) -> Outcome:
    """What became of `plan`, by the table alone: is its number in there, and under which plan's id.

    Raises LedgersDisagree when another table lies there than the plan was made for.
    """
    table = read_table(
        path, app_id, known=known, is_ours=is_ours, plan=plan, acknowledgement=acknowledgement
    )
    if table and plan.table_id and table.id != plan.table_id:
        raise another_table(plan, table.id, path)
    if (
        table is None
        or table.transaction_version is None
        or table.transaction_version < plan.number
    ):
        return Outcome(Result.NOT_APPLIED, None, table)
    metadata = table.metadata
    if table.transaction_version > plan.number:
        metadata, _ = find_commit(
            open_log(rust_path(path)), table.version, app_id, plan.number, None
        )
    ours = metadata is not None and metadata.plan_id == plan.id
    return Outcome(Result.APPLIED if ours else Result.APPLIED_BY_ANOTHER, metadata, table)


def holds(plan: Plan, table: DeltaTable | None, app_id: str) -> bool:
    """Whether the table has this number already.

    Raises LedgersDisagree when it is another table than the plan was made for, TableUnreachable
    when that one is not there any more: a writer would make a new one in its place.
    """
    if table is None:
        if plan.table_id is not None:
            what = f"plan {plan.number} was made for the table with id {plan.table_id}, and no table is there any more"
            raise TableUnreachable(
                what,
                check="whether its folder was moved, or its disk is not mounted; nothing was written",
            )
        return False
    in_table, found = table.transaction_version(app_id), id_of(table)
    if in_table is not None and in_table >= plan.number:
        return True
    if found != plan.table_id and (plan.table_id is not None or in_table is None):
        raise another_table(plan, found, table.table_uri)
    return False


def another_table(plan: Plan, found: str, path: str) -> LedgersDisagree:
    """Another table lies there than the plan was made for."""
    check = "who replaced the table, and which of the two is right"
    if plan.table_id is None:
        what = f"plan {plan.number} was made when there was no table, at this path there is one with id {found} by now"
        return TableAppeared(what, path=path, check=check)
    what = f"plan {plan.number} was made for the table with id {plan.table_id}, at this path there is one with id {found}"
    return LedgersDisagree(what, path=path, check=check)
