"""How does a compiled kernel decode record batches (format v2) into Arrow buffers?

Lives here: the kernel that decodes records, and the kernel that counts them.
Not here: CRC and compression (etl/records/batch_v2.py), the selected offsets
(etl/reader/cursor.py), names of the columns (etl/model/columns.py).

One call of `_fill` decodes all record batches of a group (one row of the group's table each),
because a call with that many arrays costs microseconds. Buffers have the largest size that the
input can need; pages that are never written never become resident. Each read is checked against
the end of its record and each write is bounded by the bytes read: invalid records raise
CorruptData, never a read out of bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from etl.errors import CorruptData
from etl.records.kernel_cache import (
    AT,
    BATCH,
    EXPECTED,
    FILLED,
    FULL,
    GAPS,
    HEADER_KEY_BYTES,
    HEADER_VALUE_BYTES,
    HEADERS,
    KEY_BYTES,
    LOWEST,
    MAX_MS,
    MORE_HEADERS,
    NO_HEADER_VALUE,
    NO_HEADERS,
    NO_KEY,
    NO_MS,
    NO_TIMESTAMP,
    NO_VALUE,
    NON_ASCII,
    OFFSET,
    RECORD,
    ROWS,
    SEEN_ROWS,
    TOO_LARGE,
    TOO_MANY_HEADERS,
    VALUE_BYTES,
    Bytes,
    Tally,
    copy,
    kernel,
)

MAX_RECORD_HEADERS = 100_000
"""Largest number of headers of one record.

Compressed, 8,000,000 headers are a few hundred bytes: a JVM with the default memory fails without
the name of the record (measured; 4,000,000 still fit).
"""
SMALLEST_RECORD = 7
"""Length, attributes, two deltas, two lengths, header count: a byte each."""
# Columns of a group's table: one row per record batch.
(
    COMPRESSED,
    START,
    UNTIL,
    COUNT,
    BASE_OFFSET,
    LAST_OFFSET,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    APPEND_TIME,
) = range(9)
WRONG = {
    2: "A record's length or offset does not fit its record batch",
    3: "The lengths of a record's key, value and headers do not fit the length of the record",
    4: "A record's offset is outside its record batch or does not ascend",
    5: "Bytes follow the last record of a record batch",
}
BAD_RECORD, BAD_FIELD, BAD_OFFSET, BYTES_LEFT = WRONG
_FAR = 1 << 62
"""The place after a malformed varint, beyond any buffer: one check after several reads suffices."""


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
    """Return (number, place after it); the place is _FAR for truncated or too long varints."""
    if at < end:
        byte = np.int64(source[at])
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _long_varint(source, at, end, last_shift)


@kernel
def _fill(  # type: ignore[no-untyped-def]  # noqa: C901  one loop, so that its state stays in registers
    plain,
    unpacked,
    table,
    from_offset,
    until_offset,
    want_key,
    want_value,
    want_headers,
    offsets,
    timestamps,
    timestamp_bits,
    timestamp_types,
    key_ends,
    key_bytes,
    key_bits,
    value_ends,
    value_bytes,
    value_bits,
    header_ends,
    header_bits,
    header_key_ends,
    header_key_bytes,
    header_value_ends,
    header_value_bytes,
    header_value_bits,
    most_record_bytes,
    most_bytes,
    most_headers,
    state,
    tally,
    gaps,
):
    """Decode the record batches of `table` from `state` on; return the code of the result.

    The state is written after each complete record batch, and between two records if the Arrow
    batch is full. If the headers of a record do not fit, all records since the last state are
    decoded again.
    """
    for batch in range(state[BATCH], table.shape[0]):
        source = unpacked if table[batch, COMPRESSED] else plain
        at, until, done = table[batch, START], table[batch, UNTIL], state[RECORD]
        base_offset, last_offset = table[batch, BASE_OFFSET], table[batch, LAST_OFFSET]
        base_ms, max_ms, append_time = (
            table[batch, BASE_TIMESTAMP],
            table[batch, MAX_TIMESTAMP],
            table[batch, APPEND_TIME],
        )
        row, key_at, value_at, header = (
            state[ROWS],
            state[KEY_BYTES],
            state[VALUE_BYTES],
            state[HEADERS],
        )
        header_key_at, header_value_at = state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES]
        no_key, no_value, no_timestamp = state[NO_KEY], state[NO_VALUE], state[NO_TIMESTAMP]
        no_headers, no_header_value, non_ascii = (
            state[NO_HEADERS],
            state[NO_HEADER_VALUE],
            state[NON_ASCII],
        )
        expected, gap, first_row = tally[EXPECTED], tally[GAPS], row
        lowest = base_offset
        if done:
            at, lowest = state[AT], state[LOWEST]
        used, full = key_at + value_at + header_key_at + header_value_at, False
        while done < table[batch, COUNT]:
            if used >= most_bytes or row >= offsets.shape[0] or header >= most_headers:
                full = True
                break
            done += 1
            length, at = _varint(source, at, until, 28)
            if at > until or length < SMALLEST_RECORD - 1 or length > until - at:
                return BAD_RECORD
            end = at + length
            delta_ms, at = _varint(source, at + 1, end, 63)
            delta, at = _varint(source, at, end, 28)
            key_size, at = _varint(source, at, end, 28)
            if at > end or key_size > end - at:
                return BAD_FIELD
            offset = base_offset + delta
            if offset < lowest or offset > last_offset:
                return BAD_OFFSET
            lowest = offset + 1
            if offset < from_offset or offset >= until_offset:
                at = end
                continue
            bit = np.uint8(1 << (row & 7))

            if key_size < 0:
                no_key += 1
            else:
                if want_key:
                    copy(source, at, key_size, key_bytes, key_at)
                    key_at += key_size
                    key_bits[row >> 3] |= bit
                at += key_size
            value_size, at = _varint(source, at, end, 28)
            if at > end or value_size > end - at:
                return BAD_FIELD
            if value_size < 0:
                no_value += 1
            else:
                if want_value:
                    copy(source, at, value_size, value_bytes, value_at)
                    value_at += value_size
                    value_bits[row >> 3] |= bit
                at += value_size
            if want_key:
                key_ends[row + 1] = key_at
            if want_value:
                value_ends[row + 1] = value_at

            header_count, at = _varint(source, at, end, 28)
            if at > end or header_count < 0 or header_count > (end - at) // 2:
                return BAD_FIELD
            if want_headers and header_count > MAX_RECORD_HEADERS:
                state[OFFSET] = offset
                return TOO_MANY_HEADERS
            if want_headers and header + header_count >= header_key_ends.shape[0]:
                return MORE_HEADERS
            for _ in range(header_count):
                size, at = _varint(source, at, end, 28)
                if at > end or size < 0 or size > end - at:
                    return BAD_FIELD
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
                    return BAD_FIELD
                if want_headers:
                    if size < 0:
                        no_header_value += 1
                    else:
                        copy(source, at, size, header_value_bytes, header_value_at)
                        header_value_at += size
                        header_value_bits[header >> 3] |= np.uint8(1 << (header & 7))
                    header_value_ends[header + 1] = header_value_at
                    header += 1
                if size > 0:
                    at += size
            if at != end:
                return BAD_FIELD
            before, used = used, key_at + value_at + header_key_at + header_value_at
            if used - before > most_record_bytes:
                state[OFFSET] = offset
                return TOO_LARGE
            if want_headers:
                header_ends[row + 1] = header
                if header_count == 0:
                    no_headers += 1
                else:
                    header_bits[row >> 3] |= bit

            ms = max_ms if append_time else base_ms + delta_ms
            wrapped = not append_time and ((base_ms ^ ms) & (delta_ms ^ ms)) < 0
            if ms == NO_MS or wrapped or ms > MAX_MS or ms < -MAX_MS:
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
            return BYTES_LEFT
        state[BATCH], state[RECORD], state[AT], state[LOWEST] = (
            (batch, done, at, lowest) if full else (batch + 1, 0, 0, 0)
        )
        state[ROWS], state[KEY_BYTES], state[VALUE_BYTES], state[HEADERS] = (
            row,
            key_at,
            value_at,
            header,
        )
        state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES] = header_key_at, header_value_at
        state[NO_KEY], state[NO_VALUE], state[NO_TIMESTAMP] = no_key, no_value, no_timestamp
        state[NO_HEADERS], state[NO_HEADER_VALUE], state[NON_ASCII] = (
            no_headers,
            no_header_value,
            non_ascii,
        )
        tally[EXPECTED], tally[GAPS] = expected, gap
        tally[SEEN_ROWS] += row - first_row
        if full:
            return FULL
    return FILLED


@kernel
def _count(source, at, until, count, base_offset, last_offset, from_offset, until_offset):  # type: ignore[no-untyped-def]
    """Return the number of records in [from, until); minus a code of WRONG for invalid records."""
    found, lowest = 0, base_offset
    for _ in range(count):
        length, at = _varint(source, at, until, 28)
        if at > until or length < SMALLEST_RECORD - 1 or length > until - at:
            return -BAD_RECORD
        end = at + length
        _, place = _varint(source, at + 1, end, 63)
        delta, place = _varint(source, place, end, 28)
        offset = base_offset + delta
        if place > end or offset < lowest or offset > last_offset:
            return -BAD_OFFSET
        lowest = offset + 1
        if from_offset <= offset < until_offset:
            found += 1
        at = end
    return found if at == until else -BYTES_LEFT


def count_records(
    source: Bytes, row: tuple[int, ...], from_offset: int, until_offset: int, **place: Any
) -> int:
    """Return the number of records in [from, until) of the record batch of this table row.

    Raises CorruptData for invalid records.
    """
    _, start, until, count, base_offset, last_offset = row[:6]
    found = int(
        _count(source, start, until, count, base_offset, last_offset, from_offset, until_offset)
    )
    if found < 0:
        raise CorruptData(
            WRONG[-found],
            action="Check the partition on the broker (kafka-dump-log), or report a bug",
            **place,
            offset=base_offset,
        )
    return found


def fill_batches(arguments: tuple[Any, ...], tally: Tally) -> int:
    """Call `_fill` with these arguments and the arrays of the tally."""
    return int(_fill(*arguments, tally.numbers, tally.gap_bounds))
