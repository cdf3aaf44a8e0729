"""`make bench-parts`: the time of a run of 10,000 new records, from the start of its process to its
exit, compared with a minimal Spark process.

    PYTHONPATH=. python bench/small_runs.py [--rounds N]

In turn, each a cold process: a program that only appends 10,000 ready rows (a Parquet file with the
columns of the raw table) to a Delta table by Spark; `etl run` by Spark's writer, by files that
Spark's tasks write, and by files without Spark; and `etl run` without new records. All on the same
machine as the one broker and ZooKeeper; the records are in the page cache. In addition to the
elapsed time the processor seconds of all started processes are printed: other work on the machine
disturbs them less.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from kafka import KafkaProducer
from pyarrow import parquet

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import delta_jars
from etl.testkit.spark_launch import set_spark_environment

_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux."""
RECORDS, PARTITIONS = 10_000, 4
BARE, NOTHING = "a bare Spark process", "etl run, nothing new"
RUNS: dict[str, dict[str, Any]] = {
    "etl run, spark": {"table": {"writer": "spark"}},
    "etl run, arrow": {"table": {"writer": "arrow"}},
    "etl run, without Spark": {
        "table": {"writer": "arrow"},
        "limits": {"local_below_bytes": 64 << 20},
    },
}


def append_bare(rows: str, table: str) -> None:
    """What a bare process does, with Spark's own settings but for Delta's jars."""
    from pyspark.sql import SparkSession

    set_spark_environment()
    builder = SparkSession.builder.master("local[*]")
    settings = {
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.ui.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.read.parquet(rows).write.format("delta").mode("append").save(table)
    spark.stop()


def conf_of(folder: Path, cluster: EmbeddedCluster, name: str, more: dict[str, Any]) -> Path:
    """A pipeline of that name, with a group and a table of its own."""
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "pipeline": name,
                "group": f"small-{name}",
                "zookeeper": {"connect": cluster.zookeeper_connect},
                "source": {"topics": ["clicks"], "starting_offsets": "earliest"},
                "report": {"path": "reports"},
                **more,
                "table": {**more.get("table", {}), "path": f"tables/{name}"},
            }
        )
    )
    return path


def produce(cluster: EmbeddedCluster, first: int) -> None:
    """So many records more, no two alike."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=cluster.bootstrap)) as producer:
        for n in range(first, first + RECORDS):
            user = n * 2_654_435_761 % 10**9
            content = b'{"user":%09d,"page":"/item/%08d","at":%d}' % (
                user,
                n,
                1_700_000_000_000 + n,
            )
            producer.send("clicks", content, partition=n % PARTITIONS)
        producer.flush()


class Took(NamedTuple):
    """What a program took, in seconds."""

    clock: float
    processor: float


def took(words: Sequence[str]) -> Took:
    """What that program takes, from its start to its end, with all processes that it started and
    left.
    """
    counted = [sys.executable, __file__, "--count", sys.executable, *words]
    return Took(
        *json.loads(
            subprocess.run(counted, stdout=subprocess.PIPE, check=True, env=os.environ).stdout
        )
    )


def count(words: Sequence[str]) -> None:
    """Run it, and print `took`. Orphaned processes (Spark's JVM) become children of this one, which
    waits for them.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    clock = time.monotonic() - begun
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps([clock, used.ru_utime + used.ru_stime]))


def measured(rounds: int, *, cold: int = 1) -> Iterator[tuple[str, float]]:
    """(Kind, seconds by the clock) as they come; rounds before, `cold`, make tables, fill caches of
    the disk, and are left out.
    """
    return ((kind, spent.clock) for round_, kind, spent in _played(cold + rounds) if round_ >= cold)


def _played(rounds: int) -> Iterator[tuple[int, str, Took]]:
    with (
        tempfile.TemporaryDirectory(prefix="etl-bench-") as temporary,
        EmbeddedCluster() as cluster,
    ):
        folder = Path(temporary)
        cluster.create_topic("clicks", partitions=PARTITIONS)
        confs = {
            name: conf_of(folder, cluster, f"p{at}", more)
            for at, (name, more) in enumerate(RUNS.items())
        }
        for round_ in range(rounds):
            produce(cluster, round_ * RECORDS)
            for name, conf in confs.items():
                yield round_, name, took(["-m", "etl", "run", str(conf), "--quiet"])
            yield (
                round_,
                NOTHING,
                took(["-m", "etl", "run", str(next(iter(confs.values()))), "--quiet"]),
            )
            if not round_:
                _keep_rows(folder / "tables" / "p0", folder / "rows.parquet")
            yield (
                round_,
                BARE,
                took(
                    [
                        __file__,
                        "--bare",
                        str(folder / "rows.parquet"),
                        str(folder / "tables" / "bare"),
                    ]
                ),
            )


def main(rounds: int) -> None:
    """Print the medians, with their ratios to the bare process."""
    found: dict[str, list[Took]] = {name: [] for name in (BARE, *RUNS, NOTHING)}
    for round_, kind, spent in _played(1 + rounds):
        if round_:
            found[kind].append(spent)
    print(
        f"{'':>26} {'median s':>9} {'of bare':>8} {'processor s':>12} {'of bare':>8}   each "
        f"by the clock, and the processor"
    )
    bare = _medians(found[BARE])
    for name, each in found.items():
        clock, processor = _medians(each)
        shown = " ".join(f"{one.clock:.2f} {one.processor:.2f}," for one in each)
        print(
            f"{name:>26} {clock:>9.2f} {clock / bare.clock:>8.2f} {processor:>12.2f} "
            f"{processor / bare.processor:>8.2f}   {shown}"
        )


def _medians(each: Sequence[Took]) -> Took:
    return Took(*(statistics.median(of) for of in zip(*each, strict=True)))


def _keep_rows(table: Path, to: Path) -> None:
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_table()
    assert rows.num_rows == RECORDS
    parquet.write_table(rows, to, coerce_timestamps="us")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        append_bare(*sys.argv[2:4])
    elif sys.argv[1:2] == ["--count"]:
        count(sys.argv[2:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=3)
        main(parser.parse_args().rounds)
