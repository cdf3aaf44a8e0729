"""Which intervals of each log are in the table: how the record of applied plans is merged when plans are pruned. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from etl.model import Applied, BrokerPartition, Coverage, Foreign, Interval, OffsetRange, Plan, Receipt

PLANS_KEPT = 100
PLAN_BYTES_KEPT = 16 * 2**20
REMOVALS_KEPT = 1000


def prunable(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Numbers of the plans to fold into coverage, given (number, bytes) of all that are stored.

    The newest `PLANS_KEPT` stay, or as many of them as fit `PLAN_BYTES_KEPT`; the newest one always stays.
    """
    kept, total = 0, 0
    newest_first = sorted(sizes, reverse=True)
    for _, size in newest_first[:PLANS_KEPT]:
        total += size
        if kept and total > PLAN_BYTES_KEPT:
            break
        kept += 1
    return sorted(number for number, _ in newest_first[kept:])


def fold(coverage: Coverage, plan: Plan, applied: Applied) -> Coverage:
    """Coverage with one more plan folded in; one that is in it already changes nothing.

    A plan that went to another table than those before it begins anew: an operator gave the earlier table up.
    """
    if plan.number <= coverage.through:
        return coverage
    same = coverage.table_id in (None, applied.table_id)
    loaded: dict[BrokerPartition, list[Interval]] = {log: list(found) for log, found in coverage.intervals.items()} if same else {}
    for r, receipt in zip(plan.ranges, applied.receipts, strict=True):
        loaded.setdefault(r.log, []).append(interval_of(r, receipt, plan.log_epochs.get(r.log, 0)))
    intervals = {log: merge(found) for log, found in loaded.items()}
    vanished = (*(coverage.vanished if same else ()), *plan.vanished)
    return replace(coverage, through=plan.number, intervals=intervals, table_id=applied.table_id, vanished=vanished)


def interval_of(r: OffsetRange, receipt: Receipt, log_epoch: int = 0) -> Interval:
    """What a range came to, without the places of its gaps."""
    counts = receipt.control_records, receipt.aborted_records, receipt.compacted
    return Interval(r.from_offset, r.until_offset, receipt.rows, *counts, log_epoch)


def note(coverage: Coverage, removals: Iterable[Foreign]) -> Coverage:
    """Coverage that tells of these commits of others too; the newest `REMOVALS_KEPT` are kept."""
    known = {found.delta_version for found in coverage.removals}
    new = tuple(found for found in removals if found.delta_version not in known)
    return replace(coverage, removals=(coverage.removals + new)[-REMOVALS_KEPT:])


def merge(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Intervals in order, those of one life of a log that touch made one."""
    merged: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: (i.log_epoch, i.from_offset, i.until_offset)):
        if merged and (merged[-1].log_epoch, merged[-1].until_offset) == (interval.log_epoch, interval.from_offset):
            before = merged.pop()
            interval = Interval(
                before.from_offset, interval.until_offset, before.rows + interval.rows, before.control_records + interval.control_records,
                before.aborted_records + interval.aborted_records, before.compacted + interval.compacted, before.log_epoch)
        merged.append(interval)
    return tuple(merged)
