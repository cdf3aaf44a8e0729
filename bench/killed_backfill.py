"""`python -m bench.killed_backfill [--records 5000000] [--kills 10] [--runs-every 10]`: a large
backfill, killed at random moments, while scheduled runs go on.

Real ZooKeeper, Kafka, Spark and Delta on this machine. Each kill is a SIGKILL for the command with
its JVM and its workers. With `--runs-every`, records are produced and a run starts every so many
seconds, and each of them must end with exit 0. It fails if a row is missing or double, or if a plan
was fetched again without a kill that hit it; the reports have the number of fetches.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import pyarrow.compute
from deltalake import DeltaTable

from etl.demo.story import click_batches
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.settings.choices import split_address
from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.cases_backfill import PARTITIONS, begun_late, killed_at_random
from tests.conftest import small_session
from tests.system.driving import Pipeline
from tests.traffic.modern import took

TOPIC = "clicks"


def fill(cluster: EmbeddedCluster, records: int) -> None:
    """Click events, as many in each partition."""
    host, port = split_address(cluster.bootstrap)
    with SimpleConsumer(host, port) as broker:
        for partition, batch in click_batches(
            0, records, partitions=PARTITIONS, began_ms=1_700_000_000_000
        ):
            assert took(broker, TOPIC, partition, batch)


class ScheduledRuns:
    """Scheduled runs of the pipeline in processes of their own, while the context is open."""

    def __init__(self, pipeline: Pipeline, every_s: float) -> None:
        self._pipeline, self._every_s = pipeline, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run_all)
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def once(self) -> float:
        """Produce some records and run; return the seconds of the run."""
        self._pipeline.produce(40)
        began = time.monotonic()
        process = self._pipeline.start("etl", "run", str(self._pipeline.conf), "--json")
        _, err = process.communicate(timeout=600)
        if process.returncode:
            self.failed.append(f"exit {process.returncode}: {err}")
        return time.monotonic() - began

    def __enter__(self) -> ScheduledRuns:
        if self._every_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._every_s:
            self._thread.join()

    def _run_all(self) -> None:
        while not self._is_over.is_set():
            took_s = self.once()
            self.seconds.append(took_s)
            self._is_over.wait(max(0.0, self._every_s - took_s))


def main() -> None:
    """Play it and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--most-seconds", type=float, default=20.0, help="of a backfill before it is killed"
    )
    parser.add_argument("--plans", type=int, default=10, help="plans of the backfill")
    parser.add_argument("--runs-every", type=float, default=0.0, help="seconds; 0: no runs")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="etl-backfill-") as name,
        EmbeddedCluster(folder=Path(name, "cluster")) as cluster,
    ):
        pipeline = Pipeline(cluster, Path(name), TOPIC, "group")
        pipeline.traffic.create_topic(cluster, TOPIC, PARTITIONS, replication_factor=1, config=None)
        with small_session(Path(name, "warehouse")):
            fill(cluster, arguments.records)
            begun_late(pipeline, arguments.records, plans=arguments.plans, is_there=True)
        # Between tests a lock is not waited for; here a backfill begins while a run may be at work.
        pipeline.settings["ledger"] = {"lock_timeout_s": 60}
        runs = ScheduledRuns(pipeline, arguments.runs_every)
        alone = [runs.once() for _ in range(3)] if arguments.runs_every else []
        began = time.monotonic()
        with runs:
            found, last = killed_at_random(
                pipeline, arguments.records, arguments.kills, most_s=arguments.most_seconds
            )
        seconds = time.monotonic() - began
        del pipeline.settings["limits"]
        pipeline.ran()
        rows = DeltaTable(str(pipeline.table)).to_pyarrow_table(columns=["partition", "offset"])
        places = pyarrow.compute.count_distinct(
            pyarrow.compute.add(
                pyarrow.compute.multiply(rows["partition"].cast("int64"), 2 * arguments.records),
                rows["offset"],
            )
        ).as_py()
        print(
            f"{arguments.records:,} records, {rows.num_rows:,} rows, {places:,} of them "
            f"different; {dict(found)}; "
            f"{seconds:.0f} s with all starts; the last: {last}"
        )
        if runs.seconds:
            print(
                f"{len(runs.seconds)} runs at the same time, {len(runs.failed)} failed: "
                f"{min(runs.seconds):.1f} to {max(runs.seconds):.1f} s; alone "
                f"{min(alone):.1f} to {max(alone):.1f} s"
            )
        if not rows.num_rows == places == arguments.records + pipeline.produced:
            raise SystemExit("rows are missing or double")
        if runs.failed:
            raise SystemExit("\n".join(runs.failed))


if __name__ == "__main__":
    main()
