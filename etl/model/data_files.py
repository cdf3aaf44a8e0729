"""Data files of a table that tasks wrote and no commit names yet: what is wanted of them, and what
each task gave back. Plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from etl.model.receipts import Receipt

if TYPE_CHECKING:
    import pyarrow


class Codec(str, Enum):
    """How the pages of a Parquet file are compressed."""

    NONE = "uncompressed"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


DEFAULT_CODEC = Codec.ZSTD
"""Of files that tasks write."""
FILE_BYTES = 128 * 2**20
"""How large they become where there is enough, unless the conf says otherwise."""
ROW_GROUP_BYTES = 16 * 2**20
"""Rows of one file that are held back become a row group where they come to so many bytes, as Arrow
has them.
"""
HELD_BYTES = 48 * 2**20
"""What a task holds back of all its files: where that is passed, the one that holds most gives up a
row group, however small.
"""


@dataclass(frozen=True, slots=True)
class FilesWanted:
    """Where files go and how they are written; the same for every task of a plan."""

    root: str
    """The table's folder, or its path in a store."""
    columns: tuple[str, ...]
    """Those of `raw_table`, and `event_date` where the table is partitioned by it, in the table's
    order.
    """
    partition_by: tuple[str, ...] = ()
    physical: bool = False
    """The rows are of physical logs (`BrokerPartition.is_physical`)."""
    codec: Codec = DEFAULT_CODEC
    file_bytes: int = FILE_BYTES
    """A file ends behind the row group that takes it there."""
    row_group_bytes: int = ROW_GROUP_BYTES
    held_bytes: int = HELD_BYTES
    write_id: str = "0"
    """Part of the name of each file of this write, and of none of another."""
    schema: pyarrow.Schema | None = None
    """Of the rows, where a transform made them; None: that of `raw_table`."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file."""

    path: str
    """Below the table's folder, as the file system has it."""
    size: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str
    """JSON (Delta protocol, "Per-file Statistics")."""
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    """What one task gave back."""

    indices: tuple[int, ...]
    """The ranges of the plan that it read."""
    files: tuple[DataFile, ...]
    receipts: Mapping[int, Receipt] = field(default_factory=dict)
    """By the same indices."""
    made: int | None = None
    """Rows that a transform made of what was read; None: there is none, and each record is a row.
    """

    @property
    def rows(self) -> int:
        """In all its files."""
        return sum(file.rows for file in self.files)
