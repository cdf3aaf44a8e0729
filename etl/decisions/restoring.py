"""What of a pipeline's ledger is lost or wrong, and what the table tells of it. Pure functions of
values.

    ledger and table                                   restored
    ------------------------------------------------   ----------------------------------------------------------------------------------
    the table holds a plan that the ledger does not    the ledger, from the table's commits, as a run does it; and all offsets
    have, and its commit says which
    the same, and no commit says any more which        a plan that goes on behind the rows: one past the last of each log, in its last life
    they agree, or neither knows a plan, and the       the same for these logs: somebody else wrote the rows, or what told of them is
    table holds rows of logs that were not begun       gone
    they agree, and offsets are not where they should  the offsets, by a plan that moves them back to the positions
    a plan is stored and not in the table              nothing: the next run executes it
    they agree in everything                           nothing

Rows tell where an offset ends and not where an entry does, so behind rows alone no physical log
(0.7 family) can go on. What rows do not tell: offsets at the end that gave no row (they are read
again, and give none), rows that somebody deleted there (they come again), what was let go there (it
is loaded, if the log still has it), and whether anything is missing further down.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from etl.decisions.foreign_commits import refuse_what_others_did
from etl.decisions.next_step import Repair
from etl.decisions.offsets_storage import off_position, place_moved
from etl.decisions.open_hand_overs import refuse_untold, with_hand_over_found_out
from etl.decisions.other_pipelines import refuse_topics_of_others
from etl.decisions.reconcile import compare, naming_table, refuse_another_era
from etl.decisions.rows_before import rows_not_begun
from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, render_log
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    Ledger,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.sections import Settings


class Lost(str, Enum):
    """What there is to restore."""

    NOTHING = "nothing"
    OFFSETS = "offsets"
    LEDGER = "ledger"
    PLANS = "plans"
    """The ledger, and the commits that told of it: only rows are left."""


def what_is_lost(snapshot: Snapshot, settings: Settings) -> tuple[Lost, Plan | None]:
    """What there is to restore, and the plan that the table tells of; None where it tells of none
    any more.

    Raises LedgersDisagree where somebody must first say which table is right, SettingsError where
    the table holds nothing of ours, NeedsDecision where a stored plan must be executed first.
    """
    ledger, table = snapshot.ledger, snapshot.table
    with naming_table(settings):
        refuse_another_era(ledger, table)
        refuse_what_others_did(table, ledger.acknowledged, settings.table.on_rows_removed)
        if is_forgotten(ledger, table):
            return Lost.PLANS, None
        found = compare(ledger, table, settings.table.place)
    if isinstance(found, FirstRun) and rows_not_begun(None, snapshot):
        with naming_table(settings):
            refuse_topics_of_others(found, snapshot)
        return Lost.PLANS, None
    if isinstance(found, FirstRun):
        what = "the table holds no plan of this pipeline, and ZooKeeper knows none: there is nothing to restore"
        check = "table.path, group and pipeline; `etl plan CONF` says what a first run does"
        raise SettingsError(what, path=settings.table.path, check=check)
    if isinstance(found, RebuildFromTable):
        return Lost.LEDGER, found.plan
    if (
        isinstance(found, UpToDate)
        and not apart(found.last, snapshot)
        and rows_not_begun(found.last, snapshot)
    ):
        return Lost.PLANS, None
    if isinstance(found, UpToDate):
        return (Lost.OFFSETS if apart(found.last, snapshot) else Lost.NOTHING), found.last
    return Lost.NOTHING, _left(found, snapshot, settings)


def is_forgotten(ledger: Ledger, table: Table | None) -> bool:
    """Whether the table holds a plan that the ledger does not have, and the table's log no longer
    says what it was.
    """
    if table is None or (table.metadata and table.metadata.document is not None):
        return False
    return (table.transaction_version or 0) > (ledger.newest.number if ledger.newest else 0)


def _left(state: Replay | Supersede, snapshot: Snapshot, settings: Settings) -> Plan:
    """A stored plan, whose offsets are where it saw them. Raises NeedsDecision, and as
    `refuse_untold`.
    """
    plan = with_hand_over_found_out(snapshot).ledger.newest or state.plan
    refuse_untold(plan, snapshot, settings)
    found = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.offsets_to_move}
    moved = sorted(log for log, now in found.items() if place_moved(plan, log, now))
    if moved:
        what = f"plan {plan.number} is stored and not in the table, and another client moved the offset of {render_log(moved[0])} since"
        raise NeedsDecision(
            what,
            check="`etl run CONF`, which executes it and then stops at this offset; then say this again",
        )
    return plan


def apart(plan: Plan, snapshot: Snapshot) -> dict[BrokerPartition, tuple[int | None, int]]:
    """The logs whose committed offset is not the plan's position: what it is, and what it will be."""
    found = (
        {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
        if plan.moves_offsets
        else {}
    )
    there = {
        log: (off_position(one, plan.positions[log]), plan.positions[log])
        for log, one in sorted(found.items())
    }
    return {log: (at, to) for log, (at, to) in there.items() if at != to}


def repair_from(plan: Plan, snapshot: Snapshot) -> Repair:
    """The ledger from the table's commits, and every offset to its position, whoever moved it."""
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in plan.positions}
    as_seen = replace(plan, seen=seen, offsets_in=snapshot.offsets_in)
    return Repair(as_seen, tuple(apart(plan, snapshot)), adopts=plan, knew=snapshot.ledger.newest)


def told_apart(offsets: Mapping[BrokerPartition, tuple[int | None, int]]) -> list[str]:
    """Which offsets move: a sentence for each log."""
    return [
        f"{render_log(log)}: the committed offset goes from {'none' if there is None else there} to {to}"
        for log, (there, to) in offsets.items()
    ]


def told_rows(
    until: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    others: int,
) -> list[str]:
    """What going on behind the rows comes to. `others`: how many more pipelines have loaded into
    the table.
    """
    said = []
    for log, (_, position) in sorted(until.items()):
        there, extent = (
            snapshot.committed.get(log, NOTHING_COMMITTED).offset,
            snapshot.extents.get(log),
        )
        sentence = f"{render_log(log)} goes on at {position}, one past its last row"
        if there is not None and there > position:
            sentence += f"; the committed offset is {there}, and what lies between is read again: the table has no row of it"
        if extent and extent.end_offset + extent.held_back < position:
            sentence += f"; the log ends at {extent.end_offset}, so it was cut or made again, and the next run stops there"
        said.append(sentence)
    log = min(until)
    said.append(
        "of a topic that was deleted and made again since, and is longer by now, records before these offsets would be passed over: "
        f"compare the last rows with what the logs hold there, e.g. `etl peek CONF {shlex.quote(log.topic)} {log.key} "
        f"--from {until[log][1] - 1} -n 1`"
    )
    said.append(
        "rows that were deleted at the end of a partition come again, what was let go there is loaded if the log has it, and "
        "nobody can tell any more whether something is missing further down"
    )
    if others:
        said.append(
            f"other pipelines have loaded into this table ({others}): rows of the conf's topics count whoever loaded them"
        )
    return said
