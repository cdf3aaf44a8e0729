"""The outside of a run in memory: a broker's logs, a ZooKeeper that keeps versions, a table that keeps commits.

Honest where it matters: plans and records travel as bytes, offsets move by compare-and-set and all or nothing per request,
an append that finds its number taken is skipped in silence, one that lost a race too, and what became of it is read back.
`Outside` is what is there and is shared; `FakeWorld` is one driver's hands. Before and after each single change the driver
calls `at`, where a test may crash it or let something else happen.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from etl.decisions.log_identity import Cut, epochs_to_ask
from etl.decisions.reconcile import plan_in_force
from etl.decisions.start import moments_to_ask
from etl.errors import CommitUnknown, ExpiredOffsets, MissingOffsets, OffsetMoved, Owned
from etl.model.ledger import Acknowledgement, Ledger
from etl.model.logs import Broker, BrokerPartition, EpochEnd, Extent, Leader
from etl.model.plans import NOTHING_COMMITTED, Applied, Committed, Loss, OffsetRange, Plan, Receipt
from etl.model.snapshot import Snapshot
from etl.model.table import ForeignCommit, OtherPipeline, CommitMetadata, Table
from etl.protocol.zookeeper import payloads, plan_documents
from etl.settings.policies import OwnershipMode
from etl.settings.sections import Settings, TopicFilter

CLUSTER = "cluster-1"
BROKER = Broker(0, "127.0.0.1", 9092)
GROUP, PIPELINE = "group", "clicks"
APP_ID = f"offset-range-etl/{CLUSTER}/{GROUP}/{PIPELINE}"
_processes = itertools.count(1)


class Crash(BaseException):
    """The driver's process is gone. No EtlError, and nothing that the driver could catch."""


class When(str, Enum):
    """On which side of a change."""

    BEFORE = "before"
    AFTER = "after"


@dataclass
class FakeLog:
    """Offsets `log_start` until `end`; those in `missing` were compacted away."""

    end: int = 0
    log_start: int = 0
    missing: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """Missing as well, and nothing explains it: whoever reads them is told."""
    has_leader: bool = True
    later: dict[int, int] = field(default_factory=dict)
    """Milliseconds of the records that are not from 1970."""
    epochs: dict[int, int] = field(default_factory=lambda: {0: 0})
    """At which offset each leader's epoch began."""
    lives: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """(offset, life): from that offset on records are those of that life; a log that is cut and written anew has a new one."""
    tells_epochs: bool = True
    held_back: int = 0
    """How many of the last offsets lie behind an open transaction."""

    def cut(self, at: int) -> None:
        """An unclean election: what came from `at` on is gone, and what comes now is written by another leader."""
        self.end = at
        self.lives = [*(life for life in self.lives if life[0] < at), (at, max(life for _, life in self.lives) + 1)]
        self.epochs = {**{e: start for e, start in self.epochs.items() if start < at}, max(self.epochs) + 1: at}

    @property
    def extent(self) -> Extent:
        """As a leader tells it under read_committed."""
        return Extent(self.log_start, self.end - self.held_back, self.end if self.held_back else None)

    def made_again(self) -> FakeLog:
        """Another log of the same name, empty."""
        life = max(life for _, life in self.lives) + 1
        return FakeLog(lives=[(0, life)])

    def life_of(self, offset: int) -> int:
        """Which record of the log's history lies at this offset now."""
        return next(life for start, life in reversed(self.lives) if start <= offset)

    def epochs_in(self, start: int, until: int) -> tuple[tuple[int, int], ...]:
        """The leader epochs of record batches of [start, until), each with its first offset there."""
        begun = sorted((first, epoch) for epoch, first in self.epochs.items() if first < until)
        last_before = max((i for i, (first, _) in enumerate(begun) if first <= start), default=0)
        return tuple((epoch, max(first, start)) for first, epoch in begun[last_before:]) if self.tells_epochs else ()

    def end_of_epoch(self, asked: int) -> EpochEnd | None:
        """As a leader answers."""
        above = [epoch for epoch in self.epochs if epoch > asked]
        if not self.tells_epochs or asked > max(self.epochs):
            return None
        below = max((epoch for epoch in self.epochs if epoch <= asked), default=asked)
        return EpochEnd(asked, below, self.epochs[min(above)] if above else self.end)

    def read(self, start: int, until: int) -> list[int]:
        """Offsets that a reader of [start, until) gets."""
        assert self.log_start <= start <= until <= self.end, "a driver asked for what the log does not hold"
        return [offset for offset in range(start, until) if offset not in self.missing | self.lost]

    def first_at(self, moment: int) -> int:
        """The first offset whose record is that late, the end where none is."""
        return next((offset for offset in range(self.log_start, self.end) if self.later.get(offset, 0) >= moment), self.end)


@dataclass(frozen=True)
class FakeCommit:
    """One commit of the table."""

    plan: Plan
    rows: tuple[tuple[BrokerPartition, int], ...]
    run_id: str = "run-1"
    lives: tuple[int, ...] = ()
    """Of each row's record, which life of its log it was of."""
    epochs: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Of each range, the leader epochs that its record batches named."""

    @property
    def number(self) -> int:
        return self.plan.number

    @property
    def plan_id(self) -> str:
        return self.plan.id

    @property
    def uid(self) -> str:
        return self.plan.uid


@dataclass
class Outside:
    """Everything that outlives a driver."""

    logs: dict[BrokerPartition, FakeLog]
    uid: str | None = None
    plans: dict[int, bytes] = field(default_factory=dict)
    plan_versions: dict[int, int] = field(default_factory=dict)
    """How often each plan's znode was written again."""
    removals: list[ForeignCommit] = field(default_factory=list)
    acknowledged: Acknowledgement | None = None
    applied: dict[int, bytes] = field(default_factory=dict)
    losses: list[tuple[int, Loss]] = field(default_factory=list)
    """Rows of the losses table: plan number and what it let go."""
    offsets: dict[BrokerPartition, tuple[int, int]] = field(default_factory=dict)
    """Value and version of each offset's znode."""
    uids_made: int = 0
    table: list[FakeCommit] | None = None
    forgotten_commits: bool = False
    """The table's log was cleaned up: the commit bit is there, the commits' metadata is not."""
    foreign: tuple[ForeignCommit, ...] = ()
    """What others did to the table since our last commit."""
    others: tuple[OtherPipeline, ...] = ()
    """The other pipelines that have loaded into the table."""
    live_consumers: tuple[str, ...] = ()
    owners: dict[BrokerPartition, str] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)

    def rows(self) -> Counter[tuple[BrokerPartition, int]]:
        """How often the table holds each offset of each log."""
        return Counter(row for commit in self.table or () for row in commit.rows)

    def records(self) -> Counter[tuple[BrokerPartition, int, int]]:
        """How often the table holds each record that ever was: (log, life, offset)."""
        return Counter((log, life, offset) for commit in self.table or () for (log, offset), life in zip(commit.rows, commit.lives))

    def keys(self) -> Counter[tuple[BrokerPartition, int, int]]:
        """How often the table holds each row by what makes it unique: (log, log_epoch, offset)."""
        return Counter((log, commit.plan.log_epochs.get(log, 0), offset) for commit in self.table or () for log, offset in commit.rows)

    def transaction_version(self) -> int:
        """The commit bit, 0 for none."""
        return max((commit.number for commit in self.table or ()), default=0)

    def move_offset(self, log: BrokerPartition, offset: int) -> None:
        """Somebody else writes an offset."""
        self.offsets[log] = offset, self.offsets[log][1] + 1 if log in self.offsets else 0

    def committed(self) -> dict[BrokerPartition, Committed]:
        """The offsets as a client reads them."""
        return {log: Committed(*found) for log, found in self.offsets.items()}

    def newest_plan(self) -> Plan | None:
        """The plan with the highest number."""
        return plan_documents.parse_plan(self.plans[max(self.plans)], path="plans") if self.plans else None


def _nothing(step: str, when: When) -> None:
    del step, when


class FakeWorld:
    """One driver's view of `outside`; a `World` for `ingest`."""

    def __init__(
        self, outside: Outside, settings: Settings, at: Callable[[str, When], None] = _nothing, *, logs_per_request: int = 2,
        run_id: str = "run-1",
    ) -> None:
        self._run_id = run_id
        self.outside = outside
        self._settings = settings
        self._topics: TopicFilter = settings.source.topics
        self._ownership = settings.ownership
        us = payloads.DriverNode("127.0.0.1", next(_processes), None, run_id)
        self._name = payloads.render_owner(GROUP, payloads.OwnerNode(PIPELINE, us)).decode()
        self._at = at
        self._logs_per_request = logs_per_request
        self.steps: list[str] = []

    def _do(self, step: str, change: Callable[[], Any]) -> Any:
        self.steps.append(step)
        self._at(step, When.BEFORE)
        result = change()
        self._at(step, When.AFTER)
        return result

    def observe(self) -> Snapshot:
        """See World."""
        return self._do("observe", self._snapshot)  # type: ignore[no-any-return]

    def _snapshot(self) -> Snapshot:
        out = self.outside
        ours = {log: found for log, found in out.logs.items() if self._topics.admits(log.topic)}
        logs = {log: found for log, found in ours.items() if found.has_leader}
        ledger, table = self._ledger(), self._table()
        moments = moments_to_ask(logs, plan_in_force(ledger, table), self._settings)
        return Snapshot(
            cluster=CLUSTER, extents={log: found.extent for log, found in logs.items()},
            leaders={log: Leader(BROKER, 0) for log in logs}, leaderless=frozenset(ours.keys() - logs.keys()),
            topic_ids=dict(out.topic_ids),
            bytes_per_offset={log: 100.0 for log in logs}, committed=out.committed(),
            starts={log: logs[log].first_at(moment) for log, moment in moments.items()},
            owners=dict(out.owners), live_consumers=out.live_consumers, ledger=ledger, table=table,
            leader_epochs={log: max(found.epochs) for log, found in logs.items() if found.tells_epochs},
            epoch_ends={log: end for log, epoch in epochs_to_ask(plan_in_force(ledger, table), ledger.applied).items()
                        if log in logs and (end := logs[log].end_of_epoch(epoch))},
        )

    def _ledger(self) -> Ledger:
        out = self.outside
        newest = out.newest_plan()
        payload = out.applied.get(newest.number) if newest else None
        applied = plan_documents.parse_applied(payload, path="applied") if payload else None
        return Ledger(
            out.uid, newest, applied if applied and newest and applied.plan_id == newest.id else None,
            newest_version=out.plan_versions.get(newest.number, 0) if newest else None, acknowledged=out.acknowledged)

    def _table(self) -> Table | None:
        commits = self.outside.table
        if commits is None:
            return None
        last, version = (commits[-1] if commits else None), len(commits)
        metadata = _stamp(last, version) if last and not self.outside.forgotten_commits else None
        return Table("table-1", version, last.number if last else None, metadata, self.outside.foreign, self.outside.others)

    def wait_for_owners(self, logs: Collection[BrokerPartition]) -> None:
        """See World; owners go while `at` is told that the waiting begins, or not at all."""
        self._do("wait for owners", lambda: self._refuse_owned(logs))

    def _refuse_owned(self, logs: Collection[BrokerPartition]) -> None:
        for log in sorted(self.outside.owners.keys() & logs):
            raise Owned(f"the partition is owned by {self.outside.owners[log]}", topic=log.topic, partition=log.partition)

    def new_uid(self) -> str:
        """See World."""
        self.outside.uids_made += 1
        return f"uid{self.outside.uids_made}"

    def now_ms(self) -> int:
        """See World."""
        return 1_700_000_000_000 + len(self.outside.plans)

    def store(self, plan: Plan) -> None:
        """See World."""
        self._do("store plan", lambda: self._store_plan(plan))

    def _store_uid(self, uid: str) -> None:
        if self.outside.uid not in (None, uid):
            raise Owned("another driver named this pipeline")
        self.outside.uid = uid

    def _store_plan(self, plan: Plan) -> None:
        self._store_uid(plan.uid)
        kept = self.outside.plans.setdefault(plan.number, plan_documents.render_plan(plan))
        if plan_documents.parse_plan(kept, path="plans").id != plan.id:
            raise Owned("another driver stored this number")

    def supersede(self, plan: Plan, ledger: Ledger) -> None:
        """See World."""
        self._do("supersede", lambda: self._replace_plan(plan, ledger.newest_version))

    def _replace_plan(self, plan: Plan, version: int | None) -> None:
        if self.outside.plan_versions.get(plan.number, 0) != version:
            raise Owned("another driver changed this plan")
        self.outside.plans[plan.number] = plan_documents.render_plan(plan)
        self.outside.plan_versions[plan.number] = version + 1

    def adopt(self, plan: Plan) -> Ledger:
        """See World; oldest first, so that a crash on the way leaves a ledger that is only behind."""
        self._do("store uid", lambda: self._store_uid(plan.uid))
        for version, commit in enumerate(self.outside.table or (), 1):
            known = self.outside.plans.get(commit.number) if commit.number in self.outside.applied else None
            if known is None or plan_documents.parse_plan(known, path="plans").id != commit.plan_id:
                self._do(f"adopt {commit.number}", partial(self._adopt, commit, version))
        return self._ledger()

    def _adopt(self, commit: FakeCommit, version: int) -> None:
        self.outside.plans[commit.number] = plan_documents.render_plan(commit.plan)
        self.outside.plan_versions[commit.number] = self.outside.plan_versions.get(commit.number, 0) + 1
        receipts = tuple(_receipt(r, commit) for r in commit.plan.ranges)
        self.outside.applied[commit.number] = plan_documents.render_applied(
            Applied(commit.number, commit.plan_id, version, "table-1", receipts, commit.run_id))

    def read_ledger(self) -> Ledger:
        """See World."""
        return self._ledger()

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """See World."""
        new = [found for found in removals if found not in self.outside.removals]
        self._do("note removals", lambda: self.outside.removals.extend(new))

    @contextmanager
    def claiming(self, plan: Plan) -> Iterator[None]:
        """See World. A crashed driver gives nothing back; the next one takes over what stands there under our pipeline's name."""
        logs = {r.log for r in plan.ranges}
        if not logs or self._ownership.mode is OwnershipMode.OBSERVE:
            yield
            return
        self._do("claim", lambda: self._claim(logs))
        try:
            yield
        except Crash:
            raise
        except BaseException:
            self._do("release", self._release)
            raise
        self._do("release", self._release)

    def _claim(self, logs: Collection[BrokerPartition]) -> None:
        ours = {log for log, owner in self.outside.owners.items() if self._is_ours(owner)}
        self._refuse_owned(set(logs) - ours)
        self.outside.owners.update(dict.fromkeys(sorted(logs), self._name))

    def _is_ours(self, owner: str) -> bool:
        found = payloads.parse_owner(GROUP, owner)
        return found is not None and found.pipeline == PIPELINE

    def _release(self) -> None:
        for log in [log for log, owner in self.outside.owners.items() if owner == self._name]:
            del self.outside.owners[log]

    def fetch(self, plan: Plan, snapshot: Snapshot) -> list[OffsetRange]:
        """See World; nothing is read before the append."""
        del snapshot
        return self._do("fetch", lambda: list(plan.ranges))  # type: ignore[no-any-return]

    def append(self, plan: Plan, rows: list[OffsetRange]) -> tuple[Applied | None, Table | None]:
        """See World."""
        opened = self._do("open table", self.outside.transaction_version)
        self._refuse_lost(rows)
        self._do("append", lambda: self._write(plan, rows, opened))
        return self._with_epochs(self.recount(plan)), self._table()

    def _with_epochs(self, applied: Applied | None) -> Applied | None:
        """Whoever has read the range knows the epochs; rows alone do not tell them."""
        epochs = next((c.epochs for c in self.outside.table or () if applied and c.plan_id == applied.plan_id), ())
        if applied is None or len(epochs) != len(applied.receipts):
            return applied
        return replace(applied, receipts=tuple(
            replace(receipt, epochs=known, last_epoch=known[-1][0] if known else None)
            for receipt, known in zip(applied.receipts, epochs, strict=True)))

    def _refuse_lost(self, rows: list[OffsetRange]) -> None:
        for r in rows:
            if r.size and r.from_offset < self.outside.logs[r.log].log_start:
                raise ExpiredOffsets("the offset was deleted by retention", topic=r.log.topic, partition=r.log.partition)
        lost = [(r.log, at) for r in rows for at in sorted(self.outside.logs[r.log].lost) if r.from_offset <= at < r.until_offset]
        if lost:
            missing = " ".join(f"{log.topic}:{log.partition}:{at}-{at + 1}" for log, at in lost)
            raise MissingOffsets("offsets are missing from inside the log", missing=missing)

    def _write(self, plan: Plan, rows: list[OffsetRange], opened: int) -> None:
        if opened >= plan.number or self.outside.transaction_version() != opened:
            return  # skipped by the writer, or lost to another one under the same app id: read back, do not guess
        for r in rows:
            end = self.outside.logs[r.log].end_of_epoch(plan.leader_epochs[r.log]) if r.log in plan.leader_epochs else None
            if end and end.end_offset < r.until_offset:
                raise Cut(r.log, r.until_offset, end.end_offset).error()  # as each task does once it has read all
        read = tuple((r.log, offset) for r in rows for offset in self.outside.logs[r.log].read(r.from_offset, r.until_offset))
        lives = tuple(self.outside.logs[log].life_of(offset) for log, offset in read)
        epochs = tuple(self.outside.logs[r.log].epochs_in(r.from_offset, r.until_offset) for r in plan.ranges)
        self.outside.table = [*(self.outside.table or ()), FakeCommit(plan, read, self._run_id, lives, epochs)]

    def recount(self, plan: Plan) -> Applied | None:
        """See World."""
        for version, commit in enumerate(self.outside.table or (), 1):
            if (commit.number, commit.plan_id) == (plan.number, plan.id) and not self.outside.forgotten_commits:
                return Applied(plan.number, plan.id, version, "table-1", tuple(_receipt(r, commit) for r in plan.ranges), commit.run_id)
        return None

    def record_losses(self, plan: Plan) -> None:
        """See World; the losses table takes each number once, and no smaller one after it."""
        if plan.losses:
            self._do("record losses", lambda: self._record_losses(plan))

    def _record_losses(self, plan: Plan) -> None:
        if plan.number > max((number for number, _ in self.outside.losses), default=0):
            self.outside.losses.extend((plan.number, loss) for loss in plan.losses)

    def record(self, applied: Applied) -> None:
        """See World."""
        self._do("record", lambda: self._record(applied))

    def _record(self, applied: Applied) -> None:
        kept = self.outside.applied.get(applied.number)
        if kept is None or plan_documents.parse_applied(kept, path="applied").plan_id != applied.plan_id:
            self.outside.applied[applied.number] = plan_documents.render_applied(applied)

    def commit(self, plan: Plan, logs: Collection[BrokerPartition] | None = None) -> Mapping[BrokerPartition, Committed]:
        """See World; a few logs to a request, each request all or nothing."""
        if logs is None:
            logs = [log for log, position in plan.positions.items() if plan.seen[log].offset != position]
        wanted, moved = sorted(logs), {}
        for start in range(0, len(wanted), self._logs_per_request):
            some = wanted[start:start + self._logs_per_request]
            moved.update(self._do(f"commit from {start}", lambda some=some: self._commit_request(plan, some)))  # type: ignore[misc]
        return moved

    def _commit_request(self, plan: Plan, logs: list[BrokerPartition]) -> dict[BrokerPartition, Committed]:
        there = self.outside.committed()
        now = {log: there.get(log, NOTHING_COMMITTED) for log in logs}
        after = {log: Committed(plan.positions[log], 0 if (v := plan.seen[log].version) is None else v + 1) for log in logs}
        if all(now[log] == plan.seen[log] for log in logs):
            self.outside.offsets.update({log: (plan.positions[log], after[log].version or 0) for log in logs})
            return after
        if now == after:
            return after
        if any(now[log] not in (after[log], plan.seen[log]) for log in logs):
            raise OffsetMoved("somebody else moved the offset during the run")
        raise CommitUnknown("the offsets did not reach ZooKeeper")

    def tidy(self) -> None:
        """See World."""
        self._do("tidy", lambda: None)


def _stamp(commit: FakeCommit, version: int) -> CommitMetadata:
    plan = commit.plan
    return CommitMetadata(version, APP_ID, plan.uid, plan.number, plan.id, document=plan_documents.render_plan(plan), run_id=commit.run_id)


def _receipt(r: OffsetRange, commit: FakeCommit) -> Receipt:
    rows = sum(log == r.log and r.from_offset <= offset < r.until_offset for log, offset in commit.rows)
    return Receipt(rows=rows, missing_offsets=r.size - rows)
