"""A worker of a run without Spark in this process: its libraries are loaded already, which
otherwise takes a second per run. And tasks for workers.

`tests/wire/test_worker_pool.py` shows that both return the same; together with
`tests/system/test_runs_without_spark.py` it covers real processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.model.columns import raw_columns
from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import OffsetRange, Written
from etl.reader.fetch_options import FetchOptions
from etl.reader.local_workers import Failed, Order, done
from etl.reader.query_ranges import ReadOptions, Task, tasks_of_ranges
from etl.settings.choices import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from tests.fakes.broker import FakeBroker

if TYPE_CHECKING:
    import pytest


def reading_from(broker: FakeBroker, **changed: Any) -> ReadOptions:
    reading = ReadOptions(
        fetch=FetchOptions(
            bootstrap=((broker.host, broker.port),),
            isolation=Isolation.READ_COMMITTED,
            fetch_max_bytes=2**20,
            max_batch_bytes=MAX_BATCH_BYTES,
            max_record_bytes=MAX_RECORD_BYTES,
            timeout_s=10.0,
        ),
        columns=raw_columns(),
        target_task_bytes=2**28,
    )
    sizes = FetchOptions.__dataclass_fields__.keys() & changed.keys()
    fetch = replace(reading.fetch, **{name: changed.pop(name) for name in sizes})
    return replace(reading, fetch=fetch, **changed)


def tasks_of(
    ranges: Sequence[OffsetRange],
    groups: Sequence[Sequence[int]],
    incarnations: Mapping[TopicPartition, int] | None = None,
) -> list[Task]:
    """The tasks of these ranges: which ranges each of them reads, by their indices."""
    return tasks_of_ranges(
        ranges,
        groups,
        topic_ids={},
        leader_epochs={},
        incarnations=incarnations or {},
        cleanups={},
        fingerprints={},
    )


class WorkerHere:
    """In the place of `Worker`; orders and answers are pickled, as between processes."""

    ended_by, was_killed = "", False

    def __init__(self, time_zone: str | None = None) -> None:
        """It has the zone of this process."""

    def answer(self, order: Order) -> Written | Failed:
        found: Written | Failed = pickle.loads(
            pickle.dumps(done(pickle.loads(pickle.dumps(order))))
        )
        return found

    def restart_worker(self) -> None:
        """It is never lost."""

    def end(self) -> None:
        """Hang up on the brokers, as a process that ends does."""
        IDLE_CONNECTIONS.close()


def work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without Spark make their rows in this process."""
    monkeypatch.setattr("etl.run.read_rows.cores", lambda: 1)
    monkeypatch.setattr("etl.reader.local_workers.Worker", WorkerHere)
