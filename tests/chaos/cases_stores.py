"""Row 40: a proxy between a run and its store (`tests.stores.way`): a put arrives late, in part, or
without an answer, and its sender is killed or paused meanwhile. Whatever the answer, each record is
in the table once.
"""

from __future__ import annotations

from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver, run_disturbed
from tests.chaos.scenes import prepare
from tests.chaos.stage import CaseResult, Stage, both, commits, ended, held, succeeded
from tests.chaos.ways import overtaken, short_session
from tests.stores.way import FaultyWay
from tests.system.driving import Pipeline

_SOON_S = 60.0
_WITHOUT_END = 10_000


def killed(stage: Stage, *, fault: str, loaded: bool) -> CaseResult:
    """SIGKILL for the whole group during the put of its commit."""
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit(fault))
    with stage.writing(pipeline), Driver(pipeline) as driver:
        _wait_for_the_put(driver, way, pipeline, fault, version)
        driver.kill_all()
        assert commits(pipeline) == version + (fault == "late_answer"), "it went on"
        after, next_run = held(pipeline), pipeline.ran()
    succeeded(next_run, "plan_completed" if fault == "late_answer" else "plan_resumed")
    return stage.finish(pipeline, after, next_run)


def arrives_late(stage: Stage, *, loaded: bool, amid_the_next_run: bool = False) -> CaseResult:
    """The put of a killed run arrives after the next run's work, or during it."""
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit("late"))

    def comes(world: object) -> None:
        _arrives(way)
        assert commits(pipeline) == version + 1, "the late put made no commit"

    with stage.writing(pipeline), Driver(pipeline) as driver:
        _wait_for_the_put(driver, way, pipeline, "late", version)
        driver.kill_all()
        after = held(pipeline)
        if amid_the_next_run:
            next_run = ended(run_disturbed(pipeline, "append", comes), 0)
        else:
            next_run = pipeline.ran()
            _arrives(way)
    return stage.finish(pipeline, after, next_run)


def asleep(stage: Stage, *, fault: str, loaded: bool) -> CaseResult:
    """Paused past its session during the put of its commit; a second driver does the work."""
    pipeline, way, version = _ready(stage, loaded)
    way.rules(way.commit(fault))
    with stage.writing(pipeline), short_session(pipeline), Driver(pipeline) as zombie:
        _wait_for_the_put(zombie, way, pipeline, fault, version)
        zombie.pause_all()
        after, message = overtaken(zombie, pipeline, lambda: _arrives(way))
    return stage.finish(pipeline, after, message)


def half_of_a_file(stage: Stage) -> CaseResult:
    """SIGKILL for the whole group when the store has half of the bytes of a file."""
    pipeline, way, version = _ready(stage, loaded=True)
    way.rules(way.file("half"))
    with stage.writing(pipeline), Driver(pipeline) as driver:
        driver.wait_for("the put of a file", lambda: way.kept == [1])
        driver.kill_all()
        way.let_go()
        assert commits(pipeline) == version, "it went on"
        after, next_run = held(pipeline), succeeded(pipeline.run(), "plan_resumed")
    return stage.finish(pipeline, after, next_run)


def answered(
    stage: Stage, *, put: str, fault: str, loaded: bool = True, each_time: bool = False
) -> CaseResult:
    """The store answers so to one put of a commit or of a file."""
    pipeline, way, _ = _ready(stage, loaded)
    rule = way.commit if put == "commit" else way.file
    with stage.writing(pipeline):
        way.rules(rule(fault, _WITHOUT_END) if each_time else rule(fault))
        result = ended(pipeline.run(), *((0, 7) if each_time else (0,)))
        assert sum(way.kept), "no put was answered so"
        way.rules()
        after, next_run = held(pipeline), pipeline.ran()
    return stage.finish(pipeline, after, both(result, next_run))


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
    way.let_go()
    assert wait_until(lambda: way.answered == 1, _SOON_S), (
        "the store does not answer what comes late"
    )
