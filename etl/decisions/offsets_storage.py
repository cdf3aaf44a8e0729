"""What offsets mean that a group keeps in ZooKeeper, in Kafka, or in both (`offsets.storage`). Pure
functions of values.

Kept in both, the larger one counts, as with the consumers of Kafka 0.8.2 and later
(dual.commit.enabled):

    ZooKeeper    Kafka       what is read
    ----------   ---------   -----------------------------------------------------------
    none         none        none
    none         an offset   that one
    an offset    none        that one
    an offset    as large    that one
    smaller      larger      the larger one, whichever side it is on, and that they differ

Behind a plan that is in the table each place is looked at for itself, since a crash between the two
leaves one of them behind:

    a place holds                                  it is
    --------------------------------------------   ----------------------------------------------------------------
    the plan's position                            there, whoever wrote it
    what the plan saw                              not moved yet: moved now
    in Kafka what an earlier plan of ours moved    a driver that slept before it wrote: moved now
    nothing, in Kafka, where there was something   forgotten: brokers drop the offsets of a group that nobody is in
                                                   (offsets.retention.minutes, a week), so it is moved again
    nothing else, in ZooKeeper                     moved by another client, who removed it
    anything else                                  moved by another client: forwards it is followed or not by policy,
                                                   and one place that went back stops the run, wherever the other is

So a position is never looked for by `source.start` again because a group was forgotten, and a
rewind of one place is told, not undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from etl.errors import SettingsError
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed, OffsetsStorage
from etl.model.plans import Plan

_OURS = re.compile("([0-9]{1,18}):[0-9a-f]{32}")
"""`Plan.word`."""


def both(zookeeper: Committed, kafka: Committed) -> Committed:
    """What counts of an offset that is kept in two places: the larger one."""
    found = [offset for offset in (zookeeper.offset, kafka.offset) if offset is not None]
    apart = None if zookeeper.offset == kafka.offset else (zookeeper.offset, kafka.offset)
    return Committed(max(found, default=None), zookeeper.version, kafka.word, apart)


def place_moved(plan: Plan, log: BrokerPartition, found: Committed) -> Committed | None:
    """What another client made of the log's offset behind `plan`; None: nothing, it is there or
    still to be moved.

    Of two places the one that went back, where one did: its offset is told then, though the larger
    one counts.
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
    """Whether an offset in Kafka is another client's, where one of ours is to go from `before` to
    `after`, which has our word.

    It is not where an earlier plan of this pipeline wrote it: its driver read, slept, and wrote
    when others had gone on.
    """
    if found == before or found.offset in (None, after.offset):
        return False
    theirs, ours = plan_that_moved(found), plan_that_moved(after)
    return not (theirs is not None and ours is not None and theirs < ours)


def plan_that_moved(found: Committed) -> int | None:
    """The number of the plan of this pipeline that moved this offset in Kafka; None: somebody else
    did, whatever word stands beside it.
    """
    ours = _OURS.fullmatch(found.word or "")
    return int(ours[1]) if ours else None


def is_dropped(plan: Plan, log: BrokerPartition, found: Committed) -> bool:
    """Whether Kafka knows nothing any more of an offset that this plan saw there."""
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


def seen_in(storage: OffsetsStorage, plan: Plan) -> Plan:
    """The plan in the table as if it had been made where offsets are kept now: behind it a place
    that has none yet gets the positions.

    An offset that is there already is another client's, and stays so: above a position it is
    followed or not by policy, and below it stops the run.
    """
    if plan.offsets_in is storage:
        return plan
    seen: dict[BrokerPartition, Committed] = {}
    for log, was in plan.seen.items():
        kept = (
            was.in_zookeeper if plan.offsets_in is not OffsetsStorage.KAFKA else NOTHING_COMMITTED
        )
        told = (
            was.in_kafka if plan.offsets_in is not OffsetsStorage.ZOOKEEPER else NOTHING_COMMITTED
        )
        seen[log] = {
            OffsetsStorage.ZOOKEEPER: kept,
            OffsetsStorage.KAFKA: told,
            OffsetsStorage.DUAL: both(kept, told),
        }[storage]
    return replace(plan, seen=seen, offsets_in=storage)


def off_position(found: Committed, position: int) -> int | None:
    """The offset to tell of one that is not at its position, in whichever place."""
    sides = (found.in_zookeeper.offset, found.in_kafka.offset) if found.apart else (found.offset,)
    return next((offset for offset in sides if offset != position), found.offset)


def in_zookeeper_alone(plan: Plan) -> Plan:
    """What a plan that moves offsets in both places moves in this one."""
    return replace(
        plan,
        seen={log: found.in_zookeeper for log, found in plan.seen.items()},
        offsets_in=OffsetsStorage.ZOOKEEPER,
    )


def refuse_another_storage(plan: Plan, storage: OffsetsStorage) -> None:
    """Raises SettingsError for a stored plan that is to move offsets where they were kept when it
    was made.
    """
    if plan.moves_offsets and plan.offsets_in is not storage:
        what = (
            f"plan {plan.number} is stored and not in the table, and was made for offsets in {plan.offsets_in.value}; "
            f"offsets.storage is {storage.value} now"
        )
        check = f"with offsets.storage: {plan.offsets_in.value} `etl run CONF` finishes it; change the key then"
        raise SettingsError(what, key="offsets.storage", check=check)
