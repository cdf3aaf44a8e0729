"""The real world of a run, built from settings: the one module that imports every edge.

Nothing is decided here. `ingest` says what happens in which order, `reconcile` and `plan` decide, the edges do it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from etl.decisions.acceptance import is_waiting_for_a_table
from etl.decisions.expiry import cleanup_of, expiring
from etl.decisions.log_identity import epochs_to_ask, is_creation_id
from etl.decisions.other_pipelines import app_id_of
from etl.decisions.ownership import members_as_owners
from etl.decisions.reconcile import plan_in_force
from etl.decisions.refusals import refuse_missing_topics, refuse_topic_that_reads_as_null
from etl.decisions.replay import topics_left_to_read
from etl.decisions.shape import may_be_transformed
from etl.decisions.start import moments_to_ask
from etl.decisions.tasks import pack_tasks
from etl.edges.brokers.cluster import Cluster, Extents, chosen_topics, names_of_topics, unknown_topics
from etl.edges.delta import empty_commit, losses, spark_writer, state
from etl.edges.delta.features import takes_commits_of_delta_rs
from etl.edges.delta.files import rows_in_null_partition
from etl.edges.delta.others import with_others
from etl.edges.delta.outcome import Outcome, Result, read_back
from etl.edges.delta.path import check_writable
from etl.edges.delta.shape import EVENT_DATE, check_shape
from etl.edges.spark.session import parallelism_of
from etl.edges.zookeeper import coverage
from etl.edges.zookeeper.driver_lock import DriverLock
from etl.edges.zookeeper.group import ConsumerGroup
from etl.edges.zookeeper.ledger import PlanLedger, new_uid
from etl.edges.zookeeper.owners import Owners
from etl.edges.zookeeper.registry import read_brokers, read_cluster_id, read_creation_ids
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import LedgersDisagree, OffsetMoved, Owned, SettingsError, TableUnreachable
from etl.model.ledger import Ledger
from etl.model.logs import BrokerPartition, Cleanup, Retention
from etl.model.plans import Applied, Committed, Plan
from etl.model.raw_table import arrow_schema, spark_schema
from etl.model.snapshot import Snapshot
from etl.model.table import ForeignCommit, CommitMetadata, Table
from etl.protocol.messages import ClusterMetadata
from etl.protocol.zookeeper.commit_metadata import render_commit_metadata
from etl.protocol.zookeeper.plan_documents import parse_plan
from etl.reader.following import Following, follow
from etl.report.phases import Phases, Stopwatch, Verb
from etl.run.context import RunContext
from etl.run.transform import fitting_rows, translating_transform_errors
from etl.settings.address import split_address
from etl.settings.policies import OwnershipMode
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.edges.delta.recount import Recount

_LOOKS_MAX = 3


class LiveWorld:
    """`world.World` on real ZooKeeper, brokers, Spark and Delta."""

    def __init__(
        self, settings: Settings, zookeeper: ZooKeeper, run_context: RunContext, name: str, phases: Phases | None = None,
    ) -> None:
        self.settings = settings
        self.run_id = name
        self.spark_log = Path(settings.report.path, f"{settings.pipeline}-{name}.spark.log")
        self.zookeeper = zookeeper
        self._surroundings = run_context
        self._phases = phases or Stopwatch()
        self.group = ConsumerGroup(zookeeper, settings.group)
        self.ledger = PlanLedger(zookeeper, settings.group, settings.pipeline)
        self._lock = DriverLock(zookeeper, settings.group, settings.pipeline)
        self._owners = Owners(zookeeper, settings.group, settings.pipeline)
        self._cluster_name = ""
        self._seen_ledger = Ledger()
        self._pipelines_version: int | None = None
        self._reading: Following | None = None
        self._spark: SparkSession | None = None

    def close(self) -> None:
        """Stop the Spark session, if this run made one.

        Its JVM may be gone already: who stops a run with SIGTERM, Airflow among them, often stops all processes of its group.
        """
        if self._reading is not None:
            self._reading.port.close()
        if self._spark is not None:
            with self._phases.timed(Verb.CLOSE), contextlib.suppress(Exception):  # whatever py4j says of it
                self._spark.stop()
            self._spark = None

    def driving(self, run_id: str) -> contextlib.AbstractContextManager[None]:
        """Be the only driver of the pipeline. Raises Owned."""
        if self.settings.source.bootstrap is None:
            read_brokers(self.zookeeper)  # before anything is written: a wrong chroot must stay empty
        else:
            self.zookeeper.ensure("/")
        return self._lock.driving(run_id, wait_s=self.settings.ownership.wait_for_driver_s)

    # -- world.World -----------------------------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """See `world.World`. Looks again when another driver planned meanwhile: what it saw of the ledger is older than the rest."""
        for _ in range(_LOOKS_MAX):
            before = self.ledger.mark()
            snapshot = self._look()
            if self.ledger.mark() == before:
                break
        return snapshot

    def _look(self) -> Snapshot:
        """Extents last: logs only grow, so no offset of a sound pipeline can lie above an end that is asked for after it."""
        source = self.settings.source
        ledger = self.ledger.read_ledger()
        self._pipelines_version, other_pipelines = self.ledger.pipelines_version(), self.ledger.other_pipelines()  # in this order
        with Cluster(self._bootstrap(), timeout_s=source.timeout_s) as cluster:
            left = topics_left_to_read(ledger)
            described = cluster.describe(self._asked_topics(left))
            metadata = chosen_topics(described, source.topics)
            refuse_missing_topics(self.settings, metadata.topics, lambda: names_of_topics(cluster))
            refuse_topic_that_reads_as_null(self.settings, metadata.topics)
            self._cluster_name = self._name_of(metadata)
            self._seen_ledger = ledger
            logs = [p.log for topic in metadata.topics.values() for p in topic.partitions]
            committed = self.group.committed({*logs, *(ledger.newest.positions if ledger.newest else ())})
            table = self._with_others(self._observe_table(ledger), ledger, metadata.topics)
            found = cluster.extents(logs, isolation=source.isolation, wait_for_leader_s=source.wait_for_leader_s, metadata=metadata)
            in_force = plan_in_force(ledger, table)
            moments = moments_to_ask(found.extents, in_force, self.settings)
            starts = cluster.offsets_at(moments, wait_for_leader_s=source.wait_for_leader_s) if moments else {}
            found = found.without(moments.keys() - starts.keys())  # nobody led them any more
            # after the extents: a leader that was elected in between is seen by one of the two
            asked = epochs_to_ask(in_force, ledger.applied)
            ends = cluster.epoch_ends({log: epoch for log, epoch in asked.items() if log in found.extents},
                                      wait_for_leader_s=source.wait_for_leader_s, leaders=found.leaders)
            retention, retained_from = self._ask_retention(cluster, found, ledger, left)
            sizes = cluster.bytes_per_offset(found)
            open_transactions = cluster.open_transactions(found)
            members = cluster.members_of(self.settings.group, metadata.brokers.values())
        creation_ids = read_creation_ids(self.zookeeper, metadata.topics.keys() - metadata.topic_ids.keys())
        return Snapshot(
            cluster=self._cluster_name, extents=found.extents, leaders=found.leaders, leaderless=found.leaderless,
            topic_ids={**creation_ids, **metadata.topic_ids}, bytes_per_offset=sizes, committed=committed, starts=starts,
            owners={**members_as_owners(members, logs), **self.group.owners(metadata.topics)},
            live_consumers=(*self.group.live_consumers(), *sorted(members.members)),
            ledger=ledger, table=table, other_pipelines=other_pipelines, retention=retention, retained_from=retained_from,
            open_transactions=open_transactions, leader_epochs=found.epochs, epoch_ends=ends,
            gone_topics=unknown_topics(described, left), parallelism=parallelism_of(self.settings.spark),
        )

    def _ask_retention(
        self, cluster: Cluster, found: Extents, ledger: Ledger, left: Collection[str],
    ) -> tuple[dict[str, Retention], dict[BrokerPartition, int]]:
        """How topics with something to read, or of a plan that was left, are kept; from where on their records outlast the warning."""
        source, newest = self.settings.source, ledger.newest
        positions = newest.positions if newest else {}
        unread = [log for log, extent in found.extents.items() if extent.end_offset > positions.get(log, extent.log_start_offset)]
        retention = cluster.retention({*left, *(log.topic for log in unread)})
        if not source.expiry_warning_s:
            return retention, {}
        soon = self.now_ms() + round(source.expiry_warning_s * 1000)
        limits = {log: limit for log in unread if log.topic in retention and (limit := retention[log.topic].ms) is not None}
        times = {log: max(0, soon - limit) for log, limit in limits.items()}
        return retention, cluster.retained_from(found, times, isolation=source.isolation)

    def wait_for_owners(self, logs: Collection[BrokerPartition]) -> None:
        """See `world.World`."""
        self._owners.wait_until_gone(logs, wait_s=self.settings.ownership.wait_for_driver_s)

    def new_uid(self) -> str:
        """See `world.World`."""
        return new_uid()

    def now_ms(self) -> int:
        """See `world.World`."""
        return int(time.time() * 1000)

    def store(self, plan: Plan) -> None:
        """See `world.World`. Refuses a table that cannot be written and a transform that fails: a plan is stored to be executed."""
        self._refuse_unwritable(plan)
        if self.settings.transform and (plan.ranges or self._takes_spark_to_commit_nothing(plan.table_id)):
            # stored, the plan would bind the conf to a transform that never works
            fitting_rows(self.settings, self.spark().createDataFrame([], spark_schema()))
        self.ledger.store_plan(plan, beside=self._pipelines_version)

    def supersede(self, plan: Plan, ledger: Ledger) -> None:
        """See `world.World`."""
        if ledger.newest_version is None:
            raise LedgersDisagree(f"there is no plan {plan.number} to supersede", check="`etl plans list`")
        self._refuse_unwritable(plan)
        self.ledger.supersede_plan(plan, ledger.newest_version, beside=self._pipelines_version)

    def adopt(self, plan: Plan) -> Ledger:
        """See `world.World`. Goes back to the newest plan that both sides know with its record, and writes what is after, oldest first."""
        self._record_losses(plan)
        self.ledger.store_uid(plan.uid)
        unknown = []
        for metadata in state.commits_of_ours(self.settings.table.path, self.app_id):
            known = self.ledger.read_plan(metadata.number)
            if known and known.id == metadata.plan_id and self.ledger.read_record_of(known):
                break
            unknown.append(metadata)
        table = self._observe_table(self.ledger.read_ledger())
        for metadata in reversed(unknown):
            self._adopt(metadata, table.id if table else "")
        return self.ledger.read_ledger()

    def read_ledger(self) -> Ledger:
        """See `world.World`."""
        return self.ledger.read_ledger()

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """See `world.World`."""
        coverage.note_removals(self.ledger, tuple(removals))

    def claiming(self, plan: Plan) -> contextlib.AbstractContextManager[None]:
        """See `world.World`; under `ownership.mode: observe` nothing is claimed."""
        if self.settings.ownership.mode is OwnershipMode.OBSERVE:
            return contextlib.nullcontext()
        return self._owners.claiming({r.log for r in plan.ranges}, self.run_id)

    def fetch(self, plan: Plan, snapshot: Snapshot) -> DataFrame | None:
        """See `world.World`. None where the plan has no ranges and its empty commit needs no Spark."""
        if not plan.ranges and not self._takes_spark_to_commit_nothing(plan.table_id):
            return None
        spark = self.spark()
        with self._phases.timed(Verb.FIRST_JOB):
            return self._rows_of(spark, plan, snapshot)

    def _rows_of(self, spark: SparkSession, plan: Plan, snapshot: Snapshot) -> DataFrame:
        from etl.reader.source import read_tasks

        source = self.settings.source
        parallelism = spark.sparkContext.defaultParallelism
        # a replayed plan may be old: its leaders are those of its day
        ranges = [replace(r, leader=snapshot.leaders.get(r.log, r.leader)) for r in plan.ranges]
        urgent = expiring(ranges, snapshot, within_s=source.expiry_warning_s, now_ms=self.now_ms())
        tasks = pack_tasks(
            ranges, snapshot.bytes_per_offset, self.settings.limits.target_task_bytes, parallelism, first={one.log for one in urgent})
        self._reading = reading = follow(spark, plan.id, ranges, tasks)
        rows, reading.receipts = read_tasks(
            spark, ranges, tasks, bootstrap=[f"{host}:{port}" for host, port in self._bootstrap()],
            isolation=source.isolation, fetch_max_bytes=source.fetch_max_bytes, fetch_limit_bytes=source.fetch_limit_bytes,
            timeout_s=source.timeout_s, max_record_bytes=source.max_record_bytes, cleanups=self._cleanups(plan, snapshot),
            topic_ids={topic: topic_id for topic, topic_id in plan.topic_ids.items() if not is_creation_id(topic_id)},
            leader_epochs=plan.leader_epochs, log_epochs=plan.log_epochs, progress=reading.port.address)
        return fitting_rows(self.settings, rows)

    def _cleanups(self, plan: Plan, snapshot: Snapshot) -> dict[str, Cleanup]:
        says = self.settings.source.says_compacted
        topics = {r.log.topic for r in plan.ranges}
        return {topic: cleanup_of(snapshot.retention.get(topic), said_to_be_compacted=says(topic)) for topic in topics}

    def _takes_spark_to_commit_nothing(self, table_id: str | None) -> bool:
        """A new table may have a transform's columns, an old one features that delta-rs cannot commit to."""
        return self.settings.transform is not None if table_id is None else not takes_commits_of_delta_rs(self.settings.table.path)

    def append(self, plan: Plan, rows: DataFrame | None) -> tuple[Applied | None, Table | None]:
        """See `world.World`. Raises TableUnreachable when the append left no trace."""
        table = self.settings.table
        app_id, path, known, word = self.app_id, table.path, self._seen_ledger.known_version, self._seen_ledger.acknowledged
        if rows is None:
            outcome = empty_commit.append_empty(
                plan, app_id=app_id, path=path, schema=arrow_schema(), partition_by=table.partition_by, known=known, run_id=self.run_id,
                is_ours=self.settings.source.topics.admits, word=word)
        else:
            with self._read_meanwhile(), translating_transform_errors(self.settings.transform):
                outcome = spark_writer.append(
                    rows, plan, app_id=app_id, path=path, partition_by=table.partition_by, known=known, run_id=self.run_id,
                    is_ours=self.settings.source.topics.admits, word=word)
        if outcome.result is Result.NOT_APPLIED:
            check = "who changed or replaced the table during the run; the next run appends the same plan again"
            raise TableUnreachable(f"plan {plan.number} did not reach the table", path=table.path, check=check)
        if outcome.result is Result.APPLIED_BY_ANOTHER:
            return None, outcome.table
        return self._applied(plan, outcome), outcome.table

    def record(self, plan: Plan, applied: Applied | None) -> None:
        """See `world.World`."""
        self._record_losses(plan)
        if applied:
            self.ledger.record_applied(applied)

    def recount(self, plan: Plan) -> Applied | None:
        """See `world.World`. Where the table's log forgot the commit, its rows are counted in the table of today."""
        outcome = read_back(plan, app_id=self.app_id, path=self.settings.table.path, known=None)
        if outcome.result is Result.NOT_APPLIED or (outcome.metadata and outcome.metadata.plan_id != plan.id):
            return None
        return self._applied(plan, outcome)

    def rows_of_today(self, plan: Plan) -> Recount:
        """What the table of today holds of the plan's ranges, whoever put it there."""
        return self._counted_again(plan, None)

    def commit(self, plan: Plan, logs: Collection[BrokerPartition] | None = None) -> Mapping[BrokerPartition, Committed]:
        """See `world.World`. Raises Owned where it was another driver of this pipeline that went on to a later plan."""
        try:
            return self.group.commit(plan, logs)
        except OffsetMoved as error:
            newest = max(self.ledger.plan_numbers(), default=plan.number)
            if newest <= plan.number:
                raise
            what = f"another driver went on to plan {newest} while we were at plan {plan.number}, whose rows are in the table"
            raise Owned(what, check="nothing; the next run goes on from there") from error

    def tidy(self) -> None:
        """See `world.World`."""
        coverage.prune(self.ledger)

    # -- parts -----------------------------------------------------------------------------------------------------

    @property
    def app_id(self) -> str:
        """The table's application id of this pipeline."""
        return app_id_of(self._cluster_name, self.settings.group, self.settings.pipeline)

    def read_table(self, ledger: Ledger) -> Table | None:
        """The table's side, where the brokers are not asked: their name is in the newest plan."""
        if ledger.newest:
            self._cluster_name = ledger.newest.cluster
        return self._observe_table(ledger)

    def spark(self) -> SparkSession:
        """The session of this run, built when it is first needed; one that was there before is used and left alone."""
        from etl.edges.spark.session import build_session, session_there

        there = self._spark or session_there()
        if there is not None:
            return there
        wanted = self.settings.spark
        with self._phases.timed(Verb.START_SPARK):
            settings = {**self._surroundings.spark_defaults(wanted), **wanted}
            self._spark = build_session(f"etl {self.settings.pipeline}", settings, log=self.spark_log)
        return self._spark

    def _record_losses(self, plan: Plan) -> None:
        losses.record_losses(plan, app_id=self.app_id, path=self.settings.table.losses_at)

    def _adopt(self, metadata: CommitMetadata, table_id: str) -> None:
        plan = parse_plan(metadata.document or b"", path=f"commit {metadata.delta_version} of {self.settings.table.path}")
        counted = self._counted_again(plan, metadata.delta_version)
        applied = Applied(plan.number, plan.id, metadata.delta_version, table_id, counted.receipts, metadata.run_id, counted.uncounted)
        self.ledger.adopt_plan(plan, applied)

    def _counted_again(self, plan: Plan, delta_version: int | None) -> Recount:
        from etl.edges.delta.recount import recount

        behind = may_be_transformed(plan, self.settings)
        return recount(self.settings.table.path, delta_version, plan.ranges, plan.log_epochs, behind_transform=behind)

    def _observe_table(self, ledger: Ledger) -> Table | None:
        table = self.settings.table
        if not self.settings.transform:
            check_shape(table.path, arrow_schema(), table.partition_by)
        return state.read_table(
            table.path, self.app_id, known=ledger.known_version, is_ours=self.settings.source.topics.admits,
            plan=ledger.newest, word=ledger.acknowledged)

    def _with_others(self, table: Table | None, ledger: Ledger, topics: Collection[str]) -> Table | None:
        """The table with its other pipelines, where a topic is to be read that this one does not know; else nobody is asked."""
        known = {log.topic for log in ledger.newest.positions} if ledger.newest and table and table.transaction_version else set()
        unknown, is_awaited = set(topics) - known, bool(table and is_waiting_for_a_table(ledger, table))
        return with_others(table, self.settings.table.path, self.app_id, unknown, is_awaited=is_awaited) if table and unknown else table

    def _refuse_unwritable(self, plan: Plan) -> None:
        """What could not be finished is not stored: stored, the plan would bind the pipeline."""
        render_commit_metadata(plan, self.app_id, self.run_id)
        check_writable(self.settings.table.path)
        if plan.losses:
            losses.recorded(plan, app_id=self.app_id, path=self.settings.table.losses_at)  # what lies there must be a losses table
            check_writable(self.settings.table.losses_at)

    def _bootstrap(self) -> list[tuple[str, int]]:
        given = self.settings.source.bootstrap
        if given:
            return [split_address(address) for address in given]
        return [(broker.host, broker.port) for broker in read_brokers(self.zookeeper)]

    def _asked_topics(self, left: Collection[str]) -> tuple[str, ...] | None:
        """By name where the conf names all of them in plain letters, else all topics: one request either way."""
        topics = self.settings.source.topics
        return (*topics.literal_names, *left) if len(topics.literal_names) == len(topics.allow) else None

    def _name_of(self, metadata: ClusterMetadata) -> str:
        name = metadata.cluster_id or read_cluster_id(self.zookeeper) or self.settings.cluster
        if not name:
            raise SettingsError("the brokers tell no cluster id", key="cluster", check="give the cluster a name in the conf")
        return name

    @contextlib.contextmanager
    def _read_meanwhile(self) -> Iterator[None]:
        """Rows are read while they are written: what the tasks tell says how much of that time was reading."""
        reading = self._reading
        if reading is None:
            yield
            return
        began = time.monotonic()
        try:
            with self._phases.reading(reading.doing):
                yield
        finally:
            reading.port.close()
            for verb, seconds in reading.spent(began, time.monotonic()).items():
                self._phases.reckon(verb, seconds)

    def _applied(self, plan: Plan, outcome: Outcome) -> Applied:
        # what this run read is what is in the table only where the append was its own: compaction may lie between two readings
        was_ours = outcome.metadata is not None and outcome.metadata.run_id == self.run_id
        reading = self._reading if was_ours and self._reading and self._reading.plan_id == plan.id else None
        receipts = reading.receipts.in_order(len(plan.ranges)) if reading and reading.receipts else None
        if outcome.table is None:
            raise TableUnreachable(f"the table that held plan {plan.number} is gone", path=self.settings.table.path)
        version = outcome.table.version if outcome.delta_version is None else outcome.delta_version
        run_id = outcome.metadata.run_id if outcome.metadata else None
        undated = self._undated(outcome.delta_version)
        if receipts is not None:
            return Applied(plan.number, plan.id, version, outcome.table.id, receipts, run_id, undated=undated)
        counted = self._counted_again(plan, outcome.delta_version)
        return Applied(plan.number, plan.id, version, outcome.table.id, counted.receipts, run_id, counted.uncounted, undated)

    def _undated(self, delta_version: int | None) -> int | None:
        table, is_asked = self.settings.table, EVENT_DATE in self.settings.table.partition_by
        return rows_in_null_partition(table.path, delta_version, EVENT_DATE) if is_asked and delta_version is not None else None
