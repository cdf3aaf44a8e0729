"""What rows alone tell of a range: which of its offsets, or of a physical log which messages, are
there.

For a plan whose record a crash prevented: its receipts are counted again from the files of its
commit. No I/O.
"""

from __future__ import annotations

import array

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap64

from etl.model.plans import OffsetRange, RangeResult

Offsets = NDArray[numpy.int64]
_OFFSETS_A_RUN = 16
"""Adding a run costs about as much as adding so many offsets."""


class SeenMessages:
    """Which messages of one range of a physical log gave a row, by their entry's byte position and
    their index in it, in whatever order.

    A Roaring bitmap too: a message is its index and, in the lower bits, its entry's distance from
    the range's start.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range, self._seen = offset_range, BitMap64()
        self._bits = offset_range.size.bit_length()

    def add(self, offsets: Offsets, indices: Offsets) -> None:
        """Note these messages; all entries lie in the range. An index that no message can have
        names none.
        """
        possible = (indices >= 0) & (indices < 1 << (63 - self._bits))
        messages = (indices[possible] << self._bits) | (offsets[possible] - self._range.from_offset)
        self._seen.update(array.array("Q", messages.tobytes()))

    def receipt(self, gaps_max: int) -> RangeResult:
        """The receipt of the range, as far as rows can tell: how many messages there are. Which are
        not there byte positions do not tell.

        A message that came twice is one: that a row is double is the audit's finding.
        """
        del gaps_max
        return RangeResult(rows=len(self._seen), gaps_complete=False)


class SeenOffsets:
    """Which offsets of one range gave a row, whatever order they come in.

    Kept as a Roaring bitmap: next to nothing for a log without gaps, at most two bytes a row where
    rows do not lie far apart.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range, self._seen = offset_range, BitMap64()

    def add(self, offsets: Offsets) -> None:
        """Note these offsets, ascending; all lie in the range."""
        if not len(offsets):
            return
        breaks = numpy.flatnonzero(numpy.diff(offsets) > 1)
        if len(breaks) * _OFFSETS_A_RUN > len(offsets):
            self._seen.update(array.array("Q", offsets.tobytes()))
            return
        starts, lasts = (
            offsets[numpy.append(0, breaks + 1)],
            offsets[numpy.append(breaks, len(offsets) - 1)],
        )
        for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
            self._seen.add_range(start, last + 1)

    def receipt(self, gaps_max: int) -> RangeResult:
        """The receipt of the range, as far as rows can tell: why an offset gave none nobody knows,
        all count as missing.

        An offset that came twice is one: that a row is double is the audit's finding.
        """
        rows, gaps = len(self._seen), self._gaps(gaps_max + 1)
        return RangeResult(
            rows=rows,
            missing_offsets=self._range.size - rows,
            gaps=tuple(gaps[:gaps_max]),
            gaps_complete=len(gaps) <= gaps_max,
        )

    def _gaps(self, most: int) -> list[tuple[int, int]]:
        """The first intervals [from, until) without a row."""
        found: list[tuple[int, int]] = []
        at, until = self._range.from_offset, self._range.until_offset
        while at < until and len(found) < most:
            begin = self._run_end(at)
            at = next(self._seen.iter_equal_or_larger(begin), until) if begin < until else until
            if begin < at:
                found.append((begin, at))
        return found

    def _run_end(self, start: int) -> int:
        """The first offset from `start` on that gave no row, or the range's end: by steps that
        double, then halve.
        """
        end, step, until = start, 1, self._range.until_offset
        while end < until and self._seen.contains_range(end, min(end + step, until)):
            end, step = min(end + step, until), step * 2
        while step := step // 2:
            if end + step <= until and self._seen.contains_range(end, end + step):
                end += step
        return end
