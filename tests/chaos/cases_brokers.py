"""Rows 15, 23 and 25: brokers die, return or stay away, and partitions change their leader, during
a fetch; logs lose their tail and are written anew; a broker's storage loses or withholds a part of
a log, without an error.

In row 15 a quota makes the fetch slow, so that there is time in the middle of it; a mark of the
transform shows that it has begun. In row 23 the table keeps the rows of records that are gone,
under the first life of their log; what came instead is there under the second.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from etl.testkit.brokers import Kafka, release_jars
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import find_java
from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver, kill_before
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.sources import (
    accepted,
    admin_of,
    check_losses,
    finish,
    leader_of,
    log_starts,
    partitions_of,
    second_life,
    slow_down,
    wait_for_all,
)
from tests.chaos.stage import (
    CaseResult,
    Stage,
    commits,
    ends_of,
    held,
    held_after,
    kept,
    stopped,
    summary_of,
)
from tests.command_result import CommandResult
from tests.system.driving import Pipeline, broken_off_before
from tests.traffic.rows import Row

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


def read_last(pipeline: Pipeline) -> int:
    """The leader that a single task fetches from last."""
    leaders = [leader for _, (leader, _) in sorted(partitions_of(pipeline).items())]
    return max(leaders, key=leaders.index)


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
    slow_down(pipeline, _CLIENT, _BYTES_PER_S)
    try:
        yield
    finally:
        slow_down(pipeline, _CLIENT, None)


def kill_leader(stage: Stage, pipeline: Pipeline, partition: int) -> Kafka:
    """Kill the broker that leads a partition; it is started again at the end of the case."""
    broker = pipeline.cluster.brokers[leader_of(pipeline, partition)]
    stage.at_end.callback(broker.start)
    broker.kill()
    return broker


def wait_for_no_leader(pipeline: Pipeline) -> None:
    assert wait_until(lambda: leader_of(pipeline, 1) == -1, _SOON_S), partitions_of(pipeline)


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
    """The only broker is killed amid a fetch, and returns before or after the run gave up."""
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
    after = held_after(pipeline, result)
    broker.start()
    return stage.finish(pipeline, after, stopped(pipeline.run(), 0, "ingested"))


def leader_killed(stage: Stage) -> CaseResult:
    """A leader is killed amid a fetch and stays away for the next run too."""
    pipeline = replicated(stage, 3)
    broker = pipeline.cluster.brokers[leader_of(pipeline, 0)]
    stage.at_end.callback(broker.start)
    result = stopped(in_the_middle(stage, pipeline, broker.kill), 0, "ingested")
    after = held_after(pipeline, result)
    next_run = pipeline.ran()
    broker.start()
    wait_for_all(pipeline, 3)
    return stage.finish(pipeline, after, next_run)


def leader_moves_back(stage: Stage) -> CaseResult:
    """A broker was away and is back: in the middle of a fetch it leads its partitions again."""
    pipeline = replicated(stage, 3)
    first = leader_of(pipeline, 0)
    broker = kill_leader(stage, pipeline, 0)
    moved = wait_until(lambda: leader_of(pipeline, 0) not in (first, -1), _SOON_S)
    assert moved, partitions_of(pipeline)
    broker.start()
    wait_for_all(pipeline, 3)
    assert leader_of(pipeline, 0) != first

    def elect() -> None:
        with admin_of(pipeline) as admin:
            admin.elect_leaders(_PREFERRED, {pipeline.topic: list(range(6))}, raise_errors=False)
        assert wait_until(lambda: leader_of(pipeline, 0) == first, _SOON_S), partitions_of(pipeline)

    result = stopped(in_the_middle(stage, pipeline, elect), 0, "ingested")
    after = held_after(pipeline, result)
    return stage.finish(pipeline, after, pipeline.ran())


def one_stays_away(stage: Stage) -> CaseResult:
    """A broker is away before the run begins, and after it."""
    pipeline = replicated(stage, 3)
    broker = kill_leader(stage, pipeline, 0)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        result = stopped(pipeline.run(), 0, "ingested")
        after = held(pipeline)
        pipeline.ran()
    broker.start()
    wait_for_all(pipeline, 3)
    return stage.finish(pipeline, after, result)


def without_leader(stage: Stage, *, on_no_leader: str) -> CaseResult:
    """The only replica of some partitions is away when a run begins."""
    pipeline = replicated(stage, 1, on_no_leader=on_no_leader)
    pipeline.ran()
    pipeline.produce(4_800, partitions=6)
    broker = kill_leader(stage, pipeline, 1)
    wait_for_no_leader(pipeline)
    if on_no_leader == "fail":
        result = stopped(pipeline.run(), 6, "has no leader", "on_no_leader: skip")
    else:
        result = stopped(pipeline.run(), 0, "no_leader", "ingested")
    after = held(pipeline)
    broker.start()
    wait_for_all(pipeline, 1)
    pipeline.ran()
    return stage.finish(pipeline, after, result)


def loses_its_leader(stage: Stage, *, on_no_leader: str) -> CaseResult:
    """The only replica of some partitions dies amid a fetch, and is away for the next run too."""
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
    after = held_after(pipeline, result)
    fails = on_no_leader == "fail"
    again = stopped(pipeline.run(), *(6,) if fails else (0, "plan_superseded", "no_leader"))
    broker.start()
    wait_for_all(pipeline, 1)
    pipeline.produce(480, partitions=6)
    next_run = stopped(pipeline.run(), 0, "plan_resumed" if fails else "ingested")
    return stage.finish(pipeline, f"{after}; the run after it: {summary_of(again)}", next_run)


def starts_without_a_leader(stage: Stage) -> CaseResult:
    """The first run, from the latest record on, comes while some partitions have no leader."""
    source = {"starting_offsets": "latest", "on_no_leader": "skip", "wait_for_leader_s": 3}
    pipeline = stage.pipeline(
        partitions=6, cluster=kept("three-brokers", three_brokers), source=source
    )
    pipeline.produce(600, partitions=6)
    old = pipeline.in_topic()
    broker = kill_leader(stage, pipeline, 1)
    wait_for_no_leader(pipeline)
    result = stopped(pipeline.run(), 0, "no_leader", "offsets_stored")
    after = held_after(pipeline, result)
    broker.start()
    wait_for_all(pipeline, 1)
    with stage.writing(pipeline) as writer:
        writer.wait_for(120)
    return stage.finish(pipeline, after, pipeline.ran(), expected=pipeline.in_topic() - old)


# -- row 23


_UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
_ALL = range(4)
_TRUNCATED = "truncated at offset 60, and records up to 120"


def fallen_behind(stage: Stage) -> tuple[Pipeline, Kafka, Kafka]:
    """Two brokers, the second of which lacks the newer half of what the first has, and was loaded."""
    cluster = stage.another_cluster(2, properties={"auto.leader.rebalance.enable": "false"})
    pipeline = stage.pipeline(cluster=cluster, replication_factor=2, config=_UNCLEAN)
    wait_for_all(pipeline, 2)
    pipeline.produce(240)
    pipeline.ran()
    first, second = cluster.brokers
    second.stop()
    wait_for_all(pipeline, 1)
    pipeline.produce(240)
    return pipeline, first, second


def unclean(pipeline: Pipeline, first: Kafka, second: Kafka, records: int) -> None:
    """The broker that lacks records leads and others are written; the other one follows it."""
    first.stop()
    second.start()
    wait_for_all(pipeline, 1)
    assert all(leader_of(pipeline, partition) == second.broker_id for partition in _ALL)
    if records:
        pipeline.produce(records)
    first.start()
    wait_for_all(pipeline, 2)


def elected_uncleanly(stage: Stage, *, records: int, verb: str | None = None) -> CaseResult:
    """The log is cut at 60 of 120 and grows again or not. `verb`: the reset is killed there."""
    pipeline, first, second = fallen_behind(stage)
    pipeline.ran()
    rows, after = pipeline.in_table(), held(pipeline)
    unclean(pipeline, first, second, records)
    result = stopped(pipeline.run(), 5, _TRUNCATED, "topics accept-changes")
    stopped(pipeline.door("run", after=["--dry-run"]), 5, "truncated at offset 60")
    stopped(pipeline.door("doctor"), 5, "truncated at offset 60")
    assert held(pipeline) == after
    accepted(pipeline, pipeline.topic)
    if verb:
        kill_before(pipeline, verb)
    stopped(pipeline.run(), 0)
    pipeline.produce(80)
    pipeline.ran()
    expected = rows + second_life(pipeline.in_topic(), dict.fromkeys(_ALL, 60))
    return finish(pipeline, after, result, expected)


def elected_between_plan_and_fetch(stage: Stage) -> CaseResult:
    """The end of a stored plan's ranges is gone before its fetch: it is given up unloaded."""
    pipeline, first, second = fallen_behind(stage)
    broken_off_before("fetch", pipeline)
    rows, after = pipeline.in_table(), held(pipeline)
    unclean(pipeline, first, second, 480)
    result = stopped(pipeline.run(), 5, _TRUNCATED, "topics accept-changes")
    accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0, "topic_changes_accepted", "records_lost", "ingested")
    reported = finish(pipeline, after, result, expected=rows + (pipeline.in_topic() - rows))
    check_losses(pipeline, [(partition, 60, 120, "partition_truncated") for partition in _ALL])
    return reported


def tail_lost(stage: Stage) -> CaseResult:
    """The only broker returns with half of each log, as after a crash without fsync or from a copy
    of the disk.

    No other leader was elected, so no epoch shows the truncation: an operator must name it.
    """
    pipeline, rows, after = loaded_on(stage, stage.another_cluster())
    ends = cut_files(pipeline, pipeline.cluster.brokers[0], _ALL)
    result = stopped(
        pipeline.run(),
        5,
        f"truncated at offset {ends[0]} or below, and records up to 120 were read",
        "and 3 more partitions",
        "--truncated-at OFFSET",
    )
    assert pipeline.accept_log(pipeline.topic).code == 2
    accepted(pipeline, f"{pipeline.topic}:0", "--truncated-at", str(ends[0]))
    for partition in (1, 2, 3):
        stopped(pipeline.run(), 5, f"truncated at offset {ends[partition]} or below")
        accepted(pipeline, f"{pipeline.topic}:{partition}", "--truncated-at", str(ends[partition]))
    pipeline.produce(80)
    stopped(pipeline.run(), 0, "topic_changes_accepted", "ingested")
    expected = rows + second_life(pipeline.in_topic(), ends)
    return finish(pipeline, after, result, expected)


def tail_lost_of_one(stage: Stage) -> CaseResult:
    """One of two brokers returns with half of its logs, which are longer again by then."""
    pipeline, rows, after = loaded_on(
        stage, stage.another_cluster(2, properties={"auto.leader.rebalance.enable": "false"})
    )
    broker = next(
        one for one in pipeline.cluster.brokers if one.broker_id != controller_of(pipeline)
    )
    theirs = [partition for partition in _ALL if leader_of(pipeline, partition) == broker.broker_id]
    ends = cut_files(pipeline, broker, theirs)
    pipeline.produce(480)
    more = "and 1 more partitions" if len(theirs) == 2 else ""
    first = f"truncated at offset {min(ends.items())[1]}, and records up to 120"
    result = stopped(pipeline.run(), 5, first, more)
    accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0, "topic_changes_accepted", "ingested")
    topic = pipeline.in_topic()
    others = {row: n for row, n in topic.items() if row[0] not in theirs and row not in rows}
    expected = rows + Counter(others) + second_life(topic, ends)
    return finish(pipeline, after, result, expected)


def loaded_on(stage: Stage, cluster: EmbeddedCluster) -> tuple[Pipeline, Counter[Row], str]:
    pipeline = stage.pipeline(cluster=cluster)
    pipeline.produce(480)
    pipeline.ran()
    return pipeline, pipeline.in_table(), held(pipeline)


def controller_of(pipeline: Pipeline) -> int:
    with admin_of(pipeline) as admin:
        return int(admin.describe_cluster()["controller_id"])


def cut_files(pipeline: Pipeline, broker: Kafka, partitions: Collection[int]) -> dict[int, int]:
    """Keep the first half of these logs; the broker recovers by itself. Return their new ends."""
    broker.kill()
    data = broker.folder / "data"
    for partition in partitions:
        folder = data / f"{pipeline.topic}-{partition}"
        [segment] = folder.glob("*.log")
        with segment.open("r+b") as file:
            # in the middle of a record batch: recovery drops an incomplete one
            file.truncate(segment.stat().st_size // 2)
        for kind in ("index", "timeindex", "snapshot"):
            for index in folder.glob(f"*.{kind}"):
                index.unlink()
    for checkpoint in data.glob("*-checkpoint"):
        checkpoint.unlink()
    broker.start()
    wait_for_all(pipeline, 1)
    found = ends_of(pipeline.in_topic())
    ends = {partition: found[partition] for partition in partitions}
    assert all(0 < end < 120 for end in ends.values()), ends
    return ends


# -- row 25


_SMALL_SEGMENTS = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "1"}


def lost_segment(stage: Stage) -> CaseResult:
    """A broker misses a segment at its start: no replica has it, and no error is reported."""
    cluster = stage.another_cluster()
    pipeline = stage.pipeline(partitions=1, cluster=cluster, config=_SMALL_SEGMENTS)
    _fill(pipeline)
    [broker] = cluster.brokers
    broker.stop()
    first, until = _lose_a_segment(broker.folder / "data" / f"{pipeline.topic}-0")
    broker.start()
    refused = stopped(pipeline.run(), 5)
    assert f"{pipeline.topic}:0:{first}-{until}" in refused.err, refused.err
    assert commits(pipeline) == 0, refused.err
    after = held_after(pipeline, refused)
    pipeline.settings["source"] = {"on_data_loss": "skip"}
    result = stopped(
        pipeline.run(), 0, "plan_resumed", "plan_superseded", "records_lost", "ingested"
    )
    check_losses(pipeline, [(0, first, until, "missing")])
    reported = pipeline.door("verify").document["partitions"][0]["without_row"]
    figures = [reported[name] for name in ("lost", "compacted", "not_known")]
    assert figures == [until - first, 0, 0], reported
    return stage.finish(pipeline, after, result)


def withheld(stage: Stage) -> CaseResult:
    """Remote storage (KIP-405) is too slow: an answer without records and without an error."""
    storage = stage.folder / "remote"
    storage.mkdir()
    cluster = stage.another_cluster(
        properties=_tiered(storage, _compiled(stage.folder / "classes"))
    )
    local = {"local.retention.ms": "1", "local.retention.bytes": "1"}
    config = {**_SMALL_SEGMENTS, "remote.storage.enable": "true", **local}
    pipeline = stage.pipeline(partitions=1, cluster=cluster, config=config)
    _fill(pipeline)
    partitions = cluster.brokers[0].folder / "data" / f"{pipeline.topic}-0"
    assert wait_until(lambda: len(list(partitions.glob("*.log"))) == 1, _SOON_S), (
        "the broker does not drop what is in the remote storage"
    )
    assert log_starts(pipeline) == {0: 0} and int(next(partitions.glob("*.log")).stem) > 0
    storage.joinpath("withheld").touch()
    refused = stopped(pipeline.run(), 6)
    assert "remote.fetch.max.wait.ms" in refused.err and "partition 0, offset 0" in refused.err, (
        refused.err
    )
    after = held_after(pipeline, refused)
    storage.joinpath("withheld").unlink()
    result = stopped(pipeline.run(), 0, "plan_resumed", "ingested")
    return stage.finish(pipeline, after, result)


def _fill(pipeline: Pipeline) -> None:
    with KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap, batch_size=0) as producer:
        for number in range(400):
            value, key = b"value %d of some length" % number, b"key %d" % number
            producer.send(pipeline.topic, value, key=key, partition=0)


def _lose_a_segment(folder: Path) -> tuple[int, int]:
    """One in the middle, with its indexes; the offsets that were in it."""
    starts = sorted(int(partition.stem) for partition in folder.glob("*.log"))
    assert len(starts) >= 4, starts
    for part in folder.glob(f"{starts[2]:020}.*"):
        part.unlink()
    return starts[2], starts[3]


def _tiered(storage: Path, classes: Path) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.manager.task.interval.ms": "500",
        "remote.log.storage.manager.class.name": "WithheldStorage",
        "remote.log.storage.manager.class.path": str(classes),
        "rsm.config.folder": str(storage),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "log.initial.task.delay.ms": "500",
        "log.segment.delete.delay.ms": "100",
    }


def _compiled(folder: Path) -> Path:
    """The Java class in this directory, for the brokers' Java. It needs a Java with a compiler."""
    near = find_java().with_name("javac")
    compiler = str(near) if near.exists() else shutil.which("javac")
    assert compiler, "there is no javac on this machine, so this case was not played"
    folder.mkdir()
    jars = ":".join(map(str, release_jars()))
    source = Path(__file__).with_name("WithheldStorage.java")
    subprocess.run([compiler, "-cp", jars, "-d", str(folder), str(source)], check=True)
    return folder
