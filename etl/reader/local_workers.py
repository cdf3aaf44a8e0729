"""How do worker processes of this machine run tasks, without Spark?

Tasks, files and errors are the same as with Spark. A failed task ends the write; the next run
executes the same plan. If its process died, a task is retried in a new process; if a broker's
response was invalid, in the same process; each time under new file names.

Tasks are pickled to standard input. Results return on a pipe, and the last argument is the number
of its file descriptor. A worker exits when its input ends. VACUUM deletes files of no commit.
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

from etl.decide.time_zones import local_zone
from etl.errors import CorruptData, ProcessLost
from etl.io.progress_port import ProgressAddress
from etl.model.plans import FileOptions, RangeResult, Written
from etl.reader.query_ranges import ReadOptions, Task
from etl.reader.run_task import TaskFailed, results_in_order, write_task


class Order(NamedTuple):
    """One attempt of a task."""

    task: Task
    attempt: int
    reading: ReadOptions
    options: FileOptions
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
            order.task, order.reading, order.options, order.progress, attempt=order.attempt
        )
    except TaskFailed as failed:
        return Failed(str(failed), was_misread=isinstance(failed.__cause__, CorruptData))
    except Exception:
        return Failed(traceback.format_exc())


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Execute orders one after the other, until the input ends. The process ends with it."""
    queue = SimpleQueue[Order]()
    threading.Thread(target=_receive, args=(orders, queue), name="orders", daemon=True).start()
    _import_modules()
    while True:
        pickle.dump(done(queue.get()), answers)
        answers.flush()


def _receive(orders: IO[bytes], queue: SimpleQueue[Order]) -> None:
    try:
        while True:
            queue.put(pickle.load(orders))  # noqa: S301 -- by the process that started this one
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)


def _import_modules() -> None:
    """Import the modules of the first task, while the worker waits."""
    import etl.io.delta.data_files
    import etl.reader.fetch

    del etl


def main() -> None:
    """Serve on the process's own pipes."""
    descriptor = int(sys.argv[-1])
    os.set_inheritable(descriptor, False)
    answers: Any = os.fdopen(descriptor, "wb")
    serve(sys.stdin.buffer, answers)


ATTEMPTS_MAX = 4
"""As Spark's `spark.task.maxFailures`."""
_OUTPUT_BYTES = 2000
"""The last output of a lost process that its error quotes."""
_ENDING_S = 10.0
"""Time for a process to end after its pipes have closed."""
_CHECK = "Set limits.local_below_bytes: 0 to leave the tasks to Spark"
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from etl.reader.local_workers import main; main()"
)
"""Imports as this process does. Not -m: its results would be of classes of the module __main__."""


class WorkerRangeResults:
    """Range results, by index in the plan."""

    def __init__(self) -> None:
        self.results: dict[int, RangeResult] = {}
        """The results so far; complete when all tasks have ended."""
        self.last_came: float | None = None
        """Time of the last result (`time.monotonic`)."""

    def add(self, results: dict[int, RangeResult]) -> None:
        """Add the results of one task."""
        self.results = {**self.results, **results}
        self.last_came = time.monotonic()

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """Return a result for each of `count` ranges, or None if some are missing."""
        return results_in_order(self.results, count)


class FilesOfWorkers:
    """The rows of a plan, not read yet.

    `workers`: the maximum number of processes, which start here and import their modules.
    `time_zone`: their local time zone, which a transform may read.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        reading: ReadOptions,
        progress: ProgressAddress | None,
        *,
        workers: int,
        time_zone: str | None = None,
    ) -> None:
        self._tasks = tasks
        self._reading = reading
        self._progress = progress
        self.results = WorkerRangeResults()
        self._workers: list[Worker] = []
        with contextlib.ExitStack() as started:
            started.callback(self.close)
            for _ in range(min(max(1, workers), len(tasks))):
                self._workers.append(Worker(time_zone))
            started.pop_all()

    def close(self) -> None:
        """Kill the processes."""
        for worker in self._workers:
            worker.end()

    def write(self, options: FileOptions) -> Sequence[Written]:
        """Read all ranges into files, and return the result of each task.

        Raises TaskFailed with a task's error inside, and ProcessLost.
        """
        pending = deque(enumerate(self._tasks))
        results: dict[int, Written] = {}

        def run_tasks(worker: Worker) -> None:
            while True:
                try:
                    number, task = pending.popleft()
                except IndexError:
                    return
                results[number] = self._run(worker, task, options)

        pool = ThreadPoolExecutor(len(self._workers), thread_name_prefix="worker")
        try:
            futures = [pool.submit(run_tasks, worker) for worker in self._workers]
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        finally:
            pending.clear()
            self.close()
            pool.shutdown()
        return [results[number] for number in range(len(self._tasks))]

    @property
    def _transform_to_check(self) -> str:
        """Another possible cause of a process's end, as a part of an action."""
        if self._reading.transform:
            return (
                f", and {self._reading.transform.name} (transform.record_batch), which runs in it"
            )
        return ""

    def _run(self, worker: Worker, task: Task, options: FileOptions) -> Written:
        """Run a task, again in a new process if one is killed."""
        for attempt in range(ATTEMPTS_MAX):
            answer = worker.answer(Order(task, attempt, self._reading, options, self._progress))
            if isinstance(answer, Failed):
                if answer.was_misread and attempt + 1 < ATTEMPTS_MAX:
                    continue
                raise TaskFailed(answer.text)
            if answer is not None:
                self.results.add(dict(answer.results))
                return answer
            if not worker.was_killed:
                raise ProcessLost(
                    f"A worker process {worker.ended_by}",
                    action=f"Check its output{self._transform_to_check}. {_CHECK}",
                )
            if attempt + 1 < ATTEMPTS_MAX:
                worker.restart_worker()
        raise ProcessLost(
            f"A worker process was lost {ATTEMPTS_MAX} times while it read the same ranges:"
            f" {worker.ended_by}",
            action="Check the machine's memory (dmesg, if the kernel ended it)"
            f"{self._transform_to_check}. {_CHECK}",
        )


class Worker:
    """One process, with its standard output and error."""

    def __init__(self, time_zone: str | None = None) -> None:
        self._is_ended = False
        self._environment: dict[str, str] | None = None
        if time_zone:
            self._environment = {**os.environ, "TZ": local_zone(time_zone)}
        self.ended_by = ""
        """The end of the last lost process, with its last output."""
        self.was_killed = False
        """True if the last lost process was killed by a signal."""
        self._start()

    def _start(self) -> None:
        self._output: Any = tempfile.TemporaryFile()
        # A pipe of its own, since libraries may print to standard output.
        read_end, write_end = os.pipe()
        self._answers: Any = os.fdopen(read_end, "rb")
        command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), str(write_end)]
        try:
            # A process group of its own: Ctrl-C in a terminal reaches only the run, which ends it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                process_group=0,
                pass_fds=[write_end],
                env=self._environment,
            )
        except OSError as error:
            self._answers.close()
            self._output.close()
            raise ProcessLost(
                f"A worker process cannot be started: {error.strerror}", action=_CHECK
            ) from error
        finally:
            os.close(write_end)

    def restart_worker(self) -> None:
        """Start a new process instead of a lost one, unless `end` was called."""
        self._kill()
        if not self._is_ended:
            self._start()
        if self._is_ended:  # meanwhile, so `end` did not kill the new process
            self._kill()

    def answer(self, order: Order) -> Written | Failed | None:
        """Return the attempt's result; None: the process was lost."""
        orders: Any = self._process.stdin
        try:
            pickle.dump(order, orders)
            orders.flush()
            result: Written | Failed = pickle.load(self._answers)
            return result
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            self.ended_by, self.was_killed = self._end_of_process()
            return None

    def end(self) -> None:
        """Kill the process."""
        self._is_ended = True
        self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._answers, self._output):
            with contextlib.suppress(OSError):  # input that the process did not read
                if pipe is not None:
                    pipe.close()

    def _end_of_process(self) -> tuple[str, bool]:
        """Return how it ended, and whether it was killed by a signal.

        A process with an invalid answer is killed here.
        """
        try:
            code = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._with_output("gave an invalid answer, and was ended"), False
        if code < 0:
            return self._with_output(f"signal {-code}"), True
        return self._with_output(f"ended by itself: exit code {code}"), False

    def _with_output(self, text: str) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._output.seek(0)
            output = self._output.read()[-_OUTPUT_BYTES:].decode("utf-8", "replace").strip()
            if output:
                return f"{text}; its output: {output}"
        return text
