"""How does an operator set or pause offsets?

`etl offsets set` shows the moves, then observes again under the driver lock and stores a plan that
the next run executes. `etl topics pause` and `resume` change which partitions the next plan reads;
they send requests to brokers only for names that the ledger does not know.

Not here: what may be set (etl/decide/set_offsets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.commands.expected_rows import expected_rows, loaded_plans, read_both_ledgers
from etl.commands.operator_decisions import (
    DecisionResult,
    describe_stored_plan,
)
from etl.commands.operator_session import operator_session, plan_of_command
from etl.decide.loaded_intervals import subtract_intervals
from etl.decide.member_offsets import read_by_others_of_command
from etl.decide.next_step import repair_of, repaired
from etl.decide.partition_owners import (
    foreseen_by_command,
    leave_to_owners,
    reject_active_members,
    reject_offsets_read_by_others,
    reject_partitions_of_other_members,
    reject_unrecorded_commit,
)
from etl.decide.reconcile import reject_retired_or_shared, where_we_stand
from etl.decide.set_offsets import (
    Changed,
    Move,
    Standing,
    describe_moves,
    intervals_to_look_up,
    lost_of_stored,
    moves_to,
    pausing,
    plan_set,
    position_now,
    reject_loaded,
    reject_unknown,
    resuming,
    standing,
)
from etl.errors import NeedsDecision, Owned, SettingsError
from etl.io.process import user_at_host
from etl.io.zookeeper.ledger_side_documents import read_pauses_at, write_pauses
from etl.model.partitions import Named, TopicPartition, parse_named, render_partition
from etl.model.plans import Loss, OffsetRange, Plan
from etl.model.snapshot import (
    Pause,
    PipelineState,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
)
from etl.report.describe import describe_given_up
from etl.report.lag import pause_as_json
from etl.report.report_json import describe_losses, describe_plan
from etl.run.discovery import Discovery
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.run_context import ALONE
from etl.run.service_interfaces import now_ms
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import BeforeEnd, Timestamp

Where = StartAt | Timestamp | BeforeEnd | int
"""A target: log start, readable end, the first record at or after a time, or an offset."""


@dataclass(frozen=True, slots=True)
class SetOffsetsRequest:
    """The request of an operator: partitions, and where to set them."""

    named: Named
    to: Where

    def offsets_of(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the offset that the request names in this partition, if it names one."""
        if isinstance(self.to, int) and self.named.covers(partition):
            return (self.to,)
        return ()


@dataclass(frozen=True, slots=True)
class SetOffsetsPreview:
    """The effect of setting offsets, as shown before it is stored."""

    moves: tuple[Move, ...]
    lost: tuple[Loss, ...] = ()
    """Further losses: offsets of a replaced stored plan that are gone from the brokers."""

    @property
    def summary(self) -> list[str]:
        """Describe the effect, a sentence per partition."""
        sentences = [*describe_moves(self.moves), *describe_given_up(self.lost)]
        if not sentences:
            return ["every position is there already: there is nothing to set"]
        return sentences

    def as_json(self) -> list[dict[str, Any]]:
        """Return the moves in the document of `etl offsets set`."""
        rows = []
        for move in self.moves:
            rows.append(
                {
                    **move.partition.place,
                    "from": move.from_offset,
                    "to": move.to_offset,
                    "skipped": move.skipped,
                    "comes": move.comes,
                }
            )
        return rows


def preview_offsets(settings: Settings, wanted: SetOffsetsRequest) -> SetOffsetsPreview:
    """Return the effect of the request; nothing is stored, moved or locked.

    Raises as `offsets_set`.
    """
    with open_services(settings, ALONE) as services:
        observed = services.observe(wanted.offsets_of)
        snapshot = _permitted(services, foreseen_by_command(observed, settings))
        state, stands = _stands(services, snapshot)
        snapshot = repaired(snapshot, repair_of(state, snapshot))
        moves = moves_to(_targets(services, wanted, stands, snapshot), stands, snapshot)
        _reject_loaded(services, moves, stands, snapshot)
        return SetOffsetsPreview(moves, _lost(stands, moves, snapshot))


def offsets_set(settings: Settings, foreseen: SetOffsetsPreview, reason: str) -> DecisionResult:
    """Store the plan that was shown; the next run executes it.

    A group member commits the offsets with it. Raises Owned while a driver is active, and if
    loaded-until offsets changed since; SettingsError for an offset outside the partition,
    NeedsDecision if rows would be doubled, and the errors that stop a run.
    """
    if not foreseen.moves:
        document: dict[str, Any] = {
            "message": foreseen.summary,
            "moves": [],
            "lost": [],
            "plan": None,
        }
        return DecisionResult(foreseen.summary[0], document)
    targets = {move.partition: move.to_offset for move in foreseen.moves}

    def offsets_of(partition: TopicPartition) -> tuple[int, ...]:
        return (targets[partition],) if partition in targets else ()

    with operator_session(settings) as session:
        services = session.services
        snapshot = _permitted(services, session.observe(offsets_of))
        state, stands = _stands(services, snapshot)
        snapshot = session.finish(repair_of(state, snapshot), snapshot)
        moves = moves_to(targets, stands, snapshot)
        if (moves, _lost(stands, moves, snapshot)) != (foreseen.moves, foreseen.lost):
            raise Owned(
                "A run changed the loaded-until offsets since they were shown",
                action="Run this command again, and check the moves that it shows",
            )
        _reject_loaded(services, moves, stands, snapshot)
        reject_active_members(snapshot, settings)
        reject_partitions_of_other_members(targets, snapshot, settings)
        plan = plan_set(stands, moves, snapshot, settings, reason=reason, now_ms=now_ms())
        stored_backfill = None
        if isinstance(state, StoredBackfill):
            stored_backfill = state.plan
        plan = plan_of_command(plan, snapshot, settings, stored_backfill)
        session.store(plan, snapshot.ledger)
    sentences = describe_stored_plan(plan, reason)
    sentences += foreseen.summary
    document = {
        "message": sentences,
        "moves": foreseen.as_json(),
        "lost": describe_losses(foreseen.lost),
        "plan": describe_plan(plan, None),
    }
    return DecisionResult("\n".join(sentences), document)


def _lost(stands: Standing, moves: tuple[Move, ...], snapshot: Snapshot) -> tuple[Loss, ...]:
    if not moves:
        return ()
    return tuple(lost_of_stored(stands, moves, snapshot))


def _permitted(services: LiveServices, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without partitions of other consumers.

    Raises SettingsError if the pipeline may not run.
    """
    reject_retired_or_shared(snapshot)
    return leave_to_owners(snapshot, services.settings)


def _stands(services: LiveServices, snapshot: Snapshot) -> tuple[PipelineState, Standing]:
    """Return the state of the pipeline, and the positions before they are set."""
    state = where_we_stand(snapshot, services.settings)
    reject_unrecorded_commit(state, snapshot, services.settings)
    is_stored = isinstance(state, (Resume, Supersede))
    newest = snapshot.ledger.newest
    before_stored = None
    if newest and is_stored and newest.number > 1:
        before_stored = services.ledger.read_plan(newest.number - 1)
    return state, standing(state, before_stored)


def _targets(
    services: LiveServices, wanted: SetOffsetsRequest, stands: Standing, snapshot: Snapshot
) -> dict[TopicPartition, int]:
    """Return the target offset of each named partition.

    Raises SettingsError, and as `position_now`.
    """
    existing = {*snapshot.readable, *snapshot.leaderless, *snapshot.owners}
    partitions = []
    for partition in existing:
        if wanted.named.covers(partition):
            partitions.append(partition)
    partitions.sort()
    reject_unknown(wanted.named, partitions)
    if isinstance(wanted.to, int) and wanted.named.partition is None and len(partitions) > 1:
        message = (
            f"An offset is one partition's, and {wanted.named} has {len(partitions):,} of them"
        )
        raise SettingsError(
            message,
            key="--partition",
            action=f"Check the partition, e.g. {render_partition(partitions[0])}; "
            "or --to earliest, latest or a time",
        )
    if isinstance(wanted.to, BeforeEnd) and services.settings.source.is_physical:
        message = (
            "Offsets of these brokers count bytes, and so many before the end no message need begin"
        )
        raise SettingsError(message, key="--to", action=_PASS_START_OF_MESSAGE)
    for partition in partitions:
        position_now(partition, stands, snapshot)
    if isinstance(wanted.to, Timestamp):
        return _at_time(services, partitions, wanted.to, snapshot)
    if isinstance(wanted.to, int):
        return dict.fromkeys(partitions, wanted.to)
    targets = {}
    for partition in partitions:
        offsets = snapshot.readable[partition]
        if isinstance(wanted.to, BeforeEnd):
            targets[partition] = max(
                offsets.log_start_offset, offsets.end_offset - wanted.to.offsets
            )
        elif wanted.to is StartAt.EARLIEST:
            targets[partition] = offsets.log_start_offset
        else:
            targets[partition] = offsets.end_offset
    return targets


_PASS_START_OF_MESSAGE = (
    "Pass an offset at which a message begins (etl records show), earliest or latest"
)


def _at_time(
    services: LiveServices, partitions: Iterable[TopicPartition], to: Timestamp, snapshot: Snapshot
) -> dict[TopicPartition, int]:
    """Return the first record at or after the time; the end if there is none.

    Records that were written after the snapshot do not count.
    """
    source = services.settings.source
    if source.is_physical:
        message = "Messages of these brokers have no time, so no offset can be found by one"
        raise SettingsError(message, key="--to", action=_PASS_START_OF_MESSAGE)
    with Discovery(services.settings, services.zookeeper).open_cluster() as cluster:
        times = dict.fromkeys(partitions, to.ms)
        found = cluster.offsets_at(times, wait_for_leader_s=source.wait_for_leader_s)
    targets = {}
    for partition, offset in found.items():
        offsets = snapshot.readable[partition]
        end = offsets.end_offset + offsets.held_back
        targets[partition] = min(max(offset, offsets.log_start_offset), end)
    return targets


def _reject_loaded(
    services: LiveServices, moves: Iterable[Move], stands: Standing, snapshot: Snapshot
) -> None:
    """Look up loaded offsets and rows that would be read again.

    Raises NeedsDecision if there are any, or if that is unknown.
    """
    to_look_up = intervals_to_look_up(moves)
    table = snapshot.table
    if not to_look_up or table is None:
        return
    ledgers = read_both_ledgers(services)
    loaded, led = loaded_plans(services, ledgers, table)

    read_by_others = [*ledgers.loaded.read_by_others]
    lost_records = [*ledgers.loaded.vanished]
    for each in loaded:
        read_by_others += each.plan.losses.read_by_others
        lost_records += each.plan.losses.stale_rows
    read_by_others += read_by_others_of_command(stands.state)
    lost_records += stands.old.losses.stale_rows

    incarnations = stands.old.incarnations
    current = []
    for read in read_by_others:
        if read.incarnation == incarnations.get(read.partition, 0):
            current.append(read)
    reject_offsets_read_by_others(to_look_up, current)

    vanished: dict[tuple[TopicPartition, int], list[tuple[int, int]]] = {}
    for one in lost_records:
        offsets = (one.from_offset, one.until_offset)
        vanished.setdefault((one.partition, one.incarnation), []).append(offsets)

    loaded_offsets: dict[TopicPartition, list[tuple[int, int]]] = {}
    expected_by_partition, *_ = expected_rows(services, ledgers, table, loaded, led)
    for audited, expected in expected_by_partition.items():
        holes = vanished.get((audited.partition, audited.incarnation), ())
        intervals = [(one.from_offset, one.until_offset) for one in expected.loaded]
        intervals += [(r.from_offset, r.until_offset) for r, _ in expected.ranges]
        of_partition = loaded_offsets.setdefault(audited.partition, [])
        for interval in intervals:
            of_partition.extend(subtract_intervals(interval, holes))
    rows = _rows_of(services, to_look_up, stands, vanished)
    reject_loaded(moves, loaded_offsets, rows, incarnations)


def _rows_of(
    services: LiveServices,
    intervals: Mapping[TopicPartition, tuple[int, int]],
    stands: Standing,
    vanished: Mapping[tuple[TopicPartition, int], Iterable[tuple[int, int]]],
) -> dict[TopicPartition, int]:
    """Return the number of rows of these offsets in the table, of any writer.

    All incarnations with existing records count.
    """
    rows = dict.fromkeys(intervals, 0)
    newest = {partition: stands.old.incarnations.get(partition, 0) for partition in intervals}
    for incarnation in range(max(newest.values(), default=0) + 1):
        ranges = []
        for partition, interval in sorted(intervals.items()):
            if incarnation > newest[partition]:
                continue
            for part in subtract_intervals(interval, vanished.get((partition, incarnation), ())):
                ranges.append(OffsetRange(partition, *part))
        partitions = {}
        for partition in intervals:
            partitions[partition] = replace(
                stands.old.partitions[partition], incarnation=incarnation
            )
        counted = services.loaded.recount(
            replace(stands.old, ranges=tuple(ranges), partitions=partitions)
        )
        if counted.uncounted:
            raise NeedsDecision(
                "It is unknown whether the table holds rows of the offsets that would be read "
                f"again: {counted.uncounted}",
                path=services.settings.table.path,
                action="Check the columns and files of the table: some are missing",
            )
        for r, result in zip(ranges, counted.results, strict=True):
            rows[r.partition] += result.rows or 0
    return rows


_Change = Callable[[Sequence[Pause], Iterable[Named], frozenset[TopicPartition]], Changed]


def pause(settings: Settings, names: Sequence[str], reason: str) -> DecisionResult:
    """Pause partitions, each `TOPIC` or `TOPIC:PARTITION`; a paused one stays as it is.

    Raises SettingsError for an unknown one, Owned while a driver is active, and the errors of
    requests to brokers.
    """

    def change(
        pauses: Sequence[Pause], named: Iterable[Named], known: frozenset[TopicPartition]
    ) -> Changed:
        return pausing(pauses, named, known, reason=reason, by=user_at_host(), now_ms=now_ms())

    return _changed(settings, names, change)


def resume(settings: Settings, names: Sequence[str], reason: str) -> DecisionResult:
    """Resume partitions; the name of a topic includes all its partitions.

    Raises as `pause`, and SettingsError for one partition of a topic that is paused as a whole.
    """
    return _changed(settings, names, resuming, reason)


def _changed(
    settings: Settings, names: Sequence[str], change: _Change, reason: str | None = None
) -> DecisionResult:
    named = [parse_named(name) for name in names]
    with operator_session(settings, joins_group=False) as session:
        services = session.services
        before, version = read_pauses_at(services.ledger)
        ledger = services.ledger.read_ledger()
        after = change(before, named, _known(services, named, before, ledger.newest))
        if after.pauses != before:
            write_pauses(services.ledger, after.pauses, version)
    has_changed = after.pauses != before
    sentences = [*after.summary]
    if reason and has_changed:
        sentences.append(f"why: {reason}")
    if ledger.newest and ledger.applied is None:
        sentences += _describe_paused_in_stored_plan(ledger.newest, after.pauses, before)
    document = {
        "message": sentences,
        "reason": reason,
        "changed": has_changed,
        "paused": [pause_as_json(one) for one in after.pauses],
    }
    return DecisionResult("\n".join(sentences), document)


def _known(
    services: LiveServices, named: Iterable[Named], pauses: Iterable[Pause], newest: Plan | None
) -> frozenset[TopicPartition]:
    """Return the partitions that the ledger knows.

    If one of `named` is not among them, those that the brokers report are included.
    """
    known = {one.partition for one in pauses if one.partition}
    if newest:
        known |= newest.partitions.keys() | newest.pending.keys()
    paused_topics = {one.topic for one in pauses if one.partition is None}

    def is_known(one: Named) -> bool:
        return one.topic in paused_topics or any(
            one.covers(topic_partition) for topic_partition in known
        )

    if all(is_known(one) for one in named):
        return frozenset(known)
    source = services.settings.source
    discovery = Discovery(services.settings, services.zookeeper)
    registered = known if source.is_physical else ()
    with discovery.open_cluster(registered) as cluster:
        described = discovery.describe(cluster, ())
    for name, topic in described.topics.items():
        if source.topic_filter.admits(name):
            known |= {partition.partition for partition in topic.partitions}
    return frozenset(known)


def _describe_paused_in_stored_plan(
    stored: Plan, after: Iterable[Pause], before: Sequence[Pause]
) -> list[str]:
    """Describe that a stored plan reads newly paused partitions, since it is executed whole."""
    new = [one for one in after if one not in before]
    for one in new:
        if any(one.covers(r.partition) for r in stored.ranges):
            return [
                f"plan {stored.number} is stored and reads some of that: it is executed whole, "
                "and the pause begins after it"
            ]
    return []
