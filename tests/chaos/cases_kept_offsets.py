"""Rows 36 and 37: the group's offsets are in Kafka, or in both places, and a run is killed, loses
answers or its coordinator around them.

A coordinator has no compare-and-set, and a commit's answer may be lost; no row hangs on that, so
the table is whole whatever is done, and in the end each offset is where the table's rows end, in
each place.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from etl.demo.crash_run import HALF_COMMIT
from etl.testkit.server_process import wait_until
from tests.chaos.cases_brokers import wait_for_all
from tests.chaos.cases_zombie import overtaken, prepare, short_session
from tests.chaos.cases_zookeeper import is_multi, run_disturbed
from tests.chaos.coordinators import (
    both,
    coordinator_of,
    finish_kept,
    signals,
    through_proxy,
    two_coordinators,
    was_killed,
)
from tests.chaos.driver import Driver, send
from tests.chaos.kept import kept
from tests.chaos.proxy import OFFSET_COMMIT, OFFSET_FETCH, cut, passed
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import Lost, proxied
from tests.system.live_consumers import committed_by_another, consuming, forget_group, offsets_of

_RETRY = (0, 6)
_PARTITION = 1
_DOWN_S = 1.5
_SOON_S = 60.0


def at_verb(stage: Stage, *, storage: str, verb: str, then: str, loaded: bool) -> CaseResult:
    """Killed before a verb."""
    pipeline = stage.pipeline(group={"offsets_storage": storage})
    prepare(pipeline, loaded)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
            was_killed(driver.wait())
        after, next_run = held(pipeline), pipeline.ran()
    assert then in next_run.outcomes, next_run.outcomes
    return finish_kept(stage, pipeline, after, next_run)


def answer_lost(
    stage: Stage, *, storage: str, api: int, times: int | None, ends: int
) -> CaseResult:
    """Of the coordinator, so many times; None: all of them, as long as the run lasts."""
    pipeline, proxy = through_proxy(stage, storage, request_timeout_s=2)
    with stage.writing(pipeline):
        proxy.spoil(cut(0.0), api=api, times=times)
        result = pipeline.run()
        assert proxy.spoiled and result.code == ends, (
            f"{proxy.spoiled} spoiled; {summary_of(result)}\n{result.err}"
        )
        proxy.heal()
        after, next_run = held(pipeline), pipeline.ran()
    return finish_kept(stage, pipeline, after, both(result, next_run))


def killed_behind_the_commit(stage: Stage, *, storage: str) -> CaseResult:
    """Killed after the coordinator has stored the offsets, before its answer; with `dual` ZooKeeper
    has not been updated.
    """
    pipeline, proxy = through_proxy(stage, storage)
    with stage.writing(pipeline), Driver(pipeline) as driver:
        proxy.spoil(signals(driver, signal.SIGKILL, cut(0.0)), api=OFFSET_COMMIT, times=1)
        was_killed(driver.wait())
        before, ends = (
            pipeline.committed(),
            {p: offset for p, (offset, _) in offsets_of(pipeline, pipeline.group).items()},
        )
        assert storage == "kafka" or any(ends[p] > before[p] for p in ends), (before, ends)
        after, next_run = held(pipeline), pipeline.ran()
    return finish_kept(stage, pipeline, after, next_run)


def killed_between_the_places(stage: Stage, *, lost: Lost) -> CaseResult:
    """Killed when Kafka has the offsets and the request that moves ZooKeeper's is under way, which
    gets it or does not.
    """
    pipeline, proxy = proxied(stage, group={"offsets_storage": "dual"})
    prepare(pipeline, loaded=True)
    with stage.writing(pipeline), Driver(pipeline) as driver:

        def is_killed_at(operation: int, frame: bytes) -> bool:
            if is_multi(operation, frame):
                send(driver.process.pid, signal.SIGKILL)
                return True
            return False

        proxy.lose(lost, is_killed_at)
        was_killed(driver.wait())
        after, next_run = held(pipeline), pipeline.ran()
    return finish_kept(stage, pipeline, after, next_run)


def asleep_between_look_and_commit(stage: Stage, *, storage: str) -> CaseResult:
    """Paused after it has read the offsets and before its commit: a second driver commits higher
    ones, then the first one continues.
    """
    pipeline, proxy = through_proxy(stage, storage)
    with (
        stage.writing(pipeline),
        short_session(pipeline),
        Driver(pipeline, sends=(signal.SIGSTOP, "commit")) as zombie,
    ):
        zombie.wait_until_paused()
        proxy.spoil(signals(zombie, signal.SIGSTOP, passed), api=OFFSET_FETCH, times=1)
        zombie.wake_all()
        assert wait_until(lambda: proxy.spoiled == 1 and zombie.is_paused(), _SOON_S), (
            "it does not look"
        )
        after, second, woken = overtaken(zombie, pipeline)
        assert woken.code in (*_RETRY, 4), f"{summary_of(woken)}\n{woken.err}"
    message = f"the second driver: {summary_of(second)}; the woken one: {summary_of(woken)}"
    return finish_kept(stage, pipeline, after, message)


def coordinator_moved(stage: Stage, *, storage: str) -> CaseResult:
    """The broker that keeps the group's offsets is killed when the run begins to commit them;
    another one takes its place.
    """
    cluster = kept("two-coordinators", two_coordinators)
    pipeline = stage.pipeline(
        cluster=cluster, replication_factor=2, group={"offsets_storage": storage}
    )
    prepare(pipeline, loaded=True)
    wait_for_all(pipeline, 2)
    broker = coordinator_of(pipeline)
    result = run_disturbed(pipeline, "commit", lambda world: broker.kill())
    after = held(pipeline)
    broker.start()
    wait_for_all(pipeline, 2)
    assert result.code in _RETRY, f"{summary_of(result)}\n{result.err}"
    return finish_kept(stage, pipeline, after, both(result, pipeline.ran()))


def coordinator_restarted(stage: Stage, *, storage: str) -> CaseResult:
    """The only broker goes away when the run begins to commit, and comes back."""
    cluster = stage.another_cluster()
    pipeline = stage.pipeline(cluster=cluster, group={"offsets_storage": storage})
    prepare(pipeline, loaded=True)
    [broker] = cluster.brokers

    def down_for_a_while(world: object) -> None:
        broker.kill()
        back = threading.Timer(_DOWN_S, broker.start)
        back.start()
        stage.at_end.callback(back.join)

    result = run_disturbed(pipeline, "commit", down_for_a_while)
    after = held(pipeline)
    assert result.code in _RETRY, f"{summary_of(result)}\n{result.err}"
    assert wait_until(broker.is_ready, _SOON_S)
    return finish_kept(stage, pipeline, after, both(result, pipeline.ran()))


def another_committed(stage: Stage, *, storage: str, by: int, during: bool) -> CaseResult:
    """A client from outside commits another offset in Kafka: the run stops, and the table shows
    where the group is set back to.
    """
    pipeline = stage.pipeline(group={"offsets_storage": storage})
    prepare(pipeline, loaded=True)
    ours = offsets_of(pipeline, pipeline.group)[_PARTITION][0]

    def commit(world: object) -> None:
        committed_by_another(pipeline, {_PARTITION: ours + by})

    if during:
        result = run_disturbed(pipeline, "commit", commit)
    else:
        commit(None)
        result = pipeline.run()
    stopped(result, 5, "Another client")
    after = held(pipeline)
    restored = pipeline.door("ledger", "restore", after=["--reason", "seen", "--yes"])
    assert restored.code == 0, restored.err
    return finish_kept(stage, pipeline, after, both(result, pipeline.ran()))


def zookeeper_went_back(stage: Stage) -> CaseResult:
    """Of both places ZooKeeper's offset alone is set back."""
    pipeline = stage.pipeline(group={"offsets_storage": "dual"})
    prepare(pipeline, loaded=True)
    with pipeline.zookeeper() as client:
        client.set(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/{_PARTITION}", b"7")
    result = stopped(pipeline.run(), 5, "Another client")
    after = held(pipeline)
    restored = pipeline.door("ledger", "restore", after=["--reason", "seen", "--yes"])
    assert restored.code == 0, restored.err
    return finish_kept(stage, pipeline, after, both(result, pipeline.ran()))


def forgotten(stage: Stage, *, storage: str, verb: str | None) -> CaseResult:
    """The group is forgotten as it is without members for long, where a run was killed or not."""
    pipeline = stage.pipeline(group={"offsets_storage": storage})
    prepare(pipeline, loaded=True)
    if verb:
        with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
            was_killed(driver.wait())
    forget_group(pipeline)
    after = held(pipeline)
    return finish_kept(stage, pipeline, after, pipeline.ran())


def somebody_joined(stage: Stage, *, storage: str) -> CaseResult:
    """A consumer joins Kafka's group while a run writes: it alone may commit, and the next run
    moves our offsets once it has left.
    """
    pipeline = stage.pipeline(group={"offsets_storage": storage})
    prepare(pipeline, loaded=True)
    with contextlib.ExitStack() as consumers:
        joined = consuming(pipeline, pipeline.group, partitions=4)
        result = run_disturbed(pipeline, "commit", lambda world: consumers.enter_context(joined))
        stopped(result, 4, "has live members in Kafka")
        after = held(pipeline)
    return finish_kept(stage, pipeline, after, both(result, pipeline.ran()))


def _rows(row: int, storage: str, where: str) -> tuple[Case, ...]:
    """The cases of one `group.offsets_storage`."""
    named = f"offsets in {storage}"

    def case(name: str, what: str, play: Callable[..., CaseResult], **given: Any) -> Case:
        return Case(
            row, f"{named}: {name}", f"{where}: {what}", partial(play, storage=storage, **given)
        )

    killed = [
        case(
            f"killed before {name}", f"SIGKILL {when}", at_verb, verb=verb, then=then, loaded=loaded
        )
        for verb, name, when, then, loaded in (
            ("fetch", "the fetch", "after the plan is stored", "plan_resumed", False),
            (
                "record",
                "the record",
                "after the Delta commit, before anything else is written",
                "plan_completed",
                True,
            ),
            (
                "commit",
                "the first commit",
                "between append and commit, where the group has no offset yet",
                "plan_completed",
                False,
            ),
            ("commit", "the commit", "between append and commit", "plan_completed", True),
            (
                HALF_COMMIT,
                "half of the commit",
                "when half of the offsets are moved",
                "plan_completed",
                True,
            ),
        )
    ]
    lost = [
        *(
            case(
                f"answer lost: {each} {name}",
                f"the answer of {each} {name} is lost",
                answer_lost,
                api=api,
                times=times,
                ends=ends,
            )
            for name, api, at_last in (
                ("OffsetCommit", OFFSET_COMMIT, 0),
                ("OffsetFetch", OFFSET_FETCH, 6),
            )
            for each, times, ends in (("one", 1, 0), ("each", None, at_last))
        ),
        case(
            "killed behind the commit",
            "SIGKILL after the coordinator took the offsets, before its answer came",
            killed_behind_the_commit,
        ),
        case(
            "asleep between look and commit",
            "the driver is paused between its look at the group and its commit, a second one "
            "does more, "
            "the first goes on",
            asleep_between_look_and_commit,
        ),
    ]
    coordinators = [
        case(
            "coordinator moved",
            "the broker that keeps the offsets is killed before the commit, another takes "
            "its place",
            coordinator_moved,
        ),
        case(
            "coordinator restarted",
            f"the only broker is killed before the commit, and back {_DOWN_S} s later",
            coordinator_restarted,
        ),
    ]
    others = [
        *(
            case(
                f"another committed {name}{', during a run' if during else ''}",
                f"another client commits a {name} offset in Kafka "
                f"{'during a run' if during else 'between two runs'}; the run stops, and "
                "the table tells where it is set back to",
                another_committed,
                by=by,
                during=during,
            )
            for name, by in (("larger", 20), ("smaller", -20))
            for during in (False, True)
        ),
        case(
            "group forgotten", "the brokers forget the group between two runs", forgotten, verb=None
        ),
        case(
            "group forgotten behind a kill",
            "SIGKILL before the offsets are moved, and the brokers forget the group",
            forgotten,
            verb="commit",
        ),
        case(
            "somebody joined",
            "a consumer joins the group in Kafka before the commit; the run stops, and the "
            "consumer leaves",
            somebody_joined,
        ),
    ]
    return (*killed, *lost, *coordinators, *others)


_BOTH = "offsets in both places"

CASES: tuple[Case, ...] = (
    *_rows(36, "kafka", "offsets in Kafka"),
    *_rows(37, "dual", _BOTH),
    *(
        Case(
            37,
            f"offsets in dual: killed between the places, {lost.value}",
            f"{_BOTH}: SIGKILL when Kafka has them, {when}",
            partial(killed_between_the_places, lost=lost),
        )
        for lost, when in (
            (Lost.REQUEST, "before the request reached ZooKeeper"),
            (Lost.ANSWER, "after ZooKeeper moved them, too"),
        )
    ),
    Case(
        37,
        "offsets in dual: ZooKeeper went back",
        f"{_BOTH}: that of ZooKeeper alone is set back between two runs; the run stops, and "
        "the table tells where it is set back to",
        zookeeper_went_back,
    ),
)
