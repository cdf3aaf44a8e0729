"""What the ledger says of the table that is there: accepted by an operator, known to hold the
newest plan, or the one it waits for.

Pure functions of values. `reconcile` decides what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from etl.model.plans import CommitResult, Plan, PlanKind
from etl.model.snapshot import Acknowledgement, Ledger, Table


def is_accepted(ledger: Ledger, plan: Plan, table: Table | None, place: str) -> bool:
    """Whether the acknowledgement is about this plan and this table, or none at this place, and it
    holds as much of ours as it did then.

    It is about one moment: what came of the plan after it, and a copy from before it that was put
    back, need one of their own.
    """
    acknowledgement = ledger.acknowledged
    if acknowledgement is None or not _is_of(acknowledgement, table, place):
        return False
    if acknowledgement.number != plan.number or acknowledgement.plan_id not in (None, plan.id):
        return False
    in_table, version = (table.transaction_version or 0, table.version) if table else (0, 0)
    if in_table < (acknowledgement.transaction_version or 0) or version < (
        acknowledgement.delta_version or 0
    ):
        return False
    return not _came_after(ledger.applied, acknowledgement)


def accepted_beside(live: Ledger, name: str) -> Acknowledgement | None:
    """What an operator accepted for all that load the table, as it is said to the backfill of that
    name.

    `live`: the pipeline's ledger. That there is no table holds while it has not planned since, and
    makes none: a table that is not there later may only be away, with rows in it, and a backfill
    that was begun in that one must not be taken for one of the table before.
    """
    said, newest = live.acknowledged, live.newest
    if said and said.table_id is None:
        if newest is None or newest.number != said.number or said.plan_id not in (None, newest.id):
            return None
        if said.was_recorded is False and newest.table_id is None:
            return None
    return said.of_backfill(name) if said else None


def acknowledging(
    ledger: Ledger,
    plan: Plan,
    table: Table | None,
    *,
    reason: str,
    at_ms: int,
    lacks_plan: bool,
    commit: str | None,
    place: str,
    beside: Mapping[str, Acknowledgement] = MappingProxyType({}),
) -> Acknowledgement:
    """The decision that this table, or none at this place, is right.

    `lacks_plan`: no row of the newest `plan` is in it. `commit`: the hash of the version's commit.
    """
    return Acknowledgement(
        table.id if table else None,
        table.version if table else None,
        plan.number,
        reason,
        at_ms,
        lacks_plan,
        plan_id=plan.id,
        transaction_version=(table.transaction_version or 0) if table else 0,
        was_recorded=ledger.applied is not None,
        commit=commit,
        place=place,
        beside=dict(beside),
    )


def accepted_version(acknowledgement: Acknowledgement | None, table: Table) -> int | None:
    """The version up to which the acknowledgement is about this table; None where it is about
    another one.

    A version number comes back where a copy was put back and somebody wrote again, so the commit
    itself must be the one that was seen.
    """
    if (
        acknowledgement is None
        or acknowledgement.table_id != table.id
        or acknowledgement.commit not in (None, table.said_commit)
    ):
        return None
    return acknowledgement.delta_version


def is_told(ledger: Ledger, table: Table | None) -> bool:
    """Whether the two ledgers alone tell if the newest plan is in this table; else only its rows
    can.
    """
    plan, in_table = ledger.newest, (table.transaction_version or 0) if table else 0
    if plan is None or table is None or in_table == plan.number or is_recorded(ledger, plan):
        return True
    return in_table == plan.table_transaction_version and plan.table_id == table.id


def is_waiting_for_a_table(ledger: Ledger, table: Table) -> bool:
    """Whether the newest plan is stored, was made when there was no table, and nobody knows of a
    commit of it; there is a table by now.

    A plan with which logs are gone on with as other ones is not waiting: another one in its place
    would not say so any more.
    """
    plan = ledger.newest
    if (
        plan is None
        or plan.table_id is not None
        or plan.table_transaction_version
        or plan.kind not in (PlanKind.INGEST, PlanKind.START)
    ):
        return False
    return table.transaction_version is None and not is_recorded(ledger, plan)


def is_recorded(ledger: Ledger, plan: Plan) -> bool:
    """Whether the ledger knows what came of the plan."""
    return ledger.applied is not None and ledger.applied.number == plan.number


def known_in_table(ledger: Ledger, table: Table) -> int:
    """The newest plan that has been in this very table, by a ledger that was read before it; 0 for
    none.

    Of an older copy of the table that was put back it may be missing.
    """
    plan, applied = ledger.newest, ledger.applied
    if plan is None:
        return 0
    is_done = is_recorded(ledger, plan)
    went_to = applied.table_id if applied and is_done else plan.table_id
    if went_to != table.id:
        return 0
    return plan.number if is_done else plan.table_transaction_version or 0


def _is_of(acknowledgement: Acknowledgement, table: Table | None, place: str) -> bool:
    if table is None:
        return acknowledgement.table_id is None and acknowledgement.place in (None, place)
    return accepted_version(acknowledgement, table) is not None


def _came_after(applied: CommitResult | None, acknowledgement: Acknowledgement) -> bool:
    """Whether the plan reached a table, or this version of it, only after the acknowledgement."""
    if applied is None or acknowledgement.was_recorded is not False:
        return False
    return applied.table_id != acknowledgement.table_id or applied.delta_version > (
        acknowledgement.delta_version or 0
    )
