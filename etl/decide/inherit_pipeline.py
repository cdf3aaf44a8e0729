"""Which state does a pipeline inherit from its predecessor in a table?

A renamed group or pipeline is a new pipeline with an empty ledger, but the table has the old one's
rows. The plan that inherits has no ranges; it keeps the predecessor's positions, in the topics that
the conf names, under the new name. It is stored like any plan, and the next run commits it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from etl.decide.group_commits import reject_replacing
from etl.decide.loaded_intervals import first_gap
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
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Lineage, Tail
from etl.model.plans import CommitResult, Loss, Plan, PlanKind, TookOver, Vanished
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
    """The other pipeline, and its positions in the topics that the conf names."""

    other: OtherPipeline
    positions: Mapping[BrokerPartition, int]
    incarnations: Mapping[BrokerPartition, int]


def predecessor_of(
    other: OtherPipeline,
    rows_until: Mapping[BrokerPartition, tuple[int, int]],
    snapshot: Snapshot,
    settings: Settings,
) -> Predecessor:
    """Return the predecessor's positions in our topics.

    Without its plan they are taken from `rows_until`: incarnation and end of each partition. Raises
    SettingsError if it loaded no topic of ours, NeedsDecision if its topics are another cluster's.
    """
    admits = settings.source.topic_filter.admits
    ends: dict[BrokerPartition, int] = {}
    incarnations: dict[BrokerPartition, int] = {}
    known: Collection[BrokerPartition] = ()
    if other.plan:
        ends.update(other.plan.positions)
        incarnations.update(other.plan.incarnations)
    else:
        for log, (incarnation, until) in rows_until.items():
            ends[log] = until
            if incarnation:
                incarnations[log] = incarnation
        if snapshot.ledger.newest:
            # Our own position in a partition that the conf does not name may be an old one, too, if
            # only rows are left.
            known = snapshot.ledger.newest.positions
    positions = {log: end for log, end in ends.items() if admits(log.topic) or log in known}
    if not any(admits(log.topic) for log in positions):
        raise SettingsError(
            f"{name_of(other.app_id)} has loaded no topic that this conf names",
            key="--predecessor",
            action="Check source.topics, and the pipelines that `etl run CONF --dry-run` lists",
        )
    if other.plan and other.plan.dialect is not settings.source.broker_type:
        raise SettingsError(
            f"{name_of(other.app_id)} has loaded from {other.plan.dialect.value} brokers, whose "
            "offsets and row keys are different",
            key="--predecessor",
            action="Check the pipeline's name, and source.broker_type. Brokers of another type "
            "need "
            "another table",
        )
    if other.plan and not is_same_cluster(other.plan, snapshot, settings.source.assume_cluster_id):
        _reject_another_cluster(other.plan, sorted({log.topic for log in positions}), snapshot)
    of_positions = {log: value for log, value in incarnations.items() if log in positions}
    return Predecessor(other, positions, of_positions)


def _reject_another_cluster(plan: Plan, topics: list[str], snapshot: Snapshot) -> None:
    """Reject topics of another cluster: only equal topic ids prove the same cluster under a new
    name.
    """
    for topic in topics:
        known = plan.topic_ids.get(topic)
        if known is not None and known == snapshot.topic_ids.get(topic):
            if not is_creation_id(known):
                continue
        action = (
            "Set another table.path: offsets of one cluster have no meaning on another, and their "
            "rows could not be distinguished"
        )
        if not plan.cluster_id:
            action += f"; {name_put_back(plan.cluster)}"
        raise NeedsDecision(
            f"The rows of this topic in the table are of cluster {plan.cluster}, and this one is "
            f"{snapshot.cluster}",
            topic=topic,
            action=action,
        )


Known = TypeVar("Known")
Loaded = Mapping[BrokerPartition, Sequence[tuple[int, int, int]]]
"""The loaded intervals of a pipeline: incarnation, from, until."""


def state_of_own_ledger(snapshot: Snapshot) -> UpToDate | Replay | None:
    """Return the state of a pipeline that inherits from itself because another ledger wrote the
    table; else None.

    Its own plans were for another table: a stored plan that is not known to be executed loaded
    nothing into this one, and the inheriting plan gets its number. Raises NeedsDecision if the
    table would not accept that number.
    """
    ledger = snapshot.ledger
    table = snapshot.table
    if ledger.newest is None or table is None or not is_of_another_era(ledger, table):
        return None
    if ledger.applied is not None:
        return UpToDate(ledger.newest, ledger.newest.positions)
    number = ledger.newest.number
    if number <= (table.transaction_version or 0):
        raise NeedsDecision(
            f"Plan {number} is stored, and it is unknown whether its own table has it",
            action="Run once with table.path at the table that it was made for, or at an empty "
            "directory. Then run this command again",
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
    another client committed an offset above a position, since the offsets between may not be in the
    table. If an operator has checked that the table has no row of them, `sets_back` sets such an
    offset back to the position.
    """
    table = snapshot.table
    other = taken.other
    last, ours, number = _where(state, snapshot, other)
    us = app_id_of(snapshot.cluster, settings.group.id, settings.pipeline)
    obsolete = _obsolete_topics(taken, last)
    theirs = {log: end for log, end in taken.positions.items() if log.topic not in obsolete}
    our_incarnations: Mapping[BrokerPartition, int] = {}
    if last:
        our_incarnations = last.incarnations
    positions = dict(ours)
    further_on = set()
    for log, offset in theirs.items():
        if log in ours:
            at_ours = (our_incarnations.get(log, 0), ours[log])
            if (taken.incarnations.get(log, 0), offset) <= at_ours:
                continue
        further_on.add(log)
        positions[log] = offset
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions}
    if not sets_back:
        _reject_committed_above(positions, {log: seen[log].offset for log in theirs})

    topics = _topics_of_other(theirs, taken, last, us)
    source = other.plan or snapshot
    topic_ids: dict[str, str] = {}
    our_creations: dict[str, str] = {}
    if last:
        topic_ids.update(last.topic_ids)
    topic_ids.update(_among(topics, source.topic_ids))
    if last:
        our_creations = _among(topic_ids.keys() - topics, last.creation_ids)

    previous = None
    supersedes = None
    losses: tuple[Loss, ...] = ()
    vanished: tuple[Vanished, ...] = ()
    if last and isinstance(state, (Replay, Supersede)):
        reject_replacing(last)
        previous = last.previous
        supersedes = last.id
        losses = last.losses
        vanished = last.vanished
        seen |= last.seen
    elif last:
        previous = last.id

    our_state = _KnownOfPartitions()
    if last:
        our_state = _known_of(last, snapshot.ledger.applied)
    their_state = _KnownOfPartitions()
    if other.plan:
        their_state = _known_of(other.plan, None)
    log_topic_ids = _joined(
        topic_ids_to_record(last, (), ours, topic_ids),
        topic_ids_to_record(other.plan, (), further_on, topic_ids),
        further_on,
    )
    table_id = None
    table_version = None
    table_transaction_version = 0
    if table:
        table_id = table.id
        table_version = table.version
        table_transaction_version = table.transaction_version or 0
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
        seen=seen,
        table_id=table_id,
        table_transaction_version=table_transaction_version,
        topic_ids=topic_ids,
        creation_ids=creations_to_record(
            topic_ids, our_creations, _among(topics, source.creation_ids)
        ),
        log_topic_ids=log_topic_ids,
        tails=_joined(our_state.tails, their_state.tails, further_on),
        previous=previous,
        supersedes=supersedes,
        reason=reason,
        took_over=TookOver(other.app_id, other.number),
        heir_of=_predecessors_of(last, other, us),
        table_version=table_version,
        losses=losses,
        vanished=vanished,
        pending_starts=_pending_starts(other.plan, last, positions, snapshot, settings, now_ms),
        pending_offsets=_pending_offsets(other.plan, last, positions, settings),
        log_starts=_joined(our_state.log_starts, their_state.log_starts, further_on),
        leader_epochs=_joined(our_state.leader_epochs, their_state.leader_epochs, further_on),
        record_epochs=_joined(our_state.epochs, their_state.epochs, further_on),
        incarnations=_joined(our_incarnations, taken.incarnations, further_on),
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        time_zone=_time_zone_of(other.plan or last),
        rows_before=inherited_rows(last, other.plan, snapshot),
    )


@dataclass(frozen=True, slots=True)
class _KnownOfPartitions:
    """The state of each partition in a plan."""

    tails: Mapping[BrokerPartition, Tail] = field(default_factory=dict)
    log_starts: Mapping[BrokerPartition, int] = field(default_factory=dict)
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    epochs: Mapping[BrokerPartition, Lineage] = field(default_factory=dict)


def _known_of(plan: Plan, applied: CommitResult | None) -> _KnownOfPartitions:
    epochs = record_epochs(plan, applied)
    return _KnownOfPartitions(plan.tails, plan.log_starts, plan.leader_epochs, epochs)


def _time_zone_of(plan: Plan | None) -> str | None:
    """Return the time zone of the newest rows, as an inheriting plan has none."""
    return plan.time_zone if plan else None


def _reject_committed_above(
    positions: Mapping[BrokerPartition, int], committed: Mapping[BrokerPartition, int | None]
) -> None:
    for log, there in sorted(committed.items()):
        if there is not None and there > positions[log]:
            raise OffsetMoved(
                f"The committed offset is {there}, and the rows in the table end at "
                f"{positions[log]}",
                **log.place,
                offset=there,
                action=f"Check who committed it. Set it back to {positions[log]}, otherwise the "
                "records between are never loaded",
            )


def _topics_of_other(
    theirs: Collection[BrokerPartition], taken: Predecessor, last: Plan | None, us: str
) -> set[str]:
    """Return the topics with the predecessor's topic ids, so that later recreations are detected.

    If a pipeline inherits from itself by the table's rows, its own ids count, unless rows show that
    it accepted others since.
    """
    topics = {log.topic for log in theirs}
    if last is None or taken.other.plan is not None or taken.other.app_id != us:
        return topics
    for topic in last.topic_ids:
        of_rows = _incarnation_of(topic, taken.incarnations)
        if of_rows <= _incarnation_of(topic, last.incarnations):
            topics.discard(topic)
    return topics


def _predecessors_of(last: Plan | None, other: OtherPipeline, us: str) -> tuple[TookOver, ...]:
    """Return all predecessors: the other pipeline, its predecessors and ours."""
    found: dict[str, int] = {}
    if last:
        found.update(last.taken)
    theirs: dict[str, int] = {}
    if other.plan:
        theirs.update(other.plan.taken)
    theirs[other.app_id] = other.number
    for app_id, number in theirs.items():
        found[app_id] = max(number, found.get(app_id, 0))
    found.pop(us, None)
    return tuple(TookOver(app_id, number) for app_id, number in sorted(found.items()))


def reject_unloaded_gap(
    taken: Predecessor,
    state: PipelineState,
    snapshot: Snapshot,
    ours: Loaded,
    theirs: Loaded,
) -> None:
    """Reject a gap between the positions of both pipelines in a partition.

    The side with the higher position must have loaded everything from the lower one on. Raises
    NeedsDecision for offsets between that neither has in the table.
    """
    last, positions, _ = _where(state, snapshot, taken.other)
    for log in sorted(positions.keys() & taken.positions.keys()):
        our_incarnation = 0
        if last:
            our_incarnation = last.incarnations.get(log, 0)
        incarnation = taken.incarnations.get(log, 0)
        if incarnation != our_incarnation:
            continue
        low, high = sorted((positions[log], taken.positions[log]))
        further = ours
        if taken.positions[log] > positions[log]:
            further = theirs
        loaded = []
        for of_incarnation, start, until in further.get(log, ()):
            if of_incarnation == incarnation:
                loaded.append((start, until))
        gap = first_gap(loaded, low, high)
        if gap:
            raise NeedsDecision(
                f"Both pipelines read this partition, and offsets {gap[0]} to {gap[1]} between "
                f"their "
                "positions were loaded by neither",
                **log.place,
                offset=gap[0],
                action="Remove this topic from source.topics, and load it with another pipeline "
                "into "
                "another table",
            )


def state_of_itself(snapshot: Snapshot, settings: Settings) -> PipelineState | None:
    """Return the state of a pipeline that inherits from itself; None if its ledger is not ahead of
    the table's rows.

    A stored plan that is not in the table gives up its number. Raises LedgersDisagree for an old
    table, SettingsError if the table has another plan than the ledger.
    """
    newest = snapshot.ledger.newest
    table = snapshot.table
    in_table = 0
    if table:
        in_table = table.transaction_version or 0
    if is_of_another_era(snapshot.ledger, table):
        return state_of_own_ledger(snapshot)
    if newest is None or newest.number < in_table:
        return None
    found = compare(snapshot.ledger, table, settings.table.place)
    if isinstance(found, RebuildFromTable):
        raise _run_first()
    if isinstance(found, (Replay, Supersede)):
        return found
    return None


def _run_first() -> SettingsError:
    return SettingsError(
        "The table has more plans of this pipeline than ZooKeeper",
        action="Run `etl run CONF`, which restores the ledger. Then run this command again",
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
    kept: dict[BrokerPartition, int | None] = {}
    for plan in (theirs, last):
        if plan is None:
            continue
        for log, moment in plan.pending_starts.items():
            if log not in positions and settings.source.topic_filter.admits(log.topic):
                kept[log] = moment
    if last is not None:
        return kept
    known = {log.topic for log in (*positions, *kept)}
    existing = (*snapshot.extents, *snapshot.leaderless)
    unknown = [log for log in existing if log.topic not in known]
    return {**kept, **pending_starts(unknown, positions, None, settings, now_ms=now_ms)}


def _pending_offsets(
    theirs: Plan | None,
    last: Plan | None,
    positions: Mapping[BrokerPartition, int],
    settings: Settings,
) -> dict[BrokerPartition, int]:
    """Return the pending offsets of both; if both decided, ours count."""
    found: dict[BrokerPartition, int] = {}
    for plan in (theirs, last):
        if plan is None:
            continue
        for log in plan.pending_starts:
            found.pop(log, None)
            if log not in plan.pending_offsets or log in positions:
                continue
            if settings.source.topic_filter.admits(log.topic):
                found[log] = plan.pending_offsets[log]
    return found


def _where(
    state: PipelineState | None,
    snapshot: Snapshot,
    other: OtherPipeline,
) -> tuple[Plan | None, Mapping[BrokerPartition, int], int]:
    """Return our last plan, our positions, and the number of the inheriting plan.

    The number of a stored plan that is not in the table is free.
    """
    if state is None:
        newest = snapshot.ledger.newest
        number = other.number + 1
        if newest is None:
            return None, {}, number
        if snapshot.ledger.applied is not None:
            return newest, newest.positions, number
        # Another plan may have been executed in its place.
        return newest, starts_of(newest), number
    if isinstance(state, FirstRun):
        return None, {}, 1
    if isinstance(state, (Replay, Supersede)):
        return state.plan, starts_of(state.plan), state.plan.number
    if isinstance(state, RebuildFromTable):
        raise _run_first()
    in_table = 0
    if snapshot.table:
        in_table = snapshot.table.transaction_version or 0
    return state.last, state.last.positions, max(state.last.number, in_table) + 1


def _obsolete_topics(taken: Predecessor, last: Plan | None) -> set[str]:
    """Return topics that were recreated since the predecessor read them, and that we continued: its
    positions in them are obsolete.
    """
    if last is None or taken.other.plan is None:
        return set()
    known = taken.other.plan.topic_ids
    obsolete = set()
    for topic, topic_id in last.topic_ids.items():
        if known.get(topic, topic_id) == topic_id:
            continue
        of_other = _incarnation_of(topic, taken.incarnations)
        if _incarnation_of(topic, last.incarnations) > of_other:
            obsolete.add(topic)
    return obsolete


def _incarnation_of(topic: str, incarnations: Mapping[BrokerPartition, int]) -> int:
    """Return the highest incarnation of the topic's partitions."""
    return max((value for log, value in incarnations.items() if log.topic == topic), default=0)


def _among(topics: Collection[str], ids: Mapping[str, str]) -> dict[str, str]:
    return {topic: topic_id for topic, topic_id in ids.items() if topic in topics}


def _joined(
    mine: Mapping[BrokerPartition, Known],
    theirs: Mapping[BrokerPartition, Known],
    from_other: set[BrokerPartition],
) -> dict[BrokerPartition, Known]:
    """Return the value of each partition, from the side whose position counts."""
    joined = {log: value for log, value in mine.items() if log not in from_other}
    for log, value in theirs.items():
        if log in from_other:
            joined[log] = value
    return joined
