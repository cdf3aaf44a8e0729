"""A pipeline among other members of its group, whose offsets are committed with the plan: nothing
is lost, nothing is read by two; and what an operator chose for it: paused partitions, how long it
stays.
"""

from __future__ import annotations

import contextlib

import pytest

from etl.errors import DataLoss, OffsetMoved, Owned
from etl.io.zookeeper.ledger_side_documents import read_all_loaded_intervals
from etl.model.partitions import OffsetsStorage, RebalanceStatistics, TopicPartition
from etl.model.plans import ReadByOthers
from etl.model.snapshot import Pause
from etl.report.run_progress import Outcome
from etl.run.ingest import ingest
from etl.settings.choices import CommitWhen, LeaveAfter
from tests.builders import with_keys
from tests.fakes.joining_stories import (
    KAFKA,
    ZOOKEEPER,
    A,
    B,
    C,
    both_places,
    group_of,
    left_unfinished,
    member_of,
    newest,
    offset_of,
    reject_broken,
    run,
)
from tests.fakes.members import FakeMember, Others, member_with
from tests.fakes.stories import (
    LOGS,
    crash_at,
    crash_at_moment,
    grow,
    new_report,
    once,
    outcomes,
    outside_of,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When


def test_offsets_are_committed_with_the_plan_and_none_after_the_append() -> None:
    outside = outside_of(5, 3, 4)
    seen = []
    report = run(
        outside, LOGS, at=once("fetch", When.BEFORE, lambda: seen.append(dict(outside.offsets)))
    )
    assert (outcomes(report), report.offsets_committed) == ([Outcome.INGESTED], 3)
    assert seen == [{A: (5, 0), B: (3, 0), C: (4, 0)}] == [outside.offsets]
    assert not outside.owners


def test_logs_of_others_are_left_alone_and_what_they_read_is_a_hole_with_a_name() -> None:
    outside = outside_of(5, 3, 4)
    others = Others(outside)
    run(outside, LOGS)
    grow(outside, 4, 4, 4)
    others.own(A)
    others.consume(A, 2)
    report = run(outside, [B, C])
    assert report.plan is not None and {r.partition for r in report.plan.ranges} == {B, C}
    others.consume(A, 1)
    del outside.owners[A]
    report = run(outside, LOGS)
    assert newest(outside).losses.read_by_others == (ReadByOthers(A, 5, 8),)
    assert (
        outcomes(report) == [Outcome.OFFSETS_LEFT_TO_MEMBERS, Outcome.INGESTED]
        and not report.lost_records
    )
    assert (
        report.outcomes[0][1]
        == "clicks: other members of the group read 3 offsets of partition 0 from 5 to 8"
    )
    reject_broken(outside, others)


def test_a_run_without_a_share_has_nothing_to_do() -> None:
    outside = outside_of(5, 3, 4)
    report = run(outside, [])
    assert (outcomes(report), report.exit_code, outside.plans) == ([Outcome.NO_ASSIGNMENT], 0, {})


def test_a_group_that_does_not_settle_stops_the_run_and_nothing_of_ours_stays() -> None:
    outside = outside_of(5)
    members = list[FakeMember]()
    with pytest.raises(Owned):
        run(outside, None, made=members.append)
    assert (members[0].calls, outside.plans, outside.owners) == (["join", "leave"], {}, {})


def test_the_membership_is_kept_after_the_offset_commit_and_left_at_the_end() -> None:
    members = list[FakeMember]()
    run(outside_of(5), [A], made=members.append)
    assert members[0].calls == ["join", "follow", "leave"]


def test_a_look_that_a_rebalance_overtakes_is_taken_again_with_the_new_share() -> None:
    outside = outside_of(5, 3)

    def overtaken(member: FakeMember) -> None:
        member.overtaken = 1

    report = run(outside, [A, B], [B], made=overtaken)
    assert report.plan is not None and [r.partition for r in report.plan.ranges] == [B]


@pytest.mark.parametrize("what", ["owner", "offset"])
def test_a_rejected_commit_stores_nothing_and_the_next_plan_has_the_partitions_owned_then(
    what: str,
) -> None:
    outside = outside_of(5, 3)
    others = Others(outside)

    def meanwhile() -> None:
        others.own(A)
        others.consume(A, 2)
        if what == "offset":
            del outside.owners[A]

    report = run(outside, [A, B], [B], at=once("store plan", When.BEFORE, meanwhile))
    assert outcomes(report) == [Outcome.REBALANCED, Outcome.OWNED_BY_OTHERS, Outcome.INGESTED]
    assert [r.partition for plan in report.plans for r in plan.plan.ranges] == [B]
    reject_broken(outside, others)


def test_offsets_expired_after_the_commit_are_our_loss_and_no_further_offset_is_read() -> None:
    outside = outside_of(5, 3)
    settings = member_of(settings=settings_of(on_data_loss="skip"))
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("fetch", When.BEFORE), settings=settings)
    outside.owners.clear()
    outside.logs[A].log_start = 3
    grow(outside, 4, 4)
    with pytest.raises(DataLoss):
        run(outside, [], settings=member_of())
    report = run(outside, [], settings=settings)
    assert outcomes(report) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.RECORDS_LOST,
        Outcome.EXPIRES_SOON,
        Outcome.INGESTED,
        Outcome.NO_ASSIGNMENT,
    ]
    assert [(loss.from_offset, loss.until_offset) for _, loss in outside.losses] == [(0, 3)]
    assert sorted(place for partition, place in outside.rows() if partition == A) == [3, 4]


def test_an_unfinished_plan_of_another_mode_is_superseded_before_its_first_fetch() -> None:
    outside = outside_of(5, 3)
    others = Others(outside)
    with pytest.raises(Crash):
        ingest(
            FakeWorld(outside, settings_of(), crash_at("fetch", When.BEFORE)),
            settings_of(),
            new_report(),
        )
    outside.owners.clear()
    others.own(A)
    others.consume(A, 4)
    del outside.owners[A]
    report = run(outside, [A, B])
    assert outcomes(report)[:2] == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.OFFSETS_LEFT_TO_MEMBERS,
    ] and newest(outside).losses.read_by_others == (ReadByOthers(A, 0, 4),)
    reject_broken(outside, others)


@both_places
@pytest.mark.parametrize("moment", range(40))
@pytest.mark.parametrize("theirs", [A, B])
def test_a_crash_at_any_change_of_the_group_loses_nothing_and_no_record_is_read_twice(
    moment: int, theirs: TopicPartition, place: OffsetsStorage
) -> None:
    outside = group_of(place, 5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    with contextlib.suppress(Crash):
        run(outside, [A, B], at=crash_at_moment(moment))
    outside.owners.clear()
    others.own(theirs)
    others.consume(theirs, outside.logs[theirs].end - offset_of(outside, theirs))
    grow(outside, 2, 2)
    others.consume(theirs, 1)
    run(outside, [partition for partition in (A, B) if partition != theirs])
    reject_broken(outside, others)
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)
    assert [offset_of(outside, partition) for partition in (A, B)] == [
        outside.logs[partition].end for partition in (A, B)
    ]
    reported = read_all_loaded_intervals(outside.ledger).read_by_others
    read = {offset for one in reported for offset in range(one.from_offset, one.until_offset)}
    assert read == others.read.get(theirs, set())


@pytest.mark.parametrize(("place", "step"), [(ZOOKEEPER, "store plan"), (KAFKA, "hand over")])
def test_a_run_gives_up_after_three_more_rejected_commits_and_nothing_is_moved(
    place: OffsetsStorage, step: str
) -> None:
    outside = group_of(place, 5, 3)
    others, tries = Others(outside), list[int]()

    def meanwhile(reached: str, side: When) -> None:
        if (reached, side) == (step, When.BEFORE):
            tries.append(1)
            others.own(A)

    with pytest.raises(Owned, match="The group rejected 4 offset commits: ") as caught:
        run(outside, [A, B], at=meanwhile)
    assert (caught.value.exit_code, len(tries), outside.offsets, outside.kept) == (4, 4, {}, {})
    assert not outside.rows() and (place is KAFKA or not outside.plans)
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)


@pytest.mark.parametrize(
    ("place", "step", "share"),
    [
        (ZOOKEEPER, "fetch", []),
        (ZOOKEEPER, "fetch", [B]),
        (ZOOKEEPER, "fetch", None),
        (KAFKA, "mark", []),
        (KAFKA, "fetch", []),
    ],
)
def test_a_committed_plan_is_executed_by_the_next_run_even_without_an_assignment(
    place: OffsetsStorage, step: str, share: list[TopicPartition] | None
) -> None:
    outside = group_of(place, 5, 3)
    others = left_unfinished(outside, step, When.BEFORE)
    others.own(A, B)
    grow(outside, 2, 2)
    others.consume(A, 2)
    if share is None:
        with pytest.raises(Owned):
            run(outside, share)
    else:
        last = Outcome.OWNED_BY_OTHERS if share else Outcome.NO_ASSIGNMENT
        report = run(outside, share)
        assert outcomes(report)[:3] == [Outcome.PLAN_RESUMED, Outcome.INGESTED, last]
    assert len(outside.rows()) == (18 if share else 16)
    reject_broken(outside, others)


@pytest.mark.parametrize(
    ("place", "commit_when", "offset"),
    [
        (ZOOKEEPER, CommitWhen.BEFORE_READ, 2),
        (KAFKA, CommitWhen.BEFORE_READ, 2),
        (KAFKA, CommitWhen.BEFORE_READ, None),
        (ZOOKEEPER, CommitWhen.AFTER_APPEND, None),
        (KAFKA, CommitWhen.AFTER_APPEND, None),
    ],
)
def test_an_offset_that_went_back_or_is_gone_stops_the_run_that_owns_its_partition(
    place: OffsetsStorage, commit_when: CommitWhen, offset: int | None
) -> None:
    outside, settings = group_of(place, 5, 3), member_of(place, commit_when)
    run(outside, [A, B], settings=settings)
    grow(outside, 1, 1)
    run(outside, [A, B], settings=settings)
    if offset is None:
        outside.offsets.pop(A, None)
        outside.kept.pop(A, None)
    elif place is ZOOKEEPER:
        outside.move_offset(A, offset)
    else:
        outside.kept[A] = offset, ""
    run(outside, [B], settings=settings)
    with pytest.raises(OffsetMoved):
        run(outside, [A, B], settings=settings)


BROKEN = Pause("clicks", B, "its records are broken", "kim@host", 1_699_999_000_000)


def test_a_paused_log_of_our_assignment_has_no_range_and_no_commit_until_the_resume() -> None:
    outside = outside_of(5, 3, 4)
    run(outside, LOGS)
    grow(outside, 2, 2, 2)
    before = outside.offsets[B]
    outside.pauses = (BROKEN,)
    report = run(outside, LOGS)
    assert outcomes(report) == [Outcome.PAUSED, Outcome.INGESTED]
    assert {r.partition for r in newest(outside).ranges} == {A, C}
    assert B not in newest(outside).offsets_to_commit and outside.offsets[B] == before
    assert (outside.offsets[A][0], outside.offsets[C][0]) == (7, 6)
    outside.pauses = ()
    run(outside, LOGS)
    assert outside.offsets[B][0] == 5 and len(outside.rows()) == 18
    reject_broken(outside, Others(outside))


def test_what_others_read_of_a_log_that_we_paused_is_theirs_once_we_own_it_again() -> None:
    """A pause is this pipeline's: another member that gets the log reads it."""
    outside = outside_of(5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    outside.pauses = (BROKEN,)
    others.own(B)
    others.consume(B, 2)
    run(outside, [A])
    del outside.owners[B]
    run(outside, [A, B])
    outside.pauses = ()
    run(outside, [A, B])
    assert sorted(place for partition, place in outside.rows() if partition == B) == [0, 1, 2, 5, 6]
    assert outside.offsets[B][0] == 7 and others.read == {B: {3, 4}}


def test_a_run_that_stays_for_its_share_leaves_once_that_is_handed_over() -> None:
    members, left = list[FakeMember](), []
    settings = with_keys(member_of(), group={"join": {"leave_after": LeaveAfter.COMMIT}})

    def at(step: str, when: When) -> None:
        if step == "fetch":
            left.append("leave" in members[0].calls)

    run(outside_of(5), [A], settings=settings, at=at, made=members.append)
    assert members[0].calls == ["join", "leave", "leave"] and set(left) == {True}


def test_what_the_membership_cost_is_in_the_report_of_the_run_and_in_its_metrics() -> None:
    def lose(member: FakeMember) -> None:
        member.lost = 1

    settings, report = member_of(), new_report()
    for _ in range(2):  # the second one as after a lost session
        world = FakeWorld(outside_of(5), settings, member=member_with([A], made=lose))
        ingest(world, settings, report)
    assert report.membership == RebalanceStatistics(lost=2)
    assert report.statistics.as_json()["membership"]["lost"] == 2
    assert ("run_memberships_lost", (), 2) in list(report.statistics.samples())
    assert Outcome.MEMBERSHIP_ENDED in outcomes(report)
