"""What follows when an operator sets or pauses offsets?

Setting: a plan without ranges moves positions within the same `incarnation`. A position goes back
only if the table has none of the offsets that would be read again; reloading rows is a replay.
Offsets between are free if policy or an operator skipped them, or the partition began there. The
plan is stored after the last one, or in place of a stored one that is not in the table (ADR 20).
One that replaces another of its kind begins where that one began; if that one replaced a plan that
moved or began partitions, a run goes first.

Pausing (docs/adr/0026):

    found                                       decision
    -----------------------------------------   ----------------------------------------------------
    a paused partition, at the next plan        position stays, no range; a pending start is kept
    a paused partition of a stored plan         the plan is executed whole
    the same, in a replacement plan             left out
    a new partition of a paused topic           paused
    a paused partition without leader           ignored, whatever `source.on_no_leader` says
    a replay or backfill that names it          loads it
    pausing it again                            keeps the first reason and time
    one partition of a topic paused as a whole  resumed with its topic only
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.group_commits import metadata_named_by_command, reject_replacing
from etl.decide.group_ownership import owned_error
from etl.decide.offsets import starts_of
from etl.decide.partition_identity import (
    record_epochs,
    reject_recreated_or_truncated,
    tails_to_record,
)
from etl.decide.plan import shape_of_rows
from etl.decide.reconcile import where_we_stand
from etl.decide.replacement import (
    losses_to_read_again,
    lost_with_logs,
    partitions_missing_offsets,
    without_losses,
)
from etl.errors import BrokerUnreachable, NeedsDecision, NotYetReadable, SettingsError
from etl.model.partitions import (
    FORM_OF_PARTITION,
    NOTHING_COMMITTED,
    BrokerPartition,
    Named,
    PartitionOffsets,
    render_intervals,
    render_log,
)
from etl.model.plans import LOST_WITH_LOG, NO_BOUNDS, Loss, LossReason, Plan, PlanKind
from etl.model.snapshot import (
    FirstRun,
    Pause,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    UpToDate,
)
from etl.settings.sections import Settings

Stretches = Mapping[BrokerPartition, Sequence[tuple[int, int]]]
"""Offsets [from, until) of logs."""


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """One partition whose position is set."""

    log: BrokerPartition
    from_offset: int
    """Its position now."""
    to_offset: int

    @property
    def skipped(self) -> int:
        """Offsets that are passed over; bytes, if physical."""
        return max(0, self.to_offset - self.from_offset)

    @property
    def comes(self) -> int:
        """Offsets before the position that are loaded then."""
        return max(0, self.from_offset - self.to_offset)


@dataclass(frozen=True, slots=True)
class Standing:
    """What setting refers to: the newest plan, and each position before it, after what other
    members read.
    """

    state: UpToDate | Replay
    before: Mapping[BrokerPartition, int]

    @property
    def old(self) -> Plan:
        """Return the last plan, or the stored one that is replaced."""
        return self.state.last if isinstance(self.state, UpToDate) else self.state.plan


def standing(state: PipelineState, base: Plan | None) -> Standing:
    """Return the positions before they are set. `base`: the plan before the newest one, if known.
    Raises SettingsError for a pipeline without a plan, NeedsDecision if a run must first restore or
    finish one.
    """
    if isinstance(state, FirstRun):
        message = "This pipeline has made no plan yet, so no position can be set"
        raise SettingsError(
            message,
            action="Check source.starting_offsets, which says where the first run begins; or `etl "
            "run CONF` first",
        )
    if isinstance(state, RebuildFromTable):
        message = f"The table holds plan {state.plan.number}, which ZooKeeper does not have"
        raise NeedsDecision(
            message,
            action="Run `etl ledger restore CONF --reason ...`; then run this command again",
        )
    if isinstance(state, UpToDate):
        return Standing(state, {**state.last.positions, **state.passed})
    stored = state.plan
    reject_replacing(stored)
    if stored.kind in (PlanKind.REPLAY, PlanKind.BACKFILL):
        message = (
            f"Plan {stored.number} is stored and not in the table, and what it reads again "
            f"does not move positions"
        )
        raise NeedsDecision(
            message, action="Run `etl run CONF`, which executes it; then run this command again"
        )
    if stored.kind is not PlanKind.SET:
        return Standing(Replay(stored), starts_of(stored))
    if base is None or base.id != stored.previous:
        message = (
            f"Plan {stored.number} is stored, which sets positions, and nobody knows any "
            f"more where they were before"
        )
        raise NeedsDecision(
            message, action="Run `etl run CONF`, which executes it; then run this command again"
        )
    if (
        stored.took_over
        or stored.incarnations != base.incarnations
        or stored.positions.keys() - base.positions.keys()
    ):
        message = (
            f"Plan {stored.number} is stored, which sets positions in the place of a plan that "
            f"moved or began logs: where they were "
            "before that the table's plan does not tell"
        )
        raise NeedsDecision(
            message, action="Run `etl run CONF`, which executes it; then run this command again"
        )
    return Standing(
        Replay(stored),
        {**base.positions, **{hole.log: hole.until_offset for hole in stored.read_by_others}},
    )


def position_now(log: BrokerPartition, stands: Standing, snapshot: Snapshot) -> int:
    """Return the partition's position. Raises for one that cannot be set: Owned, BrokerUnreachable,
    SettingsError if it was never read.
    """
    if log in snapshot.owners:
        raise owned_error({log: snapshot.owners[log]})
    if log in snapshot.leaderless:
        raise BrokerUnreachable(
            f"The partition {log.unled}, so its position cannot be set",
            **log.place,
            action=log.held_by,
        )
    if log not in stands.before:
        message = "This pipeline has not begun the partition, so it has no position to set"
        raise SettingsError(
            message,
            key="--partition",
            **log.place,
            action="Check source.new_topics_starting_offsets, or `etl run CONF` first",
        )
    return stands.before[log]


def moves_to(
    targets: Mapping[BrokerPartition, int], stands: Standing, snapshot: Snapshot
) -> tuple[Move, ...]:
    """Return the partitions that move, sorted. Raises SettingsError for an offset outside the log,
    NotYetReadable behind an open transaction, and a run's errors for truncated or recreated
    partitions.
    """
    reject_recreated_or_truncated(
        stands.old,
        snapshot,
        {log: min(at, stands.before.get(log, at)) for log, at in stands.old.positions.items()},
    )
    if isinstance(stands.state, UpToDate):
        elsewhere = {*stands.state.followed, *stands.state.not_followed}
    else:
        elsewhere = set()
    found = []
    for log, to in sorted(targets.items()):
        now = position_now(log, stands, snapshot)
        _reject_outside(log, to, snapshot)
        reject_misaligned_offset(log, to, snapshot, key="--to")
        is_stored = isinstance(stands.state, Replay) and stands.old.positions.get(log) != now
        if to != now or is_stored or log in elsewhere:
            found.append(Move(log, now, to))
    return tuple(found)


def _reject_outside(log: BrokerPartition, to: int, snapshot: Snapshot) -> None:
    extent = snapshot.extents[log]
    if extent.end_offset < to <= extent.end_offset + extent.held_back:
        message = (
            f"Offset {to} lies above the last stable offset {extent.end_offset}: a "
            f"transaction is open there"
        )
        raise NotYetReadable(
            message, **log.place, offset=to, action="When the transaction ends, say it again"
        )
    if not extent.log_start_offset <= to <= extent.end_offset:
        message = (
            f"Offset {to} is not in the log, which has {extent.log_start_offset} to "
            f"{extent.end_offset}"
        )
        action = (
            "Pass another offset: above its end nothing could be skipped yet, and what comes "
            "later would never be loaded; below its start nothing is left"
        )
        raise SettingsError(message, key="--to", **log.place, action=action)


def intervals_to_look_up(moves: Iterable[Move]) -> dict[BrokerPartition, tuple[int, int]]:
    """Return the offsets that would be read again, of which the table must hold none."""
    return {move.log: (move.to_offset, move.from_offset) for move in moves if move.comes}


def reject_loaded(
    moves: Iterable[Move], loaded: Stretches, rows: Mapping[BrokerPartition, int]
) -> None:
    """Reject going back over loaded offsets: of plans that led to the table (`loaded`), or of any
    rows there (`rows`, counted). Raises NeedsDecision with the offsets and the command that reads
    them again without doubling.
    """
    for move in moves:
        among = [
            (max(start, move.to_offset), min(until, move.from_offset))
            for start, until in loaded.get(move.log, ())
        ]
        among = [(start, until) for start, until in among if start < until]
        count = rows.get(move.log, 0)
        if not (among or count):
            continue
        until = max((until for _, until in among), default=move.from_offset)
        if among:
            message = f"The table has been given offsets before {until} already"
        else:
            message = f"The table holds {count:,} rows of these offsets"
        message += f": read again from {move.to_offset}, their rows would be there twice"
        stretch = render_intervals([(move.log, move.to_offset, move.from_offset)])
        named = (
            f"etl replay CONF -p {shlex.quote(move.log.topic)}:{move.log.key} --from "
            f"{move.to_offset} "
            f"--until {move.from_offset}"
        )
        action = (
            f"Only a replay reads such offsets ({stretch}) again, for it replaces their rows: "
            f"`{named}`; the position stays at "
            f"{move.from_offset}"
        )
        if among and until < move.from_offset:
            action += f". From {until} on nothing was loaded: --to {until}"
        raise NeedsDecision(message, **move.log.place, offset=move.to_offset, action=action)


def plan_set(
    stands: Standing,
    moves: Collection[Move],
    snapshot: Snapshot,
    settings: Settings,
    *,
    reason: str,
    now_ms: int,
) -> Plan:
    """The plan, without its id. Without moves it keeps all positions, and offsets that another
    client moved go back to them.
    """
    old, is_next, table = stands.old, isinstance(stands.state, UpToDate), snapshot.table
    set_now = {move.log: move.to_offset for move in moves}
    went_on = stands.state.positions if isinstance(stands.state, UpToDate) else _stays(old)
    positions = {**went_on, **set_now}
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions}
    sharp = record_epochs(old, snapshot.ledger.applied) if is_next else old.record_epochs
    moved = {log for log, at in positions.items() if old.positions.get(log) != at} | set_now.keys()
    epochs = {log: epoch for log, epoch in snapshot.leader_epochs.items() if log in set_now}
    return replace(
        old,
        number=old.number + 1 if is_next else old.number,
        kind=PlanKind.SET,
        created_at_ms=now_ms,
        shape=shape_of_rows(settings),
        ranges=(),
        positions=positions,
        seen=seen if is_next else {**seen, **old.seen},
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        table_version=table.version if table else None,
        previous=old.id if is_next else old.previous,
        supersedes=None if is_next else old.id,
        reason=reason,
        id="",
        **_asked_of(stands),
        losses=tuple(_losses(stands, moves, snapshot)),
        log_starts={
            **old.log_starts,
            **{
                log: extent.log_start_offset
                for log, extent in snapshot.extents.items()
                if log in positions
            },
        },
        leader_epochs={
            **{log: epoch for log, epoch in old.leader_epochs.items() if log not in set_now},
            **epochs,
        },
        record_epochs={
            log: lineage
            for log, lineage in sharp.items()
            if log not in (moved if is_next else set_now)
        },
        vanished=() if is_next else old.vanished,
        took_over=None if is_next else old.took_over,
        tails=tails_to_record(old, positions, snapshot) if moves else old.tails,
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        share=None,
        handed_over=None,
        closes=False,
        read_by_others=metadata_named_by_command(stands.state),
    )


def _asked_of(stands: Standing) -> dict[str, Any]:
    """Return the request of the replaced stored plan: its run key continues from the positions to
    the recorded ends.
    """
    if isinstance(stands.state, UpToDate) or stands.old.run_key is None:
        return {"run_key": None, "bounds": NO_BOUNDS, "key_ends": {}}
    old = stands.old
    ends = {r.log: old.positions[r.log] for r in old.ranges}
    return {"key_ends": {**ends, **old.key_ends}}


def _stays(old: Plan) -> Mapping[BrokerPartition, int]:
    """Return the positions of partitions that are not set, if a stored plan is replaced: the next
    plan reads its ranges.
    """
    return old.positions if old.kind is PlanKind.SET else starts_of(old)


def _losses(stands: Standing, moves: Collection[Move], snapshot: Snapshot) -> Iterable[Loss]:
    """Return the skipped offsets, those that other clients skipped, the losses of a replaced plan,
    and what it reads that no log holds any more.
    """
    old, set_now = stands.old, {move.log for move in moves}
    if isinstance(stands.state, UpToDate):
        for log, offset in sorted(stands.state.followed.items()):
            if log not in set_now:
                yield Loss(
                    log, old.positions[log], offset, LossReason.MOVED, old.incarnations.get(log, 0)
                )
    else:
        again = losses_to_read_again(old)
        yield from (
            loss
            for loss in old.losses
            if loss not in again and not (loss.log in set_now and _is_of_the_set(loss, old))
        )
        yield from lost_of_stored(stands, moves, snapshot)
    yield from _skipped(moves, old)


def lost_of_stored(stands: Standing, moves: Collection[Move], snapshot: Snapshot) -> list[Loss]:
    """Return what a replaced stored plan reads that no log holds any more and no move skips."""
    if isinstance(stands.state, UpToDate):
        return []
    return without_losses(
        lost_with_logs(stands.old, partitions_missing_offsets(stands.old, snapshot)),
        _skipped(moves, stands.old),
    )


def _skipped(moves: Collection[Move], old: Plan) -> list[Loss]:
    return [
        Loss(
            move.log,
            move.from_offset,
            move.to_offset,
            LossReason.SKIPPED,
            old.incarnations.get(move.log, 0),
        )
        for move in sorted(moves)
        if move.skipped
    ]


def _is_of_the_set(loss: Loss, old: Plan) -> bool:
    """True if a stored plan of this kind gave this up by setting: its replacement computes it anew."""
    return (
        old.kind is PlanKind.SET
        and loss.why not in LOST_WITH_LOG
        and loss.incarnation == old.incarnations.get(loss.log, 0)
    )


def describe_moves(moves: Iterable[Move]) -> list[str]:
    """Describe what setting means: a sentence for each partition."""
    sentences = []
    for move in moves:
        unit, name = f"{move.log.unit}s", render_log(move.log)
        if move.skipped:
            sentences.append(
                f"{name} goes forwards from {move.from_offset} to {move.to_offset}: "
                f"{move.skipped:,} {unit} are skipped by hand, "
                "are told lost, and no later run loads them"
            )
        elif move.comes:
            sentences.append(
                f"{name} goes back from {move.from_offset} to {move.to_offset}: {move.comes:,} "
                f"{unit} that were never loaded are "
                "read; nothing comes twice"
            )
        else:
            sentences.append(f"{name} stays at {move.to_offset}")
    return sentences


@dataclass(frozen=True, slots=True)
class Changed:
    """The new pauses, and a sentence for each named partition."""

    pauses: tuple[Pause, ...]
    summary: tuple[str, ...]


def paused_logs(
    logs: Iterable[BrokerPartition], pauses: Iterable[Pause]
) -> dict[BrokerPartition, Pause]:
    """Those of the logs that are paused, and why: by a pause of their own, else by that of their
    topic.
    """
    by_name = {(one.topic, one.log): one for one in pauses}
    if not by_name:
        return {}
    found = ((log, by_name.get((log.topic, log)) or by_name.get((log.topic, None))) for log in logs)
    return {log: why for log, why in found if why}


def paused_unread(
    pauses: Iterable[Pause],
    extents: Mapping[BrokerPartition, PartitionOffsets],
    last: Plan | None,
) -> dict[BrokerPartition, tuple[int, int]]:
    """Return the oldest unread offset and the end of each paused partition with something to read;
    `last`: the current plan. Partitions without times are left out.
    """
    positions = last.positions if last else {}
    spans = {
        log: (max(extents[log].log_start_offset, positions.get(log, 0)), extents[log].end_offset)
        for log in paused_logs(extents, pauses)
        if not log.is_physical
    }
    return {log: (start, end) for log, (start, end) in spans.items() if start < end}


def leave_paused(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the logs that are paused; its `paused` are these, and why."""
    paused = paused_logs((*snapshot.extents, *snapshot.leaderless), snapshot.pauses)
    if not paused:
        return snapshot
    return replace(
        snapshot,
        extents={log: extent for log, extent in snapshot.extents.items() if log not in paused},
        extents_of_paused={
            log: extent for log, extent in snapshot.extents.items() if log in paused
        },
        leaderless=snapshot.leaderless - paused.keys(),
        paused=paused,
    )


def with_paused(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the paused logs among the others again: for who names offsets, and means
    them.
    """
    return replace(
        snapshot,
        extents={**snapshot.extents, **snapshot.extents_of_paused},
        paused={},
        extents_of_paused={},
        leaderless=snapshot.leaderless
        | (snapshot.paused.keys() - snapshot.extents_of_paused.keys()),
    )


def standing_without_paused(
    snapshot: Snapshot, settings: Settings
) -> tuple[Snapshot, PipelineState]:
    """Return the state without paused partitions, but with those of a stored plan, which is
    executed whole. Raises as `where_we_stand`.
    """
    rested = leave_paused(snapshot)
    state = where_we_stand(rested, settings)
    is_left = isinstance(state, Replay) and rested is not snapshot
    return (snapshot, where_we_stand(snapshot, settings)) if is_left else (rested, state)


def pausing(
    pauses: Sequence[Pause],
    named: Iterable[Named],
    known: Collection[BrokerPartition],
    *,
    reason: str,
    by: str,
    now_ms: int,
) -> Changed:
    """The pauses with those that are named. Raises SettingsError for a name of which no log is
    known.
    """
    kept, sentences = [*pauses], []
    for one in dict.fromkeys(named):
        before = _before(one, kept)
        if before:
            sentences.append(f"{one} is paused already{_as_whole(one, before)}: {before.reason}")
            continue
        reject_unknown(one, known)
        kept.append(Pause(one.topic, one.log, reason, by, now_ms))
        sentences.append(f"{one} is paused: {reason}")
    return Changed(tuple(kept), tuple(sentences))


def resuming(
    pauses: Sequence[Pause], named: Iterable[Named], known: Collection[BrokerPartition]
) -> Changed:
    """Return the pauses without the named ones; a topic includes its partitions. Raises
    SettingsError for a partition of a topic that is paused as a whole, and for an unknown name.
    """
    kept, sentences = [*pauses], []
    for one in dict.fromkeys(named):
        gone = [
            pause
            for pause in kept
            if pause.topic == one.topic and (one.log is None or pause.log == one.log)
        ]
        whole = next(
            (pause for pause in kept if one.log and pause.topic == one.topic and pause.log is None),
            None,
        )
        if whole:
            message = (
                f"{one.topic} is paused as a whole, so {one} cannot be resumed by itself: "
                f"{whole.reason}"
            )
            action = f"Resume {one.topic}, and pause those of its partitions that are to rest"
            raise SettingsError(message, key="--partition", action=action)
        if not gone:
            reject_unknown(one, known)
            sentences.append(f"{one} is not paused: there is nothing to resume")
            continue
        kept = [pause for pause in kept if pause not in gone]
        sentences.append(f"{one} is resumed: the next plan reads on from its position")
    return Changed(tuple(kept), tuple(sentences))


def merged(
    ours: Sequence[Pause], theirs: Iterable[Pause], topics: Collection[str]
) -> tuple[Pause, ...]:
    """Return our pauses, and those of a predecessor in the inherited topics."""
    there = {(one.topic, one.log) for one in ours}
    return (
        *ours,
        *(one for one in theirs if one.topic in topics and (one.topic, one.log) not in there),
    )


def reject_unknown(named: Named, known: Collection[BrokerPartition]) -> None:
    """Raises SettingsError where the name covers no log that is known."""
    if not any(named.covers(log) for log in known):
        if named.log:
            message = f"There is no partition {named} among the topics of the conf"
        else:
            message = f"{named} is no topic of the conf"
        raise SettingsError(
            message,
            key="--partition",
            action=f"Check with `etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}",
        )


def _before(named: Named, pauses: Iterable[Pause]) -> Pause | None:
    found = [one for one in pauses if one.topic == named.topic and one.log in (None, named.log)]
    return max(found, key=lambda one: one.log is not None, default=None)


def _as_whole(named: Named, before: Pause) -> str:
    return f", with {named.topic} as a whole" if named.log and before.log is None else ""
