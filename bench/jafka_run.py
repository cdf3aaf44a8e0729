"""`make bench-parts`: whole runs on a real Jafka, from plan to committed offsets, compared with
Jafka's own consumer that drops its messages.

Both read the same messages from one broker, in turns, a round of one and a round of the other,
while the other process is idle:

- The messages are 100 bytes of JSON, all different, so that neither Parquet nor a cache combines
  them. They are in the page cache.
- Both are warm: the consumer's JVM lives through all rounds, and so does the Spark session of the
  runs. The first rounds of both are left out.
- The time of a run is all of it, from the command to its exit code: ZooKeeper, the plan,
  fetching, decoding, the files, Delta's commit, the offsets, the report.
- The time of the consumer is from its first message to its last, without finding brokers and
  assigning partitions in ZooKeeper: the ratio is to its speed of reading. Its whole round is
  printed, too. It checks the CRC of each message and copies its payload, as it always does, and
  received messages are counted. Messages that it fetches ahead before its first message is
  returned, at most ten chunks of 1 MiB for each stream, count for it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.spark.session import build_session
from etl.testkit.brokers import JAFKA, release_jars
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import find_java
from etl.testkit.spark_launch import jar_settings, set_spark_environment, spark_settings
from tests.command_result import run_etl

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
        mixed % 9_999_991,
        mixed // 7 % 999_983,
        mixed,
        1_700_000_000_000 + number,
        mixed % 60_000,
    )


def fill(cluster: EmbeddedCluster, messages: int, partitions: int) -> None:
    """As many messages in each partition."""
    with SimpleConsumer("127.0.0.1", cluster.brokers[0].port, broker_type="jafka") as broker:
        for at in range(messages // _SET):
            broker.produce(
                TOPIC,
                at % partitions,
                b"".join(
                    struct.pack(">ibbI", 6 + PAYLOAD_BYTES, 1, 0, zlib.crc32(one)) + one
                    for one in map(payload, range(at * _SET, (at + 1) * _SET))
                ),
            )


@dataclass(frozen=True, slots=True)
class Round:
    """The seconds of one round of Jafka's consumer."""

    reading: float
    """From the first message to the last."""
    whole: float
    """From the start of its connector."""


class JafkaReader:
    """A JVM with Jafka's own consumer that reads all messages of the topic on each request."""

    def __init__(
        self, cluster: EmbeddedCluster, folder: Path, messages: int, partitions: int
    ) -> None:
        java, jars = find_java(), ":".join(map(str, release_jars(JAFKA)))
        subprocess.run(
            [str(java.with_name("javac")), "-cp", jars, "-d", str(folder), str(SOURCE)], check=True
        )
        words = [cluster.zookeeper_connect, TOPIC, partitions, messages]
        self._bytes = messages * PAYLOAD_BYTES
        self._process = subprocess.Popen(
            [str(java), "-Xmx2g", "-cp", f"{folder}:{jars}", "JafkaReader", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

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
    """Spark on two cores with its own defaults for the JVM and for queries: what a cluster's driver
    and executors have.
    """
    set_spark_environment()
    session = build_session(
        "bench",
        {
            **spark_settings("local[2]"),
            **jar_settings("local[2]"),
            "spark.sql.warehouse.dir": str(folder),
            "spark.log.level": "ERROR",
        },
    )
    try:
        yield
    finally:
        session.stop()


@dataclass(frozen=True, slots=True)
class Spent:
    """What one run took."""

    seconds: float
    """From the command to its exit code."""
    cpu: float
    """Seconds of processor time of the driver, its JVM and its Python workers; the broker's are not
    in it.
    """
    verbs: Mapping[str, float]
    """Seconds of each verb, by its own report."""


def run_once(
    cluster: EmbeddedCluster, folder: Path, messages: int, number: int, table: Mapping[str, str]
) -> Spent:
    """A run of a group and a table of its own, which reads all messages."""
    conf = folder / f"conf-{number}.yaml"
    conf.write_text(
        yaml.safe_dump(
            {
                "pipeline": "bench",
                "group": f"bench-{number}",
                "zookeeper": {"connect": cluster.zookeeper_connect},
                "source": {"assume_cluster_id": "old", "broker_type": "jafka", "topics": [TOPIC]},
                "table": {"path": str(folder / f"table-{number}"), **table},
                "report": {"path": str(folder / "reports")},
            }
        )
    )
    began, used = time.monotonic(), cpu_seconds()
    result = run_etl("run", str(conf), "--json")
    spent = time.monotonic() - began, cpu_seconds() - used
    assert result.code == 0 and result.document["records_read"] == messages, result.err + result.out
    shutil.rmtree(
        folder / f"table-{number}"
    )  # otherwise written data fills the page cache, and evicts the messages
    return Spent(*spent, result.document["seconds"])


def cpu_seconds() -> float:
    """What this process and those that Spark started for it have used so far: its JVM, and the
    Python workers below that.
    """
    return sum(_ticks(pid) for pid in {os.getpid(), *_below_spark()}) / os.sysconf("SC_CLK_TCK")


def _below_spark() -> Iterator[int]:
    """The JVM of this process's session and all processes below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    left = [
        pid
        for pid in children.get(os.getpid(), [])
        if b"SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    while left:
        pid = left.pop()
        yield pid
        left += children.get(pid, [])


def _ticks(pid: int) -> int:
    """User and system time of a process, and of its children that have ended."""
    with contextlib.suppress(OSError):
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
        )
    return 0


def main() -> None:
    """Print millions of messages a second of both, and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--writer",
        action="append",
        choices=["spark", "arrow"],
        help="given several times: each in each round",
    )
    parser.add_argument(
        "--codec",
        action="append",
        choices=["uncompressed", "snappy", "lz4", "zstd"],
        help="the same; of the arrow writer",
    )
    arguments = parser.parse_args()
    if arguments.messages % (_SET * arguments.partitions):
        parser.error(f"--messages must be a multiple of {_SET} for each partition")
    kinds = kinds_of(arguments.writer or ["spark", "arrow"], arguments.codec or ["zstd"])
    ours, theirs, numbers = (
        {kind: list[Spent]() for kind in kinds},
        list[Round](),
        itertools.count(),
    )
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedCluster(version=JAFKA, chroot="/old", folder=Path(name, "cluster")) as cluster,
    ):
        cluster.create_topic(TOPIC, arguments.partitions)
        fill(cluster, arguments.messages, arguments.partitions)
        with warm_session(Path(name, "spark")):
            reader = JafkaReader(cluster, Path(name), arguments.messages, arguments.partitions)
            for _ in range(_COLD + arguments.rounds):
                theirs.append(reader.round())
                for kind, table in kinds.items():
                    ours[kind].append(
                        run_once(cluster, Path(name), arguments.messages, next(numbers), table)
                    )
            reader.close()
    print(
        f"{arguments.messages:,} messages of {PAYLOAD_BYTES} bytes in {arguments.partitions} "
        f"partitions of one Jafka, medians of {arguments.rounds}"
    )
    reading, whole = (
        arguments.messages / 1e6 / statistics.median(seconds[_COLD:])
        for seconds in ([one.reading for one in theirs], [one.whole for one in theirs])
    )
    print(f"Jafka's consumer, first message to last              {reading:6.2f} M messages/s")
    print(f"Jafka's consumer, with the start of its connector    {whole:6.2f} M messages/s")
    for kind, all_of_it in ours.items():
        spent = all_of_it[_COLD:]
        run = arguments.messages / 1e6 / statistics.median(one.seconds for one in spent)
        cpu = statistics.median(one.cpu for one in spent) * 1e6 / arguments.messages
        verbs = {
            verb: statistics.median(one.verbs[verb] for one in spent) for verb in spent[0].verbs
        }
        print(
            f"etl run, all of it: {kind:32} {run:6.2f} M messages/s, {cpu:.2f} us of CPU "
            f"each, {run / reading:.2f} of its reading"
        )
        print(
            "  seconds: "
            + ", ".join(
                f"{verb} {seconds:.2f}" for verb, seconds in verbs.items() if seconds >= 0.01
            )
        )


def kinds_of(writers: Sequence[str], codecs: Sequence[str]) -> dict[str, dict[str, str]]:
    """The table settings of each kind of run, by its name."""
    if "arrow" in writers:
        arrow = {f"arrow {codec}": {"writer": "arrow", "compression": codec} for codec in codecs}
    else:
        arrow = {}
    return {**({"spark": {"writer": "spark"}} if "spark" in writers else {}), **arrow}


if __name__ == "__main__":
    main()
