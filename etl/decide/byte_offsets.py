"""Which byte offsets are unverified or misaligned, and what replaces them?

On Jafka and Kafka 0.7 most byte positions lie inside an entry. A range that begins there can never
be read, and once it is stored each run stops there. So an offset that neither its broker reported
nor a plan reached is verified before it becomes a position:

    an offset that the group committed in a partition that was never read
    an offset that another client moved
    the start of a stored plan of an earlier version, which stored it unverified
    an offset that an operator names

A misaligned offset is rejected, with the offsets that may replace it, or corrected.

Not here: reading the bytes at an offset (etl/io/brokers/cluster.py).
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.offsets import starts_of
from etl.decide.partition_identity import accept_command
from etl.errors import MisalignedOffset, OffsetMoved, SettingsError
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    LookedAt,
    PartitionOffsets,
    UnverifiedOffset,
    quoted_log,
    render_intervals,
    render_log,
)
from etl.model.plans import Loss, LossReason, Plan, PlanKind
from etl.model.snapshot import Snapshot, Table

Named = Callable[[BrokerPartition], Collection[int]]
"""Which offsets of a log an operator names."""


def none_named(log: BrokerPartition) -> Collection[int]:
    """Return None: a run has no offsets named by an operator."""
    return ()


def unverified_offsets(
    plan: Plan | None,
    table: Table | None,
    committed: Mapping[BrokerPartition, Committed],
    extents: Mapping[BrokerPartition, PartitionOffsets],
    named: Named = none_named,
) -> tuple[UnverifiedOffset, ...]:
    """Return the offsets to verify, sorted. `plan` is the current one."""
    is_left = plan is not None and plan.number > ((table.transaction_version or 0) if table else 0)
    kept = _kept_by(plan) if plan and is_left else {}
    found = list[UnverifiedOffset]()
    for log, extent in sorted(extents.items()):
        if extent.boundaries is not None:
            operator_offsets = {
                offset: one for offset in named(log) for one in _inside(offset, log, extent, ())
            }
            others = _doubted(log, extent, plan, committed.get(log, NOTHING_COMMITTED), kept)
            found += [
                *operator_offsets.values(),
                *(one for one in others if one.offset not in operator_offsets),
            ]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a stored plan begins in one partition."""

    offset: int
    ours: tuple[int, ...] = ()
    """The position before another client moved the offset."""
    is_skips_end: bool = False
    """True if an operator named it as the end of a skipped interval."""


def _kept_by(plan: Plan) -> dict[BrokerPartition, _Kept]:
    kept = {log: _Kept(start) for log, start in starts_of(plan).items()}
    for loss in plan.losses:
        one = kept.get(loss.log)
        if (
            one
            and loss.until_offset == one.offset
            and loss.incarnation == plan.incarnations.get(loss.log, 0)
        ):
            ours = (*one.ours, loss.from_offset) if loss.why is LossReason.MOVED else one.ours
            kept[loss.log] = _Kept(
                one.offset, ours, one.is_skips_end or loss.why is LossReason.SKIPPED
            )
    return kept


def _doubted(
    log: BrokerPartition,
    extent: PartitionOffsets,
    plan: Plan | None,
    found: Committed,
    kept: Mapping[BrokerPartition, _Kept],
) -> Iterator[UnverifiedOffset]:
    if log in kept:
        if not kept[log].is_skips_end:
            yield from _inside(kept[log].offset, log, extent, kept[log].ours, is_kept=True)
        if found.offset != kept[log].offset:
            yield from _inside(found.offset, log, extent, kept[log].ours)
    elif plan is None or log not in plan.positions:
        yield from _inside(found.offset, log, extent, ())
    elif found.offset != plan.seen[log].offset:  # else the plan moves it yet
        yield from _inside(found.offset, log, extent, (plan.positions[log],))


def _inside(
    offset: int | None,
    log: BrokerPartition,
    extent: PartitionOffsets,
    ours: Sequence[int],
    *,
    is_kept: bool = False,
) -> Iterator[UnverifiedOffset]:
    """Return the offset if it lies inside the log and neither the broker nor `ours` confirms that
    an entry begins there.
    """
    if offset is None or not extent.log_start_offset < offset < extent.end_offset or offset in ours:
        return
    named = extent.boundaries or (extent.log_start_offset,)
    above = bisect_right(named, offset)
    if named[above - 1] != offset:
        walk_from = max([named[above - 1], *(each for each in ours if each < offset)])
        yield UnverifiedOffset(
            log, offset, walk_from, min([extent.end_offset, *named[above : above + 1]]), is_kept
        )


def reject_misaligned_offsets(
    positions: Mapping[BrokerPartition, int],
    snapshot: Snapshot,
    last: Plan | None,
    *,
    is_left: bool,
) -> None:
    """Reject positions at which no entry begins. `last` is the newest plan; `is_left`: it is stored
    with these positions.

    Raises MisalignedOffset for the first, with the offsets that may replace it and what each leaves
    out or loads.
    """
    for log, position in sorted(positions.items()):
        looked = look_at(log, position, snapshot)
        if looked and looked.is_entry is False:
            raise _inside_entry(log, looked, snapshot, last, is_left=is_left)


def look_at(log: BrokerPartition, offset: int | None, snapshot: Snapshot) -> LookedAt | None:
    """Return the verification of that offset; None if it was not verified."""
    return next(
        (looked for looked in snapshot.looked_at.get(log, ()) if looked.offset == offset), None
    )


def reject_misaligned_offset(
    log: BrokerPartition, offset: int, snapshot: Snapshot, *, key: str
) -> None:
    """Reject an offset that an operator names on Jafka above the end or where no entry is known to
    begin. `key` is the option that names it. Raises SettingsError.
    """
    extent, looked = snapshot.extents.get(log), look_at(log, offset, snapshot)
    end = extent.end_offset if extent else 0
    if log.is_physical and log not in snapshot.leaderless and offset > end:
        message = f"Offset {offset} lies above {end}, where the log ends"
        raise SettingsError(
            message, key=key, **log.place, action="Check with `etl offsets show CONF`"
        )
    if extent and looked and not looked.is_entry:
        before, after = _around(looked, extent)
        verdict = "nobody can tell whether a" if looked.is_entry is None else "no"
        message = f"{verdict} message begins at {offset}: {looked.wrong}"
        action = f"Check where one begins (etl records show); the broker names {before} below it and {after} above it"
        if looked.before is not None:
            message = (
                f"No message begins at {offset}: it lies inside the one from {before} to {after}"
            )
            action = f"Check whether that message is on this side or the other: {before} or {after}"
        raise SettingsError(message, key=key, **log.place, action=action)


def is_said_wrong(log: BrokerPartition, plan: Plan, snapshot: Snapshot) -> bool:
    """True if a stored reset leaves a partition inside an entry, because an earlier version stored
    that offset.
    """
    if plan.kind is not PlanKind.RESET or not log.is_physical or not plan.incarnations.get(log):
        return False
    looked = look_at(log, plan.positions[log], snapshot)
    return looked is not None and looked.is_entry is False


def put_right(plan: Plan, before: Plan | None, snapshot: Snapshot) -> Plan:
    """Return a stored plan that begins inside an entry with the current offsets, if another client
    moved them since; what was lost up to there is computed anew.

    `before` is the plan before it. Raises OffsetMoved for an offset below what is loaded.
    """
    for log, start in sorted(starts_of(plan).items()):
        looked, found = (
            look_at(log, start, snapshot),
            snapshot.committed.get(log, NOTHING_COMMITTED),
        )
        if (
            looked
            and looked.is_entry is False
            and _is_told(plan, before, log, start)
            and found.offset not in (None, start)
        ):
            plan = _from(plan, log, start, found.offset or 0, found)
    return plan


def misplaced(
    plan: Plan, starts: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> list[BrokerPartition]:
    """Return the partitions in which a stored plan begins where no entry does, although it
    continues from its own position: such a partition is another one, was truncated, or is damaged.
    """
    looked = {
        log: look_at(log, start, snapshot)
        for log, start in sorted(starts.items())
        if not _is_told(plan, None, log, start)
    }
    return [log for log, found in looked.items() if found and found.is_entry is False]


def _is_told(plan: Plan, before: Plan | None, log: BrokerPartition, start: int) -> bool:
    """True if another client named the plan's start: the offset was moved, or the partition never
    read before.
    """
    return (
        bool(_moved_past(plan, log, start))
        or plan.number == 1
        or (before is not None and log not in before.positions)
    )


def _from(plan: Plan, log: BrokerPartition, start: int, to: int, found: Committed) -> Plan:
    life, passed = plan.incarnations.get(log, 0), _moved_past(plan, log, start)
    ours = min((loss.from_offset for loss in passed), default=None)
    if ours is not None and to < ours:
        message = f"The committed offset is {to}, and the table has what lies below {ours}: to follow it would load rows twice"
        raise OffsetMoved(
            message,
            **log.place,
            offset=to,
            action=f"Check who set it; set it to {ours}, or further on",
        )
    losses = [loss for loss in plan.losses if (loss.log, loss.incarnation) != (log, life)]
    if ours is not None and ours < to:
        losses.append(Loss(log, ours, to, LossReason.MOVED, life))
    return replace(
        plan,
        ranges=tuple(r for r in plan.ranges if r.log != log),
        positions={**plan.positions, log: to},
        seen={**plan.seen, log: found},
        losses=tuple(losses),
    )


def _moved_past(plan: Plan, log: BrokerPartition, start: int) -> list[Loss]:
    life = plan.incarnations.get(log, 0)
    return [
        loss
        for loss in plan.losses
        if (loss.log, loss.incarnation, loss.why, loss.until_offset)
        == (log, life, LossReason.MOVED, start)
    ]


def _inside_entry(
    log: BrokerPartition, looked: LookedAt, snapshot: Snapshot, last: Plan | None, *, is_left: bool
) -> MisalignedOffset:
    ours = _ours(log, looked.offset, last, is_left=is_left)
    message = "No message begins at the committed offset"
    if is_left and last:
        message = f"Plan {last.number} is stored and not in the table, and no message begins where it begins in this log"
    if looked.before is not None and looked.after is not None:
        message += f": it lies inside the one from {looked.before} to {looked.after}"
    elif looked.wrong:
        message += f": {looked.wrong}"
    action = _choices(looked, snapshot.extents[log], ours)
    if is_left and last and is_said_wrong(log, last, snapshot):
        action = _of_a_reset(log, looked, snapshot.extents[log], last)
    elif is_left and last:
        command = f"`etl plans supersede CONF {last.number} --reason ...`, which plans anew from the offset as it is then"
        now = snapshot.committed.get(log, NOTHING_COMMITTED).offset
        again = look_at(log, now, snapshot)
        if now is not None and now != looked.offset and (again is None or again.is_entry):
            action = f"{command}: it is {now} by now, where a message begins"
        else:
            action += f"; then {command}"
            if ours is None and last.number > 1:
                action += (
                    ". If nobody set it: where the log is another one, or lost its end and was written on since (compare its records with "
                    f"the table's by etl records show), {accept_command([render_log(log)], '--truncated-at OFFSET')} goes on from up to where they are the "
                    "same, from 0 if it was made again; where it is the same and damaged there, --skip leaves out what is"
                )
    return MisalignedOffset(message, action=action, **log.place, offset=looked.offset)


def _of_a_reset(
    log: BrokerPartition, looked: LookedAt, extent: PartitionOffsets, plan: Plan
) -> str:
    """Describe the way out if an earlier version stored a misaligned `topics accept-changes --truncated-at`."""
    before, after = _around(looked, extent)
    skip = shlex.quote(render_intervals([(log, looked.offset, after)]))
    return (
        f"Find out up to where the partition's records are those in the table (etl records show): if up to {after}, `etl plans supersede CONF {plan.number} "
        f"--skip {skip} --reason ...`; "
        f"if up to {before} or below, `etl topics accept-changes CONF -p {quoted_log(log)} --truncated-at OFFSET --reason ...`"
    )


def _ours(log: BrokerPartition, offset: int, last: Plan | None, *, is_left: bool) -> int | None:
    """Return the offset up to which the partition is in the table or lost; None if it was never
    read.
    """
    if last is None or log not in last.positions:
        return None
    if is_left:
        return min((loss.from_offset for loss in _moved_past(last, log, offset)), default=None)
    return last.positions[log]


def _choices(looked: LookedAt, extent: PartitionOffsets, ours: int | None) -> str:
    """Which offsets may take its place, and what each of them comes to."""
    before, after = _around(looked, extent)
    if ours is not None:
        others = " or ".join(str(each) for each in (before, after) if each > ours)
        return (
            f"Check who set it. Set it back to {ours}, where we are: nothing is left out, nothing is loaded twice; a message begins at {others}, "
            f"too, and what lies from {ours} up to there is then left out"
        )
    if looked.before is not None:
        return (
            f"Check who set it. Set it to {before}: the message that begins there is loaded, also if that consumer has read it; or to {after}: "
            "that message is left out"
        )
    return (
        f"Check who set it. Set it to where a message begins, as the log's consumers commit it. The broker names {before} below it: all that "
        f"lies behind that is loaded, also what that consumer has read; and {after} above it: what lies below that is left out"
    )


def _around(looked: LookedAt, extent: PartitionOffsets) -> tuple[int, int]:
    """The nearest offsets at which an entry is known to begin, or the log ends."""
    if looked.before is not None and looked.after is not None:
        return looked.before, looked.after
    bounds = extent.boundaries or (extent.log_start_offset, extent.end_offset)
    at = bisect_right(bounds, looked.offset)
    return bounds[at - 1], bounds[at]
