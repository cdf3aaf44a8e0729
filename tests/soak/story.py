"""One story of the fast soak: a new pipeline, drivers that are killed, paused or cut off at one moment each, and an independent check.

Owns what happens in which order, drawn from the story's own seed, so that a story can be told again; and the check, which
uses neither the package's ledger nor its reading: the logs in memory against the table's rows by delta-rs.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState

from etl.edges.zookeeper import ZooKeeper
from etl.errors import EtlError
from etl.ingest import ingest
from etl.model import BrokerPartition
from etl.report import Report
from etl.settings import Settings, parse_settings
from tests.soak.memory import MemoryLog, MemoryWorld, alive, serving, value_of
from tests.soak.points import Deed, Driver, Fate, Killed, at_work

_DEEDS = (Deed.KILL, Deed.KILL, Deed.KILL, Deed.KILL, Deed.KILL, Deed.PAUSE, Deed.LOSE)
_RUNS_IN_A_STORY = 24
_CHECK_EVERY = 8
RUNS_BEFORE = 5
"""Then plans are there to be pruned."""
MOMENTS_IN_A_STORY = 8
"""A longer table would make every run slower."""
_MOMENTS_OF_A_RUN = 45
"""About as many as a run has that finds something new: most fates reach their driver, some runs come through."""


class Broken(AssertionError):
    """The promise does not hold."""


@dataclass
class Tally:
    """What happened, over one story or many."""

    counts: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    """At which moments drivers were interrupted."""
    records: int = 0

    def add(self, other: Tally) -> None:
        """Take in another story's."""
        self.counts += other.counts
        self.moments += other.moments
        self.records += other.records


class Sessions:
    """ZooKeeper sessions that are handed from driver to driver.

    A killed driver's session stays open as that of a killed process does, and its lock's znode with it, until the next driver
    finds its process gone. To open one for every driver would be most of the soak's time.
    """

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._idle: list[ZooKeeper] = []

    @contextlib.contextmanager
    def one(self, driver: Driver) -> Iterator[ZooKeeper]:
        """A session for this driver alone."""
        session = self._idle.pop() if self._idle else self._new()
        try:
            yield session
        finally:
            if session._session_ended.is_set():
                session.close()
            else:
                self._idle.append(session)

    def _new(self) -> ZooKeeper:
        session = ZooKeeper(self._connect, session_timeout_s=30).__enter__()
        session.client._retry.sleep_func = lambda seconds: time.sleep(seconds / 100)  # what looks lost here is not
        return session

    def end_one(self) -> None:
        """An idle session ends, and what is ephemeral goes with it."""
        if self._idle:
            self._idle.pop(0).close()

    def close(self) -> None:
        """End all."""
        while self._idle:
            self.end_one()


class Story:
    """A pipeline of its own on the shared ZooKeeper. `seed` and `name` say all that happens."""

    def __init__(self, seed: int, name: str, sessions: Sessions, connect: str, folder: Path) -> None:
        self.random = random.Random(f"{seed}/{name}")
        self.seed, self.name = seed, f"soak-{seed}-{name}"
        self.tally = Tally()
        self.told: list[str] = []
        """What happened, in order, for whoever has to find out why it broke."""
        self._sessions, self._folder = sessions, folder / self.name
        self._runs = itertools.count(1)
        self.logs = {BrokerPartition("clicks", p): MemoryLog() for p in range(self.random.choice((1, 2, 3, 5)))}
        self.settings = self._settings(connect)

    def _settings(self, connect: str) -> Settings:
        limits = {"max_records_per_run": self.random.choice((None, 20, 80)), "target_task_bytes": self.random.choice((1_000, 2**28))}
        return parse_settings({
            "version": 1, "pipeline": "clicks", "group": self.name, "zookeeper": {"connect": connect},
            "source": {"topics": {"allow": ["clicks"]}, "bootstrap": f"{self.name}:1"},
            "table": {"path": str(self._folder / "table")}, "limits": limits, "ownership": {"wait_for_driver_s": 0},
        })

    def tell(self) -> bool:
        """A random story; True. Raises Broken, or whatever a run raised that nothing had happened to."""
        with serving(self.name, self.logs):
            for turn in range(_RUNS_IN_A_STORY):
                self._produce()
                self.drive(self._fate())
                if self.random.random() < 0.05:
                    self._sessions.end_one()
                if turn % _CHECK_EVERY == _CHECK_EVERY - 1:
                    self.check()
            self.finish()
        return True

    def tell_moments(self, deed: Deed, moments: range, *, runs_before: int) -> bool:
        """Interrupt one run at the first of these moments, the next run at the next, and so on.

        Whether there may be moments after the last one: it was reached.
        """
        reached = True
        with serving(self.name, self.logs):
            for _ in range(runs_before):
                self._produce(least=1)
                self.drive(None)
            for moment in moments:
                self._produce(least=1)
                reached = self.drive(Fate(deed, moment))
                self.finish()
        return reached

    def _fate(self) -> Fate:
        return Fate(self.random.choice(_DEEDS), self.random.randrange(_MOMENTS_OF_A_RUN))

    def _produce(self, least: int = 0) -> None:
        for log in self.logs.values():
            count = self.random.randrange(least, 9)
            log.holes.update(offset for offset in range(log.end, log.end + count) if self.random.random() < 0.15)
            log.end += count

    def drive(self, fate: Fate | None, depth: int = 0) -> bool:
        """One run, whatever becomes of it; whether its fate came true. Raises what a run raised that nothing happened to."""
        number = next(self._runs)
        driver = Driver(f"{self.name}/{number}", fate)
        report = Report(driver.run_id, "clicks", self.name, self.settings.table.path, 0)
        with self._sessions.one(driver) as session:
            world = MemoryWorld(self.settings, session, uid=f"uid{number}", now_ms=lambda: 1_700_000_000_000 + number)
            driver.meanwhile = lambda: self._meanwhile(world, session, depth)
            alive.add(driver.run_id)
            ended = "came through"
            try:
                with at_work(driver, session.client), world.driving(driver.run_id):
                    ingest(world, self.settings, report)
            except Killed:
                ended = "killed"
            except EtlError as error:
                ended = type(error).__name__
                if not fate or len(driver.passed) <= fate.moment:
                    raise Broken(f"an undisturbed run failed: {error}") from error
            finally:
                alive.discard(driver.run_id)
        self._note(driver, depth, "killed" if driver.is_dead else ended, report)
        return fate is not None and len(driver.passed) > fate.moment

    def _note(self, driver: Driver, depth: int, ended: str, report: Report) -> None:
        fate, came = driver.fate, driver.fate is not None and len(driver.passed) > driver.fate.moment
        said = ", ".join(outcome.value for outcome, _ in report.outcomes)
        where = f"{fate.deed.value} {driver.passed[fate.moment]}" if fate and came else "undisturbed"
        self.told.append(f"{'  ' * depth}{driver.run_id}: {where}: {ended} ({said})")
        self.tally.counts[f"{fate.deed.value if fate and came else 'undisturbed'}: {ended}"] += 1
        self.tally.counts["runs"] += 1
        if fate and came:
            self.tally.counts[fate.deed.value] += 1
            self.tally.moments[driver.passed[fate.moment]] += 1

    def _meanwhile(self, world: MemoryWorld, session: ZooKeeper, depth: int) -> None:
        """Past its session's end the driver's lock is gone. Others drive; then it wakes up, and may or may not hear of it in time."""
        with self._sessions.one(Driver("operator")) as operator, contextlib.suppress(NoNodeError):
            operator.client.delete(f"/consumers/{self.name}/etl/clicks/driver")
        for _ in range(self.random.choice((1, 1, 2, 3))):
            self._produce()
            self.drive(self._fate() if depth < 2 and self.random.random() < 0.4 else None, depth + 1)
        if self.random.random() < 0.5:
            session._watch_session(KazooState.LOST)

    def finish(self) -> None:
        """Undisturbed runs until there is nothing new; then everything must be there."""
        for _ in range(200):
            self.drive(None)
            if self.told[-1].endswith("(nothing new)"):
                return self.check(whole=True)
        raise Broken("the pipeline does not get to the end of its logs")

    def check(self, *, whole: bool = False) -> None:
        """No record twice, none that was not produced, none left out below one that is there; with `whole`: all of them."""
        rows = self._rows()
        doubles = [row for row, count in rows.items() if count > 1]
        if doubles:
            raise Broken(f"{len(doubles)} rows are double, the first: {doubles[0]}")
        for log, there in self.logs.items():
            found = {offset for topic, p, offset, value in rows if (topic, p) == (log.topic, log.partition)}
            wrong = [row for row in rows if row[:2] == (log.topic, log.partition) and row[3] != value_of(log, row[2])]
            until = there.end if whole else max(found, default=-1) + 1
            missing = set(there.records(0, until)) - found
            if wrong or missing or found - set(there.records(0, there.end)):
                raise Broken(f"{log}: missing {sorted(missing)[:5]}, wrong {wrong[:3]}, of {len(found)} rows")
        self.tally.counts["checks"] += 1
        if whole:
            self.tally.records = sum(rows.values())

    def _rows(self) -> Counter[tuple[Any, ...]]:
        path = self.settings.table.path
        if not DeltaTable.is_deltatable(path):
            return Counter()
        columns = ["topic", "partition", "offset", "value"]
        rows = DeltaTable(path).to_pyarrow_table(columns=columns).to_pydict()
        return Counter(zip(*(rows[name] for name in columns), strict=True))
