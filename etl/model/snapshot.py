"""What did the brokers, the ledger and the table hold at the start of a run?

Lives here: the snapshot of a run; the ledger of a pipeline and its reservations for backfills; the
last plan in the table, and what others committed there; the state of the pipeline that follows.

A backfill has a pipeline of its own, named `PIPELINE@NAME`: no conf can use that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from etl.model.partitions import (
    BrokerPartition,
    Committed,
    EpochEnd,
    Leader,
    LookedAt,
    MemberAssignment,
    OffsetsStorage,
    OldestRecord,
    OpenTransaction,
    PartitionOffsets,
    Retention,
    Tail,
)
from etl.model.plans import (
    CommitResult,
    HeldRows,
    Loss,
    Plan,
    ReadByOthers,
    Request,
    RunKeyRecord,
    TookOver,
    Vanished,
)

MARK = "@"
"""Between a live pipeline's name and that of a backfill beside it."""


class ReservationState(str, Enum):
    """How far a backfill is that somebody began."""

    OPEN = "open"
    """It loads, or has loaded all."""
    CLOSING = "closing"
    """It is being given up: none of its plans is stored any more, and what the table has of them is
    not known yet.
    """
    GIVEN_UP = "given up"
    """It claims what it has loaded."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The offsets that a backfill has loaded or will load, and nobody else."""

    name: str
    stretches: Mapping[BrokerPartition, tuple[tuple[int, int], ...]]
    """Of each log offsets [from, until), ascending, apart from one another."""
    log_epochs: Mapping[BrokerPartition, int]
    """Which life of a log they are of; 0 where not named."""
    asked: str
    """What was asked for, in words: one name stands for one thing."""
    made_at_ms: int
    state: ReservationState = ReservationState.OPEN
    reason: str | None = None
    """Why it was given up."""
    table_id: str | None = None
    """Of the table that it was begun for; None: it is from before this was kept."""

    def is_of(self, table_id: str | None) -> bool:
        """Whether it may be of that table; of one that took its place it claims nothing."""
        return None in (self.table_id, table_id) or self.table_id == table_id

    @property
    def offsets(self) -> int:
        """How many there are; bytes, of physical logs."""
        return sum(until - start for found in self.stretches.values() for start, until in found)

    def incarnation_of(self, log: BrokerPartition) -> int:
        """Which life of the log its offsets are of."""
        return self.log_epochs.get(log, 0)

    def left_from(
        self, positions: Mapping[BrokerPartition, int]
    ) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
        """What lies at these positions or above; logs of which nothing does are left out."""
        found = {
            log: tuple(
                (max(start, positions.get(log, 0)), until)
                for start, until in parts
                if positions.get(log, 0) < until
            )
            for log, parts in self.stretches.items()
        }
        return {log: parts for log, parts in found.items() if parts}


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim as it was read."""

    claim: Reservation
    version: int
    """Of its znode."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """What is claimed beside a live pipeline, and the fence as it was read before."""

    fence: int | None = None
    """The version of its znode; None: it is not there, nobody has claimed yet."""
    backfills: tuple[Claimed, ...] = ()
    """By name."""

    def __iter__(self) -> Iterator[Reservation]:
        return (one.claim for one in self.backfills)

    def of(self, table_id: str | None) -> Reservations:
        """Those that may be of that table."""
        return Reservations(
            self.fence, tuple(one for one in self.backfills if one.claim.is_of(table_id))
        )

    def named(self, name: str) -> Claimed | None:
        """The one of that name."""
        return next((one for one in self.backfills if one.claim.name == name), None)


NO_CLAIMS = Reservations()


def backfill_pipeline(pipeline: str, name: str) -> str:
    """What the pipeline of a backfill is called."""
    return f"{pipeline}{MARK}{name}"


def live_and_name(pipeline: str) -> tuple[str, str | None]:
    """The live pipeline, and the backfill's name where it is one."""
    live, mark, name = pipeline.partition(MARK)
    return live, name if mark else None


def is_beside(app_id: str, other: str) -> bool:
    """Whether two application ids are of one live pipeline and its backfills: what they load is
    kept apart by claims.
    """
    return live_and_name(app_id)[0] == live_and_name(other)[0]


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit that is not ours and that touched what we wrote."""

    delta_version: int
    operation: str
    why: str
    """What it did: `removed rows`, `redefined the table`."""
    by: TookOver | None = None
    """Of rows of a topic of ours that another pipeline loaded: its application id and the number of
    its plan.
    """


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """What one of our commits says of itself in `userMetadata`."""

    delta_version: int
    app_id: str
    uid: str
    number: int
    plan_id: str
    document: bytes | None = field(default=None, repr=False, kw_only=True)
    """The whole plan as `plan_document.parse_plan` reads it; None when the commit does not carry
    it.
    """
    run_id: str | None = field(default=None, kw_only=True)
    """The run that appended it."""
    receipts: bytes | None = field(default=None, repr=False, kw_only=True)
    """What reading the plan's ranges came to, as `plan_document.results_of` reads it; None when
    the commit does not say.
    """


@dataclass(frozen=True, slots=True)
class OtherPipeline:
    """Another pipeline that has loaded into the same table, by its newest commit there."""

    app_id: str
    number: int
    delta_version: int | None = None
    """None: the table's log no longer holds that commit."""
    plan: Plan | None = None
    """None: nobody knows what it loaded."""

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that it loaded, or decided where to start in; None when nobody knows.

        None of them, where it was closed before its first plan was in the table.
        """
        if self.plan and self.plan.closes and self.plan.previous is None and not self.plan.heir_of:
            return frozenset()
        return self.plan.topics if self.plan else None


@dataclass(frozen=True, slots=True)
class Table:
    """The table's side: which plan it holds last, and what others did to it since."""

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
    """The other pipelines of the table; asked only where we would read a topic that we do not know.
    """
    topics_with_rows: frozenset[str] = frozenset()
    """Of the topics that we do not know, asked where it is not known what another pipeline loaded:
    those that the table has rows of.
    """
    is_of_others_alone: bool = False
    """No row of it can be ours: all that its commits ever added is other pipelines'. Asked only
    where the newest plan waits for a table.
    """
    commit_in_log: str | None = None
    """The hash of the commit file of the version of the last acknowledgement, as it is now; None
    when the log does not hold it.
    """
    held: tuple[HeldRows, ...] | None = None
    """Rows of topics that no pipeline has loaded; None: not asked. It is asked only if a topic is
    planned for the first time.
    """


@dataclass(frozen=True, slots=True)
class Interval:
    """A loaded interval [from, until) of one log, the rows that it gave, and why its other offsets
    gave none.
    """

    from_offset: int
    until_offset: int
    rows: int | None
    """None: nobody could count them."""
    control_records: int = 0
    aborted_records: int = 0
    compacted: int = 0
    log_epoch: int = 0
    unproven: int = 0
    """Offsets without a row where a transform may have dropped a record, and nobody knows; of a
    physical log all bytes of such ranges.
    """

    @property
    def unexplained(self) -> int:
        """Offsets without a row for which nobody knows any more why."""
        if self.rows is None:
            return 0
        explained = self.rows + self.control_records + self.aborted_records + self.compacted
        return max(0, self.until_offset - self.from_offset - explained)


@dataclass(frozen=True, slots=True)
class LoadedIntervals:
    """What pruned plans leave: the loaded intervals per log, merged."""

    through: int = 0
    """The number of the last plan folded in; a plan at or below it is never folded in again."""
    intervals: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
    removals: tuple[ForeignCommit, ...] = ()
    """Commits of others that removed rows and that policy let pass."""
    table_id: str | None = None
    """The table that holds the intervals; None: not known, from before this was kept."""
    vanished: tuple[Vanished, ...] = ()
    """What resets said of rows whose records are gone."""
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
    """What folded plans say that other members of the group read, by log, those that touch made
    one.
    """


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operator's decision: this table, as it is at this version, is the one to go on with."""

    table_id: str | None
    """None: there is no table, and the next plan makes one."""
    delta_version: int | None
    number: int
    """The newest plan when it was given; later plans need one of their own."""
    reason: str
    at_ms: int
    lacks_plan: bool = False
    """No row of plan `number` is in that table: neither ledger could tell, so the rows were looked
    for.
    """
    plan_id: str | None = None
    """The id of plan `number` when it was said; None in an acknowledgement from before this was
    kept, and so are the next two.
    """
    transaction_version: int | None = None
    """D when it was said, 0 for none."""
    was_recorded: bool | None = None
    """Whether it was recorded by then what came of plan `number`."""
    commit: str | None = None
    """The hash of that version's commit file; None where the table's log did not hold it, or from
    before this was kept.
    """
    place: str | None = None
    """Where that table, or none, was, as `settings.choices.place_of` says it; None from before this
    was kept.
    """
    beside: Mapping[str, Acknowledgement] = field(default_factory=dict)
    """The same decision for each backfill that has loaded into that very table, by name: what it
    says is of the backfill's newest plan.
    """

    rows_of: tuple[str, ...] = ()
    """Topics whose rows in that table, written by somebody else, are of another cluster or another
    life of the topic.
    """

    def of_backfill(self, name: str) -> Acknowledgement:
        """As a backfill takes it: what others did to the table is accepted for all; of one that was
        begun since it says no more.
        """
        return self.beside.get(name) or replace(self, number=-1, beside={})


@dataclass(frozen=True, slots=True)
class Retirement:
    """An operator's decision: this pipeline loads no more."""

    reason: str
    at_ms: int
    taken_over_by: str | None = None
    """`GROUP/PIPELINE` that goes on in its place: this one's own positions are of the past."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator's decision: a topic, or one log of it, keeps its position and gets no range until
    it is resumed.
    """

    topic: str
    log: BrokerPartition | None
    """None: all logs of the topic, those that come later, too."""
    reason: str
    by: str
    """Who said so: `user@host`."""
    since_ms: int

    def covers(self, log: BrokerPartition) -> bool:
        """Whether the log is paused by it."""
        return log.topic == self.topic and self.log in (None, log)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The numbered plans of one pipeline as ZooKeeper holds them."""

    uid: str | None = None
    """None: this pipeline never made a plan."""
    newest: Plan | None = None
    applied: CommitResult | None = None
    """What came of `newest`; None when it is not known yet."""
    known_version: int | None = None
    """The Delta version of the newest recorded commit, of `newest` or of the plan before it: who
    wrote what is known up to there.
    """
    newest_version: int | None = None
    """The version of `newest`'s znode: the expected side when the plan is superseded."""
    acknowledged: Acknowledgement | None = None
    """The last acknowledgement by an operator of what others did to the table."""
    retired: Retirement | None = None
    """Why this pipeline loads no more; None while it is in service."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the world said at the start of a run. After it nothing asks again where we are."""

    cluster: str
    extents: Mapping[BrokerPartition, PartitionOffsets]
    leaders: Mapping[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    topic_ids: Mapping[str, str]
    """As the brokers tell them; the creation ids of those of which they do not."""
    bytes_per_offset: Mapping[BrokerPartition, float]
    """How many bytes one offset costs on average, where the broker tells."""
    committed: Mapping[BrokerPartition, Committed]
    starts: Mapping[BrokerPartition, int]
    """Where `start: {timestamp: ...}` lands, for logs that have a record that late."""
    owners: Mapping[BrokerPartition, str]
    live_consumers: tuple[str, ...]
    ledger: Ledger
    table: Table | None
    other_pipelines: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The group's other pipelines and the topics that they know."""
    live_in_kafka: tuple[str, ...] = ()
    """Those of the live consumers that are members of Kafka's own group of this name."""
    retention: Mapping[str, Retention] = field(default_factory=dict)
    """By topic, of those with something to read, where the brokers tell it. Also says what missing
    offsets mean.
    """
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The epoch of the leader that told a log's end, where brokers have epochs."""
    epoch_ends: Mapping[BrokerPartition, EpochEnd] = field(default_factory=dict)
    """What became of the epochs that the newest plan knows; a log of which the leader cannot tell
    is left out.
    """
    retained_from: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The first offset that will not have expired by time within `source.expiry_warning_s`, where
    `retention` has a time.
    """
    open_transactions: Mapping[BrokerPartition, OpenTransaction] = field(default_factory=dict)
    """Of logs whose extent holds offsets back, where the brokers tell."""
    extents_of_owned: Mapping[BrokerPartition, PartitionOffsets] = field(default_factory=dict)
    """Of logs that are left to their owners, and so are not among the others."""
    missing_topics: frozenset[str] = frozenset()
    """Of the topics that a plan which was left reads, those that the brokers do not know any more,
    whether or not the conf names them.
    """
    parallelism: int | None = 1
    """How many of Spark's tasks work at once; None where only the cluster knows."""
    looked_at: Mapping[BrokerPartition, tuple[LookedAt, ...]] = field(default_factory=dict)
    """Of offsets that are byte positions and that somebody else told: whether an entry begins
    there.
    """
    tails: Mapping[BrokerPartition, tuple[Tail, ...]] = field(default_factory=dict)
    """Of physical logs: what lies now before the end, and where the newest plan knows it."""
    creation_ids: Mapping[str, str] = field(default_factory=dict)
    """What stands for the topics' ids in the brokers' ZooKeeper, also where these tell their own
    (`Plan.creation_ids`).
    """
    offsets_in: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """Where `committed` is from."""
    cluster_id: str | None = None
    """The id of a cluster that goes by the conf's name (`etl.decide.partition_identity`)."""
    asked: ResolvedRequest | None = None
    """None: the run is asked for nothing beside its conf."""
    claims: Reservations = NO_CLAIMS
    """What backfills claim beside this pipeline."""
    backfill: Reservation | None = None
    """What this pipeline claims, which is a backfill's; None: it is a live one."""
    live_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of a backfill: which life of each log the newest plan of its live pipeline has."""
    pauses: tuple[Pause, ...] = ()
    """What operators paused, as the ledger has it; of a live pipeline."""
    paused: Mapping[BrokerPartition, Pause] = field(default_factory=dict)
    """Logs that are left alone for that (`decide.set_offsets`), and so are not among the others."""
    extents_of_paused: Mapping[BrokerPartition, PartitionOffsets] = field(default_factory=dict)
    oldest_of_paused: Mapping[BrokerPartition, OldestRecord] = field(default_factory=dict)
    """The oldest unread record of each paused log that has one, where messages have times."""
    share: MemberAssignment | None = None
    """What the run owns as a member of its group; None: it is none."""
    time_zone: str | None = None
    """The session time zone that Spark has in this run."""
    live_time_zone: str | None = None
    """Of a backfill: that of the newest plan of its live pipeline."""

    @property
    def extents_left_alone(self) -> Mapping[BrokerPartition, PartitionOffsets]:
        """Of logs that are not read in this run and that somebody leads."""
        return {**self.extents_of_owned, **self.extents_of_paused}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """What a run is asked for beside its conf, and what was looked up for it."""

    request: Request
    key: RunKeyRecord | None = None
    """What the ledger knows of the run key."""
    plan: Plan | None = None
    """The newest plan under the key, where it is stored yet and is not the pipeline's newest one.
    """
    starts: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Where the bound at the start lies in each log that is read; None: no record is as late."""
    untils: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """The same of the other bound."""


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
    """Where the pipeline stands once the ledger has it."""


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The newest plan is in the table. The next one starts at `positions`."""

    last: Plan
    positions: Mapping[BrokerPartition, int]
    uncommitted: tuple[BrokerPartition, ...] = ()
    """Logs whose offset in ZooKeeper is still what the plan saw: commit them first."""
    followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Logs whose offset somebody else moved, and where to, under `on_moved: follow`."""
    not_followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The same of logs that are not read now, so that nobody knows whether they reach so far: our
    position stays, and their offset.
    """
    dropped: tuple[BrokerPartition, ...] = ()
    """Logs whose offset Kafka dropped, as it does with those of a group without members; they are
    among `uncommitted`, or were moved.
    """
    passed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Logs of ours that other members of the group read on, and up to where."""


PipelineState = FirstRun | Replay | Supersede | RebuildFromTable | UpToDate
"""Where the pipeline stands, as `reconcile` decides."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """Where a name led when Spark was asked."""

    name: str
    """As the conf has it."""
    path: str
    """As a conf would write it."""
    table_id: str | None
    """Of the Delta table that was there."""
    at_ms: int
    catalog: str | None = None
    """Which catalog that was, as `catalog_of` tells it of the conf; None from before this was kept.
    """


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """What a catalog says of a name."""

    catalog: str
    kind: str
    """MANAGED, EXTERNAL, VIEW, ...: as Spark calls it; empty where the catalog does not say."""
    provider: str
    """delta, parquet, ...: lower case."""
    location: str | None
    """The place as Hadoop writes it: file:/a b, s3a://bucket/path."""
    properties: frozenset[str] = frozenset()
    """Keys of the table's own, and of what the catalog gives a session to reach its files by: their
    values may be secrets.
    """
