"""One Spark session and its jobs: runs of ours, and Spark's own source and writer, all with the
same settings.

    python -m bench.whole.session BOOTSTRAP ZOOKEEPER FOLDER MASTER CODEC FETCHES

- Spark's defaults for the JVM and for queries; the additional settings of a pipeline's session
  (docs/SETTINGS.md) apply to all.
- Spark's source has all eight columns (`includeHeaders`), and a task for each partition, as many
  as cores. Its fetches are as large as ours (FETCHES: `large`), or its own (`default`), and a
  query's consumers end soon after it. It writes a Delta table with the codec and level of our
  files. It neither saves offsets nor checks saved ones.
- The time of a run of ours is all of it: from the command to its exit code; and separately from
  the stored plan to the table's commit.

Spark's source is release 4.0.0 (of 4.2.0 one jar is not on Maven Central), with the kafka-clients
that it depends on.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession

from bench.whole.child import serve
from bench.whole.tables import Clock, written
from bench.whole.workloads import PARTITIONS
from etl.io.spark.session import build_session
from etl.reader.source import OffsetRanges
from etl.settings.choices import FETCH_MAX_BYTES
from etl.testkit.java_and_jars import Artifact, fetched
from etl.testkit.spark_launch import jar_settings, set_spark_environment, spark_settings
from tests.command_result import run_etl

SPARKS_SOURCE = [
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0", alone=True),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
]
LARGE_FETCHES = {
    "kafka.max.partition.fetch.bytes": str(FETCH_MAX_BYTES),
    "kafka.max.poll.records": "5000",
}
_ALL_OF_IT = 1 << 50
NO_OLD_CONSUMERS = {
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
}
"""Spark keeps each query's consumers, with what they have fetched ahead, for five minutes, in which
none can use them: a query has a group of its own. Job after job in one session they take up its
heap, and the work of all that comes later is the collector's."""
RUNS: Mapping[str, Mapping[str, Any]] = {
    "arrow": {"table": {"writer": "arrow"}},
    "dataframe": {"table": {"writer": "spark"}},
    "without-spark": {
        "table": {"writer": "arrow"},
        "limits": {"local_below_bytes": _ALL_OF_IT},
    },
}
"""The conf of each kind of run."""


def started(folder: Path, master: str, codec: str) -> SparkSession:
    """A session that has Spark's source, and Spark's own defaults for the JVM and for queries."""
    set_spark_environment()
    jars = jar_settings(master)
    besides = ":".join(map(str, fetched("spark-kafka-4.0.0", SPARKS_SOURCE)))
    return build_session(
        "bench",
        {
            **spark_settings(master),
            **jars,
            **NO_OLD_CONSUMERS,
            "spark.driver.extraClassPath": f"{jars['spark.driver.extraClassPath']}:{besides}",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.log.level": "ERROR",
            "spark.sql.parquet.compression.codec": codec,
            "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        },
    )


class Session:
    """Runs one job after the other; each table is a new one, and deleted after it, so that the
    records stay in the page cache.
    """

    def __init__(
        self, bootstrap: str, zookeeper: str, folder: str, master: str, codec: str, fetches: str
    ) -> None:
        self._bootstrap, self._zookeeper, self._folder, self._codec = (
            bootstrap,
            zookeeper,
            Path(folder),
            codec,
        )
        self._spark = started(self._folder, master, codec)
        self._spark.dataSource.register(OffsetRanges)
        self._fetches = LARGE_FETCHES if fetches == "large" else {}
        self._numbers = 0
        self._kinds: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "spark-delta": self._sparks_delta,
            "spark-noop": lambda job: self._noop(self._sparks(job)),
            "reader": lambda job: self._noop(self._ours(job)),
            **dict.fromkeys(RUNS, self._run),
        }

    def do(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """`kind`, `topic`, and `records` of the topic's `total`."""
        self._numbers += 1
        try:
            return self._kinds[job["kind"]](job)
        finally:
            shutil.rmtree(self._table, ignore_errors=True)

    @property
    def _table(self) -> Path:
        return self._folder / f"table-{self._numbers}"

    def _sparks(self, job: Mapping[str, Any]) -> DataFrame:
        source = (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", job["topic"])
        )
        source = source.options(includeHeaders="true", startingOffsets="earliest", **self._fetches)
        return self._bounded(source, job)

    def _ours(self, job: Mapping[str, Any]) -> DataFrame:
        source = (
            self._spark.read.format("offset_ranges")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", job["topic"])
        )
        return self._bounded(source, job)

    def _bounded(self, source: Any, job: Mapping[str, Any]) -> DataFrame:
        if job["records"] < job["total"]:
            ends = {
                job["topic"]: {str(at): job["records"] // PARTITIONS for at in range(PARTITIONS)}
            }
            source = source.option("endingOffsets", json.dumps(ends))
        found: DataFrame = source.load()
        return found

    def _noop(self, frame: DataFrame) -> Mapping[str, Any]:
        clock = Clock()
        frame.write.format("noop").mode("overwrite").save()
        return {"seconds": clock.seconds}

    def _sparks_delta(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        clock = Clock()
        self._sparks(job).write.format("delta").save(str(self._table))
        return {"seconds": clock.seconds, **self._figures(job, clock.began_at)}

    def _run(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        number, more = self._numbers, RUNS[job["kind"]]
        name, conf = f"bench-{self._folder.name}-{number}", self._folder / f"conf-{number}.yaml"
        limits = {"max_records_per_plan": job["records"]} if job["records"] < job["total"] else {}
        conf.write_text(
            yaml.safe_dump(
                {
                    "pipeline": name,
                    "group": name,
                    "zookeeper": {"connect": self._zookeeper},
                    "source": {"topics": [job["topic"]]},
                    "limits": {**limits, **more.get("limits", {})},
                    "table": {
                        "path": str(self._table),
                        "compression": self._codec,
                        **more["table"],
                    },
                    "report": {"path": str(self._folder / "reports")},
                }
            )
        )
        clock = Clock()
        result = run_etl("run", str(conf), "--json")
        seconds = clock.seconds
        if result.code or result.document["records_read"] != job["records"]:
            raise ValueError(result.err + result.out)
        return {
            "seconds": seconds,
            "verbs": result.document["seconds"],
            **self._figures(job, self._stored_at(name)),
        }

    def _figures(self, job: Mapping[str, Any], began_at: float) -> Mapping[str, Any]:
        found = dict(written(self._table, job["records"]))
        return {"to_commit": found.pop("committed_at") - began_at, **found}

    def _stored_at(self, name: str) -> float:
        """The time at which the run's plan was stored, in seconds since 1970, by its znode."""
        client = KazooClient(self._zookeeper)
        client.start()
        try:
            plans = f"/consumers/{name}/etl/{name}/plans"
            _, stat = client.get(f"{plans}/{min(client.get_children(plans))}")
            return float(stat.ctime) / 1000
        finally:
            client.stop()
            client.close()


if __name__ == "__main__":
    serve(Session(*sys.argv[1:]).do)
