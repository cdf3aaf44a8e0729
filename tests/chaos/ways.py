"""The ways in which a run is struck, each for every situation of `tests.chaos.scenes`: killed or
paused before a verb, killed at a request or at an answer, a request or an answer lost, its
coordinator gone, or anything else that is done as a verb begins.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.testkit.brokers import Kafka
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.chaos import proxy as kafka_proxy
from tests.chaos.driver import Driver, killed_before, run_disturbed, send, was_killed
from tests.chaos.proxy import Link, ProxiedCluster, Proxy, Spoil, cut
from tests.chaos.scenes import SITUATIONS, Scene, prepare
from tests.chaos.sources import stored_plans, wait_for_all
from tests.chaos.stage import (
    CaseResult,
    Stage,
    both,
    ended,
    held,
    kept,
    offsets_are_at_the_rows_ends,
    succeeded,
    summary_of,
)
from tests.chaos.zookeeper_proxy import (
    CREATE,
    CREATE2,
    DELETE,
    MULTI,
    SET_DATA,
    Chosen,
    Lost,
    ZooKeeperProxy,
    proxied,
)
from tests.system.driving import Pipeline
from tests.system.live_consumers import offsets_of

_SOON_S = 20.0
_SHORT_SESSION = {"session_timeout_s": 2}
RETRY = (4, 6)
"""Exit codes of a run that lost its race and reports that a retry may help."""


def killed(
    stage: Stage,
    *,
    verb: str,
    then: Collection[str] = (),
    scene: str = "alone",
    loaded: bool = False,
) -> CaseResult:
    """Killed before a verb; the next run's outcomes must have `then`."""
    there = staged(stage, scene)
    with there.going_on(loaded):
        with killed_before(there.pipeline, verb):
            there.check_claims()
            after, next_run = there.next_run()
    succeeded(next_run, *then)
    return there.finish(after, next_run)


def asleep(stage: Stage, *, verb: str, scene: str = "alone", loaded: bool = False) -> CaseResult:
    """Paused before a verb until its session is gone and a second driver has done the work."""
    there = staged(stage, scene)
    with there.going_on(loaded), sleeping(there.pipeline, verb) as zombie:
        there.check_claims()
        after, message = overtaken(zombie, there.pipeline)
    return there.finish(after, message)


def killed_at_request(
    stage: Stage,
    *,
    request: str,
    lost: str,
    scene: str,
    loaded: bool = False,
    stored: int | None = None,
    then: Collection[str] = (),
) -> CaseResult:
    """Killed during a request to ZooKeeper; `stored`: the number of plans then."""
    there, proxy = staged_at_zookeeper(stage, scene)
    with there.going_on(loaded), Driver(there.pipeline) as driver:
        lose_at_death(proxy, driver, Lost(lost), REQUESTS[request]())
        was_killed(driver.wait())
        assert proxy.happened.is_set(), "that request was not made"
        if stored is not None:
            assert wait_until(lambda: len(stored_plans(there.pipeline)) == stored, _SOON_S)
        after, next_run = there.next_run()
    succeeded(next_run, *then)
    return there.finish(after, next_run)


def killed_at_answer(stage: Stage, *, api: str, scene: str, loaded: bool = False) -> CaseResult:
    """Killed after the coordinator executed the request, before its answer."""
    there, proxy = staged_at_brokers(stage, scene)
    with there.going_on(loaded), Driver(there.pipeline) as driver:
        kill = signals(driver, signal.SIGKILL, cut(0.0))
        proxy.spoil(kill, api=getattr(kafka_proxy, api), times=1)
        was_killed(driver.wait())
        if scene == "dual":
            before = there.pipeline.committed()
            found = offsets_of(there.pipeline, there.pipeline.group)
            assert any(offset > before[p] for p, (offset, _) in found.items()), (before, found)
        after, next_run = there.next_run()
    return there.finish(after, next_run)


def request_lost(
    stage: Stage,
    *,
    request: str,
    lost: str,
    scene: str = "alone",
    loaded: bool = True,
    then: Collection[str] = (),
) -> CaseResult:
    """The connection to ZooKeeper breaks in the middle of one request, once."""
    there, proxy = staged_at_zookeeper(stage, scene)
    with there.going_on(loaded):
        proxy.lose(Lost(lost), REQUESTS[request]())
        result = ended(there.pipeline.run(), 0, 6)
        assert proxy.happened.is_set(), "that request was not made"
        after, next_run = there.next_run()
    succeeded(next_run, *then)
    reported = there.finish(after, both(result, next_run))
    offsets_are_at_the_rows_ends(there.pipeline, there.pipeline.committed())
    return reported


def answer_lost(
    stage: Stage, *, api: str, times: int | None, ends: Collection[int], scene: str, **source: Any
) -> CaseResult:
    """The coordinator's answers to a request get lost, so many of them; None: all."""
    there, proxy = staged_at_brokers(stage, scene, **source)
    with there.going_on(loaded=True):
        proxy.spoil(cut(0.0), api=getattr(kafka_proxy, api), times=times)
        result = there.struck_run()
        assert proxy.spoiled, "no answer was spoiled"
        ended(result, *ends)
        proxy.heal()
        after, next_run = there.next_run()
    return there.finish(after, both(result, next_run))


def coordinator_moved(stage: Stage, *, scene: str, verb: str = "commit") -> CaseResult:
    """The broker that keeps the group is killed before a verb; another one takes its place."""
    cluster = kept("two-coordinators", _two_coordinators)
    there = staged(stage, scene, cluster=cluster, replication_factor=2)
    prepare(there.pipeline, loaded=True)
    wait_for_all(there.pipeline, 2)
    broker = _coordinator_of(there.pipeline)
    result = run_disturbed(there.pipeline, verb, lambda world: broker.kill())
    after = held(there.pipeline)
    broker.start()
    wait_for_all(there.pipeline, 2)
    ended(result, 0, 6)
    return there.finish(after, both(result, there.pipeline.ran()))


# -- situations, by the way to their servers


def staged(stage: Stage, scene: str, **more: Any) -> Scene:
    of = SITUATIONS[scene]
    return of.kind(stage, stage.pipeline(**of.settings, **more))


def staged_at_zookeeper(stage: Stage, scene: str) -> tuple[Scene, ZooKeeperProxy]:
    """The same, with a proxy in front of its ZooKeeper."""
    of = SITUATIONS[scene]
    pipeline, proxy = proxied(stage, **of.settings)
    return of.kind(stage, pipeline), proxy


def staged_at_brokers(stage: Stage, scene: str, **source: Any) -> tuple[Scene, Proxy]:
    """The same, with a proxy in front of its broker."""
    cluster = kept("network", lambda folder: ProxiedCluster(folder))
    stage.at_end.callback(cluster.proxy.heal)
    source["bootstrap_servers"] = f"127.0.0.1:{cluster.proxy.port}"
    return staged(stage, scene, cluster=cluster, source=source), cluster.proxy


# -- drivers that sleep


@contextlib.contextmanager
def short_session(pipeline: Pipeline) -> Iterator[None]:
    """Runs that start inside the block have a short ZooKeeper session."""
    pipeline.settings["zookeeper"] = _SHORT_SESSION
    try:
        yield
    finally:
        pipeline.settings.pop("zookeeper", None)


@contextlib.contextmanager
def sleeping(pipeline: Pipeline, verb: str) -> Iterator[Driver]:
    """A driver that has stopped before `verb`, and whose session soon expires."""
    with short_session(pipeline), Driver(pipeline, sends=(signal.SIGSTOP, verb)) as zombie:
        zombie.wait_until_paused()
        yield zombie


def overtaken(
    zombie: Driver, pipeline: Pipeline, behind: Callable[[], None] = lambda: None
) -> tuple[str, str]:
    """A second driver does the work, then `behind` is called, then the first continues: the table's
    state in between, and what became of both. A woken driver may have found its work done, or
    report that a retry may help; nothing else.
    """
    wait_for_no_driver(pipeline)
    after = held(pipeline)
    pipeline.settings.pop("zookeeper", None)
    second = pipeline.ran()
    behind()
    zombie.wake_all()
    woken = ended(zombie.wait(), 0, *RETRY)
    return after, f"the second driver: {summary_of(second)}; the woken one: {summary_of(woken)}"


def wait_for_no_driver(pipeline: Pipeline) -> None:
    """Wait until ZooKeeper has dropped the session of the driver."""
    path = f"/consumers/{pipeline.group}/etl/clicks/drivers"
    with pipeline.zookeeper() as client:
        assert wait_until(lambda: not children(client, path), 60), "the session does not end"


def children(client: Any, path: str) -> list[str]:
    """The names of the znodes below one; none without it."""
    names: list[str] = client.get_children(path) if client.exists(path) else []
    return names


# -- requests and answers


def lose_at_death(proxy: ZooKeeperProxy, driver: Driver, lost: Lost, is_it: Chosen) -> None:
    """Break the connection at the next chosen request, by which the driver is killed."""

    def is_killed_at(operation: int, frame: bytes) -> bool:
        if not is_it(operation, frame):
            return False
        send(driver.process.pid, signal.SIGKILL)
        return True

    proxy.lose(lost, is_killed_at)


def signals(driver: Driver, kind: signal.Signals, then: Spoil) -> Spoil:
    """Send the driver a signal before the answer is spoiled so."""

    def spoil(link: Link, answer: bytes) -> bool:
        send(driver.process.pid, kind)
        return then(link, answer)

    return spoil


def _of(operations: Collection[int], what: bytes, without: bytes | None = None) -> Chosen:
    """A request of one of these kinds that names the one znode and not the other."""
    return lambda operation, frame: (
        operation in operations and what in frame and (without is None or without not in frame)
    )


def _after_first(first: Chosen, then: Chosen) -> Chosen:
    """The second of these once the first has come."""
    has_come = threading.Event()

    def is_it(operation: int, frame: bytes) -> bool:
        if has_come.is_set():
            return then(operation, frame)
        if first(operation, frame):
            has_come.set()
        return False

    return is_it


def is_hand_over(operation: int, frame: bytes) -> bool:
    """The one request that stores a plan and moves offsets."""
    return operation == MULTI and b"/plans/" in frame and b"/offsets/" in frame


is_mark = _of((SET_DATA, MULTI), b"/plans/")
"""The request that marks a stored plan as handed over, or as void."""
_CREATES = (CREATE, CREATE2, MULTI)
_OWNERS = _of((MULTI,), b"/owners/", without=b"/plans/")
REQUESTS: Mapping[str, Callable[[], Chosen]] = {
    "store the plan": lambda: _of(_CREATES, b"/plans/"),
    "take the lock": lambda: _of(_CREATES, b"/drivers/"),
    "register": lambda: _of(_CREATES, b"/ids/"),
    "create owners": lambda: _of(_CREATES, b"/owners/"),
    "claim": lambda: _OWNERS,
    "move the offsets": lambda: _of((MULTI,), b"/offsets/"),
    "hand over": lambda: is_hand_over,
    "mark the plan": lambda: _after_first(_of(_CREATES, b"/plans/"), is_mark),
    "let go": lambda: _after_first(is_hand_over, _OWNERS),
    "leave": lambda: _after_first(is_hand_over, _of((DELETE,), b"/ids/")),
    "pause": lambda: _of((*_CREATES, SET_DATA), b"/paused"),
}
"""Requests to ZooKeeper, by what a run does with them."""


def _two_coordinators(folder: Path) -> EmbeddedCluster:
    """Two brokers, each of which keeps the offsets of all groups."""
    return EmbeddedCluster(
        2,
        folder=folder,
        properties={"offsets.topic.replication.factor": "2"},
        java_options=("-Xms64m", "-Xmx192m"),
    )


def _coordinator_of(pipeline: Pipeline) -> Kafka:
    """The broker that keeps the group's offsets now."""
    with SimpleConsumer("127.0.0.1", pipeline.cluster.brokers[0].port) as broker:
        found = broker.find_coordinator(pipeline.group)
    [coordinator] = [one for one in pipeline.cluster.brokers if one.port == found.port]
    return coordinator
