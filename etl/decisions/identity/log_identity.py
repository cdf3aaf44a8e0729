"""Whether a log is still the one whose offsets the pipeline knows: not cut, and not made again.
Pure functions of values.

A log that lost its tail (an unclean leader election, a disk put back from a copy) soon has other
records at the same offsets, and then its end says nothing. What tells is the leader epoch
(KIP-101): each leader begins one at its log's end. So a plan keeps the epoch of the leader that
told the ends it goes by, and a receipt that of the record batch it ends in. The next run asks where
that epoch ends in the leader's log of now (OffsetForLeaderEpoch, KIP-320): below our position, the
log was cut there. A record batch's own epoch must also be the one that is found: a leader of long
ago may come back with a longer log of its own. Where the two logs part is told by the epochs of the
record batches that we have read.

Brokers before 2.1 tell no epochs. There an end below the position is all that shows, and so it is
where a log was cut without an election: a cluster of one broker with ZooKeeper may come back with
half of its disk in the very epoch it had. Physical logs (0.7 family) have none either, and are
known by the bytes before our position (`tails`). Whether a topic was made again is `made_again`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from etl.decisions.identity.made_again import (
    refuse_topics_made_again,
    topics_made_again,
    waiting_logs,
)
from etl.decisions.identity.tails import holds_what_was_read
from etl.errors import LogTruncated
from etl.model.partitions import BrokerPartition, Lineage, quoted_log
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Snapshot

EPOCHS_KEPT = 16
"""How many leader epochs of a log are remembered, the newest: of a range by its receipt, of a log
by a plan.
"""


@dataclass(frozen=True, slots=True)
class Cut:
    """A log that no longer holds the records up to a position of ours."""

    log: BrokerPartition
    position: int
    left_until: int
    """Where the records that are left end; where that is not known, the highest offset where it may
    be.
    """
    is_known: bool = True
    holds_others: bool = False
    """Of a physical log: it has other bytes than those that were read or planned, however long it
    is.
    """

    def error(self, others: int = 0) -> LogTruncated:
        """What a run raises; `others`: how many more logs were cut."""
        more = f" (and {others} more partitions)" if others else ""
        if self.is_known:
            what, at = (
                f"the log was cut at offset {self.left_until}, and records up to {self.position} were read or planned{more}",
                "",
            )
        else:
            what, at = (
                f"the log was cut at offset {self.left_until} or below, and we were at {self.position}{more}",
                "--at OFFSET ",
            )
        if self.holds_others:
            before = self.left_until + 1
            what = f"the log holds other bytes before offset {before} than were read or planned, and we were at {self.position}{more}"
        named = quoted_log(self.log)
        check = "whether an unclean leader was elected, or a broker lost its disk; to go on from there: "
        if self.log.is_physical:
            check = (
                "whether its broker lost the end of its disk, or the topic was deleted and made again on that broker alone; to go on "
                "from where its records are those in the table, from 0 if it was made again: "
            )
        check += f"etl plans accept-log CONF {named} {at}--reason ..."
        return LogTruncated(what, **self.log.place, offset=self.position, check=check)


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
    """Epochs of the records up to a position, and of those read behind it; the newest are kept."""
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


def refuse_other_logs(
    plan: Plan | None, snapshot: Snapshot, positions: Mapping[BrokerPartition, int] | None = None
) -> None:
    """The offsets of a plan mean nothing on another topic of the same name, nor where the log lost
    them.

    `positions`, where they are not the plan's own: up to where its offsets must hold. Raises
    NeedsDecision, LogTruncated.
    """
    if plan is None:
        return
    refuse_topics_made_again(plan, snapshot)
    cuts = cut_logs(plan, snapshot, plan.positions if positions is None else positions)
    if cuts:
        raise cuts[0].error(len(cuts) - 1)


def other_logs(
    plan: Plan | None, snapshot: Snapshot, positions: Mapping[BrokerPartition, int]
) -> frozenset[BrokerPartition]:
    """The logs for which `refuse_other_logs` raises: no number that is reckoned with the plan's
    offsets means anything there.
    """
    if plan is None:
        return frozenset()
    again = topics_made_again(plan, snapshot)
    others = {log for log in snapshot.extents if log.topic in again} | {
        cut.log for cut in cut_logs(plan, snapshot, positions)
    }
    return frozenset(others.union(waiting_logs(plan, snapshot)))


def cut_logs(plan: Plan, snapshot: Snapshot, positions: Mapping[BrokerPartition, int]) -> list[Cut]:
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
    """What we know of one log: which epoch was asked, and those of the records up to an offset."""

    epoch: int | None
    lineage: Lineage
    reaches: int
    ends_there: bool
    """The last epoch of the lineage is the asked one, and nothing was read behind it."""

    def end_of(self, epoch: int) -> tuple[int, bool] | None:
        """Up to where our records are of this epoch; False: at least. None: we know of none."""
        for i, (one, _) in enumerate(self.lineage):
            if one == epoch:
                return (
                    (self.lineage[i + 1][1], True)
                    if i + 1 < len(self.lineage)
                    else (self.reaches, self.ends_there)
                )
        return None


def _cut(log: BrokerPartition, position: int, snapshot: Snapshot, known: _Known) -> Cut | None:
    """Where the log was cut. Records of one epoch are the same in every log, so two logs agree up
    to where the shorter stretch ends.
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
