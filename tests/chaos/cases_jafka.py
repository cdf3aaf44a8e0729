"""Row 30: what only Jafka has: unflushed tails, and retention that deletes files in use."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from kazoo.exceptions import NoNodeError

from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.chaos.cases_logs import then_skipped
from tests.chaos.driver import Driver, kill_before, send
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.sources import check_losses
from tests.chaos.stage import CaseResult, Stage, stopped
from tests.system.driving import Pipeline
from tests.traffic.jafka import JafkaTraffic
from tests.traffic.old import OldLog

_FLUSHED, _NOT_FLUSHED = 80, 20
"""Messages of each log: the first number is flushed as one, and the rest stays unflushed."""
_NEVER_BY_TIME = {
    "log.default.flush.interval.ms": "3600000",
    "log.default.flush.scheduler.interval.ms": "3600000",
}
_BY_AGE = {"log.file.size": "4194304", "log.retention.hours": "1", "log.cleanup.interval.mins": "1"}
_TWO_HOURS_S = 7200
_LARGE, _SETS, _IN_A_SET = 20_000, 150, 20
"""60 MB of sets in each log, more than the buffers between a reader and a writer hold."""
_RETENTION_WITHIN_S = 180.0


def unflushed(stage: Stage, *, is_lost: bool) -> CaseResult:
    """A run is killed after its commit; then the broker, which may lose unflushed tails."""
    cluster = stage.at_end.enter_context(
        EmbeddedCluster(
            version=JAFKA,
            folder=stage.folder / "jafka",
            properties={"log.flush.interval": str(_FLUSHED), **_NEVER_BY_TIME},
        )
    )
    pipeline = stage.pipeline(cluster=cluster)
    pipeline.produce(4 * _FLUSHED)
    flushed = _newest_files(pipeline)
    pipeline.produce(4 * _NOT_FLUSHED)
    assert sum(pipeline.in_topic().values()) == 4 * (_FLUSHED + _NOT_FLUSHED)
    after = kill_before(pipeline, "record")
    assert sum(pipeline.in_table().values()) == 4 * _FLUSHED, "what is not flushed cannot be read"
    [broker] = cluster.brokers
    broker.kill()
    for path, size in flushed.items() if is_lost else ():
        os.truncate(path, size)
    broker.start()
    assert wait_until(lambda: _is_registered(pipeline), 60), "the broker does not come back"
    pipeline.produce(4 * _FLUSHED)
    return stage.finish(pipeline, after, stopped(pipeline.run(), 0, "plan_completed", "ingested"))


def deleted_below_a_reader(stage: Stage, *, on_data_loss: str) -> CaseResult:
    """Retention deletes the first files of one log while tasks that read it stand still."""
    cluster = stage.at_end.enter_context(
        EmbeddedCluster(version=JAFKA, folder=stage.folder / "jafka", properties=_BY_AGE)
    )
    pipeline = stage.pipeline(
        2,
        cluster=cluster,
        transform=TRANSFORM,
        spark={"spark.master": "local[4]"},
        source={"fetch_max_bytes": 100_000, "on_data_loss": on_data_loss},
    )
    partitions = _filled(pipeline)
    hold = Hold(pipeline.folder / "marks", from_task=0)
    with Driver(pipeline, hold=hold) as driver:
        driver.wait_for("the first rows", lambda: bool(hold.workers()))
        others = [pid for pid in driver.processes() if pid != driver.process.pid]
        for pid in others:
            send(pid, signal.SIGSTOP)
        start = _let_expire(partitions[0])
        hold.release()
        for pid in others:
            send(pid, signal.SIGCONT)
        result = driver.wait()
    after, next_run = then_skipped(pipeline, result, on_data_loss)
    reported = stage.finish(pipeline, after, next_run)
    check_losses(pipeline, [(partitions[0].partition, 0, start, "expired")])
    return reported


def _filled(pipeline: Pipeline) -> list[OldLog]:
    """The topic's logs, with more than fits between a reader and a writer in each."""
    traffic, numbers = JafkaTraffic(), Counter[int]()
    partitions = traffic.logs(pipeline.cluster, pipeline.topic)
    for partition in partitions:
        for _ in range(_SETS):
            numbers[partition.partition] += _IN_A_SET
            traffic.append(
                partition,
                traffic.encode(
                    [(None, b"%09d" % numbers[partition.partition] + bytes(_LARGE))] * _IN_A_SET, 0
                ),
            )
    return partitions


def _let_expire(partition: OldLog) -> int:
    """Make all but the last two files of a log old; return the new log start."""
    files = _files(partition)
    assert len(files) > 4, files
    for path in files[:-2]:
        os.utime(path, (path.stat().st_atime - _TWO_HOURS_S, path.stat().st_mtime - _TWO_HOURS_S))
    assert wait_until(lambda: _files(partition) == files[-2:], _RETENTION_WITHIN_S), (
        "the broker deletes nothing"
    )
    return int(files[-2].stem)


def _files(partition: OldLog) -> list[Path]:
    return sorted(
        (partition.broker.folder / "data" / f"{partition.topic}-{partition.partition}").glob(
            "*.jafka"
        )
    )


def _newest_files(pipeline: Pipeline) -> dict[Path, int]:
    """The last file of each log, and its size now."""
    newest = [
        _files(partition)[-1] for partition in JafkaTraffic().logs(pipeline.cluster, pipeline.topic)
    ]
    return {path: path.stat().st_size for path in newest}


def _is_registered(pipeline: Pipeline) -> bool:
    try:
        return len(JafkaTraffic().logs(pipeline.cluster, pipeline.topic)) == 4
    except NoNodeError:
        return False
