"""How rows are laid out in the data files that tasks write themselves: where a row group, and a
file, ends; how a column is kept; names.

Pure functions of values. A task holds the rows of a row group before it encodes them, so these are
bounds of memory first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etl.model.plans import Codec, FilesWanted

OPEN_FILES = 32
"""So many files a task has open, one for each value of the table's partitions; then the one that
was used longest ago ends.
"""
PAGE_BYTES = 2**20
"""Of a column's page, as other writers of Parquet have it: of pages of a quarter of that the
encoding took a fifth more.
"""
MOST_ROWS_AT_A_TIME = 4096
"""So many rows are encoded by one call: a page ends behind a call, so rows that are large take
fewer.
"""
_REPEATED = ("topic", "partition", "timestampType", "broker_id", "message_index", "log_epoch")
"""Columns with few values: a dictionary makes a few bits of each. Of others it would only be tried,
row for row, and given up.
"""
_ASCENDING = ("offset",)
"""Columns whose neighbours lie close together."""
_SELDOM_REPEATED = ("key", "value", *_ASCENDING, "timestamp", "headers")
"""Columns of the raw table of which no dictionary is tried, whatever a transform makes of them."""
_TRIED = ("string", "int8", "int16", "int32", "int64", "date32[day]")
"""Types of which a dictionary is tried in columns that a transform adds. Not of floating numbers:
some readers do not find -0.0 in a dictionary where they look for 0.0."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_LEVELS: Mapping[Codec, int] = {Codec.ZSTD: 1}


def is_row_group(held_bytes: int, held_in_all: int, wanted: FilesWanted) -> bool:
    """Whether rows become a row group now, so many bytes being held back of the file that just got
    some, and of all files of the task.

    No row group alone is worth more than a file.
    """
    return (
        held_bytes >= min(wanted.row_group_bytes, wanted.file_bytes)
        or held_in_all >= wanted.held_bytes
    )


def rows_at_a_time(rows: int, size: int) -> int:
    """How many rows one call encodes, `rows` of them being so many bytes: about a page of them, or
    fewer.
    """
    return max(1, min(MOST_ROWS_AT_A_TIME, PAGE_BYTES * rows // max(1, size)))


def is_whole_file(written_bytes: int, file_bytes: int) -> bool:
    """Whether a file ends, so many bytes being in it behind its last row group."""
    return written_bytes >= file_bytes


def with_dictionary(columns: Mapping[str, str]) -> list[str]:
    """Those of the columns, given with their types as Arrow calls them, that are kept by
    dictionary.
    """
    return [
        name
        for name, kind in columns.items()
        if name in _REPEATED or (name not in _SELDOM_REPEATED and kind in _TRIED)
    ]


def by_difference(columns: Mapping[str, str]) -> list[str]:
    """Those of the columns that are kept as differences (DELTA_BINARY_PACKED)."""
    return [name for name, kind in columns.items() if name in _ASCENDING and kind.startswith("int")]


def level_of(codec: Codec) -> int | None:
    """How hard a codec tries; None: it has no such choice."""
    return _LEVELS.get(codec)


def name_of_file(
    values: Mapping[str, str | None], task: int, attempt: int, unique: str, codec: Codec
) -> str:
    """Where below the table's folder a file lies: in a folder for each partition value, as Spark
    does it, where those have plain names.

    The log alone says what a file's partition values are (Delta protocol, "Add File"), so any other
    value is no reason for escapes that one reader undoes and another does not: such a file lies
    beside the folders. `unique` keeps attempts apart, also those of one task; it begins with the id
    of the write.
    """
    suffix = "" if codec is Codec.NONE else f".{codec.value}"
    name = f"part-{task:05d}-{attempt}-{unique}{suffix}.parquet"
    folders = [
        f"{column}={'__HIVE_DEFAULT_PARTITION__' if value is None else value}"
        for column, value in values.items()
    ]
    is_plain = all(
        _PLAIN_NAME.fullmatch(part) for folder in folders for part in folder.split("=", 1)
    )
    return "/".join([*folders, name]) if is_plain else name


def names_of_write(write_id: str) -> str:
    """The names of all files of one write, whatever their folder, as a pattern of pathlib."""
    return f"part-*-{write_id}-*.parquet"
