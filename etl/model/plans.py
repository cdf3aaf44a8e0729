"""The frozen nouns every room speaks of. No I/O, no policy; the words are those of the glossary (docs/DESIGN.md).

Bounds live in names: `from_offset` is inclusive, `until_offset` exclusive. A missing thing is None, never -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Dialect(str, Enum):
    """Which family of brokers a cluster belongs to."""

    KAFKA = "kafka"
    JAFKA = "jafka"


class Isolation(str, Enum):
    """Which transactional records a reader sees; the names of Kafka's own `isolation.level`."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    """One Kafka server and where it listens."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id} at {self.host}:{self.port}"


@dataclass(frozen=True, slots=True, order=True)
class BrokerPartition:
    """The identity of one log.

    On the 0.7 family a log is (topic, broker, partition). From Kafka 0.8 on it is (topic, partition), the broker
    is only today's address, and `broker_id` is None. Its ledger key is made in `protocol.znodes` and nowhere else.
    """

    topic: str
    partition: int
    broker_id: int | None = None

    def __post_init__(self) -> None:
        if self.partition < 0:
            raise ValueError(f"partition {self.partition} of topic {self.topic} is negative")


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker to fetch a log from now, and the epoch of its election where brokers tell it."""

    broker: Broker
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """Log start and readable end of one log at one moment."""

    log_start_offset: int
    end_offset: int
    """One past the last offset that may be read: the last stable offset under read_committed, else the high watermark."""
    high_watermark: int | None = None
    """One past the last offset that all in-sync replicas have, where that lies above the readable end; None: nothing does."""

    @property
    def held_back(self) -> int:
        """Offsets that may not be read yet, because a transaction at or below them is open (KIP-98)."""
        return max(0, (self.high_watermark or 0) - self.end_offset)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What the brokers tell of the transaction at which the readable part of a log ends (KIP-664)."""

    producer_id: int
    first_offset: int
    """Of its records in this log."""
    transactional_id: str | None = None
    since_ms: int | None = None
    """When it began. None of both: the brokers do not tell us of transactional ids."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where the records that were written up to one leader epoch end in the leader's log of now (OffsetForLeaderEpoch, KIP-320)."""

    asked_epoch: int
    epoch: int
    """The largest epoch at or below the asked one that the leader's log knows."""
    end_offset: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Which offsets of one log to read, and from whom."""

    log: BrokerPartition
    from_offset: int
    until_offset: int
    leader: Leader | None = None
    """None: not known when the range was made, the reader looks it up."""

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset <= self.until_offset:
            raise ValueError(f"range {self.from_offset}..{self.until_offset} of {self.log} is not a range")

    @property
    def size(self) -> int:
        """Offsets covered: an upper bound of the rows, not a count (compaction and markers leave gaps)."""
        return self.until_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's offset of one log as ZooKeeper held it: the **next** offset to read, and the znode's version.

    Both are None where there is no znode; an empty znode that was never written has a version and no offset.
    """

    offset: int | None = None
    version: int | None = None


NOTHING_COMMITTED = Committed()


Lineage = tuple[tuple[int, int], ...]
"""Leader epochs of a log, ascending, each with the first offset that is known to be of it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What reading one range came to. Counts are of records; `fetched_bytes` is what came over the wire."""

    rows: int | None = 0
    """None: a crash took the reader's count, and nobody could count them in the table."""
    fetched_bytes: int | None = None
    """None: counted again from the table's files after a crash, where nobody knows it any more."""
    control_records: int = 0
    aborted_records: int = 0
    missing_offsets: int = 0
    """Offsets that no batch of the log covers any more (compaction)."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Intervals [from, until) inside the range that gave no row, for whatever of the three reasons, merged."""
    gaps_complete: bool = True
    """False: there were more gaps than a receipt keeps; the counts still hold."""
    last_epoch: int | None = None
    """The leader epoch of the record batch that holds the range's last offset; None where none does (compaction), or nobody knows it."""
    behind_transform: bool = False
    """Counted again from rows that a transform had made: whether it dropped records at the missing offsets nobody knows."""
    epochs: Lineage = ()
    """The leader epochs of the record batches that were read."""

    @property
    def is_doubtful(self) -> bool:
        """Whether records may be lost of which this receipt cannot tell."""
        return self.rows is None or (self.behind_transform and self.missing_offsets > 0)

    @property
    def compacted(self) -> int:
        """Missing offsets that are known to be compaction's: none of a receipt that was counted again, where nobody knows."""
        return 0 if self.fetched_bytes is None else self.missing_offsets


NOT_COUNTED = Receipt(rows=None, gaps_complete=False)


class Why(str, Enum):
    """Why offsets of a log are not in the table and never will be."""

    EXPIRED = "expired"
    """Retention had deleted them (`source.on_data_loss: skip`)."""
    MOVED = "offset moved"
    """Somebody moved the committed offset past them (`source.on_moved: follow`)."""
    MISSING = "missing from the log"
    """No record batch of the log had them, and nothing explains it (`source.on_data_loss: skip`)."""
    SKIPPED = "skipped by hand"
    """An operator superseded the plan that held them."""


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """Offsets [from, until) of one log that a plan let go."""

    log: BrokerPartition
    from_offset: int
    until_offset: int
    why: Why
    log_epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Vanished:
    """Offsets [from, until) of one life of one log that are, or may be, in the table, and whose records the brokers no longer hold."""

    log: BrokerPartition
    from_offset: int
    until_offset: int
    log_epoch: int = 0


class PlanKind(str, Enum):
    """Why a plan was made."""

    INGEST = "ingest"
    START = "start"
    """No ranges: it keeps the start decided for logs seen for the first time."""
    RESET = "reset"
    """No ranges: an operator accepted that logs were cut or made again, and it moves their positions."""
    TAKE_OVER = "take-over"
    """No ranges: an operator ruled that this pipeline takes another's place, and it begins at the other's positions."""


@dataclass(frozen=True, slots=True)
class TookOver:
    """Whose place a pipeline took."""

    app_id: str
    """The other's application id in the table: `offset-range-etl/<cluster>/<group>/<pipeline>`."""
    number: int
    """The other's newest plan in the table when it was taken over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything one Delta commit will hold, decided before the first fetch and stored before it.

    `id` is the hash of the canonical content without the leaders (`plan_format.plan_id`): the same content is the
    same plan, whoever made it.
    """

    number: int
    uid: str
    """Random id of the pipeline, made with its first plan."""
    kind: PlanKind
    created_at_ms: int
    dialect: Dialect
    cluster: str
    """Kafka's cluster id, or the conf's name for the cluster where brokers have none."""
    shape: str
    """What shapes the rows, hashed: isolation, transform, partitioning."""
    ranges: tuple[OffsetRange, ...]
    positions: Mapping[BrokerPartition, int]
    """The position of every log the pipeline knows, after this plan; also of those without a range in it."""
    seen: Mapping[BrokerPartition, Committed]
    """What ZooKeeper held for each of those logs when the plan was made: the expected side of compare-and-set."""
    table_id: str | None = None
    """The Delta table's id before the append; None when there was no table."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    previous: str | None = None
    supersedes: str | None = None
    reason: str | None = None
    moves_offsets: bool = True
    run_key: str | None = None
    id: str = ""
    losses: tuple[Loss, ...] = ()
    """What this plan lets go, by policy or by an operator's word."""
    table_bit: int = 0
    """The table's transaction version when the plan was made: while it is still that, the plan was not appended."""
    log_starts: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The first offset each log kept when the plan was made: from one plan to the next they tell how fast a log forgets."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The epoch of the leader that told the end below which the log's position lies, where brokers have epochs (KIP-101)."""
    record_epochs: Mapping[BrokerPartition, Lineage] = field(default_factory=dict)
    """Those of the record batches read before this plan begins, where the last of them ends there: the sharper of the two."""
    log_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Which life of a log the rows are of; 0 where not named, one more each time an operator accepted that its offsets start anew."""
    pending_starts: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Logs that could not be read when it was decided where they start: the moment, in milliseconds, of the first record to read; None:
    they start at the first record that is there."""
    vanished: tuple[Vanished, ...] = ()
    """Of a reset: offsets whose rows stay in the table and whose records are gone."""
    took_over: TookOver | None = None
    """Of a take-over."""
    heir_of: tuple[TookOver, ...] = ()
    """Every pipeline whose place was taken so far, by this one or by one that it took over; the newest plan of each at that time."""
    table_version: int | None = None
    """The table's Delta version when the plan was made; None: there was no table, or it is from before this was kept."""

    @property
    def taken(self) -> dict[str, int]:
        """Application id and number of each pipeline whose place was taken so far."""
        return {one.app_id: one.number for one in (*((self.took_over,) if self.took_over else ()), *self.heir_of)}


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of plan `number`: the Delta version that holds it and a receipt for each of its ranges."""

    number: int
    plan_id: str
    delta_version: int
    table_id: str
    receipts: tuple[Receipt, ...]
    run_id: str | None = None
    """The run whose append it was; None when the commit does not say."""
    uncounted: str | None = None
    """Why nobody could count the rows after a crash; the receipts are then `NOT_COUNTED`."""
    undated: int | None = field(default=None, compare=False)
    """Rows without an `event_date`, of a table that is partitioned by it. For the report alone: the ledger does not keep it."""

    @property
    def rows(self) -> int | None:
        """Of all ranges together; None when nobody could count them."""
        counts = [r.rows for r in self.receipts if r.rows is not None]
        return sum(counts) if len(counts) == len(self.receipts) else None

    def is_of(self, plan: Plan) -> bool:
        """Whether this is what came of that very plan; a ledger restored from a copy may hold the record of another with its number."""
        return self.plan_id == plan.id and len(self.receipts) == len(plan.ranges)

    @property
    def is_recounted(self) -> bool:
        """Counted again from the table: nobody knew any more why offsets gave no row."""
        return all(receipt.fetched_bytes is None for receipt in self.receipts)


@dataclass(frozen=True, slots=True)
class Interval:
    """A loaded interval [from, until) of one log, the rows that it gave, and why its other offsets gave none."""

    from_offset: int
    until_offset: int
    rows: int | None
    """None: nobody could count them."""
    control_records: int = 0
    aborted_records: int = 0
    compacted: int = 0
    log_epoch: int = 0
    unproven: int = 0
    """Offsets without a row where a transform may have dropped a record, and nobody knows."""

    @property
    def unexplained(self) -> int:
        """Offsets without a row for which nobody knows any more why."""
        if self.rows is None:
            return 0
        explained = self.rows + self.control_records + self.aborted_records + self.compacted
        return max(0, self.until_offset - self.from_offset - explained)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What pruned plans leave: the loaded intervals per log, merged."""

    through: int = 0
    """The number of the last plan folded in; a plan at or below it is never folded in again."""
    intervals: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
    removals: tuple[Foreign, ...] = ()
    """Commits of others that removed rows and that policy let pass."""
    table_id: str | None = None
    """The table that holds the intervals; None: not known, from before this was kept."""
    vanished: tuple[Vanished, ...] = ()
    """What resets said of rows whose records are gone."""
    given_up: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
    """Loaded into a table, or a state of it, that an operator gave up: rows of it may be there or not."""
    held_through: int | None = None
    """The last folded plan that was not given up; None: that is `through`."""
    unproven_through: int = 0
    """The newest of the folded plans of which not everything can be proven; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operator's word: this table, as it is at this version, is the one to go on with."""

    table_id: str | None
    """None: there is no table, and the next plan makes one."""
    delta_version: int | None
    number: int
    """The newest plan when it was said; later plans need a word of their own."""
    reason: str
    at_ms: int
    lacks_plan: bool = False
    """No row of plan `number` is in that table: neither ledger could tell, so the rows were looked for."""
    plan_id: str | None = None
    """The id of plan `number` when it was said; None in words from before this was kept, and so are the next two."""
    transaction_version: int | None = None
    """D when it was said, 0 for none."""
    was_recorded: bool | None = None
    """Whether it was recorded by then what came of plan `number`."""
    commit: str | None = None
    """The hash of that version's commit file; None where the table's log did not hold it, and in words from before this was kept."""
    place: str | None = None
    """Where that table, or none, was, as `places.place_of` says it; None in words from before it was kept."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """An operator's word: this pipeline loads no more."""

    reason: str
    at_ms: int
    taken_over_by: str | None = None
    """`GROUP/PIPELINE` that goes on in its place: this one's own positions are of the past."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The numbered plans of one pipeline as ZooKeeper holds them."""

    uid: str | None = None
    """None: this pipeline never made a plan."""
    newest: Plan | None = None
    applied: Applied | None = None
    """What came of `newest`; None when it is not known yet."""
    known_version: int | None = None
    """The Delta version of the newest recorded commit, of `newest` or of the plan before it: who wrote what is known up to there."""
    newest_version: int | None = None
    """The version of `newest`'s znode: the expected side when the plan is superseded."""
    acknowledged: Acknowledgement | None = None
    """The last word of an operator on what others did to the table."""
    retired: Retirement | None = None
    """Why this pipeline loads no more; None while it is in service."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A commit that is not ours and that touched what we wrote."""

    delta_version: int
    operation: str
    why: str
    """What it did: `removed rows`, `redefined the table`."""
    by: TookOver | None = None
    """Of rows of a topic of ours that another pipeline loaded: its application id and the number of its plan."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What one of our commits says of itself in `userMetadata`."""

    delta_version: int
    app_id: str
    uid: str
    number: int
    plan_id: str
    document: bytes | None = field(default=None, repr=False, kw_only=True)
    """The whole plan as `plan_documents.parse_plan` reads it; None when the commit does not carry it."""
    run_id: str | None = field(default=None, kw_only=True)
    """The run that appended it."""


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
        """The topics that it loaded, or decided where to start in; None when nobody knows."""
        return frozenset(log.topic for log in self.plan.positions) if self.plan else None


@dataclass(frozen=True, slots=True)
class Table:
    """The table's side: which plan it holds last, and what others did to it since."""

    id: str
    version: int
    transaction_version: int | None
    """D, the commit bit: plan N was applied exactly if D >= N. None: no commit of ours."""
    stamp: Stamp | None = None
    """The commit found by its `txn`; None when D is None or the log no longer holds that commit."""
    foreign: tuple[Foreign, ...] = ()
    """Commits since the last one of ours that removed rows, redefined the table, or loaded a topic of ours."""
    others: tuple[OtherPipeline, ...] = ()
    """The other pipelines of the table; asked only where we would read a topic that we do not know."""
    topics_with_rows: frozenset[str] = frozenset()
    """Of the topics that we do not know, asked where it is not known what another pipeline loaded: those that the table has rows of."""
    is_of_others_alone: bool = False
    """No row of it can be ours: all that its commits ever added is other pipelines'. Asked only where the newest plan waits for a table."""
    said_commit: str | None = None
    """The hash of the commit file of the version that an operator's last word names, as it is now; None when the log does not hold it."""


@dataclass(frozen=True, slots=True)
class KafkaGroup:
    """Who is alive in Kafka's own group of our group's name, as its coordinator tells."""

    members: Mapping[str, frozenset[BrokerPartition] | None] = field(default_factory=dict)
    """Id and host of each member, and the logs that it reads; None: not known, as in the middle of a rebalance."""
    unknown: str | None = None
    """Why nobody could tell; None where the answer is whole."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a topic's brokers say of how long they keep its records; None: no such limit."""

    ms: int | None = None
    bytes: int | None = None
    """Of each partition."""
    is_compacted: bool = False
    """`cleanup.policy` contains `compact`: offsets may be missing anywhere in a log."""
    is_tiered: bool = False
    """`remote.storage.enable` (KIP-405): an answer without records may only mean that the remote storage is slow."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a reader knows of how a topic is cleaned up, and so what offsets mean that no record batch has."""

    is_compacted: bool | None = None
    """None: the brokers do not tell."""
    is_tiered: bool = False

    @property
    def explains_missing(self) -> bool:
        """Missing offsets are compaction's. Else they are lost."""
        return bool(self.is_compacted)

    @property
    def ends_in_silence(self) -> bool:
        """Answers without records prove that nothing is left up to the end of the log."""
        return bool(self.is_compacted) and not self.is_tiered


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the world said at the start of a run. After it nothing asks again where we are."""

    cluster: str
    extents: Mapping[BrokerPartition, Extent]
    leaders: Mapping[BrokerPartition, Leader]
    leaderless: frozenset[BrokerPartition]
    topic_ids: Mapping[str, str]
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
    retention: Mapping[str, Retention] = field(default_factory=dict)
    """By topic, of those with something to read, where the brokers tell it. Also says what missing offsets mean."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The epoch of the leader that told a log's end, where brokers have epochs."""
    epoch_ends: Mapping[BrokerPartition, EpochEnd] = field(default_factory=dict)
    """What became of the epochs that the newest plan knows; a log of which the leader cannot tell is left out."""
    lasting: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The first offset that will not have expired by time within `source.expiry_warning_s`, where `retention` has a time."""
    open_transactions: Mapping[BrokerPartition, OpenTransaction] = field(default_factory=dict)
    """Of logs whose extent holds offsets back, where the brokers tell."""
    extents_of_owned: Mapping[BrokerPartition, Extent] = field(default_factory=dict)
    """Of logs that are left to their owners, and so are not among the others."""
    gone_topics: frozenset[str] = frozenset()
    """Of the topics that a plan which was left reads, those that the brokers do not know any more, whether or not the conf names them."""
    parallelism: int | None = 1
    """How many of Spark's tasks work at once; None where only the cluster knows."""


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Nothing was ever planned: plan 1 starts by policy."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The newest plan was stored and not appended: it is executed again, word for word."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Superseding:
    """The newest plan was not appended and cannot be finished: another one takes its number."""

    plan: Plan
    reason: str
    skipped: tuple[Loss, ...] = ()
    """Offsets that the new plan must leave out, by an operator's word."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The table holds a plan that the ledger does not have: the table is right, and the ledger is written anew from its commits."""

    plan: Plan
    """The plan of our newest commit."""
    standing: Onward
    """Where the pipeline stands once the ledger has it."""


@dataclass(frozen=True, slots=True)
class Onward:
    """The newest plan is in the table. The next one starts at `positions`."""

    last: Plan
    positions: Mapping[BrokerPartition, int]
    uncommitted: tuple[BrokerPartition, ...] = ()
    """Logs whose offset in ZooKeeper is still what the plan saw: commit them first."""
    followed: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Logs whose offset somebody else moved, and where to, under `on_moved: follow`."""


Standing = FirstRun | Replay | Superseding | Adopt | Onward
"""Where the pipeline stands, as `reconcile` decides."""
