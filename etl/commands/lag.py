"""How far has each partition been loaded, by offset and by time, and what is missing?

Lives here: `etl offsets show`, `etl lag`, `etl topics ready-to-load` (can a run up to a time
begin?) and `etl table gaps` (which time intervals are incomplete in the table?). None of them
stores, moves or locks anything. Not here: computing the lag of a snapshot (etl/decide/lag.py,
etl/report/lag.py), computing gaps (etl/decide/loaded_intervals.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from etl.audit.compare_rows import AuditedPartition, Expected
from etl.commands.expected_rows import expected_of_all, loaded_plans, read_both_ledgers
from etl.decide.lag import Progress, lag_of, progress_of, progress_of_table, unread_starts
from etl.decide.loaded_intervals import ExplainedOffsets, TableGap, explain_missing, find_gaps
from etl.decide.plan import stops_without_leader
from etl.decide.reconcile import compare, naming_table, reject_missing_topics, where_we_stand
from etl.decide.run_requests import TimeInterval, incomplete_partitions, split_into_intervals
from etl.decide.set_offsets import pauses_of_partitions
from etl.decide.table_changes import REMOVED_ROWS, reject_changes_by_others
from etl.errors import (
    BrokerUnreachable,
    EtlError,
    LedgersDisagree,
    NeedsDecision,
    NotReady,
    NotYetReadable,
    OffsetMoved,
    SettingsError,
)
from etl.io.brokers.cluster_requests import Cluster, chosen_topics, names_of_topics
from etl.model.partitions import NOTHING_COMMITTED, OldestRecord, TopicPartition, in_order
from etl.model.plans import Loss
from etl.model.snapshot import ForeignCommit, Snapshot, Table
from etl.report.describe import (
    counted,
    describe_partition_offsets,
    existing_partitions,
    format_time,
)
from etl.report.lag import (
    Lags,
    PausedPartitions,
    describe_pause,
    lags_at,
    paused_partitions,
)
from etl.report.verify import foreign_commit_as_json
from etl.run.discovery import Discovery
from etl.run.live_services import LiveServices
from etl.run.open_services import open_discovery, open_services
from etl.run.run_context import ALONE
from etl.run.service_interfaces import now_ms
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets of each partition, and why loaded-until offsets are unknown."""

    rows: list[dict[str, Any]]
    refusal: NeedsDecision | None = None
    """The error of a run if a loaded-until offset or lag is unknown. A moved offset is none.

    If the ledgers disagree, no row has a loaded-until offset or a lag. Recreated and truncated
    partitions have no lag.
    """


def offsets(settings: Settings) -> Offsets:
    """Return committed offset, loaded-until offset and lag of each partition."""
    with open_services(settings, ALONE) as services:
        return offsets_of(services.observe(), settings)


def offsets_of(snapshot: Snapshot, settings: Settings) -> Offsets:
    """Return the offsets of a snapshot."""
    so_far, refusal = progress_or_refusal(snapshot, settings)
    partitions = sorted(existing_partitions(snapshot))
    paused = pauses_of_partitions(partitions, snapshot.ledger.pauses)
    rows = []
    for partition in partitions:
        row = {
            **partition.place,
            **describe_partition_offsets(snapshot, partition),
            **_boundaries(snapshot, partition),
            "committed": snapshot.committed.get(partition, NOTHING_COMMITTED).offset,
            "loaded_until": None,
            "lag": None,
            "paused": describe_pause(paused.get(partition)),
        }
        if so_far:
            row["loaded_until"] = so_far.positions.get(partition)
            row["lag"] = lag_of(partition, snapshot, so_far, settings)
        rows.append(row)
    return Offsets(rows, refusal)


def progress_or_refusal(
    snapshot: Snapshot, settings: Settings
) -> tuple[Progress | None, NeedsDecision | None]:
    """Return the progress of the pipeline, and the error of a run if some of it is unknown.

    The progress is None if the ledgers disagree. Raises SettingsError for a conf with another
    broker type than the newest plan, and NeedsDecision for commits that a run rejects.
    """
    try:
        with naming_table(settings):
            state = compare(snapshot.ledger, snapshot.table, settings.table.place)
    except LedgersDisagree as error:
        return None, error
    # on these errors a run makes no plan, and the content of the table is known nevertheless
    with contextlib.suppress(LedgersDisagree, OffsetMoved):
        state = where_we_stand(snapshot, settings)
    so_far = progress_of(state, snapshot)
    return so_far, so_far.refusal


def _boundaries(snapshot: Snapshot, partition: TopicPartition) -> dict[str, list[int]]:
    """Return where a range of a Jafka partition may end: segment starts and the readable end."""
    partition_offsets = snapshot.readable.get(partition)
    if partition_offsets is None or partition_offsets.boundaries is None:
        return {}
    return {"boundaries": list(partition_offsets.boundaries)}


def lag(settings: Settings) -> Lags:
    """Return the table's lag. Raises what observing raises."""
    with open_services(settings, ALONE) as services:
        snapshot = services.observe()
        unread = first_unread_offsets(snapshot, settings)
        oldest = Discovery(settings, services.zookeeper).oldest_unread(snapshot, unread)
        return lags_of(snapshot, settings, oldest, now_ms=now_ms())


def first_unread_offsets(snapshot: Snapshot, settings: Settings) -> dict[TopicPartition, int]:
    """Return the first unread offset of each partition that lags."""
    so_far, _ = progress_or_refusal(snapshot, settings)
    return unread_starts(snapshot.readable, snapshot, so_far, settings)


def lags_of(
    snapshot: Snapshot,
    settings: Settings,
    oldest: Mapping[TopicPartition, OldestRecord],
    *,
    now_ms: int,
) -> Lags:
    """Return the lag of a snapshot; `oldest`: the oldest unread records."""
    so_far, refusal = progress_or_refusal(snapshot, settings)
    return lags_at(snapshot, so_far, settings, oldest, now_ms=now_ms, refusal=refusal)


# -- etl topics ready-to-load


_NAMED = 5


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """Whether partitions have a record at or after a time; times are ms since 1970."""

    until_ms: int
    at_ms: int
    grace_s: float
    partitions: int
    incomplete: tuple[TopicPartition, ...]
    unled: tuple[TopicPartition, ...] = ()
    """The incomplete partitions that have no leader."""
    paused: tuple[TopicPartition, ...] = ()
    """Paused partitions: no run reads them, so they are neither waited for nor complete."""

    @property
    def summary(self) -> str:
        """Return a sentence on all partitions."""
        if not self.paused:
            return self._summary_of_read
        return (
            f"{self._summary_of_read}; {counted(len(self.paused), 'partition')} more paused, "
            f"{self.paused[0]} first, which no run reads: "
            "`etl lag CONF` shows when their unread records expire"
        )

    @property
    def _summary_of_read(self) -> str:
        """Return a sentence on the partitions that are not paused."""
        partitions = counted(self.partitions, "partition")
        if not self.incomplete:
            return f"{partitions} complete up to {format_time(self.until_ms)}"
        named = ", ".join(
            f"{partition.topic} {partition.key}" for partition in self.incomplete[:_NAMED]
        )
        if len(self.incomplete) > _NAMED:
            named += f" and {len(self.incomplete) - _NAMED:,} more"
        return (
            f"{len(self.incomplete):,} of {partitions} not complete up to "
            f"{format_time(self.until_ms)}: {named}"
        )

    @property
    def refusal(self) -> EtlError | None:
        """Return the error of the command; None if all are complete."""
        if not self.incomplete:
            return None
        if self.unled:
            partition = self.unled[0]
            message = f"{self.summary}; {partition.topic} {partition.key} {partition.unled}"
            action = (
                f"{partition.held_by}, or set source.on_no_leader: skip to load the other "
                "partitions"
            )
            return NotYetReadable(message, action=action)
        action = "Run this command again later"
        complete_at = format_time(self.until_ms + round(self.grace_s * 1000))
        if complete_at is not None:
            action += f". At {complete_at} all of them count as complete"
        return NotReady(self.summary, action=action)

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl topics ready-to-load`."""
        return {
            "until_at": format_time(self.until_ms),
            "at": format_time(self.at_ms),
            "assume_ready_after_s": self.grace_s,
            "ready": not self.incomplete,
            "partitions": self.partitions,
            "incomplete": [partition.place for partition in self.incomplete],
            "paused": [partition.place for partition in self.paused],
            "message": self.summary,
        }


def check_topics_ready(settings: Settings, *, until_ms: int, grace_s: float) -> TopicsReady:
    """Ask the leaders of all partitions but paused ones for a record at or after a time.

    Partitions of brokers that find no times count as complete by the clock alone. Raises what
    brokers raise, and SettingsError for partitions that cannot be searched by time, as `moments`.
    """
    source = settings.source
    with open_discovery(settings) as discovery, discovery.open_cluster() as cluster:
        metadata = discovery.describe(cluster, (), discovery.known_topics())
        topics = chosen_topics(metadata, source.topic_filter).topics
        reject_missing_topics(settings, topics, lambda: names_of_topics(cluster))
        leaders = {}
        for topic in topics.values():
            for partition in topic.partitions:
                leaders[partition.partition] = partition.leader
        paused = pauses_of_partitions(leaders.keys(), discovery.pauses())
        partitions = [
            topic_partition for topic_partition in leaders if topic_partition not in paused
        ]
        unled = []
        for topic_partition in in_order(partitions):
            if leaders[topic_partition] is None and stops_without_leader(topic_partition, settings):
                unled.append(topic_partition)
        now = now_ms()
        if not source.finds_times or now >= until_ms + grace_s * 1000:
            first_at = dict[TopicPartition, int | None].fromkeys(partitions)
        else:
            first_at = cluster.first_at(
                dict.fromkeys(partitions, until_ms), isolation=source.isolation_level
            )
    incomplete = incomplete_partitions(
        first_at, until_ms=until_ms, now_ms=now, grace_s=grace_s, unled=unled
    )
    return TopicsReady(
        until_ms, now, grace_s, len(partitions), incomplete, tuple(unled), tuple(in_order(paused))
    )


# -- etl table gaps


PARTITIONS_NAMED = 20
"""How many partitions of an interval the document names."""


@dataclass(frozen=True, slots=True)
class TableGaps:
    """The intervals that the table does not fully hold."""

    requested: int
    """Number of intervals."""
    incomplete: tuple[TableGap, ...]
    excused: ExplainedOffsets
    unled: tuple[TopicPartition, ...] = ()
    """Partitions without a leader: their offsets at a time are unknown."""
    waiting: tuple[TableGap, ...] = ()
    """Offsets of the intervals in paused partitions, which the table does not hold."""
    resting: tuple[PausedPartitions, ...] = ()
    """Paused partitions."""
    removals: tuple[ForeignCommit, ...] = ()
    """Commits of other writers that removed rows, as policy or an operator allows."""

    @property
    def summary(self) -> str:
        """Return a sentence, with what it does not cover."""
        number = counted(self.requested, "interval")
        if self.incomplete:
            sentence = f"{len(self.incomplete):,} of {number} not fully in the table"
        else:
            partitions = "the partitions"
            if self.unled:
                partitions += " with a leader"
            who = "plans loaded" if self.removals else "the table has"
            sentence = f"{number}: {who} every record of them that {partitions} hold"
        if self.excused.let_go:
            lost = counted(self.excused.let_go, "offset")
            sentence += f", except {lost} that plans record as lost or given up"
        if self.excused.before_start:
            before = counted(self.excused.before_start, "offset")
            sentence += (
                f"; not counted: {before} before the start of this pipeline, "
                "or before its new start after a truncation"
            )
        if self.excused.read_by_others:
            by_others = counted(self.excused.read_by_others, "offset")
            sentence += f"; other members of the group read {by_others} more"
        if self.waiting:
            waiting = counted(sum(gap.missing for gap in self.waiting), "offset")
            sentence += (
                f"; {waiting} more of {counted(len(self.waiting), 'interval')} wait in paused "
                "partitions: "
            )
            sentence += "; ".join(pause.summary for pause in self.resting)
        if self.removals:
            first = self.removals[0]
            commits = counted(len(self.removals), "commit")
            sentence += (
                f"; {commits} of other writers removed rows (first: {first.operation} at version "
                f"{first.delta_version}): `etl verify CONF` counts what is missing now"
            )
        if self.unled:
            sentence += f"; {self._leaderless}, so the offsets at these times are unknown"
        return sentence

    @property
    def _leaderless(self) -> str:
        if len(self.unled) == 1:
            return f"{self.unled[0]} has no leader"
        return f"{self.unled[0]} and {len(self.unled) - 1:,} more partitions have no leader"

    @property
    def refusal(self) -> EtlError | None:
        """Return the error of the command; None if all intervals are loaded and known."""
        if self.unled:
            first = self.unled[0]
            action = f"{first.held_by}, then run this command again"
            return BrokerUnreachable(self.summary, **first.place, action=action)
        if self.incomplete:
            action = "Run `etl run CONF`, which loads the missing offsets"
            return NotReady(self.summary, action=action)
        return None

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl table gaps`, with the first partitions of each interval."""
        return {
            "intervals": self.requested,
            "message": self.summary,
            "let_go": self.excused.let_go,
            "before_start": self.excused.before_start,
            "read_by_others": self.excused.read_by_others,
            "rows_removed_by": [foreign_commit_as_json(commit) for commit in self.removals],
            "without_leader": [partition.place for partition in self.unled],
            "paused": [pause.as_json() for pause in self.resting],
            "incomplete": [_gap_as_json(gap) for gap in self.incomplete],
            "waiting_in_paused": [_gap_as_json(gap) for gap in self.waiting],
        }


def _gap_as_json(gap: TableGap) -> dict[str, Any]:
    partitions = []
    for missing in gap.partitions[:PARTITIONS_NAMED]:
        described = {
            **missing.partition.place,
            "from": missing.from_offset,
            "until": missing.until_offset,
            "missing": missing.count,
            "gone": missing.gone,
        }
        partitions.append(described)
    return {
        **gap.interval.as_json(),
        "missing": gap.missing,
        "gone": gap.gone,
        "partitions": len(gap.partitions),
        "logs": partitions,
    }


def find_table_gaps(settings: Settings, whole: TimeInterval, every: timedelta) -> TableGaps:
    """Compare the offsets at each time with the loaded offsets of the ledger.

    Raises SettingsError for brokers that find no times and for too many intervals,
    LedgersDisagree if the table lacks plans of the ledger or others removed rows that nobody
    accepted, and what reading ledgers and brokers raises.
    """
    if not settings.source.finds_times:
        key = "source.broker_type" if settings.source.is_physical else "source.broker_version"
        raise SettingsError(
            "These brokers cannot find the record of a time, so the intervals are unknown",
            key=key,
            action="Run `etl verify CONF` and `etl lag CONF`, which compare offsets",
        )
    requested = list(split_into_intervals(whole, every))
    with open_services(settings, ALONE) as services:
        snapshot = services.observe()
        with naming_table(settings):
            compare(snapshot.ledger, snapshot.table, settings.table.place)
            reject_changes_by_others(
                snapshot.table, snapshot.ledger.acknowledged, settings.table.on_rows_removed
            )
        removals = _removals(services, snapshot.table)
        so_far = progress_of_table(snapshot, settings)
        of_ledger = _ledger_offsets(services)
        with Discovery(settings, services.zookeeper).open_cluster() as cluster:
            bounds = _bounds(cluster, list(snapshot.readable), requested)

    newest = snapshot.ledger.newest
    in_table = {}
    lost = {}
    read_by_others = {}
    begins: dict[TopicPartition, int] = {}
    accounted_for = {}
    for partition in bounds:
        incarnation = newest.incarnations.get(partition, 0) if newest else 0
        known = of_ledger.get(AuditedPartition(partition, incarnation), _NO_OFFSETS)
        in_table[partition] = known.in_table
        lost[partition] = known.lost
        read_by_others[partition] = known.read_by_others
        of_plans = [*known.in_table, *known.lost, *known.read_by_others]
        if newest and partition in newest.loaded_until:
            first_loaded = [start for start, _ in of_plans]
            begins[partition] = min(first_loaded, default=newest.loaded_until[partition])
        accounted_for[partition] = [*of_plans, (0, begins.get(partition, 0))]

    paused = pauses_of_partitions(
        (*snapshot.readable, *snapshot.leaderless), snapshot.ledger.pauses
    )
    without_bounds = snapshot.readable.keys() - bounds.keys()
    unled = in_order({*snapshot.leaderless, *without_bounds} - paused.keys())
    bounds_of_read = {}
    bounds_of_paused = {}
    for partition, found in bounds.items():
        if partition in paused:
            bounds_of_paused[partition] = found
        else:
            bounds_of_read[partition] = found
    starts = {
        partition: partition_offsets.log_start_offset
        for partition, partition_offsets in snapshot.readable.items()
    }
    return TableGaps(
        len(requested),
        tuple(find_gaps(requested, bounds_of_read, accounted_for, starts)),
        explain_missing(bounds, in_table, lost, begins, read_by_others),
        tuple(unled),
        tuple(find_gaps(requested, bounds_of_paused, accounted_for, starts)),
        paused_partitions(snapshot, so_far, settings, now_ms=now_ms()),
        removals,
    )


def _removals(services: LiveServices, table: Table | None) -> tuple[ForeignCommit, ...]:
    """Return the permitted commits of others that removed rows, noted by a run or not yet."""
    removals = list(services.ledger.read_loaded_intervals().removals)
    for commit in table.foreign if table else ():
        if commit.why == REMOVED_ROWS and commit.as_noted not in removals:
            removals.append(commit)
    return tuple(removals)


def _bounds(
    cluster: Cluster, partitions: Sequence[TopicPartition], requested: Sequence[TimeInterval]
) -> dict[TopicPartition, list[int]]:
    """Return the offset at each bound of the intervals, for partitions with a leader."""
    times = [requested[0].start_ms, *(interval.end_ms for interval in requested)]
    answers = [cluster.offsets_at(dict.fromkeys(partitions, when)) for when in times]
    bounds = {}
    for partition in partitions:
        if all(partition in answer for answer in answers):
            bounds[partition] = [answer[partition] for answer in answers]
    return bounds


class _LedgerOffsets(NamedTuple):
    """The offsets [from, until) of one incarnation of a partition, by the ledger."""

    in_table: list[tuple[int, int]]
    lost: list[tuple[int, int]]
    """Lost or given up. The table may hold rows of the latter: loading them again may double rows.
    """
    read_by_others: list[tuple[int, int]]
    """Other members of the group read them."""


_NO_OFFSETS = _LedgerOffsets([], [], [])


def _ledger_offsets(services: LiveServices) -> dict[AuditedPartition, _LedgerOffsets]:
    ledgers = read_both_ledgers(services)
    if ledgers.table is None:
        return {}
    loaded, led = loaded_plans(services, ledgers, ledgers.table)
    of_all = expected_of_all(services, ledgers, ledgers.table, loaded, led)
    offsets = {}
    for audited, found in of_all.rows.items():
        offsets[audited] = _offsets(found, of_all.losses.get(audited, ()))
    return offsets


def _offsets(found: Expected, losses: Sequence[Loss] | set[Loss]) -> _LedgerOffsets:
    in_table = [
        *((r.from_offset, r.until_offset) for r, _ in found.applied),
        *((interval.from_offset, interval.until_offset) for interval in found.loaded),
    ]
    lost = [
        *((interval.from_offset, interval.until_offset) for interval in found.given_up),
        *((r.from_offset, r.until_offset) for r, _ in found.elsewhere),
        *((loss.from_offset, loss.until_offset) for loss in losses),
    ]
    return _LedgerOffsets(in_table, sorted(lost), list(found.read_by_others))
