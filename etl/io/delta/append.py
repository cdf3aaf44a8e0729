"""How do the rows of a plan come into the table, with one commit?

To add a writer:

1. A module beside this one with a `Writer`: `commit` makes ONE Delta commit with the application
id,
   the plan's number and the given metadata, and reports no result.
2. A line in `choose_writer`, which decides by plan, table and settings.
3. `takes` says in which form it takes rows; a new form needs a reader in `run.live`.

`append` itself reads the table before and after and interprets exceptions. All writers keep the
laws of `tests/spark/test_delta.py`.

Spark's writer appends, or overwrites the rows of a replay, and adds `event_date`. The arrow writer
commits files that tasks wrote, by delta-rs without a JVM; since readers trust file entries, each
range must have come once, each file must exist with its size, and columns must be the table's. A
plan without ranges is a commit without files.
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
from etl.decide.table_rules import reject_other_columns
from etl.decide.table_storage import names_of_write
from etl.errors import EtlError, NotOurTable, SettingsError, TableUnreachable
from etl.io.delta.log import parse_shape
from etl.io.delta.scan import condition_of, replaceable
from etl.io.delta.stores import behind, options_of, table_folder, translate, unreachable
from etl.io.delta.table import (
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
from etl.io.delta.table_state import (
    IsOurs,
    Outcome,
    Result,
    another_table,
    holds,
    none_of_ours,
    read_back,
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
    Written,
)
from etl.model.snapshot import Acknowledgement
from etl.settings.choices import WriterName
from etl.settings.sections import Settings

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame


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
        """Read all and write it; what each task gave back. Raises whatever it likes."""


@dataclass(frozen=True, slots=True)
class ArrowWriter:
    """The writer of rows that tasks write with pyarrow."""

    physical: bool = False
    """The rows are of physical logs (`BrokerPartition.is_physical`)."""
    codec: Codec = DEFAULT_CODEC
    file_bytes: int = FILE_BYTES
    """See `FileOptions`, as for the next fields."""
    row_group_bytes: int = ROW_GROUP_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    gives_way: bool = False
    """The conf leaves the choice to us (`auto`): the next run takes Spark's writer where this one
    cannot be.
    """
    made: pyarrow.Schema | None = None
    """The columns of the rows, where a transform made them; None: those of `columns`."""

    @property
    def name(self) -> str:
        """Return the name in reports."""
        return "arrow"

    @property
    def takes(self) -> Takes:
        """Files."""
        return Takes.FILES

    @property
    def writes_files(self) -> bool:
        """Yes."""
        return True

    def commit(
        self,
        plan: Plan,
        rows: FilesOfTasks,
        table: DeltaTable | None,
        metadata: str,
        to: Destination,
    ) -> None:
        """See `Writer`. Range results are known before the commit and part of it. Raises
        TableUnreachable for files that differ from what their tasks reported, NotOurTable for a
        table that became unfit meanwhile.
        """
        wanted = self._wanted(table, to)
        with contextlib.ExitStack() as without_commit:
            without_commit.callback(take_away, wanted)
            written = rows.write(wanted)
            reject_other_ranges(plan, written)
            reject_other_rows(written)
            files = [file for one in written for file in one.files]
            reject_lost_files(wanted.root, files)
            if (
                table is not None
            ):  # what is looked at is the table of now: what somebody changed while tasks wrote need be no conflict
                table = open_table(to.path)
                if holds(plan, table, to.app_id) or table is None:
                    return
                self._reject_unfit(table, to)
            without_commit.pop_all()  # from here on a commit may name them
        receipts = {i: receipt for one in written for i, receipt in one.receipts.items()}
        in_order = (
            tuple(receipts[i] for i in range(len(plan.ranges)))
            if len(receipts) == len(plan.ranges)
            else None
        )
        try:
            self._commit(
                plan,
                files,
                table,
                with_results(metadata, plan, in_order) if in_order else metadata,
                to,
            )
        except OSError as error:  # delta-rs raises it for all that a file system or a store says
            raise unreachable(error, to.path, "written") from behind(error, to.path)

    def _reject_unfit(self, table: DeltaTable, to: Destination) -> None:
        """Tasks wrote for a table that takes such files no more. Raises NotOurTable, or
        TableUnreachable where another run is enough.
        """
        try:
            self._wanted(table, to)
        except NotOurTable as unfit:
            if not self.gives_way:
                raise
            action = (
                "Nothing was committed; the next run takes Spark's writer, under which it may be"
            )
            message = f"The table became unfit while tasks wrote its files: {unfit.message}"
            raise TableUnreachable(message, path=to.path, action=action) from unfit

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
        """Commit by delta-rs, which detects conflicts by the version of the given table object:
        number and id were read from that very object. Without a table the commit creates it, and is
        never retried as a later version.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import create_table_with_add_actions

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        # under isolation level WriteSerializable a DELETE, UPDATE or MERGE of others passes a
        # commit that says isBlindAppend; Spark's appends say it, and of its own accord delta-rs
        # does not
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
            kept = table.metadata().partition_columns
            table.create_write_transaction(
                added,
                "append",
                table.schema(),
                partition_by=kept,
                commit_properties=CommitProperties(**options),
            )


def take_away(wanted: FileOptions) -> None:
    """Delete all files of a write that no commit names, whoever wrote them: after a full disk a
    retry needs the space. What cannot be deleted is left to VACUUM.
    """
    with contextlib.suppress(OSError):
        folder = table_folder(wanted.root)
        for path in folder.named(names_of_write(wanted.write_id)):
            with contextlib.suppress(OSError):
                folder.remove(path)


def reject_other_ranges(plan: Plan, written: Sequence[Written]) -> None:
    """Raises TableUnreachable unless each range of the plan came back once."""
    came = Counter(i for one in written for i in one.indices)
    wrong = [i for i in range(len(plan.ranges)) if came[i] != 1] + sorted(
        came.keys() - set(range(len(plan.ranges)))
    )
    if wrong:
        message = f"Range {wrong[0]} of plan {plan.number} came back {came[wrong[0]]} times from the tasks"
        raise TableUnreachable(
            message,
            action="Report this bug. Nothing was committed, the next run appends the same plan again",
        )


def reject_other_rows(written: Sequence[Written]) -> None:
    """Raises TableUnreachable unless the files have as many rows as were read; of what a transform
    made, as many as it made.
    """
    read = sum(
        sum(
            receipt.rows or 0 for receipt in one.receipts.values()
        )  # a task knows; only later counts may not
        if one.made is None
        else one.made
        for one in written
    )
    wrote = sum(one.rows for one in written)
    if wrote != read:
        message = f"The files of the tasks have {wrote} rows of the {read} that were read, or made of what was read"
        raise TableUnreachable(
            message,
            action="Report this bug. Nothing was committed, the next run appends the same plan again",
        )


def reject_lost_files(root: str, files: Sequence[DataFile]) -> None:
    """Raises TableUnreachable unless each file is there, once, with the size that its task wrote."""
    for file, size in zip(
        files, table_folder(root).sizes([file.path for file in files]), strict=True
    ):
        if size != file.size:
            found = "is not there" if size is None else f"has {size} bytes of {file.size}"
            action = (
                "Check that the folder is the same one on every executor's host, and who removed files meanwhile (VACUUM takes what no commit "
                "names once it is as old as the retention asked for); the next run appends the same plan again"
            )
            raise TableUnreachable(
                f"A file that a task wrote {found}", file=file.path, path=root, action=action
            )


def _reject_other_row_shape(table: DeltaTable, columns: Any, to: Destination) -> None:
    """The table may be another one than `check_shape` saw when the run began, or than tasks wrote
    for. Raises NotOurTable.
    """
    from deltalake import Schema

    found, wanted = (
        shape_of(table),
        parse_shape("", Schema.from_arrow(columns).to_json(), to.partition_by),
    )
    reject_other_columns(to.path, wanted.columns, found.columns)
    if found.partition_by != tuple(to.partition_by):
        message = f"The table is partitioned by {', '.join(found.partition_by) or 'nothing'}"
        raise NotOurTable(
            message, path=to.path, action="Check who changed the table during the run"
        )


def _action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    # the name is plain (`table_storage.name_of_file`), so there is nothing in it that the log has to
    # escape
    return AddAction(
        file.path, file.size, dict(file.partition_values), file.modified_at_ms, True, file.stats
    )


@dataclass(frozen=True, slots=True)
class EmptyCommit:
    """The writer of plans without ranges; where there is no table, the commit that creates it is
    the plan's.
    """

    columns: pyarrow.Schema
    """Those of a new table, without the built-in ones."""

    @property
    def name(self) -> str:
        """Return the name in reports."""
        return "delta-rs"

    @property
    def takes(self) -> Takes:
        """No rows."""
        return Takes.NOTHING

    @property
    def writes_files(self) -> bool:
        """No."""
        return False

    def commit(
        self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`. There are no rows. delta-rs accepts used and lower numbers, and detects
        conflicts by the version of the given table object: number and table id were read from that
        very object.
        """
        from deltalake import CommitProperties, DeltaTable, Transaction

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        given: dict[str, Any] = {
            "custom_metadata": {"userMetadata": metadata},
            "app_transactions": [transaction],
        }
        if table is None:
            columns = with_event_date_field(self.columns, to.partition_by)
            # no second try: over a table that somebody else made meanwhile, delta-rs would commit
            # ours as its version 1
            DeltaTable.create(
                rust_path(to.path),
                columns,
                partition_by=list(to.partition_by),
                storage_options=options_of(to.path),
                commit_properties=CommitProperties(**given, max_commit_retries=0),
            )
        else:
            kept = table.metadata().partition_columns
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                partition_by=kept,
                commit_properties=CommitProperties(**given),
            )


_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_MICROS = "unix_micros(timestamp)"
_UTC_DATE = (
    f"case when {_MICROS} >= {_YEAR_1} and {_MICROS} < {_YEAR_10000} then "
    f"date_from_unix_date(cast(({_MICROS} - pmod({_MICROS}, {_MICROS_PER_DAY})) div {_MICROS_PER_DAY} as int)) end"
)
"""Integer arithmetic on the instant: `to_date` would follow the session's time zone. Other years
are no date that every reader of a table knows (`event_date=+55840-11-08` is none for delta-rs), and
the arithmetic would leave the range of an int64 in the least of them.
"""
_SPELLED = {Codec.LZ4: "lz4_raw"}
"""Spark's names of codecs where they differ; its `lz4` is Hadoop's frame, which others do not read.
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
        """A DataFrame."""
        return Takes.DATA_FRAME

    @property
    def writes_files(self) -> bool:
        """Yes."""
        return True

    def commit(
        self, plan: Plan, rows: DataFrame, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`. Spark opens the table itself, and silently skips a used number."""
        writer = (
            with_event_date(rows, to.partition_by)
            .write.format("delta")
            .mode("append")
            .partitionBy(*to.partition_by)
        )
        writer = (
            writer
            if self.codec is None
            else writer.option("compression", _SPELLED.get(self.codec, self.codec.value))
        )
        if plan.kind is PlanKind.REPLAY:
            writer = writer.mode("overwrite").option(
                "replaceWhere", condition_of(plan, replaceable(to.path))
            )  # also where none is by now
        writer.option("txnAppId", to.app_id).option("txnVersion", plan.number).option(
            "userMetadata", metadata
        ).save(spark_path(to.path))


def replace_in(
    path: str, plan: Plan, rows: DataFrame, metadata: str, partition_by: Sequence[str]
) -> None:
    """Replace the rows of the same offsets in another table, which is created if needed, in one
    commit without a transaction: it can be repeated. Raises as an append.
    """
    table, dated = open_table(path), with_event_date(rows, partition_by)
    writer = dated.write.format("delta").partitionBy(*partition_by).option("userMetadata", metadata)
    try:
        if table is None:
            announce_first_write(path)
            writer.mode("error").save(spark_path(path))
        else:
            writer.mode("overwrite").option(
                "replaceWhere", condition_of(plan, replaceable(path))
            ).save(spark_path(path))
    except Exception as error:  # whatever Spark and Java raise
        raise translate(error, path) from behind(error, path)


def with_event_date(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Add the built-in column `event_date`, the UTC date of `timestamp`, when the partitioning
    names it and the rows lack it.
    """
    reject_unknown(partition_by, frame.columns)
    if EVENT_DATE not in partition_by or EVENT_DATE in frame.columns:
        return frame
    from pyspark.sql import functions

    return frame.withColumn(EVENT_DATE, functions.expr(_UTC_DATE))


@dataclass(frozen=True, slots=True)
class Destination:
    """The table that a plan is appended to, its pipeline, and what is known of it; fields as in
    `table_state.read_table`.
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
        """True if files exist before their commit: then a first write is announced."""

    def commit(
        self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """Make one commit with the rows, the transaction (`to.app_id`, `plan.number`) and
        `metadata`; without a table, create it.

        `table` is the object that was read and does not hold the number. May raise anything; the
        table decides.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of a plan, not read yet, and the writer that appends them; a plan without ranges may
    have none.
    """

    writer: Writer
    rows: Any = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The writer that a plan gets, and why, in words that follow its name."""

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

    Without ranges no JVM starts if delta-rs can commit: a new table may have a transform's columns,
    known only with Spark, and an old one features that delta-rs lacks. `look` opens the table,
    `columns` returns those of the tasks' rows; both are called only where they decide, and may
    raise. Raises NotOurTable, SettingsError for an impossible writer of the conf.
    """
    if plan.ranges:
        return _of_rows(plan, settings, look, columns)
    needs_spark = (
        settings.transform.dataframe is not None if plan.table_id is None else _is_unknown(look())
    )
    if needs_spark:
        return Chosen(SparkWriter(settings.table.compression), "delta-rs cannot make this commit")
    return Chosen(EmptyCommit(columns()), "there are no rows")


def _is_unknown(table: DeltaTable | None) -> bool:
    return table is not None and bool(not_by_delta_rs(table))


def _of_rows(
    plan: Plan,
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
) -> Chosen:
    wanted, codec = settings.table.writer, settings.table.compression
    if wanted is WriterName.SPARK:
        return Chosen(SparkWriter(codec), "table.writer says so")
    if plan.kind is PlanKind.REPLAY:
        return Chosen(
            SparkWriter(codec), "the plan puts rows in the place of others, which it alone can"
        )
    refusal = error_of_arrow_writer(settings, look, columns, is_new=plan.table_id is None)
    if refusal is None:
        table, made = settings.table, columns() if settings.transform.record_batch else None
        arrow = ArrowWriter(
            settings.source.is_physical,
            codec or DEFAULT_CODEC,
            table.target_file_bytes,
            table.row_group_bytes,
            table.write_buffer_bytes,
            gives_way=wanted is WriterName.AUTO,
            made=made,
        )
        return Chosen(arrow, f"table.writer is {wanted.value}")
    if wanted is WriterName.ARROW:
        raise refusal
    return Chosen(SparkWriter(codec), f"table.writer is auto. {refusal.message}")


def error_of_arrow_writer(
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
    *,
    is_new: bool,
) -> EtlError | None:
    """Return the error why tasks cannot write the files; None if they can. The table is checked
    last. `is_new`: it does not exist yet; `columns` as in `choose_writer`.
    """
    where = {
        "path": settings.table.path,
        "key": "table.writer",
        "action": "Set table.writer: spark, or auto, which uses spark where needed",
    }
    made = (
        {field.name: str(field.type) for field in columns()}
        if settings.transform.record_batch
        else None
    )
    why = why_not_arrow(settings, is_new=is_new, made=made)
    if why:
        return SettingsError(f"The arrow writer cannot be: {why}", **where)
    table = None if is_new else look()
    why = unfit_for_arrow(table) if table is not None else None
    return (
        NotOurTable(f"The arrow writer cannot append to this table: {why}", **where)
        if why
        else None
    )


def append(load: Load, plan: Plan, to: Destination) -> Outcome:
    """Append the rows as plan `plan.number`, at most once, and return what the table holds then.

    If the table holds that number already the writer is not called. If the plan is not in the table
    afterwards, the writer's exception is raised: an executor's EtlError, TableUnreachable for an
    unwritable place, or unchanged. Without an exception the result is NOT_APPLIED: the table was
    replaced meanwhile.
    """
    metadata = render_commit_metadata(plan, to.app_id, to.run_id)
    table, failure = open_table(to.path), None
    if not holds(plan, table, to.app_id):
        if load.writer.writes_files:
            announce_first_write(to.path)
        try:
            load.writer.commit(plan, load.rows, table, metadata, to)
        except Exception as error:  # whatever it is, the table decides first: the commit may have happened before it
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
    if plan.table_id is None and outcome.table and outcome.table.transaction_version is None:
        raise another_table(plan, outcome.table.id, to.path) from behind(failure, to.path)
    if failure is None:
        return outcome
    raise translate(failure, to.path) from behind(failure, to.path)
