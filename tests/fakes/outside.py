"""What outlives a driver, in memory: a broker's logs, a ZooKeeper that keeps versions, a table that
keeps commits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from etl.decide.offsets import both
from etl.ledger import plan_document
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Broker,
    Committed,
    Leader,
    OffsetsStorage,
    TopicPartition,
)
from etl.model.plans import Loss, Plan, RunKeyRecord
from etl.model.snapshot import Acknowledgement, ForeignCommit, OtherPipeline, Pause
from tests.fakes.fake_group import FakeGroup
from tests.fakes.fake_log import FakeLog, Place

CLUSTER = "cluster-1"
BROKER = Broker(0, "127.0.0.1", 9092)
GROUP, PIPELINE = "group", "clicks"


def leader_of(partition: TopicPartition) -> Leader:
    """A Jafka partition is on its own broker, which reports no epochs."""
    if partition.broker_id is None:
        return Leader(BROKER, 0)
    return Leader(Broker(partition.broker_id, "127.0.0.1", 9100 + partition.broker_id, "jafka"))


APP_ID = f"offset-range-etl/{CLUSTER}/{GROUP}/{PIPELINE}"


@dataclass(frozen=True)
class FakeCommit:
    """One commit of the table."""

    plan: Plan
    rows: tuple[tuple[TopicPartition, Place], ...]
    run_id: str = "run-1"
    app_id: str = ""
    """Its pipeline; by default the live one."""
    lives: tuple[int, ...] = ()
    """Of each row's record, which life of its log it was of."""
    epochs: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Of each range, the leader epochs that its record batches named."""
    replaced: frozenset[tuple[TopicPartition, Place]] = frozenset()
    """Rows of it that a replay took out."""

    @property
    def left(self) -> list[tuple[TopicPartition, Place]]:
        """The rows that are still there."""
        return [row for row in self.rows if row not in self.replaced]

    @property
    def number(self) -> int:
        return self.plan.number

    @property
    def plan_id(self) -> str:
        return self.plan.id

    @property
    def uid(self) -> str:
        return self.plan.origin.pipeline_id


@dataclass
class Outside:
    """Everything that outlives a driver."""

    logs: dict[TopicPartition, FakeLog]
    uid: str | None = None
    plans: dict[int, bytes] = field(default_factory=dict)
    plan_versions: dict[int, int] = field(default_factory=dict)
    """How often each plan's znode was written again."""
    removals: list[ForeignCommit] = field(default_factory=list)
    acknowledged: Acknowledgement | None = None
    kept_keys: tuple[RunKeyRecord, ...] = ()
    """Run keys that no stored plan has any more."""
    applied: dict[int, bytes] = field(default_factory=dict)
    losses: list[tuple[int, Loss]] = field(default_factory=list)
    """Rows of the losses table: plan number and what it let go."""
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Value and version of each offset's znode."""
    offsets_in: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    kept: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    """Offset and word of each that the group's coordinator keeps."""
    group: FakeGroup = field(default_factory=FakeGroup)
    """Of Kafka's coordinator."""
    uids_made: int = field(default=0, compare=False)
    """Thought of, and kept nowhere before a plan is stored."""
    now_ms: int = field(default=1_699_999_999_999, compare=False)
    """What the last driver read on its clock."""
    table: list[FakeCommit] | None = None
    table_id: str = "table-1"
    forgotten_commits: bool = False
    """The table's log was cleaned up: the commit bit is there, the commits' metadata is not."""
    foreign: tuple[ForeignCommit, ...] = ()
    """What others did to the table since our last commit."""
    others: tuple[OtherPipeline, ...] = ()
    """The other pipelines that have loaded into the table."""
    reported_id: str | None = None
    """The cluster id that the brokers report; None: they are from before 0.10.1, and the conf names
    the cluster.
    """
    live_consumers: tuple[str, ...] = ()
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    creation_ids: dict[str, str] = field(default_factory=dict)
    pauses: tuple[Pause, ...] = ()
    backfills: dict[str, bytes] = field(default_factory=dict)
    """The requests of backfills."""
    app_id: str = APP_ID

    def commits(self) -> list[tuple[int, FakeCommit]]:
        """Version and commit of each that is ours, oldest first."""
        return [
            (version, one)
            for version, one in enumerate(self.table or (), 1)
            if (one.app_id or APP_ID) == self.app_id
        ]

    def rows(self) -> Counter[tuple[TopicPartition, Place]]:
        """How often the table holds each offset of each log; of a physical one, each message of
        each entry.
        """
        return Counter(row for commit in self.table or () for row in commit.left)

    def writers(self) -> dict[tuple[TopicPartition, Place], int]:
        """The plan that brought each row."""
        return {row: commit.number for commit in self.table or () for row in commit.left}

    def records(self) -> Counter[tuple[TopicPartition, int, Place]]:
        """How often the table holds each record that ever was: (log, life, offset)."""
        return Counter(
            (partition, life, place)
            for commit in self.table or ()
            for (partition, place), life in zip(commit.rows, commit.lives)
            if (partition, place) not in commit.replaced
        )

    def keys(self) -> Counter[tuple[TopicPartition, int, Place]]:
        """Count the rows of the table by their unique key: (log, incarnation, offset)."""
        return Counter(
            (partition, commit.plan.incarnations.get(partition, 0), place)
            for commit in self.table or ()
            for partition, place in commit.left
        )

    def transaction_version(self) -> int:
        """The commit bit, 0 for none."""
        return max((commit.number for _, commit in self.commits()), default=0)

    def move_offset(self, partition: TopicPartition, offset: int) -> None:
        """Another client writes an offset."""
        self.offsets[partition] = (
            offset,
            self.offsets[partition][1] + 1 if partition in self.offsets else 0,
        )

    def committed(self) -> dict[TopicPartition, Committed]:
        """The offsets as a client reads them."""
        zookeeper = {partition: Committed(*found) for partition, found in self.offsets.items()}
        kafka = {
            partition: Committed(offset, None, word)
            for partition, (offset, word) in self.kept.items()
        }
        return {
            OffsetsStorage.ZOOKEEPER: zookeeper,
            OffsetsStorage.KAFKA: kafka,
            OffsetsStorage.DUAL: {
                partition: both(
                    zookeeper.get(partition, NOTHING_COMMITTED),
                    kafka.get(partition, NOTHING_COMMITTED),
                )
                for partition in {**zookeeper, **kafka}
            },
        }[self.offsets_in]

    def newest_plan(self) -> Plan | None:
        """The plan with the highest number."""
        if self.plans:
            return plan_document.parse_plan(self.plans[max(self.plans)], path="plans")
        return None
