"""Where does a partition start, and what do the group's stored offsets mean?

    the partition                               starts at
    -----------------------------------------   ----------------------------------------------------
    has a committed offset of the group         that offset
    existed before and could not be read        its first record, or the first since a time: the
                                                pending start in the plan
    exists at the first run                     source.starting_offsets
    is of a topic that appeared later           source.new_topics_starting_offsets
    is a new partition of a known topic         its first record

Latest is the readable end: records of an open transaction are loaded later. If the start by time is
above the last stable offset, the partition waits for the end of the transaction. A start is decided
once, by the run that first observes the partition, also without a leader or with another owner, and
is stored in the plan (`PendingPartition`).

Jafka has no lookup by time. A partition that starts at latest but cannot be read when that is
decided starts at its first record, so that nothing is skipped.

Offsets are in ZooKeeper, in Kafka or in both (`group.offsets_storage`). In both, the larger one
counts, as with dual.commit.enabled of Kafka 0.8.2. After a plan is in the table, each place is
compared alone, because a crash between the two commits leaves one of them at the old offset:

    a place holds                                  it is
    --------------------------------------------   ------------------------------------------------
    the plan's position                            committed
    what the plan saw                              not committed yet: committed now
    in Kafka, an earlier plan's position           a driver paused before its commit: committed now
    nothing, in Kafka, where an offset was         expired (offsets.retention.minutes): committed
    nothing, in ZooKeeper                          removed by another client
    anything else                                  moved by another client: forwards by policy;
                                                   backwards stops the run

Under `follow` an offset of another client becomes the loaded-until offset, and the offsets in
between are recorded as lost. So it must be within the log: above the end nothing was skipped, and
later records would never be loaded. Offsets of topics that are not read now stay as they are until
the topic is read again.

Lives here: starts, and the comparison of committed offsets. Not here: offsets of group members
(etl/decide/member_offsets.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from etl.decide.recreated_or_truncated import accept_command
from etl.errors import OffsetMoved, SettingsError
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    OffsetsStorage,
    PartitionOffsets,
    TopicPartition,
)
from etl.model.plans import CommitState, PendingPartition, Plan, PlanKind
from etl.model.snapshot import Ledger, Snapshot, UpToDate
from etl.settings.choices import OnOffsetChanged, StartAt
from etl.settings.sections import Settings
from etl.settings.source import Timestamp


def start_of(
    partition: TopicPartition,
    snapshot: Snapshot,
    last: Plan | None,
    settings: Settings,
    topics: Collection[str] | None = None,
) -> int | None:
    """Return the first offset to read of a partition that was never read.

    None if its start time was not looked up, or is above the last stable offset. `last` is the
    newest plan, None at the first run; the snapshot must have the partition's offsets. `topics`:
    those of `known_topics`, if it is called for many partitions.
    """
    offsets = snapshot.readable[partition]
    committed = snapshot.committed.get(partition, NOTHING_COMMITTED).offset
    if committed is not None:
        return committed
    pending = None
    if last is not None:
        pending = last.pending.get(partition)
    if pending and pending.start_offset is not None:
        return min(max(offsets.log_start_offset, pending.start_offset), offsets.end_offset)
    if topics is None:
        topics = known_topics(last)
    rule = _start_rule(partition, last, settings, topics)
    if isinstance(rule, StartAt):
        if rule is StartAt.EARLIEST:
            return offsets.log_start_offset
        return offsets.end_offset
    found = snapshot.partition(partition).start_at_time
    if found is None:
        return None
    # A record that arrived after the extent was observed is above the observed end: whether the
    # records in between are older is not known yet.
    start = min(max(offsets.log_start_offset, found), offsets.end_offset + offsets.held_back)
    if start > offsets.end_offset:
        return None
    return start


def starts_of(plan: Plan) -> dict[TopicPartition, int]:
    """Return the loaded-until offset of each partition before this plan."""
    starts = dict(plan.loaded_until)
    for r in plan.advancing:
        starts[r.partition] = min(starts[r.partition], r.from_offset)
    return starts


def ends_by_ledger(ledger: Ledger) -> Mapping[TopicPartition, int]:
    """Return the offsets up to which the ledger's plans loaded each partition for certain.

    Without a result the newest plan may not be in the table, and its losses not be recorded.
    """
    if ledger.newest is None:
        return {}
    if ledger.applied is not None:
        return ledger.newest.loaded_until
    return _starts_before_losses(ledger.newest)


def _starts_before_losses(plan: Plan) -> dict[TopicPartition, int]:
    """Return the loaded-until offset of each partition before this plan's ranges and losses."""
    starts = starts_of(plan)
    for loss in sorted(plan.losses.lost, reverse=True):
        is_before_start = loss.until_offset == starts.get(loss.partition)
        if is_before_start and loss.incarnation == plan.incarnations.get(loss.partition, 0):
            starts[loss.partition] = loss.from_offset
    return starts


def timestamps_to_look_up(
    partitions: Iterable[TopicPartition],
    last: Plan | None,
    settings: Settings,
    committed: Mapping[TopicPartition, Committed],
) -> dict[TopicPartition, int]:
    """Return the start times of partitions that start at a time, in ms.

    A committed offset takes precedence.
    """
    known: set[TopicPartition] = set()
    if last:
        known.update(last.partitions)
        for partition, pending in last.pending.items():
            if pending.start_offset is not None:
                known.add(partition)
    topics = known_topics(last)
    times = {}
    for partition in partitions:
        if partition in known or committed.get(partition, NOTHING_COMMITTED).offset is not None:
            continue
        rule = _start_rule(partition, last, settings, topics)
        if not isinstance(rule, StartAt):
            times[partition] = rule
    return times


def pending_partitions(
    existing: Iterable[TopicPartition],
    positions: Mapping[TopicPartition, int],
    last: Plan | None,
    left_out: Mapping[TopicPartition, PartitionOffsets],
    settings: Settings,
    *,
    now_ms: int,
) -> dict[TopicPartition, PendingPartition]:
    """Return the decided starts of partitions that the next plan does not read yet.

    They are those of the last plan, also of partitions that do not exist now, and those of existing
    partitions without a loaded-until offset in the plan (`positions`). `left_out`: partitions with
    a leader that are not read now; their readable end is a start at latest.
    """
    pending: dict[TopicPartition, PendingPartition] = {}
    if last:
        for partition, decided in last.pending.items():
            if partition not in positions:
                pending[partition] = decided
    topics = known_topics(last)
    for partition in existing:
        if partition in positions or partition in pending:
            continue
        rule = _start_rule(partition, last, settings, topics)
        start_offset = None
        if rule is StartAt.LATEST and partition in left_out and not partition.is_physical:
            start_offset = left_out[partition].end_offset
        start_ms = _start_to_store(partition, rule, now_ms)
        pending[partition] = PendingPartition(start_ms, start_offset)
    return pending


def starts_anew(partition: TopicPartition, settings: Settings, now_ms: int) -> int | None:
    """Return the pending start of a partition of a new topic that cannot be read now."""
    return _start_to_store(partition, settings.source.new_topics_starting_offsets, now_ms)


def _start_to_store(partition: TopicPartition, rule: StartAt | int, now_ms: int) -> int | None:
    """Return a start as a time in ms; None for the first record."""
    if rule is StartAt.EARLIEST or partition.is_physical:
        # The first record is stored as a start too: otherwise a topic of which the first run could
        # read no partition would be a new topic later. Jafka cannot look times up, so there a
        # partition starts at its first record: nothing is passed over.
        return None
    if rule is StartAt.LATEST:
        # The latest record is a time until the partition can be read; then brokers look it up by
        # the timestamps of records, so by the clocks of producers and of this machine.
        return now_ms
    return int(rule)


def known_topics(last: Plan | None) -> frozenset[str]:
    """Return the topics with a loaded-until offset or a pending start; none before the first plan.

    A partition that is added to one of them is read from its first record.
    """
    if last is None:
        return frozenset()
    return last.known_topics.union(partition.topic for partition in last.pending)


def _start_rule(
    partition: TopicPartition, last: Plan | None, settings: Settings, topics: Collection[str]
) -> StartAt | int:
    """Return the first or the latest record, or the time of the first record to read, in ms.

    `topics`: see `known_topics`.
    """
    if last is None:
        start = settings.source.starting_offsets
        if isinstance(start, Timestamp):
            return start.ms
        return start
    pending = last.pending.get(partition)
    if pending:
        if pending.start_ms is None:
            return StartAt.EARLIEST
        return pending.start_ms
    if partition.topic in topics:
        return StartAt.EARLIEST
    return settings.source.new_topics_starting_offsets


_PLAN_METADATA = re.compile("([0-9]{1,18}):[0-9a-f]{32}")
"""Commit metadata of this pipeline, `Plan.commit_metadata`: plan number and uid."""


def both(zookeeper: Committed, kafka: Committed) -> Committed:
    """Return the larger of two offsets of one partition."""
    offsets = [offset for offset in (zookeeper.offset, kafka.offset) if offset is not None]
    differing = None
    if zookeeper.offset != kafka.offset:
        differing = (zookeeper.offset, kafka.offset)
    return Committed(max(offsets, default=None), zookeeper.znode_version, kafka.metadata, differing)


def place_moved(plan: Plan, partition: TopicPartition, found: Committed) -> Committed | None:
    """Return the offset that another client committed after `plan`.

    None: the plan's offset is committed, or still to be committed. If one of two places went back,
    its offset is returned, though the larger one counts.
    """
    position = plan.loaded_until[partition]
    seen = plan.expected_commits[partition]
    # Each place is compared with what the plan left in it: the larger offset may hide that the
    # other went back, and the next commit would undo that.
    moved = []
    if (
        plan.commit.storage is not OffsetsStorage.KAFKA
        and found.in_zookeeper.offset != position
        and found.in_zookeeper != seen.in_zookeeper
    ):
        moved.append(found.in_zookeeper)
    after_plan = Committed(position, None, plan.commit_metadata)
    if plan.commit.storage is not OffsetsStorage.ZOOKEEPER and is_anothers(
        found.in_kafka, seen.in_kafka, after_plan
    ):
        moved.append(found.in_kafka)
    for committed in moved:
        if committed.offset is None or committed.offset < position:
            return committed
    if moved:
        return found
    return None


def is_anothers(found: Committed, before: Committed, after: Committed) -> bool:
    """True if another client committed an offset in Kafka.

    A plan moves it from `before` to `after`, which has the plan's commit metadata.
    An earlier plan of this pipeline is no other client: its driver paused between read and write.
    """
    if found == before or found.offset in (None, after.offset):
        return False
    number_found = plan_that_moved(found)
    number_after = plan_that_moved(after)
    if number_found is None or number_after is None:
        return True
    return number_found >= number_after


def plan_that_moved(found: Committed) -> int | None:
    """Return the number of this pipeline's plan that committed this offset in Kafka.

    None: another client committed it.
    """
    match = _PLAN_METADATA.fullmatch(found.metadata or "")
    if match is None:
        return None
    return int(match[1])


def is_dropped(plan: Plan, partition: TopicPartition, found: Committed) -> bool:
    """True if an offset that this plan saw in Kafka has expired there."""
    # Brokers drop the offsets of a group without members. In ZooKeeper no offset expires, so a
    # missing one there was set back.
    is_in_kafka = plan.commit.storage is not OffsetsStorage.ZOOKEEPER
    return (
        is_in_kafka
        and found.in_kafka.offset is None
        and plan.expected_commits[partition].in_kafka.offset is not None
    )


def dropped_from(
    plan: Plan, committed: Mapping[TopicPartition, Committed]
) -> tuple[TopicPartition, ...]:
    """Return the partitions with an offset that has expired in Kafka."""
    if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
        return ()
    dropped = []
    for partition in plan.loaded_until:
        if is_dropped(plan, partition, committed.get(partition, NOTHING_COMMITTED)):
            dropped.append(partition)
    return tuple(dropped)


def as_if_stored_in(storage: OffsetsStorage, plan: Plan) -> Plan:
    """Return the plan as if it had been made with the present offset storage.

    A place without an offset gets the plan's. An offset that exists there is another client's:
    above the plan's, policy decides; below it, the run stops.
    """
    if plan.commit.storage is storage:
        return plan
    seen = {}
    for partition, before in plan.expected_commits.items():
        in_zookeeper = NOTHING_COMMITTED
        if plan.commit.storage is not OffsetsStorage.KAFKA:
            in_zookeeper = before.in_zookeeper
        in_kafka = NOTHING_COMMITTED
        if plan.commit.storage is not OffsetsStorage.ZOOKEEPER:
            in_kafka = before.in_kafka
        if storage is OffsetsStorage.ZOOKEEPER:
            seen[partition] = in_zookeeper
        elif storage is OffsetsStorage.KAFKA:
            seen[partition] = in_kafka
        else:
            seen[partition] = both(in_zookeeper, in_kafka)
    return replace(plan.with_expected(seen), commit=replace(plan.commit, storage=storage))


def off_position(found: Committed, position: int) -> int | None:
    """Return the offset to report of a partition that is not at `position`, in either place."""
    if found.differing:
        for offset in (found.in_zookeeper.offset, found.in_kafka.offset):
            if offset != position:
                return offset
    return found.offset


def in_zookeeper_alone(plan: Plan) -> Plan:
    """Return a plan that commits in both places, reduced to its commits in ZooKeeper."""
    seen = {partition: found.in_zookeeper for partition, found in plan.expected_commits.items()}
    commit = replace(plan.commit, storage=OffsetsStorage.ZOOKEEPER)
    return replace(plan.with_expected(seen), commit=commit)


def reject_other_offsets_storage(plan: Plan, storage: OffsetsStorage) -> None:
    """Reject a stored plan that commits offsets in another storage than the conf's.

    Raises SettingsError.
    """
    if plan.commit.storage is not storage:
        message = (
            f"Plan {plan.number} is stored and not in the table, and was made for offsets in "
            f"{plan.commit.storage.value}; group.offsets_storage is {storage.value} now"
        )
        action = (
            f"Set group.offsets_storage: {plan.commit.storage.value}, with which `etl run CONF` "
            "finishes the plan. Then change the key"
        )
        raise SettingsError(message, key="group.offsets_storage", action=action)


RESTORE = "etl ledger restore CONF --reason ..."
"""Command that sets committed offsets back to the loaded-until offsets."""
Ends = Mapping[TopicPartition, int | None]
"""End of each partition of the conf's topics, open transactions included; None: no leader. A
partition that is not in it is of a topic that is not read now.
"""


def ends_of(snapshot: Snapshot) -> Ends:
    """Return the observed ends, also of partitions that are left to their owners or paused."""
    ends: dict[TopicPartition, int | None] = {}
    for partition in (*snapshot.leaderless, *snapshot.owners, *snapshot.paused):
        ends[partition] = None
    for extents in (snapshot.readable, snapshot.left_out):
        for partition, offsets in extents.items():
            ends[partition] = offsets.end_offset + offsets.held_back
    return ends


def reject_beyond(
    plan: Plan, moved: Mapping[TopicPartition, Committed], ends: Ends, *, is_member: bool = False
) -> None:
    """Reject an offset above the end, or of a partition without a known end, if its topic is read.

    Raises OffsetMoved. `is_member`: other members may have read up to there before a truncation.
    """
    for partition, found in sorted(moved.items()):
        if found.offset is None or partition not in ends:
            continue
        end = ends[partition]
        if end is not None and found.offset <= end:
            continue
        ours = plan.loaded_until[partition]
        message = f"Another client moved a committed offset: it is {found.offset}, ours is {ours}"
        set_back = f"set it back to {ours}: {RESTORE}"
        if end is None:
            message += f", and the partition {partition.unled}, so the end of its log is unknown"
            if is_member:
                action = f"{partition.held_by}. The next run continues when its leader is back"
            else:
                action = f"{partition.held_by}. Or check which client set it, and {set_back}"
        else:
            message += f", and the log ends at {end}"
            if is_member:
                action = (
                    "Check whether the log was truncated below the offsets that other members had "
                    f"read. If so, they have its records from {ours} on: set the group's offset to "
                    f"{end} with the group's own tools. If no member has them, {set_back}"
                )
            else:
                action = (
                    "Check which other consumer of this group ran, or which client set it, "
                    f"and {set_back}"
                )
        raise OffsetMoved(message, **partition.place, offset=found.offset, action=action)


def of_another_incarnation(
    plan: Plan, found: int | None, partition: TopicPartition, stories: str | None
) -> OffsetMoved:
    """Return the error for an offset that may be of an earlier incarnation of the partition.

    To follow it would skip the first records of the present incarnation. `stories`: the plans that
    ledger and table have, if the ledger is older than a reset.
    """
    ours = plan.loaded_until[partition]
    if stories:
        message = (
            f"The ledger is older than the table: {stories}, and in between the log was truncated "
            f"or recreated; the committed offset is {found}, ours is {ours}"
        )
        action = (
            "Check whether ZooKeeper was restored from an old copy: the offset is then of an "
            "earlier incarnation of the partition"
        )
    else:
        message = (
            f"Another client moved a committed offset: it is {found}, ours is {ours}, "
            "since the log was truncated or recreated"
        )
        action = (
            "Check which other consumer of this group ran, or which client set it: it may be an "
            "offset of an earlier incarnation of the partition"
        )
    action += (
        f". Set it back to {ours} ({RESTORE}). "
        "Do not follow it: that would leave out records of the present incarnation"
    )
    return OffsetMoved(message, **partition.place, offset=found, action=action)


def is_of_a_later_plan(plan: Plan, found: Committed) -> bool:
    """True if a later plan of this pipeline committed this offset, by its metadata in Kafka."""
    number = plan_that_moved(found)
    return number is not None and number > plan.number


def of_a_lost_plan(plan: Plan, found: Committed, partition: TopicPartition) -> OffsetMoved:
    """Return the error for an offset committed by a plan that neither ledger nor table knows."""
    number = plan_that_moved(found)
    ours = plan.loaded_until[partition]
    message = (
        f"The offsets of plan {number} of this pipeline were committed, but neither ZooKeeper nor "
        f"the table has the plan: it moved the committed offset from {ours} to {found.offset}, "
        "and no other member reads the offsets in between"
    )
    action = (
        "Check whether ZooKeeper was emptied or restored from an old copy: a newer copy has the "
        f"plan. If there is none, set the offset back to {ours} ({RESTORE})"
    )
    return OffsetMoved(message, **partition.place, offset=found.offset, action=action)


def moved_offset(
    plan: Plan,
    moved: Mapping[TopicPartition, Committed],
    partition: TopicPartition,
    storage: OffsetsStorage | None = None,
    *,
    is_member: bool = False,
) -> OffsetMoved:
    """Return the error for offsets that are not followed, by policy or because they went back.

    The message names `partition` first. `storage`: the present storage of the offsets, if it may
    differ from the plan's. `is_member`: the run is a member of the group.
    """
    found = moved[partition].offset
    ours = plan.loaded_until[partition]
    more = ""
    if len(moved) > 1:
        more = f" (and {len(moved) - 1} more)"
    verb = "moved"
    if found is None:
        verb = "removed"
    message = f"Another client {verb} a committed offset: it is {found}, ours is {ours}{more}"
    if is_read_on_by_others(plan, partition, moved[partition]):
        action = (
            "Set group.mode: join, since this pipeline's runs were members of the group: they "
            "continue after the offsets that other members read since, and report them. Do not set "
            "the offset back: both would read those records. Do not set "
            "group.on_offset_changed: follow: it records them as lost"
        )
        return OffsetMoved(message, **partition.place, offset=found, action=action)
    if storage and plan.commit.storage not in (storage, OffsetsStorage.DUAL):
        before = plan.commit.storage.value
        message = (
            f"group.offsets_storage is {storage.value} now, and was {before} when plan "
            f"{plan.number} was made: the group's offset there is {found}, ours is {ours}{more}"
        )
        if is_member:
            action = (
                f"Check that no member of the group in {before} has read further since: a last run "
                f"with group.offsets_storage: {before} continues after the offsets that they read. "
                f"Once they are stopped, {RESTORE} sets the loaded-until offsets in the new storage"
            )
        else:
            action = (
                "Check whether the offset is older than the change of the key, or another consumer "
                f"of this group ran since. {RESTORE} sets the loaded-until offsets in the new "
                "storage"
            )
        return OffsetMoved(message, **partition.place, offset=found, action=action)
    action = (
        "Check which other consumer of this group ran, or which client set it. "
        f"Set it back to {ours} ({RESTORE})"
    )
    if found is not None and found > ours:
        action += ", or allow it with group.on_offset_changed: follow"
    else:
        action += ": to follow it would load rows twice"
    if found is None and plan.commit.storage is not OffsetsStorage.ZOOKEEPER:
        action += (
            ". A topic that is deleted takes its offsets in Kafka with it. If the topic was "
            f"recreated, run {accept_command([partition.topic])}"
        )
    return OffsetMoved(message, **partition.place, offset=found, action=action)


def two_stories(number: int, in_table: int) -> str:
    """Return the plans that table and ledger have, for a message."""
    in_table_text = "no plan of ours"
    if in_table:
        in_table_text = f"plan {in_table}"
    in_ledger_text = "no plan"
    if number:
        in_ledger_text = f"plan {number} as the newest"
    return f"the table holds {in_table_text}, ZooKeeper knows {in_ledger_text}"


def up_to_date_once_rebuilt(
    plan: Plan,
    known: Plan | None,
    committed: Mapping[TopicPartition, Committed],
    on_offset_changed: OnOffsetChanged,
    ends: Ends,
) -> UpToDate:
    """Return the state once the ledger is restored from the table.

    Offsets below those of the table's plan were committed by the lost ledger's plans, and are
    committed again. So are those that the plan saw, or that the ledger's own newest plan saw or
    committed: if they are above, a reset had moved them back.
    """
    known_incarnations: Mapping[TopicPartition, int] = {}
    if known:
        known_incarnations = known.incarnations
    outlived = set()
    for partition, incarnation in plan.incarnations.items():
        if incarnation != known_incarnations.get(partition, 0):
            outlived.add(partition)
    expecting = expected_after_restore(plan, known, committed)
    return up_to_date(expecting, committed, on_offset_changed, ends, outlived, known)


def expected_after_restore(
    plan: Plan, known: Plan | None, committed: Mapping[TopicPartition, Committed]
) -> Plan:
    """Return the table's plan, which expects the offsets that the lost ledger's plans committed.

    `known` is the newest plan that the ledger had.
    """
    seen = {}
    for partition, position in plan.loaded_until.items():
        found = committed.get(partition, NOTHING_COMMITTED)
        offset = found.offset
        seen[partition] = plan.expected_commits[partition]
        if offset == position:
            continue
        if offset is None or offset < position or offset in _own_offsets(partition, plan, known):
            seen[partition] = found
    return plan.with_expected(seen)


def _own_offsets(
    partition: TopicPartition, plan: Plan, known: Plan | None
) -> tuple[int | None, ...]:
    """Return the offsets that this pipeline's plans saw or committed."""
    own = _seen_by(plan, partition)
    if known and partition in known.loaded_until:
        own = (*own, *_seen_by(known, partition), known.loaded_until[partition])
    return own


def _seen_by(plan: Plan, partition: TopicPartition) -> tuple[int | None, ...]:
    """Return the partition's offset before the plan, which then moved it.

    Nothing for a member's plan, which moves only the partitions of its assignment.
    """
    if plan.commit.state.is_before_read:
        return ()
    return (plan.expected_commits[partition].offset,)


def up_to_date(
    plan: Plan,
    committed: Mapping[TopicPartition, Committed],
    on_offset_changed: OnOffsetChanged,
    ends: Ends,
    outlived: Collection[TopicPartition] = (),
    known: Plan | None = None,
    *,
    storage: OffsetsStorage | None = None,
) -> UpToDate:
    """Return the state if `plan` is in the table.

    `outlived`: partitions with a reset between the newest plan that the ledger had, `known`, and
    this plan. `storage`: the present storage of the offsets; None: the plan's. Raises OffsetMoved
    if policy does not follow an offset, or none could be followed.
    """
    as_made = plan
    if storage:
        plan = as_if_stored_in(storage, plan)
    uncommitted, moved = apart_from(plan, committed)
    # Kafka deletes a topic's offsets together with the topic: only existing topics count.
    existing = [partition for partition in dropped_from(plan, committed) if partition in ends]
    dropped = tuple(existing)
    if not moved:
        return UpToDate(plan, plan.loaded_until, uncommitted, dropped=dropped)
    back = []
    for partition, found in moved.items():
        if found.offset is None or found.offset < plan.loaded_until[partition]:
            back.append(partition)
    reset_by_plan = reset_partitions(plan)
    reset = [
        partition for partition in moved if partition in outlived or partition in reset_by_plan
    ]
    if not back and reset:
        # The ledger may be older than the reset, and the offset of the former incarnation.
        # Followed, it would pass over records of the present one.
        first = min(reset)
        stories = None
        if first in outlived:
            known_number = 0
            if known:
                known_number = known.number
            stories = two_stories(known_number, plan.number)
        raise of_another_incarnation(plan, moved[first].offset, first, stories)
    if not back:
        reject_beyond(plan, moved, ends)
    if on_offset_changed is OnOffsetChanged.FAIL or back:
        raise moved_offset(as_made, moved, min(back or moved), storage)
    followed = {}
    not_followed = {}
    for partition, found in moved.items():
        if found.offset is None:
            continue
        if partition in ends:
            followed[partition] = found.offset
        else:
            # Only ends of topics that are read now are known, so this offset may be outside its
            # log. It stays, and the next plan's `seen` is what this pipeline committed there:
            # otherwise that plan would set it back.
            not_followed[partition] = found.offset
    positions = {**plan.loaded_until, **followed}
    return UpToDate(plan, positions, uncommitted, followed, not_followed, dropped)


def apart_from(
    plan: Plan,
    committed: Mapping[TopicPartition, Committed],
) -> tuple[tuple[TopicPartition, ...], dict[TopicPartition, Committed]]:
    """Return the partitions with another offset than the plan's: not committed yet, and moved by
    other clients.
    """
    uncommitted: list[TopicPartition] = []
    moved: dict[TopicPartition, Committed] = {}
    for partition, position in plan.loaded_until.items():
        found = committed.get(partition, NOTHING_COMMITTED)
        if found.is_at(position):
            continue
        if is_read_on_by_others(plan, partition, found):
            moved[partition] = found
            continue
        by_another = place_moved(plan, partition, found)
        if by_another is None:
            uncommitted.append(partition)
        else:
            moved[partition] = by_another
    return tuple(uncommitted), moved


def is_read_on_by_others(plan: Plan, partition: TopicPartition, found: Committed) -> bool:
    """True if other members committed an offset above the plan's, though the plan saw it.

    A member's plan commits its assignment at its own offsets, no further.
    """
    is_of_member = plan.commit.state is not CommitState.AFTER_APPEND
    return is_of_member and found.offset is not None and found.offset > plan.loaded_until[partition]


def reset_partitions(plan: Plan) -> frozenset[TopicPartition]:
    """Return the partitions that this plan resets: truncated or recreated."""
    if plan.kind is PlanKind.RESET:
        return frozenset(interval.partition for interval in plan.losses.stale_rows)
    return frozenset()
