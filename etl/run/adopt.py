"""The ledger written anew from the table's commits: each of ours carries the plan it executed."""

from __future__ import annotations

from etl.io.delta.recover_results import Recount
from etl.io.delta.table_state import commits_of_ours
from etl.io.zookeeper.ledger import PlanLedger
from etl.ledger.plan_document import parse_plan
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import CommitMetadata, Ledger
from etl.run.observe import observe_table
from etl.run.recount import count_again, receipts_said
from etl.settings.sections import Settings


def adopt_commits(plan: Plan, ledger: PlanLedger, settings: Settings, app_id: str) -> Ledger:
    """Go back to the newest plan that both sides know with its record, and write what is after it
    into the ledger, oldest first.

    `plan` is that of our newest commit. A crash on the way leaves a ledger that is only behind.
    """
    ledger.store_uid(plan.uid)
    unknown = []
    for metadata in commits_of_ours(settings.table.path, app_id):
        known = ledger.read_plan(metadata.number)
        if known and known.id == metadata.plan_id and ledger.read_record_of(known):
            break
        unknown.append(metadata)
    table = observe_table(settings, app_id, ledger.read_ledger())
    for metadata in reversed(unknown):
        _adopt(metadata, table.id if table else "", ledger, settings)
    return ledger.read_ledger()


def _adopt(metadata: CommitMetadata, table_id: str, ledger: PlanLedger, settings: Settings) -> None:
    plan = parse_plan(
        metadata.document or b"", path=f"commit {metadata.delta_version} of {settings.table.path}"
    )
    said = receipts_said(metadata, plan)
    counted = (
        Recount(said) if said is not None else count_again(plan, metadata.delta_version, settings)
    )
    applied = CommitResult(
        plan.number,
        plan.id,
        metadata.delta_version,
        table_id,
        counted.receipts,
        metadata.run_id,
        counted.uncounted,
    )
    ledger.adopt_plan(plan, applied)
