"""The cases for a table in a store: rows 1 to 10, the two drivers fewer times, and row 40, which
only stores have.

Row 40 is a proxy between a run and its store (`tests.stores.way`): a put arrives late, in part, or
without an answer, and its sender is killed or paused meanwhile. Whatever the answer, each record is
in the table once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from etl.testkit.server_process import wait_until
from tests.chaos.cases_zombie import (
    finish_two_drivers,
    overtaken,
    prepare,
    short_session,
    two_drivers,
)
from tests.chaos.cases_zookeeper import run_disturbed
from tests.chaos.collected import ALL
from tests.chaos.driver import Driver
from tests.chaos.stage import Case, CaseResult, Stage, commits, held, summary_of
from tests.stores.servers import STORES
from tests.stores.way import FaultyWay, Rule
from tests.system.driving import Pipeline

_SOON_S = 60.0
_WITHOUT_END = 10_000


def killed_at(stage: Stage, *, fault: str, loaded: bool) -> CaseResult:
    """SIGKILL for the whole group during the put of its commit; a held put never arrives, an
    executed one was.
    """
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit(fault))
    with stage.writing(pipeline), Driver(pipeline) as driver:
        _wait_for_the_put(driver, way, pipeline, fault, version)
        driver.kill_all()
        assert commits(pipeline) == version + (fault == "late_answer"), "it went on"
        after, next_run = held(pipeline), pipeline.ran()
    then = "plan_completed" if fault == "late_answer" else "plan_resumed"
    assert then in next_run.outcomes, next_run.outcomes
    return stage.finish(pipeline, after=after, next_run=next_run)


def arrives_late(stage: Stage, *, loaded: bool) -> CaseResult:
    """The put of a killed run arrives when the next run has done the work."""
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit("late"))
    with stage.writing(pipeline), Driver(pipeline) as driver:
        _wait_for_the_put(driver, way, pipeline, "late", version)
        driver.kill_all()
        after, next_run = held(pipeline), pipeline.ran()
        _arrives(way)
    return stage.finish(pipeline, after=after, next_run=next_run)


def arrives_amid_the_next_run(stage: Stage, *, loaded: bool) -> CaseResult:
    """The put of a killed run arrives when the next run is about to append the same plan."""
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit("late"))

    def comes(world: object) -> None:
        _arrives(way)
        assert commits(pipeline) == version + 1, "the late put made no commit"

    with stage.writing(pipeline), Driver(pipeline) as driver:
        _wait_for_the_put(driver, way, pipeline, "late", version)
        driver.kill_all()
        after, next_run = held(pipeline), run_disturbed(pipeline, "append", comes)
    assert next_run.code == 0, next_run.err
    return stage.finish(pipeline, after=after, next_run=next_run)


def asleep_at(stage: Stage, *, fault: str, loaded: bool) -> CaseResult:
    """Paused past its session during the put of its commit, a second driver does the work, the put
    or its answer arrives, the first continues.
    """
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit(fault))
    with stage.writing(pipeline), short_session(pipeline), Driver(pipeline) as zombie:
        _wait_for_the_put(zombie, way, pipeline, fault, version)
        zombie.pause_all()
        after, second, woken = overtaken(zombie, pipeline, lambda: _arrives(way))
    return finish_two_drivers(stage, pipeline, after, second, woken)


def half_of_a_file(stage: Stage) -> CaseResult:
    """SIGKILL for the whole group when the store has half of the bytes of a file."""
    pipeline, way, version = _ready(stage, loaded=True)
    way.rules(way.file("half"))
    with stage.writing(pipeline), Driver(pipeline) as driver:
        driver.wait_for("the put of a file", lambda: way.kept == [1])
        driver.kill_all()
        way.let_go()
        assert commits(pipeline) == version, "it went on"
        after, next_run = held(pipeline), pipeline.ran()
    assert "plan_resumed" in next_run.outcomes, next_run.outcomes
    return stage.finish(pipeline, after=after, next_run=next_run)


def disturbed(
    stage: Stage,
    *,
    rule: Callable[[FaultyWay], Rule],
    codes: tuple[int, ...] = (0,),
    loaded: bool = True,
) -> CaseResult:
    """The store answers so while a run is at work; then it is well again."""
    pipeline, way, _ = _ready(stage, loaded)
    with stage.writing(pipeline):
        way.rules(rule(way))
        result = pipeline.run()
        assert sum(way.kept) and result.code in codes, f"{summary_of(result)}\n{result.err}"
        way.rules()
        after, next_run = held(pipeline), pipeline.ran()
    return stage.finish(
        pipeline,
        after=after,
        next_run=f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )


def _ready(stage: Stage, loaded: bool) -> tuple[Pipeline, FaultyWay, int]:
    """A pipeline with records to read, the way to its store, and how many commits it has."""
    assert stage.way, "no store"
    stage.at_end.callback(stage.way.rules)
    pipeline = stage.pipeline()
    prepare(pipeline, loaded)
    return pipeline, stage.way, commits(pipeline)


def _wait_for_the_put(
    driver: Driver, way: FaultyWay, pipeline: Pipeline, fault: str, version: int
) -> None:
    driver.wait_for("the commit's put", lambda: way.kept == [1])
    if fault == "late_answer":
        driver.wait_for("the commit", lambda: commits(pipeline) > version)


def _arrives(way: FaultyWay) -> None:
    """Held requests are released, and answered."""
    way.let_go()
    assert wait_until(lambda: way.answered == 1, _SOON_S), (
        "the store does not answer what comes late"
    )


def _two(
    name: str, what: str, play: Callable[..., CaseResult], **given: object
) -> tuple[Case, ...]:
    """On a new table, and on one with a plan."""
    return (
        Case(40, name, what, partial(play, loaded=False, **given)),
        Case(
            40,
            f"{name}, later",
            f"{what}; the table holds a plan already",
            partial(play, loaded=True, **given),
        ),
    )


_KILLED, _ASLEEP = (
    "SIGKILL as the commit is put: ",
    "paused past its session as the commit is put, a second driver does the work: ",
)
_ANSWERS = (("lost", "lose", "is lost"), ("throttled", "slow", "is 503 SlowDown"))

_BETWEEN: tuple[Case, ...] = (
    *_two(
        "store: killed, the put never arrives",
        f"{_KILLED}it never arrives",
        killed_at,
        fault="late",
    ),
    *_two(
        "store: killed, half of the put arrives",
        f"{_KILLED}half of its bytes arrive",
        killed_at,
        fault="half",
    ),
    *_two(
        "store: killed before the answer",
        f"{_KILLED}the store does it, and the answer never comes",
        killed_at,
        fault="late_answer",
    ),
    *_two(
        "store: killed, the put arrives late",
        f"{_KILLED}it arrives when the next run has done the work",
        arrives_late,
    ),
    *_two(
        "store: killed, the put arrives amid the next run",
        f"{_KILLED}it arrives before the next run appends",
        arrives_amid_the_next_run,
    ),
    *_two(
        "store: asleep before its put",
        f"{_ASLEEP}then the put arrives, and the first goes on",
        asleep_at,
        fault="late",
    ),
    *_two(
        "store: asleep before its answer",
        f"{_ASLEEP}the store had done it, the first gets its answer and goes on",
        asleep_at,
        fault="late_answer",
    ),
    Case(
        40,
        "store: killed, half of a file arrives",
        "SIGKILL when half of a file's bytes have arrived",
        half_of_a_file,
    ),
)


def _disturbed(name: str, fault: str, text: str) -> tuple[Case, ...]:
    return (
        *_two(
            f"store: commit {name}",
            f"the first answer to the commit's put {text}",
            disturbed,
            rule=lambda way: way.commit(fault),
        ),
        Case(
            40,
            f"store: commit {name} each time",
            f"each answer to the commit's put {text}",
            partial(disturbed, rule=lambda way: way.commit(fault, _WITHOUT_END), codes=(0, 7)),
        ),
        Case(
            40,
            f"store: file {name}",
            f"the first answer to a file's put {text}",
            partial(disturbed, rule=lambda way: way.file(fault)),
        ),
    )


def cases_on(store: str) -> tuple[Case, ...]:
    """Those of a kind of store: not each can throttle."""
    answers = (
        case
        for name, fault, value in _ANSWERS
        if fault in STORES[store].way.faults
        for case in _disturbed(name, fault, value)
    )
    return (
        *(case for case in ALL if case.row <= 9),
        *two_drivers(started=2, stored=2, appended=2),
        *_BETWEEN,
        *answers,
    )
