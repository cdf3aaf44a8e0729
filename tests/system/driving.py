"""One pipeline under test: its conf file, the real command on it, and a check that uses neither the package nor its ledger."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition
from kazoo.client import KazooClient

from etl.commands.run import run
from etl.demo.crash_run import Dying
from etl.edges.brokers.cluster import Cluster as Brokers
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.embedded.clicks import click_batches
from etl.embedded.cluster import Cluster
from etl.embedded.server import wait_until
from etl.embedded.spark import SHORT_RUN
from etl.errors import BrokerError
from etl.model.logs import Broker
from etl.run.world import World
from etl.settings.address import split_address
from etl.settings.loader import load_settings
from tests.fakes.oracle import codecs
from tests.said import Said, said_by

ROOT = Path(__file__).parents[2]
Row = tuple[int, int, str]
"""Partition, offset, hash of the value."""


@dataclass
class Pipeline:
    """`settings` are merged into the conf, section by section."""

    cluster: Cluster
    folder: Path
    topic: str
    group: str
    settings: dict[str, Any] = field(default_factory=dict)
    produced: int = 0

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def conf(self) -> Path:
        path = self.folder / "conf.yaml"
        document: dict[str, Any] = {
            "version": 1, "pipeline": "clicks", "group": self.group, "zookeeper": {"connect": self.cluster.zookeeper_connect},
            "source": {"topics": {"allow": [self.topic]}, "timeout_s": 20}, "table": {"path": str(self.table)},
            "report": {"path": str(self.folder / "reports")}, "ownership": {"wait_for_driver_s": 0},
        }
        for section, keys in self.settings.items():
            document[section] = {**document.get(section, {}), **keys} if isinstance(keys, dict) else keys
        path.write_text(yaml.safe_dump(document))
        return path

    def produce(self, count: int, *, partitions: int = 4) -> None:
        """Click events with keys, some with headers, in every codec."""
        addresses = [split_address(address) for address in self.cluster.bootstrap.split(",")]
        with Brokers(addresses) as cluster, contextlib.ExitStack() as opened:
            leaders = self._leaders(cluster, partitions)
            brokers = {one: opened.enter_context(SimpleConsumer(one.host, one.port)) for one in set(leaders.values())}
            batches = click_batches(self.produced, count, partitions=partitions, began_ms=1_700_000_000_000, records_per_batch=20)
            for partition, batch in batches:
                broker = brokers[leaders[partition]]
                is_taken = functools.partial(took, broker, self.topic, partition, batch)
                assert wait_until(is_taken, 60), f"{broker.address} does not lead {partition}"
        self.produced += count

    def _leaders(self, cluster: Brokers, partitions: int) -> dict[int, Broker]:
        """Who leads each partition, once all have a leader: behind the restart of a broker that takes a moment."""
        found: dict[int, Broker] = {}

        def are_known() -> bool:
            found.update({log.partition: leader.broker for log, leader in cluster.describe([self.topic]).leaders.items()})
            return len(found) >= partitions

        assert wait_until(are_known, 60), f"partitions without a leader: {set(range(partitions)) - found.keys()}"
        return found

    def door(self, *words: str, after: Sequence[str] = (), json_too: bool = True) -> Said:
        """The command in this process, which shares its Spark session."""
        return said_by(*words, str(self.conf), *after, *(["--json"] if json_too else []))

    def accept_log(self, *words: str) -> Said:
        """What an operator says of logs that were cut or made again."""
        return said_by("plans", "accept-log", str(self.conf), *words, "--reason", "seen", "--json")

    def run(self) -> Said:
        return self.door("run")

    def ran(self) -> Said:
        """A run that must succeed."""
        said = self.run()
        assert said.code == 0, f"exit {said.code}\n{said.err}{said.out}"
        return said

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """The same in a process of its own, as the leader of its own process group; `variables` are added to its environment."""
        environment = {**os.environ, "JDK_JAVA_OPTIONS": SHORT_RUN, "PYTHONPATH": str(ROOT), **variables}
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=self.folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def killed_before(self, verb: str) -> int:
        """A real run that kills itself with SIGKILL when it would begin `verb`; its exit status."""
        child = self.start("etl.demo.crash_run", str(self.conf), verb)
        child.communicate(timeout=180)
        return child.returncode

    def in_topic(self, isolation: str = "read_committed") -> Counter[Row]:
        """Every readable record of the topic, by kafka-python's consumer."""
        rows: Counter[Row] = Counter()
        with codecs(), contextlib.closing(KafkaConsumer(
                bootstrap_servers=self.cluster.bootstrap, isolation_level=isolation, enable_auto_commit=False)) as consumer:
            logs = [TopicPartition(self.topic, p) for p in consumer.partitions_for_topic(self.topic)]
            ends = consumer.end_offsets(logs)
            consumer.assign(logs)
            consumer.seek_to_beginning()
            deadline = time.monotonic() + 60
            while any(consumer.position(log) < ends[log] for log in logs):
                assert time.monotonic() < deadline, "the topic could not be read"
                for records in consumer.poll(timeout_ms=500).values():
                    rows.update((r.partition, r.offset, hash_of(r.value)) for r in records)
        return rows

    def in_table(self) -> Counter[Row]:
        """Every row of the table, by delta-rs."""
        rows = DeltaTable(str(self.table)).to_pyarrow_table(columns=["partition", "offset", "value"])
        return Counter((r["partition"], r["offset"], hash_of(r["value"])) for r in rows.to_pylist())

    def is_whole(self) -> bool:
        """Every record of the topic is in the table once, and nothing else."""
        expected, found = self.in_topic(), self.in_table()
        assert found == expected, f"missing {list((expected - found))[:5]}, too many {list((found - expected))[:5]}"
        return True

    def committed(self) -> dict[int, int]:
        """The offsets as an old consumer would read them."""
        with self.zookeeper() as client:
            path = f"/consumers/{self.group}/offsets/{self.topic}"
            return {int(key): int(client.get(f"{path}/{key}")[0]) for key in client.get_children(path)} if client.exists(path) else {}

    @contextlib.contextmanager
    def zookeeper(self) -> Any:
        client = KazooClient(hosts=self.cluster.zookeeper_connect)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()


def hash_of(value: bytes | None) -> str:
    """What stands for a value in a row."""
    return "null" if value is None else hashlib.sha256(value).hexdigest()[:16]


class BrokenOff(BaseException):
    """No error of anybody's: the run ends here."""


class Before(Dying):
    """`run(settings, around=Before("append", deed))`: a run in which something else happens, once, before a verb of its world."""

    def __init__(self, verb: str, deed: Callable[[], object]) -> None:
        super().__init__(cast(World, None), verb)  # the run brings its worlds
        self._deed = deed
        self.happened = False

    @property
    def world(self) -> Any:
        """The one of this moment."""
        return self._world

    def end(self) -> None:
        """Nothing ends but what the deed ends."""
        self.happened = True
        self._deed()


def broken_off_before(verb: str, pipeline: Pipeline) -> None:
    """A run in this process that ends, without a word, when it would begin `verb`."""
    def break_off() -> None:
        raise BrokenOff

    with pytest.raises(BrokenOff):
        run(load_settings(pipeline.conf), around=Before(verb, break_off))


def took(broker: SimpleConsumer, topic: str, partition: int, batch: bytes | Sequence[tuple[bytes | None, bytes | None]]) -> bool:
    """Append, unless the broker does not yet know that it leads what everybody says it leads."""
    try:
        broker.produce(topic, partition, batch)
    except BrokerError as error:
        if "NOT_LEADER" not in error.what:
            raise
        return False
    return True
