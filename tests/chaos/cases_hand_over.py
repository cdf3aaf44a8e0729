"""Row 33: what makes a hand-over in ZooKeeper void, at its last moment, and what may become of the
request that is the hand-over.

A run that is a member of its group (`group.mode: join`) stores its plan and moves the group's
offsets in one request. Where others came before, nothing of it is done: nothing was fetched, and
the run shares and plans again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from etl.run.live_services import LiveServices
from tests.chaos.cases_zombie import prepare, wakes_at_verb
from tests.chaos.cases_zookeeper import creates, end_session, run_disturbed
from tests.chaos.others import JOIN, PARTITIONS, OtherConsumer, shared
from tests.chaos.sources import set_offset, stopped, stored_plans
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import MULTI, Chosen, Lost, proxied
from tests.system.driving import Before, Pipeline

_PARTITION, _THEIRS = 1, 20
_FIRST = 240
"""Records of the first plan, where there is one."""

Came = Callable[[Pipeline, OtherConsumer], None]
"""What the other one does at the last moment."""


def nobody_owns(pipeline: Pipeline, other: OtherConsumer) -> None:
    """Another client deletes an owner node of ours."""
    other.take_away(_PARTITION)


def another_owns(pipeline: Pipeline, other: OtherConsumer) -> None:
    """It claims a partition of ours and reads on, until ours has let go of its share."""
    other.claim(_PARTITION)
    other.read(_PARTITION, _THEIRS)
    other.let_go_behind_us(_PARTITION)


def another_commits(pipeline: Pipeline, other: OtherConsumer) -> None:
    """It commits what it read before, without owning anything any more."""
    other.read(_PARTITION, _THEIRS)


def void(stage: Stage, *, came: Came, why: str, loaded: bool) -> CaseResult:
    """The hand-over is refused, and the run hands another plan over."""
    pipeline = joining(stage, loaded=loaded)
    with OtherConsumer(pipeline) as other:
        with stage.writing(pipeline):
            result = run_disturbed(pipeline, "store", lambda world: came(pipeline, other))
            after = held(pipeline)
            stopped(result, 0, why)
            assert result.outcomes.count("rebalanced") == 1 and "ingested" in result.outcomes, (
                result.outcomes
            )
            next_run = pipeline.ran()
        reported = f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}"
        return shared(stage, pipeline, other, after=after, next_run=reported)


def void_each_time(stage: Stage) -> CaseResult:
    """Just before each offset commit of the run another client commits: the run gives up, and the
    next one reads the rest.
    """
    pipeline = joining(stage, loaded=False)
    with OtherConsumer(pipeline) as other:
        result = run_disturbed(
            pipeline, "store", lambda world: another_commits(pipeline, other), how=EachTime
        )
        stopped(result, 4, "The group rejected 4 offset commits")
        assert (stored_plans(pipeline), voids(pipeline)) == ([], 4), result.out
        after = held(pipeline)
        reported = f"the run itself: {summary_of(result)}; the next: {summary_of(pipeline.ran())}"
        return shared(stage, pipeline, other, after=after, next_run=reported)


def set_back(stage: Stage, *, to: int | None) -> CaseResult:
    """At the last moment the offset goes below the table's rows: the run stops, and the offset is
    set back by hand.
    """
    pipeline = joining(stage, loaded=True)
    ours = pipeline.committed()[_PARTITION]
    result = run_disturbed(pipeline, "store", lambda world: set_offset(pipeline, _PARTITION, to))
    stopped(result, 5, "Another client", f"ours is {ours}")
    assert (stored_plans(pipeline), voids(pipeline)) == ([1], 1), result.out
    after = held(pipeline)
    stopped(pipeline.run(), 5, "Another client")
    set_offset(pipeline, _PARTITION, ours)
    next_run = pipeline.ran()
    return stage.finish(
        pipeline,
        after=after,
        next_run=f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )


def lock_lost(stage: Stage, *, loaded: bool, by_hand: bool = False) -> CaseResult:
    """At the last moment the session ends, or another client deletes the driver's node: the run
    starts again with another session.
    """
    pipeline = joining(stage, loaded=loaded)

    def lose(world: LiveServices) -> None:
        if by_hand:
            with pipeline.zookeeper() as client:
                client.delete(f"/consumers/{pipeline.group}/etl/clicks/drivers", recursive=True)
        else:
            end_session(pipeline.cluster.zookeeper_connect, world)

    with stage.writing(pipeline):
        result = run_disturbed(pipeline, "store", lose)
        after = held(pipeline)
        assert result.code == 0 and "session_lost" in result.outcomes, (
            f"{summary_of(result)}\n{result.err}"
        )
        next_run = pipeline.ran()
    return stage.finish(
        pipeline,
        after=after,
        next_run=f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )


def lost(stage: Stage, *, what: Lost, chosen: Chosen, loaded: bool) -> CaseResult:
    """The connection breaks in the middle of one request, once; in the end each offset is where the
    table's rows end.
    """
    pipeline, proxy = proxied(stage, group=JOIN)
    prepare(pipeline, loaded)
    proxy.lose(what, chosen)
    with stage.writing(pipeline):
        result = pipeline.run()
        after = held(pipeline)
        assert proxy.happened.is_set() and result.code in (0, 6), (
            f"{summary_of(result)}\n{result.err}"
        )
        next_run = pipeline.ran()
    reported = stage.finish(
        pipeline,
        after=after,
        next_run=f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )
    ends = {
        partition: 1 + max(offset for p, offset, _ in pipeline.in_table() if p == partition)
        for partition in range(PARTITIONS)
    }
    assert pipeline.committed() == ends, (
        f"offsets {pipeline.committed()}, the table's rows end at {ends}"
    )
    return reported


def voids(pipeline: Pipeline) -> int:
    """The number of rejected commits of the last run, by its report, which exists however a run
    ends.
    """
    newest = max(
        (pipeline.folder / "reports").glob("*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    return sum(one["outcome"] == "rebalanced" for one in json.loads(newest.read_text())["outcomes"])


class EachTime(Before):
    """The deed before each call of the verb."""

    def _end_once(self) -> None:
        self.end()


def joining(stage: Stage, *, loaded: bool, group: Mapping[str, Any] = JOIN) -> Pipeline:
    """A pipeline that is a member of its group, with records to read; where `loaded`, its table
    holds a plan already.
    """
    pipeline = stage.pipeline(group=group)
    if loaded:
        pipeline.produce(_FIRST)
        pipeline.ran()
    pipeline.produce(400)
    return pipeline


def is_hand_over(operation: int, frame: bytes) -> bool:
    """The one request that stores a plan and moves offsets."""
    return operation == MULTI and b"/plans/" in frame and b"/offsets/" in frame


_VOID = "as a member, at the moment of the hand-over: "
_LOADED = "the same where the table holds a plan already"

CASES: tuple[Case, ...] = (
    Case(
        33,
        "void: nobody owns a partition",
        _VOID + "the owner node of one partition is deleted",
        partial(void, came=nobody_owns, why="it has no owner", loaded=False),
    ),
    Case(
        33,
        "void: nobody owns a partition, later",
        _LOADED,
        partial(void, came=nobody_owns, why="it has no owner", loaded=True),
    ),
    Case(
        33,
        "void: another owns a partition",
        _VOID + "another consumer owns one partition, reads 20 records of it and lets go",
        partial(void, came=another_owns, why="_z-0 owns it", loaded=False),
    ),
    Case(
        33,
        "void: another owns a partition, later",
        _LOADED,
        partial(void, came=another_owns, why="_z-0 owns it", loaded=True),
    ),
    Case(
        33,
        "void: another committed",
        _VOID + "another consumer commits 20 records of one partition",
        partial(void, came=another_commits, why="was moved since it was read", loaded=False),
    ),
    Case(
        33,
        "void: another committed, later",
        _LOADED,
        partial(void, came=another_commits, why="was moved since it was read", loaded=True),
    ),
    Case(
        33,
        "void: each time",
        _VOID + "another consumer commits 20 records of one partition, each time again",
        void_each_time,
    ),
    Case(
        33,
        "void: set back",
        _VOID
        + "an offset is set below what is in the table; the run stops, and it is set back by hand",
        partial(set_back, to=20),
    ),
    Case(
        33,
        "void: deleted",
        _VOID + "the znode of an offset is deleted; the run stops, and it is set back by hand",
        partial(set_back, to=None),
    ),
    Case(
        33,
        "hand-over behind a lost session",
        _VOID + "the driver's session expires",
        partial(lock_lost, loaded=False),
    ),
    Case(33, "hand-over behind a lost session, later", _LOADED, partial(lock_lost, loaded=True)),
    Case(
        33,
        "hand-over without the lock",
        _VOID + "the driver's node is deleted by hand",
        partial(lock_lost, by_hand=True, loaded=True),
    ),
    *(
        Case(
            33,
            f"another driver's plan {name}",
            f"as a member, the driver is paused past its session {words}; a second one hands "
            f"the next plan over; the first goes on",
            partial(wakes_at_verb, verb=verb, loaded=loaded, group=JOIN),
        )
        for verb, loaded, name, words in (
            ("store", False, "before ours", "before its first hand-over"),
            ("store", True, "before ours, later", "before a later hand-over"),
            ("fetch", False, "behind ours", "behind its hand-over"),
            ("append", True, "behind ours, later", "before it writes"),
            ("record", False, "behind our commit", "behind the Delta commit"),
        )
    ),
    *(
        Case(
            33,
            name,
            f"as a member, connection cut {when}",
            partial(lost, what=what, chosen=chosen, loaded=loaded),
        )
        for name, when, what, chosen, loaded in (
            (
                "answer of the hand-over lost",
                "after the server did the hand-over, before the answer came",
                Lost.ANSWER,
                is_hand_over,
                True,
            ),
            (
                "answer of the first hand-over lost",
                "after the server did the first hand-over, before the answer came",
                Lost.ANSWER,
                is_hand_over,
                False,
            ),
            (
                "hand-over lost",
                "before the hand-over reached the server",
                Lost.REQUEST,
                is_hand_over,
                True,
            ),
            (
                "answer of the claim lost",
                "after it claimed its partitions, before the answer came",
                Lost.ANSWER,
                creates(b"/owners/"),
                True,
            ),
            (
                "answer of the registration lost",
                "after it was registered, before the answer came",
                Lost.ANSWER,
                creates(b"/ids/"),
                True,
            ),
        )
    ),
)
