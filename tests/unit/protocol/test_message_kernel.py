"""The compiled kernels of older messages: their CRC, their bounds, and Arrow batches that are full
in the middle of anything.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.model.plans import GAPS_KEPT
from etl.reader.cursor import Cursor
from etl.records import arrow_buffers, message_set_kernel
from etl.records.kernel_cache import MAX_HOLES, kernel, read_only_view
from etl.records.message_set_kernel import crc32
from tests.fakes.batches import Codec, answer
from tests.fakes.logs import cursor_of, rows_in
from tests.fakes.message_sets import (
    Entry,
    Msg,
    Wrapper,
    encode_logical,
    encode_physical,
    physical_answer,
    physical_rows,
)
from tests.fakes.old_logs import (
    OldEntry,
    encoded_old,
    entry_lists,
    last_offset,
    old_logs,
    physical_cursor,
    physical_rows_in,
)


@kernel
def crc_of(source, at, end):  # type: ignore[no-untyped-def]
    return crc32(source, at, end)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_the_compiled_crc_is_that_of_zlib(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(at, len(content)))
    assert crc_of(read_only_view(content), at, end) == zlib.crc32(content[at:end])


def test_the_kernels_of_older_messages_can_be_kept() -> None:
    assert rows_in(cursor_of(0, 1), encode_logical([Msg(0)], 0))
    cached = Path(message_set_kernel.__file__).parent / "__pycache__"
    assert list(cached.glob("message_set_kernel._fill*.nbi")) or not os.access(cached, os.W_OK)


each_bound = pytest.mark.parametrize("bound", ["MOST_ROWS", "MOST_BYTES"])


@each_bound
@settings(max_examples=30, deadline=None)
@given(old_logs(), st.integers(1, 9), st.integers(1, 200), st.data())
def test_the_cut_into_arrow_batches_changes_no_row(
    bound: str, partition: list[OldEntry], limit: int, group_bytes: int, data: st.DataObject
) -> None:
    until = last_offset(partition[-1][1]) + 1
    start = data.draw(st.integers(max(0, until - 40), until - 1))
    partition = [each for each in partition if last_offset(each[1]) >= start]
    whole, cut = cursor_of(start, until), cursor_of(start, until)
    rows = rows_in(whole, encoded_old(partition))
    with (
        mock.patch.object(arrow_buffers, bound, limit),
        mock.patch.object(arrow_buffers, "GROUP_BYTES", group_bytes),
    ):
        assert rows_in(cut, encoded_old(partition)) == rows
    assert (cut.result, cut.missing) == (whole.result, whole.missing)


@each_bound
@settings(max_examples=30, deadline=None)
@given(entry_lists, st.integers(1, 9), st.integers(1, 200))
def test_the_cut_of_physical_entries_changes_no_row(
    bound: str, entries: list[Entry], limit: int, group_bytes: int
) -> None:
    records = encode_physical(entries)
    with (
        mock.patch.object(arrow_buffers, bound, limit),
        mock.patch.object(arrow_buffers, "GROUP_BYTES", group_bytes),
    ):
        rows = physical_rows_in(physical_cursor(9, 9 + len(records)), records)
    assert [(row["offset"], row["message_index"], row["value"]) for row in rows] == physical_rows(
        entries, 9
    )


def test_two_cursors_read_in_turn_between_the_arrow_batches_of_one_group_do_not_mix() -> None:
    """They share the room to decompress into."""

    def read(value: bytes, cursor: Cursor, fetched: Any) -> Iterator[Any]:
        return (row["value"] for each in cursor.feed(fetched) for row in each.to_pylist())

    logical = answer(
        encode_logical([Wrapper([Msg(offset, b"left") for offset in range(40)], Codec.SNAPPY)], 1)
    )
    physical = encode_physical([Entry(inside=[Entry(inside=[Entry(b"right")] * 20)] * 2)])
    with mock.patch.object(arrow_buffers, "MOST_ROWS", 3):
        both = list(
            zip(
                read(b"left", cursor_of(0, 40), logical),
                read(b"right", physical_cursor(0, len(physical)), physical_answer(physical)),
                strict=True,
            )
        )
    assert both == [(b"left", b"right")] * 40


@pytest.mark.parametrize(
    "columns",
    [
        ("key",),
        ("value", "offset"),
        ("timestamp", "timestampType"),
        ("headers", "topic"),
        ("incarnation",),
    ],
)
def test_only_the_chosen_columns_are_built(columns: tuple[str, ...]) -> None:
    partition = encode_logical([Msg(5, b"v", b"k", 7), Wrapper([Msg(6, None, None, 8)])], 1)
    whole = rows_in(cursor_of(5, 7), partition)
    assert rows_in(cursor_of(5, 7, columns=columns), partition) == [
        {name: row[name] for name in columns} for row in whole
    ]


@pytest.mark.parametrize(
    "columns", [("broker_id",), ("message_index", "offset"), ("offset", "value"), ("partition",)]
)
def test_only_the_chosen_columns_of_physical_logs_are_built(columns: tuple[str, ...]) -> None:
    partition = encode_physical([Entry(b"a"), Entry(inside=[Entry(b"b"), Entry(b"c")])])
    whole = physical_rows_in(physical_cursor(0, len(partition)), partition)
    found = physical_rows_in(physical_cursor(0, len(partition), columns=columns), partition)
    assert found == [{name: row[name] for name in whole[0] if name in columns} for row in whole]


def test_gaps_and_holes_are_kept_one_by_one_up_to_a_bound_and_counted_beyond_it() -> None:
    messages = [Msg(2 * number + 1) for number in range(GAPS_KEPT + 5)]
    cursor = cursor_of(0, 2 * len(messages))
    rows_in(cursor, encode_logical(messages, 0))
    result = cursor.result
    assert result.gaps == tuple((2 * number, 2 * number + 1) for number in range(GAPS_KEPT))
    assert result.rows == GAPS_KEPT + 5
    assert result.missing_offsets == GAPS_KEPT + 5
    assert result.gaps_complete is False
    assert cursor.missing == [(2 * number, 2 * number + 1) for number in range(MAX_HOLES)]
    assert cursor.missing_count == GAPS_KEPT + 5
