"""How are a run's services implemented on real ZooKeeper, brokers, Delta and Spark?

`LiveServices` implements `Services` by calls of etl/io and decides nothing. `GroupMembership` joins
the group and ends the memberships of dead drivers; `PlanStore` stores plans together with the
offset commits of the same transaction.

Not here: snapshots (etl/run/observe.py), reading loaded rows again (etl/run/loaded_rows.py), making
a membership (etl/run/member_of_run.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from etl.decide.byte_offsets import OperatorOffsets, no_operator_offsets
from etl.decide.member_offsets import CommitOutcome, commit_outcome, holds_assignment
from etl.decide.offsets import reject_other_offsets_storage
from etl.decide.plan import is_short
from etl.decide.table_changes import app_id_of
from etl.decide.table_rules import catalog_of, reject_relocated_table
from etl.decide.table_storage import is_probe_due
from etl.errors import LedgersDisagree, OffsetMoved, Owned, TableUnreachable
from etl.io.brokers.cluster_requests import Cluster
from etl.io.delta import losses
from etl.io.delta.append import Destination, Load, Takes, append
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.loaded_plans import Outcome, Result, read_back
from etl.io.delta.table_shape import check_writable
from etl.io.process import new_uid
from etl.io.zookeeper import ledger_side_documents
from etl.io.zookeeper.group_offsets import HandOver
from etl.io.zookeeper.ledger import Check, DriverLock, Part, PlanLedger
from etl.io.zookeeper.ledger_side_documents import BackfillStore, read_named_table, write_mark
from etl.io.zookeeper.owners import Owners
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.documents import collector_paused
from etl.ledger.plan_document import render_commit_metadata
from etl.model.partitions import (
    Committed,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import CommitResult, CommitState, Plan, PlanKind, Request, RunKeyRecord
from etl.model.snapshot import ForeignCommit, Ledger, Snapshot, Table
from etl.report.run_progress import Phases, Stopwatch, Verb
from etl.run.discovery import Discovery
from etl.run.loaded_rows import LoadedRowsOfTable, adopt_commits, applied_in_run
from etl.run.observe import GroupOffsets, ObservedState, Observer, observe_table
from etl.run.read_rows import (
    Following,
    check_rows,
    format_rows,
    import_transform,
    needs_no_spark,
    reader_for,
    translating_transform_errors,
    try_on_no_rows,
    write_files_without_spark,
    writer_in_words,
    writer_of,
)
from etl.run.run_context import RunContext
from etl.run.service_interfaces import Member, now_ms
from etl.run.spark_on_demand import RunSpark
from etl.settings.choices import OwnershipMode
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.io.brokers.group_member import CoordinatedMember
    from etl.io.zookeeper.group_member import ZooKeeperMember


class GroupMembership:
    """The membership of one run or command in its group, and those of dead drivers."""

    def __init__(
        self,
        settings: Settings,
        zookeeper: ZooKeeper,
        run_id: str,
        ledger: PlanLedger,
        offsets: GroupOffsets,
        discovery: Discovery,
    ) -> None:
        self._settings = settings
        self._zookeeper = zookeeper
        self._run_id = run_id
        self._ledger = ledger
        self._offsets = offsets
        self._discovery = discovery
        self._registered: ZooKeeperMember | None = None
        self._coordinated: CoordinatedMember | None = None

    def member(self) -> Member | None:
        """Return the membership, not joined yet; None if the conf has no `group.mode: join`."""
        if self._settings.group.membership is Membership.ZOOKEEPER:
            from etl.run.member_of_run import zookeeper_member

            self._registered = zookeeper_member(self._settings, self._zookeeper, self._run_id)
            return self._registered
        if self._settings.group.membership is Membership.COORDINATOR:
            self._coordinated = self._new_coordinated()
            return self._coordinated
        return None

    def _new_coordinated(self) -> CoordinatedMember:
        from etl.run.member_of_run import coordinated_member

        return coordinated_member(self._settings, self._discovery)

    def owner_checks(self, partitions: Collection[TopicPartition]) -> Sequence[Check]:
        """Return the checks of a commit that a member in ZooKeeper owns these partitions."""
        if self._registered is None:
            return ()
        return self._registered.owner_checks(partitions)

    def fence(self, plan: Plan) -> None:
        """See `Services`."""
        planner = plan.commit.member
        if planner is None or planner.membership is not Membership.COORDINATOR:
            return
        if plan.commit.state is CommitState.IN_DOUBT:
            reject_other_offsets_storage(plan, self._offsets.storage)
        member = self._coordinated or self._new_coordinated()
        with self._discovery.open_cluster() as cluster:
            found = None
            if plan.commit.state is CommitState.IN_DOUBT:
                found = self._found_out(plan, cluster)
            if found is not CommitOutcome.TAKEN or planner.instance_id is None:
                member.end(planner)
            if found is not None and found is not CommitOutcome.TAKEN:
                # Its commit may have arrived meanwhile. Look now, before others commit.
                found = self._found_out(plan, cluster)
        if found is CommitOutcome.TAKEN:
            write_mark(self._ledger, plan.with_commit_state(CommitState.DONE))
        elif found is CommitOutcome.NOT_TAKEN:
            write_mark(self._ledger, plan.with_commit_state(CommitState.REJECTED))

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        """See `Services`. A commit without an answer may still arrive, so its membership
        ends then.
        """
        planner = plan.commit.member
        if planner is None or planner.membership is not Membership.COORDINATOR:
            return plan
        if not plan.commit.state.is_before_read:
            return plan
        if plan.commit.state is CommitState.IN_DOUBT:
            void = self._offsets.hand_over(plan, unsure=self.end_coordinated)
            if void:
                write_mark(self._ledger, plan.with_commit_state(CommitState.REJECTED))
                return void
            plan = plan.with_commit_state(CommitState.DONE)
        write_mark(self._ledger, plan)
        return plan

    @property
    def is_member(self) -> bool:
        """True if this run or command is a group member."""
        return self._registered is not None or self._coordinated is not None

    def current_assignment(self) -> MemberAssignment | None:
        """Return the current assignment of a Kafka group member: the group accepts commits of
        members only.
        """
        member = self._coordinated
        if member is None or not member.is_member:
            return None
        if holds_assignment(self._settings):
            return member.renew()
        return member.rejoin()

    def unbroken(self, share: MemberAssignment) -> MemberAssignment | None:
        """Return the plan's assignment with today's epoch, if this run held all of it since; else
        None.
        """
        if self._coordinated is None:
            return None
        timeout_s = self._settings.source.request_timeout_s
        return self._coordinated.unbroken(share, within_s=timeout_s)

    def end_coordinated(self) -> None:
        """End the membership in a Kafka group, if the run has one."""
        if self._coordinated:
            self._coordinated.leave()

    def _found_out(self, plan: Plan, cluster: Cluster) -> CommitOutcome:
        return commit_outcome(
            plan, self._offsets.committed(plan.offsets_to_commit, cluster, after=plan)
        )


class PlanStore:
    """Stores plans, together with the offset commits that belong to the same transaction.

    `owner_checks` returns the checks of a commit that a member owns these partitions.
    """

    def __init__(
        self,
        group: str,
        zookeeper: ZooKeeper,
        ledger: PlanLedger,
        lock: DriverLock,
        owner_checks: Callable[[Collection[TopicPartition]], Sequence[Check]],
    ) -> None:
        self._ledger = ledger
        self._hand_over = HandOver(zookeeper, group, lock)
        self._owner_checks = owner_checks

    def store(
        self, plan: Plan, *, pipelines_version: int | None, is_after_record: bool
    ) -> RejectedCommit | None:
        """Store a new plan; see `PlanLedger.store_plan`.

        Returns the reason if the group rejects the offset commit of the same transaction; then
        nothing is stored.
        """

        def write(parts: Sequence[Part]) -> None:
            self._ledger.store_plan(
                plan,
                pipelines_version=pipelines_version,
                also=parts,
                is_after_record=is_after_record,
            )

        return self.write(plan, write, is_handed_over=plan.commit.state is CommitState.DONE)

    def supersede(
        self, plan: Plan, ledger: Ledger, *, pipelines_version: int | None
    ) -> RejectedCommit | None:
        """Replace the newest plan of `ledger`; see `PlanLedger.supersede_plan`. Returns as `store`.

        Raises LedgersDisagree if the ledger has no plan.
        """
        version = ledger.newest_version
        if version is None:
            raise LedgersDisagree(
                f"Plan {plan.number} does not exist", action="Check with `etl plans list CONF`"
            )
        was_done = ledger.newest is not None and ledger.newest.commit.state is CommitState.DONE
        commits_now = plan.commit.state is CommitState.DONE and not was_done

        def write(parts: Sequence[Part]) -> None:
            self._ledger.supersede_plan(
                plan, version, pipelines_version=pipelines_version, also=parts
            )

        return self.write(plan, write, is_handed_over=commits_now)

    def write(
        self, plan: Plan, write: Callable[[Sequence[Part]], None], *, is_handed_over: bool
    ) -> RejectedCommit | None:
        """Store the plan. `is_handed_over`: its offsets are committed in the same transaction."""
        if is_handed_over and plan.commit.storage is OffsetsStorage.ZOOKEEPER:
            checks = self._owner_checks(plan.offsets_to_commit)
            return self._hand_over.store(plan, checks, write)
        if plan.commit.state is CommitState.IN_DOUBT or is_handed_over:
            return self._hand_over.store_under_lock(plan, write)
        write(())
        return None


class LiveServices:
    """`Services` on real ZooKeeper, brokers, Spark and Delta."""

    def __init__(
        self,
        settings: Settings,
        zookeeper: ZooKeeper,
        run_context: RunContext,
        name: str,
        phases: Phases | None = None,
        *,
        request: Request | None = None,
    ) -> None:
        self.settings, self.zookeeper, self.run_id = settings, zookeeper, name
        place = zookeeper, settings.group.id, settings.pipeline
        self.ledger, self._lock, self._owners = (
            PlanLedger(*place),
            DriverLock(*place),
            Owners(*place),
        )
        self._discovery = Discovery(settings, zookeeper)
        self.offsets = GroupOffsets(settings, zookeeper, self._discovery)
        self._observer = Observer(
            settings, zookeeper, self.offsets, self.ledger, now_ms=now_ms, request=request
        )
        self.backfills = BackfillStore(self.ledger)
        self.loaded = LoadedRowsOfTable(settings, self.ledger, self._discovery, self.spark)
        self._membership = GroupMembership(
            settings, zookeeper, name, self.ledger, self.offsets, self._discovery
        )
        self._plans = PlanStore(
            settings.group.id, zookeeper, self.ledger, self._lock, self._membership.owner_checks
        )
        self._phases = phases or Stopwatch()
        self._recorded: int | None = None
        """Number of the newest plan that this run knows as recorded."""
        self._cluster_name, self._seen_ledger = "", Ledger()
        self._pipelines_version: int | None = None
        self._reading: Following | None = None
        self._probed: set[str] = set()
        spark_log = Path(settings.report.path, f"{settings.name_in_files}-{name}.spark.log")
        self._spark = RunSpark(settings, run_context.spark_defaults, self._phases, log=spark_log)

    def close(self) -> None:
        """Stop the Spark session, if this run made one."""
        if self._reading:
            self._reading.close()
        self._spark.stop()

    @contextlib.contextmanager
    def driving(
        self, run_id: str, *, backfill: str | None = None, has_begun: bool = False
    ) -> Iterator[None]:
        """Context manager: hold the driver lock. Raises Owned, also if the path of a named table
        was looked up again meanwhile.

        `backfill`: the backfill of which a plan is loaded; once it `has_begun`, the wait for runs
        has no limit.
        """
        if self.settings.source.bootstrap_servers is None:
            self._discovery.registered()  # raises for a wrong chroot, before it is written to
        else:
            self.zookeeper.ensure("/")
        wait_s: float | None = self.settings.ledger.lock_timeout_s
        if has_begun:
            wait_s = None
        with self._lock.driving(run_id, wait_s=wait_s, backfill=backfill):
            if self.settings.table.name is not None and self.settings.table.is_placed:
                table, catalog = self.settings.table, catalog_of(self.settings.spark)
                reject_relocated_table(
                    table.called, table.path, catalog, read_named_table(self.ledger)
                )
            yield

    def observe(self, named: OperatorOffsets = no_operator_offsets) -> Snapshot:
        """See `Services`; `named` are offsets that an operator names."""
        with collector_paused():
            return self._saw(self._observer.observe(named))

    def _saw(self, seen: ObservedState) -> Snapshot:
        self._cluster_name = seen.snapshot.cluster.name
        self._seen_ledger = seen.snapshot.ledger
        self._pipelines_version = seen.pipelines_version
        applied = seen.snapshot.ledger.applied
        if applied:
            self._recorded = applied.number
        return seen.snapshot

    def wait_for_owners(self, partitions: Collection[TopicPartition]) -> None:
        """See `Services`."""
        self._owners.wait_until_gone(partitions, wait_s=self.settings.ledger.lock_timeout_s)

    def new_uid(self) -> str:
        """See `Services`."""
        return new_uid()

    def now_ms(self) -> int:
        """See `Services`."""
        return now_ms()

    def member(self) -> Member | None:
        """See `Services`."""
        return self._membership.member()

    def store(self, plan: Plan) -> RejectedCommit | None:
        """See `Services`. Rejects an unwritable table and a failing transform: a stored
        plan must be executable.
        """
        self.reject_unwritable(plan)
        has_transform = self.settings.transform.dataframe is not None
        if has_transform and writer_of(plan, self.settings).writer.takes is Takes.DATA_FRAME:
            # A stored plan with a transform that always fails would block the pipeline.
            import_transform(self.settings)
            try_on_no_rows(self._spark.session(), self.settings)
        return self._plans.store(
            plan,
            pipelines_version=self._pipelines_version,
            is_after_record=self._recorded == plan.number - 1,
        )

    def supersede(self, plan: Plan, ledger: Ledger) -> RejectedCommit | None:
        """See `Services`."""
        self.reject_unwritable(plan)
        return self._plans.supersede(plan, ledger, pipelines_version=self._pipelines_version)

    def hand_over(self, plan: Plan) -> Plan | RejectedCommit:
        """See `Services`."""
        return self._membership.hand_over(plan)

    def fence(self, plan: Plan) -> None:
        """See `Services`."""
        self._membership.fence(plan)

    def remember(self, key: RunKeyRecord, *, after: int) -> None:
        """See `Services`."""
        ledger_side_documents.remember(self.ledger, key, after=after)

    def adopt(self, plan: Plan) -> Ledger:
        """See `Services`."""
        losses.record_losses(plan, app_id=self.app_id, path=self.settings.table.losses_at)
        ledger = adopt_commits(plan, self.ledger, self.settings, self.app_id)
        if ledger.applied:
            self._recorded = ledger.applied.number
        return ledger

    def read_ledger(self) -> Ledger:
        """See `Services`."""
        return self.ledger.read_ledger()

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """See `Services`."""
        ledger_side_documents.note_removals(self.ledger, tuple(removals))

    def first_at(
        self, moments: Collection[tuple[TopicPartition, int]]
    ) -> Mapping[tuple[TopicPartition, int], int]:
        """See `Services`. One request per broker and time. Raises SettingsError if a
        partition cannot be searched.
        """
        found: dict[tuple[TopicPartition, int], int] = {}
        with self._discovery.open_cluster() as cluster:
            for moment in sorted({moment for _, moment in moments}):
                wanted = {partition: moment for partition, at in moments if at == moment}
                offsets = cluster.offsets_at(
                    wanted, wait_for_leader_s=self.settings.source.wait_for_leader_s
                )
                for partition, offset in offsets.items():
                    found[partition, moment] = offset
        return found

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """See `Services`."""
        return self._discovery.creations_of(topics)

    def tidy(self) -> None:
        """See `Services`."""
        ledger_side_documents.prune(self.ledger)

    def claiming(self, plan: Plan) -> contextlib.AbstractContextManager[None]:
        """See `Services`; with `group.mode: observe` nothing is claimed, and a member
        owns its assignment. Nobody else reads what a backfill reads.
        """
        is_backfill = plan.kind is PlanKind.BACKFILL
        if is_backfill or self.settings.group.mode is not OwnershipMode.CLAIM:
            return contextlib.nullcontext()
        partitions = {r.partition for r in plan.ranges}
        return self._owners.claiming(partitions, self.run_id)

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Load:
        """See `Services`. Spark is not started for a writer that takes no rows. Raises
        NoExclusiveCreate for an older plan if the store no longer separates two writers.
        """
        self._require_exclusive_create(plan, shown_by=plan)
        writer = writer_of(plan, self.settings).writer
        if writer.takes is Takes.NOTHING:
            return Load(writer)
        if needs_no_spark(plan, snapshot, self.settings, writer):
            files, self._reading = write_files_without_spark(
                plan, snapshot, self.settings, self._discovery.bootstrap(), now_ms=now_ms()
            )
            return Load(writer, files)
        import_transform(self.settings)
        spark = self._spark.session(is_short=is_short(plan, snapshot, self.settings))
        read = reader_for(writer)
        with self._phases.timed(Verb.FIRST_JOB):
            rows, self._reading = read(
                spark,
                plan,
                snapshot,
                self.settings,
                self._discovery.bootstrap(),
                now_ms=self.now_ms(),
            )
            if writer.takes is not Takes.FILES:
                rows = format_rows(rows, self.settings)
            return Load(writer, rows)

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        """See `Services`."""
        return writer_in_words(plan, snapshot, self.settings)

    def append(self, plan: Plan, rows: Load) -> tuple[CommitResult | None, Table | None]:
        """See `Services`. Raises TableUnreachable when the append left no trace."""
        table, ledger = self.settings.table, self._seen_ledger
        to = Destination(
            table.path,
            self.app_id,
            partition_by=table.partition_by,
            known=ledger.known_version,
            run_id=self.run_id,
            is_ours=self.settings.source.topic_filter.admits,
            acknowledgement=ledger.acknowledged,
        )
        following: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._reading and rows.rows is not None:
            following = self._read_meanwhile(self._reading)
        with following:
            outcome = append(rows, plan, to)
        if outcome.result is Result.NOT_APPLIED:
            raise TableUnreachable(
                f"Plan {plan.number} was not appended to the table",
                path=table.path,
                action="Check who changed or replaced the table during the run. The next run "
                "appends the same plan again",
            )
        if outcome.result is Result.APPLIED_BY_ANOTHER:
            return None, outcome.table
        return self._applied(plan, outcome), outcome.table

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        """See `Services`."""
        # Losses are first, so that a plan with a result has its losses in the losses table.
        losses.record_losses(plan, app_id=self.app_id, path=self.settings.table.losses_at)
        if applied:
            self.ledger.record_applied(applied)
            self._recorded = applied.number

    def recount(self, plan: Plan) -> CommitResult | None:
        """See `Services`. If the table's log lost the commit, rows are counted in the
        current table.
        """
        outcome = read_back(plan, app_id=self.app_id, path=self.settings.table.path, known=None)
        if outcome.result is Result.NOT_APPLIED or (
            outcome.metadata and outcome.metadata.plan_id != plan.id
        ):
            return None
        return self._applied(plan, outcome)

    def commit(
        self, plan: Plan, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Committed]:
        """See `Services`. Raises Owned if another driver of this pipeline stored a later
        plan.
        """
        is_of_member = plan.commit.state is CommitState.AFTER_APPEND_AS_MEMBER
        if is_of_member and (partitions is None or self._membership.is_member):
            return self.offsets.commit_of_member(
                plan,
                partitions,
                share=self._membership.current_assignment,
                unbroken=self._membership.unbroken,
                unsure=self._membership.end_coordinated,
            )
        try:
            return self.offsets.commit(plan, partitions, share=self._membership.current_assignment)
        except OffsetMoved as error:
            newest = max(self.ledger.plan_numbers(), default=plan.number)
            if newest <= plan.number:
                raise
            raise Owned(
                f"Another driver stored plan {newest} while this run executed plan {plan.number}, "
                "whose rows are in the table",
                action="Check who else runs this conf. The next run continues",
            ) from error

    @property
    def app_id(self) -> str:
        """The table's application id of this pipeline."""
        return app_id_of(self._cluster_name, self.settings.group.id, self.settings.pipeline)

    def read_table(self, ledger: Ledger) -> Table | None:
        """Return the table's state without requests to brokers: the newest plan has the cluster
        name.
        """
        if ledger.newest:
            self._cluster_name = ledger.newest.cluster.name
        return observe_table(self.settings, self.app_id, ledger)

    def spark(self) -> SparkSession:
        """Return the session of this run, started on the first call; an existing one is used and
        not stopped.
        """
        return self._spark.session()

    def reject_unwritable(self, plan: Plan) -> None:
        """Reject a plan that could not be executed: once stored, it would block the pipeline."""
        render_commit_metadata(plan, self.app_id, self.run_id)
        check_rows(plan, self.settings)
        check_writable(self.settings.table.path)
        self._require_exclusive_create(plan, shown_by=self._seen_ledger.newest)
        if plan.losses.lost:
            # raises if the path has another table
            losses.recorded(plan, app_id=self.app_id, path=self.settings.table.losses_at)
            check_writable(self.settings.table.losses_at)

    def _require_exclusive_create(self, plan: Plan, *, shown_by: Plan | None) -> None:
        """Probe each table that the plan writes to, unless that stored plan shows that it was
        probed today.
        """
        is_due = is_probe_due(shown_by, now_ms())
        table = self.settings.table
        places = [table.path] if is_due else []
        if plan.losses.lost and (is_due or not (shown_by and shown_by.losses.lost)):
            places.append(table.losses_at)
        for place in places:
            if place not in self._probed:
                require_exclusive_create(place)
                self._probed.add(place)

    @contextlib.contextmanager
    def _read_meanwhile(self, reading: Following) -> Iterator[None]:
        """Subtract reading from writing time: rows are read while they are written."""
        began = time.monotonic()
        try:
            with (
                self._phases.reading(reading.doing),
                translating_transform_errors(self.settings.transform.dataframe),
            ):
                yield
        finally:
            reading.close()
            for verb, seconds in reading.spent(began, time.monotonic()).items():
                self._phases.reckon(verb, seconds)

    def _applied(self, plan: Plan, outcome: Outcome) -> CommitResult:
        return applied_in_run(outcome, plan, self._reading, self.run_id, self.settings)
