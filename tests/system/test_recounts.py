"""A crash between the table's commit and the plan's result, for tables and transforms that make
the rows hard to count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from etl.commands import operator_decisions
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before

Shape = Callable[[str], str]


@pytest.fixture
def shape(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Shape:
    """`shape("rows.limit(1)")`: the pipeline's transform makes that of its rows; called again, it
    is changed under its name.
    """
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"shape_of_{pipeline.topic.replace('-', '_')}"

    def shaped(made: str) -> str:
        (pipeline.folder / f"{name}.py").write_text(f"def shaped(rows):\n    return {made}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
        pipeline.settings = {**pipeline.settings, "transform": f"{name}:shaped"}
        return f"{name}:shaped"

    return shaped


def unproven(proof: Any) -> list[int]:
    return [partition["not_provable"] for partition in proof.document["logs"]]


def test_rows_possibly_dropped_before_a_crash_are_unproven_until_an_operator_accepts(
    pipeline: Pipeline, shape: Shape
) -> None:
    shape("rows.where('not (partition = 2 and offset = 7)')")
    pipeline.produce(80)
    broken_off_before("record", pipeline)
    for _ in range(2):  # before and after the next run wrote its record
        proof = pipeline.door("verify")
        assert (proof.code, unproven(proof)) == (9, [0, 0, 1, 0])
        assert (
            "1 offsets without a row cannot be proven (first between 0 and 20; plan 1)" in proof.err
        )
        result = pipeline.ran()
    assert "up_to_date" in result.outcomes
    operator_decisions.accept_table(
        load_settings(pipeline.conf),
        str(DeltaTable(str(pipeline.table)).version()),
        "a test record, dropped on purpose",
    )
    accepted = pipeline.door("verify")
    assert (accepted.code, unproven(accepted)) == (0, [0, 0, 1, 0])
    assert any("an operator accepted that" in note for note in accepted.document["notes"])


def test_a_transform_that_drops_an_offset_is_rejected_and_the_doctor_reports_it_before_a_run(
    pipeline: Pipeline, shape: Shape
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    name = shape("rows.drop('offset')")
    pipeline.produce(80)
    doctor = pipeline.door("doctor")
    [line] = [line for line in doctor.document["checks"] if line["verdict"] == "failed"]
    assert (doctor.code, line["name"], "there is no column offset" in line["found"]) == (
        2,
        "transformed rows",
        True,
    )
    refused(pipeline.run(), 2, "there is no column offset", name, "topic, partition and offset")
    assert [plan["number"] for plan in pipeline.door("plans", "list").document["plans"]] == [1]
