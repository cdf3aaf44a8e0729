"""Run keys in the ledger: in the plans that were made under them, and in the coverage once those
are pruned.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decide.run_requests import with_key
from etl.edges.zookeeper.ledger import PlanLedger
from etl.errors import Owned
from etl.ledger.documents import render_coverage
from etl.model.plans import KeptKey, Plan


def find_key(ledger: PlanLedger, key: str, newest: int) -> tuple[Plan | None, KeptKey | None]:
    """The newest plan under the key before plan `newest`, which the caller has read, and what the
    coverage keeps of the key.

    Plans first: pruning moves a key from there to the coverage. A key whose plan left a log out may
    be in both: it is done.
    """
    numbers = [number for number in reversed(ledger.plan_numbers()) if number < newest]
    plans = (ledger.read_plan(number) for number in numbers)
    found = next((plan for plan in plans if plan and plan.run_key == key), None)
    return found, next((one for one in ledger.read_coverage().keys if one.key == key), None)


def remember(ledger: PlanLedger, key: KeptKey, *, behind: int) -> None:
    """Keep a key under which there was nothing more to read, in one transaction with the look
    whether plan `behind` is still the newest.

    Raises Owned when a plan was stored since, or somebody else changed the coverage.
    """
    ledger.zookeeper.require_session()
    coverage, version = ledger.read_coverage_at()
    ledger.zookeeper.ensure(ledger.paths.plans)
    kept = render_coverage(replace(coverage, keys=with_key(coverage.keys, key)))
    if not ledger.documents.replace(
        ledger.paths.coverage, kept, version=version, absent=(ledger.paths.plan(behind + 1),)
    ):
        what = f"another driver stored a plan or changed the coverage while run key {key.key} had nothing to read"
        raise Owned(what, znode=ledger.paths.coverage, check="nothing; run again")
