"""How do compiled kernels decode messages of earlier formats into Arrow buffers?

Lives here: kernels that scan and decode messages, and their CRC-32.
Not here: wrappers and compression (message_sets.py), record batches v2 (batch_kernel.py).

One kernel serves all formats, which differ in a few bytes:

- v0 and v1 (magic 0 and 1, Kafka 0.8 to 0.10): offset, length, CRC of all that follows, magic,
  attributes, timestamp (v1), key, value.
- Kafka 0.7 and Jafka (also magic 0 and 1): length, magic, attributes (magic 1), CRC of the payload,
  payload.

`scan_messages` and `scan_entries` find how far complete, uncompressed messages reach; `_fill`
decodes all intervals of a group and checks each CRC. Each read is checked against the end of its
message, each write is bounded by the bytes read.

CRC-32 is computed in the kernel, 16 bytes per step with 16 tables ("slicing by 16", M. Kounavis and
F. Berry 2005; about 2 GB/s): a Python call per message would cost more than its CRC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from etl.records.kernel_cache import (
    AT,
    BATCH,
    EXPECTED,
    FILLED,
    FULL,
    GAPS,
    HOLES,
    INDEX,
    KEY_BYTES,
    LOWEST,
    MAX_MS,
    NO_KEY,
    NO_MS,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    NO_VALUE,
    OFFSET,
    RECORD,
    ROWS,
    SEEN_ROWS,
    TOO_LARGE,
    VALUE_BYTES,
    Bytes,
    Tally,
    copy,
    int32,
    int64,
    kernel,
    little_uint64,
    uint32,
)

_POLYNOMIAL = 0xEDB88320


def _tables(count: int) -> NDArray[np.uint32]:
    """Return the effect of a byte on the CRC if 0 to count-1 zero bytes follow."""
    tables = np.zeros((count, 256), dtype=np.uint32)
    tables[0] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        tables[0] = tables[0] >> 1 ^ np.where(tables[0] & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    for zeros in range(1, count):
        tables[zeros] = tables[zeros - 1] >> 8 ^ tables[0][tables[zeros - 1] & 255]
    return tables


_T = _tables(16)
_BYTE = np.uint64(255)


@njit(nogil=True, inline="never")
def crc32(source, at, end):  # type: ignore[no-untyped-def]
    """Return the CRC-32 of source[at:end]."""
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= 16:
        one, two = little_uint64(source, at) ^ np.uint64(crc), little_uint64(source, at + 8)
        crc = (
            _T[15, one & _BYTE]
            ^ _T[14, one >> np.uint64(8) & _BYTE]
            ^ _T[13, one >> np.uint64(16) & _BYTE]
            ^ _T[12, one >> np.uint64(24) & _BYTE]
            ^ _T[11, one >> np.uint64(32) & _BYTE]
            ^ _T[10, one >> np.uint64(40) & _BYTE]
            ^ _T[9, one >> np.uint64(48) & _BYTE]
            ^ _T[8, one >> np.uint64(56)]
            ^ _T[7, two & _BYTE]
            ^ _T[6, two >> np.uint64(8) & _BYTE]
            ^ _T[5, two >> np.uint64(16) & _BYTE]
            ^ _T[4, two >> np.uint64(24) & _BYTE]
            ^ _T[3, two >> np.uint64(32) & _BYTE]
            ^ _T[2, two >> np.uint64(40) & _BYTE]
            ^ _T[1, two >> np.uint64(48) & _BYTE]
            ^ _T[0, two >> np.uint64(56)]
        )
        at += 16
    if end - at >= 8:
        one = little_uint64(source, at) ^ np.uint64(crc)
        crc = (
            _T[7, one & _BYTE]
            ^ _T[6, one >> np.uint64(8) & _BYTE]
            ^ _T[5, one >> np.uint64(16) & _BYTE]
            ^ _T[4, one >> np.uint64(24) & _BYTE]
            ^ _T[3, one >> np.uint64(32) & _BYTE]
            ^ _T[2, one >> np.uint64(40) & _BYTE]
            ^ _T[1, one >> np.uint64(48) & _BYTE]
            ^ _T[0, one >> np.uint64(56)]
        )
        at += 8
    while at < end:
        crc = crc >> np.uint32(8) ^ _T[0, (crc ^ np.uint32(source[at])) & np.uint32(255)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


# Columns of a group's table: one row per interval of messages.
COMPRESSED, START, UNTIL, LAYOUT, BASE, FOLLOWS, FIRST_INDEX, WRAPPER_TYPE, WRAPPER_MS = range(9)
# Layouts. Messages in a wrapper have offsets from BASE: logical ones relative to it, physical ones
# BASE itself.
LOGICAL, LOGICAL_INSIDE, PHYSICAL, PHYSICAL_INSIDE = range(4)
OWN_TYPE = -1
"""WRAPPER_TYPE of messages with their own timestamp type."""
WRONG = {
    2: "A message's length does not fit its place",
    3: "The lengths of a message's key and value do not fit the length of the message",
    4: "A message's offset is invalid or does not ascend",
    5: "A message's CRC-32 is not that of its bytes",
}
BAD_LENGTH, BAD_FIELD, BAD_OFFSET, BAD_CRC = WRONG

ENTRY_BYTES, PHYSICAL_ENTRY_BYTES = 12, 4
"""Size before a message: offset and length, or the length."""
SMALLEST_V0, SMALLEST_V1 = 14, 22
"""CRC, magic, attributes, timestamp (v1), two lengths."""
SMALLEST_PHYSICAL = 5
"""Magic and CRC; magic 1 has attributes, a byte more."""
MAX_OFFSET = 2**63 - 1
_CODEC, _PHYSICAL_CODEC, _APPEND_TIME = 0x07, 0x03, 0x08


@kernel
def _scan_messages(source, at, until, lowest, until_offset, magic):  # type: ignore[no-untyped-def]
    """Scan complete uncompressed messages v0 and v1 with ascending offsets.

    `magic`: -1 for both. Returns (place of the first other message, number, first offset, last
    offset). Ends after a message at `until_offset` - 1.
    """
    count, first, last = 0, np.int64(-1), np.int64(-1)
    while until - at >= ENTRY_BYTES + SMALLEST_V0 and lowest < until_offset:
        offset, length, found = (
            int64(source, at),
            np.int64(int32(source, at + 8)),
            np.int64(source[at + 16]),
        )
        if found > 1 or (magic >= 0 and found != magic) or source[at + 17] & _CODEC:
            break
        if length < (SMALLEST_V1 if found else SMALLEST_V0) or length > until - at - ENTRY_BYTES:
            break
        if offset < lowest or offset == MAX_OFFSET:
            break
        if count == 0:
            first = offset
        last, lowest = offset, offset + 1
        count += 1
        at += ENTRY_BYTES + length
    return at, count, first, last


@kernel
def _scan_entries(source, at, until, most_bytes):  # type: ignore[no-untyped-def]
    """Scan complete uncompressed entries of 0.7.

    Returns (place of the first other entry, number). Ends after the entry that reaches
    `most_bytes`, and before one that would exceed it.
    """
    count, start = 0, at
    while until - at >= PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL and at - start < most_bytes:
        length, magic = np.int64(int32(source, at)), source[at + 4]
        if (
            magic > 1
            or length < SMALLEST_PHYSICAL + magic
            or length > until - at - PHYSICAL_ENTRY_BYTES
        ):
            break
        if magic == 1 and source[at + 5] & _PHYSICAL_CODEC:
            break
        if at - start + PHYSICAL_ENTRY_BYTES + length > most_bytes:
            break
        count += 1
        at += PHYSICAL_ENTRY_BYTES + length
    return at, count


@kernel
def _fill(  # type: ignore[no-untyped-def]  # noqa: C901  one loop, so that its state stays in registers
    plain,
    unpacked,
    table,
    from_offset,
    until_offset,
    want_key,
    want_value,
    offsets,
    indexes,
    timestamps,
    timestamp_bits,
    timestamp_types,
    timestamp_type_bits,
    key_ends,
    key_bytes,
    key_bits,
    value_ends,
    value_bytes,
    value_bits,
    most_record_bytes,
    most_bytes,
    state,
    tally,
    gaps,
    holes,
):
    """Decode the messages of `table` from `state` on; return the code of the result.

    The state is written after each row of the table, and between two messages if the Arrow batch is
    full.
    """
    for batch in range(state[BATCH], table.shape[0]):
        source = unpacked if table[batch, COMPRESSED] else plain
        start, until, layout, base = (
            table[batch, START],
            table[batch, UNTIL],
            table[batch, LAYOUT],
            table[batch, BASE],
        )
        wrapper_type, wrapper_ms = table[batch, WRAPPER_TYPE], table[batch, WRAPPER_MS]
        done, at, lowest, index = (
            np.int64(0),
            start,
            table[batch, FOLLOWS],
            table[batch, FIRST_INDEX],
        )
        if state[RECORD]:
            done, at, lowest, index = state[RECORD], state[AT], state[LOWEST], state[INDEX]
        row, key_at, value_at = state[ROWS], state[KEY_BYTES], state[VALUE_BYTES]
        no_key, no_value, no_timestamp, no_type = (
            state[NO_KEY],
            state[NO_VALUE],
            state[NO_TIMESTAMP],
            state[NO_TIMESTAMP_TYPE],
        )
        expected, gap, hole, first_row = tally[EXPECTED], tally[GAPS], tally[HOLES], row
        used, full = key_at + value_at, False
        while at < until:
            if used >= most_bytes or row >= offsets.shape[0]:
                full = True
                break
            done += 1
            key_size, ms, kind = np.int64(-1), np.int64(NO_MS), np.int64(-1)
            if layout >= PHYSICAL:
                offset = base if layout == PHYSICAL_INSIDE else base + (at - start)
                state[OFFSET] = offset
                if until - at < PHYSICAL_ENTRY_BYTES + SMALLEST_PHYSICAL:
                    return BAD_LENGTH
                length, place = np.int64(int32(source, at)), at + PHYSICAL_ENTRY_BYTES
                end, magic = place + length, np.int64(source[place])
                if magic > 1 or length < SMALLEST_PHYSICAL + magic or end > until:
                    return BAD_LENGTH
                place += 1 + magic
                crc, covered, key_start, value_start = (
                    uint32(source, place),
                    place + 4,
                    place + 4,
                    place + 4,
                )
                value_size = end - value_start
            else:
                if until - at < ENTRY_BYTES + SMALLEST_V0:
                    state[OFFSET] = base + lowest
                    return BAD_LENGTH
                offset, length, place = (
                    base + int64(source, at),
                    np.int64(int32(source, at + 8)),
                    at + ENTRY_BYTES,
                )
                state[OFFSET] = offset
                end = place + length
                magic, attributes = np.int64(source[place + 4]), source[place + 5]
                if length < (SMALLEST_V1 if magic else SMALLEST_V0) or end > until:
                    return BAD_LENGTH
                crc, covered = uint32(source, place), place + 4
                place += 6
                if magic:
                    ms, kind = int64(source, place), np.int64((attributes & _APPEND_TIME) >> 3)
                    if wrapper_type != OWN_TYPE:
                        kind = wrapper_type
                        if kind == 1:
                            ms = wrapper_ms
                    place += 8
                key_size, key_start = np.int64(int32(source, place)), place + 4
                value_start = key_start + max(key_size, 0) + 4
                if value_start > end:
                    return BAD_FIELD
                value_size = np.int64(int32(source, value_start - 4))
                if value_start + max(value_size, 0) != end:
                    return BAD_FIELD
            if crc32(source, covered, end) != crc:
                return BAD_CRC
            at = end
            if layout < PHYSICAL:
                if offset < lowest or offset == MAX_OFFSET:
                    return BAD_OFFSET
                if (
                    offset > lowest
                    and (layout == LOGICAL or done == 1)
                    and offset > from_offset
                    and lowest < until_offset
                ):
                    if hole < holes.shape[0]:
                        holes[hole, 0] = max(lowest, from_offset)
                        holes[hole, 1] = min(offset, until_offset)
                    hole += 1
                lowest = offset + 1
                if offset < from_offset or offset >= until_offset:
                    continue
                if offset != expected:
                    if gap < gaps.shape[0]:
                        gaps[gap, 0] = expected
                        gaps[gap, 1] = offset
                    gap += 1
                expected = offset + 1
            bit = np.uint8(1 << (row & 7))

            if key_size < 0:
                no_key += 1
            elif want_key:
                copy(source, key_start, key_size, key_bytes, key_at)
                key_at += key_size
                key_bits[row >> 3] |= bit
            if value_size < 0:
                no_value += 1
            elif want_value:
                copy(source, value_start, value_size, value_bytes, value_at)
                value_at += value_size
                value_bits[row >> 3] |= bit
            if want_key:
                key_ends[row + 1] = key_at
            if want_value:
                value_ends[row + 1] = value_at
            before, used = used, key_at + value_at
            if used - before > most_record_bytes:
                state[OFFSET] = offset
                return TOO_LARGE

            if ms == NO_MS or ms > MAX_MS or ms < -MAX_MS:
                timestamps[row] = 0
                no_timestamp += 1
            else:
                timestamps[row] = ms * 1000
                timestamp_bits[row >> 3] |= bit
            if kind < 0:
                no_type += 1
                timestamp_types[row] = 0
            else:
                timestamp_types[row] = kind
                timestamp_type_bits[row >> 3] |= bit
            offsets[row] = offset
            indexes[row] = index
            index += layout == PHYSICAL_INSIDE
            row += 1
        state[BATCH], state[RECORD], state[AT] = (batch, done, at) if full else (batch + 1, 0, 0)
        state[LOWEST], state[INDEX] = lowest, index
        state[ROWS], state[KEY_BYTES], state[VALUE_BYTES] = row, key_at, value_at
        state[NO_KEY], state[NO_VALUE], state[NO_TIMESTAMP], state[NO_TIMESTAMP_TYPE] = (
            no_key,
            no_value,
            no_timestamp,
            no_type,
        )
        tally[EXPECTED], tally[GAPS], tally[HOLES] = expected, gap, hole
        tally[SEEN_ROWS] += row - first_row
        if full:
            return FULL
    return FILLED


def scan_messages(
    source: Bytes, at: int, until: int, lowest: int, until_offset: int, magic: int = -1
) -> tuple[int, int, int, int]:
    """Call `_scan_messages`; `lowest` is the lowest allowed first offset."""
    found: tuple[int, int, int, int] = _scan_messages(
        source, at, until, lowest, until_offset, magic
    )
    return found


def scan_entries(source: Bytes, at: int, until: int, most_bytes: int) -> tuple[int, int]:
    """Call `_scan_entries`."""
    found: tuple[int, int] = _scan_entries(source, at, until, most_bytes)
    return found


def fill_messages(arguments: tuple[Any, ...], tally: Tally) -> int:
    """Call `_fill` with these arguments and the arrays of the tally."""
    return int(_fill(*arguments, tally.numbers, tally.gap_bounds, tally.hole_bounds))
