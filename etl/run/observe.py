"""What is the current state of brokers, ZooKeeper and the table?

Takes the snapshot that a run decides on; looks up run keys and the end of the run; reads and
commits the group's offsets in ZooKeeper, in Kafka or in both (`group.offsets_storage`). For both,
Kafka is committed first and ZooKeeper after it: after a crash the next run commits ZooKeeper.

Not here: what offsets mean (etl/decide/offsets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import OperatorOffsets, no_operator_offsets, unverified_offsets
from etl.decide.lag import progress_of_table, unread_starts
from etl.decide.offsets import both, in_zookeeper_alone, timestamps_to_look_up
from etl.decide.partition_owners import members_as_owners
from etl.decide.plan_replacement import topics_left_to_read
from etl.decide.reconcile import (
    plan_in_force,
    reject_missing_topics,
    reject_null_partition_value,
    reject_other_broker_type,
)
from etl.decide.recreated_or_truncated import end_places, epochs_to_ask, known_places
from etl.decide.run_requests import bounds_to_find
from etl.decide.set_offsets import pauses_of_partitions
from etl.decide.table_changes import app_id_of, is_waiting_for_a_table
from etl.decide.table_rules import missing_files_error, topics_to_check, unplanned_rows_error
from etl.errors import MembershipLost, NotOurTable, OffsetMoved, SettingsError
from etl.io.brokers.cluster_requests import Cluster, chosen_topics, names_of_topics, unknown_topics
from etl.io.brokers.group_offsets import FencedOffsetCommit, StoredOffsets
from etl.io.brokers.partition_ends import OffsetsAndLeaders, read_fingerprints
from etl.io.brokers.times import read_oldest
from etl.io.delta import loaded_plans
from etl.io.delta.loaded_plans import with_others
from etl.io.delta.table_shape import check_shape, columns_to_add, open_table
from etl.io.spark.session import parallelism_of, time_zone
from etl.io.zookeeper.group_offsets import ConsumerGroup, OwnedOffsets
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import find_key, read_pauses
from etl.io.zookeeper.pipelines import pipelines_beside
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import ClusterMetadata
from etl.model.columns import arrow_schema
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    Fingerprint,
    Isolation,
    MemberAssignment,
    OffsetsStorage,
    RejectedCommit,
    Retention,
    TopicPartition,
    select_keys,
)
from etl.model.plans import CommitState, Plan, Request
from etl.model.snapshot import (
    GroupSnapshot,
    Ledger,
    ResolvedRequest,
    Snapshot,
    Table,
    partition_snapshots,
    topic_snapshots,
)
from etl.run.discovery import Discovery
from etl.settings.sections import Settings


def look_up(
    request: Request | None,
    ledger: PlanLedger,
    newest: Plan | None,
    cluster: Cluster,
    found: OffsetsAndLeaders,
    isolation: Isolation,
) -> ResolvedRequest | None:
    """Return the ledger's record of the run key, and the offsets of its end in readable
    partitions.

    `newest` was read before. Raises SettingsError if brokers cannot find records by time.
    """
    if request is None:
        return None
    plan = record = None
    if request.run_key:
        number = newest.number if newest else 0
        plan, record = find_key(ledger, request.run_key, number)
    until = bounds_to_find(request, newest, plan).until
    if until is None or until.at_ms is None:
        return ResolvedRequest(request, record, plan)
    times = dict.fromkeys(found.extents, until.at_ms)
    return ResolvedRequest(request, record, plan, cluster.first_at(times, isolation=isolation))


class GroupOffsets:
    """The committed offsets of the group. Commits compare with the offsets that the plan observed.

    Raises errors of ZooKeeper and brokers, and as `ConsumerGroup.commit`.
    """

    def __init__(self, settings: Settings, zookeeper: ZooKeeper, discovery: Discovery) -> None:
        self.storage = settings.group.offsets_storage
        self._discovery = discovery
        self.group = ConsumerGroup(
            zookeeper, settings.group.id, physical=settings.source.is_physical
        )
        self._owned = OwnedOffsets(zookeeper, settings.group.id, self.group)
        self._kept = StoredOffsets(settings.group.id, settings.pipeline)
        self._fenced = FencedOffsetCommit(self._kept, tries_for_s=settings.source.request_timeout_s)

    def committed(
        self,
        topic_partitions: Iterable[TopicPartition],
        cluster: Cluster | None = None,
        *,
        after: Plan | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Return the committed offset of each partition that has one, after the newest plan.

        `cluster`: if it is open already. Raises SettingsError for brokers without group offsets,
        and as `ConsumerGroup.committed`.
        """
        partitions = list(topic_partitions)
        seen = after.expected_commits if after else {}
        if self.storage is OffsetsStorage.ZOOKEEPER:
            return self.group.committed(partitions, seen)
        if cluster is None:
            with self._discovery.open_cluster() as opened:
                return self.committed(partitions, opened, after=after)
        self._reject_too_old(cluster)
        kafka = self._kept.committed(cluster, partitions)
        if self.storage is OffsetsStorage.KAFKA:
            return kafka
        seen_in_zookeeper = {partition: found.in_zookeeper for partition, found in seen.items()}
        zookeeper = self.group.committed(partitions, seen_in_zookeeper)
        committed = {}
        for partition in {**zookeeper, **kafka}:
            in_zookeeper = zookeeper.get(partition, NOTHING_COMMITTED)
            committed[partition] = both(in_zookeeper, kafka.get(partition, NOTHING_COMMITTED))
        return committed

    def hand_over(self, plan: Plan, *, unsure: Callable[[], None]) -> RejectedCommit | None:
        """Commit the offsets of a plan of a Kafka group member before the read, all or none; see
        `FencedOffsetCommit.hand_over`.
        """
        with self._discovery.open_cluster() as cluster:
            return self._fenced.hand_over(cluster, plan, unsure=unsure)

    def commit(
        self,
        plan: Plan,
        partitions: Collection[TopicPartition] | None = None,
        *,
        share: Callable[[], MemberAssignment | None] = lambda: None,
    ) -> Mapping[TopicPartition, Committed]:
        """Commit the plan's positions of `partitions` (by default all that change); return the
        offsets then. `share`: the member's assignment in Kafka; None: no member.
        """
        if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
            return self.group.commit(plan, partitions)
        if partitions is None:
            partitions = plan.offsets_to_move
        wanted = sorted(partitions)
        if not wanted:
            return {}
        before = {partition: plan.expected_commits[partition].in_kafka for partition in wanted}
        after = {partition: plan.moved(partition).in_kafka for partition in wanted}
        with self._discovery.open_cluster() as cluster:
            moved = self._kept.move(cluster, before, after, share())
        if plan.commit.storage is OffsetsStorage.DUAL:
            in_zookeeper = self.group.committed(moved)
            uncommitted = []
            for partition in moved:
                if (
                    in_zookeeper.get(partition, NOTHING_COMMITTED).offset
                    != plan.loaded_until[partition]
                ):
                    uncommitted.append(partition)
            self.group.commit(in_zookeeper_alone(plan), uncommitted)
        return {partition: plan.moved(partition) for partition in moved}

    def commit_of_member(
        self,
        plan: Plan,
        partitions: Collection[TopicPartition] | None,
        *,
        share: Callable[[], MemberAssignment | None],
        unbroken: Callable[[MemberAssignment], MemberAssignment | None],
        unsure: Callable[[], None],
    ) -> Mapping[TopicPartition, Committed]:
        """Commit the positions of a member's plan after its append, of the partitions that are
        still its own; return the committed offsets.

        In Kafka by the plan's own membership with today's epoch (`unbroken`), never by a later one;
        `partitions`, which a later run finds, as `share`. `unsure`: see
        `FencedOffsetCommit.hand_over`.
        """
        to_commit = plan.offsets_to_move if partitions is None else partitions
        wanted = sorted(to_commit)
        if not wanted:
            return {}
        if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
            return self._owned.move(plan, wanted)
        with self._discovery.open_cluster() as cluster:
            if partitions is None:
                committed = {}
                for batch in self._kept.in_commits(wanted, plan.commit_metadata):
                    part = _with_commit_done(plan, batch)
                    if self._is_taken(cluster, part, unbroken, unsure):
                        for partition in batch:
                            committed[partition] = plan.moved(partition)
                return committed
            now = share()
            ours = [partition for partition in wanted if now and partition in now.partitions]
            before = {partition: plan.expected_commits[partition] for partition in ours}
            after = {partition: plan.moved(partition) for partition in ours}
            try:
                moved = self._kept.move(cluster, before, after, now)
            except (MembershipLost, OffsetMoved):  # another member owns them now
                return {}
        return {partition: plan.moved(partition) for partition in moved}

    def _is_taken(
        self,
        cluster: Cluster,
        plan: Plan,
        unbroken: Callable[[MemberAssignment], MemberAssignment | None],
        unsure: Callable[[], None],
    ) -> bool:
        """Return True if the coordinator accepts the plan's commit. Epochs change when members come
        or go; the plan's stays valid for what it was assigned.
        """
        while self._fenced.hand_over(cluster, plan, unsure=unsure):
            planner = plan.commit.member
            now = unbroken(planner) if planner else None
            if planner is None or now is None or now.generation == planner.generation:
                return False
            renewed = replace(planner, generation=now.generation)
            plan = replace(plan, commit=replace(plan.commit, member=renewed))
        return True

    def _reject_too_old(self, cluster: Cluster) -> None:
        if not cluster.first(lambda consumer: consumer.keeps_offsets()):
            brokers = cluster.first(lambda consumer: consumer.introduction())
            raise SettingsError(
                f"group.offsets_storage is {self.storage.value}, and these brokers store no "
                f"offsets "
                f"of groups: {brokers}",
                key="group.offsets_storage",
                action="Set group.offsets_storage: zookeeper. Kafka stores offsets from 0.8.2 on",
            )


def _with_commit_done(plan: Plan, partitions: Collection[TopicPartition]) -> Plan:
    """Return a member's plan as one whose offsets of these partitions are committed with it."""
    commit = replace(plan.commit, state=CommitState.IN_DOUBT)
    if commit.member:
        commit = replace(commit, member=replace(commit.member, partitions=frozenset(partitions)))
    return replace(plan, commit=commit)


_SNAPSHOTS_MAX = 3


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The result of one observation."""

    snapshot: Snapshot
    pipelines_version: int | None
    """See `GroupPipelines.version`: from before the other pipelines were read."""


class Observer:
    """Takes snapshots of one pipeline; changes nothing."""

    def __init__(
        self,
        settings: Settings,
        zookeeper: ZooKeeper,
        offsets: GroupOffsets,
        ledger: PlanLedger,
        *,
        now_ms: Callable[[], int],
        request: Request | None = None,
    ) -> None:
        self._request = request
        self._offsets = offsets
        self._settings = settings
        self._zookeeper = zookeeper
        self._group = offsets.group
        self._ledger = ledger
        self._pipelines = pipelines_beside(ledger)
        self._now_ms = now_ms
        self._discovery = Discovery(settings, zookeeper)

    def observe(self, named: OperatorOffsets = no_operator_offsets) -> ObservedState:
        """Take a snapshot. It is repeated if another driver stored a plan meanwhile, because the
        ledger is older than the rest then. `named`: see `unverified_offsets`.
        """
        for _ in range(_SNAPSHOTS_MAX):
            before = self._ledger.mark()
            seen = self._look(named)
            if self._ledger.mark() == before:
                break
        return seen

    def observe_ledgers(self) -> ObservedState:
        """Return a snapshot of ZooKeeper and the table only: partitions of the ledger without
        offsets or leaders, and without other pipelines of the table, which matter only for unknown
        topics.
        """
        for _ in range(_SNAPSHOTS_MAX):
            before = self._ledger.mark()
            seen = self._observe_ledgers()
            if self._ledger.mark() == before:
                break
        return seen

    def _observe_ledgers(self) -> ObservedState:
        ledger = self._ledger.read_ledger()
        admits = self._settings.source.topic_filter.admits
        newest = ledger.newest
        if newest:
            called = newest.cluster
        else:
            called = self._discovery.identity_of(ClusterMetadata(None, {}, {}), None)
        partitions = self._group.partitions_with_offsets(admits)
        if newest:
            partitions |= newest.loaded_until.keys()
        app_id = app_id_of(called.name, self._settings.group.id, self._settings.pipeline)
        table = observe_table(self._settings, app_id, ledger)
        in_force = plan_in_force(ledger, table)
        if in_force:
            partitions |= in_force.loaded_until.keys()
        read = set()
        topics = set()
        for partition in partitions:
            if admits(partition.topic):
                read.add(partition)
                topics.add(partition.topic)
        committed = self._offsets.committed(partitions, after=newest)
        owners = self._group.owners(topics)
        live_consumers = self._group.live_consumers()
        other_pipelines = self._pipelines.topics_of_others(self._ledger.pipeline)
        return ObservedState(
            Snapshot(
                cluster=called,
                partitions=partition_snapshots({}, read, committed=committed, owner=owners),
                topics={},
                group=GroupSnapshot(
                    storage=self._offsets.storage,
                    live_consumers=live_consumers,
                    other_pipelines=other_pipelines,
                ),
                ledger=replace(ledger, pauses=read_pauses(self._ledger)),
                table=table,
                time_zone=self._time_zone(),
            ),
            None,
        )

    def _time_zone(self) -> str:
        """The session time zone of Spark in this run."""
        return time_zone(self._settings.spark).name

    def _look(self, named: OperatorOffsets) -> ObservedState:
        """Observe everything, log ends last: partitions only grow, so no valid offset is above an
        end that is read later.
        """
        source = self._settings.source
        ledger = self._ledger.read_ledger()
        # Before any request: brokers of another type do not have these partitions.
        reject_other_broker_type(ledger.newest, self._settings)
        pipelines_version = self._pipelines.version()  # before the topics of the others
        other_pipelines = self._pipelines.topics_of_others(self._ledger.pipeline)
        # Tasks cannot distinguish a deleted topic from one without a leader, so the topics of a
        # stored plan are requested here, also those that the conf no longer names.
        left = topics_left_to_read(ledger)
        read = frozenset[str]()
        known: Collection[TopicPartition] = ()
        if ledger.newest:
            read = ledger.newest.known_topics
            known = ledger.newest.loaded_until
        with self._discovery.open_cluster(self._known_partitions(ledger)) as cluster:
            described = self._discovery.describe(cluster, left, read)
            metadata = chosen_topics(described, source.topic_filter)
            gone = unknown_topics(described, left)
            reject_missing_topics(
                self._settings,
                metadata.topics,
                lambda: names_of_topics(cluster),
                gone=gone,
                read=read,
            )
            reject_null_partition_value(self._settings, metadata.topics)
            called = self._discovery.identity_of(metadata, ledger.newest)
            # The ledger's objects of partitions that it knows: look-ups by the same object need no
            # comparison of topics.
            planned = {partition: partition for partition in known}
            topic_partitions = []
            for topic in metadata.topics.values():
                for each in topic.partitions:
                    topic_partitions.append(planned.get(each.partition, each.partition))
            partitions = {*topic_partitions, *known}
            committed = self._offsets.committed(partitions, cluster, after=ledger.newest)
            table = self._table(called.name, ledger, metadata.topics)
            found = cluster.extents(
                topic_partitions,
                isolation=source.isolation_level,
                wait_for_leader_s=source.wait_for_leader_s,
                metadata=metadata,
            )
            in_force = plan_in_force(ledger, table)
            looked_at = cluster.looked_at(
                unverified_offsets(in_force, table, committed, found.extents, named), found.leaders
            )
            moments = timestamps_to_look_up(found.extents, in_force, self._settings, committed)
            starts: Mapping[TopicPartition, int] = {}
            if moments:
                # A time in the conf is exact. A time in a plan stands for "latest": an earlier
                # start skips no record.
                starts = cluster.offsets_at(
                    moments,
                    wait_for_leader_s=source.wait_for_leader_s,
                    may_be_earlier=in_force is not None,
                )
            found = found.without(moments.keys() - starts.keys())  # they lost their leader
            # after the offsets: one of the two shows a leader that was elected in between
            epochs = select_keys(epochs_to_ask(in_force, ledger.applied), found.extents)
            ends = cluster.epoch_ends(
                epochs,
                wait_for_leader_s=source.wait_for_leader_s,
                leaders=found.leaders,
            )
            request = look_up(
                self._request, self._ledger, ledger.newest, cluster, found, source.isolation_level
            )
            fingerprints = self._fetch_fingerprints(cluster, found, in_force)
            kept: Collection[str] = left
            if named is not no_operator_offsets:
                kept = {*left, *metadata.topics}  # an operator may name offsets that were read
            retention, retained_from = self._fetch_retention(cluster, found, ledger, kept)
            sizes = cluster.bytes_per_offset(found)
            open_transactions = cluster.open_transactions(found)
            members = cluster.members_of(self._settings.group.id, metadata.brokers.values())
            kafka_members = tuple(sorted(members.members))
            owners = {
                **members_as_owners(members, topic_partitions),
                **self._group.owners(metadata.topics),
            }
            live_consumers = (*self._group.live_consumers(), *kafka_members)
            creation_ids = self._discovery.creation_ids(metadata)
            snapshot = Snapshot(
                cluster=called,
                partitions=partition_snapshots(
                    found.extents,
                    found.leaderless,
                    leader=found.leaders,
                    committed=committed,
                    owner=owners,
                    bytes_per_offset=sizes,
                    leader_epoch=found.epochs,
                    epoch_end=ends,
                    start_at_time=starts,
                    retained_from=retained_from,
                    open_transaction=open_transactions,
                    looked_at=looked_at,
                    fingerprints=fingerprints,
                ),
                topics=topic_snapshots(
                    gone,
                    id={**creation_ids, **metadata.topic_ids},
                    creation_id=creation_ids,
                    retention=retention,
                ),
                group=GroupSnapshot(
                    storage=self._offsets.storage,
                    live_consumers=live_consumers,
                    kafka_members=kafka_members,
                    other_pipelines=other_pipelines,
                ),
                ledger=replace(ledger, pauses=read_pauses(self._ledger)),
                table=table,
                request=request,
                parallelism=parallelism_of(self._settings.spark),
                time_zone=self._time_zone(),
            )
            snapshot = self._with_oldest_of_paused(cluster, snapshot)
        return ObservedState(snapshot, pipelines_version)

    def _with_oldest_of_paused(self, cluster: Cluster, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the oldest unread record of each paused partition that lags.

        Partitions with byte offsets are left out, as they have no timestamps.
        """
        paused = pauses_of_partitions(snapshot.readable, snapshot.ledger.pauses)
        if not paused or self._settings.source.is_physical:
            return snapshot
        so_far = progress_of_table(snapshot, self._settings)
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for partition, start in unread_starts(paused, snapshot, so_far, self._settings).items():
            ranges[partition] = (start, snapshot.readable[partition].end_offset)
        if not ranges:
            return snapshot
        isolation = self._settings.source.isolation_level
        oldest = read_oldest(cluster, ranges, snapshot.leaders, isolation=isolation)
        changed = {}
        for partition, record in oldest.items():
            changed[partition] = replace(snapshot.partitions[partition], oldest_unread=record)
        return snapshot.with_partitions(changed)

    def _fetch_fingerprints(
        self, cluster: Cluster, found: OffsetsAndLeaders, plan: Plan | None
    ) -> dict[TopicPartition, tuple[Fingerprint, ...]]:
        """Read tail fingerprints at the log ends, then where the plan has one: the second read
        proves that the log of the first one is unchanged.
        """
        places = (end_places(found.extents), known_places(plan, found.extents))
        answers = []
        for wanted in places:
            if wanted:
                answers.append(read_fingerprints(cluster, wanted, found.leaders))
        fingerprints: dict[TopicPartition, tuple[Fingerprint, ...]] = {}
        for answer in answers:
            for partition, fingerprint in answer.items():
                fingerprints[partition] = (*fingerprints.get(partition, ()), fingerprint)
        return fingerprints

    def _fetch_retention(
        self,
        cluster: Cluster,
        found: OffsetsAndLeaders,
        ledger: Ledger,
        left: Collection[str],
    ) -> tuple[dict[str, Retention], dict[TopicPartition, int]]:
        """Return the retention of topics with unread records and of `left`; and per partition the
        first offset that does not expire within `source.expiry_warning_s`.
        """
        source = self._settings.source
        positions = ledger.newest.loaded_until if ledger.newest else {}
        unread = []
        for partition, offsets in found.extents.items():
            if offsets.end_offset > positions.get(partition, offsets.log_start_offset):
                unread.append(partition)
        topics = {*left, *(partition.topic for partition in unread)}
        retention = cluster.retention(topics)
        # brokers before 0.11, and those that deny it, do not describe the topic's config
        compacted = self._discovery.compacted(topics - retention.keys())
        retention |= dict.fromkeys(compacted, Retention(is_compacted=True))
        if not source.expiry_warning_s:
            return retention, {}
        soon = self._now_ms() + round(source.expiry_warning_s * 1000)
        retained_since = {}
        for topic, limits in retention.items():
            if limits.ms is not None:
                retained_since[topic] = max(0, soon - limits.ms)
        times = {}
        for partition in unread:
            if partition.topic in retained_since:
                times[partition] = retained_since[partition.topic]
        return retention, cluster.retained_from(found, times, isolation=source.isolation_level)

    def _table(self, cluster: str, ledger: Ledger, topics: Collection[str]) -> Table | None:
        """Return the table, with its other pipelines if a topic is unknown, or was not read for the
        newest plan: another pipeline may have inherited it since.
        """
        app_id = app_id_of(cluster, self._settings.group.id, self._settings.pipeline)
        path = self._settings.table.path
        try:
            table = observe_table(self._settings, app_id, ledger)
        except NotOurTable:
            if ledger.newest is None:
                reject_unaccounted_rows(self._settings, topics)
            raise
        if table is None:
            return None
        unknown = set(topics)
        if ledger.newest and table.transaction_version:
            unknown -= ledger.newest.observed_topics
        if unknown:
            is_awaited = is_waiting_for_a_table(ledger, table)
            table = with_others(table, path, app_id, unknown, is_awaited=is_awaited)
        in_force = plan_in_force(ledger, table)
        has_commits = table.transaction_version is not None
        to_check = topics_to_check(topics, in_force, table.id, has_commits=has_commits)
        if not to_check:
            return table
        from etl.io.delta.offsets_of_rows import unaccounted_rows

        is_physical = self._settings.source.is_physical
        held = unaccounted_rows(path, to_check, physical=is_physical, app_id=app_id)
        return replace(table, held=held)

    def _known_partitions(self, ledger: Ledger) -> set[TopicPartition]:
        """Return Jafka partitions that the newest plan and the group's offsets name: nothing else
        knows those of an unavailable broker.
        """
        if not self._settings.source.is_physical:
            return set()
        planned: set[TopicPartition] = set()
        if ledger.newest:
            planned = {*ledger.newest.partitions, *ledger.newest.pending}
        return planned | self._group.partitions_with_offsets(
            self._settings.source.topic_filter.admits
        )


def reject_unaccounted_rows(settings: Settings, topics: Collection[str]) -> None:
    """Reject a table that lacks columns and has rows of these topics that no pipeline loaded.
    Raises NeedsDecision. If the columns were added, the rows would be loaded a second time.
    """
    if settings.transform.function:
        return
    path = settings.table.path
    is_physical = settings.source.is_physical
    table = open_table(path)
    if table is None:
        return
    to_add = columns_to_add(table, arrow_schema(physical=is_physical))
    if not to_add:
        return
    from etl.io.delta.offsets_of_rows import unaccounted_rows

    rows = unaccounted_rows(path, topics, physical=is_physical, table=table)
    if rows:
        raise unplanned_rows_error(rows, table.version(), to_add=to_add)


def observe_table(settings: Settings, app_id: str, ledger: Ledger) -> Table | None:
    """Return the table, and changes by others after the last known version. Raises NotOurTable if
    the rows do not fit it, and NeedsDecision if a catalog names it and it is gone.
    """
    table = settings.table
    if not settings.transform.function:
        check_shape(
            table.path, arrow_schema(physical=settings.source.is_physical), table.partition_by
        )
    found = loaded_plans.read_table(
        table.path,
        app_id,
        known=ledger.known_version,
        is_ours=settings.source.topic_filter.admits,
        plan=ledger.newest,
        acknowledgement=ledger.acknowledged,
    )
    if found is None and table.name:
        raise missing_files_error(table.name, table.path)
    return found
