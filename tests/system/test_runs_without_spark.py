"""Small plans without Spark; processes and requests are counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.fakes.broker import FETCH, LIST_OFFSETS, FakeBroker
from tests.system.driving import Pipeline, broken_off_before, watched_run

SMALL = {"table": {"writer": "auto"}, "limits": {"local_below_bytes": 64 << 20}}


@pytest.fixture
def small(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with four partitions and little in them."""
    return make_pipeline(**SMALL)


@pytest.mark.usefixtures("spark")
def test_a_small_run_loads_its_records_once_and_no_spark_is_loaded(small: Pipeline) -> None:
    small.produce(400)
    cost, outcomes = watched_run(small)
    assert outcomes == ["ingested"]
    assert cost["code"] == 0 and not {"pyspark", "py4j", "delta"} & set(cost["loaded"])
    assert set(cost["started"]) == {"subprocess.Popen"}, "the workers"
    assert small.is_whole()
    assert small.door("verify").document["found_rows"] == 400


@pytest.mark.usefixtures("spark")
def test_a_run_that_ends_before_its_append_is_finished_by_the_next_one_with_or_without_spark(
    small: Pipeline,
) -> None:
    for after in (SMALL, {**SMALL, "limits": {}}):
        small.produce(200)
        broken_off_before("append", small)
        small.settings = after
        small.ran()
        small.settings = SMALL
        assert small.is_whole()


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
