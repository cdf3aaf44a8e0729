"""Where does a pipeline continue after an operator accepted truncated or recreated partitions?

    accepted                        the pipeline continues
    -----------------------------   ----------------------------------------------------------------
    a truncated partition           at the truncation offset, by its epochs, or `--truncated-at`
    a recreated topic of Kafka      all its partitions: by `source.new_topics_starting_offsets`;
                                    with `--not-recreated`: at the loaded-until offset
    one partition of such a topic   SettingsError if topic ids of the brokers differ
    an undecided Jafka partition    other bytes: by `source.new_topics_starting_offsets`
                                    the same bytes: at the loaded-until offset
                                    undecidable: as the operator decides, who must name it
    the same, without its broker    not yet; it stays undecided

`--not-recreated` is rejected for a partition that is known to be another, and its absence for one
known to be the same: either mistake loses or doubles rows.

The resulting plan has no ranges and moves loaded-until offsets. Offsets read from there on have an
`incarnation` one higher, so no row is doubled; rows of records that are gone stay in the table
under the old one, and the plan names them. It is stored and committed like any plan; then the
offsets move by compare-and-set, in this case backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from etl.decide.byte_offsets import misaligned_partitions, reject_misaligned_offset
from etl.decide.member_offsets import read_by_others_of_command, reject_replacing
from etl.decide.offsets import starts_anew, starts_of
from etl.decide.plan import shape_of_rows
from etl.decide.plan_replacement import (
    losses_to_read_again,
    lost_with_partitions,
    partitions_missing_offsets,
)
from etl.decide.recreated_or_truncated import (
    Cut,
    accept_command,
    compared_ids,
    creations_to_record,
    fingerprints_to_record,
    is_creation_id,
    is_what_was_read,
    leader_epochs_to_record,
    named,
    record_epochs,
    recreated_topics,
    topic_ids_to_record,
    truncated_partitions,
    undecided_partitions,
    waiting_partitions,
    ways_out,
)
from etl.decide.table_changes import table_to_record
from etl.errors import BrokerUnreachable, SettingsError
from etl.model.partitions import (
    FORM_OF_PARTITION,
    Committed,
    Fingerprint,
    Lineage,
    Named,
    TopicPartition,
    drop_keys,
    is_named,
    topics_of,
)
from etl.model.plans import (
    Loss,
    Losses,
    LossReason,
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
from etl.model.snapshot import Resume, Snapshot, UpToDate
from etl.settings.choices import StartAt
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class AcceptRequest:
    """What an operator accepts, and the reason."""

    named: tuple[Named, ...]
    reason: str
    at: int | None = None
    """End of the unchanged part of the one named partition, if the brokers cannot report it."""
    is_same_log: bool = False
    """True if the topics or partitions are the same and only their znode ids changed."""

    def covers(self, partition: TopicPartition) -> bool:
        """Return True if the partition or its topic is named."""
        return is_named(partition, self.named)

    def offsets_of(self, partition: TopicPartition) -> tuple[int, ...]:
        """Return the named offsets of the partition."""
        if self.at is None or not self.covers(partition):
            return ()
        return (self.at,)

    def names_itself(self, partition: TopicPartition) -> bool:
        """Return True if the partition itself is named."""
        return any(name.partition == partition for name in self.named)


@dataclass(frozen=True, slots=True)
class AcceptedPartitions:
    """The decision for each partition."""

    again: Mapping[str, str]
    """Topics that are accepted as a whole, and their present ids."""
    moved: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions that continue as another incarnation, and their positions."""
    anew: frozenset[TopicPartition] = frozenset()
    """Those of them without any of the records that were read."""
    cut: frozenset[TopicPartition] = frozenset()
    """Truncated partitions, also those that stay: only records of a stored plan are gone."""
    exact: frozenset[TopicPartition] = frozenset()
    """Truncated partitions with a known truncation offset."""
    same: frozenset[TopicPartition] = frozenset()
    """Undecided partitions that continue unchanged."""


def accepted_partitions(
    request: AcceptRequest,
    newest: Plan,
    loaded_until: Mapping[TopicPartition, int],
    all_cuts: Collection[Cut],
    snapshot: Snapshot,
    settings: Settings,
) -> AcceptedPartitions:
    """Return the decision for each accepted partition.

    Raises SettingsError for a partition that is unchanged, or if the command needs other options;
    BrokerUnreachable if the partition's broker is unavailable.
    """
    again = {}
    for topic, now in recreated_topics(newest, snapshot).items():
        if Named(topic) in request.named:
            again[topic] = now
    undecided = set(undecided_partitions(newest, snapshot))
    waiting = []
    for partition in waiting_partitions(newest, snapshot):
        if request.covers(partition):
            waiting.append(partition)
    cuts = {}
    for cut in all_cuts:
        if request.covers(cut.partition) and cut.partition not in undecided:
            cuts[cut.partition] = cut
    _reject_unknown(request.named, {*loaded_until, *snapshot.readable, *snapshot.leaderless})
    _reject_partitions_of_recreated_topics(request.named, again, newest, snapshot)
    _reject_unchanged_topics(request.named, again, {*cuts, *waiting}, snapshot)
    if request.is_same_log:
        ids_of_brokers = {}
        for topic in again:
            ids = compared_ids(topic, newest, snapshot)
            if ids:
                ids_of_brokers[topic] = ids[1]
        _reject_other_topics(ids_of_brokers, cuts)
        return AcceptedPartitions(
            again, same=frozenset(_known_as_same(waiting, request, newest, snapshot))
        )
    truncated = {partition: cut for partition, cut in cuts.items() if partition.topic not in again}
    if request.at is not None and waiting:
        moved = _at_of_one(waiting, truncated, loaded_until, request, snapshot)
        from_start = [partition for partition, offset in moved.items() if not offset]
        return AcceptedPartitions(again, moved, anew=frozenset(from_start))
    same = {partition for partition in waiting if _continues(partition, request, newest, snapshot)}
    anew = {partition for partition in loaded_until if partition.topic in again}
    anew.update(set(waiting) - same)
    moved = {
        **_truncation_positions(truncated, loaded_until, request, snapshot),
        **_starts_anew(anew, snapshot, settings),
    }
    exact = [partition for partition, cut in truncated.items() if cut.is_known]
    return AcceptedPartitions(
        again, moved, frozenset(anew), frozenset(truncated), frozenset(exact), frozenset(same)
    )


def _reject_unknown(names: Sequence[Named], known: Collection[TopicPartition]) -> None:
    for name in names:
        if name.partition is not None and name.partition not in known:
            raise SettingsError(
                f"There is no partition {name}",
                key="--partition",
                action="Check with `etl offsets show CONF`, which lists all partitions; "
                f"{FORM_OF_PARTITION}",
            )


def _reject_partitions_of_recreated_topics(
    names: Sequence[Named], again: Collection[str], old: Plan, snapshot: Snapshot
) -> None:
    """Reject a single partition of a topic that is known to be recreated. Raises SettingsError.

    Its shorter partition looks truncated, and its records would count as loaded up to the
    truncation offset. A znode id may differ because ZooKeeper was copied: then it may be truncated.
    `again`: topics that are accepted as a whole.
    """
    recreated = recreated_topics(old, snapshot).keys() - again
    for name in names:
        ids = compared_ids(name.topic, old, snapshot)
        if name.partition is None or name.topic not in recreated or ids is None:
            continue
        known_id, topic_id = ids
        if is_creation_id(topic_id):
            continue
        raise SettingsError(
            f"The topic was deleted and recreated: its id is {topic_id}, plan {old.number} read "
            f"{known_id}. Its partitions cannot be accepted one by one",
            key="--partition",
            **name.partition.place,
            action=f"Accept the topic as a whole: {accept_command([name.topic])}",
        )


def _reject_unchanged_topics(
    names: Sequence[Named],
    again: Mapping[str, str],
    unsound: Collection[TopicPartition],
    snapshot: Snapshot,
) -> None:
    for name in names:
        if name.topic in again or name.covers_any(unsound):
            continue
        _reject_unknown_topic(name, snapshot)
        unread = [partition for partition in sorted(snapshot.leaderless) if name.covers(partition)]
        if unread:
            raise BrokerUnreachable(
                "The partition has no leader", **unread[0].place, action="Check its brokers"
            )
        raise SettingsError(
            f"{name} is unchanged: it was neither truncated nor recreated",
            key="--partition",
            action="Check with `etl run CONF --dry-run`, which names the changed partitions. "
            "Name a recreated topic of Kafka 0.8 or later as a whole",
        )


def _reject_unknown_topic(name: Named, snapshot: Snapshot) -> None:
    """Reject a topic that was deleted and not recreated. Raises SettingsError."""
    there = (*snapshot.readable, *snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    if name.topic in topics_of(there):
        return
    newest = snapshot.ledger.newest
    action = (
        "Check its spelling and source.topics. A deleted topic can be accepted once it is recreated"
    )
    if newest and name.topic in snapshot.missing_topics:
        action = (
            "Check whether it was deleted. To give up its offsets in plan "
            f"{newest.number}, run `etl plans supersede CONF {newest.number} --reason ...`"
        )
    raise SettingsError(
        "The topic does not exist, or the conf does not name it",
        key="--partition",
        topic=name.topic,
        action=action,
    )


def _reject_other_topics(again: Mapping[str, str], cuts: Mapping[TopicPartition, Cut]) -> None:
    """Reject `--not-recreated` for recreated topics.

    Only the topic's znode may differ, and the partition must reach our position.
    """
    for topic, now in sorted(again.items()):
        if not is_creation_id(now):
            raise SettingsError(
                f"It is another topic: the brokers report the id {now}",
                key="--not-recreated",
                topic=topic,
                action="Leave --not-recreated out to continue with the new one",
            )
    for partition, cut in sorted(cuts.items()):
        if cut.holds_others:
            difference = "it has other bytes than those that were read"
        else:
            difference = f"it ends at {cut.left_until}, and was read up to {cut.position}"
        raise SettingsError(
            f"It is not the same partition: {difference}",
            key="--not-recreated",
            **partition.place,
            action="Leave --not-recreated out to accept that",
        )


def _known_as_same(
    waiting: Sequence[TopicPartition],
    request: AcceptRequest,
    newest: Plan,
    snapshot: Snapshot,
) -> Sequence[TopicPartition]:
    """Return the partitions of `--not-recreated`.

    Raises SettingsError for one that is known to be another, and for an undecidable one that is not
    named itself.
    """
    for partition in waiting:
        is_same = is_what_was_read(partition, newest, snapshot)
        if is_same is False:
            raise SettingsError(
                "It is not the same partition: it no longer has the bytes that were read",
                key="--not-recreated",
                **partition.place,
                action="Leave --not-recreated out to read it from its start",
            )
        if is_same is None and not request.names_itself(partition):
            raise _undecidable(partition, newest, snapshot)
    return waiting


def _continues(
    partition: TopicPartition, request: AcceptRequest, newest: Plan, snapshot: Snapshot
) -> bool:
    """Return True if an undecided partition continues at its position.

    Its bytes decide. Raises SettingsError if they are undecidable and the partition is not named
    itself, or if they are unchanged and it is named.
    """
    is_same = is_what_was_read(partition, newest, snapshot)
    if is_same is None and not request.names_itself(partition):
        raise _undecidable(partition, newest, snapshot)
    if is_same and request.names_itself(partition):
        raise SettingsError(
            "It is the same partition: it has the bytes that were read last. Read from its start, "
            "its rows would be in the table twice",
            key="--partition",
            **partition.place,
            action="Pass --not-recreated, which continues at its position. If its messages are all "
            "equal and it is another partition nevertheless, pass --truncated-at OFFSET",
        )
    return bool(is_same)


def _undecidable(partition: TopicPartition, newest: Plan, snapshot: Snapshot) -> SettingsError:
    return SettingsError(
        "It is undecidable whether it is the same partition: it must be named itself",
        key="--partition",
        **partition.place,
        action=ways_out([partition], newest, snapshot)[0],
    )


_ONE_PARTITION = (
    "Check with `etl run CONF --dry-run`. Name that partition only, or leave --truncated-at out"
)


def _at_of_one(
    waiting: Sequence[TopicPartition],
    cuts: Mapping[TopicPartition, Cut],
    loaded_until: Mapping[TopicPartition, int],
    request: AcceptRequest,
    snapshot: Snapshot,
) -> dict[TopicPartition, int]:
    partition, *others = waiting
    if others or cuts or not request.names_itself(partition) or request.at is None:
        raise SettingsError(
            "--truncated-at is for one partition", key="--truncated-at", action=_ONE_PARTITION
        )
    if request.at > loaded_until[partition]:
        raise SettingsError(
            f"Offset {request.at} is above {loaded_until[partition]}, the end of the offsets that "
            "were read",
            key="--truncated-at",
            **partition.place,
            action="Check with `etl run CONF --dry-run`",
        )
    reject_misaligned_offset(partition, request.at, snapshot, key="--truncated-at")
    return {partition: request.at}


def _truncation_positions(
    cuts: Mapping[TopicPartition, Cut],
    loaded_until: Mapping[TopicPartition, int],
    request: AcceptRequest,
    snapshot: Snapshot,
) -> dict[TopicPartition, int]:
    """Return the positions of partitions that lost records of the table."""
    unknown = [partition for partition in sorted(cuts) if not cuts[partition].is_known]
    if request.at is not None and (len(unknown) != 1 or len(cuts) != 1):
        raise SettingsError(
            "--truncated-at is for one partition with a truncation offset that brokers do not "
            "report",
            key="--truncated-at",
            action=_ONE_PARTITION,
        )
    if unknown and request.at is None:
        partition = unknown[0]
        end = cuts[partition].left_until
        action = (
            "Find the offset up to which its records are those in the table, and pass it as "
            f"--truncated-at: {end} if no record was written since"
        )
        if partition.is_physical:
            action = (
                "Find the offset up to which its records are those in the table "
                "(etl records show), and pass it as --truncated-at: 0 if it was recreated"
            )
        raise SettingsError(
            f"The brokers do not report the truncation offset of the partition: {end} or below",
            key="--truncated-at",
            **partition.place,
            action=action,
        )
    for partition in unknown:
        end = cuts[partition].left_until
        if request.at is None:
            continue
        if request.at > end:
            raise SettingsError(
                f"Offset {request.at} is above {end}, the highest possible truncation offset",
                key="--truncated-at",
                **partition.place,
                action="Check with `etl run CONF --dry-run`",
            )
        reject_misaligned_offset(partition, request.at, snapshot, key="--truncated-at")
    positions = {}
    for partition, cut in cuts.items():
        until = cut.left_until
        if request.at is not None and not cut.is_known:
            until = request.at
        if until < loaded_until[partition]:
            positions[partition] = until
    return positions


def _starts_anew(
    partitions: Collection[TopicPartition], snapshot: Snapshot, settings: Settings
) -> dict[TopicPartition, int]:
    """Return the start of recreated partitions, by `source.new_topics_starting_offsets`; 0 if the
    new topic lacks the partition.
    """
    is_latest = settings.source.new_topics_starting_offsets is StartAt.LATEST
    starts = {}
    for partition in sorted(partitions):
        if partition in snapshot.leaderless:
            raise BrokerUnreachable(
                "The partition has no leader, so its start is unknown",
                **partition.place,
                action="Check the brokers that host its replicas",
            )
        offsets = snapshot.readable.get(partition)
        if offsets is None:
            starts[partition] = 0
        elif is_latest:
            starts[partition] = offsets.end_offset
        else:
            starts[partition] = offsets.log_start_offset
    return starts


def describe_accepted_partitions(newest: Plan, plan: Plan, snapshot: Snapshot) -> list[str]:
    """Describe the partitions that `plan` decides and those that stay undecided: a sentence for
    each kind.
    """
    left = undecided_partitions(plan, snapshot)
    is_available = set(waiting_partitions(plan, snapshot))
    kept, kept_by_operator, recreated_by_operator = [], [], []
    for partition in undecided_partitions(newest, snapshot):
        if partition in left:
            continue
        is_undecidable = is_what_was_read(partition, newest, snapshot) is None
        if plan.incarnations.get(partition, 0) != newest.incarnations.get(partition, 0):
            if is_undecidable:
                recreated_by_operator.append(partition)
        elif is_undecidable:
            kept_by_operator.append(partition)
        else:
            kept.append(partition)
    unavailable, still_undecided = [], []
    for partition in left:
        if partition in is_available:
            still_undecided.append(partition)
        else:
            unavailable.append(partition)
    decisions = [
        (named(kept), "continues at its position"),
        (
            named(kept_by_operator),
            "continues at its position, by your decision only: if it is another partition, its "
            "records below that are never loaded",
        ),
        (
            named(recreated_by_operator),
            "is another partition, by your decision only: if it is the same one, its rows are in "
            "the table twice, under two incarnations",
        ),
        (
            named(unavailable),
            "stays undecided: its broker is unreachable, and once it is available runs stop until "
            "it is decided",
        ),
        (named(still_undecided), "is not decided yet, and runs stop until it is"),
        (
            " ".join(_topics_kept(newest, plan, snapshot)),
            "is the same topic, by your decision only: if it is another, its records below our "
            "positions are never loaded",
        ),
    ]
    sentences = []
    for names, decision in decisions:
        if names:
            sentences.append(f"{names}: {decision}")
    return sentences


def _topics_kept(newest: Plan, plan: Plan, snapshot: Snapshot) -> list[str]:
    """Return topics with another id in `plan` if all their partitions keep their incarnation."""
    topics = []
    for topic in recreated_topics(newest, snapshot):
        if plan.topic_ids[topic] == newest.topic_ids[topic]:
            continue
        if _keeps_incarnations(topic, newest, plan):
            topics.append(topic)
    return topics


def _keeps_incarnations(topic: str, old: Plan, plan: Plan) -> bool:
    for partition in plan.loaded_until:
        if partition.topic != topic:
            continue
        if plan.incarnations.get(partition, 0) != old.incarnations.get(partition, 0):
            return False
    return True


def plan_reset(
    state: UpToDate | Resume,
    snapshot: Snapshot,
    settings: Settings,
    request: AcceptRequest,
    *,
    now_ms: int,
) -> Plan:
    """Return the reset plan, without its id.

    It follows the newest plan, or replaces it if that is stored and not in the table. Raises
    SettingsError for a partition that is unchanged, or if the command needs other options;
    NeedsDecision if the newest plan cannot be replaced; BrokerUnreachable if the broker of an
    accepted partition is unavailable.
    """
    if isinstance(state, UpToDate):
        inherited = _inherited_by_successor(state, snapshot)
    else:
        reject_replacing(state.plan)
        inherited = _inherited_by_replacement(state.plan)
    cuts = tuple(_cuts(state, inherited.loaded_until, snapshot))
    accepted = accepted_partitions(
        request, inherited.newest, inherited.loaded_until, cuts, snapshot, settings
    )
    losses = (*_losses(state, accepted.moved), *_lost_of(state, accepted, snapshot, request))
    plan = _reset(inherited, accepted, snapshot, settings, request, now_ms=now_ms)
    return replace(
        plan,
        losses=replace(plan.losses, lost=losses, read_by_others=read_by_others_of_command(state)),
    )


@dataclass(frozen=True, slots=True)
class _Inherited:
    """The newest plan, and what the reset plan takes over from it."""

    newest: Plan
    loaded_until: Mapping[TopicPartition, int]
    number: int
    """Of the reset plan."""
    previous: str | None
    supersedes: str | None
    inherits: Predecessor | None
    stale_rows: Sequence[StaleRows]
    record_epochs: Mapping[TopicPartition, Lineage]
    seen: Mapping[TopicPartition, Committed]
    """Committed offsets that the replaced plan has observed."""


def _inherited_by_successor(state: UpToDate, snapshot: Snapshot) -> _Inherited:
    """Return what a plan after the newest one takes over."""
    newest = state.last
    return _Inherited(
        newest,
        dict(state.positions),
        number=newest.number + 1,
        previous=newest.id,
        supersedes=None,
        inherits=None,
        stale_rows=(),
        record_epochs=record_epochs(newest, snapshot.ledger.applied),
        seen={},
    )


def _inherited_by_replacement(newest: Plan) -> _Inherited:
    """Return what a plan in place of the newest one takes over; that one is not in the table."""
    return _Inherited(
        newest,
        starts_of(newest),
        number=newest.number,
        previous=newest.origin.previous,
        supersedes=newest.id,
        inherits=newest.inherits,
        stale_rows=newest.losses.stale_rows,
        record_epochs=newest.record_epochs,
        seen=newest.expected_commits,
    )


def _reset(
    inherited: _Inherited,
    accepted: AcceptedPartitions,
    snapshot: Snapshot,
    settings: Settings,
    request: AcceptRequest,
    *,
    now_ms: int,
) -> Plan:
    """Return the plan, without losses and commits by others."""
    newest = inherited.newest
    moved = accepted.moved
    positions = {**inherited.loaded_until, **moved}
    decided = accepted.same.union(moved)
    seen = snapshot.committed_of(positions)
    seen |= inherited.seen
    records_left = dict(moved)
    for partition in accepted.anew.intersection(moved):
        records_left[partition] = 0
    topic_ids = {**newest.topic_ids, **accepted.again}
    for partition in decided:
        if partition.is_physical and partition.topic in snapshot.topic_ids:
            topic_ids[partition.topic] = snapshot.topic_ids[partition.topic]
    creations = {}
    for topic, creation in newest.creation_ids.items():
        if topic not in accepted.again:
            creations[topic] = creation
    for topic, creation in snapshot.creation_ids.items():
        if topic in accepted.again:
            creations[topic] = creation
    pending = dict(newest.pending)
    if not request.is_same_log:
        for partition in newest.pending:
            if partition.topic in accepted.again:
                pending[partition] = PendingPartition(starts_anew(partition, settings, now_ms))
    log_starts = {}
    for partition, offsets in snapshot.readable.items():
        if partition in positions:
            log_starts[partition] = offsets.log_start_offset
    leader_epochs = leader_epochs_to_record(newest, snapshot, moved)
    incarnations = dict(newest.incarnations)
    for partition in moved:
        incarnations[partition] = newest.incarnations.get(partition, 0) + 1
    return Plan(
        number=inherited.number,
        origin=PlanOrigin(
            pipeline_id=newest.origin.pipeline_id,
            created_at_ms=now_ms,
            previous=inherited.previous,
            supersedes=inherited.supersedes,
            reason=request.reason,
            time_zone=newest.origin.time_zone,
        ),
        kind=PlanKind.RESET,
        cluster=replace(newest.cluster, id=snapshot.cluster.id),
        shape=shape_of_rows(settings),
        ranges=(),
        partitions=planned_partitions(
            positions,
            seen,
            incarnation=incarnations,
            log_start=log_starts,
            leader_epoch=leader_epochs,
            record_epochs=_epochs_left(inherited.record_epochs, moved, accepted.exact),
            fingerprint=_fingerprints(newest, accepted, snapshot),
            topic_id=topic_ids_to_record(newest, decided, positions, topic_ids),
        ),
        topics=topic_identities(topic_ids, creations_to_record(topic_ids, creations)),
        pending=pending,
        table=table_to_record(snapshot.table, newest.table.rows_before),
        inherits=inherited.inherits,
        predecessors=newest.predecessors,
        losses=Losses(
            stale_rows=_gone(records_left, inherited.loaded_until, newest, inherited.stale_rows)
        ),
        commit=PlannedCommit(storage=snapshot.group.storage),
    )


def _gone(
    left: Mapping[TopicPartition, int],
    loaded_until: Mapping[TopicPartition, int],
    newest: Plan,
    stale_rows: Sequence[StaleRows],
) -> tuple[StaleRows, ...]:
    """Return the intervals of rows without records in the log.

    `left` is the end of the records that each partition still has.
    `stale_rows`: those of a replaced plan. It was never executed, so no row has the incarnation
    that it began; its intervals extend to the records that the partition has lost since.
    """
    kept, earlier = [], []
    begun = {}
    for interval in stale_rows:
        partition = interval.partition
        if interval.incarnation == newest.incarnations.get(partition, 0) - 1:
            begun[partition] = interval
    for interval in stale_rows:
        if interval.partition not in left:
            kept.append(interval)
        elif interval != begun.get(interval.partition):
            earlier.append(interval)
    found = []
    for partition, start in sorted(left.items()):
        interval = StaleRows(
            partition, start, loaded_until[partition], newest.incarnations.get(partition, 0)
        )
        if partition in begun:
            interval = replace(begun[partition], from_offset=start)
        if interval.from_offset < interval.until_offset:
            found.append(interval)
    return (*kept, *earlier, *found)


def _fingerprints(
    newest: Plan, accepted: AcceptedPartitions, snapshot: Snapshot
) -> dict[TopicPartition, Fingerprint]:
    """Return the tail fingerprints: current ones of accepted partitions, else the former ones."""
    changed = accepted.cut.union(accepted.moved)
    return {
        **drop_keys(newest.fingerprints, changed),
        **fingerprints_to_record(newest, accepted.same, snapshot),
        **fingerprints_to_record(None, changed, snapshot),
    }


def _cuts(
    state: UpToDate | Resume, loaded_until: Mapping[TopicPartition, int], snapshot: Snapshot
) -> Iterable[Cut]:
    """Return the partitions truncated below their position; of a stored plan also those truncated
    inside its ranges.

    The lower end of a truncation on Jafka is unknown, and a partition in which no entry begins at
    the plan's position is another one.
    """
    if isinstance(state, UpToDate):
        return truncated_partitions(state.last, snapshot, state.last.loaded_until)
    found: dict[TopicPartition, Cut] = {}
    # The later loops replace entries of the earlier ones.
    for cut in truncated_partitions(state.plan, snapshot, state.plan.loaded_until):
        partition = cut.partition
        found[partition] = replace(
            cut, left_until=loaded_until[partition], is_known=not partition.is_physical
        )
    for cut in truncated_partitions(state.plan, snapshot, loaded_until):
        found[cut.partition] = replace(
            cut, left_until=min(cut.left_until, loaded_until[cut.partition])
        )
    for partition in misaligned_partitions(state.plan, loaded_until, snapshot):
        found[partition] = Cut(
            partition,
            loaded_until[partition],
            loaded_until[partition] - 1,
            is_known=False,
            holds_others=True,
        )
    return found.values()


def _losses(state: UpToDate | Resume, moved: Mapping[TopicPartition, int]) -> Iterable[Loss]:
    """Return the losses of moved offsets, as the next plan would have them, or those of the
    replaced plan.

    Offsets that an operator skipped in the replaced plan are left out: a later plan reads them.
    """
    if isinstance(state, Resume):
        again = losses_to_read_again(state.plan)
        for loss in state.plan.losses.lost:
            if loss not in again:
                yield loss
        return
    for partition, offset in sorted(state.followed.items()):
        if partition not in moved:
            start = state.last.loaded_until[partition]
            incarnation = state.last.incarnations.get(partition, 0)
            yield Loss(partition, start, offset, LossReason.MOVED, incarnation)


def _lost_of(
    state: UpToDate | Resume,
    accepted: AcceptedPartitions,
    snapshot: Snapshot,
    request: AcceptRequest,
) -> list[Loss]:
    """Return the offsets of a replaced stored plan that no partition has any more, also of
    partitions that are not named.

    With `--not-recreated` a topic that only has another znode counts as unchanged.
    """
    if isinstance(state, UpToDate):
        return []
    plan = state.plan
    decided = {}
    for partition in accepted.moved:
        decided[partition] = LossReason.TRUNCATED
        if partition in accepted.anew:
            decided[partition] = LossReason.RECREATED
    same = set(accepted.same)
    if request.is_same_log:
        for topic, now in recreated_topics(plan, snapshot).items():
            if not is_creation_id(now):
                continue
            for partition in plan.loaded_until:
                if partition.topic == topic:
                    same.add(partition)
    gone = partitions_missing_offsets(plan, snapshot, decided=decided, same=same)
    return lost_with_partitions(plan, gone)


def _epochs_left(
    lineages: Mapping[TopicPartition, Lineage],
    moved: Mapping[TopicPartition, int],
    exact: Collection[TopicPartition],
) -> dict[TopicPartition, Lineage]:
    """Return the epochs of partitions truncated at a known offset, and of those that stay."""
    left = {}
    for partition, lineage in lineages.items():
        if partition not in moved:
            epochs = lineage
        elif partition in exact:
            epochs = tuple(epoch for epoch in lineage if epoch[1] < moved[partition])
        else:
            continue
        if epochs:
            left[partition] = epochs
    return left
