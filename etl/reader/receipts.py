"""The receipts of a read, on their way from the tasks to the driver."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from etl.model.plans import RangeResult

if TYPE_CHECKING:
    from pyspark import Accumulator


class ReceiptAccumulator:
    """The receipts of a read, by the ranges' indices in the plan. A range that is read twice has
    one.
    """

    def __init__(self, accumulator: Accumulator[dict[int, RangeResult]], merge: Merge) -> None:
        self._accumulator, self._merge = accumulator, merge

    @property
    def receipts(self) -> dict[int, RangeResult]:
        """What came back by now; complete when the job has succeeded."""
        return dict(self._accumulator.value)

    @property
    def last_came(self) -> float | None:
        """When the last of them came, by `time.monotonic`."""
        return self._merge.last_came

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """A receipt for each of `count` ranges, or None when some are missing: the job failed, or
        Delta skipped it.
        """
        found = self.receipts
        return (
            tuple(found[i] for i in range(count)) if all(i in found for i in range(count)) else None
        )


class Merge(AccumulatorParam[dict[int, RangeResult]]):
    """Receipts of a range are equal, whichever attempt made them."""

    last_came: float | None = None

    def zero(self, value: dict[int, RangeResult]) -> dict[int, RangeResult]:
        return {}

    def addInPlace(
        self, value1: dict[int, RangeResult], value2: dict[int, RangeResult]
    ) -> dict[int, RangeResult]:
        self.last_came = time.monotonic()
        value1.update(value2)
        return value1
