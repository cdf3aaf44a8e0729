"""The services of a run in memory, as one driver uses them.

Ledger, offsets and owners are the real classes over ZooKeeper's znodes in memory. The table
(`fake_table`), the partitions (`fake_log`) and a group in Kafka (`fake_group`) are fakes. Before
and after each single change the driver calls `at`, in which a test may crash it or change
something.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from kazoo.exceptions import ConnectionLoss

from etl.decide.byte_offsets import OperatorOffsets, no_operator_offsets, unverified_offsets
from etl.decide.loaded_intervals import Span
from etl.decide.member_offsets import CommitOutcome, commit_outcome
from etl.decide.offsets import (
    in_zookeeper_alone,
    reject_other_offsets_storage,
    timestamps_to_look_up,
)
from etl.decide.plan_replacement import topics_left_to_read
from etl.decide.reconcile import plan_in_force
from etl.decide.recreated_or_truncated import (
    cluster_identity,
    end_places,
    epochs_to_ask,
    known_places,
)
from etl.decide.run_requests import bounds_to_find
from etl.errors import OffsetMoved, Owned, SessionLost
from etl.io.process import this_driver
from etl.io.zookeeper.group_member import ZooKeeperMember
from etl.io.zookeeper.group_offsets import ConsumerGroup, OwnedOffsets
from etl.io.zookeeper.ledger import Check, DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import (
    BackfillStore,
    find_key,
    note_removals,
    prune,
    read_all_loaded_intervals,
    read_pauses,
    read_plans_with_results,
    remember,
    write_mark,
)
from etl.io.zookeeper.owners import Owners
from etl.io.zookeeper.pipelines import pipelines_beside
from etl.ledger import owner_nodes
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    LookedAt,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import (
    CommitResult,
    CommitState,
    OffsetRange,
    Plan,
    PlanKind,
    RangeResult,
    Request,
    RunKeyRecord,
)
from etl.model.snapshot import (
    Backfill,
    ForeignCommit,
    GroupSnapshot,
    Ledger,
    LoadedIntervals,
    ResolvedRequest,
    Snapshot,
    Table,
    partition_snapshots,
    topic_snapshots,
)
from etl.run.live_services import PlanStore
from etl.run.service_interfaces import Member
from etl.settings.choices import OwnershipMode
from etl.settings.sections import Settings
from etl.settings.source import TopicFilter
from tests.fakes import fake_group, fake_table
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import CLUSTER, Outside, leader_of
from tests.fakes.znode_views import GROUP, PIPELINE
from tests.fakes.zookeeper_memory import MemoryZooKeeper

_processes = itertools.count(10_000_000)
"""Ids of drivers: no process of this host has them, so each counts as dead."""
_HERE = this_driver("")


class Crash(BaseException):
    """The driver's process is gone. No EtlError, and nothing that the driver could catch."""


class When(str, Enum):
    """On which side of a change."""

    BEFORE = "before"
    AFTER = "after"


def _nothing(step: str, when: When) -> None:
    del step, when


class _Turn(DriverLock):
    """The lock of a driver whose turn it always is: tests decide who works when."""

    @contextmanager
    def proven(self) -> Iterator[Check]:
        yield Check("/", 0)


class _LoadedRows:
    """`LoadedRows` by the real ledger and the fake table."""

    def __init__(
        self, outside: Outside, ledger: PlanLedger, do: Callable[[str, Callable[[], Any]], Any]
    ) -> None:
        self._outside = outside
        self._ledger = ledger
        self._do = do

    def intervals(self, transaction_version: int | None = None) -> LoadedIntervals:
        return read_all_loaded_intervals(self._ledger, transaction_version)

    def stored_plans(self) -> list[tuple[Plan, bool]]:
        found = read_plans_with_results(self._ledger)
        return [(plan, applied is not None) for plan, applied in found]

    def rows_in(self, spans: Sequence[Span]) -> Mapping[TopicPartition, int]:
        counted: Mapping[TopicPartition, int] = self._do(
            "count rows", lambda: fake_table.rows_there(self._outside, spans)
        )
        return counted

    def results_in_table(self, plan: Plan) -> list[RangeResult]:
        counted: list[RangeResult] = self._do(
            "count rows", lambda: fake_table.results_from_table(self._outside, plan)
        )
        return counted


class _Backfills:
    """`BackfillRequests` in the znodes in memory."""

    def __init__(self, ledger: PlanLedger, write: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._store = BackfillStore(ledger)
        self._write = write

    def read(self, name: str) -> Backfill | None:
        return self._store.read(name)

    def create(self, backfill: Backfill) -> None:
        self._write("create backfill", lambda: self._store.create(backfill))

    def replace(self, before: Backfill, after: Backfill) -> None:
        self._write("replace backfill", lambda: self._store.replace(before, after))


class FakeWorld:
    """One driver's view of `outside`: `Services` for `ingest`.

    `reads_first`: rows are read in a step before the append, as tasks do, so that the partitions
    may change in between.
    """

    def __init__(
        self,
        outside: Outside,
        settings: Settings,
        at: Callable[[str, When], None] = _nothing,
        *,
        logs_per_request: int = 2,
        run_id: str = "run-1",
        request: Request | None = None,
        member: Callable[[FakeWorld], Member] | None = None,
        reads_first: bool = False,
    ) -> None:
        self._reads_first = reads_first
        self._member, self._is_member = member, False
        self._request = request
        self._run_id = run_id
        self.outside = outside
        self._settings = settings
        self._topics: TopicFilter = settings.source.topic_filter
        self._group = settings.group
        driver = replace(_HERE, pid=next(_processes), started=None, run_id=run_id)
        self._us = owner_nodes.OwnerNode(PIPELINE, driver)
        self._name = owner_nodes.render_owner(GROUP, self._us).decode()
        self.zookeeper = MemoryZooKeeper(outside.zookeeper)
        self.zookeeper.client.changing = self._changing
        place = self.zookeeper, GROUP, PIPELINE
        self.ledger = PlanLedger(*place)
        self._owners = Owners(*place)
        self._registered: ZooKeeperMember | None = None
        self._plans = PlanStore(
            GROUP, self.zookeeper, self.ledger, _Turn(*place), self._owner_checks
        )
        self._group_offsets = ConsumerGroup(
            self.zookeeper, GROUP, physical=settings.source.is_physical
        )
        self.backfills = _Backfills(self.ledger, self._write)
        self.loaded = _LoadedRows(outside, self.ledger, self._do)
        self._pipelines_version: int | None = None
        self._at = at
        self._recorded: int | None = None
        self._logs_per_request = logs_per_request
        self._step = ""
        self.steps: list[str] = []

    def _do(self, step: str, change: Callable[[], Any]) -> Any:
        """Make one change outside of ZooKeeper, or look at something."""
        with self._in_step(step):
            return change()

    def _write(self, step: str, change: Callable[[], Any]) -> Any:
        """Call the real code; each of its changes of znodes is a change of this name."""
        self._step = step
        return change()

    @contextmanager
    def _changing(self, is_of_parents: bool) -> Iterator[None]:
        step = f"{self._step}: parents" if is_of_parents else self._step
        try:
            with self._in_step(step):
                yield
        except SessionLost as error:
            raise ConnectionLoss from error

    @contextmanager
    def _in_step(self, step: str) -> Iterator[None]:
        self.steps.append(step)
        try:
            self._at(step, When.BEFORE)
            yield
            self._at(step, When.AFTER)
        except Crash as crash:
            self.zookeeper.client.die(crash)
            raise

    def observe(self, named: OperatorOffsets = no_operator_offsets) -> Snapshot:
        """See World; `named` are offsets that an operator names."""
        return self._saw(self._do("observe", lambda: self._snapshot(named)))

    def _saw(self, found: Snapshot) -> Snapshot:
        if found.ledger.applied:
            self._recorded = found.ledger.applied.number
        pauses = read_pauses(self.ledger)
        return replace(found, ledger=replace(found.ledger, pauses=pauses))

    def _snapshot(self, named: OperatorOffsets = no_operator_offsets) -> Snapshot:
        out = self.outside
        self._pipelines_version = pipelines_beside(self.ledger).version()
        committed = out.committed()
        ours = {
            partition: found
            for partition, found in out.logs.items()
            if self._topics.admits(partition.topic)
        }
        partitions = {partition: found for partition, found in ours.items() if found.has_leader}
        ledger, table = self.ledger.read_ledger(), self._table()
        in_force = plan_in_force(ledger, table)
        moments = timestamps_to_look_up(partitions, in_force, self._settings, committed)
        extents = {partition: found.extent for partition, found in partitions.items()}
        called = cluster_identity(
            ledger.newest,
            out.reported_id,
            self._settings.source.assume_cluster_id or CLUSTER,
            lambda name: name == CLUSTER and bool(out.table),
            self._settings.source.broker_type,
        )
        looked_at: dict[TopicPartition, tuple[LookedAt, ...]] = {}
        for one in unverified_offsets(in_force, table, committed, extents, named):
            found = partitions[one.partition].look_at(one.offset)
            looked_at[one.partition] = (*looked_at.get(one.partition, ()), found)
        epoch_ends = {}
        for partition, epoch in epochs_to_ask(in_force, ledger.applied).items():
            end = partitions[partition].end_of_epoch(epoch) if partition in partitions else None
            if end:
                epoch_ends[partition] = end
        places = (end_places(extents), known_places(in_force, extents))
        fingerprints = {
            partition: tuple(
                partitions[partition].tail(*request[partition])
                for request in places
                if partition in request
            )
            for partition in partitions
            if partition.is_physical
        }
        return Snapshot(
            cluster=called,
            partitions=partition_snapshots(
                extents,
                ours.keys() - partitions.keys(),
                leader={partition: leader_of(partition) for partition in partitions},
                committed=committed,
                owner=dict(out.owners),
                bytes_per_offset={partition: 100.0 for partition in partitions},
                leader_epoch={
                    partition: max(found.epochs)
                    for partition, found in partitions.items()
                    if found.tells_epochs
                },
                epoch_end=epoch_ends,
                start_at_time={
                    partition: partitions[partition].first_at(moment)
                    for partition, moment in moments.items()
                },
                looked_at=looked_at,
                fingerprints=fingerprints,
            ),
            topics=topic_snapshots(
                topics_left_to_read(ledger) - {partition.topic for partition in out.logs},
                id={**out.creation_ids, **out.topic_ids},
                creation_id=out.creation_ids,
            ),
            group=GroupSnapshot(storage=out.offsets_in, live_consumers=out.live_consumers),
            ledger=ledger,
            table=table,
            request=self._resolved(ledger, partitions) if self._request else None,
        )

    def _resolved(
        self, ledger: Ledger, partitions: Mapping[TopicPartition, FakeLog]
    ) -> ResolvedRequest:
        assert self._request is not None
        key, newest = self._request.run_key, ledger.newest
        if key:
            plan, kept = find_key(self.ledger, key, newest.number if newest else 0)
        else:
            plan, kept = (None, None)
        until = bounds_to_find(self._request, newest, plan).until
        if until is None or until.at_ms is None:
            return ResolvedRequest(self._request, kept, plan)
        found = {}
        for partition, one in partitions.items():
            offset = one.late_at(until.at_ms)
            # Under read_committed brokers search readable records only.
            is_readable = offset is not None and offset < one.end - one.held_back
            found[partition] = offset if is_readable else None
        return ResolvedRequest(self._request, kept, plan, found)

    def _table(self) -> Table | None:
        """What a look finds; a test may find another."""
        return fake_table.read_table(self.outside)

    def wait_for_owners(self, partitions: Collection[TopicPartition]) -> None:
        """See World; owners disappear during `at` when the waiting begins, or never."""
        self._do("wait for owners", lambda: self._owners.wait_until_gone(partitions, wait_s=0))

    def new_uid(self) -> str:
        self.outside.uids_made += 1
        return f"uid{self.outside.uids_made}"

    def now_ms(self) -> int:
        """See World; no two drivers read the same."""
        self.outside.now_ms += 1
        return self.outside.now_ms

    @property
    def name(self) -> str:
        return self._name

    def member(self) -> Member | None:
        self._is_member = self._member is not None
        found = self._member(self) if self._member else None
        if self.outside.offsets_in is OffsetsStorage.ZOOKEEPER:
            self._registered = found  # type: ignore[assignment]
        return found

    def _owner_checks(self, partitions: Collection[TopicPartition]) -> Sequence[Check]:
        if self._registered is None:
            return ()
        return self._registered.owner_checks(partitions)

    def store(self, plan: Plan) -> RejectedCommit | None:
        store = partial(
            self._plans.store,
            plan,
            pipelines_version=self._pipelines_version,
            is_after_record=self._recorded == plan.number - 1,
        )
        return self._write("store plan", store)  # type: ignore[no-any-return]

    def remember(self, key: RunKeyRecord, *, after: int) -> None:
        self._write("remember", lambda: remember(self.ledger, key, after=after))

    def supersede(self, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
        supersede = partial(
            self._plans.supersede, plan, ledger, pipelines_version=self._pipelines_version
        )
        return self._write("supersede", supersede)  # type: ignore[no-any-return]

    def _mark(self, step: str, plan: Plan) -> None:
        self._write(step, lambda: write_mark(self.ledger, plan))

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        planner = plan.commit.member
        if planner is None or planner.membership is not Membership.COORDINATOR:
            return plan
        if plan.commit.state is CommitState.IN_DOUBT:
            refused: RejectedCommit | None = self._do(
                "hand over", lambda: fake_group.commit_fenced(self.outside, plan)
            )
            if refused:
                self._mark("write void", plan.with_commit_state(CommitState.REJECTED))
                return refused
            plan = plan.with_commit_state(CommitState.DONE)
        self._mark("mark", plan)
        return plan

    def fence(self, plan: Plan) -> None:
        assert plan.commit.member
        is_in_doubt = plan.commit.state is CommitState.IN_DOUBT
        if is_in_doubt:
            reject_other_offsets_storage(plan, self.outside.offsets_in)
        member_id = plan.commit.member.member_id
        self._do("fence", lambda: self.outside.group.end(member_id))
        found = (
            commit_outcome(plan, self.outside.committed()) if is_in_doubt else CommitOutcome.UNTOLD
        )
        if found is CommitOutcome.TAKEN:
            self._mark("write resolved commits", plan.with_commit_state(CommitState.DONE))
        elif found is CommitOutcome.NOT_TAKEN:
            self._mark("write resolved commits", plan.with_commit_state(CommitState.REJECTED))

    def adopt(self, plan: Plan) -> Ledger:
        """See World; as `adopt_commits` does with the commits of a real table."""
        self._record_losses(plan)
        self._write("store uid", lambda: self.ledger.store_uid(plan.origin.pipeline_id))
        unknown = []
        for version, commit in reversed(self.outside.commits()):
            known = self.ledger.read_plan(commit.number)
            if known and known.id == commit.plan_id and self.ledger.read_record_of(known):
                break
            unknown.append((version, commit))
        for version, commit in reversed(unknown):
            results = tuple(fake_table.result_of(r, commit.rows) for r in commit.plan.ranges)
            applied = CommitResult(
                commit.number,
                commit.plan_id,
                version,
                self.outside.table_id,
                results,
                commit.run_id,
            )
            self._write(
                f"adopt {commit.number}", partial(self.ledger.adopt_plan, commit.plan, applied)
            )
        ledger = self.ledger.read_ledger()
        if ledger.applied:
            self._recorded = ledger.applied.number
        return ledger

    def read_ledger(self) -> Ledger:
        return self.ledger.read_ledger()

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        self._write("note removals", lambda: note_removals(self.ledger, tuple(removals)))

    @contextmanager
    def claiming(self, plan: Plan) -> Iterator[None]:
        """See `Services`. A crashed driver releases nothing; the next one takes over."""
        partitions = {r.partition for r in plan.ranges}
        is_backfill = plan.kind is PlanKind.BACKFILL
        if not partitions or is_backfill or self._group.mode is not OwnershipMode.CLAIM:
            yield
            return
        threads = dict.fromkeys(partitions, self._name.encode())
        try:
            self._write("claim", lambda: self._owners.claim(threads, self._us))
            yield
        finally:
            self._write("release", lambda: self._owners.release(partitions, calling_others=True))

    def fetch(self, plan: Plan, snapshot: Snapshot) -> list[OffsetRange]:
        """See World; nothing is read before the append."""
        del snapshot
        return self._do("fetch", lambda: list(plan.ranges))  # type: ignore[no-any-return]

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        del snapshot
        return f"fake: for plan {plan.number}"

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        ids = {**self.outside.topic_ids, **self.outside.creation_ids}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def append(
        self, plan: Plan, rows: list[OffsetRange]
    ) -> tuple[CommitResult | None, Table | None]:
        opened = self._do("open table", lambda: fake_table.open_table(self.outside, plan))
        fake_table.reject_lost(self.outside, rows)
        read: fake_table.ReadRows | None = None
        if self._reads_first:
            read = self._do("read", lambda: fake_table.read_rows(self.outside, plan, rows))
        is_ours = self._do(
            "append",
            lambda: fake_table.write(
                self.outside, plan, rows, opened=opened, run_id=self._run_id, read=read
            ),
        )
        applied = fake_table.read_back(self.outside, plan)
        return fake_table.as_read(
            self.outside, applied
        ) if applied and is_ours else applied, self._table()

    def recount(self, plan: Plan) -> CommitResult | None:
        return fake_table.recount(self.outside, plan)

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        self._record_losses(plan)
        if applied:
            self._write("record", lambda: self.ledger.record_applied(applied))
            self._recorded = applied.number

    def _record_losses(self, plan: Plan) -> None:
        if plan.losses.lost:
            self._do("record losses", lambda: fake_table.record_losses(self.outside, plan))

    def commit(
        self, plan: Plan, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Committed]:
        """See World; a few logs to a request, each request all or nothing."""
        wanted = sorted(plan.offsets_to_move if partitions is None else partitions)
        moved: dict[TopicPartition, Committed] = {}
        is_of_member = plan.commit.state is CommitState.AFTER_APPEND_AS_MEMBER
        if is_of_member and (partitions is None or self._is_member):
            return self._commit_as_member(plan, wanted, is_own=partitions is None)
        for start in range(0, len(wanted), self._logs_per_request):
            some = wanted[start : start + self._logs_per_request]
            step = f"commit from {start}"
            try:
                moved.update(self._commit_some(step, plan, some))
            except OffsetMoved as error:
                newest = max(self.ledger.plan_numbers(), default=plan.number)
                if newest <= plan.number:
                    raise
                raise Owned(f"Another driver stored plan {newest}") from error
        return moved

    def _commit_some(
        self, step: str, plan: Plan, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        group = self._group_offsets
        if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
            return self._write(step, lambda: group.commit(plan, partitions))  # type: ignore[no-any-return]
        self._do(step, lambda: fake_group.commit(self.outside, plan, partitions))
        if plan.commit.storage is OffsetsStorage.DUAL:
            found = group.committed(partitions)
            left = [
                partition
                for partition in partitions
                if found.get(partition, NOTHING_COMMITTED).offset != plan.loaded_until[partition]
            ]
            self._write("commit in ZooKeeper", lambda: group.commit(in_zookeeper_alone(plan), left))
        return {partition: plan.moved(partition) for partition in partitions}

    def _commit_as_member(
        self,
        plan: Plan,
        wanted: Sequence[TopicPartition],
        *,
        is_own: bool,
    ) -> dict[TopicPartition, Committed]:
        moved: dict[TopicPartition, Committed] = {}
        owned = OwnedOffsets(self.zookeeper, GROUP, self._group_offsets)
        for start in range(0, len(wanted), self._logs_per_request):
            some = wanted[start : start + self._logs_per_request]
            step = f"commit from {start}"
            if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
                moved.update(self._write(step, partial(owned.move, plan, some)))
                continue
            if is_own:
                commit = partial(fake_group.commit_of_member, self.outside, plan, some)
            else:
                owners = self.outside.owners
                ours = [partition for partition in some if owners.get(partition) == self._name]
                commit = partial(fake_group.commit_as_owner, self.outside, plan, ours)
            for partition in self._do(step, commit):
                moved[partition] = plan.moved(partition)
        return moved

    def first_at(
        self, moments: Collection[tuple[TopicPartition, int]]
    ) -> Mapping[tuple[TopicPartition, int], int]:
        return {
            (partition, moment): self.outside.logs[partition].first_at(moment)
            for partition, moment in moments
        }

    def tidy(self) -> None:
        self._do("tidy", lambda: self._write("prune", lambda: prune(self.ledger)))
