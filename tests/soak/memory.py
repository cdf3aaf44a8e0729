"""The simulated outside of the soak: logs in memory in place of the brokers, and a writer on
delta-rs in place of Spark.

Everything else of a run is the product's own: `live_services.LiveServices` with its ledger, group,
lock and the reading of the table. The writer commits as `EmptyCommit` does: application transaction
and metadata, on the same table object that was read.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow
import pyarrow.parquet
from deltalake import DeltaTable

from etl.decide import loaded_intervals
from etl.errors import ExpiredOffsets
from etl.io import process
from etl.io.brokers.partition_ends import OffsetsAndLeaders
from etl.io.delta import append, losses
from etl.io.delta import log as delta_log
from etl.io.delta.append import Destination, Load, Takes
from etl.io.delta.table_shape import open_table
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.columns import arrow_schema
from etl.model.partitions import (
    Broker,
    EpochEnd,
    KafkaGroup,
    Leader,
    LookedAt,
    OpenTransaction,
    PartitionOffsets,
    Retention,
    TopicPartition,
    UnverifiedOffset,
)
from etl.model.plans import OffsetRange, Plan, RangeResult, Request
from etl.model.snapshot import Snapshot
from etl.run import discovery, live_services, service_interfaces
from etl.run.read_rows import Following
from etl.settings.sections import Settings
from tests.soak.points import through, wrapped

BROKER = Broker(0, "memory", 1)
CLUSTER_ID = "memory"
PLANS_KEPT = 4
"""Few, so that plans are folded into coverage while drivers die."""
_SCHEMA = arrow_schema()
_places: dict[str, dict[TopicPartition, MemoryLog]] = {}
"""The logs that a bootstrap host stands for."""
alive: set[str] = set()
"""Run ids of drivers with a live process, paused or not."""


@dataclass
class MemoryLog:
    """Offsets `log_start` until `end`; those in `holes` have no records (markers, compaction)."""

    end: int = 0
    log_start: int = 0
    holes: set[int] = field(default_factory=set)

    def records(self, start: int, until: int) -> list[int]:
        """Offsets of the records in [start, until) that were ever there."""
        return [offset for offset in range(start, until) if offset not in self.holes]


def value_of(partition: TopicPartition, offset: int) -> bytes:
    """What the record holds."""
    return f"{partition.topic}-{partition.partition}-{offset}".encode()


class MemoryCluster:
    """`io.brokers.cluster_requests.Cluster` on logs in memory."""

    def __init__(self, bootstrap: Sequence[tuple[str, int]], **_: Any) -> None:
        self._logs = _places[bootstrap[0][0]]

    def __enter__(self) -> MemoryCluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to hang up."""

    def describe(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """See `io.brokers.cluster_requests.Cluster`."""
        names = sorted(
            {
                partition.topic
                for partition in self._logs
                if topics is None or partition.topic in topics
            }
        )
        found = {
            name: TopicMetadata(name, None, f"id-{name}", False, self._partitions(name))
            for name in names
        }
        return through("describe", lambda: ClusterMetadata(CLUSTER_ID, {0: BROKER}, found))

    def describe_when_known(self, topics: Collection[str] | None, **_: Any) -> ClusterMetadata:
        return self.describe(topics)

    def extents(self, partitions: Collection[TopicPartition], **_: Any) -> OffsetsAndLeaders:
        """See `io.brokers.cluster_requests.Cluster`."""

        def ask() -> OffsetsAndLeaders:
            found = {
                partition: PartitionOffsets(
                    self._logs[partition].log_start, self._logs[partition].end
                )
                for partition in partitions
            }
            return OffsetsAndLeaders(
                found, {partition: Leader(BROKER, 0) for partition in partitions}, frozenset()
            )

        return through("list offsets", ask)

    def retention(self, topics: Collection[str]) -> dict[str, Retention]:
        """These brokers do not report it."""
        return {}

    def retained_from(
        self, found: OffsetsAndLeaders, since_ms: Mapping[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, int]:
        """See `io.brokers.cluster_requests.Cluster`."""
        return {}

    def looked_at(
        self, doubted: Collection[UnverifiedOffset], leaders: Mapping[TopicPartition, Leader]
    ) -> dict[TopicPartition, tuple[LookedAt, ...]]:
        """An offset of these logs is a record's: there is none to doubt."""
        assert not doubted
        return {}

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, EpochEnd]:
        """These brokers have no epochs."""
        return {}

    def open_transactions(self, found: OffsetsAndLeaders) -> dict[TopicPartition, OpenTransaction]:
        """There is none."""
        return {}

    def members_of(self, group: str, brokers: Collection[Broker]) -> KafkaGroup:
        """It has no members."""
        return KafkaGroup()

    def bytes_per_offset(self, found: OffsetsAndLeaders) -> dict[TopicPartition, float]:
        """See `io.brokers.cluster_requests.Cluster`."""
        return dict.fromkeys(found.extents, 100.0)

    def _partitions(self, topic: str) -> tuple[PartitionMetadata, ...]:
        return tuple(
            PartitionMetadata(partition, None, Leader(BROKER, 0))
            for partition in sorted(self._logs)
            if partition.topic == topic
        )


class Rows:
    """The rows of a plan, read when the append needs them, together with the results."""

    last_came = None

    def __init__(
        self, partitions: Mapping[TopicPartition, MemoryLog], ranges: Sequence[OffsetRange]
    ) -> None:
        self._logs, self._ranges = partitions, ranges
        self._results: list[RangeResult] = []

    @property
    def results(self) -> dict[int, RangeResult]:
        """What came back by now, by the index of the range."""
        return dict(enumerate(self._results))

    def in_order(self, count: int) -> tuple[RangeResult, ...] | None:
        """One for each range, or None when some are missing."""
        return tuple(self._results) if len(self._results) == count else None

    def read(self) -> pyarrow.Table:
        """Fetch every range. Raises ExpiredOffsets below the log start."""
        columns: dict[str, list[Any]] = {"topic": [], "partition": [], "offset": [], "value": []}
        for r in self._ranges:
            found = through("fetch", lambda r=r: self._fetch(r))  # type: ignore[misc]
            columns["topic"] += [r.partition.topic] * len(found)
            columns["partition"] += [r.partition.partition] * len(found)
            columns["offset"] += found
            columns["value"] += [value_of(r.partition, offset) for offset in found]
            fetched_bytes = sum(len(value_of(r.partition, offset)) for offset in found)
            self._results.append(
                RangeResult(
                    len(found),
                    fetched_bytes,
                    missing_offsets=r.size - len(found),
                    gaps=_gaps(r, found),
                )
            )
        count = len(columns["offset"])
        arrays = [
            pyarrow.array(columns.get(f.name, [None] * count), f.type)
            for f in _SCHEMA
            if f.name != "incarnation"
        ]
        return pyarrow.table(
            [*arrays, pyarrow.array([0] * count, _SCHEMA.field("incarnation").type)], schema=_SCHEMA
        )

    def _fetch(self, r: OffsetRange) -> list[int]:
        partition = self._logs[r.partition]
        if r.from_offset < partition.log_start:
            raise ExpiredOffsets(
                "the range's start has expired",
                topic=r.partition.topic,
                partition=r.partition.partition,
                offset=r.from_offset,
            )
        assert r.until_offset <= partition.end, "a plan reaches beyond the log"
        return partition.records(r.from_offset, r.until_offset)


class MemoryWorld(live_services.LiveServices):
    """The real world of a run, with `Rows` in place of Spark's."""

    def __init__(
        self,
        settings: Settings,
        zookeeper: ZooKeeper,
        *,
        run_id: str,
        uid: str,
        now_ms: Callable[[], int],
        request: Request | None = None,
    ) -> None:
        super().__init__(
            settings, zookeeper, service_interfaces.RunContext(), run_id, request=request
        )
        self._uid, self._clock = uid, now_ms

    def new_uid(self) -> str:
        """Drawn in advance, so that a seed repeats a story exactly."""
        return self._uid

    def now_ms(self) -> int:
        """The story's clock."""
        return self._clock()

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Any:
        """Nothing is read before the append, as with Spark."""
        if not plan.ranges:
            return super().fetch(plan, snapshot)
        rows = Rows(_places[self._discovery.bootstrap()[0][0]], plan.ranges)
        self._reading = Following(plan.id, plan.ranges, [range(len(plan.ranges))])
        self._reading.results = cast(Any, rows)
        return Load(MemoryWriter(), rows)


@contextlib.contextmanager
def in_place_of_brokers_and_spark() -> Iterator[None]:
    """Inside, runs of MemoryWorld read logs in memory and write by delta-rs, and the table's calls
    have their moments.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in [
            (discovery, "Cluster", MemoryCluster),
            (append, "open_table", wrapped("open table to write", open_table)),
            (delta_log, "read_commit_file", wrapped("read commit", delta_log.read_commit_file)),
            (losses, "open_table", wrapped("open losses", open_table)),
            (losses, "_append", wrapped("append losses", losses._append, changes=True)),
            (process, "_is_alive", lambda node: node.run_id in alive),
            (loaded_intervals, "PLANS_KEPT", PLANS_KEPT),
        ]:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


@contextlib.contextmanager
def serving(host: str, partitions: dict[TopicPartition, MemoryLog]) -> Iterator[None]:
    """Inside, a bootstrap server of that name has these logs."""
    _places[host] = partitions
    try:
        yield
    finally:
        del _places[host]


class MemoryWriter:
    """The writer in place of Spark's, by delta-rs: files first, then one commit with the plan's
    number.
    """

    name = "memory"
    takes = Takes.FILES
    writes_files = True

    def commit(
        self, plan: Plan, rows: Rows, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`."""
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import create_table_with_add_actions

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        properties = CommitProperties(
            custom_metadata={"userMetadata": metadata}, app_transactions=[transaction]
        )
        read = rows.read()
        added = through("write file", lambda: [_write_file(to.path, read)], changes=True)

        def commit() -> None:
            if table is None:
                create_table_with_add_actions(
                    to.path,
                    Schema.from_arrow(_SCHEMA),
                    added,
                    mode="error",
                    commit_properties=properties,
                )
            else:
                table.create_write_transaction(
                    added, "append", table.schema(), commit_properties=properties
                )

        through("commit to the table", commit, changes=True)


def _write_file(path: str, rows: pyarrow.Table) -> Any:
    from deltalake.transaction import AddAction

    name = f"{uuid.uuid4()}.parquet"
    file = Path(path, name)
    pyarrow.parquet.write_table(rows, file)
    return AddAction(
        name,
        file.stat().st_size,
        {},
        int(time.time() * 1000),
        True,
        json.dumps({"numRecords": rows.num_rows}),
    )


def _gaps(r: OffsetRange, found: Sequence[int]) -> tuple[tuple[int, int], ...]:
    gaps, expected = [], r.from_offset
    for offset in [*found, r.until_offset]:
        if offset > expected:
            gaps.append((expected, offset))
        expected = offset + 1
    return tuple(gaps)
