"""What it comes to that an operator accepts a table: of the newest plan of the pipeline, and of
each backfill beside it.

Where neither ledger tells whether such a plan is in that table, its rows are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from etl.decide.reconcile import is_of_another_era
from etl.decide.table_changes import acknowledging, is_told
from etl.errors import NeedsDecision
from etl.io.delta.log import hash_of_commit, open_log
from etl.io.delta.table import rust_path
from etl.model.plans import CommitResult, Plan, RangeResult
from etl.model.snapshot import Acknowledgement, Ledger, Table
from etl.run.live import LiveServices
from etl.run.services import ALONE
from etl.settings.load import settings_of_backfill


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is said of one ledger."""

    acknowledgement: Acknowledgement
    found: tuple[RangeResult, ...]
    """What the table has of the newest plan, where nothing else tells."""


def accepted(
    world: LiveServices, ledger: Ledger, plan: Plan, table: Table | None, *, reason: str, at_ms: int
) -> Accepted:
    """Look, and decide; nothing is stored. Raises NeedsDecision where nobody can tell: taken for
    not there, rows might come twice.
    """
    found = () if is_told(ledger, table) else _looked_for(world, plan)
    path = world.settings.table
    return Accepted(
        acknowledging(
            ledger,
            plan,
            table,
            reason=reason,
            at_ms=at_ms,
            place=path.place,
            lacks_plan=not is_told(ledger, table) and not any(receipt.rows for receipt in found),
            commit=hash_of_commit(open_log(rust_path(path.path)), table.version) if table else None,
        ),
        found,
    )


def record_found(world: LiveServices, plan: Plan, table: Table | None, said: Accepted) -> None:
    """Where rows of the plan are there, it counts as done."""
    if table and said.found and not said.acknowledgement.lacks_plan:
        world.record(plan, CommitResult(plan.number, plan.id, table.version, table.id, said.found))


@dataclass(frozen=True, slots=True)
class AcceptedBeside:
    """What is said of the backfills, by name."""

    said: dict[str, Acknowledgement]
    untold: dict[str, str]
    """Those of which nothing is said, because nobody can tell what the table has of them, and why.
    """

    @property
    def sentence(self) -> str:
        """Of the latter, behind what else is said; empty where there are none."""
        return "".join(
            f"; of backfill {name} nothing is accepted: {why}; mend that, and say this again"
            for name, why in self.untold.items()
        )


def accepted_beside(
    live: LiveServices, table: Table | None, *, reason: str, at_ms: int
) -> AcceptedBeside:
    """The same for the backfills that have loaded into that very table; what of their rows is there
    is recorded.
    """
    said, untold = dict[str, Acknowledgement](), dict[str, str]()
    for claim in live.claims.beside.read():
        own = LiveServices(
            settings_of_backfill(live.settings, claim.name), live.zookeeper, ALONE, live.run_id
        )
        ledger = own.ledger.read_ledger()
        plan, there = ledger.newest, own.read_table(ledger)
        if (
            table is None
            or there is None
            or plan is None
            or plan.table_id != there.id
            or is_of_another_era(ledger, there)
        ):
            continue
        # the version that the operator has looked at; of a newer one it says nothing
        try:
            one = accepted(
                own, ledger, plan, replace(there, version=table.version), reason=reason, at_ms=at_ms
            )
        except NeedsDecision as error:
            untold[claim.name] = error.what
            continue
        record_found(own, plan, there, one)
        said[claim.name] = one.acknowledgement
    return AcceptedBeside(said, untold)


def _looked_for(world: LiveServices, plan: Plan) -> tuple[RangeResult, ...]:
    counted = world.rows_of_today(plan)
    if counted.uncounted:
        what = f"nobody can tell whether plan {plan.number} is in the table: {counted.uncounted}"
        raise NeedsDecision(
            what,
            path=world.settings.table.path,
            check="the table's columns and files: what is missing there",
        )
    return counted.receipts
