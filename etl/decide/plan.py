"""Which offsets does the next plan hold, in which tasks, and is it read without Spark?

Lives here: the end of each range within the caps; the policy for expired offsets; the settings
that change the rows of a plan; leaders and tasks of a plan; when a plan is read without Spark or
with a short-lived JVM.

Not here: start offsets (etl/decide/offsets.py), splitting ranges (etl/decide/tasks.py), stored
plans that cannot be finished (etl/decide/plan_replacement.py), table features
(etl/io/delta/table_shape.py).
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import reject_misaligned_offsets
from etl.decide.lag import find_expiring
from etl.decide.loaded_intervals import subtract_intervals
from etl.decide.member_offsets import read_by_others
from etl.decide.offsets import known_topics, pending_partitions, start_of
from etl.decide.recreated_or_truncated import (
    creations_to_record,
    fingerprints_to_record,
    record_epochs,
    reject_recreated_or_truncated,
    topic_ids_to_record,
    unchanged_until,
)
from etl.decide.run_requests import (
    NO_REQUEST,
    PlanRequest,
    left_of_key,
    plan_request,
)
from etl.decide.table_changes import table_to_record
from etl.decide.table_rules import NEVER_NULL, incarnations_begun, rows_before
from etl.decide.tasks import (
    NONE_KNOWN,
    Boundaries,
    boundaries_of,
    bytes_of,
    cost_of,
    end_at_or_above,
    ends_between,
    pack_tasks,
    split_ranges,
)
from etl.errors import BadOffset, BrokerUnreachable, DataLoss, EtlError, NotYetReadable
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Isolation,
    Lineage,
    TopicPartition,
    select_keys,
)
from etl.model.plans import (
    Loss,
    Losses,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
    PlannedCommit,
    PlannedPartition,
    PlannedRequest,
    PlanOrigin,
    Predecessor,
    topic_identities,
)
from etl.model.snapshot import FirstRun, Snapshot, UpToDate
from etl.settings.choices import OnDataLoss, OnNoLeader
from etl.settings.sections import LimitsSettings, Settings, TransformSettings

Sizes = Sequence[int] | None
"""Numbers of offsets of a partition that a plan may read, ascending; None: any number."""


def divide_caps(
    partitions: Mapping[TopicPartition, tuple[int, int]],
    bytes_per_offset: Mapping[TopicPartition, float],
    limits: LimitsSettings,
    turn: int,
    boundaries: Boundaries = NONE_KNOWN,
) -> dict[TopicPartition, int]:
    """Return the end offset of each partition, given its (start, end).

    Both caps are divided evenly: each partition gets the same number, what a short one leaves goes
    to the others, and the remainder is given one offset at a time. The first partition with unread
    records, another one each `turn`, gets one offset however small the cap is, so that none
    starves; only thus a byte cap can be exceeded, by one large record. A Jafka partition is read up
    to a boundary; the one that has its turn reads at least up to its first boundary.
    """
    if limits.max_records_per_plan is None and limits.max_bytes_per_plan is None:
        return {partition: end for partition, (_, end) in partitions.items()}
    order = sorted(partitions)
    start = 0
    if order:
        start = turn % len(order)
    order = order[start:] + order[:start]
    wanted = {partition: partitions[partition][1] - partitions[partition][0] for partition in order}
    sizes = {
        partition: _sizes(partition, *partitions[partition], boundaries) for partition in order
    }
    if limits.max_records_per_plan is not None:
        wanted = _divide(wanted, sizes, dict.fromkeys(order, 1.0), limits.max_records_per_plan)
    if limits.max_bytes_per_plan is not None:
        weights = {partition: cost_of(partition, bytes_per_offset) for partition in order}
        wanted = _divide(wanted, sizes, weights, limits.max_bytes_per_plan)
    return {
        partition: partitions[partition][0] + wanted[partition] for partition in sorted(partitions)
    }


def _sizes(partition: TopicPartition, start: int, end: int, boundaries: Boundaries) -> Sizes:
    ends = ends_between(partition, start, end, boundaries)
    if ends is None:
        return None
    return [boundary - start for boundary in ends]


def _divide(
    wanted: Mapping[TopicPartition, int],
    sizes: Mapping[TopicPartition, Sizes],
    weights: Mapping[TopicPartition, float],
    budget: float,
) -> dict[TopicPartition, int]:
    """Divide `budget` evenly; return the number of offsets of each partition, up to `wanted`."""
    readable = [partition for partition, want in wanted.items() if want]
    if not readable:
        return dict(wanted)
    first = readable[0]
    # The partition that has its turn gets its smallest size before all others, even if that alone
    # exceeds the cap: otherwise it would never advance.
    least = dict.fromkeys(wanted, 0) | {first: _next(0, sizes[first])}
    left = max(0.0, budget - least[first] * weights[first])
    costs = [(want - least[partition]) * weights[partition] for partition, want in wanted.items()]
    level = _level(costs, left)
    given = {}
    given_costs = []
    for partition, want in wanted.items():
        size = min(want, least[partition] + int(level / weights[partition]))
        given[partition] = _at_most(size, sizes[partition])
        given_costs.append((given[partition] - least[partition]) * weights[partition])
    left -= sum(given_costs)

    # The sort is stable: `first` comes last, since it has its additional offset already.
    for partition in sorted(wanted, key=lambda partition: partition == first):
        room = int(left / weights[partition])
        if sizes[partition] is None:
            room = min(1, room)
        more = (
            _at_most(min(wanted[partition], given[partition] + room), sizes[partition])
            - given[partition]
        )
        given[partition] += more
        left -= more * weights[partition]
    return given


def _next(size: int, sizes: Sizes) -> int:
    """Return the smallest size above this one."""
    if sizes is None:
        return size + 1
    return sizes[bisect_right(sizes, size)]


def _at_most(size: int, sizes: Sizes) -> int:
    """Return the largest size up to this one; 0 if there is none."""
    if sizes is None:
        return size
    index = bisect_right(sizes, size)
    if index == 0:
        return 0
    return sizes[index - 1]


def _level(amounts: Iterable[float], budget: float) -> float:
    """Return the level at which sum(min(amount, level)) reaches `budget`.

    If all amounts fit, the largest amount.
    """
    left = float(budget)
    level = 0.0
    rising = sorted(amounts)
    for i, amount in enumerate(rising):
        even_part = left / (len(rising) - i)
        if amount > even_part:
            return even_part
        level = amount
        left -= amount
    return level


KEYS_THAT_SHAPE_ROWS = (
    "source.isolation_level",
    "transform.dataframe",
    "transform.record_batch",
    "table.partition_by",
)
"""The keys of `shape_of_rows`, as messages name them."""


def shape_of_rows(settings: Settings) -> str:
    """Return the hash of the settings that shape the rows (`KEYS_THAT_SHAPE_ROWS`)."""
    shaping = [
        settings.source.isolation_level.value,
        settings.transform.dataframe,
        list(settings.table.partition_by),
    ]
    if settings.transform.record_batch is not None:
        shaping.append(settings.transform.record_batch)
    return hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:16]


def may_be_transformed(plan: Plan, settings: Settings) -> bool:
    """True if a transform may have made the plan's rows.

    A plan keeps only a hash of its settings: False if the hash is that of a conf without transform.
    """
    untouched = settings.model_copy(update={"transform": TransformSettings()})
    for isolation_level in Isolation:
        source = settings.source.model_copy(update={"isolation_level": isolation_level})
        if plan.shape == shape_of_rows(untouched.model_copy(update={"source": source})):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Reading:
    """Readable offsets of a partition: after the offsets that policy skips, up to the end."""

    position: int
    end_offset: int
    lost: tuple[Loss, ...] = ()


def plan_next(
    snapshot: Snapshot, state: FirstRun | UpToDate, settings: Settings, *, uid: str, now_ms: int
) -> Plan | None:
    """Return the next plan, without its id.

    None if there are no unread records, and no new partitions, pending starts or losses to store.

    Raises DataLoss, BadOffset, NeedsDecision or BrokerUnreachable if policy is `fail`,
    NotYetReadable for a start offset in an open transaction, MisalignedOffset for one at which no
    message begins.
    """
    last = None
    known: Mapping[TopicPartition, int] = {}
    known_pending: Collection[TopicPartition] = ()
    number = 1
    if isinstance(state, UpToDate):
        last = state.last
        known = state.positions
        known_pending = last.pending
        number = last.number + 1
        _reject_followed_truncations(state, snapshot)
    asking = plan_request(snapshot.request, last, snapshot)
    plan = plan_from(
        known, last, snapshot, settings, number=number, uid=uid, now_ms=now_ms, asking=asking
    )
    if isinstance(state, UpToDate):
        plan = _following_last(plan, state)
    new_partitions = plan.partitions.keys() - known.keys()
    new_pending = plan.pending.keys() - set(known_pending)
    # A plan without ranges keeps the start of new partitions: otherwise `latest` would start anew
    # at each run.
    if plan.ranges or plan.losses.lost or new_partitions or new_pending:
        return plan
    return None


def _reject_followed_truncations(state: UpToDate, snapshot: Snapshot) -> None:
    """Reject a truncated partition whose offset another client moved, also if it is left out.

    Once the offset is followed, nothing shows that the log below it has other records than those
    that were loaded.
    """
    if state.followed:
        loaded_until = select_keys(state.last.loaded_until, state.followed)
        observed = snapshot.with_offsets_of(state.followed)
        reject_recreated_or_truncated(state.last, observed, loaded_until)


def _following_last(plan: Plan, state: UpToDate) -> Plan:
    """Return the plan with its predecessor, and with the offsets that other clients moved past."""
    moved = []
    for partition, offset in sorted(state.followed.items()):
        incarnation = state.last.incarnations.get(partition, 0)
        loaded_until = state.last.loaded_until[partition]
        moved.append(Loss(partition, loaded_until, offset, LossReason.MOVED, incarnation))
    return replace(
        plan,
        losses=replace(
            plan.losses,
            lost=(*moved, *plan.losses.lost),
            read_by_others=read_by_others(state.last, state.passed),
        ),
        origin=replace(plan.origin, previous=state.last.id),
    )


def plan_from(
    known: Mapping[TopicPartition, int],
    last: Plan | None,
    snapshot: Snapshot,
    settings: Settings,
    *,
    number: int,
    uid: str,
    now_ms: int,
    given_up: Collection[Loss] = (),
    asking: PlanRequest = NO_REQUEST,
) -> Plan:
    """Return a plan that reads known partitions from their loaded-until offsets (`known`), new ones
    from their starts, to their ends or the requested bounds.

    Caps do not end a partition before the offsets of `given_up`, which this plan leaves out and no
    later plan knows. Raises NeedsDecision for a new partition if the table has rows of it already.
    """
    if last:
        reject_recreated_or_truncated(last, snapshot, unchanged_until(last, known))
    reject_leaderless(snapshot.leaderless, settings)

    readings = _readings(known, last, snapshot, settings, asking, given_up)
    is_replacement = last is not None and last.number == number
    begins = _begins(known, readings, given_up)
    reject_misaligned_offsets(begins, snapshot, last, is_left=is_replacement)

    boundaries = boundaries_of(snapshot.readable)
    stops = _stops(readings, snapshot, settings, number, boundaries, given_up)
    ranges = _ranges(readings, stops, snapshot, settings, boundaries)
    positions = {**known, **stops}

    before = rows_before(last, snapshot)
    table = table_to_record(snapshot.table, before)
    kind = PlanKind.START
    if ranges:
        kind = PlanKind.INGEST

    begun = {}
    for partition, reading in readings.items():
        if partition not in known:
            begun[partition] = reading.position
    incarnations = incarnations_begun(before, begun, snapshot)
    topic_ids = snapshot.topic_ids
    old_creations: Mapping[str, str] = {}
    predecessors: tuple[Predecessor, ...] = ()
    if last:
        incarnations = {**last.incarnations, **incarnations}
        topic_ids = {**last.topic_ids, **topic_ids}
        old_creations = last.creation_ids
        predecessors = last.predecessors
    creation_ids = creations_to_record(topic_ids, old_creations, snapshot.creation_ids)

    losses = []
    for reading in readings.values():
        for loss in reading.lost:
            losses.append(replace(loss, incarnation=incarnations.get(loss.partition, 0)))
    present = (*snapshot.readable, *snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    pending = pending_partitions(
        present, positions, last, snapshot.left_out, settings, now_ms=now_ms
    )
    ends = {partition: reading.end_offset for partition, reading in readings.items()}
    return Plan(
        number=number,
        origin=PlanOrigin(uid, now_ms, time_zone=snapshot.time_zone),
        kind=kind,
        cluster=snapshot.cluster,
        shape=shape_of_rows(settings),
        ranges=ranges,
        partitions=_planned_partitions(
            positions,
            last,
            readings,
            snapshot,
            incarnations=incarnations,
            record_epochs=_record_epochs(last, known, readings, snapshot, number),
            topic_ids=topic_ids,
        ),
        topics=topic_identities(topic_ids, creation_ids),
        pending=pending,
        table=table,
        predecessors=predecessors,
        losses=Losses(lost=tuple(losses)),
        commit=PlannedCommit(storage=snapshot.group.storage),
        request=PlannedRequest(
            run_key=asking.run_key,
            bounds=asking.bounds,
            unfinished=left_of_key(asking, ends, stops, positions),
        ),
    )


def _readings(
    known: Mapping[TopicPartition, int],
    last: Plan | None,
    snapshot: Snapshot,
    settings: Settings,
    asking: PlanRequest,
    given_up: Collection[Loss],
) -> dict[TopicPartition, _Reading]:
    """Return what can be read of each partition that has a start, up to the requested bounds."""
    # All starts are decided before any partition is read: errors of starts come first.
    starts = {}
    topics = known_topics(last)
    for partition in sorted(snapshot.readable):
        if partition in known:
            start: int | None = known[partition]
        else:
            start = start_of(partition, snapshot, last, settings, topics)
        if start is not None:
            starts[partition] = start
    readings = {
        partition: reading_of(partition, start, snapshot, settings, given_up)
        for partition, start in starts.items()
    }
    if asking.stops is None:
        return readings
    for partition, reading in readings.items():
        end = asking.until(partition, reading.position, reading.end_offset)
        readings[partition] = replace(reading, end_offset=end)
    return readings


def _begins(
    known: Mapping[TopicPartition, int],
    readings: Mapping[TopicPartition, _Reading],
    given_up: Collection[Loss],
) -> dict[TopicPartition, int]:
    """Return the first offset of each partition, without offsets that the plan leaves out."""
    begins = {**known}
    for partition, reading in readings.items():
        begins[partition] = reading.position
    for skip in given_up:
        if begins.get(skip.partition) == skip.from_offset:
            del begins[skip.partition]
    return begins


def _stops(
    readings: Mapping[TopicPartition, _Reading],
    snapshot: Snapshot,
    settings: Settings,
    number: int,
    boundaries: Boundaries,
    given_up: Collection[Loss],
) -> dict[TopicPartition, int]:
    """Return the end offset of each partition within the caps, not before `given_up`."""
    bounds = {
        partition: (reading.position, reading.end_offset) for partition, reading in readings.items()
    }
    stops = divide_caps(bounds, snapshot.bytes_per_offset, settings.limits, number, boundaries)
    for skip in given_up:
        if skip.partition in stops:
            skipped_until = end_at_or_above(skip.partition, skip.until_offset, boundaries)
            skipped_until = min(skipped_until, readings[skip.partition].end_offset)
            stops[skip.partition] = max(stops[skip.partition], skipped_until)
    return stops


def _ranges(
    readings: Mapping[TopicPartition, _Reading],
    stops: Mapping[TopicPartition, int],
    snapshot: Snapshot,
    settings: Settings,
    boundaries: Boundaries,
) -> tuple[OffsetRange, ...]:
    """Return the ranges of a plan, split to the size of tasks."""
    whole_ranges = []
    for partition, reading in readings.items():
        stop = stops[partition]
        if reading.position < stop:
            leader = snapshot.partition(partition).leader
            whole_ranges.append(OffsetRange(partition, reading.position, stop, leader))
    return split_ranges(
        whole_ranges,
        snapshot.bytes_per_offset,
        settings.limits.target_task_bytes,
        snapshot.parallelism,
        boundaries,
    )


def _planned_partitions(
    positions: Mapping[TopicPartition, int],
    last: Plan | None,
    readings: Collection[TopicPartition],
    snapshot: Snapshot,
    *,
    incarnations: Mapping[TopicPartition, int],
    record_epochs: Mapping[TopicPartition, Lineage],
    topic_ids: Mapping[str, str],
) -> dict[TopicPartition, PlannedPartition]:
    """Return where the pipeline stands in each partition after the plan."""
    planned: Mapping[TopicPartition, PlannedPartition] = {}
    if last:
        planned = last.partitions
    fingerprints = fingerprints_to_record(last, positions, snapshot)
    known_topic_ids = topic_ids_to_record(last, snapshot.readable, positions, topic_ids)
    found = {}
    for partition, loaded_until in positions.items():
        observed = snapshot.partition(partition)
        if partition in readings:
            log_start = snapshot.readable[partition].log_start_offset
            leader_epoch = observed.leader_epoch
        else:
            log_start = None
            leader_epoch = _epoch_of_unread(loaded_until, planned.get(partition))
        found[partition] = PlannedPartition(
            loaded_until,
            observed.committed or NOTHING_COMMITTED,
            incarnations.get(partition, 0),
            log_start,
            leader_epoch,
            record_epochs.get(partition, ()),
            fingerprints.get(partition),
            known_topic_ids.get(partition),
        )
    return found


def _epoch_of_unread(loaded_until: int, before: PlannedPartition | None) -> int | None:
    """Return the leader epoch of the end of a partition that the plan does not read.

    The last plan's need not reach an offset that is larger now.
    """
    if before is None or loaded_until > before.loaded_until:
        return None
    return before.leader_epoch


def _record_epochs(
    last: Plan | None,
    known: Mapping[TopicPartition, int],
    readings: Mapping[TopicPartition, _Reading],
    snapshot: Snapshot,
    number: int,
) -> dict[TopicPartition, Lineage]:
    """Return the epochs of the record batches before this plan.

    A plan either replaces the last plan or follows it. A partition that skips offsets has no epoch,
    since the skipped records were not read.
    """
    if last is None:
        return {}
    if last.number == number:
        epochs = last.record_epochs
        reached = known
    else:
        epochs = record_epochs(last, snapshot.ledger.applied)
        reached = last.loaded_until
    kept = {}
    for partition, epoch in epochs.items():
        if partition in readings:
            begin = readings[partition].position
        else:
            begin = known[partition]
        if begin == reached[partition]:
            kept[partition] = epoch
    return kept


def reading_of(
    partition: TopicPartition,
    wanted: int,
    snapshot: Snapshot,
    settings: Settings,
    given_up: Collection[Loss] = (),
) -> _Reading:
    """Return the readable offsets of a partition from `wanted` on.

    Raises NotYetReadable, BadOffset, and DataLoss if policy is `fail` and expired offsets are not
    `given_up` already, as by an operator.
    """
    offsets = snapshot.readable[partition]
    if offsets.end_offset < wanted <= offsets.end_offset + offsets.held_back:
        message = (
            f"The start offset is above the last stable offset {offsets.end_offset}: "
            "a transaction is open there"
        )
        action = (
            "Find the producer that left the transaction open "
            "(kafka-transactions.sh find-hanging). Once the transaction ends, a retry continues"
        )
        raise NotYetReadable(message, **partition.place, offset=wanted, action=action)
    if wanted > offsets.end_offset:
        raise _above_the_end(partition, wanted, snapshot)
    if wanted >= offsets.log_start_offset:
        return _Reading(wanted, offsets.end_offset)
    decided = []
    for loss in given_up:
        if loss.partition == partition:
            decided.append((loss.from_offset, loss.until_offset))
    undecided = subtract_intervals((wanted, offsets.log_start_offset), decided)
    if undecided and settings.source.on_data_loss is OnDataLoss.FAIL:
        wanted = undecided[0][0]
        count = sum(until - start for start, until in undecided)
        message = (
            f"{count:,} {partition.unit}s are gone: wanted {wanted}, "
            f"the log starts at {offsets.log_start_offset}"
        )
        action = (
            "Compare the topic's retention with the interval between runs. "
            "To continue without them, set source.on_data_loss: skip"
        )
        raise DataLoss(message, **partition.place, offset=wanted, action=action)
    loss = Loss(partition, wanted, offsets.log_start_offset, LossReason.EXPIRED)
    return _Reading(offsets.log_start_offset, offsets.end_offset, (loss,))


def _above_the_end(partition: TopicPartition, wanted: int, snapshot: Snapshot) -> EtlError:
    """Return the error for a start offset above the end.

    Truncations are detected earlier: if the offset is not above the loaded-until offset, the leader
    does not serve its last records yet (KIP-207).
    """
    offsets = snapshot.readable[partition]
    newest = snapshot.ledger.newest
    place = {**partition.place, "offset": wanted}
    readable = f"The log can be read from {offsets.log_start_offset} to {offsets.end_offset}"
    loaded_until = None
    if newest:
        loaded_until = newest.loaded_until.get(partition)
    if loaded_until is not None and wanted <= loaded_until:
        message = "The readable end of the log is below the loaded-until offset"
        action = f"Check the partition's leader and open transactions. {readable}"
        return NotYetReadable(message, action=action, **place)
    if loaded_until is None:
        correction = (
            "Set the committed offset to one of these, or remove it: "
            "the conf then decides where the partition starts"
        )
    else:
        correction = f"Set the committed offset back to {loaded_until}, the loaded-until offset"
    message = "The committed offset is above the end of the log"
    action = f"Check which client committed it. {readable}. {correction}"
    return BadOffset(message, action=action, **place)


def stops_without_leader(partition: TopicPartition, settings: Settings) -> bool:
    """True if a run stops for this partition while it has no leader.

    Else a run leaves the partition for a later one: by policy, and always on Jafka.
    """
    return settings.source.on_no_leader is OnNoLeader.FAIL and not partition.is_physical


def reject_leaderless(partitions: Collection[TopicPartition], settings: Settings) -> None:
    """Reject partitions without a leader, if the policy is `fail`. Raises BrokerUnreachable.

    A stored plan that reads such a partition: `plan_replacement`.
    """
    for partition in sorted(partitions):
        if stops_without_leader(partition, settings):
            raise BrokerUnreachable(
                "The partition has no leader",
                **partition.place,
                action="Check the brokers that host its replicas. "
                "To continue without the partition, set source.on_no_leader: skip",
            )


@dataclass(frozen=True, slots=True)
class PlanTasks:
    """Ranges of a plan with their present leaders, and tasks in the order in which they start.

    A task is a tuple of indices of `ranges`.
    """

    ranges: tuple[OffsetRange, ...]
    tasks: tuple[tuple[int, ...], ...]


def tasks_of_plan(
    plan: Plan, snapshot: Snapshot, settings: Settings, *, parallelism: int, now_ms: int
) -> PlanTasks:
    """Return the ranges and tasks by which a run reads the plan.

    `parallelism`: the number of tasks that run at once. The leaders of a stored plan may have
    changed since: they are taken from the snapshot. Ranges that may expire soon are read first.
    """
    ranges = []
    for r in plan.ranges:
        ranges.append(replace(r, leader=snapshot.leaders.get(r.partition, r.leader)))
    urgent = find_expiring(
        ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms
    )
    urgent_partitions = {expiry.partition for expiry in urgent}
    target = settings.limits.target_task_bytes
    tasks = pack_tasks(
        ranges, snapshot.bytes_per_offset, target, parallelism, first=urgent_partitions
    )
    return PlanTasks(tuple(ranges), tasks)


SHORT_RUN_BELOW_BYTES = 64 << 20
"""Up to this size the JVM's first compiler alone reads as fast as both, in a JVM that has just
started (docs/adr/0033).
"""


def is_short(plan: Plan, snapshot: Snapshot, settings: Settings) -> bool:
    """True if the plan and all unread records of its partitions are small, by reported sizes.

    A session outlives its first plan: a large plan may follow a small stored one. False if the conf
    has a transform of DataFrames or compacts, since the size of their work is unknown.
    """
    if settings.transform.dataframe is not None or settings.table.auto_compact_min_files:
        return False
    costs = snapshot.bytes_per_offset
    unread = 0.0
    for partition, offsets in snapshot.readable.items():
        loaded_until = plan.loaded_until.get(partition, offsets.log_start_offset)
        unread += max(0, offsets.end_offset - loaded_until) * cost_of(partition, costs)
    return bytes_of(plan.ranges, costs) + unread < SHORT_RUN_BELOW_BYTES


_OF_NEW_TABLES = "spark.databricks.delta.properties.defaults."
EVENT_DATE = "event_date"
_AS_TEXT = NEVER_NULL | {EVENT_DATE}
"""Columns of the raw table that have one text form for all readers."""

_ARROW_TYPES_AS_TEXT = ("string", "bool", "int8", "int16", "int32", "int64", "date32[day]")
"""Arrow types that have one text form for all readers."""
_MOMENT = "timestamp[us, tz=UTC]"


def is_small(
    plan: Plan, bytes_per_offset: Mapping[TopicPartition, float], settings: Settings
) -> bool:
    """True if processes of the driver's machine can read the plan, by reported sizes."""
    limit = settings.limits.local_below_bytes
    return limit > 0 and bytes_of(plan.ranges, bytes_per_offset) < limit


def why_not_arrow(
    settings: Settings, *, is_new: bool, made: Mapping[str, str] | None = None
) -> str | None:
    """Return why tasks cannot write the conf's rows to files without Spark; None if they can.

    `is_new`: the table does not exist yet. `made`: the columns that an Arrow transform makes, each
    with the name of its Arrow type; None without transform.
    """
    if settings.transform.dataframe is not None:
        return "the transform takes a DataFrame"
    for name in settings.table.partition_by:
        if made is None:
            has_one_text = name in _AS_TEXT
        else:
            has_one_text = _has_one_text(name, made)
        if not has_one_text:
            return f"the table is partitioned by {name}"
    if is_new:
        for key in settings.spark:
            if key.startswith(_OF_NEW_TABLES):
                return f"only Spark creates a table with {key}"
    return None


def _has_one_text(name: str, made: Mapping[str, str]) -> bool:
    """True if the values of a transform's column have one text form.

    `event_date` is built in if the transform does not make it.
    """
    if name == EVENT_DATE and name not in made:
        return made.get("timestamp") == _MOMENT
    return made.get(name) in _ARROW_TYPES_AS_TEXT
