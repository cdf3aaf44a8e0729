"""Entries of one answer that are decoded together: decompressed one by one, then all of them by one
call of a compiled kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from etl.errors import RecordTooLarge
from etl.kafka.messages import FetchedPartition
from etl.protocol.records import codecs
from etl.protocol.records.arrow import ColumnBuffers
from etl.protocol.records.compiled import Bytes, frozen
from etl.protocol.records.selection import Selection, corrupt, place_of
from etl.protocol.records.tally import Tally

GROUP_BYTES = 4 << 20
"""Entries are decoded together until their records come to this many bytes, so that they are still
in the processor's cache ...
"""
GROUP_RECORDS = 1 << 18
"""... or to this many records. How much of them one Arrow batch takes is `arrow`'s."""

_scratch = threading.local()


class Group:
    """What was added of one answer and is not decoded yet. `buffers` are of the format whose kernel
    decodes it.

    What is decompressed lies in memory that this thread has for all its cursors, used up within one
    step of decoding.
    """

    def __init__(
        self,
        fetched: FetchedPartition,
        selection: Selection,
        tally: Tally,
        buffers: type[ColumnBuffers],
    ) -> None:
        self.fetched, self.selection, self.plain = fetched, selection, frozen(fetched.records)
        self._tally, self._buffers = tally, buffers
        self._empty()

    def _empty(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._records, self._size, self._unpacked_size = 0, 0, 0

    def add_row(self, row: tuple[int, ...], *, records: int, size: int) -> None:
        """Let the bytes that `row` describes to the kernel be part of the group: so many records at
        most, and bytes.
        """
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
        """Where `unpack` puts what it decompresses."""
        return _scratch_bytes(GROUP_BYTES + self.selection.max_unpacked_bytes)

    @property
    def unpacked_size(self) -> int:
        return self._unpacked_size

    def unpack(
        self, codec: int, content: Bytes, offset: int, what: str, *, already: int = 0
    ) -> tuple[int, int]:
        """Decompress `content` behind what is there: its place in `unpacked`.

        `what` is whose content it is; `already` were bytes decompressed that count for the same
        bound.

        Raises RecordTooLarge beyond `max_unpacked_bytes`, CorruptData for bytes that are not of
        this codec.
        """
        start, most = self._unpacked_size, self.selection.max_unpacked_bytes
        target = self.unpacked[start : start + most - already]
        self._unpacked_size += decompress(
            self.fetched, codec, content, target, offset, what, most=most
        )
        return start, self._unpacked_size

    @contextmanager
    def looked_into(self) -> Iterator[None]:
        """What is unpacked inside is not kept."""
        kept = self._unpacked_size
        yield
        self._unpacked_size = kept

    def take(self) -> Iterator[pa.RecordBatch]:
        """Decode what was added, and start over. Nothing comes when no record lies within the
        selected offsets.
        """
        if not self._rows:
            return
        table = np.array(self._rows, dtype=np.int64)
        selection, fetched = self.selection, self.fetched
        buffers = self._buffers(
            selection.columns,
            rows=self._records,
            size=self._size,
            max_record_bytes=selection.max_record_bytes,
        )
        unpacked = frozen(self.unpacked) if self._unpacked_size else self.plain
        compressed, monster = self._unpacked_size > 0, self._unpacked_size > 4 * GROUP_BYTES
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
            if monster or (more and compressed):
                _let_go_of_scratch()  # one monster should not stay resident, nor another cursor write over what is still to be decoded
            if buffers.rows:
                yield buffers.arrow_batch(fetched, selection.log_epoch)
            if more:
                buffers = buffers.behind()


def decompress(
    fetched: FetchedPartition,
    codec: int,
    content: Bytes,
    target: Bytes,
    offset: int,
    what: str,
    *,
    most: int,
) -> int:
    """Decompress `content` of the entry at `offset` into `target`, which is what is left of the
    bound `most`; the number of bytes written.

    Raises RecordTooLarge, CorruptData.
    """
    try:
        return codecs.decompress(codec, content, target)
    except codecs.DoesNotFit as error:
        raise RecordTooLarge(
            f"{what} decompresses to more than {most}",
            check="who produced it (such a ratio is rare for data and usual for a decompression bomb)",
            **place_of(fetched),
            offset=offset,
        ) from error
    except ValueError as error:
        raise corrupt(fetched, offset, f"{what} is no {codecs.NAMES[codec]}: {error}") from error


def _scratch_bytes(size: int) -> Bytes:
    """This thread's room to decompress into: used up within one step of `decode`, so cursors may
    share it.
    """
    content: Bytes | None = getattr(_scratch, "bytes", None)
    if content is None or content.size < size:
        content = _scratch.bytes = np.empty(size, dtype=np.uint8)
    return content


def _let_go_of_scratch() -> None:
    """Forget this thread's scratch memory: who still has it keeps it, the next to decompress makes
    another.
    """
    _scratch.__dict__.pop("bytes", None)
