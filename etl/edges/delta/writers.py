"""How the rows of a plan come into the table: what a writer is, which one a plan gets, and one append, whichever writer makes it.

To add a writer:

1. a file of its own beside this one, with a class that is a `Writer`: `commit` makes ONE Delta commit that carries the application id,
   the plan's number and the metadata it is given, and says nothing of the outcome;
2. a line in `choose_writer`, which decides by plan, table and settings alone;
3. where it takes no rows of Spark, `takes_spark` says so; rows are read by Spark's tasks alone today, so `run.live_world` then has to find
   somebody else who reads the plan's tasks and keeps their receipts.

It need not look before it commits, nor read the table afterwards, nor judge its own exceptions: `append` does so for all of them.
`tests/spark/test_delta.py` has the laws that every writer keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from etl.edges.delta.empty_commit import EmptyCommit
from etl.edges.delta.failures import translate
from etl.edges.delta.others import IsOurs, none_of_ours
from etl.edges.delta.outcome import Outcome, Result, another_table, holds, read_back
from etl.edges.delta.path import announce_first_write, open_table
from etl.edges.delta.spark_writer import SparkWriter
from etl.model.ledger import Acknowledgement
from etl.model.plans import Plan
from etl.model.raw_table import arrow_schema
from etl.protocol.zookeeper.commit_metadata import render_commit_metadata
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class Destination:
    """The table that a plan is appended to, in whose name, and what is known of it; the fields as in `state.read_table`."""

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
    def takes_spark(self) -> bool:
        """Whether its rows are a DataFrame of Spark."""

    @property
    def writes_files(self) -> bool:
        """Whether files lie in the table's folder before its commit names them; then a first write is announced."""

    def commit(self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination) -> None:
        """One commit with the rows, the transaction (`to.app_id`, `plan.number`) and `metadata`; without a table the one that makes it.

        `table` is the very object that was looked at: it does not hold the number. Raises whatever it likes; the table decides.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of a plan, not read yet, and the writer that appends them; a plan without ranges may have none."""

    writer: Writer
    rows: Any = None


def choose_writer(plan: Plan, settings: Settings, unknown_features: Callable[[], Collection[str]]) -> Writer:
    """The writer that appends this plan.

    Without ranges no JVM is started where delta-rs can commit: a new table may have a transform's columns, which nobody knows without
    Spark, and an old one features that delta-rs does not know. `unknown_features` names those, and is asked only there: it opens the table.
    """
    if plan.ranges:
        return SparkWriter()
    needs_spark = settings.transform is not None if plan.table_id is None else bool(unknown_features())
    return SparkWriter() if needs_spark else EmptyCommit(arrow_schema(physical=settings.source.is_physical))


def append(load: Load, plan: Plan, to: Destination) -> Outcome:
    """Append the rows as plan `plan.number`, at most once, and say what the table holds afterwards.

    Where the table already holds that number the writer is not even asked. When the plan is not in the table afterwards, what the
    writer raised is raised: an executor's own EtlError, TableUnreachable for a place that cannot be written, anything else as it is.
    Without an exception and without the plan the outcome is NOT_APPLIED: somebody replaced the table meanwhile.
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
        plan, app_id=to.app_id, path=to.path, known=to.known, is_ours=to.is_ours, acknowledgement=to.acknowledgement)
    if outcome.result is not Result.NOT_APPLIED:
        return outcome
    if plan.table_id is None and outcome.table and outcome.table.transaction_version is None:
        raise another_table(plan, outcome.table.id, to.path) from failure
    if failure is None:
        return outcome
    raise translate(failure, to.path) from failure
