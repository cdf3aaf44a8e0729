"""A member that commits after its append, in a group of ours alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import pytest

from etl.errors import BrokerUnreachable, NeedsDecision
from etl.io.zookeeper.ledger_side_documents import read_all_loaded_intervals
from etl.model.partitions import OffsetsStorage, TopicPartition
from etl.model.plans import CommitState, ReadByOthers
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.choices import CommitWhen
from etl.settings.sections import Settings
from tests.builders import with_keys
from tests.fakes import joining_stories
from tests.fakes.joining_stories import (
    KAFKA,
    ZOOKEEPER,
    A,
    B,
    both_places,
    group_of,
    member_of,
    offset_of,
    reject_broken,
)
from tests.fakes.members import FakeMember, Others
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    crash_at,
    crash_at_moment,
    grow,
    new_report,
    once,
    outcomes,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

BEFORE, AFTER = When.BEFORE, When.AFTER


def run(
    outside: Outside,
    *shares: Collection[TopicPartition] | None,
    settings: Settings | None = None,
    **more: Any,
) -> Report:
    settings = settings or after_append(outside.offsets_in)
    return joining_stories.run(outside, *shares, settings=settings, **more)


def after_append(place: OffsetsStorage, settings: Settings | None = None) -> Settings:
    return member_of(place, CommitWhen.AFTER_APPEND, settings)


def take_over(
    outside: Outside, others: Others, partition: TopicPartition, count: int
) -> Callable[[], None]:
    def do() -> None:
        others.own(partition)
        others.consume(partition, count)

    return do


@both_places
def test_offsets_are_committed_after_the_append_by_the_membership_of_the_plan(
    place: OffsetsStorage,
) -> None:
    outside, seen = group_of(place, 5, 3, 4), []
    members = list[FakeMember]()
    report = run(
        outside,
        LOGS,
        at=once(
            "append",
            AFTER,
            lambda: seen.append([offset_of(outside, partition) for partition in LOGS]),
        ),
        made=members.append,
    )
    assert (outcomes(report), report.offsets_committed, seen) == (
        [Outcome.INGESTED],
        3,
        [[0, 0, 0]],
    )
    assert [offset_of(outside, partition) for partition in LOGS] == [5, 3, 4] and members[
        0
    ].calls == [
        "join",
        "follow",
        "leave",
    ]
    plan = outside.newest_plan()
    assert plan is not None and plan.commit.member


@both_places
def test_partitions_reassigned_before_the_commit_are_reported_and_the_run_succeeds(
    place: OffsetsStorage,
) -> None:
    outside = group_of(place, 5, 3)
    others = Others(outside)
    report = run(outside, [A, B], at=once("append", BEFORE, take_over(outside, others, A, 2)))
    assert (outcomes(report), report.exit_code, len(outside.rows())) == (
        [Outcome.INGESTED, Outcome.OWNER_CHANGED],
        0,
        8,
    )
    assert "plan 1 is loaded, and the" in report.outcomes[1][1]
    assert offset_of(outside, A) == 2 and offset_of(outside, B) == (3 if place is ZOOKEEPER else 0)
    reject_broken(outside, others, is_read_twice=True)


@both_places
def test_the_next_run_begins_at_the_larger_of_our_offset_and_the_groups_and_commits_smaller_ones(
    place: OffsetsStorage,
) -> None:
    outside = group_of(place, 5, 3)
    others = Others(outside)
    run(outside, [A, B], at=once("append", BEFORE, take_over(outside, others, A, 2)))
    outside.owners.clear()
    report = run(outside, [A, B])
    assert outcomes(report)[:2] == [Outcome.DUPLICATE_READS, Outcome.PLAN_COMPLETED]
    assert (
        report.outcomes[0][1]
        == "clicks: other members of the group may also have read 2 offsets of partition 0 from "
        "0 to 2"
    )
    assert [offset_of(outside, partition) for partition in (A, B)] == [5, 3] and len(
        outside.rows()
    ) == 8
    grow(outside, 3, 3)
    others.own(A)
    others.consume(A, 2)
    outside.owners.clear()
    run(outside, [A, B])
    newest = outside.newest_plan()
    assert newest is not None and newest.losses.read_by_others == (ReadByOthers(A, 5, 7),)
    assert [r.from_offset for r in newest.ranges] == [7, 3]
    reject_broken(outside, others, is_read_twice=True)


@both_places
@pytest.mark.parametrize("share", [[], [B]], ids=["no_assignment", "a part"])
def test_a_stored_plan_is_executed_unchanged_on_logs_of_others_too_and_that_is_reported(
    place: OffsetsStorage,
    share: list[TopicPartition],
) -> None:
    outside = group_of(place, 5, 3)
    others = Others(outside)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("fetch", BEFORE))
    outside.owners.clear()
    take_over(outside, others, A, 4)()
    report = run(outside, share)
    assert outcomes(report)[:2] == [
        Outcome.DUPLICATE_READS,
        Outcome.PLAN_RESUMED,
    ] and Outcome.OWNER_CHANGED in outcomes(report)
    assert len(outside.rows()) == 8 and offset_of(outside, A) == 4
    reject_broken(outside, others, is_read_twice=True)


@both_places
@pytest.mark.parametrize("moment", range(34))
@pytest.mark.parametrize("theirs", [A, B])
def test_a_crash_at_any_change_of_the_group_loses_nothing_and_records_read_twice_are_reported(
    moment: int,
    theirs: TopicPartition,
    place: OffsetsStorage,
) -> None:
    outside = group_of(place, 5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    reports = []
    with contextlib.suppress(Crash):
        reports.append(run(outside, [A, B], at=crash_at_moment(moment)))
    outside.owners.clear()
    others.own(theirs)
    others.consume(theirs, outside.logs[theirs].end - offset_of(outside, theirs))
    grow(outside, 2, 2)
    others.consume(theirs, 1)
    reports.append(run(outside, [partition for partition in (A, B) if partition != theirs]))
    reject_broken(outside, others, is_read_twice=True)
    outside.owners.clear()
    reports.append(run(outside, [A, B]))
    reject_broken(outside, others, is_read_twice=True)
    assert [offset_of(outside, partition) for partition in (A, B)] == [
        outside.logs[partition].end for partition in (A, B)
    ]
    twice = others.read[theirs] & {
        offset for partition, offset in outside.rows() if partition == theirs
    }
    reported = {outcome for report in reports for outcome in outcomes(report)}
    assert not twice or reported & {Outcome.DUPLICATE_READS, Outcome.OWNER_CHANGED}
    holes = read_all_loaded_intervals(outside.ledger).read_by_others
    assert {
        offset for one in holes for offset in range(one.from_offset, one.until_offset)
    } == others.read[theirs] - twice


@pytest.mark.parametrize(
    ("place", "between"),
    [
        *(
            (place, between)
            for place in (ZOOKEEPER, KAFKA)
            for between in ("a run that does not own it", "one of before_read")
        ),
        (ZOOKEEPER, "a command"),
    ],
)
def test_offsets_of_a_rejected_commit_are_committed_later_whoever_planned_other_logs_since(
    place: OffsetsStorage, between: str
) -> None:
    outside = group_of(place, 5, 3)
    run(outside, [A, B])
    grow(outside, 4, 4)
    others = Others(outside)
    run(outside, [A, B], at=once("append", BEFORE, take_over(outside, others, A, 1)))
    outside.owners.pop(B, None)
    grow(outside, 0, 2)
    if between == "a command":
        set_to(outside, after_append(place), share=[B], b=8)
    run(
        outside,
        [B],
        settings=member_of(
            place,
            CommitWhen.BEFORE_READ if between == "one of before_read" else CommitWhen.AFTER_APPEND,
        ),
    )
    outside.owners.clear()
    report = run(outside, [A, B])
    assert Outcome.PLAN_COMPLETED in outcomes(report)
    assert [offset_of(outside, partition) for partition in (A, B)] == [9, 9] and set(
        outside.rows().values()
    ) == {1}


@both_places
@pytest.mark.parametrize("was", CommitWhen)
@pytest.mark.parametrize("step", ["fetch", "record", "tidy"])
def test_the_key_may_be_changed_after_a_run_that_died(
    place: OffsetsStorage, was: CommitWhen, step: str
) -> None:
    outside = group_of(place, 5, 3)
    others = Others(outside)
    before = member_of(place, was)
    after = member_of(
        place, CommitWhen.BEFORE_READ if was is CommitWhen.AFTER_APPEND else CommitWhen.AFTER_APPEND
    )
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at(step, BEFORE), settings=before)
    outside.owners.clear()
    grow(outside, 2, 2)
    for settings in (after, before):
        run(outside, [A, B], settings=settings)
        reject_broken(outside, others, is_read_twice=True)
    assert len(outside.rows()) == 12 and [
        offset_of(outside, partition) for partition in (A, B)
    ] == [7, 5]


@both_places
def test_back_in_another_mode_unfinished_work_is_completed(place: OffsetsStorage) -> None:
    outside = group_of(place, 5, 3)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("record", BEFORE))
    outside.owners.clear()
    outside.group.members.clear()
    settings = settings_of()
    claiming = with_keys(settings, group={"offsets_storage": place})
    ingest(FakeWorld(outside, claiming), claiming, new_report())
    assert [offset_of(outside, partition) for partition in (A, B)] == [5, 3] and len(
        outside.rows()
    ) == 8


@both_places
def test_a_log_without_a_leader_is_waited_for_by_the_plan_that_reads_it(
    place: OffsetsStorage,
) -> None:
    outside = group_of(place, 5, 3)
    settings = after_append(place, settings_of(on_no_leader="skip"))
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("fetch", BEFORE), settings=settings)
    outside.owners.clear()
    outside.logs[A].has_leader = False
    with pytest.raises(
        BrokerUnreachable,
        match="which a member of the group stored, is not in the table and reads it",
    ):
        run(outside, [B], settings=settings)
    outside.logs[A].has_leader = True
    run(outside, [A, B], settings=settings)
    assert len(outside.rows()) == 8


def test_no_command_supersedes_a_stored_plan_if_others_may_have_read_after_it() -> None:
    outside = group_of(ZOOKEEPER, 5, 3)
    settings = after_append(ZOOKEEPER)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("fetch", BEFORE))
    outside.owners.clear()
    take_over(outside, Others(outside), A, 2)()
    outside.owners.clear()
    before = outside.newest_plan(), dict(outside.offsets)
    with pytest.raises(
        NeedsDecision, match="stored by a member of the group and is not in the table"
    ):
        set_to(outside, settings, share=[A, B], b=1)
    assert (outside.newest_plan(), dict(outside.offsets)) == before


def test_a_command_hands_its_plan_over_as_it_is_stored_and_the_next_run_executes_it() -> None:
    outside = group_of(ZOOKEEPER, 5, 3)
    run(outside, [A, B])
    grow(outside, 2, 2)
    plan = set_to(outside, after_append(ZOOKEEPER), share=[A, B], b=4)
    assert plan and plan.commit.state is CommitState.DONE and offset_of(outside, B) == 4
    run(outside, [A, B])
    assert [offset_of(outside, partition) for partition in (A, B)] == [7, 5] and len(
        outside.rows()
    ) == 8 + 2 + 1
