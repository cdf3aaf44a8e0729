"""Rows of a plan into the table by files that its tasks wrote, without the JVM: what came is
checked, then one commit by delta-rs.

Every reader believes file entries blindly, so nothing is committed that was not looked at: each
range of the plan came once, each file is there with its size, and the columns are the table's own.
Which tables get files of ours at all is decided in `features`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from etl.decide.table_rules import refuse_other_columns
from etl.decide.table_storage import names_of_write
from etl.edges.delta.failures import unreachable
from etl.edges.delta.features import unfit_for_arrow
from etl.edges.delta.log import parse_shape
from etl.edges.delta.outcome import holds
from etl.edges.delta.path import open_table, rust_path
from etl.edges.delta.shape import shape_of, with_event_date_field
from etl.edges.delta.store_failures import behind
from etl.edges.delta.stores import options_of
from etl.edges.delta.table_folder import table_folder
from etl.edges.delta.taking import Takes
from etl.errors import NotOurTable, TableUnreachable
from etl.ledger.plan_document import with_receipts
from etl.model.columns import arrow_schema
from etl.model.plans import (
    DEFAULT_CODEC,
    FILE_BYTES,
    HELD_BYTES,
    ROW_GROUP_BYTES,
    Codec,
    DataFile,
    FilesWanted,
    Plan,
    Written,
)

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

    from etl.edges.delta.writers import Destination


class FilesOfTasks(Protocol):
    """The rows of a plan, not read yet, by tasks that write files themselves."""

    def write(self, wanted: FilesWanted) -> Sequence[Written]:
        """Read all and write it; what each task gave back. Raises whatever it likes."""


@dataclass(frozen=True, slots=True)
class ArrowWriter:
    """The writer of rows that tasks write with pyarrow."""

    physical: bool = False
    """The rows are of physical logs (`BrokerPartition.is_physical`)."""
    codec: Codec = DEFAULT_CODEC
    file_bytes: int = FILE_BYTES
    """See `FilesWanted`, also for those that follow."""
    row_group_bytes: int = ROW_GROUP_BYTES
    held_bytes: int = HELD_BYTES
    gives_way: bool = False
    """The conf leaves the choice to us (`auto`): the next run takes Spark's writer where this one
    cannot be.
    """
    made: pyarrow.Schema | None = None
    """The columns of the rows, where a transform made them; None: those of `columns`."""

    @property
    def name(self) -> str:
        """As reports call it."""
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
        """See `Writer`. The receipts are in hand before the commit, and travel with it.

        Raises TableUnreachable for files that are not there as their tasks say, NotOurTable for a
        table that became unfit meanwhile.
        """
        wanted = self._wanted(table, to)
        with contextlib.ExitStack() as without_commit:
            without_commit.callback(take_away, wanted)
            written = rows.write(wanted)
            refuse_other_ranges(plan, written)
            refuse_other_rows(written)
            files = [file for one in written for file in one.files]
            refuse_lost_files(wanted.root, files)
            if (
                table is not None
            ):  # what is looked at is the table of now: what somebody changed while tasks wrote need be no conflict
                table = open_table(to.path)
                if holds(plan, table, to.app_id) or table is None:
                    return
                self._refuse_unfit(table, to)
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
                with_receipts(metadata, plan, in_order) if in_order else metadata,
                to,
            )
        except OSError as error:  # delta-rs raises it for all that a file system or a store says
            raise unreachable(error, to.path, "written") from behind(error, to.path)

    def _refuse_unfit(self, table: DeltaTable, to: Destination) -> None:
        """Tasks wrote for a table that takes such files no more. Raises NotOurTable, or
        TableUnreachable where another run is enough.
        """
        try:
            self._wanted(table, to)
        except NotOurTable as unfit:
            if not self.gives_way:
                raise
            check = "nothing: nothing was committed, and the next run takes Spark's writer, under which it may be"
            what = f"the table became unfit while tasks wrote its files: {unfit.what}"
            raise TableUnreachable(what, path=to.path, check=check) from unfit

    def _wanted(self, table: DeltaTable | None, to: Destination) -> FilesWanted:
        columns = self._columns(to)
        if table is not None:
            why = unfit_for_arrow(table)
            if why:
                raise NotOurTable(
                    f"the arrow writer cannot append to this table: {why}",
                    path=to.path,
                    check="table.writer: spark",
                )
            _refuse_another_shape(table, columns, to)
        return FilesWanted(
            rust_path(to.path),
            tuple(columns.names),
            tuple(to.partition_by),
            self.physical,
            self.codec,
            self.file_bytes,
            self.row_group_bytes,
            self.held_bytes,
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
        """delta-rs judges a conflict by the version of the table object that it is given: number
        and id were looked at on that very one.

        Where there was no table the commit is the one that makes it, and is never tried as a later
        version.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import create_table_with_add_actions

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        # under isolation level WriteSerializable a DELETE, UPDATE or MERGE of others passes a
        # commit that says isBlindAppend; Spark's appends say it, and of its own accord delta-rs
        # does not
        said: dict[str, Any] = {
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
                commit_properties=CommitProperties(**said, max_commit_retries=0),
            )
        else:
            kept = table.metadata().partition_columns
            table.create_write_transaction(
                added,
                "append",
                table.schema(),
                partition_by=kept,
                commit_properties=CommitProperties(**said),
            )


def take_away(wanted: FilesWanted) -> None:
    """All files of a write that no commit names, whoever wrote them and how far they came: where
    space ran out, a retry needs it.

    What the folder refuses now stays for VACUUM.
    """
    with contextlib.suppress(OSError):
        folder = table_folder(wanted.root)
        for path in folder.named(names_of_write(wanted.write_id)):
            with contextlib.suppress(OSError):
                folder.remove(path)


def refuse_other_ranges(plan: Plan, written: Sequence[Written]) -> None:
    """Raises TableUnreachable unless each range of the plan came back once."""
    came = Counter(i for one in written for i in one.indices)
    wrong = [i for i in range(len(plan.ranges)) if came[i] != 1] + sorted(
        came.keys() - set(range(len(plan.ranges)))
    )
    if wrong:
        what = f"range {wrong[0]} of plan {plan.number} came back {came[wrong[0]]} times from the tasks"
        raise TableUnreachable(
            what,
            check="this is a bug; nothing was committed, the next run appends the same plan again",
        )


def refuse_other_rows(written: Sequence[Written]) -> None:
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
        what = f"the files of the tasks have {wrote} rows of the {read} that were read, or made of what was read"
        raise TableUnreachable(
            what,
            check="this is a bug; nothing was committed, the next run appends the same plan again",
        )


def refuse_lost_files(root: str, files: Sequence[DataFile]) -> None:
    """Raises TableUnreachable unless each file is there, once, with the size that its task wrote."""
    for file, size in zip(
        files, table_folder(root).sizes([file.path for file in files]), strict=True
    ):
        if size != file.size:
            found = "is not there" if size is None else f"has {size} bytes of {file.size}"
            check = (
                "that the folder is the same one on every executor's host, and who removed files meanwhile (VACUUM takes what no commit "
                "names once it is as old as the retention asked for); the next run appends the same plan again"
            )
            raise TableUnreachable(
                f"a file that a task wrote {found}", file=file.path, path=root, check=check
            )


def _refuse_another_shape(table: DeltaTable, columns: Any, to: Destination) -> None:
    """The table may be another one than `check_shape` saw when the run began, or than tasks wrote
    for. Raises NotOurTable.
    """
    from deltalake import Schema

    found, wanted = (
        shape_of(table),
        parse_shape("", Schema.from_arrow(columns).to_json(), to.partition_by),
    )
    refuse_other_columns(to.path, wanted.columns, found.columns)
    if found.partition_by != tuple(to.partition_by):
        what = f"the table is partitioned by {', '.join(found.partition_by) or 'nothing'}"
        raise NotOurTable(what, path=to.path, check="who changed the table during the run")


def _action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    # the name is plain (`table_storage.name_of_file`), so there is nothing in it that the log has to
    # escape
    return AddAction(
        file.path, file.size, dict(file.partition_values), file.modified_at_ms, True, file.stats
    )
