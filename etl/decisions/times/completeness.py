"""Whether logs are complete up to a time, so that hardly a record of an earlier time is still to
come. Pure.

No broker can say so for certain: a producer may send an old record late at any time. What a run is
begun by is one of two signs: the log holds a record of that time or later, or the time is past by a
grace that covers how late records come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from etl.model.partitions import BrokerPartition, in_order


def incomplete_logs(
    first_at: Mapping[BrokerPartition, int | None],
    *,
    until_ms: int,
    now_ms: int,
    grace_s: float,
    unled: Collection[BrokerPartition] = (),
) -> tuple[BrokerPartition, ...]:
    """Those that are not known to be complete up to `until_ms` (milliseconds since 1970).

    `first_at`: the first offset of each log whose record is at that time or later; None where none
    is, and of logs without times. Before that time no log is complete, whatever lies in it: a
    producer's clock may be ahead. `unled`: logs without a leader with which a run would stop; no
    clock makes them complete.
    """
    is_past = now_ms >= until_ms + grace_s * 1000
    late = (
        log
        for log, offset in first_at.items()
        if not is_past and (offset is None or now_ms < until_ms)
    )
    return tuple(in_order({*late, *unled}))
