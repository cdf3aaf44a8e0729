"""`make bench`: whole runs on a real Jafka, from plan to committed offsets, beside Jafka's own consumer that reads into nothing.

Both read the same messages of 100 bytes from one broker, in turns, warm: the consumer from its second round on, in a JVM that goes on; the
runs in a Spark session that has made one before. Counted of a run are the seconds of its verbs, of the consumer those from its first
message to its last.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.edges.spark.session import build_session
from etl.embedded.cluster import Cluster
from etl.embedded.java import find_java
from etl.embedded.releases import JAFKA, release_jars
from etl.embedded.spark import jar_settings, set_spark_environment, spark_settings
from tests.said import said_by

TOPIC = "clicks"
SOURCE = Path(__file__).with_name("java") / "JafkaReader.java"
_SET = 5_000
"""Messages that are sent at a time."""


def fill(cluster: Cluster, messages: int, partitions: int) -> None:
    """Messages of 100 bytes, as many in each partition."""
    payload = b"x" * 100
    message = struct.pack(">ibbI", 6 + len(payload), 1, 0, zlib.crc32(payload)) + payload
    with SimpleConsumer("127.0.0.1", cluster.brokers[0].port, generation="jafka") as broker:
        for number in range(messages // _SET):
            broker.produce(TOPIC, number % partitions, message * _SET)


def read_by_jafka(cluster: Cluster, folder: Path, messages: int, partitions: int, rounds: int) -> list[float]:
    """The seconds of each round of Jafka's own consumer, the first, cold one left out."""
    java, jars = find_java(), ":".join(map(str, release_jars(JAFKA)))
    subprocess.run([str(java.with_name("javac")), "-cp", jars, "-d", str(folder), str(SOURCE)], check=True)
    words = [cluster.zookeeper_connect, TOPIC, partitions, messages, rounds + 1]
    done = subprocess.run([str(java), "-Xmx2g", "-cp", f"{folder}:{jars}", "JafkaReader", *map(str, words)],
                          check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.splitlines()[-rounds:]]


@contextlib.contextmanager
def warm_session(folder: Path) -> Iterator[None]:
    """Spark on two cores with its own defaults for the JVM and for queries: what a cluster's driver and executors have."""
    set_spark_environment()
    session = build_session("bench", {
        **spark_settings("local[2]"), **jar_settings("local[2]"), "spark.sql.warehouse.dir": str(folder), "spark.log.level": "ERROR"})
    try:
        yield
    finally:
        session.stop()


def read_by_runs(cluster: Cluster, folder: Path, messages: int, rounds: int) -> list[float]:
    """The seconds of each run, of a group and a table of its own; the first, cold one left out."""
    seconds = []
    for number in range(rounds + 1):
        conf = folder / f"conf-{number}.yaml"
        conf.write_text(yaml.safe_dump({
            "version": 1, "pipeline": "bench", "group": f"bench-{number}", "cluster": "old",
            "zookeeper": {"connect": cluster.zookeeper_connect},
            "source": {"dialect": "jafka", "topics": {"allow": [TOPIC]}}, "table": {"path": str(folder / f"table-{number}")},
            "report": {"path": str(folder / "reports")}}))
        said = said_by("run", str(conf), "--json")
        assert said.code == 0 and said.document["records"] == messages, said.err + said.out
        seconds.append(sum(said.document["seconds"].values()))
    return seconds[1:]


def main() -> None:
    """Print millions of messages a second of both, and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Cluster(version=JAFKA, chroot="/old", folder=Path(name, "cluster")) as cluster:
        cluster.create_topic(TOPIC, asked.partitions)
        fill(cluster, asked.messages, asked.partitions)
        theirs = read_by_jafka(cluster, Path(name), asked.messages, asked.partitions, asked.rounds)
        with warm_session(Path(name, "spark")):
            ours = read_by_runs(cluster, Path(name), asked.messages, asked.rounds)
        theirs += read_by_jafka(cluster, Path(name), asked.messages, asked.partitions, asked.rounds)
    print(f"{asked.messages:,} messages of 100 bytes in {asked.partitions} partitions of one Jafka, medians")
    speeds = [asked.messages / statistics.median(seconds) / 1e6 for seconds in (ours, theirs)]
    print(f"etl run, into Delta               {speeds[0]:6.2f} M messages/s")
    print(f"Jafka's consumer, into nothing    {speeds[1]:6.2f} M messages/s")
    print(f"ratio                             {speeds[0] / speeds[1]:6.2f}")


if __name__ == "__main__":
    main()
