"""Which offsets were lost? The losses table has a row for each interval.

A Delta table beside the data, written without Spark. The losses of a plan are one commit, whose
`txn` (Delta protocol, "Transaction Identifiers") is the plan's number under `<application
id>/losses/<uid>`: a pipeline with a new uid counts its plans from 1 again. delta-rs accepts a
number that was used, so it is compared on the object that commits; of two commits from the same
version it rejects the second. After each commit the result is read back.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etl.errors import EtlError, FileLost, NotOurTable
from etl.io.delta.stores import behind, not_supported, options_of, unreachable
from etl.io.delta.table import open_table, reject_expiring_transaction_ids, rust_path
from etl.model.partitions import BrokerPartition
from etl.model.plans import Loss, LossReason, Plan

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable


ATTEMPTS = 3
"""A first write may meet another driver's first write, and the table it made must be opened again.
"""
_INCARNATION = "incarnation"
_GONE = re.compile("Object at location (.+?) not found")


def record_losses(plan: Plan, *, app_id: str, path: str) -> None:
    """Record the plan's losses, at most once, whoever else does at this moment.

    A plan without losses creates no table. Only for a plan in the data's table, in the order of
    numbers. Raises NotOurTable, TableUnreachable, PermissionDenied.
    """
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        if recorded(plan, app_id=app_id, path=path):
            return
        try:
            _append(plan, app_id, path)
        except _refusals() as error:  # the table decides: the commit may have happened before it
            failure = error
    if not recorded(plan, app_id=app_id, path=path):
        raise unreachable(
            failure or OSError("the commit left no trace"), path, "written"
        ) from behind(failure, path)


def recorded(plan: Plan, *, app_id: str, path: str) -> bool:
    """True if the plan's losses are recorded, or it has none. Raises as `record_losses`."""
    if not plan.losses:
        return True
    table = open_losses(path)
    return table is not None and _holds(table, plan, app_id)


def read_losses(path: str, *, uid: str) -> tuple[Loss, ...]:
    """All that the plans of this pipeline let go, in order. Raises FileLost, and as
    `record_losses`.
    """
    table = open_losses(path)
    if table is None:
        return ()
    columns = [
        "topic",
        "broker_id",
        "partition",
        "from_offset",
        "until_offset",
        "reason",
        *_kept_epoch(table),
    ]
    try:
        rows = _rows_of(table, columns, uid)
    except Exception as error:  # the query engine's failures have no class of their own
        raise _unreadable(error, path) from behind(error, path)
    found = {
        Loss(
            BrokerPartition(r["topic"], r["partition"], r["broker_id"]),
            r["from_offset"],
            r["until_offset"],
            LossReason(r["reason"]),
            r.get(_INCARNATION) or 0,
        )
        for r in rows
    }
    return tuple(sorted(found))


def _rows_of(table: DeltaTable, columns: Sequence[str], uid: str) -> list[dict[str, Any]]:
    """The rows of a losses table, by delta-rs's query engine: its pyarrow reader refuses deletion
    vectors.
    """
    import pyarrow
    from deltalake import QueryBuilder

    mine = uid.replace("'", "''")
    found = (
        QueryBuilder()
        .register("losses", table)
        .execute(f"select {', '.join(columns)} from losses where pipeline_id = '{mine}'")
        .read_all()
    )
    rows: list[dict[str, Any]] = pyarrow.table(found).to_pylist()
    return rows


def _unreadable(error: Exception, path: str) -> EtlError:
    gone = _GONE.search(str(error))
    if gone is None:
        return not_supported(error, path) or unreachable(error, path, "read")
    action = (
        "Check who removed it; put it back from a copy; where there is none, take it out of the table's log (delta-rs: "
        "DeltaTable(PATH).repair()): what plans that are not kept any more let go is then not known"
    )
    return FileLost(
        "A file that the losses table's log names is not there",
        file=gone[1].rpartition("/")[2],
        path=path,
        action=action,
    )


def schema() -> pyarrow.Schema:
    """The table's columns, each with the comment that DESCRIBE TABLE shows."""
    import pyarrow

    columns = (
        ("app_id", pyarrow.string(), "application id of the pipeline, as in the data's table"),
        ("pipeline_id", pyarrow.string(), "the pipeline's random id, made with its first plan"),
        ("topic", pyarrow.string(), "topic of the log"),
        ("partition", pyarrow.int32(), "partition of the log"),
        ("broker_id", pyarrow.int32(), "broker of the log on the 0.7 family, else null"),
        ("from_offset", pyarrow.int64(), "first offset that was let go"),
        ("until_offset", pyarrow.int64(), "one past the last offset that was let go"),
        ("reason", pyarrow.string(), "; ".join(why.value for why in LossReason)),
        ("plan_number", pyarrow.int64(), "number of the plan that let them go"),
        ("plan_id", pyarrow.string(), "its id"),
        ("recorded_at", pyarrow.timestamp("us", tz="UTC"), "when this row was written"),
        (
            _INCARNATION,
            pyarrow.int32(),
            "which life of the log they were of, as in the data's table; null: the first",
        ),
    )
    return pyarrow.schema(
        [
            pyarrow.field(name, kind, metadata={"comment": comment})
            for name, kind, comment in columns
        ]
    )


def _append(plan: Plan, app_id: str, path: str) -> None:
    """One commit with all of the plan's losses; the table is made by a commit before it, where
    there is none.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    now_ms = int(time.time() * 1000)
    table = open_losses(path)
    if table is None:
        name = "offsets that were let go, and why"
        table = DeltaTable.create(  # of two that make it one wins: tried again, the other's would be a second beginning in its log
            rust_path(path),
            schema(),
            mode="ignore",
            description=name,
            storage_options=options_of(path),
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    if _holds(table, plan, app_id):
        return
    metadata = {
        "app": "offset-range-etl losses",
        "app_id": app_id,
        "uid": plan.uid,
        "number": plan.number,
        "plan_id": plan.id,
    }
    transaction = Transaction(_transaction_id(plan, app_id), plan.number, last_updated=now_ms)
    rows, is_needed = (
        _without_comments(_rows(plan, app_id, now_ms), table),
        any(loss.incarnation for loss in plan.losses),
    )
    if not _kept_epoch(table) and not is_needed:
        rows = rows.drop_columns([_INCARNATION])
    write_deltalake(
        table,
        rows,
        mode="append",
        schema_mode="merge" if is_needed else None,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": json.dumps(metadata)}, app_transactions=[transaction]
        ),
    )


def _rows(plan: Plan, app_id: str, now_ms: int) -> pyarrow.Table:
    import pyarrow

    return pyarrow.Table.from_pylist(
        [
            {
                "app_id": app_id,
                "pipeline_id": plan.uid,
                "topic": loss.log.topic,
                "partition": loss.log.partition,
                "broker_id": loss.log.broker_id,
                "from_offset": loss.from_offset,
                "until_offset": loss.until_offset,
                "reason": loss.why.value,
                "plan_number": plan.number,
                "plan_id": plan.id,
                "recorded_at": now_ms * 1000,
                _INCARNATION: loss.incarnation,
            }
            for loss in plan.losses
        ],
        schema=schema(),
    )


def _without_comments(rows: pyarrow.Table, table: DeltaTable) -> pyarrow.Table:
    """The rows with no comment on columns that the table has: delta-rs merges no two comments, and
    an older version made others.
    """
    import pyarrow

    there = {field.name for field in table.schema().fields}
    return rows.cast(
        pyarrow.schema(
            [field.remove_metadata() if field.name in there else field for field in rows.schema]
        )
    )


def open_losses(path: str) -> DeltaTable | None:
    """The losses table; None when there is none. Raises NotOurTable where another one lies there,
    or it forgets transaction ids.
    """
    table = open_table(path)
    if table is None:
        return None
    there = {field.name for field in table.schema().fields} | {_INCARNATION}
    lacking = next((name for name in schema().names if name not in there), None)
    if lacking:
        message = f"The table at the path of the losses table has no column {lacking}"
        raise NotOurTable(
            message,
            path=path,
            key="table.losses_path",
            action="Check table.losses_path: it must name nothing, or a losses table",
        )
    reject_expiring_transaction_ids(
        table, path, called="the losses table", harm="a loss could be recorded twice"
    )
    return table


def _kept_epoch(table: DeltaTable) -> list[str]:
    """The column of the log's life, where the table has it: it was added after the others, and is
    added to a table that needs it.
    """
    return [field.name for field in table.schema().fields if field.name == _INCARNATION]


def _holds(table: DeltaTable, plan: Plan, app_id: str) -> bool:
    version = table.transaction_version(_transaction_id(plan, app_id))
    return version is not None and version >= plan.number


def _transaction_id(plan: Plan, app_id: str) -> str:
    return f"{app_id}/losses/{plan.uid}"


def _refusals() -> tuple[type[Exception], ...]:
    from deltalake.exceptions import DeltaError

    return DeltaError, OSError
