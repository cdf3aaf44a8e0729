"""By which bytes a physical log is known again, and whether it still holds them. Pure functions of
values.

A log of the 0.7 family has neither epochs nor ids, and one that was cut or made again and is longer
by now looks like any other. So a plan keeps a digest of the bytes right before the end that it goes
by, and each run, and each task at its end, compares. The bytes are read before the old ones are
compared: what is kept of the new end is then of the same log.

What cannot tell: bytes that have expired, and logs of messages that are all alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etl.model.partitions import BrokerPartition, PartitionOffsets, Tail
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot

TAIL_BYTES = 1024
"""So many of a log are compared, or all of it where it holds fewer."""


def end_places(
    extents: Mapping[BrokerPartition, PartitionOffsets],
) -> dict[BrokerPartition, tuple[int, int]]:
    """Where the bytes lie by which the logs will be known: where they end, and how many they are."""
    places = {
        log: _place(extent.end_offset, extent) for log, extent in extents.items() if log.is_physical
    }
    return {log: place for log, place in places.items() if place[1]}


def known_places(
    plan: Plan | None, extents: Mapping[BrokerPartition, PartitionOffsets]
) -> dict[BrokerPartition, tuple[int, int]]:
    """Where the bytes lie that the plan knows, of logs that still reach from there to there."""
    tails = plan.tails if plan else {}
    return {
        log: (tail.until_offset, tail.size)
        for log, tail in tails.items()
        if log in extents
        and extents[log].log_start_offset <= tail.until_offset - tail.size
        and tail.until_offset <= extents[log].end_offset
    }


def kept_tails(
    plan: Plan | None, logs: Iterable[BrokerPartition], snapshot: Snapshot
) -> dict[BrokerPartition, Tail]:
    """What the next plan keeps of these logs: what lies before their ends now, also where it stops
    before that; else what was known.
    """
    known = plan.tails if plan else {}
    there = {
        log: snapshot.tails.get(log, ()) for log in snapshot.extents
    }  # one that is left to its owner is not compared
    kept = {
        log: max(there.get(log, ()), key=lambda tail: tail.until_offset, default=known.get(log))
        for log in logs
    }
    return {log: tail for log, tail in kept.items() if tail}


def holds_what_was_read(log: BrokerPartition, plan: Plan, snapshot: Snapshot) -> bool | None:
    """Whether the log still holds the bytes that the plan knows of it; None where nothing tells."""
    known, extent = plan.tails.get(log), snapshot.extents.get(log)
    if extent is None or known is None:
        return None
    if extent.end_offset < known.until_offset:
        return False
    there = [
        tail
        for tail in snapshot.tails.get(log, ())
        if (tail.until_offset, tail.size) == (known.until_offset, known.size)
    ]
    return known in there if there else None


def _place(until: int, extent: PartitionOffsets) -> tuple[int, int]:
    """The bytes before `until`, also where they are in several segments: the newest may hold one
    message, and that one may come again.
    """
    return until, min(TAIL_BYTES, until - extent.log_start_offset)
