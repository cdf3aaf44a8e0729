"""The real world of a run, built from settings: what `ingest` asks for, done by the edges.

Nothing is decided here. `ingest` says what happens in which order, `next_step` decides, the edges
do it; how the world is looked at belongs to `observe`, what is stored and handed over to `storing`,
how the ledger is written anew to `adopt`, how rows are counted again to `recount`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etl.decide.byte_offsets import Named, none_named
from etl.decide.plan import is_short
from etl.decide.table_changes import app_id_of
from etl.decide.table_rules import catalog_of, refuse_resolved_anew
from etl.decide.table_storage import is_probe_due
from etl.errors import OffsetMoved, Owned, TableUnreachable
from etl.io.delta import losses
from etl.io.delta.append import Destination, Load, Takes, append
from etl.io.delta.exclusive_create import require_exclusive_create
from etl.io.delta.table import check_writable
from etl.io.delta.table_state import Outcome, Result, read_back
from etl.io.process import new_uid
from etl.io.zookeeper import ledger_records
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_records import read_named_table
from etl.io.zookeeper.owners import Owners
from etl.io.zookeeper.session import ZooKeeper
from etl.ledger.plan_document import render_commit_metadata
from etl.model.partitions import BrokerPartition, Committed
from etl.model.plans import CommitResult, KeptKey, Plan, Request
from etl.model.snapshot import ForeignCommit, Ledger, Snapshot, Table
from etl.reader.following import Following
from etl.report.run_state import Phases, Stopwatch, Verb
from etl.run.adopt import adopt_commits
from etl.run.claims import BackfillVerbs, ClaimsOfRun
from etl.run.context import RunContext, now_ms
from etl.run.discovery import Discovery
from etl.run.formats import format_rows
from etl.run.group_offsets import GroupOffsets
from etl.run.loaded_rows import LoadedRows
from etl.run.observe import Observer, Seen, observe_table
from etl.run.recount import applied_in_run
from etl.run.rows import (
    check_rows,
    needs_no_spark,
    reader_for,
    write_files_without_spark,
    writer_in_words,
    writer_of,
)
from etl.run.spark import RunSpark
from etl.run.storing import PlanStore
from etl.run.transform import translating_transform_errors
from etl.settings.choices import OwnershipMode
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LiveWorld(PlanStore, LoadedRows, BackfillVerbs):
    """`world.World` on real ZooKeeper, brokers, Spark and Delta."""

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
        place = zookeeper, settings.group, settings.pipeline
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
        self.claims, self._phases = ClaimsOfRun(settings, zookeeper), phases or Stopwatch()
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
    def driving(self, run_id: str) -> Iterator[None]:
        """Be the only driver of the pipeline. Raises Owned, also where the table's name was
        resolved anew since it was placed.
        """
        if self.settings.source.bootstrap is None:
            self._discovery.registered()  # before anything is written: a wrong chroot must stay empty
        else:
            self.zookeeper.ensure("/")
        with self._lock.driving(run_id, wait_s=self.settings.ownership.wait_for_driver_s):
            if self.settings.table.name is not None and self.settings.table.is_placed:
                table, catalog = self.settings.table, catalog_of(self.settings.spark)
                refuse_resolved_anew(
                    table.called, table.path, catalog, read_named_table(self.ledger)
                )
            yield

    def observe(self, named: Named = none_named) -> Snapshot:
        """See `world.World`; `named` are offsets that an operator names."""
        return self._saw(self._observer.observe(named))

    def observe_ledgers(self) -> Snapshot:
        """See `world.World`."""
        return self._saw(self._observer.observe_ledgers())

    def _saw(self, seen: Seen) -> Snapshot:
        self._cluster_name, self._seen_ledger, self._pipelines_version = (
            seen.snapshot.cluster,
            seen.snapshot.ledger,
            seen.pipelines_version,
        )
        self.claims.saw(seen)
        return seen.snapshot

    def wait_for_owners(self, logs: Collection[BrokerPartition]) -> None:
        """See `world.World`."""
        self._owners.wait_until_gone(logs, wait_s=self.settings.ownership.wait_for_driver_s)

    def new_uid(self) -> str:
        """See `world.World`."""
        return new_uid()

    def now_ms(self) -> int:
        """See `world.World`."""
        return now_ms()

    def remember(self, key: KeptKey, *, behind: int) -> None:
        """See `world.World`."""
        ledger_records.remember(self.ledger, key, behind=behind)

    def adopt(self, plan: Plan) -> Ledger:
        """See `world.World`."""
        losses.record_losses(plan, app_id=self.app_id, path=self.settings.table.losses_at)
        return adopt_commits(plan, self.ledger, self.settings, self.app_id)

    def read_ledger(self) -> Ledger:
        """See `world.World`."""
        return self.ledger.read_ledger()

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """See `world.World`."""
        ledger_records.note_removals(self.ledger, tuple(removals))

    def claiming(self, plan: Plan) -> contextlib.AbstractContextManager[None]:
        """See `world.World`; under `ownership.mode: observe` nothing is claimed, and a member owns
        what it owns.
        """
        if self.settings.ownership.mode is not OwnershipMode.CLAIM:
            return contextlib.nullcontext()
        return self._owners.claiming({r.log for r in plan.ranges}, self.run_id)

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Load:
        """See `world.World`. Spark is not started for a plan whose writer takes no rows.

        Raises NoExclusiveCreate for a plan of another day, where the store or the mount does not
        keep two writers apart any more.
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
        spark, read = (
            self._spark.session(is_short=is_short(plan, snapshot, self.settings)),
            reader_for(writer),
        )
        with self._phases.timed(Verb.FIRST_JOB):
            rows, self._reading = read(
                spark,
                plan,
                snapshot,
                self.settings,
                self._discovery.bootstrap(),
                now_ms=self.now_ms(),
            )
            return Load(
                writer, rows if writer.takes is Takes.FILES else format_rows(rows, self.settings)
            )

    def writer_of(self, plan: Plan, snapshot: Snapshot) -> str:
        """See `world.World`."""
        return writer_in_words(plan, snapshot, self.settings)

    def append(self, plan: Plan, rows: Load) -> tuple[CommitResult | None, Table | None]:
        """See `world.World`. Raises TableUnreachable when the append left no trace."""
        table, ledger = self.settings.table, self._seen_ledger
        to = Destination(
            table.path,
            self.app_id,
            partition_by=table.partition_by,
            known=ledger.known_version,
            run_id=self.run_id,
            is_ours=self.settings.source.topics.admits,
            acknowledgement=ledger.acknowledged,
        )
        with (
            self._read_meanwhile(self._reading)
            if self._reading and rows.rows is not None
            else contextlib.nullcontext()
        ):
            outcome = append(rows, plan, to)
        if outcome.result is Result.NOT_APPLIED:
            check = "who changed or replaced the table during the run; the next run appends the same plan again"
            raise TableUnreachable(
                f"plan {plan.number} did not reach the table", path=table.path, check=check
            )
        if outcome.result is Result.APPLIED_BY_ANOTHER:
            return None, outcome.table
        return self._applied(plan, outcome), outcome.table

    def record(self, plan: Plan, applied: CommitResult | None) -> None:
        """See `world.World`."""
        losses.record_losses(plan, app_id=self.app_id, path=self.settings.table.losses_at)
        if applied:
            self.ledger.record_applied(applied)

    def recount(self, plan: Plan) -> CommitResult | None:
        """See `world.World`. Where the table's log forgot the commit, its rows are counted in the
        table of today.
        """
        outcome = read_back(plan, app_id=self.app_id, path=self.settings.table.path, known=None)
        if outcome.result is Result.NOT_APPLIED or (
            outcome.metadata and outcome.metadata.plan_id != plan.id
        ):
            return None
        return self._applied(plan, outcome)

    def commit(
        self, plan: Plan, logs: Collection[BrokerPartition] | None = None
    ) -> Mapping[BrokerPartition, Committed]:
        """See `world.World`. Raises Owned where it was another driver of this pipeline that went on
        to a later plan.
        """
        if plan.is_of_member and (logs is None or self.is_member):
            return self.offsets.commit_of_member(
                plan,
                logs,
                share=self.share_of_now,
                unbroken=self.unbroken,
                unsure=self.end_coordinated,
            )
        try:
            return self.offsets.commit(plan, logs, share=self.share_of_now)
        except OffsetMoved as error:
            newest = max(self.ledger.plan_numbers(), default=plan.number)
            if newest <= plan.number:
                raise
            what = f"another driver went on to plan {newest} while we were at plan {plan.number}, whose rows are in the table"
            raise Owned(what, check="nothing; the next run goes on from there") from error

    @property
    def app_id(self) -> str:
        """The table's application id of this pipeline."""
        return app_id_of(self._cluster_name, self.settings.group, self.settings.pipeline)

    def read_table(self, ledger: Ledger) -> Table | None:
        """The table's side, where the brokers are not asked: their name is in the newest plan."""
        if ledger.newest:
            self._cluster_name = ledger.newest.cluster
        return observe_table(self.settings, self.app_id, ledger)

    def spark(self) -> SparkSession:
        """The session of this run, built when it is first needed; one that was there before is used
        and left alone.
        """
        return self._spark.session()

    def refuse_unwritable(self, plan: Plan) -> None:
        """What could not be finished is not stored: stored, the plan would bind the pipeline."""
        render_commit_metadata(plan, self.app_id, self.run_id)
        check_rows(plan, self.settings)
        check_writable(self.settings.table.path)
        self._require_exclusive_create(plan, shown_by=self._seen_ledger.newest)
        if plan.losses:
            losses.recorded(
                plan, app_id=self.app_id, path=self.settings.table.losses_at
            )  # what lies there must be a losses table
            check_writable(self.settings.table.losses_at)

    def _require_exclusive_create(self, plan: Plan, *, shown_by: Plan | None) -> None:
        """Probe each table that the plan writes to, unless that stored plan shows that it was
        probed today.
        """
        is_due, table = is_probe_due(shown_by, now_ms()), self.settings.table
        places = [table.path] if is_due else []
        if plan.losses and (is_due or not (shown_by and shown_by.losses)):
            places.append(table.losses_at)
        for place in places:
            if place not in self._probed:
                require_exclusive_create(place)
                self._probed.add(place)

    @contextlib.contextmanager
    def _read_meanwhile(self, reading: Following) -> Iterator[None]:
        """Rows are read while they are written: what the tasks tell says how much of that time was
        reading.
        """
        began = time.monotonic()
        try:
            with (
                self._phases.reading(reading.doing),
                translating_transform_errors(self.settings.transform),
            ):
                yield
        finally:
            reading.close()
            for verb, seconds in reading.spent(began, time.monotonic()).items():
                self._phases.reckon(verb, seconds)

    def _applied(self, plan: Plan, outcome: Outcome) -> CommitResult:
        return applied_in_run(outcome, plan, self._reading, self.run_id, self.settings)
