"""Which offsets does a replay read again, and what does it reject?

A replay removes the rows of an interval and writes what the log holds now, in one commit. So it
touches nothing that it could not restore or that this pipeline did not load:

    offsets of the interval            decision
    --------------------------------   -------------------------------------------------------------
    loaded, and the log holds them     read again
    below the log start                DataLoss; rows kept with `--only-retained`
    not loaded, or skipped             SettingsError: a run or a backfill loads them; by time, left
                                       out beyond the position
    reserved by a backfill             SettingsError
    of another incarnation             SettingsError: other records have these offsets now

Positions and the group's offsets stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.group_ownership import owned_by
from etl.decide.loaded_intervals import unloaded
from etl.decide.partition_identity import record_epochs, reject_recreated_or_truncated
from etl.decide.plan import shape_of_rows
from etl.decide.tasks import boundaries_of, split_ranges
from etl.errors import BrokerUnreachable, DataLoss, NeedsDecision, SettingsError
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Named
from etl.model.plans import NO_BOUNDS, OffsetRange, Plan, PlanKind
from etl.model.snapshot import LoadedIntervals, Snapshot, UpToDate
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

GIVEN_UP = "the replay was given up, and its rows are as they were"


Bound = int | Timestamp
"""A bound of an interval: an offset, or the first record at or after a time."""
Found = Mapping[tuple[BrokerPartition, int], int]
"""The offset of the first record of a log at a moment, in milliseconds, or later; its end where
there is none.
"""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to replay."""

    named: tuple[Named, ...]
    """A topic, or partitions of it."""
    from_: Bound
    until: Bound
    only_retained: bool = False
    """Only what is still retained: rows whose records are gone stay."""

    def __post_init__(self) -> None:
        if isinstance(self.from_, int) is not isinstance(self.until, int):
            return
        low, high = (
            bound if isinstance(bound, int) else bound.ms for bound in (self.from_, self.until)
        )
        if low >= high:
            message = "The interval is empty" if low == high else "The interval runs backwards"
            raise SettingsError(
                message,
                key="--from",
                action="Pass --from and --until: the first is included, the second is not",
            )

    def covers(self, log: BrokerPartition) -> bool:
        """True if the request includes the partition."""
        return any(one.covers(log) for one in self.named)

    def offsets_of(self, log: BrokerPartition) -> tuple[int, ...]:
        """Which of the log's offsets are named."""
        if self.covers(log):
            return tuple(bound for bound in (self.from_, self.until) if isinstance(bound, int))
        return ()


def wanted_logs(wanted: ReplayRequest, last: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """The logs that are meant, of those that the pipeline knows; all can be read now.

    Raises SettingsError for a name that stands for none of them, BrokerUnreachable, Owned.
    """
    for one in wanted.named:
        if not any(one.covers(log) for log in last.positions):
            knows = ", ".join(sorted(last.topics)) or "none"
            message = f"This pipeline has loaded nothing of {one}"
            raise SettingsError(
                message,
                key="--topic" if one.log is None else "--partition",
                action=f"Check its topics and partitions: {knows}",
            )
    logs = sorted(log for log in last.positions if wanted.covers(log))
    owned = {log: snapshot.owners[log] for log in logs if log in snapshot.owners}
    if owned:
        raise owned_by(owned)
    for log in logs:
        if log not in snapshot.extents:
            if log not in snapshot.leaderless:
                message = (
                    "The brokers do not know this partition, or the conf does not name its topic"
                )
                raise SettingsError(
                    message,
                    key="--topic",
                    **log.place,
                    action="Check source.topics, and whether it was deleted",
                )
            raise BrokerUnreachable(f"The partition {log.unled}", **log.place, action=log.held_by)
    return logs


def moments_of(
    wanted: ReplayRequest, logs: Iterable[BrokerPartition]
) -> list[tuple[BrokerPartition, int]]:
    """Return the times to look up, per partition in ms. Raises SettingsError if partitions have no
    times.
    """
    moments = [bound.ms for bound in (wanted.from_, wanted.until) if isinstance(bound, Timestamp)]
    wanted_moments = [(log, moment) for log in logs for moment in moments]
    physical = next((log for log, _ in wanted_moments if log.is_physical), None)
    if physical:
        message = "Messages of these brokers have no times"
        action = "Pass offsets, as the table's column offset has them: --from OFFSET --until OFFSET, for one partition each"
        raise SettingsError(message, **physical.place, key="--from", action=action)
    return wanted_moments


def intervals_of(
    wanted: ReplayRequest,
    logs: Iterable[BrokerPartition],
    found: Found,
    last: Plan,
    snapshot: Snapshot,
    loaded: LoadedIntervals,
) -> dict[BrokerPartition, tuple[int, int]]:
    """Return start and end of each partition that is read again. Raises as the module's table."""
    intervals = {}
    for log in logs:
        low, high = (
            bound if isinstance(bound, int) else found[log, bound.ms]
            for bound in (wanted.from_, wanted.until)
        )
        start, position = snapshot.extents[log].log_start_offset, last.positions[log]
        if isinstance(wanted.until, Timestamp):
            high = min(high, position)
        lost_from = _lost_from(log, low, wanted, last, snapshot, loaded)
        if wanted.only_retained:
            low = max(low, start)
        elif lost_from is not None:
            raise _expired(log, lost_from, start)
        if low < high:
            _reject_claimed(log, low, high, last, snapshot)
            _reject_unloaded(log, low, high, last, loaded)
            reject_misaligned_offset(log, low, snapshot, key="--from")
            reject_misaligned_offset(log, high, snapshot, key="--until")
            intervals[log] = low, high
        elif (
            isinstance(wanted.from_, int)
            and isinstance(wanted.until, int)
            and not wanted.only_retained
        ):
            raise SettingsError(
                "The interval is empty", key="--from", **log.place, action="Pass --from and --until"
            )
    if not intervals:
        message = "Nothing that this pipeline has loaded lies in the interval" + (
            ", and is retained" if wanted.only_retained else ""
        )
        raise SettingsError(
            message,
            key="--from",
            action="Compare --from and --until with the offsets of `etl offsets show CONF`",
        )
    return intervals


def _lost_from(
    log: BrokerPartition,
    low: int,
    wanted: ReplayRequest,
    last: Plan,
    snapshot: Snapshot,
    loaded: LoadedIntervals,
) -> int | None:
    """Return the first offset that may be meant, has a row, and lies below the log start. Brokers
    find only retained records by time: if it is their very first one, earlier ones may be meant.
    """
    start = snapshot.extents[log].log_start_offset
    if isinstance(wanted.from_, int):
        return low if low < start else None
    below = [
        one.from_offset
        for one in loaded.intervals.get(log, ())
        if one.incarnation == last.incarnations.get(log, 0)
    ]
    return min(below) if low <= start and below and min(below) < start else None


def _expired(log: BrokerPartition, low: int, start: int) -> DataLoss:
    message = f"Rows from offset {low} on may be in the interval, and their records are gone: the log starts at {start}"
    action = "The rows could not be loaded again. `--only-retained` replays what the log still has, and leaves the rows before it as they are"
    return DataLoss(message, **log.place, offset=low, action=action)


def _reject_claimed(
    log: BrokerPartition, low: int, high: int, last: Plan, snapshot: Snapshot
) -> None:
    for claim in snapshot.claims.of(snapshot.table.id if snapshot.table else None):
        if claim.incarnation_of(log) != last.incarnations.get(log, 0):
            continue
        met = [
            (max(low, start), min(high, until))
            for start, until in claim.stretches.get(log, ())
            if start < high and low < until
        ]
        if met:
            start, until = met[0]
            who = f"were loaded by backfill {claim.name}, or will be, and a replay is of what runs have loaded"
            message = f"Offsets {start} to {until} of it {who}"
            action = (
                "Check the parts around them, each by a replay of its own; rows of the backfill that somebody deleted: `etl backfills "
                f"delete CONF {claim.name} --reason ...` gives them back, for another backfill"
            )
            raise SettingsError(message, key="--from", **log.place, offset=start, action=action)


def _reject_unloaded(
    log: BrokerPartition, low: int, high: int, last: Plan, loaded: LoadedIntervals
) -> None:
    position, life = last.positions[log], last.incarnations.get(log, 0)
    if high > position:
        message = (
            f"This partition is loaded up to offset {position}, and the interval ends at {high}"
        )
        raise SettingsError(
            message,
            key="--until",
            **log.place,
            action=f"Pass --until {position}; what lies behind it the next run loads",
        )
    held = [
        one for intervals in (loaded.intervals, loaded.given_up) for one in intervals.get(log, ())
    ]
    hole = unloaded(
        [(one.from_offset, one.until_offset) for one in held if one.incarnation == life], low, high
    )
    if hole is None:
        return
    message = f"Offsets {hole[0]} to {hole[1]} of it were never loaded by this pipeline"
    action = (
        "Check the parts around them, each by a replay of its own; what was never loaded takes a backfill, which says what other members of "
        "the group have read of it"
    )
    if any(
        one.incarnation != life and one.from_offset < hole[1] and hole[0] < one.until_offset
        for one in held
    ):
        message = f"The rows of offsets {hole[0]} to {hole[1]} are of an earlier life of the log (incarnation), before it was cut or made again"
        action = "Pass offsets from which the present log was read; rows of an earlier life cannot be read again"
    raise SettingsError(message, key="--from", **log.place, action=action)


def plan_replay(
    state: UpToDate,
    intervals: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    settings: Settings,
    *,
    reason: str | None,
    now_ms: int,
) -> Plan:
    """Return the plan after the last one, without its id and its count of existing rows. Raises
    NeedsDecision if a partition is another one by now.
    """
    last, table = state.last, snapshot.table
    reject_recreated_or_truncated(
        last,
        snapshot,
        {log: min(at, state.positions.get(log, at)) for log, at in last.positions.items()},
    )
    if table is None:
        raise NeedsDecision(
            "There is no table whose rows could be replaced",
            action="Check with `etl run CONF --dry-run`",
        )
    wholes = (
        OffsetRange(log, low, high, snapshot.leaders.get(log))
        for log, (low, high) in sorted(intervals.items())
    )
    ranges = split_ranges(
        wholes,
        snapshot.bytes_per_offset,
        settings.limits.target_task_bytes,
        snapshot.parallelism,
        boundaries_of(snapshot.extents),
    )
    moved = {
        *state.followed,
        *state.not_followed,
        *state.passed,
    }  # the next run decides about those, as it would have without a replay
    seen = {
        log: last.left(log) if log in moved else snapshot.committed.get(log, NOTHING_COMMITTED)
        for log in last.positions
    }
    return replace(
        last,
        number=last.number + 1,
        kind=PlanKind.REPLAY,
        created_at_ms=now_ms,
        shape=shape_of_rows(settings),
        ranges=ranges,
        seen=seen,
        table_id=table.id,
        table_transaction_version=table.transaction_version or 0,
        table_version=table.version,
        previous=last.id,
        supersedes=None,
        reason=reason,
        run_key=None,
        bounds=NO_BOUNDS,
        key_ends={},
        id="",
        losses=(),
        vanished=(),
        took_over=None,
        record_epochs=record_epochs(last, snapshot.ledger.applied),
        offsets_in=snapshot.offsets_in,
        share=None,
        handed_over=None,
        read_by_others=(),
        time_zone=snapshot.time_zone,
    )


def plan_that_gives_up(plan: Plan, why: str, *, now_ms: int) -> Plan:
    """The plan in the place of a replay that cannot bring back all of its rows, without its id: it
    reads nothing and moves nothing.
    """
    return replace(
        plan,
        kind=PlanKind.START,
        ranges=(),
        stood={},
        created_at_ms=now_ms,
        supersedes=plan.id,
        reason=f"{GIVEN_UP}: {why}",
        id="",
    )
