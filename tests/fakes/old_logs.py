"""Generated logs of older formats for hypothesis, and a short way to decode them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from tests.builders import split_fetch_options
from tests.fakes.batches import Batch, Codec, encode
from tests.fakes.logs import contents, record_lists
from tests.fakes.message_sets import Entry, Msg, Wrapper, encode_logical, physical_answer

OldEntry = tuple[int, Msg | Wrapper | Batch]
"""Magic, and the records of that format."""
OLD_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
DEMO = TopicPartition("demo", 0, 3)
times = st.sampled_from([-1, -1, 0, 1_700_000_000_000, -5, 2**60])


@st.composite
def old_logs(
    draw: st.DrawFn, *, most: int = 6, magics: Sequence[int] = (0, 1, 2)
) -> list[OldEntry]:
    """Entries of any of the formats with rising offsets, gaps and any codec."""
    found: list[OldEntry] = []
    offset = draw(st.integers(0, 2**40) | st.just(0))
    for _ in range(draw(st.integers(1, most))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        magic = draw(st.sampled_from(magics))
        entry: Msg | Wrapper | Batch
        if magic == 2:
            entry = Batch(offset, draw(record_lists(most=3).filter(len)))
        elif draw(st.booleans()):
            entry = draw(messages(offset))
        else:
            entry = draw(wrappers(offset))
        found.append((magic, entry))
        offset = last_offset(entry) + 1
    return found


@st.composite
def messages(draw: st.DrawFn, offset: int) -> Msg:
    return Msg(offset, draw(contents), draw(contents), draw(times), draw(st.booleans()))


@st.composite
def wrappers(draw: st.DrawFn, offset: int) -> Wrapper:
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=5))
    inside = [draw(messages(offset + sum(steps[:place]))) for place in range(len(steps))]
    return Wrapper(
        inside,
        draw(st.sampled_from(OLD_CODECS)),
        draw(times),
        draw(st.booleans()),
        draw(st.booleans()),
        base=max(0, offset - draw(st.integers(0, 3))),
    )


def last_offset(entry: Msg | Wrapper | Batch) -> int:
    return entry.offset if isinstance(entry, Msg) else entry.last_offset


def encoded_old(entries: Sequence[OldEntry]) -> bytes:
    return b"".join(
        encode(each) if isinstance(each, Batch) else encode_logical([each], magic)
        for magic, each in entries
    )


entry_lists: st.SearchStrategy[list[Entry]] = st.recursive(
    st.lists(
        st.builds(
            Entry,
            payload=st.binary(max_size=40),
            magic=st.sampled_from([0, 1, 1]),
            attributes=st.sampled_from([0, 0, 0xFC]),
        ),
        max_size=6,
    ),
    lambda inner: st.lists(
        st.builds(Entry, payload=st.binary(max_size=40))
        | st.builds(
            Entry,
            inside=inner,
            codec=st.sampled_from([Codec.GZIP, Codec.SNAPPY]),
            xerial=st.booleans(),
            attributes=st.sampled_from([0, 0xFC]),
        ),
        max_size=4,
    ),
    max_leaves=12,
)


def physical_cursor(from_offset: int, until_offset: int, **more: Any) -> Cursor:
    sizes = {"fetch_max_bytes": 1 << 20, "max_batch_bytes": 1 << 22}
    options, others = split_fetch_options({**sizes, **more})
    return Cursor(OffsetRange(DEMO, from_offset, until_offset), options, **others)


def physical_rows_in(cursor: Cursor, records: bytes) -> list[dict[str, Any]]:
    """The rows that one answer gives."""
    rows: list[dict[str, Any]] = []
    for arrow_batch in cursor.feed(physical_answer(records)):
        arrow_batch.validate(full=True)
        rows += arrow_batch.to_pylist()
    return rows


def physical_rows_between(
    records: bytes, from_offset: int, until_offset: int, **more: Any
) -> list[dict[str, Any]]:
    return physical_rows_in(physical_cursor(from_offset, until_offset, **more), records)
