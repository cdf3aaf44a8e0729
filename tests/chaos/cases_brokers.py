"""Row 15: brokers die, return or stay away, and partitions change their leader, during a fetch.

A quota makes the fetch slow, so that there is time in the middle of it; a mark of the transform
shows that it has begun.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.kept import kept
from tests.chaos.sources import admin_of, slow_down, stopped
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline

_CLIENT = "offset-range-etl"
_BYTES_PER_S = 10_000
"""Of each broker, after a burst of ten seconds' worth."""
_RECORDS_OF_A_BROKER = 7_000
_PREFERRED = 0
_SOON_S = 90.0


def three_brokers(folder: Path) -> EmbeddedCluster:
    """A cluster whose leaders move only on request of a case."""
    return EmbeddedCluster(
        3,
        folder=folder,
        properties={"auto.leader.rebalance.enable": "false"},
        java_options=("-Xms64m", "-Xmx192m"),
    )


def partitions_of(pipeline: Pipeline) -> dict[int, tuple[int, int]]:
    """Leader (-1: none) and number of in-sync replicas of each partition, as the brokers report."""
    found: dict[int, tuple[int, int]] = {}

    def describe_topic() -> bool:
        with (
            contextlib.suppress(KafkaError),
            admin_of(pipeline) as admin,
        ):  # its broker may have died just now
            [topic] = admin.describe_topics([pipeline.topic])
            found.update(
                {
                    each["partition_index"]: (each["leader_id"], len(each["isr_nodes"]))
                    for each in topic["partitions"]
                }
            )
        return bool(found)

    assert wait_until(describe_topic, _SOON_S), "the brokers do not tell of the topic"
    return found


def leader_of(pipeline: Pipeline, partition: int) -> int:
    return partitions_of(pipeline)[partition][0]


def read_last(pipeline: Pipeline) -> int:
    """The leader that a single task fetches from last: leaders are ordered by their first
    partitions.
    """
    leaders = [leader for _, (leader, _) in sorted(partitions_of(pipeline).items())]
    return max(leaders, key=leaders.index)


def wait_for_all(pipeline: Pipeline, replicas: int) -> None:
    """Until every partition has its leader and all replicas in sync."""

    def is_so() -> bool:
        return all(
            leader >= 0 and in_sync == replicas
            for leader, in_sync in partitions_of(pipeline).values()
        )

    assert wait_until(is_so, _SOON_S), partitions_of(pipeline)


def replicated(stage: Stage, factor: int, **source: Any) -> Pipeline:
    """A pipeline on three brokers with much to read."""
    cluster = kept("three-brokers", three_brokers)
    return filled(
        stage.pipeline(
            partitions=6,
            cluster=cluster,
            replication_factor=factor,
            transform=TRANSFORM,
            spark={"spark.master": "local[4,4]"},
            source={
                "fetch_max_bytes": 4096,
                "wait_for_leader_s": 30 if factor > 1 else 3,
                **source,
            },
        )
    )


def filled(pipeline: Pipeline) -> Pipeline:
    pipeline.produce(
        _RECORDS_OF_A_BROKER * len(pipeline.cluster.brokers),
        partitions=len(partitions_of(pipeline)),
    )
    return pipeline


@contextlib.contextmanager
def slow(pipeline: Pipeline) -> Iterator[None]:
    """Fetches of the pipeline take their time."""
    slow_down(pipeline, _CLIENT, _BYTES_PER_S)
    try:
        yield
    finally:
        slow_down(pipeline, _CLIENT, None)


def in_the_middle(
    stage: Stage, pipeline: Pipeline, change: Callable[[], None], *, away_for_good: bool = False
) -> CommandResult:
    """A run with `change` during its fetch, while a producer writes.

    Without the producer if brokers stay `away_for_good`: its buffered records would be written
    later, when they are not expected any more.
    """
    hold = Hold(pipeline.folder / "marks", from_task=1000)
    writing = contextlib.nullcontext() if away_for_good else stage.writing(pipeline)
    with slow(pipeline), writing, Driver(pipeline, hold=hold) as driver:
        driver.wait_for("the first rows", lambda: bool(hold.workers()))
        change()
        return driver.wait()


def only_broker(stage: Stage, *, comes_back: bool) -> CaseResult:
    """There is one broker; it is killed in the middle of a fetch, and started again before or after
    the run has given up.
    """
    cluster = stage.another_cluster()
    pipeline = filled(
        stage.pipeline(
            cluster=cluster,
            transform=TRANSFORM,
            spark={"spark.master": "local[2]"},
            source={"fetch_max_bytes": 4096},
        )
    )
    [broker] = cluster.brokers

    def change() -> None:
        broker.kill()
        if comes_back:
            broker.start()

    result = stopped(
        in_the_middle(stage, pipeline, change, away_for_good=not comes_back), 0 if comes_back else 6
    )
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    broker.start()
    return stage.finish(pipeline, after=after, next_run=stopped(pipeline.run(), 0, "ingested"))


def leader_killed(stage: Stage) -> CaseResult:
    """The leader of some partitions is killed in the middle of a fetch and stays away for the next
    run too.
    """
    pipeline = replicated(stage, 3)
    broker = pipeline.cluster.brokers[leader_of(pipeline, 0)]
    stage.at_end.callback(broker.start)
    result = stopped(in_the_middle(stage, pipeline, broker.kill), 0, "ingested")
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    next_run = pipeline.ran()
    broker.start()
    wait_for_all(pipeline, 3)
    return stage.finish(pipeline, after=after, next_run=next_run)


def leader_moves_back(stage: Stage) -> CaseResult:
    """A broker was away and is back: in the middle of a fetch it leads its partitions again."""
    pipeline = replicated(stage, 3)
    first = leader_of(pipeline, 0)
    broker = pipeline.cluster.brokers[first]
    stage.at_end.callback(broker.start)
    broker.kill()
    assert wait_until(lambda: leader_of(pipeline, 0) not in (first, -1), _SOON_S), partitions_of(
        pipeline
    )
    broker.start()
    wait_for_all(pipeline, 3)
    assert leader_of(pipeline, 0) != first

    def elect() -> None:
        with admin_of(pipeline) as admin:
            admin.elect_leaders(_PREFERRED, {pipeline.topic: list(range(6))}, raise_errors=False)
        assert wait_until(lambda: leader_of(pipeline, 0) == first, _SOON_S), partitions_of(pipeline)

    result = stopped(in_the_middle(stage, pipeline, elect), 0, "ingested")
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    return stage.finish(pipeline, after=after, next_run=pipeline.ran())


def one_stays_away(stage: Stage) -> CaseResult:
    """A broker is away before the run begins, and after it."""
    pipeline = replicated(stage, 3)
    broker = pipeline.cluster.brokers[leader_of(pipeline, 0)]
    stage.at_end.callback(broker.start)
    broker.kill()
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        result = stopped(pipeline.run(), 0, "ingested")
        after = held(pipeline)
        pipeline.ran()
    broker.start()
    wait_for_all(pipeline, 3)
    return stage.finish(pipeline, after=after, next_run=result)


def without_leader(stage: Stage, *, on_no_leader: str) -> CaseResult:
    """The only replica of some partitions is away when a run begins."""
    pipeline = replicated(stage, 1, on_no_leader=on_no_leader)
    pipeline.ran()
    pipeline.produce(4_800, partitions=6)
    broker = pipeline.cluster.brokers[leader_of(pipeline, 1)]
    stage.at_end.callback(broker.start)
    broker.kill()
    assert wait_until(lambda: leader_of(pipeline, 1) == -1, _SOON_S), partitions_of(pipeline)
    code, *words = (
        (6, "has no leader", "on_no_leader: skip")
        if on_no_leader == "fail"
        else (0, "no_leader", "ingested")
    )
    result = stopped(pipeline.run(), code, *words)
    after = held(pipeline)
    broker.start()
    wait_for_all(pipeline, 1)
    pipeline.ran()
    return stage.finish(pipeline, after=after, next_run=result)


def loses_its_leader(stage: Stage, *, on_no_leader: str) -> CaseResult:
    """The only replica of some partitions dies in the middle of a fetch, and is away for the next
    run too.
    """
    pipeline = replicated(stage, 1, on_no_leader=on_no_leader)
    # one task, which reads one leader after the other, and whose rows appear as soon as the first
    # of them is read
    pipeline.settings["spark"] = {
        "spark.master": "local[1]",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    broker = pipeline.cluster.brokers[read_last(pipeline)]
    stage.at_end.callback(broker.start)
    result = stopped(in_the_middle(stage, pipeline, broker.kill, away_for_good=True), 6)
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    again = stopped(
        pipeline.run(), *(6,) if on_no_leader == "fail" else (0, "plan_superseded", "no_leader")
    )
    broker.start()
    wait_for_all(pipeline, 1)
    pipeline.produce(480, partitions=6)
    next_run = stopped(pipeline.run(), 0, "plan_resumed" if on_no_leader == "fail" else "ingested")
    return stage.finish(
        pipeline, after=f"{after}; the run after it: {summary_of(again)}", next_run=next_run
    )


def starts_without_a_leader(stage: Stage) -> CaseResult:
    """The first run of a pipeline that starts at the latest record comes while some partitions have
    no leader.
    """
    source = {"starting_offsets": "latest", "on_no_leader": "skip", "wait_for_leader_s": 3}
    pipeline = stage.pipeline(
        partitions=6, cluster=kept("three-brokers", three_brokers), source=source
    )
    pipeline.produce(600, partitions=6)
    old = pipeline.in_topic()
    broker = pipeline.cluster.brokers[leader_of(pipeline, 1)]
    stage.at_end.callback(broker.start)
    broker.kill()
    assert wait_until(lambda: leader_of(pipeline, 1) == -1, _SOON_S), partitions_of(pipeline)
    result = stopped(pipeline.run(), 0, "no_leader", "offsets_stored")
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    broker.start()
    wait_for_all(pipeline, 1)
    with stage.writing(pipeline) as writer:
        writer.wait_for(120)
    return stage.finish(
        pipeline, after=after, next_run=pipeline.ran(), expected=pipeline.in_topic() - old
    )


CASES: tuple[Case, ...] = (
    Case(
        15,
        "only-broker-killed-and-started",
        "the only broker killed in the middle of a fetch and started again",
        partial(only_broker, comes_back=True),
    ),
    Case(
        15,
        "only-broker-killed",
        "the only broker killed in the middle of a fetch, and away until the run has given up",
        partial(only_broker, comes_back=False),
    ),
    Case(
        15,
        "leader-killed",
        "three brokers: a leader killed in the middle of a fetch; it stays away for the next run",
        leader_killed,
    ),
    Case(
        15,
        "preferred-leader-moves-back",
        "three brokers: the preferred leader takes over again in the middle of a fetch",
        leader_moves_back,
    ),
    Case(
        15,
        "one-broker-stays-away",
        "three brokers: one killed before the run and away until after it",
        one_stays_away,
    ),
    Case(
        15,
        "partition-without-a-leader-fail",
        "partitions without a leader when a run begins, `fail`",
        partial(without_leader, on_no_leader="fail"),
    ),
    Case(
        15,
        "partition-without-a-leader-skip",
        "partitions without a leader when a run begins, `skip`: the others are loaded",
        partial(without_leader, on_no_leader="skip"),
    ),
    Case(
        15,
        "partition-loses-its-leader-fail",
        "partitions lose their leader in the middle of a fetch, `fail`",
        partial(loses_its_leader, on_no_leader="fail"),
    ),
    Case(
        15,
        "partition-loses-its-leader-skip",
        "partitions lose their leader in the middle of a fetch, `skip`",
        partial(loses_its_leader, on_no_leader="skip"),
    ),
    Case(
        23,
        "no leader at the first run",
        "`start: latest`, `on_no_leader: skip`, and a broker is dead at the very first run",
        starts_without_a_leader,
    ),
)
