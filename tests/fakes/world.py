"""The services of a run in memory, as one driver uses them.

Their behaviour is that of `world_contract`: `outside` is the shared state, `fake_ledger` and
`fake_table` change it. Before and after each single change the driver calls `at`, in which a test
may crash it or change something.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from etl.decide.byte_offsets import OperatorOffsets, no_operator_offsets, unverified_offsets
from etl.decide.loaded_intervals import Span
from etl.decide.member_offsets import CommitOutcome, commit_outcome
from etl.decide.offsets import reject_other_offsets_storage, timestamps_to_look_up
from etl.decide.plan_replacement import topics_left_to_read
from etl.decide.reconcile import plan_in_force
from etl.decide.recreated_or_truncated import (
    cluster_identity,
    end_places,
    epochs_to_ask,
    known_places,
)
from etl.decide.run_requests import bounds_to_find
from etl.errors import Owned
from etl.ledger import registrations
from etl.model.partitions import (
    Committed,
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
from etl.run.service_interfaces import Member
from etl.settings.choices import OwnershipMode
from etl.settings.sections import Settings
from etl.settings.source import TopicFilter
from tests.fakes import fake_group, fake_ledger, fake_table
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import CLUSTER, GROUP, PIPELINE, Outside, leader_of

_processes = itertools.count(1)


class Crash(BaseException):
    """The driver's process is gone. No EtlError, and nothing that the driver could catch."""


class When(str, Enum):
    """On which side of a change."""

    BEFORE = "before"
    AFTER = "after"


def _nothing(step: str, when: When) -> None:
    del step, when


class FakeWorld:
    """One driver's view of `outside`; a `World` for `ingest`.

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
        us = registrations.DriverNode("127.0.0.1", next(_processes), None, run_id)
        self._name = registrations.render_owner(
            GROUP, registrations.OwnerNode(PIPELINE, us)
        ).decode()
        self._at = at
        self._recorded: int | None = None
        self._logs_per_request = logs_per_request
        self.steps: list[str] = []

    def _do(self, step: str, change: Callable[[], Any]) -> Any:
        self.steps.append(step)
        self._at(step, When.BEFORE)
        result = change()
        self._at(step, When.AFTER)
        return result

    def observe(self, named: OperatorOffsets = no_operator_offsets) -> Snapshot:
        """See World; `named` are offsets that an operator names."""
        return self._saw(self._do("observe", lambda: self._snapshot(named)))

    def _saw(self, found: Snapshot) -> Snapshot:
        if found.ledger.applied:
            self._recorded = found.ledger.applied.number
        return replace(found, ledger=replace(found.ledger, pauses=self.outside.pauses))

    def _snapshot(self, named: OperatorOffsets = no_operator_offsets) -> Snapshot:
        out = self.outside
        ours = {
            partition: found
            for partition, found in out.logs.items()
            if self._topics.admits(partition.topic)
        }
        partitions = {partition: found for partition, found in ours.items() if found.has_leader}
        ledger, table = self._ledger(), self._table()
        moments = timestamps_to_look_up(
            partitions, plan_in_force(ledger, table), self._settings, out.committed()
        )
        extents, in_force = (
            {partition: found.extent for partition, found in partitions.items()},
            plan_in_force(ledger, table),
        )
        doubted = unverified_offsets(in_force, table, out.committed(), extents, named)
        places = (end_places(extents), known_places(in_force, extents))
        called = cluster_identity(
            ledger.newest,
            out.reported_id,
            self._settings.source.assume_cluster_id or CLUSTER,
            lambda name: name == CLUSTER and bool(out.table),
            self._settings.source.broker_type,
        )
        looked_at = {
            one.partition: tuple(
                partitions[each.partition].look_at(each.offset)
                for each in doubted
                if each.partition == one.partition
            )
            for one in doubted
        }
        epoch_ends = {
            partition: end
            for partition, epoch in epochs_to_ask(
                plan_in_force(ledger, table), ledger.applied
            ).items()
            if partition in partitions and (end := partitions[partition].end_of_epoch(epoch))
        }
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
                committed=out.committed(),
                owner=out.owners,
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
            plan, kept = fake_ledger.find_key(self.outside, key, newest.number if newest else 0)
        else:
            plan, kept = (None, None)
        until = bounds_to_find(self._request, newest, plan).until
        if until is None or until.at_ms is None:
            return ResolvedRequest(self._request, kept, plan)
        found = {partition: one.late_at(until.at_ms) for partition, one in partitions.items()}
        return ResolvedRequest(self._request, kept, plan, found)

    def _ledger(self) -> Ledger:
        return fake_ledger.read_ledger(self.outside)

    def _table(self) -> Table | None:
        return fake_table.read_table(self.outside)

    def wait_for_owners(self, partitions: Collection[TopicPartition]) -> None:
        """See World; owners disappear during `at` when the waiting begins, or never."""
        self._do("wait for owners", lambda: self._reject_owned(partitions))

    def _reject_owned(self, partitions: Collection[TopicPartition]) -> None:
        for partition in sorted(self.outside.owners.keys() & partitions):
            raise Owned(
                f"the partition is owned by {self.outside.owners[partition]}",
                topic=partition.topic,
                partition=partition.partition,
            )

    def new_uid(self) -> str:
        """See World."""
        self.outside.uids_made += 1
        return f"uid{self.outside.uids_made}"

    def now_ms(self) -> int:
        """See World; no two drivers read the same."""
        self.outside.now_ms += 1
        return self.outside.now_ms

    @property
    def name(self) -> str:
        """The content of our owner nodes."""
        return self._name

    def member(self) -> Member | None:
        """See World."""
        self._is_member = self._member is not None
        return self._member(self) if self._member else None

    def store(self, plan: Plan) -> RejectedCommit | None:
        """See World."""
        is_after_record = self._recorded == plan.number - 1
        return self._handed_over(
            "store plan",
            plan,
            lambda: fake_ledger.store_plan(self.outside, plan, is_after_record=is_after_record),
        )

    def remember(self, key: RunKeyRecord, *, after: int) -> None:
        """See World."""
        self._do("remember", lambda: fake_ledger.remember(self.outside, key, after))

    def supersede(self, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
        """See World."""

        def write() -> None:
            fake_ledger.replace_plan(self.outside, plan, ledger.newest_version)

        if not (ledger.newest and ledger.newest.commit.state is CommitState.DONE):
            return self._handed_over("supersede", plan, write)
        self._do("supersede", write)
        return None

    def _handed_over(
        self, step: str, plan: Plan, write: Callable[[], None]
    ) -> RejectedCommit | None:
        void: RejectedCommit | None = self._do(
            step, lambda: fake_ledger.hand_over(self.outside, plan, self._name, write)
        )
        return void

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        """See World."""
        planner = plan.commit.member
        if planner is None or planner.membership is not Membership.COORDINATOR:
            return plan
        if plan.commit.state is CommitState.IN_DOUBT:
            refused: RejectedCommit | None = self._do(
                "hand over", lambda: fake_group.commit_fenced(self.outside, plan)
            )
            if refused:
                self._do("write void", lambda: fake_group.mark(self.outside, fake_group.void(plan)))
                return refused
            plan = plan.with_commit_state(CommitState.DONE)
        self._do("mark", lambda: fake_group.mark(self.outside, plan))
        return plan

    def fence(self, plan: Plan) -> None:
        """See World."""
        assert plan.commit.member
        is_in_doubt = plan.commit.state is CommitState.IN_DOUBT
        if is_in_doubt:
            reject_other_offsets_storage(plan, self.outside.offsets_in)
        member_id = plan.commit.member.member_id
        self._do("fence", lambda: self.outside.group.end(member_id))
        found = (
            commit_outcome(plan, self.outside.committed()) if is_in_doubt else CommitOutcome.UNTOLD
        )
        if found in (CommitOutcome.TAKEN, CommitOutcome.NOT_TAKEN):
            if found is CommitOutcome.TAKEN:
                known = plan.with_commit_state(CommitState.DONE)
            else:
                known = fake_group.void(plan)
            self._do("write resolved commits", lambda: fake_group.mark(self.outside, known))

    def adopt(self, plan: Plan) -> Ledger:
        """See World; oldest first, so that after a crash the ledger is at most older."""
        self._record_losses(plan)
        self._do("store uid", lambda: fake_ledger.store_uid(self.outside, plan.origin.pipeline_id))
        for version, commit in fake_ledger.commits_to_adopt(self.outside):
            self._do(
                f"adopt {commit.number}",
                partial(fake_ledger.adopt_commit, self.outside, commit, version),
            )
        return self._ledger()

    def read_ledger(self) -> Ledger:
        """See World."""
        return self._ledger()

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """See World."""
        new = [found for found in removals if found not in self.outside.removals]
        self._do("note removals", lambda: self.outside.removals.extend(new))

    @contextmanager
    def claiming(self, plan: Plan) -> Iterator[None]:
        """See World. A crashed driver releases nothing; the next one takes over the owner nodes
        with our pipeline's name.
        """
        partitions = {r.partition for r in plan.ranges}
        is_backfill = plan.kind is PlanKind.BACKFILL
        if not partitions or is_backfill or self._group.mode is not OwnershipMode.CLAIM:
            yield
            return
        self._do("claim", lambda: self._claim(partitions))
        try:
            yield
        except Crash:
            raise
        except BaseException:
            self._do("release", self._release)
            raise
        self._do("release", self._release)

    def _claim(self, partitions: Collection[TopicPartition]) -> None:
        ours = {
            partition for partition, owner in self.outside.owners.items() if self._is_ours(owner)
        }
        self._reject_owned(set(partitions) - ours)
        self.outside.owners.update(dict.fromkeys(sorted(partitions), self._name))

    def _is_ours(self, owner: str) -> bool:
        found = registrations.parse_owner(GROUP, owner)
        return found is not None and found.pipeline == PIPELINE

    def _release(self) -> None:
        for partition in [
            partition for partition, owner in self.outside.owners.items() if owner == self._name
        ]:
            del self.outside.owners[partition]

    def fetch(self, plan: Plan, snapshot: Snapshot) -> list[OffsetRange]:
        """See World; nothing is read before the append."""
        del snapshot
        return self._do("fetch", lambda: list(plan.ranges))  # type: ignore[no-any-return]

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        """See World."""
        del snapshot
        return f"fake: for plan {plan.number}"

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """See World."""
        ids = {**self.outside.topic_ids, **self.outside.creation_ids}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def append(
        self, plan: Plan, rows: list[OffsetRange]
    ) -> tuple[CommitResult | None, Table | None]:
        """See World."""
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
        """See World."""
        return fake_table.recount(self.outside, plan)

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        """See World."""
        self._record_losses(plan)
        if applied:
            self._do("record", lambda: fake_ledger.record(self.outside, applied))
            self._recorded = applied.number

    def _record_losses(self, plan: Plan) -> None:
        if plan.losses.lost:
            self._do("record losses", lambda: fake_ledger.record_losses(self.outside, plan))

    def commit(
        self, plan: Plan, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Committed]:
        """See World; a few logs to a request, each request all or nothing."""
        wanted, moved = sorted(plan.offsets_to_move if partitions is None else partitions), {}
        is_of_member = plan.commit.state is CommitState.AFTER_APPEND_AS_MEMBER
        if is_of_member and (partitions is None or self._is_member):
            return self._commit_as_member(plan, wanted, is_own=partitions is None)
        for start in range(0, len(wanted), self._logs_per_request):
            some = wanted[start : start + self._logs_per_request]
            if plan.commit.storage is not OffsetsStorage.ZOOKEEPER:
                self._do(
                    f"commit from {start}",
                    partial(fake_ledger.commit_in_kafka, self.outside, plan, some),
                )
                if plan.commit.storage is OffsetsStorage.DUAL:
                    self._do(
                        "commit in ZooKeeper",
                        partial(fake_ledger.commit_in_zookeeper, self.outside, plan, some),
                    )
                moved.update({partition: plan.moved(partition) for partition in some})
                continue
            moved.update(
                self._do(
                    f"commit from {start}",
                    partial(fake_ledger.commit_request, self.outside, plan, some),
                )
            )
        return moved

    def _commit_as_member(
        self,
        plan: Plan,
        wanted: Sequence[TopicPartition],
        *,
        is_own: bool,
    ) -> dict[TopicPartition, Committed]:
        moved = {}
        for start in range(0, len(wanted), self._logs_per_request):
            some = wanted[start : start + self._logs_per_request]
            commit: Callable[[], list[TopicPartition]]
            if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
                commit = partial(fake_ledger.commit_owned, self.outside, plan, some, self._is_ours)
            elif is_own:
                commit = partial(fake_group.commit_of_member, self.outside, plan, some)
            else:
                ours = [
                    partition
                    for partition in some
                    if self.outside.owners.get(partition) == self._name
                ]
                commit = partial(fake_group.commit_as_owner, self.outside, plan, ours)
            moved.update(
                {
                    partition: plan.moved(partition)
                    for partition in self._do(f"commit from {start}", commit)
                }
            )
        return moved

    def loaded(self, transaction_version: int | None = None) -> LoadedIntervals:
        """See World."""
        return fake_ledger.loaded(self.outside, transaction_version)

    def read_backfill(self, name: str) -> Backfill | None:
        """See World."""
        return fake_ledger.read_backfill(self.outside, name)

    def create_backfill(self, backfill: Backfill) -> None:
        """See World."""
        self._do("create backfill", lambda: fake_ledger.create_backfill(self.outside, backfill))

    def replace_backfill(self, before: Backfill, after: Backfill) -> None:
        """See World."""
        self._do(
            "replace backfill", lambda: fake_ledger.replace_backfill(self.outside, before, after)
        )

    def stored_plans(self) -> list[tuple[Plan, bool]]:
        """See World."""
        return fake_ledger.stored_plans(self.outside)

    def first_at(
        self, moments: Collection[tuple[TopicPartition, int]]
    ) -> Mapping[tuple[TopicPartition, int], int]:
        """See World."""
        return {
            (partition, moment): self.outside.logs[partition].first_at(moment)
            for partition, moment in moments
        }

    def rows_there(self, spans: Sequence[Span]) -> Mapping[TopicPartition, int]:
        """See World."""
        counted: Mapping[TopicPartition, int] = self._do(
            "count rows", lambda: fake_table.rows_there(self.outside, spans)
        )
        return counted

    def results_from_table(self, plan: Plan) -> list[RangeResult]:
        """See World."""
        counted: list[RangeResult] = self._do(
            "count rows", lambda: fake_table.results_from_table(self.outside, plan)
        )
        return counted

    def tidy(self) -> None:
        """See World."""
        self._do("tidy", lambda: None)
