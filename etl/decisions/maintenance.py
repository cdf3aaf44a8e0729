"""What maintenance may do to a table so that no proof and no way back is lost: how long files that
no version needs stay; and which files are so small that they are put together.

Files are needed after a commit took them out by whoever puts the table back (`RESTORE`, which a run
that stops for somebody's DELETE names as a way out), by a run that counts the rows of a commit
again after a crash, and, before a commit names them, by the tasks that write them. So they stay a
week at least, whatever a table's property says, and as long as that says where it is longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from etl.errors import NotOurTable, SettingsError
from etl.model.snapshot import Table

KEEPS_FILES = "delta.deletedFileRetentionDuration"
LEAST_KEPT = timedelta(days=7)
"""Delta's own default."""
_INTERVAL = re.compile(r"(\d+)\s*(week|day|hour|minute|second|millisecond|microsecond)s?")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of the table as it is."""

    partition: tuple[str | None, ...]
    """The values of the columns by which the table is partitioned."""
    size_bytes: int


def is_small(size_bytes: int, target_bytes: int) -> bool:
    """Whether a file has less than half of what files are to have: two such fit into one, wherever
    others lie between them.
    """
    return size_bytes * 2 < target_bytes


def small_files(files: Sequence[DataFile], target_bytes: int) -> tuple[int, int]:
    """How many small files there are that have another one beside them, in their partition of the
    table, and their bytes.
    """
    small: dict[tuple[str | None, ...], list[int]] = {}
    for file in files:
        if is_small(file.size_bytes, target_bytes):
            small.setdefault(file.partition, []).append(file.size_bytes)
    several = [size for sizes in small.values() if len(sizes) > 1 for size in sizes]
    return len(several), sum(several)


def is_compaction_due(small: int, at: int) -> bool:
    """Whether a run puts small files together behind its commit: so many wait as the conf says; 0
    says never.
    """
    return 0 < at <= small


def kept_for(configuration: Mapping[str, str | None], wanted: timedelta | None = None) -> timedelta:
    """How long files that no version needs stay: as long as is wanted, and no shorter than is safe.

    `configuration` are the table's properties. Raises SettingsError for less than that, and for a
    property that nobody understands.
    """
    text = configuration.get(KEEPS_FILES)
    said = interval(text) if text else timedelta()
    if said is None:
        check = "ALTER TABLE ... SET TBLPROPERTIES, its form: interval 30 days"
        raise SettingsError(
            f"the table's {KEEPS_FILES} is {text!r}, which is not understood",
            key=KEEPS_FILES,
            check=check,
        )
    least = max(LEAST_KEPT, said)
    if wanted is not None and wanted < least:
        why = (
            "the table's property says so"
            if said > LEAST_KEPT
            else "runs, RESTORE and proofs may need them"
        )
        check = f"--keep-days {least.days + (least.seconds > 0)} or more"
        raise SettingsError(
            f"files stay for {least.days} days at least: {why}", key="--keep-days", check=check
        )
    return wanted or least


def refuse_what_is_not_ours(table: Table | None, path: str) -> None:
    """Raises NotOurTable where no commit of this pipeline is in the table: whoever loads it looks
    after it.
    """
    if table is None or table.transaction_version is None:
        what = (
            "there is no table yet" if table is None else "this pipeline has no commit in the table"
        )
        raise NotOurTable(
            what,
            path=path,
            check="`etl run CONF`, or table.path: a pipeline looks after a table that it has loaded",
        )


def interval(text: str) -> timedelta | None:
    """Delta's text for a duration, `interval 30 days`; None when it is none."""
    words = text.strip().lower().removeprefix("interval").strip()
    found = _INTERVAL.findall(words)
    if not found or _INTERVAL.sub("", words).strip():
        return None
    return sum((timedelta(**{f"{unit}s": int(count)}) for count, unit in found), timedelta())
