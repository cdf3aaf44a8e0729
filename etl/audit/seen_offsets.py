"""What rows alone tell of a range: which of its offsets are there.

For a plan whose record a crash prevented: its receipts are counted again from the files of its commit. No I/O.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from etl.model.plans import OffsetRange, Receipt

Offsets = NDArray[numpy.int64]
_LOOSE_RUNS = 2**20
"""Runs that are kept unmerged."""


class SeenOffsets:
    """Which offsets of one range gave a row, whatever order they come in.

    Kept as runs of consecutive offsets: next to nothing for a log without gaps, at worst 16 bytes a row.
    """

    def __init__(self, offset_range: OffsetRange) -> None:
        self._range = offset_range
        self._starts: list[Offsets] = []
        self._ends: list[Offsets] = []
        self._loose_runs = 0

    def add(self, offsets: Offsets) -> None:
        """Note these offsets, ascending; all lie in the range."""
        if not len(offsets):
            return
        breaks = numpy.flatnonzero(numpy.diff(offsets) > 1)
        self._starts.append(offsets[numpy.concatenate(([0], breaks + 1))])
        self._ends.append(offsets[numpy.append(breaks, len(offsets) - 1)] + 1)
        self._loose_runs += len(breaks) + 1
        if self._loose_runs > _LOOSE_RUNS:
            self._starts, self._ends = ([side] for side in self._merged())
            self._loose_runs = 0

    def receipt(self, gaps_max: int) -> Receipt:
        """The receipt of the range, as far as rows can tell: why an offset gave none nobody knows, all count as missing.

        An offset that came twice is one: that a row is double is the audit's finding.
        """
        starts, ends = self._merged()
        starts, ends = numpy.append(starts, self._range.until_offset), numpy.insert(ends, 0, self._range.from_offset)
        gap = starts > ends
        gaps = zip(ends[gap][:gaps_max].tolist(), starts[gap][:gaps_max].tolist(), strict=True)
        missing = int((starts - ends).sum())
        return Receipt(rows=self._range.size - missing, missing_offsets=missing, gaps=tuple(gaps), gaps_complete=int(gap.sum()) <= gaps_max)

    def _merged(self) -> tuple[Offsets, Offsets]:
        """The runs in order, those that touch or overlap made one."""
        if not self._starts:
            return numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64)
        starts, ends = numpy.concatenate(self._starts), numpy.concatenate(self._ends)
        order = numpy.argsort(starts, kind="stable")
        starts, reached = starts[order], numpy.maximum.accumulate(ends[order])
        first = numpy.append(True, starts[1:] > reached[:-1])
        return starts[first], reached[numpy.append(first[1:], True)]
