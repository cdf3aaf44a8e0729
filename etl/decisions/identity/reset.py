"""The plan by which an operator accepts that logs were cut, or that their topics were made again.
Pure functions of values.

It has no ranges and moves positions: to where what is left of a cut log ends, to where a topic that
was made again starts by policy. What is read from there on is another life of the log, with a
`log_epoch` one higher, so that no row is doubled; the rows of records that are gone stay in the
table under the old one, and the plan names them. It is a plan like any other: stored, committed to
the table once, and then the offsets move by compare-and-set, backwards for once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from etl.decisions.byte_positions.misplaced_offsets import misplaced
from etl.decisions.handing_over import refuse_in_the_place_of, told_by_command
from etl.decisions.identity.accepted_logs import Accepted, accepted_logs
from etl.decisions.identity.accepting import Accepting
from etl.decisions.identity.log_identity import Cut, cut_logs, record_epochs
from etl.decisions.identity.made_again import (
    is_creation_id,
    kept_creations,
    kept_ids,
    topics_made_again,
)
from etl.decisions.identity.tails import kept_tails
from etl.decisions.replacement import let_go_among, lost_with_logs, offsets_gone
from etl.decisions.shape import shape_of_rows
from etl.decisions.start import starts_anew, starts_of
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Lineage, Tail
from etl.model.plans import Loss, LossReason, Plan, PlanKind, Vanished
from etl.model.snapshot import Replay, Snapshot, UpToDate
from etl.settings.sections import Settings


def plan_reset(
    state: UpToDate | Replay,
    snapshot: Snapshot,
    settings: Settings,
    wanted: Accepting,
    *,
    now_ms: int,
) -> Plan:
    """The plan, without its id: behind the last one, or in the place of one that is stored and not
    in the table.

    Raises SettingsError for a log with which nothing is wrong, and where it must be said otherwise
    what is accepted; BrokerUnreachable.
    """
    old = state.last if isinstance(state, UpToDate) else state.plan
    if isinstance(state, Replay):
        refuse_in_the_place_of(old)
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
    ids = kept_ids(old, decided, positions, topic_ids)
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
        creation_ids=kept_creations(topic_ids, creations),
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
        log_epochs={**old.log_epochs, **{log: old.log_epochs.get(log, 0) + 1 for log in moved}},
        took_over=None if is_next else old.took_over,
        heir_of=old.heir_of,
        table_version=table.version if table else None,
        vanished=gone,
        tails=_tails(old, accepted, snapshot),
        log_topic_ids=ids,
        cluster_id=snapshot.cluster_id,
        offsets_in=snapshot.offsets_in,
        read_by_others=told_by_command(state),
        time_zone=old.time_zone,
        rows_before=old.rows_before,
    )


def _gone(
    left: Mapping[BrokerPartition, int],
    before: Mapping[BrokerPartition, int],
    old: Plan,
    told: Sequence[Vanished],
) -> tuple[Vanished, ...]:
    """The rows whose records are gone, `left` being up to where each log still has them.

    `told`: the same of a plan whose place is taken. Nobody executed it, so no row is of the life
    that it began: what it tells of a log goes on as far as the log has lost by now.
    """
    kept = [one for one in told if one.log not in left]
    begun = {one.log: one for one in told if one.log_epoch == old.log_epochs.get(one.log, 0) - 1}
    lives = {
        log: begun.get(log, Vanished(log, at, before[log], old.log_epochs.get(log, 0)))
        for log, at in left.items()
    }
    earlier = [one for one in told if one.log in left and one != begun.get(one.log)]
    found = (replace(lives[log], from_offset=at) for log, at in sorted(left.items()))
    return (*kept, *earlier, *(one for one in found if one.from_offset < one.until_offset))


def _tails(old: Plan, accepted: Accepted, snapshot: Snapshot) -> dict[BrokerPartition, Tail]:
    """By which bytes each log is known: what there is now of those that are accepted as they are,
    what was known of the others.
    """
    changed = accepted.cut.union(accepted.moved)
    left = {log: tail for log, tail in old.tails.items() if log not in changed}
    return {
        **left,
        **kept_tails(old, accepted.same, snapshot),
        **kept_tails(None, changed, snapshot),
    }


def _cuts(
    state: UpToDate | Replay, before: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> Iterable[Cut]:
    """The logs that were cut below where they stand; of a stored plan also those that were cut
    inside its ranges only.

    Of a physical log nobody knows that it was no further down, and one in which no entry begins
    where the plan does is no more what it was.
    """
    if isinstance(state, UpToDate):
        return cut_logs(state.last, snapshot, state.last.positions)
    deep = {
        cut.log: replace(cut, left_until=min(cut.left_until, before[cut.log]))
        for cut in cut_logs(state.plan, snapshot, before)
    }
    inside = {
        cut.log: replace(cut, left_until=before[cut.log], is_known=not cut.log.is_physical)
        for cut in cut_logs(state.plan, snapshot, state.plan.positions)
    }
    misread = {
        log: Cut(log, before[log], before[log] - 1, is_known=False, holds_others=True)
        for log in misplaced(state.plan, before, snapshot)
    }
    return {**inside, **deep, **misread}.values()


def _losses(state: UpToDate | Replay, moved: Mapping[BrokerPartition, int]) -> Iterable[Loss]:
    """What somebody moved a committed offset past, as the next plan would say it; or what the plan
    let go that is replaced.

    Of that not what an operator skipped in ranges that are now read anew, by a later plan: nothing
    of it was let go.
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
                state.last.log_epochs.get(log, 0),
            )


def _lost_of(
    state: UpToDate | Replay, accepted: Accepted, snapshot: Snapshot, wanted: Accepting
) -> list[Loss]:
    """What a stored plan reads whose place is taken, and that no log holds any more: also of logs
    that the operator does not name.

    Under `--same-log` a topic of which only the znode's creation changed counts as what it was,
    whether or not it is named yet.
    """
    if isinstance(state, UpToDate):
        return []
    plan = state.plan
    decided = {
        log: LossReason.RECREATED if log in accepted.anew else LossReason.TRUNCATED
        for log in accepted.moved
    }
    again = topics_made_again(plan, snapshot) if wanted.is_same_log else {}
    copied = {topic for topic, now in again.items() if is_creation_id(now)}
    same = {*accepted.same, *(log for log in plan.positions if log.topic in copied)}
    return lost_with_logs(plan, offsets_gone(plan, snapshot, decided=decided, same=same))


def _left_of(
    lineages: Mapping[BrokerPartition, Lineage],
    moved: Mapping[BrokerPartition, int],
    exact: Collection[BrokerPartition],
) -> dict[BrokerPartition, Lineage]:
    """The epochs of what is left of logs of which it is known where they were cut, and those of the
    others that stay where they are.
    """
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
