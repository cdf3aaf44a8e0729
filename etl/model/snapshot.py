"""What did the brokers, the ledger and the table hold at the start of a run?

Lives here: the snapshot of a run; the ledger of a pipeline and the requests of its backfills;
the last plan in the table, and commits of other writers; the state of the pipeline that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
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
    intervals: Mapping[BrokerPartition, tuple[tuple[int, int], ...]]
    """Per partition the requested offsets [from, until), ascending and disjoint."""
    incarnations: Mapping[BrokerPartition, int]
    """The incarnation of each partition; 0 if not named."""
    request: str
    """The request as text: one name stands for one request."""
    created_at_ms: int
    lost: Mapping[BrokerPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Requested offsets that its plans gave up, by policy."""

    def __post_init__(self) -> None:
        for by_partition in (self.intervals, self.lost):
            for log, intervals in by_partition.items():
                for start, until in intervals:
                    if not 0 <= start < until:
                        raise ValueError(f"{start} to {until} of {log} is no offset interval")
        if any(incarnation < 0 for incarnation in self.incarnations.values()):
            raise ValueError("an incarnation is negative")

    @property
    def offsets(self) -> int:
        """Return the number of requested offsets; of Jafka, bytes."""
        total = 0
        for intervals in self.intervals.values():
            total += sum(until - start for start, until in intervals)
        return total

    def incarnation_of(self, log: BrokerPartition) -> int:
        """Return the incarnation of the partition that the requested offsets belong to."""
        return self.incarnations.get(log, 0)


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit of another writer that changed rows or the schema of this pipeline's table."""

    delta_version: int
    operation: str
    why: str
    """The change: `removed rows`, `redefined the table`."""
    by: Predecessor | None = None
    """If another pipeline loaded a topic of ours: its application id and plan number."""


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
    receipts: bytes | None = field(default=None, repr=False, kw_only=True)
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
        return self.plan.topics


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

    @property
    def unexplained(self) -> int:
        """Return the number of offsets that have no row for an unknown reason."""
        if self.rows is None:
            return 0
        explained = self.rows + self.control_records + self.aborted_records + self.compacted
        return max(0, self.until_offset - self.from_offset - explained)


@dataclass(frozen=True, slots=True)
class LoadedIntervals:
    """Loaded intervals of pruned plans, merged per partition."""

    through: int = 0
    """The number of the last plan folded in; a plan at or below it is never folded in again."""
    intervals: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
    removals: tuple[ForeignCommit, ...] = ()
    """Commits of others that removed rows and that policy let pass."""
    table_id: str | None = None
    """The table that holds the intervals; None: not known, from before this was kept."""
    vanished: tuple[StaleRows, ...] = ()
    """Stale rows of pruned resets."""
    given_up: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
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
    log: BrokerPartition | None
    """None: all partitions of the topic, later ones included."""
    reason: str
    by: str
    """Operator: `user@host`."""
    since_ms: int

    def covers(self, log: BrokerPartition) -> bool:
        """True if the pause includes the partition."""
        return log.topic == self.topic and self.log in (None, log)


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What brokers, ledger and table held at the start of a run. Decisions use nothing else."""

    cluster: ClusterIdentity
    extents: Mapping[BrokerPartition, PartitionOffsets]
    leaders: Mapping[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    topic_ids: Mapping[str, str]
    """Topic ids as reported by brokers, else ids of their znodes."""
    bytes_per_offset: Mapping[BrokerPartition, float]
    """Average bytes per offset, if the broker reports sizes."""
    committed: Mapping[BrokerPartition, Committed]
    starts: Mapping[BrokerPartition, int]
    """Offsets of `starting_offsets: ...`, for partitions with a record that late."""
    owners: Mapping[BrokerPartition, str]
    live_consumers: tuple[str, ...]
    ledger: Ledger
    table: Table | None
    other_pipelines: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The group's other pipelines and the topics that they know."""
    live_in_kafka: tuple[str, ...] = ()
    """Those of the live consumers that are members of Kafka's own group of this name."""
    retention: Mapping[str, Retention] = field(default_factory=dict)
    """Retention of topics with unread offsets. It also explains missing offsets."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Leader epochs of the reported ends, if brokers have epochs."""
    epoch_ends: Mapping[BrokerPartition, EpochEnd] = field(default_factory=dict)
    """Ends of the newest plan's leader epochs, of partitions with a leader that knows them."""
    retained_from: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The first offset that will not have expired by time within `source.expiry_warning_s`, where
    `retention` has a time.
    """
    open_transactions: Mapping[BrokerPartition, OpenTransaction] = field(default_factory=dict)
    """Open transactions of partitions with unreadable offsets, if the brokers describe them."""
    extents_of_owned: Mapping[BrokerPartition, PartitionOffsets] = field(default_factory=dict)
    """Offsets of partitions that are left to their owners; the other mappings do not have them."""
    missing_topics: frozenset[str] = frozenset()
    """Topics of a stored plan that no longer exist, whether or not the conf selects them."""
    parallelism: int | None = 1
    """How many of Spark's tasks work at once; None where only the cluster knows."""
    looked_at: Mapping[BrokerPartition, tuple[LookedAt, ...]] = field(default_factory=dict)
    """Verified byte offsets: whether an entry begins there."""
    fingerprints: Mapping[BrokerPartition, tuple[Fingerprint, ...]] = field(default_factory=dict)
    """Tail fingerprints of Jafka partitions: at the current end, and where the newest plan has one.
    """
    creation_ids: Mapping[str, str] = field(default_factory=dict)
    """Ids of the topics' znodes, also if brokers report topic ids (`Plan.creation_ids`)."""
    offsets_in: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """Where `committed` was read."""
    asked: ResolvedRequest | None = None
    """None: nothing in addition to the conf."""
    pauses: tuple[Pause, ...] = ()
    """Paused partitions, as in the ledger."""
    paused: Mapping[BrokerPartition, Pause] = field(default_factory=dict)
    """Paused partitions (`decide.set_offsets`); the other mappings do not have them."""
    extents_of_paused: Mapping[BrokerPartition, PartitionOffsets] = field(default_factory=dict)
    oldest_of_paused: Mapping[BrokerPartition, OldestRecord] = field(default_factory=dict)
    """The oldest unread record of each paused partition, if messages have timestamps."""
    share: MemberAssignment | None = None
    """Partitions that the run owns as a group member; None: no member."""
    time_zone: str | None = None
    """The session time zone that Spark has in this run."""

    def committed_of(self, logs: Iterable[BrokerPartition]) -> dict[BrokerPartition, Committed]:
        """Return the committed offset of each partition, `NOTHING_COMMITTED` if it has none."""
        return {log: self.committed.get(log, NOTHING_COMMITTED) for log in logs}

    @property
    def extents_left_alone(self) -> Mapping[BrokerPartition, PartitionOffsets]:
        """Return the offsets of partitions that are not read in this run and have a leader."""
        return {**self.extents_of_owned, **self.extents_of_paused}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The request of a run, with the looked-up offsets."""

    request: Request
    key: RunKeyRecord | None = None
    """The ledger's record of the run key."""
    plan: Plan | None = None
    """The newest plan under the key, where it is stored yet and is not the pipeline's newest one.
    """
    untils: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Offset of the end bound in each partition that is read; None: no record that late."""


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Nothing was ever planned: plan 1 starts by policy."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The newest plan was stored and not appended: it is executed again, word for word."""

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
    positions: Mapping[BrokerPartition, int]
    uncommitted: tuple[BrokerPartition, ...] = ()
    """Partitions with the committed offset that the plan observed: to be committed first."""
    followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Partitions with an offset that another client moved, and the new offset, with
    `on_offset_changed: follow`.
    """
    not_followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The same for partitions that are not read now, so that their ends are unknown: position and
    offset stay.
    """
    dropped: tuple[BrokerPartition, ...] = ()
    """Partitions with an expired offset in Kafka; they are in `uncommitted`, or committed again."""
    passed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Logs of ours that other members of the group read on, and up to where."""


@dataclass(frozen=True, slots=True)
class StoredBackfill:
    """The newest plan is a backfill's and was not appended. It need not be finished: the next plan takes
    its number, or it stays where there is nothing to read, and the backfill plans that part again.
    """

    plan: Plan
    state: UpToDate
    """State of the pipeline without that plan, which moves no position."""


PipelineState = FirstRun | Replay | Supersede | RebuildFromTable | StoredBackfill | UpToDate
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
