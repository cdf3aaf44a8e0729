"""Rows 9 and 10: two drivers. A paused one that wakes up when another has done its work, and two
that start at the same moment.

The driver's lock keeps two drivers apart as long as both have their ZooKeeper sessions; these cases
are about what holds when it does not.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from etl.demo.crash_run import HALF_COMMIT
from etl.testkit.server_process import wait_until
from tests.chaos.cases_kill import held_pipeline, last_hold, owned, stopped_before_the_commit
from tests.chaos.driver import Driver
from tests.chaos.holding import Hold
from tests.chaos.stage import Case, CaseResult, Checked, Stage, complete_files, held, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline

_ATTEMPTS = 5
_SHORT_SESSION = {"session_timeout_s": 2}
_RETRY = (4, 6)
"""Exit codes of a run that lost its race and reports that a retry may help."""
_PERSON = 5


def wakes_at_verb(stage: Stage, *, verb: str, loaded: bool = False, **settings: Any) -> CaseResult:
    """Paused before a verb until its session is gone and a second driver has done the work."""
    pipeline = stage.pipeline(**settings)
    prepare(pipeline, loaded)
    with stage.writing(pipeline) as writer, short_session(pipeline):
        writer.wait_for(20)
        with Driver(pipeline, sends=(signal.SIGSTOP, verb)) as zombie:
            zombie.wait_until_paused()
            assert "group" not in settings or owned(pipeline), "no owner was claimed"
            after, second, woken = overtaken(zombie, pipeline)
    return finish_two_drivers(stage, pipeline, after, second, woken)


def wakes_while_writing(stage: Stage, *, half: bool, driver_alone: bool = False) -> CaseResult:
    """Paused, JVM and workers too or not, when no file is written, or `half` of them."""
    pipeline, files = held_pipeline(stage, loaded=False), stage.writes.tasks // 2 if half else 0
    hold = Hold(pipeline.folder / "marks", files)
    with stage.writing(pipeline), short_session(pipeline), Driver(pipeline, hold=hold) as zombie:
        zombie.wait_for("rows in every task", lambda: len(hold.workers()) == stage.writes.tasks)
        zombie.wait_for(f"{files} files", lambda: len(complete_files(pipeline)) == files)
        if driver_alone:
            zombie.pause()
        else:
            zombie.pause_all()
        hold.release()
        after, second, woken = overtaken(zombie, pipeline)
    return finish_two_drivers(stage, pipeline, after, second, woken)


def wakes_before_the_commit(stage: Stage) -> CaseResult:
    """Paused when all files are written and not committed."""
    for _ in range(_ATTEMPTS):
        pipeline = held_pipeline(stage, loaded=True)
        hold = last_hold(stage, pipeline)
        with (
            stage.writing(pipeline),
            short_session(pipeline),
            Driver(pipeline, hold=hold) as zombie,
        ):
            if not stopped_before_the_commit(stage, zombie, pipeline, hold):
                continue
            zombie.pause_all()
            after, second, woken = overtaken(zombie, pipeline)
        return finish_two_drivers(stage, pipeline, after, second, woken)
    raise AssertionError(f"the moment was missed {_ATTEMPTS} times")


def started_together(stage: Stage, *, times: int, fresh: bool) -> CaseResult:
    """Two commands at the same moment, again and again; every second time they wait for each other."""
    pipeline, figures, ends = stage.pipeline(), [], set[str]()
    for number in range(times):
        if fresh:
            pipeline = stage.pipeline()
        pipeline.settings["ledger"] = {"lock_timeout_s": 120 * (number % 2)}
        prepare(pipeline, loaded=not fresh and not number)
        with stage.writing(pipeline), Driver(pipeline) as one, Driver(pipeline) as other:
            codes = sorted(driver.wait().code for driver in (one, other))
        assert codes in ([0, 0], [0, 4]) and (codes == [0, 0] or not number % 2), codes
        ends.add(f"exits {codes[0]} and {codes[1]}")
        after = held(pipeline)
        figures.append(stage.finish(pipeline, after=after, next_run="").checked)
    return CaseResult(
        after,
        f"the two, {times} times: {'; '.join(sorted(ends))}",
        total(figures) if fresh else figures[-1],
    )


def released_together(stage: Stage, *, verb: str, times: int, fresh: bool) -> CaseResult:
    """Two drivers that both passed the lock, as the first lost its session, continue at the same
    moment from the same verb.
    """
    pipeline, figures, ends = stage.pipeline(), [], set[str]()
    for number in range(times):
        if fresh:
            pipeline = stage.pipeline()
        prepare(pipeline, loaded=not fresh and not number)
        with (
            stage.writing(pipeline) as writer,
            short_session(pipeline),
            contextlib.ExitStack() as started,
        ):
            both = []
            for _ in range(2):
                both.append(started.enter_context(Driver(pipeline, sends=(signal.SIGSTOP, verb))))
                both[-1].wait_until_paused()
                wait_for_no_driver(pipeline)
                writer.wait_for(20)
            for driver in both:
                driver.wake_all()
            ended = [driver.wait() for driver in both]
        assert all(value.code in (0, *_RETRY) for value in ended), [value.err for value in ended]
        ends |= {summary_of(value) if value.code == 0 else f"exit {value.code}" for value in ended}
        after = held(pipeline)
        figures.append(stage.finish(pipeline, after=after, next_run="").checked)
    return CaseResult(
        after,
        f"the two, {times} times: {'; '.join(sorted(ends))}",
        total(figures) if fresh else figures[-1],
    )


def prepare(pipeline: Pipeline, loaded: bool) -> None:
    """Records to read, after a first plan where `loaded`."""
    pipeline.produce(400)
    if loaded:
        pipeline.ran()
        pipeline.produce(400)


@contextlib.contextmanager
def short_session(pipeline: Pipeline) -> Iterator[None]:
    """Runs that are started inside have a short ZooKeeper session; those that follow, and share
    this process, have not.
    """
    pipeline.settings["zookeeper"] = _SHORT_SESSION
    try:
        yield
    finally:
        pipeline.settings.pop("zookeeper", None)


def overtaken(
    zombie: Driver, pipeline: Pipeline, behind: Callable[[], None] = lambda: None
) -> tuple[str, CommandResult, CommandResult]:
    """A second driver does the work, then `behind` is called, then the first continues: the table's
    state in between, and both results.
    """
    wait_for_no_driver(pipeline)
    after = held(pipeline)
    pipeline.settings.pop("zookeeper", None)
    second = pipeline.ran()
    behind()
    zombie.wake_all()
    return after, second, zombie.wait()


def wait_for_no_driver(pipeline: Pipeline) -> None:
    """Wait until ZooKeeper has dropped the session of the driver."""
    with pipeline.zookeeper() as client:
        path = f"/consumers/{pipeline.group}/etl/clicks/drivers"
        assert wait_until(lambda: not drivers_below(client, path), 60), "the session does not end"


def drivers_below(client: Any, path: str) -> list[str]:
    """The znodes of drivers; empty without their parent."""
    names: list[str] = client.get_children(path) if client.exists(path) else []
    return names


def finish_two_drivers(
    stage: Stage, pipeline: Pipeline, after: str, second: CommandResult, woken: CommandResult
) -> CaseResult:
    """A woken driver may have found its work done, or report that a retry may help; nothing else."""
    assert woken.code in (0, *_RETRY), f"the woken driver: {summary_of(woken)}\n{woken.err}"
    message = f"the second driver: {summary_of(second)}; the woken one: {summary_of(woken)}"
    return stage.finish(pipeline, after=after, next_run=message)


def total(figures: list[Checked]) -> Checked:
    """The sum over several pipelines."""
    return Checked(
        records=sum(each.records for each in figures),
        rows=sum(each.rows for each in figures),
        missing=sum(each.missing for each in figures),
        double=sum(each.double for each in figures),
        unexpected=sum(each.unexpected for each in figures),
    )


def two_drivers(*, started: int, stored: int, appended: int) -> tuple[Case, ...]:
    """The cases of row 10, each so many times."""
    words = {2: "twice", 3: "three times", 5: "five times", 10: "ten times"}
    together, behind = "two drivers started at the same moment, ", "two drivers behind the lock "
    return (
        Case(
            10,
            "two started together",
            f"{together}once, on a table that does not exist yet",
            partial(started_together, times=1, fresh=True),
        ),
        Case(
            10,
            "two started together on new tables",
            f"{together}{words[started]}, each on a table that does not exist",
            partial(started_together, times=started, fresh=True),
        ),
        Case(
            10,
            "two started together on one table",
            f"{together}{words[started]}, on the same table",
            partial(started_together, times=started, fresh=False),
        ),
        Case(
            10,
            "two store a plan together",
            f"{behind}store a plan each at the same moment, {words[stored]}, no table yet",
            partial(released_together, verb="store", times=stored, fresh=True),
        ),
        Case(
            10,
            "two append together to new tables",
            f"{behind}append the same plan at the same moment, {words[appended]}, no table yet",
            partial(released_together, verb="append", times=appended, fresh=True),
        ),
        Case(
            10,
            "two append together to one table",
            f"{behind}append the same plan at the same moment, {words[appended]}, on one table",
            partial(released_together, verb="append", times=appended, fresh=False),
        ),
    )


_OVERTAKEN = (
    "the driver is paused past its ZooKeeper session, a second one does the work, the first goes "
    "on: "
)

CASES: tuple[Case, ...] = (
    Case(
        9,
        "zombie before the plan is stored",
        _OVERTAKEN + "before the plan is stored",
        partial(wakes_at_verb, verb="store"),
    ),
    Case(
        9,
        "zombie before the plan is stored later",
        _OVERTAKEN + "the same where the table holds a plan already",
        partial(wakes_at_verb, verb="store", loaded=True),
    ),
    Case(
        9,
        "zombie after the plan is stored",
        _OVERTAKEN + "after the plan is stored",
        partial(wakes_at_verb, verb="claiming"),
    ),
    Case(
        9,
        "zombie after owners are claimed",
        _OVERTAKEN + "after the partitions' owners are claimed",
        partial(wakes_at_verb, verb="fetch", group={"mode": "claim"}),
    ),
    Case(
        9,
        "zombie before the append",
        _OVERTAKEN + "before the append",
        partial(wakes_at_verb, verb="append", loaded=True),
    ),
    Case(
        9,
        "zombie with its first rows",
        _OVERTAKEN + "with its JVM and workers, when the first rows came",
        partial(wakes_while_writing, half=False),
    ),
    Case(
        9,
        "zombie whose workers went on",
        _OVERTAKEN + "its JVM and workers go on writing all the while",
        partial(wakes_while_writing, half=False, driver_alone=True),
    ),
    Case(
        9,
        "zombie with half its files",
        _OVERTAKEN + "with its JVM and workers, when half of its files were written",
        partial(wakes_while_writing, half=True),
    ),
    Case(
        9,
        "zombie with all its files",
        _OVERTAKEN + "with its JVM, when all files were written and not committed",
        wakes_before_the_commit,
    ),
    Case(
        9,
        "zombie after the delta commit",
        _OVERTAKEN + "after the Delta commit",
        partial(wakes_at_verb, verb="record"),
    ),
    Case(
        9,
        "zombie before the offsets",
        _OVERTAKEN + "before the offsets are moved",
        partial(wakes_at_verb, verb="commit", loaded=True),
    ),
    Case(
        9,
        "zombie with half of the offsets",
        _OVERTAKEN + "when half of the offsets are moved",
        partial(wakes_at_verb, verb=HALF_COMMIT),
    ),
    *two_drivers(started=10, stored=3, appended=5),
)
