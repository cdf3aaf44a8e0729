"""What the archive of Java classes saves a short Spark run: the same run with it and without it, in
turn.

    PYTHONPATH=. python bench/spark_start.py [pairs]

Each run is a process of its own: start Spark as a pipeline does, write a small Delta table, count
its rows, end. Seconds by the clock, and of processor time of the JVM, which what else the machine
does changes less. Run `python -m etl.testkit` first: it makes the archive.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from etl.testkit.class_archive import archive_options
from etl.testkit.spark_launch import set_spark_environment, spark_settings

PAIRS = 3
KINDS = ("with", "without")


def run_small(kind: str) -> None:
    """One short run. Prints its seconds: by the clock until the session is there, until the end,
    and the JVM's processor time.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    begun = time.monotonic()
    set_spark_environment()
    settings = spark_settings()
    if kind == "without":
        settings["spark.driver.extraJavaOptions"] = (
            settings["spark.driver.extraJavaOptions"].removeprefix(archive_options()).strip()
        )
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        table = str(Path(folder, "table"))
        spark.range(1000).write.format("delta").save(table)
        assert spark.read.format("delta").load(table).count() == 1000
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    ended = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{started - begun:.2f} {ended - begun:.2f} {used.ru_utime + used.ru_stime:.2f}")


def main(pairs: int) -> int:
    """Run the pairs and print a line for each run, then the medians."""
    if not archive_options():
        print("there is no archive yet: run `python -m etl.testkit`", file=sys.stderr)
        return 1
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    print(f"{'':>14} {'session s':>10} {'whole run s':>12} {'JVM CPU s':>10}")
    for _ in range(pairs):
        for kind in KINDS:
            ran = subprocess.run(
                [sys.executable, __file__, "--one", kind],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env=os.environ,
            )
            found[kind].append([float(s) for s in ran.stdout.split()])
            print(shown(kind, found[kind][-1]), flush=True)
    for kind in KINDS:
        print(
            shown(
                f"median {kind}",
                [sorted(column)[len(column) // 2] for column in zip(*found[kind], strict=True)],
            )
        )
    return 0


def shown(kind: str, seconds: list[float]) -> str:
    """One line of the table."""
    session, whole, used = seconds
    return f"{kind:>14} {session:>10.2f} {whole:>12.2f} {used:>10.2f}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_small(sys.argv[2])
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
