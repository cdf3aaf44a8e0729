"""Which logs an operator's words decide, and to what: cut, made again, or the same. Pure functions
of values.

    what is named                             it goes on
    ---------------------------------------   -------------------------------------------------------------------------------------
    a log that was cut                        where it was cut, as the brokers tell, or at `--at`
    a topic of Kafka that was made again      in all of its logs where `source.start_new_topics` says; with `--same-log` where it was
    an undecided physical log (`made_again`)  with other bytes than were read: where `source.start_new_topics` says; with the same ones:
                                              where it was; where they do not tell: as the operator says, who must name it itself
    the same, and its broker is away          not yet: it stays undecided

`--same-log` is refused for a log that is known to be another, and its absence for one that is known
to be the same: what follows from an error there are lost or doubled rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from etl.decisions.byte_positions.misplaced_offsets import refuse_named
from etl.decisions.identity.accepting import Accepting
from etl.decisions.identity.log_identity import Cut
from etl.decisions.identity.made_again import (
    compared_ids,
    is_creation_id,
    is_what_was_read,
    named,
    topics_made_again,
    undecided_logs,
    waiting_logs,
    ways_out,
)
from etl.errors import BrokerUnreachable, SettingsError
from etl.model.partitions import FORM_OF_PARTITION, BrokerPartition, Named
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.settings.choices import StartAt
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Accepted:
    """What becomes of which logs."""

    again: Mapping[str, str]
    """Topics that were decided as a whole, and their ids of now."""
    moved: Mapping[BrokerPartition, int]
    """Logs that go on as another life, and where."""
    anew: frozenset[BrokerPartition]
    """Those of them of which nothing is left that was read."""
    cut: frozenset[BrokerPartition]
    """Logs that were cut, also those that need not move: only records that a stored plan would have
    read are gone.
    """
    exact: frozenset[BrokerPartition]
    """Those of which it is known where they were cut."""
    same: frozenset[BrokerPartition]
    """Undecided logs that go on as what they were."""


def accepted_logs(
    wanted: Accepting,
    old: Plan,
    before: Mapping[BrokerPartition, int],
    all_cuts: Collection[Cut],
    snapshot: Snapshot,
    settings: Settings,
) -> Accepted:
    """What the words come to where `old` is the newest plan and `before` the positions to go on
    from.

    Raises SettingsError for a log with which nothing is wrong, and where it must be said otherwise
    what is accepted; BrokerUnreachable where whoever has the log is away.
    """
    again = {
        topic: now
        for topic, now in topics_made_again(old, snapshot).items()
        if Named(topic) in wanted.named
    }
    undecided = set(undecided_logs(old, snapshot))
    waiting = [log for log in waiting_logs(old, snapshot) if wanted.covers(log)]
    cuts = {cut.log: cut for cut in all_cuts if wanted.covers(cut.log) and cut.log not in undecided}
    _refuse_unknown(wanted.named, {*before, *snapshot.extents, *snapshot.leaderless})
    _refuse_what_is_sound(wanted.named, again, {*cuts, *waiting}, snapshot)
    if wanted.is_same_log:
        _refuse_other_topics(
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
    same = {log for log in waiting if _goes_on(log, wanted, old, snapshot)}
    anew = {
        *(log for log in before if log.topic in again),
        *(log for log in waiting if log not in same),
    }
    moved = {
        **_cut_positions(of_the_same, before, wanted, snapshot),
        **_starts_anew(anew, snapshot, settings),
    }
    exact = frozenset(log for log, cut in of_the_same.items() if cut.is_known)
    return Accepted(again, moved, frozenset(anew), frozenset(of_the_same), exact, frozenset(same))


def _refuse_unknown(names: Sequence[Named], known: Collection[BrokerPartition]) -> None:
    for one in names:
        if one.log is not None and one.log not in known:
            check = f"`etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}"
            raise SettingsError(f"there is no partition {one}", key="LOG", check=check)


def _refuse_what_is_sound(
    names: Sequence[Named],
    again: Mapping[str, str],
    unsound: Collection[BrokerPartition],
    snapshot: Snapshot,
) -> None:
    for one in names:
        if one.topic in again or any(one.covers(log) for log in unsound):
            continue
        _refuse_not_there(one, snapshot)
        unread = sorted(log for log in snapshot.leaderless if one.covers(log))
        if unread:
            raise BrokerUnreachable(
                "the partition has no leader", **unread[0].place, check="its brokers"
            )
        what = f"nothing is wrong with {one}: it was neither cut nor made again"
        check = "`etl plan CONF`, which names what is; a topic of Kafka 0.8 or later that was made again is named as a whole"
        raise SettingsError(what, key="LOG", check=check)


def _refuse_not_there(one: Named, snapshot: Snapshot) -> None:
    """Refuse a topic that was deleted and not made again: there is no log to go on with. Raises
    SettingsError.
    """
    there = (*snapshot.extents, *snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    if any(log.topic == one.topic for log in there):
        return
    newest = snapshot.ledger.newest
    check = (
        "its spelling and source.topics; a topic that was deleted is accepted once it is made again"
    )
    if newest and one.topic in snapshot.gone_topics:
        check = (
            f"whether it was deleted; what plan {newest.number} reads of it is given up by: "
            f"etl plans supersede CONF {newest.number} --reason ..."
        )
    raise SettingsError(
        "the topic is not there, or the conf does not name it",
        key="LOG",
        topic=one.topic,
        check=check,
    )


def _refuse_other_topics(again: Mapping[str, str], cuts: Mapping[BrokerPartition, Cut]) -> None:
    """Refuse `--same-log` for topics that are others: only the znode may be another one, and the
    log reaches up to our position.
    """
    for topic, now in sorted(again.items()):
        if not is_creation_id(now):
            what = f"it is another topic: the brokers say that its id is {now}"
            raise SettingsError(
                what,
                key="--same-log",
                topic=topic,
                check="leave --same-log out to go on with the new one",
            )
    for log, cut in sorted(cuts.items()):
        what = (
            "it holds other bytes than were read"
            if cut.holds_others
            else f"it ends at {cut.left_until}, and we were at {cut.position}"
        )
        check = "leave --same-log out to accept that"
        raise SettingsError(
            f"it is not the same log: {what}", key="--same-log", **log.place, check=check
        )


def _known_as_same(
    waiting: Sequence[BrokerPartition],
    wanted: Accepting,
    old: Plan,
    snapshot: Snapshot,
) -> Sequence[BrokerPartition]:
    """The logs of `--same-log`: none of them may be known to be another, and of which nothing tells
    each is named itself.
    """
    for log in waiting:
        told = is_what_was_read(log, old, snapshot)
        if told is False:
            what = "it is not the same log: the bytes that were read are not there any more"
            raise SettingsError(
                what,
                key="--same-log",
                **log.place,
                check="leave --same-log out to read it from its start",
            )
        if told is None and not wanted.names_itself(log):
            raise _untold(log, old, snapshot)
    return waiting


def _goes_on(log: BrokerPartition, wanted: Accepting, old: Plan, snapshot: Snapshot) -> bool:
    """Whether an undecided log goes on where it was: by its bytes, and where they do not tell by
    being named itself.
    """
    told = is_what_was_read(log, old, snapshot)
    if told is None and not wanted.names_itself(log):
        raise _untold(log, old, snapshot)
    if told and wanted.names_itself(log):
        what = "it is the same log: the bytes that were read last are there, and read from its start its rows would be in the table twice"
        check = "--same-log, which goes on where it was; if its messages are all alike and it is another all the same: --at OFFSET"
        raise SettingsError(what, key="LOG", **log.place, check=check)
    return bool(told)


def _untold(log: BrokerPartition, old: Plan, snapshot: Snapshot) -> SettingsError:
    what = "nothing tells whether it is the log that was: it must be named itself"
    return SettingsError(what, key="LOG", **log.place, check=ways_out([log], old, snapshot)[0])


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
            "--at is for one partition",
            key="--at",
            check="`etl plan CONF`; name that partition alone, or leave --at out",
        )
    if wanted.at > before[log]:
        what = f"offset {wanted.at} lies above {before[log]}, up to where the log was read"
        raise SettingsError(what, key="--at", **log.place, check="`etl plan CONF`")
    refuse_named(log, wanted.at, snapshot, key="--at")
    return {log: wanted.at}


def _cut_positions(
    cuts: Mapping[BrokerPartition, Cut],
    before: Mapping[BrokerPartition, int],
    wanted: Accepting,
    snapshot: Snapshot,
) -> dict[BrokerPartition, int]:
    """Where to go on in the logs that lost what the table has of them."""
    unknown = sorted(log for log, cut in cuts.items() if not cut.is_known)
    if wanted.at is not None and (len(unknown) != 1 or len(cuts) != 1):
        what = "--at is for one partition of which the brokers do not tell where it was cut"
        raise SettingsError(
            what, key="--at", check="`etl plan CONF`; name that partition alone, or leave --at out"
        )
    if unknown and wanted.at is None:
        log, cut = unknown[0], cuts[unknown[0]]
        what = f"the brokers do not tell where the log was cut: at {cut.left_until} or below"
        check = f"up to which offset its records are those in the table, and say --at that offset; {cut.left_until} if nothing came since"
        if log.is_physical:
            check = "up to which offset its records are those in the table (etl peek), and say --at that offset; 0 if it was made again"
        raise SettingsError(what, key="--at", **log.place, check=check)
    for log in unknown:
        if wanted.at is not None and wanted.at > cuts[log].left_until:
            what = f"offset {wanted.at} lies above {cuts[log].left_until}, where what is left of the log ends at most"
            raise SettingsError(what, key="--at", **log.place, check="`etl plan CONF`")
        if wanted.at is not None:
            refuse_named(log, wanted.at, snapshot, key="--at")
    until = {
        log: cut.left_until if cut.is_known or wanted.at is None else wanted.at
        for log, cut in cuts.items()
    }
    return {log: at for log, at in until.items() if at < before[log]}


def _starts_anew(
    logs: Collection[BrokerPartition], snapshot: Snapshot, settings: Settings
) -> dict[BrokerPartition, int]:
    """Where logs that were made again start, by `source.start_new_topics`; at 0 where the new topic
    lacks a partition.
    """
    for log in sorted(logs):
        if log in snapshot.leaderless:
            what = "the partition has no leader, so nobody tells where it starts"
            raise BrokerUnreachable(what, **log.place, check="the brokers that hold its replicas")
    is_latest = settings.source.start_new_topics is StartAt.LATEST
    extents = {log: snapshot.extents.get(log) for log in logs}
    return {
        log: 0 if e is None else e.end_offset if is_latest else e.log_start_offset
        for log, e in extents.items()
    }


def told_of(old: Plan, plan: Plan, snapshot: Snapshot) -> list[str]:
    """What an operator should hear of the logs that `plan` decides, and of those that it leaves
    undecided: a sentence for each kind.
    """
    undecided, left = undecided_logs(old, snapshot), undecided_logs(plan, snapshot)
    decided = [log for log in undecided if log not in left]
    kept = [log for log in decided if plan.log_epochs.get(log, 0) == old.log_epochs.get(log, 0)]
    doubtful = [log for log in decided if is_what_was_read(log, old, snapshot) is None]
    is_there = set(waiting_logs(plan, snapshot))
    topics = [
        topic
        for topic in topics_made_again(old, snapshot)
        if plan.topic_ids[topic] != old.topic_ids[topic]
    ]
    same = [
        topic
        for topic in topics
        if all(
            plan.log_epochs.get(log, 0) == old.log_epochs.get(log, 0)
            for log in plan.positions
            if log.topic == topic
        )
    ]
    said = {
        "goes on where it was": named([log for log in kept if log not in doubtful]),
        "goes on where it was, by your word alone: if it is another log, its records below that are never loaded": named(
            [log for log in kept if log in doubtful]
        ),
        "is another log by your word alone: if it is the one that was, its rows are in the table twice, under two log_epochs": named(
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
    return [f"{names}: {what}" for what, names in said.items() if names]
