"""How are the columns of an Arrow batch filled?

The entries of one response are decompressed one by one, then decoded by a single call of a
compiled kernel into the buffers of one Arrow batch.

Lives here: buffers of Arrow batches, groups of entries, memory for decompression.
Not here: the kernels (batch_kernel.py, message_set_kernel.py), codecs (codecs.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.errors import CorruptData, RecordTooLarge
from etl.kafka.request_values import FetchedPartition
from etl.records import batch_kernel, codecs, message_set_kernel
from etl.records.batch_kernel import MAX_RECORD_HEADERS
from etl.records.entries import Selection, corrupt, misaligned, place_of
from etl.records.kernel_cache import (
    AT,
    BATCH,
    FILLED,
    FULL,
    HEADER_KEY_BYTES,
    HEADER_VALUE_BYTES,
    HEADERS,
    INDEX,
    KEY_BYTES,
    LOWEST,
    MORE_HEADERS,
    MOST_BYTES,
    MOST_HEADERS,
    MOST_ROWS,
    NO_HEADER_VALUE,
    NO_HEADERS,
    NO_KEY,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    NO_VALUE,
    NON_ASCII,
    OFFSET,
    RECORD,
    ROWS,
    STATE_WIDTH,
    TOO_LARGE,
    TOO_MANY_HEADERS,
    VALUE_BYTES,
    Bytes,
    Ints,
    Tally,
    read_only_view,
)
from etl.settings.choices import MAX_RECORD_BYTES

_HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS_TYPE = pa.list_(pa.field("element", _HEADER_TYPE))

_LARGEST_ROOM = 16 << 20
"""A larger reused buffer is replaced by a smaller one as soon as a group fits it."""
_reused = threading.local()
"""Reused buffers of each thread; `arrow_batch` copies their content."""


class ColumnBuffers:
    """Buffers for one Arrow batch, filled by a kernel from a group of entries.

    `rows` and `size` are upper bounds: records, and decompressed bytes of records. Only the
    selected columns are built. A group that does not fit continues in the `following` buffers.
    Subclasses add the columns of their format.
    """

    def __init__(
        self,
        columns: Collection[str],
        *,
        rows: int,
        size: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._columns = columns
        self._size = size
        self._max_record_bytes = max_record_bytes
        self._room_for_rows = rows = min(rows, MOST_ROWS)
        self._key = "key" in columns
        self._value = "value" in columns
        key_rows = rows if self._key else 0
        value_rows = rows if self._value else 0
        value_size = size if self._value else 0
        self._state: Ints = np.zeros(STATE_WIDTH, dtype=np.int64)
        self._offsets = np.empty(rows, dtype=np.int64)
        self._timestamps = np.empty(rows, dtype=np.int64)
        self._timestamp_bits = _bits(rows)
        self._timestamp_types = np.empty(rows, dtype=np.int32)
        self._key_ends = _ends(key_rows)
        self._key_bytes = _reused_room("key", size, self._key)
        self._key_bits = _bits(key_rows)
        self._value_ends = _ends(value_rows)
        self._value_bits = _bits(value_rows)
        self._value_bytes: Bytes = np.empty(value_size, dtype=np.uint8)

    def following(self) -> Self:
        """Return empty buffers for the rest of the group, which did not fit into these."""
        following = type(self)(
            self._columns, rows=MOST_ROWS, size=self._size, max_record_bytes=self._max_record_bytes
        )
        kept = [BATCH, RECORD, AT, LOWEST, INDEX]
        following._state[kept] = self._state[kept]
        return following

    def fill(
        self,
        plain: Bytes,
        unpacked: Bytes,
        table: Ints,
        *,
        from_offset: int,
        until_offset: int,
        tally: Tally,
        fetched: FetchedPartition,
    ) -> bool:
        """Decode the entries in `table` with offsets in [from, until), and count in `tally`.

        START and UNTIL of the table are places in `plain` and `unpacked`. Returns True if these
        buffers are full and the rest belongs into the `following` ones. Raises CorruptData, and
        RecordTooLarge with the record.
        """
        while True:
            code = self._call_kernel(plain, unpacked, table, from_offset, until_offset, tally)
            if code in (FILLED, FULL):
                return code == FULL
            if code in (TOO_LARGE, TOO_MANY_HEADERS):
                raise self._too_large(code, fetched)
            if code != MORE_HEADERS:
                raise self._wrong(code, table, fetched)
            self._grow_headers()

    def _call_kernel(
        self,
        plain: Bytes,
        unpacked: Bytes,
        table: Ints,
        from_offset: int,
        until_offset: int,
        tally: Tally,
    ) -> int:
        raise NotImplementedError

    def _wrong(self, code: int, table: Ints, fetched: FetchedPartition) -> CorruptData:
        """Return the error of a kernel code that only this format has."""
        raise NotImplementedError

    def _grow_headers(self) -> None:
        raise NotImplementedError

    def _too_large(self, code: int, fetched: FetchedPartition) -> RecordTooLarge:
        offset = int(self._state[OFFSET])
        if code == TOO_LARGE:
            message = f"A record has more than {self._max_record_bytes} bytes"
            action = (
                "Check its producer. max_record_bytes can be raised if Spark has ten times as much "
                "memory for each core that reads"
            )
        else:
            message = (
                f"A record has more than {MAX_RECORD_HEADERS} headers, too many for Spark's memory"
            )
            action = "Check its producer"
        return RecordTooLarge(message, action=action, **place_of(fetched), offset=offset)

    @property
    def rows(self) -> int:
        return int(self._state[ROWS])

    def arrow_batch(self, fetched: FetchedPartition, incarnation: int) -> pa.RecordBatch:
        """Return the rows filled in so far, over these buffers without a copy."""
        rows = self.rows
        state = self._state
        build: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _varied(
                pa.binary(),
                rows,
                self._key_ends,
                _kept(self._key_bytes, state[KEY_BYTES]),
                self._key_bits,
                state[NO_KEY],
            ),
            "value": lambda: _varied(
                pa.binary(),
                rows,
                self._value_ends,
                self._value_bytes[: state[VALUE_BYTES]],
                self._value_bits,
                state[NO_VALUE],
            ),
            "topic": lambda: _repeated(fetched.topic, rows),
            "partition": lambda: _same(fetched.partition, rows),
            "offset": lambda: pa.array(self._offsets[:rows]),
            "timestamp": self._timestamp_array,
            "timestampType": self._timestamp_type_array,
            "headers": self._headers_array,
            "broker_id": lambda: _same(fetched.broker_id, rows),
            "message_index": self._message_index_array,
            "incarnation": lambda: _same(incarnation, rows),
        }
        names = [name for name in build if name in self._columns]
        return pa.RecordBatch.from_arrays([build[name]() for name in names], names=names)

    def _timestamp_array(self) -> pa.Array:
        rows = self.rows
        missing = int(self._state[NO_TIMESTAMP])
        bits = pa.py_buffer(self._timestamp_bits) if missing else None
        return pa.Array.from_buffers(
            pa.timestamp("us", tz="UTC"),
            rows,
            [bits, pa.py_buffer(self._timestamps[:rows])],
            missing,
        )

    def _timestamp_type_array(self) -> pa.Array:
        return pa.array(self._timestamp_types[: self.rows])

    def _headers_array(self) -> pa.Array:
        return pa.nulls(self.rows, _HEADERS_TYPE)

    def _message_index_array(self) -> pa.Array:
        return pa.nulls(self.rows, pa.int32())


class BatchBuffers(ColumnBuffers):
    """Buffers of record batches v2, with headers."""

    def __init__(
        self,
        columns: Collection[str],
        *,
        rows: int,
        size: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        super().__init__(columns, rows=rows, size=size, max_record_bytes=max_record_bytes)
        self._with_headers = "headers" in columns
        header_rows = self._room_for_rows if self._with_headers else 0
        self._header_ends = _ends(header_rows)
        self._header_bits = _bits(header_rows)
        self._header_key_bytes = _reused_room("header key", size, self._with_headers)
        self._header_value_bytes = _reused_room("header value", size, self._with_headers)
        self._most_headers = size // 2
        headers = min(self._most_headers, 2 * header_rows)
        self._header_key_ends = _ends(headers)
        self._header_value_ends = _ends(headers)
        self._header_value_bits = _bits(headers)

    def _call_kernel(
        self,
        plain: Bytes,
        unpacked: Bytes,
        table: Ints,
        from_offset: int,
        until_offset: int,
        tally: Tally,
    ) -> int:
        return batch_kernel.fill_batches(
            (
                plain,
                unpacked,
                table,
                from_offset,
                until_offset,
                self._key,
                self._value,
                self._with_headers,
                self._offsets,
                self._timestamps,
                self._timestamp_bits,
                self._timestamp_types,
                self._key_ends,
                self._key_bytes,
                self._key_bits,
                self._value_ends,
                self._value_bytes,
                self._value_bits,
                self._header_ends,
                self._header_bits,
                self._header_key_ends,
                self._header_key_bytes,
                self._header_value_ends,
                self._header_value_bytes,
                self._header_value_bits,
                self._max_record_bytes,
                MOST_BYTES,
                MOST_HEADERS,
                self._state,
            ),
            tally,
        )

    def _wrong(self, code: int, table: Ints, fetched: FetchedPartition) -> CorruptData:
        base_offset = int(table[self._state[BATCH], batch_kernel.BASE_OFFSET])
        return CorruptData(
            batch_kernel.WRONG[code],
            action="Check the partition on the broker (kafka-dump-log), or report a bug",
            **place_of(fetched),
            offset=base_offset,
        )

    def _grow_headers(self) -> None:
        """Make room for more headers.

        `size // 2` of them always suffice, because a header has at least two bytes.
        """
        room = min(self._most_headers, 4 * max(1024, self._header_key_ends.size)) + 8
        for name in ("_header_key_ends", "_header_value_ends"):
            grown = _ends(room)
            old = getattr(self, name)
            grown[: old.size] = old
            setattr(self, name, grown)
        bits = _bits(room)
        bits[: self._header_value_bits.size] = self._header_value_bits
        self._header_value_bits = bits

    def _headers_array(self) -> pa.Array:
        rows = self.rows
        state = self._state
        headers = int(state[HEADERS])
        keys = _varied(
            pa.string(),
            headers,
            self._header_key_ends,
            _kept(self._header_key_bytes, state[HEADER_KEY_BYTES]),
            None,
            0,
        )
        if state[NON_ASCII]:
            keys = _as_text(keys)
        values = _varied(
            pa.binary(),
            headers,
            self._header_value_ends,
            _kept(self._header_value_bytes, state[HEADER_VALUE_BYTES]),
            self._header_value_bits,
            state[NO_HEADER_VALUE],
        )
        pairs = pa.Array.from_buffers(_HEADER_TYPE, headers, [None], 0, children=[keys, values])
        missing = int(state[NO_HEADERS])
        bits = pa.py_buffer(self._header_bits) if missing else None
        ends = pa.py_buffer(self._header_ends[: rows + 1])
        return pa.Array.from_buffers(_HEADERS_TYPE, rows, [bits, ends], missing, children=[pairs])


class MessageBuffers(ColumnBuffers):
    """Buffers of older messages: no headers, optional timestamps, message indexes on Jafka."""

    def __init__(
        self,
        columns: Collection[str],
        *,
        rows: int,
        size: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        super().__init__(columns, rows=rows, size=size, max_record_bytes=max_record_bytes)
        self._timestamp_type_bits = _bits(self._room_for_rows)
        self._indexes = np.empty(self._room_for_rows, dtype=np.int32)
        self._is_physical = False

    def _call_kernel(
        self,
        plain: Bytes,
        unpacked: Bytes,
        table: Ints,
        from_offset: int,
        until_offset: int,
        tally: Tally,
    ) -> int:
        self._is_physical = bool(table[0, message_set_kernel.LAYOUT] >= message_set_kernel.PHYSICAL)
        return message_set_kernel.fill_messages(
            (
                plain,
                unpacked,
                table,
                from_offset,
                until_offset,
                self._key,
                self._value,
                self._offsets,
                self._indexes,
                self._timestamps,
                self._timestamp_bits,
                self._timestamp_types,
                self._timestamp_type_bits,
                self._key_ends,
                self._key_bytes,
                self._key_bits,
                self._value_ends,
                self._value_bytes,
                self._value_bits,
                self._max_record_bytes,
                MOST_BYTES,
                self._state,
            ),
            tally,
        )

    def _wrong(self, code: int, table: Ints, fetched: FetchedPartition) -> CorruptData:
        message = message_set_kernel.WRONG[code]
        offset = int(self._state[OFFSET])
        if table[self._state[BATCH], message_set_kernel.LAYOUT] == message_set_kernel.PHYSICAL:
            return misaligned(fetched, offset, message)
        return corrupt(fetched, offset, message)

    def _timestamp_type_array(self) -> pa.Array:
        missing = int(self._state[NO_TIMESTAMP_TYPE])
        bits = pa.py_buffer(self._timestamp_type_bits) if missing else None
        return pa.Array.from_buffers(
            pa.int32(), self.rows, [bits, pa.py_buffer(self._timestamp_types[: self.rows])], missing
        )

    def _message_index_array(self) -> pa.Array:
        if self._is_physical:
            return pa.array(self._indexes[: self.rows])
        return super()._message_index_array()


def _same(number: int | None, count: int) -> pa.Array:
    if number is None:
        return pa.nulls(count, pa.int32())
    return pa.array(np.full(count, number, dtype=np.int32))


def _ends(count: int) -> NDArray[np.int32]:
    ends = np.empty(count + 1, dtype=np.int32)
    ends[0] = 0
    return ends


def _bits(count: int) -> Bytes:
    return np.zeros((count + 7) // 8, dtype=np.uint8)


def _reused_room(name: str, size: int, wanted: bool) -> Bytes:
    """Return reused memory for keys or headers, of which most records have few bytes.

    `_kept` copies its content.
    """
    if not wanted:
        return np.empty(0, dtype=np.uint8)

    rooms: dict[str, Bytes] = _reused.__dict__
    room = rooms.get(name)
    if room is None or room.size < size or room.size > _LARGEST_ROOM >= size:
        room = rooms[name] = np.empty(size, dtype=np.uint8)
    return room


def _kept(room: Bytes, used: int) -> Bytes:
    """Copy the filled part of a reused buffer."""
    return room[:used].copy()


def _varied(
    kind: pa.DataType,
    count: int,
    ends: NDArray[np.int32],
    content: Bytes,
    bits: Bytes | None,
    missing: int,
) -> pa.Array:
    """Return an array of strings or binaries over its three buffers."""
    validity = pa.py_buffer(bits) if missing and bits is not None else None
    return pa.Array.from_buffers(
        kind,
        count,
        [validity, pa.py_buffer(ends[: count + 1]), pa.py_buffer(content)],
        int(missing),
    )


def _repeated(text: str, count: int) -> pa.Array:
    """Return a plain string column with `count` times `text`."""
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)], 0
    )


def _as_text(keys: pa.Array) -> pa.Array:
    """Return header keys as valid UTF-8, with replacement characters as in Java clients.

    Few keys are distinct, so each is decoded once.
    """
    try:
        keys.validate(full=True)
        return keys
    except pa.ArrowInvalid:
        encoded = keys.cast(pa.binary()).dictionary_encode()
        texts = pa.array(
            [name.decode("utf-8", "replace") for name in encoded.dictionary.to_pylist()],
            pa.string(),
        )
        return texts.take(encoded.indices)


GROUP_BYTES = 4 << 20
"""Entries are decoded together up to this many bytes, which fit into the processor's cache ..."""
GROUP_RECORDS = 1 << 18
"""... or up to this many records. MOST_ROWS and MOST_BYTES limit one Arrow batch."""

_scratch = threading.local()


class Group:
    """Entries of one response that are not decoded yet.

    `buffers` is the class for their format. Decompressed bytes are in memory that all cursors of
    this thread share, valid within one decoding step.
    """

    def __init__(
        self,
        fetched: FetchedPartition,
        selection: Selection,
        tally: Tally,
        buffers: type[ColumnBuffers],
    ) -> None:
        self.fetched = fetched
        self.selection = selection
        self.plain = read_only_view(fetched.records)
        self._tally = tally
        self._buffers = buffers
        self._empty()

    def _empty(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._records = 0
        self._size = 0
        self._unpacked_size = 0

    def add_row(self, row: tuple[int, ...], *, records: int, size: int) -> None:
        """Add the bytes of this table row: up to `records` records in `size` bytes."""
        self._rows.append(row)
        self._records += records
        self._size += size

    @property
    def is_full(self) -> bool:
        return (
            self._size >= GROUP_BYTES
            or self._unpacked_size >= GROUP_BYTES
            or self._records >= GROUP_RECORDS
        )

    @property
    def unpacked(self) -> Bytes:
        """Return the target of `unpack`."""
        return _scratch_bytes(GROUP_BYTES + self.selection.max_unpacked_bytes)

    @property
    def unpacked_size(self) -> int:
        return self._unpacked_size

    def unpack(
        self, codec: int, content: Bytes, offset: int, description: str, *, already: int = 0
    ) -> tuple[int, int]:
        """Append the decompressed `content` to `unpacked`; return its place there.

        `description` names the content in errors; `already`: bytes that count for the same limit.
        Raises RecordTooLarge above `max_unpacked_bytes`, CorruptData for invalid bytes.
        """
        start = self._unpacked_size
        most = self.selection.max_unpacked_bytes
        target = self.unpacked[start : start + most - already]
        self._unpacked_size += decompress(
            self.fetched, codec, content, target, offset, description, most=most
        )
        return start, self._unpacked_size

    @contextmanager
    def temporary_unpack(self) -> Iterator[None]:
        """Context manager that drops the bytes decompressed inside."""
        kept = self._unpacked_size
        yield
        self._unpacked_size = kept

    def take(self) -> Iterator[pa.RecordBatch]:
        """Decode and remove the entries. Yields nothing if no record has a selected offset."""
        if not self._rows:
            return

        table = np.array(self._rows, dtype=np.int64)
        selection = self.selection
        fetched = self.fetched
        buffers = self._buffers(
            selection.columns,
            rows=self._records,
            size=self._size,
            max_record_bytes=selection.max_record_bytes,
        )
        unpacked = read_only_view(self.unpacked) if self._unpacked_size else self.plain
        is_compressed = self._unpacked_size > 0
        is_huge = self._unpacked_size > 4 * GROUP_BYTES
        self._empty()
        more = True
        while more:
            more = buffers.fill(
                self.plain,
                unpacked,
                table,
                from_offset=selection.from_offset,
                until_offset=selection.until_offset,
                tally=self._tally,
                fetched=fetched,
            )
            if is_huge or (more and is_compressed):
                # A huge buffer must not stay resident, and no other cursor may overwrite the bytes
                # that are still to be decoded.
                _drop_scratch()
            if buffers.rows:
                yield buffers.arrow_batch(fetched, selection.incarnation)
            if more:
                buffers = buffers.following()


def decompress(
    fetched: FetchedPartition,
    codec: int,
    content: Bytes,
    target: Bytes,
    offset: int,
    description: str,
    *,
    most: int,
) -> int:
    """Decompress `content` of the entry at `offset` into `target`; return the number of bytes.

    `target` is the rest of the limit `most`. Raises RecordTooLarge, CorruptData.
    """
    try:
        return codecs.decompress(codec, content, target)
    except codecs.DoesNotFit as error:
        raise RecordTooLarge(
            f"{description} decompresses to more than {most} bytes",
            action=(
                "Check its producer: such a ratio is rare for data and usual for a decompression "
                "bomb"
            ),
            **place_of(fetched),
            offset=offset,
        ) from error
    except ValueError as error:
        raise corrupt(
            fetched, offset, f"{description} is invalid {codecs.NAMES[codec]}: {error}"
        ) from error


def _scratch_bytes(size: int) -> Bytes:
    """Return this thread's memory for decompression, used within one step of `decode`."""
    content: Bytes | None = getattr(_scratch, "bytes", None)
    if content is None or content.size < size:
        content = _scratch.bytes = np.empty(size, dtype=np.uint8)
    return content


def _drop_scratch() -> None:
    """Drop this thread's memory for decompression; the next decompression allocates new memory.

    Existing references keep the old memory alive.
    """
    _scratch.__dict__.pop("bytes", None)
