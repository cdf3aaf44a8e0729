"""Owns the cache folder, outside of any clone, and that two processes do not fill the same part of
it at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/offset-range-etl`, or below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-range-etl"


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is inside with the same lock file. A crash releases it too."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
