"""`make bench`: whole runs on a real Kafka into Delta, beside Spark's own Kafka source and Delta writer, and both reading into nothing.

    PYTHONPATH=. python tests/bench/against_spark.py [--records N] [--bytes N] [--compression none] [--codec zstd] [--rounds N]

In one process, in turns, a round of each after the other, on one warm session of two cores with Spark's own defaults for the JVM and for
queries; the first rounds are left out. All read the same records from one broker on the same machine, from its page cache:

- The records are JSON, no two alike, in two partitions. Their batches are those of librdkafka's producer.
- Spark's source has all eight columns (`includeHeaders`), and as many tasks as cores. It writes a Delta table with the Parquet codec that
  the files of `etl run` have, in one job, from the earliest to the latest offsets. Nothing of it saves offsets, or looks whether it did
  that before.
- Of a run of ours all is counted, from the command to its exit code: ZooKeeper, the plan, Delta's commit, the offsets, the report.

Spark's source is release 4.0.0 (of 4.2.0 one jar is not on Maven Central), with the kafka-clients that it asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from etl.edges.spark.session import build_session
from etl.embedded.cluster import Cluster
from etl.embedded.jars import Artifact, fetched
from etl.embedded.spark import jar_settings, set_spark_environment, spark_settings
from etl.reader.source import OffsetRanges
from tests.bench.jafka_run import cpu_seconds
from tests.said import said_by

TOPIC = "clicks"
SPARKS_SOURCE = [
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0", alone=True),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
]
_COLD = 1
"""Rounds of each that are left out."""


def content(number: int, size: int) -> bytes:
    """A click in JSON of so many bytes; no two numbers have the same."""
    mixed = number * 2_654_435_761 % 2**32
    head = b'{"user":%07d,"page":"/item/%06d","referrer":"/search?q=%08x","at":%d,"ms":%05d' % (
        mixed % 9_999_991, mixed // 7 % 999_983, mixed, 1_700_000_000_000 + number, mixed % 60_000)
    more = size - len(head) - len(b',"agent":""}')
    if more <= 0:
        return head + b"}"
    words = b" ".join(b"%08x" % (mixed * n * 40_503 % 2**32) for n in range(1, more // 9 + 2))
    return head + b',"agent":"' + words[:more] + b'"}'


def fill(cluster: Cluster, records: int, size: int, compression: str) -> None:
    """As many records in each partition, by librdkafka."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": compression, "linger.ms": 50, "batch.size": 1 << 20,
                         "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20})
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, content(number, size), partition=number % 2)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


@contextlib.contextmanager
def warm_session(folder: Path, codec: str) -> Iterator[SparkSession]:
    """Two cores, and the defaults that a cluster's driver and executors have."""
    set_spark_environment()
    jars = jar_settings("local[2]")
    besides = ":".join(map(str, fetched("spark-kafka-4.0.0", SPARKS_SOURCE)))
    session = build_session("bench", {
        **spark_settings("local[2]"), **jars, "spark.driver.extraClassPath": f"{jars['spark.driver.extraClassPath']}:{besides}",
        "spark.sql.warehouse.dir": str(folder), "spark.log.level": "ERROR", "spark.sql.parquet.compression.codec": codec})
    try:
        yield session
    finally:
        session.stop()


def run_once(cluster: Cluster, folder: Path, records: int, number: int, table: Mapping[str, str]) -> None:
    """A run of a group and a table of its own, which reads all records."""
    conf = folder / f"conf-{number}.yaml"
    conf.write_text(yaml.safe_dump({
        "version": 1, "pipeline": "bench", "group": f"bench-{number}", "zookeeper": {"connect": cluster.zookeeper_connect},
        "source": {"topics": {"allow": [TOPIC]}}, "table": {"path": str(folder / f"table-{number}"), **table},
        "report": {"path": str(folder / "reports")}}))
    said = said_by("run", str(conf), "--json")
    assert said.code == 0 and said.document["records"] == records, said.err + said.out


def kinds(cluster: Cluster, folder: Path, spark: SparkSession, records: int, codec: str) -> dict[str, Callable[[int], Any]]:
    """What is timed, by its name; each is given a number of its own."""
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", TOPIC)
    theirs = theirs.option("includeHeaders", "true").option("startingOffsets", "earliest")
    spark.dataSource.register(OffsetRanges)
    ours = spark.read.format("offset_ranges").option("bootstrap", cluster.bootstrap).option("topics", TOPIC)
    return {
        "Spark's source -> Delta": lambda n: theirs.load().write.format("delta").save(str(folder / f"table-{n}")),
        "etl run, arrow": lambda n: run_once(cluster, folder, records, n, {"writer": "arrow", "codec": codec}),
        "etl run, spark": lambda n: run_once(cluster, folder, records, n, {"writer": "spark", "codec": codec}),
        "Spark's source -> noop": lambda n: theirs.load().write.format("noop").mode("overwrite").save(),
        "the reader alone -> noop": lambda n: ours.load().write.format("noop").mode("overwrite").save(),
    }


def main() -> None:
    """Print millions of records a second of each, and the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--compression", default="none", choices=["none", "lz4", "zstd"], help="of the topic's record batches")
    parser.add_argument("--codec", default="zstd", choices=["uncompressed", "snappy", "lz4", "zstd"], help="of all tables' files")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="etl-bench-") as name, Cluster() as cluster:
        folder, numbers = Path(name), itertools.count()
        cluster.create_topic(TOPIC, partitions=2)
        fill(cluster, asked.records, asked.bytes, asked.compression)
        with warm_session(folder / "spark", asked.codec) as spark:
            timed = kinds(cluster, folder, spark, asked.records, asked.codec)
            spent: dict[str, list[tuple[float, float]]] = {kind: [] for kind in timed}
            for _, (kind, once) in itertools.product(range(_COLD + asked.rounds), timed.items()):
                number, began, used = next(numbers), time.monotonic(), cpu_seconds()
                once(number)
                spent[kind].append((time.monotonic() - began, cpu_seconds() - used))
                shutil.rmtree(folder / f"table-{number}", ignore_errors=True)  # or the records leave the page cache
    of = f"{asked.records:,} records of {asked.bytes} bytes, compression {asked.compression}"
    print(f"{of}, tables in {asked.codec}; medians of {asked.rounds}")
    seconds = {kind: statistics.median(one[0] for one in some[_COLD:]) for kind, some in spent.items()}
    for kind, some in spent.items():
        cpu = statistics.median(one[1] for one in some[_COLD:])
        peer = seconds["Spark's source -> noop" if "noop" in kind else "Spark's source -> Delta"]
        print(f"{kind:>26} {asked.records / 1e6 / seconds[kind]:6.2f} M records/s, {peer / seconds[kind]:5.2f} x Spark's, "
              f"{cpu * 1e9 / (asked.records * asked.bytes):6.1f} s of CPU per GB")


if __name__ == "__main__":
    main()
