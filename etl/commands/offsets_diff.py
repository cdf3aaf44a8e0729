"""`etl offsets diff`: ZooKeeper's offsets, the newest plan and the table side by side, and what the
next run does where they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etl.decide.next_step import Action
from etl.decide.restore_ledger import (
    Difference,
    Foreseen,
    Told,
    as_members_see,
    differences,
    foresee,
    plan_in_table,
    plan_stands,
    state_by_ledgers,
)
from etl.errors import EtlError, OffsetMoved, Unreachable
from etl.model.plans import Plan
from etl.model.snapshot import RebuildFromTable, Replay, Snapshot, Supersede, UpToDate
from etl.run.observe import Observer
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_world
from etl.settings.sections import Settings

_NOT_ASKED = (
    "where logs start and end, whether they are still the logs that were read, which of them nobody has read yet, and what the next run "
    "would plan"
)


@dataclass(frozen=True, slots=True)
class Sides:
    """What the three tell, partition by partition."""

    document: dict[str, Any]
    refusal: EtlError | None = None
    """What a run would stop with until a person decides; or why nobody can tell whether one must.
    """


def offsets_diff(settings: Settings, *, shows_all: bool = False) -> Sides:
    """Look and compare; nothing is changed. Where no broker answers, by ZooKeeper and the table
    alone.

    Raises what a look at ZooKeeper or the table raises, and SettingsError where the brokers would
    have to tell the cluster's name.
    """
    patient = settings.model_copy(
        update={"source": settings.source.model_copy(update={"wait_for_leader_s": 0})}
    )
    with open_world(patient, ALONE) as world:
        try:
            return sides_of(world.observe(), settings, shows_all=shows_all)
        except Unreachable as error:  # no broker is registered, or none answers; where it is ZooKeeper, the next look tells that
            away = error
        observer = Observer(patient, world.zookeeper, world.offsets, world.ledger, now_ms=now_ms)
        return sides_of(
            observer.observe_ledgers().snapshot, settings, shows_all=shows_all, away=away
        )


def sides_of(
    snapshot: Snapshot,
    settings: Settings,
    *,
    shows_all: bool = False,
    away: Unreachable | None = None,
) -> Sides:
    """The same of what was observed; `away`: why the brokers were not asked."""
    base, ledger, table = state_by_ledgers(snapshot, settings), snapshot.ledger, snapshot.table
    foreseen = foresee(snapshot, settings, now_ms=now_ms(), has_asked_brokers=away is None)
    told, stops = (
        [as_members_see(one, foreseen) for one in differences(snapshot, base)],
        foreseen.refusal,
    )
    apart = [one for one in told if one.difference is not Difference.NONE]
    stands, newest, held = (
        plan_stands(base, ledger, table),
        ledger.newest,
        plan_in_table(ledger, table),
    )
    document = {
        "plan": {"number": newest.number, "id": newest.id, "stands": stands.value}
        if newest
        else None,
        "table": {
            "version": table.version,
            "transaction_version": table.transaction_version,
            "plan_id": held.id if held else None,
        }
        if table
        else None,
        "partitions": len(told),
        "differing": len(apart),
        "rows": [
            {
                **one.log.place,
                "committed": one.committed,
                "plan": one.planned,
                "table": one.in_table,
                "difference": one.difference.value,
                "means": means(one, foreseen, newest),
                "next_run": next_run(one, foreseen),
            }
            for one in (told if shows_all else apart)
        ],
        "stops": stops.as_json() if stops else None,
        "not_looked_at": [f"{away.what}; so nobody looked at {_NOT_ASKED}"] if away else [],
    }
    if stops is None and foreseen.undecided:
        return Sides(document, away)
    return Sides(document, None if stops is None or stops.retriable else stops)


def means(told: Told, foreseen: Foreseen, newest: Plan | None) -> str | None:
    """What a difference means, in one sentence; None where there is none."""
    number = newest.number if newest else 0
    state = foreseen.step.state
    said = {
        Difference.UNREAD: "the group has an offset here, and no plan of this pipeline knows the partition",
        Difference.NOT_MOVED: "the rows up to this position are in the table, and the offset was not moved there yet",
        Difference.MOVED: f"another client {'removed' if told.committed is None else 'moved'} the offset: no plan left it there",
        Difference.READ_ON: "other members of the group read on from here: these records are theirs, and nothing is lost",
        Difference.NOT_APPENDED: f"plan {number} is stored and not in the table",
        Difference.LEDGER_BEHIND: "the table holds a plan that ZooKeeper does not have: its ledger was lost, restored from an old copy, or "
        "changed beside a run",
        Difference.NOT_HELD: f"the table does not hold plan {number}, and an operator accepted that",
        Difference.DISAGREE: "the table and ZooKeeper tell two stories, and nobody can tell which one is right",
    }.get(told.difference)
    if told.difference is Difference.MOVED and isinstance(state, Replay | Supersede):
        return f"{said}; and plan {number} is stored and not in the table"
    return said


def next_run(told: Told, foreseen: Foreseen) -> str | None:
    """What the next run does about a difference, the end of a sentence that begins with it; None
    where there is none.
    """
    step, log = foreseen.step, told.log
    if told.difference is Difference.NONE:
        return None
    if step.state is None:
        is_passing = foreseen.refusal is not None and foreseen.refusal.retriable
        return "stops before it does anything" + (
            ", and a later one goes on" if is_passing else ": a person must decide"
        )
    if told.difference is Difference.UNREAD:
        return _begins(told, foreseen)
    if isinstance(step.state, Replay | Supersede):
        return _finishes(told, foreseen)
    if log in foreseen.undecided:
        return "follows the offset or stops, by where the log ends, and that was not looked at"
    last = step.state.state if isinstance(step.state, RebuildFromTable) else step.state
    did = (
        ["writes the ledger anew from the table"]
        if isinstance(step.state, RebuildFromTable)
        else []
    )
    if isinstance(last, UpToDate):
        if told.difference is Difference.READ_ON:
            did.append(
                "goes on at the offset where the partition is of its share, and names what others read"
            )
        elif log in last.followed:
            did.append("goes on at the offset, as source.on_moved says")
        elif log in last.not_followed:
            did.append(
                "leaves the offset and our position as they are: no topic that is read now has this partition"
            )
        elif log in last.uncommitted:
            did.append("moves the offset to the position")
        elif told.difference is Difference.NOT_HELD:
            did.append("goes on behind the plan, and gives up what the table lacks of it")
    return ", then ".join(did)


def _begins(told: Told, foreseen: Foreseen) -> str:
    plan = foreseen.step.plan if foreseen.step.action is Action.STORE else None
    start = (
        min(
            (r.from_offset for r in plan.ranges if r.log == told.log),
            default=plan.positions.get(told.log),
        )
        if plan
        else None
    )
    return (
        "decides where the partition starts, once it can be read"
        if start is None
        else f"begins the partition at offset {start}"
    )


def _finishes(told: Told, foreseen: Foreseen) -> str:
    """Of a plan that is stored and not in the table."""
    step = foreseen.step
    if step.refusal:
        return "stops, for the plan cannot be finished: a person must decide"
    says = "executes the plan, or puts another in its place"
    if step.action:
        says = (
            "executes the plan"
            if step.action is Action.REPLAY
            else f"puts another plan in its place: {step.reason}"
        )
    if told.difference is not Difference.MOVED:
        return says
    if isinstance(foreseen.refusal, OffsetMoved):
        return f"{says}, then stops at this offset: a person must decide"
    return f"{says}; it does not move this offset, and source.on_moved decides about it"
