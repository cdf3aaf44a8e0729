"""Which byte offsets are unverified or misaligned, and what replaces them?

Lives here: which offsets to verify, rejecting misaligned ones, correcting a stored plan.
Not here: reading the bytes at an offset (etl/io/brokers/cluster_requests.py).

On Jafka and Kafka 0.7 offsets are bytes, and most of them are inside an entry. A range that begins
there can never be read, and after it is stored each run stops there. So an offset that neither its
broker reported nor a plan reached is verified before a plan begins at it:

    an offset that the group committed in a partition that was never read
    an offset that another client moved
    the start of a stored plan of an earlier version, which stored it unverified
    an offset that an operator passes

A misaligned offset is rejected, with the offsets that may replace it, or corrected.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.offsets import starts_of
from etl.decide.recreated_or_truncated import accept_command
from etl.errors import CorruptData, MisalignedOffset, OffsetMoved, SettingsError
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    LookedAt,
    PartitionOffsets,
    TopicPartition,
    UnverifiedOffset,
    quoted_partition,
    render_intervals,
    render_partition,
)
from etl.model.plans import Loss, LossReason, Plan, PlanKind
from etl.model.snapshot import Snapshot, Table

OperatorOffsets = Callable[[TopicPartition], Collection[int]]
"""Returns the offsets of a partition that an operator passes."""


def no_operator_offsets(partition: TopicPartition) -> Collection[int]:
    """Return no offsets: in a run no operator passes any."""
    return ()


def unverified_offsets(
    plan: Plan | None,
    table: Table | None,
    committed: Mapping[TopicPartition, Committed],
    extents: Mapping[TopicPartition, PartitionOffsets],
    named: OperatorOffsets = no_operator_offsets,
) -> tuple[UnverifiedOffset, ...]:
    """Return the offsets to verify, sorted by partition. `plan` is the newest one."""
    version = 0
    if table is not None:
        version = table.transaction_version or 0
    stored_starts: dict[TopicPartition, _StoredStart] = {}
    if plan is not None and plan.number > version:
        stored_starts = _stored_starts(plan)
    found: list[UnverifiedOffset] = []
    for partition, offsets in sorted(extents.items()):
        if offsets.boundaries is None:
            continue
        of_operator: dict[int, UnverifiedOffset] = {}
        for offset in named(partition):
            unverified = _unverified(offset, partition, offsets, ())
            if unverified is not None:
                of_operator[offset] = unverified
        found += of_operator.values()
        committed_now = committed.get(partition, NOTHING_COMMITTED)
        for unverified in _unverified_of_run(
            partition, offsets, plan, committed_now, stored_starts
        ):
            if unverified.offset not in of_operator:
                found.append(unverified)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _StoredStart:
    """Start offset of a stored plan in one partition."""

    offset: int
    loaded_until: tuple[int, ...] = ()
    """The loaded-until offset before another client moved the committed offset."""
    is_end_of_skip: bool = False
    """True if an operator passed it as the end of a skipped interval."""


def _stored_starts(plan: Plan) -> dict[TopicPartition, _StoredStart]:
    starts = {partition: _StoredStart(offset) for partition, offset in starts_of(plan).items()}
    for loss in plan.losses.lost:
        start = starts.get(loss.partition)
        if start is None or loss.until_offset != start.offset:
            continue
        if loss.incarnation != plan.incarnations.get(loss.partition, 0):
            continue
        if loss.why is LossReason.MOVED:
            loaded_until = (*start.loaded_until, loss.from_offset)
            starts[loss.partition] = replace(start, loaded_until=loaded_until)
        elif loss.why is LossReason.SKIPPED:
            starts[loss.partition] = replace(start, is_end_of_skip=True)
    return starts


def _unverified_of_run(
    partition: TopicPartition,
    offsets: PartitionOffsets,
    plan: Plan | None,
    committed: Committed,
    stored_starts: Mapping[TopicPartition, _StoredStart],
) -> list[UnverifiedOffset]:
    """Return the unverified offsets of a partition that a run would begin at."""
    start = stored_starts.get(partition)
    found: list[UnverifiedOffset | None] = []
    if start is not None:
        if not start.is_end_of_skip:
            found.append(
                _unverified(start.offset, partition, offsets, start.loaded_until, is_kept=True)
            )
        if committed.offset != start.offset:
            found.append(_unverified(committed.offset, partition, offsets, start.loaded_until))
    elif plan is None or partition not in plan.loaded_until:
        found.append(_unverified(committed.offset, partition, offsets, ()))
    elif committed.offset != plan.expected_commits[partition].offset:
        # Equal: the plan has still to move the committed offset.
        found.append(
            _unverified(committed.offset, partition, offsets, (plan.loaded_until[partition],))
        )
    return [unverified for unverified in found if unverified is not None]


def _unverified(
    offset: int | None,
    partition: TopicPartition,
    offsets: PartitionOffsets,
    reached: Sequence[int],
    *,
    is_kept: bool = False,
) -> UnverifiedOffset | None:
    """Return an offset inside the partition at which no entry is known to begin, else None.

    Entries begin at the boundaries that the broker reports, and at offsets that plans reached.
    """
    if offset is None or offset in reached:
        return None
    if not offsets.log_start_offset < offset < offsets.end_offset:
        return None
    boundaries = offsets.boundaries or (offsets.log_start_offset,)
    above = bisect_right(boundaries, offset)
    if boundaries[above - 1] == offset:
        return None
    reached_before = [each for each in reached if each < offset]
    walk_from = max([boundaries[above - 1], *reached_before])
    walk_until = min([offsets.end_offset, *boundaries[above : above + 1]])
    return UnverifiedOffset(partition, offset, walk_from, walk_until, is_kept)


def reject_misaligned_offsets(
    positions: Mapping[TopicPartition, int],
    snapshot: Snapshot,
    last: Plan | None,
    *,
    is_left: bool,
) -> None:
    """Reject start offsets at which no entry begins.

    `last`: the newest plan. `is_left`: it is stored with these start offsets, and not in the table.
    Raises MisalignedOffset for the first, with the offsets that may replace it, and what each of
    them skips or loads.
    """
    misaligned = {}
    for partition, position in positions.items():
        if not partition.is_physical:
            continue
        verified = _verification_of(partition, position, snapshot)
        if verified and verified.is_entry is False:
            misaligned[partition] = verified
    if misaligned:
        first = min(misaligned)
        raise _misaligned_error(first, misaligned[first], snapshot, last, is_left=is_left)


def _verification_of(
    partition: TopicPartition, offset: int | None, snapshot: Snapshot
) -> LookedAt | None:
    """Return the result of verifying the offset; None if it was not verified."""
    for verified in snapshot.partition(partition).looked_at:
        if verified.offset == offset:
            return verified
    return None


def reject_misaligned_offset(
    partition: TopicPartition, offset: int, snapshot: Snapshot, *, key: str
) -> None:
    """Reject an offset of an operator on Jafka above the end, or where no entry is known to begin.

    `key`: the option of the offset. Raises SettingsError.
    """
    offsets = snapshot.readable.get(partition)
    end = 0
    if offsets:
        end = offsets.end_offset
    if partition.is_physical and partition not in snapshot.leaderless and offset > end:
        raise SettingsError(
            f"Offset {offset} is above {end}, the end of the partition",
            key=key,
            **partition.place,
            action="Check with `etl offsets show CONF`",
        )
    verified = _verification_of(partition, offset, snapshot)
    if offsets is None or verified is None or verified.is_entry:
        return
    before, after = _nearest_starts(verified, offsets)
    if verified.before is not None:
        message = f"No message begins at {offset}: it is inside the one from {before} to {after}"
        action = f"Pass the start of that message or its end: {before} or {after}"
    else:
        message = f"No message begins at {offset}: {verified.wrong}"
        if verified.is_entry is None:
            message = f"It is unknown whether a message begins at {offset}: {verified.wrong}"
        action = (
            "Find the start of a message (etl records show). The nearest offsets that the broker "
            f"reports are {before} and {after}"
        )
    raise SettingsError(message, key=key, **partition.place, action=action)


def _is_misaligned_reset(partition: TopicPartition, plan: Plan, snapshot: Snapshot) -> bool:
    """True if a stored reset ends inside an entry, as an earlier version stored that offset."""
    if (
        plan.kind is not PlanKind.RESET
        or not partition.is_physical
        or not plan.incarnations.get(partition)
    ):
        return False
    verified = _verification_of(partition, plan.loaded_until[partition], snapshot)
    return verified is not None and verified.is_entry is False


def correct_start_offsets(plan: Plan, before: Plan | None, snapshot: Snapshot) -> Plan:
    """Return a stored plan with current offsets in place of start offsets inside an entry.

    Only where another client moved the committed offset since; the lost offsets before it are
    computed again. `before`: the plan before it. Raises OffsetMoved for an offset below the
    loaded-until offset.
    """
    for partition, start in sorted(starts_of(plan).items()):
        verified = _verification_of(partition, start, snapshot)
        if verified is None or verified.is_entry is not False:
            continue
        committed = snapshot.committed.get(partition, NOTHING_COMMITTED)
        if committed.offset is None or committed.offset == start:
            continue
        if _is_set_by_others(plan, before, partition, start):
            plan = _start_at_committed(plan, partition, start, committed.offset, committed)
    return plan


def misaligned_partitions(
    plan: Plan, starts: Mapping[TopicPartition, int], snapshot: Snapshot
) -> list[TopicPartition]:
    """Return the partitions in which a stored plan begins inside an entry at its own offset.

    Such a partition was recreated or truncated, or is damaged.
    """
    found = []
    for partition, start in sorted(starts.items()):
        if _is_set_by_others(plan, None, partition, start):
            continue
        verified = _verification_of(partition, start, snapshot)
        if verified and verified.is_entry is False:
            found.append(partition)
    return found


def _is_set_by_others(
    plan: Plan, before: Plan | None, partition: TopicPartition, start: int
) -> bool:
    """True if another client set the plan's start offset.

    It moved the committed offset, or the partition was never read before.
    """
    if plan.number == 1 or (before is not None and partition not in before.loaded_until):
        return True
    return bool(_moved_to(plan, partition, start))


def name_damaged_plan(damaged: CorruptData, plan: Plan) -> CorruptData:
    """Return the error of reading a plan's ranges, with the plan and the command that skips.

    On Jafka a reader cannot distinguish damaged bytes from an offset inside a message. In the plan
    an offset that no other client set was the start of a message, so its bytes are damaged. Returns
    the error itself if its offset is not of that kind.
    """
    offset = damaged.where.get("offset")
    if offset is None:
        return damaged
    partitions = []
    for r in plan.ranges:
        is_same = all(damaged.where.get(name) == value for name, value in r.partition.place.items())
        if is_same and r.from_offset <= offset < r.until_offset:
            partitions.append(r.partition)
    if not partitions or plan.kind in (PlanKind.REPLAY, PlanKind.BACKFILL):
        return damaged
    partition = partitions[0]
    is_start = starts_of(plan).get(partition) == offset
    if partition.is_physical and is_start and _is_set_by_others(plan, None, partition, offset):
        return damaged
    cause = damaged.message.removeprefix(MisalignedOffset.FOUND_BY_READER)
    checks = damaged.action
    if isinstance(damaged, MisalignedOffset):
        checks = "Check the partition on the broker for damage"
    skipped = shlex.quote(f"{render_partition(partition)}:{offset}-UNTIL")
    action = (
        f"{checks}. To leave the damaged offsets out: `etl plans supersede CONF {plan.number} "
        f"--skip {skipped} --reason ...`, where UNTIL is the start of the next undamaged message"
    )
    message = f"Corrupt data in the offsets of plan {plan.number}: {cause}"
    return type(damaged)(message, action=action, **damaged.where)


def _start_at_committed(
    plan: Plan, partition: TopicPartition, start: int, offset: int, committed: Committed
) -> Plan:
    """Return the plan with another start offset in one partition."""
    incarnation = plan.incarnations.get(partition, 0)
    loaded_until = _loaded_before_move(plan, partition, start)
    if loaded_until is not None and offset < loaded_until:
        message = (
            f"The committed offset is {offset}, and the table has the rows below {loaded_until}: "
            "following it would load rows twice"
        )
        action = f"Check who set it, then set it to {loaded_until} or above"
        raise OffsetMoved(message, **partition.place, offset=offset, action=action)
    losses = []
    for loss in plan.losses.lost:
        if loss.partition != partition or loss.incarnation != incarnation:
            losses.append(loss)
    if loaded_until is not None and loaded_until < offset:
        losses.append(Loss(partition, loaded_until, offset, LossReason.MOVED, incarnation))
    ranges = [r for r in plan.ranges if r.partition != partition]
    planned = replace(plan.partitions[partition], loaded_until=offset, expected_commit=committed)
    return replace(
        plan.with_partitions({partition: planned}),
        ranges=tuple(ranges),
        losses=replace(plan.losses, lost=tuple(losses)),
    )


def _moved_to(plan: Plan, partition: TopicPartition, start: int) -> list[Loss]:
    """Return the losses up to the start offset that another client's move caused."""
    incarnation = plan.incarnations.get(partition, 0)
    found = []
    for loss in plan.losses.lost:
        is_of_partition = loss.partition == partition and loss.incarnation == incarnation
        if is_of_partition and loss.why is LossReason.MOVED and loss.until_offset == start:
            found.append(loss)
    return found


def _loaded_before_move(plan: Plan, partition: TopicPartition, start: int) -> int | None:
    """Return the loaded-until offset before another client moved the offset; None: not moved."""
    starts = [loss.from_offset for loss in _moved_to(plan, partition, start)]
    return min(starts, default=None)


def _misaligned_error(
    partition: TopicPartition,
    verified: LookedAt,
    snapshot: Snapshot,
    last: Plan | None,
    *,
    is_left: bool,
) -> MisalignedOffset:
    message = "No message begins at the committed offset"
    if is_left and last:
        message = (
            f"Plan {last.number} is stored and not in the table, "
            "and no message begins at its start in this partition"
        )
    if verified.before is not None and verified.after is not None:
        message += f": it is inside the one from {verified.before} to {verified.after}"
    elif verified.wrong:
        message += f": {verified.wrong}"
    offsets = snapshot.readable[partition]
    if is_left and last and _is_misaligned_reset(partition, last, snapshot):
        action = _repair_of_reset(partition, verified, offsets, last)
    elif is_left and last:
        action = _repair_of_stored_plan(partition, verified, snapshot, last)
    else:
        loaded_until = None
        if last:
            loaded_until = last.loaded_until.get(partition)
        action = _replacements(verified, offsets, loaded_until)
    return MisalignedOffset(message, action=action, **partition.place, offset=verified.offset)


def _repair_of_stored_plan(
    partition: TopicPartition, verified: LookedAt, snapshot: Snapshot, plan: Plan
) -> str:
    """Return what to do about a stored plan that begins inside an entry."""
    command = (
        f"`etl plans supersede CONF {plan.number} --reason ...`, which plans again from the "
        "committed offset"
    )
    committed = snapshot.committed.get(partition, NOTHING_COMMITTED).offset
    if committed is not None and committed != verified.offset:
        verified_now = _verification_of(partition, committed, snapshot)
        if verified_now is None or verified_now.is_entry:
            return f"Run {command}: it is {committed} now, the start of a message"
    loaded_until = None
    if partition in plan.loaded_until:
        loaded_until = _loaded_before_move(plan, partition, verified.offset)
    action = _replacements(verified, snapshot.readable[partition], loaded_until)
    action += f". Then run {command}"
    if loaded_until is None and plan.number > 1:
        accept = accept_command([render_partition(partition)], "--truncated-at OFFSET")
        action += (
            ". If no client set it, compare the partition's records with the table's (etl records "
            "show). If it is another partition, or lost its end and was written since, "
            f"{accept} continues at the end of the equal records, at 0 if it was recreated. If it "
            "is the same and damaged there, --skip leaves the damaged offsets out"
        )
    return action


def _repair_of_reset(
    partition: TopicPartition, verified: LookedAt, offsets: PartitionOffsets, plan: Plan
) -> str:
    """Return what to do about a stored `topics accept-changes` with a misaligned `--truncated-at`.

    Earlier versions stored such plans.
    """
    before, after = _nearest_starts(verified, offsets)
    skip = shlex.quote(render_intervals([(partition, verified.offset, after)]))
    return (
        "Find the offset up to which the partition's records are those in the table "
        f"(etl records show). If it is {after}, run `etl plans supersede CONF {plan.number} "
        f"--skip {skip} --reason ...`. If it is {before} or below, run "
        f"`etl topics accept-changes CONF -p {quoted_partition(partition)} "
        "--truncated-at OFFSET --reason ...`"
    )


def _replacements(verified: LookedAt, offsets: PartitionOffsets, loaded_until: int | None) -> str:
    """Return which offsets may replace a misaligned one, and what each of them skips or loads.

    `loaded_until`: the partition is in the table or lost up to there; None: it was never read.
    """
    before, after = _nearest_starts(verified, offsets)
    if loaded_until is not None:
        later_starts = [str(start) for start in (before, after) if start > loaded_until]
        later = " or ".join(later_starts)
        return (
            f"Check who set it. Set it back to {loaded_until}, the end of the loaded offsets: "
            "nothing is left out, nothing is loaded twice. "
            f"A message begins at {later}, too, and the offsets from {loaded_until} up to there "
            "are then left out"
        )
    if verified.before is not None:
        return (
            f"Check who set it. Set it to {before}: the message that begins there is loaded, also "
            f"if that consumer has read it. Or set it to {after}: that message is left out"
        )
    return (
        "Check who set it. Set it to the start of a message, as the partition's consumers commit "
        f"it. The broker reports {before} below it: all later messages are loaded, also those that "
        f"the consumer has read. It reports {after} above it: messages below that are left out"
    )


def _nearest_starts(verified: LookedAt, offsets: PartitionOffsets) -> tuple[int, int]:
    """Return the nearest starts of entries below and above, or the end of the partition."""
    if verified.before is not None and verified.after is not None:
        return verified.before, verified.after
    boundaries = offsets.boundaries or (offsets.log_start_offset, offsets.end_offset)
    above = bisect_right(boundaries, verified.offset)
    return boundaries[above - 1], boundaries[above]
