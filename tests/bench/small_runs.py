"""`make bench-parts`: what a run of 10,000 new records takes, from the start of its process to its exit, beside a bare Spark process.

    PYTHONPATH=. python tests/bench/small_runs.py [--rounds N]

In turn, each a cold process of its own: a program that does nothing but append 10,000 ready rows (a Parquet file with the columns of the
raw table) to a Delta table by Spark; `etl run` by Spark's writer, by files that Spark's tasks write, and by files without Spark; and
`etl run` where nothing is new. All on the same machine as the one broker and ZooKeeper; what is read is in the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaProducer
from pyarrow import parquet

from etl.embedded.cluster import Cluster
from etl.embedded.jars import delta_jars
from etl.embedded.spark import set_spark_environment

RECORDS, PARTITIONS = 10_000, 4
BARE, NOTHING = "a bare Spark process", "etl run, nothing new"
RUNS: dict[str, dict[str, Any]] = {
    "etl run, spark": {"table": {"writer": "spark"}},
    "etl run, arrow": {"table": {"writer": "arrow"}},
    "etl run, without Spark": {"table": {"writer": "arrow"}, "limits": {"without_spark_below_bytes": 64 << 20}},
}


def append_bare(rows: str, table: str) -> None:
    """What a bare process does, with Spark's own settings but for Delta's jars."""
    from pyspark.sql import SparkSession

    set_spark_environment()
    builder = SparkSession.builder.master("local[*]")
    settings = {
        "spark.jars": ",".join(map(str, delta_jars())), "spark.ui.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.read.parquet(rows).write.format("delta").mode("append").save(table)
    spark.stop()


def conf_of(folder: Path, cluster: Cluster, name: str, more: dict[str, Any]) -> Path:
    """A pipeline of that name, with a group and a table of its own."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({
        "version": 1, "pipeline": name, "group": f"small-{name}", "zookeeper": {"connect": cluster.zookeeper_connect},
        "source": {"topics": {"allow": ["clicks"]}, "start": "earliest"}, "report": {"path": "reports"}, **more,
        "table": {**more.get("table", {}), "path": f"tables/{name}"}}))
    return path


def produce(cluster: Cluster, first: int) -> None:
    """So many records more, no two alike."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=cluster.bootstrap)) as producer:
        for n in range(first, first + RECORDS):
            user = n * 2_654_435_761 % 10**9
            content = b'{"user":%09d,"page":"/item/%08d","at":%d}' % (user, n, 1_700_000_000_000 + n)
            producer.send("clicks", content, partition=n % PARTITIONS)
        producer.flush()


def seconds(words: Sequence[str]) -> float:
    """How long that program takes, from its start to its end."""
    begun = time.monotonic()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=os.environ)
    return time.monotonic() - begun


def measured(rounds: int, *, cold: int = 1) -> Iterator[tuple[str, float]]:
    """(Kind, seconds) as they come; rounds before, `cold`, make tables, fill caches of the disk, and are left out."""
    for round_, kind, spent in _played(cold + rounds):
        if round_ >= cold:
            yield kind, spent


def _played(rounds: int) -> Iterator[tuple[int, str, float]]:
    with tempfile.TemporaryDirectory(prefix="etl-bench-") as temporary, Cluster() as cluster:
        folder = Path(temporary)
        cluster.create_topic("clicks", partitions=PARTITIONS)
        confs = {name: conf_of(folder, cluster, f"p{at}", more) for at, (name, more) in enumerate(RUNS.items())}
        for round_ in range(rounds):
            produce(cluster, round_ * RECORDS)
            for name, conf in confs.items():
                yield round_, name, seconds(["-m", "etl", "run", str(conf), "--quiet"])
            yield round_, NOTHING, seconds(["-m", "etl", "run", str(next(iter(confs.values()))), "--quiet"])
            if not round_:
                _keep_rows(folder / "tables" / "p0", folder / "rows.parquet")
            yield round_, BARE, seconds([__file__, "--bare", str(folder / "rows.parquet"), str(folder / "tables" / "bare")])


def main(rounds: int) -> None:
    """Print the medians, with their ratios to the bare process."""
    found: dict[str, list[float]] = {name: [] for name in (BARE, *RUNS, NOTHING)}
    for kind, spent in measured(rounds):
        found[kind].append(spent)
    print(f"{'':>26} {'median s':>9} {'of bare':>8}   each")
    bare = statistics.median(found[BARE])
    for name, warm in found.items():
        median, each = statistics.median(warm), " ".join(f"{one:.2f}" for one in warm)
        print(f"{name:>26} {median:>9.2f} {median / bare:>8.2f}   {each}")


def _keep_rows(table: Path, to: Path) -> None:
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_table()
    assert rows.num_rows == RECORDS
    parquet.write_table(rows, to, coerce_timestamps="us")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        append_bare(*sys.argv[2:4])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=3)
        main(parser.parse_args().rounds)
