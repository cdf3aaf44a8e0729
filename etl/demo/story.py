"""What does `etl demo` do, and which events does it load?

It writes a conf and calls the command `etl`, each run in a new process. A click event is computed
from its number, so equal numbers are equal events: record batches with keys, headers and each codec
in turn, or Jafka message sets, plain and gzipped.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import cramjam
import google_crc32c
from rich.console import Console

from etl.cli.screens import line_of, show_offsets
from etl.errors import EtlError
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import BrokerFamily
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.spark_launch import SHORT_RUN

RECORDS_PER_BATCH = 500
_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Record batch v2, from base offset to record count."""
_MESSAGE = struct.Struct(">ibbI")
"""Header of a message of Jafka and Kafka 0.7: length, magic, attributes, CRC-32."""
_PAGES = (
    b"/",
    b"/search",
    b"/basket",
    b"/checkout",
    b"/help",
    b"/article/pump-21",
    b"/article/rotor-9",
)
_VARINTS = tuple(
    bytes([n << 1]) if n < 64 else bytes([n << 1 & 0x7F | 0x80, n >> 6]) for n in range(1024)
)
"""Zig-zag varints of small numbers, two bytes at most."""


def _lz4(data: bytes) -> bytes:
    """Kafka reads frames of independent blocks only, and cramjam's `lz4.compress` links them."""
    packing = cramjam.lz4.Compressor(level=1, block_linked=False)
    packing.compress(data)
    return bytes(packing.finish())


_CODECS: tuple[tuple[int, Callable[[bytes], bytes]], ...] = (
    (0, bytes),
    (1, lambda data: gzip.compress(data, compresslevel=1)),
    (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    (3, _lz4),
    (4, lambda data: bytes(cramjam.zstd.compress(data))),
)
"""The codec's number in the attributes of a record batch, and how it packs."""


def click_batches(
    first: int,
    count: int,
    *,
    partitions: int,
    began_ms: int,
    records_per_batch: int = RECORDS_PER_BATCH,
) -> Iterator[tuple[int, bytes]]:
    """Yield `count` events from number `first` on as (partition, record batch), evenly over the
    partitions.

    A batch has at most 1,024 records.
    """
    for number, start in enumerate(range(first, first + count, records_per_batch)):
        events = range(start, min(start + records_per_batch, first + count))
        codec, pack = _CODECS[number // partitions % len(_CODECS)]
        yield number % partitions, _packed(_batch(events, began_ms), codec, pack)


def click_messages(
    first: int, count: int, *, partitions: int, messages_per_set: int = RECORDS_PER_BATCH
) -> Iterator[tuple[int, bytes]]:
    """Yield the same events for Jafka and Kafka 0.7, as (partition number, message set): every
    second set is one gzipped message.
    """
    for number, start in enumerate(range(first, first + count, messages_per_set)):
        events = range(start, min(start + messages_per_set, first + count))
        messages = b"".join(_message(_event(event)) for event in events)
        is_packed = number // partitions % 2 == 1
        yield (
            number % partitions,
            _message(gzip.compress(messages, compresslevel=1), codec=1) if is_packed else messages,
        )


def _message(payload: bytes, codec: int = 0) -> bytes:
    return _MESSAGE.pack(_MESSAGE.size - 4 + len(payload), 1, codec, zlib.crc32(payload)) + payload


def _event(number: int) -> bytes:
    return b'{"event": %d, "user": "%b", "page": "%b", "ms": %d}' % (
        number,
        _user(number),
        _PAGES[number % len(_PAGES)],
        number % 977,
    )


def _user(number: int) -> bytes:
    return b"user-%d" % (number * 7919 % 50_021)


def _batch(events: range, began_ms: int) -> bytes:
    """An uncompressed record batch v2 (KIP-98) without its CRC: `_packed` makes that. Written by
    hand, for a million events.
    """
    records = b"".join(_record(at, number) for at, number in enumerate(events))
    times = [began_ms + events[0], began_ms + events[-1]]
    return (
        _HEADER.pack(0, 0, -1, 2, 0, 0, len(events) - 1, *times, -1, -1, -1, len(events)) + records
    )


def _record(at: int, number: int) -> bytes:
    key, value = _user(number), _event(number)
    headers = b"\x04\x0csource\x08demo\x0atrace\x20%016x" % number if number % 10 == 0 else b"\x00"
    delta = _VARINTS[at]
    body = (
        b"\x00" + delta + delta + _VARINTS[len(key)] + key + _VARINTS[len(value)] + value + headers
    )
    return _VARINTS[len(body)] + body


def _packed(batch: bytes, codec: int, pack: Callable[[bytes], bytes]) -> bytes:
    """Return the batch with compressed records: length, attributes and CRC-32C are recomputed."""
    base, _, epoch, magic, _, attributes, *rest = _HEADER.unpack_from(batch)
    records = pack(batch[_HEADER.size :])
    length = _HEADER.size - 12 + len(records)
    covered = _HEADER.pack(base, length, epoch, magic, 0, attributes | codec, *rest)[21:] + records
    crc: int = google_crc32c.value(covered)
    return _HEADER.pack(base, length, epoch, magic, crc, attributes | codec, *rest)[:21] + covered


TOPIC, LOGS = "clicks", 8


class Source(Protocol):
    """One family of brokers."""

    who: str
    """Subject of the sentence."""
    what: str
    """Object of the sentence."""
    source: str
    """The conf's section."""
    partition_by: str

    def cluster(self, folder: Path) -> EmbeddedCluster:
        """The servers, not yet started."""

    def create(self, cluster: EmbeddedCluster) -> None:
        """Make the topic."""

    def produce(self, cluster: EmbeddedCluster, first: int, count: int) -> None:
        """The events from number `first` on."""


class KafkaClicks:
    """One broker of the version that is embedded by default."""

    who = "ZooKeeper and a Kafka {version} broker run"
    what = f"{LOGS} partitions (none, gzip, snappy, lz4, zstd)"
    source = f'{{topics: ["{TOPIC}"]}}'
    partition_by = "event_date"

    def cluster(self, folder: Path) -> EmbeddedCluster:
        return EmbeddedCluster(folder=folder)

    def create(self, cluster: EmbeddedCluster) -> None:
        cluster.create_topic(TOPIC, LOGS)

    def produce(self, cluster: EmbeddedCluster, first: int, count: int) -> None:
        with SimpleConsumer("127.0.0.1", cluster.brokers[0].port) as broker:
            for partition, batch in click_batches(
                first, count, partitions=LOGS, began_ms=int(time.time() * 1000)
            ):
                broker.produce(TOPIC, partition, batch)


class JafkaClicks:
    """Two brokers of Jafka with one topic, half of its partitions each; small segments, so that
    ranges can be cut.
    """

    brokers = 2
    who = "ZooKeeper and two brokers of Jafka 3.0.6 run"
    what = f"{LOGS // 2} partitions of each broker (plain, and gzipped message sets)"
    source = f'{{broker_type: jafka, assume_cluster_id: demo, topics: ["{TOPIC}"]}}'
    partition_by = "broker_id"

    def cluster(self, folder: Path) -> EmbeddedCluster:
        return EmbeddedCluster(
            self.brokers,
            version=JAFKA,
            chroot="/jafka",
            folder=folder,
            properties={"log.file.size": str(4 << 20)},
        )

    def create(self, cluster: EmbeddedCluster) -> None:
        cluster.create_topic(TOPIC, LOGS // self.brokers)

    def produce(self, cluster: EmbeddedCluster, first: int, count: int) -> None:
        consumers = [
            SimpleConsumer("127.0.0.1", broker.port, broker_type=BrokerFamily.JAFKA.value)
            for broker in cluster.brokers
        ]
        try:
            for number, messages in click_messages(first, count, partitions=LOGS):
                consumers[number % self.brokers].produce(TOPIC, number // self.brokers, messages)
        finally:
            for consumer in consumers:
                consumer.close()


SOURCES: Mapping[BrokerFamily, Source] = {
    BrokerFamily.KAFKA: KafkaClicks(),
    BrokerFamily.JAFKA: JafkaClicks(),
}


_CONF = """\
pipeline: clicks
group: etl-demo
zookeeper: {{connect: "{zookeeper}"}}
source: {source}
table: {{path: "{folder}/warehouse/clicks", partition_by: [{partition_by}]}}
report: {{path: "{folder}/reports"}}
"""


def run_demo(
    *,
    records: int,
    folder: Path | None,
    quiet: bool,
    broker_type: BrokerFamily = BrokerFamily.KAFKA,
    keep: bool = False,
    show: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> None:
    """Run the demo, and `show` its figures.

    Its servers are stopped, also on Ctrl-C; the directory with the table stays. `keep`: they run
    until Ctrl-C.
    """
    source = SOURCES[broker_type]
    home = Path(folder or tempfile.mkdtemp(prefix="etl-demo-")).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if (home / "warehouse").exists():
        raise EtlError(
            "The directory has the table of an earlier demo",
            path=home,
            action="Pass another --folder",
        )
    screen = Console(quiet=quiet, highlight=False, soft_wrap=True)
    servers = Path(tempfile.mkdtemp(prefix="cluster-", dir=home))
    is_started = False
    try:
        with source.cluster(servers) as cluster:
            is_started = True
            story = _Story(cluster, source, home, screen)
            figures = story.play(records)
            story.end(figures, keep=keep)
            show(figures)
            if keep:
                _wait_for_interrupt()
    finally:
        if is_started:  # otherwise the error names a log file in it
            shutil.rmtree(servers, ignore_errors=True)


def conf_of(source: Source, zookeeper: str, home: Path) -> str:
    """Return the text of the demo's conf file."""
    return _CONF.format(
        zookeeper=zookeeper,
        folder=home,
        source=source.source,
        partition_by=source.partition_by,
    )


class _Story:
    def __init__(
        self, cluster: EmbeddedCluster, source: Source, home: Path, screen: Console
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._home = home
        self._screen = screen
        self._conf = home / "clicks.yaml"
        self._conf.write_text(conf_of(source, cluster.zookeeper_connect, home))
        self._produced = 0
        self._began = time.monotonic()

    def play(self, records: int) -> dict[str, Any]:
        servers = self._source.who.format(version=self._cluster.brokers[0].version)
        self._say(f"{servers} at {self._cluster.zookeeper_connect}")
        self._source.create(self._cluster)
        self._produce(records)
        first = self._etl("run", "loads all of them")
        self._produce(records // 10)
        killed = self._run_that_dies()
        self._produce(records // 10)
        repaired = self._etl("run", "commits the offsets of the killed run, and continues")
        nothing = self._etl("run", "finds no new records, and starts no Spark")
        proof = self._etl("verify", "compares every row of the table with the ledger")
        offsets = self._etl("offsets", "shows where the pipeline stands", "show")["partitions"]
        if not self._screen.quiet:
            show_offsets(offsets)
        self._show_proof(proof)
        return {
            "produced": self._produced,
            "in_the_table": proof["found_rows"],
            "verified": proof["passed"],
            "killed_by_signal": killed,
            "table": str(self._home / "warehouse" / "clicks"),
            "conf": str(self._conf),
            "zookeeper": self._cluster.zookeeper_connect,
            "bootstrap": self._cluster.bootstrap,
            "seconds": round(time.monotonic() - self._began, 1),
            "runs": [first, repaired, nothing],
            "offsets": offsets,
        }

    def _produce(self, count: int) -> None:
        with self._screen.status(f"producing {count:,} click events"):
            self._source.produce(self._cluster, self._produced, count)
        self._produced += count
        self._say(f"produced {count:,} JSON click events over {self._source.what}")

    def _etl(self, name: str, summary: str, *words: str) -> dict[str, Any]:
        """Run a command of `etl`; return its JSON document."""
        began = time.monotonic()
        command = [sys.executable, "-m", "etl", name, *words, str(self._conf), "--json"]
        if name in ("run", "verify"):
            command.append("--quiet")
        with self._screen.status(f"etl {name} {summary}"):
            ended = _ended(command)
        if ended.returncode:
            raise EtlError(
                f"`etl {name}` ended with {ended.returncode}: {_last_lines(ended.stderr)}",
                action=f"Check the files below {self._home}",
            )
        document: dict[str, Any] = json.loads(ended.stdout)
        if summary:
            seconds = time.monotonic() - began
            self._say((f"etl {name}", "bold"), f" {summary} ({seconds:.1f} s)")
        for outcome in document.get("outcomes", ()):
            self._print(f"     {outcome['outcome']}: {outcome['message']}")
        return document

    def _run_that_dies(self) -> int:
        """Start a run that is killed by SIGKILL after its Delta commit, before it commits
        offsets.
        """
        command = [sys.executable, "-m", "etl.demo.crash_run", str(self._conf), "commit"]
        with self._screen.status(
            "etl run, to be killed between the table's commit and the offsets"
        ):
            ended = _ended(command)
        if ended.returncode != -signal.SIGKILL:
            raise EtlError(
                f"The run to be killed ended with {ended.returncode}: {_last_lines(ended.stderr)}"
            )
        self._say(
            ("killed", "bold red"),
            " one run with SIGKILL, after its rows were in the table and before it committed "
            "offsets",
        )
        return int(signal.SIGKILL)

    def end(self, figures: Mapping[str, Any], *, keep: bool) -> None:
        """Print where the files are, and what to do with the servers that run on."""
        self._print(f"     the table: {figures['table']}")
        self._print(f"     conf and reports: {figures['conf']}, {self._home / 'reports'}")
        if not keep:
            self._print(
                "     the servers are stopped; with --keep they run on for a pipeline of your own"
            )
            return
        zookeeper = self._cluster.zookeeper_connect
        self._print(
            f"     ZooKeeper {zookeeper} and the brokers {self._cluster.bootstrap} run until "
            "Ctrl-C. In another terminal:"
        )
        self._print(f"       etl verify {figures['conf']}")
        self._print(
            f"       etl init --zookeeper {zookeeper} --topic {TOPIC} --table warehouse/{TOPIC}"
        )

    def _show_proof(self, proof: dict[str, Any]) -> None:
        if proof["passed"] and proof["found_rows"] == self._produced:
            same = "each once, none missing"
        else:
            same = "THIS IS WRONG"
        found = f" records in the table of {self._produced:,} produced: {same}"
        self._say((f"{proof['found_rows']:,}", "bold green"), found)

    def _say(self, *parts: str | tuple[str, str]) -> None:
        seconds = time.monotonic() - self._began
        self._print((f"{seconds:5.1f} s", "dim"), "  ", *parts)

    def _print(self, *parts: str | tuple[str, str]) -> None:
        self._screen.print(line_of(*parts))


def _wait_for_interrupt() -> None:
    """Return on Ctrl-C or SIGTERM, which is how the servers are ended."""
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def _ended(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; on Ctrl-C the child process is stopped first."""
    environment = {**os.environ, "JDK_JAVA_OPTIONS": SHORT_RUN}
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate()
    except BaseException:
        _stop(child)
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-6:])
