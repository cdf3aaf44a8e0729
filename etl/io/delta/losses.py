"""Which offsets were lost? The losses table has a row for each interval.

It is a Delta table of its own, written without Spark. The losses of a plan are one commit, whose
`txn` (Delta protocol, "Transaction Identifiers") is the plan's number under `<application
id>/losses/<uid>`: a pipeline with a new uid counts its plans from 1 again. delta-rs accepts a
number that was used, so it is compared on the object that commits; of two commits from the same
version delta-rs rejects the second. After each commit the result is read again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etl.errors import EtlError, FileLost, NotOurTable
from etl.io.delta.stores import not_supported, options_of, public_cause, unreachable
from etl.io.delta.table_shape import open_table, reject_expiring_transaction_ids, rust_path
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, Plan

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable


ATTEMPTS = 3
"""Two drivers may both write first. Then the table that the other one created is opened again."""
_INCARNATION = "incarnation"
_GONE = re.compile("Object at location (.+?) not found")


def record_losses(plan: Plan, *, app_id: str, path: str) -> None:
    """Record the plan's losses at most once, also if another driver does so at the same time.

    A plan without losses creates no table. The plan must be in the data's table; plans are recorded
    in the order of their numbers. Raises NotOurTable, TableUnreachable, PermissionDenied.
    """
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        if recorded(plan, app_id=app_id, path=path):
            return
        try:
            _append(plan, app_id, path)
        except _write_errors() as error:
            # The commit may have succeeded before the error: the next look at the table decides.
            failure = error
    if not recorded(plan, app_id=app_id, path=path):
        cause = failure or OSError("the commit left no trace")
        raise unreachable(cause, path, "written") from public_cause(failure, path)


def recorded(plan: Plan, *, app_id: str, path: str) -> bool:
    """Return True if the plan's losses are recorded, or it has none. Raises as `record_losses`."""
    if not plan.losses.lost:
        return True
    table = open_losses(path)
    return table is not None and _holds(table, plan, app_id)


def read_losses(path: str, *, uid: str) -> tuple[Loss, ...]:
    """Return the losses of all plans of this pipeline, sorted.

    Raises FileLost, and as `record_losses`.
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
        *_incarnation_column(table),
    ]
    try:
        rows = _rows_of(table, columns, uid)
    except Exception as error:  # the query engine's errors have no class of their own
        raise _unreadable(error, path) from public_cause(error, path)
    found = set()
    for row in rows:
        partition = TopicPartition(row["topic"], row["partition"], row["broker_id"])
        reason = LossReason(row["reason"])
        incarnation = row.get(_INCARNATION) or 0
        found.add(Loss(partition, row["from_offset"], row["until_offset"], reason, incarnation))
    return tuple(sorted(found))


def _rows_of(table: DeltaTable, columns: Sequence[str], uid: str) -> list[dict[str, Any]]:
    """Return a pipeline's rows of a losses table, by delta-rs's query engine: its pyarrow reader
    rejects deletion vectors.
    """
    import pyarrow
    from deltalake import QueryBuilder

    quoted = uid.replace("'", "''")
    query = f"select {', '.join(columns)} from losses where pipeline_id = '{quoted}'"
    found = QueryBuilder().register("losses", table).execute(query).read_all()
    rows: list[dict[str, Any]] = pyarrow.table(found).to_pylist()
    return rows


def _unreadable(error: Exception, path: str) -> EtlError:
    gone = _GONE.search(str(error))
    if gone is None:
        return not_supported(error, path) or unreachable(error, path, "read")
    return FileLost(
        "A file that the losses table's log names does not exist",
        file=gone[1].rpartition("/")[2],
        path=path,
        action="Check who removed it, and restore it from a copy. Without a copy, remove it from "
        "the "
        "table's log (delta-rs: DeltaTable(PATH).repair()); the losses of plans that ZooKeeper no "
        "longer keeps are unknown then",
    )


def schema() -> pyarrow.Schema:
    """Return the table's columns with the comments that DESCRIBE TABLE shows."""
    import pyarrow

    columns = (
        ("app_id", pyarrow.string(), "application id of the pipeline, as in the data's table"),
        ("pipeline_id", pyarrow.string(), "the pipeline's random id, made with its first plan"),
        ("topic", pyarrow.string(), "topic of the lost offsets"),
        ("partition", pyarrow.int32(), "partition of the lost offsets"),
        ("broker_id", pyarrow.int32(), "broker of a Jafka or Kafka 0.7 partition, else null"),
        ("from_offset", pyarrow.int64(), "first lost offset"),
        ("until_offset", pyarrow.int64(), "one past the last lost offset"),
        ("reason", pyarrow.string(), "; ".join(reason.value for reason in LossReason)),
        ("plan_number", pyarrow.int64(), "number of the plan that continued without them"),
        ("plan_id", pyarrow.string(), "id of that plan"),
        ("recorded_at", pyarrow.timestamp("us", tz="UTC"), "when this row was written"),
        (
            _INCARNATION,
            pyarrow.int32(),
            "incarnation of the partition, as in the data's table; null: the first",
        ),
    )
    fields = []
    for name, kind, comment in columns:
        fields.append(pyarrow.field(name, kind, metadata={"comment": comment}))
    return pyarrow.schema(fields)


def _append(plan: Plan, app_id: str, path: str) -> None:
    """Append all of the plan's losses in one commit. A missing table is created by a commit before
    it.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    now_ms = int(time.time() * 1000)
    table = open_losses(path)
    if table is None:
        # No retries: after a conflict with another driver's creation, a retry would commit a second
        # creation to the same log.
        table = DeltaTable.create(
            rust_path(path),
            schema(),
            mode="ignore",
            description="lost offsets and the reasons",
            storage_options=options_of(path),
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    if _holds(table, plan, app_id):
        return
    metadata = {
        "app": "offset-range-etl losses",
        "app_id": app_id,
        "uid": plan.origin.pipeline_id,
        "number": plan.number,
        "plan_id": plan.id,
    }
    transaction = Transaction(_transaction_id(plan, app_id), plan.number, last_updated=now_ms)
    commit_properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(metadata)}, app_transactions=[transaction]
    )
    rows = _without_comments(_rows(plan, app_id, now_ms), table)
    if any(loss.incarnation for loss in plan.losses.lost):
        write_deltalake(
            table, rows, mode="append", schema_mode="merge", commit_properties=commit_properties
        )
        return
    if not _incarnation_column(table):
        rows = rows.drop_columns([_INCARNATION])
    write_deltalake(table, rows, mode="append", commit_properties=commit_properties)


def _rows(plan: Plan, app_id: str, now_ms: int) -> pyarrow.Table:
    import pyarrow

    rows = []
    for loss in plan.losses.lost:
        row = {
            "app_id": app_id,
            "pipeline_id": plan.origin.pipeline_id,
            "topic": loss.partition.topic,
            "partition": loss.partition.partition,
            "broker_id": loss.partition.broker_id,
            "from_offset": loss.from_offset,
            "until_offset": loss.until_offset,
            "reason": loss.why.value,
            "plan_number": plan.number,
            "plan_id": plan.id,
            "recorded_at": now_ms * 1000,
            _INCARNATION: loss.incarnation,
        }
        rows.append(row)
    return pyarrow.Table.from_pylist(rows, schema=schema())


def _without_comments(rows: pyarrow.Table, table: DeltaTable) -> pyarrow.Table:
    """Return the rows without comments on columns that the table has: delta-rs cannot merge two
    different comments of a column.
    """
    import pyarrow

    there = {field.name for field in table.schema().fields}
    fields = []
    for field in rows.schema:
        if field.name in there:
            field = field.remove_metadata()
        fields.append(field)
    return rows.cast(pyarrow.schema(fields))


def open_losses(path: str) -> DeltaTable | None:
    """Return the losses table; None if there is none.

    Raises NotOurTable for another table at its path, or if it expires transaction ids.
    """
    table = open_table(path)
    if table is None:
        return None
    there = {field.name for field in table.schema().fields} | {_INCARNATION}
    lacking = [name for name in schema().names if name not in there]
    if lacking:
        message = f"The table at the path of the losses table has no column {lacking[0]}"
        raise NotOurTable(
            message,
            path=path,
            key="table.losses_path",
            action="Check table.losses_path: its path must be empty, or have a losses table",
        )
    reject_expiring_transaction_ids(
        table, path, called="The losses table", harm="a loss could be recorded twice"
    )
    return table


def _incarnation_column(table: DeltaTable) -> list[str]:
    """Return the name of the incarnation column; nothing if the table lacks it.

    A table may lack it until a loss has an incarnation other than 0.
    """
    names = [field.name for field in table.schema().fields]
    return [_INCARNATION] if _INCARNATION in names else []


def _holds(table: DeltaTable, plan: Plan, app_id: str) -> bool:
    version = table.transaction_version(_transaction_id(plan, app_id))
    return version is not None and version >= plan.number


def _transaction_id(plan: Plan, app_id: str) -> str:
    return f"{app_id}/losses/{plan.origin.pipeline_id}"


def _write_errors() -> tuple[type[Exception], ...]:
    from deltalake.exceptions import DeltaError

    return DeltaError, OSError
