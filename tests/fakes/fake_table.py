"""The fake table's side of a run: an append that finds its number taken is skipped in silence, one that lost a race too, and what became
of it is read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from etl.decisions.log_identity import Cut
from etl.errors import ExpiredOffsets, MissingOffsets
from etl.model.plans import Applied, OffsetRange, Plan, Receipt
from etl.model.table import CommitMetadata, Table
from etl.protocol.zookeeper import plan_documents
from tests.fakes.outside import APP_ID, FakeCommit, Outside


def read_table(out: Outside) -> Table | None:
    commits = out.table
    if commits is None:
        return None
    last, version = (commits[-1] if commits else None), len(commits)
    metadata = _stamp(last, version) if last and not out.forgotten_commits else None
    return Table("table-1", version, last.number if last else None, metadata, out.foreign, out.others)


def _stamp(commit: FakeCommit, version: int) -> CommitMetadata:
    plan = commit.plan
    return CommitMetadata(version, APP_ID, plan.uid, plan.number, plan.id, document=plan_documents.render_plan(plan), run_id=commit.run_id)


def refuse_lost(out: Outside, ranges: Sequence[OffsetRange]) -> None:
    """As a reader finds out: offsets that have expired, or that nothing explains."""
    for r in ranges:
        if r.size and r.from_offset < out.logs[r.log].log_start:
            raise ExpiredOffsets("the offset was deleted by retention", topic=r.log.topic, partition=r.log.partition)
    lost = [(r.log, at) for r in ranges for at in sorted(out.logs[r.log].lost) if r.from_offset <= at < r.until_offset]
    if lost:
        missing = " ".join(f"{log.topic}:{log.partition}:{at}-{at + 1}" for log, at in lost)
        raise MissingOffsets("offsets are missing from inside the log", missing=missing)


def write(out: Outside, plan: Plan, ranges: Sequence[OffsetRange], *, opened: int, run_id: str) -> None:
    if opened >= plan.number or out.transaction_version() != opened:
        return  # skipped by the writer, or lost to another one under the same app id: read back, do not guess
    for r in ranges:
        end = out.logs[r.log].end_of_epoch(plan.leader_epochs[r.log]) if r.log in plan.leader_epochs else None
        if end and end.end_offset < r.until_offset:
            raise Cut(r.log, r.until_offset, end.end_offset).error()  # as each task does once it has read all
    read = tuple((r.log, offset) for r in ranges for offset in out.logs[r.log].read(r.from_offset, r.until_offset))
    lives = tuple(out.logs[log].life_of(offset) for log, offset in read)
    epochs = tuple(out.logs[r.log].epochs_in(r.from_offset, r.until_offset) for r in plan.ranges)
    out.table = [*(out.table or ()), FakeCommit(plan, read, run_id, lives, epochs)]


def recount(out: Outside, plan: Plan) -> Applied | None:
    for version, commit in enumerate(out.table or (), 1):
        if (commit.number, commit.plan_id) == (plan.number, plan.id) and not out.forgotten_commits:
            return Applied(plan.number, plan.id, version, "table-1", tuple(receipt_of(r, commit) for r in plan.ranges), commit.run_id)
    return None


def with_epochs(out: Outside, applied: Applied | None) -> Applied | None:
    """Whoever has read the range knows the epochs; rows alone do not tell them."""
    epochs = next((c.epochs for c in out.table or () if applied and c.plan_id == applied.plan_id), ())
    if applied is None or len(epochs) != len(applied.receipts):
        return applied
    return replace(applied, receipts=tuple(
        replace(receipt, epochs=known, last_epoch=known[-1][0] if known else None)
        for receipt, known in zip(applied.receipts, epochs, strict=True)))


def receipt_of(r: OffsetRange, commit: FakeCommit) -> Receipt:
    """Counted again from the rows of the commit."""
    rows = sum(log == r.log and r.from_offset <= offset < r.until_offset for log, offset in commit.rows)
    return Receipt(rows=rows, missing_offsets=r.size - rows)
