"""What outlives a driver, in memory: partitions, znodes, a table that keeps commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from etl.decide.offsets import both
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import read_pauses, read_pauses_at, write_pauses
from etl.ledger import plan_document
from etl.ledger.documents import render
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
from tests.fakes.znode_views import (
    GROUP,
    IN_PIPELINE,
    PIPELINE,
    documents,
    offsets,
    owner_nodes,
    put,
)
from tests.fakes.zookeeper_memory import Memory, MemoryZooKeeper

CLUSTER = "cluster-1"
BROKER = Broker(0, "127.0.0.1", 9092)


def leader_of(partition: TopicPartition) -> Leader:
    """A Jafka partition is on its own broker, which reports no epochs."""
    if partition.broker_id is None:
        return Leader(BROKER, 0)
    return Leader(Broker(partition.broker_id, "127.0.0.1", 9100 + partition.broker_id, "jafka"))


APP_ID = f"offset-range-etl/{CLUSTER}/{GROUP}/{PIPELINE}"


@dataclass(frozen=True)
class FakeCommit:
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

    @cached_property
    def document(self) -> bytes:
        return plan_document.render_plan(self.plan)


@dataclass
class Outside:
    logs: dict[TopicPartition, FakeLog]
    zookeeper: Memory = field(default_factory=Memory)
    losses: list[tuple[int, Loss]] = field(default_factory=list)
    """Rows of the losses table: plan number and what it let go."""
    offsets_in: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    kept: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    """Offset and word of each that the group's coordinator keeps."""
    group: FakeGroup = field(default_factory=FakeGroup)
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
    """The id that brokers report; None: before 0.10.1, so the conf names the cluster."""
    live_consumers: tuple[str, ...] = ()
    topic_ids: dict[str, str] = field(default_factory=dict)
    creation_ids: dict[str, str] = field(default_factory=dict)
    app_id: str = APP_ID

    def __post_init__(self) -> None:
        self.zookeeper.ensure(IN_PIPELINE.root)  # as the driver lock does

    @property
    def ledger(self) -> PlanLedger:
        """The real ledger of the pipeline, on a session of its own."""
        return PlanLedger(MemoryZooKeeper(self.zookeeper), GROUP, PIPELINE)

    @property
    def uid(self) -> str | None:
        """The pipeline's uid; None before a plan is stored."""
        return self.zookeeper.find(IN_PIPELINE.root).payload.decode() or None

    @uid.setter
    def uid(self, uid: str | None) -> None:
        self.zookeeper.find(IN_PIPELINE.root).payload = (uid or "").encode()

    @property
    def plans(self) -> MutableMapping[int, bytes]:
        return documents(self.zookeeper, IN_PIPELINE.plans, IN_PIPELINE.plan, int)

    @plans.setter
    def plans(self, plans: MutableMapping[int, bytes]) -> None:
        put(self.plans, plans)

    @property
    def applied(self) -> MutableMapping[int, bytes]:
        return documents(self.zookeeper, IN_PIPELINE.applied_plans, IN_PIPELINE.applied, int)

    @applied.setter
    def applied(self, applied: MutableMapping[int, bytes]) -> None:
        put(self.applied, applied)

    @property
    def backfills(self) -> MutableMapping[str, bytes]:
        return documents(self.zookeeper, IN_PIPELINE.backfills, IN_PIPELINE.backfill)

    @property
    def offsets(self) -> MutableMapping[TopicPartition, tuple[int, int]]:
        """Value and version of each offset's znode."""
        return offsets(self.zookeeper)

    @offsets.setter
    def offsets(self, found: MutableMapping[TopicPartition, tuple[int, int]]) -> None:
        put(self.offsets, found)

    @property
    def owners(self) -> MutableMapping[TopicPartition, str]:
        return owner_nodes(self.zookeeper)

    @owners.setter
    def owners(self, owners: MutableMapping[TopicPartition, str]) -> None:
        put(self.owners, owners)

    @property
    def acknowledged(self) -> Acknowledgement | None:
        return self.ledger.read_acknowledgement()

    @acknowledged.setter
    def acknowledged(self, decision: Acknowledgement) -> None:
        self.ledger.acknowledge(decision)

    @property
    def removals(self) -> list[ForeignCommit]:
        return list(self.ledger.read_loaded_intervals().removals)

    @property
    def kept_keys(self) -> tuple[RunKeyRecord, ...]:
        return self.ledger.read_loaded_intervals().keys

    @kept_keys.setter
    def kept_keys(self, keys: tuple[RunKeyRecord, ...]) -> None:
        ledger = self.ledger
        kept = replace(ledger.read_loaded_intervals(), keys=keys)
        assert ledger.documents.put(IN_PIPELINE.loaded, render(kept))

    @property
    def pauses(self) -> tuple[Pause, ...]:
        return read_pauses(self.ledger)

    @pauses.setter
    def pauses(self, pauses: tuple[Pause, ...]) -> None:
        ledger = self.ledger
        write_pauses(ledger, pauses, read_pauses_at(ledger)[1])

    def commits(self) -> list[tuple[int, FakeCommit]]:
        """Version and commit of each that is ours, oldest first."""
        return [
            (version, one)
            for version, one in enumerate(self.table or (), 1)
            if (one.app_id or APP_ID) == self.app_id
        ]

    def rows(self) -> Counter[tuple[TopicPartition, Place]]:
        """How often the table holds each offset; on Jafka each message of each entry."""
        return Counter(row for commit in self.table or () for row in commit.left)

    def writers(self) -> dict[tuple[TopicPartition, Place], int]:
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
        return max((commit.number for _, commit in self.commits()), default=0)

    def move_offset(self, partition: TopicPartition, offset: int) -> None:
        offsets = self.offsets
        version = offsets[partition][1] + 1 if partition in offsets else 0
        offsets[partition] = offset, version

    def committed(self) -> dict[TopicPartition, Committed]:
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
        plans = self.plans
        if not plans:
            return None
        return plan_document.parse_plan(plans[max(plans)], path="plans")
