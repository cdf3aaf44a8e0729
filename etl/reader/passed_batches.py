"""What the record batches of a range tell besides their rows: which leaders wrote them, and which
offsets none of them has.
"""

from __future__ import annotations

from etl.decide.partition_identity import EPOCHS_KEPT
from etl.model.plans import OffsetRange
from etl.records.entries import NO_EPOCH, BatchHeader, Walk
from etl.records.kernel_cache import MAX_HOLES

MISSING_MAX = MAX_HOLES
"""How many stretches of missing offsets are kept; all of them are counted."""


class PassedBatches:
    """Notes of the record batches that a walk through `range` passed by; where compaction
    `explains_missing` offsets, none are noted.
    """

    def __init__(self, range: OffsetRange, *, explains_missing: bool) -> None:
        self._range, self._explains_missing = range, explains_missing
        self._epochs: list[tuple[int, int]] = []
        self.last_epoch: int | None = None
        """The leader epoch of the record batch that holds the last offset of the range; None until
        one does.
        """
        self.missing: list[tuple[int, int]] = []
        self.missing_count = 0

    def note(self, found: Walk, position: int) -> None:
        """The record batches of one answer, asked for from `position` on; the last of them may lie
        beyond `until`.
        """
        self._note_epochs(found)
        if not self._explains_missing:
            self._note_missing(found, position)

    @property
    def newest_epochs(self) -> tuple[tuple[int, int], ...]:
        """The last `EPOCHS_KEPT` leader epochs, each with the first offset of the range that was
        written in it.
        """
        return tuple(self._epochs[-EPOCHS_KEPT:])

    def _note_missing(self, found: Walk, position: int) -> None:
        """Which offsets from `position` on none of the record batches has. Of older messages the
        decoder tells, which looks at each.
        """
        expected = position
        for batch in found.batches:
            if isinstance(batch, BatchHeader) and batch.base_offset > expected:
                self._add_missing(expected, min(batch.base_offset, self._range.until_offset))
            expected = max(expected, batch.last_offset + 1)

    def _add_missing(self, from_offset: int, until_offset: int) -> None:
        self.missing_count += 1
        if len(self.missing) < MISSING_MAX:
            self.missing.append((from_offset, until_offset))

    def _note_epochs(self, found: Walk) -> None:
        """Epochs only rise, so an answer that begins and ends with the one we have brings no other."""
        self.last_epoch = _epoch_at(found, self._range.until_offset - 1)
        if not self._epochs or self._epochs[-1][0] != found.batches[-1].leader_epoch:
            for batch in found.batches:
                newest = self._epochs[-1][0] if self._epochs else NO_EPOCH
                if newest < batch.leader_epoch and batch.base_offset < self._range.until_offset:
                    self._epochs.append(
                        (batch.leader_epoch, max(batch.base_offset, self._range.from_offset))
                    )


def _epoch_at(found: Walk, offset: int) -> int | None:
    """The leader epoch of the record batch that holds this offset, if one does; only the last two
    can.
    """
    epochs = (
        b.leader_epoch for b in found.batches[-2:] if b.base_offset <= offset <= b.last_offset
    )
    return next((epoch for epoch in epochs if epoch > NO_EPOCH), None)
