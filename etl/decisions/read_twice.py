"""What the table holds and other members of the group may have read as well, under
`ownership.hand_over: after_append`. Pure.

A plan's offsets move behind its append, by the membership that it was made with, and then it is
recorded. Whoever took a log over before that began where the plan had begun. What is there tells,
as long as nobody wrote over it:

    the group's offset of a log    the plan is stored       in the table, not recorded    recorded
    ----------------------------   ----------------------   ---------------------------   ----------------------------------------------
    as the plan saw it             nobody committed since   nobody knows: all of it may   the run told that its commit was refused
    as the plan moves it           -                        it was moved (in ZooKeeper one write of others to it looks the same)
    below the plan's position      others read so far       all of it may                 others read so far
    beyond it, or at it            others read all of it    all of it may                 nothing new: it was moved, or the run told
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from etl.decisions.start import starts_of
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import PipelineState, RebuildFromTable, Snapshot, UpToDate


@dataclass(frozen=True, slots=True)
class ReadTwice:
    """Offsets [from, until) of one log that the table holds, or will, and that others may have read
    as well.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int


def read_twice(state: PipelineState, snapshot: Snapshot) -> tuple[ReadTwice, ...]:
    """Of the newest plan; none where it is not a member's that moves offsets behind its append."""
    plan = snapshot.ledger.newest
    if plan is None or not plan.is_of_member or isinstance(state, RebuildFromTable):
        return ()
    is_in_table, is_recorded = isinstance(state, UpToDate), snapshot.ledger.applied is not None
    began, unknown = (
        _began(plan),
        set(plan.offsets_to_move) if is_in_table and not is_recorded else set(),
    )
    found = []
    for log, position in sorted(plan.positions.items()):
        there = snapshot.committed.get(log, NOTHING_COMMITTED)
        is_told = is_in_table and log not in unknown and (there.offset or 0) >= position
        until = position if log in unknown else min(there.offset or 0, position)
        if there != plan.left(log) and not is_told and until > began[log]:
            found.append(ReadTwice(log, began[log], until))
    return tuple(found)


def taken(plan: Plan, moved: Collection[BrokerPartition]) -> tuple[ReadTwice, ...]:
    """What others read, or will, of a plan in the table of which the offsets of `moved` alone were
    moved.
    """
    began, left = (
        _began(plan),
        [log for log in plan.offsets_to_move if log not in moved] if plan.is_of_member else [],
    )
    return tuple(ReadTwice(log, began[log], plan.positions[log]) for log in left)


def _began(plan: Plan) -> dict[BrokerPartition, int]:
    """Where another member begins that takes a log over before the plan's offsets are moved."""
    starts = starts_of(plan)
    return {
        log: starts[log] if seen.offset is None else seen.offset for log, seen in plan.seen.items()
    }
