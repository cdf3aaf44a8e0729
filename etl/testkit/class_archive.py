"""How is the archive of Java classes made that halves Spark's start? (JEP 350)

A JVM spends most of a small run loading and verifying some 20,000 classes of Spark and Delta; the
archive holds them ready for memory mapping. It is made once per Java and installed pyspark, by a
small run of everything that a pipeline does, into the cache. A JVM that it does not fit ignores it.
Measured in docs/adr/0015.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etl.testkit.java_and_jars import (
    DELTA_VERSION,
    alone,
    cache_folder,
    delta_jars,
    java_home,
    set_java_home,
    spark_home,
    writing_cache,
)

_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""Keeps a JVM's messages about an archive off standard output, where `--json` prints."""
_MADE_WITHIN_S = 300


def archive_options() -> str:
    """Options for a JVM on the class path of `spark_class_path`, empty where there is no archive
    yet.
    """
    archive = _place()
    return f"-XX:SharedArchiveFile={archive} {_SILENT}" if archive.exists() else ""


def spark_class_path() -> str:
    """Delta's jars, to stand in front of Spark's own: an archive fits this order only."""
    return os.pathsep.join(map(str, delta_jars()))


def make_archive() -> Path | None:
    """Make the archive where it is missing, in about half a minute; None when this Java does not
    make one.
    """
    archive = _place()
    with writing_cache():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with alone(archive.with_suffix(".lock")):
            if not archive.exists():
                for stale in archive.parent.glob(f"{_installation()}*.jsa"):
                    stale.unlink()
                _make(archive)
    return archive if archive.exists() else None


def _place() -> Path:
    return cache_folder() / "classes" / f"{_installation()}-{_digest(_jars())}.jsa"


def _installation() -> str:
    """Return the first part of the name of all archives for this Java and this path of pyspark."""
    return "spark-" + _digest(f"{java_home()} {_java_release()} {spark_home()} {DELTA_VERSION}")


def _jars() -> str:
    """Describe the jars of the class path as a JVM compares them with its archive's: their order,
    sizes and times. A new installation at the same path has others.
    """
    described = []
    with os.scandir(spark_home() / "jars") as entries:
        for jar in [*delta_jars(), *map(Path, entries)]:
            status = jar.stat()
            described.append(f"{jar.name} {status.st_size} {status.st_mtime_ns}")
    return " ".join(described)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _java_release() -> str:
    """Return the exact Java release: an archive fits one build only."""
    release = java_home() / "release"
    return release.read_text() if release.exists() else ""


def _make(archive: Path) -> None:
    log = archive.with_suffix(".log")
    with (
        tempfile.TemporaryDirectory(prefix="partial-", dir=archive.parent) as partial,
        log.open("wb") as out,
    ):
        made = Path(partial, archive.name)
        command = [sys.executable, "-m", "etl.testkit.class_archive", str(made), partial]
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=_MADE_WITHIN_S,
            check=False,
        )
        if made.exists():
            made.rename(archive)


def _run_small(archive: str, folder: str) -> None:
    """Run a small pipeline with Spark in a JVM that records its classes."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    set_java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraClassPath": spark_class_path(),
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}",
    }
    builder = SparkSession.builder
    for key, value in options.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    table = str(Path(folder, "table"))
    for number in (1, 2):
        rows = _few_rows(spark).withColumn("day", f.expr("date_from_unix_date(0)"))
        writer = (
            rows.write.format("delta")
            .mode("append")
            .partitionBy("day")
            .option("txnAppId", "archive")
            .option("txnVersion", number)
        )
        writer.option("userMetadata", "{}").save(table)
    counted = (
        spark.read.format("delta")
        .load(table)
        .groupBy("n")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.bitmap_construct_agg(f.bitmap_bit_position(f.col("n"))).alias("bitmap"),
        )
    )
    list(counted.orderBy("n").toLocalIterator())
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it, and writes the archive
    gateway.proc.wait(_MADE_WITHIN_S)


def _few_rows(spark: Any) -> Any:
    """Rows as a run reads them: Python workers make them of bytes that the driver has, a Spark
    partition for each.
    """
    import pyarrow
    from pyspark.sql import DataFrame

    def make(given: Iterator[Any]) -> Iterator[Any]:
        for _ in given:
            yield pyarrow.RecordBatch.from_pydict(
                {"n": pyarrow.array(range(100), pyarrow.int64()), "value": [b"x"] * 100}
            )

    pickled = spark.sparkContext.parallelize([1, 2], 2)._jrdd
    binary = spark._jvm.org.apache.spark.sql.Encoders.BINARY()
    return DataFrame(
        spark._jsparkSession.createDataset(pickled.rdd(), binary).toDF(), spark
    ).mapInArrow(make, "n bigint, value binary")


if __name__ == "__main__":
    _run_small(*sys.argv[1:])
