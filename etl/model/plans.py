"""The offset ranges of a plan, and the results of reading and writing them.

Lives here: offset ranges and plans; run keys and bounds; lost offsets and offsets read by other
members; range results and commit results; counted requests; data files that tasks wrote and that
no commit names yet.

`from_offset` is inclusive, `until_offset` exclusive. A missing value is None, never -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerFamily,
    ClusterIdentity,
    Committed,
    Fingerprint,
    Leader,
    Lineage,
    MemberAssignment,
    OffsetsStorage,
    TopicPartition,
    known_values,
    topics_of,
)

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound of a plan's ranges. Runs set `at_ms`; older stored plans may have `back`, or
    neither.
    """

    said: str
    """Its text: a UTC time, or a relative form as requested (`-1h`, `-10000`,
    `since-last-success`).
    """
    at_ms: int | None = None
    """The first record at or after this moment, in milliseconds since the epoch."""
    back: int | None = None
    """Number of offsets before the end of each partition."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both bounds, as requested. They are equal if their texts are: `-1h` is another time an hour
    later.
    """

    start: Bound | None = None
    """Only in plans that an earlier form of the command stored: runs start where the pipeline is.
    """
    until: Bound | None = None
    open_partitions: int = 0
    """In a plan: number of partitions without a record at or after `until`; they were read to their
    end.
    """

    @property
    def said(self) -> str:
        """Return `from 2026-01-31T00:00:00Z until 2026-01-31T01:00:00Z`, or the bound that is set;
        empty without bounds.
        """
        ends = (("from", self.start), ("until", self.until))
        texts = []
        for word, bound in ends:
            if bound:
                texts.append(f"{word} {bound.said}")
        return " ".join(texts)


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Request:
    """What a run loads, in addition to its conf: run key and bounds."""

    run_key: str | None = None
    """Idempotency key: a second run with the same key loads nothing."""
    bounds: Bounds = NO_BOUNDS


@dataclass(frozen=True, slots=True)
class RunKeyRecord:
    """The result of a run key, kept for pruned plans and for runs without records."""

    key: str
    number: int
    """The plan that was made for the key, or the last one if there was nothing to read; 0: no plan
    yet.
    """
    said: str = ""
    """Text of its bounds (`Bounds.said`)."""
    is_empty: bool = False
    """There was nothing to read up to its bound: no plan was made."""


class LossReason(str, Enum):
    """Why offsets of a partition are lost: no plan will load them."""

    EXPIRED = "expired"
    """Retention had deleted them (`source.on_data_loss: skip`)."""
    MOVED = "offset_changed"
    """Another client moved the committed offset past them (`group.on_offset_changed: follow`)."""
    MISSING = "missing"
    """No record batch of the log had them, and nothing explains it (`source.on_data_loss: skip`).
    """
    SKIPPED = "skipped"
    """An operator superseded their plan, or set the loaded-until offset past them."""
    DELETED = "topic_deleted"
    """A stored plan was to read them, and their topic was deleted before it did."""
    RECREATED = "topic_recreated"
    """The topic was deleted and recreated, with offsets of its own."""
    TRUNCATED = "partition_truncated"
    """A stored plan was to read them, and the log lost them: others may have their offsets."""


LOST_WITH_LOG = frozenset((LossReason.DELETED, LossReason.RECREATED, LossReason.TRUNCATED))
"""Losses of a partition that was deleted, recreated or truncated. No plan reads such offsets again,
even if a partition of that name has them."""


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """Lost offsets [from, until) of one partition, as recorded by a plan."""

    partition: TopicPartition
    from_offset: int
    until_offset: int
    why: LossReason
    incarnation: int = 0


@dataclass(frozen=True, slots=True, order=True)
class StaleRows:
    """Offsets [from, until) of one incarnation that are or may be in the table, while the brokers
    no longer hold their records.
    """

    partition: TopicPartition
    from_offset: int
    until_offset: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True, order=True)
class ReadByOthers:
    """Offsets [from, until) of one life of one log that other members of the group read: nothing of
    them is lost, and none is for us.
    """

    partition: TopicPartition
    from_offset: int
    until_offset: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Which offsets of one log to read, and from whom."""

    partition: TopicPartition
    from_offset: int
    until_offset: int
    leader: Leader | None = None
    """None: unknown when the range was made; the reader looks it up."""

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset <= self.until_offset:
            raise ValueError(
                f"range {self.from_offset}..{self.until_offset} of {self.partition} is not a range"
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
    RESET = "accept_changes"
    """No ranges: an operator accepted truncated or recreated partitions, and the plan moves their
    positions.
    """
    SET = "set_offsets"
    """No ranges: an operator set positions, past lost offsets or back over offsets that were never
    loaded.
    """
    TAKE_OVER = "inherit"
    """No ranges: an operator decided that this pipeline takes another's place, and it begins at the
    other's positions.
    """
    REPLAY = "replay"
    """Its ranges were loaded before: their rows are put in the place of those that are there. No
    position moves.
    """
    BACKFILL = "backfill"
    """Its ranges are a part of what a backfill requests: offsets below the positions that were not
    loaded. No position moves.
    """


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A predecessor of the pipeline."""

    app_id: str
    """The other's application id in the table: `offset-range-etl/<cluster>/<group>/<pipeline>`."""
    number: int
    """The other's newest plan in the table when it was taken over."""


@dataclass(frozen=True, slots=True, order=True)
class HeldRows:
    """Rows of one partition and incarnation that the table holds and that no plan of ours
    loaded.
    """

    partition: TopicPartition
    incarnation: int
    from_offset: int
    until_offset: int
    """One past the last offset."""
    rows: int
    is_accepted: bool = False
    """An operator accepted that they are of another cluster or incarnation: their offsets are
    loaded again, in the next incarnation.
    """


@dataclass(frozen=True, slots=True)
class RowsBefore:
    """Rows that were in the table before the pipeline planned their topics for the first time."""

    table_id: str
    held: tuple[HeldRows, ...] = ()
    """In order; empty: the table had rows, and none of topics that were planned since."""


@dataclass(frozen=True, slots=True)
class PlanOrigin:
    """Where a plan comes from."""

    pipeline_id: str
    """Random id of the pipeline, made with its first plan."""
    created_at_ms: int
    previous: str | None = None
    """Id of the plan before it; None: it is the first."""
    supersedes: str | None = None
    """Id of the plan that it replaces under its number."""
    reason: str | None = None
    """Why it replaces that plan, or what an operator said."""
    time_zone: str | None = None
    """The session time zone of Spark where the plan was made; None: unknown, it is from before this
    was kept. No part of the plan's id.
    """


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """What the run was asked to load."""

    run_key: str | None = None
    """Idempotency key: what it names is loaded once."""
    bounds: Bounds = NO_BOUNDS
    unfinished: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """With a run key: partitions that the plan does not read up to the key's bound, and the bound.
    A cap ended it earlier, or the partition was unreadable; None: never readable, bound unknown.
    """


@dataclass(frozen=True, slots=True)
class Losses:
    """Offsets that a plan passes without loading them, and rows without records."""

    lost: tuple[Loss, ...] = ()
    """Offsets that this plan gives up, by policy or by an operator's decision."""
    stale_rows: tuple[StaleRows, ...] = ()
    """Of a reset: offsets with rows in the table and without records in the partition."""
    read_by_others: tuple[ReadByOthers, ...] = ()
    """Offsets that other members read between the last plan's positions and this one's."""


@dataclass(frozen=True, slots=True)
class TableExpectation:
    """The table when a plan was made."""

    id: str | None = None
    """The Delta table's id; None: there was no table."""
    version: int | None = None
    """Its Delta version; None: there was no table, or the plan is from before this was kept."""
    transaction_version: int = 0
    """The number of the pipeline's newest plan in it: while it is still that, the plan was not
    appended. 0: none.
    """
    rows_before: RowsBefore | None = None
    """None: the table had no rows before plan 1, or the plan is from before this was kept."""


class CommitState(Enum):
    """What became of a plan's offset commit.

    ======================  ========================================================================
    AFTER_APPEND            the commit follows the append
    AFTER_APPEND_AS_MEMBER  the same, of the partitions that the member then still owns
    IN_DOUBT                stored by a member that commits before it reads; the commit may have
                            been sent
    DONE                    the group has the offsets: no other member reads the plan's ranges
    REJECTED                the group rejected the commit: another plan replaces it
    ======================  ========================================================================

    A plan whose commit precedes the read begins as IN_DOUBT; in ZooKeeper, where one transaction
    stores plan and offsets, as DONE. The answer makes it DONE or REJECTED. Offsets with the plan's
    metadata make it DONE later, also if it was rejected; no commit makes it REJECTED.
    """

    AFTER_APPEND = "after append"
    AFTER_APPEND_AS_MEMBER = "after append as member"
    IN_DOUBT = "in doubt"
    DONE = "done"
    REJECTED = "rejected"

    @property
    def is_before_read(self) -> bool:
        """True if the offsets are committed when the plan is stored, before it is read."""
        return self in (CommitState.IN_DOUBT, CommitState.DONE, CommitState.REJECTED)

    @property
    def is_unresolved(self) -> bool:
        """True if the offsets should be committed, and the ledger does not say that they are."""
        return self in (CommitState.IN_DOUBT, CommitState.REJECTED)

    @property
    def is_committed(self) -> bool | None:
        """As stored plans have it: None where the commit follows the append."""
        if self.is_before_read:
            return self is CommitState.DONE
        return None

    @property
    def is_binding(self) -> bool:
        """True if only a plan that leaves out offsets without records may replace the plan."""
        return self in (CommitState.DONE, CommitState.AFTER_APPEND_AS_MEMBER)


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """How the offsets of a plan are committed: when, where, and by which member."""

    state: CommitState = CommitState.AFTER_APPEND
    storage: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """Where the group's offsets were read, and are committed."""
    member: MemberAssignment | None = None
    """The member that made the plan, with the partitions of the plan that it owned; None: the run
    was no member of the group.
    """

    @property
    def without_member(self) -> PlannedCommit:
        """The commit of a plan whose maker is no member."""
        return PlannedCommit(storage=self.storage)

    @property
    def after_append(self) -> PlannedCommit:
        """The same, after the append."""
        state = CommitState.AFTER_APPEND
        if self.member:
            state = CommitState.AFTER_APPEND_AS_MEMBER
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """Where the pipeline stands in one partition after a plan.

    `expected_commit` is the committed offset when the plan was made: the expected side of the
    compare-and-set.
    """

    loaded_until: int
    expected_commit: Committed = NOTHING_COMMITTED
    incarnation: int = 0
    """Which life of the partition its rows are of: one more each time an operator accepted that its
    offsets start anew.
    """
    log_start: int | None = None
    """Log start offset when the plan was made: the difference between plans is the rate at which
    its records expire. None: the partition could not be read then.
    """
    leader_epoch: int | None = None
    """Leader epoch of the end above `loaded_until`, if brokers have epochs (KIP-101)."""
    record_epochs: Lineage = ()
    """Those of the record batches read before this plan begins, where the last of them ends there:
    the sharper of the two.
    """
    fingerprint: Fingerprint | None = None
    """Of a Jafka partition: bytes before its end when this plan or an earlier one was made. They
    must be unchanged.
    """
    topic_id: str | None = None
    """Of a Jafka partition that was decided under another id of its topic than the plan's
    (`decide.recreated_or_truncated`).
    """

    @property
    def is_committed(self) -> bool:
        """True if the group's offset was at `loaded_until` when the plan was made."""
        return self.expected_commit.is_at(self.loaded_until)


@dataclass(frozen=True, slots=True)
class PendingPartition:
    """A partition that could not be read when its start was decided."""

    start_ms: int | None = None
    """The timestamp of the first record to read, in milliseconds; None: any record."""
    start_offset: int | None = None
    """Of a partition that starts at latest: its readable end when that was decided, if known. It
    starts there, whatever timestamps later records have.
    """


CREATION_ID = "zxid-"
"""Prefix of creation ids, for brokers without topic ids (before 2.8).

The rest is the id of the transaction that created the topic's znode, and its time (milliseconds):
transaction ids of an emptied ZooKeeper start again.
"""


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """The ids of a topic when a plan was made; None: unknown."""

    id: str | None = None
    creation_id: str | None = None
    """The id of its znode, in addition to its own id
    (`etl.decide.recreated_or_truncated.compared_ids`).
    """


@dataclass(frozen=True, slots=True)
class ReplayPayload:
    """What only a replay has."""

    replaced_rows: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Number of rows of each partition in its ranges when it was planned."""


@dataclass(frozen=True, slots=True)
class BackfillPayload:
    """What only a plan of a backfill has."""

    name: str
    """The name of the backfill that the plan loads a part of."""


@dataclass(frozen=True)
class Plan:
    """Everything that one Delta commit will hold, decided and stored before the first fetch.

    `id` is the hash of the canonical content without leaders (`plan_document.with_id`): equal
    content is the same plan, whichever driver made it. The cached properties are one fact of all
    partitions or topics in one mapping.
    """

    number: int
    kind: PlanKind
    origin: PlanOrigin
    cluster: ClusterIdentity
    shape: str
    """Hash of the settings that shape rows: isolation, transform, partitioning."""
    ranges: tuple[OffsetRange, ...]
    partitions: Mapping[TopicPartition, PlannedPartition]
    """Each partition that the pipeline knows, also those without a range in this plan, and of
    topics that the conf no longer names.
    """
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    """Topics with a known id."""
    pending: Mapping[TopicPartition, PendingPartition] = field(default_factory=dict)
    """Partitions that no plan has read yet, and whose start is decided."""
    table: TableExpectation = TableExpectation()
    request: PlannedRequest = field(default_factory=PlannedRequest)
    losses: Losses = Losses()
    inherits: Predecessor | None = None
    predecessors: tuple[Predecessor, ...] = ()
    """All predecessors of this pipeline, also those of predecessors, with the newest plan of each.
    """
    commit: PlannedCommit = PlannedCommit()
    """How its offsets are committed. The id tells only whether that is before the read."""
    payload: ReplayPayload | BackfillPayload | None = None
    is_closing: bool = False
    """True if it reads nothing and takes its number from a driver that may still execute another
    plan: of a retired or inherited pipeline.
    """
    id: str = ""

    @cached_property
    def loaded_until(self) -> Mapping[TopicPartition, int]:
        """The loaded-until offset of each partition."""
        return {partition: planned.loaded_until for partition, planned in self.partitions.items()}

    @cached_property
    def expected_commits(self) -> Mapping[TopicPartition, Committed]:
        """The expected committed offset of each partition."""
        return {
            partition: planned.expected_commit for partition, planned in self.partitions.items()
        }

    @cached_property
    def incarnations(self) -> Mapping[TopicPartition, int]:
        """The incarnations of partitions that were recreated; 0 where not named."""
        found = {}
        for partition, planned in self.partitions.items():
            if planned.incarnation:
                found[partition] = planned.incarnation
        return found

    @cached_property
    def leader_epochs(self) -> Mapping[TopicPartition, int]:
        """The known leader epochs."""
        return known_values(self.partitions, lambda planned: planned.leader_epoch)

    @cached_property
    def record_epochs(self) -> Mapping[TopicPartition, Lineage]:
        """The known epochs of record batches."""
        found = {}
        for partition, planned in self.partitions.items():
            if planned.record_epochs:
                found[partition] = planned.record_epochs
        return found

    @cached_property
    def fingerprints(self) -> Mapping[TopicPartition, Fingerprint]:
        """The fingerprints of Jafka partitions."""
        return known_values(self.partitions, lambda planned: planned.fingerprint)

    @cached_property
    def topic_ids(self) -> Mapping[str, str]:
        """The known ids of topics."""
        return known_values(self.topics, lambda topic: topic.id)

    @cached_property
    def creation_ids(self) -> Mapping[str, str]:
        """The known ids of the topics' znodes."""
        return known_values(self.topics, lambda topic: topic.creation_id)

    @property
    def backfill(self) -> str | None:
        """The name of the backfill that it loads a part of; None for other kinds."""
        if isinstance(self.payload, BackfillPayload):
            return self.payload.name
        return None

    @property
    def replaced_rows(self) -> Mapping[TopicPartition, int]:
        """Of a replay: number of rows of each partition in its ranges when it was planned."""
        if isinstance(self.payload, ReplayPayload):
            return self.payload.replaced_rows
        return {}

    def partition(self, topic_partition: TopicPartition) -> PlannedPartition | None:
        """Return the partition; None: the pipeline does not know it."""
        return self.partitions.get(topic_partition)

    def with_partitions(self, changed: Mapping[TopicPartition, PlannedPartition]) -> Plan:
        """Return the plan with these partitions in place of what it has of them."""
        if not changed:
            return self
        return replace(self, partitions={**self.partitions, **changed})

    def with_loaded_until(self, offsets: Mapping[TopicPartition, int]) -> Plan:
        """Return the plan with these loaded-until offsets of partitions that it has."""
        changed = {}
        for partition, offset in offsets.items():
            planned = self.partitions[partition]
            if planned.loaded_until != offset:
                changed[partition] = replace(planned, loaded_until=offset)
        return self.with_partitions(changed)

    def with_expected(self, commits: Mapping[TopicPartition, Committed]) -> Plan:
        """Return the plan with these expected commits of partitions that it has."""
        changed = {}
        for partition, commit in commits.items():
            planned = self.partitions[partition]
            if planned.expected_commit != commit:
                changed[partition] = replace(planned, expected_commit=commit)
        return self.with_partitions(changed)

    @property
    def advancing(self) -> tuple[OffsetRange, ...]:
        """Return the ranges that advance positions: all, or none of a replay or a backfill."""
        # Their ranges are below the positions: with them, a replacement of the plan would load its
        # interval a second time.
        if self.kind in (PlanKind.REPLAY, PlanKind.BACKFILL):
            return ()
        return self.ranges

    @property
    def read_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have a range."""
        return frozenset(r.partition for r in self.ranges)

    @property
    def read_topics(self) -> frozenset[str]:
        """The topics that have a range."""
        return frozenset(topics_of(self.read_partitions))

    @property
    def known_topics(self) -> frozenset[str]:
        """All topics that the pipeline has read, up to this plan."""
        return frozenset(topics_of(self.partitions))

    @property
    def observed_topics(self) -> frozenset[str]:
        """The known topics of which a partition could be read when this plan was made. Others may
        have been inherited by another pipeline meanwhile.
        """
        observed = set()
        for partition, planned in self.partitions.items():
            if planned.log_start is not None:
                observed.add(partition.topic)
        return frozenset(observed)

    @property
    def is_physical(self) -> bool:
        """True if offsets are byte positions (`TopicPartition.is_physical`)."""
        return self.cluster.family is BrokerFamily.JAFKA

    @property
    def offsets_to_move(self) -> tuple[TopicPartition, ...]:
        """Return the partitions to commit after the append, sorted.

        Their position differs from the committed offset that the plan saw; of a group member, only
        those of its assignment.
        """
        if self.commit.state.is_before_read:
            return ()
        if self.commit.member:
            return self._uncommitted(self.commit.member.partitions)
        return self._uncommitted(self.partitions)

    @property
    def offsets_to_commit(self) -> tuple[TopicPartition, ...]:
        """Return the partitions to commit when the plan is stored, sorted: those that the run
        owned, with a position that differs from the committed offset that the plan saw.
        """
        if self.commit.member is None or not self.commit.state.is_before_read:
            return ()
        return self._uncommitted(self.commit.member.partitions)

    def _uncommitted(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        uncommitted = []
        for partition in partitions:
            if not self.partitions[partition].is_committed:
                uncommitted.append(partition)
        return tuple(sorted(uncommitted))

    @property
    def commit_metadata(self) -> str:
        """Return the metadata with which its offsets are committed in Kafka
        (`Committed.metadata`).
        """
        return f"{self.number}:{self.id}"

    def with_commit_state(self, state: CommitState) -> Plan:
        """Return the plan with what became of its offset commit."""
        return replace(self, commit=replace(self.commit, state=state))

    def moved(self, partition: TopicPartition) -> Committed:
        """Return the committed offset after this plan committed: one write after the seen one."""
        planned = self.partitions[partition]
        return planned.expected_commit.moved(
            planned.loaded_until, self.commit_metadata, self.commit.storage
        )

    def committed_after(self, partition: TopicPartition) -> Committed:
        """Return the committed offset after this plan, whether or not the plan had to move it."""
        planned = self.partitions[partition]
        if planned.is_committed:
            return planned.expected_commit
        return self.moved(partition)

    @property
    def predecessor_numbers(self) -> dict[str, int]:
        """Return the application id and last number of each predecessor."""
        predecessors = [*self.predecessors]
        if self.inherits:
            predecessors.insert(0, self.inherits)
        return {predecessor.app_id: predecessor.number for predecessor in predecessors}


def planned_partitions(
    loaded_until: Mapping[TopicPartition, int],
    expected_commits: Mapping[TopicPartition, Committed],
    *,
    incarnation: Mapping[TopicPartition, int],
    log_start: Mapping[TopicPartition, int | None],
    leader_epoch: Mapping[TopicPartition, int],
    record_epochs: Mapping[TopicPartition, Lineage],
    fingerprint: Mapping[TopicPartition, Fingerprint],
    topic_id: Mapping[TopicPartition, str],
) -> dict[TopicPartition, PlannedPartition]:
    """Join what a plan decides, a mapping by partition for each field of `PlannedPartition`.

    Partitions without a loaded-until offset are left out.
    """
    found = {}
    for partition, offset in loaded_until.items():
        found[partition] = PlannedPartition(
            offset,
            expected_commits[partition],
            incarnation.get(partition, 0),
            log_start.get(partition),
            leader_epoch.get(partition),
            record_epochs.get(partition, ()),
            fingerprint.get(partition),
            topic_id.get(partition),
        )
    return found


def topic_identities(
    ids: Mapping[str, str], creation_ids: Mapping[str, str]
) -> dict[str, TopicIdentity]:
    """Join the ids of topics."""
    found = {}
    for topic in {**ids, **creation_ids}:
        found[topic] = TopicIdentity(ids.get(topic), creation_ids.get(topic))
    return found


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to one broker. The greeting of each connection is one of them."""

    answers: int = 0
    """How many were answered."""
    seconds: float = 0.0
    """Time spent waiting in sends and receives; requests in flight without a waiting reader do not
    count.
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
"""Broker address `host:port` -> requests."""


def together(several: Iterable[ByBroker]) -> dict[str, Requests]:
    """The sums, by broker."""
    found: dict[str, Requests] = {}
    for one in several:
        for broker, requests in one.items():
            found[broker] = found.get(broker, NO_REQUESTS) + requests
    return found


def since(before: ByBroker, now: ByBroker) -> dict[str, Requests]:
    """Return the difference of two readings of one counter; brokers without requests are left
    out.
    """
    differences = {}
    for broker, requests in now.items():
        more = requests - before.get(broker, NO_REQUESTS)
        if more != NO_REQUESTS:
            differences[broker] = more
    return differences


GAPS_KEPT = 1000  # that a range result keeps one by one


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of reading one range, and of writing its rows. Other counts are of records, and
    `fetched_bytes` is the number of bytes received.
    """

    rows: int | None = 0
    """Rows of the range in the table, without doubles. None: a crash lost the count, and the rows
    could not be counted in the table; or a transform of DataFrames left out records of the plan.
    """
    fetched_bytes: int | None = None
    """None: recounted from the table's files after a crash."""
    control_records: int = 0
    aborted_records: int = 0
    missing_offsets: int = 0
    """Offsets that no batch covers (compaction). On Jafka 0: there they cannot be distinguished
    from offsets inside an entry.
    """
    gaps: tuple[tuple[int, int], ...] = ()
    """Intervals [from, until) inside the range that gave no row, for whatever of the three reasons,
    merged.
    """
    gaps_complete: bool = True
    """False: there were more than GAPS_KEPT, or they are unknown (Jafka, recounted); the counts are
    right.
    """
    last_epoch: int | None = None
    """Leader epoch of the record batch with the range's last offset; None if no batch has it
    (compaction), or unknown.
    """
    behind_transform: bool = False
    """True if recounted from rows of a transform: records at missing offsets may have been dropped
    by it (on Jafka, any).
    """
    epochs: Lineage = ()
    """The leader epochs of the record batches that were read."""
    records: int | None = None
    """Records that were read, if a transform left some of them out; None: as many as rows."""
    requests: tuple[tuple[str, Requests], ...] = field(default=(), compare=False)
    """Requests of its task since the previous result, by broker. For the report only: neither
    ledger nor table keeps it, and two attempts differ.
    """

    @property
    def is_doubtful(self) -> bool:
        """True if records may be lost that this result cannot prove."""
        if self.rows is None:
            return True
        has_gaps = self.missing_offsets > 0 or not self.gaps_complete
        return self.behind_transform and has_gaps

    @property
    def records_read(self) -> int | None:
        """Return the records that were read; None if unknown."""
        if self.records is None:
            return self.rows
        return self.records

    @property
    def left_out(self) -> int:
        """Return the records that are known to be left out by a transform."""
        if self.records is None or self.rows is None:
            return 0
        return self.records - self.rows

    def without_left_out(self, count: int) -> RangeResult:
        """Return the result of a range of which a transform left out so many records."""
        if not count:
            return self
        rows = (self.rows or 0) - count
        return replace(self, rows=rows, records=self.rows, gaps_complete=False)

    @property
    def compacted(self) -> int:
        """Return the number of offsets known to be compacted; none of a recounted result."""
        if self.fetched_bytes is None:
            return 0
        return self.missing_offsets


NOT_COUNTED = RangeResult(rows=None, gaps_complete=False)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of plan `number`: the Delta version that holds it and a result per range."""

    number: int
    plan_id: str
    delta_version: int
    table_id: str
    results: tuple[RangeResult, ...]
    run_id: str | None = None
    """The run that appended it; None: the commit has no run id."""
    uncounted: str | None = None
    """Why the rows could not be counted after a crash; the results are then `NOT_COUNTED`."""
    written: int | None = None
    """Rows in the files of the commit, if a transform made another number than the ranges tell;
    None: the sum of the ranges.
    """
    undated: int | None = field(default=None, compare=False)
    """Rows without an `event_date`, of a table that is partitioned by it. For the report alone: the
    ledger does not keep it.
    """

    @property
    def rows(self) -> int | None:
        """Return the rows that the plan wrote; None if they could not be counted."""
        if self.written is not None:
            return self.written
        return sum_of_known([result.rows for result in self.results])

    @property
    def records_read(self) -> int | None:
        """Return the records that were read; None if unknown."""
        return sum_of_known([result.records_read for result in self.results])

    def is_of(self, plan: Plan) -> bool:
        """True if this is the result of that plan: a ledger restored from a copy may hold another
        plan's under the number.
        """
        return self.plan_id == plan.id and len(self.results) == len(plan.ranges)

    @property
    def is_recounted(self) -> bool:
        """True if recounted from the table: why offsets have no row is unknown."""
        return all(result.fetched_bytes is None for result in self.results)


def sum_of_known(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if a count is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


class Codec(str, Enum):
    """How the pages of a Parquet file are compressed."""

    NONE = "uncompressed"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


DEFAULT_CODEC = Codec.ZSTD
"""Compression of files that tasks write."""
FILE_BYTES = 128 * 2**20
"""Target size of files, unless the conf sets it."""
ROW_GROUP_BYTES = 16 * 2**20
"""Rows of one file that are held back become a row group where they come to so many bytes, as Arrow
has them.
"""
WRITE_BUFFER_BYTES = 48 * 2**20
"""Bytes that a task buffers for all its files; above that, the largest buffer is written as a row
group.
"""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Location and format of the files of a plan; the same for all its tasks."""

    root: str
    """The table's folder, or its path in a store."""
    columns: tuple[str, ...]
    """Those of `columns`, and `event_date` where the table is partitioned by it, in the table's
    order.
    """
    partition_by: tuple[str, ...] = ()
    physical: bool = False
    """The rows are of physical logs (`TopicPartition.is_physical`)."""
    codec: Codec = DEFAULT_CODEC
    file_bytes: int = FILE_BYTES
    """A file ends after the row group that reaches this size."""
    row_group_bytes: int = ROW_GROUP_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    write_id: str = "0"
    """Part of the name of each file of this write, and of none of another."""
    schema: pyarrow.Schema | None = None
    """Schema of a transform's rows; None: that of `columns`."""


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
    """The result of one writing task."""

    indices: tuple[int, ...]
    """The ranges of the plan that it read."""
    files: tuple[DataFile, ...]
    results: Mapping[int, RangeResult] = field(default_factory=dict)
    """By the same indices."""
    made: int | None = None
    """Rows that a transform made; None: no transform, each record is a row."""

    @property
    def rows(self) -> int:
        """In all its files."""
        return sum(file.rows for file in self.files)
