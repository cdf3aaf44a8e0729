"""Generated logs of record batches for hypothesis, and a short way to decode bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from tests.builders import split_fetch_options
from tests.fakes.batches import Batch, Codec, Rec, answer, encode

LOG = TopicPartition("clicks", 3)

contents = st.none() | st.binary(max_size=40)
headers = st.lists(
    st.tuples(st.text(max_size=6).map(str.encode), st.none() | st.binary(max_size=6)), max_size=3
).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, *, most: int = 6) -> list[Rec]:
    steps = draw(st.lists(st.integers(1, 3), max_size=most))
    return [
        Rec(
            sum(steps[: place + 1]) - 1,
            draw(contents),
            draw(contents),
            draw(headers),
            draw(st.integers(-5000, 5000)),
        )
        for place in range(len(steps))
    ]


@st.composite
def logs(draw: st.DrawFn, *, most_batches: int = 5) -> list[Batch]:
    """Record batches with rising offsets, gaps, any codec, both kinds of timestamps."""
    found: list[Batch] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, most_batches))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        batch = Batch(
            offset,
            draw(record_lists()),
            codec=draw(st.sampled_from(Codec)),
            append_time=draw(st.booleans()),
            xerial=draw(st.booleans()),
            delete_horizon=draw(st.booleans()),
        )
        if not batch.records:
            batch = replace(batch, codec=Codec.NONE)
        batch = replace(
            batch, last_delta=batch.last_offset - offset + draw(st.sampled_from([0, 0, 2]))
        )
        found.append(batch)
        offset = batch.last_offset + 1
    return found


def encoded(batches: Sequence[Batch]) -> bytes:
    return b"".join(encode(batch) for batch in batches)


def cursor_of(
    from_offset: int,
    until_offset: int,
    **more: Any,
) -> Cursor:
    sizes = {"fetch_max_bytes": 1 << 20, "max_batch_bytes": 1 << 22}
    options, others = split_fetch_options({**sizes, **more})
    return Cursor(OffsetRange(LOG, from_offset, until_offset), options, **others)


def rows_in(cursor: Cursor, records: bytes, **fields: Any) -> list[dict[str, Any]]:
    """The rows that one answer gives, timestamps as microseconds."""
    rows: list[dict[str, Any]] = []
    for arrow_batch in cursor.feed(answer(records, **fields)):
        arrow_batch.validate(full=True)
        names = arrow_batch.schema.names
        if "timestamp" in names:
            at = names.index("timestamp")
            arrow_batch = arrow_batch.set_column(
                at, "timestamp", arrow_batch.column(at).cast("int64")
            )
        rows += arrow_batch.to_pylist()
    return rows


def account_is_whole(
    cursor: Cursor, rows: Sequence[int], from_offset: int, until_offset: int, *, fetched: int
) -> None:
    """Each offset of the range is a row's or in a gap of the result, which counts both."""
    assert cursor.position == until_offset
    result = cursor.result
    assert (result.rows, result.fetched_bytes, result.gaps_complete) == (
        len(rows),
        fetched,
        True,
    )
    in_gaps = [offset for first, until in result.gaps for offset in range(first, until)]
    assert sorted([*rows, *in_gaps]) == list(range(from_offset, until_offset))
    assert result.missing_offsets == len(in_gaps)


def rows_between(
    records: bytes, from_offset: int, until_offset: int, **fields: Any
) -> list[dict[str, Any]]:
    return rows_in(cursor_of(from_offset, until_offset), records, **fields)
