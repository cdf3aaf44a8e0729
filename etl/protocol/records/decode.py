"""The records field of one fetched partition: whose format each entry is of, and from there to
Arrow batches.

Since 0.8 every format of Kafka begins an entry alike, and its magic byte tells which it is; one
answer may hold several. This is the one place that reads it: magic 2 is `batch_v2`'s, 0 and 1 are
`message_set`'s. Where offsets are byte positions entries begin otherwise, and only the answer's
layout tells that: they are `physical_set`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import cast

import pyarrow as pa

from etl.errors import CorruptData
from etl.kafka.messages import EntryLayout, FetchedPartition
from etl.protocol.records import batch_v2, message_set, physical_set
from etl.protocol.records.batch_v2 import AbortedTransactions
from etl.protocol.records.compiled import frozen
from etl.protocol.records.headers import BatchHeader, Header, MessagesHeader, Walk
from etl.protocol.records.selection import MAX_UNPACKED_BYTES, Counts, Selection, corrupt
from etl.protocol.records.tally import Tally

__all__ = [
    "AbortedTransactions",
    "MAX_UNPACKED_BYTES",
    "BatchHeader",
    "Counts",
    "Header",
    "MessagesHeader",
    "Selection",
    "Tally",
    "Walk",
    "decode",
    "walk",
]

_START_OF_ENTRY = struct.Struct(">qiib")
"""Offset, length, four bytes that each format has a use of its own for, magic."""
_LENGTH_AT = 12
"""The length counts from here on."""
_SMALLEST_LENGTHS = {
    magic: length
    for magic, length in enumerate((*message_set.SMALLEST_LENGTHS, batch_v2.SMALLEST_LENGTH))
}


def walk(
    fetched: FetchedPartition,
    from_offset: int,
    until_offset: int,
    *,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
) -> Walk:
    """Read the headers of the whole entries of an answer, which was asked for at `from_offset`,
    until they reach `until_offset`.

    A record batch or message that begins at or beyond `until_offset` ends the list: it proves that
    the log has nothing more below. What follows is not looked at, so damage beyond a range does not
    stop it. The CRCs are not looked at yet.

    Raises CorruptData with topic, partition and offset for fields that cannot be;
    OffsetInsideMessage, which is one, where offsets are byte positions and no message begins at
    one, or one crosses `until_offset`.
    """
    if fetched.layout is EntryLayout.PHYSICAL:
        return physical_set.walk(fetched, from_offset, until_offset)
    records, size, at, last_offset = fetched.records, len(fetched.records), 0, -1
    source, found = frozen(records), list[Header]()
    while size - at >= _START_OF_ENTRY.size and last_offset + 1 < until_offset:
        offset, length, _, magic = _START_OF_ENTRY.unpack_from(records, at)
        if length < _SMALLEST_LENGTHS.get(magic, length + 1):
            raise _strange_entry(fetched, offset, length, magic)
        until = at + _LENGTH_AT + length
        if until > size:
            return Walk(tuple(found), cut_off_bytes=_LENGTH_AT + length)
        if offset <= last_offset:
            called = "record batch" if magic == 2 else "message"
            raise corrupt(
                fetched,
                offset,
                f"a {called} begins at or below offset {last_offset}, where the one before it ends",
            )
        header: Header
        if magic == 2:
            header = batch_v2.read_header(fetched, at, until)
        else:
            header = message_set.read_header(
                fetched,
                source,
                at,
                until,
                follows=last_offset + 1,
                until_offset=until_offset,
                max_unpacked_bytes=max_unpacked_bytes,
            )
        found.append(header)
        at, last_offset = header.until, header.last_offset
    return Walk(
        tuple(found), cut_off_bytes=1 if at < size and last_offset + 1 < until_offset else 0
    )


def decode(
    fetched: FetchedPartition,
    batches: Sequence[Header],
    selection: Selection,
    tally: Tally,
    counts: Counts,
    aborted: AbortedTransactions | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of all `batches` that `walk` found, within the selected offsets, as Arrow batches.

    Who decodes them one after the other gives the same `aborted` each time: it is known only to who
    passes the markers in order.

    Read to the end before the buffer below `fetched.records` is used again; `tally` and `counts`
    are right only then.

    Raises CorruptData for a wrong CRC or structure, RecordTooLarge for a record batch or wrapper
    that would decompress to more than `max_unpacked_bytes`, and for a record with more than
    `max_record_bytes` or too many headers.
    """
    if fetched.layout is EntryLayout.PHYSICAL:
        yield from physical_set.decode(
            fetched, cast(Sequence[MessagesHeader], batches), selection, tally
        )
        return
    aborted = aborted or AbortedTransactions(fetched.aborted if selection.skips_aborted else ())
    for kind, alike in groupby(batches, type):
        if kind is BatchHeader:
            yield from batch_v2.decode(
                fetched, cast(list[BatchHeader], list(alike)), selection, tally, counts, aborted
            )
        else:
            yield from message_set.decode(
                fetched, cast(list[MessagesHeader], list(alike)), selection, tally
            )


def _strange_entry(fetched: FetchedPartition, offset: int, length: int, magic: int) -> CorruptData:
    if magic not in _SMALLEST_LENGTHS:
        return corrupt(fetched, offset, f"magic {magic} is no message format")
    called = "record batch" if magic == 2 else f"message of format v{magic}"
    return corrupt(fetched, offset, f"a {called} with a length of {length} cannot be")
