"""How does an operator set or pause offsets?

`etl offsets set` shows the moves, then observes again under the driver lock and stores a plan that
the next run executes. `etl topics pause` and `resume` change which partitions the next plan reads;
brokers are asked only for names that the ledger does not know.

Not here: what may be set (etl/decide/set_offsets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.commands.expected_rows import expected_rows, loaded_plans, read_both_ledgers
from etl.commands.operator_decisions import Ruling, as_member, describe_stored_plan, store_decided
from etl.commands.run import new_run_id
from etl.decide.group_commits import metadata_named_by_command
from etl.decide.group_ownership import (
    foreseen_by_command,
    leave_to_owners,
    of_command,
    reject_active_members,
    reject_offsets_read_by_others,
    reject_partitions_of_other_members,
    reject_unrecorded_commit,
)
from etl.decide.loaded_intervals import without
from etl.decide.next_step import repair_of, repaired
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
    resuming,
    standing,
)
from etl.errors import NeedsDecision, Owned, SettingsError
from etl.io.process import user_at_host
from etl.io.zookeeper.ledger_records import read_pauses_at, write_pauses
from etl.ledger.plan_document import with_id
from etl.model.partitions import FORM_OF_PARTITION, BrokerPartition, Named, parse_named, render_log
from etl.model.plans import Loss, OffsetRange, Plan
from etl.model.snapshot import Pause, Replay, Snapshot, Supersede
from etl.report.describe import describe_given_up
from etl.report.lag import described_pause
from etl.report.plan_json import describe_losses, describe_plan
from etl.report.run_report import Report
from etl.run.discovery import Discovery
from etl.run.ingest import finish_repair
from etl.run.live import LiveServices
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_services
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import BeforeEnd, Timestamp

Where = StartAt | Timestamp | BeforeEnd | int
"""A position to set: log start, readable end, the first record at or after a time, or an offset."""


@dataclass(frozen=True, slots=True)
class SetOffsetsRequest:
    """What an operator requests."""

    named: Named
    to: Where

    def offsets_of(self, log: BrokerPartition) -> tuple[int, ...]:
        """Which of the log's offsets are named."""
        return (self.to,) if isinstance(self.to, int) and self.named.covers(log) else ()


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What setting means."""

    moves: tuple[Move, ...]
    lost: tuple[Loss, ...] = ()
    """Further losses: what a replaced stored plan reads and no log holds any more."""

    @property
    def says(self) -> list[str]:
        """A sentence for each log."""
        return [*describe_moves(self.moves), *describe_given_up(self.lost)] or [
            "every position is there already: there is nothing to set"
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """The moves in the document of `etl offsets set`."""
        return [
            {
                **move.log.place,
                "from": move.from_offset,
                "to": move.to_offset,
                "skipped": move.skipped,
                "comes": move.comes,
            }
            for move in self.moves
        ]


def look(settings: Settings, wanted: SetOffsetsRequest) -> Foreseen:
    """Return what it means; nothing is stored, moved or locked. Raises what `offsets_set` would
    raise.
    """
    with open_services(settings, ALONE) as services:
        snapshot = _seen(
            services, foreseen_by_command(services.observe(wanted.offsets_of), settings)
        )
        stands = _stands(services, snapshot)
        snapshot = repaired(snapshot, repair_of(stands.state, snapshot))
        moves = moves_to(_targets(services, wanted, stands, snapshot), stands, snapshot)
        _reject_loaded(services, moves, stands, snapshot)
        return Foreseen(moves, _lost(stands, moves, snapshot))


def offsets_set(settings: Settings, foreseen: Foreseen, reason: str) -> Ruling:
    """Store the plan that was shown; the next run executes it. Among group members the offset is
    committed with it.

    Raises Owned while a driver is active, and if positions changed since; SettingsError for an
    offset outside the log, NeedsDecision if rows would be doubled, and what stops a run.
    """
    if not foreseen.moves:
        return Ruling(
            foreseen.says[0], {"message": foreseen.says, "moves": [], "lost": [], "plan": None}
        )
    to, run_id = {move.log: move.to_offset for move in foreseen.moves}, new_run_id()
    with (
        open_services(settings, ALONE) as services,
        services.driving(run_id),
        as_member(services, settings) as share,
    ):
        snapshot = _seen(
            services,
            replace(services.observe(lambda log: [to[log]] if log in to else ()), share=share),
        )
        stands = _stands(services, snapshot)
        repair = repair_of(stands.state, snapshot)
        finish_repair(
            services,
            repair,
            Report(run_id, settings.pipeline, settings.group.id, settings.table.path, now_ms()),
        )
        snapshot = repaired(snapshot, repair)
        moves = moves_to(to, stands, snapshot)
        if (moves, _lost(stands, moves, snapshot)) != (foreseen.moves, foreseen.lost):
            raise Owned(
                "A run went on since the positions were looked at",
                action="Run this command again, and look at what it says",
            )
        _reject_loaded(services, moves, stands, snapshot)
        reject_active_members(snapshot, settings)
        reject_partitions_of_other_members(to, snapshot, settings)
        plan = plan_set(stands, moves, snapshot, settings, reason=reason, now_ms=now_ms())
        plan = with_id(of_command(plan, snapshot, settings))
        store_decided(services, plan, stands.state, snapshot.ledger)
    sentences = describe_stored_plan(plan, reason)
    sentences += foreseen.says
    document = {
        "message": sentences,
        "moves": foreseen.as_json(),
        "lost": describe_losses(foreseen.lost),
        "plan": describe_plan(plan, None),
    }
    return Ruling("\n".join(sentences), document)


def _lost(stands: Standing, moves: tuple[Move, ...], snapshot: Snapshot) -> tuple[Loss, ...]:
    return tuple(lost_of_stored(stands, moves, snapshot)) if moves else ()


def _seen(services: LiveServices, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as of a permitted run, without partitions of others."""
    reject_retired_or_shared(snapshot)
    return leave_to_owners(snapshot, services.settings)


def _stands(services: LiveServices, snapshot: Snapshot) -> Standing:
    state = where_we_stand(snapshot, services.settings)
    reject_unrecorded_commit(state, snapshot, services.settings)
    is_stored = isinstance(state, (Replay, Supersede))
    newest = snapshot.ledger.newest
    return standing(
        state,
        services.ledger.read_plan(newest.number - 1)
        if newest and is_stored and newest.number > 1
        else None,
    )


def _targets(
    services: LiveServices, wanted: SetOffsetsRequest, stands: Standing, snapshot: Snapshot
) -> dict[BrokerPartition, int]:
    """The logs that are named, and where each of them is set to. Raises SettingsError, and what
    `position_now` raises.
    """
    there = {*snapshot.extents, *snapshot.leaderless, *snapshot.owners}
    logs = sorted(log for log in there if wanted.named.covers(log))
    if not logs:
        if wanted.named.log:
            message = f"There is no partition {wanted.named} among the topics of the conf"
        else:
            message = f"{wanted.named} is no topic of the conf"
        raise SettingsError(
            message,
            key="--partition",
            action=f"Check with `etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}",
        )
    if isinstance(wanted.to, int) and wanted.named.log is None and len(logs) > 1:
        message = f"An offset is one partition's, and {wanted.named} has {len(logs):,} of them"
        raise SettingsError(
            message,
            key="--partition",
            action=f"Check the partition, e.g. {render_log(logs[0])}; or --to earliest, latest or a time",
        )
    if isinstance(wanted.to, BeforeEnd) and services.settings.source.is_physical:
        message = (
            "Offsets of these brokers count bytes, and so many before the end no message need begin"
        )
        raise SettingsError(
            message,
            key="--to",
            action="Pass an offset at which a message begins (etl records show), earliest or latest",
        )
    for log in logs:
        position_now(log, stands, snapshot)
    if isinstance(wanted.to, Timestamp):
        return _at_time(services, logs, wanted.to, snapshot)
    if isinstance(wanted.to, StartAt):
        is_start = wanted.to is StartAt.EARLIEST
        return {
            log: e.log_start_offset if is_start else e.end_offset
            for log in logs
            for e in (snapshot.extents[log],)
        }
    if isinstance(wanted.to, BeforeEnd):
        back = wanted.to.offsets
        return {
            log: max(e.log_start_offset, e.end_offset - back)
            for log in logs
            for e in (snapshot.extents[log],)
        }
    return dict.fromkeys(logs, wanted.to)


def _at_time(
    services: LiveServices, logs: Iterable[BrokerPartition], to: Timestamp, snapshot: Snapshot
) -> dict[BrokerPartition, int]:
    """Return the first record at or after the time; the end if there is none. Later records do not
    count.
    """
    if services.settings.source.is_physical:
        message = "Messages of these brokers have no time, so no offset can be found by one"
        raise SettingsError(
            message,
            key="--to",
            action="Pass an offset at which a message begins (etl records show), earliest or latest",
        )
    with Discovery(services.settings, services.zookeeper).open_cluster() as cluster:
        found = cluster.offsets_at(
            dict.fromkeys(logs, to.ms), wait_for_leader_s=services.settings.source.wait_for_leader_s
        )
    ends = {log: extent.end_offset + extent.held_back for log, extent in snapshot.extents.items()}
    return {
        log: min(max(at, snapshot.extents[log].log_start_offset), ends[log])
        for log, at in found.items()
    }


def _reject_loaded(
    services: LiveServices, moves: Iterable[Move], stands: Standing, snapshot: Snapshot
) -> None:
    """Look up loaded offsets and rows that would be read again. Raises NeedsDecision if there are
    any, or that is unknown.
    """
    to_look_up, table = intervals_to_look_up(moves), snapshot.table
    if not to_look_up or table is None:
        return
    ledgers = read_both_ledgers(services)
    loaded, led = loaded_plans(services, ledgers, table)
    intervals_loaded_by_plans = (hole for each in loaded for hole in each.plan.read_by_others)
    theirs = (
        *ledgers.coverage.read_by_others,
        *intervals_loaded_by_plans,
        *metadata_named_by_command(stands.state),
    )
    reject_offsets_read_by_others(
        to_look_up,
        [hole for hole in theirs if hole.incarnation == stands.old.incarnations.get(hole.log, 0)],
    )
    gone = [
        *ledgers.coverage.vanished,
        *(one for each in loaded for one in each.plan.vanished),
        *stands.old.vanished,
    ]
    vanished: dict[tuple[BrokerPartition, int], list[tuple[int, int]]] = {}
    for one in gone:
        vanished.setdefault((one.log, one.incarnation), []).append(
            (one.from_offset, one.until_offset)
        )
    given: dict[BrokerPartition, list[tuple[int, int]]] = {}
    for audited, expected in expected_rows(services, ledgers, table, loaded, led)[0].items():
        holes = vanished.get((audited.log, audited.incarnation), ())
        stretches = [
            *((one.from_offset, one.until_offset) for one in expected.coverage),
            *((r.from_offset, r.until_offset) for r, _ in expected.ranges),
        ]
        given.setdefault(audited.log, []).extend(
            part for stretch in stretches for part in without(stretch, holes)
        )
    reject_loaded(moves, given, _rows_of(services, to_look_up, stands, vanished))


def _rows_of(
    services: LiveServices,
    intervals: Mapping[BrokerPartition, tuple[int, int]],
    stands: Standing,
    vanished: Mapping[tuple[BrokerPartition, int], Iterable[tuple[int, int]]],
) -> dict[BrokerPartition, int]:
    """Return the number of rows of these offsets, of all incarnations with existing records,
    whoever wrote them.
    """
    rows = dict.fromkeys(intervals, 0)
    lives = {log: stands.old.incarnations.get(log, 0) for log in intervals}
    for life in range(max(lives.values(), default=0) + 1):
        ranges = tuple(
            OffsetRange(log, *part)
            for log, stretch in sorted(intervals.items())
            if life <= lives[log]
            for part in without(stretch, vanished.get((log, life), ()))
        )
        counted = services.rows_of_today(
            replace(stands.old, ranges=ranges, incarnations=dict.fromkeys(intervals, life))
        )
        if counted.uncounted:
            message = f"Nobody can tell whether the table holds what would be read again: {counted.uncounted}"
            raise NeedsDecision(
                message,
                path=services.settings.table.path,
                action="Check the table's columns and files: what is missing there",
            )
        for r, receipt in zip(ranges, counted.receipts, strict=True):
            rows[r.log] += receipt.rows or 0
    return rows


_Change = Callable[[Sequence[Pause], Iterable[Named], frozenset[BrokerPartition]], Changed]


def pause(settings: Settings, names: Sequence[str], reason: str) -> Ruling:
    """Pause partitions, each `TOPIC` or `TOPIC:PARTITION`; a paused one stays as it is. Raises
    SettingsError for an unknown one, Owned while a driver is active, and as asking brokers does.
    """

    def change(
        pauses: Sequence[Pause], named: Iterable[Named], known: frozenset[BrokerPartition]
    ) -> Changed:
        return pausing(pauses, named, known, reason=reason, by=user_at_host(), now_ms=now_ms())

    return _changed(settings, names, change)


def resume(settings: Settings, names: Sequence[str], reason: str) -> Ruling:
    """Resume partitions; a topic's name includes its partitions. Raises as `pause`, and for a
    partition of a topic that is paused as a whole.
    """
    return _changed(settings, names, resuming, reason)


def _changed(
    settings: Settings, names: Sequence[str], change: _Change, reason: str | None = None
) -> Ruling:
    named = [parse_named(name) for name in names]
    with open_services(settings, ALONE) as services, services.driving(new_run_id()):
        before, version = read_pauses_at(services.ledger)
        ledger = services.ledger.read_ledger()
        after = change(before, named, _known(services, named, before, ledger.newest))
        if after.pauses != before:
            write_pauses(services.ledger, after.pauses, version)
    sentences = [*after.says, *([f"why: {reason}"] if reason and after.pauses != before else ())]
    stored = ledger.newest if ledger.newest and ledger.applied is None else None
    sentences += _describe_paused_in_stored_plan(stored, after.pauses, before)
    return Ruling(
        "\n".join(sentences),
        {
            "message": sentences,
            "reason": reason,
            "changed": after.pauses != before,
            "paused": [described_pause(one) for one in after.pauses],
        },
    )


def _known(
    services: LiveServices, named: Iterable[Named], pauses: Iterable[Pause], newest: Plan | None
) -> frozenset[BrokerPartition]:
    """The logs that the ledger knows; where one is named that is not among them, those of the
    brokers, too.
    """
    known = {
        *(newest.positions if newest else ()),
        *(newest.pending_starts if newest else ()),
        *(one.log for one in pauses if one.log),
    }
    whole = {one.topic for one in pauses if one.log is None}
    if all(one.topic in whole or any(one.covers(log) for log in known) for one in named):
        return frozenset(known)
    discovery = Discovery(services.settings, services.zookeeper)
    with discovery.open_cluster(known if services.settings.source.is_physical else ()) as cluster:
        described = discovery.describe(cluster, ())
    admits = services.settings.source.topic_filter.admits
    return frozenset(
        (
            *known,
            *(
                p.log
                for name, topic in described.topics.items()
                if admits(name)
                for p in topic.partitions
            ),
        )
    )


def _describe_paused_in_stored_plan(
    stored: Plan | None, after: Iterable[Pause], before: Sequence[Pause]
) -> list[str]:
    """Describe that a stored plan reads paused partitions, since it is executed whole."""
    new = [one for one in after if one not in before]
    if stored is None or not any(one.covers(r.log) for one in new for r in stored.ranges):
        return []
    return [
        f"plan {stored.number} is stored and reads some of that: it is executed whole, and what is paused rests behind it"
    ]
