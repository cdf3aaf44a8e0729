"""What is said of a committed offset that somebody else moved, and how far one may be followed. Pure functions of values.

An offset that is followed becomes a position, and what lies before it is told lost. So it must be one of the log: above the end nothing
was passed over, and what comes there later would never be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from etl.errors import OffsetMoved
from etl.model.plans import BrokerPartition, Committed, Plan, Snapshot

Ends = Mapping[BrokerPartition, int | None]
"""Up to where each log reaches that the conf names, also behind an open transaction; None: nobody leads it, so nobody tells."""

NO_ENDS: Ends = MappingProxyType({})


def ends_of(snapshot: Snapshot) -> Ends:
    """Those that were observed, also of logs that are left to their owners."""
    extents = {**snapshot.extents, **snapshot.extents_of_owned}
    ends = {log: extent.end_offset + extent.held_back for log, extent in extents.items()}
    return {**dict.fromkeys((*snapshot.leaderless, *snapshot.owners)), **ends}


def refuse_beyond(plan: Plan, moved: Mapping[BrokerPartition, Committed], ends: Ends) -> None:
    """Raises OffsetMoved for an offset above its log's end, and for one of which nobody can tell."""
    for log, found in sorted(moved.items()):
        end, ours = ends.get(log), plan.positions[log]
        if found.offset is None or log not in ends or (end is not None and found.offset <= end):
            continue
        what = f"somebody else moved a committed offset: it is {found.offset}, ours is {ours}, and "
        if end is None:
            what += "the partition has no leader that tells whether its log reaches so far"
            check = f"the brokers that hold its replicas; or who set it, and set it back to {ours}"
        else:
            what += f"the log ends at {end}"
            check = f"which other consumer of this group ran or who set it; set it back to {ours}"
        raise OffsetMoved(what, topic=log.topic, partition=log.partition, offset=found.offset, check=check)


def of_another_log(plan: Plan, found: int | None, log: BrokerPartition, stories: str | None) -> OffsetMoved:
    """To follow it would pass over the first records of the log that is there now, and they would never be loaded.

    `stories`: what ledger and table each know, where the ledger is older than a reset.
    """
    ours = plan.positions[log]
    if stories:
        what = (
            f"the ledger is older than the table: {stories}, and in between the log was cut or made again; the committed offset is "
            f"{found}, ours is {ours}")
        check = "that ZooKeeper was restored from a copy; the offset is then of the log that was"
    else:
        what = f"somebody else moved a committed offset: it is {found}, ours is {ours}, since the log was cut or made again"
        check = "which other consumer of this group ran or who set it; it may be an offset of the log that was"
    check += f": set it back to {ours}. To follow it would leave out records of the log of now"
    return OffsetMoved(what, topic=log.topic, partition=log.partition, offset=found, check=check)


def moved_offset(plan: Plan, moved: Mapping[BrokerPartition, Committed], log: BrokerPartition) -> OffsetMoved:
    """What policy, or that it went backwards, forbids to follow; `log` is the one that is named."""
    found, ours, others = moved[log].offset, plan.positions[log], len(moved) - 1
    what = f"somebody else {'removed' if found is None else 'moved'} a committed offset: it is {found}, ours is {ours}"
    if others:
        what += f" (and {others} more)"
    check = f"which other consumer of this group ran or who set it; set it back to {ours}"
    check += ", or allow it with source.on_moved: follow" if found is not None and found > ours else (
        ": to follow it would load rows twice")
    return OffsetMoved(what, topic=log.topic, partition=log.partition, offset=found, check=check)
