"""`make bench`: whole runs on a real Jafka, from plan to committed offsets, beside Jafka's own consumer that reads into nothing.

Both read the same messages from one broker, in turns, a round of one and a round of the other, while the other's process stands by:

- The messages are 100 bytes of JSON, no two alike, so that neither Parquet nor a cache makes one of many. They are in the page cache.
- Both are warm: the consumer's JVM goes on from round to round, and so does the Spark session that the runs find. The first rounds of both
  are left out.
- Counted of a run is all of it, from the command to its exit code: ZooKeeper, the plan, fetching, decoding, the files, Delta's commit, the
  offsets, the report.
- Counted of the consumer are the seconds from its first message to its last. Finding brokers, and sharing partitions out in ZooKeeper, is
  left out there: the ratio is to the speed at which it reads. What a whole round of it takes is printed, too. It checks the CRC of each
  message and copies its payload, as it does for everybody, and what has come is counted. What it fetches ahead before its first message
  is taken, at most ten chunks of 1 MiB for each stream, counts for it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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
PAYLOAD_BYTES = 100
_SET = 5_000
"""Messages that are sent at a time."""
_COLD = 2
"""Rounds of each that are left out."""


def payload(number: int) -> bytes:
    """A click in JSON, 100 bytes; no two numbers have the same."""
    mixed = number * 2_654_435_761 % 2**32
    return b'{"user":%07d,"page":"/item/%06d","referrer":"/search?q=%08x","at":%d,"ms":%05d}' % (
        mixed % 9_999_991, mixed // 7 % 999_983, mixed, 1_700_000_000_000 + number, mixed % 60_000)


def fill(cluster: Cluster, messages: int, partitions: int) -> None:
    """As many messages in each partition."""
    with SimpleConsumer("127.0.0.1", cluster.brokers[0].port, generation="jafka") as broker:
        for at in range(messages // _SET):
            broker.produce(TOPIC, at % partitions, b"".join(
                struct.pack(">ibbI", 6 + PAYLOAD_BYTES, 1, 0, zlib.crc32(one)) + one
                for one in map(payload, range(at * _SET, (at + 1) * _SET))))


@dataclass(frozen=True, slots=True)
class Round:
    """The seconds of one round of Jafka's consumer."""

    reading: float
    """From the first message to the last."""
    whole: float
    """From the start of its connector."""


class JafkaReader:
    """A JVM with Jafka's own consumer that reads all messages of the topic each time that it is asked."""

    def __init__(self, cluster: Cluster, folder: Path, messages: int, partitions: int) -> None:
        java, jars = find_java(), ":".join(map(str, release_jars(JAFKA)))
        subprocess.run([str(java.with_name("javac")), "-cp", jars, "-d", str(folder), str(SOURCE)], check=True)
        words = [cluster.zookeeper_connect, TOPIC, partitions, messages]
        self._bytes = messages * PAYLOAD_BYTES
        self._process = subprocess.Popen(
            [str(java), "-Xmx2g", "-cp", f"{folder}:{jars}", "JafkaReader", *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def round(self) -> Round:
        """Read all once more."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("again\n")
        self._process.stdin.flush()
        reading, whole, size = self._process.stdout.readline().split()
        assert int(size) == self._bytes
        return Round(float(reading), float(whole))

    def close(self) -> None:
        """End its JVM."""
        self._process.communicate()


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


def seconds_of_a_run(cluster: Cluster, folder: Path, messages: int, number: int) -> float:
    """A run of a group and a table of its own, which reads all messages."""
    conf = folder / f"conf-{number}.yaml"
    conf.write_text(yaml.safe_dump({
        "version": 1, "pipeline": "bench", "group": f"bench-{number}", "cluster": "old",
        "zookeeper": {"connect": cluster.zookeeper_connect},
        "source": {"dialect": "jafka", "topics": {"allow": [TOPIC]}}, "table": {"path": str(folder / f"table-{number}")},
        "report": {"path": str(folder / "reports")}}))
    began = time.monotonic()
    said = said_by("run", str(conf), "--json")
    seconds = time.monotonic() - began
    assert said.code == 0 and said.document["records"] == messages, said.err + said.out
    return seconds


def main() -> None:
    """Print millions of messages a second of both, and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.messages % (_SET * asked.partitions):
        parser.error(f"--messages must be a multiple of {_SET} for each partition")
    ours, theirs = list[float](), list[Round]()
    with tempfile.TemporaryDirectory() as name, Cluster(version=JAFKA, chroot="/old", folder=Path(name, "cluster")) as cluster:
        cluster.create_topic(TOPIC, asked.partitions)
        fill(cluster, asked.messages, asked.partitions)
        with warm_session(Path(name, "spark")):
            reader = JafkaReader(cluster, Path(name), asked.messages, asked.partitions)
            for number in range(_COLD + asked.rounds):
                theirs.append(reader.round())
                ours.append(seconds_of_a_run(cluster, Path(name), asked.messages, number))
            reader.close()
    print(f"{asked.messages:,} messages of {PAYLOAD_BYTES} bytes in {asked.partitions} partitions of one Jafka, medians of {asked.rounds}")
    run, reading, whole = (
        asked.messages / 1e6 / statistics.median(seconds[_COLD:])
        for seconds in (ours, [one.reading for one in theirs], [one.whole for one in theirs]))
    print(f"etl run, into Delta, all of it                       {run:6.2f} M messages/s")
    print(f"Jafka's consumer, first message to last              {reading:6.2f} M messages/s")
    print(f"Jafka's consumer, with the start of its connector    {whole:6.2f} M messages/s")
    print(f"ratio to its reading                                 {run / reading:6.2f}")


if __name__ == "__main__":
    main()
