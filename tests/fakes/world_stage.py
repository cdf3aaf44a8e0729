"""The state on which the laws of `world_contract` are checked, and short names for a driver's
actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from etl.ledger.plan_document import with_id
from etl.model.partitions import NOTHING_COMMITTED, TopicPartition
from etl.model.plans import (
    CommitResult,
    Loss,
    OffsetRange,
    Plan,
    PlanKind,
    PlanOrigin,
    Request,
    TableExpectation,
)
from etl.model.snapshot import ForeignCommit, Table
from etl.run.service_interfaces import Services
from tests.builders import changed, plain_plan

GROUP_OWNER = "host-1-0"
"""The suffix of another consumer's id after the group's name."""
SIZES = (5, 3, 4)
"""How many records each of the stage's logs has. The third is for what cannot be undone."""


class Stage(Protocol):
    """One ZooKeeper, three partitions and a path for a table, real or not; without any plan."""

    @property
    def logs(self) -> tuple[TopicPartition, ...]:
        """Three partitions of one topic with the sizes of `SIZES`."""

    def world(self, run_id: str = "run-1", request: Request | None = None) -> Services:
        """A driver with its own session; all of them drive the same pipeline. `request`: the run's
        bounds and key in addition to the conf.
        """

    def rows(self) -> list[tuple[TopicPartition, int]]:
        """Log and offset of each row of the table, in order."""

    def losses(self) -> list[Loss]:
        """The rows of the losses table, in order."""

    def plans(self) -> dict[int, str]:
        """Number and id of each plan that ZooKeeper holds."""

    def removals(self) -> list[ForeignCommit]:
        """What ZooKeeper holds of rows that others removed."""

    def forget(self, number: int | None = None) -> None:
        """Delete this plan and its result from ZooKeeper; without a number the whole pipeline."""

    def move_offset(self, partition: TopicPartition, offset: int) -> None:
        """Another client writes an offset."""

    def own(self, partition: TopicPartition) -> None:
        """Another consumer of the group, `GROUP_OWNER`, becomes the owner."""

    def expire(self, partition: TopicPartition, until: int) -> None:
        """Retention deletes the records before `until`."""

    def replace_table(self) -> None:
        """Another writer creates a table with the same columns at the table's path."""

    def clean_up_log(self) -> None:
        """The table's log loses the commits' metadata; the rows stay."""


def plan_for(world: Services, until: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    """The next plan, up to these offsets, of a driver that observes now. It is not stored."""
    seen = world.observe()
    newest, table = seen.ledger.newest, seen.table
    positions = {
        **(newest.loaded_until if newest else {partition: 0 for partition in until}),
        **until,
    }
    starts = {
        partition: newest.loaded_until.get(partition, 0) if newest else 0 for partition in until
    }
    plan = plain_plan(
        number=newest.number + 1 if newest else 1,
        origin=PlanOrigin(
            pipeline_id=seen.ledger.uid or "uid1",
            created_at_ms=world.now_ms(),
            previous=newest.id if newest else None,
        ),
        kind=PlanKind.INGEST,
        cluster=seen.cluster,
        shape="shape",
        loaded_until=positions,
        ranges=tuple(
            OffsetRange(partition, starts[partition], until[partition], seen.leaders[partition])
            for partition in sorted(until)
            if starts[partition] < until[partition]
        ),
        expected_commits={
            partition: seen.committed.get(partition, NOTHING_COMMITTED) for partition in positions
        },
        table=TableExpectation(
            id=table.id if table else None,
            transaction_version=(table.transaction_version or 0) if table else 0,
            version=table.version if table else None,
        ),
        topic_ids=seen.topic_ids,
    )
    return with_id(changed(plan, **changes))


def another(plan: Plan, **changes: Any) -> Plan:
    """Another plan of the same number."""
    return with_id(changed(plan, **{"supersedes": plan.id, "reason": "it is tried", **changes}))


def append(world: Services, plan: Plan) -> tuple[CommitResult | None, Table | None]:
    """Look, fetch and append, as a run does."""
    return world.append(plan, world.fetch(plan, world.observe()))


def stored(world: Services, until: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    """The next plan, stored."""
    plan = plan_for(world, until, **changes)
    world.store(plan)
    return plan


def appended(
    world: Services, until: Mapping[TopicPartition, int], **changes: Any
) -> tuple[Plan, CommitResult]:
    """The next plan in the ledger and in the table; no record of it, and no offset moved."""
    plan = stored(world, until, **changes)
    applied, _ = append(world, plan)
    assert applied is not None
    return plan, applied


def loaded(world: Services, until: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    """The next plan, as a quiet run leaves it."""
    plan, applied = appended(world, until, **changes)
    world.record(plan, applied)
    world.commit(plan)
    return plan


def counts(applied: CommitResult | None) -> list[tuple[int | None, int]]:
    """Rows and missing offsets of each range."""
    assert applied is not None
    return [(result.rows, result.missing_offsets) for result in applied.results]
