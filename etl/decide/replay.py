"""Which offsets does a replay read again, and what does it reject?

Lives here: requested partitions and offsets, their rejections, the plan of a replay, whether the
ledger still has it, the plan that replaces one that is given up.
Not here: order of steps (etl/run/replay.py), replacing the rows (etl/io/delta).

A replay removes the rows of an interval and writes the current records, in one commit. So it leaves
out rows that it could not restore or that this pipeline did not load:

    offsets of the interval            decision
    --------------------------------   -------------------------------------------------------------
    loaded and retained                read again
    below the log start                DataLoss; rows kept with `--only-retained`
    not loaded, or skipped             SettingsError: a run or a backfill loads them; by time, left
                                       out from the loaded-until offset on
    of another incarnation             SettingsError: other records have these offsets now

Loaded-until and committed offsets do not change.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.loaded_intervals import first_gap
from etl.decide.partition_owners import owned_error
from etl.decide.plan import shape_of_rows
from etl.decide.recreated_or_truncated import record_epochs, reject_recreated_or_truncated
from etl.decide.table_changes import table_to_record
from etl.decide.tasks import boundaries_of, split_ranges
from etl.errors import BrokerUnreachable, DataLoss, NeedsDecision, SettingsError
from etl.model.partitions import NOTHING_COMMITTED, Named, TopicPartition, is_named, select_keys
from etl.model.plans import (
    Losses,
    OffsetRange,
    Plan,
    PlanKind,
    PlannedCommit,
    PlannedRequest,
    PlanOrigin,
    ReadByOthers,
)
from etl.model.snapshot import LoadedIntervals, Snapshot, UpToDate
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

GIVEN_UP = "the replay was given up, and its rows are as they were"
"""Stored as the reason of the plan that replaces a replay."""

Bound = int | Timestamp
"""A bound of an interval: an offset, or the first record at or after a time."""
OffsetsOfTimes = Mapping[tuple[TopicPartition, int], int]
"""First offset of a partition at or after a time in milliseconds; its end if there is none."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A requested replay."""

    named: tuple[Named, ...]
    """A topic, or partitions of it."""
    from_: Bound
    until: Bound
    only_retained: bool = False
    """Only retained offsets: rows of deleted records stay."""

    def __post_init__(self) -> None:
        if isinstance(self.from_, int) is not isinstance(self.until, int):
            return
        start = _value_of(self.from_)
        end = _value_of(self.until)
        if start >= end:
            message = "The interval runs backwards"
            if start == end:
                message = "The interval is empty"
            raise SettingsError(
                message,
                key="--from",
                action="Pass --from and --until: the first is included, the second is not",
            )

    def covers(self, partition: TopicPartition) -> bool:
        """True if the request includes the partition."""
        return is_named(partition, self.named)

    def offsets_of(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the offsets of the partition that the request names as bounds."""
        if not self.covers(partition):
            return ()
        offsets = [bound for bound in (self.from_, self.until) if isinstance(bound, int)]
        return tuple(offsets)


def _value_of(bound: Bound) -> int:
    """Return the offset or the milliseconds of a bound."""
    if isinstance(bound, int):
        return bound
    return bound.ms


def requested_partitions(
    wanted: ReplayRequest, last: Plan, snapshot: Snapshot
) -> list[TopicPartition]:
    """Return the requested partitions: those that the pipeline knows, all of them readable.

    Raises SettingsError for a name that matches none of them, BrokerUnreachable, Owned.
    """
    for name in wanted.named:
        if not name.covers_any(last.loaded_until):
            known_topics = ", ".join(sorted(last.known_topics)) or "none"
            raise SettingsError(
                f"This pipeline has loaded nothing of {name}",
                key="--partition",
                action=f"Pass TOPIC or TOPIC:PARTITION of its topics: {known_topics}",
            )
    partitions = [partition for partition in sorted(last.loaded_until) if wanted.covers(partition)]
    owned = select_keys(snapshot.owners, set(partitions))
    if owned:
        raise owned_error(owned)
    for partition in partitions:
        if partition not in snapshot.readable:
            if partition not in snapshot.leaderless:
                raise SettingsError(
                    "The partition does not exist, or the conf does not select its topic",
                    key="--partition",
                    **partition.place,
                    action="Check source.topics, and whether the topic was deleted",
                )
            raise BrokerUnreachable(
                f"The partition {partition.unled}", **partition.place, action=partition.held_by
            )
    return partitions


def times_to_look_up(
    wanted: ReplayRequest, partitions: Iterable[TopicPartition]
) -> list[tuple[TopicPartition, int]]:
    """Return the times to look up: partition and milliseconds.

    Raises SettingsError if messages of a partition have no timestamps.
    """
    bounds = [bound.ms for bound in (wanted.from_, wanted.until) if isinstance(bound, Timestamp)]
    moments = []
    for partition in partitions:
        if bounds and partition.is_physical:
            action = (
                "Pass offsets as in the table's column offset: "
                "--from OFFSET --until OFFSET, for one partition each"
            )
            raise SettingsError(
                "Messages of these brokers have no timestamps",
                **partition.place,
                key="--from",
                action=action,
            )
        for moment in bounds:
            moments.append((partition, moment))
    return moments


def requested_intervals(
    wanted: ReplayRequest,
    partitions: Iterable[TopicPartition],
    found: OffsetsOfTimes,
    last: Plan,
    snapshot: Snapshot,
    loaded: LoadedIntervals,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return start and end of each partition that is read again. Raises as the module's table."""
    intervals = {}
    for partition in partitions:
        start = _offset_of(wanted.from_, partition, found)
        end = _offset_of(wanted.until, partition, found)
        if isinstance(wanted.until, Timestamp):
            end = min(end, last.loaded_until[partition])
        log_start = snapshot.readable[partition].log_start_offset
        if wanted.only_retained:
            start = max(start, log_start)
        else:
            _reject_expired(partition, start, log_start, wanted, last, loaded)
        if start < end:
            _reject_unloaded(partition, start, end, last, loaded)
            reject_misaligned_offset(partition, start, snapshot, key="--from")
            reject_misaligned_offset(partition, end, snapshot, key="--until")
            intervals[partition] = start, end
            continue
        is_by_offsets = isinstance(wanted.from_, int) and isinstance(wanted.until, int)
        if is_by_offsets and not wanted.only_retained:
            raise SettingsError(
                "The interval is empty",
                key="--from",
                **partition.place,
                action="Pass --from and --until",
            )
    if not intervals:
        message = "This pipeline has loaded nothing in the interval"
        if wanted.only_retained:
            message = "This pipeline has loaded nothing in the interval that is retained"
        raise SettingsError(
            message,
            key="--from",
            action="Compare --from and --until with the offsets of `etl offsets show CONF`",
        )
    return intervals


def _offset_of(bound: Bound, partition: TopicPartition, found: OffsetsOfTimes) -> int:
    if isinstance(bound, int):
        return bound
    return found[partition, bound.ms]


def _reject_expired(
    partition: TopicPartition,
    start: int,
    log_start: int,
    wanted: ReplayRequest,
    last: Plan,
    loaded: LoadedIntervals,
) -> None:
    """Reject an interval that may include rows of deleted records. Raises DataLoss.

    By time, brokers find only retained records: if the record found is the first retained one, the
    request may mean earlier ones.
    """
    if isinstance(wanted.from_, int):
        expired_from = start
        is_expired = start < log_start
    else:
        loaded_starts = []
        for interval in loaded.intervals.get(partition, ()):
            if interval.incarnation == last.incarnations.get(partition, 0):
                loaded_starts.append(interval.from_offset)
        expired_from = min(loaded_starts, default=log_start)
        is_expired = start <= log_start and expired_from < log_start
    if is_expired:
        message = (
            f"Rows from offset {expired_from} on may be in the interval, and their records are "
            f"gone: the log starts at {log_start}"
        )
        action = (
            "Pass `--only-retained` to replay the retained records and keep the rows before them. "
            "Those rows could not be loaded again"
        )
        raise DataLoss(message, **partition.place, offset=expired_from, action=action)


def _reject_unloaded(
    partition: TopicPartition, start: int, end: int, last: Plan, loaded: LoadedIntervals
) -> None:
    """Reject offsets that were not loaded in the current incarnation. Raises SettingsError."""
    loaded_until = last.loaded_until[partition]
    if end > loaded_until:
        raise SettingsError(
            f"This partition is loaded up to offset {loaded_until}, and the interval ends at {end}",
            key="--until",
            **partition.place,
            action=f"Pass --until {loaded_until}. The next run loads the records from there on",
        )
    incarnation = last.incarnations.get(partition, 0)
    current = []
    earlier = []
    for interval in (*loaded.intervals.get(partition, ()), *loaded.given_up.get(partition, ())):
        offsets = (interval.from_offset, interval.until_offset)
        if interval.incarnation == incarnation:
            current.append(offsets)
        else:
            earlier.append(offsets)
    gap = first_gap(current, start, end)
    if gap is None:
        return
    if any(low < gap[1] and gap[0] < high for low, high in earlier):
        message = (
            f"The rows of offsets {gap[0]} to {gap[1]} are of an earlier incarnation of the "
            "partition, before it was truncated or recreated"
        )
        action = (
            "Pass offsets of the current incarnation. Rows of an earlier one cannot be loaded again"
        )
    else:
        message = f"Offsets {gap[0]} to {gap[1]} of it were never loaded by this pipeline"
        action = "Replay the parts before and after them, each with a command of its own"
        if not incarnation:
            action += f". A backfill loads these offsets: {backfill_command(partition, *gap)}"
            action += _describe_read_by_others(partition, gap, loaded.read_by_others)
    raise SettingsError(message, key="--from", **partition.place, action=action)


def _describe_read_by_others(
    partition: TopicPartition, gap: tuple[int, int], read_by_others: Iterable[ReadByOthers]
) -> str:
    """Return how many offsets of the gap other members of the group read; empty if none."""
    count = 0
    for one in read_by_others:
        if one.partition == partition and not one.incarnation:
            count += max(0, min(gap[1], one.until_offset) - max(gap[0], one.from_offset))
    if not count:
        return ""
    return (
        f". Other members of the group have read {count:,} {partition.unit}s of them, and the "
        "backfill loads these, too"
    )


def replay_command(topic_partition: TopicPartition, start: int, until: int) -> str:
    """Return the command that replays these offsets, for the text of an error."""
    partition = f"{shlex.quote(topic_partition.topic)}:{topic_partition.key}"
    return f"`etl replay CONF -p {partition} --from {start} --until {until} --reason ...`"


def backfill_command(topic_partition: TopicPartition, start: int, until: int) -> str:
    """Return the command that loads these unloaded offsets, for the text of an error."""
    partition = f"{shlex.quote(topic_partition.topic)}:{topic_partition.key}"
    return f"`etl backfills run CONF NAME -p {partition} --from {start} --until {until}`"


def plan_replay(
    state: UpToDate,
    intervals: Mapping[TopicPartition, tuple[int, int]],
    snapshot: Snapshot,
    settings: Settings,
    *,
    reason: str | None,
    now_ms: int,
) -> Plan:
    """Return the plan after the last one, without its id and its count of existing rows.

    Raises NeedsDecision if a partition was recreated or truncated since.
    """
    if snapshot.table is None:
        raise NeedsDecision(
            "There is no table with rows to replace",
            action="Check with `etl run CONF --dry-run`",
        )
    whole_ranges = []
    for partition, (start, end) in sorted(intervals.items()):
        whole_ranges.append(
            OffsetRange(partition, start, end, snapshot.partition(partition).leader)
        )
    ranges = split_ranges(
        whole_ranges,
        snapshot.bytes_per_offset,
        settings.limits.target_task_bytes,
        snapshot.parallelism,
        boundaries_of(snapshot.readable),
    )
    plan = plan_that_moves_nothing(state, snapshot, settings, reason=reason, now_ms=now_ms)
    return replace(plan, kind=PlanKind.REPLAY, ranges=ranges)


def plan_that_moves_nothing(
    state: UpToDate, snapshot: Snapshot, settings: Settings, *, reason: str | None, now_ms: int
) -> Plan:
    """Return the plan after the last one without kind, ranges and id: it keeps all positions, and
    carries the committed offsets that the next plan compares.

    Raises NeedsDecision if a partition was recreated, PartitionTruncated.
    """
    last = state.last
    checked_until = {}
    for partition, loaded_until in last.loaded_until.items():
        checked_until[partition] = min(loaded_until, state.positions.get(partition, loaded_until))
    reject_recreated_or_truncated(last, snapshot, checked_until)
    # The next run decides about moved offsets, as it would have without this plan.
    moved = {*state.followed, *state.not_followed, *state.passed}
    epochs = record_epochs(last, snapshot.ledger.applied)
    partitions = {}
    for partition, planned in last.partitions.items():
        if partition in moved:
            expected = last.committed_after(partition)
        else:
            expected = snapshot.committed.get(partition, NOTHING_COMMITTED)
        log_start = None
        if partition in snapshot.readable:
            log_start = planned.log_start
        partitions[partition] = replace(
            planned,
            expected_commit=expected,
            log_start=log_start,
            record_epochs=epochs.get(partition, ()),
        )
    return replace(
        last,
        number=last.number + 1,
        origin=PlanOrigin(
            last.origin.pipeline_id,
            now_ms,
            previous=last.id,
            reason=reason,
            time_zone=snapshot.time_zone,
        ),
        shape=shape_of_rows(settings),
        ranges=(),
        partitions=partitions,
        table=table_to_record(snapshot.table, last.table.rows_before),
        request=PlannedRequest(),
        id="",
        losses=Losses(),
        inherits=None,
        payload=None,
        is_closing=False,
        commit=PlannedCommit(storage=snapshot.group.storage),
    )


def is_executed(replay: Plan, stored: Sequence[Plan]) -> bool:
    """True if the ledger has the replay that a command stored, False if it never stored it.

    `stored`: the plans of the ledger, ascending; none of them waits to be executed. Raises
    NeedsDecision if the number has another plan: an operator's decision is not undone.
    """
    by_number = {plan.number: plan for plan in stored}
    current = by_number.get(replay.number)
    if current is None:
        if not stored or stored[-1].number < replay.number:
            return False
        raise NeedsDecision(
            f"Plan {replay.number} is no longer stored, so whether the replay was executed is "
            "unknown",
            action="Check with DESCRIBE HISTORY whether the table has a commit of plan "
            f"{replay.number} with kind replay. If not, run the replay again",
        )
    if current.id == replay.id:
        return True
    if current.id == replay.origin.supersedes:
        return False  # the stored plan of a backfill, whose number the replay would have taken
    raise NeedsDecision(
        f"Plan {replay.number} ({replay.id}) was not executed: it was superseded by another plan "
        f"of the same number ({current.id}): {current.origin.reason}",
        action=f"Check with `etl plans show CONF {replay.number}`, and run the replay again if it "
        "is still wanted",
    )


def give_up_replay(plan: Plan, why: str, *, now_ms: int) -> Plan:
    """Return the plan that replaces a replay which cannot restore all of its rows, without its id.

    It reads nothing and moves no offset.
    """
    return replace(
        plan,
        kind=PlanKind.START,
        ranges=(),
        payload=None,
        origin=replace(
            plan.origin, created_at_ms=now_ms, supersedes=plan.id, reason=f"{GIVEN_UP}: {why}"
        ),
        id="",
    )
