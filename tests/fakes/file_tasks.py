"""Plans and the files of their tasks, without brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from etl.io.delta.data_files import DataFiles
from etl.ledger.plan_document import with_id
from etl.model.columns import arrow_schema
from etl.model.partitions import TopicPartition
from etl.model.plans import FileOptions, OffsetRange, Plan, RangeResult, Written
from tests.builders import plain_plan

APP = "offset-range-etl/cluster/group/clicks"
LOG, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
READ = (RangeResult(10, 700, control_records=1, gaps=((3, 4),)), RangeResult(5, 300))


def plan_of(number: int = 1, **changes: Any) -> Plan:
    ranges = (OffsetRange(LOG, number * 10 - 10, number * 10), OffsetRange(OTHER, 0, 5))
    return with_id(
        plain_plan(
            number,
            ranges=ranges,
            loaded_until={r.partition: r.until_offset for r in ranges},
            **changes,
        )
    )


class Tasks:
    """One task and file per range; `spoil` changes results, `meanwhile` runs meanwhile."""

    def __init__(
        self,
        plan: Plan,
        *,
        spoil: Callable[[list[Written]], Sequence[Written]] = lambda found: found,
        meanwhile: Callable[[], Any] = lambda: None,
        first_micros: int = 0,
    ) -> None:
        self._plan, self._spoil, self._meanwhile, self._first_micros = (
            plan,
            spoil,
            meanwhile,
            first_micros,
        )
        self.wanted: FileOptions | None = None

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        self.wanted = wanted
        found = [
            Written((i,), self._files(wanted, i, r), {i: READ[i]})
            for i, r in enumerate(self._plan.ranges)
        ]
        self._meanwhile()
        return self._spoil(found)

    def _files(self, wanted: FileOptions, task: int, r: OffsetRange) -> Any:
        files, many = DataFiles(wanted, task=task), r.size
        values = {
            "topic": [r.partition.topic] * many,
            "partition": [r.partition.partition] * many,
            "offset": list(range(r.from_offset, r.until_offset)),
            "timestamp": list(range(self._first_micros, self._first_micros + many)),
            "incarnation": [0] * many,
        }
        columns = [
            pa.array(values.get(field.name, [None] * many), field.type) for field in arrow_schema()
        ]
        files.take(pa.record_batch(columns, schema=arrow_schema()))
        return files.end()
