"""Offset ranges, and the plans that are made of them; what reading a range and appending a plan came to.

Bounds live in names: `from_offset` is inclusive, `until_offset` exclusive. A missing thing is None, never -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from etl.model.logs import BrokerPartition, Dialect, Leader, Lineage, Tail


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
    """The group's **next** offset in ZooKeeper, and its znode's version: both None without a znode, the offset alone in an empty one."""

    offset: int | None = None
    version: int | None = None


NOTHING_COMMITTED = Committed()
GAPS_KEPT = 1000  # that a receipt keeps one by one


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
    """Offsets that no batch of the log covers any more (compaction). In a physical log none can be told from those inside an entry: 0."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Intervals [from, until) inside the range that gave no row, for whatever of the three reasons, merged."""
    gaps_complete: bool = True
    """False: there were more than GAPS_KEPT, or nobody can tell of any (a physical log's, counted again); the counts still hold."""
    last_epoch: int | None = None
    """The leader epoch of the record batch that holds the range's last offset; None where none does (compaction), or nobody knows it."""
    behind_transform: bool = False
    """Counted again from rows that a transform had made: nobody knows whether it dropped records at missing offsets (any, if physical)."""
    epochs: Lineage = ()
    """The leader epochs of the record batches that were read."""

    @property
    def is_doubtful(self) -> bool:
        """Whether records may be lost of which this receipt cannot tell."""
        return self.rows is None or (self.behind_transform and (self.missing_offsets > 0 or not self.gaps_complete))

    @property
    def compacted(self) -> int:
        """Missing offsets that are known to be compaction's: none of a receipt that was counted again, where nobody knows."""
        return 0 if self.fetched_bytes is None else self.missing_offsets


NOT_COUNTED = Receipt(rows=None, gaps_complete=False)


class LossReason(str, Enum):
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
    why: LossReason
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
    """No ranges: an operator decided that this pipeline takes another's place, and it begins at the other's positions."""


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

    `id` is the hash of the canonical content without the leaders (`plan_documents.plan_id`): same content, same plan, whoever made it.
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
    creation_ids: Mapping[str, str] = field(default_factory=dict)
    """Beside a topic's own id that of its znode's creation (`decisions.made_again.compared_ids`)."""
    previous: str | None = None
    supersedes: str | None = None
    reason: str | None = None
    moves_offsets: bool = True
    run_key: str | None = None
    id: str = ""
    losses: tuple[Loss, ...] = ()
    """What this plan lets go, by policy or by an operator's decision."""
    table_transaction_version: int = 0
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
    """Logs that could not be read when their start was decided: the moment, in milliseconds, of the first record to read; None: of any."""
    vanished: tuple[Vanished, ...] = ()
    """Of a reset: offsets whose rows stay in the table and whose records are gone."""
    took_over: TookOver | None = None
    heir_of: tuple[TookOver, ...] = ()
    """Every pipeline whose place was taken so far, by this one or by one that it took over; the newest plan of each at that time."""
    table_version: int | None = None
    """The table's Delta version when the plan was made; None: there was no table, or it is from before this was kept."""
    tails: Mapping[BrokerPartition, Tail] = field(default_factory=dict)
    """Of physical logs: what lay before their ends when the plan was made, or an earlier one. It must still lie there."""
    log_topic_ids: Mapping[BrokerPartition, str] = field(default_factory=dict)
    """Physical logs that were decided under another id of their topic than that of `topic_ids`, and that id (`decisions.made_again`)."""
    cluster_id: str | None = None
    """The id that the brokers of a cluster told which goes by the conf's name, since it told none before (`decisions.cluster_name`)."""

    @property
    def offsets_to_move(self) -> tuple[BrokerPartition, ...]:
        """The logs whose committed offset this plan moves, in order: those whose position is not what it saw."""
        return tuple(sorted(log for log, to in self.positions.items() if self.seen[log].offset != to)) if self.moves_offsets else ()

    def moved(self, log: BrokerPartition) -> Committed:
        """What ZooKeeper holds for the log once this plan has moved its offset: one write behind what the plan saw."""
        version = self.seen[log].version
        return Committed(self.positions[log], 0 if version is None else version + 1)

    def left(self, log: BrokerPartition) -> Committed:
        """What ZooKeeper held for the log behind this plan, whether or not the plan had to move it."""
        return self.seen[log] if self.seen[log].offset == self.positions[log] else self.moved(log)

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
