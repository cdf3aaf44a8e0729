"""A worker of a run without Spark in this process: its libraries are loaded already, which
otherwise takes a second per run.

`tests/wire/test_worker_pool.py` shows that both return the same; together with
`tests/system/test_runs_without_spark.py` it covers real processes.
"""

from __future__ import annotations

import pickle

from etl.io.brokers.connection import IDLE_CONNECTIONS
from etl.model.plans import Written
from etl.reader.local_workers import Failed, Order, done


class WorkerHere:
    """In the place of `etl.reader.local_workers.Worker`. Orders and answers travel as pickled
    bytes, as they do between processes.
    """

    ended_by, was_killed = "", False

    def __init__(self, time_zone: str | None = None) -> None:
        """It has the zone of this process."""

    def answer(self, order: Order) -> Written | Failed:
        """What the order came to."""
        found: Written | Failed = pickle.loads(
            pickle.dumps(done(pickle.loads(pickle.dumps(order))))
        )
        return found

    def restart_worker(self) -> None:
        """It is never lost."""

    def end(self) -> None:
        """Hang up on the brokers, as a process that ends does."""
        IDLE_CONNECTIONS.close()
