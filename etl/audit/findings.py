"""What an audit is asked of one log, and what it finds there: the nouns of `audit` and of
`entries`.
"""

from __future__ import annotations

from dataclasses import dataclass

from etl.model.partitions import BrokerPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.model.snapshot import Interval

SHOWN = 5
"""How many offsets a finding names; it counts all of them."""


@dataclass(frozen=True, slots=True, order=True)
class AuditedLog:
    """One life of one log: after a topic was made again its offsets start anew, under the next
    epoch.
    """

    log: BrokerPartition
    log_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What the ledger says of one log."""

    applied: tuple[tuple[OffsetRange, RangeResult], ...] = ()
    """The ranges of plans that were applied and are still kept."""
    coverage: tuple[Interval, ...] = ()
    """What is left of pruned plans."""
    given_up: tuple[Interval, ...] = ()
    """Offsets of which a row may be there once or not at all: what an operator gave up, and what
    another pipeline loaded.
    """
    elsewhere: tuple[tuple[OffsetRange, RangeResult], ...] = ()
    """The ranges of kept plans that went to another table, or to a state of this one that an old
    copy replaced: an operator accepted that, and their rows are told as missing for that reason."""
    read_by_others: tuple[tuple[int, int], ...] = ()
    """Offsets [from, until) that other members of the group read: no row of them may be there, and
    nobody misses one.
    """

    @property
    def ranges(self) -> tuple[tuple[OffsetRange, RangeResult], ...]:
        """Those of all kept plans."""
        return (*self.applied, *self.elsewhere)


@dataclass(frozen=True, slots=True)
class Unequal:
    """An interval of which only the row count is known, and the table holds another number of its
    offsets.
    """

    from_offset: int
    until_offset: int
    expected_rows: int
    found_rows: int


@dataclass(frozen=True, slots=True)
class IncompleteInterval:
    """An interval of the ledger, a range or what is left of several, of which the table lacks rows,
    or may lack some.
    """

    from_offset: int
    until_offset: int
    missing: int


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What the audit of one log came to. Counts are of offsets, of a physical log of messages, but
    for `found_rows` and `double_rows`.
    """

    audited: AuditedLog
    expected_rows: int
    found_rows: int
    missing: int = 0
    missing_first: tuple[int, ...] = ()
    """The first missing offsets. Those of an `unequal` interval are counted, but nobody can name
    them; of a physical log, the entries that lack a message."""
    double_rows: int = 0
    """Rows too many: of an offset that is there three times, two."""
    double_places: tuple[int, ...] = ()
    """Buckets that hold doubles, of a physical log the first entry of each stretch that does; what
    is double there, another query tells.
    """
    unexpected: int = 0
    unexpected_first: tuple[int, ...] = ()
    """Offsets with a row where no applied plan gives one: outside all intervals, or in a gap."""
    unequal: tuple[Unequal, ...] = ()
    short: tuple[IncompleteInterval, ...] = ()
    """Where the missing offsets are; `missing` is their sum."""
    given_up_rows: int = 0
    """Rows of offsets that were given up: nobody misses them, and they are no surprise."""
    unproven: tuple[IncompleteInterval, ...] = ()
    """Intervals with offsets that have no row, where nobody can say whether one should be."""
    entries_with_holes: int = 0
    """Of a physical log: entries whose rows' indices are not 0, 1, 2 and so on, where by their
    number no row is missing.
    """
    entries_with_holes_first: tuple[int, ...] = ()

    @property
    def is_right(self) -> bool:
        """Every expected offset is there once, and nothing else."""
        return not (
            self.missing
            or self.double_rows
            or self.unexpected
            or self.unequal
            or self.unproven
            or self.entries_with_holes
        )
