"""The real soak: `etl run` as its own process, killed by SIGKILL at random moments, while producers
keep writing.

It draws the moments, kills, and checks the table at the end by `tests.chaos.stage.checked`, which
uses neither the package nor its ledger.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from types import TracebackType

from kafka import KafkaProducer

from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.driver import Driver, send
from tests.chaos.stage import Checked, Writer, checked, ended, held, summary_of
from tests.command_result import CommandResult
from tests.processes import command
from tests.system.driving import Pipeline

CHECK_EVERY = 10
_PARTITIONS = 4
_RETRIABLE = (0, 4, 6, 7)
"""Exit codes after which a scheduler would try again: a run after a kill may need that, a decision
of a person it may not.
"""
_LONGER = 1.1
"""Moments are drawn over a little more than the length of a run, so that its end is hit too."""


@dataclass
class Sums:
    """What happened."""

    kills: Counter[str] = field(default_factory=Counter)
    """The killed process."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Exit codes and outcomes of the runs that ended by themselves."""
    checks: list[Checked] = field(default_factory=list)

    def table(self, passed_s: float) -> str:
        """Everything as text."""
        sections = (
            ("killed", self.kills),
            ("runs that ended by themselves", self.outcomes),
        )
        lines = [
            f"{self.kills.total()} kills in {passed_s / 60:.1f} minutes, {len(self.checks)} checks"
        ]
        for title, counts in sections:
            lines += [f"{title}:"] + [
                f"  {count:>5}  {name}" for name, count in counts.most_common()
            ]
        lines += ["the table:"]
        lines += [
            f"  {c.records:>9,} records, {c.rows:>9,} rows, missing {c.missing}, double {c.double}"
            for c in self.checks
        ]
        return "\n".join(lines)


class TransactionsWriter(Writer):
    """A producer that writes transactions on a thread of its own, some of them aborted, until the
    end of the block.
    """

    def __init__(self, pipeline: Pipeline, seed: str) -> None:
        super().__init__(pipeline)
        self._random = random.Random(seed)
        self._failure: BaseException | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        assert kind or self._failure is None, f"the producer failed: {self._failure!r}"

    def _write(self) -> None:
        servers = self._pipeline.cluster.bootstrap.split(",")
        try:
            with contextlib.closing(
                KafkaProducer(
                    bootstrap_servers=servers, transactional_id=f"of-{self._pipeline.topic}"
                )
            ) as producer:
                producer.init_transactions()
                for number in itertools.count():
                    if self._end.wait(0.5):
                        return
                    self._transaction(producer, number)
        except Exception as error:  # of a thread: reported by the waiting thread
            self._failure = error

    def _transaction(self, producer: KafkaProducer, number: int) -> None:
        producer.begin_transaction()
        for i in range(self._random.randrange(1, 20)):
            producer.send(self._pipeline.topic, value=b"transaction %d, record %d" % (number, i))
        self._end.wait(
            self._random.choice((0, 0, 0.5, 3))
        )  # an open one holds the readable end back
        if self._random.random() < 0.3:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


class Soak:
    """One pipeline and its kills."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self._pipeline, self._seed = pipeline, seed
        self._random = random.Random(seed)
        self._length_s = 0.0
        self._round = itertools.count(1)
        self.sums = Sums()

    def go(self, kills: int) -> None:
        """Kill until there were so many. Raises AssertionError where the promise does not hold."""
        self._pipeline.produce(400)
        self._quiet_runs()
        while self.sums.kills.total() < kills:
            wanted = min(kills, self.sums.kills.total() + CHECK_EVERY)
            with (
                Writer(self._pipeline),
                TransactionsWriter(self._pipeline, f"{self._seed}/{next(self._round)}"),
            ):
                while self.sums.kills.total() < wanted:
                    self._run_and_kill()
            self._quiet_runs()
            self.sums.checks.append(checked(self._pipeline))
            print(f"{self.sums.kills.total()} kills: {self.sums.checks[-1]}", flush=True)

    def _quiet_runs(self) -> None:
        """Undisturbed runs up to the end of the topic; the first one shows how long a run takes
        now.
        """
        lengths, result = [], None
        while result is None or "up_to_date" not in result.outcomes:
            began = time.monotonic()
            with Driver(self._pipeline) as driver:
                result = driver.wait()
            self._ended(result, (0,))
            lengths.append(time.monotonic() - began)
        self._length_s = lengths[0]
        print(f"an undisturbed run takes {self._length_s:.1f} s", flush=True)

    def _run_and_kill(self) -> None:
        kill = self._random.choice((_the_driver, _the_driver, _all_at_once, _a_python_worker))
        delay_s = self._random.uniform(0, self._length_s * _LONGER)
        with Driver(self._pipeline) as driver:
            try:
                driver.process.wait(delay_s)
            except subprocess.TimeoutExpired:
                found = kill(driver, self._random)
                self.sums.kills[found] += 1
                print(f"  {found} after {delay_s:.1f} s: {held(self._pipeline)}", flush=True)
                if found == _WORKER:  # the run continues without it
                    self._ended(driver.wait(), _RETRIABLE)
            else:
                self._ended(driver.wait(), _RETRIABLE)

    def _ended(self, result: CommandResult, allowed: tuple[int, ...]) -> None:
        self.sums.outcomes[summary_of(result)[:90]] += 1
        ended(result, *allowed)


_WORKER = "a Python worker"
Kill = Callable[[Driver, random.Random], str]


def _the_driver(driver: Driver, draw: random.Random) -> str:
    del draw
    driver.kill()
    return "the driver alone"


def _all_at_once(driver: Driver, draw: random.Random) -> str:
    del draw
    driver.kill_all()
    return "all its processes"


def _a_python_worker(driver: Driver, draw: random.Random) -> str:
    """One of the Python processes that Spark has started; the driver where there is none by now."""
    workers = [
        pid
        for pid in driver.processes()
        if pid != driver.process.pid and "pyspark.daemon" in command(pid)
    ]
    if not workers:
        return _the_driver(driver, draw)
    send(draw.choice(sorted(workers)), SIGKILL)
    return _WORKER


def main(*, seed: int, kills: int) -> int:
    """Print the seed, kill, and print what happened. 1 when the promise did not hold; the folder is
    kept then.
    """
    print(f"seed {seed}: python -m tests.soak --kills {kills} --seed {seed}", flush=True)
    folder, began = Path(tempfile.mkdtemp(prefix="etl-soak-")), time.monotonic()
    with EmbeddedCluster(folder=folder / "cluster") as cluster:
        cluster.create_topic("soak", _PARTITIONS)
        soak = Soak(Pipeline(cluster, folder, "soak", "soak", _SETTINGS), seed)
        try:
            soak.go(kills)
        except AssertionError as error:
            print(soak.sums.table(time.monotonic() - began))
            print(f"BROKEN: {error}\nthe table and the reports are in {folder}")
            return 1
    print(soak.sums.table(time.monotonic() - began))
    shutil.rmtree(folder, ignore_errors=True)
    return 0


_SETTINGS = {"spark": {"spark.master": "local[2,2]"}, "limits": {"max_records_per_plan": 20_000}}
