"""Counting the messages of physical logs that really lie in a table, by reading its rows, for
`entries`.

Owns those queries. Logs whose rows lie there as they were read are done with one look at them
(`scan_runs`). Of the others Spark counts the rows of each entry, numbers the entry by the edges
that the ledger knows, and adds up what has one number. What comes to the driver is as many rows as
the ledger has intervals, however many entries there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy

from etl.audit.audit import AuditedLog, Expected, LogFindings, Stretch, audit_entries, edges_of
from etl.edges.delta.scan import (
    Intervals,
    first_of_no_log,
    read_keys,
    rows_are_read,
    without_intervals,
)
from etl.edges.delta.scan_runs import LOG, Log, ordered_stretches
from etl.model.partitions import BrokerPartition

if TYPE_CHECKING:
    from typing import Any

    import pyarrow
    from pyspark.sql import DataFrame, Row, SparkSession

_ENTRY = (*LOG, "offset")
_TYPES = {"topic": "string"}
_COUNTS = {
    "rows": "sum",
    "messages": "sum",
    "holes": "sum",
    "offset": "min",
    "first_hole": "min",
    "first_double": "min",
}
_DOUBLES_SHOWN = 5


@dataclass(slots=True)
class EntryScan:
    """One look at all rows of a table; `delta_version` fixes the version to read. Raises
    TableUnreachable, SettingsError.
    """

    spark: SparkSession
    path: str
    delta_version: int | None = None
    rows_of_no_log: int = 0
    """Rows that lack something of their key, or with numbers that no log has; known when `findings`
    has come to its end.
    """
    before: Intervals = field(default_factory=dict)
    """Offsets [from, until) whose rows are from before plan 1: they are left out."""

    def findings(self, expected: Mapping[AuditedLog, Expected]) -> Iterator[LogFindings]:
        """What is there, compared with what should be. Raises as `audit_entries`, too."""
        edges = {audited: edges_of(audited, one) for audited, one in expected.items()}
        return audit_entries(expected, self.stretches(edges))

    def stretches(
        self, edges: Mapping[AuditedLog, Sequence[int]]
    ) -> Iterator[tuple[AuditedLog, Stretch]]:
        """The rows that the table holds, added up between the edges of each log, those of a log
        together and ordered by edge.
        """
        with rows_are_read(self.spark, self.path):
            keys = without_intervals(_keys(self.spark, self.path, self.delta_version), self.before)
            to_count = list[AuditedLog]()
            found = ordered_stretches(
                keys, {_log_of(audited): some for audited, some in edges.items()}
            )
            for audited, rows in groupby(found.toLocalIterator(), key=_audited):
                several = list(rows)
                if audited is None:
                    self.rows_of_no_log = several[0]["rows"]
                elif all(row["is_ordered"] for row in several):
                    yield from (
                        (audited, Stretch(row["number"], row["rows"], row["rows"], row["offset"]))
                        for row in several
                    )
                else:
                    to_count.append(audited)
            if to_count:
                yield from self._counted(
                    keys, {audited: edges.get(audited, ()) for audited in to_count}
                )

    def _counted(
        self, keys: DataFrame, edges: Mapping[AuditedLog, Sequence[int]]
    ) -> Iterator[tuple[AuditedLog, Stretch]]:
        """The same of the logs of `edges` alone, message by message."""
        for row in _stretches(keys, edges).toLocalIterator():
            audited = _audited(row)
            if audited is not None:
                yield (
                    audited,
                    Stretch(
                        row["number"],
                        row["rows"],
                        row["messages"],
                        row["offset"],
                        row["holes"],
                        row["first_hole"],
                        row["first_double"],
                    ),
                )

    def doubles(self, found: LogFindings) -> list[tuple[tuple[int, ...], int]]:
        """Entry and index of the first messages of a log that have more than one row, each with its
        number of rows.
        """
        from pyspark.sql import functions as f

        if not found.double_places:
            return []
        wanted = {
            **found.audited.log.place,
            "log_epoch": found.audited.log_epoch,
            "offset": found.double_places[0],
        }
        with rows_are_read(self.spark, self.path):
            rows = without_intervals(
                read_keys(self.spark, self.path, self.delta_version, physical=True), self.before
            )
            for name, value in wanted.items():
                rows = rows.where(f.col(name) == value)
            counted = (
                rows.groupBy("message_index").agg(f.count(f.lit(1)).alias("rows")).where("rows > 1")
            )
            first = counted.orderBy("message_index").limit(_DOUBLES_SHOWN).collect()
            return [((found.double_places[0], row["message_index"]), row["rows"]) for row in first]

    def doubled_span(self, found: LogFindings) -> tuple[int, int] | None:
        """None: where the last doubled entry ends its rows do not say, and a replay needs that."""
        return None

    def first_of_no_log(self) -> list[dict[str, Any]]:
        """What should name the record of some rows of no log."""
        return first_of_no_log(self.spark, self.path, self.delta_version, physical=True)


def _audited(row: Row) -> AuditedLog | None:
    """Whose rows were added up; None: rows of no log."""
    if row["topic"] is None:
        return None
    return AuditedLog(
        BrokerPartition(row["topic"], row["partition"], row["broker_id"]), row["log_epoch"]
    )


def _log_of(audited: AuditedLog) -> Log:
    log = audited.log
    return log.topic, log.broker_id or 0, log.partition, audited.log_epoch


def _keys(spark: SparkSession, path: str, delta_version: int | None) -> DataFrame:
    """The key of every row, in the same types whatever the table has."""
    from pyspark.sql import functions as f

    keys = read_keys(spark, path, delta_version, physical=True)
    return keys.select(
        [
            f.col(name).cast(_TYPES.get(name, "bigint")).alias(name)
            for name in (*_ENTRY, "message_index")
        ]
    )


def _stretches(keys: DataFrame, edges: Mapping[AuditedLog, Sequence[int]]) -> DataFrame:
    """One row for each log of `edges` and number."""
    from pyspark.sql import functions as f

    logs = list(edges)
    schema = ", ".join(f"{name} {_TYPES.get(name, 'bigint')}" for name in (*LOG, "log"))
    named = keys.sparkSession.createDataFrame(
        [(*_log_of(audited), at) for at, audited in enumerate(logs)], schema
    )
    entries = _entries(keys.join(f.broadcast(named), list(LOG), "inner"))
    columns = {**dict.fromkeys((*LOG, "number"), "first"), **_COUNTS}
    numbered = entries.mapInArrow(
        Numbering([numpy.array(edges[log], numpy.int64) for log in logs]),
        ", ".join(f"{name} {_TYPES.get(name, 'bigint')}" for name in columns),
    )
    together = {"sum": f.sum, "min": f.min}
    added = [together[how](name).alias(name) for name, how in _COUNTS.items()]
    return numbered.groupBy(*LOG, "number").agg(*added).orderBy(*LOG, "number")


def _entries(keys: DataFrame) -> DataFrame:
    """One row for each entry: its rows, its messages, and the index of the last of them. `log` is
    the place of its log.
    """
    from pyspark.sql import functions as f

    return keys.groupBy(*_ENTRY, "log").agg(
        f.count(f.lit(1)).alias("rows"),
        f.countDistinct("message_index").alias("messages"),
        f.max("message_index").alias("last_index"),
    )


class Numbering:
    """Gives entries the number of the stretch that they begin in, and adds up those of one log and
    number in each Arrow batch.

    `edges` are those of each log, by its place in `log`; a log that is in none has one stretch, 0.
    """

    def __init__(self, edges: Sequence[numpy.ndarray[Any, numpy.dtype[numpy.int64]]]) -> None:
        self._edges = edges

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from self._added(batch)

    def _added(self, batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyarrow import compute

        offset, rows, messages = (batch.column(name) for name in ("offset", "rows", "messages"))
        with_hole = compute.greater(compute.add(batch.column("last_index"), 1), messages)
        double = compute.greater(rows, messages)
        nothing = pyarrow.scalar(None, pyarrow.int64())
        table = pyarrow.table(
            {
                **{name: batch.column(name) for name in LOG},
                "number": self._numbers(batch),
                "rows": rows,
                "messages": messages,
                "holes": compute.cast(with_hole, pyarrow.int64()),
                "offset": offset,
                "first_hole": compute.if_else(with_hole, offset, nothing),
                "first_double": compute.if_else(double, offset, nothing),
            }
        )
        added = table.group_by([*LOG, "number"]).aggregate(list(_COUNTS.items()))
        named = {
            **{name: added[name] for name in (*LOG, "number")},
            **{name: added[f"{name}_{how}"] for name, how in _COUNTS.items()},
        }
        yield from pyarrow.table(named).to_batches()

    def _numbers(self, batch: pyarrow.RecordBatch) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        logs = batch.column("log").fill_null(-1).to_numpy(zero_copy_only=False)
        offsets = batch.column("offset").fill_null(0).to_numpy(zero_copy_only=False)
        numbers = numpy.zeros(len(logs), numpy.int64)
        order = numpy.argsort(logs, kind="stable")
        found, begins = numpy.unique(logs[order], return_index=True)
        for log, mine in zip(found.tolist(), numpy.split(order, begins[1:]), strict=True):
            if log >= 0:
                numbers[mine] = numpy.searchsorted(self._edges[log], offsets[mine], side="right")
        return numbers
