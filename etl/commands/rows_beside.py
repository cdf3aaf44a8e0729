"""What the table should hold, by the ledgers of the pipeline and of the backfills beside it, at one
version of the table.

A backfill's ledger is read after that version is known: each plan of it is stored before its
commit, so every commit up to there is known to it. What it committed since is left out; what it had
committed before, and an older copy of the table lacks, is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.audit.audit import AuditedLog, Expected, as_loaded_again, together
from etl.commands.expected_rows import (
    BothLedgers,
    Loaded,
    expected_rows,
    loaded_plans,
    read_both_ledgers,
    still_lost,
)
from etl.decide.loaded_intervals import Ancestry
from etl.decide.reconcile import is_of_another_era
from etl.decide.reservations import as_claimed, covered_as_claimed
from etl.decide.table_changes import is_accepted, known_in_table
from etl.errors import LedgersDisagree
from etl.model.plans import Loss
from etl.model.snapshot import Interval, Reservation, ReservationState, Table
from etl.run.live import LiveServices
from etl.run.services import ALONE
from etl.settings.load import settings_of_backfill


@dataclass(frozen=True, slots=True)
class ExpectedOfAll:
    """The same of the pipeline and its backfills together."""

    loaded: tuple[Loaded, ...]
    rows: dict[AuditedLog, Expected]
    losses: dict[AuditedLog, set[Loss]]
    """Without what was loaded after all, be it by a backfill."""
    notes: tuple[str, ...]


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """A plan of a backfill is finished by the backfill alone: what a run of the pipeline would be
    told leads nowhere.
    """
    try:
        yield
    except LedgersDisagree as error:
        command = f"`etl backfill resume CONF --name {name}`, or `etl backfill abandon` of it"
        raise LedgersDisagree(
            f"of backfill {name} {error.what}",
            check=f"{command}, which goes by the table",
            **error.where,
        ) from error


def expected_of_all(
    world: LiveServices, told: BothLedgers, table: Table, loaded: Sequence[Loaded], led: Ancestry
) -> ExpectedOfAll:
    """What all of them should have put into the table. Raises as `expected_rows`."""
    rows, losses, notes = expected_rows(world, told, table, loaded, led)
    every = list(loaded)
    for claim in world.claims.beside.read():
        own = LiveServices(
            settings_of_backfill(world.settings, claim.name), world.zookeeper, ALONE, world.run_id
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
        {audited: as_loaded_again(found, audited) for audited, found in rows.items()},
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
                audited = AuditedLog(log, claim.life_of(log))
                doubtful[audited] = (*doubtful.get(audited, ()), *some)
        found.append(one)
    if theirs.coverage.table_id in (None, table.id):
        theirs = replace(theirs, coverage=covered_as_claimed(theirs.coverage, claim))
    return theirs, found, doubtful


def _with_given_up(
    rows: Mapping[AuditedLog, Expected], more: Mapping[AuditedLog, tuple[Interval, ...]]
) -> dict[AuditedLog, Expected]:
    """Nobody misses a row of these offsets, and none of them is a surprise."""
    return {
        **rows,
        **{
            audited: replace(known, given_up=(*known.given_up, *some))
            for audited, some in more.items()
            for known in (rows.get(audited, Expected()),)
        },
    }
