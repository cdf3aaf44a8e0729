"""What an operator chose for a run that is a member of its group: logs that rest, how long it
stays; and what it cost, in its report.
"""

from __future__ import annotations

from etl.model.partitions import RebalanceStatistics
from etl.model.snapshot import Pause
from etl.report.run_progress import Outcome
from etl.run.ingest import ingest
from etl.settings.choices import LeaveAfter, OwnershipMode
from etl.settings.sections import Settings
from tests.builders import with_keys
from tests.fakes.members import FakeMember, Others, member_with
from tests.fakes.stories import LOGS, grow, new_report, outcomes, outside_of, settings_of
from tests.fakes.world import FakeWorld

A, B, C = LOGS


def member_of(leave_after: LeaveAfter = LeaveAfter.RUN) -> Settings:
    keys = {"mode": OwnershipMode.JOIN, "join": {"leave_after": leave_after}}
    return with_keys(settings_of(), group=keys)


def test_a_paused_log_of_our_assignment_has_no_range_and_no_commit_until_the_resume() -> None:
    outside, settings = outside_of(5, 3, 4), member_of()
    ingest(FakeWorld(outside, settings, member=member_with(LOGS)), settings, new_report())
    grow(outside, 2, 2, 2)
    before = outside.offsets[B]
    outside.pauses = (Pause("clicks", B, "its records are broken", "kim@host", 1_699_999_000_000),)
    report = new_report()
    ingest(FakeWorld(outside, settings, member=member_with(LOGS)), settings, report)
    plan = outside.newest_plan()
    assert (
        plan is not None
        and {r.partition for r in plan.ranges} == {A, C}
        and B not in plan.offsets_to_commit
    )
    assert outcomes(report) == [Outcome.PAUSED, Outcome.INGESTED]
    assert outside.offsets[B] == before and (outside.offsets[A][0], outside.offsets[C][0]) == (7, 6)
    outside.pauses = ()
    ingest(FakeWorld(outside, settings, member=member_with(LOGS)), settings, new_report())
    assert (
        outside.offsets[B][0] == 5
        and set(outside.rows().values()) == {1}
        and len(outside.rows()) == 18
    )


def test_a_log_that_is_paused_before_the_first_run_has_its_offset_left_alone() -> None:
    outside, settings = outside_of(5, 3), member_of()
    outside.pauses = (Pause("clicks", B, "not yet", "kim@host", 1_699_999_000_000),)
    ingest(FakeWorld(outside, settings, member=member_with([A, B])), settings, new_report())
    assert B not in outside.offsets and outside.offsets[A][0] == 5
    outside.pauses = ()
    ingest(FakeWorld(outside, settings, member=member_with([A, B])), settings, new_report())
    assert outside.offsets[B][0] == 3 and len(outside.rows()) == 8


def test_what_others_read_of_a_log_that_we_paused_is_theirs_once_we_own_it_again() -> None:
    """A pause is this pipeline's: another member that gets the log reads it."""
    outside, settings = outside_of(5, 3), member_of()
    others = Others(outside)
    ingest(FakeWorld(outside, settings, member=member_with([A, B])), settings, new_report())
    grow(outside, 4, 4)
    outside.pauses = (Pause("clicks", B, "not yet", "kim@host", 1_699_999_000_000),)
    others.own(B)
    others.consume(B, 2)
    ingest(FakeWorld(outside, settings, member=member_with([A])), settings, new_report())
    del outside.owners[B]
    ingest(FakeWorld(outside, settings, member=member_with([A, B])), settings, new_report())
    outside.pauses = ()
    ingest(FakeWorld(outside, settings, member=member_with([A, B])), settings, new_report())
    assert sorted(place for partition, place in outside.rows() if partition == B) == [0, 1, 2, 5, 6]
    assert outside.offsets[B][0] == 7 and others.read == {B: {3, 4}}


def test_a_run_that_stays_for_its_share_leaves_once_that_is_handed_over() -> None:
    members, left = list[FakeMember](), []
    outside, settings = outside_of(5), member_of(LeaveAfter.COMMIT)
    world = FakeWorld(
        outside,
        settings,
        lambda step, when: left.append((step, list(members[0].calls))) if members else None,
        member=member_with([A], made=members.append),
    )
    ingest(world, settings, new_report())
    assert members[0].calls == ["join", "leave", "leave"]
    assert {"leave" in value for step, value in left if step == "fetch"} == {True}


def test_what_the_membership_cost_is_in_the_report_of_the_run_and_in_its_metrics() -> None:
    members = list[FakeMember]()

    def lose(member: FakeMember) -> None:
        member.lost = 1
        members.append(member)

    settings, report = member_of(), new_report()
    for _ in range(2):  # the second one as after a lost session
        ingest(
            FakeWorld(outside_of(5), settings, member=member_with([A], made=lose)), settings, report
        )
    assert report.membership == RebalanceStatistics(lost=2)
    assert report.statistics.as_json()["membership"]["lost"] == 2
    assert ("run_memberships_lost", (), 2) in list(report.statistics.samples())
    assert Outcome.MEMBERSHIP_ENDED in outcomes(report)
