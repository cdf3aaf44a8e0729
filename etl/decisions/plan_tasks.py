"""How a plan is read: whom each range is asked from, which ranges one task reads, which tasks begin
first. A pure function of values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from etl.decisions.expiry import expiring
from etl.decisions.tasks import pack_tasks
from etl.model.plans import OffsetRange, Plan
from etl.model.snapshot import Snapshot
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class PlanTasks:
    """The ranges of a plan with their leaders of today, and the tasks: indices of `ranges`, in the
    order in which they begin.
    """

    ranges: tuple[OffsetRange, ...]
    tasks: tuple[tuple[int, ...], ...]


def tasks_of_plan(
    plan: Plan, snapshot: Snapshot, settings: Settings, *, parallelism: int, now_ms: int
) -> PlanTasks:
    """How a run reads the plan; `parallelism`: so many tasks work at once.

    A stored plan may be old, and its leaders are those of its day. What may expire soon is read
    first.
    """
    ranges = tuple(replace(r, leader=snapshot.leaders.get(r.log, r.leader)) for r in plan.ranges)
    urgent = expiring(ranges, snapshot, within_s=settings.source.expiry_warning_s, now_ms=now_ms)
    target = settings.limits.target_task_bytes
    return PlanTasks(
        ranges,
        pack_tasks(
            ranges,
            snapshot.bytes_per_offset,
            target,
            parallelism,
            first={one.log for one in urgent},
        ),
    )
