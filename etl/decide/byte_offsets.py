"""Which byte offsets are unverified or misaligned, and what replaces them?

On Jafka and Kafka 0.7 most byte positions are inside an entry. A range that begins there can never
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
"""Returns the offsets of a partition that an operator names."""


def none_named(log: BrokerPartition) -> Collection[int]:
    """Return no offsets: in a run no operator names any."""
    return ()


def unverified_offsets(
    plan: Plan | None,
    table: Table | None,
    committed: Mapping[BrokerPartition, Committed],
    extents: Mapping[BrokerPartition, PartitionOffsets],
    named: Named = none_named,
) -> tuple[UnverifiedOffset, ...]:
    """Return the offsets to verify, sorted. `plan` is the current one."""
    in_table = 0
    if table:
        in_table = table.transaction_version or 0
    kept: dict[BrokerPartition, _Kept] = {}
    if plan and plan.number > in_table:
        kept = _kept_by(plan)
    found: list[UnverifiedOffset] = []
    for log, extent in sorted(extents.items()):
        if extent.boundaries is None:
            continue
        of_operator: dict[int, UnverifiedOffset] = {}
        for offset in named(log):
            for unverified in _inside(offset, log, extent, ()):
                of_operator[offset] = unverified
        found.extend(of_operator.values())
        committed_offset = committed.get(log, NOTHING_COMMITTED)
        for unverified in _unverified(log, extent, plan, committed_offset, kept):
            if unverified.offset not in of_operator:
                found.append(unverified)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The start of a stored plan in one partition."""

    offset: int
    ours: tuple[int, ...] = ()
    """The position before another client moved the offset."""
    is_skips_end: bool = False
    """True if an operator named it as the end of a skipped interval."""


def _kept_by(plan: Plan) -> dict[BrokerPartition, _Kept]:
    kept = {log: _Kept(start) for log, start in starts_of(plan).items()}
    for loss in plan.losses:
        start = kept.get(loss.log)
        if start is None or loss.until_offset != start.offset:
            continue
        if loss.incarnation != plan.incarnations.get(loss.log, 0):
            continue
        ours = start.ours
        if loss.why is LossReason.MOVED:
            ours = (*ours, loss.from_offset)
        is_skips_end = start.is_skips_end or loss.why is LossReason.SKIPPED
        kept[loss.log] = _Kept(start.offset, ours, is_skips_end)
    return kept


def _unverified(
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
    elif found.offset != plan.seen[log].offset:
        # Otherwise the plan's own commit is still to come.
        yield from _inside(found.offset, log, extent, (plan.positions[log],))


def _inside(
    offset: int | None,
    log: BrokerPartition,
    extent: PartitionOffsets,
    ours: Sequence[int],
    *,
    is_kept: bool = False,
) -> Iterator[UnverifiedOffset]:
    """Yield the offset if it is inside the partition, and neither the broker nor `ours` confirms
    that an entry begins there.
    """
    if offset is None or not extent.log_start_offset < offset < extent.end_offset or offset in ours:
        return
    named = extent.boundaries or (extent.log_start_offset,)
    above = bisect_right(named, offset)
    if named[above - 1] == offset:
        return
    walk_from = max([named[above - 1], *(each for each in ours if each < offset)])
    until = min([extent.end_offset, *named[above : above + 1]])
    yield UnverifiedOffset(log, offset, walk_from, until, is_kept)


def reject_misaligned_offsets(
    positions: Mapping[BrokerPartition, int],
    snapshot: Snapshot,
    last: Plan | None,
    *,
    is_left: bool,
) -> None:
    """Reject positions at which no entry begins. `last` is the newest plan; `is_left`: it is stored
    with these positions.

    Raises MisalignedOffset for the first, with the offsets that may replace it and the effect of
    each.
    """
    for log, position in sorted(positions.items()):
        looked = look_at(log, position, snapshot)
        if looked and looked.is_entry is False:
            raise _inside_entry(log, looked, snapshot, last, is_left=is_left)


def look_at(log: BrokerPartition, offset: int | None, snapshot: Snapshot) -> LookedAt | None:
    """Return the verification of that offset; None if it was not verified."""
    for verified in snapshot.looked_at.get(log, ()):
        if verified.offset == offset:
            return verified
    return None


def reject_misaligned_offset(
    log: BrokerPartition, offset: int, snapshot: Snapshot, *, key: str
) -> None:
    """Reject an offset that an operator names on Jafka above the end, or where no entry is known to
    begin.

    `key` is the option that names it. Raises SettingsError.
    """
    extent = snapshot.extents.get(log)
    looked = look_at(log, offset, snapshot)
    end = 0
    if extent:
        end = extent.end_offset
    if log.is_physical and log not in snapshot.leaderless and offset > end:
        raise SettingsError(
            f"Offset {offset} is above {end}, the end of the partition",
            key=key,
            **log.place,
            action="Check with `etl offsets show CONF`",
        )
    if extent is None or looked is None or looked.is_entry:
        return
    before, after = _around(looked, extent)
    action = (
        "Find the start of a message (etl records show). The nearest offsets that the broker "
        f"reports are {before} and {after}"
    )
    if looked.before is not None:
        message = f"No message begins at {offset}: it is inside the one from {before} to {after}"
        action = f"Pass the start of that message or its end: {before} or {after}"
    elif looked.is_entry is None:
        message = f"It is unknown whether a message begins at {offset}: {looked.wrong}"
    else:
        message = f"No message begins at {offset}: {looked.wrong}"
    raise SettingsError(message, key=key, **log.place, action=action)


def is_said_wrong(log: BrokerPartition, plan: Plan, snapshot: Snapshot) -> bool:
    """Return True if a stored reset has a position inside an entry, which an earlier version
    stored.
    """
    if plan.kind is not PlanKind.RESET or not log.is_physical or not plan.incarnations.get(log):
        return False
    looked = look_at(log, plan.positions[log], snapshot)
    return looked is not None and looked.is_entry is False


def put_right(plan: Plan, before: Plan | None, snapshot: Snapshot) -> Plan:
    """Return a stored plan that begins inside an entry with the current offsets, if another client
    moved them since; its losses are computed again.

    `before` is the plan before it. Raises OffsetMoved for an offset below the loaded ones.
    """
    for log, start in sorted(starts_of(plan).items()):
        looked = look_at(log, start, snapshot)
        found = snapshot.committed.get(log, NOTHING_COMMITTED)
        if looked is None or looked.is_entry is not False or found.offset in (None, start):
            continue
        if _is_of_another_client(plan, before, log, start):
            plan = _from(plan, log, start, found.offset or 0, found)
    return plan


def misplaced(
    plan: Plan, starts: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> list[BrokerPartition]:
    """Return the partitions in which a stored plan begins inside an entry, although it continues
    from its own position: such a partition is another one, was truncated, or is damaged.
    """
    found = []
    for log, start in sorted(starts.items()):
        if _is_of_another_client(plan, None, log, start):
            continue
        verified = look_at(log, start, snapshot)
        if verified and verified.is_entry is False:
            found.append(log)
    return found


def _is_of_another_client(
    plan: Plan, before: Plan | None, log: BrokerPartition, start: int
) -> bool:
    """Return True if another client set the plan's start: the offset was moved, or the partition
    was never read before.
    """
    if _moved_past(plan, log, start) or plan.number == 1:
        return True
    return before is not None and log not in before.positions


def _from(plan: Plan, log: BrokerPartition, start: int, to: int, found: Committed) -> Plan:
    """Return the plan with another start in one partition, from which nothing is read yet."""
    incarnation = plan.incarnations.get(log, 0)
    passed = _moved_past(plan, log, start)
    ours = min((loss.from_offset for loss in passed), default=None)
    if ours is not None and to < ours:
        raise OffsetMoved(
            f"The committed offset is {to}, and the table has the rows below {ours}: following it "
            "would load rows twice",
            **log.place,
            offset=to,
            action=f"Check who set it, then set it to {ours} or above",
        )
    losses = []
    for loss in plan.losses:
        if loss.log != log or loss.incarnation != incarnation:
            losses.append(loss)
    if ours is not None and ours < to:
        losses.append(Loss(log, ours, to, LossReason.MOVED, incarnation))
    return replace(
        plan,
        ranges=tuple(r for r in plan.ranges if r.log != log),
        positions={**plan.positions, log: to},
        seen={**plan.seen, log: found},
        losses=tuple(losses),
    )


def _moved_past(plan: Plan, log: BrokerPartition, start: int) -> list[Loss]:
    """Return the plan's losses of a moved offset that end at this start."""
    key = (log, plan.incarnations.get(log, 0), LossReason.MOVED, start)
    found = []
    for loss in plan.losses:
        if (loss.log, loss.incarnation, loss.why, loss.until_offset) == key:
            found.append(loss)
    return found


def _inside_entry(
    log: BrokerPartition, looked: LookedAt, snapshot: Snapshot, last: Plan | None, *, is_left: bool
) -> MisalignedOffset:
    ours = _ours(log, looked.offset, last, is_left=is_left)
    message = "No message begins at the committed offset"
    if is_left and last:
        message = (
            f"Plan {last.number} is stored and not in the table, and no message begins at its start "
            "in this partition"
        )
    if looked.before is not None and looked.after is not None:
        message += f": it is inside the one from {looked.before} to {looked.after}"
    elif looked.wrong:
        message += f": {looked.wrong}"
    action = _choices(looked, snapshot.extents[log], ours)
    if is_left and last and is_said_wrong(log, last, snapshot):
        action = _of_a_reset(log, looked, snapshot.extents[log], last)
    elif is_left and last:
        command = (
            f"`etl plans supersede CONF {last.number} --reason ...`, which plans again from the "
            "committed offset"
        )
        now = snapshot.committed.get(log, NOTHING_COMMITTED).offset
        again = look_at(log, now, snapshot)
        if now is not None and now != looked.offset and (again is None or again.is_entry):
            action = f"Run {command}: it is {now} now, the start of a message"
        else:
            action += f". Then run {command}"
            if ours is None and last.number > 1:
                accept = accept_command([render_log(log)], "--truncated-at OFFSET")
                action += (
                    ". If no client set it, compare the partition's records with the table's (etl "
                    "records show). If it is another partition, or lost its end and was written "
                    f"since, {accept} continues at the end of the equal records, at 0 if it was "
                    "recreated. If it is the same and damaged there, --skip leaves the damaged "
                    "offsets out"
                )
    return MisalignedOffset(message, action=action, **log.place, offset=looked.offset)


def _of_a_reset(
    log: BrokerPartition, looked: LookedAt, extent: PartitionOffsets, plan: Plan
) -> str:
    """Return the advice for a misaligned `topics accept-changes --truncated-at` of an earlier
    version.
    """
    before, after = _around(looked, extent)
    skip = shlex.quote(render_intervals([(log, looked.offset, after)]))
    return (
        "Find the offset up to which the partition's records are those in the table (etl records "
        f"show). If it is {after}, run `etl plans supersede CONF {plan.number} --skip {skip} "
        f"--reason ...`. If it is {before} or below, run `etl topics accept-changes CONF -p "
        f"{quoted_log(log)} --truncated-at OFFSET --reason ...`"
    )


def _ours(log: BrokerPartition, offset: int, last: Plan | None, *, is_left: bool) -> int | None:
    """Return the end of the partition's loaded or lost offsets; None if it was never read."""
    if last is None or log not in last.positions:
        return None
    if is_left:
        return min((loss.from_offset for loss in _moved_past(last, log, offset)), default=None)
    return last.positions[log]


def _choices(looked: LookedAt, extent: PartitionOffsets, ours: int | None) -> str:
    """Return the offsets that may replace a misaligned one, and the effect of each."""
    before, after = _around(looked, extent)
    if ours is not None:
        others = " or ".join(str(each) for each in (before, after) if each > ours)
        return (
            f"Check who set it. Set it back to {ours}, the end of the loaded offsets: nothing is left "
            f"out, nothing is loaded twice. A message begins at {others}, too, and the offsets from "
            f"{ours} up to there are then left out"
        )
    if looked.before is not None:
        return (
            f"Check who set it. Set it to {before}: the message that begins there is loaded, also if "
            f"that consumer has read it. Or set it to {after}: that message is left out"
        )
    return (
        "Check who set it. Set it to the start of a message, as the partition's consumers commit it. "
        f"The broker reports {before} below it: all later messages are loaded, also those that the "
        f"consumer has read. It reports {after} above it: messages below that are left out"
    )


def _around(looked: LookedAt, extent: PartitionOffsets) -> tuple[int, int]:
    """Return the nearest offsets at which an entry is known to begin, or the partition ends."""
    if looked.before is not None and looked.after is not None:
        return looked.before, looked.after
    bounds = extent.boundaries or (extent.log_start_offset, extent.end_offset)
    at = bisect_right(bounds, looked.offset)
    return bounds[at - 1], bounds[at]
