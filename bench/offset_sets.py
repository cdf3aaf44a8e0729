"""Sets of offsets, for recounts and for the audit: numpy and Roaring bitmaps (pyroaring.BitMap64).

    PYTHONPATH=. python bench/offset_sets.py

Each line is a separate process. Seconds are processor time, without creating the offsets; MiB is
the largest growth of the process. `recount`: 20 million offsets of one range counted 65,536 rows at
a time, and its result. `audit`: 600 buckets of one partition as Spark's bitmaps, compared with one
applied plan. Exits with 1 if the two disagree.
"""

from __future__ import annotations

import array
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap64

from etl.audit.compare_rows import (
    BUCKET_OFFSETS,
    AuditedPartition,
    Bucket,
    Expected,
    ObservedOffsets,
    audit_partition,
)
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, RangeResult

SIZE, BATCH, GAPS_MAX, BUCKETS = 20_000_000, 65_536, 1_000, 600
LOG = TopicPartition("clicks", 0)
RANGE = OffsetRange(LOG, 5_000_000_000, 5_000_000_000 + SIZE)
Offsets = NDArray[numpy.int64]


class Runs:
    """As `ObservedOffsets`, kept as runs of consecutive offsets in numpy arrays, those that touch
    merged from time to time.
    """

    LOOSE = 2**20

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
        if self._loose_runs > self.LOOSE:
            self._starts, self._ends = ([side] for side in self._merged())
            self._loose_runs = 0

    def result(self, gaps_max: int) -> RangeResult:
        """As that of `ObservedOffsets`."""
        starts, ends = self._merged()
        starts, ends = (
            numpy.append(starts, self._range.until_offset),
            numpy.insert(ends, 0, self._range.from_offset),
        )
        gap = starts > ends
        gaps = zip(ends[gap][:gaps_max].tolist(), starts[gap][:gaps_max].tolist(), strict=True)
        missing = int((starts - ends).sum())
        return RangeResult(
            rows=self._range.size - missing,
            missing_offsets=missing,
            gaps=tuple(gaps),
            gaps_complete=int(gap.sum()) <= gaps_max,
        )

    def _merged(self) -> tuple[Offsets, Offsets]:
        """The runs in order, those that touch or overlap made one."""
        if not self._starts:
            return numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64)
        starts, ends = numpy.concatenate(self._starts), numpy.concatenate(self._ends)
        order = numpy.argsort(starts, kind="stable")
        starts, reached = starts[order], numpy.maximum.accumulate(ends[order])
        first = numpy.append(True, starts[1:] > reached[:-1])
        return starts[first], reached[numpy.append(first[1:], True)]


def batches(kind: str) -> Iterator[Offsets]:
    """Sorted batches of offsets of RANGE."""
    rng = numpy.random.default_rng(7)
    starts = numpy.arange(RANGE.from_offset, RANGE.until_offset, BATCH)
    for start in (
        rng.permutation(starts).tolist()
        if kind == "no gaps, batches in any order"
        else starts.tolist()
    ):
        yield kept(
            kind,
            numpy.arange(start, min(start + BATCH, RANGE.until_offset), dtype=numpy.int64),
            rng,
        )


def kept(kind: str, offsets: Offsets, rng: numpy.random.Generator) -> Offsets:
    """Those of a batch that gave a row."""
    if kind == "a marker every 100":
        rows = offsets % 100 != 0
    elif kind == "every second":
        rows = offsets % 2 == 0
    else:
        rows = rng.random(len(offsets)) < {"nine in ten": 0.9, "one in a hundred": 0.01}.get(
            kind, 2
        )
    found: Offsets = offsets[rows]
    return found


def recount(kind: str, form: Callable[[OffsetRange], ObservedOffsets | Runs]) -> tuple[float, str]:
    """Processor time, and what came out."""
    seen, used = form(RANGE), 0.0
    for batch in batches(kind):
        begun = time.process_time()
        seen.add(batch)
        used += time.process_time() - begun
    begun = time.process_time()
    result = seen.result(GAPS_MAX)
    return used + time.process_time() - begun, repr(result).replace(" ", "")


def buckets(kind: str) -> Iterator[Bucket]:
    """What Spark gives of a log."""
    rng = numpy.random.default_rng(7)
    for number in range(BUCKETS):
        flags = rng.random(BUCKET_OFFSETS) < (0.9 if kind == "nine in ten" else 2)
        full = bool(flags.all())
        yield Bucket(
            number,
            int(flags.sum()),
            None if full else numpy.packbits(flags, bitorder="little").tobytes(),
        )


def audited(kind: str, form: str) -> tuple[float, str]:
    """Processor time, and how many offsets are missing."""
    found, until = list(buckets(kind)), BUCKETS * BUCKET_OFFSETS
    begun = time.process_time()
    if form == "numpy":
        missing = audit_partition(
            AuditedPartition(LOG),
            Expected(((OffsetRange(LOG, 0, until), RangeResult(rows=until)),)),
            found,
        ).missing
    else:
        expected, there = BitMap64(range(until)), BitMap64()
        for bucket in found:
            start = bucket.number * BUCKET_OFFSETS
            if bucket.bitmap is None:
                there.add_range(start, start + BUCKET_OFFSETS)
            else:
                flags = numpy.unpackbits(
                    numpy.frombuffer(bucket.bitmap, numpy.uint8), bitorder="little"
                )
                there.update(array.array("Q", (numpy.flatnonzero(flags) + start).tobytes()))
        missing = len(expected - there)
        assert not len(there - expected)
    return time.process_time() - begun, str(missing)


CASES = {
    "recount": (
        "no gaps",
        "no gaps, batches in any order",
        "a marker every 100",
        "nine in ten",
        "every second",
        "one in a hundred",
    ),
    "audit": ("no gaps", "nine in ten"),
}


def one(work: str, kind: str, form: str) -> None:
    """One case in this process. Prints seconds, MiB, and what came out."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used, found = (
        recount(kind, Runs if form == "numpy" else ObservedOffsets)
        if work == "recount"
        else audited(kind, form)
    )
    print(
        f"{used:.2f} "
        f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.0f} {found}"
    )


def child(work: str, kind: str, form: str) -> list[str]:
    """What `one` printed in a process of its own."""
    return subprocess.run(
        [sys.executable, __file__, work, kind, form], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()


def main() -> int:
    """All cases, a line each."""
    print(f"{'':<42} {'numpy s':>8} {'MiB':>5} {'roaring s':>10} {'MiB':>5}")
    agreed = True
    for work, kinds in CASES.items():
        for kind in kinds:
            (numpy_s, numpy_mib, found), (roaring_s, roaring_mib, again) = (
                child(work, kind, form) for form in ("numpy", "roaring")
            )
            agreed &= found == again
            print(
                f"{work + ', ' + kind:<42} {numpy_s:>8} {numpy_mib:>5} {roaring_s:>10} "
                f"{roaring_mib:>5}",
                flush=True,
            )
    return 0 if agreed else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(*sys.argv[1:])
    else:
        sys.exit(main())
