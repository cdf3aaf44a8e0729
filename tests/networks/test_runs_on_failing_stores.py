"""Runs on a store (moto) that throttles, is away or loses its answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import Moto
from tests.stores.way import FaultyWay, Rule
from tests.system.driving import WITHOUT_SPARK

pytestmark = [pytest.mark.networks]
_WITHIN_S = 300
_SMALL: Mapping[str, Any] = {
    "spark": {
        "spark.master": "local[2]",
        "spark.hadoop.fs.s3a.attempts.maximum": "1",
        "spark.hadoop.fs.s3a.retry.limit": "2",
    }
}
"""Retries of Hadoop's client for other errors than throttling are another matter, and take minutes.
"""
_WRITERS: Mapping[str, Mapping[str, Any]] = {
    "spark": {**_SMALL, "table": {"writer": "spark"}},
    "arrow": {**_SMALL, "table": {"writer": "auto"}},
    "without Spark": WITHOUT_SPARK,
}


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Moto, FaultyWay]]:
    """The store, and the way to it."""
    folder = tmp_path_factory.mktemp("moto")
    with Moto(folder / "store") as store, FaultyWay(store.port, folder / "way") as way:
        store.reached_by = way.port
        yield store, way


@pytest.fixture
def pipeline(
    way: tuple[Moto, FaultyWay], make_stored: Callable[..., StoredPipeline]
) -> Iterator[StoredPipeline]:
    """A pipeline with one plan in its table, and with more records to read."""
    made = make_stored(way[0], settings=dict(WITHOUT_SPARK), everywhere={})
    made.produce(100, partitions=2)
    made.ran()
    made.produce(100, partitions=2)
    yield made
    way[1].rules()


def run(pipeline: StoredPipeline) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a JVM of its own where it needs one."""
    child = pipeline.start("etl", "run", str(pipeline.conf), "--json")
    try:
        out, err = child.communicate(timeout=_WITHIN_S)
    finally:
        child.kill()
    return subprocess.CompletedProcess((), child.returncode, out, err)


@pytest.mark.parametrize("writer", ["spark", "without Spark"])
@pytest.mark.parametrize("fault", ["slow", "away", "lose"])
def test_a_run_continues_after_transient_errors_and_lost_answers(
    pipeline: StoredPipeline,
    way: tuple[Moto, FaultyWay],
    writer: str,
    fault: str,
) -> None:
    """At a look at the log, at a file, and at the commit."""
    pipeline.settings = dict(_WRITERS[writer])
    way[1].rules(Rule("GET", "_delta_log", 2, fault), way[1].file(fault), way[1].commit(fault))
    ran = run(pipeline)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert way[1].kept == [2, 1, 1]
    assert pipeline.is_whole()


@pytest.mark.parametrize("writer", list(_WRITERS))
@pytest.mark.parametrize("fault", ["slow", "lose"])
def test_what_a_store_never_answers_well_ends_a_run_and_the_next_one_finishes_the_plan(
    pipeline: StoredPipeline,
    way: tuple[Moto, FaultyWay],
    writer: str,
    fault: str,
) -> None:
    """At the commit. If the answer is lost, the commit succeeded, and the table shows it."""
    pipeline.settings = dict(_WRITERS[writer])
    way[1].rules(way[1].commit(fault, 10_000))
    ran = run(pipeline)
    assert ran.returncode == (0 if fault == "lose" else 7), (ran.stdout, ran.stderr)
    assert fault == "lose" or "503" in json.loads(ran.stdout)["message"]
    way[1].rules()
    pipeline.settings = dict(WITHOUT_SPARK)
    pipeline.ran()
    assert pipeline.is_whole()
