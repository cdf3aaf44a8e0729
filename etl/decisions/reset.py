"""The plan by which an operator accepts that logs were cut, or that their topics were made again. Pure functions of values.

It has no ranges and moves positions: to where what is left of a cut log ends, to where a topic that was made again starts by policy.
What is read from there on is another life of the log, with a `log_epoch` one higher, so that no row is doubled; the rows of records that
are gone stay in the table under the old one, and the plan names them. It is a plan like any other: stored, committed to the table once,
and then the offsets move by compare-and-set, backwards for once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from etl.decisions.log_identity import Cut, cut_logs, is_creation_id, record_epochs, topics_made_again
from etl.decisions.replacement import let_go_among
from etl.decisions.shape import shape_of_rows
from etl.decisions.start import starts_anew, starts_of
from etl.errors import BrokerUnreachable, SettingsError
from etl.model.logs import BrokerPartition, Lineage
from etl.model.plans import NOTHING_COMMITTED, Loss, LossReason, Plan, PlanKind, Vanished
from etl.model.snapshot import Replay, Snapshot, UpToDate
from etl.protocol.stretches import FORM_OF_PARTITION, parse_log, render_log
from etl.settings.policies import StartAt
from etl.settings.sections import Settings

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Named:
    """What an operator named: a topic, or one partition of it."""

    topic: str
    log: BrokerPartition | None = None
    """None: all of the topic's."""

    def __str__(self) -> str:
        return self.topic if self.log is None else render_log(self.log)

    def covers(self, log: BrokerPartition) -> bool:
        """Whether the log is meant."""
        return log.topic == self.topic and self.log in (None, log)


@dataclass(frozen=True, slots=True)
class Accepting:
    """What an operator accepts, and why."""

    named: tuple[Named, ...]
    reason: str
    at: int | None = None
    """Up to where what is left of the one cut log is what was read, where the brokers cannot tell."""
    is_same_log: bool = False
    """The topics are the same: only what stands for their ids has changed."""


def parse_named(text: str) -> Named:
    """`TOPIC` or `TOPIC:PARTITION`. Raises SettingsError."""
    if _TOPIC.fullmatch(text):
        return Named(text)
    log = parse_log(text)
    if log is None:
        raise SettingsError(f"{text!r} names no log", key="LOG", check=f"the form TOPIC or TOPIC:PARTITION; {FORM_OF_PARTITION}")
    return Named(log.topic, log)


def plan_reset(state: UpToDate | Replay, snapshot: Snapshot, settings: Settings, wanted: Accepting, *, now_ms: int) -> Plan:
    """The plan, without its id: behind the last one, or in the place of one that is stored and not in the table.

    Raises SettingsError for a log with which nothing is wrong, and where it must be said otherwise what is accepted.
    """
    old = state.last if isinstance(state, UpToDate) else state.plan
    before = dict(state.positions) if isinstance(state, UpToDate) else starts_of(old)
    again = {topic: now for topic, now in topics_made_again(old.topic_ids, snapshot).items() if Named(topic) in wanted.named}
    cuts = {cut.log: cut for cut in _cuts(state, before, snapshot) if any(one.covers(cut.log) for one in wanted.named)}
    _refuse_unknown(wanted.named, {*before, *snapshot.extents, *snapshot.leaderless})
    _refuse_what_is_sound(wanted.named, again, cuts, snapshot)
    if wanted.is_same_log:
        _refuse_other_topics(again, cuts, snapshot)
        moved: dict[BrokerPartition, int] = {}
    else:
        of_the_same = {log: cut for log, cut in cuts.items() if log.topic not in again}
        moved = {**_cut_positions(of_the_same, before, wanted), **_starts_anew(again, before, snapshot, settings)}
    exact = {log for log, cut in cuts.items() if cut.is_known and log.topic not in again}
    return _reset(state, old, before, moved, again, exact, snapshot, settings, wanted, now_ms)


def _reset(
    state: UpToDate | Replay, old: Plan, before: Mapping[BrokerPartition, int], moved: Mapping[BrokerPartition, int],
    again: Mapping[str, str], exact: Collection[BrokerPartition], snapshot: Snapshot, settings: Settings, wanted: Accepting, now_ms: int,
) -> Plan:
    is_next, positions, table = isinstance(state, UpToDate), {**before, **moved}, snapshot.table
    seen = {log: snapshot.committed.get(log, NOTHING_COMMITTED) for log in positions}
    epochs = {log: epoch for log, epoch in snapshot.leader_epochs.items() if log in moved}
    sharp = record_epochs(old, snapshot.ledger.applied) if is_next else old.record_epochs
    gone = tuple(Vanished(log, _vanished_from(log, moved, again), before[log], old.log_epochs.get(log, 0)) for log in sorted(moved))
    return Plan(
        number=old.number + 1 if is_next else old.number, uid=old.uid, kind=PlanKind.RESET, created_at_ms=now_ms, dialect=old.dialect,
        cluster=old.cluster, shape=shape_of_rows(settings), ranges=(), positions=positions, seen=seen if is_next else {**seen, **old.seen},
        table_id=table.id if table else None, table_transaction_version=(table.transaction_version or 0) if table else 0,
        topic_ids={**old.topic_ids, **again}, previous=old.id if is_next else old.previous, supersedes=None if is_next else old.id,
        reason=wanted.reason, losses=tuple(_losses(state, moved)),
        pending_starts={
            log: starts_anew(log, settings, now_ms) if log.topic in again and not wanted.is_same_log else kept
            for log, kept in old.pending_starts.items()},
        log_starts={log: extent.log_start_offset for log, extent in snapshot.extents.items() if log in positions},
        leader_epochs={**_without(old.leader_epochs, moved), **epochs}, record_epochs=_left_of(sharp, moved, exact),
        log_epochs={**old.log_epochs, **{log: old.log_epochs.get(log, 0) + 1 for log in moved}},
        took_over=None if is_next else old.took_over, heir_of=old.heir_of, table_version=table.version if table else None,
        vanished=(*(() if is_next else old.vanished), *(one for one in gone if one.from_offset < one.until_offset)),
    )


def _cuts(state: UpToDate | Replay, before: Mapping[BrokerPartition, int], snapshot: Snapshot) -> Iterable[Cut]:
    """The logs that were cut below where they stand; of a stored plan also those that were cut inside its ranges only."""
    if isinstance(state, UpToDate):
        return cut_logs(state.last, snapshot, state.last.positions)
    deep = {cut.log: cut for cut in cut_logs(state.plan, snapshot, before)}
    inside = {cut.log: Cut(cut.log, cut.position, before[cut.log]) for cut in cut_logs(state.plan, snapshot, state.plan.positions)}
    return {**inside, **deep}.values()


def _refuse_unknown(named: Sequence[Named], known: Collection[BrokerPartition]) -> None:
    for one in named:
        if one.log is not None and one.log not in known:
            check = f"`etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}"
            raise SettingsError(f"there is no partition {one}", key="LOG", check=check)


def _refuse_what_is_sound(
    named: Sequence[Named], again: Mapping[str, str], cuts: Mapping[BrokerPartition, Cut], snapshot: Snapshot,
) -> None:
    for one in named:
        if one.topic in again or any(one.covers(log) for log in cuts):
            continue
        unread = [log for log in snapshot.leaderless if one.covers(log)]
        if unread:
            raise BrokerUnreachable("the partition has no leader", **unread[0].place, check="its brokers")
        what = f"nothing is wrong with {one}: it was neither cut nor made again"
        raise SettingsError(what, key="LOG", check="`etl plan CONF`, which names what is; a topic that was made again is named as a whole")


def _refuse_other_topics(again: Mapping[str, str], cuts: Mapping[BrokerPartition, Cut], snapshot: Snapshot) -> None:
    """Refuse `--same-log` for topics that are others: only the znode may be another one, and the log reaches up to our position."""
    for topic, now in sorted(again.items()):
        if not is_creation_id(now):
            what = f"it is another topic: the brokers say that its id is {now}"
            raise SettingsError(what, key="--same-log", topic=topic, check="leave --same-log out to go on with the new one")
    for log, cut in sorted(cuts.items()):
        what = f"it is not the same log: it ends at {cut.left_until}, and we were at {cut.position}"
        raise SettingsError(what, key="--same-log", **log.place, check="leave --same-log out to accept that")


def _cut_positions(
    cuts: Mapping[BrokerPartition, Cut], before: Mapping[BrokerPartition, int], wanted: Accepting,
) -> dict[BrokerPartition, int]:
    """Where to go on in the logs that lost what the table has of them."""
    unknown = sorted(log for log, cut in cuts.items() if not cut.is_known)
    if wanted.at is not None and (len(unknown) != 1 or len(cuts) != 1):
        what = "--at is for one partition of which the brokers do not tell where it was cut"
        raise SettingsError(what, key="--at", check="`etl plan CONF`; name that partition alone, or leave --at out")
    if unknown and wanted.at is None:
        log, cut = unknown[0], cuts[unknown[0]]
        what = f"the brokers do not tell where the log was cut: at {cut.left_until} or below"
        check = f"up to which offset its records are those in the table, and say --at that offset; {cut.left_until} if nothing came since"
        raise SettingsError(what, key="--at", **log.place, check=check)
    for log in unknown:
        if wanted.at is not None and wanted.at > cuts[log].left_until:
            what = f"offset {wanted.at} lies above {cuts[log].left_until}, where what is left of the log ends at most"
            raise SettingsError(what, key="--at", **log.place, check="`etl plan CONF`")
    until = {log: cut.left_until if cut.is_known or wanted.at is None else wanted.at for log, cut in cuts.items()}
    return {log: at for log, at in until.items() if at < before[log]}


def _starts_anew(
    again: Mapping[str, str], before: Mapping[BrokerPartition, int], snapshot: Snapshot, settings: Settings,
) -> dict[BrokerPartition, int]:
    """Where the logs of topics that were made again start, by `source.start_new_topics`; at 0 where the new topic lacks a partition.

    A physical log whose broker is away stays as it is: that broker alone has it, and it may still be the one that was.
    """
    ours = sorted(log for log in before if log.topic in again and not (log.is_physical and log in snapshot.leaderless))
    for log in ours:
        if log in snapshot.leaderless:
            what = "the partition has no leader, so nobody tells where it starts"
            raise BrokerUnreachable(what, **log.place, check="the brokers that hold its replicas")
    is_latest = settings.source.start_new_topics is StartAt.LATEST
    extents = {log: snapshot.extents.get(log) for log in ours}
    return {log: 0 if e is None else e.end_offset if is_latest else e.log_start_offset for log, e in extents.items()}


def _vanished_from(log: BrokerPartition, moved: Mapping[BrokerPartition, int], again: Mapping[str, str]) -> int:
    return 0 if log.topic in again else moved[log]


def _losses(state: UpToDate | Replay, moved: Mapping[BrokerPartition, int]) -> Iterable[Loss]:
    """What somebody moved a committed offset past, as the next plan would say it; or what the plan let go that is replaced.

    Of that not what an operator skipped in ranges that are now read anew, by a later plan: nothing of it was let go.
    """
    if isinstance(state, Replay):
        again = let_go_among(state.plan)
        yield from (loss for loss in state.plan.losses if loss not in again)
        return
    for log, offset in sorted(state.followed.items()):
        if log not in moved:
            yield Loss(log, state.last.positions[log], offset, LossReason.MOVED, state.last.log_epochs.get(log, 0))


def _left_of(
    lineages: Mapping[BrokerPartition, Lineage], moved: Mapping[BrokerPartition, int], exact: Collection[BrokerPartition],
) -> dict[BrokerPartition, Lineage]:
    """The epochs of what is left of logs of which it is known where they were cut, and those of the others that stay where they are."""
    left = {log: tuple(one for one in lineage if log not in moved or one[1] < moved[log]) for log, lineage in lineages.items()}
    return {log: lineage for log, lineage in left.items() if lineage and (log not in moved or log in exact)}


def _without(epochs: Mapping[BrokerPartition, int], moved: Mapping[BrokerPartition, int]) -> dict[BrokerPartition, int]:
    return {log: epoch for log, epoch in epochs.items() if log not in moved}
