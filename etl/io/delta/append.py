"""How are the rows of a plan appended to the table, in one commit?

Lives here: the writers, the choice between them, and `append`, which reads the table before and
after a writer and interprets its exceptions. All writers pass tests/spark/test_delta.py.
Not here: the state of the table (etl/io/delta/loaded_plans.py), the files of tasks
(etl/io/delta/data_files.py).

- `SparkWriter` appends, or replaces the rows of a replay, and adds `event_date`.
- `ArrowWriter` commits files that tasks wrote, by delta-rs without a JVM. Readers trust file
  entries, so each range must be reported once, each file must exist with its size, and the columns
  must be the table's.
- `EmptyCommit` commits a plan without ranges, and adds no files.

To add a writer:

1. Add a module here with a `Writer`: `commit` makes ONE Delta commit with the application id, the
   plan's number and the given metadata, and returns nothing.
2. Add a line to `choose_writer`, which decides by plan, table and settings.
3. `takes` names the form in which it takes rows; a new form needs a reader in `run.read_rows`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from etl.decide.plan import why_not_arrow
from etl.decide.table_changes import IsOurs
from etl.decide.table_rules import reject_other_columns
from etl.decide.table_storage import names_of_write
from etl.errors import EtlError, NotOurTable, SettingsError, TableUnreachable, whole_text
from etl.io.delta.loaded_plans import (
    Outcome,
    Result,
    another_table,
    holds,
    none_of_ours,
    read_back,
)
from etl.io.delta.log import parse_shape
from etl.io.delta.stores import (
    Constraint,
    constraint_error,
    options_of,
    public_cause,
    table_folder,
    translate,
    unreachable,
    violated_constraint,
)
from etl.io.delta.table_shape import (
    EVENT_DATE,
    announce_first_write,
    not_by_delta_rs,
    open_table,
    reject_unknown,
    rust_path,
    shape_of,
    spark_path,
    unfit_for_arrow,
    with_event_date_field,
)
from etl.ledger.plan_document import render_commit_metadata, with_results
from etl.model.columns import arrow_schema
from etl.model.plans import (
    DEFAULT_CODEC,
    FILE_BYTES,
    ROW_GROUP_BYTES,
    WRITE_BUFFER_BYTES,
    Codec,
    DataFile,
    FileOptions,
    Plan,
    PlanKind,
    RangeResult,
    Written,
)
from etl.model.snapshot import Acknowledgement
from etl.settings.choices import WriterName
from etl.settings.sections import Settings

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame


_REPORT_BUG = "Report this bug. Nothing was committed, the next run appends the same plan again"


class Takes(str, Enum):
    """The form in which a writer takes rows."""

    NOTHING = "nothing"
    """It commits plans without ranges."""
    DATA_FRAME = "data frame"
    """A Spark DataFrame, after format and transform."""
    FILES = "files"
    """Data files that the tasks write themselves."""


class FilesOfTasks(Protocol):
    """The rows of a plan, not read yet, by tasks that write files themselves."""

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        """Read and write all rows; return the result of each task. Can raise any exception."""


@dataclass(frozen=True, slots=True)
class ArrowWriter:
    """The writer of rows that tasks write with pyarrow."""

    physical: bool = False
    """The rows are of physical logs (`TopicPartition.is_physical`)."""
    codec: Codec = DEFAULT_CODEC
    file_bytes: int = FILE_BYTES
    """See `FileOptions`, as for the next fields."""
    row_group_bytes: int = ROW_GROUP_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    gives_way: bool = False
    """The conf sets `auto`: the next run uses Spark's writer if this one cannot be used."""
    made: pyarrow.Schema | None = None
    """The columns that a transform returns; None: the columns of the raw table."""

    @property
    def name(self) -> str:
        """Return the name in reports."""
        return "arrow"

    @property
    def takes(self) -> Takes:
        """Return the form in which it takes rows: files."""
        return Takes.FILES

    @property
    def writes_files(self) -> bool:
        """Return True."""
        return True

    def commit(
        self,
        plan: Plan,
        rows: FilesOfTasks,
        table: DeltaTable | None,
        metadata: str,
        to: Destination,
    ) -> None:
        """See `Writer`. Range results are known before the commit and are part of it.

        Raises TableUnreachable for files that differ from the reports of their tasks, NotOurTable
        for a table that became unfit meanwhile.
        """
        wanted = self._wanted(table, to)
        with contextlib.ExitStack() as without_commit:
            without_commit.callback(delete_uncommitted, wanted)
            written = rows.write(wanted)
            reject_other_ranges(plan, written)
            reject_other_rows(written)
            files: list[DataFile] = []
            for task in written:
                files.extend(task.files)
            reject_lost_files(wanted.root, files)
            if table is not None:
                # Open the table again: a change of another writer while the tasks wrote is not
                # always a conflict for delta-rs.
                table = open_table(to.path)
                if holds(plan, table, to.app_id) or table is None:
                    return
                self._reject_unfit(table, to)
            without_commit.pop_all()  # from here on a commit can refer to the files
        results: dict[int, RangeResult] = {}
        for task in written:
            results.update(task.results)
        if len(results) == len(plan.ranges):
            in_order = tuple(results[i] for i in range(len(plan.ranges)))
            if in_order:
                metadata = with_results(metadata, plan, in_order)
        try:
            self._commit(plan, files, table, metadata, to)
        except OSError as error:
            # delta-rs raises it for all failures of a file system or a store, also for those of its
            # work after a commit that succeeded. So no file is deleted here.
            raise unreachable(error, to.path, "written") from public_cause(error, to.path)

    def _reject_unfit(self, table: DeltaTable, to: Destination) -> None:
        """Reject a table to which files of tasks can no longer be added.

        Raises NotOurTable, or TableUnreachable if another run is sufficient.
        """
        try:
            self._wanted(table, to)
        except NotOurTable as unfit:
            if not self.gives_way:
                raise
            raise TableUnreachable(
                f"The table became unfit while tasks wrote its files: {unfit.message}",
                path=to.path,
                action="Run again: nothing was committed, and the next run uses Spark's writer, "
                "which can append to it",
            ) from unfit

    def _wanted(self, table: DeltaTable | None, to: Destination) -> FileOptions:
        columns = self._columns(to)
        if table is not None:
            why = unfit_for_arrow(table)
            if why:
                raise NotOurTable(
                    f"The arrow writer cannot append to this table: {why}",
                    path=to.path,
                    action="Set table.writer: spark",
                )
            _reject_other_row_shape(table, columns, to)
        return FileOptions(
            rust_path(to.path),
            tuple(columns.names),
            tuple(to.partition_by),
            self.physical,
            self.codec,
            self.file_bytes,
            self.row_group_bytes,
            self.write_buffer_bytes,
            uuid.uuid4().hex,
            self.made,
        )

    def _columns(self, to: Destination) -> pyarrow.Schema:
        rows = arrow_schema(physical=self.physical) if self.made is None else self.made
        return with_event_date_field(rows, to.partition_by)

    def _commit(
        self,
        plan: Plan,
        files: Sequence[DataFile],
        table: DeltaTable | None,
        metadata: str,
        to: Destination,
    ) -> None:
        """Commit by delta-rs, which detects conflicts by the version of the given table object.

        The plan number and the table id were read from that very object. Without a table the commit
        creates it, and is never retried as a later version.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import create_table_with_add_actions

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        # Under isolation level WriteSerializable, a DELETE, UPDATE or MERGE of another writer
        # conflicts with no commit that has isBlindAppend. Spark sets it for appends; delta-rs does
        # not.
        options: dict[str, Any] = {
            "custom_metadata": {"userMetadata": metadata, "isBlindAppend": True},
            "app_transactions": [transaction],
        }
        added = [_action(file) for file in files]
        if table is None:
            from deltalake import Schema

            columns = self._columns(to)
            create_table_with_add_actions(
                rust_path(to.path),
                Schema.from_arrow(columns),
                added,
                mode="error",
                partition_by=list(to.partition_by),
                storage_options=options_of(to.path),
                commit_properties=CommitProperties(**options, max_commit_retries=0),
            )
        else:
            table.create_write_transaction(
                added,
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(**options),
            )


def delete_uncommitted(wanted: FileOptions) -> None:
    """Delete all files of a write without commit, also those of other tasks.

    After a full disk a retry needs the space. VACUUM deletes what cannot be deleted here.
    """
    with contextlib.suppress(OSError):
        folder = table_folder(wanted.root)
        for path in folder.named(names_of_write(wanted.write_id)):
            with contextlib.suppress(OSError):
                folder.remove(path)


def reject_other_ranges(plan: Plan, written: Sequence[Written]) -> None:
    """Raise TableUnreachable unless the tasks returned each range of the plan once."""
    planned = range(len(plan.ranges))
    returned: Counter[int] = Counter()
    for task in written:
        returned.update(task.indices)
    wrong = [i for i in planned if returned[i] != 1]
    wrong += sorted(returned.keys() - set(planned))
    if wrong:
        times = returned[wrong[0]]
        raise TableUnreachable(
            f"Range {wrong[0]} of plan {plan.number} came back {times} times from the tasks",
            action=_REPORT_BUG,
        )


def reject_other_rows(written: Sequence[Written]) -> None:
    """Raise TableUnreachable unless the files have as many rows as were read.

    After a transform: as many rows as it returned.
    """
    read = 0
    for task in written:
        if task.made is not None:
            read += task.made
        else:  # a task knows its rows; only a later recount may not
            read += sum(result.rows or 0 for result in task.results.values())
    wrote = sum(task.rows for task in written)
    if wrote != read:
        message = (
            f"The files of the tasks have {wrote} rows of the {read} rows "
            "that were read or that a transform returned"
        )
        raise TableUnreachable(message, action=_REPORT_BUG)


def reject_lost_files(root: str, files: Sequence[DataFile]) -> None:
    """Raise TableUnreachable unless each file exists with the size that its task wrote.

    Of a new table: if its directory is removed between this check and the commit, delta-rs creates
    it again, and version 0 names files that do not exist. Readers and `etl verify` report that.
    """
    paths = [file.path for file in files]
    sizes = table_folder(root).sizes(paths)
    for file, size in zip(files, sizes, strict=True):
        if size == file.size:
            continue
        found = f"has {size} bytes of {file.size}"
        if size is None:
            found = "is missing"
        action = (
            "Check that the folder is the same one on every executor's host, and which process "
            "removed files meanwhile (VACUUM deletes files without a commit that are older than "
            "its retention). The next run appends the same plan again"
        )
        raise TableUnreachable(
            f"A file that a task wrote {found}", file=file.path, path=root, action=action
        )


def _reject_other_row_shape(table: DeltaTable, columns: Any, to: Destination) -> None:
    """Reject a table with other columns or partitioning than the rows. Raises NotOurTable.

    It may be another table than the one that `check_shape` saw, or that tasks wrote for.
    """
    from deltalake import Schema

    found = shape_of(table)
    wanted = parse_shape("", Schema.from_arrow(columns).to_json(), to.partition_by)
    reject_other_columns(to.path, wanted.columns, found.columns)
    if found.partition_by != tuple(to.partition_by):
        raise NotOurTable(
            f"The table is partitioned by {', '.join(found.partition_by) or 'nothing'}",
            key="table.partition_by",
            path=to.path,
            action="Check who changed the table during the run",
        )


def _action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    # the log needs no escapes: `table_storage.name_of_file` makes plain names
    return AddAction(
        file.path, file.size, dict(file.partition_values), file.modified_at_ms, True, file.stats
    )


@dataclass(frozen=True, slots=True)
class EmptyCommit:
    """The writer of plans without ranges. If there is no table, the plan's commit creates it."""

    columns: pyarrow.Schema
    """The columns of a new table, without the built-in ones."""

    @property
    def name(self) -> str:
        """Return the name in reports."""
        return "delta-rs"

    @property
    def takes(self) -> Takes:
        """Return the form in which it takes rows: none."""
        return Takes.NOTHING

    @property
    def writes_files(self) -> bool:
        """Return False."""
        return False

    def commit(
        self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`; there are no rows.

        delta-rs accepts used and lower transaction versions, and detects conflicts by the version
        of the given table object: plan number and table id were read from that very object.
        """
        from deltalake import CommitProperties, DeltaTable, Transaction

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        options: dict[str, Any] = {
            "custom_metadata": {"userMetadata": metadata},
            "app_transactions": [transaction],
        }
        if table is None:
            columns = with_event_date_field(self.columns, to.partition_by)
            # No retry: if another writer created a table meanwhile, delta-rs would commit this one
            # as its version 1.
            DeltaTable.create(
                rust_path(to.path),
                columns,
                partition_by=list(to.partition_by),
                storage_options=options_of(to.path),
                commit_properties=CommitProperties(**options, max_commit_retries=0),
            )
        else:
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(**options),
            )


_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_MICROS = "unix_micros(timestamp)"
_UTC_DATE = (
    f"case when {_MICROS} >= {_YEAR_1} and {_MICROS} < {_YEAR_10000} then "
    f"date_from_unix_date(cast(({_MICROS} - pmod({_MICROS}, {_MICROS_PER_DAY})) "
    f"div {_MICROS_PER_DAY} as int)) end"
)
"""The UTC date in integer arithmetic: `to_date` would use the session's time zone.

Null outside the years 1 to 9999: delta-rs, for example, cannot read `event_date=+55840-11-08`, and
the arithmetic would overflow an int64 in the earliest years.
"""
_SPELLED = {Codec.LZ4: "lz4_raw"}
"""Spark's names of codecs where they differ. Spark's `lz4` is Hadoop's frame, which other readers
do not support.
"""


@dataclass(frozen=True, slots=True)
class SparkWriter:
    """The writer of rows that Spark's tasks read: files first, by the executors, then one commit by
    the driver.
    """

    codec: Codec | None = None
    """None: the session's default, snappy."""

    @property
    def name(self) -> str:
        """Return the name in reports."""
        return "spark"

    @property
    def takes(self) -> Takes:
        """Return the form in which it takes rows: a DataFrame."""
        return Takes.DATA_FRAME

    @property
    def writes_files(self) -> bool:
        """Return True."""
        return True

    def commit(
        self, plan: Plan, rows: DataFrame, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`. Spark opens the table itself, and silently skips a used plan number."""
        dated = with_event_date(rows, to.partition_by)
        writer = dated.write.format("delta").mode("append").partitionBy(*to.partition_by)
        if self.codec is not None:
            writer = writer.option("compression", _SPELLED.get(self.codec, self.codec.value))
        if plan.kind is PlanKind.REPLAY:
            from etl.io.delta.offsets_of_rows import condition_of, replaceable

            # replaceable() raises if there is no table any more
            condition = condition_of(plan, replaceable(to.path, plan))
            writer = writer.mode("overwrite").option("replaceWhere", condition)
        # A replay, too, has the transaction id: it removes rows, and its commit is not foreign.
        writer = writer.option("txnAppId", to.app_id).option("txnVersion", plan.number)
        # The options are fixed before the tasks run, so the commit cannot contain their results.
        writer = writer.option("userMetadata", metadata)
        try:
            writer.save(spark_path(to.path))
        except Exception as error:  # any exception of Spark and Java
            violation = _violation_with_record(error, dated, to.path, plan)
            if violation is None:
                raise
            raise violation from error


_PLACE = ("topic", "partition", "offset")


def _violation_with_record(
    error: Exception, rows: DataFrame, path: str, plan: Plan | None = None
) -> NotOurTable | None:
    """Return the error for a row that violates a constraint of the table, with its record.

    None for another error. `plan`: as in `constraint_error`.
    """
    violated = violated_constraint(whole_text(error))
    if violated is None:
        return None
    return constraint_error(violated, path, _first_violating(rows, violated), plan)


def _first_violating(rows: DataFrame, violated: Constraint) -> dict[str, Any]:
    """Return topic, partition and offset of a row that violates the constraint, by reading again.

    Empty if the rows lack these columns, or cannot be read again. Costs at most a second read of
    the ranges, and usually less: each task stops at its first such row, and Spark starts few tasks
    at first, then more as long as none finds one. The driver receives one row.
    """
    with contextlib.suppress(Exception):  # any exception of Spark and Java
        broken = rows.where(f"not coalesce(({violated.condition}), false)")
        place = [name for name in (*_PLACE, "broker_id") if name in rows.columns]
        found = broken.select(*place).limit(1).collect()
        if found:
            return dict(found[0].asDict())
    return {}


def replace_in(
    path: str, plan: Plan, rows: DataFrame, metadata: str, partition_by: Sequence[str]
) -> None:
    """Replace the rows of the same offsets in another table, in one commit.

    Creates the table if needed. The commit has no transaction id, so it can be repeated. Raises as
    `append`.
    """
    from etl.io.delta.offsets_of_rows import condition_of, replaceable

    table = open_table(path)
    dated = with_event_date(rows, partition_by)
    writer = dated.write.format("delta").partitionBy(*partition_by).option("userMetadata", metadata)
    try:
        if table is None:
            announce_first_write(path)
            writer.mode("error").save(spark_path(path))
        else:
            condition = condition_of(plan, replaceable(path))
            writer.mode("overwrite").option("replaceWhere", condition).save(spark_path(path))
    except Exception as error:  # any exception of Spark and Java
        failure = _violation_with_record(error, dated, path) or translate(error, path)
        raise failure from public_cause(error, path)


def with_event_date(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Add the built-in column `event_date`, the UTC date of `timestamp`, if it is needed.

    It is needed if the partitioning names it and the rows lack it.
    """
    reject_unknown(partition_by, frame.columns)
    if EVENT_DATE not in partition_by or EVENT_DATE in frame.columns:
        return frame
    from pyspark.sql import functions

    return frame.withColumn(EVENT_DATE, functions.expr(_UTC_DATE))


@dataclass(frozen=True, slots=True)
class Destination:
    """The table that a plan is appended to, and its pipeline.

    The fields have the meaning of the parameters of `loaded_plans.read_table`.
    """

    path: str
    app_id: str
    partition_by: Sequence[str] = ()
    known: int | None = None
    run_id: str | None = None
    is_ours: IsOurs = none_of_ours
    acknowledgement: Acknowledgement | None = None


class Writer(Protocol):
    """Commits the rows of a plan."""

    @property
    def name(self) -> str:
        """Return the name in reports."""

    @property
    def takes(self) -> Takes:
        """Return the form in which it takes rows."""

    @property
    def writes_files(self) -> bool:
        """Return True if files exist before their commit: then a first write is announced."""

    def commit(
        self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """Make one commit with the rows, `metadata` and the transaction (`to.app_id`, number).

        Without a table, create it, and fail if another writer created one meanwhile. `table` is the
        object that was read and does not contain the plan's number. Can raise any exception: the
        state of the table decides.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of a plan, not read yet, and the writer that appends them.

    A plan without ranges can have no rows.
    """

    writer: Writer
    rows: Any = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The writer of a plan, and why it was chosen: a phrase that follows its name."""

    writer: Writer
    why: str

    def __str__(self) -> str:
        return f"{self.writer.name}: {self.why}"


def choose_writer(
    plan: Plan,
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
) -> Chosen:
    """Return the writer that appends this plan.

    Without ranges no JVM starts if delta-rs can commit. It cannot if a new table gets the columns
    of a transform, which only Spark knows, or an existing table has features that it lacks.
    `look` opens the table, `columns` returns the columns of the tasks' rows; both are called only
    if they decide, and can raise. Raises NotOurTable or SettingsError for an impossible writer of
    the conf.
    """
    if plan.ranges:
        return _writer_of_rows(plan, settings, look, columns)
    if plan.table.id is None:
        needs_spark = settings.transform.dataframe is not None
    else:
        needs_spark = _needs_spark(look())
    if needs_spark:
        return Chosen(SparkWriter(settings.table.compression), "delta-rs cannot make this commit")
    return Chosen(EmptyCommit(columns()), "there are no rows")


def _needs_spark(table: DeltaTable | None) -> bool:
    return table is not None and bool(not_by_delta_rs(table))


def _writer_of_rows(
    plan: Plan,
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
) -> Chosen:
    table = settings.table
    by_spark = SparkWriter(table.compression)
    if table.writer is WriterName.SPARK:
        return Chosen(by_spark, "table.writer is spark")
    if plan.kind is PlanKind.REPLAY:
        return Chosen(by_spark, "only Spark can replace the rows of a replay")
    obstacle = error_of_arrow_writer(settings, look, columns, is_new=plan.table.id is None)
    if obstacle is None:
        made = None
        if settings.transform.record_batch:
            made = columns()
        arrow = ArrowWriter(
            settings.source.is_physical,
            table.compression or DEFAULT_CODEC,
            table.target_file_bytes,
            table.row_group_bytes,
            table.write_buffer_bytes,
            gives_way=table.writer is WriterName.AUTO,
            made=made,
        )
        return Chosen(arrow, f"table.writer is {table.writer.value}")
    if table.writer is WriterName.ARROW:
        raise obstacle
    return Chosen(by_spark, f"table.writer is auto. {obstacle.message}")


def error_of_arrow_writer(
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
    *,
    is_new: bool,
) -> EtlError | None:
    """Return the error why tasks cannot write the files; None if they can.

    The table is checked last. `is_new`: it does not exist yet. `look` and `columns` as in
    `choose_writer`.
    """
    details = {
        "path": settings.table.path,
        "key": "table.writer",
        "action": "Set table.writer: spark, or auto, which uses spark where needed",
    }
    made = None
    if settings.transform.record_batch:
        made = {field.name: str(field.type) for field in columns()}
    why = why_not_arrow(settings, is_new=is_new, made=made)
    if why:
        return SettingsError(f"The arrow writer cannot be: {why}", **details)
    table = None if is_new else look()
    why = None if table is None else unfit_for_arrow(table)
    if why:
        return NotOurTable(f"The arrow writer cannot append to this table: {why}", **details)
    return None


def append(load: Load, plan: Plan, to: Destination) -> Outcome:
    """Append the rows as plan `plan.number`, at most once; return the state of the table after it.

    If the table contains that number already, the writer is not called. If the plan is not in the
    table afterwards, the writer's exception is raised: an executor's EtlError, TableUnreachable for
    an unwritable path, or the exception unchanged. Without an exception the result is NOT_APPLIED:
    the table was replaced meanwhile.
    """
    metadata = render_commit_metadata(plan, to.app_id, to.run_id)
    table = open_table(to.path)
    failure = None
    # Spark silently skips an append with a version at or below the one in the table; delta-rs
    # accepts used and lower versions. So check first, on the object that commits.
    if not holds(plan, table, to.app_id):
        if load.writer.writes_files:
            announce_first_write(to.path)
        try:
            load.writer.commit(plan, load.rows, table, metadata, to)
        except Exception as error:  # the table decides: the commit may have succeeded before it
            failure = error
    return _decide(failure, plan, to)


def _decide(failure: Exception | None, plan: Plan, to: Destination) -> Outcome:
    outcome = read_back(
        plan,
        app_id=to.app_id,
        path=to.path,
        known=to.known,
        is_ours=to.is_ours,
        acknowledgement=to.acknowledgement,
    )
    if outcome.result is not Result.NOT_APPLIED:
        return outcome
    if plan.table.id is None and outcome.table and outcome.table.transaction_version is None:
        raise another_table(plan, outcome.table.id, to.path) from public_cause(failure, to.path)
    if failure is None:
        return outcome
    raise translate(failure, to.path) from public_cause(failure, to.path)
