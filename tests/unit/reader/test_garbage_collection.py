"""The garbage collector in a worker process that Spark keeps for further tasks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import InputPartition

from etl.reader import run_task
from etl.reader.source import OffsetRanges


class Node:
    """Points at itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As one in which no task of Spark's has begun."""
    monkeypatch.setattr(run_task, "_tasks", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("new_process")
def test_from_its_second_task_on_a_worker_freezes_objects_of_the_first_for_the_collector() -> None:
    run_task.begin_task()
    assert gc.get_freeze_count() == 0
    alive = len(gc.get_objects())
    run_task.begin_task()
    assert gc.get_freeze_count() > alive * 0.9 and len(gc.get_objects()) < alive * 0.1


@pytest.mark.usefixtures("new_process")
def test_garbage_of_later_tasks_is_collected_as_ever() -> None:
    run_task.begin_task()
    run_task.begin_task()
    node = Node()
    seen = weakref.ref(node)
    run_task.begin_task()
    del node
    gc.collect()
    assert seen() is None


@pytest.mark.usefixtures("new_process")
def test_the_data_source_reports_the_beginning_of_each_task() -> None:
    reader = OffsetRanges({"kafka.bootstrap.servers": "h:1", "subscribe": "clicks"}).reader(None)
    assert list(reader.read(InputPartition(None))) == [] and gc.get_freeze_count() == 0
    assert list(reader.read(InputPartition(None))) == [] and gc.get_freeze_count() > 0
