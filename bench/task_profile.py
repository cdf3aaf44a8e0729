"""The CPU time of one task that writes files itself, in one process without Spark, on a real
broker; and its memory.

    PYTHONPATH=. python bench/task_profile.py [--workload 100B-none] [--records N] [--codec
zstd] [--rounds N]

CPU seconds are those of the process, without the broker's. The time of each part excludes the parts
inside of it. The first round is left out: it compiles or loads code for the later ones.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c

from bench.whole.topics import filled
from bench.whole.workloads import PARTITIONS, WORKLOADS, Workload
from etl.io.brokers import connection
from etl.io.brokers.cluster_requests import Cluster as Brokers
from etl.io.delta import data_files
from etl.model.columns import COLUMNS, raw_columns
from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import Codec, FileOptions, OffsetRange
from etl.reader.fetch_options import FetchOptions
from etl.reader.query_ranges import ReadOptions, Task
from etl.reader.run_task import write_task
from etl.records import arrow_buffers
from etl.settings.choices import (
    FETCH_MAX_BYTES,
    MAX_BATCH_BYTES,
    MAX_RECORD_BYTES,
    TARGET_TASK_BYTES,
)
from etl.testkit.cluster import EmbeddedCluster

PARTS: dict[str, tuple[Any, str]] = {
    "receive": (connection.Connection, "receive"),
    "CRC": (google_crc32c, "value"),
    "decompress": (arrow_buffers, "decompress"),
    "room for columns": (arrow_buffers.BatchBuffers, "__init__"),
    "kernel": (arrow_buffers.ColumnBuffers, "fill"),
    "Arrow arrays": (arrow_buffers.ColumnBuffers, "arrow_batch"),
    "columns of the file": (data_files.FileColumns, "fitting"),
    "Parquet": (data_files._OpenFile, "write"),
    "end of the file": (data_files._OpenFile, "close"),
}
"""The timed functions; none of them calls itself."""
_COLD = 1
spent: Counter[str] = Counter()
_inside: list[float] = []


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; what it spends of this thread's CPU is added to its part."""

    @functools.wraps(function)
    def call(*arguments: Any, **more: Any) -> Any:
        began = time.thread_time()
        _inside.append(0.0)
        try:
            return function(*arguments, **more)
        finally:
            took = time.thread_time() - began
            spent[part] += took - _inside.pop()  # type: ignore[assignment]
            if _inside:
                _inside[-1] += took

    return call


def peak_mb() -> float:
    """The most that this process ever had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def tasks_of(cluster: EmbeddedCluster, workload: Workload) -> list[Task]:
    """One for each partition, from its start to its end."""
    partitions = [TopicPartition(workload.topic, partition) for partition in range(PARTITIONS)]
    host, port = cluster.bootstrap.split(":")
    with Brokers([(host, int(port))]) as brokers:
        found = brokers.extents(partitions, isolation=Isolation.READ_COMMITTED)
    return [
        Task(
            (i,),
            (
                OffsetRange(
                    topic_partition,
                    0,
                    found.extents[topic_partition].end_offset,
                    found.leaders[topic_partition],
                ),
            ),
        )
        for i, topic_partition in enumerate(partitions)
    ]


def once(tasks: list[Task], reading: ReadOptions, codec: Codec) -> tuple[float, Counter[str]]:
    """Seconds of CPU that writing all of it takes, and of each part."""
    with tempfile.TemporaryDirectory(prefix="etl-bench-") as folder:
        spent.clear()
        began = time.process_time()
        for task in tasks:
            write_task(task, reading, FileOptions(folder, COLUMNS, codec=codec))
        return time.process_time() - began, Counter(spent)


def main() -> None:
    """Print microseconds of CPU a record, by part, and the peak of memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="100B-none", choices=list(WORKLOADS))
    parser.add_argument("--records", type=int, help="other than the workload has")
    parser.add_argument(
        "--codec", default="zstd", choices=[codec.value for codec in Codec], help="of the files"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    workload = WORKLOADS[arguments.workload].of(arguments.records)
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, timed(part, getattr(owner, name)))
    with EmbeddedCluster() as cluster, filled(cluster, workload):
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
        tasks, codec = tasks_of(cluster, workload), Codec(arguments.codec)
        warm = [once(tasks, reading, codec) for _ in range(_COLD + arguments.rounds)][_COLD:]
    print(
        f"{workload.name}, {workload.records:,} records, files in {codec.value}; medians of "
        f"{len(warm)}"
    )
    for part in PARTS:
        print(
            f"{part:>22} "
            f"{statistics.median(parts[part] for _, parts in warm) * 1e6 / workload.records:7.4f} "
            f"us of CPU a record"
        )
    whole = statistics.median(cpu for cpu, _ in warm)
    per_gb = whole * 1e9 / (workload.records * workload.size)
    print(
        f"{'all':>22} {whole * 1e6 / workload.records:7.4f}; {per_gb:.2f} s of CPU per GB; "
        f"peak {peak_mb():.0f} MB"
    )


if __name__ == "__main__":
    main()
