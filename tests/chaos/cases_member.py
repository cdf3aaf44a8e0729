"""Rows 33 and 34: a run that is a member of its group in ZooKeeper (`group.mode: join`): what makes
its hand-over void, and kills that `ways` does not have.

It stores its plan and moves the group's offsets in one request. Where others came before, nothing
of it is done: nothing was fetched, and the run shares and plans again.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from functools import partial

from etl.run.live_services import LiveServices
from tests.chaos.cases_zookeeper import end_session
from tests.chaos.driver import Driver, EachTime, kill_before, run_disturbed, send
from tests.chaos.holding import Hold
from tests.chaos.others import JOIN, OtherConsumer
from tests.chaos.scenes import RECORDS, BesideConsumer, prepare, shared
from tests.chaos.sources import set_offset, stored_plans
from tests.chaos.stage import CaseResult, Stage, both, ended, ends_of, held, stopped
from tests.chaos.ways import is_hand_over
from tests.chaos.zookeeper_proxy import Lost, proxied
from tests.system.driving import Pipeline

_PARTITION, _THEIRS = 1, 20
_MOVED = "was moved since it was read"


def _nobody_owns(other: OtherConsumer) -> None:
    """Another client deletes an owner node of ours."""
    other.take_away(_PARTITION)


def _another_owns(other: OtherConsumer, *, as_we_do: bool = False) -> None:
    """It claims a partition of ours and reads on until ours has released its share."""
    if as_we_do:
        other.claim_as_we_do(_PARTITION)
    else:
        other.claim(_PARTITION)
    other.read(_PARTITION, _THEIRS)
    other.let_go_behind_us(_PARTITION)


def _another_commits(other: OtherConsumer) -> None:
    """It commits what it read before, without owning anything any more."""
    other.read(_PARTITION, _THEIRS)


CAME: Mapping[str, tuple[Callable[[OtherConsumer], None], str]] = {
    "nobody owns": (_nobody_owns, "it has no owner"),
    "another owns": (_another_owns, "_z-0 owns it"),
    "a rival owns": (partial(_another_owns, as_we_do=True), _MOVED),
    "another commits": (_another_commits, _MOVED),
}
"""What another consumer does at the last moment, and why the hand-over is void then."""


def void(
    stage: Stage, *, came: str, loaded: bool = False, in_the_place_of_a_plan: bool = False
) -> CaseResult:
    """The commit is rejected, and the run stores another plan, or a plan in one's place."""
    comes, why = CAME[came]
    pipeline = stage.pipeline(group={} if in_the_place_of_a_plan else JOIN)
    prepare(pipeline, loaded)
    if in_the_place_of_a_plan:
        kill_before(pipeline, "claiming")
        pipeline.settings["group"] = dict(JOIN)
    verb, then = ("supersede", "plan_superseded") if in_the_place_of_a_plan else ("store", "")
    with OtherConsumer(pipeline) as other:
        with stage.writing(pipeline):
            result = run_disturbed(pipeline, verb, lambda world: comes(other))
            after = held(pipeline)
            stopped(result, 0, why, then or "ingested")
            assert result.outcomes.count("rebalanced") == 1, result.outcomes
            next_run = pipeline.ran()
        return shared(stage, pipeline, other.rows, after, both(result, next_run))


def void_each_time(stage: Stage) -> CaseResult:
    """Before each offset commit of the run another client commits: the run gives up."""
    pipeline = _joining(stage, loaded=False)
    with OtherConsumer(pipeline) as other:
        commits = partial(_another_commits, other)
        result = run_disturbed(pipeline, "store", lambda world: commits(), how=EachTime)
        stopped(result, 4, "The group rejected 4 offset commits")
        assert (stored_plans(pipeline), _voids(pipeline)) == ([], 4), result.out
        after = held(pipeline)
        return shared(stage, pipeline, other.rows, after, both(result, pipeline.ran()))


def set_back(stage: Stage, *, to: int | None) -> CaseResult:
    """At the last moment the offset goes below the table's rows: the run stops."""
    pipeline = _joining(stage, loaded=True)
    ours = pipeline.committed()[_PARTITION]
    result = run_disturbed(pipeline, "store", lambda world: set_offset(pipeline, _PARTITION, to))
    stopped(result, 5, "Another client", f"ours is {ours}")
    assert (stored_plans(pipeline), _voids(pipeline)) == ([1], 1), result.out
    after = held(pipeline)
    stopped(pipeline.run(), 5, "Another client")
    set_offset(pipeline, _PARTITION, ours)
    return stage.finish(pipeline, after, both(result, pipeline.ran()))


def lock_lost(stage: Stage, *, loaded: bool, by_hand: bool = False) -> CaseResult:
    """At the last moment the session or the driver's node is lost: the run starts again."""
    pipeline = _joining(stage, loaded=loaded)

    def lose(world: LiveServices) -> None:
        if by_hand:
            with pipeline.zookeeper() as client:
                client.delete(f"/consumers/{pipeline.group}/etl/clicks/drivers", recursive=True)
        else:
            end_session(pipeline.cluster.zookeeper_connect, world)

    with stage.writing(pipeline):
        result = run_disturbed(pipeline, "store", lose)
        after = held(pipeline)
        stopped(result, 0, "session_lost")
        next_run = pipeline.ran()
    return stage.finish(pipeline, after, both(result, next_run))


def void_and_lost(stage: Stage, *, is_killed: bool) -> CaseResult:
    """The commit is rejected, and the run never learns it, or is dead by then."""
    pipeline, proxy = proxied(stage, group=JOIN)
    prepare(pipeline, loaded=True)
    with OtherConsumer(pipeline) as other, stage.writing(pipeline), Driver(pipeline) as driver:

        def comes_before(operation: int, frame: bytes) -> bool:
            if not is_hand_over(operation, frame):
                return False
            _another_commits(other)
            if is_killed:
                send(driver.process.pid, signal.SIGKILL)
            return True

        proxy.lose(Lost.ANSWER, comes_before)
        result = ended(driver.wait(), *((-signal.SIGKILL,) if is_killed else (0, 6)))
        assert proxy.happened.is_set(), "that request was not made"
        assert not is_killed or stored_plans(pipeline) == [1], "it was not refused"
        after, next_run = held(pipeline), pipeline.ran()
    reported = next_run if is_killed else both(result, next_run)
    return shared(stage, pipeline, other.rows, after, reported)


def killed_while_it_registers(stage: Stage) -> CaseResult:
    """Killed when registered without partitions: the other member has not released any yet."""
    there = BesideConsumer(stage, stage.pipeline(group=JOIN))
    with there.going_on(loaded=False):
        there.other.claim(0, 1)
        with Driver(there.pipeline) as driver:
            driver.wait_for("its registration", lambda: len(there.other.members()) == 1)
            driver.kill_all()
            assert stored_plans(there.pipeline) == [], "it settled"
            there.other.let_go(0, 1)
            after, next_run = there.next_run()
    return there.finish(after, next_run)


def killed_while_fetching(stage: Stage, *, all_at_once: bool) -> CaseResult:
    """Killed when tasks have their first rows, which the group's offsets have passed already."""
    there = BesideConsumer(stage, stage.pipeline(**stage.writes.held, group=JOIN))
    hold = Hold(there.pipeline.folder / "marks", 0)
    with there.going_on(loaded=True), Driver(there.pipeline, hold=hold) as driver:
        driver.wait_for("a task with its first rows", lambda: bool(hold.workers()))
        if all_at_once:
            driver.kill_all()
        else:
            driver.kill()
            driver.wake_all()
        after, next_run = there.next_run()
    return there.finish(after, next_run)


def taken_after_the_append(stage: Stage) -> CaseResult:
    """Between append and commit another consumer reads a partition of ours, and releases it."""
    pipeline = _joining(stage, loaded=True, commit_when="after_append")
    with OtherConsumer(pipeline) as other:

        def comes(world: object) -> None:
            other.claim(_PARTITION)
            other.read(_PARTITION, _THEIRS)
            other.let_go(_PARTITION)

        result = stopped(run_disturbed(pipeline, "commit", comes), 0, "owner_changed")
        after = held(pipeline)
        pipeline.produce(RECORDS)
        next_run = pipeline.ran()
    reported = shared(stage, pipeline, other.rows, after, both(result, next_run))
    assert pipeline.committed() == ends_of(pipeline.in_topic()), pipeline.committed()
    return reported


def _joining(stage: Stage, *, loaded: bool, **join: str) -> Pipeline:
    """A pipeline that is a member of its group, with records to read."""
    pipeline = stage.pipeline(group={**JOIN, "join": join} if join else JOIN)
    prepare(pipeline, loaded)
    return pipeline


def _voids(pipeline: Pipeline) -> int:
    """The number of rejected commits of the last run, by its report."""
    newest = max(
        (pipeline.folder / "reports").glob("*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    return sum(one["outcome"] == "rebalanced" for one in json.loads(newest.read_text())["outcomes"])
