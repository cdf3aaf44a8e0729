"""What rows alone tell of a range."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.audit.seen_offsets import SeenOffsets
from etl.model.logs import BrokerPartition
from etl.model.plans import OffsetRange

LOG = BrokerPartition("clicks", 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100), st.integers(1, 5000), st.data())
def test_a_recounted_receipt_has_the_gaps_of_its_rows_in_whatever_order_they_came(start: int, size: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("etl.audit.seen_offsets._LOOSE_RUNS", data.draw(st.sampled_from([0, 2**20])))
        _recount_and_compare(start, size, data)


def _recount_and_compare(start: int, size: int, data: st.DataObject) -> None:
    offsets = data.draw(st.lists(st.integers(start, start + size - 1), unique=True, max_size=300))
    cut = data.draw(st.integers(0, len(offsets)))
    seen = SeenOffsets(OffsetRange(LOG, start, start + size))
    for part in (offsets[:cut], offsets[cut:]):
        seen.add(numpy.sort(numpy.array(part, numpy.int64)))
    receipt = seen.receipt(gaps_max=10_000)
    absent = [o for begin, end in receipt.gaps for o in range(begin, end)]
    assert absent == sorted(set(range(start, start + size)) - set(offsets))
    assert (receipt.rows, receipt.missing_offsets, receipt.gaps_complete) == (len(offsets), size - len(offsets), True)
    assert all(end < begin for (_, end), (begin, _) in zip(receipt.gaps, receipt.gaps[1:], strict=False))


def test_a_receipt_keeps_the_first_gaps_and_says_that_there_are_more() -> None:
    size = 3 * 2**19 + 1
    seen = SeenOffsets(OffsetRange(LOG, 0, size))
    seen.add(numpy.arange(0, size, 2, dtype=numpy.int64))
    receipt = seen.receipt(gaps_max=2)
    assert (receipt.gaps, receipt.gaps_complete, receipt.missing_offsets) == (((1, 2), (3, 4)), False, size // 2)
    assert SeenOffsets(OffsetRange(LOG, 0, size)).receipt(gaps_max=2).gaps == ((0, size),)
