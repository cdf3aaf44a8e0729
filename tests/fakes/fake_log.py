"""One log of the fake brokers: what it holds, what it lacks, and the leaders that wrote it."""

from __future__ import annotations

from dataclasses import dataclass, field

from etl.model.partitions import EpochEnd, Fingerprint, LookedAt, PartitionOffsets

Place = int | tuple[int, int]
"""Offset of a row in its partition; on Jafka the entry's, and the message's index."""


def offset_of(place: Place) -> int:
    return place if isinstance(place, int) else place[0]


@dataclass
class FakeLog:
    """Offsets `log_start` until `end`; those in `missing` were compacted away."""

    end: int = 0
    log_start: int = 0
    missing: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """Missing without any explanation: runs that read them report it."""
    has_leader: bool = True
    later: dict[int, int] = field(default_factory=dict)
    """Milliseconds of the records that are not from 1970."""
    epochs: dict[int, int] = field(default_factory=lambda: {0: 0})
    """At which offset each leader's epoch began."""
    lives: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """(offset, incarnation) of its records from there on, after a truncation."""
    tells_epochs: bool = True
    held_back: int = 0
    """The number of last offsets after the start of an open transaction."""

    def grow(self, count: int) -> None:
        self.end += count

    def cut(self, at: int) -> None:
        """An unclean election: records from `at` on are gone, and another leader writes."""
        self.end = at
        self.lives = [
            *(life for life in self.lives if life[0] < at),
            (at, max(life for _, life in self.lives) + 1),
        ]
        self.epochs = {
            **{e: start for e, start in self.epochs.items() if start < at},
            max(self.epochs) + 1: at,
        }

    @property
    def extent(self) -> PartitionOffsets:
        """As a leader reports it under read_committed."""
        return PartitionOffsets(
            self.log_start, self.end - self.held_back, self.end if self.held_back else None
        )

    def recreated(self) -> FakeLog:
        """Another log of the same name, empty."""
        life = max(life for _, life in self.lives) + 1
        return FakeLog(lives=[(0, life)])

    def incarnation_of(self, offset: int) -> int:
        """Which record of the log's history lies at this offset now."""
        return next(life for start, life in reversed(self.lives) if start <= offset)

    def epochs_in(self, start: int, until: int) -> tuple[tuple[int, int], ...]:
        """Return the leader epochs of batches in [start, until), each with its first offset there."""
        begun = sorted((first, epoch) for epoch, first in self.epochs.items() if first < until)
        last_before = max((i for i, (first, _) in enumerate(begun) if first <= start), default=0)
        if self.tells_epochs:
            return tuple((epoch, max(first, start)) for first, epoch in begun[last_before:])
        return ()

    def end_of_epoch(self, wanted: int) -> EpochEnd | None:
        above = [epoch for epoch in self.epochs if epoch > wanted]
        if not self.tells_epochs or wanted > max(self.epochs):
            return None
        below = max((epoch for epoch in self.epochs if epoch <= wanted), default=wanted)
        return EpochEnd(wanted, below, self.epochs[min(above)] if above else self.end)

    def tail(self, until: int, size: int) -> Fingerprint:
        """The bytes before an offset, for Jafka only."""
        return Fingerprint(until, size, f"{self.incarnation_of(until - 1)}-{until}")

    def read(self, start: int, until: int) -> list[Place]:
        """Offsets that a reader of [start, until) gets."""
        assert self.log_start <= start <= until <= self.end, (
            "a driver fetches offsets that the partition does not have"
        )
        return sorted(self.held(start, until))

    def held(self, start: int, until: int) -> set[Place]:
        """The same, whatever the log holds by now."""
        return {offset for offset in range(start, until) if offset not in self.missing | self.lost}

    def look_at(self, offset: int) -> LookedAt:
        """The verification of a byte offset; here any offset is valid."""
        return LookedAt(offset, True)

    def late_at(self, moment: int) -> int | None:
        """The first offset with a record that late; None without one."""
        return next(
            (
                offset
                for offset in range(self.log_start, self.end)
                if self.later.get(offset, 0) >= moment
            ),
            None,
        )

    def first_at(self, moment: int) -> int:
        """The same; the end without one."""
        found = self.late_at(moment)
        return self.end if found is None else found
