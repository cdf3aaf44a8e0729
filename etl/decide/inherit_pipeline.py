"""What does a pipeline inherit from its predecessor in a table?

A renamed group or pipeline is a new pipeline with an empty ledger, while the table holds the old
one's rows. The plan that inherits has no ranges; it keeps the predecessor's positions, in the
topics that the conf names, under the new name. It is stored like any plan, and the next run commits
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from etl.decide.group_commits import reject_replacing
from etl.decide.loaded_intervals import unloaded
from etl.decide.offsets import pending_starts, starts_of
from etl.decide.partition_identity import (
    creations_to_record,
    is_creation_id,
    is_same_cluster,
    name_put_back,
    record_epochs,
    topic_ids_to_record,
)
from etl.decide.plan import shape_of_rows
from etl.decide.reconcile import compare, is_of_another_era
from etl.decide.table_changes import app_id_of, name_of
from etl.decide.table_rules import inherited_rows
from etl.errors import NeedsDecision, OffsetMoved, SettingsError
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition
from etl.model.plans import Plan, PlanKind, TookOver
from etl.model.snapshot import (
    FirstRun,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    UpToDate,
)
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The other pipeline, and where it ended in the topics that the conf names."""

    other: OtherPipeline
    positions: Mapping[BrokerPartition, int]
    incarnations: Mapping[BrokerPartition, int]


def predecessor_of(
    other: OtherPipeline,
    rows_until: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    settings: Settings,
) -> Predecessor:
    """Return the predecessor's positions in our topics; without its plan, `rows_until`: incarnation
    and end of each partition. Raises SettingsError if it loaded no topic of ours, NeedsDecision if
    its topics were another cluster's.
    """
    if other.plan:
        found = other.plan.positions
    else:
        found = {log: until for log, (_, until) in rows_until.items()}
    if other.plan:
        epochs = other.plan.incarnations
    else:
        epochs = {log: epoch for log, (epoch, _) in rows_until.items() if epoch}
    # where rows alone are left, our own position in a log that the conf does not name may be an old
    # one, too
    if other.plan is None and snapshot.ledger.newest:
        known = snapshot.ledger.newest.positions
    else:
        known = {}
    positions = {
        log: offset
        for log, offset in found.items()
        if settings.source.topic_filter.admits(log.topic) or log in known
    }
    if not any(settings.source.topic_filter.admits(log.topic) for log in positions):
        message = f"{name_of(other.app_id)} has loaded no topic that this conf names"
        raise SettingsError(
            message,
            key="--predecessor",
            action="Check source.topics, and the pipelines that `etl run CONF --dry-run` names",
        )
    if other.plan and other.plan.dialect is not settings.source.broker_type:
        message = f"{name_of(other.app_id)} has loaded from {other.plan.dialect.value} brokers: its offsets and its rows' keys are others"
        raise SettingsError(
            message,
            key="--predecessor",
            action="Check the pipeline's name, and source.broker_type; these brokers take a table of their own",
        )
    if other.plan and not is_same_cluster(other.plan, snapshot, settings.source.assume_cluster_id):
        _reject_another_cluster(other.plan, sorted({log.topic for log in positions}), snapshot)
    return Predecessor(
        other, positions, {log: epoch for log, epoch in epochs.items() if log in positions}
    )


def _reject_another_cluster(plan: Plan, topics: list[str], snapshot: Snapshot) -> None:
    """Reject topics of another cluster: only equal topic ids show the same cluster under a new
    name.
    """
    for topic in topics:
        known, found = plan.topic_ids.get(topic), snapshot.topic_ids.get(topic)
        if known is None or known != found or is_creation_id(known):
            message = f"The rows of this topic in the table are of cluster {plan.cluster}, and this one is {snapshot.cluster}"
            action = "Offsets of one cluster mean nothing on another, and their rows could not be told apart: another table.path"
            action += "" if plan.cluster_id else f"; {name_put_back(plan.cluster)}"
            raise NeedsDecision(message, topic=topic, action=action)


Known = TypeVar("Known")
Loaded = Mapping[BrokerPartition, Sequence[tuple[int, int, int]]]
"""What a pipeline loaded: incarnation, from, until."""


def ours_apart(snapshot: Snapshot) -> UpToDate | Replay | None:
    """Return the state of a pipeline that inherits from itself because another ledger wrote the
    table; else None.

    Its own plans went elsewhere: a stored plan that is not known to be executed loaded nothing into
    this table, and the inheriting plan gets its number. Raises NeedsDecision if the table would not
    accept that number.
    """
    ledger, table = snapshot.ledger, snapshot.table
    if ledger.newest is None or table is None or not is_of_another_era(ledger, table):
        return None
    if ledger.applied is not None:
        return UpToDate(ledger.newest, ledger.newest.positions)
    number = ledger.newest.number
    if number <= (table.transaction_version or 0):
        message = f"Plan {number} is stored, and nobody knows whether the table that it was made for holds it"
        raise NeedsDecision(
            message,
            action="Run once with table.path at that table, or at an empty folder, and take over after that",
        )
    return Replay(ledger.newest)


def plan_inheritance(
    taken: Predecessor,
    state: PipelineState | None,
    snapshot: Snapshot,
    settings: Settings,
    *,
    uid: str,
    now_ms: int,
    reason: str,
    sets_back: bool = False,
) -> Plan:
    """Return the plan, without its id, that begins at the predecessor's positions.

    `state` is None if only the table's rows are left. In a partition known to both the higher
    position counts. Raises SettingsError if the table has more than ZooKeeper, OffsetMoved if
    another client committed an offset above a position, since nothing shows that the offsets
    between are in the table. If an operator has checked that no row of them is, `sets_back` sets
    such an offset back to the position.
    """
    table, other = snapshot.table, taken.other
    last, ours, number = _where(state, snapshot, other)
    us = app_id_of(snapshot.cluster, settings.group.id, settings.pipeline)
    lives = last.incarnations if last else {}
    theirs = {
        log: offset
        for log, offset in taken.positions.items()
        if log.topic not in _outlived(taken, last)
    }
    further_on = {
        log
        for log, offset in theirs.items()
        if log not in ours
        or (taken.incarnations.get(log, 0), offset) > (lives.get(log, 0), ours[log])
    }
    positions = {
        **ours,
        **{log: offset for log, offset in taken.positions.items() if log in further_on},
    }
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions}
    if not sets_back:
        _reject_committed_above(positions, {log: seen[log].offset for log in theirs})
    is_instead = isinstance(state, (Replay, Supersede))
    if last and is_instead:
        reject_replacing(last)
    source, topics = other.plan or snapshot, _as_the_other_read(theirs, taken, last, us)
    topic_ids = {**(last.topic_ids if last else {}), **_among(topics, source.topic_ids)}
    ours_alone = _among(topic_ids.keys() - topics, last.creation_ids if last else {})
    return Plan(
        number=number,
        uid=uid,
        kind=PlanKind.TAKE_OVER,
        created_at_ms=now_ms,
        dialect=settings.source.broker_type,
        cluster=snapshot.cluster,
        shape=shape_of_rows(settings),
        ranges=(),
        positions=positions,
        seen={**seen, **last.seen} if last and is_instead else seen,
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        topic_ids=topic_ids,
        creation_ids=creations_to_record(
            topic_ids, ours_alone, _among(topics, source.creation_ids)
        ),
        log_topic_ids=_joined(
            topic_ids_to_record(last, (), ours, topic_ids),
            topic_ids_to_record(other.plan, (), further_on, topic_ids),
            further_on,
        ),
        tails=_joined(
            last.tails if last else {}, other.plan.tails if other.plan else {}, further_on
        ),
        previous=(last.previous if is_instead else last.id) if last else None,
        supersedes=last.id if last and is_instead else None,
        reason=reason,
        took_over=TookOver(other.app_id, other.number),
        heir_of=_predecessors_of(last, other, us),
        table_version=table.version if table else None,
        losses=last.losses if last and is_instead else (),
        vanished=last.vanished if last and is_instead else (),
        pending_starts=_pending_starts(other.plan, last, positions, snapshot, settings, now_ms),
        pending_offsets=_pending_offsets(other.plan, last, positions, settings),
        log_starts=_joined(
            last.log_starts if last else {}, other.plan.log_starts if other.plan else {}, further_on
        ),
        leader_epochs=_joined(
            last.leader_epochs if last else {},
            other.plan.leader_epochs if other.plan else {},
            further_on,
        ),
        record_epochs=_joined(
            record_epochs(last, snapshot.ledger.applied) if last else {},
            record_epochs(other.plan, None) if other.plan else {},
            further_on,
        ),
        incarnations=_joined(lives, taken.incarnations, further_on),
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        time_zone=_time_zone_of(other.plan or last),
        rows_before=inherited_rows(last, other.plan, snapshot),
    )


def _time_zone_of(plan: Plan | None) -> str | None:
    """The zone of the newest rows: this plan has none."""
    return plan.time_zone if plan else None


def _reject_committed_above(
    positions: Mapping[BrokerPartition, int], committed: Mapping[BrokerPartition, int | None]
) -> None:
    for log, there in sorted(committed.items()):
        if there is not None and there > positions[log]:
            message = f"The committed offset is {there}, and the rows in the table end at {positions[log]}"
            action = f"Check who committed it; set it back to {positions[log]}, or the records between are never loaded"
            raise OffsetMoved(message, **log.place, offset=there, action=action)


def _as_the_other_read(
    theirs: Collection[BrokerPartition], taken: Predecessor, last: Plan | None, us: str
) -> set[str]:
    """Return the topic ids that the predecessor knew, so that later recreations are noticed. If a
    pipeline inherits from itself by the table's rows, its own ids count, unless rows show that it
    accepted others since.
    """
    topics = {log.topic for log in theirs}
    if last is None or taken.other.plan is not None or taken.other.app_id != us:
        return topics
    return topics - {
        topic
        for topic in last.topic_ids
        if _incarnation_of(topic, taken.incarnations) <= _incarnation_of(topic, last.incarnations)
    }


def _predecessors_of(last: Plan | None, other: OtherPipeline, us: str) -> tuple[TookOver, ...]:
    """Return all predecessors: the other pipeline, its predecessors and ours."""
    found = dict(last.taken) if last else {}
    for one, number in (
        (other.plan.taken if other.plan else {}) | {other.app_id: other.number}
    ).items():
        found[one] = max(number, found.get(one, 0))
    return tuple(TookOver(one, number) for one, number in sorted(found.items()) if one != us)


def reject_unloaded_gap(
    taken: Predecessor,
    state: PipelineState,
    snapshot: Snapshot,
    ours: Loaded,
    theirs: Loaded,
) -> None:
    """Reject a gap: in a partition known to both, the side with the higher position must have
    loaded everything from the lower one on. Raises NeedsDecision for offsets between that neither
    has in the table.
    """
    last, positions, _ = _where(state, snapshot, taken.other)
    lives = last.incarnations if last else {}
    for log in sorted(positions.keys() & taken.positions.keys()):
        mine, life = (lives.get(log, 0), positions[log]), taken.incarnations.get(log, 0)
        further = theirs if taken.positions[log] > mine[1] else ours
        loaded = [(start, until) for of, start, until in further.get(log, ()) if of == life]
        if life == mine[0]:
            gap = unloaded(loaded, *sorted((mine[1], taken.positions[log])))
        else:
            gap = None
        if gap:
            message = (
                f"Both pipelines know this partition, and offsets {gap[0]} to {gap[1]} lie between their positions and were loaded "
                "by neither"
            )
            action = "Remove this topic from source.topics, and load it by a pipeline and a table of its own"
            raise NeedsDecision(message, **log.place, offset=gap[0], action=action)


def state_of_itself(snapshot: Snapshot, settings: Settings) -> PipelineState | None:
    """Return the state of a pipeline that inherits from itself; None if its ledger is not ahead of
    the table's rows. A stored plan that is not in the table gives up its number. Raises
    LedgersDisagree for an old table, SettingsError if the table holds another plan than the ledger.
    """
    newest, table = snapshot.ledger.newest, snapshot.table
    in_table = (table.transaction_version or 0) if table else 0
    if is_of_another_era(snapshot.ledger, table):
        return ours_apart(snapshot)
    if newest is None or newest.number < in_table:
        return None
    found = compare(snapshot.ledger, table, settings.table.place)
    if isinstance(found, RebuildFromTable):
        raise _run_first()
    return found if isinstance(found, (Replay, Supersede)) else None


def _run_first() -> SettingsError:
    return SettingsError(
        "The table knows more plans of this pipeline than ZooKeeper",
        action="Run `etl run CONF`, which mends that first",
    )


def _pending_starts(
    theirs: Plan | None,
    last: Plan | None,
    positions: Mapping[BrokerPartition, int],
    snapshot: Snapshot,
    settings: Settings,
    now_ms: int,
) -> dict[BrokerPartition, int | None]:
    """Return the pending starts of both; a first plan also decides those of all existing topics."""
    kept = {
        log: moment
        for plan in (theirs, last)
        if plan
        for log, moment in plan.pending_starts.items()
        if log not in positions and settings.source.topic_filter.admits(log.topic)
    }
    if last is not None:
        return kept
    known = {log.topic for log in (*positions, *kept)}
    there = (log for log in (*snapshot.extents, *snapshot.leaderless) if log.topic not in known)
    return {**kept, **pending_starts(there, positions, None, settings, now_ms=now_ms)}


def _pending_offsets(
    theirs: Plan | None,
    last: Plan | None,
    positions: Mapping[BrokerPartition, int],
    settings: Settings,
) -> dict[BrokerPartition, int]:
    """Return the pending offsets of both; ours count where both decided."""
    found: dict[BrokerPartition, int] = {}
    for plan in (theirs, last):
        for log in plan.pending_starts if plan else ():
            found.pop(log, None)
            if (
                plan
                and log in plan.pending_offsets
                and log not in positions
                and settings.source.topic_filter.admits(log.topic)
            ):
                found[log] = plan.pending_offsets[log]
    return found


def _where(
    state: PipelineState | None,
    snapshot: Snapshot,
    other: OtherPipeline,
) -> tuple[Plan | None, Mapping[BrokerPartition, int], int]:
    """Our last plan, our positions, and the number of the plan that takes over: that of a stored
    one that is not in the table is free.
    """
    if state is None:
        newest, is_known = (
            snapshot.ledger.newest,
            snapshot.ledger.applied is not None,
        )  # else another one may have been executed for it
        return (
            newest,
            (newest.positions if is_known else starts_of(newest)) if newest else {},
            other.number + 1,
        )
    if isinstance(state, FirstRun):
        return None, {}, 1
    if isinstance(state, (Replay, Supersede)):
        return state.plan, starts_of(state.plan), state.plan.number
    if isinstance(state, RebuildFromTable):
        raise _run_first()
    in_table = (snapshot.table.transaction_version or 0) if snapshot.table else 0
    return state.last, state.last.positions, max(state.last.number, in_table) + 1


def _outlived(taken: Predecessor, last: Plan | None) -> set[str]:
    """Return topics that were recreated since the predecessor read them and that we continued: its
    knowledge of them is obsolete.
    """
    if last is None:
        return set()
    known = taken.other.plan.topic_ids if taken.other.plan else {}
    others = {
        topic
        for topic, topic_id in last.topic_ids.items()
        if known.get(topic, topic_id) != topic_id
    }
    return {
        topic
        for topic in others
        if _incarnation_of(topic, last.incarnations) > _incarnation_of(topic, taken.incarnations)
    }


def _incarnation_of(topic: str, lives: Mapping[BrokerPartition, int]) -> int:
    return max((epoch for log, epoch in lives.items() if log.topic == topic), default=0)


def _among(topics: Collection[str], ids: Mapping[str, str]) -> dict[str, str]:
    return {topic: topic_id for topic, topic_id in ids.items() if topic in topics}


def _joined(
    mine: Mapping[BrokerPartition, Known],
    theirs: Mapping[BrokerPartition, Known],
    from_other: set[BrokerPartition],
) -> dict[BrokerPartition, Known]:
    """Return what is known of each partition, by the side whose position counts."""
    kept = {log: value for log, value in mine.items() if log not in from_other}
    return {**kept, **{log: value for log, value in theirs.items() if log in from_other}}
