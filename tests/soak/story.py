"""One story of the soak: a new pipeline, drivers that are killed, paused or cut off at one
moment each, and an independent check.

The order of events is drawn from the story's seed, so that a story can be repeated. The check uses
neither the package's ledger nor its reading: it compares the logs in memory with the table's rows
by delta-rs.
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
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from etl.errors import EtlError
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.sections import Settings
from tests.builders import plain_settings
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
"""About as many as a run has that finds something new: most fates reach their driver, some runs
come through.
"""


Znodes = tuple[tuple[str, bytes, int], ...]
"""Path below the root, payload and version of each persistent znode, parents first."""


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

    A killed driver's session stays open as that of a killed process does, and its lock's znode with
    it, until the next driver finds its process gone. To open one for every driver would be most of
    the soak's time.
    """

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._idle: list[ZooKeeper] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[ZooKeeper]:
        """A session for one driver alone."""
        session = self._idle.pop() if self._idle else self._new()
        try:
            yield session
        finally:
            if session.life.is_over:
                session.close()
            else:
                self._idle.append(session)

    def _new(self) -> ZooKeeper:
        session = ZooKeeper(self._connect, session_timeout_s=30).__enter__()
        session.client._retry.sleep_func = lambda seconds: time.sleep(
            seconds / 100
        )  # what looks lost here is not
        return session

    def end_one(self) -> None:
        """An idle session ends, and its ephemeral znodes with it."""
        if self._idle:
            self._idle.pop(0).close()

    def close(self) -> None:
        """End all."""
        while self._idle:
            self.end_one()


class Story:
    """A new pipeline on the shared ZooKeeper. `seed` and `name` determine all events."""

    def __init__(
        self, seed: int, name: str, sessions: Sessions, connect: str, folder: Path
    ) -> None:
        self.random = random.Random(f"{seed}/{name}")
        self.seed, self.name = seed, f"soak-{seed}-{name}"
        self.tally = Tally()
        self.events: list[str] = []
        """The events in order, to find the reason of an error."""
        self._sessions, self._folder = sessions, folder / self.name
        self._runs = itertools.count(1)
        self._forgets, self._goes_back = self.random.random() < 0.4, self.random.random() < 0.4
        """Whether retention takes records away; whether ZooKeeper is restored from older copies, or
        emptied.
        """
        self._copy: Znodes = ()
        self.logs = {
            TopicPartition("clicks", p): MemoryLog()
            for p in range(self.random.choice((1, 2, 3, 5)))
        }
        self.settings = self._settings(connect)

    def _settings(self, connect: str) -> Settings:
        limits = {
            "max_records_per_plan": self.random.choice((None, 20, 80)),
            "target_task_bytes": self.random.choice((1_000, 2**28)),
        }
        group = {"id": self.name, "mode": self.random.choice(("observe", "claim"))}
        source = {
            "topics": ["clicks"],
            "bootstrap_servers": f"{self.name}:1",
            "on_data_loss": "skip" if self._forgets else "fail",
        }
        return plain_settings(
            zookeeper={"connect": connect},
            source=source,
            table={"path": str(self._folder / "table")},
            limits=limits,
            group=group,
        )

    def play(self) -> bool:
        """A random story; True. Raises Broken, or whatever a run raised that nothing had happened
        to.
        """
        with serving(self.name, self.logs):
            for turn in range(_RUNS_IN_A_STORY):
                self._produce()
                self._forget()
                self._go_back()
                self.drive(self._fate())
                if self.random.random() < 0.05:
                    self._sessions.end_one()
                if turn % _CHECK_EVERY == _CHECK_EVERY - 1:
                    self.check()
            self.finish()
        return True

    def play_moments(self, deed: Deed, moments: range, *, runs_before: int) -> bool:
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
                if moment != moments[-1]:
                    self.drive(None)
                    self.check()
            self.finish()
        return reached

    def _fate(self) -> Fate:
        return Fate(self.random.choice(_DEEDS), self.random.randrange(_MOMENTS_OF_A_RUN))

    def _produce(self, least: int = 0) -> None:
        for partition in self.logs.values():
            count = self.random.randrange(least, 9)
            partition.holes.update(
                offset
                for offset in range(partition.end, partition.end + count)
                if self.random.random() < 0.15
            )
            partition.end += count

    def _forget(self) -> None:
        """Retention deletes the oldest records of a log: not before a first plan is in the table,
        which starts where the log does then.
        """
        if (
            self._forgets
            and self.random.random() < 0.3
            and DeltaTable.is_deltatable(self.settings.table.path)
        ):
            log = self.random.choice(list(self.logs.values()))
            log.log_start = self.random.randint(log.log_start, log.end)
            self.events.append("retention deleted records")

    def _go_back(self) -> None:
        """A copy of ZooKeeper is taken, or comes back, or everything is gone."""
        what = self.random.random() if self._goes_back else 1.0
        if what < 0.3:
            with self._sessions.one() as operator:
                if what < 0.15:
                    self._copy = read_znodes(operator.client, f"/consumers/{self.name}")
                else:
                    self._copy = self._copy if what < 0.25 else ()
                    write_znodes(operator.client, f"/consumers/{self.name}", self._copy)
                    self.events.append(
                        f"ZooKeeper {'restored from an older copy' if self._copy else 'emptied'}"
                    )
                    self.tally.counts["restored: ZooKeeper"] += 1

    def drive(self, fate: Fate | None, depth: int = 0) -> bool:
        """One run, whatever becomes of it; whether its fate came true. Raises what a run raised
        that nothing happened to.
        """
        number = next(self._runs)
        driver = Driver(f"{self.name}/{number}", fate)
        report = Report(driver.run_id, "clicks", self.name, self.settings.table.path, 0)
        with self._sessions.one() as session:
            world = MemoryWorld(
                self.settings,
                session,
                run_id=driver.run_id,
                uid=f"uid{number}",
                now_ms=lambda: 1_700_000_000_000 + number,
            )
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
        fate, came = (
            driver.fate,
            driver.fate is not None and len(driver.passed) > driver.fate.moment,
        )
        text = ", ".join(outcome.value for outcome, _ in report.outcomes)
        where = (
            f"{fate.deed.value} {driver.passed[fate.moment]}" if fate and came else "undisturbed"
        )
        self.events.append(f"{'  ' * depth}{driver.run_id}: {where}: {ended} ({text})")
        self.tally.counts[f"{fate.deed.value if fate and came else 'undisturbed'}: {ended}"] += 1
        self.tally.counts["runs"] += 1
        if fate and came:
            self.tally.counts[fate.deed.value] += 1
            self.tally.moments[driver.passed[fate.moment]] += 1

    def _meanwhile(self, world: MemoryWorld, session: ZooKeeper, depth: int) -> None:
        """Past its session's end the driver's lock and claims are gone. Others drive; then it wakes
        up, and may hear of it in time.
        """
        with self._sessions.one() as operator:
            operator.delete_tree(f"/consumers/{self.name}/owners")
            operator.delete_tree(f"/consumers/{self.name}/etl/clicks/drivers")
        for _ in range(self.random.choice((1, 1, 2, 3))):
            self._produce()
            self._forget()
            self.drive(
                self._fate() if depth < 2 and self.random.random() < 0.4 else None, depth + 1
            )
        if self.random.random() < 0.5:
            session.life.hear(KazooState.LOST)

    def finish(self) -> None:
        """Undisturbed runs until there is nothing new; then everything must be there: after the
        first one, where no cap leaves anything.
        """
        if self.settings.limits.max_records_per_plan is None:
            self.drive(None)
            self.check(whole=True)
        for _ in range(200):
            self.drive(None)
            if self.events[-1].endswith("(up_to_date)"):
                return self.check(whole=True)
        raise Broken("the pipeline does not get to the end of its logs")

    def check(self, *, whole: bool = False) -> None:
        """No record twice, none that was not produced, none left out below one that is there; with
        `whole`: all of them.

        A record that retention took may be written down as lost instead, once, and then it is not a
        row.
        """
        rows, lost = self._rows(), self._lost()
        doubles = [one for one, count in [*rows.items(), *lost.items()] if count > 1]
        if doubles:
            raise Broken(f"{len(doubles)} rows or losses are double, the first: {doubles[0]}")
        for partition, there in self.logs.items():
            found = {
                offset
                for topic, p, offset, value in rows
                if (topic, p) == (partition.topic, partition.partition)
            }
            gone = {
                offset
                for topic, p, offset in lost
                if (topic, p) == (partition.topic, partition.partition)
            }
            wrong = [
                row
                for row in rows
                if row[:2] == (partition.topic, partition.partition)
                and row[3] != value_of(partition, row[2])
            ]
            wrong += sorted(found - set(there.records(0, there.end)))
            until = there.end if whole else max(found, default=-1) + 1
            missing = set(there.records(0, until)) - found - gone
            if not whole:  # losses are recorded after the rows are in the table
                missing -= set(range(there.log_start))
            if wrong or missing or found & gone:
                raise Broken(
                    f"{partition}: missing {sorted(missing)[:9]}, wrong {wrong[:3]}, lost and "
                    f"there {sorted(found & gone)[:9]}"
                )
        self.tally.counts["checks"] += 1
        if whole:
            self.tally.records = sum(rows.values())

    def _lost(self) -> Counter[tuple[Any, ...]]:
        """Every offset that the losses table names."""
        path = f"{self.settings.table.path}_losses"
        if not DeltaTable.is_deltatable(path):
            return Counter()
        rows = (
            DeltaTable(path)
            .to_pyarrow_table(columns=["topic", "partition", "from_offset", "until_offset"])
            .to_pylist()
        )
        return Counter(
            (r["topic"], r["partition"], offset)
            for r in rows
            for offset in range(r["from_offset"], r["until_offset"])
        )

    def _rows(self) -> Counter[tuple[Any, ...]]:
        path = self.settings.table.path
        if not DeltaTable.is_deltatable(path):
            return Counter()
        columns = ["topic", "partition", "offset", "value"]
        rows = DeltaTable(path).to_pyarrow_table(columns=columns).to_pydict()
        return Counter(zip(*(rows[name] for name in columns), strict=True))


def read_znodes(client: KazooClient, root: str) -> Znodes:
    """A copy of a ZooKeeper as a restore would bring it back, without ephemeral znodes."""
    found, paths = [], [root] if client.exists(root) else []
    for path in paths:
        payload, stat = client.get(path)
        if not stat.ephemeralOwner:
            found.append((path.removeprefix(root), payload, stat.version))
            paths += [f"{path}/{name}" for name in client.get_children(path)]
    return tuple(found)


def write_znodes(client: KazooClient, root: str, copy: Znodes) -> None:
    """Everything below `root` as it was then, versions too: they count the writes."""
    client.delete(root, recursive=True)
    for path, payload, version in copy:
        client.create(root + path, payload, makepath=True)
        for written in [client.set_async(root + path, payload) for _ in range(version)]:
            written.get()
