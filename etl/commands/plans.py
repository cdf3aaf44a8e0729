"""What would the next run do, and which plans are stored?

`etl plans list` and `etl plans show`.
"""

from __future__ import annotations

from typing import Any

from etl.errors import SettingsError
from etl.report.describe import at
from etl.report.plan_json import describe_plan
from etl.run.services import ALONE
from etl.run.shell import open_world
from etl.settings.sections import Settings


def list_plans(settings: Settings) -> list[dict[str, Any]]:
    """The stored plans, ascending."""
    rows = []
    with open_world(settings, ALONE) as world:
        for number in world.ledger.plan_numbers():
            plan = world.ledger.read_plan(number)
            if plan is None:
                continue
            applied = world.ledger.read_record_of(plan)
            rows.append(
                {
                    "number": number,
                    "id": plan.id,
                    "kind": plan.kind.value,
                    "created_at": at(plan.created_at_ms),
                    "run_key": plan.run_key,
                    "bounds": plan.bounds.said or None,
                    "ranges": len(plan.ranges),
                    "offsets": sum(r.size for r in plan.ranges),
                    "unit": next((f"{log.unit}s" for log in plan.positions), "offsets"),
                    "rows": applied.rows if applied else None,
                    "delta_version": applied.delta_version if applied else None,
                }
            )
    return rows


def show_plan(settings: Settings, number: int | None) -> dict[str, Any]:
    """One plan, the newest where no number is given. Raises SettingsError when it is not stored."""
    with open_world(settings, ALONE) as world:
        numbers = world.ledger.plan_numbers()
        wanted = number or (numbers[-1] if numbers else 0)
        plan = world.ledger.read_plan(wanted) if wanted in numbers else None
        if plan is None:
            stored = (
                f"plans {numbers[0]} to {numbers[-1]} are stored"
                if numbers
                else "this pipeline has made no plan yet"
            )
            check = "`etl plans list`; older ones live on in the coverage"
            raise SettingsError(
                f"plan {wanted} is not there: {stored}" if wanted else stored, check=check
            )
        return describe_plan(plan, world.ledger.read_applied(wanted))
