"""Row 23: logs that lose their tail, by an unclean election or a broker's disk, and are written
anew.

The table keeps the rows of records that are gone, under the first life of their log; what came
instead is there under the second.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection
from functools import partial

from etl.testkit.brokers import Kafka
from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.cases_brokers import leader_of, wait_for_all
from tests.chaos.driver import Driver
from tests.chaos.lives import accepted, finish, second_life
from tests.chaos.sources import admin_of, let_go, stopped
from tests.chaos.stage import Case, CaseResult, Stage, held
from tests.system.driving import Pipeline, broken_off_before
from tests.traffic.rows import Row

_UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
_ALL = range(4)


def led_by(pipeline: Pipeline, broker: int) -> bool:
    return all(leader_of(pipeline, partition) == broker for partition in _ALL)


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
    """The broker that lacks records leads, and others are written; the other one comes back and
    follows it.
    """
    first.stop()
    second.start()
    wait_for_all(pipeline, 1)
    assert led_by(pipeline, second.broker_id)
    if records:
        pipeline.produce(records)
    first.start()
    wait_for_all(pipeline, 2)


def elected_uncleanly(stage: Stage, *, records: int, verb: str | None = None) -> CaseResult:
    """The log is cut at 60 of 120; then it is shorter, or longer again, when the next run comes.
    `verb`: the reset is killed there.
    """
    pipeline, first, second = fallen_behind(stage)
    pipeline.ran()
    rows, after = pipeline.in_table(), held(pipeline)
    unclean(pipeline, first, second, records)
    result = stopped(
        pipeline.run(), 5, "truncated at offset 60, and records up to 120", "topics accept-changes"
    )
    stopped(pipeline.door("run", after=["--dry-run"]), 5, "truncated at offset 60")
    stopped(pipeline.door("doctor"), 5, "truncated at offset 60")
    assert held(pipeline) == after
    accepted(pipeline, pipeline.topic)
    if verb:
        with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
            assert driver.wait().code == -signal.SIGKILL
    stopped(pipeline.run(), 0)
    pipeline.produce(80)
    pipeline.ran()
    return finish(
        pipeline,
        after=after,
        next_run=result,
        expected=rows + second_life(pipeline.in_topic(), dict.fromkeys(_ALL, 60)),
    )


def elected_between_plan_and_fetch(stage: Stage) -> CaseResult:
    """The plan is stored, and the end of its ranges is gone before it is fetched: it is given up,
    and nothing of it was loaded.
    """
    pipeline, first, second = fallen_behind(stage)
    broken_off_before("fetch", pipeline)
    rows, after = pipeline.in_table(), held(pipeline)
    unclean(pipeline, first, second, 480)
    result = stopped(
        pipeline.run(), 5, "truncated at offset 60, and records up to 120", "topics accept-changes"
    )
    accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0, "topic_changes_accepted", "records_lost", "ingested")
    reported = finish(
        pipeline, after=after, next_run=result, expected=rows + (pipeline.in_topic() - rows)
    )
    assert let_go(pipeline) == [
        (partition, 60, 120, "partition_truncated") for partition in _ALL
    ], let_go(pipeline)
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
    return finish(
        pipeline,
        after=after,
        next_run=result,
        expected=rows + second_life(pipeline.in_topic(), ends),
    )


def tail_lost_of_one(stage: Stage) -> CaseResult:
    """One of two brokers comes back with half of its logs; the controller has noticed, and the logs
    are longer again by then.
    """
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
    result = stopped(
        pipeline.run(),
        5,
        f"truncated at offset {min(ends.items())[1]}, and records up to 120",
        more,
    )
    accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0, "topic_changes_accepted", "ingested")
    kept = {
        row: n for row, n in pipeline.in_topic().items() if row[0] not in theirs and row not in rows
    }
    return finish(
        pipeline,
        after=after,
        next_run=result,
        expected=rows + Counter(kept) + second_life(pipeline.in_topic(), ends),
    )


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
            file.truncate(
                segment.stat().st_size // 2
            )  # in the middle of a record batch: recovery drops an incomplete one
        for index in (
            *folder.glob("*.index"),
            *folder.glob("*.timeindex"),
            *folder.glob("*.snapshot"),
        ):
            index.unlink()
    for checkpoint in data.glob("*-checkpoint"):
        checkpoint.unlink()
    broker.start()
    wait_for_all(pipeline, 1)
    ends = {
        p: max(offset for partition, offset, _ in pipeline.in_topic() if partition == p) + 1
        for p in partitions
    }
    assert all(0 < end < 120 for end in ends.values()), ends
    return ends


CASES: tuple[Case, ...] = (
    Case(
        23,
        "unclean-election-shorter",
        "two brokers: an unclean leader has half of what was loaded; the log is accepted as it is",
        partial(elected_uncleanly, records=0),
    ),
    Case(
        23,
        "unclean-election-longer",
        "the same, and the log is longer again when the next run comes",
        partial(elected_uncleanly, records=480),
    ),
    Case(
        23,
        "unclean-election-reset-killed-before-the-append",
        "the same, and the run that goes on is killed before it commits",
        partial(elected_uncleanly, records=480, verb="append"),
    ),
    Case(
        23,
        "unclean-election-reset-killed-before-the-offsets",
        "the same, killed before it moves the offsets back",
        partial(elected_uncleanly, records=480, verb="commit"),
    ),
    Case(
        23,
        "unclean-election-before-the-fetch",
        "an unclean leader between a plan and its fetch: the plan is given up",
        elected_between_plan_and_fetch,
    ),
    Case(23, "tail-lost", "the only broker comes back with half of each log", tail_lost),
    Case(
        23,
        "tail-lost-of-one",
        "one of two brokers comes back with half of its logs, which are longer again when "
        "the next run comes",
        tail_lost_of_one,
    ),
)
