"""Commits of several pipelines in a real table, made without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow
from deltalake import CommitProperties, Transaction, write_deltalake

from etl.ledger.plan_document import render_commit_metadata, with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, Predecessor
from tests.builders import plain_plan

OURS, OLD, NEW = (
    f"offset-range-etl/c/{name}" for name in ("ours/clicks", "old/clicks", "new/clicks")
)
ROWS = pyarrow.table({"topic": ["clicks"], "offset": [1]})


def plan_of(
    number: int, topic: str = "clicks", *, reads: bool = True, inherits: Predecessor | None = None
) -> Plan:
    partition = TopicPartition(topic, 0)
    return with_id(
        plain_plan(
            number,
            ranges=(OffsetRange(partition, 0, number),) if reads else (),
            loaded_until={partition: number},
            inherits=inherits,
        )
    )


def commit(path: Path, app_id: str, plan: Plan) -> None:
    properties = CommitProperties(
        custom_metadata={"userMetadata": render_commit_metadata(plan, app_id)},
        app_transactions=[Transaction(app_id, plan.number)],
    )
    write_deltalake(str(path), ROWS, mode="append", commit_properties=properties)
