"""What plans without ranges came to, in a report. A pure function of values."""

from __future__ import annotations

from collections.abc import Iterator

from etl.decide.table_changes import name_of
from etl.model.plans import Plan, PlanKind
from etl.report.run_state import Outcome
from etl.report.sentences import told_purpose, told_vanished


def told_without_ranges(plan: Plan) -> Iterator[tuple[Outcome, str]]:
    """What a plan that is in the table and reads nothing did there, a sentence each."""
    decided = f"plan {plan.number}, by an operator's decision: {plan.reason}"
    if plan.kind is PlanKind.RESET:
        yield Outcome.RESET, decided
        yield from ((Outcome.RESET, sentence) for sentence in told_vanished(plan.vanished))
    elif plan.kind is PlanKind.BACKFILL and not plan.losses:
        yield Outcome.CLOSED, f"plan {plan.number} closes the backfill: {plan.reason}"
    elif plan.kind is PlanKind.SET:
        yield Outcome.SET, decided
    elif plan.took_over and plan.kind is PlanKind.TAKE_OVER:
        yield (
            Outcome.TOOK_OVER,
            f"plan {plan.number} goes on where {name_of(plan.took_over.app_id)} ended",
        )
    else:
        yield (
            (Outcome.LET_GO if plan.losses else Outcome.STARTED),
            f"plan {plan.number} {told_purpose(plan)}",
        )
