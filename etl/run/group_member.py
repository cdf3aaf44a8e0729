"""When does a run join its group, commit its offsets, and leave?

With `group.mode: join` a run joins before it observes, follows rebalances after the offset commit,
and leaves at the end. A stored plan whose offsets are committed is executed first, which needs no
membership. Every other plan is made from the assignment, and its commit is rejected if the
assignment changed meanwhile.

Not here: the protocols of groups (etl/io/zookeeper/group_member.py,
etl/io/brokers/group_member.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from etl.decide.member_offsets import duplicate_reads_after_commit, is_left_open, is_left_to_execute
from etl.decide.next_step import Action, NextStep
from etl.errors import Owned
from etl.model.partitions import MemberAssignment, Membership, RejectedCommit
from etl.model.plans import CommitResult, CommitState, Plan
from etl.model.snapshot import Snapshot
from etl.report.describe import describe_read_by_others
from etl.report.run_progress import Outcome, Verb
from etl.report.run_report import Report
from etl.run.service_interfaces import Member, Services
from etl.settings.choices import LeaveAfter
from etl.settings.sections import Settings

SNAPSHOTS_MAX = 3
"""How often a snapshot is repeated because the group rebalances meanwhile."""
REJECTED_COMMITS_MAX = 3
"""How often a run plans again because its commit was rejected."""


@contextlib.contextmanager
def joined(member: Member | None, report: Report, settings: Settings) -> Iterator[Joining]:
    """Context manager: the membership of one run, which ends with it. `member` is None if the conf
    has no `group.mode: join`; then each step does nothing.
    """
    joining = Joining(member, report, settings)
    try:
        yield joining
    finally:
        joining.leave()


class Joining:
    """The membership of a run: its assignment, and the steps that need it."""

    def __init__(self, member: Member | None, report: Report, settings: Settings) -> None:
        self._member = member
        self._report = report
        self._settings = settings
        self._has_joined = False
        self._is_over = False
        """True if the offsets of a plan were committed: the next plan needs a new assignment."""
        self._has_committed = False
        self._has_observed_before_joining = False
        self._rejected_commits = 0
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

    def ensure_assignment(self, services: Services) -> bool:
        """Join before each snapshot, unless a committed plan comes first. Returns False if the
        group assigns no partition to this run. Raises as `Member.join`.
        """
        if self._member is None:
            return True
        is_first = not self._has_joined and not self._has_observed_before_joining
        if is_first and _has_plan_to_execute(services, self._settings):
            self._has_observed_before_joining = True
            return True
        needs_assignment = self._is_over or self.is_void
        if self._has_joined and not needs_assignment and self._member.is_current:
            return True
        self._join(self._member)
        if self.share is None or self.share.partitions:
            return True
        self._report.add(
            Outcome.NO_ASSIGNMENT,
            "The group assigns no partition to this run: it has more members than partitions, or a "
            "member that died keeps them until its session ends",
        )
        return False

    def look(self, observe: Callable[[], Snapshot]) -> Snapshot:
        """Take a snapshot of one assignment. It is repeated if a rebalance comes meanwhile."""
        for tries_left in reversed(range(SNAPSHOTS_MAX)):
            snapshot = observe()
            if self._member is None or self.share is None:
                break
            snapshot = snapshot.with_assignment(self.share)
            if self._member.is_current or not tries_left:
                break
            self._join(self._member)
        return snapshot

    def was_void(self, rejected: RejectedCommit) -> None:
        """Count a rejected commit. Raises Owned if there were too many."""
        self._rejected_commits += 1
        self.is_void = True
        self._report.add(
            Outcome.REBALANCED, f"No offset committed, nothing fetched: {rejected.why}"
        )
        if self._rejected_commits > REJECTED_COMMITS_MAX:
            raise Owned(
                f"The group rejected {self._rejected_commits} offset commits: {rejected.why}",
                action="Check how often members join and leave the group. No offset was committed; "
                "run again",
            )

    def waits(self, step: NextStep) -> bool:
        """Return True if the step needs a membership that the run does not have yet."""
        return self.is_outside and step.action in (Action.STORE, Action.NOTHING)

    def stored(self, step: NextStep) -> None:
        """Follow rebalances, or leave, after the step's plan is stored: none of its rows depends on
        the membership any more.
        """
        self.is_void = False
        if self._member is None or self.share is None or step.plan is None:
            return
        if step.action not in (Action.STORE, Action.SUPERSEDE):
            return
        self._is_over = True
        self._has_committed = step.plan.commit.state is not CommitState.AFTER_APPEND_AS_MEMBER
        if self._settings.group.join.leave_after is LeaveAfter.COMMIT and step.is_last:
            self._member.leave()
        else:
            self._member.follow()
        for sentence in describe_read_by_others(step.plan.losses.read_by_others):
            self._report.add(Outcome.OFFSETS_LEFT_TO_MEMBERS, sentence)

    def leave(self) -> None:
        """Leave the group at the end of the run."""
        if self._member is None:
            return
        self._member.leave()
        statistics = self._member.statistics
        self._report.membership = statistics.plus(self._report.membership)
        if statistics.lost and self._has_committed:
            self._report.add(
                Outcome.MEMBERSHIP_ENDED,
                "Membership ended after the offset commit; the run did not depend on it any more",
            )

    def _join(self, member: Member) -> None:
        with self._report.timed(Verb.OBSERVE):
            self.share = member.rejoin() if self._has_joined else member.join()
        self._has_joined = True
        self._is_over = False
        self.is_void = False


def commit(services: Services, plan: Plan, result: CommitResult, report: Report) -> None:
    """Commit the offsets of a plan in the table, and store its result.

    The commit of a member may be rejected. Its result is stored after it, because a plan with a
    stored result is done.
    """
    if plan.commit.state is not CommitState.AFTER_APPEND_AS_MEMBER:
        services.record(plan, result)
    committed = services.commit(plan)
    report.committed(plan, duplicate_reads_after_commit(plan, committed.keys()))
    if plan.commit.state is CommitState.AFTER_APPEND_AS_MEMBER:
        services.record(plan, result)


def _has_plan_to_execute(services: Services, settings: Settings) -> bool:
    """Return True if an earlier run left a plan that any run executes.

    Its membership is ended, so that no member waits for the session of a dead process; that settles
    a commit in doubt, too. The membership of a static member continues with this run, unless the
    commit is in doubt.
    """
    ledger = services.read_ledger()
    plan = ledger.newest
    is_in_doubt = is_left_open(ledger)
    if plan is None or not (is_in_doubt or is_left_to_execute(ledger, settings)):
        return False
    share = plan.commit.member
    if share and share.membership is Membership.COORDINATOR:
        if is_in_doubt or share.instance_id is None:
            services.fence(plan)
    if is_in_doubt:
        ledger = services.read_ledger()
    return is_left_to_execute(ledger, settings)
