"""Which offsets does the next plan hold, in which tasks, and is it read without Spark?

Lives here: how far a plan reads, within the caps; what happens to offsets that are gone; settings
that change the rows of a plan; leaders and tasks of a plan; when a plan is read without Spark or
with a short-lived JVM.

Not here: starts (etl/decide/offsets.py), cutting ranges (etl/decide/tasks.py), stored plans that
cannot be finished (etl/decide/replacement.py), table features (etl/io/delta/table.py).
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import reject_misaligned_offsets
from etl.decide.group_commits import read_by_others
from etl.decide.lag import expiring
from etl.decide.offsets import pending_offsets, pending_starts, start_of
from etl.decide.partition_identity import (
    creations_to_record,
    record_epochs,
    reject_recreated_or_truncated,
    tails_to_record,
    topic_ids_to_record,
)
from etl.decide.run_requests import (
    NOTHING_ASKED,
    Asking,
    asking_of,
    left_of_key,
)
from etl.decide.table_rules import incarnations_begun, rows_before
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
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Isolation, Lineage
from etl.model.plans import Loss, LossReason, OffsetRange, Plan, PlanKind
from etl.model.snapshot import FirstRun, Snapshot, UpToDate
from etl.settings.choices import OnDataLoss, OnNoLeader
from etl.settings.sections import LimitsSettings, Settings, TransformSettings

Sizes = Sequence[int] | None
"""How many offsets of a log may be read, ascending; None: any number."""


def divide_caps(
    logs: Mapping[BrokerPartition, tuple[int, int]],
    bytes_per_offset: Mapping[BrokerPartition, float],
    limits: LimitsSettings,
    turn: int,
    boundaries: Boundaries = NONE_KNOWN,
) -> dict[BrokerPartition, int]:
    """Return the end offset of each partition, given its (position, end).

    Both caps are divided evenly: each partition gets the same number, and what a short one leaves
    goes to the others; the remainder one offset at a time. The first partition with something to
    read, another one each `turn`, gets one offset however small the cap is, so that none starves;
    only thus a byte cap can be exceeded, by one large record. A Jafka partition is read up to a
    boundary; the one whose turn it is reaches at least its first.
    """
    order = sorted(logs)
    start = turn % len(order) if order else 0
    order = order[start:] + order[:start]
    wanted = {log: logs[log][1] - logs[log][0] for log in order}
    sizes = {log: _sizes(log, *logs[log], boundaries) for log in order}
    if limits.max_records_per_plan is not None:
        wanted = _pour(wanted, sizes, dict.fromkeys(order, 1.0), limits.max_records_per_plan)
    if limits.max_bytes_per_plan is not None:
        weights = {log: cost_of(log, bytes_per_offset) for log in order}
        wanted = _pour(wanted, sizes, weights, limits.max_bytes_per_plan)
    return {log: logs[log][0] + wanted[log] for log in sorted(logs)}


def _sizes(log: BrokerPartition, start: int, end: int, boundaries: Boundaries) -> Sizes:
    ends = ends_between(log, start, end, boundaries)
    return None if ends is None else [one - start for one in ends]


def _pour(
    wanted: Mapping[BrokerPartition, int],
    sizes: Mapping[BrokerPartition, Sizes],
    weights: Mapping[BrokerPartition, float],
    budget: float,
) -> dict[BrokerPartition, int]:
    first = next((log for log, want in wanted.items() if want), None)
    if first is None:
        return dict(wanted)
    # its turn: the least that it can move by before all others, even where that alone is larger
    # than the cap, or it would never move
    least = dict.fromkeys(wanted, 0) | {first: _next(0, sizes[first])}
    left = max(0.0, budget - least[first] * weights[first])
    level = _level([(want - least[log]) * weights[log] for log, want in wanted.items()], left)
    given = {
        log: _at_most(min(want, least[log] + int(level / weights[log])), sizes[log])
        for log, want in wanted.items()
    }
    left -= sum((given[log] - least[log]) * weights[log] for log in given)
    for log in sorted(
        wanted, key=lambda log: log == first
    ):  # stable: the first one comes last, it has its odd one
        room = int(left / weights[log])
        reach = given[log] + (min(1, room) if sizes[log] is None else room)
        more = _at_most(min(wanted[log], reach), sizes[log]) - given[log]
        given[log] += more
        left -= more * weights[log]
    return given


def _next(size: int, sizes: Sizes) -> int:
    """The least size above this one."""
    return size + 1 if sizes is None else sizes[bisect_right(sizes, size)]


def _at_most(size: int, sizes: Sizes) -> int:
    """The largest size up to this one; 0 where there is none."""
    if sizes is None:
        return size
    at = bisect_right(sizes, size)
    return sizes[at - 1] if at else 0


def _level(amounts: Iterable[float], budget: float) -> float:
    """The level at which sum(min(amount, level)) reaches `budget`; the largest amount when all
    fits.
    """
    left, level = float(budget), 0.0
    rising = sorted(amounts)
    for i, amount in enumerate(rising):
        share = left / (len(rising) - i)
        if amount > share:
            return share
        level, left = amount, left - amount
    return level


def shape_of_rows(settings: Settings) -> str:
    """Hash of the settings that shape the rows."""
    shaping = [
        settings.source.isolation_level.value,
        settings.transform.dataframe,
        list(settings.table.partition_by),
    ]
    if settings.transform.record_batch is not None:
        shaping.append(settings.transform.record_batch)
    return hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:16]


def may_be_transformed(plan: Plan, settings: Settings) -> bool:
    """True if a transform may have made the plan's rows: a plan keeps a hash only, so unless it is
    that of no transform.
    """
    untouched = settings.model_copy(update={"transform": TransformSettings()})
    for isolation_level in Isolation:
        source = settings.source.model_copy(update={"isolation_level": isolation_level})
        if plan.shape == shape_of_rows(untouched.model_copy(update={"source": source})):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Reading:
    """One log that this plan may read: from its position, past the losses that policy let go, up to
    the end.
    """

    position: int
    end_offset: int
    lost: tuple[Loss, ...] = ()


def plan_next(
    snapshot: Snapshot, state: FirstRun | UpToDate, settings: Settings, *, uid: str, now_ms: int
) -> Plan | None:
    """Return the next plan, without its id, or None if there is nothing to read and nothing new to
    keep.

    Raises DataLoss, BadOffset, NeedsDecision or BrokerUnreachable if policy is `fail`,
    NotYetReadable for a position behind an open transaction, MisalignedOffset for one at which no
    message begins.
    """
    last = state.last if isinstance(state, UpToDate) else None
    known = state.positions if isinstance(state, UpToDate) else {}
    number = last.number + 1 if last else 1
    asking = asking_of(snapshot.asked, last, snapshot)
    plan = plan_from(
        known, last, snapshot, settings, number=number, uid=uid, now_ms=now_ms, asking=asking
    )
    if isinstance(state, UpToDate):
        passed = (
            Loss(
                log,
                state.last.positions[log],
                offset,
                LossReason.MOVED,
                state.last.incarnations.get(log, 0),
            )
            for log, offset in sorted(state.followed.items())
        )
        holes = read_by_others(state.last, state.passed)
        plan = replace(
            plan, losses=(*passed, *plan.losses), previous=state.last.id, read_by_others=holes
        )
    is_news = plan.positions.keys() - known.keys() or plan.pending_starts.keys() - (
        last.pending_starts.keys() if last else ()
    )
    return plan if plan.ranges or plan.losses or is_news else None


def plan_from(
    known: Mapping[BrokerPartition, int],
    last: Plan | None,
    snapshot: Snapshot,
    settings: Settings,
    *,
    number: int,
    uid: str,
    now_ms: int,
    beyond: Collection[Loss] = (),
    asking: Asking = NOTHING_ASKED,
) -> Plan:
    """Return a plan that reads known partitions from their positions and new ones from their
    starts, to their ends or the requested bounds.

    Caps do not end a partition before the offsets of `beyond`, which this plan leaves out and no
    later plan knows. Raises NeedsDecision for a new partition whose rows the table holds already.
    """
    if last:
        reject_recreated_or_truncated(
            last,
            snapshot,
            {
                log: min(position, known.get(log, position))
                for log, position in last.positions.items()
            },
        )
    _reject_leaderless(snapshot, settings)
    starts = {
        log: known[log] if log in known else start_of(log, snapshot, last, settings)
        for log in sorted(snapshot.extents)
    }
    whole = {
        log: reading_of(log, start, snapshot, settings)
        for log, start in starts.items()
        if start is not None
    }
    readings = {
        log: replace(r, end_offset=asking.until(log, r.position, r.end_offset))
        for log, r in whole.items()
    }
    skips = {(skip.log, skip.from_offset) for skip in beyond}
    begins = {**known, **{log: reading.position for log, reading in readings.items()}}
    begins = {log: position for log, position in begins.items() if (log, position) not in skips}
    reject_misaligned_offsets(
        begins, snapshot, last, is_left=last is not None and last.number == number
    )
    sizes, known_ends = snapshot.bytes_per_offset, boundaries_of(snapshot.extents)
    stops = divide_caps(
        {log: (r.position, r.end_offset) for log, r in readings.items()},
        sizes,
        settings.limits,
        number,
        known_ends,
    )
    for skip in beyond:
        if skip.log in stops:
            skipped = min(
                end_at_or_above(skip.log, skip.until_offset, known_ends),
                readings[skip.log].end_offset,
            )
            stops[skip.log] = max(stops[skip.log], skipped)
    wholes = (
        OffsetRange(log, r.position, stops[log], snapshot.leaders.get(log))
        for log, r in readings.items()
    )
    ranges = split_ranges(
        wholes, sizes, settings.limits.target_task_bytes, snapshot.parallelism, known_ends
    )
    positions = {**known, **stops}
    there = (*snapshot.extents, *snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    table, before = snapshot.table, rows_before(last, snapshot)
    begun = {log: reading.position for log, reading in readings.items() if log not in known}
    incarnations = {
        **(last.incarnations if last else {}),
        **incarnations_begun(before, begun, snapshot),
    }
    topic_ids = {**(last.topic_ids if last else {}), **snapshot.topic_ids}
    pending = pending_starts(there, positions, last, settings, now_ms=now_ms)
    return Plan(
        number=number,
        uid=uid,
        kind=PlanKind.INGEST if ranges else PlanKind.START,
        created_at_ms=now_ms,
        dialect=settings.source.broker_type,
        cluster=snapshot.cluster,
        shape=shape_of_rows(settings),
        ranges=ranges,
        positions=positions,
        seen={log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions},
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None,
        heir_of=last.heir_of if last else (),
        topic_ids=topic_ids,
        creation_ids=creations_to_record(
            topic_ids, last.creation_ids if last else {}, snapshot.creation_ids
        ),
        log_topic_ids=topic_ids_to_record(last, snapshot.extents, positions, topic_ids),
        tails=tails_to_record(last, positions, snapshot),
        losses=tuple(
            replace(loss, incarnation=incarnations.get(loss.log, 0))
            for r in readings.values()
            for loss in r.lost
        ),
        pending_starts=pending,
        pending_offsets=pending_offsets(pending, last, snapshot, settings),
        log_starts={log: snapshot.extents[log].log_start_offset for log in readings},
        leader_epochs=_leader_epochs(last, known, readings, snapshot),
        record_epochs=_record_epochs(last, known, readings, snapshot, number),
        incarnations=incarnations,
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        time_zone=snapshot.time_zone,
        rows_before=before,
        run_key=asking.run_key,
        bounds=asking.bounds,
        key_ends=left_of_key(
            asking, {log: r.end_offset for log, r in readings.items()}, stops, positions
        ),
    )


def _leader_epochs(
    last: Plan | None,
    known: Mapping[BrokerPartition, int],
    readings: Collection[BrokerPartition],
    snapshot: Snapshot,
) -> dict[BrokerPartition, int]:
    """Return the leader epochs of the ends. Without one the old epoch is dropped: it need not reach
    the new end.
    """
    old = last.leader_epochs if last else {}
    kept = {
        log: epoch
        for log, epoch in old.items()
        if last and log not in readings and known[log] <= last.positions[log]
    }
    return {
        **kept,
        **{log: epoch for log, epoch in snapshot.leader_epochs.items() if log in readings},
    }


def _record_epochs(
    last: Plan | None,
    known: Mapping[BrokerPartition, int],
    readings: Mapping[BrokerPartition, _Reading],
    snapshot: Snapshot,
    number: int,
) -> dict[BrokerPartition, Lineage]:
    """Return the epochs of the record batches before this plan, whether it replaces the last plan
    or follows it. Nobody has read records that a partition skips.
    """
    if last is None:
        return {}
    epochs, reached = (
        (last.record_epochs, known)
        if last.number == number
        else (record_epochs(last, snapshot.ledger.applied), last.positions)
    )
    begins = {log: readings[log].position if log in readings else known[log] for log in epochs}
    return {log: epoch for log, epoch in epochs.items() if begins[log] == reached[log]}


def reading_of(
    log: BrokerPartition, wanted: int, snapshot: Snapshot, settings: Settings
) -> _Reading:
    """Return the readable offsets of a partition from `wanted` on. Raises NotYetReadable,
    BadOffset, and DataLoss if policy is `fail`.
    """
    extent = snapshot.extents[log]
    if extent.end_offset < wanted <= extent.end_offset + extent.held_back:
        message = f"The position lies above the last stable offset {extent.end_offset}: a transaction is open there"
        action = "Check who left the transaction open (kafka-transactions.sh find-hanging); once it ends, a retry continues"
        raise NotYetReadable(message, **log.place, offset=wanted, action=action)
    if wanted > extent.end_offset:
        raise _above_the_end(log, wanted, snapshot)
    if wanted >= extent.log_start_offset:
        return _Reading(wanted, extent.end_offset)
    if settings.source.on_data_loss is OnDataLoss.FAIL:
        message = f"{extent.log_start_offset - wanted:,} {log.unit}s are gone: wanted {wanted}, the log starts at {extent.log_start_offset}"
        action = "Check the topic's retention against how often this runs; to continue without them set source.on_data_loss: skip"
        raise DataLoss(message, **log.place, offset=wanted, action=action)
    return _Reading(
        extent.log_start_offset,
        extent.end_offset,
        (Loss(log, wanted, extent.log_start_offset, LossReason.EXPIRED),),
    )


def _above_the_end(log: BrokerPartition, wanted: int, snapshot: Snapshot) -> EtlError:
    """Return the error for a position above the end. Truncations are detected earlier, so the
    leader does not serve its last records yet (KIP-207).
    """
    extent, newest = snapshot.extents[log], snapshot.ledger.newest
    place = {**log.place, "offset": wanted}
    holds = f"the log can be read from {extent.log_start_offset} to {extent.end_offset}"
    ours = newest.positions.get(log) if newest else None
    if ours is not None and wanted <= ours:
        action = f"Check its leader, and open transactions; {holds}"
        return NotYetReadable(
            "The readable end of the log lies below our position", action=action, **place
        )
    action = f"Check who committed it: {holds}; " + (
        "set the committed offset to one of these, or remove it to start where policy says"
        if ours is None
        else f"set the committed offset back to ours, {ours}"
    )
    return BadOffset("The committed offset lies above the end of the log", action=action, **place)


def _reject_leaderless(snapshot: Snapshot, settings: Settings) -> None:
    if snapshot.leaderless and settings.source.on_no_leader is OnNoLeader.FAIL:
        log = min(snapshot.leaderless)
        action = "Check the brokers that hold its replicas; to continue without it set source.on_no_leader: skip"
        raise BrokerUnreachable("The partition has no leader", **log.place, action=action)


@dataclass(frozen=True, slots=True)
class PlanTasks:
    """The ranges of a plan with their leaders of today, and the tasks: indices of `ranges`, in the
    order in which they begin.
    """

    ranges: tuple[OffsetRange, ...]
    tasks: tuple[tuple[int, ...], ...]


def tasks_of_plan(
    plan: Plan, snapshot: Snapshot, settings: Settings, *, parallelism: int, now_ms: int
) -> PlanTasks:
    """How a run reads the plan; `parallelism`: so many tasks work at once.

    A stored plan may be old, and its leaders are those of its day. What may expire soon is read
    first.
    """
    ranges = tuple(replace(r, leader=snapshot.leaders.get(r.log, r.leader)) for r in plan.ranges)
    urgent = expiring(ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms)
    target = settings.limits.target_task_bytes
    return PlanTasks(
        ranges,
        pack_tasks(
            ranges,
            snapshot.bytes_per_offset,
            target,
            parallelism,
            first={one.log for one in urgent},
        ),
    )


SHORT_RUN_BELOW_BYTES = 64 << 20
"""What the JVM's first compiler alone reads as fast as both, in a JVM that has just started
(docs/adr/0033).
"""


def is_short(plan: Plan, snapshot: Snapshot, settings: Settings) -> bool:
    """True if the plan and all that its partitions hold after it is small, by reported sizes. A
    session outlives its first plan: a small stored plan may be followed by a large one. What a
    transform reads or a compaction rewrites is unknown.
    """
    if settings.transform.dataframe is not None or settings.table.auto_compact_min_files:
        return False
    costs = snapshot.bytes_per_offset
    unread = sum(
        max(0, extent.end_offset - plan.positions.get(log, extent.log_start_offset))
        * cost_of(log, costs)
        for log, extent in snapshot.extents.items()
    )
    return bytes_of(plan.ranges, costs) + unread < SHORT_RUN_BELOW_BYTES


_OF_NEW_TABLES = "spark.databricks.delta.properties.defaults."
EVENT_DATE = "event_date"
_AS_TEXT = (
    "topic",
    "partition",
    "offset",
    "timestampType",
    "broker_id",
    "message_index",
    "incarnation",
    EVENT_DATE,
)
"""Columns of the raw table whose values have one text form for all readers."""

_TYPES_AS_TEXT = ("string", "bool", "int8", "int16", "int32", "int64", "date32[day]")
"""The same by Arrow type."""
_MOMENT = "timestamp[us, tz=UTC]"


def is_small(
    plan: Plan, bytes_per_offset: Mapping[BrokerPartition, float], settings: Settings
) -> bool:
    """True if processes of the driver's machine read the plan, by reported sizes."""
    limit = settings.limits.local_below_bytes
    return limit > 0 and bytes_of(plan.ranges, bytes_per_offset) < limit


def why_not_arrow(
    settings: Settings, *, is_new: bool, made: Mapping[str, str] | None = None
) -> str | None:
    """Why the conf's rows cannot come by files of tasks; None where they can. `is_new`: the table
    is not there yet.

    `made`: the columns that an Arrow transform makes, each with its type as Arrow calls it.
    """
    if settings.transform.dataframe is not None:
        return "the transform takes a DataFrame"
    by = settings.table.partition_by
    unlike = next(
        (
            name
            for name in by
            if not (name in _AS_TEXT if made is None else _has_one_text(name, made))
        ),
        None,
    )
    if unlike is not None:
        return f"the table is partitioned by {unlike}"
    default = next((key for key in settings.spark if key.startswith(_OF_NEW_TABLES)), None)
    return f"Spark alone makes a table by {default}" if is_new and default else None


def _has_one_text(name: str, made: Mapping[str, str]) -> bool:
    """True for a column of a transform whose values have one text form; `event_date` is built in if
    it makes none.
    """
    if name == EVENT_DATE and name not in made:
        return made.get("timestamp") == _MOMENT
    return made.get(name) in _TYPES_AS_TEXT
