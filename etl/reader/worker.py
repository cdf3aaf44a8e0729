"""One worker process of a run without Spark. Its pool, which starts it with `main`, hands it tasks
one after the other.

A task comes as a pickled value on standard input, and what it came to goes back on a pipe of its
own, whose number is the program's last word; both ends are of one version, on one machine. Where
the input ends the run is gone, and so is this process, whatever it is at: files that no commit
names stay for VACUUM.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

from etl.errors import CorruptData
from etl.io.progress_port import ProgressAddress
from etl.model.plans import FilesWanted, Written
from etl.reader.reading import Reading
from etl.reader.task_rows import TaskFailed
from etl.reader.tasks import Task
from etl.reader.written import write_task


class Order(NamedTuple):
    """One attempt of a task."""

    task: Task
    attempt: int
    reading: Reading
    wanted: FilesWanted
    progress: ProgressAddress | None


class Failed(NamedTuple):
    """What an attempt that failed says: the text of its TaskFailed, or of a bug."""

    text: str
    was_misread: bool = False
    """Whether it was by what a broker sent, which may come whole when it is asked for again."""


def done(order: Order) -> Written | Failed:
    """What the attempt came to."""
    try:
        return write_task(
            order.task, order.reading, order.wanted, order.progress, attempt=order.attempt
        )
    except TaskFailed as failed:
        return Failed(str(failed), was_misread=isinstance(failed.__cause__, CorruptData))
    except Exception:
        return Failed(traceback.format_exc())


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Execute what comes, in turn, until the input ends. The process ends with it."""
    waiting = SimpleQueue[Order]()
    threading.Thread(target=_take, args=(orders, waiting), name="orders", daemon=True).start()
    _load()
    while True:
        pickle.dump(done(waiting.get()), answers)
        answers.flush()


def _take(orders: IO[bytes], waiting: SimpleQueue[Order]) -> None:
    try:
        while True:
            waiting.put(pickle.load(orders))  # noqa: S301 -- by the process that started this one
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)


def _load() -> None:
    """What a first task would load, while nobody waits for it yet."""
    import etl.io.delta.data_files
    import etl.reader.fetch

    del etl


def main() -> None:
    """Serve on the process's own pipes."""
    at = int(sys.argv[-1])
    os.set_inheritable(at, False)
    answers: Any = os.fdopen(at, "wb")
    serve(sys.stdin.buffer, answers)
