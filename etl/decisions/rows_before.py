"""Rows of the planned topics that were in the table before the pipeline planned them for the first
time. Pure functions of values.

    first offset that the pipeline would read of a partition        decision
    -------------------------------------------------------------   ----------------------------------------------------------
    behind the last row of its last life                            it begins there, in that life: no offset is loaded twice
    before it, and an operator said that those are other records    it begins there, in the next life: `log_epoch` is one more
    before it                                                       NeedsDecision: another table, behind the rows, or that word

The plan keeps what was found (`Plan.rows_before`), for partitions that are read later, and for `etl
verify`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from etl.decisions.acceptance import accepted_version
from etl.errors import NeedsDecision
from etl.model.partitions import BrokerPartition, render_log
from etl.model.plans import HeldRows, Plan, RowsBefore
from etl.model.snapshot import Snapshot


def topics_to_ask(
    topics: Collection[str], last: Plan | None, snapshot_table_id: str, *, has_commits: bool
) -> frozenset[str]:
    """Topics of which the table may hold rows that no plan loaded. `last`: the newest plan;
    `has_commits`: the table has commits of ours.

    A pipeline that made the table, or found it empty, has none: nothing is asked once it has a
    plan.
    """
    if last is None:
        return frozenset() if has_commits else frozenset(topics)
    if last.rows_before is None or last.rows_before.table_id != snapshot_table_id:
        return frozenset()
    return frozenset(topics) - last.topics


def rows_before(last: Plan | None, snapshot: Snapshot) -> RowsBefore | None:
    """What the next plan keeps: what the last one does, and what the table holds of topics that are
    new.
    """
    table = snapshot.table
    kept = last.rows_before if last else None
    if table is None or (table.held is None and (kept is None or kept.table_id != table.id)):
        return kept
    known = kept.held if kept and kept.table_id == table.id else ()
    found = {(one.log, one.log_epoch): one for one in (*known, *(table.held or ()))}
    word = snapshot.ledger.acknowledged
    topics = word.rows_of if word and accepted_version(word, table) == table.version else ()
    held = (
        replace(one, is_accepted=one.is_accepted or one.log.topic in topics)
        for one in found.values()
    )
    return RowsBefore(table.id, tuple(sorted(held)))


def inherited_rows(last: Plan | None, theirs: Plan | None, snapshot: Snapshot) -> RowsBefore | None:
    """What a plan keeps that takes another pipeline's place: what the last one does, and what the
    other's does of this table.
    """
    ours = rows_before(last, snapshot)
    if theirs is None and ours is None and snapshot.table:
        # the table's log no longer says what was loaded, so topics that are named later are looked
        # for, too
        return RowsBefore(snapshot.table.id, ())
    other = theirs.rows_before if theirs else None
    if other is None or snapshot.table is None or other.table_id != snapshot.table.id:
        return ours
    if ours is None or ours.table_id != other.table_id:
        return other
    found = {(one.log, one.log_epoch): one for one in (*other.held, *ours.held)}
    return RowsBefore(other.table_id, tuple(sorted(found.values())))


def lives_begun(
    before: RowsBefore | None, begins: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> dict[BrokerPartition, int]:
    """The life in which each partition begins that is read for the first time, if it is not the
    first one.

    `begins`: the first offset to read. Raises NeedsDecision if the table holds rows of such
    offsets.
    """
    table = snapshot.table
    if before is None or table is None or before.table_id != table.id:
        return {}
    lives, again = dict[BrokerPartition, int](), list[HeldRows]()
    for one in before.held:  # in order: the last life of a partition comes last
        if one.log in begins:
            is_met = begins[one.log] < one.until_offset and not one.is_accepted
            again = [other for other in again if other.log != one.log] + ([one] if is_met else [])
            lives[one.log] = one.log_epoch + one.is_accepted
    if again:
        raise refusal_of(again, table.version, {one.log: begins[one.log] for one in again})
    return {log: life for log, life in lives.items() if life}


def rows_not_begun(last: Plan | None, snapshot: Snapshot) -> dict[BrokerPartition, tuple[int, int]]:
    """Partitions that the pipeline has not begun, and that the table holds rows of: the last life,
    and one past its last offset.
    """
    table, before = snapshot.table, rows_before(last, snapshot)
    if table is None or before is None or before.table_id != table.id:
        return {}
    begun = last.positions if last else {}
    return {
        one.log: (one.log_epoch, one.until_offset)
        for one in before.held
        if one.log not in begun and one.log in snapshot.extents and not one.is_accepted
    }


def refusal_of(
    held: Sequence[HeldRows],
    table_version: int,
    begins: Mapping[BrokerPartition, int] | None = None,
    *,
    to_add: str = "",
) -> NeedsDecision:
    """Why nothing is loaded: the table holds these rows already. `to_add`: the statement that gives
    the table columns that it lacks.
    """
    one = min(held)
    others = len({other.log for other in held}) - 1
    more = f", and rows of {others:,} more partition{'s' if others > 1 else ''}" if others else ""
    what = (
        f"the table holds {one.rows:,} rows of {render_log(one.log)} that no plan of this pipeline loaded, from offset {one.from_offset} "
        f"to {one.until_offset - 1}{more}"
    )
    if begins is not None:
        what += f": a plan that begins at offset {begins[one.log]} would load them a second time"
    return NeedsDecision(
        what,
        **one.log.place,
        first_offset=one.from_offset,
        last_offset=one.until_offset - 1,
        table_version=table_version,
        check=_ways_out(one, table_version, to_add),
    )


def _ways_out(one: HeldRows, table_version: int, to_add: str) -> str:
    said = [
        "who wrote them (DESCRIBE HISTORY), and that it has stopped. Then (1) another table: table.path"
    ]
    if not one.log.is_physical:
        said.append("(2) go on behind them: etl offsets restore CONF --from-table --reason ...")
    number = len(said) + 1
    said.append(
        f"({number}) if they are of another cluster, or of another life of the topic: etl plans acknowledge CONF {table_version} "
        f"--reason ..., and offsets are loaded with log_epoch {one.log_epoch + 1}"
    )
    ways = "; or ".join(said)
    return (
        f"{ways}. Unless it is another table, it first needs the columns that it lacks: {to_add}"
        if to_add
        else ways
    )


def topics_accepted(snapshot: Snapshot) -> tuple[str, ...]:
    """The topics of which an operator says, by accepting the table as it is, that its rows are
    other records.
    """
    table, last = snapshot.table, snapshot.ledger.newest
    if table is None:
        return ()
    kept = (
        last.rows_before.held
        if last and last.rows_before and last.rows_before.table_id == table.id
        else ()
    )
    unread = (one for one in kept if last is None or one.log not in last.positions)
    return tuple(sorted({one.log.topic for one in (*(table.held or ()), *unread)}))


def told_accepted(topics: Collection[str]) -> str:
    """What that comes to, as the end of a sentence."""
    if not topics:
        return ""
    names = ", ".join(sorted(map(shlex.quote, topics)))
    return (
        f"; its rows of {names} are of another log, and what is loaded gets a log_epoch of its own"
    )
