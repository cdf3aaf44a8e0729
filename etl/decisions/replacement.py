"""The plan that takes the place of one that cannot be finished: the same offsets, without what is gone or skipped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from etl.decisions.backfills.backfill_plans import backfill_plan_instead
from etl.decisions.byte_positions.misplaced_offsets import refuse_named
from etl.decisions.plan import plan_from
from etl.decisions.run_keys import asking_again
from etl.decisions.start import starts_of
from etl.errors import BrokerUnreachable, SettingsError
from etl.model.losses import Loss
from etl.model.plans import OffsetRange, Plan, PlanKind
from etl.model.snapshot import Snapshot, Supersede
from etl.settings.sections import Settings

Span = TypeVar("Span", OffsetRange, Loss)


def plan_instead(state: Supersede, snapshot: Snapshot, settings: Settings, *, now_ms: int) -> Plan:
    """The plan that takes the number of one that cannot be finished, without its id: from where that one started, to the ends of now.

    What the old plan let go stays let go, and what it saw of the offsets stays the expected side of compare-and-set. In a log that cannot
    be read now the position stays, and what the old plan let go behind it is for the plan to say that reads it. Raises as `plan_next`,
    and SettingsError when `skipped` names offsets that it does not read.
    """
    if snapshot.backfill:
        return backfill_plan_instead(snapshot.backfill, state, snapshot, settings, now_ms=now_ms)
    old, among = state.plan, let_go_among(state.plan)
    earlier = [loss for loss in among if loss.log in snapshot.extents]
    kept = [loss for loss in old.losses if loss in earlier or loss not in among]
    skipped = [replace(skip, log_epoch=old.log_epochs.get(skip.log, 0)) for skip in state.skipped]
    skips = (*earlier, *skipped)
    _refuse_leaderless_skips(skipped, snapshot)
    for skip in skipped:
        refuse_named(skip.log, skip.until_offset, snapshot, key="--skip")
    plan = plan_from(
        starts_of(old), old, snapshot, settings, number=old.number, uid=old.uid, now_ms=now_ms, beyond=skips, asking=asking_again(old))
    ranges = tuple(leave_out(_without(plan.ranges, earlier), skipped))
    return replace(
        plan, ranges=ranges, seen={**plan.seen, **old.seen}, previous=old.previous, supersedes=old.id, reason=state.reason,
        losses=(*kept, *_without(plan.losses, earlier), *skipped), vanished=old.vanished,
        took_over=old.took_over)


def let_go_among(plan: Plan) -> tuple[Loss, ...]:
    """What this plan let go and another one in its place would read again, since it lies behind a range's start: skipped, or missing."""
    starts = starts_of(plan)
    current = (loss for loss in plan.losses if loss.log_epoch == plan.log_epochs.get(loss.log, 0))
    return tuple(loss for loss in current if loss.until_offset > starts[loss.log])


def plan_without(plan: Plan, missing: Sequence[Loss], *, now_ms: int) -> Plan:
    """The plan that takes the place of one whose logs lack some of its offsets, without its id: the same, and those are let go."""
    missing = [replace(loss, log_epoch=plan.log_epochs.get(loss.log, 0)) for loss in missing]
    ranges = tuple(leave_out(plan.ranges, missing))
    count = sum(loss.until_offset - loss.from_offset for loss in missing)
    first = f"{missing[0].log} from {missing[0].from_offset}"
    return replace(
        plan, ranges=ranges, kind=_kind_of(plan, ranges), created_at_ms=now_ms, supersedes=plan.id,
        reason=f"{count:,} of its offsets are missing from the logs, the first of them {first}", losses=(*plan.losses, *missing), id="")


def _kind_of(plan: Plan, ranges: Sequence[OffsetRange]) -> PlanKind:
    return plan.kind if plan.kind is PlanKind.BACKFILL else PlanKind.INGEST if ranges else PlanKind.START


def leave_out(ranges: Iterable[OffsetRange], skipped: Sequence[Loss]) -> Iterable[OffsetRange]:
    """The ranges without the skipped offsets. Raises SettingsError for offsets that no range holds."""
    left = list(ranges)
    for skip in skipped:
        cut = _without(left, [skip])
        if sum(r.size for r in left) - sum(r.size for r in cut) != skip.until_offset - skip.from_offset:
            what = f"offsets {skip.from_offset} to {skip.until_offset} are not all in the plan's ranges"
            check = "the ranges in `etl plans show CONF N`"
            raise SettingsError(what, **skip.log.place, check=check)
        left = cut
    return left


def _without(found: Iterable[Span], skipped: Iterable[Loss]) -> list[Span]:
    """Ranges or losses without what was skipped of them."""
    left = list(found)
    for skip in skipped:
        left = [part for one in left for part in _around(one, skip)]
    return left


def _around(r: Span, skip: Loss) -> Iterable[Span]:
    if r.log != skip.log or skip.until_offset <= r.from_offset or r.until_offset <= skip.from_offset:
        yield r
        return
    if r.from_offset < skip.from_offset:
        yield replace(r, until_offset=skip.from_offset)
    if skip.until_offset < r.until_offset:
        yield replace(r, from_offset=skip.until_offset)


def _refuse_leaderless_skips(skipped: Iterable[Loss], snapshot: Snapshot) -> None:
    """What is skipped is let go by the plan that passes it, which cannot be one that does not read the log. Raises BrokerUnreachable."""
    for skip in skipped:
        if skip.log in snapshot.leaderless:
            what = f"the partition {skip.log.unled}, so none of its offsets can be skipped now"
            raise BrokerUnreachable(what, **skip.log.place, check=skip.log.held_by)
