"""The log of a Delta table, read as JSON: rows, files, bytes, and the time of its newest commit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def written(table: Path, records: int) -> Mapping[str, Any]:
    """Files, bytes and the time of the newest commit, in seconds since 1970. Raises ValueError when
    there are not so many rows.
    """
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    added = [action["add"] for action in actions if "add" in action]
    rows = sum(json.loads(add["stats"])["numRecords"] for add in added)
    if rows != records:
        raise ValueError(f"{rows} rows of {records} are in {table}")
    return {
        "files": len(added),
        "table_bytes": sum(add["size"] for add in added),
        "committed_at": commits[-1].stat().st_mtime,
    }


class Clock:
    """Seconds since its creation, by the machine's clock, for comparison with times of files and
    znodes.
    """

    def __init__(self) -> None:
        self.began_at, self._began = time.time(), time.monotonic()

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.monotonic() - self._began
