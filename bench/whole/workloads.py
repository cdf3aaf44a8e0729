"""The records of a workload: their size, the compression of the topic's batches, and their number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

PARTITIONS = 2
"""Of each topic: as many as cores, for Spark's source has a task for each."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One topic."""

    name: str
    size: int
    """Bytes of a record's value; there are no keys and no headers."""
    compression: str
    """Of the topic's record batches."""
    records: int

    @property
    def topic(self) -> str:
        """Its name on the broker."""
        return self.name

    def of(self, records: int | None) -> Workload:
        """The same with another number of records, a multiple of the partitions; None: as it is."""
        return (
            self if records is None else replace(self, records=records // PARTITIONS * PARTITIONS)
        )


WORKLOADS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        Workload("100B-none", 100, "none", 10_000_000),
        Workload("100B-lz4", 100, "lz4", 10_000_000),
        Workload("100B-zstd", 100, "zstd", 4_000_000),
        Workload("1kB-none", 1000, "none", 1_000_000),
        Workload("1kB-lz4", 1000, "lz4", 1_000_000),
        Workload("1kB-zstd", 1000, "zstd", 1_000_000),
    )
}
QUICK = ("100B-lz4",)
QUICK_RECORDS = 1_000_000
