"""How does a backfill run?

Store the request, then load one bounded plan after the other, each under the driver lock: plans of
a backfill are plans of the pipeline, and a scheduled run that waits comes between two of them (ADR
39). Before each plan the stored plan of a run is finished, as any run would do. A killed backfill
continues when the command is repeated: what is left is the request without the loaded offsets.

Not here: which offsets are loaded and in which plans (etl/decide/backfill.py).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from etl.decide.backfill import (
    BackfillRequest,
    Intervals,
    also_read_by_others,
    count_offsets,
    incomplete_error,
    intersect,
    left_to_runs,
    plan_backfill,
    reject_other_request,
    requested_intervals,
    requested_partitions,
    unloaded_intervals,
    unloaded_of,
    with_lost,
    without,
)
from etl.decide.next_step import repaired
from etl.decide.plan_replacement import in_place_of
from etl.decide.replay import times_to_look_up
from etl.decide.time_zones import describe_time_zones
from etl.errors import (
    DataLoss,
    ExpiredOffsets,
    NeedsDecision,
    Owned,
    SettingsError,
    Unreachable,
)
from etl.ledger.plan_document import with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import Backfill, LoadedIntervals, Snapshot, UpToDate
from etl.reader.options import SEE_SUPERSEDE
from etl.report.describe import counted, describe_also_loaded, format_time
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import BackfillProgress, Report
from etl.run.ingest import (
    EXPIRIES_MAX,
    execute,
    finish_left,
    finish_repair,
    observe_and_decide,
    store_or_replace,
)
from etl.run.replay import is_left, repaired_state
from etl.run.service_interfaces import Services
from etl.settings.choices import OnDataLoss
from etl.settings.sections import Settings

_CONFLICTS_MAX = 3
"""Turns in a row without progress."""
Turn = Callable[[], AbstractContextManager[None]]
"""Context manager: the driver lock of the pipeline, for one plan."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A backfill that has not begun."""

    backfill: Backfill
    """Its request; without intervals if nothing of it is to be loaded."""
    snapshot: Snapshot
    read_by_others: int = 0
    """The number of these offsets that other members of the group read."""


@dataclass(slots=True)
class BegunBackfill:
    """Whether a command has found or stored its backfill, kept while it starts again with a new
    ZooKeeper session.
    """

    has_begun: bool = False


def backfill(
    services: Services,
    settings: Settings,
    report: Report,
    name: str,
    request: BackfillRequest | None,
    turn: Turn,
    own: BegunBackfill | None = None,
) -> None:
    """Store the request, unless the backfill has begun, and load what is left of it.

    `request` is None to continue an existing one; `own`: what the same command did in an earlier
    session. Raises what a run raises; SettingsError for another request than it began with or if
    it was deleted since, and as `begin`.
    """
    own = own or BegunBackfill()
    begun = None
    left_before = None
    conflicts = expiries = 0
    while conflicts < _CONFLICTS_MAX and expiries <= EXPIRIES_MAX:
        with turn():
            found = _requested(services, name, request, begun, own)
            try:
                result = _take_turn(services, settings, report, name, found, own)
            except ExpiredOffsets:
                # The next snapshot shows what retention left.
                if settings.source.on_data_loss is OnDataLoss.FAIL:
                    raise
                expiries += 1
                continue
        begun = begun or result.backfill
        if result.is_complete:
            return
        # A plan that leaves as much as it found was not recorded: no endless repetition.
        if result.is_conflict or (result.left is not None and result.left == left_before):
            conflicts += 1
        else:
            conflicts = expiries = 0
        left_before = result.left
    raise Owned(
        f"Another driver runs this pipeline, or retention deletes the offsets of backfill {name} "
        "faster than they are read",
        action=f"Check who else runs this conf, then run `etl backfills run CONF {name}`",
    )


def _requested(
    services: Services,
    name: str,
    request: BackfillRequest | None,
    begun: Backfill | None,
    own: BegunBackfill,
) -> Backfill | BackfillRequest:
    """Return the backfill, or the request of one that has not begun. Raises SettingsError."""
    found = services.backfills.read(name)
    if found is None:
        if own.has_begun:
            raise _deleted_error(name)
        if request is None:
            raise no_such_backfill()
        return request
    own.has_begun = True
    if request:
        reject_other_request(found, request.asked)
    if begun is None:
        return _with_losses_of_plans(services, found)
    return found


def _deleted_error(name: str) -> SettingsError:
    """Return the error of a driver whose backfill an operator has deleted."""
    return SettingsError(
        f"Backfill {name} was deleted while it was loaded; the loaded rows stay",
        key="NAME",
        action="Check with `etl backfills list CONF`",
    )


def no_such_backfill() -> SettingsError:
    """Return the error for a name without a backfill."""
    return SettingsError(
        "No backfill of this name exists",
        key="NAME",
        action="Check with `etl backfills list CONF`",
    )


def _with_losses_of_plans(services: Services, backfill: Backfill) -> Backfill:
    """Store what recorded plans gave up, if a crash came between the record and that."""
    known = backfill
    for plan, is_recorded in services.loaded.stored_plans():
        if is_recorded and plan.backfill == backfill.name:
            known = with_lost(known, plan)
    if known != backfill:
        services.backfills.replace(backfill, known)
    return known


@dataclass(frozen=True, slots=True)
class _Turn:
    """What became of one turn."""

    backfill: Backfill | None
    """None: it has not begun yet."""
    is_complete: bool = False
    left: int | None = None
    """Offsets that were left before its plan; None: it had none."""
    is_conflict: bool = False
    """True if another driver's plan took the number."""


def _take_turn(
    services: Services,
    settings: Settings,
    report: Report,
    name: str,
    known: Backfill | BackfillRequest,
    own: BegunBackfill,
) -> _Turn:
    """Finish the stored plan of a run, or load one plan of the backfill."""
    named = _no_named_offsets
    if isinstance(known, BackfillRequest):
        named = known.offsets_of
    step = observe_and_decide(services, settings, report, named)
    if is_left(step):
        report.backfill = None
        finished = finish_left(services, step, settings, report)
        begun = None
        if isinstance(known, Backfill):
            begun = known
        return _Turn(begun, is_conflict=finished is None)
    finish_repair(services, step.repair, report)
    with report.timed(Verb.PLAN):
        state, stored = repaired_state(step)
        snapshot = repaired(step.snapshot, step.repair).with_all_partitions()
        loaded = loaded_in_table(services, snapshot)
        current = _begun(services, report, name, known, own, state, snapshot, loaded)
        if current is None:
            return _Turn(None, is_complete=True)
        last = state.last
        unloaded = unloaded_of(current, loaded)
        of_runs = left_to_runs(current, unloaded, last.loaded_until, last.incarnations)
        left = without(unloaded, of_runs)
        if not left:
            has_begun = isinstance(known, Backfill)
            _report_complete(current, report, count_offsets(of_runs), has_begun=has_begun)
            return _Turn(current, is_complete=True)
        plan = _stored_plan(services, current, left, state, stored, snapshot, loaded, settings)
        report.backfill = BackfillProgress(current.offsets - count_offsets(left), current.offsets)
        report.planned(plan, goes_on=True)
        _report_notes(plan, step.snapshot, report)
    with _naming_way_out(services, name):
        executed = execute(services, plan, snapshot, settings, report)
    if executed is None:
        return _Turn(current, left=count_offsets(left), is_conflict=True)
    if executed.losses.lost and services.backfills.read(name):
        services.backfills.replace(current, with_lost(current, executed))
    return _Turn(current, left=count_offsets(left))


def _no_named_offsets(partition: TopicPartition) -> tuple[int, ...]:
    """The request of a backfill that has begun names no offset. The snapshot still has the
    retention of all topics: below the loaded-until offsets it explains missing offsets, too.
    """
    del partition
    return ()


def _begun(
    services: Services,
    report: Report,
    name: str,
    known: Backfill | BackfillRequest,
    own: BegunBackfill,
    state: UpToDate,
    snapshot: Snapshot,
    loaded: LoadedIntervals,
) -> Backfill | None:
    """Return the backfill; a new one is stored. None if nothing of a request is missing."""
    if isinstance(known, Backfill):
        return known
    beginning = begin(services, name, known, state, snapshot, loaded)
    if not beginning.backfill.intervals:
        report.add(Outcome.UP_TO_DATE, describe_nothing_missing(name))
        return None
    services.backfills.create(beginning.backfill)
    own.has_begun = True
    for sentence in describe_also_loaded(beginning.read_by_others):
        report.add(Outcome.OFFSETS_LEFT_TO_MEMBERS, sentence)
    return beginning.backfill


def _stored_plan(
    services: Services,
    backfill: Backfill,
    left: Intervals,
    state: UpToDate,
    stored: Plan | None,
    snapshot: Snapshot,
    loaded: LoadedIntervals,
    settings: Settings,
) -> Plan:
    """Store and return the next plan of the backfill. `stored`: the plan whose number it takes.

    Raises as `plan_backfill`, and BrokerUnreachable if no partition can be read.
    """
    now_ms = services.now_ms()
    with _naming_way_out(services, backfill.name):
        plan = plan_backfill(backfill, left, state, snapshot, settings, now_ms=now_ms)
    if plan is None:
        raise incomplete_error(backfill, left)
    _reject_unknown_rows(services, plan, snapshot, loaded)
    if stored:
        plan = in_place_of(plan, stored)
    plan = with_id(plan)
    store_or_replace(services, plan, snapshot.ledger)
    return plan


def _report_notes(plan: Plan, snapshot: Snapshot, report: Report) -> None:
    """Report another time zone, and paused partitions that the plan reads."""
    for sentence in describe_time_zones(plan, snapshot):
        report.add(Outcome.OTHER_TIME_ZONE, sentence)
    partitions = {r.partition for r in plan.ranges}
    for sentence in describe_paused_but_loaded(partitions, snapshot.ledger.pauses):
        report.add(Outcome.PAUSED, sentence)


@contextlib.contextmanager
def _naming_way_out(services: Services, name: str) -> Iterator[None]:
    """Context manager: the actions of errors about a plan of the backfill name its deletion, where
    they name a command for plans of runs, or none.

    Raises SettingsError if the backfill was deleted meanwhile: there is nothing to decide then.
    """
    try:
        yield
    except (NeedsDecision, DataLoss, SettingsError) as error:
        with contextlib.suppress(Unreachable):  # the error itself is more than that
            if services.backfills.read(name) is None:
                raise _deleted_error(name) from error
        error.action = action_for_backfill(error.action, name)
        raise


def action_for_backfill(action: str, name: str) -> str:
    """Return the action of an error with `etl backfills delete` in place of commands that replace
    stored plans.
    """
    if "backfills delete" in action or "--only-unloaded" in action:
        return action
    command = f"`etl backfills delete CONF {name} --reason ...`: it keeps what it loaded"
    # the first part applies to a backfill, too; the rest names `etl plans supersede`
    first_part = re.split(r"[;.] [Oo]r (?:give|replace)", action)[0]
    first_part = first_part.removesuffix(f". {SEE_SUPERSEDE}")
    if not first_part or "plans supersede" in first_part:
        return f"Delete the backfill with {command}"
    return f"{first_part}. Or delete the backfill with {command}"


def begin(
    services: Services,
    name: str,
    request: BackfillRequest,
    state: UpToDate,
    snapshot: Snapshot,
    loaded: LoadedIntervals,
    positions: Mapping[TopicPartition, int] | None = None,
) -> Beginning:
    """Return the backfill of a request; nothing is stored.

    `positions`: the loaded-until offsets, if other than those of the last plan. Raises what
    `etl.decide.backfill` rejects, and NeedsDecision for offsets with rows of unknown plans.
    """
    last = state.last
    partitions = requested_partitions(request, last, snapshot)
    timestamps = times_to_look_up(request, partitions)
    offsets_at: Mapping[tuple[TopicPartition, int], int] = {}
    if timestamps:
        offsets_at = services.first_at(timestamps)
    now_ms = services.now_ms()
    intervals = requested_intervals(request, partitions, offsets_at, snapshot, now_ms=now_ms)
    found = unloaded_intervals(request, intervals, loaded, last, positions or last.loaded_until)
    incarnations = {}
    for partition in found:
        if last.incarnations.get(partition, 0):
            incarnations[partition] = last.incarnations[partition]
    _reject_rows_of(services, found, last, snapshot)
    return Beginning(
        Backfill(name, found, incarnations, request.asked, now_ms),
        snapshot,
        also_read_by_others(found, loaded, last),
    )


def loaded_in_table(services: Services, snapshot: Snapshot) -> LoadedIntervals:
    """Return what plans loaded into the table as it is, also after an older copy was accepted."""
    version = 0
    if snapshot.table:
        version = snapshot.table.transaction_version or 0
    return services.loaded.intervals(version)


def describe_nothing_missing(name: str) -> str:
    """Describe a request without offsets that are to be loaded."""
    return f"Backfill {name}: nothing of the request is left to load"


def _reject_unknown_rows(
    services: Services, plan: Plan, snapshot: Snapshot, loaded: LoadedIntervals
) -> None:
    """Reject a plan with rows in the table already, where the ledger may not know of them.

    That is, of offsets that were loaded into a state of the table that an operator gave up, and
    where plans are unknown since the ledger was restored. Raises NeedsDecision.
    """
    ranges: dict[TopicPartition, tuple[tuple[int, int], ...]] = {}
    for r in plan.ranges:
        ranges[r.partition] = (*ranges.get(r.partition, ()), (r.from_offset, r.until_offset))
    to_check: Intervals = ranges
    if not loaded.has_unknown_plans:
        given_up = {}
        for partition, intervals in loaded.given_up.items():
            given_up[partition] = tuple((one.from_offset, one.until_offset) for one in intervals)
        to_check = intersect(ranges, given_up)
    _reject_rows_of(services, to_check, plan, snapshot)


def _reject_rows_of(
    services: Services, intervals: Intervals, plan: Plan, snapshot: Snapshot
) -> None:
    """Reject offsets with rows in the table that no known plan loaded. Raises NeedsDecision."""
    ranges = []
    for partition, parts in sorted(intervals.items()):
        for start, until in parts:
            ranges.append(OffsetRange(partition, start, until))
    if not ranges or snapshot.table is None:
        return
    results = services.loaded.results_in_table(replace(plan, ranges=tuple(ranges)))
    if results is None:
        raise NeedsDecision(
            "The table's rows of these offsets cannot be counted, so they may be loaded already",
            action="Check the table for missing columns and files",
        )
    for r, result in zip(ranges, results, strict=True):
        if not result.rows:
            continue
        raise NeedsDecision(
            f"The table holds {result.rows:,} rows of offsets {r.from_offset} to {r.until_offset}, "
            "but no plan of the pipeline that ZooKeeper knows loaded them",
            **r.partition.place,
            offset=r.from_offset,
            action="Check which writer loaded them (`DESCRIBE HISTORY`), and whether ZooKeeper was "
            "emptied. Loaded again, these rows would be in the table twice",
        )


def _report_complete(
    backfill: Backfill, report: Report, left_to_runs: int, *, has_begun: bool
) -> None:
    text = describe_whole(backfill, left_to_runs)
    if has_begun and not report.plans:
        text += f"; it began at {format_time(backfill.created_at_ms)} {backfill.request}"
        report.add(Outcome.ALREADY_LOADED, text)
        return
    report.add(Outcome.BACKFILL_DONE, text)


def describe_whole(backfill: Backfill, left_to_runs: int = 0) -> str:
    """Describe a complete backfill: offsets loaded, lost, and left to the pipeline's runs."""
    unit = next((partition.unit for partition in backfill.intervals), "offset")
    lost = count_offsets(backfill.lost)
    partitions = counted(len(backfill.intervals), "partition")
    loaded = counted(backfill.offsets - lost - left_to_runs, unit)
    if not lost and not left_to_runs:
        return f"Backfill {backfill.name}: all {loaded} of {partitions} loaded"
    text = f"Backfill {backfill.name}: {loaded} of {partitions} loaded"
    if lost:
        text += (
            f"; {lost:,} more are lost, which the policy allows, and are not in the table: the "
            "losses table lists them"
        )
    if left_to_runs:
        text += (
            f"; {left_to_runs:,} more are not in the table: the loaded-until offset was set back "
            "before them, so `etl run` loads them"
        )
    return text
