"""Progress of a read, and the time of its phases, by its tasks' reports and their results."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.report.run_progress import AttemptProgress, Verb
from etl.run.read_rows import Following

RANGES = [OffsetRange(BrokerPartition("clicks", p), 0, 10) for p in range(2)]
RECEIPT = RangeResult(rows=10, fetched_bytes=100)


def reading(*, began: float | None, last_came: float | None, ended: int) -> Following:
    """Two tasks: times of the first report and of the last result, number of results."""
    following = Following("plan-1", RANGES, [(0,), (1,)])
    following.port.began = began
    following.receipts = cast(
        Any, SimpleNamespace(receipts=dict.fromkeys(range(ended), RECEIPT), last_came=last_came)
    )
    return following


def test_until_a_task_reports_its_beginning_spark_is_at_its_first_job() -> None:
    following = reading(began=None, last_came=None, ended=0)
    assert following.doing().verb is Verb.FIRST_JOB


def test_while_receipts_are_missing_tasks_read() -> None:
    following = reading(began=3.0, last_came=None, ended=0)
    following.port.last_progress[0] = AttemptProgress(0, 5, 5, 50)
    doing = following.doing()
    assert (doing.verb, doing.reached and doing.reached.records) == (Verb.FETCH, 5)
    assert reading(began=None, last_came=4.0, ended=1).doing().verb is Verb.FETCH, (
        "tasks without a report of their records have range results"
    )


def test_once_all_receipts_are_there_the_table_commits() -> None:
    assert reading(began=3.0, last_came=7.0, ended=2).doing().verb is Verb.APPEND


def test_the_time_of_a_reading_is_first_job_and_fetch_and_the_rest_is_the_commit() -> None:
    assert reading(began=3.0, last_came=7.0, ended=2).spent(1.0, 9.0) == {
        Verb.FIRST_JOB: 2.0,
        Verb.FETCH: 4.0,
    }


def test_without_reports_of_tasks_the_first_job_counts_as_fetch() -> None:
    assert reading(began=None, last_came=7.0, ended=2).spent(1.0, 9.0) == {
        Verb.FIRST_JOB: 0.0,
        Verb.FETCH: 6.0,
    }


def test_a_reading_that_broke_off_was_fetching_until_then() -> None:
    assert reading(began=3.0, last_came=4.0, ended=1).spent(1.0, 9.0) == {
        Verb.FIRST_JOB: 2.0,
        Verb.FETCH: 6.0,
    }
    assert reading(began=None, last_came=None, ended=0).spent(1.0, 9.0) == {}


def test_two_threads_may_read_it_at_once() -> None:
    following = Following(
        "plan-1",
        [OffsetRange(BrokerPartition("clicks", p), 0, 1) for p in range(500)],
        [(p,) for p in range(500)],
    )
    following.receipts = cast(
        Any,
        SimpleNamespace(
            receipts=dict.fromkeys(range(500), RangeResult(rows=1, fetched_bytes=1)), last_came=1.0
        ),
    )
    found: list[int] = []

    def ask() -> None:
        reached = following.doing().reached
        found.append(reached.records if reached else -1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [500] * 8
