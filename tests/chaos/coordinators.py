"""Pipelines with offsets in Kafka: other clients' commits, interruptions, and the check of the
final offsets.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.testkit.brokers import Kafka
from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.cases_zombie import prepare
from tests.chaos.driver import Driver, send
from tests.chaos.kept import kept
from tests.chaos.proxy import Link, ProxiedCluster, Proxy, Spoil
from tests.chaos.stage import CaseResult, Stage, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.system.live_consumers import offsets_of


def two_coordinators(folder: Path) -> EmbeddedCluster:
    """Two brokers, each of which keeps the offsets of all groups."""
    return EmbeddedCluster(
        2,
        folder=folder,
        properties={"offsets.topic.replication.factor": "2"},
        java_options=("-Xms64m", "-Xmx192m"),
    )


def coordinator_of(pipeline: Pipeline) -> Kafka:
    """The broker that keeps the group's offsets now."""
    first = pipeline.cluster.brokers[0]
    with SimpleConsumer("127.0.0.1", first.port) as broker:
        found = broker.find_coordinator(pipeline.group)
    [coordinator] = [one for one in pipeline.cluster.brokers if one.port == found.port]
    return coordinator


def through_proxy(stage: Stage, storage: str, **source: Any) -> tuple[Pipeline, Proxy]:
    """A pipeline that reaches its broker by a proxy; its table holds a plan, and there is more to
    read.
    """
    cluster = kept("network", lambda folder: ProxiedCluster(folder))
    stage.at_end.callback(cluster.proxy.heal)
    pipeline = stage.pipeline(
        cluster=cluster,
        source={"bootstrap_servers": f"127.0.0.1:{cluster.proxy.port}", **source},
        group={"offsets_storage": storage},
    )
    prepare(pipeline, loaded=True)
    return pipeline, cluster.proxy


def signals(driver: Driver, kind: signal.Signals, then: Spoil) -> Spoil:
    """Send the driver a signal before the answer is spoiled so."""

    def spoil(link: Link, answer: bytes) -> bool:
        send(driver.process.pid, kind)
        return then(link, answer)

    return spoil


def was_killed(result: CommandResult) -> None:
    """It did not end by itself."""
    assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"


def both(result: CommandResult, next_run: CommandResult) -> str:
    """What the disturbed run came to, and the next one."""
    return f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}"


def finish_kept(
    stage: Stage, pipeline: Pipeline, after: str, next_run: CommandResult | str
) -> CaseResult:
    """The check, and that each committed offset is at the end of the table's rows, in Kafka and in
    ZooKeeper if it is kept there, too.
    """
    reported = stage.finish(pipeline, after=after, next_run=next_run)
    ends: dict[int, int] = {}
    for partition, offset, _ in pipeline.in_table():
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    found = {
        partition: offset for partition, (offset, _) in offsets_of(pipeline, pipeline.group).items()
    }
    assert found == ends, f"Kafka has {found}, the table's rows end at {ends}"
    if pipeline.settings["group"]["offsets_storage"] == "dual":
        assert pipeline.committed() == ends, (
            f"ZooKeeper has {pipeline.committed()}, the table's rows end at {ends}"
        )
    return reported
