"""Where a log starts: one that this pipeline never read, and each in a plan. Pure functions of
values.

    the log                                            starts at
    ------------------------------------------------   ---------------------------------------------------------------------
    has an offset that the group committed             that offset: an older consumer read up to there
    was there before and could not be read             its first record, or the first one since a moment: as the plan keeps for it
    is there at the first run                          source.start
    is of a topic that is there for the first time     source.start_new_topics
    is a new partition of a known topic                its first record

The latest record is the readable end: what lies behind an open transaction becomes readable later,
and is loaded. A moment is a bound for the records themselves: a log whose start by time lies behind
an open transaction waits for the transaction's end.

A start is decided once, by the run that first hears of the log, also where nobody leads it then or
somebody else owns it. The plan keeps the decision (`pending_starts`) until the log can be read.
"Latest" is then the readable end of that time where it was known, as it is of a log that is paused
or owned by somebody else (`pending_offsets`): a producer may give later records earlier timestamps.
Where nobody led the log it is a moment. "The first record" is kept, too: else a topic of which the
first run could read no partition would be taken for one that is there for the first time.

In a physical log (0.7 family) no moment can be looked up: messages have no times. One that starts
at the latest record and cannot be read when that is decided starts at its first record, so that
nothing is passed over; and so does a broker that was away at the first run, for nobody knew then of
its logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import Timestamp


def start_of(
    log: BrokerPartition, snapshot: Snapshot, last: Plan | None, settings: Settings
) -> int | None:
    """The first offset to read of a log that was never read; None where the moment that it starts
    at was not asked for, or lies behind an open transaction.

    `last` is the newest plan, None for the first run; the snapshot has the log's extent.
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


def moments_to_ask(
    logs: Iterable[BrokerPartition],
    last: Plan | None,
    settings: Settings,
    committed: Mapping[BrokerPartition, Committed],
) -> dict[BrokerPartition, int]:
    """Of these logs, those that start at a moment: milliseconds since the epoch. One that starts at
    a committed offset is not asked for.
    """
    known: Collection[BrokerPartition] = {*last.positions, *last.pending_offsets} if last else ()
    starts_there = {log for log, told in committed.items() if told.offset is not None}
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
    """What the next plan keeps: where logs start that are `there` and have no position in that
    plan; see `Plan.pending_starts`.
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
    """What the next plan keeps of those `starts` that are at the latest record: the readable end of
    logs that are led, but not read now.
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
    """What a plan keeps for a log of a topic that is there for the first time, and that cannot be
    read now.
    """
    return _kept(log, settings.source.start_new_topics, now_ms)


def _kept(log: BrokerPartition, rule: StartAt | int, now_ms: int) -> int | None:
    if rule is StartAt.EARLIEST or log.is_physical:
        return None
    return now_ms if rule is StartAt.LATEST else int(rule)


def _rule(log: BrokerPartition, last: Plan | None, settings: Settings) -> StartAt | int:
    """The first or the latest record, or the moment of the first one to read."""
    if last is None:
        start = settings.source.start
        return start.ms if isinstance(start, Timestamp) else start
    if log in last.pending_starts:
        moment = last.pending_starts[log]
        return StartAt.EARLIEST if moment is None else moment
    topics = {other.topic for logs in (last.positions, last.pending_starts) for other in logs}
    return StartAt.EARLIEST if log.topic in topics else settings.source.start_new_topics
