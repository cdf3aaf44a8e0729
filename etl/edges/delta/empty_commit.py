"""A plan without ranges is a commit without files, by delta-rs where it can commit to the table's features: no JVM starts for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.edges.delta.others import IsOurs
from etl.edges.delta.outcome import Outcome, decide, holds
from etl.edges.delta.path import open_table, rust_path
from etl.edges.delta.shape import with_event_date_field
from etl.edges.delta.state import StorageOptions
from etl.model.ledger import Acknowledgement
from etl.model.plans import Plan
from etl.protocol.zookeeper.commit_metadata import render_commit_metadata

if TYPE_CHECKING:
    import pyarrow


def append_empty(
    plan: Plan, *, app_id: str, path: str, schema: pyarrow.Schema, partition_by: Sequence[str], known: int | None,
    run_id: str | None = None, is_ours: IsOurs = lambda topic: False, word: Acknowledgement | None = None,
    storage_options: StorageOptions = None,
) -> Outcome:
    """Commit a plan without ranges, at most once; where there is no table, the commit that creates it is the plan's.

    delta-rs judges a conflict by the version of the table object it is given and takes a number that was used, or a lower one:
    so number and table id are looked at on that very object.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction

    transaction = Transaction(app_id, plan.number, last_updated=int(time.time() * 1000))
    said = CommitProperties(custom_metadata={"userMetadata": render_commit_metadata(plan, app_id, run_id)}, app_transactions=[transaction])
    table = open_table(path, storage_options)
    failure = None
    if not holds(plan, table, app_id):
        try:
            if table is None:
                columns, place = with_event_date_field(schema, partition_by), rust_path(path)
                DeltaTable.create(
                    place, columns, partition_by=list(partition_by), storage_options=dict(storage_options or {}), commit_properties=said)
            else:
                kept = table.metadata().partition_columns
                table.create_write_transaction([], "append", table.schema(), partition_by=kept, commit_properties=said)
        except Exception as error:  # as in append
            failure = error
    return decide(failure, plan, app_id, path, known, is_ours, word, storage_options)
