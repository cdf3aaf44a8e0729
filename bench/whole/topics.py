"""The topics of one broker: created and filled for a workload, and deleted after it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.whole.workloads import PARTITIONS, Workload
from etl.testkit.cluster import EmbeddedCluster

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Topic:
    """One that is full."""

    workload: Workload
    log_bytes: int
    """Of its segments on the broker's disk."""


@contextlib.contextmanager
def filled(cluster: EmbeddedCluster, workload: Workload) -> Iterator[Topic]:
    """The topic of a workload with all of its records, until the end of the block. Raises
    ValueError when some are not there.
    """
    cluster.create_topic(
        workload.topic, PARTITIONS, config={"segment.bytes": str(1 << 30), "retention.ms": "-1"}
    )
    each, python = (
        workload.records // PARTITIONS,
        [sys.executable, "-m", "bench.whole.records", cluster.bootstrap, workload.topic],
    )
    producers = [
        subprocess.Popen(
            [*python, str(partition), str(each), str(workload.size), workload.compression]
        )
        for partition in range(PARTITIONS)
    ]
    codes = [one.wait() for one in producers]
    there = _records(cluster, workload)
    if any(codes) or there != workload.records:
        raise ValueError(
            f"{workload.name}: {there} of {workload.records} records are there; exit codes "
            f"of the producers: {codes}"
        )
    segments = [
        path
        for broker in cluster.brokers
        for path in broker.folder.rglob(f"{workload.topic}-*/*.log")
    ]
    try:
        yield Topic(workload, sum(path.stat().st_size for path in segments))
    finally:
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for done in client.delete_topics([workload.topic]).values():
            done.result(_TIMEOUT_S)


def _records(cluster: EmbeddedCluster, workload: Workload) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "counts"})
    try:
        bounds = [
            consumer.get_watermark_offsets(TopicPartition(workload.topic, at), _TIMEOUT_S)
            for at in range(PARTITIONS)
        ]
    finally:
        consumer.close()
    return sum(end - begin for begin, end in bounds)
