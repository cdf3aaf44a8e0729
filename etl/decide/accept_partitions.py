"""What follows when an operator accepts truncated or recreated partitions?

    accepted                                  the pipeline continues
    ---------------------------------------   ------------------------------------------------------
    a truncated partition                     where it was truncated, by its epochs, or at `--truncated-at`
    a recreated topic of Kafka                all its partitions: by `source.new_topics_starting_offsets`;
                                              with `--not-recreated`: where it was
    an undecided Jafka partition              other bytes: by `source.new_topics_starting_offsets`
                                              the same bytes: where it was
                                              undecidable: as the operator says, who must name it
    the same, its broker is unavailable       not yet; it stays undecided

`--not-recreated` is rejected for a partition that is known to be another, and its absence for one known
to be the same: either mistake loses or doubles rows.

The resulting plan has no ranges and moves positions. Offsets read from there on have an `incarnation`
one higher, so no row is doubled; rows of records that are gone stay in the table under the old
one, and the plan names them. It is stored and committed like any plan; then the offsets move by
compare-and-set, in this case backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decide.byte_offsets import misplaced, reject_misaligned_offset
from etl.decide.group_commits import metadata_named_by_command, reject_replacing
from etl.decide.offsets import starts_anew, starts_of
from etl.decide.partition_identity import (
    Cut,
    compared_ids,
    creations_to_record,
    is_creation_id,
    is_what_was_read,
    named,
    record_epochs,
    recreated_topics,
    tails_to_record,
    topic_ids_to_record,
    truncated_partitions,
    undecided_logs,
    waiting_logs,
    ways_out,
)
from etl.decide.plan import shape_of_rows
from etl.decide.replacement import let_go_among, lost_with_logs, partitions_missing_offsets
from etl.errors import BrokerUnreachable, SettingsError
from etl.model.partitions import (
    FORM_OF_PARTITION,
    NOTHING_COMMITTED,
    BrokerPartition,
    Lineage,
    Named,
    Tail,
)
from etl.model.plans import Loss, LossReason, Plan, PlanKind, Vanished
from etl.model.snapshot import Replay, Snapshot, UpToDate
from etl.settings.choices import StartAt
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Accepting:
    """What an operator accepts, and the reason."""

    named: tuple[Named, ...]
    reason: str
    at: int | None = None
    """End of the unchanged part of the one named partition, if the brokers cannot tell."""
    is_same_log: bool = False
    """True if the topics or partitions are the same and only their znode ids changed."""

    def covers(self, log: BrokerPartition) -> bool:
        return any(one.covers(log) for one in self.named)

    def offsets_of(self, log: BrokerPartition) -> tuple[int, ...]:
        """Which of the log's offsets are named."""
        return (self.at,) if self.at is not None and self.covers(log) else ()

    def names_itself(self, log: BrokerPartition) -> bool:
        return any(one.log == log for one in self.named)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The decision for each partition."""

    again: Mapping[str, str]
    """Topics that were decided as a whole, and their ids of now."""
    moved: Mapping[BrokerPartition, int]
    """Partitions that continue as another incarnation, and their positions."""
    anew: frozenset[BrokerPartition]
    """Those of them of which nothing is left that was read."""
    cut: frozenset[BrokerPartition]
    """Truncated partitions, also those that stay: only records of a stored plan are gone."""
    exact: frozenset[BrokerPartition]
    """Those whose exact truncation offset is known."""
    same: frozenset[BrokerPartition]
    """Undecided partitions that continue unchanged."""


def accepted_logs(
    wanted: Accepting,
    old: Plan,
    before: Mapping[BrokerPartition, int],
    all_cuts: Collection[Cut],
    snapshot: Snapshot,
    settings: Settings,
) -> Accepted:
    """Return the decisions for what is accepted; `old` is the newest plan, `before` the positions.

    Raises SettingsError for a partition that is unchanged, or if the command needs other options;
    BrokerUnreachable if the partition's broker is unavailable.
    """
    again = {
        topic: now
        for topic, now in recreated_topics(old, snapshot).items()
        if Named(topic) in wanted.named
    }
    undecided = set(undecided_logs(old, snapshot))
    waiting = [log for log in waiting_logs(old, snapshot) if wanted.covers(log)]
    cuts = {cut.log: cut for cut in all_cuts if wanted.covers(cut.log) and cut.log not in undecided}
    _reject_unknown(wanted.named, {*before, *snapshot.extents, *snapshot.leaderless})
    _reject_unchanged_topics(wanted.named, again, {*cuts, *waiting}, snapshot)
    if wanted.is_same_log:
        _reject_other_topics(
            {topic: ids[1] for topic in again if (ids := compared_ids(topic, old, snapshot))}, cuts
        )
        return Accepted(
            again,
            {},
            frozenset(),
            frozenset(),
            frozenset(),
            frozenset(_known_as_same(waiting, wanted, old, snapshot)),
        )
    of_the_same = {log: cut for log, cut in cuts.items() if log.topic not in again}
    if wanted.at is not None and waiting:
        at = _at_of_one(waiting, of_the_same, before, wanted, snapshot)
        return Accepted(
            again,
            at,
            frozenset(log for log, offset in at.items() if not offset),
            frozenset(),
            frozenset(),
            frozenset(),
        )
    same = {log for log in waiting if _continues(log, wanted, old, snapshot)}
    anew = {
        *(log for log in before if log.topic in again),
        *(log for log in waiting if log not in same),
    }
    moved = {
        **_truncation_positions(of_the_same, before, wanted, snapshot),
        **_starts_anew(anew, snapshot, settings),
    }
    exact = frozenset(log for log, cut in of_the_same.items() if cut.is_known)
    return Accepted(again, moved, frozenset(anew), frozenset(of_the_same), exact, frozenset(same))


def _reject_unknown(names: Sequence[Named], known: Collection[BrokerPartition]) -> None:
    for one in names:
        if one.log is not None and one.log not in known:
            action = (
                f"Check with `etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}"
            )
            raise SettingsError(f"There is no partition {one}", key="--partition", action=action)


def _reject_unchanged_topics(
    names: Sequence[Named],
    again: Mapping[str, str],
    unsound: Collection[BrokerPartition],
    snapshot: Snapshot,
) -> None:
    for one in names:
        if one.topic in again or any(one.covers(log) for log in unsound):
            continue
        _reject_not_there(one, snapshot)
        unread = sorted(log for log in snapshot.leaderless if one.covers(log))
        if unread:
            raise BrokerUnreachable(
                "The partition has no leader", **unread[0].place, action="Check its brokers"
            )
        message = f"Nothing is wrong with {one}: it was neither cut nor made again"
        action = "Check with `etl run CONF --dry-run`, which names what is; a topic of Kafka 0.8 or later that was made again is named as a whole"
        raise SettingsError(message, key="--partition", action=action)


def _reject_not_there(one: Named, snapshot: Snapshot) -> None:
    """Reject a topic that was deleted and not recreated. Raises SettingsError."""
    there = (*snapshot.extents, *snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    if any(log.topic == one.topic for log in there):
        return
    newest = snapshot.ledger.newest
    action = "Check its spelling and source.topics; a topic that was deleted is accepted once it is made again"
    if newest and one.topic in snapshot.missing_topics:
        action = (
            f"Check whether it was deleted; what plan {newest.number} reads of it is given up by: "
            f"etl plans supersede CONF {newest.number} --reason ..."
        )
    raise SettingsError(
        "The topic is not there, or the conf does not name it",
        key="--partition",
        topic=one.topic,
        action=action,
    )


def _reject_other_topics(again: Mapping[str, str], cuts: Mapping[BrokerPartition, Cut]) -> None:
    """Reject `--not-recreated` for recreated topics: only the znode may differ, and the log must reach
    our position.
    """
    for topic, now in sorted(again.items()):
        if not is_creation_id(now):
            message = f"It is another topic: the brokers say that its id is {now}"
            raise SettingsError(
                message,
                key="--not-recreated",
                topic=topic,
                action="Leave --not-recreated out to continue with the new one",
            )
    for log, cut in sorted(cuts.items()):
        if cut.holds_others:
            message = "it holds other bytes than were read"
        else:
            message = f"it ends at {cut.left_until}, and we were at {cut.position}"
        action = "Leave --not-recreated out to accept that"
        raise SettingsError(
            f"It is not the same log: {message}", key="--not-recreated", **log.place, action=action
        )


def _known_as_same(
    waiting: Sequence[BrokerPartition],
    wanted: Accepting,
    old: Plan,
    snapshot: Snapshot,
) -> Sequence[BrokerPartition]:
    """Return the partitions of `--not-recreated`: none may be known to be another, and an undecidable
    one must be named itself.
    """
    for log in waiting:
        is_same = is_what_was_read(log, old, snapshot)
        if is_same is False:
            message = "It is not the same log: the bytes that were read are not there any more"
            raise SettingsError(
                message,
                key="--not-recreated",
                **log.place,
                action="Leave --not-recreated out to read it from its start",
            )
        if is_same is None and not wanted.names_itself(log):
            raise _untold(log, old, snapshot)
    return waiting


def _continues(log: BrokerPartition, wanted: Accepting, old: Plan, snapshot: Snapshot) -> bool:
    """True if an undecided partition continues at its position: by its bytes, or, if they do not
    tell, by being named itself.
    """
    is_same = is_what_was_read(log, old, snapshot)
    if is_same is None and not wanted.names_itself(log):
        raise _untold(log, old, snapshot)
    if is_same and wanted.names_itself(log):
        message = "It is the same log: the bytes that were read last are there, and read from its start its rows would be in the table twice"
        action = "Pass --not-recreated, which continues where it was; if its messages are all alike and it is another all the same: --truncated-at OFFSET"
        raise SettingsError(message, key="--partition", **log.place, action=action)
    return bool(is_same)


def _untold(log: BrokerPartition, old: Plan, snapshot: Snapshot) -> SettingsError:
    message = "Nothing tells whether it is the log that was: it must be named itself"
    return SettingsError(
        message, key="--partition", **log.place, action=ways_out([log], old, snapshot)[0]
    )


def _at_of_one(
    waiting: Sequence[BrokerPartition],
    cuts: Mapping[BrokerPartition, Cut],
    before: Mapping[BrokerPartition, int],
    wanted: Accepting,
    snapshot: Snapshot,
) -> dict[BrokerPartition, int]:
    log, *others = waiting
    if others or cuts or not wanted.names_itself(log) or wanted.at is None:
        raise SettingsError(
            "--truncated-at is for one partition",
            key="--truncated-at",
            action="Check with `etl run CONF --dry-run`; name that partition alone, or leave --truncated-at out",
        )
    if wanted.at > before[log]:
        message = f"Offset {wanted.at} lies above {before[log]}, up to where the log was read"
        raise SettingsError(
            message, key="--truncated-at", **log.place, action="Check with `etl run CONF --dry-run`"
        )
    reject_misaligned_offset(log, wanted.at, snapshot, key="--truncated-at")
    return {log: wanted.at}


def _truncation_positions(
    cuts: Mapping[BrokerPartition, Cut],
    before: Mapping[BrokerPartition, int],
    wanted: Accepting,
    snapshot: Snapshot,
) -> dict[BrokerPartition, int]:
    """Return the positions of partitions that lost what the table has."""
    unknown = sorted(log for log, cut in cuts.items() if not cut.is_known)
    if wanted.at is not None and (len(unknown) != 1 or len(cuts) != 1):
        message = (
            "--truncated-at is for one partition of which the brokers do not tell where it was cut"
        )
        raise SettingsError(
            message,
            key="--truncated-at",
            action="Check with `etl run CONF --dry-run`; name that partition alone, or leave --truncated-at out",
        )
    if unknown and wanted.at is None:
        log, cut = unknown[0], cuts[unknown[0]]
        message = f"The brokers do not tell where the log was cut: at {cut.left_until} or below"
        action = f"Find out up to which offset its records are those in the table, and say --truncated-at that offset; {cut.left_until} if nothing came since"
        if log.is_physical:
            action = "Find out up to which offset its records are those in the table (etl records show), and say --truncated-at that offset; 0 if it was made again"
        raise SettingsError(message, key="--truncated-at", **log.place, action=action)
    for log in unknown:
        if wanted.at is not None and wanted.at > cuts[log].left_until:
            message = f"Offset {wanted.at} lies above {cuts[log].left_until}, where what is left of the log ends at most"
            raise SettingsError(
                message,
                key="--truncated-at",
                **log.place,
                action="Check with `etl run CONF --dry-run`",
            )
        if wanted.at is not None:
            reject_misaligned_offset(log, wanted.at, snapshot, key="--truncated-at")
    until = {
        log: cut.left_until if cut.is_known or wanted.at is None else wanted.at
        for log, cut in cuts.items()
    }
    return {log: at for log, at in until.items() if at < before[log]}


def _starts_anew(
    logs: Collection[BrokerPartition], snapshot: Snapshot, settings: Settings
) -> dict[BrokerPartition, int]:
    """Return where recreated partitions start, by `source.new_topics_starting_offsets`; 0 if the new topic
    lacks the partition.
    """
    for log in sorted(logs):
        if log in snapshot.leaderless:
            message = "The partition has no leader, so nobody tells where it starts"
            raise BrokerUnreachable(
                message, **log.place, action="Check the brokers that hold its replicas"
            )
    is_latest = settings.source.new_topics_starting_offsets is StartAt.LATEST
    extents = {log: snapshot.extents.get(log) for log in logs}
    return {
        log: 0 if e is None else e.end_offset if is_latest else e.log_start_offset
        for log, e in extents.items()
    }


def told_of(old: Plan, plan: Plan, snapshot: Snapshot) -> list[str]:
    """Describe the partitions that `plan` decides and those that stay undecided: a sentence for
    each kind.
    """
    undecided, left = undecided_logs(old, snapshot), undecided_logs(plan, snapshot)
    decided = [log for log in undecided if log not in left]
    kept = [log for log in decided if plan.incarnations.get(log, 0) == old.incarnations.get(log, 0)]
    doubtful = [log for log in decided if is_what_was_read(log, old, snapshot) is None]
    is_there = set(waiting_logs(plan, snapshot))
    topics = [
        topic
        for topic in recreated_topics(old, snapshot)
        if plan.topic_ids[topic] != old.topic_ids[topic]
    ]
    same = [
        topic
        for topic in topics
        if all(
            plan.incarnations.get(log, 0) == old.incarnations.get(log, 0)
            for log in plan.positions
            if log.topic == topic
        )
    ]
    kinds = {
        "goes on where it was": named([log for log in kept if log not in doubtful]),
        "goes on where it was, by your word alone: if it is another log, its records below that are never loaded": named(
            [log for log in kept if log in doubtful]
        ),
        "is another log by your word alone: if it is the one that was, its rows are in the table twice, under two incarnations": named(
            [log for log in decided if log not in kept and log in doubtful]
        ),
        "is left as it is: its broker is away, and once it is back a run asks again": named(
            [log for log in left if log not in is_there]
        ),
        "is not decided yet, and runs stop until it is": named(
            [log for log in left if log in is_there]
        ),
        "is the topic that it was by your word alone: if it is another, its records below our positions are never loaded": " ".join(
            same
        ),
    }
    return [f"{names}: {message}" for message, names in kinds.items() if names]


def plan_reset(
    state: UpToDate | Replay,
    snapshot: Snapshot,
    settings: Settings,
    wanted: Accepting,
    *,
    now_ms: int,
) -> Plan:
    """Return the plan without its id: after the last one, or instead of one that is stored and not
    in the table.

    Raises SettingsError for a partition that is unchanged, or if the command needs other options;
    BrokerUnreachable.
    """
    old = state.last if isinstance(state, UpToDate) else state.plan
    if isinstance(state, Replay):
        reject_replacing(old)
    before = dict(state.positions) if isinstance(state, UpToDate) else starts_of(old)
    accepted = accepted_logs(
        wanted, old, before, tuple(_cuts(state, before, snapshot)), snapshot, settings
    )
    return _reset(state, old, before, accepted, snapshot, settings, wanted, now_ms)


def _reset(
    state: UpToDate | Replay,
    old: Plan,
    before: Mapping[BrokerPartition, int],
    accepted: Accepted,
    snapshot: Snapshot,
    settings: Settings,
    wanted: Accepting,
    now_ms: int,
) -> Plan:
    moved, is_next, table = accepted.moved, isinstance(state, UpToDate), snapshot.table
    positions, decided = {**before, **moved}, accepted.same.union(moved)
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions}
    epochs = {log: epoch for log, epoch in snapshot.leader_epochs.items() if log in moved}
    sharp = record_epochs(old, snapshot.ledger.applied) if is_next else old.record_epochs
    left = {log: 0 if log in accepted.anew else at for log, at in moved.items()}
    gone = _gone(left, before, old, () if is_next else old.vanished)
    of_now = {
        log.topic: snapshot.topic_ids[log.topic]
        for log in decided
        if log.is_physical and log.topic in snapshot.topic_ids
    }
    topic_ids = {**old.topic_ids, **accepted.again, **of_now}
    ids = topic_ids_to_record(old, decided, positions, topic_ids)
    creations = {
        topic: found for topic, found in old.creation_ids.items() if topic not in accepted.again
    }
    creations |= {
        topic: found for topic, found in snapshot.creation_ids.items() if topic in accepted.again
    }
    return Plan(
        number=old.number + 1 if is_next else old.number,
        uid=old.uid,
        kind=PlanKind.RESET,
        created_at_ms=now_ms,
        dialect=old.dialect,
        cluster=old.cluster,
        shape=shape_of_rows(settings),
        ranges=(),
        positions=positions,
        seen=seen if is_next else {**seen, **old.seen},
        table_id=table.id if table else None,
        table_transaction_version=(table.transaction_version or 0) if table else 0,
        topic_ids=topic_ids,
        creation_ids=creations_to_record(topic_ids, creations),
        previous=old.id if is_next else old.previous,
        supersedes=None if is_next else old.id,
        reason=wanted.reason,
        losses=(*_losses(state, moved), *_lost_of(state, accepted, snapshot, wanted)),
        pending_starts={
            log: starts_anew(log, settings, now_ms)
            if log.topic in accepted.again and not wanted.is_same_log
            else kept
            for log, kept in old.pending_starts.items()
        },
        pending_offsets={
            log: offset
            for log, offset in old.pending_offsets.items()
            if log.topic not in accepted.again or wanted.is_same_log
        },
        log_starts={
            log: extent.log_start_offset
            for log, extent in snapshot.extents.items()
            if log in positions
        },
        leader_epochs={**_without(old.leader_epochs, moved), **epochs},
        record_epochs=_left_of(sharp, moved, accepted.exact),
        incarnations={
            **old.incarnations,
            **{log: old.incarnations.get(log, 0) + 1 for log in moved},
        },
        took_over=None if is_next else old.took_over,
        heir_of=old.heir_of,
        table_version=table.version if table else None,
        vanished=gone,
        tails=_tails(old, accepted, snapshot),
        log_topic_ids=ids,
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        read_by_others=metadata_named_by_command(state),
        time_zone=old.time_zone,
        rows_before=old.rows_before,
    )


def _gone(
    left: Mapping[BrokerPartition, int],
    before: Mapping[BrokerPartition, int],
    old: Plan,
    vanished: Sequence[Vanished],
) -> tuple[Vanished, ...]:
    """Return the rows whose records are gone; `left` is where each log still has them.

    `vanished`: those of a replaced plan. It was never executed, so no row is of the incarnation that it
    began; its intervals extend as far as the log has lost by now.
    """
    kept = [one for one in vanished if one.log not in left]
    begun = {
        one.log: one for one in vanished if one.incarnation == old.incarnations.get(one.log, 0) - 1
    }
    lives = {
        log: begun.get(log, Vanished(log, at, before[log], old.incarnations.get(log, 0)))
        for log, at in left.items()
    }
    earlier = [one for one in vanished if one.log in left and one != begun.get(one.log)]
    found = (replace(lives[log], from_offset=at) for log, at in sorted(left.items()))
    return (*kept, *earlier, *(one for one in found if one.from_offset < one.until_offset))


def _tails(old: Plan, accepted: Accepted, snapshot: Snapshot) -> dict[BrokerPartition, Tail]:
    """Return the tail fingerprints: current ones of partitions accepted as they are, else the
    former ones.
    """
    changed = accepted.cut.union(accepted.moved)
    left = {log: tail for log, tail in old.tails.items() if log not in changed}
    return {
        **left,
        **tails_to_record(old, accepted.same, snapshot),
        **tails_to_record(None, changed, snapshot),
    }


def _cuts(
    state: UpToDate | Replay, before: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> Iterable[Cut]:
    """Return the partitions truncated below their position; of a stored plan also those truncated
    inside its ranges. The lower end of a truncation on Jafka is unknown, and a partition in which
    no entry begins at the plan's position is another one.
    """
    if isinstance(state, UpToDate):
        return truncated_partitions(state.last, snapshot, state.last.positions)
    deep = {
        cut.log: replace(cut, left_until=min(cut.left_until, before[cut.log]))
        for cut in truncated_partitions(state.plan, snapshot, before)
    }
    inside = {
        cut.log: replace(cut, left_until=before[cut.log], is_known=not cut.log.is_physical)
        for cut in truncated_partitions(state.plan, snapshot, state.plan.positions)
    }
    misread = {
        log: Cut(log, before[log], before[log] - 1, is_known=False, holds_others=True)
        for log in misplaced(state.plan, before, snapshot)
    }
    return {**inside, **deep, **misread}.values()


def _losses(state: UpToDate | Replay, moved: Mapping[BrokerPartition, int]) -> Iterable[Loss]:
    """Return the losses of moved offsets, as the next plan would have them, or those of the
    replaced plan, without offsets that an operator skipped and that are now read again by a later
    plan.
    """
    if isinstance(state, Replay):
        again = let_go_among(state.plan)
        yield from (loss for loss in state.plan.losses if loss not in again)
        return
    for log, offset in sorted(state.followed.items()):
        if log not in moved:
            yield Loss(
                log,
                state.last.positions[log],
                offset,
                LossReason.MOVED,
                state.last.incarnations.get(log, 0),
            )


def _lost_of(
    state: UpToDate | Replay, accepted: Accepted, snapshot: Snapshot, wanted: Accepting
) -> list[Loss]:
    """Return what a replaced stored plan reads and no log holds any more, also of partitions that
    are not named. With `--not-recreated` a topic of which only the znode changed counts as unchanged.
    """
    if isinstance(state, UpToDate):
        return []
    plan = state.plan
    decided = {
        log: LossReason.RECREATED if log in accepted.anew else LossReason.TRUNCATED
        for log in accepted.moved
    }
    again = recreated_topics(plan, snapshot) if wanted.is_same_log else {}
    copied = {topic for topic, now in again.items() if is_creation_id(now)}
    same = {*accepted.same, *(log for log in plan.positions if log.topic in copied)}
    return lost_with_logs(
        plan, partitions_missing_offsets(plan, snapshot, decided=decided, same=same)
    )


def _left_of(
    lineages: Mapping[BrokerPartition, Lineage],
    moved: Mapping[BrokerPartition, int],
    exact: Collection[BrokerPartition],
) -> dict[BrokerPartition, Lineage]:
    """Return the epochs of partitions truncated at a known offset, and of those that stay."""
    left = {
        log: tuple(one for one in lineage if log not in moved or one[1] < moved[log])
        for log, lineage in lineages.items()
    }
    return {
        log: lineage
        for log, lineage in left.items()
        if lineage and (log not in moved or log in exact)
    }


def _without(
    epochs: Mapping[BrokerPartition, int], moved: Mapping[BrokerPartition, int]
) -> dict[BrokerPartition, int]:
    return {log: epoch for log, epoch in epochs.items() if log not in moved}
