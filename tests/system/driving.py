"""One pipeline: its conf file, the real command, and a check that does not use the package."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from deltalake import DeltaTable
from kazoo.client import KazooClient

from etl.commands.run import run
from etl.demo.crash_run import Dying
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.plans import Request
from etl.run.service_interfaces import Services
from etl.settings.load import load_settings
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.spark_launch import SHORT_RUN
from tests.command_result import CommandResult, run_etl
from tests.traffic.choice import Traffic, traffic_of
from tests.traffic.rows import Row, hash_of

ROOT = Path(__file__).parents[2]
WITHOUT_SPARK: Mapping[str, Any] = {
    "table": {"writer": "auto"},
    "limits": {"local_below_bytes": 1 << 30},
}
"""Settings of a pipeline with such small plans that processes of this machine write them."""


@dataclass
class Pipeline:
    """`settings` are merged into the conf by section, after `everywhere`."""

    cluster: EmbeddedCluster
    folder: Path
    topic: str
    group: str
    settings: dict[str, Any] = field(default_factory=dict)
    produced: int = 0
    everywhere: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def conf(self) -> Path:
        path = self.folder / "conf.yaml"
        document: dict[str, Any] = {
            "pipeline": "clicks",
            "zookeeper": {"connect": self.cluster.zookeeper_connect},
            "source": {"topics": [self.topic], "request_timeout_s": 20},
            "table": {"path": str(self.table)},
            "report": {"path": str(self.folder / "reports")},
            "group": {"id": self.group},
            "ledger": {"lock_timeout_s": 0},
        }
        for section, keys in (
            *self.traffic.conf.items(),
            *self.everywhere.items(),
            *self.settings.items(),
        ):
            document[section] = (
                {**document.get(section, {}), **keys} if isinstance(keys, dict) else keys
            )
        path.write_text(yaml.safe_dump(document))
        return path

    def under(self, name: str, **changes: Any) -> Pipeline:
        """The same topic and table with another group, folder and ledger."""
        folder = self.folder / name
        folder.mkdir()
        return replace(
            self,
            folder=folder,
            group=f"{self.group}-{name}",
            settings={"table": {"path": str(self.table)}},
            **changes,
        )

    @property
    def traffic(self) -> Traffic:
        return traffic_of(self.cluster)

    def produce(self, count: int, *, partitions: int = 4) -> None:
        """Click events with keys and headers where brokers have them, in every codec."""
        self.traffic.load(self.cluster, self.topic, self.produced, count, partitions)
        self.produced += count

    def door(self, *words: str, after: Sequence[str] = (), json_too: bool = True) -> CommandResult:
        """The command in this process, which shares its Spark session."""
        return run_etl(*words, str(self.conf), *after, *(["--json"] if json_too else []))

    def accept_log(self, *words: str) -> CommandResult:
        """`etl topics accept-changes` of partitions, then options."""
        options = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
        partitions = [word for name in words[:options] for word in ("-p", name)]
        return run_etl(
            *("topics", "accept-changes", str(self.conf), *partitions, *words[options:]),
            *("--reason", "seen", "--yes", "--json"),
        )

    def run(self) -> CommandResult:
        return self.door("run")

    def ran(self) -> CommandResult:
        result = self.run()
        assert result.code == 0, f"exit {result.code}\n{result.err}{result.out}"
        return result

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """A process with its own process group; `variables` are added to its environment."""
        environment = {
            **os.environ,
            "JDK_JAVA_OPTIONS": SHORT_RUN,
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            env=environment,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def killed_before(self, verb: str) -> int:
        """A real run that kills itself with SIGKILL when it would begin `verb`; its exit status."""
        child = self.start("etl.demo.crash_run", str(self.conf), verb)
        child.communicate(timeout=180)
        return child.returncode

    def in_topic(self) -> Counter[Row]:
        """Every readable record of the topic, as others read it."""
        return self.traffic.in_topic(self.cluster, self.topic)

    def in_table(self) -> Counter[Row]:
        place = self.traffic.place
        rows = DeltaTable(str(self.table)).to_pyarrow_table(columns=[*place, "value"])
        return Counter(
            (*(row[column] for column in place), hash_of(row["value"])) for row in rows.to_pylist()
        )

    def table_files(self) -> list[str]:
        return [
            str(path.relative_to(self.table)) for path in self.table.rglob("*") if path.is_file()
        ]

    def table_file(self, path: str) -> bytes:
        """What one of them holds; nothing where it is gone."""
        try:
            return (self.table / path).read_bytes()
        except FileNotFoundError:
            return b""

    def is_whole(self) -> bool:
        """Every record of the topic is in the table once, and nothing else."""
        expected, found = self.in_topic(), self.in_table()
        assert found == expected, (
            f"missing {list((expected - found))[:5]}, too many {list((found - expected))[:5]}"
        )
        return True

    def committed(self) -> dict[int, int]:
        """The offsets as an old consumer would read them."""
        return self.committed_at(self.cluster.zookeeper_connect)

    def committed_at(self, connect: str) -> dict[int, int]:
        with session_at(connect) as client:
            path = f"/consumers/{self.group}/offsets/{self.topic}"
            if client.exists(path):
                return {
                    int(key): int(client.get(f"{path}/{key}")[0])
                    for key in client.get_children(path)
                }
            return {}

    def zookeeper(self) -> contextlib.AbstractContextManager[KazooClient]:
        return session_at(self.cluster.zookeeper_connect)


def clean_log(table: Path, *, is_compacted: bool = True) -> None:
    """Delete commit files as after the log's retention: the rest begins with a checkpoint.

    The newest commit stays; `is_compacted`: it is no commit of the pipeline.
    """
    if is_compacted:
        DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).create_checkpoint()
    for file in sorted(table.glob("_delta_log/*[0-9].json"))[:-1]:
        file.unlink()
    for crc in table.glob("_delta_log/.*.crc"):
        crc.unlink()


def data_files(table: Path) -> set[str]:
    """Those of the table's folder, needed or not."""
    return {
        str(path.relative_to(table))
        for path in table.rglob("*.parquet")
        if "_delta_log" not in path.parts
    }


class BrokenOff(BaseException):
    """No error of anybody's: the run ends here."""


class Before(Dying):
    """`run(settings, around=Before("append", deed))`: `deed` happens once before that verb."""

    def __init__(self, verb: str, deed: Callable[[], object]) -> None:
        super().__init__(cast(Services, None), verb)  # the run brings its worlds
        self._deed = deed
        self.happened = False

    @property
    def world(self) -> Any:
        return self._world

    def end(self) -> None:
        """Nothing ends but what the deed ends."""
        self.happened = True
        self._deed()


def break_off() -> None:
    raise BrokenOff


def broken_off_before(verb: str, pipeline: Pipeline, request: Request | None = None) -> None:
    """A run in this process that ends silently before `verb`."""
    with pytest.raises(BrokenOff):
        run(load_settings(pipeline.conf), request=request, around=Before(verb, break_off))


@contextlib.contextmanager
def session_at(connect: str, **options: Any) -> Iterator[KazooClient]:
    """A session of kazoo's alone; `client_id`: the one of that id and password."""
    client = KazooClient(hosts=connect, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def lose_session(zookeeper: ZooKeeper, connect: str | None = None) -> None:
    """End a session by its id and password. `connect`: another address of the server."""
    with session_at(connect or zookeeper.hosts, client_id=zookeeper.client.client_id):
        pass


# Python reports each process that it starts, and each connection, to audit hooks (PEP 578).
_WATCHED = """
import json, sys
HEAVY = ("pyspark", "py4j", "delta", "numba", "pandas")
started, connected = [], []
def watch(event, given):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"):
        started.append(event)
    elif event == "socket.connect":
        connected.append(list(given[1]))
sys.addaudithook(watch)
from etl.cli import main
code = main([*sys.argv[1:], "--json"])
print(json.dumps({"code": code, "started": started, "loaded": [name for name in HEAVY if name in sys.modules], "connected": connected}))
"""


def watched(
    pipeline: Pipeline, *words: str, after: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A command in a process of its own: its cost, and its document."""
    ran = subprocess.run(
        [sys.executable, "-c", _WATCHED, *words, str(pipeline.conf), *after],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    document, cost = ran.stdout.strip().rsplit("\n", 1)
    return json.loads(cost), json.loads(document)


def watched_run(pipeline: Pipeline) -> tuple[dict[str, Any], list[str]]:
    """A run: what it cost, and its outcomes."""
    cost, document = watched(pipeline, "run")
    return cost, [one["outcome"] for one in document["outcomes"]]
