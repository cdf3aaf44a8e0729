"""Which offsets a backfill claims, and what it refuses. Pure functions of values.

    of the interval                                      what becomes of it
    --------------------------------------------------   ------------------------------------------------------------------------
    was never loaded, is nobody's, and the log has it    claimed
    is the live pipeline's, or another backfill's        SettingsError, which names it; left out where only what is missing is asked for
    is below the log's start                             DataLoss; left out where only what is retained is asked for
    is above the log's readable end                      SettingsError; NotYetReadable behind an open transaction, and for a time to come
    lies in a log that the live pipeline has not begun   SettingsError: a run first says where it begins
    lies in a log that was cut or made again since       NeedsDecision, unless all of it is the live pipeline's in the life of now

A bound by time is an offset from then on: the first record at that time or later, in each log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etl.decisions.backfills.claiming import Stretches
from etl.decisions.byte_positions.misplaced_offsets import refuse_named
from etl.decisions.coverage import OFFSETS_END, without
from etl.decisions.replaying import Found, Wanted
from etl.errors import BrokerUnreachable, DataLoss, NeedsDecision, NotYetReadable, SettingsError
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import Reservation, Reservations, Snapshot
from etl.settings.source import Timestamp


@dataclass(frozen=True, slots=True)
class Asked(Wanted):
    """What is to be backfilled. Without names: all partitions of the conf's topics."""

    asked: str = ""
    """The same in words, by which it is known again."""
    only_missing: bool = False
    """What nobody else has loaded or claims of it."""

    def covers(self, log: BrokerPartition) -> bool:
        """Whether the log is meant."""
        return not self.named or any(one.covers(log) for one in self.named)


def logs_of(asked: Asked, live: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """The logs that are meant; all can be read now, and the live pipeline has begun them. Raises
    SettingsError, BrokerUnreachable.
    """
    there = {*snapshot.extents, *snapshot.leaderless}
    for one in asked.named:
        if not any(one.covers(log) for log in there):
            what = f"the brokers have no {one}, or the conf does not name its topic"
            raise SettingsError(
                what,
                key="--topic" if one.log is None else "--partition",
                check="`etl offsets show CONF`",
            )
    logs = sorted(log for log in there if asked.covers(log))
    for log in logs:
        if log not in live.positions:
            what = "the pipeline has not begun this partition, so nobody knows yet what of it is left for a backfill"
            raise SettingsError(
                what,
                **log.place,
                check="`etl run CONF`, which decides where it begins; then say this again",
            )
        if log not in snapshot.extents:
            raise BrokerUnreachable(f"the partition {log.unled}", **log.place, check=log.held_by)
    return logs


def intervals_of(
    asked: Asked,
    logs: Iterable[BrokerPartition],
    found: Found,
    snapshot: Snapshot,
    *,
    now_ms: int,
) -> dict[BrokerPartition, tuple[int, int]]:
    """From and until of each log in which something is meant. Raises as the table of the module's
    docstring says.
    """
    if isinstance(asked.until, Timestamp) and asked.until.ms > now_ms:
        what = f"the interval is not over: its end is in the future by {(asked.until.ms - now_ms) / 1000:,.0f} s, by this machine's clock"
        raise NotYetReadable(
            what, key="--until", check="say it again then; what comes until then would be missing"
        )
    intervals, logs = {}, list(logs)
    _refuse_above_all_ends(asked, logs, snapshot)
    for log in logs:
        low, high = (
            bound if isinstance(bound, int) else found[log, bound.ms]
            for bound in (asked.from_, asked.until)
        )
        low = _retained(log, low, asked, snapshot)
        if low < high:
            _refuse_above_end(log, high, asked, snapshot)
            for offset, key in ((low, "--from"), (high, "--until")):
                refuse_named(log, offset, snapshot, key=key)
            intervals[log] = low, high
    if not intervals:
        what = "no record of these logs lies in the interval" + (
            ", and is retained" if asked.only_retained else ""
        )
        raise SettingsError(
            what, key="--from", check="--from and --until against the logs: `etl offsets show CONF`"
        )
    return intervals


def _retained(log: BrokerPartition, low: int, asked: Asked, snapshot: Snapshot) -> int:
    """Where the interval begins. A broker tells the first record at a time of those that it still
    has, so earlier ones may be meant.
    """
    start = snapshot.extents[log].log_start_offset
    is_gone = low < start if isinstance(asked.from_, int) else low <= start and start > 0
    if not is_gone or asked.only_retained:
        return max(low, start)
    if isinstance(asked.from_, int):
        what = f"offsets {low} to {start} are gone: the log starts at {start}"
    else:
        what = f"the log starts at {start}, so records of the interval may be gone"
    raise DataLoss(
        what,
        **log.place,
        offset=low,
        check="`--only-retained` loads what the log still has; or a later --from",
    )


def _refuse_above_all_ends(
    asked: Asked, logs: Iterable[BrokerPartition], snapshot: Snapshot
) -> None:
    """What is not there yet is the live pipeline's, but an interval of which no log has anything is
    meant otherwise.
    """
    highest = max(
        (
            extent.end_offset + extent.held_back
            for extent in map(snapshot.extents.__getitem__, logs)
        ),
        default=None,
    )
    if isinstance(asked.from_, int) and highest is not None and asked.from_ > highest:
        what = f"the interval begins at offset {asked.from_}, and the longest log ends at {highest}"
        raise SettingsError(
            what,
            key="--from",
            check="a number is an offset here; a time is written 2026-01-31T00:00:00+00:00",
        )


def _refuse_above_end(log: BrokerPartition, high: int, asked: Asked, snapshot: Snapshot) -> None:
    extent = snapshot.extents[log]
    if high <= extent.end_offset or asked.only_missing:  # what lies there is the live pipeline's
        return
    if high <= extent.end_offset + extent.held_back:
        what = f"the interval ends above the last stable offset {extent.end_offset}: a transaction is open there"
        raise NotYetReadable(
            what, **log.place, offset=high, check="once the transaction ends, say it again"
        )
    what = f"the interval ends at {high}, and the log at {extent.end_offset}"
    raise SettingsError(
        what, key="--until", **log.place, check=f"--until {extent.end_offset}, or less"
    )


def stretches_of(
    asked: Asked,
    intervals: Mapping[BrokerPartition, tuple[int, int]],
    live: Stretches,
    lives: Mapping[BrokerPartition, int],
    claims: Reservations,
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """What is claimed of each log; empty where all of it is somebody's already. `live`: what the
    live pipeline claims.

    Raises SettingsError where somebody else claims a part, unless only what is missing is asked
    for.
    """
    stretches = {}
    for log, interval in sorted(intervals.items()):
        held = [("the pipeline", part) for part in live.get(log, ())]
        held += [
            (f"backfill {one.name}", part)
            for one in claims
            if one.life_of(log) == lives.get(log, 0)
            for part in one.stretches.get(log, ())
        ]
        left = without(interval, (part for _, part in held))
        if left:
            _refuse_another_life(log, lives.get(log, 0))
        if left != [interval] and not asked.only_missing:
            raise _held(
                log,
                interval,
                next(one for one in held if without(interval, [one[1]]) != [interval]),
                left,
            )
        if left:
            stretches[log] = tuple(left)
    return stretches


def _refuse_another_life(log: BrokerPartition, life: int) -> None:
    """What the table has of a log under the lives before is told by no claim and by no row of the
    life of now.
    """
    if life:
        what = (
            "this partition was cut or made again since the pipeline began it, and what the table has of the interval from before "
            "that cannot be told from what is missing"
        )
        raise NeedsDecision(
            what,
            **log.place,
            check="`--topic TOPIC --partition PARTITION`, which leaves this partition out",
        )


def _held(
    log: BrokerPartition,
    interval: tuple[int, int],
    by: tuple[str, tuple[int, int]],
    left: list[tuple[int, int]],
) -> SettingsError:
    who, (start, until) = by
    low, high = max(start, interval[0]), min(until, interval[1])
    if until == OFFSETS_END:
        what = f"{who} loads this partition from offset {start} on, and the interval is {interval[0]} to {interval[1]}"
    else:
        what = (
            f"{who} has loaded offsets {low} to {high}, or will"
            if who.startswith("backfill")
            else f"{who} has loaded {low} to {high}"
        )
    free = ", ".join(f"{start} to {until}" for start, until in left) or "nothing of the interval"
    check = f"`--missing` fills only what nobody else loads ({free})"
    if who.startswith("backfill"):
        check += "; rows of it that somebody deleted since: `etl backfill abandon` of that one gives them back"
    else:
        check += "; what is loaded and is to be read again takes `etl replay`"
    return SettingsError(what, key="--from", **log.place, offset=low, check=check)


def refuse_other_bounds(claim: Reservation, asked: str) -> None:
    """A name stands for one backfill. Raises SettingsError."""
    if claim.asked != asked:
        what = f"backfill {claim.name} was begun {claim.asked}, and now it is asked for {asked}"
        check = f"another --name for another interval; `etl backfill resume CONF --name {claim.name}` goes on with that one"
        raise SettingsError(what, key="--name", check=check)
