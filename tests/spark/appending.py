"""Appends of plans as a run makes them, with the writer that a test names."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow

from etl.io.delta.append import (
    ArrowWriter,
    Destination,
    EmptyCommit,
    Load,
    SparkWriter,
    Takes,
    Writer,
    append,
)
from etl.io.delta.data_files import DataFiles
from etl.io.delta.loaded_plans import Outcome
from etl.model.columns import arrow_schema
from etl.model.plans import FileOptions, Plan, RangeResult, Written

SPARK = SparkWriter()
ARROW = ArrowWriter()
WRITERS: Mapping[str, Writer] = {"spark": SPARK, "arrow": ARROW}
"""By the name in `table.writer`: the laws of `test_delta` hold for each."""


def append_rows(rows: Any, plan: Plan, *, by: Writer = SPARK, **destination: Any) -> Outcome:
    given = FilesOfFrame(rows, plan) if by.takes is Takes.FILES else rows
    return append(Load(by, given), plan, Destination(**destination))


class FilesOfFrame:
    """A DataFrame's rows as files that Spark's tasks write."""

    def __init__(self, rows: Any, plan: Plan) -> None:
        self._rows, self._plan = rows, plan

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        """See `FilesOfTasks`. All rows count as the first task's."""

        def written(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            files = DataFiles(wanted)
            for batch in batches:
                files.take(batch)
            yield pyarrow.record_batch(
                {"files": pyarrow.array([pickle.dumps(files.end())], pyarrow.binary())}
            )

        found = [
            pickle.loads(row.files)
            for row in self._rows.mapInArrow(written, "files binary").collect()
        ]
        ranges = tuple(range(len(self._plan.ranges)))
        rows = sum(file.rows for files in found for file in files)
        results = {
            i: RangeResult(0 if i else rows, 7 * r.size) for i, r in enumerate(self._plan.ranges)
        }
        return [
            Written(ranges if i == 0 else (), files, results if i == 0 else {})
            for i, files in enumerate(found)
        ]


def append_nothing(plan: Plan, **destination: Any) -> Outcome:
    """The empty commit of a plan without ranges."""
    return append(Load(EmptyCommit(arrow_schema())), plan, Destination(**destination))
