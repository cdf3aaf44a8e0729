"""How are plans, partitions, counts and times described in sentences?

Lives here: the sentences of reports, previews and lists of offsets. Pure functions of values.
Not here: JSON documents (etl/report/report_json.py), except of a partition's offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, TypeVar

from etl.decide.member_offsets import ReadTwice
from etl.decide.offsets import starts_of
from etl.decide.partition_owners import UNASSIGNED
from etl.model.partitions import OpenTransaction, TopicPartition, uncounted
from etl.model.plans import (
    Bound,
    CommitResult,
    Loss,
    LossReason,
    Plan,
    ReadByOthers,
    RunKeyRecord,
    StaleRows,
)
from etl.model.snapshot import Snapshot
from etl.settings.sections import LimitsSettings

Number = TypeVar("Number", int, float)

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def format_time(ms: int | None) -> str | None:
    """Return milliseconds since 1970 as ISO 8601 in UTC; None outside the years 1 to 9999."""
    if ms is None:
        return None
    try:
        moment = _1970 + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds")


def counted(count: int, noun: str) -> str:
    """Return `1 task` or `2 tasks`."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def aggregate_known(
    whole: Callable[[list[Number]], Number], values: Iterable[Number | None]
) -> Number | None:
    """Apply `whole`, such as sum, to the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return whole(known)


# -- losses


@dataclass(frozen=True, slots=True)
class _LossWords:
    """The texts for one reason of a loss."""

    done: str
    """The cause, as the end of a sentence."""
    policy: str
    """The conf key that allowed it, or `an operator`."""
    check: str
    """`{plans}` stands for the commands that show the plans with the losses."""


_LOSSES = {
    LossReason.EXPIRED: _LossWords(
        "lost: expired", "source.on_data_loss", "Check the topic's retention"
    ),
    LossReason.MISSING: _LossWords(
        "lost: missing from the log for an unknown reason",
        "source.on_data_loss",
        "Check the disks of the brokers",
    ),
    LossReason.MOVED: _LossWords(
        "lost: another client moved the committed offset past them",
        "group.on_offset_changed",
        "Check which client committed the offset",
    ),
    LossReason.SKIPPED: _LossWords(
        "lost: skipped by an operator's decision",
        "an operator",
        "Check the reason with {plans}",
    ),
    LossReason.DELETED: _LossWords(
        "lost: the topic was deleted after they were planned",
        "an operator",
        "Check who deleted the topic",
    ),
    LossReason.RECREATED: _LossWords(
        "lost: the topic was deleted and recreated after they were planned",
        "an operator",
        "Check who deleted and recreated the topic",
    ),
    LossReason.TRUNCATED: _LossWords(
        "lost: the partition was truncated after they were planned",
        "an operator",
        "Check why the partition was truncated",
    ),
}


def describe_who_skipped(reasons: Mapping[LossReason, Collection[int]]) -> tuple[str, str]:
    """Return the policies, or `an operator`, that allowed losses for these reasons; and checks.

    `reasons`: each reason, with the numbers of the plans that have such losses.
    """
    policies = []
    checks = []
    for reason, words in _LOSSES.items():
        if reason not in reasons:
            continue
        commands = [f"`etl plans show CONF {number}`" for number in sorted(reasons[reason])]
        checks.append(words.check.format(plans=" and ".join(commands)))
        if words.policy not in policies:
            policies.append(words.policy)
    return " and ".join(policies), ". ".join(checks)


def describe_lost(losses: Iterable[Loss]) -> Iterator[str]:
    """Describe the losses of a plan: a sentence per interval."""
    for loss in losses:
        yield f"{loss.partition}: {_interval(loss)} {_LOSSES[loss.why].done}"


def describe_skipped(losses: Iterable[Loss]) -> Iterator[str]:
    """Describe the losses of a plan that is not executed yet."""
    for loss in losses:
        yield f"The next run gives up {loss.partition}: {_interval(loss)}, {loss.why.value}"


def describe_given_up(losses: Iterable[Loss]) -> list[str]:
    """Describe what an operator's command gives up: a sentence per interval."""
    return [f"Lost: {loss.partition}: {_interval(loss)}, {loss.why.value}" for loss in losses]


def _interval(loss: Loss) -> str:
    count = loss.until_offset - loss.from_offset
    return f"{count:,} {loss.partition.unit}s ({loss.from_offset} to {loss.until_offset})"


# -- plans


def describe_cluster_id(plan: Plan, newest: Plan | None) -> str | None:
    """Describe that the plan is the first with a cluster id from the brokers; None if it is not.

    Until then the conf names the cluster. `newest`: the plan before.
    """
    cluster = plan.cluster
    if cluster.id is None or newest is None or newest.cluster.id == cluster.id:
        return None
    return (
        f"Brokers report the cluster id {cluster.id} now. The pipeline keeps the name "
        f"{cluster.name}; keep source.assume_cluster_id in the conf"
    )


def describe_left(old: Plan, plan: Plan) -> list[str]:
    """Describe the partitions of a stored plan that its replacement neither reads nor gives up.

    One sentence for each partition.
    """
    starts = starts_of(old)
    lost = {loss.partition for loss in plan.losses.lost}
    sentences = []
    for partition in sorted(r.partition for r in old.advancing):
        start = starts[partition]
        if partition in lost or plan.loaded_until.get(partition) != start:
            continue
        sentences.append(
            f"Not read by this plan: {partition}: offsets {start} to {old.loaded_until[partition]} "
            f"of plan {old.number}; its loaded-until offset stays {start}"
        )
    return sentences


def describe_continuation(
    plan: Plan, old: Plan, partition: TopicPartition, *, is_stored: bool
) -> str:
    """Describe where a truncated or recreated partition continues, and how far it was read before.

    `is_stored`: `old` was not executed.
    """
    planned = old.loaded_until[partition]
    loaded = starts_of(old)[partition] if is_stored else planned
    reached = f"loaded up to {loaded}"
    if planned > loaded:
        reached += f" and planned up to {planned}"
    return (
        f"{partition} continues at {plan.loaded_until[partition]}. The former log was {reached}; "
        "records after that are lost, and their number is unknown"
    )


def describe_purpose(plan: Plan) -> str:
    """Describe the purpose of a plan without ranges, as the end of a sentence."""
    if plan.losses.lost:
        lost = sum(loss.until_offset - loss.from_offset for loss in plan.losses.lost)
        return f"reads nothing and gives up {counted(lost, plan.losses.lost[0].partition.unit)}"
    if plan.origin.supersedes and not plan.pending:
        return "reads nothing: it takes the number of a plan that was given up"
    count = len(plan.partitions.keys() | plan.pending.keys())
    if not count:
        return "reads nothing and has no partition with a known start"
    return f"has no rows, only the start offsets of {counted(count, 'partition')}"


def describe_stale_rows(stale_rows: Iterable[StaleRows]) -> Iterator[str]:
    """Describe rows of records that the brokers lost: a sentence per interval."""
    for one in stale_rows:
        yield (
            f"{one.partition}: rows of offsets {one.from_offset} to {one.until_offset} with "
            f"incarnation {one.incarnation} are of records that Kafka lost; they stay in the table"
        )


def describe_left_out(applied: CommitResult) -> str:
    """Describe records and rows of different numbers, as the end of a sentence; may be empty."""
    records = applied.records_read
    rows = applied.rows
    if records is None or rows is None or records == rows:
        return ""
    read = f"; {counted(records, 'record')} read"
    if rows > records:
        return f"{read}: the transform made more rows than records"
    left_out = f"{read}: the transform left out {records - rows:,}"
    if any(result.rows is None for result in applied.results):
        return f"{left_out}, and the files do not show at which offsets"
    return left_out


def describe_uncounted(applied: CommitResult) -> str:
    """Describe unknown counts of a recounted plan, as the end of a sentence; may be empty."""
    if applied.uncounted:
        return f"; the number of rows is unknown ({applied.uncounted})"
    if applied.written is not None:
        return ""
    doubtful = [result for result in applied.results if result.is_doubtful]
    missing = sum(result.missing_offsets for result in doubtful)
    if missing:
        return (
            f"; {missing:,} offsets have no row, and whether the transform left them out is "
            "unknown: `etl verify` cannot prove them"
        )
    if doubtful:
        return "; whether the transform left out records is unknown: `etl verify` cannot prove them"
    return ""


def describe_jafka_proof(recounted: Sequence[int]) -> str:
    """Describe the limits of a proof for Jafka; `recounted`: plans with recounted rows."""
    sentence = (
        "Jafka's offsets are byte positions, which do not count messages: "
        "only the count in a range result shows that the range is complete"
    )
    if recounted:
        numbers = ", ".join(map(str, recounted))
        plans = "plan" if len(recounted) == 1 else "plans"
        sentence += (
            f". A crash lost the counts of {plans} {numbers}; the rows in the table were counted "
            "instead, which proves nothing about missing rows"
        )
    return sentence


# -- group members


def describe_read_by_others(intervals: Iterable[ReadByOthers]) -> Iterator[str]:
    """Describe offsets that other members read: a sentence per topic."""
    for topic, offsets in _by_topic(intervals):
        yield f"{topic}: other members of the group read {offsets}"


def describe_also_loaded(offsets: int) -> Iterator[str]:
    """Describe that a backfill loads offsets which other members also read."""
    if offsets:
        yield (
            f"{counted(offsets, 'offset')} of these were read by other members of the group; the "
            "table gets them, too"
        )


def describe_duplicate_reads(found: Iterable[ReadTwice]) -> Iterator[str]:
    """Describe loaded offsets that other members may also read: a sentence per topic."""
    for topic, offsets in _by_topic(found):
        yield f"{topic}: other members of the group may also have read {offsets}"


def describe_changed_owners(plan: Plan, found: Iterable[ReadTwice]) -> Iterator[str]:
    """Describe duplicate reads of a plan with a rejected offset commit: a sentence per topic."""
    for topic, offsets in _by_topic(found):
        yield (
            f"{topic}: plan {plan.number} is loaded, and the membership that planned it ended: "
            f"another member may also read {offsets}"
        )


def _by_topic(found: Iterable[ReadTwice | ReadByOthers]) -> Iterator[tuple[str, str]]:
    """Yield each topic with the number of its offsets and the first interval."""
    in_order = sorted(found, key=lambda one: one.partition)
    for topic, group in groupby(in_order, key=lambda one: one.partition.topic):
        intervals = list(group)
        count = sum(one.until_offset - one.from_offset for one in intervals)
        first = intervals[0]
        where = "partition"
        if len(intervals) > 1:
            where = f"{len(intervals):,} partitions, first"
        bounds = f"{first.partition.key} from {first.from_offset} to {first.until_offset}"
        yield topic, f"{count:,} {first.partition.unit}s of {where} {bounds}"


def describe_by_owner(left: Mapping[TopicPartition, str]) -> Iterator[str]:
    """Describe partitions that are left to their owners: a sentence per owner and topic."""
    sentences = {}
    for partition, owner in left.items():
        sentence = f"owned by {owner}; left out"
        if owner == UNASSIGNED:
            sentence = f"assigned to {owner}; a run reads it after the next rebalance"
        sentences[partition] = sentence
    return describe_by_topic(sentences)


# -- partitions that are left out


def describe_leaderless(
    partitions: Collection[TopicPartition], led: Collection[TopicPartition]
) -> Iterator[str]:
    """Describe partitions without a leader: a sentence per topic and reason.

    `led`: partitions with a leader.
    """
    missing = uncounted(partitions, led)
    sentences = {}
    for partition in partitions:
        sentence = "no leader; left out"
        if partition in missing:
            sentence = "its broker has fewer partitions now; left out"
        elif partition.is_physical:
            sentence = "its broker is unavailable; left out"
        sentences[partition] = sentence
    return describe_by_topic(sentences)


def describe_capped(left: Mapping[TopicPartition, int], limits: LimitsSettings) -> str:
    """Describe how many offsets the caps leave to the next run."""
    caps = []
    if limits.max_records_per_plan is not None:
        caps.append(f"limits.max_records_per_plan ({limits.max_records_per_plan:,})")
    if limits.max_bytes_per_plan is not None:
        caps.append(f"limits.max_bytes_per_plan ({limits.max_bytes_per_plan:,})")
    count = f"{sum(left.values()):,} {min(left).unit}s"
    return f"{' and '.join(caps)}: {count} of {counted(len(left), 'partition')} remain"


def describe_open(snapshot: Snapshot) -> Iterator[str]:
    """Describe partitions with an open transaction: a sentence per topic and transaction."""
    held_back = []
    for partition, offsets in snapshot.readable.items():
        if offsets.held_back:
            held_back.append(partition)
    waiting: dict[tuple[str, str], list[TopicPartition]] = {}
    for partition in sorted(held_back):
        transaction = _describe_transaction(snapshot.partition(partition).open_transaction)
        waiting.setdefault((partition.topic, transaction), []).append(partition)
    for (topic, transaction), partitions in waiting.items():
        count = sum(snapshot.readable[partition].held_back for partition in partitions)
        verb = "waits" if count == 1 else "wait"
        yield (
            f"{topic} {named_keys(partitions)}: {counted(count, 'offset')} below the high "
            f"watermark {verb} for {transaction}"
        )


def _describe_transaction(transaction: OpenTransaction | None) -> str:
    """Describe an open transaction, as far as brokers report it."""
    if transaction is None:
        return "an open transaction"
    name = ""
    if transaction.transactional_id:
        name = f" {transaction.transactional_id}"
    since = ""
    if transaction.since_ms is not None:
        since = f", open since {format_time(transaction.since_ms)}"
    return f"the open transaction{name} of producer {transaction.producer_id}{since}"


def describe_done_before(key: RunKeyRecord) -> str:
    """Describe a run under a completed key."""
    bounds = _bounds_of(key)
    if not key.is_empty:
        return f"Run key {key.key} was loaded by plan {key.number}{bounds}"
    since = "before the first plan"
    if key.number:
        since = f"after plan {key.number}"
    return f"Run key {key.key} is done: it had no records, {since}{bounds}"


def describe_empty_key(key: RunKeyRecord) -> str:
    """Describe the first run of a key that has nothing to read."""
    return (
        f"No new records{_bounds_of(key)}. Run key {key.key} is done: a later run with it loads "
        "nothing"
    )


def _bounds_of(key: RunKeyRecord) -> str:
    """Return the bounds of a key's run in parentheses, after a space; empty without bounds."""
    if not key.said:
        return ""
    return f" ({key.said})"


_LATER_RUN = "Older records that arrive later are loaded by a later run"


def describe_open_end(plan: Plan) -> str:
    """Describe that partitions without a record at the end may still get older ones."""
    until = ""
    if plan.request.bounds.until:
        until = plan.request.bounds.until.said
    partitions = _have(plan.request.bounds.open_partitions)
    return (
        f"Plan {plan.number}: {partitions} no record at or after {until} and was read to the log "
        f"end. {_LATER_RUN}"
    )


def describe_open_without_plan(until: Bound, count: int) -> str:
    """Describe partitions without a record at the end, for a run that had nothing to read."""
    return f"{_have(count)} no record at or after {until.said}. {_LATER_RUN}"


def describe_left_of_key(key: str, left: Collection[TopicPartition]) -> str:
    """Describe partitions of a run key that could not be read; other outcomes name each."""
    return (
        f"Run key {key} is not loaded in {_first_of(left)}, which could not be read. Run it again "
        "with the key when it can be read"
    )


def describe_beyond_bound(beyond: Mapping[TopicPartition, int], until: str) -> str:
    """Describe offsets beyond this run's end that an earlier run loaded."""
    offsets = sum(beyond.values())
    return f"{_first_of(beyond)}: an earlier run loaded {offsets:,} offsets beyond {until}"


def _have(count: int) -> str:
    if count == 1:
        return "1 partition has"
    return f"Each of {count:,} partitions has"


def _first_of(partitions: Collection[TopicPartition]) -> str:
    first = str(min(partitions))
    if len(partitions) == 1:
        return first
    return f"{first} and {len(partitions) - 1:,} more partitions"


def describe_unknown(subject: str, reasons: Mapping[TopicPartition, str]) -> Iterator[str]:
    """Describe which partitions have an unknown value: a sentence per topic and reason."""
    sentences = {
        partition: f"{subject} is unknown: {reason}" for partition, reason in reasons.items()
    }
    return describe_by_topic(sentences)


def describe_by_topic(sentences: Mapping[TopicPartition, str]) -> Iterator[str]:
    """Yield one sentence for all partitions of a topic with the same text."""
    by_sentence: dict[tuple[str, str], list[TopicPartition]] = {}
    for partition, sentence in sorted(sentences.items()):
        by_sentence.setdefault((partition.topic, sentence), []).append(partition)
    for (topic, sentence), partitions in by_sentence.items():
        yield f"{topic} {named_keys(partitions)}: {sentence}"


_NAMED = 5
"""How many partitions one sentence names."""


def named_keys(partitions: Sequence[TopicPartition]) -> str:
    """Return the keys of the first partitions of one topic, and how many more there are."""
    keys = ", ".join(partition.key for partition in partitions[:_NAMED])
    if len(partitions) <= _NAMED:
        return keys
    return f"{keys} and {len(partitions) - _NAMED:,} more"


def existing_partitions(snapshot: Snapshot) -> set[TopicPartition]:
    """Return every existing partition, with a leader or without."""
    return snapshot.readable.keys() | snapshot.leaderless


def describe_partition_offsets(snapshot: Snapshot, partition: TopicPartition) -> dict[str, Any]:
    """Return the offsets of a partition and its open transaction as a JSON object.

    Without a leader they are None.
    """
    document: dict[str, Any] = {
        "log_start": None,
        "log_end": None,
        "high_watermark": None,
        "held_back": None,
        "transaction_began_at": None,
        "held_back_by": None,
    }
    offsets = snapshot.readable.get(partition)
    if offsets:
        document["log_start"] = offsets.log_start_offset
        document["log_end"] = offsets.end_offset
        document["high_watermark"] = offsets.end_offset + offsets.held_back
        document["held_back"] = offsets.held_back
    transaction = snapshot.partition(partition).open_transaction
    if transaction:
        producer = f"producer {transaction.producer_id}"
        document["transaction_began_at"] = format_time(transaction.since_ms)
        document["held_back_by"] = transaction.transactional_id or producer
    return document
