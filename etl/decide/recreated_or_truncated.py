"""Is this still the partition that was read: not truncated, not recreated, of the same cluster?

Truncation: after an unclean leader election or a restored disk other records have the same offsets.
A plan keeps the leader epoch of the ends that it uses, a range result that of its last record batch
(KIP-101). The next run requests the end of that epoch (OffsetForLeaderEpoch, KIP-320): if it is
below the loaded-until offset, the partition was truncated there. The record batch's own epoch must
be the one found, too: a former leader may return with a longer log. Brokers before 2.1 have no
usable epochs: there, and after a restart of a single broker with half its disk in the same epoch,
only an end below the loaded-until offset shows it.

Recreation: from Kafka 2.8 on the topic id shows it; from 0.8 to 2.7 the creation of the znode.

Jafka and Kafka 0.7 have neither. A topic may be recreated on one broker and kept by another, so
each partition is decided alone, by a digest of the bytes before the loaded-until offset (tail
fingerprint). Expired bytes and logs of equal messages prove nothing; an operator decides. A
partition of an unavailable broker stays undecided.

Cluster: its name is part of the table's application id, so a pipeline keeps its first name. Brokers
report an id from 0.10.1 on; during an upgrade the name must not change.

Lives here: these comparisons, and their errors with the commands that resolve them. Not here:
accepting a change (etl/decide/accept_partitions.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from etl.errors import NeedsDecision, PartitionTruncated, SettingsError, TopicRecreated
from etl.model.partitions import (
    BrokerFamily,
    ClusterIdentity,
    EpochEnd,
    Fingerprint,
    Lineage,
    PartitionOffsets,
    TopicPartition,
    drop_keys,
    quoted_partition,
    render_partition,
    topics_of,
)
from etl.model.plans import CREATION_ID, CommitResult, CommitState, Plan
from etl.model.snapshot import Snapshot

TAIL_BYTES = 1024
"""Number of bytes of a tail fingerprint; a shorter log is compared whole."""


def end_places(
    extents: Mapping[TopicPartition, PartitionOffsets],
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the places of the next tail fingerprints: an end, and the bytes before it."""
    places = {}
    for partition, offsets in extents.items():
        if not partition.is_physical:
            continue
        place = _place(offsets.end_offset, offsets)
        if place[1]:
            places[partition] = place
    return places


def known_places(
    plan: Plan | None, extents: Mapping[TopicPartition, PartitionOffsets]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the places of the plan's tail fingerprints, if their bytes are still in the log."""
    places: dict[TopicPartition, tuple[int, int]] = {}
    if plan is None:
        return places
    for partition, tail in plan.fingerprints.items():
        offsets = extents.get(partition)
        if offsets is None:
            continue
        start = tail.until_offset - tail.size
        if offsets.log_start_offset <= start and tail.until_offset <= offsets.end_offset:
            places[partition] = (tail.until_offset, tail.size)
    return places


def leader_epochs_to_record(
    old: Plan, snapshot: Snapshot, moved: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the leader epochs of a plan after `old`: the observed ones of moved partitions."""
    epochs = drop_keys(old.leader_epochs, moved)
    for partition in moved:
        observed = snapshot.partition(partition).leader_epoch
        if observed is not None:
            epochs[partition] = observed
    return epochs


def fingerprints_to_record(
    plan: Plan | None, partitions: Iterable[TopicPartition], snapshot: Snapshot
) -> dict[TopicPartition, Fingerprint]:
    """Return the tail fingerprints of the next plan.

    They are those at the current ends, also if the plan stops before them; else the former ones. A
    partition that is left to its owner is not compared.
    """
    known: Mapping[TopicPartition, Fingerprint] = {}
    if plan:
        known = plan.fingerprints
    fingerprints = {}
    for partition in partitions:
        if not partition.is_physical:
            continue
        observed = snapshot.partition(partition).fingerprints
        if observed and partition in snapshot.readable:
            fingerprints[partition] = max(observed, key=lambda tail: tail.until_offset)
        elif partition in known:
            fingerprints[partition] = known[partition]
    return fingerprints


def holds_what_was_read(partition: TopicPartition, plan: Plan, snapshot: Snapshot) -> bool | None:
    """True if the partition still has the plan's fingerprint; None if that is unknown."""
    known = plan.fingerprints.get(partition)
    offsets = snapshot.readable.get(partition)
    if offsets is None or known is None:
        return None
    if offsets.end_offset < known.until_offset:
        return False
    known_place = (known.until_offset, known.size)
    same_place = []
    for tail in snapshot.partition(partition).fingerprints:
        if (tail.until_offset, tail.size) == known_place:
            same_place.append(tail)
    if not same_place:
        return None
    return known in same_place


def _place(until: int, offsets: PartitionOffsets) -> tuple[int, int]:
    """Return the place of the bytes before `until`, also if they are in several segments.

    The newest segment may have only one message, and an equal one may follow.
    """
    return until, min(TAIL_BYTES, until - offsets.log_start_offset)


_NAMED = 20
"""Number of partitions that one message names."""


def is_creation_id(topic_id: str) -> bool:
    """True if it is only the id of the topic's znode: brokers before 2.8 have no topic ids."""
    return topic_id.startswith(CREATION_ID)


def recreated_topics(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """Return the topics that were recreated as a whole, and their present ids.

    Topics of Jafka are not among them.
    """
    recreated = {}
    for topic in sorted(plan.topic_ids):
        ids = compared_ids(topic, plan, snapshot)
        if ids and ids[0] != ids[1]:
            recreated[topic] = snapshot.topic_ids[topic]
    if not recreated:
        return {}
    physical = {
        partition.topic for partition in (*plan.partitions, *plan.pending) if partition.is_physical
    }
    return drop_keys(recreated, physical)


def compared_ids(topic: str, plan: Plan, snapshot: Snapshot) -> tuple[str, str] | None:
    """Return a topic's id in the plan and now, of one kind.

    Topic ids if both sides have them, since ZooKeeper's content may be copied. Brokers report them
    after an upgrade, and not if the conf names an older release: then znode ids. None if no kind is
    common.
    """
    known = plan.topic_ids.get(topic)
    now = snapshot.topic_ids.get(topic)
    if known is None or now is None:
        return None
    if is_creation_id(known) == is_creation_id(now):
        return known, now
    created = plan.creation_ids.get(topic)
    if is_creation_id(known):
        created = known
    created_now = snapshot.creation_ids.get(topic)
    if is_creation_id(now):
        created_now = now
    if created and created_now:
        return created, created_now
    return None


def creations_to_record(topic_ids: Mapping[str, str], *known: Mapping[str, str]) -> dict[str, str]:
    """Return the znode ids that a plan keeps in addition to topic ids; later arguments win."""
    kept = {}
    for creation_ids in known:
        for topic, creation_id in creation_ids.items():
            if not is_creation_id(topic_ids.get(topic, CREATION_ID)):
                kept[topic] = creation_id
    return kept


def creations_to_compare(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """Return the znode ids of the topics of the plan's ranges, of topics without topic id.

    Tasks cannot compare those.
    """
    ids = {}
    for r in plan.ranges:
        topic_id = snapshot.topic_ids.get(r.partition.topic, "")
        if r.size and not r.partition.is_physical and is_creation_id(topic_id):
            ids[r.partition.topic] = topic_id
    return dict(sorted(ids.items()))


def reject_topics_recreated_since(
    plan: Plan, known: Mapping[str, str], now: Mapping[str, str], *, is_in_table: bool
) -> None:
    """Reject topics of `known` with another id now: the plan's offsets are another topic's.

    Raises TopicRecreated. Deleted topics are reported by their brokers.
    """
    recreated = []
    for topic, known_id in known.items():
        if now.get(topic, known_id) != known_id:
            recreated.append(topic)
    if not recreated:
        return
    topic = recreated[0]
    message = (
        f"The topic was deleted and recreated while it was read: its id is {now[topic]}, "
        f"planned was {known[topic]}"
    )
    if len(recreated) > 1:
        message += f" (and {len(recreated) - 1} more topics)"
    command = accept_command([topic])
    action = (
        "Check who recreated it. The next run reports it too: then continue with the new topic: "
        f"{command}"
    )
    if is_in_table:
        message += (
            f"; plan {plan.number} is in the table, and some of its rows may be records of the "
            "new topic"
        )
        action = (
            "Compare the plan's rows with the topic's records (etl plans show, etl records show) "
            f"before anything else: {command} reads the new topic from its start, and its records "
            "that are in the table already come twice"
        )
    raise TopicRecreated(message, topic=topic, action=action)


def id_of(partition: TopicPartition, plan: Plan) -> str | None:
    """Return the topic id under which the partition was decided."""
    planned = plan.partition(partition)
    if planned and planned.topic_id is not None:
        return planned.topic_id
    return plan.topic_ids.get(partition.topic)


def undecided_partitions(plan: Plan, snapshot: Snapshot) -> list[TopicPartition]:
    """Return the Jafka partitions that were read while their topic had another id, in order.

    Partitions of unavailable brokers are among them.
    """
    undecided = []
    for partition, position in plan.loaded_until.items():
        if not position or not partition.is_physical:
            continue
        known_id = id_of(partition, plan)
        if snapshot.topic_ids.get(partition.topic, known_id) != known_id:
            undecided.append(partition)
    return sorted(undecided)


def waiting_partitions(plan: Plan, snapshot: Snapshot) -> list[TopicPartition]:
    """Return the undecided partitions that stop each run.

    Their brokers are available, and they are neither read by others nor paused.
    """
    undecided = undecided_partitions(plan, snapshot)
    if not undecided:
        return []
    left_alone = {*snapshot.leaderless, *snapshot.left_out, *snapshot.paused}
    return [partition for partition in undecided if partition not in left_alone]


def is_what_was_read(partition: TopicPartition, plan: Plan, snapshot: Snapshot) -> bool | None:
    """True if an existing partition is the one that was read; None if unknown.

    False if it ends below the plan's loaded-until offset, or its broker lost it.
    """
    offsets = snapshot.readable.get(partition)
    if offsets is None or offsets.end_offset < plan.loaded_until[partition]:
        return False
    return holds_what_was_read(partition, plan, snapshot)


def topic_ids_to_record(
    plan: Plan | None,
    decided: Iterable[TopicPartition],
    positions: Iterable[TopicPartition],
    topic_ids: Mapping[str, str],
) -> dict[TopicPartition, str]:
    """Return the topic ids of the next plan: undecided partitions keep their former ids."""
    if plan is None:
        return {}
    # Of a partition without its broker the new topic id proves nothing. It stays undecided in later
    # plans, whatever is accepted of its topic, and stops the runs once the broker is back.
    ids = {}
    for partition in set(positions).difference(decided):
        if partition.is_physical and plan.loaded_until.get(partition):
            known_id = id_of(partition, plan)
            if known_id is not None and known_id != topic_ids.get(partition.topic):
                ids[partition] = known_id
    return ids


def reject_recreated_topics(plan: Plan, snapshot: Snapshot) -> None:
    """Reject recreated topics, and undecided partitions of Jafka: the plan's offsets mean nothing
    there. Raises NeedsDecision.
    """
    recreated = recreated_topics(plan, snapshot)
    for topic in recreated:
        known_id, topic_id = compared_ids(topic, plan, snapshot) or ("", "")
        message = (
            f"The topic was deleted and recreated: its id is {topic_id}, "
            f"plan {plan.number} read {known_id}"
        )
        if len(recreated) > 1:
            message += f" (and {len(recreated) - 1} more topics)"
        action = (
            f"Check who recreated it. To continue with the new topic: {accept_command([topic])}"
        )
        if is_creation_id(topic_id):
            action += (
                "; if ZooKeeper's content was copied to another ensemble and it is the same topic, "
                "add --not-recreated. It is unknown which of the two happened: of another topic "
                "--not-recreated would leave out all records below the loaded-until offsets"
            )
        raise NeedsDecision(message, topic=topic, action=action)
    waiting = waiting_partitions(plan, snapshot)
    if waiting:
        raise _undecided(waiting, plan, snapshot)


def permanently_missing_topics(plan: Plan, snapshot: Snapshot) -> frozenset[str]:
    """Return the topics without records left to read: deleted, or recreated by topic id.

    A znode id may also differ because ZooKeeper was copied.
    """
    missing = set(snapshot.missing_topics)
    for topic, topic_id in recreated_topics(plan, snapshot).items():
        if not is_creation_id(topic_id):
            missing.add(topic)
    return frozenset(missing)


def reject_stored_plan_of_recreated_topic(plan: Plan, snapshot: Snapshot) -> None:
    """Reject a stored plan that reads a topic which was deleted and recreated since.

    It must be in the table before the new topic can be accepted. Raises NeedsDecision.
    """
    if not plan.commit.state.is_binding:
        return
    recreated = sorted(plan.read_topics.intersection(recreated_topics(plan, snapshot)))
    if not recreated:
        return
    topic = recreated[0]
    known_id, topic_id = compared_ids(topic, plan, snapshot) or ("", "")
    reason = "a member of the group stored"
    if plan.commit.state is CommitState.DONE:
        reason = "was committed to the group"
    message = (
        f"The topic was deleted and recreated: its id is {topic_id}, "
        f"that of plan {plan.number}, which {reason} and is not in the table, is {known_id}"
    )
    skips = ""
    if is_creation_id(topic_id):
        skips = "--skip TOPIC:PARTITION:FROM-UNTIL with each of its ranges "
    action = (
        "Check who recreated it: the records of that plan which the table lacks are gone then. "
        f"To store the plan without them: etl plans supersede CONF {plan.number} {skips}"
        "--reason ...; `etl run CONF` executes it. Then continue with the new topic: "
        f"{accept_command([topic])}"
    )
    raise NeedsDecision(message, topic=topic, action=action)


def _undecided(waiting: Sequence[TopicPartition], plan: Plan, snapshot: Snapshot) -> NeedsDecision:
    partition = waiting[0]
    message = (
        "The topic was deleted and recreated, and each of its brokers may have kept its log or "
        f"lost it: the topic's id is {snapshot.topic_ids[partition.topic]}, "
        f"plan {plan.number} read this partition under {id_of(partition, plan)}"
    )
    if len(waiting) > 1:
        message += f" (and {len(waiting) - 1:,} more partitions)"
    return NeedsDecision(
        message, **partition.place, action=" ".join(ways_out(waiting, plan, snapshot))
    )


def ways_out(partitions: Sequence[TopicPartition], plan: Plan, snapshot: Snapshot) -> list[str]:
    """Describe undecided partitions and the commands that continue them: a sentence per kind."""
    others = []
    same = []
    unknown = []
    for partition in partitions:
        is_same = is_what_was_read(partition, plan, snapshot)
        if is_same is None:
            unknown.append(partition)
        elif is_same:
            same.append(partition)
        else:
            others.append(partition)
    sentences = []
    if others:
        sentences.append(
            f"{named(others)}: the bytes that were read or planned are not there any more (if a "
            "broker kept its log, and its disk lost only the end of it, name the partition, and "
            "pass with --truncated-at the offset up to which it kept it)."
        )
    if same:
        sentences.append(f"{named(same)}: the bytes that were read or planned last are there.")
    if unknown:
        names = [render_partition(partition) for partition in unknown[:_NAMED]]
        sentences.append(
            f"{named(unknown)}: it is unknown whether the log is the same, since the bytes that "
            "were read last have expired. Compare records with the table's (etl records show). "
            f"If the broker lost its log: {accept_command(names)}; "
            f"if it kept it: {accept_command(names, '--not-recreated')}."
        )
    if others or same:
        topics = sorted(topics_of((*others, *same)))
        purpose = "To continue"
        if unknown:
            purpose = "Then for the others"
        sentences.append(
            f"{purpose}: {accept_command(topics)}, which reads logs that hold other bytes from "
            "their start and the others from their loaded-until offsets."
        )
    return sentences


def named(partitions: Sequence[TopicPartition]) -> str:
    """Return the partitions as command arguments, the first of many."""
    names = " ".join(map(quoted_partition, partitions[:_NAMED]))
    if len(partitions) > _NAMED:
        names += f" and {len(partitions) - _NAMED:,} more"
    return names


def accept_command(names: Iterable[str], *options: str) -> str:
    """Return the command that accepts these topics or partitions, for messages."""
    partitions = " -p ".join(map(shlex.quote, names))
    words = " ".join([partitions, *options])
    return f"etl topics accept-changes CONF -p {words} --reason ..."


EPOCHS_KEPT = 16
"""Number of newest leader epochs kept: of a range in its result, of a partition in a plan."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition that no longer has the records up to a loaded-until offset."""

    partition: TopicPartition
    position: int
    left_until: int
    """End of the remaining records; if unknown, the highest possible."""
    is_known: bool = True
    holds_others: bool = False
    """Of Jafka: its bytes differ from those that were read or planned."""

    def error(self, others: int = 0) -> PartitionTruncated:
        """Return the error of a run; `others`: number of further truncated partitions."""
        option = ""
        if self.holds_others:
            message = (
                f"The log holds other bytes before offset {self.left_until + 1} than were read or "
                f"planned, and the pipeline was at {self.position}"
            )
        elif self.is_known:
            message = (
                f"The log was truncated at offset {self.left_until}, "
                f"and records up to {self.position} were read or planned"
            )
        else:
            message = (
                f"The log was truncated at offset {self.left_until} or below, "
                f"and records up to {self.position} were read or planned"
            )
        if not self.is_known:
            option = "--truncated-at OFFSET "
        if others:
            message += f" (and {others} more partitions)"
        if self.partition.is_physical:
            check = (
                "Check whether its broker lost the end of its disk, or the topic was deleted and "
                "recreated on that broker alone. To continue from the offset up to which its "
                "records are those in the table, from 0 if it was recreated"
            )
        else:
            check = (
                "Check whether an unclean leader was elected, or a broker lost its disk. "
                "To continue from there"
            )
        partition = quoted_partition(self.partition)
        command = f"etl topics accept-changes CONF -p {partition} {option}--reason ..."
        action = f"{check}: {command}"
        return PartitionTruncated(
            message, **self.partition.place, offset=self.position, action=action
        )


def record_epochs(plan: Plan, applied: CommitResult | None) -> dict[TopicPartition, Lineage]:
    """Return the epochs of the record batches up to the loaded-until offset of each partition.

    Only of partitions with a batch that ends there. `applied` is the result of the ledger's newest
    plan; None if unknown.
    """
    read = {r.partition for r in plan.advancing}
    epochs = drop_keys(plan.record_epochs, read)
    if read and applied and applied.plan_id == plan.id:
        results = zip(plan.ranges, applied.results, strict=True)
        lineages = {partition: plan.record_epochs.get(partition, ()) for partition in read}
        for r, result in sorted(results, key=lambda pair: pair[0].until_offset):
            lineages[r.partition] = joined(lineages[r.partition], result.epochs)
            if result.last_epoch is not None and r.until_offset == plan.loaded_until[r.partition]:
                epochs[r.partition] = lineages[r.partition]
    return {partition: lineage for partition, lineage in epochs.items() if lineage}


def joined(before: Lineage, more: Lineage) -> Lineage:
    """Return the epochs `before` an offset, and those read after it; the newest are kept."""
    last_epoch = -1
    if before:
        last_epoch = before[-1][0]
    newer = [entry for entry in more if entry[0] > last_epoch]
    return (*before, *newer)[-EPOCHS_KEPT:]


def epochs_to_ask(plan: Plan | None, applied: CommitResult | None) -> dict[TopicPartition, int]:
    """Return the epoch of each partition that must still reach the plan's loaded-until offset."""
    if plan is None:
        return {}
    epochs = dict(plan.leader_epochs)
    for partition, lineage in record_epochs(plan, applied).items():
        epochs[partition] = lineage[-1][0]
    return epochs


def reject_recreated_or_truncated(
    plan: Plan | None, snapshot: Snapshot, positions: Mapping[TopicPartition, int] | None = None
) -> None:
    """Reject recreated topics, and partitions that lost records up to their loaded-until offset.

    `positions`: other offsets up to which the partitions must hold their records. Raises
    NeedsDecision, PartitionTruncated.
    """
    if plan is None:
        return
    reject_recreated_topics(plan, snapshot)
    if positions is None:
        positions = plan.loaded_until
    cuts = truncated_partitions(plan, snapshot, positions)
    if cuts:
        raise cuts[0].error(len(cuts) - 1)


def changed_partitions(
    plan: Plan | None, snapshot: Snapshot, positions: Mapping[TopicPartition, int]
) -> frozenset[TopicPartition]:
    """Return the partitions for which `reject_recreated_or_truncated` raises.

    Numbers that are computed with the plan's offsets, such as the lag, mean nothing there.
    """
    if plan is None:
        return frozenset()
    recreated = recreated_topics(plan, snapshot)
    others = {partition for partition in snapshot.readable if partition.topic in recreated}
    for cut in truncated_partitions(plan, snapshot, positions):
        others.add(cut.partition)
    others.update(waiting_partitions(plan, snapshot))
    return frozenset(others)


def truncated_partitions(
    plan: Plan, snapshot: Snapshot, positions: Mapping[TopicPartition, int]
) -> list[Cut]:
    """Return the readable partitions that lost records below these offsets, in order."""
    exact_epochs = record_epochs(plan, snapshot.ledger.applied)
    cuts = []
    truncated = []
    for partition, position in positions.items():
        observed = snapshot.partition(partition)
        offsets = observed.readable_offsets
        if offsets is None:
            continue
        is_compared = position > 0 and partition in plan.fingerprints
        if is_compared and holds_what_was_read(partition, plan, snapshot) is False:
            left = min(plan.fingerprints[partition].until_offset - 1, offsets.end_offset)
            holds_others = left < offsets.end_offset
            cuts.append(Cut(partition, position, left, is_known=False, holds_others=holds_others))
            continue
        lineage = exact_epochs.get(partition)
        if lineage:
            epoch: int | None = lineage[-1][0]
        else:
            epoch = plan.leader_epochs.get(partition)
        if not _holds_all_records(
            position, offsets, observed.epoch_end, epoch, exact=bool(lineage)
        ):
            truncated.append(partition)
    if not truncated:
        return sorted(cuts, key=attrgetter("partition"))

    begins: dict[TopicPartition, int] = {}
    for r in plan.advancing:
        begins[r.partition] = min(r.from_offset, begins.get(r.partition, r.from_offset))
    for partition in truncated:
        if partition in exact_epochs:
            lineage = exact_epochs[partition]
            known = _Known(lineage[-1][0], lineage, plan.loaded_until[partition], ends_there=True)
        else:
            epoch = plan.leader_epochs.get(partition)
            lineage = plan.record_epochs.get(partition, ())
            known = _Known(epoch, lineage, begins.get(partition, 0), ends_there=False)
        cuts.append(_cut(partition, positions[partition], snapshot, known))
    return sorted(cuts, key=attrgetter("partition"))


def unchanged_until(
    plan: Plan, positions: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Return the offsets up to which partitions must be unchanged since the plan.

    They are its loaded-until offsets, or `positions` where another client moved the offset back.
    """
    if positions == plan.loaded_until:
        return plan.loaded_until
    unchanged = {}
    for partition, loaded_until in plan.loaded_until.items():
        unchanged[partition] = min(loaded_until, positions.get(partition, loaded_until))
    return unchanged


@dataclass(frozen=True, slots=True)
class _Known:
    """The requested epoch of one partition, and the epochs of its records up to an offset."""

    epoch: int | None
    lineage: Lineage
    reaches: int
    ends_there: bool
    """True if the requested epoch is the last one and nothing was read after it."""

    def end_of(self, epoch: int) -> tuple[int, bool] | None:
        """Return the end of the records of this epoch that were read; None if there are none.

        False: the records reach at least to that offset.
        """
        for i, (known_epoch, _) in enumerate(self.lineage):
            if known_epoch == epoch:
                if i + 1 < len(self.lineage):
                    return (self.lineage[i + 1][1], True)
                return (self.reaches, self.ends_there)
        return None


def _holds_all_records(
    position: int,
    offsets: PartitionOffsets,
    end: EpochEnd | None,
    epoch: int | None,
    *,
    exact: bool,
) -> bool:
    """True if a partition has all records up to `position`, by the end of the requested epoch.

    `exact`: it is the epoch of the record batch that ends there.
    """
    if end is None or end.asked_epoch != epoch:
        return offsets.end_offset + offsets.held_back >= position
    # A leader under which no record was written leaves no trace in its successor's log: a lower
    # epoch proves a truncation only if the epoch of a record batch was requested.
    has_diverged = exact and end.epoch < end.asked_epoch
    return end.end_offset >= position and not has_diverged


def _cut(partition: TopicPartition, position: int, snapshot: Snapshot, known: _Known) -> Cut:
    """Return the truncation of a partition that does not hold all records up to `position`.

    Records of one epoch are equal in all replicas, so two logs agree up to the end of the shorter.
    """
    end = snapshot.partition(partition).epoch_end
    if end is None or end.asked_epoch != known.epoch:
        offsets = snapshot.readable[partition]
        end_offset = offsets.end_offset + offsets.held_back
        return Cut(partition, position, end_offset, is_known=False)
    # No record of a higher epoch is left: its first known offset bounds what remains.
    gone_from = [start for epoch, start in known.lineage if epoch > end.epoch]
    left = min([end.end_offset, position, *gone_from])
    read_until, is_whole = known.end_of(end.epoch) or (0, False)
    if is_whole:
        left = min(left, read_until)
    is_exact = is_whole or end.end_offset <= read_until or end.epoch == end.asked_epoch
    # In the leader's own epoch this is only the log's end: without an election, producers may have
    # written records since the truncation.
    is_own_epoch = end.asked_epoch == snapshot.partition(partition).leader_epoch
    return Cut(partition, position, left, is_exact and not is_own_epoch)


_CHECK_CLUSTER = (
    "Check that the conf points at the right brokers: offsets of one cluster mean nothing on "
    "another, which needs its own pipeline and table"
)


def cluster_identity(
    newest: Plan | None,
    reported: str | None,
    assumed: str | None,
    is_in_table: Callable[[str], bool],
    family: BrokerFamily,
) -> ClusterIdentity:
    """Return name and id of a pipeline's cluster.

    `reported`: the id that brokers report; `assumed`: the conf's name of the cluster.
    `is_in_table`: whether the table has commits under a name; called if the ledger has no plan and
    two names are possible. Raises SettingsError without any name, NeedsDecision for another cluster
    than the newest plan's.
    """
    if newest is not None:
        return _as_planned(newest, reported, assumed, family)
    if reported is None:
        action = "Set source.assume_cluster_id to a name of the cluster"
        return ClusterIdentity(family, _assumed_name(assumed, action))
    if assumed and assumed != reported and is_in_table(assumed) and not is_in_table(reported):
        return ClusterIdentity(family, assumed, reported)
    return ClusterIdentity(family, reported)


def is_same_cluster(plan: Plan, snapshot: Snapshot, assumed: str | None) -> bool:
    """True if a plan of any pipeline is of the observed cluster: by ids if known, else by names."""
    planned = plan.cluster
    observed = snapshot.cluster
    if planned.name == observed.name:
        if planned.id is None or observed.id is None:
            return True
        return planned.id == observed.id
    if planned.id is not None:
        return planned.id in (observed.name, observed.id)
    return planned.name in (observed.id, assumed)


def name_put_back(cluster: str) -> str:
    """Return what to do if a pipeline's own brokers are taken for another cluster."""
    return (
        "only if these are the brokers that it was loaded from, upgraded since or with a new "
        "cluster id (ZooKeeper was set up again), and their topics still have the same records at "
        f"the same offsets: `source.assume_cluster_id: {cluster}` in the conf"
    )


def _as_planned(
    newest: Plan, reported: str | None, assumed: str | None, family: BrokerFamily
) -> ClusterIdentity:
    name = newest.cluster.name
    known_id = newest.cluster.id
    if reported is None:
        action = (
            f"Set `source.assume_cluster_id: {name}` in the conf, the name under which the "
            f"ledger has this pipeline"
        )
        assumed = _assumed_name(assumed, action)
    if name == reported:
        return ClusterIdentity(family, name)
    if name != assumed:
        message = (
            f"The newest plan is of cluster {name}, "
            f"and these brokers are of cluster {reported or assumed}"
        )
        action = f"{_CHECK_CLUSTER}; {name_put_back(name)}"
        raise NeedsDecision(message, key="source.assume_cluster_id", action=action)
    if reported and known_id and reported != known_id:
        message = (
            f"The newest plan is of cluster {name}, that of id {known_id}, "
            f"and these brokers report {reported}"
        )
        raise NeedsDecision(message, key="source.assume_cluster_id", action=_CHECK_CLUSTER)
    # Brokers that are upgraded begin to report an id one after the other: plans keep the name and
    # record the id too, which reveals brokers of another cluster under the same name.
    return ClusterIdentity(family, name, reported or known_id)


def _assumed_name(assumed: str | None, action: str) -> str:
    if not assumed:
        raise SettingsError(
            "The brokers report no cluster id", key="source.assume_cluster_id", action=action
        )
    return assumed
