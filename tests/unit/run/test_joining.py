"""A pipeline among other members of its group: nothing is lost, nothing is read by two, whatever
happens when.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection

import pytest

from etl.errors import DataLoss, OffsetMoved, Owned
from etl.model.partitions import TopicPartition
from etl.model.plans import ReadByOthers
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.choices import OwnershipMode
from etl.settings.sections import Settings
from tests.fakes import fake_ledger
from tests.fakes.members import FakeMember, Others, member_with
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    At,
    crash_at,
    crash_at_moment,
    grow,
    new_report,
    outcomes,
    outside_of,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

A, B, C = LOGS


def joining(settings: Settings) -> Settings:
    return settings.model_copy(
        update={"group": settings.group.model_copy(update={"mode": OwnershipMode.JOIN})}
    )


SETTINGS = joining(settings_of())


def run(
    outside: Outside,
    *shares: Collection[TopicPartition] | None,
    settings: Settings = SETTINGS,
    at: At = lambda step, when: None,
    made: Callable[[FakeMember], object] = lambda member: None,
) -> Report:
    report = new_report()
    ingest(
        FakeWorld(outside, settings, at, member=member_with(*shares, made=made)), settings, report
    )
    return report


def once(step: str, do: Callable[[], object], *, times: int = 1) -> At:
    """Something else happens right before this change, the first times."""
    left = itertools.count()

    def at(reached: str, side: When) -> None:
        if (reached, side) == (step, When.BEFORE) and next(left) < times:
            do()

    return at


def reject_broken(outside: Outside, others: Others) -> None:
    """Each offset below the group's is in the table once or was read by others; never both."""
    rows = outside.rows()
    assert set(rows.values()) <= {1}
    for partition in outside.logs:
        ours, theirs = (
            {place for one, place in rows if one == partition},
            others.read.get(partition, set()),
        )
        passed = outside.offsets.get(partition, (0, 0))[0]
        assert not ours & theirs
        assert ours | theirs == set(range(passed)), partition


def newest(outside: Outside) -> tuple[ReadByOthers, ...]:
    plan = outside.newest_plan()
    assert plan is not None
    return plan.losses.read_by_others


def test_offsets_are_committed_with_the_plan_and_none_after_the_append() -> None:
    outside = outside_of(5, 3, 4)
    seen = []
    report = run(outside, LOGS, at=once("fetch", lambda: seen.append(dict(outside.offsets))))
    assert (outcomes(report), report.offsets_committed) == ([Outcome.INGESTED], 3)
    assert seen == [{A: (5, 0), B: (3, 0), C: (4, 0)}] == [outside.offsets]
    assert not outside.owners


def test_a_run_that_finishes_a_plan_counts_no_offsets_that_an_earlier_run_committed() -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, LOGS, at=crash_at("fetch", When.BEFORE))
    grow(outside, 4, 0, 0)
    report = run(outside, LOGS)
    assert (outcomes(report)[0], report.offsets_committed) == (Outcome.PLAN_RESUMED, 1)


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
    assert newest(outside) == (ReadByOthers(A, 5, 8),)
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

    report = run(outside, [A, B], [B], at=once("store plan", meanwhile))
    assert outcomes(report) == [Outcome.REBALANCED, Outcome.OWNED_BY_OTHERS, Outcome.INGESTED]
    assert [r.partition for plan in report.plans for r in plan.plan.ranges] == [B]
    reject_broken(outside, others)


def test_a_run_gives_up_after_three_more_void_hand_overs_and_nothing_is_moved() -> None:
    outside = outside_of(5, 3)
    others = Others(outside)
    stores = list[int]()

    def meanwhile() -> None:
        stores.append(1)
        others.own(A)

    with pytest.raises(Owned, match="The group rejected 4 offset commits: ") as caught:
        run(outside, [A, B], at=once("store plan", meanwhile, times=9))
    assert (caught.value.exit_code, len(stores), outside.offsets, outside.plans) == (4, 4, {}, {})


@pytest.mark.parametrize("share", [[], [B], None])
def test_a_committed_plan_is_executed_by_the_next_run_even_without_an_assignment(
    share: list[TopicPartition] | None,
) -> None:
    outside = outside_of(5, 3)
    others = Others(outside)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_before("fetch"))
    outside.owners.clear()
    others.own(A, B)
    grow(outside, 2, 2)
    others.consume(A, 2)
    try:
        run(outside, share)
    except Owned:
        assert share is None
    assert sum(outside.rows().values()) == (10 if share == [B] else 8)
    reject_broken(outside, others)


def crash_before(step: str) -> At:
    def at(reached: str, side: When) -> None:
        if (reached, side) == (step, When.BEFORE):
            raise Crash(step)

    return at


def test_an_offset_set_back_on_an_owned_log_stops_the_run_and_one_on_another_log_is_ignored() -> (
    None
):
    outside = outside_of(5, 3)
    run(outside, [A, B])
    outside.move_offset(A, 2)
    run(outside, [B])
    with pytest.raises(OffsetMoved):
        run(outside, [A, B])


def test_offsets_expired_after_the_commit_are_our_loss_and_no_further_offset_is_read() -> None:
    outside = outside_of(5, 3)
    settings = joining(settings_of(on_data_loss="skip"))
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_before("fetch"), settings=settings)
    outside.owners.clear()
    outside.logs[A].log_start = 3
    grow(outside, 4, 4)
    with pytest.raises(DataLoss):
        run(outside, [], settings=joining(settings_of(on_data_loss="fail")))
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
            FakeWorld(outside, settings_of(), crash_before("fetch")), settings_of(), new_report()
        )
    outside.owners.clear()
    others.own(A)
    others.consume(A, 4)
    del outside.owners[A]
    report = run(outside, [A, B])
    assert outcomes(report)[:2] == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.OFFSETS_LEFT_TO_MEMBERS,
    ] and newest(outside) == (ReadByOthers(A, 0, 4),)
    reject_broken(outside, others)


def test_a_lost_ledger_is_restored_from_the_table_and_the_group_continues_at_its_offsets() -> None:
    outside = outside_of(5, 3)
    others = Others(outside)
    run(outside, [A, B])
    outside.plans, outside.applied, outside.uid = {}, {}, None
    grow(outside, 4, 4)
    others.own(A)
    others.consume(A, 2)
    del outside.owners[A]
    run(outside, [A, B])
    reject_broken(outside, others)


@pytest.mark.parametrize("moment", range(40))
@pytest.mark.parametrize("theirs", [A, B])
def test_a_crash_at_any_change_of_the_group_loses_nothing_and_no_record_is_read_twice(
    moment: int,
    theirs: TopicPartition,
) -> None:
    outside = outside_of(5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    with contextlib.suppress(Crash):
        run(outside, [A, B], at=crash_at_moment(moment))
    outside.owners.clear()
    others.own(theirs)
    others.consume(theirs, outside.logs[theirs].end - outside.offsets[theirs][0])
    grow(outside, 2, 2)
    others.consume(theirs, 1)
    run(outside, [partition for partition in (A, B) if partition != theirs])
    reject_broken(outside, others)
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)
    assert (
        outside.offsets[A][0] == outside.logs[A].end
        and outside.offsets[B][0] == outside.logs[B].end
    )
    reported = fake_ledger.loaded(outside, None).read_by_others
    read = {offset for one in reported for offset in range(one.from_offset, one.until_offset)}
    assert read == others.read.get(theirs, set())
