"""What do operator commands have in common?

A command that stores an operator's decision

    1. takes the driver lock, so that no run acts meanwhile
    2. joins the group, if runs are members of it
    3. observes what a run observes
    4. finishes what an earlier run left, if its decision stands on that
    5. stores a plan, which the next run executes, or a document

A dry run takes no lock, joins no group and stores nothing. Each step can be repeated.

Not here: what a command rejects and decides (etl/decide).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from etl.commands.run import new_run_id
from etl.decide.byte_offsets import OperatorOffsets, no_operator_offsets
from etl.decide.next_step import Repair, repaired
from etl.decide.partition_owners import (
    command_plan,
    foreseen_by_command,
    joins_for_commands,
    reject_fenced_plan,
)
from etl.decide.plan_replacement import in_place_of
from etl.ledger.plan_document import with_id
from etl.model.partitions import MemberAssignment
from etl.model.plans import Plan
from etl.model.snapshot import Ledger, Snapshot
from etl.report.run_report import Report
from etl.run.ingest import finish_repair, store_or_replace
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import Services, now_ms
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A command under the driver lock."""

    services: LiveServices
    run_id: str
    is_dry_run: bool = False
    assignment: MemberAssignment | None = None
    """The partitions that the command owns as a group member; None: no member."""

    def observe(self, offsets_of: OperatorOffsets = no_operator_offsets) -> Snapshot:
        """Return what the brokers, ZooKeeper and the table hold; see `unverified_offsets`."""
        snapshot = self.services.observe(offsets_of).with_assignment(self.assignment)
        if self.is_dry_run:
            return foreseen_by_command(snapshot, self.services.settings)
        return snapshot

    def finish(self, repair: Repair | None, snapshot: Snapshot) -> Snapshot:
        """Finish what an earlier run left; return the snapshot after it."""
        if self.is_dry_run:
            return repaired(snapshot, repair)
        return finish_earlier_work(
            self.services, repair, snapshot, self.services.settings, self.run_id
        )

    def store(self, plan: Plan, ledger: Ledger, *, done: str = "") -> None:
        """Store the plan; it replaces a stored plan that is not in the table.

        `done`: see `reject_fenced_plan`. Raises Owned if the group has changed since the decision;
        the plan is then not stored.
        """
        if not self.is_dry_run:
            store_decided(self.services, plan, ledger, done)


def plan_of_command(
    plan: Plan, snapshot: Snapshot, settings: Settings, stored_backfill: Plan | None = None
) -> Plan:
    """Return the plan as it is stored, with its id.

    stored_backfill   the stored plan of a backfill, whose number the plan takes
    """
    plan = command_plan(plan, snapshot, settings)
    if stored_backfill:
        plan = in_place_of(plan, stored_backfill)
    return with_id(plan)


def finish_earlier_work(
    services: Services, repair: Repair | None, snapshot: Snapshot, settings: Settings, run_id: str
) -> Snapshot:
    """See `OperatorSession.finish`."""
    group = settings.group.id
    report = Report(run_id, settings.pipeline, group, settings.table.path, now_ms())
    finish_repair(services, repair, report)
    return repaired(snapshot, repair)


def store_decided(services: Services, plan: Plan, ledger: Ledger, done: str = "") -> None:
    """See `OperatorSession.store`."""
    reject_fenced_plan(store_or_replace(services, plan, ledger), done)


@contextlib.contextmanager
def operator_session(
    settings: Settings,
    run_context: RunContext = ALONE,
    *,
    dry_run: bool = False,
    joins_group: bool = True,
) -> Iterator[OperatorSession]:
    """Open what a command needs. Raises Owned while a driver is active, and as `Member.join`.

    joins_group   False: the decision moves no committed offset
    """
    run_id = new_run_id()
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(open_services(settings, run_context, name=run_id))
        if dry_run:
            yield OperatorSession(services, run_id, is_dry_run=True)
            return
        stack.enter_context(services.driving(run_id))
        assignment = None
        if joins_group:
            assignment = stack.enter_context(as_member(services, settings))
        yield OperatorSession(services, run_id, assignment=assignment)


@contextlib.contextmanager
def as_member(services: Services, settings: Settings) -> Iterator[MemberAssignment | None]:
    """Join the group for the duration of a command, if runs join it.

    Yields the assignment; None if commands do not join. Raises as `Member.join`.
    """
    member = services.member() if joins_for_commands(settings) else None
    if member is None:
        yield None
        return
    try:
        yield member.join()
    finally:
        member.leave()
