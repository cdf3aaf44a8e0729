"""`python -m tests.bench.killed_backfill [--records 5000000] [--kills 10]`: a large backfill,
killed at random moments.

Real ZooKeeper, Kafka, Spark and Delta on this machine. Each kill is a SIGKILL for the command with
its JVM and its workers. It fails if a row is missing or double, or if a plan was fetched again
without a kill that hit it; the reports have the number of fetches.
"""

from __future__ import annotations

import argparse
import tempfile
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


def main() -> None:
    """Play it and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--max-records-seconds", type=float, default=20.0, help="of a run before it is killed"
    )
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="etl-backfill-") as name,
        EmbeddedCluster(folder=Path(name, "cluster")) as cluster,
    ):
        pipeline = Pipeline(cluster, Path(name), TOPIC, "group")
        pipeline.traffic.create_topic(cluster, TOPIC, PARTITIONS, replication_factor=1, config=None)
        with small_session(Path(name, "warehouse")):
            fill(cluster, arguments.records)
            begun_late(pipeline, arguments.records, is_there=True)
        began = time.monotonic()
        found, last = killed_at_random(
            pipeline, arguments.records, arguments.kills, most_s=arguments.most_seconds
        )
        seconds = time.monotonic() - began
        rows = DeltaTable(str(pipeline.table)).to_pyarrow_table(columns=["partition", "offset"])
        places = pyarrow.compute.count_distinct(
            pyarrow.compute.add(
                pyarrow.compute.multiply(rows["partition"].cast("int64"), arguments.records),
                rows["offset"],
            )
        ).as_py()
        print(
            f"{arguments.records:,} records, {rows.num_rows:,} rows, {places:,} of them "
            f"different; {dict(found)}; "
            f"{seconds:.0f} s with all starts; the last: {last}"
        )
        if not rows.num_rows == places == arguments.records:
            raise SystemExit("rows are missing or double")


if __name__ == "__main__":
    main()
