"""A partition of the fake brokers with byte offsets, split into segments (0.7 family)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from etl.model.partitions import Fingerprint, LookedAt, PartitionOffsets
from tests.fakes.fake_log import FakeLog, Place

ENTRIES_A_SEGMENT = 3


@dataclass
class PhysicalLog(FakeLog):
    """Entries one after the other; the broker names segments and the flushed end alone."""

    tells_epochs: bool = False
    entries: list[tuple[int, int]] = field(default_factory=list)
    """Where each begins, and how many messages it unpacks to."""
    alike: bool = False
    """All of its messages have the same content, in every incarnation."""

    def grow(self, count: int) -> None:
        """So many more entries, flushed: of several sizes, and of one to three messages."""
        for _ in range(count):
            number = len(self.entries)
            self.entries.append((self.end, 1 + number % 3))
            self.end += 11 + number % 4

    def cut(self, at: int) -> None:
        """The broker lost its disk's tail, from an entry on."""
        assert at in self._starts, "a log ends with an entry"
        self.entries = [entry for entry in self.entries if entry[0] < at]
        super().cut(at)

    def expire_segment(self) -> None:
        self.log_start = self._boundaries[1]

    @property
    def extent(self) -> PartitionOffsets:
        return PartitionOffsets(self.log_start, self.end, boundaries=self._boundaries)

    @property
    def _starts(self) -> list[int]:
        return [start for start, _ in self.entries]

    @property
    def _boundaries(self) -> tuple[int, ...]:
        segments = {start for start in self._starts[::ENTRIES_A_SEGMENT] if start >= self.log_start}
        return tuple(sorted({self.log_start, *segments, self.end}))

    def look_at(self, offset: int) -> LookedAt:
        if offset in self._starts:
            return LookedAt(offset, True)
        before = max(start for start in self._starts if start < offset)
        after = min(end for end in (*self._starts, self.end) if end > offset)
        return LookedAt(offset, False, "its length would be -1", before, after)

    def recreated(self) -> PhysicalLog:
        return PhysicalLog(lives=super().recreated().lives, alike=self.alike)

    def tail(self, until: int, size: int) -> Fingerprint:
        content = b"".join(
            (b"." if self.alike else f"{self.incarnation_of(at)}-{at};".encode()) * 16
            for at, _ in self.entries
            if until - size <= at < until
        )
        return Fingerprint(until, size, hashlib.blake2b(content, digest_size=8).hexdigest())

    def read(self, start: int, until: int) -> list[Place]:
        """Entry and index of each message that a reader of [start, until) gets."""
        assert self.log_start <= start <= until <= self.end, (
            "a driver fetches offsets that the partition does not have"
        )
        assert {start, until} <= {*self._starts, self.end}, "a range begins or ends inside an entry"
        return sorted(self.held(start, until))

    def held(self, start: int, until: int) -> set[Place]:
        return {
            (at, index)
            for at, messages in self.entries
            if start <= at < until
            for index in range(messages)
        }


def physical_log(entries: int) -> PhysicalLog:
    found = PhysicalLog()
    found.grow(entries)
    return found
