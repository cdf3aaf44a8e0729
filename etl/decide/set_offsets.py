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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from etl.decide.byte_offsets import reject_misaligned_offset
from etl.decide.loaded_intervals import subtract_intervals
from etl.decide.member_offsets import read_by_others_of_command, reject_replacing
from etl.decide.offsets import starts_of
from etl.decide.partition_owners import owned_error
from etl.decide.plan import shape_of_rows
from etl.decide.plan_replacement import (
    losses_to_read_again,
    lost_with_partitions,
    partitions_missing_offsets,
    without_losses,
)
from etl.decide.reconcile import where_we_stand
from etl.decide.recreated_or_truncated import (
    fingerprints_to_record,
    leader_epochs_to_record,
    record_epochs,
    reject_recreated_or_truncated,
)
from etl.decide.replay import backfill_command, replay_command
from etl.decide.table_changes import table_to_record
from etl.errors import BrokerUnreachable, NeedsDecision, NotYetReadable, SettingsError
from etl.model.partitions import (
    FORM_OF_PARTITION,
    Named,
    TopicPartition,
    drop_keys,
    render_intervals,
    render_partition,
)
from etl.model.plans import (
    LOST_WITH_LOG,
    Loss,
    LossReason,
    Plan,
    PlanKind,
    PlannedCommit,
    PlannedPartition,
    PlannedRequest,
)
from etl.model.snapshot import (
    Availability,
    FirstRun,
    Pause,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    UpToDate,
)
from etl.settings.sections import Settings

T = TypeVar("T")

Stretches = Mapping[TopicPartition, Sequence[tuple[int, int]]]
"""Intervals [from, until) of offsets, per partition."""
NO_INCARNATIONS: Mapping[TopicPartition, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """One partition whose position is set."""

    partition: TopicPartition
    from_offset: int
    """Its position now."""
    to_offset: int

    @property
    def skipped(self) -> int:
        """Number of skipped offsets; bytes, if physical."""
        return max(0, self.to_offset - self.from_offset)

    @property
    def comes(self) -> int:
        """Number of offsets before the present position that will be loaded; bytes, if physical."""
        return max(0, self.from_offset - self.to_offset)


@dataclass(frozen=True, slots=True)
class Standing:
    """The newest plan's state, and each partition's position before the offsets are set.

    The positions are after the offsets that other members of the group read.
    """

    state: UpToDate | Resume
    before: Mapping[TopicPartition, int]

    @property
    def old(self) -> Plan:
        """The last executed plan, or the stored one that is replaced."""
        if isinstance(self.state, UpToDate):
            return self.state.last
        return self.state.plan


def standing(state: PipelineState, base: Plan | None) -> Standing:
    """Return the positions before they are set. `base`: the plan before the newest one, if known.

    Raises SettingsError for a pipeline without a plan, NeedsDecision if a plan must be restored or
    executed first.
    """
    if isinstance(state, FirstRun):
        message = "This pipeline has made no plan yet, so no position can be set"
        raise SettingsError(
            message,
            action="Set source.starting_offsets, where the first run begins; or run `etl run CONF` "
            "first",
        )
    if isinstance(state, RebuildFromTable):
        message = f"The table holds plan {state.plan.number}, which ZooKeeper does not have"
        raise NeedsDecision(
            message,
            action="Run `etl ledger restore CONF --reason ...`; then run this command again",
        )
    if isinstance(state, StoredBackfill):
        state = state.state
    if isinstance(state, UpToDate):
        return Standing(state, {**state.last.loaded_until, **state.passed})
    stored = state.plan
    reject_replacing(stored)
    run_first = "Run `etl run CONF`, which executes it; then run this command again"
    if stored.kind is PlanKind.REPLAY:
        message = (
            f"Plan {stored.number} is stored and not in the table; it reads offsets again and "
            "does not move positions"
        )
        raise NeedsDecision(message, action=run_first)
    if stored.kind is not PlanKind.SET:
        return Standing(Resume(stored), starts_of(stored))
    if base is None or base.id != stored.origin.previous:
        message = (
            f"Plan {stored.number} is stored and sets positions, and the positions before it are "
            "unknown"
        )
        raise NeedsDecision(message, action=run_first)
    is_other_incarnation = stored.incarnations != base.incarnations
    begun = stored.loaded_until.keys() - base.loaded_until.keys()
    if stored.inherits or is_other_incarnation or begun:
        message = (
            f"Plan {stored.number} is stored and sets positions in place of a plan that moved or "
            "began partitions, and the table's plan does not have the positions before that one"
        )
        raise NeedsDecision(message, action=run_first)
    # One plan sets the positions: it begins where the stored one began. Otherwise the offsets that
    # the stored one skips would be recorded twice, or not at all.
    before = dict(base.loaded_until)
    for gap in stored.losses.read_by_others:
        before[gap.partition] = gap.until_offset
    return Standing(Resume(stored), before)


def position_now(partition: TopicPartition, stands: Standing, snapshot: Snapshot) -> int:
    """Return the partition's position.

    Raises Owned or BrokerUnreachable if it cannot be set now, SettingsError if it was never read.
    """
    if partition in snapshot.owners:
        raise owned_error({partition: snapshot.owners[partition]})
    if partition in snapshot.leaderless:
        raise BrokerUnreachable(
            f"The partition {partition.unled}, so its position cannot be set",
            **partition.place,
            action=partition.held_by,
        )
    if partition not in stands.before:
        message = "This pipeline has not begun the partition, so it has no position to set"
        raise SettingsError(
            message,
            key="--partition",
            **partition.place,
            action="Set source.new_topics_starting_offsets, or run `etl run CONF` first",
        )
    return stands.before[partition]


def moves_to(
    targets: Mapping[TopicPartition, int], stands: Standing, snapshot: Snapshot
) -> tuple[Move, ...]:
    """Return the partitions that move, sorted.

    Raises SettingsError for an offset outside the partition, NotYetReadable for one after the start
    of an open transaction, and a run's errors for truncated or recreated partitions.
    """
    read_until = {}
    for partition, position in stands.old.loaded_until.items():
        read_until[partition] = min(position, stands.before.get(partition, position))
    reject_recreated_or_truncated(stands.old, snapshot, read_until)
    moved_by_others: set[TopicPartition] = set()
    if isinstance(stands.state, UpToDate):
        moved_by_others = {*stands.state.followed, *stands.state.not_followed}
    moves = []
    for partition, to in sorted(targets.items()):
        now = position_now(partition, stands, snapshot)
        _reject_outside(partition, to, snapshot)
        reject_misaligned_offset(partition, to, snapshot, key="--to")
        is_stored = (
            isinstance(stands.state, Resume) and stands.old.loaded_until.get(partition) != now
        )
        if to != now or is_stored or partition in moved_by_others:
            moves.append(Move(partition, now, to))
    return tuple(moves)


def _reject_outside(partition: TopicPartition, to: int, snapshot: Snapshot) -> None:
    """Raise if `to` is no offset that a consumer of the partition can continue from."""
    offsets = snapshot.readable[partition]
    if offsets.end_offset < to <= offsets.end_offset + offsets.held_back:
        message = (
            f"Offset {to} is above the last stable offset {offsets.end_offset}: a transaction is "
            "open there"
        )
        action = "Run this command again when the transaction has ended"
        raise NotYetReadable(message, **partition.place, offset=to, action=action)
    if not offsets.log_start_offset <= to <= offsets.end_offset:
        message = (
            f"Offset {to} is not in the log, which has {offsets.log_start_offset} to "
            f"{offsets.end_offset}"
        )
        action = (
            "Pass another offset: above the end there is nothing to skip yet, and later records "
            "would never be loaded; below the start there are no records"
        )
        raise SettingsError(message, key="--to", **partition.place, action=action)


def intervals_to_look_up(moves: Iterable[Move]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets that would be read again; the table must hold none of them."""
    return {move.partition: (move.to_offset, move.from_offset) for move in moves if move.comes}


def reject_loaded(
    moves: Iterable[Move],
    loaded: Stretches,
    rows: Mapping[TopicPartition, int],
    incarnations: Mapping[TopicPartition, int] = NO_INCARNATIONS,
) -> None:
    """Raise NeedsDecision if a move goes back over loaded offsets.

    `loaded`: intervals of the plans that led to the table. `rows`: counted rows of the offsets that
    would be read again. The error names the replay that reads loaded offsets again without doubled
    rows, and the backfill that loads the others.
    """
    for move in moves:
        loaded_until = _loaded_until(move, loaded.get(move.partition, ()))
        count = rows.get(move.partition, 0)
        if loaded_until is None and not count:
            continue
        if loaded_until is None:
            message = f"The table holds {count:,} rows of these offsets"
        else:
            message = f"Offsets before {loaded_until} were loaded into the table already"
        message += f": reading them again from {move.to_offset} would double their rows"
        incarnation = incarnations.get(move.partition, 0)
        parts: Sequence[tuple[int, int]] | None = loaded.get(move.partition, ())
        until = loaded_until
        if until is None:
            until = move.from_offset
            parts = None  # rows that nothing explains
        action = _load_otherwise(move, until, parts, incarnation)
        if loaded_until is not None and loaded_until < move.from_offset:
            action += f". From {loaded_until} on nothing was loaded: --to {loaded_until}"
        raise NeedsDecision(message, **move.partition.place, offset=move.to_offset, action=action)


def _load_otherwise(
    move: Move,
    until: int,
    loaded: Sequence[tuple[int, int]] | None,
    incarnation: int,
) -> str:
    """Return the commands that load the offsets of a rejected move, up to `until`.

    `loaded`: loaded offsets of the partition; None: the table has rows of the offsets that no kept
    plan explains.
    """
    interval = (move.to_offset, until)
    # A replay rejects offsets that were not loaded, and a backfill rejects loaded ones.
    unloaded: list[tuple[int, int]] = []
    if loaded is not None:
        unloaded = subtract_intervals(interval, loaded)
    replayed = subtract_intervals(interval, unloaded)
    sentences = []
    for low, high in unloaded:
        name = f"Offsets {low} to {high}"
        if incarnation:
            sentences.append(
                f"{name} were never loaded, and no backfill loads them, since the partition was "
                "truncated or recreated"
            )
        else:
            sentences.append(
                f"{name} were never loaded, and a backfill loads them: "
                f"{backfill_command(move.partition, low, high)}"
            )
    if replayed:
        offsets = render_intervals((move.partition, low, high) for low, high in replayed)
        commands = ", ".join(replay_command(move.partition, low, high) for low, high in replayed)
        sentences.append(
            f"Only a replay reads such offsets ({offsets}) again, for it replaces their rows: "
            f"{commands}"
        )
    sentences[-1] += f"; the position stays at {move.from_offset}"
    return ". ".join(sentences)


def _loaded_until(move: Move, loaded: Iterable[tuple[int, int]]) -> int | None:
    """Return the end of the loaded offsets among those that would be read again; None if none."""
    ends = []
    for start, until in loaded:
        first = max(start, move.to_offset)
        end = min(until, move.from_offset)
        if first < end:
            ends.append(end)
    return max(ends, default=None)


def plan_set(
    stands: Standing,
    moves: Collection[Move],
    snapshot: Snapshot,
    settings: Settings,
    *,
    reason: str,
    now_ms: int,
) -> Plan:
    """Return the plan that sets the positions, without its id.

    Without moves it keeps all positions, and offsets that another client committed are set back.
    """
    old = stands.old
    set_now = {move.partition: move.to_offset for move in moves}

    if isinstance(stands.state, UpToDate):
        positions = {**stands.state.positions, **set_now}
    else:
        positions = {**_kept_positions(old), **set_now}
    seen = snapshot.committed_of(positions)

    # The epoch of the last read record does not identify a partition at another position.
    moved = set(set_now)
    for partition, position in positions.items():
        if old.loaded_until.get(partition) != position:
            moved.add(partition)

    if isinstance(stands.state, UpToDate):
        batch_epochs = drop_keys(record_epochs(old, snapshot.ledger.applied), moved)
        plan = replace(
            old,
            number=old.number + 1,
            origin=replace(old.origin, previous=old.id, supersedes=None),
            losses=replace(old.losses, stale_rows=()),
            inherits=None,
        )
    else:
        seen = {**seen, **old.expected_commits}
        batch_epochs = drop_keys(old.record_epochs, set_now)
        plan = replace(old, origin=replace(old.origin, supersedes=old.id))

    fingerprints = old.fingerprints
    if moves:
        fingerprints = fingerprints_to_record(old, positions, snapshot)
    leader_epochs = leader_epochs_to_record(old, snapshot, set_now)
    partitions = {}
    for partition, position in positions.items():
        planned = old.partition(partition) or PlannedPartition(position)
        log_start = planned.log_start
        if partition in snapshot.readable:
            log_start = snapshot.readable[partition].log_start_offset
        partitions[partition] = replace(
            planned,
            loaded_until=position,
            expected_commit=seen[partition],
            log_start=log_start,
            leader_epoch=leader_epochs.get(partition),
            record_epochs=batch_epochs.get(partition, ()),
            fingerprint=fingerprints.get(partition),
        )
    return replace(
        plan,
        kind=PlanKind.SET,
        origin=replace(plan.origin, created_at_ms=now_ms, reason=reason),
        shape=shape_of_rows(settings),
        ranges=(),
        partitions=partitions,
        table=table_to_record(snapshot.table, old.table.rows_before),
        id="",
        request=_request_of(stands),
        losses=replace(
            plan.losses,
            lost=tuple(_losses(stands, moves, snapshot)),
            read_by_others=read_by_others_of_command(stands.state),
        ),
        cluster=replace(old.cluster, id=snapshot.cluster.id),
        commit=PlannedCommit(storage=snapshot.group.storage),
        payload=None,
        is_closing=False,
    )


def _request_of(stands: Standing) -> PlannedRequest:
    """Return the request of the replaced stored plan.

    Its run key continues from the positions to the recorded ends.
    """
    old = stands.old
    if isinstance(stands.state, UpToDate) or old.request.run_key is None:
        return PlannedRequest()
    ends = {r.partition: old.loaded_until[r.partition] for r in old.ranges}
    return replace(old.request, unfinished={**ends, **old.request.unfinished})


def _kept_positions(old: Plan) -> Mapping[TopicPartition, int]:
    """Return the positions of partitions that are not set, if the stored plan `old` is replaced.

    The next plan reads the ranges of the replaced one.
    """
    if old.kind is PlanKind.SET:
        return old.loaded_until
    return starts_of(old)


def _losses(stands: Standing, moves: Collection[Move], snapshot: Snapshot) -> list[Loss]:
    """Return the losses that the plan records.

    They are the skipped offsets, those that other clients skipped, the losses of a replaced plan,
    and offsets of its ranges that no partition holds any more.
    """
    old = stands.old
    offsets = {move.partition: move.to_offset for move in moves}
    losses = []
    if isinstance(stands.state, UpToDate):
        for partition, offset in sorted(stands.state.followed.items()):
            if partition not in offsets:
                incarnation = old.incarnations.get(partition, 0)
                loss = Loss(
                    partition, old.loaded_until[partition], offset, LossReason.MOVED, incarnation
                )
                losses.append(loss)
    else:
        again = losses_to_read_again(old)
        for loss in old.losses.lost:
            if loss in again:
                continue
            kept = _still_lost(loss, old, offsets.get(loss.partition))
            if kept:
                losses.append(kept)
        losses += lost_of_stored(stands, moves, snapshot)
    return losses + _skipped(moves, old)


def lost_of_stored(stands: Standing, moves: Collection[Move], snapshot: Snapshot) -> list[Loss]:
    """Return offsets of a replaced stored plan that no partition holds and no move skips."""
    if isinstance(stands.state, UpToDate):
        return []
    missing = partitions_missing_offsets(stands.old, snapshot)
    return without_losses(lost_with_partitions(stands.old, missing), _skipped(moves, stands.old))


def _skipped(moves: Collection[Move], old: Plan) -> list[Loss]:
    """Return the losses by moves forward."""
    losses = []
    for move in sorted(moves):
        if move.skipped:
            incarnation = old.incarnations.get(move.partition, 0)
            loss = Loss(
                move.partition, move.from_offset, move.to_offset, LossReason.SKIPPED, incarnation
            )
            losses.append(loss)
    return losses


def _still_lost(loss: Loss, old: Plan, to_offset: int | None) -> Loss | None:
    """Return what stays lost of a loss of the stored plan `old` if its partition is set to an
    offset (None: it is not set).

    The skips of a plan that sets positions are replaced by those of the new one. What another plan
    skips from the new offset on is read.
    """
    if to_offset is None or loss.why in LOST_WITH_LOG:
        return loss
    if loss.incarnation != old.incarnations.get(loss.partition, 0):
        return loss
    if old.kind is PlanKind.SET:
        return None
    if loss.why is not LossReason.SKIPPED or loss.until_offset <= to_offset:
        return loss
    if loss.from_offset >= to_offset:
        return None
    return replace(loss, until_offset=to_offset)


def describe_moves(moves: Iterable[Move]) -> list[str]:
    """Describe the effect of setting the offsets: a sentence per partition."""
    sentences = []
    for move in moves:
        unit = f"{move.partition.unit}s"
        name = render_partition(move.partition)
        if move.skipped:
            sentences.append(
                f"{name} moves forward from {move.from_offset} to {move.to_offset}: "
                f"{move.skipped:,} {unit} are skipped by hand, are reported as lost, and no later "
                "run loads them"
            )
        elif move.comes:
            sentences.append(
                f"{name} moves back from {move.from_offset} to {move.to_offset}: {move.comes:,} "
                f"{unit} that were never loaded are read; no row is doubled"
            )
        else:
            sentences.append(f"{name} stays at {move.to_offset}")
    return sentences


@dataclass(frozen=True, slots=True)
class Changed:
    """The new pauses, and a sentence for each named partition."""

    pauses: tuple[Pause, ...]
    summary: tuple[str, ...]


def pauses_of_partitions(
    partitions: Iterable[TopicPartition], pauses: Iterable[Pause]
) -> dict[TopicPartition, Pause]:
    """Return the paused partitions among `partitions`, each with its own pause or that of its
    topic.
    """
    by_name = {(pause.topic, pause.partition): pause for pause in pauses}
    if not by_name:
        return {}
    paused = {}
    for partition in partitions:
        pause = by_name.get((partition.topic, partition)) or by_name.get((partition.topic, None))
        if pause:
            paused[partition] = pause
    return paused


def leave_paused(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without paused partitions; its field `paused` has them."""
    if not snapshot.ledger.pauses:
        return snapshot
    paused = pauses_of_partitions(
        (*snapshot.readable, *snapshot.leaderless), snapshot.ledger.pauses
    )
    changed = {}
    for topic_partition, pause in paused.items():
        partition = snapshot.partitions[topic_partition]
        changed[topic_partition] = replace(partition, availability=Availability.PAUSED, pause=pause)
    return snapshot.with_partitions(changed)


def standing_without_paused(
    snapshot: Snapshot, settings: Settings
) -> tuple[Snapshot, PipelineState]:
    """Return the snapshot and the state without paused partitions.

    A stored plan is executed whole: then both include them. Raises as `where_we_stand`.
    """
    without_paused = leave_paused(snapshot)
    state = where_we_stand(without_paused, settings)
    if isinstance(state, Resume) and without_paused is not snapshot:
        return snapshot, where_we_stand(snapshot, settings)
    return without_paused, state


def pausing(
    pauses: Sequence[Pause],
    named: Iterable[Named],
    known: Collection[TopicPartition],
    *,
    reason: str,
    by: str,
    now_ms: int,
) -> Changed:
    """Return the pauses with the named ones added.

    Raises SettingsError for a name that covers no known partition.
    """
    all_pauses = [*pauses]
    sentences = []
    for name in dict.fromkeys(named):
        present = _pause_of(name, all_pauses)
        if present is None:
            reject_unknown(name, known)
            all_pauses.append(Pause(name.topic, name.partition, reason, by, now_ms))
            sentences.append(f"{name} is paused: {reason}")
            continue
        as_whole = ""
        if name.partition and present.partition is None:
            as_whole = f", with {name.topic} as a whole"
        sentences.append(f"{name} is paused already{as_whole}: {present.reason}")
    return Changed(tuple(all_pauses), tuple(sentences))


def resuming(
    pauses: Sequence[Pause], named: Iterable[Named], known: Collection[TopicPartition]
) -> Changed:
    """Return the pauses without the named ones; a topic includes its partitions.

    Raises SettingsError for a partition of a topic that is paused as a whole, and for an unknown
    name.
    """
    kept = [*pauses]
    sentences = []
    for name in dict.fromkeys(named):
        removed = []
        for pause in kept:
            if pause.topic != name.topic:
                continue
            if name.partition and pause.partition is None:
                message = (
                    f"{name.topic} is paused as a whole, so {name} cannot be resumed by itself: "
                    f"{pause.reason}"
                )
                action = f"Resume {name.topic}, and pause its partitions that are to stay paused"
                raise SettingsError(message, key="--partition", action=action)
            if name.partition is None or pause.partition == name.partition:
                removed.append(pause)
        if not removed:
            reject_unknown(name, known)
            sentences.append(f"{name} is not paused: there is nothing to resume")
            continue
        kept = [pause for pause in kept if pause not in removed]
        sentences.append(f"{name} is resumed: the next plan reads on from its position")
    return Changed(tuple(kept), tuple(sentences))


def merged(
    ours: Sequence[Pause], theirs: Iterable[Pause], topics: Collection[str]
) -> tuple[Pause, ...]:
    """Return our pauses, and those of a predecessor in the inherited topics."""
    all_pauses = [*ours]
    present = {(pause.topic, pause.partition) for pause in ours}
    for pause in theirs:
        if pause.topic in topics and (pause.topic, pause.partition) not in present:
            all_pauses.append(pause)
    return tuple(all_pauses)


def reject_unknown(named: Named, known: Collection[TopicPartition]) -> None:
    """Raise SettingsError if the name covers no known partition."""
    if named.covers_any(known):
        return
    if named.partition:
        message = f"There is no partition {named} among the topics of the conf"
    else:
        message = f"{named} is no topic of the conf"
    action = f"Check with `etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}"
    raise SettingsError(message, key="--partition", action=action)


def _pause_of(named: Named, pauses: Iterable[Pause]) -> Pause | None:
    """Return the pause that covers the name: its own, else that of its topic."""
    of_topic = None
    for pause in pauses:
        if pause.topic != named.topic:
            continue
        if pause.partition == named.partition:
            return pause
        if pause.partition is None:
            of_topic = pause
    return of_topic
