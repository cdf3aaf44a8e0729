"""`make bench`: what planning and committing take at size, with a real ZooKeeper and brokers that
answer real bytes and hold no records.

    PYTHONPATH=. python bench/planning.py [--partitions 10000,100000] [--brokers N]
        [--rounds N] [--profile FILE]

Brokers are ports of a process of their own (`bench.many_brokers`), registered in ZooKeeper as
Kafka's are. A first run (`first`) finds all logs empty and stores where they start. Then each has
100 records more, and a second run (`next`), a fresh process as any other, reads the ledger and
every offset, plans a range of each log, stores the plan, claims the logs, and moves each offset.
Fetching and appending are left out: what came of the plan is made up from its ranges. Everything
else of both runs is `etl run`'s own.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from kazoo.client import KazooClient

from etl.commands.run import run
from etl.io.process import collect_garbage_rarely
from etl.ledger.plan_document import render_plan
from etl.model.plans import CommitResult, Plan, RangeResult
from etl.model.snapshot import Table
from etl.report.report_json import report_as_json
from etl.run.service_interfaces import Services
from etl.settings.load import load_settings
from etl.testkit.cluster import ZooKeeper

LOGS_OF_A_TOPIC, RECORDS = 100, 100
PLANNING = ("observe", "reconcile", "plan")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: seconds by the clock, but for those of processor time, which a busy machine changes
    little.

    Planning is from the first question until the plan is stored.
    """

    partitions: int
    brokers: int
    run: str
    """`first`: no log has a position yet; `next`: each has one, and something new."""
    observe_s: float
    store_s: float
    plan_s: float
    """Planning as a whole: `observe_s`, `store_s`, and deciding."""
    claim_s: float
    commit_s: float
    """Moving all offsets."""
    record_s: float
    release_s: float
    process_s: float
    """From the start of the process to its end."""
    cpu_s: float
    """Of the process, user and system."""
    peak_mib: float
    document_bytes: int
    plan_cpu_s: float
    """Of planning, in this process only: brokers and ZooKeeper run in parallel."""
    commit_cpu_s: float


class NothingRead:
    """Services in which every record of a plan was read and is in the table, as far as the run can
    observe. Each verb is timed.
    """

    def __init__(self, world: Services) -> None:
        self._world = world
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._begun_cpu = time.process_time()
        self.plan_cpu_s = 0.0
        self.plan: Plan | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._world, name)
        if not callable(found):
            return found

        def timed(*given: Any, **named: Any) -> Any:
            with self._timed(name):
                return found(*given, **named)

        return timed

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun, begun_cpu = time.monotonic(), time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begun
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + time.process_time() - begun_cpu
        if name == "store":
            self.plan_cpu_s = time.process_time() - self._begun_cpu

    @contextlib.contextmanager
    def claiming(self, plan: Plan) -> Iterator[None]:
        """The logs are claimed indeed, and given back."""
        with contextlib.ExitStack() as released:
            with self._timed("claim"):
                released.enter_context(self._world.claiming(plan))
            yield
            with self._timed("release"):
                released.pop_all().close()

    def fetch(self, plan: Plan, snapshot: Any) -> Any:
        """Nothing; of a plan without ranges what it is."""
        self.plan = plan
        return snapshot.table if plan.ranges else self._world.fetch(plan, snapshot)

    def append(self, plan: Plan, rows: Any) -> tuple[CommitResult | None, Table | None]:
        """A plan without ranges creates the table; another one is reported as applied."""
        if not plan.ranges:
            return self._world.append(plan, rows)
        return CommitResult(
            plan.number,
            plan.id,
            rows.version + 1,
            rows.id,
            tuple(RangeResult(rows=one.size) for one in plan.ranges),
        ), rows


def one_run(conf: Path, profile: str | None) -> dict[str, Any]:
    """In this process: a run of that conf, and what it took."""
    worlds: list[NothingRead] = []

    def around(world: Services) -> Services:
        worlds.append(NothingRead(world))
        return worlds[-1]

    collect_garbage_rarely()  # as the command does
    profiler = cProfile.Profile(time.process_time) if profile else None
    if profiler:
        profiler.enable()
    report = run(load_settings(conf), around=around)
    if profiler and profile:
        profiler.disable()
        profiler.dump_stats(profile)
    world, verbs = worlds[-1], report_as_json(report)["seconds"]
    assert world.plan is not None
    return {
        "observe_s": verbs["observe"],
        "store_s": world.seconds["store"],
        "plan_s": sum(verbs[name] for name in PLANNING),
        "claim_s": world.seconds["claim"],
        "commit_s": world.seconds["commit"],
        "record_s": world.seconds["record"],
        "release_s": world.seconds["release"],
        "document_bytes": len(render_plan(world.plan)),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "plan_cpu_s": world.plan_cpu_s,
        "commit_cpu_s": world.cpu_seconds["commit"],
        "cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
    }


def in_a_process(
    conf: Path, partitions: int, brokers: int, name: str, profile: str | None
) -> Measured:
    """The same, in a fresh one."""
    begun = time.monotonic()
    words = [
        sys.executable,
        __file__,
        "--one",
        str(conf),
        *(["--profile", profile] if profile and name == "next" else []),
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    return Measured(
        partitions,
        brokers,
        name,
        process_s=time.monotonic() - begun,
        **json.loads(done.stdout.splitlines()[-1]),
    )


@contextlib.contextmanager
def many_brokers(
    brokers: int, topics: int, partitions: int
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Their process, and their ports."""
    words = [
        sys.executable,
        "-m",
        "bench.many_brokers",
        str(brokers),
        str(topics),
        str(partitions),
    ]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdin
        yield process, [int(port) for port in process.stdout.readline().split()]
        process.stdin.close()


def register(connect: str, ports: Sequence[int], topics: Sequence[str], partitions: int) -> None:
    """As Kafka's brokers and their controller do."""
    client = KazooClient(hosts=connect, timeout=30)
    client.start()
    request = client.transaction()
    for path in ("/brokers", "/brokers/ids", "/brokers/topics", "/cluster"):
        request.create(path)
    request.create("/cluster/id", b'{"version":"1","id":"many-brokers"}')
    for number, port in enumerate(ports, 1):
        request.create(
            f"/brokers/ids/{number}",
            json.dumps({"version": 5, "host": "127.0.0.1", "port": port}).encode(),
        )
    for topic in topics:
        replicas = {str(partition): [partition % len(ports) + 1] for partition in range(partitions)}
        request.create(
            f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": replicas}).encode()
        )
        if len(request.operations) >= 200:
            assert not any(isinstance(result, Exception) for result in request.commit())
            request = client.transaction()
    assert not any(isinstance(result, Exception) for result in request.commit())
    client.stop()
    client.close()


def measured(
    partitions: int, brokers: int, *, profile: str | None = None
) -> tuple[Measured, Measured]:
    """The first run over so many logs, of topics of a hundred each, and the next one."""
    topics = [f"topic-{number:04}" for number in range(max(1, partitions // LOGS_OF_A_TOPIC))]
    each = partitions // len(topics)
    with (
        tempfile.TemporaryDirectory(prefix="etl-bench-") as name,
        ZooKeeper(Path(name, "zookeeper")) as zookeeper,
        many_brokers(brokers, len(topics), each) as (process, ports),
    ):
        register(zookeeper.connect, ports, topics, each)
        conf = Path(name, "conf.yaml")
        conf.write_text(
            yaml.safe_dump(
                {
                    "pipeline": "many",
                    "group": "many",
                    "zookeeper": {"connect": zookeeper.connect},
                    "source": {"topics": ["topic-[0-9]+"], "starting_offsets": "earliest"},
                    "report": {"path": str(Path(name, "reports"))},
                    "table": {"path": str(Path(name, "table"))},
                }
            )
        )
        first = in_a_process(conf, partitions, brokers, "first", profile)
        assert process.stdin and process.stdout
        print(RECORDS, file=process.stdin, flush=True)
        process.stdout.readline()
        return first, in_a_process(conf, partitions, brokers, "next", profile)


COLUMNS = (
    "plan_s",
    "commit_s",
    "plan_cpu_s",
    "commit_cpu_s",
    "observe_s",
    "store_s",
    "claim_s",
    "record_s",
    "release_s",
    "process_s",
    "cpu_s",
    "peak_mib",
)
_WIDTH = max(map(len, COLUMNS))


def main() -> None:
    """A table: the median of each figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", default="1000,10000,100000")
    parser.add_argument("--brokers", type=int, help="default: 1 for each hundred partitions")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", help="where the second run's profile goes")
    arguments = parser.parse_args()
    print(
        f"{'partitions':>10} {'brokers':>7} {'run':>5}",
        *(f"{column:>{_WIDTH}}" for column in COLUMNS),
        f"{'document':>9}",
    )
    for partitions in map(int, arguments.partitions.split(",")):
        brokers = arguments.brokers or max(1, partitions // 100)
        rounds = [
            measured(partitions, brokers, profile=arguments.profile)
            for _ in range(arguments.rounds)
        ]
        for runs in zip(*rounds, strict=True):
            every = [asdict(one) for one in runs]
            figures = (
                f"{statistics.median(one[column] for one in every):>{_WIDTH}.2f}"
                for column in COLUMNS
            )
            print(
                f"{partitions:>10} {brokers:>7} {runs[0].run:>5}",
                *figures,
                f"{runs[0].document_bytes:>9,}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one_run(Path(sys.argv[2]), sys.argv[4] if sys.argv[3:] else None)))
    else:
        main()
