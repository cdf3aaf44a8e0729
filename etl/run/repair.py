"""Finishes what an earlier run left half done: the ledger that is behind the table, the record of a
plan, the offsets.

What there is to repair is decided in `next_step`; a crash in between leaves less of it to the next
run.
"""

from __future__ import annotations

from etl.decide.next_step import Repair
from etl.model.plans import Plan
from etl.model.snapshot import PipelineState, RebuildFromTable, UpToDate
from etl.report.describe import counted, doubt_of
from etl.report.lag import PAUSES_LOST
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.world import World


def finish_repair(world: World, repair: Repair | None, report: Report) -> None:
    """Nothing where nothing was left."""
    if repair is None:
        return
    if repair.adopts:
        with report.timed(Verb.RECONCILE):
            _rebuild_ledger(world, repair, repair.adopts, report)
    with report.timed(Verb.COMMIT):
        if repair.lacks_record:
            _record(world, repair.plan, report)
        for log, offset in sorted(repair.followed.items()):
            by = offset - repair.plan.positions[log]
            report.add(
                Outcome.FOLLOWED,
                f"{log}: somebody else moved the offset by {by:+,} to {offset}, followed",
            )
        for log, offset in sorted(repair.not_followed.items()):
            by = offset - repair.plan.positions[log]
            moved = f"{log}: somebody else moved the offset by {by:+,} to {offset}"
            report.add(
                Outcome.NOT_FOLLOWED,
                f"{moved}, not followed: no topic that is read now has this partition",
            )
        if not repair.adopts:
            _move_offsets(world, repair, report)


def _rebuild_ledger(world: World, repair: Repair, adopted: Plan, report: Report) -> None:
    """Offsets first: once the ledger holds the plan, an offset below its position would count as
    moved by another client.
    """
    if repair.knew and repair.knew.number == adopted.number:
        sentence = f"the table holds another plan {adopted.number} ({adopted.id}) than ZooKeeper ({repair.knew.id}): it was adopted"
        report.add(Outcome.ADOPTED, sentence)
    else:
        knew = f"knew plan {repair.knew.number} as the newest" if repair.knew else "knew no plan"
        lost = "" if repair.knew or report.paused else f"; {PAUSES_LOST}"
        rebuilt = f"the ledger was rebuilt from the table's commits up to plan {adopted.number}"
        report.add(Outcome.REBUILT, f"ZooKeeper {knew}: {rebuilt}{lost}")
    _move_offsets(world, repair, report)
    report.lost(adopted)
    if world.adopt(adopted).applied is None:
        _record(world, repair.plan, report)


def _record(world: World, plan: Plan, report: Report) -> None:
    report.lost(plan)
    recounted = world.recount(plan)
    world.record(plan, recounted)
    if recounted:
        how = (
            "its rows were counted from the table's files"
            if recounted.is_recounted
            else "its commit says what reading it came to"
        )
        what = f"the record of plan {plan.number} was missing: {how}"
        report.add(Outcome.REPAIRED, what + doubt_of(recounted))


def tell_dropped(state: PipelineState, report: Report) -> None:
    """That Kafka forgot offsets of the group; nothing else follows from it than that they are
    committed again.
    """
    last = state.state if isinstance(state, RebuildFromTable) else state
    if isinstance(last, UpToDate) and last.dropped:
        gone = f"Kafka dropped the group's offsets of {counted(len(last.dropped), 'partition')}, as it does where a group has no members"
        report.add(
            Outcome.REPAIRED,
            f"{gone} (offsets.retention.minutes): the pipeline goes on at its positions, and commits them again",
        )


def _move_offsets(world: World, repair: Repair, report: Report) -> None:
    if repair.offsets:
        moved = world.commit(repair.plan, repair.offsets)
    if repair.offsets and moved:
        report.add(
            Outcome.REPAIRED,
            f"{len(moved)} offsets of plan {repair.plan.number} were not committed: they are now",
        )
