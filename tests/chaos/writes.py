"""Who writes the rows of a case: the settings that say so, and the page on which it is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Writes:
    """One way of writing; the whole matrix is played with each."""

    page: str
    """Its page in docs, without the ending; the figures lie beside it in lower case."""
    said: str
    """The sentence of the page's head."""
    settings: Mapping[str, Any]
    """Of each case's conf."""


WRITES: Mapping[str, Writes] = {
    "spark": Writes("CRASHES", "Spark writes the rows (`table.writer: spark`).", {"table": {"writer": "spark"}}),
    "arrow": Writes(
        "CRASHES_ARROW", "Spark's tasks write the files (`table.writer: auto`), but where a case says that Spark writes them.",
        {"table": {"writer": "auto"}}),
    "processes": Writes(
        "CRASHES_WITHOUT_SPARK",
        "Worker processes write the files, without Spark (`limits.without_spark_below_bytes`), but where a case says otherwise.",
        {"table": {"writer": "auto"}, "limits": {"without_spark_below_bytes": 1 << 30}}),
}
