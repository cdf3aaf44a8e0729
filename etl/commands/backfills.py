"""`etl backfill list` and `show`: the backfills beside a pipeline, how far each is, and when it may
be done. Brokers are not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from etl.decide.reservations import refuse_what_lacks_a_backfill
from etl.errors import NeedsDecision, SettingsError
from etl.io.delta.table import open_table
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_records import ClaimsBeside
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import Reservation, ReservationState, Table, backfill_pipeline
from etl.report.describe import at
from etl.report.run_report import loaded_before
from etl.run.backfill import left_of
from etl.run.services import ALONE
from etl.run.shell import open_world
from etl.settings.sections import Settings

PACE_PLANS = 10
"""The pace is that of the last so many plans: a backfill may have stood still before."""


class State(str, Enum):
    """How far a backfill is."""

    AT_WORK = "at work"
    STOPPED = "stopped"
    """Something is left of it, and nobody is at work: `etl backfill resume`."""
    WHOLE = "whole"
    CLOSING = "being given up"
    GIVEN_UP = "given up"


def list_backfills(settings: Settings) -> list[dict[str, Any]]:
    """The backfills of the pipeline by name, each with its state, what it was asked for, and how
    much of it is loaded.
    """
    with open_world(settings, ALONE) as live:
        return backfills_beside(live.ledger)


def backfills_beside(ledger: PlanLedger) -> list[dict[str, Any]]:
    """The same by the ledger of the live pipeline."""
    beside = ClaimsBeside(ledger.zookeeper, ledger.paths.group, ledger.pipeline)
    return [described(ledger, beside, claim) for claim in beside.read()]


def left_beside(live: PlanLedger) -> dict[str, dict[BrokerPartition, tuple[tuple[int, int], ...]]]:
    """What each backfill of a pipeline has not loaded yet of what it claims, by name."""
    beside = ClaimsBeside(live.zookeeper, live.paths.group, live.pipeline)
    return {
        claim.name: _left(claim, _stored(beside.ledger_of(claim.name))) for claim in beside.read()
    }


def refuse_unfinished(live: PlanLedger) -> None:
    """Refuse to take a pipeline's place, or out of service, while a backfill beside it may still
    load. Raises NeedsDecision.
    """
    for one in backfills_beside(live):
        if one["state"] not in (State.WHOLE.value, State.GIVEN_UP.value):
            what = f"backfill {one['name']} beside that pipeline is {one['state']}, and would load beside nobody"
            check = f"with that pipeline's conf `etl backfill resume CONF --name {one['name']}`, or `etl backfill abandon`, and then this"
            raise NeedsDecision(what, check=check)


def refuse_without_backfills(live: PlanLedger, app_id: str, table: Table, path: str) -> None:
    """Refuse a table that lacks what a backfill beside a pipeline has loaded into it, given up or
    not. Raises LedgersDisagree.

    `app_id` is the pipeline's. A run does not ask: it would load nothing twice, and misses nothing
    of its own.
    """
    beside = ClaimsBeside(live.zookeeper, live.paths.group, live.pipeline)
    for claim in beside.read():
        ledger = beside.ledger_of(
            claim.name
        ).read_ledger()  # before the table, which may have a newer plan by then, and no older one
        found = open_table(path)
        in_table = (
            found.transaction_version(backfill_pipeline(app_id, claim.name)) if found else None
        )
        refuse_what_lacks_a_backfill(claim.name, ledger, table, in_table or 0)


def show_backfill(settings: Settings, name: str) -> dict[str, Any]:
    """One of them, with each stretch of it and its plans. Raises SettingsError where there is none
    of that name.
    """
    with open_world(settings, ALONE) as live:
        found = live.claims.beside.read_one(name)
        if found is None:
            raise SettingsError(
                "nobody has begun a backfill of this name",
                key="--name",
                check="`etl backfill list CONF`",
            )
        ledger = live.claims.beside.ledger_of(name)
        plans = [(plan, ledger.read_record_of(plan)) for plan in ledger.read_plans()]
        left = _left(found.claim, [(plan, record is not None) for plan, record in plans])
        return {
            **described(live.ledger, live.claims.beside, found.claim),
            "stretches": [
                {
                    **log.place,
                    "from": start,
                    "until": until,
                    "log_epoch": found.claim.life_of(log),
                    "left": sum(
                        max(0, min(until, end) - max(start, low)) for low, end in left.get(log, ())
                    ),
                }
                for log, parts in sorted(found.claim.stretches.items())
                for start, until in parts
            ],
            "plans": [
                {
                    "number": plan.number,
                    "id": plan.id,
                    "made_at": at(plan.created_at_ms),
                    "offsets": sum(r.size for r in plan.ranges),
                    "rows": record.rows if record else None,
                    "delta_version": record.delta_version if record else None,
                    "reason": plan.reason,
                }
                for plan, record in plans
            ],
        }


def described(live: PlanLedger, beside: ClaimsBeside, claim: Reservation) -> dict[str, Any]:
    """One backfill in the document of `etl backfill list`."""
    ledger = beside.ledger_of(claim.name)
    stored = _stored(ledger)
    driver = DriverLock(live.zookeeper, live.paths.group, ledger.pipeline).driver()
    left = sum(until - start for parts in _left(claim, stored).values() for start, until in parts)
    pace = pace_of(claim, [plan for plan, _ in stored])
    return {
        "name": claim.name,
        "state": _state(claim, left, is_driven=driver is not None).value,
        "asked": claim.asked,
        "begun_at": at(claim.made_at_ms),
        "offsets": claim.offsets,
        "loaded": claim.offsets - left,
        "left": left,
        "newest_plan": stored[-1][0].number if stored else None,
        "driver": str(driver) if driver else None,
        "offsets_per_second": pace,
        "seconds_left": left / pace if pace and left else None,
        "reason": claim.reason,
    }


def pace_of(claim: Reservation, plans: Sequence[Plan]) -> float | None:
    """Offsets a second between the last plans; None before there are two."""
    some = plans[-PACE_PLANS:]
    if len(some) < 2 or some[-1].created_at_ms <= some[0].created_at_ms:
        return None
    done = loaded_before(claim, some[-1]) - loaded_before(claim, some[0])
    return done * 1000 / (some[-1].created_at_ms - some[0].created_at_ms) or None


def _stored(ledger: PlanLedger) -> list[tuple[Plan, bool]]:
    return [(plan, ledger.read_record_of(plan) is not None) for plan in ledger.read_plans()]


def _left(
    claim: Reservation, stored: Sequence[tuple[Plan, bool]]
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    return {} if claim.state is ReservationState.GIVEN_UP else left_of(claim, stored)


def _state(claim: Reservation, left: int, *, is_driven: bool) -> State:
    if claim.state is ReservationState.GIVEN_UP:
        return State.GIVEN_UP
    if is_driven:
        return State.AT_WORK
    if claim.state is ReservationState.CLOSING:
        return State.CLOSING
    return State.STOPPED if left else State.WHOLE
