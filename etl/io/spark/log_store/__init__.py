"""Jar and source of our Delta log store for S3, which commits by conditional puts."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from importlib import resources
from pathlib import Path

_JAR = "log_store.jar"


@functools.cache
def jar_path() -> Path:
    """The jar as a file that a JVM can open: a copy, for the life of this process, where the
    package is in an archive.
    """
    there = resources.files(__name__) / _JAR
    if isinstance(there, Path):
        return there
    folder = Path(tempfile.mkdtemp(prefix="etl-log-store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / _JAR
    copy.write_bytes(there.read_bytes())
    return copy
