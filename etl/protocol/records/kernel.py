"""The compiled kernels: bytes of records (format v2) to Arrow buffers, with no Python object per record.

Owns the walk over varints, the bounds it keeps, the buffers, and their wrapping into a `pyarrow.RecordBatch`. Which
stretches of bytes hold records, their CRC and their decompression belong to `record_batches`; which offsets are wanted
and when a range is done to `cursor`; the names and order of the columns to `frame`.

One call of `_fill` decodes all record batches of a *group* (one row of the group's table each), because a call with
that many arrays costs some microseconds. The buffers are as large as the bytes that come in could possibly need; the
part that nothing was written to never becomes resident memory. Every read is checked against the end of its record,
every write is bounded by the bytes read: bytes that are no records end in CorruptData, never in a stray read.

numba's cache lies beside the source, or under the home folder when the package is in a zip. Where neither can be
written the kernels are compiled again in each process (2 to 3 seconds) instead of failing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from etl.errors import CorruptData, RecordTooLarge

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

MOST_ROWS = (1 << 18) + (1 << 16)
"""Rows of one Arrow batch: the topic is repeated with each."""
MOST_BYTES = 32 << 20
"""Bytes of keys, values and headers in one Arrow batch, its last record not counted."""
MOST_HEADERS = 1 << 20
"""Headers in one Arrow batch, those of its last record not counted."""
MAX_RECORD_HEADERS = 100_000
"""Headers of one record. A JVM with the default memory still takes 4,000,000 and dies of 8,000,000, which come in a few hundred bytes."""
MAX_RECORD_BYTES = 32 << 20
"""Bytes of one record as long as nobody says otherwise. A JVM with the default memory takes one of 64 MiB and dies of 120 MiB.

More than 1 GiB nobody may say: offsets into the buffers of a column are int32.
"""
SMALLEST_RECORD = 7
"""length, attributes, two deltas, two lengths, header count: a byte each."""
MAX_GAPS = 1000
"""Gaps a receipt keeps one by one."""

# Columns of a group's table: one row per record batch.
COMPRESSED, START, UNTIL, COUNT, BASE_OFFSET, LAST_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, APPEND_TIME = range(9)
TABLE_WIDTH = 9

# Fill state of the buffers, kept from one call to the next.
_BATCH, _ROWS, _KEY_BYTES, _VALUE_BYTES, _HEADERS, _HEADER_KEY_BYTES, _HEADER_VALUE_BYTES = range(7)
_NO_KEY, _NO_VALUE, _NO_TIMESTAMP, _NO_HEADERS, _NO_HEADER_VALUE, _NON_ASCII = range(7, 13)
# Where it goes on inside a record batch: records done, place of the next one, the lowest offset it may have. And which record was refused.
_RECORD, _AT, _LOWEST, _OFFSET = range(13, 17)
_STATE_WIDTH = 17

# Tally: what the whole walk through a range has seen so far.
_EXPECTED, _GAPS, _SEEN_ROWS = range(3)

_FILLED, _MORE_HEADERS, _FULL = 0, 1, 8
_WRONG = {
    2: "a record's length or offset does not fit its record batch",
    3: "a record's key, value or header is longer than the record, or the record is longer than they are",
    4: "a record's offset lies outside its record batch or does not rise",
    5: "bytes are left after the last record of a record batch",
}
_BAD_RECORD, _BAD_FIELD, _BAD_OFFSET, _BYTES_LEFT = _WRONG
_TOO_LARGE, _TOO_MANY_HEADERS = 6, 7

_FAR = 1 << 62
"""A place no buffer reaches: what a malformed varint ends at, so that one check after several reads is enough."""
_MAX_MS = (2**63 - 1) // 1000
_NO_MS = -1
_HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS_TYPE = pa.list_(pa.field("element", _HEADER_TYPE))


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, and keep the result on disk where that is possible."""
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except (RuntimeError, OSError):
        # numba finds no folder it may write to and says so when decorating.
        return njit(nogil=True)(function)

    state = {"call": compiled}

    def call(*arguments: Any) -> Any:
        try:
            return state["call"](*arguments)
        except (OSError, EOFError, pickle.UnpicklingError):
            # A package in a zip and no home to write to, a full disk, a cache file cut off: decoding goes on without.
            state["call"] = njit(nogil=True)(function)
            return state["call"](*arguments)

    return call


@njit(nogil=True)
def _long_varint(source, at, end, last_shift):  # type: ignore[no-untyped-def]
    number = np.uint64(0)
    shift = 0
    while at < end and shift <= last_shift:
        byte = np.uint64(source[at])
        number |= (byte & np.uint64(127)) << np.uint64(shift)
        at += 1
        if byte < 128:
            return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1)), at
        shift += 7
    return np.int64(0), np.int64(_FAR)


@njit(nogil=True)
def _varint(source, at, end, last_shift):  # type: ignore[no-untyped-def]
    """(number, place after it); the place is _FAR when the bytes end first or there are too many of them."""
    if at < end:
        byte = np.int64(source[at])
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _long_varint(source, at, end, last_shift)


def _copy_bytes(_: Any, source: Any, at: Any, count: Any, target: Any, to: Any) -> Any:
    """`memcpy` of bytes that the caller has found inside `source`: several times as fast as a loop or a slice here.

    They fit: `target` has room for all bytes of the group, and each of them is copied once.
    """

    # Ignored below: numba's own functions have no types.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        def address(array: int, place: int) -> Any:
            content = make_array(signature.args[array])(context, builder, arguments[array]).data  # type: ignore[no-untyped-call]
            return builder.gep(content, [arguments[place]])

        cgutils.raw_memcpy(builder, address(3, 4), address(0, 1), arguments[2], 1)  # type: ignore[no-untyped-call]

    return types.void(source, types.intp, types.intp, target, types.intp), generate


_copy: Any = intrinsic(_copy_bytes)


@kernel
def _fill(  # type: ignore[no-untyped-def]  # noqa: C901  one loop, so that its state stays in registers
    plain, unpacked, table, from_offset, until_offset, want_key, want_value, want_headers,
    offsets, timestamps, timestamp_bits, timestamp_types, key_ends, key_bytes, key_bits, value_ends, value_bytes, value_bits,
    header_ends, header_bits, header_key_ends, header_key_bytes, header_value_ends, header_value_bytes, header_value_bits,
    most_record_bytes, most_bytes, most_headers, state, tally, gaps,
):
    """Decode the record batches of `table` from where `state` says on; the code says how it ended.

    The state is written back after each whole record batch, and where the Arrow batch is full, between two records. A record whose
    headers found no room is decoded again, and what came before it since then.
    """
    for batch in range(state[_BATCH], table.shape[0]):
        source = unpacked if table[batch, COMPRESSED] else plain
        at, until, done = table[batch, START], table[batch, UNTIL], state[_RECORD]
        base_offset, last_offset = table[batch, BASE_OFFSET], table[batch, LAST_OFFSET]
        base_ms, max_ms, append_time = table[batch, BASE_TIMESTAMP], table[batch, MAX_TIMESTAMP], table[batch, APPEND_TIME]
        row, key_at, value_at, header = state[_ROWS], state[_KEY_BYTES], state[_VALUE_BYTES], state[_HEADERS]
        header_key_at, header_value_at = state[_HEADER_KEY_BYTES], state[_HEADER_VALUE_BYTES]
        no_key, no_value, no_timestamp = state[_NO_KEY], state[_NO_VALUE], state[_NO_TIMESTAMP]
        no_headers, no_header_value, non_ascii = state[_NO_HEADERS], state[_NO_HEADER_VALUE], state[_NON_ASCII]
        expected, gap, first_row = tally[_EXPECTED], tally[_GAPS], row
        lowest = base_offset
        if done:
            at, lowest = state[_AT], state[_LOWEST]
        used, full = key_at + value_at + header_key_at + header_value_at, False
        while done < table[batch, COUNT]:
            if used >= most_bytes or row >= offsets.shape[0] or header >= most_headers:
                full = True
                break
            done += 1
            length, at = _varint(source, at, until, 28)
            if at > until or length < SMALLEST_RECORD - 1 or length > until - at:
                return _BAD_RECORD
            end = at + length
            delta_ms, at = _varint(source, at + 1, end, 63)
            delta, at = _varint(source, at, end, 28)
            key_size, at = _varint(source, at, end, 28)
            if at > end or key_size > end - at:
                return _BAD_FIELD
            offset = base_offset + delta
            if offset < lowest or offset > last_offset:
                return _BAD_OFFSET
            lowest = offset + 1
            if offset < from_offset or offset >= until_offset:
                at = end
                continue
            bit = np.uint8(1 << (row & 7))

            if key_size < 0:
                no_key += 1
            else:
                if want_key:
                    _copy(source, at, key_size, key_bytes, key_at)
                    key_at += key_size
                    key_bits[row >> 3] |= bit
                at += key_size
            value_size, at = _varint(source, at, end, 28)
            if at > end or value_size > end - at:
                return _BAD_FIELD
            if value_size < 0:
                no_value += 1
            else:
                if want_value:
                    _copy(source, at, value_size, value_bytes, value_at)
                    value_at += value_size
                    value_bits[row >> 3] |= bit
                at += value_size
            if want_key:
                key_ends[row + 1] = key_at
            if want_value:
                value_ends[row + 1] = value_at

            header_count, at = _varint(source, at, end, 28)
            if at > end or header_count < 0 or header_count > (end - at) // 2:
                return _BAD_FIELD
            if want_headers and header_count > MAX_RECORD_HEADERS:
                state[_OFFSET] = offset
                return _TOO_MANY_HEADERS
            if want_headers and header + header_count >= header_key_ends.shape[0]:
                return _MORE_HEADERS
            for _ in range(header_count):
                size, at = _varint(source, at, end, 28)
                if at > end or size < 0 or size > end - at:
                    return _BAD_FIELD
                if want_headers:
                    for place in range(size):
                        byte = source[at + place]
                        header_key_bytes[header_key_at + place] = byte
                        non_ascii |= byte >> 7
                    header_key_at += size
                    header_key_ends[header + 1] = header_key_at
                at += size
                size, at = _varint(source, at, end, 28)
                if at > end or size > end - at:
                    return _BAD_FIELD
                if want_headers:
                    if size < 0:
                        no_header_value += 1
                    else:
                        _copy(source, at, size, header_value_bytes, header_value_at)
                        header_value_at += size
                        header_value_bits[header >> 3] |= np.uint8(1 << (header & 7))
                    header_value_ends[header + 1] = header_value_at
                    header += 1
                if size > 0:
                    at += size
            if at != end:
                return _BAD_FIELD
            before, used = used, key_at + value_at + header_key_at + header_value_at
            if used - before > most_record_bytes:
                state[_OFFSET] = offset
                return _TOO_LARGE
            if want_headers:
                header_ends[row + 1] = header
                if header_count == 0:
                    no_headers += 1
                else:
                    header_bits[row >> 3] |= bit

            ms = max_ms if append_time else base_ms + delta_ms
            wrapped = not append_time and ((base_ms ^ ms) & (delta_ms ^ ms)) < 0
            if ms == _NO_MS or wrapped or ms > _MAX_MS or ms < -_MAX_MS:
                timestamps[row] = 0
                no_timestamp += 1
            else:
                timestamps[row] = ms * 1000
                timestamp_bits[row >> 3] |= bit
            timestamp_types[row] = append_time
            offsets[row] = offset
            if offset != expected:
                if gap < gaps.shape[0]:
                    gaps[gap, 0] = expected
                    gaps[gap, 1] = offset
                gap += 1
            expected = offset + 1
            row += 1
        if at != until and not full:
            return _BYTES_LEFT
        state[_BATCH], state[_RECORD], state[_AT], state[_LOWEST] = (batch, done, at, lowest) if full else (batch + 1, 0, 0, 0)
        state[_ROWS], state[_KEY_BYTES], state[_VALUE_BYTES], state[_HEADERS] = row, key_at, value_at, header
        state[_HEADER_KEY_BYTES], state[_HEADER_VALUE_BYTES] = header_key_at, header_value_at
        state[_NO_KEY], state[_NO_VALUE], state[_NO_TIMESTAMP] = no_key, no_value, no_timestamp
        state[_NO_HEADERS], state[_NO_HEADER_VALUE], state[_NON_ASCII] = no_headers, no_header_value, non_ascii
        tally[_EXPECTED], tally[_GAPS] = expected, gap
        tally[_SEEN_ROWS] += row - first_row
        if full:
            return _FULL
    return _FILLED


@kernel
def _count(source, at, until, count, base_offset, last_offset, from_offset, until_offset):  # type: ignore[no-untyped-def]
    """How many records of one record batch lie in [from, until); minus a code of _WRONG when the bytes are no records."""
    found, lowest = 0, base_offset
    for _ in range(count):
        length, at = _varint(source, at, until, 28)
        if at > until or length < SMALLEST_RECORD - 1 or length > until - at:
            return -_BAD_RECORD
        end = at + length
        _, place = _varint(source, at + 1, end, 63)
        delta, place = _varint(source, place, end, 28)
        offset = base_offset + delta
        if place > end or offset < lowest or offset > last_offset:
            return -_BAD_OFFSET
        lowest = offset + 1
        if from_offset <= offset < until_offset:
            found += 1
        at = end
    return found if at == until else -_BYTES_LEFT


def count_records(source: Bytes, row: tuple[int, ...], from_offset: int, until_offset: int, **place: Any) -> int:
    """How many records of the record batch that `row` (of a group's table) describes lie in [from, until).

    Raises CorruptData where the bytes are no records.
    """
    _, start, until, count, base_offset, last_offset = row[:6]
    found = int(_count(source, start, until, count, base_offset, last_offset, from_offset, until_offset))
    if found < 0:
        raise CorruptData(_WRONG[-found], check="the log on the broker, or a bug here", **place, offset=base_offset)
    return found


class Tally:
    """Rows seen by one walk, and the intervals that gave none, as the kernel counts them while it decodes."""

    def __init__(self, from_offset: int) -> None:
        self._numbers: Ints = np.array([from_offset, 0, 0], dtype=np.int64)
        self._gaps: Ints = np.empty((MAX_GAPS, 2), dtype=np.int64)

    @property
    def rows(self) -> int:
        return int(self._numbers[_SEEN_ROWS])

    @property
    def gap_count(self) -> int:
        """All of them, also those beyond MAX_GAPS."""
        return int(self._numbers[_GAPS])

    def gaps(self) -> list[tuple[int, int]]:
        """The first MAX_GAPS intervals [from, until) without a row, in order."""
        return [(int(first), int(until)) for first, until in self._gaps[:min(self.gap_count, MAX_GAPS)]]

    @property
    def expected(self) -> int:
        """One past the newest row, or the start of the range."""
        return int(self._numbers[_EXPECTED])

    def fill(self, arguments: tuple[Any, ...]) -> int:
        return int(_fill(*arguments, self._numbers, self._gaps))


class ColumnBuffers:
    """Buffers for the rows of one Arrow batch, and the way of a group of record batches through the kernel into them.

    `rows` and `size` are upper bounds: records, and bytes of records (decompressed) in the group. Only the chosen columns are built.
    Filled once; a group that does not fit into one Arrow batch goes on in the buffers `behind` the full ones.
    """

    def __init__(self, columns: Collection[str], *, rows: int, size: int, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self._columns, self._size, self._max_record_bytes = columns, size, max_record_bytes
        rows = min(rows, MOST_ROWS)
        self._key, self._value, self._with_headers = ("key" in columns, "value" in columns, "headers" in columns)
        keyed, valued, headed = (rows if wanted else 0 for wanted in (self._key, self._value, self._with_headers))
        self._state: Ints = np.zeros(_STATE_WIDTH, dtype=np.int64)
        self._offsets = np.empty(rows, dtype=np.int64)
        self._timestamps = np.empty(rows, dtype=np.int64)
        self._timestamp_bits = _bits(rows)
        self._timestamp_types = np.empty(rows, dtype=np.int32)
        self._key_ends, self._key_bytes, self._key_bits = _ends(keyed), _room(size, self._key), _bits(keyed)
        self._value_ends, self._value_bytes, self._value_bits = _ends(valued), _room(size, self._value), _bits(valued)
        self._header_ends, self._header_bits = _ends(headed), _bits(headed)
        self._header_key_bytes, self._header_value_bytes = _room(size, self._with_headers), _room(size, self._with_headers)
        self._most_headers = size // 2
        headers = min(self._most_headers, 2 * headed)
        self._header_key_ends, self._header_value_ends, self._header_value_bits = _ends(headers), _ends(headers), _bits(headers)

    def behind(self) -> ColumnBuffers:
        """Empty buffers for what of the group did not fit into these."""
        following = ColumnBuffers(self._columns, rows=MOST_ROWS, size=self._size, max_record_bytes=self._max_record_bytes)
        kept = [_BATCH, _RECORD, _AT, _LOWEST]
        following._state[kept] = self._state[kept]
        return following

    def fill(self, plain: Bytes, unpacked: Bytes, table: Ints, *, from_offset: int, until_offset: int, tally: Tally,
             **place: Any) -> bool:
        """Decode the record batches of `table`, rows within [from, until) only, and add what was seen to `tally`.

        `plain` and `unpacked` are the buffers that START and UNTIL of the table are places in. True: they are full, and the group goes
        on in the buffers `behind` these. Raises CorruptData, and RecordTooLarge naming the record.
        """
        while True:
            code = tally.fill((
                plain, unpacked, table, from_offset, until_offset, self._key, self._value, self._with_headers,
                self._offsets, self._timestamps, self._timestamp_bits, self._timestamp_types,
                self._key_ends, self._key_bytes, self._key_bits, self._value_ends, self._value_bytes, self._value_bits,
                self._header_ends, self._header_bits, self._header_key_ends, self._header_key_bytes,
                self._header_value_ends, self._header_value_bytes, self._header_value_bits,
                self._max_record_bytes, MOST_BYTES, MOST_HEADERS, self._state,
            ))
            if code in (_FILLED, _FULL):
                return code == _FULL
            if code in (_TOO_LARGE, _TOO_MANY_HEADERS):
                raise self._too_large(code, place)
            if code != _MORE_HEADERS:
                base_offset = int(table[self._state[_BATCH], BASE_OFFSET])
                raise CorruptData(_WRONG[code], check="the log on the broker, or a bug here", **place, offset=base_offset)
            self._grow_headers()

    def _too_large(self, code: int, place: dict[str, Any]) -> RecordTooLarge:
        offset = int(self._state[_OFFSET])
        if code == _TOO_LARGE:
            what = f"a record has more than {self._max_record_bytes} bytes"
            check = "who produced it; max_record_bytes may be raised where Spark has ten times as much memory for each core that reads"
        else:
            what = f"a record has more than {MAX_RECORD_HEADERS} headers, which Spark's memory would not hold"
            check = "who produced it"
        return RecordTooLarge(what, check=check, **place, offset=offset)

    def _grow_headers(self) -> None:
        """Room for twice as many headers; `size // 2` of them always fit, because a header is two bytes at least."""
        room = min(self._most_headers, 4 * max(1024, self._header_key_ends.size)) + 8
        for name in ("_header_key_ends", "_header_value_ends"):
            grown = _ends(room)
            old = getattr(self, name)
            grown[:old.size] = old
            setattr(self, name, grown)
        bits = _bits(room)
        bits[:self._header_value_bits.size] = self._header_value_bits
        self._header_value_bits = bits

    @property
    def rows(self) -> int:
        return int(self._state[_ROWS])

    def arrow_batch(self, topic: str, partition: int, log_epoch: int) -> pa.RecordBatch:
        """The rows filled in so far, over these buffers without a copy."""
        rows, state = self.rows, self._state
        build: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _varied(
                pa.binary(), rows, self._key_ends, self._key_bytes, state[_KEY_BYTES], self._key_bits, state[_NO_KEY]),
            "value": lambda: _varied(
                pa.binary(), rows, self._value_ends, self._value_bytes, state[_VALUE_BYTES], self._value_bits, state[_NO_VALUE]),
            "topic": lambda: _repeated(topic, rows),
            "partition": lambda: pa.array(np.full(rows, partition, dtype=np.int32)),
            "offset": lambda: pa.array(self._offsets[:rows]),
            "timestamp": self._timestamp_array,
            "timestampType": lambda: pa.array(self._timestamp_types[:rows]),
            "headers": self._headers_array,
            "log_epoch": lambda: pa.array(np.full(rows, log_epoch, dtype=np.int32)),
        }
        names = [name for name in build if name in self._columns]
        return pa.RecordBatch.from_arrays([build[name]() for name in names], names=names)

    def _timestamp_array(self) -> pa.Array:
        rows, missing = self.rows, int(self._state[_NO_TIMESTAMP])
        bits = pa.py_buffer(self._timestamp_bits) if missing else None
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, [bits, pa.py_buffer(self._timestamps[:rows])], missing)

    def _headers_array(self) -> pa.Array:
        rows, state = self.rows, self._state
        headers = int(state[_HEADERS])
        keys = _varied(pa.string(), headers, self._header_key_ends, self._header_key_bytes, state[_HEADER_KEY_BYTES], None, 0)
        if state[_NON_ASCII]:
            keys = _as_text(keys)
        values = _varied(
            pa.binary(), headers, self._header_value_ends, self._header_value_bytes, state[_HEADER_VALUE_BYTES],
            self._header_value_bits, state[_NO_HEADER_VALUE])
        pairs = pa.Array.from_buffers(_HEADER_TYPE, headers, [None], 0, children=[keys, values])
        missing = int(state[_NO_HEADERS])
        bits = pa.py_buffer(self._header_bits) if missing else None
        ends = pa.py_buffer(self._header_ends[:rows + 1])
        return pa.Array.from_buffers(_HEADERS_TYPE, rows, [bits, ends], missing, children=[pairs])


def _ends(count: int) -> NDArray[np.int32]:
    ends = np.empty(count + 1, dtype=np.int32)
    ends[0] = 0
    return ends


def _bits(count: int) -> Bytes:
    return np.zeros((count + 7) // 8, dtype=np.uint8)


def _room(size: int, wanted: bool) -> Bytes:
    return np.empty(size if wanted else 0, dtype=np.uint8)


def _varied(kind: pa.DataType, count: int, ends: NDArray[np.int32], content: Bytes, used: int, bits: Bytes | None,
            missing: int) -> pa.Array:
    """An array of strings or binaries over its three buffers."""
    validity = pa.py_buffer(bits) if missing and bits is not None else None
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(ends[:count + 1]), pa.py_buffer(content[:used])], int(missing))


def _repeated(text: str, count: int) -> pa.Array:
    """`text`, `count` times, as a plain string column."""
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)], 0)


def _as_text(keys: pa.Array) -> pa.Array:
    """Header keys that are no UTF-8 get replacement characters, as Java clients show them; few are distinct."""
    try:
        keys.validate(full=True)
        return keys
    except pa.ArrowInvalid:
        encoded = keys.cast(pa.binary()).dictionary_encode()
        texts = pa.array([name.decode("utf-8", "replace") for name in encoded.dictionary.to_pylist()], pa.string())
        return texts.take(encoded.indices)
