"""How the rows of a plan come into the table: what a writer is, which one a plan gets, and one
append, whichever writer makes it.

To add a writer:

1. a file of its own beside this one, with a class that is a `Writer`: `commit` makes ONE Delta
   commit that carries the application id,
   the plan's number and the metadata it is given, and says nothing of the outcome;
2. a line in `choose_writer`, which decides by plan, table and settings alone;
3. `takes` says as what it takes the rows; where that is something new, `run.live_world` has to find
   somebody who reads the plan's tasks so,
   and keeps their receipts.

It need not look before it commits, nor read the table afterwards, nor judge its own exceptions:
`append` does so for all of them. `tests/spark/test_delta.py` has the laws that every writer keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from etl.decide.plan import why_not_arrow
from etl.edges.delta.arrow_writer import ArrowWriter
from etl.edges.delta.empty_commit import EmptyCommit
from etl.edges.delta.failures import translate
from etl.edges.delta.features import not_by_delta_rs, unfit_for_arrow
from etl.edges.delta.others import IsOurs, none_of_ours
from etl.edges.delta.outcome import Outcome, Result, another_table, holds, read_back
from etl.edges.delta.path import announce_first_write, open_table
from etl.edges.delta.spark_writer import SparkWriter
from etl.edges.delta.store_failures import behind
from etl.edges.delta.taking import Takes
from etl.errors import EtlError, NotOurTable, SettingsError
from etl.ledger.plan_document import render_commit_metadata
from etl.model.plans import DEFAULT_CODEC, Plan, PlanKind
from etl.model.snapshot import Acknowledgement
from etl.settings.choices import WriterName
from etl.settings.sections import Settings

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class Destination:
    """The table that a plan is appended to, in whose name, and what is known of it; the fields as
    in `state.read_table`.
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
        """As reports call it."""

    @property
    def takes(self) -> Takes:
        """As what it takes the rows."""

    @property
    def writes_files(self) -> bool:
        """Whether files lie in the table's folder before its commit names them; then a first write
        is announced.
        """

    def commit(
        self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """One commit with the rows, the transaction (`to.app_id`, `plan.number`) and `metadata`;
        without a table the one that makes it.

        `table` is the very object that was looked at: it does not hold the number. Raises whatever
        it likes; the table decides.
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
    """The writer that appends this plan.

    Without ranges no JVM is started where delta-rs can commit: a new table may have a transform's
    columns, which nobody knows without Spark, and an old one features that delta-rs does not know.
    `look` opens the table, `columns` tells those of the rows that tasks give (of `columns`, or
    made by an Arrow transform); they are asked only where that decides, and may raise. Raises
    NotOurTable, SettingsError where the conf asks for a writer that cannot be.
    """
    if plan.ranges:
        return _of_rows(plan, settings, look, columns)
    needs_spark = settings.transform is not None if plan.table_id is None else _is_unknown(look())
    if needs_spark:
        return Chosen(SparkWriter(settings.table.codec), "delta-rs cannot make this commit")
    return Chosen(EmptyCommit(columns()), "there are no rows")


def _is_unknown(table: DeltaTable | None) -> bool:
    return table is not None and bool(not_by_delta_rs(table))


def _of_rows(
    plan: Plan,
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
) -> Chosen:
    wanted, codec = settings.table.writer, settings.table.codec
    if wanted is WriterName.SPARK:
        return Chosen(SparkWriter(codec), "table.writer says so")
    if plan.kind is PlanKind.REPLAY:
        return Chosen(
            SparkWriter(codec), "the plan puts rows in the place of others, which it alone can"
        )
    refusal = refusal_of_arrow(settings, look, columns, is_new=plan.table_id is None)
    if refusal is None:
        table, made = settings.table, columns() if settings.arrow_transform else None
        arrow = ArrowWriter(
            settings.source.is_physical,
            codec or DEFAULT_CODEC,
            table.target_file_bytes,
            table.row_group_bytes,
            table.held_bytes,
            gives_way=wanted is WriterName.AUTO,
            made=made,
        )
        return Chosen(arrow, f"table.writer is {wanted.value}")
    if wanted is WriterName.ARROW:
        raise refusal
    return Chosen(SparkWriter(codec), f"table.writer is auto, and {refusal.what}")


def refusal_of_arrow(
    settings: Settings,
    look: Callable[[], DeltaTable | None],
    columns: Callable[[], pyarrow.Schema],
    *,
    is_new: bool,
) -> EtlError | None:
    """Why tasks cannot write the files, as the error that says so; None where they can. What is a
    matter of the table is asked last.

    `is_new`: the table is not there yet; `columns` as in `choose_writer`.
    """
    where = {
        "path": settings.table.path,
        "key": "table.writer",
        "check": "table.writer: spark, or auto, which takes spark where it must",
    }
    made = (
        {field.name: str(field.type) for field in columns()} if settings.arrow_transform else None
    )
    why = why_not_arrow(settings, is_new=is_new, made=made)
    if why:
        return SettingsError(f"the arrow writer cannot be: {why}", **where)
    table = None if is_new else look()
    why = unfit_for_arrow(table) if table is not None else None
    return (
        NotOurTable(f"the arrow writer cannot append to this table: {why}", **where)
        if why
        else None
    )


def append(load: Load, plan: Plan, to: Destination) -> Outcome:
    """Append the rows as plan `plan.number`, at most once, and say what the table holds afterwards.

    Where the table already holds that number the writer is not even asked. When the plan is not in
    the table afterwards, what the writer raised is raised: an executor's own EtlError,
    TableUnreachable for a place that cannot be written, anything else as it is. Without an
    exception and without the plan the outcome is NOT_APPLIED: somebody replaced the table
    meanwhile.
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
