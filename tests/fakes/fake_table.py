"""The fake table's side of a run: its append skips a number that is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from etl.decide.backfill import merge_intervals
from etl.decide.loaded_intervals import Span, spans_of
from etl.decide.recreated_or_truncated import Cut, is_creation_id
from etl.decide.table_changes import removes_rows_of
from etl.errors import (
    ExpiredOffsets,
    LedgersDisagree,
    MissingOffsets,
    TableAppeared,
    TableUnreachable,
    TopicRecreated,
)
from etl.model.partitions import TopicPartition, render_intervals
from etl.model.plans import CommitResult, OffsetRange, Plan, PlanKind, Predecessor, RangeResult
from etl.model.snapshot import CommitMetadata, ForeignCommit, Table
from tests.fakes.fake_log import Place, offset_of
from tests.fakes.outside import FakeCommit, Outside

Row = tuple[TopicPartition, Place]


def read_table(out: Outside) -> Table | None:
    commits = out.table
    if commits is None:
        return None
    at, last = out.commits()[-1] if out.commits() else (0, None)
    metadata = _stamp(last, at, out.app_id) if last and not out.forgotten_commits else None
    foreign = (*out.foreign, *_removals(out, at))
    return Table(
        out.table_id, len(commits), last.number if last else None, metadata, foreign, out.others
    )


def _removals(out: Outside, after: int) -> Iterator[ForeignCommit]:
    """The replays of other pipelines since a version that removed rows of ours."""
    topics = {partition.topic for partition in out.logs}
    for version, commit in enumerate(out.table or (), 1):
        is_of_another = bool(commit.app_id) and commit.app_id != out.app_id
        if version > after and is_of_another and commit.plan.kind is PlanKind.REPLAY:
            by = Predecessor(commit.app_id, commit.number)
            if removes_rows_of(commit.plan, by, topics.__contains__, {}):
                yield ForeignCommit(version, "WRITE", "removed rows")


def _stamp(commit: FakeCommit, version: int, app_id: str) -> CommitMetadata:
    plan = commit.plan
    return CommitMetadata(
        version,
        app_id,
        plan.origin.pipeline_id,
        plan.number,
        plan.id,
        document=commit.document,
        run_id=commit.run_id,
    )


def open_table(out: Outside, plan: Plan) -> Table | None:
    """The table that a writer will commit to. Raises where it lacks the plan's number, and is
    another than the plan was made for, or an older copy of it.
    """
    table = read_table(out)
    held = table.transaction_version if table else None
    if table is None or (held is not None and held >= plan.number):
        return table
    if table.id != plan.table.id and (plan.table.id is not None or held is None):
        if plan.table.id is None:
            raise TableAppeared(f"plan {plan.number} was made when there was no table")
        raise LedgersDisagree(f"plan {plan.number} was made for another table")
    if (held or 0) < plan.table.transaction_version:
        raise LedgersDisagree(f"the table lacks plans before plan {plan.number}")
    return table


def reject_lost(out: Outside, ranges: Sequence[OffsetRange]) -> None:
    """As a reader finds out: offsets that have expired, or that nothing explains."""
    for r in ranges:
        if r.size and r.from_offset < out.logs[r.partition].log_start:
            raise ExpiredOffsets("the offset was deleted by retention", **r.partition.place)
    lost = [
        (r.partition, at)
        for r in ranges
        for at in sorted(out.logs[r.partition].lost)
        if r.from_offset <= at < r.until_offset
    ]
    if lost:
        missing = render_intervals((partition, at, at + 1) for partition, at in lost)
        raise MissingOffsets("offsets are missing from inside the partition", missing=missing)


@dataclass(frozen=True)
class ReadRows:
    """The rows of a plan's ranges, as its tasks read them."""

    rows: tuple[Row, ...]
    lives: tuple[int, ...]
    epochs: tuple[tuple[tuple[int, int], ...], ...]


def read_rows(out: Outside, plan: Plan, ranges: Sequence[OffsetRange]) -> ReadRows:
    """Read the ranges, and check at the end what each task checks then. Raises ExpiredOffsets,
    MissingOffsets, TopicRecreated, PartitionTruncated.
    """
    _reject_recreated(out, plan)
    for r in ranges:
        end = None
        if r.partition in plan.leader_epochs:
            end = out.logs[r.partition].end_of_epoch(plan.leader_epochs[r.partition])
        if end and end.end_offset < r.until_offset:
            raise Cut(r.partition, r.until_offset, end.end_offset).error()
        tail = plan.fingerprints.get(r.partition)
        if (
            tail
            and r.size
            and out.logs[r.partition].log_start <= tail.until_offset - tail.size
            and (out.logs[r.partition].tail(tail.until_offset, tail.size) != tail)
        ):
            raise Cut(
                r.partition,
                r.until_offset,
                tail.until_offset - 1,
                is_known=False,
                holds_others=True,
            ).error()
    reject_lost(out, ranges)
    read = tuple(
        (r.partition, place)
        for r in ranges
        for place in out.logs[r.partition].read(r.from_offset, r.until_offset)
    )
    lives = tuple(out.logs[partition].incarnation_of(offset_of(place)) for partition, place in read)
    epochs = tuple(
        out.logs[r.partition].epochs_in(r.from_offset, r.until_offset) for r in plan.ranges
    )
    return ReadRows(read, lives, epochs)


def write(
    out: Outside,
    plan: Plan,
    ranges: Sequence[OffsetRange],
    *,
    opened: Table | None,
    run_id: str,
    read: ReadRows | None = None,
) -> bool:
    """True if this wrote the rows. `read`: its rows; None: they are read now."""
    held = (opened.transaction_version or 0) if opened else 0
    if held >= plan.number or out.transaction_version() != held:
        return False
    found = read or read_rows(out, plan, ranges)
    before = out.table or []
    if plan.kind is PlanKind.REPLAY:
        before = [_without(commit, plan) for commit in before]
    out.table = [
        *before,
        FakeCommit(plan, found.rows, run_id, out.app_id, found.lives, found.epochs),
    ]
    return True


def _reject_recreated(out: Outside, plan: Plan) -> None:
    """As each task does once it has read all, if brokers report topic ids."""
    for topic in sorted(plan.read_topics):
        planned, now = plan.topic_ids.get(topic), out.topic_ids.get(topic)
        if planned and now and planned != now and not is_creation_id(planned):
            raise TopicRecreated("the topic was recreated while it was read", topic=topic)


def _without(commit: FakeCommit, plan: Plan) -> FakeCommit:
    """The commit once a replay took its rows out, in one commit with those that it brings."""
    spans = {
        span.partition: span
        for span in spans_of(plan)
        if commit.plan.incarnations.get(span.partition, 0) == span.incarnation
    }
    gone = {
        (partition, place)
        for partition, place in commit.rows
        if partition in spans and spans[partition].meets(offset_of(place), offset_of(place) + 1)
    }
    return replace(commit, replaced=commit.replaced | gone)


def rows_there(out: Outside, spans: Sequence[Span]) -> dict[TopicPartition, int]:
    """How many rows the table has in each span."""
    return {
        span.partition: sum(
            partition == span.partition
            and commit.plan.incarnations.get(partition, 0) == span.incarnation
            and span.meets(offset_of(place), offset_of(place) + 1)
            for commit in out.table or ()
            for partition, place in commit.left
        )
        for span in spans
    }


def read_back(out: Outside, plan: Plan) -> CommitResult | None:
    """Return an append's result by the table alone; None: it has another plan of that number."""
    if out.transaction_version() < plan.number:
        raise TableUnreachable(f"plan {plan.number} did not reach the table")
    return recount(out, plan)


def recount(out: Outside, plan: Plan) -> CommitResult | None:
    if out.transaction_version() < plan.number:
        return None
    if out.forgotten_commits:
        results = tuple(result_of(r, _rows_of_today(out, plan)) for r in plan.ranges)
        return CommitResult(plan.number, plan.id, len(out.table or ()), out.table_id, results)
    for version, commit in enumerate(out.table or (), 1):
        if (commit.number, commit.plan_id) == (plan.number, plan.id):
            results = tuple(result_of(r, commit.rows) for r in plan.ranges)
            return CommitResult(plan.number, plan.id, version, out.table_id, results, commit.run_id)
    return None


def _rows_of_today(out: Outside, plan: Plan) -> list[Row]:
    """Of the lives of logs that the plan reads."""
    return [
        row
        for commit in out.table or ()
        for row in commit.left
        if commit.plan.incarnations.get(row[0], 0) == plan.incarnations.get(row[0], 0)
    ]


def results_from_table(out: Outside, plan: Plan) -> list[RangeResult]:
    """Of each range, with its gaps; gaps of byte offsets are unknown."""
    rows = _rows_of_today(out, plan)
    found = []
    for r in plan.ranges:
        there = {offset_of(place) for partition, place in rows if partition == r.partition}
        gaps: list[tuple[int, int]] = []
        if not r.partition.is_physical:
            gaps = merge_intervals(
                (at, at + 1) for at in range(r.from_offset, r.until_offset) if at not in there
            )
        found.append(
            replace(result_of(r, rows), gaps=tuple(gaps), gaps_complete=not r.partition.is_physical)
        )
    return found


def as_read(out: Outside, applied: CommitResult) -> CommitResult:
    """A reader of the ranges knows the bytes and the epochs; rows do not have them."""
    epochs = next(commit.epochs for commit in out.table or () if commit.plan_id == applied.plan_id)
    return replace(
        applied,
        results=tuple(
            replace(
                result,
                fetched_bytes=100 * (result.rows or 0),
                epochs=known,
                last_epoch=known[-1][0] if known else None,
            )
            for result, known in zip(applied.results, epochs, strict=True)
        ),
    )


def result_of(r: OffsetRange, rows: Collection[Row]) -> RangeResult:
    """Counted again from rows. Missing byte offsets are unknown."""
    count = sum(
        partition == r.partition and r.from_offset <= offset_of(place) < r.until_offset
        for partition, place in rows
    )
    return RangeResult(rows=count, missing_offsets=0 if r.partition.is_physical else r.size - count)


def record_losses(out: Outside, plan: Plan) -> None:
    """The losses table takes each number once, and no smaller one after it."""
    if plan.number > max((number for number, _ in out.losses), default=0):
        out.losses.extend((plan.number, loss) for loss in plan.losses.lost)
