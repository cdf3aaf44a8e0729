"""What a failure of Spark itself means: it lost its JVM, an executor or a Python worker; any other error is somebody else's."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from etl.errors import EtlError, SparkLost

_LOST = re.compile(
    r"ExecutorLostFailure|java\.lang\.OutOfMemoryError|Answer from Java side is empty|pyspark\.daemon's stdout"
    r"|SparkContext was shut down|stopped SparkContext|Python worker (?:exited unexpectedly|failed to connect back)[^\n]*")


@contextlib.contextmanager
def translating_spark_errors() -> Iterator[None]:
    """Inside, the loss of a JVM, an executor or a worker is told as such and not as a bug. Raises SparkLost."""
    try:
        yield
    except EtlError:
        raise
    except Exception as error:
        found = _LOST.search(str(error))
        if found is None and not _is_of_the_jvms_line(error):
            raise
        check = (
            "memory on the machines that run driver and executors (what killed it?), and Spark's log beside the run's report; "
            "in a notebook, begin a new process")
        raise SparkLost(f"Spark lost a process of its own: {found[0] if found else type(error).__name__}", check=check) from error


def _is_of_the_jvms_line(error: Exception) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError):
        return any("py4j" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__))
    return isinstance(error, Py4JNetworkError)
