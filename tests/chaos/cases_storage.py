"""Row 25: what the brokers' own storage loses or withholds, in the middle of a log and without an
error.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kafka import KafkaProducer

from etl.testkit.brokers import release_jars
from etl.testkit.java_and_jars import find_java
from etl.testkit.server_process import wait_until
from tests.chaos.sources import let_go, log_starts, stopped
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.system.driving import Pipeline

_SMALL_SEGMENTS = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "1"}
_SOON_S = 90.0


def lost_segment(stage: Stage) -> CaseResult:
    """A broker misses one of its segments at its start: no replica has it, and no error is
    reported.
    """
    cluster = stage.another_cluster()
    pipeline = stage.pipeline(partitions=1, cluster=cluster, config=_SMALL_SEGMENTS)
    _fill(pipeline)
    [broker] = cluster.brokers
    broker.stop()
    first, until = _lose_a_segment(broker.folder / "data" / f"{pipeline.topic}-0")
    broker.start()
    refused = stopped(pipeline.run(), 5)
    named = f"{pipeline.topic}:0:{first}-{until}"
    assert (
        named in refused.err
        and not pipeline.table.joinpath("_delta_log", "00000000000000000000.json").exists()
    ), refused.err
    after = f"{held(pipeline)}; the run itself: {summary_of(refused)}"
    pipeline.settings["source"] = {"on_data_loss": "skip"}
    result = stopped(
        pipeline.run(), 0, "plan_resumed", "plan_superseded", "records_lost", "ingested"
    )
    assert let_go(pipeline) == [(0, first, until, "missing")]
    reported = pipeline.door("verify").document["logs"][0]["without_row"]
    assert (reported["lost"], reported["compacted"], reported["not_known"]) == (
        until - first,
        0,
        0,
    ), reported
    return stage.finish(pipeline, after=after, next_run=result)


def withheld(stage: Stage) -> CaseResult:
    """Remote storage (KIP-405) that is slower than the broker waits: it answers without records and
    without an error.
    """
    storage = stage.folder / "remote"
    storage.mkdir()
    cluster = stage.another_cluster(
        properties=_tiered(storage, _compiled(stage.folder / "classes"))
    )
    pipeline = stage.pipeline(
        partitions=1,
        cluster=cluster,
        config={
            **_SMALL_SEGMENTS,
            "remote.storage.enable": "true",
            "local.retention.ms": "1",
            "local.retention.bytes": "1",
        },
    )
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
    after = f"{held(pipeline)}; the run itself: {summary_of(refused)}"
    storage.joinpath("withheld").unlink()
    result = stopped(pipeline.run(), 0, "plan_resumed", "ingested")
    return stage.finish(pipeline, after=after, next_run=result)


def _fill(pipeline: Pipeline) -> None:
    """400 records in several segments."""
    with KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap, batch_size=0) as producer:
        for number in range(400):
            producer.send(
                pipeline.topic,
                b"value %d of some length" % number,
                key=b"key %d" % number,
                partition=0,
            )


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
    subprocess.run(
        [
            compiler,
            "-cp",
            jars,
            "-d",
            str(folder),
            str(Path(__file__).with_name("WithheldStorage.java")),
        ],
        check=True,
    )
    return folder


CASES: tuple[Case, ...] = (
    Case(
        25,
        "segment lost",
        "a segment of a topic that is not compacted is gone when its only broker starts",
        lost_segment,
    ),
    Case(
        25,
        "remote storage too slow",
        "remote storage gives nothing for longer than the broker and the task wait",
        withheld,
    ),
)
