"""The writers of a case's rows: their settings, and the file with the results of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etl.io.process import cores
from tests.chaos.holding import ARROW_TRANSFORM, TRANSFORM

_FOUR_TASKS = {"spark": {"spark.master": "local[4,4]"}}


@dataclass(frozen=True, slots=True)
class Writes:
    """One way of writing; the whole matrix is played with each."""

    results: str
    """The file in docs/proof with the result of each case."""
    title: str
    """The column of the page."""
    settings: Mapping[str, Any]
    """Of each case's conf."""
    tasks: int
    """How many tasks of a case that holds them are at work at once, a file each."""
    held: Mapping[str, Any]
    """What such a case's conf has besides."""

    takes_spark: bool = True
    """Whether tasks are Spark's: without it many more plans end in the same time."""

    @property
    def passes_the_jvm(self) -> bool:
        """Whether rows do, and the commit."""
        return self.held.get("transform") == TRANSFORM


WRITES: Mapping[str, Writes] = {
    "spark": Writes(
        "crashes.json",
        "Spark",
        {"table": {"writer": "spark"}},
        4,
        {"transform": TRANSFORM, **_FOUR_TASKS},
    ),
    "arrow": Writes(
        "crashes_arrow.json",
        "Arrow, Spark's tasks",
        {"table": {"writer": "auto"}},
        4,
        {**_FOUR_TASKS, "transform": {"record_batch": ARROW_TRANSFORM}},
    ),
    "processes": Writes(
        "crashes_without_spark.json",
        "Arrow, no Spark",
        {"table": {"writer": "auto"}, "limits": {"local_below_bytes": 1 << 30}},
        cores(),
        {"transform": {"record_batch": ARROW_TRANSFORM}},
        takes_spark=False,
    ),
}
