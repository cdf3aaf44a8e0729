"""How do worker processes of this machine run tasks, without Spark?

The same tasks, files and errors. A failed task ends the write; the next run executes the same plan.
A task whose process died is tried in a new one, and a task that could not read from a broker in the
same one, each time under new file names.

Tasks are pickled to standard input, results come back on a pipe whose number is the last argument.
A worker exits when its input ends; files that no commit names are left to VACUUM.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

from etl.decide.table_storage import local_zone
from etl.errors import CorruptData, ProcessLost
from etl.io.progress_port import ProgressAddress
from etl.model.plans import FileOptions, RangeResult, Written
from etl.reader.reading import Reading, Task
from etl.reader.task_rows import TaskFailed, write_task


class Order(NamedTuple):
    """One attempt of a task."""

    task: Task
    attempt: int
    reading: Reading
    wanted: FileOptions
    progress: ProgressAddress | None


class Failed(NamedTuple):
    """A failed attempt: the text of its TaskFailed, or of a bug."""

    text: str
    was_misread: bool = False
    """True if a broker's response was invalid, which may be complete when requested again."""


def done(order: Order) -> Written | Failed:
    """Run one attempt and return its result."""
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
    """Import what the first task needs, while the worker waits."""
    import etl.io.delta.data_files
    import etl.reader.fetch

    del etl


def main() -> None:
    """Serve on the process's own pipes."""
    at = int(sys.argv[-1])
    os.set_inheritable(at, False)
    answers: Any = os.fdopen(at, "wb")
    serve(sys.stdin.buffer, answers)


ATTEMPTS_MAX = 4
"""As Spark's `spark.task.maxFailures`."""
_TOLD_BYTES = 2000
_ENDING_S = 10.0
"""Time for a process to end after its pipes have closed."""
_CHECK = "Set limits.local_below_bytes: 0 leaves the tasks to Spark"
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from etl.reader.local_workers import main; main()"
"""It imports as this process does. Not -m: what it gives back would be of the module __main__."""


class WorkerRangeResults:
    """Range results, by index in the plan."""

    def __init__(self) -> None:
        self.receipts: dict[int, RangeResult] = {}
        """The results so far; complete when all tasks have ended."""
        self.last_came: float | None = None
        """When the last of them came, by `time.monotonic`."""

    def add(self, receipts: dict[int, RangeResult]) -> None:
        """Take those of one task in."""
        self.receipts = {**self.receipts, **receipts}
        self.last_came = time.monotonic()

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """Return a result for each of `count` ranges, or None if some are missing."""
        if all(i in self.receipts for i in range(count)):
            return tuple(self.receipts[i] for i in range(count))
        return None


class FilesOfWorkers:
    """The rows of a plan, not read yet. `workers`: how many processes there are at most; they start
    here, and load what they need.

    `time_zone`: the local one of those processes, which a function of the user's may ask.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        reading: Reading,
        progress: ProgressAddress | None,
        *,
        workers: int,
        time_zone: str | None = None,
    ) -> None:
        self._tasks, self._reading, self._progress = tasks, reading, progress
        self.receipts = WorkerRangeResults()
        self._workers: list[Worker] = []
        with contextlib.ExitStack() as started:
            started.callback(self.close)
            for _ in range(min(max(1, workers), len(tasks))):
                self._workers.append(Worker(time_zone))
            started.pop_all()

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for worker in self._workers:
            worker.end()

    def write(self, wanted: FileOptions) -> Sequence[Written]:
        """Read all and write it; what each task gave back. Raises TaskFailed with a task's error
        inside, and ProcessLost.
        """
        left, found = deque(enumerate(self._tasks)), dict[int, Written]()

        def serve(worker: Worker) -> None:
            while True:
                try:
                    at, task = left.popleft()
                except IndexError:
                    return
                found[at] = self._done(worker, task, wanted)

        pool = ThreadPoolExecutor(len(self._workers), thread_name_prefix="worker")
        try:
            served = [pool.submit(serve, worker) for worker in self._workers]
            over, _ = wait(served, return_when=FIRST_EXCEPTION)
            for one in over:
                one.result()
        finally:
            left.clear()
            self.close()
            pool.shutdown()
        return [found[at] for at in range(len(self._tasks))]

    @property
    def _function(self) -> str:
        """Return another possible cause of a process's end."""
        if self._reading.transform:
            return f"; {self._reading.transform.name} (transform.record_batch), which works in it"
        return ""

    def _done(self, worker: Worker, task: Task, wanted: FileOptions) -> Written:
        for attempt in range(ATTEMPTS_MAX):
            answer = worker.answer(Order(task, attempt, self._reading, wanted, self._progress))
            if isinstance(answer, Failed):
                if answer.was_misread and attempt + 1 < ATTEMPTS_MAX:
                    continue
                raise TaskFailed(answer.text)
            if answer is not None:
                self.receipts.add(dict(answer.receipts))
                return answer
            if not worker.was_killed:
                raise ProcessLost(
                    f"A worker process {worker.ended_by}",
                    action=f"Check what it said{self._function}. {_CHECK}",
                )
            if attempt + 1 < ATTEMPTS_MAX:
                worker.restart_worker()
        message = f"A worker process was lost {ATTEMPTS_MAX} times while it read the same ranges: {worker.ended_by}"
        raise ProcessLost(
            message,
            action=f"Check the machine's memory (dmesg, if the kernel ended it){self._function}. {_CHECK}",
        )


class Worker:
    """One process, with its standard error."""

    def __init__(self, time_zone: str | None = None) -> None:
        self._is_over = False
        self._environment = {**os.environ, "TZ": local_zone(time_zone)} if time_zone else None
        self.ended_by, self.was_killed = "", False
        """How the last lost process ended, and its last output; whether it was killed."""
        self._start()

    def _start(self) -> None:
        self._said: Any = tempfile.TemporaryFile()
        coming, answers = os.pipe()  # of its own: whatever a library prints is no answer
        self._answers: Any = os.fdopen(coming, "rb")
        words = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), str(answers)]
        try:
            # of a group of its own: Ctrl-C in a terminal is the run's, which ends it
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                process_group=0,
                pass_fds=[answers],
                env=self._environment,
            )
        except OSError as error:
            self._answers.close()
            self._said.close()
            raise ProcessLost(
                f"A worker process cannot be started: {error.strerror}", action=_CHECK
            ) from error
        finally:
            os.close(answers)

    def restart_worker(self) -> None:
        """A new process in the place of one that was lost, unless all of this is over."""
        self._closed()
        if not self._is_over:
            self._start()
        if self._is_over:  # meanwhile: nobody ends the new one
            self._closed()

    def answer(self, order: Order) -> Written | Failed | None:
        """Return the attempt's result; None: the process was lost."""
        orders: Any = self._process.stdin
        try:
            pickle.dump(order, orders)
            orders.flush()
            found: Written | Failed = pickle.load(self._answers)
            return found
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            self.ended_by, self.was_killed = self._told()
            return None

    def end(self) -> None:
        """Now, whatever it is at."""
        self._is_over = True
        self._closed()

    def _closed(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._answers, self._said):
            with contextlib.suppress(OSError):  # what it did not take any more
                if pipe is not None:
                    pipe.close()

    def _told(self) -> tuple[str, bool]:
        """Return how it ended, and whether it was killed; a process that answered garbage is ended."""
        try:
            code = self._process.wait(_ENDING_S)
            how = f"signal {-code}" if code < 0 else f"ended by itself: exit code {code}"
        except subprocess.TimeoutExpired:
            self._process.kill()
            how, code = "gave an answer that is none, and was ended", 0
        return self._with_last_words(how), code < 0

    def _with_last_words(self, how: str) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._said.seek(0)
            said = self._said.read()[-_TOLD_BYTES:].decode("utf-8", "replace").strip()
            return f"{how}; it said: {said}" if said else how
        return how
