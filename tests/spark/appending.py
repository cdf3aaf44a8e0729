"""Appends of plans as a run makes them, with the writer that a test names."""

from __future__ import annotations

from typing import Any

from etl.edges.delta.empty_commit import EmptyCommit
from etl.edges.delta.outcome import Outcome
from etl.edges.delta.spark_writer import SparkWriter
from etl.edges.delta.writers import Destination, Load, append
from etl.model.plans import Plan
from etl.model.raw_table import arrow_schema


def append_rows(rows: Any, plan: Plan, **destination: Any) -> Outcome:
    """By Spark."""
    return append(Load(SparkWriter(), rows), plan, Destination(**destination))


def append_nothing(plan: Plan, **destination: Any) -> Outcome:
    """The empty commit of a plan without ranges."""
    return append(Load(EmptyCommit(arrow_schema())), plan, Destination(**destination))
