"""Which rows should the table hold, by the ledgers?

Plans that led to the table, loaded intervals of pruned plans, and lost offsets, of the pipeline and
its backfills, at one version of the table. A backfill's ledger is read after that version is known:
each plan is stored before its commit, so all commits up to it are known, and later ones are left
out.

Not here: what the table holds and what `verify` makes of it (etl/commands/verify.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.audit.audit import AuditedLog, Expected, replaced_expected, together, without_reloaded
from etl.decide.loaded_intervals import Ancestry, ancestry, merged_holes, spans_of, without
from etl.decide.plan import may_be_transformed
from etl.decide.reconcile import is_of_another_era
from etl.decide.reservations import as_claimed, covered_as_claimed
from etl.decide.table_changes import is_accepted, known_in_table
from etl.errors import LedgersDisagree, Owned
from etl.model.columns import names_of_key
from etl.model.plans import CommitResult, Loss, LossReason, OffsetRange, Plan, PlanKind, RangeResult
from etl.model.snapshot import (
    Interval,
    Ledger,
    LoadedIntervals,
    Reservation,
    ReservationState,
    Table,
)
from etl.report.describe import describe_jafka_proof, describe_vanished
from etl.run.live import LiveServices
from etl.run.services import ALONE
from etl.settings.load import settings_of_backfill
from etl.settings.sections import Settings

_LOOKS_MAX = 3


@dataclass(frozen=True, slots=True)
class BothLedgers:
    """Both ledgers at one moment."""

    ledger: Ledger
    table: Table | None
    kept: tuple[tuple[Plan, CommitResult | None], ...]
    """The kept plans, and the record of each."""
    coverage: LoadedIntervals


def read_both_ledgers(services: LiveServices) -> BothLedgers:
    """Read both ledgers, and again if a run stored or pruned plans meanwhile. Raises Owned."""
    for _ in range(_LOOKS_MAX):
        before = services.ledger.mark()
        ledger = services.ledger.read_ledger()
        table = services.read_table(ledger)
        kept = tuple(
            (plan, services.ledger.read_record_of(plan)) for plan in services.ledger.read_plans()
        )
        coverage = (
            services.ledger.read_loaded_intervals()
        )  # after the plans: one that was pruned meanwhile is in it, and counts once
        if services.ledger.mark() == before:
            return BothLedgers(
                ledger,
                table,
                tuple(one for one in kept if one[0].number > coverage.through),
                coverage,
            )
    raise Owned("Runs of this pipeline change its ledger while it is read", action="Verify again")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kept plan and what came of it."""

    plan: Plan
    applied: CommitResult
    was_recorded: bool
    """Else it was counted again."""
    is_given_up: bool
    """It went to another table, or to a state of this one that an old copy replaced, and an
    operator accepted that.
    """


def loaded_plans(
    services: LiveServices, ledgers: BothLedgers, table: Table
) -> tuple[list[Loaded], Ancestry]:
    """The kept plans that were applied, and which of all plans led to the table as it is."""
    led = ancestry(
        {plan.number: plan.table_transaction_version for plan, _ in ledgers.kept},
        table.transaction_version or 0,
    )
    found = []
    for plan, recorded in ledgers.kept:
        if recorded is None and plan.number not in led.numbers:
            continue
        applied = recorded or services.recount(plan)
        if applied is None:
            message = f"The table holds another plan {plan.number} than ZooKeeper"
            raise LedgersDisagree(
                message,
                path=services.settings.table.path,
                action="Check with `etl run CONF --dry-run`; the next run takes over the table's",
            )
        is_given_up = plan.number not in led.numbers or applied.table_id != table.id
        found.append(
            Loaded(
                plan,
                _as_known_now(plan, applied, services.settings),
                recorded is not None,
                is_given_up,
            )
        )
    return found, led


def _covered(coverage: LoadedIntervals, table: Table, led: Ancestry) -> dict[AuditedLog, Expected]:
    """Return the intervals of pruned plans; if not all of them led to this table, their rows are
    not required.
    """
    held_through = coverage.through if coverage.held_through is None else coverage.held_through
    is_judged = coverage.table_id in (None, table.id) and held_through <= led.before
    expected: dict[AuditedLog, Expected] = {}
    for intervals, is_held in ((coverage.intervals, is_judged), (coverage.given_up, False)):
        for log, found in intervals.items():
            for one in found:
                audited = AuditedLog(log, one.incarnation)
                known = expected.get(audited, Expected())
                expected[audited] = (
                    replace(known, coverage=(*known.coverage, one))
                    if is_held
                    else (replace(known, given_up=(*known.given_up, one)))
                )
    return expected


def expected_rows(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    loaded: Sequence[Loaded],
    led: Ancestry,
) -> tuple[dict[AuditedLog, Expected], dict[AuditedLog, set[Loss]], tuple[str, ...]]:
    """Return what the table should hold, the losses, and notes for the reader."""
    from etl.io.delta.losses import read_losses, recorded

    notes: list[str] = []
    path = services.settings.table.losses_at
    if services.settings.transform.function:
        key = names_of_key(physical=services.settings.source.is_physical)
        notes.append(
            f"the pipeline has a transform: the proof holds as long as it keeps {key} and drops no row"
        )
    if services.settings.source.is_physical:
        notes.append(
            describe_jafka_proof(
                [one.plan.number for one in loaded if one.plan.ranges and one.applied.is_recounted]
            )
        )
    lost = set(read_losses(path, uid=ledgers.ledger.uid) if ledgers.ledger.uid else ())
    expected = _covered(ledgers.coverage, table, led)
    for one in loaded:
        plan = one.plan
        if not one.was_recorded:
            notes.append(
                f"plan {plan.number} has no receipts, so its rows were counted from the commit's files: the next run writes them down"
            )
        if not recorded(plan, app_id=services.app_id, path=path):
            notes.append(
                f"what plan {plan.number} let go is not in the losses table: the next run writes it down"
            )
        lost.update(plan.losses)
        _expect(expected, one, is_counted=not ledgers.coverage.removals)
    for hole in merged_holes(
        (
            *ledgers.coverage.read_by_others,
            *(hole for one in loaded for hole in one.plan.read_by_others),
        )
    ):
        audited = AuditedLog(hole.log, hole.incarnation)
        known = expected.get(audited, Expected())
        expected[audited] = replace(
            known, read_by_others=(*known.read_by_others, (hole.from_offset, hole.until_offset))
        )
    losses: dict[AuditedLog, set[Loss]] = {}
    for loss in lost:
        audited = AuditedLog(loss.log, loss.incarnation)
        losses.setdefault(audited, set()).update(
            still_lost(loss, expected.setdefault(audited, Expected()))
        )
    notes += describe_vanished(
        (*ledgers.coverage.vanished, *(gone for one in loaded for gone in one.plan.vanished))
    )
    return expected, losses, tuple(notes)


def still_lost(loss: Loss, expected: Expected) -> list[Loss]:
    """Return the part of a loss that was not loaded later: an operator may have set the position
    back. At offsets of a truncated partition other records were loaded: the loss stays.
    """
    if loss.why is LossReason.TRUNCATED:
        return [loss]
    loaded = [
        *((one.from_offset, one.until_offset) for one in expected.coverage),
        *((r.from_offset, r.until_offset) for r, _ in expected.ranges),
    ]
    return [
        replace(loss, from_offset=start, until_offset=until)
        for start, until in without((loss.from_offset, loss.until_offset), loaded)
    ]


def _expect(expected: dict[AuditedLog, Expected], one: Loaded, *, is_counted: bool) -> None:
    """Take the plan's ranges in. Rows of a replay are in the place of those that earlier plans
    brought, unless it was given up itself.
    """
    came: dict[AuditedLog, list[tuple[OffsetRange, RangeResult]]] = {}
    for r, receipt in zip(one.plan.ranges, one.applied.receipts, strict=True):
        came.setdefault(audited_as(one.plan, r), []).append((r, receipt))
    spans = {
        AuditedLog(span.log, span.incarnation): span
        for span in spans_of(one.plan, is_counted=is_counted)
    }
    for audited, pairs in came.items():
        known = expected.get(audited, Expected())
        if one.is_given_up:
            expected[audited] = replace(known, elsewhere=(*known.elsewhere, *pairs))
        elif one.plan.kind is PlanKind.REPLAY:
            expected[audited] = replaced_expected(known, spans[audited], pairs)
        else:
            expected[audited] = replace(known, applied=(*known.applied, *pairs))


def audited_as(plan: Plan, r: OffsetRange) -> AuditedLog:
    """The life of the log that the range's rows are of."""
    return AuditedLog(r.log, plan.incarnations.get(r.log, 0))


def _as_known_now(plan: Plan, applied: CommitResult, settings: Settings) -> CommitResult:
    """Return the result, corrected: an older version did not record that it had counted rows of a
    transform.
    """
    if not may_be_transformed(plan, settings):
        return applied
    return replace(
        applied,
        receipts=tuple(
            replace(receipt, behind_transform=True) if receipt.fetched_bytes is None else receipt
            for receipt in applied.receipts
        ),
    )


@dataclass(frozen=True, slots=True)
class ExpectedOfAll:
    """What the pipeline and its backfills should have loaded."""

    loaded: tuple[Loaded, ...]
    rows: dict[AuditedLog, Expected]
    losses: dict[AuditedLog, set[Loss]]
    """Losses, without what was loaded later, also by a backfill."""
    notes: tuple[str, ...]


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the backfill in errors about its plans, which only the backfill can finish."""
    try:
        yield
    except LedgersDisagree as error:
        raise LedgersDisagree(
            f"Backfill {name}: {error.message}",
            action=f"Run `etl backfills run CONF {name}`, or delete it with `etl backfills delete`",
            **error.where,
        ) from error


def expected_of_all(
    services: LiveServices,
    ledgers: BothLedgers,
    table: Table,
    loaded: Sequence[Loaded],
    led: Ancestry,
) -> ExpectedOfAll:
    """Return what all of them should have loaded. Raises as `expected_rows`."""
    rows, losses, notes = expected_rows(services, ledgers, table, loaded, led)
    every = list(loaded)
    for claim in services.claims.beside.read():
        own = LiveServices(
            settings_of_backfill(services.settings, claim.name),
            services.zookeeper,
            ALONE,
            services.run_id,
        )
        theirs = read_both_ledgers(own)
        there = theirs.table
        if there is None or there.id != table.id or is_of_another_era(theirs.ledger, there):
            continue
        newest, in_table = theirs.ledger.newest, there.transaction_version or 0
        is_right = newest and is_accepted(theirs.ledger, newest, there, own.settings.table.place)
        known = 0 if is_right else known_in_table(theirs.ledger, there)
        with _naming(claim.name):
            plans, led_there = loaded_plans(
                own, theirs, replace(there, transaction_version=max(in_table, known))
            )
        plans = [
            one
            for one in plans  # the versions of what was given up are those of another history
            if one.is_given_up
            or one.applied.delta_version <= table.version
            or in_table < one.plan.number <= known
        ]
        if claim.state is ReservationState.GIVEN_UP:
            theirs, plans, doubtful = _as_claimed(theirs, plans, claim, table)
            rows = _with_given_up(rows, doubtful)
        more, lost, _ = expected_rows(own, theirs, there, plans, led_there)
        every += plans
        for audited, found in more.items():
            rows[audited] = together(rows.get(audited, Expected()), found)
        for audited, some in lost.items():
            losses[audited] = losses.get(audited, set()) | some
    left = {
        audited: {part for loss in some for part in still_lost(loss, rows.get(audited, Expected()))}
        for audited, some in losses.items()
    }
    return ExpectedOfAll(
        tuple(every),
        {audited: without_reloaded(found, audited) for audited, found in rows.items()},
        left,
        notes,
    )


def _as_claimed(
    theirs: BothLedgers,
    plans: Sequence[Loaded],
    claim: Reservation,
    table: Table,
) -> tuple[BothLedgers, list[Loaded], dict[AuditedLog, tuple[Interval, ...]]]:
    """Without what the backfill gave back of this table, because it has no row of it; another one
    may have loaded that since.
    """
    found, doubtful = list[Loaded](), dict[AuditedLog, tuple[Interval, ...]]()
    for one in plans:
        if one.applied.table_id == table.id:
            plan, applied, more = as_claimed(one.plan, one.applied, claim)
            one = replace(one, plan=plan, applied=applied)
            for log, some in more.items():
                audited = AuditedLog(log, claim.incarnation_of(log))
                doubtful[audited] = (*doubtful.get(audited, ()), *some)
        found.append(one)
    if theirs.coverage.table_id in (None, table.id):
        theirs = replace(theirs, coverage=covered_as_claimed(theirs.coverage, claim))
    return theirs, found, doubtful


def _with_given_up(
    rows: Mapping[AuditedLog, Expected], more: Mapping[AuditedLog, tuple[Interval, ...]]
) -> dict[AuditedLog, Expected]:
    """Return the rows with given-up offsets, of which none is required and none is an error."""
    return {
        **rows,
        **{
            audited: replace(known, given_up=(*known.given_up, *some))
            for audited, some in more.items()
            for known in (rows.get(audited, Expected()),)
        },
    }
