"""Appends of plans as a run makes them, with the writer that a test names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.edges.delta.empty_commit import EmptyCommit
from etl.edges.delta.outcome import Outcome
from etl.edges.delta.spark_writer import SparkWriter
from etl.edges.delta.writers import Destination, Load, Writer, append
from etl.model.plans import Plan
from etl.model.raw_table import arrow_schema


SPARK = SparkWriter()
WRITERS: Mapping[str, Writer] = {"spark": SPARK}
"""The writers of rows by the name that `table.writer` has for them: the laws of `test_delta` hold for each."""


def append_rows(rows: Any, plan: Plan, *, by: Writer = SPARK, **destination: Any) -> Outcome:
    """By that writer."""
    return append(Load(by, rows), plan, Destination(**destination))


def append_nothing(plan: Plan, **destination: Any) -> Outcome:
    """The empty commit of a plan without ranges."""
    return append(Load(EmptyCommit(arrow_schema())), plan, Destination(**destination))
