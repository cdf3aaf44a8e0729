"""What did brokers, the ledger in ZooKeeper and the table say at the start of a run?

What the world said at the start of a run, and where the pipeline stands by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etl.model.bounds import KeptKey, Request
from etl.model.claims import NO_CLAIMS, Claim, Claims
from etl.model.committed import Committed, OffsetsStorage
from etl.model.ledger import Ledger, Pause
from etl.model.logs import (
    BrokerPartition,
    EpochEnd,
    Extent,
    Leader,
    LookedAt,
    OldestRecord,
    OpenTransaction,
    Retention,
    Tail,
)
from etl.model.losses import Loss
from etl.model.membership import Share
from etl.model.plans import Plan
from etl.model.table import Table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the world said at the start of a run. After it nothing asks again where we are."""

    cluster: str
    extents: Mapping[BrokerPartition, Extent]
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
    extents_of_owned: Mapping[BrokerPartition, Extent] = field(default_factory=dict)
    """Of logs that are left to their owners, and so are not among the others."""
    gone_topics: frozenset[str] = frozenset()
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
    """The id of a cluster that goes by the conf's name (`decisions.identity.cluster_name`)."""
    asked: Asked | None = None
    """None: the run is asked for nothing beside its conf."""
    claims: Claims = NO_CLAIMS
    """What backfills claim beside this pipeline."""
    backfill: Claim | None = None
    """What this pipeline claims, which is a backfill's; None: it is a live one."""
    live_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of a backfill: which life of each log the newest plan of its live pipeline has."""
    pauses: tuple[Pause, ...] = ()
    """What operators paused, as the ledger has it; of a live pipeline."""
    paused: Mapping[BrokerPartition, Pause] = field(default_factory=dict)
    """Logs that are left alone for that (`decisions.pausing`), and so are not among the others."""
    extents_of_paused: Mapping[BrokerPartition, Extent] = field(default_factory=dict)
    oldest_of_paused: Mapping[BrokerPartition, OldestRecord] = field(default_factory=dict)
    """The oldest unread record of each paused log that has one, where messages have times."""
    share: Share | None = None
    """What the run owns as a member of its group; None: it is none."""
    time_zone: str | None = None
    """The session time zone that Spark has in this run."""
    live_time_zone: str | None = None
    """Of a backfill: that of the newest plan of its live pipeline."""

    @property
    def extents_left_alone(self) -> Mapping[BrokerPartition, Extent]:
        """Of logs that are not read in this run and that somebody leads."""
        return {**self.extents_of_owned, **self.extents_of_paused}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for beside its conf, and what was looked up for it."""

    request: Request
    key: KeptKey | None = None
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
