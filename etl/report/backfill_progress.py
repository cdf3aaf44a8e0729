"""How far a backfill is as a whole, while one of its plans is read: the plans before count, and the
rest is reckoned by the pace.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decide.offsets import starts_of
from etl.model.plans import Plan
from etl.model.snapshot import Reservation
from etl.report.phases import Doing
from etl.report.run_report import Report


def loaded_before(claim: Reservation, plan: Plan) -> int:
    """How many offsets of the backfill lie before this plan of it."""
    left = claim.left_from(starts_of(plan))
    return claim.offsets - sum(until - start for parts in left.values() for start, until in parts)


def of_the_whole(doing: Doing, report: Report) -> Doing:
    """What a run of a backfill is at, of all that the backfill claims; as it is where that is not
    known yet.
    """
    claim, plan, reached = report.looks.claim, report.plan, doing.reached
    if claim is None or plan is None or reached is None:
        return doing
    return replace(
        doing,
        reached=replace(
            reached,
            offsets=loaded_before(claim, plan) + reached.offsets,
            offsets_in_all=claim.offsets,
            records=reached.records + report.records,
            bytes=reached.bytes + (report.fetched_bytes or 0),
        ),
    )
