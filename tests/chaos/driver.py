"""One `etl run` as a process with its JVM and its Python workers, and all interruptions from
outside; and runs in this process in the middle of which something else happens.

Processes are found by their session: pyspark's daemon leaves the process group, no process leaves
the session.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self
from unittest import mock

from etl.commands import run
from etl.run.live_services import LiveServices
from etl.testkit.server_process import wait_until
from tests.chaos.holding import Hold
from tests.chaos.stage import Stage, complete_files, ended, held, summary_of
from tests.command_result import CommandResult
from tests.processes import command, is_paused, of_session
from tests.system.driving import Before, Pipeline

ENDS_WITHIN_S = 240.0
"""How long a run may take before a case fails; far above what it takes."""


class Driver:
    """`with Driver(pipeline) as driver`: a run under way. Nothing of it is left when the block
    ends.

    `sends` makes the run send itself a signal before a verb of `services.Services` (see
    `etl.demo.crash_run`); `hold` holds its tasks. `door` are the words of another command than `etl
    run`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sends: tuple[signal.Signals, str] | None = None,
        hold: Hold | None = None,
        door: Sequence[str] = ("run",),
    ) -> None:
        self._pipeline = pipeline
        if sends is None:
            self._words = ["etl", *door[0].split(), str(pipeline.conf), *door[1:], "--json"]
        else:
            kind, verb = sends
            self._words = [
                "etl.demo.crash_run",
                str(pipeline.conf),
                verb,
                kind.name.removeprefix("SIG"),
                *door,
            ]
        self._variables = hold.variables() if hold else {}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = self._pipeline.start(*self._words, **self._variables)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        if self.process.returncode is None:
            self.process.communicate()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    def wait(self) -> CommandResult:
        """Until the driver has ended, however it does; the exit code is negative after a signal."""
        out, err = self.process.communicate(timeout=ENDS_WITHIN_S)
        return CommandResult(self.process.returncode, out, err)

    def wait_for(
        self, what: str, is_so: Callable[[], bool], within_s: float = ENDS_WITHIN_S
    ) -> None:
        """Wait until something is visible from outside. Raises AssertionError if the run ended."""
        wait_until(lambda: self.process.poll() is not None or is_so(), within_s)
        if not is_so():
            result = self.wait() if self.process.poll() is not None else None
            raise AssertionError(
                f"{what}: did not come; the run "
                + (f"ended with {result.code}: {result.err}" if result else "goes on")
            )

    def wait_until_paused(self) -> None:
        self.wait_for("the pause", self.is_paused)

    def wait_until_gone(self, within_s: float = 60.0) -> None:
        """Until nothing of an ended run is left: it has to take its JVM and its workers with it."""
        assert wait_until(lambda: not self.processes(), within_s), (
            f"left behind: {[command(pid)[:2] for pid in self.processes()]}"
        )

    def is_paused(self) -> bool:
        return is_paused(self.process.pid)

    def processes(self) -> list[int]:
        """Every live process of the run: the driver, its JVM, Python's daemon and workers."""
        return of_session(self.process.pid)

    def kill(self) -> None:
        """SIGKILL for the driver alone; its JVM has some time left."""
        send(self.process.pid, signal.SIGKILL)
        self.wait()

    def kill_all(self) -> None:
        self.killed()

    def killed(self) -> CommandResult:
        self.pause_all()  # so that none does anything between two of these signals
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        return self.wait()

    def pause(self) -> None:
        send(self.process.pid, signal.SIGSTOP)

    def pause_all(self) -> None:
        for pid in self.processes():
            send(pid, signal.SIGSTOP)

    def jvm(self) -> int:
        """The JVM that the run has started: who writes the table."""
        [pid] = [
            pid
            for pid in self.processes()
            if {"-cp", "org.apache.spark.deploy.SparkSubmit"} <= set(command(pid))
        ]
        return pid

    def wake_all(self) -> None:
        for pid in self.processes():
            send(pid, signal.SIGCONT)


def was_killed(result: CommandResult) -> CommandResult:
    """Check that it did not end by itself."""
    return ended(result, -signal.SIGKILL)


@contextlib.contextmanager
def killed_before(pipeline: Pipeline, verb: str, *door: str) -> Iterator[Driver]:
    """A run or command that has killed itself before a verb, with its JVM until the block ends."""
    with Driver(pipeline, sends=(signal.SIGKILL, verb), door=door or ("run",)) as driver:
        was_killed(driver.wait())
        yield driver


def kill_before(pipeline: Pipeline, verb: str, *door: str) -> str:
    """The same, with nothing left of it; what the table holds then."""
    with killed_before(pipeline, verb, *door):
        pass
    return held(pipeline)


def kill_command(pipeline: Pipeline, place: str, *words: str) -> None:
    """A command that kills itself at a function, as `tests.chaos.dying_command` has it."""
    child = pipeline.start("tests.chaos.dying_command", place, *words)
    out, err = child.communicate(timeout=180)
    was_killed(CommandResult(child.returncode, out, err))


@contextlib.contextmanager
def amid_its_files(
    stage: Stage,
    pipeline: Pipeline,
    files: int,
    tasks: int | None = None,
    *,
    producing: bool = True,
) -> Iterator[tuple[Driver, Hold]]:
    """A run when so many of its files are there. `producing`: with a producer."""
    known, tasks = complete_files(pipeline), tasks or stage.writes.tasks
    hold = Hold(pipeline.folder / "marks", files)
    writing = stage.writing(pipeline) if producing else contextlib.nullcontext()
    with writing, Driver(pipeline, hold=hold) as driver:
        driver.wait_for("rows in every task", lambda: len(hold.workers()) == tasks)
        driver.wait_for(f"{files} files", lambda: len(complete_files(pipeline) - known) == files)
        yield driver, hold


def owned(pipeline: Pipeline) -> list[str]:
    """The partitions that have an owner in ZooKeeper now."""
    with pipeline.zookeeper() as client:
        path = f"/consumers/{pipeline.group}/owners/{pipeline.topic}"
        return sorted(client.get_children(path)) if client.exists(path) else []


def send(pid: int, kind: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, kind)


Deed = Callable[[LiveServices], None]


class EachTime(Before):
    """The deed before each call of the verb."""

    def _end_once(self) -> None:
        self.end()


def run_disturbed(
    pipeline: Pipeline, verb: str, deed: Deed, *, how: type[Before] = Before
) -> CommandResult:
    """The command, with that deed when the verb begins; by default the first time."""
    at_verb = how(verb, lambda: deed(at_verb.world))
    with mock.patch.object(run, "run", functools.partial(run.run, around=at_verb)):
        result = pipeline.run()
    assert at_verb.happened, f"the run did not come to {verb}: {summary_of(result)}\n{result.err}"
    return result
