"""Which offsets were loaded already, by the commits and rows of the table?

Lives here: the result of a plan in the table, recorded by its run or recounted from its rows; the
ledger restored from the table's commits, each of which contains its plan; what replays and
backfills need: loaded intervals, stored plans, rows in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from etl.decide.loaded_intervals import Span, spans_of
from etl.decide.offsets import starts_of
from etl.decide.plan import may_be_transformed
from etl.errors import TableUnreachable
from etl.io.delta.loaded_plans import Outcome, commits_of_ours
from etl.io.delta.table_shape import EVENT_DATE, check_shape
from etl.io.zookeeper import ledger_side_documents
from etl.io.zookeeper.ledger import PlanLedger
from etl.ledger.plan_document import parse_plan, results_of
from etl.model.columns import arrow_schema
from etl.model.partitions import TopicPartition
from etl.model.plans import GAPS_KEPT, CommitResult, Plan, PlanKind, RangeResult
from etl.model.snapshot import CommitMetadata, Ledger, LoadedIntervals, Snapshot
from etl.run.discovery import Discovery
from etl.run.observe import observe_table
from etl.run.read_rows import format_rows, read_rows, translating_transform_errors
from etl.run.service_interfaces import now_ms
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.io.delta.recover_results import Recount
    from etl.run.read_rows import Following


def applied_in_run(
    outcome: Outcome, plan: Plan, reading: Following | None, run_id: str, settings: Settings
) -> CommitResult:
    """Return the result of `plan`. This run may have read its rows itself."""
    # This run's results count only if the commit is its own: log compaction between two reads
    # changes the records.
    is_own_commit = outcome.metadata is not None and outcome.metadata.run_id == run_id
    results = None
    if is_own_commit and reading and reading.plan_id == plan.id and reading.results:
        results = reading.results.in_order(len(plan.ranges))
    return applied_by(outcome, plan, results, settings)


def applied_by(
    outcome: Outcome, plan: Plan, results: tuple[RangeResult, ...] | None, settings: Settings
) -> CommitResult:
    """Return the result of `plan`, which is in the table: from its commit, else `results`, else as
    counted in the table's files.
    """
    if outcome.table is None:
        raise TableUnreachable(
            f"The table with plan {plan.number} does not exist any more", path=settings.table.path
        )
    version = outcome.delta_version
    if version is None:
        version = outcome.table.version
    run_id = outcome.metadata.run_id if outcome.metadata else None
    undated = _undated(outcome.delta_version, settings)
    results = _with_requests(results_in_commit(outcome.metadata, plan), results) or results
    if results is not None:
        results, written = _with_rows_written(results, plan, outcome.delta_version, settings)
        return CommitResult(
            plan.number,
            plan.id,
            version,
            outcome.table.id,
            results,
            run_id,
            undated=undated,
            written=written,
        )
    # Rows that cannot be counted (a transform changed the key columns, files are lost) have no row
    # count in the result. An error here would come back in every run.
    counted = recount_rows(plan, outcome.delta_version, settings)
    return CommitResult(
        plan.number,
        plan.id,
        version,
        outcome.table.id,
        counted.results,
        run_id,
        counted.uncounted,
        undated=undated,
    )


def _with_requests(
    in_commit: tuple[RangeResult, ...] | None, own: tuple[RangeResult, ...] | None
) -> tuple[RangeResult, ...] | None:
    """Return the commit's results with the tasks' request counts, which no commit contains."""
    if not in_commit or not own:
        return in_commit
    pairs = zip(in_commit, own, strict=True)
    return tuple(replace(result, requests=counted.requests) for result, counted in pairs)


def _with_rows_written(
    results: tuple[RangeResult, ...], plan: Plan, delta_version: int | None, settings: Settings
) -> tuple[tuple[RangeResult, ...], int | None]:
    """Return the results with the rows that a transform made of the records, and the rows in the
    files of the commit if they are another number.

    A batch transform counts the rows of each range. Behind a transform of DataFrames the files' own
    counts are known, and the rows of a range only if they are those of all records. The commit of a
    replay also rewrites rows of other offsets: the rows in its files are read.
    """
    if not settings.transform.function or not results or delta_version is None:
        return results, None
    from etl.io.delta.recover_results import recount_commit, rows_of_commit

    written = None
    if plan.kind is not PlanKind.REPLAY:
        written = rows_of_commit(settings.table.path, delta_version)
    if written == sum(result.rows or 0 for result in results):
        return results, None
    if settings.transform.record_batch:
        return results, written
    if written is not None:
        return tuple(map(_without_rows, results)), written
    counted = recount_commit(settings.table.path, delta_version, plan.ranges, plan.incarnations)
    if counted is None:
        return tuple(map(_without_rows, results)), None
    written = sum(result.rows or 0 for result in counted)
    if written == sum(result.rows or 0 for result in results):
        return results, None
    return tuple(map(_without_rows, results)), written


def _without_rows(result: RangeResult) -> RangeResult:
    """Return the result of a range with an unknown number of rows."""
    return replace(result, rows=None, records=result.records_read)


def results_in_commit(
    metadata: CommitMetadata | None, plan: Plan
) -> tuple[RangeResult, ...] | None:
    """Return the range results in the plan's commit; None if it has none."""
    if metadata is None or metadata.plan_id != plan.id:
        return None
    results = results_of(metadata)
    if results is None or len(results) != len(plan.ranges):
        return None
    return results


def recount_rows(
    plan: Plan, delta_version: int | None, settings: Settings, *, gaps_max: int = GAPS_KEPT
) -> Recount:
    """Count the plan's rows in the files of that commit; without one, in the current table."""
    from etl.io.delta.recover_results import recount

    is_transformed = may_be_transformed(plan, settings)
    return recount(
        settings.table.path,
        delta_version,
        plan.ranges,
        plan.incarnations,
        behind_transform=is_transformed,
        gaps_max=gaps_max,
    )


def _undated(delta_version: int | None, settings: Settings) -> int | None:
    if EVENT_DATE not in settings.table.partition_by or delta_version is None:
        return None
    from etl.io.delta.recover_results import rows_in_null_partition

    return rows_in_null_partition(settings.table.path, delta_version, EVENT_DATE)


GAPS_IN_MEMORY = 1_000_000
"""Gaps per range, two numbers each."""


@dataclass(frozen=True, slots=True)
class PutInto:
    """Result of a replay into another table, as row counts."""

    replaced_rows: int
    """Rows before."""
    there: int
    """Rows now, each once."""
    read: int | None
    """Rows read; None if a transform did not read all of them."""


class LoadedRowsOfTable:
    """`LoadedRows` by the ledger in ZooKeeper and the rows of the Delta table.

    `spark` returns the session of the run, started on the first call.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: PlanLedger,
        discovery: Discovery,
        spark: Callable[[], SparkSession],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._discovery = discovery
        self._spark = spark

    def intervals(self, transaction_version: int | None = None) -> LoadedIntervals:
        """See `LoadedRows`."""
        return ledger_side_documents.read_all_loaded_intervals(self._ledger, transaction_version)

    def stored_plans(self) -> tuple[tuple[Plan, bool], ...]:
        """See `LoadedRows`."""
        found = ledger_side_documents.read_plans_with_results(self._ledger)
        return tuple((plan, result is not None) for plan, result in found)

    def rows_in(self, spans: Sequence[Span]) -> Mapping[TopicPartition, int]:
        """See `LoadedRows`. Starts Spark only for tables that `rows_in_files` does not read."""
        from etl.io.delta.offsets_of_rows import replaceable, rows_in_files, rows_there

        path = self._settings.table.path
        replaceable(path)
        counted = rows_in_files(path, spans)
        if counted is None:
            counted = rows_there(self._spark(), path, spans)
        return counted

    def results_in_table(self, plan: Plan) -> Sequence[RangeResult] | None:
        """See `LoadedRows`."""
        counted = recount_rows(plan, None, self._settings, gaps_max=GAPS_IN_MEMORY)
        if counted.uncounted:
            return None
        return counted.results

    def recount(self, plan: Plan) -> Recount:
        """Return the rows of the plan's ranges in the current table, by any writer."""
        return recount_rows(plan, None, self._settings)

    def put_into(self, plan: Plan, snapshot: Snapshot, into: Settings, metadata: str) -> PutInto:
        """Read a replay's ranges and replace its rows in the table of `into`, which no pipeline
        loads.

        Starts Spark. Raises NotOurTable if rows do not fit, and what reading and an append raise.
        """
        from etl.io.delta.append import replace_in
        from etl.io.delta.exclusive_create_probe import require_exclusive_create
        from etl.io.delta.offsets_of_rows import rows_there
        from etl.io.spark.catalog import enter_store

        require_exclusive_create(into.table.path)
        spark, table = self._spark(), into.table
        enter_store(spark, table.path)
        if not into.transform.function:
            check_shape(
                table.path, arrow_schema(physical=into.source.is_physical), table.partition_by
            )
        before = rows_there(spark, table.path, spans_of(plan))
        rows, reading = read_rows(
            spark, plan, snapshot, into, self._discovery.bootstrap(), now_ms=now_ms()
        )
        try:
            with translating_transform_errors(into.transform.dataframe):
                replace_in(table.path, plan, format_rows(rows, into), metadata, table.partition_by)
        finally:
            reading.port.close()
        there = sum(rows_there(spark, table.path, spans_of(plan)).values())
        results = reading.results.in_order(len(plan.ranges)) if reading.results else None
        read = None
        if results is not None:
            read = sum(result.records_read or 0 for result in results)
        return PutInto(sum(before.values()), there, read)


def adopt_commits(plan: Plan, ledger: PlanLedger, settings: Settings, app_id: str) -> Ledger:
    """Write the plans after the newest common plan with a result into the ledger, oldest first.

    `plan` is that of the pipeline's newest commit. After a crash in between, the ledger is only
    behind.
    """
    ledger.store_uid(plan.origin.pipeline_id)
    unknown = []
    for metadata in commits_of_ours(settings.table.path, app_id):
        known = ledger.read_plan(metadata.number)
        if known and known.id == metadata.plan_id and ledger.read_record_of(known):
            break
        unknown.append(metadata)
    table = observe_table(settings, app_id, ledger.read_ledger())
    table_id = table.id if table else ""
    if unknown:
        _take_in_plans_before(unknown[-1], table_id, ledger, settings)
    for metadata in reversed(unknown):
        _adopt(metadata, table_id, ledger, settings)
    return ledger.read_ledger()


def _take_in_plans_before(
    metadata: CommitMetadata, table_id: str, ledger: PlanLedger, settings: Settings
) -> None:
    """Record that the table may have rows of plans before this one, if neither the ledger nor the
    table's log has these plans: no row of them is required, and their rows are no error.
    """
    before = metadata.number - 1
    if before <= ledger.read_loaded_intervals().through or ledger.read_plan(before):
        return
    plan = _plan_in(metadata, settings)
    ledger_side_documents.take_in(
        ledger,
        None,
        starts_of(plan),
        table_id=table_id,
        known=plan.loaded_until.keys(),
        lives=plan.incarnations,
    )


def _plan_in(metadata: CommitMetadata, settings: Settings) -> Plan:
    place = f"commit {metadata.delta_version} of {settings.table.path}"
    return parse_plan(metadata.document or b"", path=place)


def _adopt(metadata: CommitMetadata, table_id: str, ledger: PlanLedger, settings: Settings) -> None:
    from etl.io.delta.recover_results import Recount

    plan = _plan_in(metadata, settings)
    results = results_in_commit(metadata, plan)
    if results is not None:
        counted = Recount(results)
    else:
        counted = recount_rows(plan, metadata.delta_version, settings)
    applied = CommitResult(
        plan.number,
        plan.id,
        metadata.delta_version,
        table_id,
        counted.results,
        metadata.run_id,
        counted.uncounted,
    )
    ledger.adopt_plan(plan, applied)
