"""The cost of a scheduled run without new records: started processes, loaded libraries, requests.

It is counted instead of timed, since the machine may be busy.
"""

from __future__ import annotations

from collections import Counter

from tests.fakes.broker import FETCH, LIST_OFFSETS, FakeBroker
from tests.system.driving import Pipeline
from tests.system.watching import watched_run


def test_a_run_with_nothing_new_starts_no_process_and_loads_neither_spark_nor_the_compiler(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    pipeline.ran()
    every = {
        "table": {"writer": "auto"},
        "transform": "os.path:join",
        "metrics": {"path": str(pipeline.folder / "etl.prom")},
    }
    for settings in ({}, every):
        pipeline.settings = settings
        cost, outcomes = watched_run(pipeline)
        assert outcomes == ["up_to_date"]
        assert (cost["code"], cost["started"], cost["loaded"]) == (0, [], [])


def test_a_run_with_nothing_new_sends_each_request_once_over_one_connection(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    """Offsets are three questions: where logs start, where they end for us, and for everybody."""
    pipeline, broker = spoiled
    pipeline.ran()
    broker.requests.clear()
    cost, outcomes = watched_run(pipeline)
    assert outcomes == ["up_to_date"]
    assert sum(port == broker.port for _, port in cost["connected"]) == 1
    request = Counter(key for key, _ in broker.requests)
    assert request.pop(LIST_OFFSETS) == 3
    assert set(request.values()) == {1} and FETCH not in request
