"""A topic and a table in which logs have had several lives: the independent check, with the life in
a row's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from tests.chaos.stage import CaseResult, checked, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.traffic.rows import Row, hash_of

_LIFE = 1_000
"""Partition 3 in its second life is 1003."""


@dataclass
class Lives:
    """What the table holds, each row under the life of its log."""

    pipeline: Pipeline

    def in_topic(self) -> Counter[Row]:
        return self.pipeline.in_topic()

    def in_table(self) -> Counter[Row]:
        rows = (
            DeltaTable(str(self.pipeline.table))
            .to_pyarrow_table(columns=["partition", "offset", "value", "incarnation"])
            .to_pylist()
        )
        return Counter(
            (row["partition"] + _LIFE * row["incarnation"], row["offset"], hash_of(row["value"]))
            for row in rows
        )


def second_life(rows: Counter[Row], starts: Mapping[int, int]) -> Counter[Row]:
    """The topic's rows from these offsets on, as the second incarnation of their partitions; the
    rows before belong to no incarnation.
    """
    return Counter(
        {
            (p + _LIFE, offset, value): n
            for (p, offset, value), n in rows.items()
            if p in starts and offset >= starts[p]
        }
    )


def accepted(pipeline: Pipeline, *words: str) -> CommandResult:
    """The advice of the message."""
    result = pipeline.accept_log(*words)
    assert result.code == 0, result.err + result.out
    return result


def finish(
    pipeline: Pipeline, *, after: str, next_run: CommandResult, expected: Counter[Row]
) -> CaseResult:
    """One more run, the package's own proof, and the check of every life."""
    quiet = pipeline.run()
    assert quiet.code == 0, f"{summary_of(quiet)}\n{quiet.err}"
    proof = pipeline.door("verify")
    assert proof.code == 0, proof.err + proof.out
    return CaseResult(after, summary_of(next_run), checked(Lives(pipeline), expected))
