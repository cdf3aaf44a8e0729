"""What one walk through a range has seen so far, as the kernels count it while they decode."""

from __future__ import annotations

import numpy as np

from etl.model.plans import GAPS_KEPT
from etl.protocol.records.compiled import Ints

MAX_HOLES = 100
"""Stretches that no message had, of those that are kept."""
EXPECTED, GAPS, SEEN_ROWS, HOLES = range(4)


class Tally:
    """Rows seen by one walk, and the intervals that gave none."""

    def __init__(self, from_offset: int) -> None:
        self.numbers: Ints = np.array([from_offset, 0, 0, 0], dtype=np.int64)
        self.gap_bounds: Ints = np.empty((GAPS_KEPT, 2), dtype=np.int64)
        self.hole_bounds: Ints = np.empty((MAX_HOLES, 2), dtype=np.int64)

    @property
    def rows(self) -> int:
        return int(self.numbers[SEEN_ROWS])

    @property
    def gap_count(self) -> int:
        """All of them, also those beyond GAPS_KEPT."""
        return int(self.numbers[GAPS])

    def gaps(self) -> list[tuple[int, int]]:
        """The first GAPS_KEPT intervals [from, until) without a row, in order."""
        return _pairs(self.gap_bounds, self.gap_count)

    @property
    def hole_count(self) -> int:
        """All of them, also those beyond MAX_HOLES."""
        return int(self.numbers[HOLES])

    def holes(self) -> list[tuple[int, int]]:
        """The first MAX_HOLES intervals [from, until) between messages of formats v0 and v1 that
        none of them had, in order.

        Of record batches v2 their headers tell that, before they are decoded.
        """
        return _pairs(self.hole_bounds, self.hole_count)

    @property
    def expected(self) -> int:
        """One past the newest row, or the start of the range."""
        return int(self.numbers[EXPECTED])


def _pairs(bounds: Ints, count: int) -> list[tuple[int, int]]:
    return [(int(first), int(until)) for first, until in bounds[:count]]
