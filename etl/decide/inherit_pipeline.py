"""Which state does a pipeline inherit from its predecessor in a table?

A renamed group or pipeline is a new pipeline with an empty ledger, but the table has the rows of
the old one. The inheriting plan has no ranges: it stores the predecessor's loaded-until offsets
under the new name, in the topics that the conf names. It is stored like any plan, and the next run
commits its offsets.

A pipeline also inherits from itself: after ZooKeeper lost its plans, or if another ledger of the
same name wrote the table.

In a partition that both pipelines loaded, the higher (incarnation, loaded-until offset) counts, and
the other facts of the partition come from the same pipeline: tail fingerprint, log start, epochs.

Lives here: the predecessor's state, the inheriting plan, and its rejections. Not here: the steps of
the commands (etl/commands/inherit_pipeline.py, etl/commands/restore_ledger.py), group members and
owners (etl/decide/partition_owners.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from etl.decide.loaded_intervals import first_gap
from etl.decide.member_offsets import reject_replacing
from etl.decide.offsets import ends_by_ledger, pending_partitions, starts_of
from etl.decide.plan import shape_of_rows
from etl.decide.reconcile import compare, is_of_another_era, is_unidentified
from etl.decide.recreated_or_truncated import (
    creations_to_record,
    is_creation_id,
    is_same_cluster,
    name_put_back,
    record_epochs,
    topic_ids_to_record,
)
from etl.decide.table_changes import app_id_of, name_of, table_to_record
from etl.decide.table_rules import inherited_rows
from etl.errors import NeedsDecision, OffsetMoved, SettingsError
from etl.model.partitions import (
    Committed,
    Fingerprint,
    Lineage,
    TopicPartition,
    drop_keys,
    select_keys,
    topics_of,
)
from etl.model.plans import (
    CommitResult,
    Loss,
    Losses,
    PendingPartition,
    Plan,
    PlanKind,
    PlannedCommit,
    PlanOrigin,
    Predecessor,
    StaleRows,
    planned_partitions,
    topic_identities,
)
from etl.model.snapshot import (
    FirstRun,
    OtherPipeline,
    PipelineState,
    RebuildFromTable,
    Resume,
    Retirement,
    Snapshot,
    StoredBackfill,
    Supersede,
    UpToDate,
)
from etl.settings.sections import Settings

Value = TypeVar("Value")

Loaded = Mapping[TopicPartition, Sequence[tuple[int, int, int]]]
"""The loaded intervals of a pipeline: incarnation, from, until."""


@dataclass(frozen=True, slots=True)
class PredecessorState:
    """The other pipeline, and its loaded-until offsets in the topics that the conf names."""

    other: OtherPipeline
    positions: Mapping[TopicPartition, int]
    incarnations: Mapping[TopicPartition, int]


def predecessor_of(
    other: OtherPipeline,
    rows_until: Mapping[TopicPartition, tuple[int, int]],
    snapshot: Snapshot,
    settings: Settings,
) -> PredecessorState:
    """Return the predecessor's loaded-until offsets in the topics that the conf names.

    They are those of its plan; without a plan, those of `rows_until`: incarnation and end of the
    table's rows in each partition. Raises SettingsError if it loaded no topic of the conf, or from
    brokers of another type; NeedsDecision if its topics are another cluster's.
    """
    is_named = settings.source.topic_filter.admits
    ends: dict[TopicPartition, int] = {}
    incarnations: dict[TopicPartition, int] = {}
    own_partitions: Collection[TopicPartition] = ()
    if other.plan:
        ends.update(other.plan.loaded_until)
        incarnations.update(other.plan.incarnations)
    else:
        for partition, (incarnation, until) in rows_until.items():
            ends[partition] = until
            if incarnation:
                incarnations[partition] = incarnation
        if snapshot.ledger.newest:
            # If only rows are left, the ledger may also be too old in its partitions of topics
            # that the conf no longer names.
            own_partitions = snapshot.ledger.newest.loaded_until

    positions: dict[TopicPartition, int] = {}
    has_named_topic = False
    for partition, end in ends.items():
        if is_named(partition.topic):
            has_named_topic = True
            positions[partition] = end
        elif partition in own_partitions:
            positions[partition] = end
    if not has_named_topic:
        raise SettingsError(
            f"The {name_of(other.app_id)} has loaded no topic that this conf names",
            key="--predecessor",
            action="Check source.topics, and the pipelines that `etl run CONF --dry-run` lists",
        )
    if other.plan:
        _reject_other_brokers(other.app_id, other.plan, positions, snapshot, settings)
    return PredecessorState(other, positions, select_keys(incarnations, positions))


def _reject_other_brokers(
    app_id: str,
    plan: Plan,
    positions: Collection[TopicPartition],
    snapshot: Snapshot,
    settings: Settings,
) -> None:
    """Reject a predecessor's plan of another broker type or cluster.

    Raises SettingsError or NeedsDecision. Under another cluster name, only equal topic ids prove
    that the cluster is the same.
    """
    if plan.cluster.family is not settings.source.broker_type:
        raise SettingsError(
            f"The {name_of(app_id)} has loaded from {plan.cluster.family.value} brokers: "
            "their offsets "
            "and row keys are different",
            key="--predecessor",
            action="Check the pipeline's name, and source.broker_type. Brokers of another type "
            "need another table",
        )
    if is_same_cluster(plan, snapshot, settings.source.assume_cluster_id):
        return
    for topic in sorted(topics_of(positions)):
        topic_id = plan.topic_ids.get(topic)
        if topic_id is not None and topic_id == snapshot.topic_ids.get(topic):
            if not is_creation_id(topic_id):
                continue
        action = (
            "Set another table.path: offsets of one cluster have no meaning on another, and their "
            "rows could not be distinguished"
        )
        if not plan.cluster.id:
            action += f"; {name_put_back(plan.cluster.name)}"
        raise NeedsDecision(
            f"The rows of this topic in the table are of cluster {plan.cluster.name}, "
            f"and this one is {snapshot.cluster.name}",
            topic=topic,
            action=action,
        )


def taken_over_by(successor: str) -> str:
    """Return the reason that retirements and closing plans store. `successor`: GROUP/PIPELINE."""
    return f"taken over by {successor}"


def retirement_of_predecessor(
    before: Retirement | None, *, successor: str, reason: str, at_ms: int
) -> Retirement | None:
    """Return the retirement to store for an inherited pipeline; None if it was inherited before.

    An operator may have retired it. Without the name of the successor, `etl pipelines resume` would
    put it in service again, though the successor continued from its loaded-until offsets.
    """
    text = f"{taken_over_by(successor)}: {reason}"
    if before:
        if before.taken_over_by:
            return None
        text += f" (retired before: {before.reason})"
    return Retirement(text, at_ms, successor)


def state_of_itself(snapshot: Snapshot, settings: Settings) -> PipelineState | None:
    """Return the state of a pipeline that inherits from itself.

    None if its ledger is not ahead of the table's rows. A stored plan that is not in the table
    gives up its number. Raises LedgersDisagree for an old table, SettingsError if the table has
    another plan than the ledger.
    """
    newest = snapshot.ledger.newest
    table = snapshot.table
    in_table = 0
    if table:
        in_table = table.transaction_version or 0
    if is_of_another_era(snapshot.ledger, table):
        return state_of_own_ledger(snapshot)
    if newest is None or newest.number < in_table or is_unidentified(snapshot.ledger, table):
        return None
    state = compare(snapshot.ledger, table, settings.table.place)
    if isinstance(state, RebuildFromTable):
        raise _ledger_behind_table()
    if isinstance(state, (Resume, Supersede, StoredBackfill)):
        return state
    return None


def state_of_own_ledger(snapshot: Snapshot) -> UpToDate | Resume | None:
    """Return the state if another ledger of the same name wrote the table; else None.

    The pipeline inherits from itself. The plans of its own ledger were for another table: a stored
    plan that is not known to be executed loaded nothing into this one, and the inheriting plan gets
    its number. Raises NeedsDecision if the table would not accept that number.
    """
    ledger = snapshot.ledger
    table = snapshot.table
    if ledger.newest is None or table is None or not is_of_another_era(ledger, table):
        return None
    if ledger.applied is not None:
        return UpToDate(ledger.newest, ledger.newest.loaded_until)
    number = ledger.newest.number
    if number <= (table.transaction_version or 0):
        raise NeedsDecision(
            f"Plan {number} is stored, and it is unknown whether its own table has it",
            action="Run once with table.path at the table that it was made for, or at an empty "
            "directory. Then run this command again",
        )
    return Resume(ledger.newest)


def reject_unloaded_gap(
    predecessor: PredecessorState,
    state: PipelineState,
    snapshot: Snapshot,
    own_loaded: Loaded,
    other_loaded: Loaded,
) -> None:
    """Reject offsets between the ends of both pipelines in a partition that neither loaded.

    A loaded-until offset shows where a pipeline ended, and not where it began. So the pipeline with
    the higher one must have loaded everything from the lower one on. Raises NeedsDecision.
    """
    own = _own_progress(state, snapshot, predecessor.other)
    own_incarnations: Mapping[TopicPartition, int] = {}
    if own.last:
        own_incarnations = own.last.incarnations
    for partition in sorted(own.positions.keys() & predecessor.positions.keys()):
        incarnation = predecessor.incarnations.get(partition, 0)
        if incarnation != own_incarnations.get(partition, 0):
            continue
        low = own.positions[partition]
        high = predecessor.positions[partition]
        intervals = other_loaded.get(partition, ())
        if low >= high:
            low, high = high, low
            intervals = own_loaded.get(partition, ())
        loaded = []
        for interval_incarnation, start, until in intervals:
            if interval_incarnation == incarnation:
                loaded.append((start, until))
        gap = first_gap(loaded, low, high)
        if gap:
            raise NeedsDecision(
                f"Both pipelines read this partition, and offsets {gap[0]} to {gap[1]} between "
                "their loaded-until offsets were loaded by neither",
                **partition.place,
                offset=gap[0],
                action="Remove this topic from source.topics, and load it with another pipeline "
                "into another table",
            )


def plan_inheritance(
    predecessor: PredecessorState,
    state: PipelineState | None,
    snapshot: Snapshot,
    settings: Settings,
    *,
    uid: str,
    now_ms: int,
    reason: str,
    sets_back: bool = False,
) -> Plan:
    """Return the plan, without its id, that begins at the predecessor's loaded-until offsets.

    `state` is None if only the table's rows are left. With `sets_back`, a committed offset above a
    loaded-until offset is set back to it: an operator has checked that the table has no row of the
    offsets between. Otherwise raises OffsetMoved, since these may not be in the table. Raises
    SettingsError if the table has more plans than ZooKeeper.
    """
    other = predecessor.other
    own = _own_progress(state, snapshot, other)
    last = own.last
    own_app_id = app_id_of(snapshot.cluster.name, settings.group.id, settings.pipeline)
    own_incarnations: Mapping[TopicPartition, int] = {}
    if last:
        own_incarnations = last.incarnations

    obsolete = _obsolete_topics(predecessor, last)
    positions = dict(own.positions)
    inherited = set()
    # The partitions of `inherited` in which the predecessor has loaded more: all facts of them are
    # inherited, too.
    ahead = set()
    for partition, loaded_until in predecessor.positions.items():
        if partition.topic in obsolete:
            continue
        inherited.add(partition)
        if partition in own.positions:
            other_end = (predecessor.incarnations.get(partition, 0), loaded_until)
            if other_end <= (own_incarnations.get(partition, 0), own.positions[partition]):
                continue
        ahead.add(partition)
        positions[partition] = loaded_until
    incarnations = _merge(own_incarnations, predecessor.incarnations, ahead)

    seen = snapshot.committed_of(positions)
    if not sets_back:
        _reject_committed_above(positions, seen, inherited)

    previous = None
    supersedes = None
    losses: tuple[Loss, ...] = ()
    stale_rows: tuple[StaleRows, ...] = ()
    if last and isinstance(state, (Resume, Supersede, StoredBackfill)):
        reject_replacing(last)
        previous = last.origin.previous
        supersedes = last.id
        if last.kind is not PlanKind.BACKFILL:
            losses = last.losses.lost
        stale_rows = last.losses.stale_rows
        seen |= last.expected_commits
    elif last:
        previous = last.id
        if state is None and snapshot.ledger.applied is None:
            losses = _passed_over(last, positions)

    topics = _topics_of_other(inherited, predecessor, last, own_app_id)
    id_source = other.plan or snapshot
    topic_ids: dict[str, str] = {}
    own_creation_ids: dict[str, str] = {}
    if last:
        topic_ids.update(last.topic_ids)
        own_creation_ids = select_keys(last.creation_ids, last.topic_ids.keys() - topics)
    topic_ids.update(select_keys(id_source.topic_ids, topics))
    other_creation_ids = select_keys(id_source.creation_ids, topics)
    creation_ids = creations_to_record(topic_ids, own_creation_ids, other_creation_ids)
    own_log_topic_ids = topic_ids_to_record(last, (), own.positions, topic_ids)
    other_log_topic_ids = topic_ids_to_record(other.plan, (), ahead, topic_ids)
    log_topic_ids = _merge(own_log_topic_ids, other_log_topic_ids, ahead)

    own_facts = _partition_facts(last, snapshot.ledger.applied)
    other_facts = _partition_facts(other.plan, None)
    fingerprints = _merge(own_facts.fingerprints, other_facts.fingerprints, ahead)
    log_starts = _merge(own_facts.log_starts, other_facts.log_starts, ahead)
    log_starts = select_keys(log_starts, snapshot.readable)
    leader_epochs = _merge(own_facts.leader_epochs, other_facts.leader_epochs, ahead)
    batch_epochs = _merge(own_facts.record_epochs, other_facts.record_epochs, ahead)

    table = table_to_record(snapshot.table, inherited_rows(last, other.plan, snapshot))
    # The inheriting plan has no rows of its own, so it keeps the time zone of the newest ones.
    time_zone = None
    newest_known = other.plan or last
    if newest_known:
        time_zone = newest_known.origin.time_zone
    return Plan(
        number=own.number,
        origin=PlanOrigin(
            pipeline_id=uid,
            created_at_ms=now_ms,
            previous=previous,
            supersedes=supersedes,
            reason=reason,
            time_zone=time_zone,
        ),
        kind=PlanKind.TAKE_OVER,
        cluster=snapshot.cluster,
        shape=shape_of_rows(settings),
        ranges=(),
        partitions=planned_partitions(
            positions,
            seen,
            incarnation=incarnations,
            log_start=log_starts,
            leader_epoch=leader_epochs,
            record_epochs=batch_epochs,
            fingerprint=fingerprints,
            topic_id=log_topic_ids,
        ),
        topics=topic_identities(topic_ids, creation_ids),
        pending=_pending(other.plan, last, positions, snapshot, settings, now_ms),
        table=table,
        inherits=Predecessor(other.app_id, other.number),
        predecessors=_all_predecessors(last, other, own_app_id),
        losses=Losses(lost=losses, stale_rows=stale_rows),
        commit=PlannedCommit(storage=snapshot.group.storage),
    )


@dataclass(frozen=True, slots=True)
class _OwnProgress:
    """The inheriting pipeline before it inherits."""

    last: Plan | None
    """Its newest plan; None before its first."""
    positions: Mapping[TopicPartition, int]
    """Its loaded-until offsets, without those of a stored plan that is not in the table."""
    number: int
    """The number of the inheriting plan. That of a stored plan that is not in the table is free."""


def _own_progress(
    state: PipelineState | None, snapshot: Snapshot, other: OtherPipeline
) -> _OwnProgress:
    """Return the progress of the inheriting pipeline.

    Raises SettingsError if the table has more plans than ZooKeeper.
    """
    if state is None:
        newest = snapshot.ledger.newest
        number = other.number + 1
        if newest is None:
            return _OwnProgress(None, {}, number)
        # Without a result, another plan may have been executed in its place.
        return _OwnProgress(newest, ends_by_ledger(snapshot.ledger), number)
    if isinstance(state, FirstRun):
        return _OwnProgress(None, {}, 1)
    if isinstance(state, (Resume, Supersede, StoredBackfill)):
        return _OwnProgress(state.plan, starts_of(state.plan), state.plan.number)
    if isinstance(state, RebuildFromTable):
        raise _ledger_behind_table()
    in_table = 0
    if snapshot.table:
        in_table = snapshot.table.transaction_version or 0
    number = max(state.last.number, in_table) + 1
    return _OwnProgress(state.last, state.last.loaded_until, number)


def _passed_over(last: Plan, positions: Mapping[TopicPartition, int]) -> tuple[Loss, ...]:
    """Return the losses of a plan without a result below these positions: no later plan has them."""
    losses = []
    for loss in last.losses.lost:
        if loss.until_offset <= positions.get(loss.partition, 0):
            losses.append(loss)
    return tuple(losses)


def _ledger_behind_table() -> SettingsError:
    return SettingsError(
        "The table has more plans of this pipeline than ZooKeeper",
        action="Run `etl run CONF`, which restores the ledger. Then run this command again",
    )


def _obsolete_topics(predecessor: PredecessorState, last: Plan | None) -> set[str]:
    """Return the topics in which the predecessor's loaded-until offsets are obsolete.

    They were recreated since the predecessor read them, and this pipeline continued them.
    """
    if last is None or predecessor.other.plan is None:
        return set()
    other_ids = predecessor.other.plan.topic_ids
    obsolete = set()
    for topic, topic_id in last.topic_ids.items():
        if other_ids.get(topic, topic_id) == topic_id:
            continue
        other_incarnation = _highest_incarnation(topic, predecessor.incarnations)
        if _highest_incarnation(topic, last.incarnations) > other_incarnation:
            obsolete.add(topic)
    return obsolete


def _reject_committed_above(
    positions: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, Committed],
    inherited: Collection[TopicPartition],
) -> None:
    """Raise OffsetMoved if an inherited partition has a committed offset above its rows."""
    for partition in sorted(inherited):
        offset = committed[partition].offset
        if offset is not None and offset > positions[partition]:
            raise OffsetMoved(
                f"The committed offset is {offset}, and the rows in the table end at "
                f"{positions[partition]}",
                **partition.place,
                offset=offset,
                action="Check which client committed it. Set the committed offset of the group "
                f"back to {positions[partition]}, otherwise the records between are never loaded: "
                "in ZooKeeper its znode below /consumers/GROUP/offsets, in Kafka "
                "`kafka-consumer-groups.sh --reset-offsets`",
            )


def _topics_of_other(
    inherited: Collection[TopicPartition],
    predecessor: PredecessorState,
    last: Plan | None,
    own_app_id: str,
) -> set[str]:
    """Return the topics of which the plan records the predecessor's topic ids.

    By these, later recreations are detected. If a pipeline inherits from itself by the table's
    rows, its last plan's ids count, unless rows show that it accepted a recreation since.
    """
    topics = topics_of(inherited)
    other = predecessor.other
    if last is None or other.plan is not None or other.app_id != own_app_id:
        return topics
    for topic in last.topic_ids:
        incarnation_of_rows = _highest_incarnation(topic, predecessor.incarnations)
        if incarnation_of_rows <= _highest_incarnation(topic, last.incarnations):
            topics.discard(topic)
    return topics


def _highest_incarnation(topic: str, incarnations: Mapping[TopicPartition, int]) -> int:
    """Return the highest incarnation of the topic's partitions."""
    highest = 0
    for partition, incarnation in incarnations.items():
        if partition.topic == topic:
            highest = max(highest, incarnation)
    return highest


@dataclass(frozen=True, slots=True)
class _PartitionFacts:
    """Facts of each partition that a plan stores for comparison in later runs."""

    fingerprints: Mapping[TopicPartition, Fingerprint] = field(default_factory=dict)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    record_epochs: Mapping[TopicPartition, Lineage] = field(default_factory=dict)


def _partition_facts(plan: Plan | None, applied: CommitResult | None) -> _PartitionFacts:
    """Return the facts in a plan; `applied` is the result of the ledger's newest plan, if known."""
    if plan is None:
        return _PartitionFacts()
    log_starts = {}
    for partition, planned in plan.partitions.items():
        if planned.log_start is not None:
            log_starts[partition] = planned.log_start
    epochs = record_epochs(plan, applied)
    return _PartitionFacts(plan.fingerprints, log_starts, plan.leader_epochs, epochs)


def _merge(
    own: Mapping[TopicPartition, Value],
    other: Mapping[TopicPartition, Value],
    ahead: Collection[TopicPartition],
) -> dict[TopicPartition, Value]:
    """Return the predecessor's values where it is `ahead`, and own values elsewhere."""
    return {**drop_keys(own, ahead), **select_keys(other, ahead)}


def _pending(
    other_plan: Plan | None,
    last: Plan | None,
    positions: Mapping[TopicPartition, int],
    snapshot: Snapshot,
    settings: Settings,
    now_ms: int,
) -> dict[TopicPartition, PendingPartition]:
    """Return the pending starts of both pipelines; if both decided, the own ones count.

    A first plan also decides the starts of all partitions of other existing topics.
    """
    found: dict[TopicPartition, PendingPartition] = {}
    for plan in (other_plan, last):
        if plan is None:
            continue
        for partition, pending in plan.pending.items():
            if partition not in positions and settings.source.topic_filter.admits(partition.topic):
                found[partition] = pending
    if last is not None:
        return found
    known_topics = topics_of((*positions, *found))
    existing = (*snapshot.readable, *snapshot.leaderless)
    undecided = [partition for partition in existing if partition.topic not in known_topics]
    begun = pending_partitions(undecided, positions, None, {}, settings, now_ms=now_ms)
    return {**found, **begun}


def _all_predecessors(
    last: Plan | None, other: OtherPipeline, own_app_id: str
) -> tuple[Predecessor, ...]:
    """Return the other pipeline, its predecessors and the own ones.

    Every plan keeps them transitively. Otherwise a pipeline that was renamed twice finds rows of
    the first one, and inheriting from that finds those of the second.
    """
    numbers: dict[str, int] = {}
    if last:
        numbers.update(last.predecessor_numbers)
    other_numbers: dict[str, int] = {}
    if other.plan:
        other_numbers.update(other.plan.predecessor_numbers)
    other_numbers[other.app_id] = other.number
    for app_id, number in other_numbers.items():
        numbers[app_id] = max(number, numbers.get(app_id, 0))
    numbers.pop(own_app_id, None)
    predecessors = [Predecessor(app_id, number) for app_id, number in sorted(numbers.items())]
    return tuple(predecessors)
