"""Is this still the partition that was read: not truncated, not recreated, of the same cluster?

Truncation: after an unclean leader election or a restored disk other records have the same offsets.
A plan keeps the leader epoch of the ends that it uses, a range result that of its last record batch
(KIP-101). The next run asks where that epoch ends (OffsetForLeaderEpoch, KIP-320): below the
position, the partition was truncated there. The record batch's own epoch must be the one found,
too: a former leader may return with a longer log. Brokers before 2.1 have no usable epochs: there,
and after a restart of a single broker with half its disk in the same epoch, only an end below the
position shows it.

Recreation: from Kafka 0.8 on the topic id tells; before 2.8 the creation of its znode.

Jafka and Kafka 0.7 have neither. A topic may be recreated on one broker and kept by another, so
each partition is judged alone, by a digest of the bytes before the position (tail fingerprint).
Bytes that expired and logs of equal messages prove nothing; an operator decides. A partition whose
broker is unavailable stays undecided.

Cluster: its name is part of the table's application id, so a pipeline keeps the one it began
with. Brokers report an id from 0.10.1 on; during an upgrade the name must not change.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from etl.errors import NeedsDecision, PartitionTruncated, SettingsError, TopicRecreated
from etl.ledger.registrations import CREATION_ID
from etl.model.partitions import (
    BrokerPartition,
    Lineage,
    PartitionOffsets,
    Tail,
    quoted_log,
    render_log,
)
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Snapshot

TAIL_BYTES = 1024
"""So many of a log are compared, or all of it where it holds fewer."""


def end_places(
    extents: Mapping[BrokerPartition, PartitionOffsets],
) -> dict[BrokerPartition, tuple[int, int]]:
    """Return where the next tail fingerprints are: offset and number of bytes before each end."""
    places = {
        log: _place(extent.end_offset, extent) for log, extent in extents.items() if log.is_physical
    }
    return {log: place for log, place in places.items() if place[1]}


def known_places(
    plan: Plan | None, extents: Mapping[BrokerPartition, PartitionOffsets]
) -> dict[BrokerPartition, tuple[int, int]]:
    """Return where the plan's tail fingerprints are, of partitions that still cover them."""
    tails = plan.tails if plan else {}
    return {
        log: (tail.until_offset, tail.size)
        for log, tail in tails.items()
        if log in extents
        and extents[log].log_start_offset <= tail.until_offset - tail.size
        and tail.until_offset <= extents[log].end_offset
    }


def tails_to_record(
    plan: Plan | None, logs: Iterable[BrokerPartition], snapshot: Snapshot
) -> dict[BrokerPartition, Tail]:
    """Return the tail fingerprints of the next plan: at the current ends, also if it stops before
    them; else the former ones.
    """
    known = plan.tails if plan else {}
    there = {
        log: snapshot.tails.get(log, ()) for log in snapshot.extents
    }  # one that is left to its owner is not compared
    kept = {
        log: max(there.get(log, ()), key=lambda tail: tail.until_offset, default=known.get(log))
        for log in logs
    }
    return {log: tail for log, tail in kept.items() if tail}


def holds_what_was_read(log: BrokerPartition, plan: Plan, snapshot: Snapshot) -> bool | None:
    """True if the partition still has the plan's fingerprint; None if that is unknown."""
    known, extent = plan.tails.get(log), snapshot.extents.get(log)
    if extent is None or known is None:
        return None
    if extent.end_offset < known.until_offset:
        return False
    there = [
        tail
        for tail in snapshot.tails.get(log, ())
        if (tail.until_offset, tail.size) == (known.until_offset, known.size)
    ]
    return known in there if there else None


def _place(until: int, extent: PartitionOffsets) -> tuple[int, int]:
    """The bytes before `until`, also where they are in several segments: the newest may hold one
    message, and that one may come again.
    """
    return until, min(TAIL_BYTES, until - extent.log_start_offset)


_NAMED = 20
"""How many logs one message names."""


def is_creation_id(topic_id: str) -> bool:
    """True if it is only the id of the topic's znode: brokers before 2.8 have no topic ids."""
    return topic_id.startswith(CREATION_ID)


def recreated_topics(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """The topics that are others as a whole, and their ids of now; those of physical logs are not
    among them.
    """
    physical = {log.topic for log in (*plan.positions, *plan.pending_starts) if log.is_physical}
    both = {
        topic: compared_ids(topic, plan, snapshot)
        for topic in sorted(plan.topic_ids.keys() - physical)
    }
    return {
        topic: snapshot.topic_ids[topic] for topic, ids in both.items() if ids and ids[0] != ids[1]
    }


def compared_ids(topic: str, plan: Plan, snapshot: Snapshot) -> tuple[str, str] | None:
    """Return a topic's id in the plan and now, of one kind.

    Topic ids if both sides have them, since ZooKeeper's content may be copied. Brokers report them
    after an upgrade, and not if the conf names an older release: then znode ids. None if no kind is
    common.
    """
    known, now = plan.topic_ids.get(topic), snapshot.topic_ids.get(topic)
    if known is None or now is None:
        return None
    if is_creation_id(known) == is_creation_id(now):
        return known, now
    created = known if is_creation_id(known) else plan.creation_ids.get(topic)
    created_now = now if is_creation_id(now) else snapshot.creation_ids.get(topic)
    return (created, created_now) if created and created_now else None


def creations_to_record(topic_ids: Mapping[str, str], *known: Mapping[str, str]) -> dict[str, str]:
    """Return the znode ids that a plan keeps in addition to topic ids; later names win."""
    merged = {topic: found for each in known for topic, found in each.items()}
    return {
        topic: found
        for topic, found in merged.items()
        if not is_creation_id(topic_ids.get(topic, CREATION_ID))
    }


def creations_to_compare(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """Return the ids of the topics of the plan's ranges at the snapshot, if brokers report none and
    tasks cannot compare.
    """
    ids = {
        r.log.topic: snapshot.topic_ids.get(r.log.topic, "")
        for r in plan.ranges
        if r.size and not r.log.is_physical
    }
    return {topic: found for topic, found in sorted(ids.items()) if is_creation_id(found)}


def reject_topics_recreated_since(
    plan: Plan, known: Mapping[str, str], now: Mapping[str, str], *, is_in_table: bool
) -> None:
    """Reject topics of `known` with another id now: the plan's offsets are another topic's. Raises
    TopicRecreated. Deleted topics are reported by their brokers.
    """
    again = [topic for topic, found in known.items() if now.get(topic, found) != found]
    if not again:
        return
    topic, others = again[0], f" (and {len(again) - 1} more topics)" if again[1:] else ""
    message = f"The topic was deleted and made again while it was read: its id is {now[topic]}, planned was {known[topic]}{others}"
    action = f"Check who did it; the next run says so too, then continue with the new one: {accept_command([topic])}"
    if is_in_table:
        message = f"{message}; plan {plan.number} is in the table, and some of its rows may be records of the new topic"
        action = (
            f"Check the plan's rows against the topic's records (etl plans show, etl records show), before anything else: {accept_command([topic])} "
            "reads the new topic from its start, and those that are in the table already come twice"
        )
    raise TopicRecreated(message, topic=topic, action=action)


def id_of(log: BrokerPartition, plan: Plan) -> str | None:
    """The id of its topic under which the log was decided."""
    return plan.log_topic_ids.get(log, plan.topic_ids.get(log.topic))


def undecided_logs(plan: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """The physical logs of which something was read while their topic had another id, in order;
    also those that are away.
    """
    return sorted(
        log
        for log, position in plan.positions.items()
        if log.is_physical
        and position
        and snapshot.topic_ids.get(log.topic, id_of(log, plan)) != id_of(log, plan)
    )


def waiting_logs(plan: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """Return those that stop each run: broker available, not read by others, not paused."""
    alone = {*snapshot.leaderless, *snapshot.extents_of_owned, *snapshot.paused}
    return [log for log in undecided_logs(plan, snapshot) if log not in alone]


def is_what_was_read(log: BrokerPartition, plan: Plan, snapshot: Snapshot) -> bool | None:
    """True if an existing partition is the one that was read; None if unknown. One that ends below
    the plan's position is another one, as is one that its broker lost.
    """
    extent = snapshot.extents.get(log)
    if extent is None or extent.end_offset < plan.positions[log]:
        return False
    return holds_what_was_read(log, plan, snapshot)


def topic_ids_to_record(
    plan: Plan | None,
    decided: Iterable[BrokerPartition],
    positions: Iterable[BrokerPartition],
    topic_ids: Mapping[str, str],
) -> dict[BrokerPartition, str]:
    """Return the topic ids of the next plan: undecided partitions keep their former ids."""
    if plan is None:
        return {}
    left = set(positions).difference(decided)
    ids = {log: id_of(log, plan) for log in left if log.is_physical and plan.positions.get(log)}
    return {
        log: found
        for log, found in ids.items()
        if found is not None and found != topic_ids.get(log.topic)
    }


def reject_recreated_topics(plan: Plan, snapshot: Snapshot) -> None:
    """Offsets of a log mean nothing on another one of the same name. Raises NeedsDecision, which
    names what leads out.
    """
    again = recreated_topics(plan, snapshot)
    for topic in again:
        known, found = compared_ids(topic, plan, snapshot) or ("", "")
        others = f" (and {len(again) - 1} more topics)" if again.keys() - {topic} else ""
        message = f"The topic was deleted and made again: its id is {found}, plan {plan.number} read {known}{others}"
        action = "Check who did it; to continue with the new one: " + accept_command([topic])
        if is_creation_id(found):
            action += (
                "; or, where ZooKeeper's content was copied to another ensemble and it is the same topic, add --not-recreated. Nothing "
                "tells which of the two it is: of another topic --not-recreated would leave out all records below our positions"
            )
        raise NeedsDecision(message, topic=topic, action=action)
    waiting = waiting_logs(plan, snapshot)
    if waiting:
        raise _undecided(waiting, plan, snapshot)


def permanently_missing_topics(plan: Plan, snapshot: Snapshot) -> frozenset[str]:
    """Return the topics of which nothing is left to read: deleted, or recreated by topic id. A
    znode id may also differ because ZooKeeper was copied.
    """
    again = recreated_topics(plan, snapshot)
    return snapshot.missing_topics | {
        topic for topic, found in again.items() if not is_creation_id(found)
    }


def reject_stored_plan_of_recreated_topic(plan: Plan, snapshot: Snapshot) -> None:
    """Reject a stored plan that reads a topic which was deleted and recreated since; it must be in
    the table before the new topic can be accepted. Raises NeedsDecision.
    """
    again = sorted(
        {r.log.topic for r in plan.ranges}.intersection(recreated_topics(plan, snapshot))
        if plan.is_executed_as_it_is
        else ()
    )
    for topic in again:
        known, found = compared_ids(topic, plan, snapshot) or ("", "")
        reason = "was handed over" if plan.handed_over else "a member of the group stored"
        message = (
            f"The topic was deleted and made again: its id is {found}, that of plan {plan.number}, which {reason} and is not in the "
            f"table, is {known}"
        )
        if is_creation_id(found):
            skips = "--skip TOPIC:PARTITION:FROM-UNTIL with each of its ranges "
        else:
            skips = ""
        action = (
            f"Check who did it: what the table lacks of that plan is gone then, and the plan without it is: etl plans supersede CONF "
            f"{plan.number} {skips}--reason ...; `etl run CONF` executes it, and then the new topic is gone on with: "
            f"{accept_command([topic])}"
        )
        raise NeedsDecision(message, topic=topic, action=action)


def _undecided(waiting: Sequence[BrokerPartition], plan: Plan, snapshot: Snapshot) -> NeedsDecision:
    log = waiting[0]
    more = f" (and {len(waiting) - 1:,} more partitions)" if waiting[1:] else ""
    message = (
        f"The topic was deleted and made again, and each of its brokers may have kept its log or lost it: the topic's id is "
        f"{snapshot.topic_ids[log.topic]}, plan {plan.number} read this partition under {id_of(log, plan)}{more}"
    )
    return NeedsDecision(message, **log.place, action=" ".join(ways_out(waiting, plan, snapshot)))


def ways_out(logs: Sequence[BrokerPartition], plan: Plan, snapshot: Snapshot) -> list[str]:
    """Describe undecided partitions and the commands by which each continues: a sentence for each
    kind.
    """
    is_same = {log: is_what_was_read(log, plan, snapshot) for log in logs}
    others, same, unknown = (
        [log for log in logs if is_same[log] is found] for found in (False, True, None)
    )
    sentences = []
    if others:
        sentences.append(
            f"{named(others)}: the bytes that were read or planned are not there any more (where a broker kept its log, and its disk lost "
            "the end of it alone, name the partition and say with --truncated-at up to which offset it kept it)."
        )
    if same:
        sentences.append(f"{named(same)}: the bytes that were read or planned last are there.")
    if unknown:
        names = [render_log(log) for log in unknown[:_NAMED]]
        sentences.append(
            f"{named(unknown)}: nothing tells, as what was read last is not kept any more; compare records with the table's (etl records show). "
            f"Where the broker lost its log: {accept_command(names)}; where it kept it: {accept_command(names, '--not-recreated')}."
        )
    if others or same:
        topics = sorted({log.topic for log in (*others, *same)})
        sentences.append(
            f"{'Then the others' if unknown else 'To go on'}: {accept_command(topics)}, which reads logs that hold other bytes from their "
            "start and the others on from where they were."
        )
    return sentences


def named(logs: Sequence[BrokerPartition]) -> str:
    """The logs as an operator names them, the first of many."""
    more = f" and {len(logs) - _NAMED:,} more" if logs[_NAMED:] else ""
    return " ".join(map(quoted_log, logs[:_NAMED])) + more


def accept_command(names: Iterable[str], *options: str) -> str:
    """The command that leads out, as messages name it."""
    partitions = " -p ".join(map(shlex.quote, names))
    words = " ".join([partitions, *options])
    return f"etl topics accept-changes CONF -p {words} --reason ..."


EPOCHS_KEPT = 16
"""Number of newest leader epochs kept: of a range in its result, of a partition in a plan."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A log that no longer holds the records up to a position of ours."""

    log: BrokerPartition
    position: int
    left_until: int
    """End of the remaining records; if unknown, the highest possible."""
    is_known: bool = True
    holds_others: bool = False
    """Of Jafka: its bytes differ from those that were read or planned."""

    def error(self, others: int = 0) -> PartitionTruncated:
        """Return the error of a run; `others`: number of further truncated partitions."""
        more = f" (and {others} more partitions)" if others else ""
        if self.is_known:
            message, at = (
                f"The log was cut at offset {self.left_until}, and records up to {self.position} were read or planned{more}",
                "",
            )
        else:
            message, at = (
                f"The log was cut at offset {self.left_until} or below, and we were at {self.position}{more}",
                "--truncated-at OFFSET ",
            )
        if self.holds_others:
            before = self.left_until + 1
            message = f"The log holds other bytes before offset {before} than were read or planned, and we were at {self.position}{more}"
        named = quoted_log(self.log)
        action = "Check whether an unclean leader was elected, or a broker lost its disk; to continue from there: "
        if self.log.is_physical:
            action = (
                "Check whether its broker lost the end of its disk, or the topic was deleted and made again on that broker alone; to continue "
                "from where its records are those in the table, from 0 if it was made again: "
            )
        action += f"etl topics accept-changes CONF -p {named} {at}--reason ..."
        return PartitionTruncated(message, **self.log.place, offset=self.position, action=action)


def record_epochs(plan: Plan, applied: CommitResult | None) -> dict[BrokerPartition, Lineage]:
    """The epochs of the record batches up to the plan's position of each log, where the last of
    them ends there.

    `applied` is what came of the newest plan of the ledger, if anybody knows it.
    """
    read = {r.log for r in plan.advancing}
    epochs = {log: lineage for log, lineage in plan.record_epochs.items() if log not in read}
    if read and applied and applied.plan_id == plan.id:
        pairs = sorted(
            zip(plan.ranges, applied.receipts, strict=True), key=lambda pair: pair[0].until_offset
        )
        lineages = {log: plan.record_epochs.get(log, ()) for log in read}
        for r, receipt in pairs:
            lineages[r.log] = joined(lineages[r.log], receipt.epochs)
            if receipt.last_epoch is not None and r.until_offset == plan.positions[r.log]:
                epochs[r.log] = lineages[r.log]
    return {log: lineage for log, lineage in epochs.items() if lineage}


def joined(before: Lineage, more: Lineage) -> Lineage:
    """Return the epochs up to a position and of what was read after it; the newest are kept."""
    known = before[-1][0] if before else -1
    return (*before, *(one for one in more if one[0] > known))[-EPOCHS_KEPT:]


def epochs_to_ask(plan: Plan | None, applied: CommitResult | None) -> dict[BrokerPartition, int]:
    """Which epoch of each log must still reach up to the plan's position."""
    if plan is None:
        return {}
    return {
        **plan.leader_epochs,
        **{log: lineage[-1][0] for log, lineage in record_epochs(plan, applied).items()},
    }


def reject_recreated_or_truncated(
    plan: Plan | None, snapshot: Snapshot, positions: Mapping[BrokerPartition, int] | None = None
) -> None:
    """The offsets of a plan mean nothing on another topic of the same name, nor where the log lost
    them.

    `positions`, where they are not the plan's own: up to where its offsets must hold. Raises
    NeedsDecision, PartitionTruncated.
    """
    if plan is None:
        return
    reject_recreated_topics(plan, snapshot)
    cuts = truncated_partitions(plan, snapshot, plan.positions if positions is None else positions)
    if cuts:
        raise cuts[0].error(len(cuts) - 1)


def other_logs(
    plan: Plan | None, snapshot: Snapshot, positions: Mapping[BrokerPartition, int]
) -> frozenset[BrokerPartition]:
    """The logs for which `reject_recreated_or_truncated` raises: no number that is reckoned with the plan's
    offsets means anything there.
    """
    if plan is None:
        return frozenset()
    again = recreated_topics(plan, snapshot)
    others = {log for log in snapshot.extents if log.topic in again} | {
        cut.log for cut in truncated_partitions(plan, snapshot, positions)
    }
    return frozenset(others.union(waiting_logs(plan, snapshot)))


def truncated_partitions(
    plan: Plan, snapshot: Snapshot, positions: Mapping[BrokerPartition, int]
) -> list[Cut]:
    """The logs that lost records below these positions, in order; of those that can be read now."""
    sharp = record_epochs(plan, snapshot.ledger.applied)
    begins = {r.log: r.from_offset for r in sorted(plan.advancing, key=lambda r: -r.from_offset)}
    found: list[Cut | None] = []
    for log in sorted(log for log in positions if log in snapshot.extents):
        if positions[log] and holds_what_was_read(log, plan, snapshot) is False:
            left = min(plan.tails[log].until_offset - 1, snapshot.extents[log].end_offset)
            found.append(
                Cut(
                    log,
                    positions[log],
                    left,
                    is_known=False,
                    holds_others=left < snapshot.extents[log].end_offset,
                )
            )
            continue
        if log in sharp:
            known = _Known(sharp[log][-1][0], sharp[log], plan.positions[log], ends_there=True)
        else:
            known = _Known(
                plan.leader_epochs.get(log),
                plan.record_epochs.get(log, ()),
                begins.get(log, 0),
                ends_there=False,
            )
        found.append(_cut(log, positions[log], snapshot, known))
    return [cut for cut in found if cut]


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one partition: the requested epoch, and epochs of the records up to an
    offset.
    """

    epoch: int | None
    lineage: Lineage
    reaches: int
    ends_there: bool
    """True if the requested epoch is the last one and nothing was read after it."""

    def end_of(self, epoch: int) -> tuple[int, bool] | None:
        """Up to where our records are of this epoch; False: at least. None: we know of none."""
        for i, (one, _) in enumerate(self.lineage):
            if one == epoch:
                if i + 1 < len(self.lineage):
                    return (self.lineage[i + 1][1], True)
                return (self.reaches, self.ends_there)
        return None


def _cut(log: BrokerPartition, position: int, snapshot: Snapshot, known: _Known) -> Cut | None:
    """Return where the partition was truncated. Records of one epoch are equal in all replicas, so
    two logs agree up to the end of the shorter one.
    """
    end = snapshot.epoch_ends.get(log)
    if end is None or end.asked_epoch != known.epoch:
        extent = snapshot.extents[log]
        end_offset = extent.end_offset + extent.held_back
        return Cut(log, position, end_offset, is_known=False) if end_offset < position else None
    is_another = known.ends_there and end.epoch < end.asked_epoch
    if end.end_offset >= position and not is_another:
        return None
    ours, is_whole = known.end_of(end.epoch) or (0, False)
    left = min(end.end_offset, ours if is_whole else position)
    is_exact = is_whole or end.end_offset <= ours or end.epoch == end.asked_epoch
    # in the leader's own epoch this is only the log's end: somebody may have written since it was
    # cut, and nobody was elected
    return Cut(log, position, left, is_exact and end.asked_epoch != snapshot.leader_epochs.get(log))


_APART = (
    "offsets of one cluster mean nothing on another, which takes a pipeline and a table of its own"
)


@dataclass(frozen=True, slots=True)
class ClusterName:
    """A cluster's name, and its id in addition."""

    name: str
    cluster_id: str | None = None
    """The id that the brokers report, or reported for the newest plan; None if it is the name, or
    was never reported.
    """


def cluster_name(
    newest: Plan | None,
    reported: str | None,
    assumed: str | None,
    is_in_table: Callable[[str], bool],
) -> ClusterName:
    """Return the name of a pipeline's cluster.

    `reported`: the id that brokers report; `assumed`: `cluster` of the conf. `is_in_table`: whether the
    table has commits under a name; called if the ledger has no plan and two names are possible.
    Raises SettingsError without any name, NeedsDecision for another cluster than the newest plan's.
    """
    if newest is not None:
        return _as_planned(newest, reported, assumed)
    if reported is None:
        return ClusterName(_said(assumed, "Set source.assume_cluster_id to a name of the cluster"))
    if assumed and assumed != reported and is_in_table(assumed) and not is_in_table(reported):
        return ClusterName(assumed, reported)
    return ClusterName(reported)


def is_same_cluster(plan: Plan, snapshot: Snapshot, assumed: str | None) -> bool:
    """True if the plan, of any pipeline, is of the observed cluster: by ids if known, else by
    names.
    """
    if plan.cluster == snapshot.cluster:
        return (
            None in (plan.cluster_id, snapshot.cluster_id) or plan.cluster_id == snapshot.cluster_id
        )
    if plan.cluster_id is not None:
        return plan.cluster_id in (snapshot.cluster, snapshot.cluster_id)
    return plan.cluster in (snapshot.cluster_id, assumed)


def name_put_back(cluster: str) -> str:
    """The way out where a pipeline's own brokers are taken for another cluster."""
    return f"only if these are the brokers that it was loaded from, upgraded since: `cluster: {cluster}` in the conf"


def _as_planned(newest: Plan, reported: str | None, assumed: str | None) -> ClusterName:
    name, known = newest.cluster, newest.cluster_id
    if reported is None:
        assumed = _said(
            assumed,
            f"`cluster: {name}` in the conf, the name under which the ledger has this pipeline",
        )
    if name == reported:
        return ClusterName(name)
    if name != assumed:
        message = f"The newest plan is of cluster {name}, and these brokers are of cluster {reported or assumed}"
        raise NeedsDecision(
            message,
            key="cluster",
            action=f"Check what the conf points at: {_APART}; {name_put_back(name)}",
        )
    if reported and known and reported != known:
        message = f"The newest plan is of cluster {name}, that of id {known}, and these brokers tell {reported}"
        raise NeedsDecision(
            message, key="cluster", action=f"Check what the conf points at: {_APART}"
        )
    return ClusterName(name, reported or known)


def _said(assumed: str | None, action: str) -> str:
    if not assumed:
        raise SettingsError("The brokers tell no cluster id", key="cluster", action=action)
    return assumed
