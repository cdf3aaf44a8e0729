"""The ledger and the table of one pipeline, in agreement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etl.ledger.plan_document import render_plan, with_id
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Acknowledgement, CommitMetadata, Ledger, Table
from tests.builders import changed, plain_plan

A, B, C = (TopicPartition("clicks", p) for p in range(3))
UID, APP_ID, PLACE = "feedbeef", "app", "/warehouse/clicks"
SEEN = {A: Committed(3, 1), B: Committed(), C: Committed(9, 4)}
POSITIONS = {A: 5, B: 2, C: 9}
COMPLETE = {A: Committed(5, 2), B: Committed(2, 0), C: Committed(9, 4)}


def plan_of(number: int, **changes: Any) -> Plan:
    plan = plain_plan(
        number,
        uid=UID,
        loaded_until=POSITIONS,
        expected_commits=SEEN,
        table_id="t1" if number > 1 else None,
        table_transaction_version=number - 1,
    )
    return with_id(changed(plan, **changes))


def ledger_of(number: int | None, *, applied: bool = True, **changes: Any) -> Ledger:
    if number is None:
        return Ledger(changes.get("uid"))
    plan = plan_of(number, **changes)
    return Ledger(UID, plan, CommitResult(number, plan.id, 7, "t1", ()) if applied else None)


def table_of(bit: int | None, **changes: Any) -> Table:
    return replace(Table("t1", 7, bit, stamp_of(plan_of(bit)) if bit else None), **changes)


def stamp_of(plan: Plan) -> CommitMetadata:
    return CommitMetadata(
        7, APP_ID, plan.origin.pipeline_id, plan.number, plan.id, document=render_plan(plan)
    )


def acknowledgement_of(number: int, **changes: Any) -> Acknowledgement:
    return replace(Acknowledgement("t1", 7, number, "it was me", 1), **changes)
