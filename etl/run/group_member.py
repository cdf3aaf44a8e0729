"""When does a run join its group, commit its offsets, and leave?

Under `group.mode: join`: it joins before it observes, follows rebalances after the commit, and
leaves at the end. A stored plan whose offsets are committed is executed first; that needs no
membership. All else is planned from the assignment, and the commit fails if it changed meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from etl.decide.group_commits import is_left_open, is_left_to_execute, taken
from etl.decide.next_step import Action, NextStep
from etl.errors import Owned
from etl.model.partitions import MemberAssignment, Membership, RejectedCommit
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Snapshot
from etl.report.describe import describe_read_by_others
from etl.report.run_report import Report
from etl.report.run_state import Outcome, Verb
from etl.run.services import Member, Services
from etl.settings.choices import LeaveAfter
from etl.settings.sections import Settings

LOOKS_MAX = 3
"""How often a snapshot is repeated because the group rebalances meanwhile."""
VOIDS_MAX = 3
"""How often a run plans again because its commit was rejected."""


@contextlib.contextmanager
def joined(member: Member | None, report: Report, settings: Settings) -> Iterator[Joining]:
    """The membership of one run, left however it ends; of no member where its conf is of none."""
    joining = Joining(member, report, settings)
    try:
        yield joining
    finally:
        joining.leave()


class Joining:
    """The partitions that a run owns as a member, and its steps as one."""

    def __init__(self, member: Member | None, report: Report, settings: Settings) -> None:
        self._member, self._report, self._settings = member, report, settings
        self._has_joined = self._is_over = self._has_handed_over = False
        self._looks_unjoined = 0
        self._voids = 0
        self.share: MemberAssignment | None = None
        self.is_void = False
        """True if the last plan's commit was rejected, so that another plan follows from the
        current assignment.
        """

    @property
    def is_outside(self) -> bool:
        """True if the run will be a member and is none yet: it executes committed plans and stores
        none.
        """
        return self._member is not None and self.share is None

    def settle(self, world: Services) -> bool:
        """Join before each snapshot, unless a committed plan comes first. Returns False without a
        membership. Raises as `Member.join`.
        """
        if self._member is None:
            return True
        if not self._has_joined and not self._looks_unjoined and _is_left(world, self._settings):
            self._looks_unjoined += 1
            return True
        if self._has_joined and not (self._is_over or self.is_void) and self._member.is_current:
            return True
        self._settle(self._member)
        if self.share is None or self.share.logs:
            return True
        self._report.add(
            Outcome.NO_ASSIGNMENT,
            "the group gives this run no partition: it has more members than partitions to read, or one that is gone "
            "holds them until its session ends",
        )
        return False

    def look(self, observe: Callable[[], Snapshot]) -> Snapshot:
        """Return a snapshot of one assignment: it is repeated if a rebalance comes meanwhile."""
        for left in reversed(range(LOOKS_MAX)):
            snapshot = replace(observe(), share=self.share) if self.share else observe()
            if self._member is None or self.share is None or self._member.is_current or not left:
                break
            self._settle(self._member)
        return snapshot

    def was_void(self, void: RejectedCommit) -> None:
        """Count a rejected commit. Raises Owned if there were too many."""
        self._voids += 1
        self.is_void = True
        self._report.add(
            Outcome.REBALANCED, f"nothing was handed over, and nothing was fetched: {void.why}"
        )
        if self._voids > VOIDS_MAX:
            check = "how often members of the group come and go; nothing was moved, run again"
            raise Owned(
                f"the group changed at each of {self._voids} hand-overs: {void.why}", action=check
            )

    def waits(self, step: NextStep) -> bool:
        """True if the step needs a membership that the run does not have yet."""
        return self.is_outside and step.action in (Action.STORE, Action.NOTHING)

    def stored(self, step: NextStep) -> None:
        """The step's plan is stored: from now on none of its rows depends on the membership."""
        self.is_void = False
        if (
            self._member is not None
            and self.share is not None
            and step.action in (Action.STORE, Action.SUPERSEDE)
        ):
            self._is_over, self._has_handed_over = (
                True,
                step.plan is not None and not step.plan.is_of_member,
            )
            if self._settings.group.join.leave_after is LeaveAfter.COMMIT and step.is_last:
                self._member.leave()
            else:
                self._member.follow()
            for sentence in describe_read_by_others(step.plan.read_by_others if step.plan else ()):
                self._report.add(Outcome.OFFSETS_LEFT_TO_MEMBERS, sentence)

    def leave(self) -> None:
        """The run has ended."""
        if self._member is None:
            return
        self._member.leave()
        lost = self._member.statistics.lost
        self._report.membership = self._member.statistics.beside(self._report.membership)
        if lost and self._has_handed_over:
            self._report.add(
                Outcome.MEMBERSHIP_ENDED,
                "the membership ended behind the hand-over, on which nothing depended any more",
            )

    def _settle(self, member: Member) -> None:
        with self._report.timed(Verb.OBSERVE):
            self.share = member.rejoin() if self._has_joined else member.join()
        self._has_joined, self._is_over, self.is_void = True, False, False


def commit(world: Services, plan: Plan, applied: CommitResult, report: Report) -> None:
    """Commit the offsets of a plan in the table, and record its result. Where a commit may be
    rejected, the result is recorded after it, since a recorded plan needs nothing more.
    """
    if not plan.is_of_member:
        world.record(plan, applied)
    report.committed(plan, taken(plan, world.commit(plan).keys()))
    if plan.is_of_member:
        world.record(plan, applied)


def _is_left(world: Services, settings: Settings) -> bool:
    """True if an earlier run left a plan that any run executes.

    Its membership is ended, so that nobody waits for a dead session; a commit in doubt is settled
    by that. The membership of a static member continues with this run, unless the plan is in doubt.
    """
    ledger = world.read_ledger()
    plan, is_open = ledger.newest, is_left_open(ledger)
    if plan is None or not (is_open or is_left_to_execute(ledger, settings)):
        return False
    if (
        plan.share
        and plan.share.membership is Membership.COORDINATOR
        and (is_open or plan.share.instance_id is None)
    ):
        world.fence(plan)
    return is_left_to_execute(world.read_ledger() if is_open else ledger, settings)
