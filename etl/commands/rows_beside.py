"""What the table should hold, by the ledgers of the pipeline and of the backfills beside it, at one version of the table.

A backfill's ledger is read after that version is known: each plan of it is stored before its commit, so every commit up to there is known
to it. What it committed since is left out; what it had committed before, and an older copy of the table lacks, is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from etl.audit.findings import AuditedLog, Expected
from etl.audit.pieces import as_loaded_again, together
from etl.commands.expected_rows import BothLedgers, Loaded, expected_rows, loaded_plans, read_both_ledgers, still_lost
from etl.decisions.acceptance import known_in_table
from etl.decisions.coverage import Ancestry
from etl.decisions.reconcile import is_of_another_era
from etl.errors import LedgersDisagree
from etl.model.losses import Loss
from etl.model.table import Table
from etl.run.context import ALONE
from etl.run.live_world import LiveWorld
from etl.settings.backfills import settings_of_backfill


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
    """A plan of a backfill is finished by the backfill alone: what a run of the pipeline would be told leads nowhere."""
    try:
        yield
    except LedgersDisagree as error:
        command = f"`etl backfill resume CONF --name {name}`, or `etl backfill abandon` of it"
        raise LedgersDisagree(f"of backfill {name} {error.what}", check=f"{command}, which goes by the table", **error.where) from error


def expected_of_all(world: LiveWorld, told: BothLedgers, table: Table, loaded: Sequence[Loaded], led: Ancestry) -> ExpectedOfAll:
    """What all of them should have put into the table. Raises as `expected_rows`."""
    rows, losses, notes = expected_rows(world, told, table, loaded, led)
    every = list(loaded)
    for claim in world.claims.beside.read():
        own = LiveWorld(settings_of_backfill(world.settings, claim.name), world.zookeeper, ALONE, world.run_id)
        theirs = read_both_ledgers(own)
        if theirs.table is None or theirs.table.id != table.id or is_of_another_era(theirs.ledger, theirs.table):
            continue
        there, known = theirs.table.transaction_version or 0, known_in_table(theirs.ledger, theirs.table)
        # nobody accepts for a backfill that the table lacks a plan of it
        with _naming(claim.name):
            plans, led_there = loaded_plans(own, theirs, replace(theirs.table, transaction_version=max(there, known)))
        plans = [one for one in plans if one.applied.delta_version <= table.version or there < one.plan.number <= known]
        more, lost, _ = expected_rows(own, theirs, theirs.table, plans, led_there)
        every += plans
        for audited, found in more.items():
            rows[audited] = together(rows.get(audited, Expected()), found)
        for audited, some in lost.items():
            losses[audited] = losses.get(audited, set()) | some
    left = {audited: {part for loss in some for part in still_lost(loss, rows.get(audited, Expected()))}
            for audited, some in losses.items()}
    return ExpectedOfAll(tuple(every), {audited: as_loaded_again(found, audited) for audited, found in rows.items()}, left, notes)
