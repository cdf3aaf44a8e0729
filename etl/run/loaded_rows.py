"""What has been loaded already, by the table's own commits and rows?

What a replay asks besides: what the pipeline loaded, where times lie in logs, and which rows
stand in the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.decide.loaded_intervals import Span, spans_of
from etl.io.delta.table import check_shape
from etl.io.zookeeper import ledger_records
from etl.io.zookeeper.ledger import PlanLedger
from etl.model.columns import arrow_schema
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, RangeResult
from etl.model.snapshot import Coverage, Snapshot
from etl.run.context import now_ms
from etl.run.discovery import Discovery
from etl.run.formats import format_rows
from etl.run.recount import count_again
from etl.run.rows import read_rows
from etl.run.transform import translating_transform_errors
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.io.delta.recover_results import Recount


GAPS_TOLD = 1_000_000
"""Of each range; two numbers each, in memory only."""


@dataclass(frozen=True, slots=True)
class PutInto:
    """What became of a replay into another table; counts of rows."""

    stood: int
    """That were there before."""
    there: int
    """That are there now, once each."""
    read: int | None
    """That were read; None where a transform did not read all of them."""


class LoadedRows:
    """The part of a live world that looks back; see `world.World` for what each is asked."""

    settings: Settings
    ledger: PlanLedger
    _discovery: Discovery

    def spark(self) -> SparkSession:
        """The session of this run."""
        raise NotImplementedError

    def rows_of_today(self, plan: Plan) -> Recount:
        """What the table of today holds of the plan's ranges, whoever put it there."""
        return count_again(plan, None, self.settings)

    def receipts_of_today(self, plan: Plan) -> Sequence[RangeResult] | None:
        """See `world.World`."""
        counted = count_again(plan, None, self.settings, gaps_max=GAPS_TOLD)
        return None if counted.uncounted else counted.receipts

    def loaded(self, transaction_version: int | None = None) -> Coverage:
        """See `world.World`."""
        return ledger_records.read_all_coverage(self.ledger, transaction_version)

    def first_at(
        self, moments: Collection[tuple[BrokerPartition, int]]
    ) -> Mapping[tuple[BrokerPartition, int], int]:
        """See `world.World`. One request to each broker for each moment. Raises SettingsError where
        a log cannot be searched.
        """
        found: dict[tuple[BrokerPartition, int], int] = {}
        with self._discovery.open_cluster() as cluster:
            for moment in sorted({moment for _, moment in moments}):
                asked = {log: moment for log, at in moments if at == moment}
                offsets = cluster.offsets_at(
                    asked, wait_for_leader_s=self.settings.source.wait_for_leader_s
                )
                found |= {(log, moment): offset for log, offset in offsets.items()}
        return found

    def tidy(self) -> None:
        """See `world.World`."""
        ledger_records.prune(self.ledger)

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """See `world.World`."""
        return self._discovery.creations_of(topics)

    def rows_there(self, spans: Sequence[Span]) -> Mapping[BrokerPartition, int]:
        """See `world.World`. Starts Spark."""
        from etl.io.delta.scan import replaceable, rows_there

        replaceable(self.settings.table.path)
        return rows_there(self.spark(), self.settings.table.path, spans)

    def put_into(self, plan: Plan, snapshot: Snapshot, into: Settings, metadata: str) -> PutInto:
        """Read a replay's ranges and replace its rows in the table of `into`, which is none that a
        pipeline loads. Starts Spark.

        Raises NotOurTable where rows do not fit it, and whatever reading and an append raise.
        """
        from etl.io.delta.append import replace_in
        from etl.io.delta.exclusive_create import require_exclusive_create
        from etl.io.delta.scan import rows_there
        from etl.io.spark.catalog import enter_store

        require_exclusive_create(into.table.path)
        spark, table = self.spark(), into.table
        enter_store(spark, table.path)
        if not into.either_transform:
            check_shape(
                table.path, arrow_schema(physical=into.source.is_physical), table.partition_by
            )
        stood = rows_there(spark, table.path, spans_of(plan))
        rows, reading = read_rows(
            spark, plan, snapshot, into, self._discovery.bootstrap(), now_ms=now_ms()
        )
        try:
            with translating_transform_errors(into.transform):
                replace_in(table.path, plan, format_rows(rows, into), metadata, table.partition_by)
        finally:
            reading.port.close()
        there = sum(rows_there(spark, table.path, spans_of(plan)).values())
        found = reading.receipts.in_order(len(plan.ranges)) if reading.receipts else None
        return PutInto(
            sum(stood.values()),
            there,
            None if found is None else sum(receipt.rows or 0 for receipt in found),
        )
