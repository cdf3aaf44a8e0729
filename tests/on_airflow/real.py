"""An embedded cluster in its own process and a conf, for DAGs that start real Spark."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONF = """
pipeline: clicks
group: on-airflow
zookeeper: {{connect: "{zookeeper}"}}
source: {{topics: [clicks], request_timeout_s: 20, starting_offsets: {start}}}
limits: {{max_records_per_plan: {max_records_per_plan}}}
table: {{path: "{folder}/table"}}
ledger: {{lock_timeout_s: {lock_timeout_s}}}
report: {{path: "{folder}/reports"}}
"""
PARTITIONS = 4


@dataclass
class Real:
    """A pipeline `clicks` on a topic of that name."""

    folder: Path
    process: subprocess.Popen[str]
    cluster: dict[str, Any]

    def ask(self, do: str, **more: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps({"do": do, **more}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    @property
    def conf(self) -> Path:
        return self.folder / "clicks.yaml"

    def etl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command, in the environment with Spark."""
        return subprocess.run(
            [python(), "-m", "etl", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def rows(self) -> list[list[Any]]:
        found: list[list[Any]] = self.ask("rows", table=str(self.folder / "table"))
        return found

    def records(self) -> list[list[Any]]:
        found: list[list[Any]] = self.ask("records", name="clicks")
        return found

    @property
    def environment(self) -> dict[str, str]:
        spark = {
            **self.cluster["spark"],
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        }  # number of VACUUM's listing tasks: 10,000 by default
        return {"ETL_REAL_CONF": str(self.conf), "ETL_REAL_SUBMIT": json.dumps({"conf": spark})}


def python() -> str:
    """The interpreter of the environment with Spark, named by who made Airflow's."""
    return os.environ["ETL_REAL_PYTHON"]


@contextmanager
def real_pipeline(
    folder: Path,
    lock_timeout_s: int = 5,
    *,
    start: str = "earliest",
    max_records_per_plan: int | None = None,
) -> Iterator[Real]:
    """The cluster, the topic and the conf."""
    with (folder / "broker.log").open("w") as log:
        process = subprocess.Popen(
            [python(), "-m", "tests.on_airflow.broker", str(folder / "cluster")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )  # Ctrl-C is for who started it, which then lets it end
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line, (folder / "broker.log").read_text()
        real = Real(folder, process, json.loads(line))
        real.conf.write_text(
            CONF.format(
                zookeeper=real.cluster["zookeeper"],
                folder=folder,
                lock_timeout_s=lock_timeout_s,
                start=start,
                max_records_per_plan=max_records_per_plan or "null",
            )
        )
        real.ask("topic", name="clicks", partitions=PARTITIONS)
        yield real
    finally:
        process.communicate(timeout=60)
