"""How are partitions, counts and times described to a person?

The same words for reports, previews and lists of offsets. Pure functions of values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, TypeVar

from etl.decide.group_commits import ReadTwice
from etl.decide.group_ownership import UNASSIGNED
from etl.decide.offsets import starts_of
from etl.model.partitions import BrokerPartition, OpenTransaction, uncounted
from etl.model.plans import CommitResult, Loss, LossReason, Plan, PlanKind, ReadByOthers, Vanished
from etl.model.snapshot import Snapshot
from etl.settings.sections import LimitsSettings

Number = TypeVar("Number", int, float)

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int | None) -> str | None:
    """An instant, given in milliseconds since 1970, as every document of ours has it: ISO 8601 in
    UTC. None outside the years 1 to 9999.
    """
    try:
        return (
            None
            if ms is None
            else (_1970 + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
        )
    except OverflowError:
        return None


def counted(count: int, noun: str) -> str:
    """1 task, 2 tasks."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def of_known(
    whole: Callable[[list[Number]], Number], values: Iterable[Number | None]
) -> Number | None:
    """The sum, or whatever else `whole` makes of them, of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return whole(known) if known else None


_NAMED = 5
"""How many partitions one sentence names."""
_LET_GO = {
    LossReason.EXPIRED: "had expired and were skipped",
    LossReason.MOVED: "were passed over by somebody who moved the committed offset",
    LossReason.MISSING: "were missing from the log, with nothing that explains it",
    LossReason.SKIPPED: "were skipped by an operator's decision",
    LossReason.DELETED: "were planned, and the topic was deleted before they were loaded",
    LossReason.RECREATED: "were planned, and the topic was deleted and recreated before they were loaded",
    LossReason.TRUNCATED: "were planned, and the log was truncated before they were loaded",
}
_WHO = {
    LossReason.EXPIRED: "source.on_data_loss",
    LossReason.MISSING: "source.on_data_loss",
    LossReason.MOVED: "group.on_offset_changed",
    LossReason.SKIPPED: "an operator",
    LossReason.DELETED: "an operator",
    LossReason.RECREATED: "an operator",
    LossReason.TRUNCATED: "an operator",
}
_LOOK_AT = {
    LossReason.EXPIRED: "the topic's retention",
    LossReason.MISSING: "what the broker's disk lost",
    LossReason.MOVED: "who moved the committed offset",
    LossReason.SKIPPED: "the reason in `etl plans show CONF`",
    LossReason.DELETED: "who deleted the topic",
    LossReason.RECREATED: "who deleted and recreated the topic",
    LossReason.TRUNCATED: "why the log was truncated",
}


def describe_who_skipped(whys: Collection[LossReason]) -> tuple[str, str]:
    """Describe which policies, or an operator, gave up offsets for these reasons; and what to
    check.
    """
    ordered = [why for why in LossReason if why in whys]
    return " and ".join(dict.fromkeys(_WHO[why] for why in ordered)), "; ".join(
        _LOOK_AT[why] for why in ordered
    )


def describe_cluster_id(plan: Plan, newest: Plan | None) -> str | None:
    """Describe that the plan is the first with an id of a cluster named by the conf; `newest`: the
    plan before.
    """
    if plan.cluster_id is None or newest is None or newest.cluster_id == plan.cluster_id:
        return None
    message = f"the brokers tell the cluster id {plan.cluster_id} by now"
    return f"{message}: the pipeline goes on under cluster {plan.cluster}, and `cluster` stays in the conf"


def describe_lost(losses: Iterable[Loss]) -> Iterator[str]:
    """Describe the losses of a plan: a sentence per interval."""
    for loss in losses:
        yield f"{loss.log}: {_stretch(loss)} {_LET_GO[loss.why]}"


def describe_read_by_others(holes: Iterable[ReadByOthers]) -> Iterator[str]:
    """Describe what other members read: a sentence per topic."""
    for topic, found in groupby(sorted(holes), key=lambda hole: hole.log.topic):
        some = list(found)
        count, first = sum(hole.until_offset - hole.from_offset for hole in some), some[0]
        where = f"{len(some):,} partitions, first" if some[1:] else "partition"
        stretch = f"{first.log.key} from {first.from_offset} to {first.until_offset}"
        yield f"{topic}: other members of the group read {count:,} {first.log.unit}s of {where} {stretch}"


def describe_also_loaded(offsets: int) -> Iterator[str]:
    """Describe that a backfill loads offsets which other members also read."""
    if offsets:
        yield f"{counted(offsets, 'offset')} of these were read by other members of the group, and then the table has them as well"


def describe_duplicate_reads(found: Iterable[ReadTwice]) -> Iterator[str]:
    """Describe what other members may also have read: a sentence per topic."""
    for topic, offsets in _by_topic(found):
        yield f"{topic}: other members of the group may have read {offsets} as well as we"


def describe_changed_owners(plan: Plan, found: Iterable[ReadTwice]) -> Iterator[str]:
    """Describe the same for a plan whose commit was rejected."""
    for topic, offsets in _by_topic(found):
        yield (
            f"{topic}: plan {plan.number} is in the table, and the membership that it was made with is over: another member may read "
            f"{offsets}, too"
        )


def _by_topic(found: Iterable[ReadTwice]) -> Iterator[tuple[str, str]]:
    for topic, group in groupby(
        sorted(found, key=lambda one: one.log), key=lambda one: one.log.topic
    ):
        some = list(group)
        count, first = sum(one.until_offset - one.from_offset for one in some), some[0]
        where = f"{len(some):,} partitions, first" if some[1:] else "partition"
        yield (
            topic,
            f"{count:,} {first.log.unit}s of {where} {first.log.key} from {first.from_offset} to {first.until_offset}",
        )


def describe_skipped(losses: Iterable[Loss]) -> Iterator[str]:
    """Describe the same for a plan that is not executed yet."""
    for loss in losses:
        yield f"the next run lets go {loss.log}: {_stretch(loss)}, {loss.why.value}"


def describe_given_up(losses: Iterable[Loss]) -> list[str]:
    """Describe what an operator's command gives up: a sentence per interval."""
    return [f"lost: {loss.log}: {_stretch(loss)}, {loss.why.value}" for loss in losses]


def describe_left(old: Plan, plan: Plan) -> list[str]:
    """Which partitions of a stored plan the one in its place does not read, and does not give up
    either: one sentence for each.
    """
    starts, lost = starts_of(old), {loss.log for loss in plan.losses}
    ends = {r.log: old.positions[r.log] for r in old.advancing}
    left = [
        log for log in sorted(ends) if log not in lost and plan.positions.get(log) == starts[log]
    ]
    return [
        f"not read by this plan: {log}: offsets {starts[log]} to {ends[log]} of plan {old.number}; its position stays at {starts[log]}"
        for log in left
    ]


def describe_continuation(plan: Plan, old: Plan, log: BrokerPartition, *, is_stored: bool) -> str:
    """Describe where a truncated or recreated partition continues, and what of the former one
    cannot be counted. `is_stored`: `old` was not executed.
    """
    loaded = starts_of(old)[log] if is_stored else old.positions[log]
    reached = f"loaded up to {loaded}"
    if is_stored and old.positions[log] > loaded:
        reached += f" and planned up to {old.positions[log]}"
    return (
        f"{log} goes on from {plan.positions[log]}; the log before was {reached}: records behind that which it held are lost, and "
        "nobody can count them"
    )


def _stretch(loss: Loss) -> str:
    return f"{loss.until_offset - loss.from_offset:,} {loss.log.unit}s ({loss.from_offset} to {loss.until_offset})"


def describe_purpose(plan: Plan) -> str:
    """Describe the purpose of a plan without ranges."""
    if plan.losses:
        unit = plan.losses[0].log.unit
        return f"reads nothing and lets go {counted(sum(loss.until_offset - loss.from_offset for loss in plan.losses), unit)}"
    count = len(plan.positions.keys() | plan.pending_starts.keys())
    if not count:
        return "reads nothing, and knows of no partition where it starts"
    return (
        f"keeps where {count:,} partition starts"
        if count == 1
        else f"keeps where {count:,} partitions start"
    )


def describe_replaced(plan: Plan, applied: CommitResult) -> str | None:
    """Describe the rows of a replay, as the end of a sentence that counts them; None for other
    plans.
    """
    if plan.kind is not PlanKind.REPLAY:
        return None
    return (
        f"records took the place of {sum(plan.stood.values()):,} at version {applied.delta_version}"
    )


def describe_vanished(vanished: Iterable[Vanished]) -> Iterator[str]:
    """Describe rows whose records the brokers no longer hold: a sentence per interval."""
    for one in vanished:
        yield (
            f"{one.log}: rows of offsets {one.from_offset} to {one.until_offset} with log_epoch {one.log_epoch} "
            "are of records that are gone; they stay in the table"
        )


def describe_jafka_proof(recounted: Sequence[int]) -> str:
    """Describe what the proof of Jafka partitions is based on, and the plans whose rows were
    recounted.
    """
    said = (
        "offsets of these logs are byte positions, from which no messages can be counted: that a range has all of its messages is known by "
        "the count of the reader (its receipt) alone"
    )
    if recounted:
        plans = f"plan{'s' if recounted[1:] else ''} {', '.join(map(str, recounted))}"
        said += f"; of {plans} a crash took that count, and the rows in the table were counted: whether they were all nobody can prove"
    return said


def describe_by_owner(left: Mapping[BrokerPartition, str]) -> Iterator[str]:
    """Which logs are left to whom: one sentence for each owner and topic."""
    return describe_by_topic({log: _why_left(owner) for log, owner in left.items()})


def _why_left(owner: str) -> str:
    if owner == UNASSIGNED:
        return f"assigned to {owner}; a run reads it once the group has divided its partitions anew"
    return f"left to {owner}"


def describe_leaderless(
    logs: Collection[BrokerPartition], led: Collection[BrokerPartition]
) -> Iterator[str]:
    """Which logs have no leader, where these have one: one sentence for each topic and reason."""
    missing = uncounted(logs, led)
    return describe_by_topic(
        {
            log: "their broker is there and counts fewer partitions now"
            if log in missing
            else "their broker is away"
            if log.is_physical
            else "no leader"
            for log in logs
        }
    )


def describe_capped(left: Mapping[BrokerPartition, int], limits: LimitsSettings) -> str:
    """How much of each log the caps leave to the next run."""
    caps = {
        "limits.max_records_per_plan": limits.max_records_per_plan,
        "limits.max_bytes_per_plan": limits.max_bytes_per_plan,
    }
    set_to = " and ".join(f"{key} ({cap:,})" for key, cap in caps.items() if cap is not None)
    return f"{set_to} left {sum(left.values()):,} {min(left).unit}s of {len(left):,} partitions to the next run"


def describe_open(snapshot: Snapshot) -> Iterator[str]:
    """Which logs an open transaction holds back: one sentence for each topic and transaction."""
    together: dict[tuple[str, str], list[BrokerPartition]] = {}
    for log, extent in sorted(snapshot.extents.items()):
        if extent.held_back:
            together.setdefault(
                (log.topic, _who_holds(snapshot.open_transactions.get(log))), []
            ).append(log)
    for (topic, who), logs in together.items():
        count = sum(snapshot.extents[log].held_back for log in logs)
        message = (
            "1 offset below the high watermark waits"
            if count == 1
            else f"{count:,} offsets below the high watermark wait"
        )
        yield f"{topic} {named_keys(logs)}: {message} behind {who}"


def _who_holds(one: OpenTransaction | None) -> str:
    """Describe a partition's open transaction, as far as brokers report it."""
    if one is None:
        return "an open transaction"
    name = f" {one.transactional_id}" if one.transactional_id else ""
    since = f", open since {at(one.since_ms)}" if one.since_ms is not None else ""
    return f"the open transaction{name} of producer {one.producer_id}{since}"


def logs_of(snapshot: Snapshot) -> set[BrokerPartition]:
    """Every log that is there, with a leader or without."""
    return snapshot.extents.keys() | snapshot.leaderless


def describe_partition_offsets(snapshot: Snapshot, log: BrokerPartition) -> dict[str, Any]:
    """Return start, end and high watermark distance of a partition, and its open transaction, for
    programs; null without a leader.
    """
    extent, held_by = snapshot.extents.get(log), snapshot.open_transactions.get(log)
    return {
        "log_start": extent.log_start_offset if extent else None,
        "log_end": extent.end_offset if extent else None,
        "high_watermark": extent.end_offset + extent.held_back if extent else None,
        "held_back": extent.held_back if extent else None,
        "transaction_began_at": at(held_by.since_ms) if held_by else None,
        "held_back_by": (held_by.transactional_id or f"producer {held_by.producer_id}")
        if held_by
        else None,
    }


def describe_by_topic(told: Mapping[BrokerPartition, str]) -> Iterator[str]:
    """Return one sentence for all partitions of a topic with the same text."""
    together: dict[tuple[str, str], list[BrokerPartition]] = {}
    for log, message in sorted(told.items()):
        together.setdefault((log.topic, message), []).append(log)
    for (topic, message), logs in together.items():
        yield f"{topic} {named_keys(logs)}: {message}"


def named_keys(logs: Sequence[BrokerPartition]) -> str:
    """The first few of these logs of one topic, by what they are called in it, and how many more
    there are.
    """
    more = f" and {len(logs) - _NAMED:,} more" if len(logs) > _NAMED else ""
    return f"{', '.join(log.key for log in logs[:_NAMED])}{more}"


def describe_unknown(subject: str, why: Mapping[BrokerPartition, str]) -> Iterator[str]:
    """Describe which partitions have an unknown value: a sentence per topic and reason."""
    return describe_by_topic(
        {log: f"{subject} is not known: {reason}" for log, reason in why.items()}
    )


def doubt_of(applied: CommitResult) -> str:
    """Describe what is unknown of a recounted plan, as the end of a sentence; empty if nothing is."""
    if applied.uncounted:
        return f"; nobody can count them ({applied.uncounted}), so it is recorded that their number is not known"
    doubtful = [receipt for receipt in applied.receipts if receipt.is_doubtful]
    lacking = sum(receipt.missing_offsets for receipt in doubtful)
    if lacking:
        return f"; {lacking:,} offsets have no row, and behind a transform nobody can tell why: `etl verify` cannot prove them"
    if doubtful:
        return "; whether the transform left some of them out nobody can tell: `etl verify` cannot prove them"
    return ""
