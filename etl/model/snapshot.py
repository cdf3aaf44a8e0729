"""What did the brokers, the ledger and the table hold at the start of a run?

Lives here: the snapshot of a run; the ledger of a pipeline and the requests of its backfills;
the last plan in the table, and commits of other writers; the state of the pipeline that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from etl.model.partitions import (
    NOTHING_COMMITTED,
    ClusterIdentity,
    Committed,
    EpochEnd,
    Fingerprint,
    Leader,
    LookedAt,
    MemberAssignment,
    OffsetsStorage,
    OldestRecord,
    OpenTransaction,
    PartitionOffsets,
    Retention,
    TopicPartition,
    known_values,
)
from etl.model.plans import (
    CommitResult,
    HeldRows,
    Loss,
    Plan,
    Predecessor,
    ReadByOthers,
    Request,
    RunKeyRecord,
    StaleRows,
)


@dataclass(frozen=True, slots=True)
class Backfill:
    """The request of a backfill, as the pipeline's ledger has it.

    What it still has to load is its intervals without those that are loaded or lost.
    """

    name: str
    intervals: Mapping[TopicPartition, tuple[tuple[int, int], ...]]
    """Per partition the requested offsets [from, until), ascending and disjoint."""
    incarnations: Mapping[TopicPartition, int]
    """The incarnation of each partition; 0 if not named."""
    request: str
    """The request as text: one name stands for one request."""
    created_at_ms: int
    lost: Mapping[TopicPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Requested offsets that its plans gave up, by policy."""

    def __post_init__(self) -> None:
        for by_partition in (self.intervals, self.lost):
            for partition, intervals in by_partition.items():
                for start, until in intervals:
                    if not 0 <= start < until:
                        raise ValueError(f"{start} to {until} of {partition} is no offset interval")
        if any(incarnation < 0 for incarnation in self.incarnations.values()):
            raise ValueError("an incarnation is negative")

    @property
    def offsets(self) -> int:
        """Return the number of requested offsets; of Jafka, bytes."""
        total = 0
        for intervals in self.intervals.values():
            total += sum(until - start for start, until in intervals)
        return total

    def incarnation_of(self, partition: TopicPartition) -> int:
        """Return the incarnation of the partition that the requested offsets belong to."""
        return self.incarnations.get(partition, 0)


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit of another writer that changed rows or the schema of this pipeline's table."""

    delta_version: int
    operation: str
    why: str
    """The change: `removed rows`, `redefined the table`."""
    by: Predecessor | None = None
    """If another pipeline loaded a topic of ours: its application id and plan number."""
    unread: Predecessor | None = None
    """If the commit is another pipeline's and its plan cannot be read: the same."""

    @property
    def as_noted(self) -> ForeignCommit:
        """The commit as the ledger keeps it: without the pipeline that made it."""
        return replace(self, by=None, unread=None)


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The `userMetadata` of a commit of this program."""

    delta_version: int
    app_id: str
    uid: str
    number: int
    plan_id: str
    document: bytes | None = field(default=None, repr=False, kw_only=True)
    """The plan, as `plan_document.parse_plan` parses it; None: the commit has none."""
    run_id: str | None = field(default=None, kw_only=True)
    """The run that appended it."""
    results: bytes | None = field(default=None, repr=False, kw_only=True)
    """Results of the plan's ranges, as parsed by `plan_document.results_of`; None: the commit has
    none.
    """


@dataclass(frozen=True, slots=True)
class OtherPipeline:
    """Another pipeline that has loaded into the same table, by its newest commit there."""

    app_id: str
    number: int
    delta_version: int | None = None
    """None: the table's log no longer holds that commit."""
    plan: Plan | None = None
    """None: unknown what it loaded."""

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that it loaded or decided a start of; None: unknown.

        Empty if it was closed before its first plan was in the table.
        """
        if self.plan is None:
            return None
        if (
            self.plan.is_closing
            and self.plan.origin.previous is None
            and not self.plan.predecessors
        ):
            return frozenset()
        return self.plan.known_topics


@dataclass(frozen=True, slots=True)
class Table:
    """The table: the last plan in it, and commits of other writers since."""

    id: str
    version: int
    transaction_version: int | None
    """D: plan N was applied exactly if D >= N. None: no commit of ours."""
    metadata: CommitMetadata | None = None
    """The commit found by its `txn`; None when D is None or the log no longer holds that commit."""
    foreign: tuple[ForeignCommit, ...] = ()
    """Commits since the last one of ours that removed rows, redefined the table, or loaded a topic
    of ours.
    """
    others: tuple[OtherPipeline, ...] = ()
    """Other pipelines of the table; looked up only if a topic is unknown to this pipeline."""
    topics_with_rows: frozenset[str] = frozenset()
    """Unknown topics with rows in the table; looked up only if it is unknown what another pipeline
    loaded.
    """
    is_of_others_alone: bool = False
    """True if all that its commits added is other pipelines'. Looked up only if the newest plan
    waits for a table.
    """
    commit_in_log: str | None = None
    """The hash of the commit file of the version of the last acknowledgement, as it is now; None
    when the log does not hold it.
    """
    held: tuple[HeldRows, ...] | None = None
    """Rows of topics that no pipeline has loaded; None: not looked up, since no topic is planned
    for the first time.
    """


@dataclass(frozen=True, slots=True)
class Interval:
    """A loaded interval [from, until) of a partition: its rows, and why other offsets have none."""

    from_offset: int
    until_offset: int
    rows: int | None
    """None: they could not be counted."""
    control_records: int = 0
    aborted_records: int = 0
    compacted: int = 0
    incarnation: int = 0
    unproven: int = 0
    """Offsets without a row where a transform may have dropped a record; on Jafka all bytes of such
    ranges.
    """
    left_out: int = 0
    """Records that a transform left out."""

    @property
    def unexplained(self) -> int:
        """Return the number of offsets that have no row for an unknown reason."""
        if self.rows is None:
            return 0
        explained = self.rows + self.control_records + self.aborted_records + self.compacted
        explained += self.left_out
        return max(0, self.until_offset - self.from_offset - explained)


@dataclass(frozen=True, slots=True)
class LoadedIntervals:
    """Loaded intervals of pruned plans, merged per partition."""

    through: int = 0
    """The number of the last plan folded in; a plan at or below it is never folded in again."""
    intervals: Mapping[TopicPartition, tuple[Interval, ...]] = field(default_factory=dict)
    removals: tuple[ForeignCommit, ...] = ()
    """Commits of others that removed rows and that policy let pass."""
    table_id: str | None = None
    """The table that holds the intervals; None: not known, from before this was kept."""
    vanished: tuple[StaleRows, ...] = ()
    """Stale rows of pruned resets."""
    given_up: Mapping[TopicPartition, tuple[Interval, ...]] = field(default_factory=dict)
    """Loaded into a table, or a state of it, that an operator gave up: rows of it may be there or
    not.
    """
    held_through: int | None = None
    """The last folded plan that was not given up; None: that is `through`."""
    unproven_through: int = 0
    """The newest of the folded plans of which not everything can be proven; 0: there is none."""
    keys: tuple[RunKeyRecord, ...] = ()
    """Run keys of folded plans, and of runs that had nothing to read, oldest first."""
    read_by_others: tuple[ReadByOthers, ...] = ()
    """Offsets that other members read, of pruned plans, adjacent ones merged."""
    has_unknown_plans: bool = False
    """True if a plan with a number below `through` is unknown, as after a ledger was restored and
    the table's log had lost its commit: rows may be in the table that no interval names.
    """


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operator's decision: the pipeline continues with this table as it is at this version."""

    table_id: str | None
    """None: there is no table, and the next plan makes one."""
    delta_version: int | None
    number: int
    """The newest plan when it was given; later plans need one of their own."""
    reason: str
    at_ms: int
    lacks_plan: bool = False
    """True if a look-up of rows found none of plan `number`, because ledger and table did not show
    whether it was applied.
    """
    plan_id: str | None = None
    """Id of plan `number` at that time; None, like the next two, in documents that lack it."""
    transaction_version: int | None = None
    """The table's transaction version at that time, 0 for none."""
    was_recorded: bool | None = None
    """Whether the result of plan `number` was recorded at that time."""
    commit: str | None = None
    """The hash of that version's commit file; None where the table's log did not hold it, or from
    before this was kept.
    """
    place: str | None = None
    """Location of that table, or of a missing one, as by `settings.choices.place_of`; None: a
    document without it.
    """
    rows_of: tuple[str, ...] = ()
    """Topics of another cluster or incarnation, with rows of other writers in that table."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """An operator's decision: this pipeline loads no more."""

    reason: str
    at_ms: int
    taken_over_by: str | None = None
    """`GROUP/PIPELINE` that inherited: positions of this pipeline are obsolete."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator's decision: a topic, or one partition of it, is not read until it is resumed."""

    topic: str
    partition: TopicPartition | None
    """None: all partitions of the topic, later ones included."""
    reason: str
    by: str
    """Operator: `user@host`."""
    since_ms: int

    def covers(self, partition: TopicPartition) -> bool:
        """True if the pause includes the partition."""
        return partition.topic == self.topic and self.partition in (None, partition)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The numbered plans of one pipeline as ZooKeeper holds them."""

    uid: str | None = None
    """None: this pipeline never made a plan."""
    newest: Plan | None = None
    applied: CommitResult | None = None
    """Result of `newest`; None: unknown yet."""
    known_version: int | None = None
    """Delta version of the last recorded commit: writers up to there are known."""
    newest_version: int | None = None
    """The version of `newest`'s znode: the expected side when the plan is superseded."""
    acknowledged: Acknowledgement | None = None
    """The last acknowledgement by an operator of what others did to the table."""
    retired: Retirement | None = None
    """Why this pipeline loads no more; None while it is in service."""
    pauses: tuple[Pause, ...] = ()
    """Paused topics and partitions."""


class Availability(str, Enum):
    """Whether a run reads a partition, else why not."""

    READABLE = "readable"
    LEADERLESS = "leaderless"
    OWNED = "owned"
    """Left to its owner, another member of the group (`decide.partition_owners`)."""
    PAUSED = "paused"
    """Left out by an operator (`decide.set_offsets`)."""
    NOT_SELECTED = "not selected"
    """The conf does not select it, or the brokers do not know it: only its committed offset or its
    owner is known.
    """


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition at the start of a run, by its brokers, the group and the ledger."""

    availability: Availability = Availability.NOT_SELECTED
    offsets: PartitionOffsets | None = None
    """None: no leader answered."""
    leader: Leader | None = None
    committed: Committed | None = None
    """None: no offset is committed."""
    owner: str | None = None
    """Another consumer that owns it."""
    pause: Pause | None = None
    """Set if it is paused."""
    bytes_per_offset: float | None = None
    """Average, if the broker reports sizes."""
    leader_epoch: int | None = None
    """Leader epoch of the reported end, if brokers have epochs."""
    epoch_end: EpochEnd | None = None
    """End of the newest plan's leader epoch, if the leader knows it."""
    start_at_time: int | None = None
    """The offset of `starting_offsets: ...`, if there is a record that late."""
    retained_from: int | None = None
    """The first offset that will not have expired by time within `source.expiry_warning_s`, if the
    topic has such a limit.
    """
    open_transaction: OpenTransaction | None = None
    """The open transaction that makes offsets unreadable, if the brokers describe it."""
    looked_at: tuple[LookedAt, ...] = ()
    """Verified byte offsets: whether an entry begins there."""
    fingerprints: tuple[Fingerprint, ...] = ()
    """Tail fingerprints of a Jafka partition: at the current end, and where the newest plan has
    one.
    """
    oldest_unread: OldestRecord | None = None
    """The oldest unread record of a paused partition, if messages have timestamps."""

    @property
    def readable_offsets(self) -> PartitionOffsets | None:
        """Its offsets; None if the run does not read it."""
        if self.availability is Availability.READABLE:
            return self.offsets
        return None

    @property
    def is_left_out(self) -> bool:
        """True if it is left to its owner or paused."""
        return self.availability in (Availability.OWNED, Availability.PAUSED)

    def without_pause(self) -> PartitionSnapshot:
        """Return it as not paused."""
        if self.availability is not Availability.PAUSED:
            return self
        return replace(self, availability=self._availability_by_leader, pause=None)

    def without_owner(self) -> PartitionSnapshot:
        """Return it as not owned by others."""
        if self.availability is Availability.OWNED:
            return replace(self, availability=self._availability_by_leader, owner=None)
        if self.owner is not None:
            return replace(self, owner=None)
        return self

    @property
    def _availability_by_leader(self) -> Availability:
        if self.offsets is None:
            return Availability.LEADERLESS
        return Availability.READABLE


NOTHING_KNOWN = PartitionSnapshot()
"""A partition that neither the brokers nor the group know."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic at the start of a run."""

    id: str | None = None
    """As reported by brokers, else the id of its znode."""
    creation_id: str | None = None
    """The id of its znode, also if brokers report topic ids (`Plan.creation_ids`)."""
    retention: Retention | None = None
    """Known of topics with unread offsets. It also explains missing offsets."""
    is_missing: bool = False
    """True if a stored plan reads it and it no longer exists, whether or not the conf selects
    it.
    """


NOTHING_KNOWN_OF_TOPIC = TopicSnapshot()
"""A topic that neither the brokers nor ZooKeeper know."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The consumer group at the start of a run."""

    storage: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """Where the committed offsets were read."""
    live_consumers: tuple[str, ...] = ()
    """Registered consumers, in ZooKeeper and in Kafka."""
    kafka_members: tuple[str, ...] = ()
    """Those of the live consumers that are members of Kafka's own group of this name."""
    other_pipelines: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The group's other pipelines and the topics that they know."""
    assignment: MemberAssignment | None = None
    """Partitions that the run owns as a group member; None: no member."""


@dataclass(frozen=True)
class Snapshot:
    """What brokers, ledger and table held at the start of a run. Decisions use nothing else.

    The properties are the facts of all partitions or topics in one mapping. Each is made once.
    """

    cluster: ClusterIdentity
    partitions: Mapping[TopicPartition, PartitionSnapshot]
    """Partitions that the conf selects or that have a committed offset or an owner."""
    topics: Mapping[str, TopicSnapshot]
    group: GroupSnapshot
    ledger: Ledger
    table: Table | None
    request: ResolvedRequest | None = None
    """None: nothing in addition to the conf."""
    parallelism: int | None = 1
    """How many of Spark's tasks work at once; None where only the cluster knows."""
    time_zone: str | None = None
    """The session time zone that Spark has in this run."""

    def partition(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        """Return the partition, `NOTHING_KNOWN` if nothing is known of it."""
        return self.partitions.get(topic_partition, NOTHING_KNOWN)

    def topic(self, name: str) -> TopicSnapshot:
        """Return the topic, an empty one if nothing is known of it."""
        return self.topics.get(name, NOTHING_KNOWN_OF_TOPIC)

    def committed_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the committed offset of each partition, `NOTHING_COMMITTED` if it has none."""
        return {
            partition: self.committed.get(partition, NOTHING_COMMITTED) for partition in partitions
        }

    def with_partitions(self, changed: Mapping[TopicPartition, PartitionSnapshot]) -> Snapshot:
        """Return the snapshot with these partitions in place of what it has of them."""
        if not changed:
            return self
        return replace(self, partitions={**self.partitions, **changed})

    def with_committed(self, committed: Mapping[TopicPartition, Committed]) -> Snapshot:
        """Return the snapshot with other committed offsets of these partitions."""
        changed = {}
        for topic_partition, offset in committed.items():
            partition = self.partition(topic_partition)
            if partition.committed != offset:
                changed[topic_partition] = replace(partition, committed=offset)
        return self.with_partitions(changed)

    def with_paused(self) -> Snapshot:
        """Return the snapshot with paused partitions among the others, for requests that name
        them.
        """
        changed = {}
        for partition in self.paused:
            changed[partition] = self.partitions[partition].without_pause()
        return self.with_partitions(changed)

    def with_offsets_of_paused(self) -> Snapshot:
        """Return the snapshot with the offsets of paused partitions readable, for reports on them:
        they stay paused.
        """
        paused = []
        for topic_partition in self.paused:
            if self.partitions[topic_partition].availability is Availability.PAUSED:
                paused.append(topic_partition)
        return self.with_offsets_of(paused)

    def with_offsets_of(self, partitions: Iterable[TopicPartition]) -> Snapshot:
        """Return the snapshot with the offsets of these partitions readable, also if they are
        paused or left to their owner.
        """
        changed = {}
        for topic_partition in partitions:
            partition = self.partitions.get(topic_partition)
            if partition and partition.is_left_out and partition.offsets:
                changed[topic_partition] = replace(partition, availability=Availability.READABLE)
        return self.with_partitions(changed)

    def with_all_partitions(self) -> Snapshot:
        """Return the snapshot with paused and owned partitions among the others: a backfill reads
        offsets that no other consumer reads.
        """
        changed = {}
        for partition in (*self.paused, *self.owners):
            changed[partition] = self.partitions[partition].without_pause().without_owner()
        return self.with_partitions(changed)

    def with_assignment(self, assignment: MemberAssignment | None) -> Snapshot:
        """Return the snapshot of a run with this assignment; None: no member."""
        return replace(self, group=replace(self.group, assignment=assignment))

    @cached_property
    def readable(self) -> Mapping[TopicPartition, PartitionOffsets]:
        """The offsets of the partitions that the run reads."""
        return known_values(self.partitions, lambda partition: partition.readable_offsets)

    @cached_property
    def leaderless(self) -> frozenset[TopicPartition]:
        """The partitions that the run would read, if they had a leader."""
        found = []
        for topic_partition, partition in self.partitions.items():
            if partition.availability is Availability.LEADERLESS:
                found.append(topic_partition)
        return frozenset(found)

    @cached_property
    def leaders(self) -> Mapping[TopicPartition, Leader]:
        """The leaders of the partitions that have one."""
        return known_values(self.partitions, lambda partition: partition.leader)

    @cached_property
    def left_out(self) -> Mapping[TopicPartition, PartitionOffsets]:
        """The offsets of partitions that are paused or left to their owner, and have a leader."""
        found = {}
        for topic_partition, partition in self.partitions.items():
            if partition.is_left_out and partition.offsets:
                found[topic_partition] = partition.offsets
        return found

    @cached_property
    def paused(self) -> Mapping[TopicPartition, Pause]:
        """The pauses of the partitions that are left out for them."""
        return known_values(self.partitions, lambda partition: partition.pause)

    @cached_property
    def owners(self) -> Mapping[TopicPartition, str]:
        """The owners of partitions that others own."""
        return known_values(self.partitions, lambda partition: partition.owner)

    @cached_property
    def committed(self) -> Mapping[TopicPartition, Committed]:
        """The committed offsets of partitions that have one."""
        return known_values(self.partitions, lambda partition: partition.committed)

    @cached_property
    def bytes_per_offset(self) -> Mapping[TopicPartition, float]:
        """Average bytes per offset, of partitions whose broker reports sizes."""
        return known_values(self.partitions, lambda partition: partition.bytes_per_offset)

    @cached_property
    def topic_ids(self) -> Mapping[str, str]:
        """The known ids of topics."""
        return known_values(self.topics, lambda topic: topic.id)

    @cached_property
    def creation_ids(self) -> Mapping[str, str]:
        """The known ids of the topics' znodes."""
        return known_values(self.topics, lambda topic: topic.creation_id)

    @cached_property
    def missing_topics(self) -> frozenset[str]:
        """Topics of a stored plan that no longer exist."""
        return frozenset(name for name, topic in self.topics.items() if topic.is_missing)


def partition_snapshots(
    offsets: Mapping[TopicPartition, PartitionOffsets],
    leaderless: Iterable[TopicPartition] = (),
    **facts: Mapping[TopicPartition, Any],
) -> dict[TopicPartition, PartitionSnapshot]:
    """Join what brokers and the group answer, a mapping by partition for each field.

    offsets      of the partitions with a leader: they are readable
    leaderless   the other partitions that the conf selects
    facts        other fields of `PartitionSnapshot`, by name
    """
    found: dict[TopicPartition, dict[str, Any]] = {}
    for partition, partition_offsets in offsets.items():
        found[partition] = {"availability": Availability.READABLE, "offsets": partition_offsets}
    for partition in leaderless:
        found[partition] = {"availability": Availability.LEADERLESS}
    for name, values in facts.items():
        for partition, value in values.items():
            found.setdefault(partition, {})[name] = value
    return {partition: PartitionSnapshot(**fields) for partition, fields in found.items()}


def topic_snapshots(
    missing: Iterable[str] = (), **facts: Mapping[str, Any]
) -> dict[str, TopicSnapshot]:
    """Join facts of topics, a mapping by name for each field of `TopicSnapshot`; `missing`: topics
    of a stored plan that no longer exist.
    """
    found: dict[str, dict[str, Any]] = {topic: {"is_missing": True} for topic in missing}
    for name, values in facts.items():
        for topic, value in values.items():
            found.setdefault(topic, {})[name] = value
    return {topic: TopicSnapshot(**fields) for topic, fields in found.items()}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The request of a run, with the looked-up offsets."""

    request: Request
    key: RunKeyRecord | None = None
    """The ledger's record of the run key."""
    plan: Plan | None = None
    """The newest plan under the key, where it is stored yet and is not the pipeline's newest one.
    """
    untils: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """Offset of the end bound in each partition that is read; None: no record that late."""


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Nothing was ever planned: plan 1 starts by policy."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The newest plan was stored and not appended: a run executes it unchanged."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Supersede:
    """The newest plan was not appended and cannot be finished: another one takes its number."""

    plan: Plan
    reason: str
    skipped: tuple[Loss, ...] = ()
    """Offsets that the new plan must leave out, as an operator decided."""


@dataclass(frozen=True, slots=True)
class RebuildFromTable:
    """The table holds a plan that the ledger does not have: the table is right, and the ledger is
    written anew from its commits.
    """

    plan: Plan
    """The plan of our newest commit."""
    state: UpToDate
    """State of the pipeline after the ledger is restored."""


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The newest plan is in the table. The next one starts at `positions`."""

    last: Plan
    positions: Mapping[TopicPartition, int]
    uncommitted: tuple[TopicPartition, ...] = ()
    """Partitions with the committed offset that the plan observed: to be committed first."""
    followed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions with an offset that another client moved, and the new offset, with
    `on_offset_changed: follow`.
    """
    not_followed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The same for partitions that are not read now, so that their ends are unknown: position and
    offset stay.
    """
    dropped: tuple[TopicPartition, ...] = ()
    """Partitions with an expired offset in Kafka; they are in `uncommitted`, or committed again."""
    passed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Logs of ours that other members of the group read on, and up to where."""


@dataclass(frozen=True, slots=True)
class StoredBackfill:
    """The newest plan is a backfill's and was not appended. It need not be finished: the next plan
    takes its number, or it stays where there is nothing to read, and the backfill plans that part
    again.
    """

    plan: Plan
    state: UpToDate
    """State of the pipeline without that plan, which moves no position."""


PipelineState = FirstRun | Resume | Supersede | RebuildFromTable | StoredBackfill | UpToDate
"""The state of the pipeline, as decided by `reconcile`."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """The location of a named table, as looked up by Spark."""

    name: str
    """As in the conf."""
    path: str
    """As a conf would have it."""
    table_id: str | None
    """Id of the Delta table there."""
    at_ms: int
    catalog: str | None = None
    """The catalog, as by `catalog_of` of the conf; None: a document without it."""

    def __post_init__(self) -> None:
        if not self.name or not self.path:
            raise ValueError(f"{self.name!r} at {self.path!r} is no location of a table")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """The entry of a table in a catalog."""

    catalog: str
    kind: str
    """MANAGED, EXTERNAL, VIEW, ... as in Spark; empty if the catalog does not report it."""
    provider: str
    """delta, parquet, ...: lower case."""
    location: str | None
    """The location as Hadoop writes it: file:/a b, s3a://bucket/path."""
    properties: frozenset[str] = frozenset()
    """Keys of the table's own, and of what the catalog gives a session to reach its files by: their
    values may be secrets.
    """
