"""The compiled kernels of all formats, and the compiler's cache."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
from etl.errors import CorruptData, RecordTooLarge
from etl.kafka.request_values import FetchedPartition
from etl.model.plans import GAPS_KEPT
from etl.reader.cursor import Cursor
from etl.records import arrow_buffers, batch_kernel, message_set_kernel
from etl.records.batch_kernel import MAX_RECORD_HEADERS
from etl.records.kernel_cache import MAX_HOLES, kernel, read_only_view
from etl.records.message_set_kernel import crc32
from tests.fakes.batches import Batch, Codec, Rec, answer, compress, control, encode, varint
from tests.fakes.logs import cursor_of, headers, rows_between, rows_in
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

MINUS_ONE, BIG = varint(-1), varint(2**31 - 1)


def with_payload(
    payload: bytes, *, count: int = 1, last_delta: int = 0, codec: Codec = Codec.NONE
) -> bytes:
    return encode(
        Batch(
            7, [], payload=compress(payload, codec), count=count, last_delta=last_delta, codec=codec
        )
    )


def body(*fields: bytes) -> bytes:
    content = b"".join(fields)
    return varint(len(content)) + content


@pytest.mark.parametrize(
    "payload",
    [
        body(b"\x00", b"\x00", b"\x00", BIG, MINUS_ONE, b"\x00"),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, BIG, b"\x00"),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, MINUS_ONE, BIG),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, MINUS_ONE, MINUS_ONE),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, MINUS_ONE, b"\x02", BIG, MINUS_ONE),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, MINUS_ONE, b"\x02", MINUS_ONE, MINUS_ONE),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, MINUS_ONE, b"\x02", b"\x00", BIG),
        body(b"\x00", b"\x00", b"\x00", MINUS_ONE, MINUS_ONE, b"\x00", b"one byte too many"),
        body(b"\x00", b"\xff" * 11, b"\x00", MINUS_ONE, MINUS_ONE, b"\x00"),
        body(b"\x00", b"\x00", b"\xff" * 6, MINUS_ONE, MINUS_ONE, b"\x00"),
        b"\x80\x80\x80\x80\x80\x80\x01" + bytes(20),
        BIG + bytes(20),
        MINUS_ONE + bytes(20),
    ],
)
def test_a_length_or_varint_that_points_outside_its_record_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptData) as caught:
        rows_between(with_payload(payload), 0, 100)
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 7}


@settings(max_examples=25, deadline=None)
@given(st.lists(headers, min_size=1, max_size=60), st.integers(0, 4000))
def test_however_many_headers_come_they_all_arrive(
    listed: list[tuple[tuple[bytes, bytes | None], ...]], crowd: int
) -> None:
    """The buffers start with two headers a record and grow."""
    records = [Rec(delta, b"v", headers=mine) for delta, mine in enumerate(listed)]
    records.append(
        Rec(
            len(records),
            b"v",
            headers=tuple((b"h%d" % (number % 9), None) for number in range(crowd)),
        )
    )
    second = Batch(1, [replace(record, delta=record.delta - 1) for record in records[1:]])
    rows = rows_between(encode(Batch(0, records[:1])) + encode(second), 0, len(records))
    assert [row["headers"] for row in rows] == [
        [{"key": key.decode(), "value": value} for key, value in record.headers] or None
        for record in records
    ]


@kernel
def crc_of(source, at, end):  # type: ignore[no-untyped-def]
    return crc32(source, at, end)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_the_compiled_crc_is_that_of_zlib(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(at, len(content)))
    assert crc_of(read_only_view(content), at, end) == zlib.crc32(content[at:end])


V2 = encode(Batch(5, [Rec(0, b"v", b"k", ((b"h", b"1"),)), Rec(1, None, None)]))
V1 = encode_logical([Msg(5, b"v", b"k", 7), Wrapper([Msg(6, None, None, 8)])], 1)
PHYSICAL = encode_physical([Entry(b"a"), Entry(inside=[Entry(b"b"), Entry(b"c")])])
COLUMNS = [
    ("key", "incarnation"),
    ("value", "offset"),
    ("timestamp", "timestampType"),
    ("headers", "topic"),
    ("partition",),
]
OF_BROKERS = [*COLUMNS, ("broker_id",), ("message_index", "offset")]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("records", [V2, V1], ids=["v2", "v1"])
def test_only_the_chosen_columns_are_built(records: bytes, columns: tuple[str, ...]) -> None:
    whole = rows_in(cursor_of(5, 7, incarnation=4), records)
    assert [row["incarnation"] for row in whole] == [4, 4]
    found = rows_in(cursor_of(5, 7, incarnation=4, columns=columns), records)
    assert found == [{name: row[name] for name in columns} for row in whole]


@pytest.mark.parametrize("columns", OF_BROKERS)
def test_only_the_chosen_columns_of_physical_logs_are_built(columns: tuple[str, ...]) -> None:
    whole = physical_rows_in(physical_cursor(0, len(PHYSICAL)), PHYSICAL)
    found = physical_rows_in(physical_cursor(0, len(PHYSICAL), columns=columns), PHYSICAL)
    assert found == [{name: row[name] for name in columns} for row in whole]


@pytest.mark.parametrize("is_v2", [True, False], ids=["v2", "v0"])
def test_gaps_and_holes_are_kept_one_by_one_up_to_a_bound_and_counted_beyond_it(
    is_v2: bool,
) -> None:
    """Inside a record batch compaction makes them; between messages they are holes."""
    offsets = [2 * number + 1 for number in range(GAPS_KEPT + 5)]
    if is_v2:
        records = encode(Batch(0, [Rec(offset) for offset in offsets]))
    else:
        records = encode_logical([Msg(offset) for offset in offsets], 0)
    cursor = cursor_of(0, 2 * len(offsets))
    rows_in(cursor, records)
    gaps = [(2 * number, 2 * number + 1) for number in range(GAPS_KEPT)]
    result = cursor.result
    assert result.gaps == tuple(gaps)
    assert result.rows == GAPS_KEPT + 5
    assert result.missing_offsets == GAPS_KEPT + 5
    assert result.gaps_complete is False
    assert cursor.missing == ([] if is_v2 else gaps[:MAX_HOLES])
    assert cursor.missing_count == (0 if is_v2 else GAPS_KEPT + 5)


def test_gaps_of_neighbouring_reasons_are_merged() -> None:
    partition = [
        Batch(0, [Rec(0), Rec(3)]),
        control(4, 9, kind=1),
        Batch(7, [Rec(1)], last_delta=3),
    ]
    cursor = cursor_of(0, 12)
    rows_in(cursor, b"".join(encode(batch) for batch in [*partition, Batch(12, [Rec(0)])]))
    assert cursor.result.gaps == ((1, 3), (4, 8), (9, 12))
    assert (cursor.result.control_records, cursor.result.missing_offsets) == (1, 8)


_CALLS_TWICE = """
import sys
sys.path.insert(0, sys.argv[1])
import doubled
assert doubled.__file__.startswith(sys.argv[1]), doubled.__file__
print(doubled.double(4), doubled.double(5))
"""
_DOUBLED = """
from etl.records.kernel_cache import kernel

@kernel
def double(number):
    return 2 * number
"""


def call_elsewhere(path: Path, cache: Path) -> str:
    """Output of a fresh process that calls a kernel; `cache` is its home."""
    environment = {
        **os.environ,
        "HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(etl.__file__).parents[1]),
    }
    environment.pop("NUMBA_CACHE_DIR", None)
    return subprocess.run(
        [sys.executable, "-c", _CALLS_TWICE, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def zipped(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "package.zip", "w") as archive:
        archive.writestr("doubled.py", _DOUBLED)
    return folder / "package.zip"


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a zip, and the home of a process that called the zip's kernel once."""
    folder = tmp_path_factory.mktemp("called")
    assert call_elsewhere(zipped(folder), folder / "home") == "8 10\n"
    return folder


def test_inside_a_zip_a_compiled_kernel_is_kept_under_the_home_folder(called: Path) -> None:
    assert list((called / "home").rglob("doubled.double*.nbi"))


def test_a_cache_file_that_was_cut_off_does_no_harm(called: Path) -> None:
    for kept in (called / "home").rglob("doubled.double*.nb?"):
        kept.write_bytes(kept.read_bytes()[:40])
    assert call_elsewhere(called / "package.zip", called / "home") == "8 10\n"


@pytest.mark.parametrize("is_zipped", [True, False])
def test_a_kernel_works_without_any_folder_to_write_to(tmp_path: Path, is_zipped: bool) -> None:
    (tmp_path / "no_folder").touch()
    path = zipped(tmp_path) if is_zipped else tmp_path
    (tmp_path / "doubled.py").write_text(_DOUBLED)
    (tmp_path / "__pycache__").touch()
    assert call_elsewhere(path, tmp_path / "no_folder") == "8 10\n"


@pytest.mark.parametrize("module", [batch_kernel, message_set_kernel])
def test_the_kernels_of_this_package_can_be_kept(module: ModuleType) -> None:
    """numba warns, and compiles in each process, if a kernel has an address of this one."""
    assert rows_in(cursor_of(5, 7), V2) and rows_in(cursor_of(5, 7), V1)
    source = Path(str(module.__file__))
    cached = source.parent / "__pycache__"
    assert list(cached.glob(f"{source.stem}._fill*.nbi")) or not os.access(cached, os.W_OK)


def large(delta: int, headers: int = 0, value: bytes = b"") -> Rec:
    return Rec(delta, value, headers=((b"", b""),) * headers)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_record_with_more_headers_than_sparks_memory_takes_is_named_itself(codec: Codec) -> None:
    batch = Batch(
        40,
        [large(0, 5), large(1, MAX_RECORD_HEADERS), large(3, MAX_RECORD_HEADERS + 1), large(4, 5)],
        codec,
    )
    cursor = cursor_of(40, 45, max_batch_bytes=1 << 22)
    with pytest.raises(RecordTooLarge, match="more than 100000 headers") as caught:
        rows_in(cursor, encode(batch))
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 43}


def test_the_neighbours_of_a_rejected_record_are_read_without_it() -> None:
    records = [large(0, 5), large(1, MAX_RECORD_HEADERS + 1), large(2, 1, bytes(3000))]
    batch = encode(Batch(40, records, Codec.ZSTD))
    for start, rejected in ((40, 41), (42, 42)):
        with pytest.raises(RecordTooLarge) as caught:
            rows_in(cursor_of(start, 43, max_record_bytes=2000), batch)
        assert caught.value.where["offset"] == rejected
    rows = rows_in(cursor_of(40, 41, max_record_bytes=2000), batch)
    assert [row["offset"] for row in rows] == [40]


@pytest.mark.parametrize(
    "record",
    [
        Rec(2, bytes(2000)),
        Rec(2, b"", bytes(2000)),
        Rec(2, b"", headers=((bytes(1000), bytes(1000)),)),
    ],
)
@pytest.mark.parametrize(
    ("more", "refused"), [(b"", False), (b"x", True)], ids=["at the bound", "a byte more"]
)
def test_a_record_beyond_its_bound_is_named(record: Rec, more: bytes, refused: bool) -> None:
    record = replace(record, value=(record.value or b"") + more)
    records = encode(Batch(7, [Rec(0, bytes(1900)), record, Rec(3, bytes(1900))], Codec.GZIP))
    if not refused:
        assert len(rows_in(cursor_of(7, 11, max_record_bytes=2000), records)) == 3
        return
    with pytest.raises(RecordTooLarge, match="more than 2000 bytes") as caught:
        rows_in(cursor_of(7, 11, max_record_bytes=2000), records)
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 9}


def test_what_no_chosen_column_holds_may_be_of_any_size() -> None:
    records = encode(Batch(7, [large(0, MAX_RECORD_HEADERS + 1, bytes(3000))]))
    assert rows_in(cursor_of(7, 8, max_record_bytes=2000, columns=("key", "offset")), records) == [
        {"key": None, "offset": 7}
    ]


@pytest.mark.parametrize("bound", ["MOST_ROWS", "MOST_BYTES", "MOST_HEADERS"])
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


@pytest.mark.parametrize("bound", ["MOST_ROWS", "MOST_BYTES"])
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


@pytest.mark.parametrize(
    ("bound", "limit", "sizes"),
    [("MOST_ROWS", 2, [2, 2, 1]), ("MOST_BYTES", 20, [3, 2]), ("MOST_HEADERS", 3, [2, 2, 1])],
)
def test_an_arrow_batch_has_three_bounds(bound: str, limit: int, sizes: list[int]) -> None:
    records = encode(
        Batch(
            0, [Rec(delta, b"seven b", headers=((b"", None),) * 2) for delta in range(5)], Codec.LZ4
        )
    )
    with mock.patch.object(arrow_buffers, bound, limit):
        arrow_batches = list(cursor_of(0, 5).feed(answer(records)))
    assert [arrow_batch.num_rows for arrow_batch in arrow_batches] == sizes


def test_cursors_read_in_turn_between_the_arrow_batches_of_one_group_do_not_mix() -> None:
    """They share the room to decompress into."""

    def values(cursor: Cursor, fetched: FetchedPartition) -> Iterator[bytes]:
        return (row["value"] for each in cursor.feed(fetched) for row in each.to_pylist())

    def batch(value: bytes) -> bytes:
        return encode(Batch(0, [Rec(delta, value) for delta in range(40)], Codec.ZSTD))

    wrapper = Wrapper([Msg(offset, b"wrapper") for offset in range(40)], Codec.SNAPPY)
    physical = encode_physical([Entry(inside=[Entry(inside=[Entry(b"physical")] * 20)] * 2)])
    with mock.patch.object(arrow_buffers, "MOST_ROWS", 3):
        in_turn = zip(
            values(cursor_of(0, 40), answer(batch(b"first"))),
            values(cursor_of(0, 40), answer(batch(b"second"))),
            values(cursor_of(0, 40), answer(encode_logical([wrapper], 1))),
            values(physical_cursor(0, len(physical)), physical_answer(physical)),
            strict=True,
        )
        assert list(in_turn) == [(b"first", b"second", b"wrapper", b"physical")] * 40


def test_arrow_batches_stay_while_the_next_is_decoded() -> None:
    """The room that a thread decodes them into is used again."""
    given = [
        Rec(delta, b"v", b"key-%d" % delta, ((b"name-%d" % delta, b"header-%d" % delta),))
        for delta in range(40)
    ]
    with mock.patch.object(arrow_buffers, "MOST_ROWS", 3):
        kept = list(cursor_of(0, 40).feed(answer(encode(Batch(0, given, Codec.LZ4)))))
    assert len(kept) == 14
    assert [row["key"] for one in kept for row in one.to_pylist()] == [
        record.key for record in given
    ]
    named = [
        (header["key"].encode(), header["value"])
        for one in kept
        for row in one.to_pylist()
        for header in row["headers"]
    ]
    assert named == [record.headers[0] for record in given]
