"""Where the pipeline stands when ZooKeeper and Delta are asked together. One pure function of values.

N is the newest plan of the ledger, D the table's transaction version for our app id: plan N was applied exactly if D >= N.

    ledger   table                              standing
    ------   --------------------------------   ----------------------------------------------------------------
    none     no table, or D none                FirstRun
    N        D = N - 1 (N = 1: no table, or     Replay: the stored plan, word for word
             the one that plan 1 recorded)
    N        D = N, offsets at its positions    Onward
    N        D = N, some offsets as N saw them  Onward with those offsets still to commit
    N        D = N, an offset is neither        OffsetMoved, or Onward from there (policy `follow`)
    N        D = N, another plan's id           LedgersDisagree: ledger restored from an old copy, or superseded too late
    N, none  D > N                              LedgersDisagree: ledger lost, or restored from an old copy
    N > 1    D < N - 1, D none, no table        LedgersDisagree: table dropped, cloned, ids expired, or another table
    N        D < N, but N's outcome is known    LedgersDisagree: table dropped, or restored from an old copy
    any      another uid, or another table id   LedgersDisagree: not our table
    any      rows removed, table redefined      LedgersDisagree, by somebody else, since our last commit

What every LedgersDisagree has in common: nothing was read or written, and a person must say which side is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from etl.errors import LedgersDisagree, OffsetMoved
from etl.model import NOTHING_COMMITTED, BrokerPartition, Committed, FirstRun, Ledger, Onward, Plan, Replay, Standing, Table
from etl.settings import OnMoved


def reconcile(ledger: Ledger, table: Table | None, committed: Mapping[BrokerPartition, Committed], on_moved: OnMoved) -> Standing:
    """Decide where the pipeline stands; the table of cases is in the module's docstring.

    Raises LedgersDisagree or OffsetMoved where a person must decide.
    """
    bit = (table.transaction_version or 0) if table else 0
    plan = ledger.newest
    _refuse_another_uid(ledger, table)
    refuse_what_others_did(table)
    if plan is None:
        if bit:
            raise _ledger_is_behind(0, bit, table)
        return FirstRun()
    if bit > plan.number:
        raise _ledger_is_behind(plan.number, bit, table)
    _refuse_another_table(ledger, plan, table, bit)
    if bit == plan.number - 1:
        return Replay(plan)
    if bit < plan.number:
        what = f"ZooKeeper holds plan {plan.number}, the table holds " + (f"plan {bit}" if bit else "none of ours")
        raise LedgersDisagree(what, table_version=table.version if table else None, check=_WHICH_TABLE)
    _refuse_another_plan(plan, table)
    return _onward(plan, committed, on_moved)


def refuse_what_others_did(table: Table | None) -> None:
    """Stop when somebody else removed rows or redefined the table since our last commit. Raises LedgersDisagree."""
    if table and table.foreign:
        first = table.foreign[0]
        what = f"since our last commit somebody else's {first.operation} {first.why}"
        check = "who did it and why (DESCRIBE HISTORY); RESTORE the table to the version before it, or give the pipeline a new name"
        raise LedgersDisagree(what, table_version=first.delta_version, check=check)


def _onward(plan: Plan, committed: Mapping[BrokerPartition, Committed], on_moved: OnMoved) -> Onward:
    uncommitted, moved = [], {}
    for log, position in plan.positions.items() if plan.moves_offsets else ():
        found = committed.get(log, NOTHING_COMMITTED)
        if found.offset == position:
            continue
        if found == plan.seen[log]:
            uncommitted.append(log)
        else:
            moved[log] = found
    if not moved:
        return Onward(plan, plan.positions, tuple(uncommitted))
    gone = [log for log, found in moved.items() if found.offset is None]
    if on_moved is OnMoved.FAIL or gone:
        raise _moved(plan, moved, gone[0] if gone else min(moved))
    followed = {log: found.offset for log, found in moved.items() if found.offset is not None}
    return Onward(plan, {**plan.positions, **followed}, tuple(uncommitted), followed)


_WHICH_TABLE = (
    "that table.path is the table this pipeline wrote, and that it was not dropped, cloned or replaced; "
    "if the table is right, give the pipeline a new name, else point table.path back to the old one"
)
_WHICH_LEDGER = (
    "that zookeeper.connect (with its chroot), group and pipeline are the ones that wrote this table, "
    "and that ZooKeeper was not emptied or restored from an old copy"
)


def _refuse_another_uid(ledger: Ledger, table: Table | None) -> None:
    stamp = table.stamp if table else None
    if stamp and ledger.uid and stamp.uid != ledger.uid:
        what = f"the table was written by another pipeline of the same name (its uid is {stamp.uid}, ours {ledger.uid})"
        raise LedgersDisagree(what, table_version=stamp.delta_version, check=_WHICH_LEDGER)


def _refuse_another_table(ledger: Ledger, plan: Plan, table: Table | None, bit: int) -> None:
    applied = ledger.applied
    recorded = applied.table_id if applied and applied.number == plan.number else plan.table_id
    if table and recorded and table.id != recorded:
        raise LedgersDisagree(f"the table at this path has id {table.id}, plan {plan.number} went to {recorded}", check=_WHICH_TABLE)
    if table and plan.number == 1 and recorded is None and bit == 0:
        what = "plan 1 was made when there was no table, now there is one that does not hold it"
        raise LedgersDisagree(what, table_version=table.version, check="who made that table; move it away, or point table.path elsewhere")
    if applied and applied.number == plan.number > bit:
        what = f"plan {plan.number} was in the table as version {applied.delta_version}, now " + (
            "the table does not hold it" if table else "there is no table")
        raise LedgersDisagree(what, table_version=table.version if table else None, check=_WHICH_TABLE)
    if plan.number > 1 and not bit:
        what = f"ZooKeeper holds plan {plan.number}, " + ("the table holds none of ours" if table else "there is no table")
        raise LedgersDisagree(what, check=_WHICH_TABLE)


def _refuse_another_plan(plan: Plan, table: Table | None) -> None:
    stamp = table.stamp if table else None
    if stamp and stamp.number == plan.number and stamp.plan_id != plan.id:
        what = f"ZooKeeper's plan {plan.number} is {plan.id}, the table holds {stamp.plan_id} under that number"
        raise LedgersDisagree(what, table_version=stamp.delta_version, check=_WHICH_LEDGER)


def _ledger_is_behind(number: int, bit: int, table: Table | None) -> LedgersDisagree:
    what = f"the table holds plan {bit} of this pipeline, ZooKeeper knows " + (f"plan {number} as the newest" if number else "no plan")
    return LedgersDisagree(what, table_version=table.version if table else None, check=_WHICH_LEDGER)


def _moved(plan: Plan, moved: Mapping[BrokerPartition, Committed], log: BrokerPartition) -> OffsetMoved:
    found, others = moved[log].offset, len(moved) - 1
    what = f"somebody else {'removed' if found is None else 'moved'} a committed offset: it is {found}, ours is {plan.positions[log]}"
    if others:
        what += f" (and {others} more)"
    check = "which other consumer of this group ran or who set it; set it back, or allow it with source.on_moved: follow"
    return OffsetMoved(what, topic=log.topic, partition=log.partition, offset=found, check=check)
