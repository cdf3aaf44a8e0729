"""Whether a log is still the one whose offsets the pipeline knows: not cut, and its topic not made again. Pure functions of values.

A log that lost its tail (an unclean leader election, a disk put back from a copy) soon has other records at the same offsets, and then its
end says nothing. What tells is the leader epoch (KIP-101): each leader begins one at its log's end. So a plan keeps the epoch of the leader
that told the ends it goes by, and a receipt that of the record batch it ends in. The next run asks where that epoch ends in the leader's
log of now (OffsetForLeaderEpoch, KIP-320): below our position, the log was cut there. A record batch's own epoch must moreover be the
one that is found: a leader of long ago may come back with a longer log of its own.

Brokers before 2.1 tell no epochs. There an end below the position is all that shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etl.errors import LogTruncated, NeedsDecision
from etl.model import Applied, BrokerPartition, Plan, Snapshot
from etl.protocol.znodes import CREATION_ID


@dataclass(frozen=True, slots=True)
class Cut:
    """A log that no longer holds the records up to a position of ours."""

    log: BrokerPartition
    position: int
    left_until: int
    """Where the records that are left end; where that is not known, the highest offset where it may be."""
    is_known: bool = True

    def error(self, others: int = 0) -> LogTruncated:
        """What a run raises; `others`: how many more logs were cut."""
        more = f" (and {others} more partitions)" if others else ""
        if self.is_known:
            what, at = f"the log was cut at offset {self.left_until}, and records up to {self.position} were read or planned{more}", ""
        else:
            what, at = f"the log was cut at offset {self.left_until} or below, and we were at {self.position}{more}", "--at OFFSET "
        named = f"{self.log.topic}:{self.log.partition}"
        check = (
            "whether an unclean leader was elected, or a broker lost its disk; to go on from there: "
            f"etl plans accept-log CONF {named} {at}--reason ...")
        return LogTruncated(what, topic=self.log.topic, partition=self.log.partition, offset=self.position, check=check)


def record_epochs(plan: Plan, applied: Applied | None) -> dict[BrokerPartition, int]:
    """The epoch of the record batch that ends at the plan's position of each log, where it is known.

    `applied` is what came of the newest plan of the ledger, if anybody knows it.
    """
    read = {r.log for r in plan.ranges}
    epochs = {log: epoch for log, epoch in plan.record_epochs.items() if log not in read}
    if applied and applied.plan_id == plan.id:
        for r, receipt in zip(plan.ranges, applied.receipts, strict=True):
            if receipt.last_epoch is not None and r.until_offset == plan.positions[r.log]:
                epochs[r.log] = receipt.last_epoch
    return epochs


def epochs_to_ask(plan: Plan | None, applied: Applied | None) -> dict[BrokerPartition, int]:
    """Which epoch of each log must still reach up to the plan's position."""
    return {**plan.leader_epochs, **record_epochs(plan, applied)} if plan else {}


def refuse_other_logs(plan: Plan | None, snapshot: Snapshot, positions: Mapping[BrokerPartition, int] | None = None) -> None:
    """The offsets of a plan mean nothing on another topic of the same name, nor where the log lost them.

    `positions`, where they are not the plan's own: up to where its offsets must hold. Raises NeedsDecision, LogTruncated.
    """
    if plan is None:
        return
    refuse_topics_made_again(plan.topic_ids, snapshot, f"plan {plan.number} read")
    cuts = cut_logs(plan, snapshot, plan.positions if positions is None else positions)
    if cuts:
        raise cuts[0].error(len(cuts) - 1)


def cut_logs(plan: Plan, snapshot: Snapshot, positions: Mapping[BrokerPartition, int]) -> list[Cut]:
    """The logs that lost records below these positions, in order; of those that can be read now."""
    sharp = record_epochs(plan, snapshot.ledger.applied)
    there = sorted(log for log in positions if log in snapshot.extents)
    found = (_cut(log, positions[log], snapshot, plan.leader_epochs.get(log), sharp.get(log)) for log in there)
    return [cut for cut in found if cut]


def _cut(log: BrokerPartition, position: int, snapshot: Snapshot, leader_epoch: int | None, record_epoch: int | None) -> Cut | None:
    end = snapshot.epoch_ends.get(log)
    if end is None or end.asked_epoch != (leader_epoch if record_epoch is None else record_epoch):
        extent = snapshot.extents[log]
        end_offset = extent.end_offset + extent.held_back
        return Cut(log, position, end_offset, is_known=False) if end_offset < position else None
    if record_epoch is not None and end.epoch < record_epoch:
        return Cut(log, position, min(end.end_offset, position), is_known=False)
    return Cut(log, position, end.end_offset) if end.end_offset < position else None


def topics_made_again(topic_ids: Mapping[str, str], snapshot: Snapshot) -> dict[str, str]:
    """The topics whose id is another one by now, and that id. Brokers that were upgraded begin to have ids: that is no other topic."""
    found = {topic: snapshot.topic_ids.get(topic, known) for topic, known in sorted(topic_ids.items())}
    return {topic: now for topic, now in found.items()
            if now != topic_ids[topic] and is_creation_id(now) == is_creation_id(topic_ids[topic])}


def is_creation_id(topic_id: str) -> bool:
    """Whether it is only the creation of the topic's znode that stands for its id: brokers before 2.8 have none."""
    return topic_id.startswith(CREATION_ID)


def refuse_topics_made_again(topic_ids: Mapping[str, str], snapshot: Snapshot, knew: str) -> None:
    """Offsets of a topic mean nothing on another one of the same name. `knew` says who knew the ids. Raises NeedsDecision."""
    again = topics_made_again(topic_ids, snapshot)
    for topic, found in again.items():
        others = f" (and {len(again) - 1} more topics)" if again.keys() - {topic} else ""
        what = f"the topic was deleted and made again: its id is {found}, {knew} {topic_ids[topic]}{others}"
        check = "who did it; to go on with the new one: " + accept_command([topic])
        if is_creation_id(found):
            check += "; or, where ZooKeeper's content was copied to another ensemble and it is the same topic, add --same-log"
        raise NeedsDecision(what, topic=topic, check=check)


def accept_command(names: Iterable[str]) -> str:
    """The command that leads out, as messages name it."""
    return f"etl plans accept-log CONF {' '.join(names)} --reason ..."
