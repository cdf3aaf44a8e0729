"""The records field of one fetched partition: whose format each entry is of, and from there to Arrow batches.

Every format of Kafka begins an entry alike, and its magic byte tells which it is; one answer may hold several. This is the one place
that reads it. Magic 2 is `batch_v2`'s; message formats v0 and v1 (magic 0 and 1) would be a module beside it, until then they are
CorruptData that says so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.errors import CorruptData
from etl.protocol.messages import FetchedPartition
from etl.protocol.records import batch_v2
from etl.protocol.records.batch_v2 import MAX_UNPACKED_BYTES, BatchHeader, Counts, Selection, corrupt
from etl.protocol.records.kernel import Tally

__all__ = ["MAX_UNPACKED_BYTES", "BatchHeader", "Counts", "Selection", "Walk", "decode", "walk"]

_START_OF_ENTRY = struct.Struct(">qiib")
"""Base offset, length, four bytes that each format has a use of its own for, magic."""
_LENGTH_AT = 12
"""The length counts from here on."""
_SMALLEST_V0_LENGTH = 14


@dataclass(frozen=True, slots=True)
class Walk:
    """The whole record batches of one answer, and what the one cut off at its end would need."""

    batches: tuple[BatchHeader, ...]
    cut_off_bytes: int = 0
    """0: nothing is cut off. 1: too little is there to tell. Else the whole size of the record batch that is cut off."""


def walk(fetched: FetchedPartition, until_offset: int) -> Walk:
    """Read the headers of the whole record batches of an answer until they reach `until_offset`.

    A record batch that begins at or beyond `until_offset` ends the list: it proves that the log has nothing more
    below. What follows is not looked at, so damage beyond a range does not stop it. The CRCs are not looked at yet.

    Raises CorruptData with topic, partition and base offset for fields that cannot be, and for magic 0 and 1.
    """
    records = fetched.records
    size, at, last_offset = len(records), 0, -1
    batches: list[BatchHeader] = []
    while size - at >= _START_OF_ENTRY.size and last_offset + 1 < until_offset:
        base_offset, length, _, magic = _START_OF_ENTRY.unpack_from(records, at)
        if magic != 2 or length < batch_v2.SMALLEST_LENGTH:
            raise _strange_entry(fetched, base_offset, length, magic)
        until = at + _LENGTH_AT + length
        if until > size:
            return Walk(tuple(batches), cut_off_bytes=_LENGTH_AT + length)
        header = batch_v2.read_header(fetched, at, until)
        if header.base_offset <= last_offset:
            raise corrupt(
                fetched, header.base_offset, f"a record batch begins at or below offset {last_offset}, where the one before it ends")
        batches.append(header)
        at, last_offset = until, header.last_offset
    return Walk(tuple(batches), cut_off_bytes=1 if at < size and last_offset + 1 < until_offset else 0)


def decode(fetched: FetchedPartition, batches: Sequence[BatchHeader], selection: Selection, tally: Tally,
           counts: Counts) -> Iterator[pa.RecordBatch]:
    """The rows of all `batches` that `walk` found, within the selected offsets. See `batch_v2.decode`: `walk` lets no other format by."""
    return batch_v2.decode(fetched, batches, selection, tally, counts)


def _strange_entry(fetched: FetchedPartition, base_offset: int, length: int, magic: int) -> CorruptData:
    if magic in (0, 1) and length >= _SMALLEST_V0_LENGTH:
        return CorruptData(
            f"the log holds message format v{magic}, which this version does not read yet",
            check="formats v0 and v1 (Kafka 0.8 to 0.10, or a topic with an old message.format.version) come with a later version",
            topic=fetched.topic, partition=fetched.partition, offset=base_offset)
    if magic not in (0, 1, 2):
        return corrupt(fetched, base_offset, f"magic {magic} is no message format")
    return corrupt(fetched, base_offset, f"a record batch with a length of {length} cannot be")
