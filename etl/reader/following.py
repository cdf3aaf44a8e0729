"""Follows one reading from the driver: what its tasks tell meanwhile and the receipts that come at
their end, as one state of affairs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from etl.io.progress_port import ProgressPort
from etl.model.plans import OffsetRange, RangeResult
from etl.report.run_state import Doing, Reckoning, Verb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Receipts(Protocol):
    """The receipts of a reading, on their way from its tasks."""

    @property
    def receipts(self) -> Mapping[int, RangeResult]:
        """What came back by now, by the ranges' indices in the plan; complete when all tasks are
        done.
        """

    @property
    def last_came(self) -> float | None:
        """When the last of them came, by `time.monotonic`."""

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """A receipt for each of `count` ranges, or None when some are missing."""


class Following:
    """The reading of one plan's ranges by tasks; `receipts` is given once the rows are asked for.

    `host` is what executors know the driver by, `bind` the driver's own address; without it tasks
    have nobody to tell.
    """

    def __init__(
        self,
        plan_id: str,
        ranges: Sequence[OffsetRange],
        tasks: Sequence[Sequence[int]],
        *,
        host: str = "",
        bind: str | None = None,
    ) -> None:
        self.plan_id = plan_id
        """A run may execute two plans."""
        self._reckoning = Reckoning(ranges, tasks)
        self._one_at_a_time = threading.Lock()
        self.port = ProgressPort(self._reckoning.planned, bind=bind, host=host)
        self.receipts: Receipts | None = None
        self.ends: Callable[[], None] = _nothing
        """Ends what reads, where that does not end by itself."""

    def close(self) -> None:
        """Follow no more, and leave nothing behind that reads. May be called again."""
        self.port.close()
        self.ends()

    def doing(self) -> Doing:
        """What goes on while Spark writes; may be asked from any thread."""
        receipts = self.receipts.receipts if self.receipts else {}
        with self._one_at_a_time:
            reached = self._reckoning.reached(receipts, dict(self.port.told))
        if reached.ranges == reached.ranges_in_all:
            return Doing(Verb.APPEND, reached)
        return Doing(
            Verb.FIRST_JOB if self.port.began is None and not receipts else Verb.FETCH, reached
        )

    def spent(self, began: float, now: float) -> dict[Verb, float]:
        """What of the time from `began` until now was not the table's commit, in seconds.

        Where no task could tell that it began, the first job counts as fetch; where none came to
        its end, as append.
        """
        last, first = self.receipts.last_came if self.receipts else None, self.port.began
        if self.doing().verb is not Verb.APPEND:
            last = now if first else None
        if last is None:
            return {}
        first = min(last, max(began, first or began))
        return {Verb.FIRST_JOB: first - began, Verb.FETCH: last - first}


def _nothing() -> None:
    """Spark's tasks end with its job."""


def follow(
    spark: SparkSession, plan_id: str, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]]
) -> Following:
    """Follow what this session's executors will read: they know its driver by `spark.driver.host`."""
    host = spark.conf.get("spark.driver.host", None) or "127.0.0.1"
    return Following(
        plan_id,
        ranges,
        tasks,
        host=host,
        bind=spark.conf.get("spark.driver.bindAddress", None) or host,
    )
