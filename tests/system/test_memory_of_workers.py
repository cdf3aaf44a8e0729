"""The memory of a worker with default settings, on a real broker."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from etl.decide.tasks import split_ranges
from etl.model.columns import COLUMNS, raw_columns
from etl.model.partitions import Broker, Isolation, Leader, TopicPartition
from etl.model.plans import FileOptions, OffsetRange, Written
from etl.reader.fetch_options import FetchOptions
from etl.reader.local_workers import Order, Worker
from etl.reader.query_ranges import ReadOptions, tasks_of_ranges
from etl.settings.choices import (
    FETCH_MAX_BYTES,
    MAX_BATCH_BYTES,
    MAX_RECORD_BYTES,
    TARGET_TASK_BYTES,
)
from etl.testkit.cluster import EmbeddedCluster
from tests.conftest import TopicFactory

pytestmark = pytest.mark.long

RANGE_BYTES = 40 << 20
TIMES = 20
MOST_MB = 400


def fill(cluster: EmbeddedCluster, topic: str, records: int, size: int, compression: str) -> None:
    """Values with different neighbours, in the large record batches of a busy producer."""
    values = [random.Random(number).randbytes(size // 2).hex().encode() for number in range(1000)]
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": compression,
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    for number in range(records):
        if number % 10_000 == 0:
            producer.flush()
        producer.produce(topic, values[number % len(values)], partition=0)
    assert producer.flush(60) == 0


def peak_mb(worker: Worker) -> float:
    """The most that the process ever had in memory, its libraries among it."""
    status = Path(f"/proc/{worker._process.pid}/status").read_text()
    return next(
        int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")
    )


def peak_of(cluster: EmbeddedCluster, whole: OffsetRange, size: int, root: Path) -> float:
    """Of one worker that does a range's tasks one after the other."""
    host, port = cluster.bootstrap.split(":")
    reading = ReadOptions(
        fetch=FetchOptions(
            bootstrap=((host, int(port)),),
            isolation=Isolation.READ_COMMITTED,
            fetch_max_bytes=FETCH_MAX_BYTES,
            max_batch_bytes=MAX_BATCH_BYTES,
            max_record_bytes=MAX_RECORD_BYTES,
            timeout_s=30.0,
        ),
        columns=raw_columns(),
        target_task_bytes=TARGET_TASK_BYTES,
    )
    ranges = split_ranges([whole], {whole.partition: float(size)}, TARGET_TASK_BYTES, 1)
    each = [[i] for i in range(len(ranges))]
    names = ("topic_ids", "leader_epochs", "incarnations", "cleanups", "fingerprints")
    nothing: dict[str, Any] = {name: {} for name in names}
    tasks = tasks_of_ranges(ranges, each, **nothing)
    worker, rows = Worker(), 0
    with contextlib.ExitStack() as ending:
        ending.callback(worker.end)
        for task in tasks:
            answer = worker.answer(Order(task, 0, reading, FileOptions(str(root), COLUMNS), None))
            assert isinstance(answer, Written), answer
            rows += answer.rows
        assert rows == whole.size
        return peak_mb(worker)


@pytest.mark.parametrize(("size", "compression"), [(100, "lz4"), (1000, "zstd")])
def test_a_range_twenty_times_larger_takes_a_tenth_more_memory_and_none_over_400_mb(
    cluster: EmbeddedCluster, topic: TopicFactory, tmp_path: Path, size: int, compression: str
) -> None:
    name, records = topic(), RANGE_BYTES // size
    fill(cluster, name, TIMES * records, size, compression)
    host, port = cluster.bootstrap.split(":")
    partition, leader = TopicPartition(name, 0), Leader(Broker(0, host, int(port)), None)
    small = peak_of(cluster, OffsetRange(partition, 0, records, leader), size, tmp_path)
    large = peak_of(cluster, OffsetRange(partition, 0, TIMES * records, leader), size, tmp_path)
    assert large <= 1.1 * small and large <= MOST_MB, (small, large)
