"""The rows that are counted before an offset moves back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etl.commands.set_offsets import SetOffsetsRequest, _rows_of
from etl.decide.set_offsets import Standing
from etl.errors import NeedsDecision
from etl.io.delta.recover_results import Recount
from etl.model.partitions import TopicPartition, parse_named
from etl.model.plans import NOT_COUNTED, Plan, RangeResult
from etl.model.snapshot import UpToDate
from tests.builders import plain_plan

A, B = (TopicPartition("clicks", partition) for partition in (0, 1))


class Rows:
    """A table that has one row of each offset below 100 in life 0."""

    settings = SimpleNamespace(table=SimpleNamespace(path="table"))

    def __init__(self, *, is_counted: bool = True) -> None:
        self.is_counted = is_counted
        self.loaded = self

    def recount(self, plan: Plan) -> Recount:
        if not self.is_counted:
            return Recount((NOT_COUNTED,) * len(plan.ranges), "no column offset")
        results = []
        for r in plan.ranges:
            rows = max(0, min(r.until_offset, 100) - r.from_offset)
            is_first_life = not plan.partitions[r.partition].incarnation
            results.append(RangeResult(rows if is_first_life else 0))
        return Recount(tuple(results))


def stands(**changes: Any) -> Standing:
    plan = plain_plan(loaded_until={A: 200, B: 200}, **changes)
    return Standing(UpToDate(plan, plan.loaded_until), plan.loaded_until)


def rows_of(
    world: Rows, standing: Standing, vanished: dict[Any, Any] | None = None
) -> dict[TopicPartition, int]:
    ranges = {A: (50, 200), B: (100, 200)}
    return _rows_of(world, ranges, standing, vanished or {})  # type: ignore[arg-type]


def test_a_position_does_not_go_back_over_rows_of_a_log_that_was_cut() -> None:
    assert rows_of(Rows(), stands()) == {A: 50, B: 0}
    assert rows_of(Rows(), stands(incarnations={A: 1})) == {A: 50, B: 0}, (
        "its rows are of the life before"
    )
    assert rows_of(Rows(), stands(incarnations={A: 1}), {(A, 0): [(80, 150)]}) == {A: 30, B: 0}, (
        "the records of the others are gone"
    )


def test_uncountable_rows_count_as_present() -> None:
    with pytest.raises(
        NeedsDecision, match="It is unknown whether the table holds rows.*no column offset"
    ):
        rows_of(Rows(is_counted=False), stands())


def test_offsets_are_verified_only_in_the_named_logs() -> None:
    request = SetOffsetsRequest(parse_named("clicks:0"), 7)
    assert request.offsets_of(A) == (7,) and not request.offsets_of(B)
