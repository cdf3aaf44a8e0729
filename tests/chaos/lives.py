"""The check of a table in which partitions have several incarnations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from tests.chaos.stage import CaseResult, case_result, checked, ended
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
    """The topic's rows from these offsets on, as the second incarnation."""
    return Counter(
        {
            (p + _LIFE, offset, value): n
            for (p, offset, value), n in rows.items()
            if p in starts and offset >= starts[p]
        }
    )


def accepted(pipeline: Pipeline, *words: str) -> None:
    """The advice of the message."""
    ended(pipeline.accept_log(*words), 0)


def finish(
    pipeline: Pipeline, after: str, next_run: CommandResult, expected: Counter[Row]
) -> CaseResult:
    """One more run, the package's own proof, and the check of every life."""
    ended(pipeline.run(), 0)
    ended(pipeline.door("verify"), 0)
    return case_result(after, next_run, checked(Lives(pipeline), expected))
