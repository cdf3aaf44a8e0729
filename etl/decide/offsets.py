"""Where does a partition start, and what do the group's stored offsets mean?

    the partition                               starts at
    -----------------------------------------   ----------------------------------------------------
    has an offset that the group committed      that offset
    existed before and could not be read        its first record, or the first since a time: as the
                                                plan keeps for it
    exists at the first run                     source.starting_offsets
    is of a topic that appeared later           source.new_topics_starting_offsets
    is a new partition of a known topic         its first record

Latest is the readable end: records behind an open transaction are loaded later. A partition whose
start by time lies behind an open transaction waits for its end. A start is decided once, by the run
that first sees the partition, also without a leader or with another owner, and kept in the plan
(`pending_starts`; `pending_offsets` where latest is known as an offset).

On Jafka no time can be looked up. A partition that starts at latest but cannot be read when that is
decided starts at its first record, so that nothing is skipped.

Offsets in ZooKeeper, in Kafka or in both (`group.offsets_storage`). In both, the larger one counts, as
with dual.commit.enabled of Kafka 0.8.2. After a plan is in the table, each place is judged alone,
because a crash between the two leaves one behind:

    a place holds                                  it is
    --------------------------------------------   ------------------------------------------------
    the plan's position                            committed
    what the plan saw                              not committed yet: committed now
    in Kafka, an earlier plan's position           a driver slept before its write: committed now
    nothing, in Kafka, where an offset was         expired (offsets.retention.minutes): committed
    nothing, in ZooKeeper                          removed by another client
    anything else                                  moved by another client: forwards by policy;
                                                   backwards stops the run

An offset of another client that is followed becomes a position, and what it skips is lost. So it
must lie within the log: beyond the end nothing was skipped, and later records would never be
loaded. Offsets of topics that are not read now are left until they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from etl.decide.partition_identity import accept_command
from etl.errors import OffsetMoved, SettingsError
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed, OffsetsStorage
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import Snapshot, UpToDate
from etl.settings.choices import OnOffsetChanged, StartAt
from etl.settings.sections import Settings
from etl.settings.source import Timestamp


def start_of(
    log: BrokerPartition, snapshot: Snapshot, last: Plan | None, settings: Settings
) -> int | None:
    """Return the first offset to read of a partition that was never read; None if its start time
    was not looked up, or lies behind an open transaction. `last` is the newest plan, None at the
    first run; the snapshot has the partition's offsets.
    """
    extent, rule = snapshot.extents[log], _rule(log, last, settings)
    committed = snapshot.committed.get(log, NOTHING_COMMITTED).offset
    if committed is not None:
        return committed
    if last is not None and log in last.pending_offsets:
        return min(max(extent.log_start_offset, last.pending_offsets[log]), extent.end_offset)
    if isinstance(rule, StartAt):
        return extent.log_start_offset if rule is StartAt.EARLIEST else extent.end_offset
    found = snapshot.starts.get(log)
    if found is None:
        return None
    # a record that came after the extent was read lies above its end: what is between is not yet
    # known to be older
    start = min(max(extent.log_start_offset, found), extent.end_offset + extent.held_back)
    return start if start <= extent.end_offset else None


def starts_of(plan: Plan) -> dict[BrokerPartition, int]:
    """The position of every log before this plan."""
    starts = dict(plan.positions)
    for r in plan.advancing:
        starts[r.log] = min(starts[r.log], r.from_offset)
    return starts


def timestamps_to_look_up(
    logs: Iterable[BrokerPartition],
    last: Plan | None,
    settings: Settings,
    committed: Mapping[BrokerPartition, Committed],
) -> dict[BrokerPartition, int]:
    """Return the start times of partitions that start at a time, in ms. A committed offset takes
    precedence.
    """
    known: Collection[BrokerPartition] = {*last.positions, *last.pending_offsets} if last else ()
    starts_there = {log for log, found in committed.items() if found.offset is not None}
    rules = {
        log: _rule(log, last, settings)
        for log in logs
        if log not in known and log not in starts_there
    }
    return {log: rule for log, rule in rules.items() if not isinstance(rule, StartAt)}


def pending_starts(
    there: Iterable[BrokerPartition],
    positions: Mapping[BrokerPartition, int],
    last: Plan | None,
    settings: Settings,
    *,
    now_ms: int,
) -> dict[BrokerPartition, int | None]:
    """Return the pending starts of the next plan, of existing partitions without a position in it;
    see `Plan.pending_starts`.
    """
    kept = {
        log: moment
        for log, moment in (last.pending_starts if last else {}).items()
        if log not in positions
    }
    unread = (log for log in there if log not in positions)
    return {**kept, **{log: _kept(log, _rule(log, last, settings), now_ms) for log in unread}}


def pending_offsets(
    starts: Mapping[BrokerPartition, int | None],
    last: Plan | None,
    snapshot: Snapshot,
    settings: Settings,
) -> dict[BrokerPartition, int]:
    """Return the pending offsets of `starts` at latest: readable ends of partitions with a leader
    that are not read now.
    """
    kept = {
        log: offset
        for log, offset in (last.pending_offsets if last else {}).items()
        if log in starts
    }
    decided = last.pending_starts if last else {}
    for log, extent in snapshot.extents_left_alone.items():
        if (
            log in starts
            and log not in decided
            and not log.is_physical
            and _rule(log, last, settings) is StartAt.LATEST
        ):
            kept[log] = extent.end_offset
    return kept


def starts_anew(log: BrokerPartition, settings: Settings, now_ms: int) -> int | None:
    """Return the pending start of a partition of a new topic that cannot be read now."""
    return _kept(log, settings.source.new_topics_starting_offsets, now_ms)


def _kept(log: BrokerPartition, rule: StartAt | int, now_ms: int) -> int | None:
    if rule is StartAt.EARLIEST or log.is_physical:
        return None
    return now_ms if rule is StartAt.LATEST else int(rule)


def _rule(log: BrokerPartition, last: Plan | None, settings: Settings) -> StartAt | int:
    """The first or the latest record, or the moment of the first one to read."""
    if last is None:
        start = settings.source.starting_offsets
        return start.ms if isinstance(start, Timestamp) else start
    if log in last.pending_starts:
        moment = last.pending_starts[log]
        return StartAt.EARLIEST if moment is None else moment
    topics = {other.topic for logs in (last.positions, last.pending_starts) for other in logs}
    return StartAt.EARLIEST if log.topic in topics else settings.source.new_topics_starting_offsets


_OURS = re.compile("([0-9]{1,18}):[0-9a-f]{32}")
"""`Plan.word`."""


def both(zookeeper: Committed, kafka: Committed) -> Committed:
    """Return the larger of two offsets of one partition."""
    found = [offset for offset in (zookeeper.offset, kafka.offset) if offset is not None]
    apart = None if zookeeper.offset == kafka.offset else (zookeeper.offset, kafka.offset)
    return Committed(max(found, default=None), zookeeper.version, kafka.word, apart)


def place_moved(plan: Plan, log: BrokerPartition, found: Committed) -> Committed | None:
    """Return the offset that another client wrote after `plan`; None: it is there, or still to be
    committed. Of two places the one that went back is returned, though the larger one counts.
    """
    position, seen = plan.positions[log], plan.seen[log]
    moved = []
    if (
        plan.offsets_in is not OffsetsStorage.KAFKA
        and found.in_zookeeper.offset != position
        and found.in_zookeeper != seen.in_zookeeper
    ):
        moved.append(found.in_zookeeper)
    ours = Committed(position, None, plan.word)
    if plan.offsets_in is not OffsetsStorage.ZOOKEEPER and is_anothers(
        found.in_kafka, seen.in_kafka, ours
    ):
        moved.append(found.in_kafka)
    back = next((now for now in moved if now.offset is None or now.offset < position), None)
    return back or (found if moved else None)


def is_anothers(found: Committed, before: Committed, after: Committed) -> bool:
    """True if an offset in Kafka is another client's, where ours goes from `before` to `after`,
    which has our metadata. An earlier plan of this pipeline is no other client: its driver slept
    between read and write.
    """
    if found == before or found.offset in (None, after.offset):
        return False
    theirs, ours = plan_that_moved(found), plan_that_moved(after)
    return not (theirs is not None and ours is not None and theirs < ours)


def plan_that_moved(found: Committed) -> int | None:
    """Return the number of this pipeline's plan that committed this offset in Kafka; None: another
    client did.
    """
    ours = _OURS.fullmatch(found.word or "")
    return int(ours[1]) if ours else None


def is_dropped(plan: Plan, log: BrokerPartition, found: Committed) -> bool:
    """True if an offset that this plan saw in Kafka has expired there."""
    is_in_kafka = plan.moves_offsets and plan.offsets_in is not OffsetsStorage.ZOOKEEPER
    return (
        is_in_kafka and found.in_kafka.offset is None and plan.seen[log].in_kafka.offset is not None
    )


def dropped_from(
    plan: Plan, committed: Mapping[BrokerPartition, Committed]
) -> tuple[BrokerPartition, ...]:
    """The logs of which that is so."""
    if plan.offsets_in is OffsetsStorage.ZOOKEEPER:
        return ()
    return tuple(
        log
        for log in plan.positions
        if is_dropped(plan, log, committed.get(log, NOTHING_COMMITTED))
    )


def as_if_stored_in(storage: OffsetsStorage, plan: Plan) -> Plan:
    """Return the plan as if it had been made with today's offset storage: a place without an offset
    gets the position. An existing offset is another client's: above a position policy decides,
    below it the run stops.
    """
    if plan.offsets_in is storage:
        return plan
    seen: dict[BrokerPartition, Committed] = {}
    for log, was in plan.seen.items():
        if plan.offsets_in is not OffsetsStorage.KAFKA:
            kept = was.in_zookeeper
        else:
            kept = NOTHING_COMMITTED
        if plan.offsets_in is not OffsetsStorage.ZOOKEEPER:
            in_kafka = was.in_kafka
        else:
            in_kafka = NOTHING_COMMITTED
        seen[log] = {
            OffsetsStorage.ZOOKEEPER: kept,
            OffsetsStorage.KAFKA: in_kafka,
            OffsetsStorage.DUAL: both(kept, in_kafka),
        }[storage]
    return replace(plan, seen=seen, offsets_in=storage)


def off_position(found: Committed, position: int) -> int | None:
    """Return the offset to report of one that is not at its position, in whichever place."""
    sides = (found.in_zookeeper.offset, found.in_kafka.offset) if found.apart else (found.offset,)
    return next((offset for offset in sides if offset != position), found.offset)


def in_zookeeper_alone(plan: Plan) -> Plan:
    """Return what a plan that commits in both places commits in this one."""
    return replace(
        plan,
        seen={log: found.in_zookeeper for log, found in plan.seen.items()},
        offsets_in=OffsetsStorage.ZOOKEEPER,
    )


def reject_other_offsets_storage(plan: Plan, storage: OffsetsStorage) -> None:
    """Raises SettingsError for a stored plan that is to move offsets where they were kept when it
    was made.
    """
    if plan.moves_offsets and plan.offsets_in is not storage:
        message = (
            f"Plan {plan.number} is stored and not in the table, and was made for offsets in {plan.offsets_in.value}; "
            f"group.offsets_storage is {storage.value} now"
        )
        action = f"With group.offsets_storage: {plan.offsets_in.value} `etl run CONF` finishes it; change the key then"
        raise SettingsError(message, key="group.offsets_storage", action=action)


RESTORE = "etl ledger restore CONF --reason ..."
"""Command that sets offsets back to the positions."""
Ends = Mapping[BrokerPartition, int | None]
"""End of each partition of the conf's topics, open transactions included; None: no leader."""


def ends_of(snapshot: Snapshot) -> Ends:
    """The ends that were observed, also of logs that are left to their owners or paused."""
    extents = {**snapshot.extents, **snapshot.extents_left_alone}
    ends = {log: extent.end_offset + extent.held_back for log, extent in extents.items()}
    return {**dict.fromkeys((*snapshot.leaderless, *snapshot.owners, *snapshot.paused)), **ends}


def reject_beyond(
    plan: Plan, moved: Mapping[BrokerPartition, Committed], ends: Ends, *, is_member: bool = False
) -> None:
    """Reject an offset above the end, or of a partition without a known end, if its topic is read
    now. Raises OffsetMoved. `is_member`: others may have read up to there before a truncation.
    """
    for log, found in sorted(moved.items()):
        end, ours = ends.get(log), plan.positions[log]
        if found.offset is None or log not in ends or (end is not None and found.offset <= end):
            continue
        message = (
            f"Somebody else moved a committed offset: it is {found.offset}, ours is {ours}, and "
        )
        if end is None:
            message += f"the partition {log.unled}, so nobody tells whether its log reaches so far"
            if is_member:
                action = f"{log.held_by}. The next run continues when its leader is back"
            else:
                action = f"{log.held_by}. Or check who set it, and set it back to {ours}: {RESTORE}"
        else:
            message += f"the log ends at {end}"
            action = f"Check which other consumer of this group ran or who set it; set it back to {ours}: {RESTORE}"
            if is_member:
                action = (
                    f"Check whether the log was cut below what other members had read: then they have what it holds from {ours} on, and the "
                    f"group's offset is to be set to {end}, as the group's own tools do it; if nobody has that, to {ours}: {RESTORE}"
                )
        raise OffsetMoved(message, **log.place, offset=found.offset, action=action)


def of_another_log(
    plan: Plan, found: int | None, log: BrokerPartition, stories: str | None
) -> OffsetMoved:
    """The error for an offset that may be of another log: following it would pass over the first
    records of the log of now.

    `stories`: what ledger and table each know, where the ledger is older than a reset.
    """
    ours = plan.positions[log]
    if stories:
        message = (
            f"The ledger is older than the table: {stories}, and in between the log was cut or made again; the committed offset is "
            f"{found}, ours is {ours}"
        )
        action = (
            "Check that ZooKeeper was restored from a copy; the offset is then of the log that was"
        )
    else:
        message = f"Somebody else moved a committed offset: it is {found}, ours is {ours}, since the log was cut or made again"
        action = "Check which other consumer of this group ran or who set it; it may be an offset of the log that was"
    action += f": set it back to {ours} ({RESTORE}). To follow it would leave out records of the log of now"
    return OffsetMoved(message, **log.place, offset=found, action=action)


def is_of_a_later_plan(plan: Plan, found: Committed) -> bool:
    """True if a later plan of this pipeline committed this offset, by its metadata in Kafka."""
    number = plan_that_moved(found)
    return number is not None and number > plan.number


def of_a_lost_plan(plan: Plan, found: Committed, log: BrokerPartition) -> OffsetMoved:
    """Return the error for an offset committed by a plan that neither ledger nor table knows."""
    number, ours = plan_that_moved(found), plan.positions[log]
    message = (
        f"Plan {number} of this pipeline was handed over, and neither ZooKeeper nor the table has it: it moved the committed offset "
        f"from {ours} to {found.offset}, and nobody else reads what lies between"
    )
    action = f"Check whether ZooKeeper was emptied or restored from an old copy: a newer one has the plan; else set it back to {ours} ({RESTORE})"
    return OffsetMoved(message, **log.place, offset=found.offset, action=action)


def moved_offset(
    plan: Plan,
    moved: Mapping[BrokerPartition, Committed],
    log: BrokerPartition,
    storage: OffsetsStorage | None = None,
) -> OffsetMoved:
    """Return the error for offsets that are not followed, by policy or because they went back;
    `log` is named first. `storage`: where members keep them now.
    """
    found, ours, others = moved[log].offset, plan.positions[log], len(moved) - 1
    more = f" (and {others} more)" if others else ""
    if storage and plan.offsets_in is not storage:
        before = plan.offsets_in.value
        message = (
            f"group.offsets_storage is {storage.value} now, and was {before} when plan {plan.number} was made: the group's offset there is "
            f"{found}, ours is {ours}{more}"
        )
        action = (
            f"Check that no member of the group in {before} has read on since: a last run with group.offsets_storage: {before} goes on behind "
            f"what they read; once they are stopped, {RESTORE} sets the positions in the new place"
        )
        return OffsetMoved(message, **log.place, offset=found, action=action)
    message = f"Somebody else {'removed' if found is None else 'moved'} a committed offset: it is {found}, ours is {ours}{more}"
    if is_read_on_by_others(plan, log, moved[log]):
        action = (
            "Set group.mode: join, under which this pipeline's runs were members of the group: they continue behind what other members "
            "read since, and name it. Set back, it would be read by both; under group.on_offset_changed: follow it is told lost"
        )
        return OffsetMoved(message, **log.place, offset=found, action=action)
    action = f"Check which other consumer of this group ran or who set it; set it back to {ours} ({RESTORE})"
    action += (
        ", or allow it with group.on_offset_changed: follow"
        if found is not None and found > ours
        else (": to follow it would load rows twice")
    )
    if found is None and plan.offsets_in is not OffsetsStorage.ZOOKEEPER:
        action += (
            "; a topic that is deleted takes its offsets in Kafka with it: one that was made again is gone on with by "
            f"{accept_command([log.topic])}"
        )
    return OffsetMoved(message, **log.place, offset=found, action=action)


def two_stories(number: int, in_table: int) -> str:
    held = f"plan {in_table}" if in_table else "no plan of ours"
    return f"the table holds {held}, ZooKeeper knows " + (
        f"plan {number} as the newest" if number else "no plan"
    )


def up_to_date_once_rebuilt(
    plan: Plan,
    known: Plan | None,
    committed: Mapping[BrokerPartition, Committed],
    on_offset_changed: OnOffsetChanged,
    ends: Ends,
) -> UpToDate:
    """The state once the ledger is rebuilt: offsets below the positions of the table's plan are the
    lost ledger's, and are moved again.

    So are those that the plan saw, or that the ledger's own newest plan saw or left: where they lie
    above, a reset had moved them back.
    """
    lives = known.incarnations if known else {}
    outlived = {log for log, life in plan.incarnations.items() if life != lives.get(log, 0)}
    return up_to_date(
        expected_after_restore(plan, known, committed),
        committed,
        on_offset_changed,
        ends,
        outlived,
        known,
    )


def expected_after_restore(
    plan: Plan, known: Plan | None, committed: Mapping[BrokerPartition, Committed]
) -> Plan:
    """The table's plan, which expects the lost ledger's own offsets where they are; `known` is the
    newest plan that the ledger had.
    """
    found = {log: committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
    apart = {
        log: there.offset for log, there in found.items() if there.offset != plan.positions[log]
    }
    lagging = {
        log
        for log, at in apart.items()
        if at is None or at < plan.positions[log] or at in _of_our_own(log, plan, known)
    }
    return replace(
        plan, seen={log: found[log] if log in lagging else plan.seen[log] for log in found}
    )


def _of_our_own(log: BrokerPartition, plan: Plan, known: Plan | None) -> tuple[int | None, ...]:
    mine = (*_seen_by(known, log), known.positions[log]) if known and log in known.positions else ()
    return *_seen_by(plan, log), *mine


def _seen_by(plan: Plan, log: BrokerPartition) -> tuple[int | None, ...]:
    """Return the partition's offset before the plan, which then moved it; a member's plan moves its
    own partitions only.
    """
    return (plan.seen[log].offset,) if plan.handed_over is None else ()


def up_to_date(
    plan: Plan,
    committed: Mapping[BrokerPartition, Committed],
    on_offset_changed: OnOffsetChanged,
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
        if min(gone) in outlived:
            stories = two_stories(known.number if known else 0, plan.number)
        else:
            stories = None
        raise of_another_log(plan, moved[min(gone)].offset, min(gone), stories)
    if not back:
        reject_beyond(plan, moved, ends)
    if on_offset_changed is OnOffsetChanged.FAIL or back:
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
    """Return the partitions whose offset differs from the plan's: as the plan saw it, and moved by
    others.
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
    """True if an offset beyond the position is other members', though the plan saw it: those of a
    member's assignment are committed at its positions, no further.
    """
    is_of_member = plan.handed_over is not None or plan.is_of_member
    return is_of_member and found.offset is not None and found.offset > plan.positions[log]


def _reset_by(plan: Plan) -> frozenset[BrokerPartition]:
    """Return the partitions that this plan resets: truncated or recreated."""
    if plan.kind is PlanKind.RESET:
        return frozenset(gone.log for gone in plan.vanished)
    return frozenset()
