"""Runs of rows in Arrow batches: their ends and contents. A partition is correct exactly if its
runs follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from etl.io.delta.offsets_of_rows import LOG, Runs

Key = tuple[str | None, int | None, int | None, int | None, int | None, int | None]
"""Topic, broker, partition, life, entry and index."""
NAMES = (*LOG, "offset", "message_index")
CLICKS, VIEWS = ("clicks", 1, 0, 0), ("views", 1, 0, 0)
NOWHERE: Key = (None, None, None, None, None, None)


def batch_of(keys: Sequence[Key]) -> pyarrow.RecordBatch:
    return pyarrow.record_batch(
        {
            name: pyarrow.array(
                [key[i] for key in keys], pyarrow.string() if name == "topic" else pyarrow.int64()
            )
            for i, name in enumerate(NAMES)
        }
    )


def runs_of(*batches: Sequence[Key]) -> list[tuple[object, ...]]:
    runs = Runs({CLICKS: numpy.array([0, 100, 200], numpy.int64)})
    return [
        tuple(row.values()) for found in runs(map(batch_of, batches)) for row in found.to_pylist()
    ]


def test_a_sequence_continues_with_the_next_message_of_its_entry_or_the_first_of_a_later_one() -> (
    None
):
    keys: list[Key] = [
        (*CLICKS, *message) for message in ((0, 0), (0, 1), (40, 0), (80, 0), (80, 1), (80, 2))
    ]
    assert runs_of(keys) == [(*CLICKS, 1, 0, 0, 80, 2, 6)]


def test_a_run_ends_at_an_edge_at_another_log_and_at_rows_of_no_log() -> None:
    keys: list[Key] = [
        (*CLICKS, 90, 0),
        (*CLICKS, 100, 0),
        (*VIEWS, 100, 1),
        (*VIEWS, 300, 0),
        NOWHERE,
        NOWHERE,
        (*CLICKS, 200, 0),
    ]
    assert runs_of(keys) == [
        (*CLICKS, 1, 90, 0, 90, 0, 1),
        (*CLICKS, 2, 100, 0, 100, 0, 1),
        (*VIEWS, 0, 100, 1, 300, 0, 2),
        (None, None, None, None, 0, -1, -1, -1, -1, 2),
        (*CLICKS, 3, 200, 0, 200, 0, 1),
    ]


def test_a_sequence_ends_before_a_double_a_hole_and_an_entry_without_its_first_message() -> None:
    for after in ((40, 1), (40, 3), (0, 0), (80, 1)):
        keys: list[Key] = [(*CLICKS, 40, 0), (*CLICKS, 40, 1), (*CLICKS, *after)]
        assert [run[-1] for run in runs_of(keys)] == [2, 1], after


def test_batches_of_nothing_have_no_runs() -> None:
    assert runs_of([], [(*CLICKS, 0, 0)], []) == [(*CLICKS, 1, 0, 0, 0, 0, 1)]


MESSAGES = st.lists(
    st.tuples(st.integers(0, 4).map(lambda at: at * 40), st.integers(0, 2)), min_size=1, max_size=12
)


@given(MESSAGES, st.integers(0, 12))
def test_no_sequence_has_a_double_or_a_gap_however_rows_are_divided_into_batches(
    messages: list[tuple[int, int]], cut: int
) -> None:
    keys: list[Key] = [(*CLICKS, *message) for message in messages]
    found, at = runs_of(keys[:cut], keys[cut:]), 0
    for run in found:
        rows = int(str(run[-1]))
        mine = messages[at : at + rows]
        assert (mine[0], mine[-1]) == (run[5:7], run[7:9])
        for before, after in zip(mine, mine[1:]):
            assert after == (before[0], before[1] + 1) or (after[0] > before[0] and after[1] == 0)
        at += rows
    assert at == len(messages)
