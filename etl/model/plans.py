"""Which offset ranges does a plan hold, and what came of reading and writing them?

Offset ranges, and the plans that are made of them.

Bounds live in names: `from_offset` is inclusive, `until_offset` exclusive. A missing thing is None,
never -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from etl.model.bounds import NO_BOUNDS, Bounds
from etl.model.committed import Committed, OffsetsStorage
from etl.model.logs import BrokerPartition, Dialect, Leader, Lineage, Tail
from etl.model.losses import Loss, ReadByOthers, Vanished
from etl.model.membership import Share


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

    `id` is the hash of the canonical content without the leaders (`plan_documents.plan_id`): same
    content, same plan, whoever made it.
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
    (`decisions.identity.made_again.compared_ids`).
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
    that id (`identity.made_again`).
    """
    bounds: Bounds = NO_BOUNDS
    """What the run was asked to read that made this plan."""
    key_ends: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Of a plan under a run key: the logs that it does not read up to the key's bound, and where
    that lies. A cap ended it before, or the log could not be read; None: never yet, so that nobody
    knows its bound."""
    cluster_id: str | None = None
    """The id that the brokers of a cluster told which goes by the conf's name, since it told none
    before (`identity.cluster_name`).
    """
    stood: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of a replay: how many rows of each log the table had in its ranges when the plan was made."""
    offsets_in: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """Where it saw the group's offsets, and moves them."""
    closes: bool = False
    """It reads nothing and takes a number away from a driver that may still execute a plan with it:
    of a pipeline that was retired or taken over, or of a backfill that was given up with this plan,
    whatever an older copy of its claim says."""
    share: Share | None = None
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
    def offsets_to_hand_over(self) -> tuple[BrokerPartition, ...]:
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
