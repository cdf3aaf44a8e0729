"""Which offset ranges does a plan hold, and what was the result of reading and writing them?

Lives here: offset ranges and plans; run keys and bounds; lost offsets and offsets read by other
members; range results and commit results; counted requests; data files that tasks wrote and that
no commit names yet.

`from_offset` is inclusive, `until_offset` exclusive. A missing value is None, never -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from etl.model.partitions import (
    BrokerFamily,
    BrokerPartition,
    Committed,
    Leader,
    Lineage,
    MemberAssignment,
    OffsetsStorage,
    Tail,
)

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is to be read. Of `at_ms` and `back` one is given, or none: where the
    pipeline is.
    """

    said: str
    """As it is told and compared: a time in UTC, or a relative form as it was asked for (`-1h`,
    `-10000`, `since-last-success`).
    """
    at_ms: int | None = None
    """The first record at or after this moment, in milliseconds since the epoch."""
    back: int | None = None
    """So many offsets before the end of each log."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends, as they were asked for. Two are the same where they were said in the same words:
    `-1h` is another moment an hour later.
    """

    start: Bound | None = None
    until: Bound | None = None
    open_logs: int = 0
    """Of a plan: in how many logs no record was as late as `until`, so that its end is where they
    ended then.
    """

    @property
    def said(self) -> str:
        """For people: `from 2026-01-31T00:00:00Z until 2026-01-31T01:00:00Z`, or what is there of
        it; empty where nothing was asked for.
        """
        ends = (("from", self.start), ("until", self.until))
        return " ".join(f"{word} {bound.said}" for word, bound in ends if bound)


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is asked for beside its conf."""

    run_key: str | None = None
    """Names this run: asked for again under it, nothing is loaded again."""
    bounds: Bounds = NO_BOUNDS


@dataclass(frozen=True, slots=True)
class RunKeyRecord:
    """A run key, and what became of the run under it, as pruned plans leave it and runs that had
    nothing to read.
    """

    key: str
    number: int
    """The plan that was made under it, or behind which there was nothing to read; 0: there was no
    plan yet.
    """
    said: str = ""
    """Its bounds (`Bounds.said`)."""
    is_empty: bool = False
    """There was nothing to read up to its bound: no plan was made."""


class LossReason(str, Enum):
    """Why offsets of a log are not in the table and never will be."""

    EXPIRED = "expired"
    """Retention had deleted them (`source.on_data_loss: skip`)."""
    MOVED = "offset moved"
    """Somebody moved the committed offset past them (`source.on_moved: follow`)."""
    MISSING = "missing from the log"
    """No record batch of the log had them, and nothing explains it (`source.on_data_loss: skip`).
    """
    SKIPPED = "skipped by hand"
    """An operator superseded the plan that held them, or set the position behind them."""
    DELETED = "topic deleted"
    """A stored plan was to read them, and their topic was deleted before it did."""
    RECREATED = "topic recreated"
    """The same, and there is another topic of that name, with offsets of its own."""
    TRUNCATED = "log truncated"
    """A stored plan was to read them, and the log lost them: others may have their offsets."""


LOST_WITH_LOG = frozenset((LossReason.DELETED, LossReason.RECREATED, LossReason.TRUNCATED))
"""No plan reads such offsets again, whatever the log of that name holds by now."""


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """Offsets [from, until) of one log that a plan let go."""

    log: BrokerPartition
    from_offset: int
    until_offset: int
    why: LossReason
    log_epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Vanished:
    """Offsets [from, until) of one life of one log that are, or may be, in the table, and whose
    records the brokers no longer hold.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    log_epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class ReadByOthers:
    """Offsets [from, until) of one life of one log that other members of the group read: nothing of
    them is lost, and none is for us.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    log_epoch: int = 0


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
            raise ValueError(
                f"range {self.from_offset}..{self.until_offset} of {self.log} is not a range"
            )

    @property
    def size(self) -> int:
        """Offsets covered: an upper bound of the rows, not a count (compaction and markers leave
        gaps).
        """
        return self.until_offset - self.from_offset


class PlanKind(str, Enum):
    """Why a plan was made."""

    INGEST = "ingest"
    START = "start"
    """No ranges: it keeps the start decided for logs seen for the first time."""
    RESET = "reset"
    """No ranges: an operator accepted that logs were cut or made again, and it moves their
    positions.
    """
    SET = "set"
    """No ranges: an operator set positions, past what is then told lost or back over what was never
    loaded.
    """
    TAKE_OVER = "take-over"
    """No ranges: an operator decided that this pipeline takes another's place, and it begins at the
    other's positions.
    """
    REPLAY = "replay"
    """Its ranges were loaded before: their rows are put in the place of those that are there. No
    position moves.
    """
    BACKFILL = "backfill"
    """A part of what a backfill is to load, older than where a live pipeline began or apart from
    what it reads. No offset moves.
    """


@dataclass(frozen=True, slots=True)
class TookOver:
    """Whose place a pipeline took."""

    app_id: str
    """The other's application id in the table: `offset-range-etl/<cluster>/<group>/<pipeline>`."""
    number: int
    """The other's newest plan in the table when it was taken over."""


@dataclass(frozen=True, slots=True, order=True)
class HeldRows:
    """Rows of one partition, and one life of it, that the table holds and that no plan loaded:
    written by somebody else.
    """

    log: BrokerPartition
    log_epoch: int
    from_offset: int
    until_offset: int
    """One past the last offset."""
    rows: int
    is_accepted: bool = False
    """An operator said that they are of another cluster, or of another life of the topic: offsets
    are loaded again, in the next life.
    """


@dataclass(frozen=True, slots=True)
class RowsBefore:
    """Rows that were in the table before the pipeline planned their topics for the first time."""

    table_id: str
    held: tuple[HeldRows, ...] = ()
    """In order; empty: the table had rows, and none of topics that were planned since."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything one Delta commit will hold, decided before the first fetch and stored before it.

    `id` is the hash of the canonical content without the leaders (`plan_document.plan_id`): same
    content, same plan, whoever made it.
    """

    number: int
    uid: str
    """Random id of the pipeline, made with its first plan."""
    kind: PlanKind
    created_at_ms: int
    dialect: BrokerFamily
    cluster: str
    """Kafka's cluster id, or the conf's name for the cluster where brokers have none."""
    shape: str
    """What shapes the rows, hashed: isolation, transform, partitioning."""
    ranges: tuple[OffsetRange, ...]
    positions: Mapping[BrokerPartition, int]
    """The position of every log the pipeline knows, after this plan; also of those without a range
    in it.
    """
    seen: Mapping[BrokerPartition, Committed]
    """What the group's offset was in each of those logs when the plan was made: the expected side
    of compare-and-set.
    """
    table_id: str | None = None
    """The Delta table's id before the append; None when there was no table."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    creation_ids: Mapping[str, str] = field(default_factory=dict)
    """Beside a topic's own id that of its znode's creation
    (`etl.decide.partition_identity.compared_ids`).
    """
    previous: str | None = None
    supersedes: str | None = None
    reason: str | None = None
    moves_offsets: bool = True
    run_key: str | None = None
    """Names what was asked for: under one key it is loaded once, whoever asks again."""
    id: str = ""
    losses: tuple[Loss, ...] = ()
    """What this plan lets go, by policy or by an operator's decision."""
    table_transaction_version: int = 0
    """The table's transaction version when the plan was made: while it is still that, the plan was
    not appended.
    """
    log_starts: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The first offset each log kept when the plan was made: from one plan to the next they tell
    how fast a log forgets.
    """
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The epoch of the leader that told the end below which the log's position lies, where brokers
    have epochs (KIP-101).
    """
    record_epochs: Mapping[BrokerPartition, Lineage] = field(default_factory=dict)
    """Those of the record batches read before this plan begins, where the last of them ends there:
    the sharper of the two.
    """
    log_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Which life of a log the rows are of; 0 where not named, one more each time an operator
    accepted that its offsets start anew.
    """
    pending_starts: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Logs that could not be read when their start was decided: the moment, in milliseconds, of the
    first record to read; None: of any.
    """
    pending_offsets: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of those: logs that start at the latest record, and whose readable end was known when that
    was decided. They start there, whatever the timestamps of later records are."""
    vanished: tuple[Vanished, ...] = ()
    """Of a reset: offsets whose rows stay in the table and whose records are gone."""
    took_over: TookOver | None = None
    heir_of: tuple[TookOver, ...] = ()
    """Every pipeline whose place was taken so far, by this one or by one that it took over; the
    newest plan of each at that time.
    """
    table_version: int | None = None
    """The table's Delta version when the plan was made; None: there was no table, or it is from
    before this was kept.
    """
    tails: Mapping[BrokerPartition, Tail] = field(default_factory=dict)
    """Of physical logs: what lay before their ends when the plan was made, or an earlier one. It
    must still lie there.
    """
    log_topic_ids: Mapping[BrokerPartition, str] = field(default_factory=dict)
    """Physical logs that were decided under another id of their topic than that of `topic_ids`, and
    that id (`decide.partition_identity`).
    """
    bounds: Bounds = NO_BOUNDS
    """What the run was asked to read that made this plan."""
    key_ends: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Of a plan under a run key: the logs that it does not read up to the key's bound, and where
    that lies. A cap ended it before, or the log could not be read; None: never yet, so that nobody
    knows its bound."""
    cluster_id: str | None = None
    """The id that the brokers of a cluster told which goes by the conf's name, since it told none
    before (`decide.partition_identity`).
    """
    stood: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of a replay: how many rows of each log the table had in its ranges when the plan was made."""
    offsets_in: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """Where it saw the group's offsets, and moves them."""
    closes: bool = False
    """It reads nothing and takes a number away from a driver that may still execute a plan with it:
    of a pipeline that was retired or taken over, or of a backfill that was given up with this plan,
    whatever an older copy of its claim says."""
    share: MemberAssignment | None = None
    """What the run that made it owned, of the logs of `positions`; None: it was no member of its
    group.
    """
    handed_over: bool | None = None
    """Whether the group's offsets were moved with it: from then on its ranges are nobody else's,
    whatever becomes of the membership. None: they move once its rows are in the table."""
    is_void: bool = False
    """Of one whose offsets move by a commit of their own, behind its being stored: that commit was
    refused, and another takes its place.
    """
    read_by_others: tuple[ReadByOthers, ...] = ()
    """What other members read between the last plan's positions and this one's."""
    time_zone: str | None = None
    """The session time zone of Spark where the plan was made; None: unknown, it is from before this
    was kept. No part of its id.
    """
    rows_before: RowsBefore | None = None
    """None: the table had no rows before plan 1, or the plan is from before this was kept."""

    @property
    def advancing(self) -> tuple[OffsetRange, ...]:
        """The ranges behind which positions lie: all of them, and none of a replay."""
        return () if self.kind is PlanKind.REPLAY else self.ranges

    @property
    def topics(self) -> frozenset[str]:
        """All topics that the pipeline has read, up to this plan."""
        return frozenset(log.topic for log in self.positions)

    @property
    def is_physical(self) -> bool:
        """Whether its offsets are byte positions."""
        return any(log.is_physical for log in self.positions)

    @property
    def offsets_to_move(self) -> tuple[BrokerPartition, ...]:
        """The logs whose committed offset moves behind the append, in order: those whose position
        is not what the plan saw; of a member those of its share."""
        logs = self.share.logs if self.share else self.positions
        return self._apart(logs) if self.moves_offsets and self.handed_over is None else ()

    @property
    def is_of_member(self) -> bool:
        """Whether a member of the group made it that moves its offsets behind the append."""
        return self.share is not None and self.handed_over is None

    @property
    def is_executed_as_it_is(self) -> bool:
        """Whether no other plan takes its place that reads anything else: what is gone of it alone
        is left out.
        """
        return bool(self.handed_over) or self.is_of_member

    @property
    def offsets_to_commit(self) -> tuple[BrokerPartition, ...]:
        """The logs whose committed offset moves when the plan is stored: the same, of those that
        the run owned.
        """
        return self._apart(self.share.logs) if self.share and self.handed_over is not None else ()

    def _apart(self, logs: Iterable[BrokerPartition]) -> tuple[BrokerPartition, ...]:
        return tuple(sorted(log for log in logs if not self.seen[log].is_at(self.positions[log])))

    @property
    def is_open(self) -> bool:
        """Whether its hand-over was begun, and nobody wrote down what became of it."""
        return self.handed_over is False and not self.is_void

    @property
    def word(self) -> str:
        """What stands in Kafka beside the offsets that it moved (`Committed.word`)."""
        return f"{self.number}:{self.id}"

    def moved(self, log: BrokerPartition) -> Committed:
        """What the group's offset is once this plan has moved it: one write behind what the plan
        saw.
        """
        return self.seen[log].moved(self.positions[log], self.word, self.offsets_in)

    def left(self, log: BrokerPartition) -> Committed:
        """What it was behind this plan, whether or not the plan had to move it."""
        return self.seen[log] if self.seen[log].is_at(self.positions[log]) else self.moved(log)

    @property
    def taken(self) -> dict[str, int]:
        """Application id and number of each pipeline whose place was taken so far."""
        return {
            one.app_id: one.number
            for one in (*((self.took_over,) if self.took_over else ()), *self.heir_of)
        }


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to one broker. The greeting of each connection is one of them."""

    answers: int = 0
    """How many were answered."""
    seconds: float = 0.0
    """How long somebody waited for them, in sending and in receiving; time in which an answer was
    on its way unattended is not counted.
    """
    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.answers + other.answers,
            self.seconds + other.seconds,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
        )

    def __sub__(self, other: Requests) -> Requests:
        return Requests(
            self.answers - other.answers,
            self.seconds - other.seconds,
            self.sent_bytes - other.sent_bytes,
            self.received_bytes - other.received_bytes,
        )


NO_REQUESTS = Requests()
ByBroker = Mapping[str, Requests]
"""By the address at which a broker was asked, `host:port`."""


def together(several: Iterable[ByBroker]) -> dict[str, Requests]:
    """The sums, by broker."""
    found: dict[str, Requests] = {}
    for one in several:
        for broker, requests in one.items():
            found[broker] = found.get(broker, NO_REQUESTS) + requests
    return found


def since(before: ByBroker, now: ByBroker) -> dict[str, Requests]:
    """What came between two readings of one count; brokers of which nothing did are left out."""
    return {
        broker: more
        for broker, requests in now.items()
        if (more := requests - before.get(broker, NO_REQUESTS)) != NO_REQUESTS
    }


GAPS_KEPT = 1000  # that a receipt keeps one by one


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What reading one range came to. Counts are of records; `fetched_bytes` is what came over the
    wire.
    """

    rows: int | None = 0
    """None: a crash took the reader's count, and nobody could count them in the table."""
    fetched_bytes: int | None = None
    """None: counted again from the table's files after a crash, where nobody knows it any more."""
    control_records: int = 0
    aborted_records: int = 0
    missing_offsets: int = 0
    """Offsets that no batch of the log covers any more (compaction). In a physical log none can be
    told from those inside an entry: 0.
    """
    gaps: tuple[tuple[int, int], ...] = ()
    """Intervals [from, until) inside the range that gave no row, for whatever of the three reasons,
    merged.
    """
    gaps_complete: bool = True
    """False: there were more than GAPS_KEPT, or nobody can tell of any (a physical log's, counted
    again); the counts still hold.
    """
    last_epoch: int | None = None
    """The leader epoch of the record batch that holds the range's last offset; None where none does
    (compaction), or nobody knows it.
    """
    behind_transform: bool = False
    """Counted again from rows that a transform had made: nobody knows whether it dropped records at
    missing offsets (any, if physical).
    """
    epochs: Lineage = ()
    """The leader epochs of the record batches that were read."""
    requests: tuple[tuple[str, Requests], ...] = field(default=(), compare=False)
    """What its task asked which brokers since the receipt before it. For the report alone: neither
    ledger nor table keeps it, and two attempts differ in it."""

    @property
    def is_doubtful(self) -> bool:
        """Whether records may be lost of which this receipt cannot tell."""
        return self.rows is None or (
            self.behind_transform and (self.missing_offsets > 0 or not self.gaps_complete)
        )

    @property
    def compacted(self) -> int:
        """Missing offsets that are known to be compaction's: none of a receipt that was counted
        again, where nobody knows.
        """
        return 0 if self.fetched_bytes is None else self.missing_offsets


NOT_COUNTED = RangeResult(rows=None, gaps_complete=False)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What came of plan `number`: the Delta version that holds it and a receipt for each of its
    ranges.
    """

    number: int
    plan_id: str
    delta_version: int
    table_id: str
    receipts: tuple[RangeResult, ...]
    run_id: str | None = None
    """The run whose append it was; None when the commit does not say."""
    uncounted: str | None = None
    """Why nobody could count the rows after a crash; the receipts are then `NOT_COUNTED`."""
    undated: int | None = field(default=None, compare=False)
    """Rows without an `event_date`, of a table that is partitioned by it. For the report alone: the
    ledger does not keep it.
    """

    @property
    def rows(self) -> int | None:
        """Of all ranges together; None when nobody could count them."""
        counts = [r.rows for r in self.receipts if r.rows is not None]
        return sum(counts) if len(counts) == len(self.receipts) else None

    def is_of(self, plan: Plan) -> bool:
        """Whether this is what came of that very plan; a ledger restored from a copy may hold the
        record of another with its number.
        """
        return self.plan_id == plan.id and len(self.receipts) == len(plan.ranges)

    @property
    def is_recounted(self) -> bool:
        """Counted again from the table: nobody knew any more why offsets gave no row."""
        return all(receipt.fetched_bytes is None for receipt in self.receipts)


class Codec(str, Enum):
    """How the pages of a Parquet file are compressed."""

    NONE = "uncompressed"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


DEFAULT_CODEC = Codec.ZSTD
"""Of files that tasks write."""
FILE_BYTES = 128 * 2**20
"""How large they become where there is enough, unless the conf says otherwise."""
ROW_GROUP_BYTES = 16 * 2**20
"""Rows of one file that are held back become a row group where they come to so many bytes, as Arrow
has them.
"""
HELD_BYTES = 48 * 2**20
"""What a task holds back of all its files: where that is passed, the one that holds most gives up a
row group, however small.
"""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Where files go and how they are written; the same for every task of a plan."""

    root: str
    """The table's folder, or its path in a store."""
    columns: tuple[str, ...]
    """Those of `columns`, and `event_date` where the table is partitioned by it, in the table's
    order.
    """
    partition_by: tuple[str, ...] = ()
    physical: bool = False
    """The rows are of physical logs (`BrokerPartition.is_physical`)."""
    codec: Codec = DEFAULT_CODEC
    file_bytes: int = FILE_BYTES
    """A file ends behind the row group that takes it there."""
    row_group_bytes: int = ROW_GROUP_BYTES
    held_bytes: int = HELD_BYTES
    write_id: str = "0"
    """Part of the name of each file of this write, and of none of another."""
    schema: pyarrow.Schema | None = None
    """Of the rows, where a transform made them; None: that of `columns`."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file."""

    path: str
    """Below the table's folder, as the file system has it."""
    size: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str
    """JSON (Delta protocol, "Per-file Statistics")."""
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    """What one task gave back."""

    indices: tuple[int, ...]
    """The ranges of the plan that it read."""
    files: tuple[DataFile, ...]
    receipts: Mapping[int, RangeResult] = field(default_factory=dict)
    """By the same indices."""
    made: int | None = None
    """Rows that a transform made of what was read; None: there is none, and each record is a row.
    """

    @property
    def rows(self) -> int:
        """In all its files."""
        return sum(file.rows for file in self.files)
