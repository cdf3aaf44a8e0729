"""Progress of a read, and the time of its phases, by its tasks' reports and their results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.report.run_progress import AttemptProgress, Verb
from etl.run.read_rows import Following

RANGES = [OffsetRange(TopicPartition("clicks", p), 0, 10) for p in range(2)]
RECEIPT = RangeResult(rows=10, fetched_bytes=100)


def reading(*, began: float | None, last_came: float | None, ended: int) -> Following:
    """Two tasks: times of the first report and of the last result, number of results."""
    following = Following("plan-1", RANGES, [(0,), (1,)])
    following.port.began = began
    following.results = cast(
        Any, SimpleNamespace(results=dict.fromkeys(range(ended), RECEIPT), last_came=last_came)
    )
    return following


@pytest.mark.parametrize(
    ("began", "last_came", "ended", "verb", "first_job", "fetch"),
    [
        pytest.param(None, None, 0, Verb.FIRST_JOB, None, None, id="no task has begun"),
        pytest.param(3.0, 4.0, 1, Verb.FETCH, 2.0, 6.0, id="one has ended"),
        pytest.param(3.0, 7.0, 2, Verb.APPEND, 2.0, 4.0, id="both have"),
        pytest.param(None, 7.0, 2, Verb.APPEND, 0.0, 6.0, id="both have, without reports"),
    ],
)
def test_a_read_has_three_phases(
    began: float | None,
    last_came: float | None,
    ended: int,
    verb: Verb,
    first_job: float | None,
    fetch: float | None,
) -> None:
    following = reading(began=began, last_came=last_came, ended=ended)
    assert following.doing().verb is verb
    spent = {Verb.FIRST_JOB: first_job, Verb.FETCH: fetch}
    assert following.spent(1.0, 9.0) == ({} if fetch is None else spent)


def test_records_that_a_task_reports_are_reached() -> None:
    following = reading(began=3.0, last_came=None, ended=0)
    following.port.last_progress[0] = AttemptProgress(0, 5, 5, 50)
    doing = following.doing()
    assert (doing.verb, doing.reached and doing.reached.records) == (Verb.FETCH, 5)
    assert reading(began=None, last_came=4.0, ended=1).doing().verb is Verb.FETCH, (
        "a task without reports has a result"
    )


def test_threads_may_read_it_at_once() -> None:
    ranges = [OffsetRange(TopicPartition("clicks", p), 0, 1) for p in range(500)]
    following = Following("plan-1", ranges, [(p,) for p in range(500)])
    results = dict.fromkeys(range(500), RangeResult(rows=1, fetched_bytes=1))
    following.results = cast(Any, SimpleNamespace(results=results, last_came=1.0))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(following.doing) for _ in range(8)]
    found = [one.result().reached for one in asked]
    assert [reached and reached.records for reached in found] == [500] * 8
