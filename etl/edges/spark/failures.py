"""What a failure of Spark means: it lost a process of its own (its JVM, an executor, a Python
worker), or a row could not be made.

What a worker lacks is told by `workers`. Any other error is somebody else's.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from etl.edges.spark.workers import lacking
from etl.errors import EtlError, ProcessLost

_LOST = re.compile(
    r"ExecutorLostFailure|java\.lang\.OutOfMemoryError|Answer from Java side is empty|pyspark\.daemon's stdout"
    r"|SparkContext was shut down|stopped SparkContext|Python worker (?:exited unexpectedly|failed to connect back)[^\n]*"
)
_TRACEBACK = "Traceback (most recent call last):\n"
_PYTHON = re.compile(re.escape(_TRACEBACK) + r"((?:[ \t].*\n)+)(\S.*)")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_JAVA = re.compile(r"\n\s+at |\n SQLSTATE")
"""Where a traceback of Python ends and Java's stack trace begins."""
_OUR_READER = "etl/reader/spark_rows.py"
"""The module under which a run's tasks read: what failed there is ours."""
_SPARK = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
"""An error condition of Spark, with what it says."""
_NOT_OF_A_ROW = ("[TASK_WRITE_FAILED]", "[DELTA_")
_OF_AN_EXPRESSION = frozenset(
    (
        "ArithmeticException",
        "ArrayIndexOutOfBoundsException",
        "DateTimeException",
        "NumberFormatException",
        "SparkRuntimeException",
    )
)
"""As pyspark names what an expression raised, where no writer stands between."""
_IN_A_TASK = ("[TASK_WRITE_FAILED]", "Job aborted due to stage failure")


@contextlib.contextmanager
def translating_spark_errors() -> Iterator[None]:
    """Inside, the loss of a JVM, an executor or a worker is told as such and not as a bug, and so
    is what workers lack.

    Raises ProcessLost, SettingsError, and KeyboardInterrupt for what fails only because one is on
    its way out: py4j has shut its connection then, and pyspark's own calls behind it may find the
    next one shut, too (one in twelve did).
    """
    try:
        yield
    except Exception as error:
        if _behind_a_stop(error):
            raise KeyboardInterrupt from error
        if isinstance(error, EtlError):
            raise
        lacks = lacking(str(error))
        if lacks:
            raise lacks from error
        found = _LOST.search(str(error))
        if found is None and not _is_of_the_jvms_line(error):
            raise
        check = (
            "memory on the machines that run driver and executors (what killed it?), and Spark's log beside the run's report; "
            "in a notebook, begin a new process"
        )
        raise ProcessLost(
            f"Spark lost a process of its own: {found[0] if found else type(error).__name__}",
            check=check,
        ) from error


def _behind_a_stop(error: BaseException) -> bool:
    met: BaseException | None = error
    while met is not None and not isinstance(met, KeyboardInterrupt):
        met = met.__context__
    return met is not None


def _is_of_the_jvms_line(error: Exception) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError):
        return any(
            "py4j" in Path(frame.filename).parts
            for frame in traceback.extract_tb(error.__traceback__)
        )
    return isinstance(error, Py4JNetworkError)


def raised_on_a_row(kind: str, text: str) -> tuple[str, str | None] | None:
    """What was raised while a task made rows, and at which line of Python if it was one; None for a
    failure of another kind.

    `kind` is the exception's name, `text` its own and that of its causes. Of exceptions that
    followed from one another the last is told.
    """
    _, begins, rest = text.partition(_TRACEBACK)
    if begins:
        told = begins + _JAVA.split(rest, maxsplit=1)[0]
        raised = _PYTHON.findall(told)
        if not raised or _OUR_READER in told:
            return None
        frames, said = raised[-1]
        places = _PLACE.findall(frames)
        return said.strip(), ":".join(places[-1]) if places else None
    errors = [found for found in _SPARK.findall(text) if not found.startswith(_NOT_OF_A_ROW)]
    return (
        (errors[-1].strip(), None)
        if errors and (kind in _OF_AN_EXPRESSION or any(one in text for one in _IN_A_TASK))
        else None
    )
