"""What is said of a committed offset that another client moved, and how far one may be followed.
Pure functions of values.

An offset that is followed becomes a position, and what lies before it is told lost. So it must be
one of the log: above the end nothing was passed over, and what comes there later would never be
loaded. Where a log ends is asked for the topics that are read now, so an offset of any other is
left where it is until its topic is read again: the position stays, and nothing is told lost of what
nobody was to load.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from etl.decisions.identity.made_again import accept_command
from etl.decisions.offsets_storage import dropped_from, place_moved, plan_that_moved
from etl.errors import OffsetMoved
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed, OffsetsStorage
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import Snapshot, UpToDate
from etl.settings.choices import OnMoved

RESTORE = "etl offsets restore CONF --from-table --reason ..."
"""What sets offsets back to the positions."""
Ends = Mapping[BrokerPartition, int | None]
"""Up to where each log reaches that the conf names, also behind an open transaction; None: nobody
leads it, so nobody tells.
"""


def ends_of(snapshot: Snapshot) -> Ends:
    """The ends that were observed, also of logs that are left to their owners or paused."""
    extents = {**snapshot.extents, **snapshot.extents_left_alone}
    ends = {log: extent.end_offset + extent.held_back for log, extent in extents.items()}
    return {**dict.fromkeys((*snapshot.leaderless, *snapshot.owners, *snapshot.paused)), **ends}


def refuse_beyond(
    plan: Plan, moved: Mapping[BrokerPartition, Committed], ends: Ends, *, is_member: bool = False
) -> None:
    """Raises OffsetMoved for an offset above its log's end, and for one of which nobody can tell,
    where its topic is read now.

    `is_member`: others may have read up to there, before the log was cut.
    """
    for log, found in sorted(moved.items()):
        end, ours = ends.get(log), plan.positions[log]
        if found.offset is None or log not in ends or (end is not None and found.offset <= end):
            continue
        what = f"somebody else moved a committed offset: it is {found.offset}, ours is {ours}, and "
        if end is None:
            what += f"the partition {log.unled}, so nobody tells whether its log reaches so far"
            check = (
                f"{log.held_by}: the next run goes on once that is known"
                if is_member
                else (f"{log.held_by}; or who set it, and set it back to {ours}: {RESTORE}")
            )
        else:
            what += f"the log ends at {end}"
            check = f"which other consumer of this group ran or who set it; set it back to {ours}: {RESTORE}"
            if is_member:
                check = (
                    f"whether the log was cut below what other members had read: then they have what it holds from {ours} on, and the "
                    f"group's offset is to be set to {end}, as the group's own tools do it; if nobody has that, to {ours}: {RESTORE}"
                )
        raise OffsetMoved(what, **log.place, offset=found.offset, check=check)


def of_another_log(
    plan: Plan, found: int | None, log: BrokerPartition, stories: str | None
) -> OffsetMoved:
    """The error for an offset that may be of another log: following it would pass over the first
    records of the log of now.

    `stories`: what ledger and table each know, where the ledger is older than a reset.
    """
    ours = plan.positions[log]
    if stories:
        what = (
            f"the ledger is older than the table: {stories}, and in between the log was cut or made again; the committed offset is "
            f"{found}, ours is {ours}"
        )
        check = "that ZooKeeper was restored from a copy; the offset is then of the log that was"
    else:
        what = f"somebody else moved a committed offset: it is {found}, ours is {ours}, since the log was cut or made again"
        check = "which other consumer of this group ran or who set it; it may be an offset of the log that was"
    check += f": set it back to {ours} ({RESTORE}). To follow it would leave out records of the log of now"
    return OffsetMoved(what, **log.place, offset=found, check=check)


def is_of_a_later_plan(plan: Plan, found: Committed) -> bool:
    """Whether a plan of this pipeline moved the offset that came after `plan`, by the word beside
    it in Kafka.
    """
    number = plan_that_moved(found)
    return number is not None and number > plan.number


def of_a_lost_plan(plan: Plan, found: Committed, log: BrokerPartition) -> OffsetMoved:
    """The error for an offset that a plan moved as it was handed over, where neither ledger nor
    table knows that plan any more.
    """
    number, ours = plan_that_moved(found), plan.positions[log]
    what = (
        f"plan {number} of this pipeline was handed over, and neither ZooKeeper nor the table has it: it moved the committed offset "
        f"from {ours} to {found.offset}, and nobody else reads what lies between"
    )
    check = f"that ZooKeeper was emptied or restored from an old copy: a newer one has the plan; else set it back to {ours} ({RESTORE})"
    return OffsetMoved(what, **log.place, offset=found.offset, check=check)


def moved_offset(
    plan: Plan,
    moved: Mapping[BrokerPartition, Committed],
    log: BrokerPartition,
    storage: OffsetsStorage | None = None,
) -> OffsetMoved:
    """The error for offsets that are not followed, by policy or because they went backwards; `log`
    is the one that is named.

    `storage`: where members look for them now.
    """
    found, ours, others = moved[log].offset, plan.positions[log], len(moved) - 1
    more = f" (and {others} more)" if others else ""
    if storage and plan.offsets_in is not storage:
        before = plan.offsets_in.value
        what = (
            f"offsets.storage is {storage.value} now, and was {before} when plan {plan.number} was made: the group's offset there is "
            f"{found}, ours is {ours}{more}"
        )
        check = (
            f"that no member of the group in {before} has read on since: a last run with offsets.storage: {before} goes on behind "
            f"what they read; once they are stopped, {RESTORE} sets the positions in the new place"
        )
        return OffsetMoved(what, **log.place, offset=found, check=check)
    what = f"somebody else {'removed' if found is None else 'moved'} a committed offset: it is {found}, ours is {ours}{more}"
    if is_read_on_by_others(plan, log, moved[log]):
        check = (
            "ownership.mode: join, under which this pipeline's runs were members of the group: they go on behind what other members "
            "read since, and name it. Set back, it would be read by both; under source.on_moved: follow it is told lost"
        )
        return OffsetMoved(what, **log.place, offset=found, check=check)
    check = (
        f"which other consumer of this group ran or who set it; set it back to {ours} ({RESTORE})"
    )
    check += (
        ", or allow it with source.on_moved: follow"
        if found is not None and found > ours
        else (": to follow it would load rows twice")
    )
    if found is None and plan.offsets_in is not OffsetsStorage.ZOOKEEPER:
        check += (
            "; a topic that is deleted takes its offsets in Kafka with it: one that was made again is gone on with by "
            f"{accept_command([log.topic])}"
        )
    return OffsetMoved(what, **log.place, offset=found, check=check)


def two_stories(number: int, in_table: int) -> str:
    held = f"plan {in_table}" if in_table else "no plan of ours"
    return f"the table holds {held}, ZooKeeper knows " + (
        f"plan {number} as the newest" if number else "no plan"
    )


def up_to_date_once_rebuilt(
    plan: Plan,
    known: Plan | None,
    committed: Mapping[BrokerPartition, Committed],
    on_moved: OnMoved,
    ends: Ends,
) -> UpToDate:
    """The state once the ledger is rebuilt: offsets below the positions of the table's plan are the
    lost ledger's, and are moved again.

    So are those that the plan saw, or that the ledger's own newest plan saw or left: where they lie
    above, a reset had moved them back.
    """
    lives = known.log_epochs if known else {}
    outlived = {log for log, life in plan.log_epochs.items() if life != lives.get(log, 0)}
    return up_to_date(
        seen_once_rebuilt(plan, known, committed), committed, on_moved, ends, outlived, known
    )


def seen_once_rebuilt(
    plan: Plan, known: Plan | None, committed: Mapping[BrokerPartition, Committed]
) -> Plan:
    """The table's plan, which expects the lost ledger's own offsets where they are; `known` is the
    newest plan that the ledger had.
    """
    found = {log: committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
    apart = {
        log: there.offset for log, there in found.items() if there.offset != plan.positions[log]
    }
    behind = {
        log
        for log, at in apart.items()
        if at is None or at < plan.positions[log] or at in _of_our_own(log, plan, known)
    }
    return replace(
        plan, seen={log: found[log] if log in behind else plan.seen[log] for log in found}
    )


def _of_our_own(log: BrokerPartition, plan: Plan, known: Plan | None) -> tuple[int | None, ...]:
    mine = (*_seen_by(known, log), known.positions[log]) if known and log in known.positions else ()
    return *_seen_by(plan, log), *mine


def _seen_by(plan: Plan, log: BrokerPartition) -> tuple[int | None, ...]:
    """Where the log's offset was before the plan, which it then moved: among members an offset of
    others' logs is theirs.
    """
    return (plan.seen[log].offset,) if plan.handed_over is None else ()


def up_to_date(
    plan: Plan,
    committed: Mapping[BrokerPartition, Committed],
    on_moved: OnMoved,
    ends: Ends,
    outlived: Collection[BrokerPartition] = (),
    known: Plan | None = None,
) -> UpToDate:
    """The state where `plan` is in the table. `outlived`: logs with a reset between what the ledger
    knew, `known`, and this plan.
    """
    uncommitted, moved = apart_from(plan, committed)
    dropped = tuple(
        log for log in dropped_from(plan, committed) if log in ends
    )  # with its topic goes what the group had of it
    if not moved:
        return UpToDate(plan, plan.positions, uncommitted, dropped=dropped)
    back = [
        log
        for log, found in moved.items()
        if found.offset is None or found.offset < plan.positions[log]
    ]
    gone = [log for log in moved if log in outlived or log in _reset_by(plan)]
    if not back and gone:
        stories = (
            two_stories(known.number if known else 0, plan.number)
            if min(gone) in outlived
            else None
        )
        raise of_another_log(plan, moved[min(gone)].offset, min(gone), stories)
    if not back:
        refuse_beyond(plan, moved, ends)
    if on_moved is OnMoved.FAIL or back:
        raise moved_offset(plan, moved, min(back or moved))
    to = {log: found.offset for log, found in moved.items() if found.offset is not None}
    followed, not_followed = (
        {log: at for log, at in to.items() if (log in ends) is is_read} for is_read in (True, False)
    )
    return UpToDate(
        plan, {**plan.positions, **followed}, uncommitted, followed, not_followed, dropped
    )


def apart_from(
    plan: Plan,
    committed: Mapping[BrokerPartition, Committed],
) -> tuple[tuple[BrokerPartition, ...], dict[BrokerPartition, Committed]]:
    """The logs whose offset is not where `plan` leaves it: those that are still as it saw them, and
    those that somebody else moved.
    """
    uncommitted, moved = [], {}
    for log, position in plan.positions.items() if plan.moves_offsets else ():
        found = committed.get(log, NOTHING_COMMITTED)
        if found.is_at(position):
            continue
        if is_read_on_by_others(plan, log, found):
            moved[log] = found
        elif by_another := place_moved(plan, log, found):
            moved[log] = by_another
        else:
            uncommitted.append(log)
    return tuple(uncommitted), moved


def is_read_on_by_others(plan: Plan, log: BrokerPartition, found: Committed) -> bool:
    """Whether an offset beyond the position is other members', though the plan saw it there: those
    of a member's share are moved to its positions, and no further."""
    is_of_member = plan.handed_over is not None or plan.is_of_member
    return is_of_member and found.offset is not None and found.offset > plan.positions[log]


def _reset_by(plan: Plan) -> frozenset[BrokerPartition]:
    """The logs that this plan resets: cut, or made again."""
    return (
        frozenset(gone.log for gone in plan.vanished)
        if plan.kind is PlanKind.RESET
        else frozenset()
    )
