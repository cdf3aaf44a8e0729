"""A member of a Kafka group, whose offset commit follows the stored plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from etl.commands.restore_ledger import restore_from_commits
from etl.decide.member_offsets import (
    as_left_to_others,
    plan_without_uncommitted,
    state_after_plan,
    uncommitted_partitions,
)
from etl.decide.reconcile import plan_in_force
from etl.decide.restore_ledger import find_lost_part
from etl.errors import NeedsDecision, OffsetMoved, Owned, SettingsError
from etl.ledger.plan_document import render_plan, with_id
from etl.model.partitions import OffsetsStorage
from etl.model.plans import CommitState, ReadByOthers
from etl.model.snapshot import Table
from etl.report.run_progress import Outcome
from etl.run.ingest import ingest
from tests.builders import with_keys
from tests.fakes.joining_stories import (
    KAFKA,
    A,
    B,
    C,
    group_of,
    left_unfinished,
    member_of,
    newest,
    reject_broken,
    run,
)
from tests.fakes.members import Others, member_with
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    accept,
    crash_at,
    grow,
    new_report,
    once,
    outcomes,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

BEFORE, AFTER = When.BEFORE, When.AFTER


SETTINGS = member_of(KAFKA)


def test_offsets_move_by_one_commit_after_the_plan_and_before_the_first_fetch() -> None:
    outside, seen = group_of(KAFKA, 5, 3, 4), []

    def look() -> None:
        plan = outside.newest_plan()
        assert plan is not None and plan.commit.state is CommitState.DONE and plan.commit.member
        seen.append((dict(outside.kept), f"{plan.number}:{plan.id}", plan.commit.member.generation))

    report = run(outside, LOGS, at=once("fetch", BEFORE, look))
    kept, word, generation = seen[0]
    assert kept == {A: (5, word), B: (3, word), C: (4, word)} == outside.kept and generation == 1
    assert (outcomes(report), report.offsets_committed, outside.group.members) == (
        [Outcome.INGESTED],
        3,
        set(),
    )
    assert (
        report.plan is not None
        and report.plan.commit.state is CommitState.DONE
        and len(outside.rows()) == 12
    )


@pytest.mark.parametrize(
    ("step", "when", "outcome"),
    [
        ("store plan", AFTER, Outcome.PLAN_SUPERSEDED),
        ("hand over", BEFORE, Outcome.PLAN_SUPERSEDED),
        ("hand over", AFTER, Outcome.PLAN_RESUMED),
        ("mark", BEFORE, Outcome.PLAN_RESUMED),
        ("mark", AFTER, Outcome.PLAN_RESUMED),
    ],
)
def test_the_commit_metadata_decides_whether_a_dead_run_committed_its_plan(
    step: str,
    when: When,
    outcome: Outcome,
) -> None:
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, step, when)
    report = run(outside, [A, B])
    assert outcomes(report)[0] is outcome
    reject_broken(outside, others)
    assert len(outside.rows()) == 16


@pytest.mark.parametrize(("step", "when"), [("hand over", BEFORE), ("hand over", AFTER)])
def test_with_all_metadata_overwritten_an_operator_decides_and_nothing_is_stored(
    step: str, when: When
) -> None:
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, step, when)
    others.own(A, B)
    grow(outside, 2, 2)
    for partition in (A, B):
        others.consume(partition, outside.logs[partition].end - outside.kept[partition][0])
    outside.owners.clear()
    plans = dict(outside.plans)
    with pytest.raises(
        NeedsDecision, match="The result of the offset commit of plan 2 is unknown:"
    ) as caught:
        run(outside, [A, B])
    assert (caught.value.exit_code, outside.plans) == (5, plans)
    assert "--assume-offsets-committed" in caught.value.action
    with pytest.raises(
        NeedsDecision, match="The result of the offset commit of plan 2 is unknown:"
    ):
        find_lost_part(
            FakeWorld(outside, SETTINGS).observe(), SETTINGS
        )  # `etl ledger restore` promises no next run that executes it


def test_an_operator_decides_also_for_a_table_created_or_accepted_meanwhile() -> None:
    class Arrived(FakeWorld):
        def _table(self) -> Table | None:
            return super()._table() or Table("table-1", 0, None, is_of_others_alone=True)

    outside = group_of(KAFKA, 5, 3)
    others = Others(outside)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("hand over", AFTER))
    others.own(A, B)
    grow(outside, 2, 2)
    for partition in (A, B):
        others.consume(partition, 2)
    outside.owners.clear()
    with pytest.raises(
        NeedsDecision, match="The result of the offset commit of plan 1 is unknown:"
    ):
        ingest(Arrived(outside, SETTINGS, member=member_with([A, B])), SETTINGS, new_report())


def test_offsets_of_another_storage_decide_nothing_about_a_commit() -> None:
    outside = group_of(KAFKA, 5, 3)
    left_unfinished(outside, "hand over", AFTER)
    outside.offsets_in = OffsetsStorage.ZOOKEEPER
    moved = with_keys(SETTINGS, group={"offsets_storage": OffsetsStorage.ZOOKEEPER})
    plans = dict(outside.plans)
    with pytest.raises(SettingsError, match="was made for offsets in kafka") as caught:
        run(outside, [A, B], settings=moved)
    assert caught.value.where["key"] == "group.offsets_storage" and outside.plans == plans


def test_a_void_plan_with_its_commit_metadata_was_committed() -> None:
    """Its commit arrived after the answer of a broker that was no coordinator any more."""
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, "hand over", BEFORE)
    late = outside.newest_plan()
    assert late is not None

    def lands() -> None:
        assert (found := outside.newest_plan()) is not None
        assert found.commit.state is CommitState.REJECTED
        outside.kept.update(
            {
                partition: (late.loaded_until[partition], late.commit_metadata)
                for partition in late.offsets_to_commit
            }
        )

    report = run(outside, [A, B], at=once("write resolved commits", AFTER, lands))
    assert outcomes(report)[0] is Outcome.PLAN_RESUMED and len(outside.rows()) == 16
    assert newest(outside).commit.state is CommitState.DONE
    reject_broken(outside, others)


@pytest.mark.parametrize("word", ["1795426610:worker-7", "9:" + "g" * 32])
def test_a_word_of_another_consumer_that_begins_with_a_number_is_no_plan_of_ours(word: str) -> None:
    outside = group_of(KAFKA, 5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    others.own(A)
    others.consume(A, 2)
    outside.kept[A] = outside.kept[A][0], word
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)


def test_a_rejected_commit_is_void_and_the_next_plan_has_the_partitions_owned_then() -> None:
    outside = group_of(KAFKA, 5, 3)
    others, voids = Others(outside), []

    def meanwhile() -> None:
        others.own(A)
        others.consume(A, 2)

    at = once("hand over", BEFORE, meanwhile)

    def watching(step: str, when: When) -> None:
        at(step, when)
        if (step, when) == ("write void", AFTER):
            voids.append(outside.newest_plan())

    report = run(outside, [A, B], [B], at=watching)
    assert [plan.commit.state for plan in voids if plan] == [CommitState.REJECTED]
    assert outcomes(report) == [
        Outcome.REBALANCED,
        Outcome.PLAN_SUPERSEDED,
        Outcome.INGESTED,
        Outcome.OWNED_BY_OTHERS,
    ]
    assert [r.partition for plan in report.plans for r in plan.plan.ranges] == [B]
    reject_broken(outside, others)
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)


def test_an_unfinished_void_plan_needs_no_decision_whatever_others_committed_since() -> None:
    outside = group_of(KAFKA, 5, 3)
    others = Others(outside)
    with pytest.raises(Crash):

        def at(step: str, when: When) -> None:
            if (step, when) == ("hand over", BEFORE):
                others.own(A, B)
            if (step, when) == ("write void", AFTER):
                raise Crash(step)

        run(outside, [A, B], at=at)
    for partition in (A, B):
        others.consume(partition, outside.logs[partition].end)
    outside.owners.clear()
    grow(outside, 1, 1)
    report = run(outside, [A, B])
    assert outcomes(report) == [
        Outcome.PLAN_SUPERSEDED,
        Outcome.OFFSETS_LEFT_TO_MEMBERS,
        Outcome.INGESTED,
    ]
    reject_broken(outside, others)


def test_a_driver_that_sleeps_before_its_commit_is_no_member_any_more_once_another_has_looked() -> (
    None
):
    """A commit of the other assignment would be accepted, and offsets lost."""
    outside = group_of(KAFKA, 5, 3)
    others = Others(outside)
    report = new_report()

    def another() -> None:
        outside.owners.clear()
        run(outside, [B])

    with contextlib.suppress(Owned):
        ingest(
            FakeWorld(
                outside, SETTINGS, once("hand over", BEFORE, another), member=member_with([A])
            ),
            SETTINGS,
            report,
        )
    assert A not in outside.kept and outside.kept[B][0] == 3
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)
    assert len(outside.rows()) == 8


def test_an_uncommitted_plan_is_left_by_a_run_without_an_assignment_and_not_fetched() -> None:
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, "hand over", BEFORE)
    others.own(A, B)
    assert outcomes(run(outside, [])) == [Outcome.NO_ASSIGNMENT]
    reject_broken(outside, others)
    others.consume(A, 2)
    outside.owners.clear()
    run(outside, [A, B])
    reject_broken(outside, others)
    assert newest(outside).losses.read_by_others == (ReadByOthers(A, 5, 7),)


@pytest.mark.parametrize("is_void", [False, True])
def test_records_read_by_others_before_an_uncommitted_plan_are_not_read_by_its_successor(
    is_void: bool,
) -> None:
    outside = group_of(KAFKA, 5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    others.own(A)
    others.consume(A, 3)
    outside.owners.clear()
    if is_void:
        assert Outcome.REBALANCED in outcomes(
            run(
                outside,
                [A, B],
                [A, B],
                at=once("hand over", BEFORE, lambda: outside.group.join("another")),
            )
        )
    else:
        with pytest.raises(Crash):
            run(outside, [A, B], at=crash_at("hand over", BEFORE))
        assert Outcome.PLAN_SUPERSEDED in outcomes(run(outside, [A, B]))
    reject_broken(outside, others)
    assert newest(outside).losses.read_by_others == (ReadByOthers(A, 5, 8),)


def test_offsets_of_a_former_storage_are_not_reported_as_moved() -> None:
    outside = group_of(KAFKA, 5, 3)
    run(outside, [A, B])
    outside.kept.clear()
    with pytest.raises(OffsetMoved, match="Another client removed") as removed:
        run(outside, [A, B])
    assert (
        removed.value.action
        and "recreated, run etl topics accept-changes CONF -p clicks" in removed.value.action
    )
    plan = outside.newest_plan()
    assert plan
    with pytest.raises(
        OffsetMoved,
        match="group.offsets_storage is kafka now, and was zookeeper when plan 1 was made",
    ) as elsewhere:
        state_after_plan(
            replace(plan, commit=replace(plan.commit, storage=OffsetsStorage.ZOOKEEPER)),
            {},
            [A, B],
            {},
            storage=OffsetsStorage.KAFKA,
        )
    assert (
        elsewhere.value.action
        and "a last run with group.offsets_storage: zookeeper" in elsewhere.value.action
    )


def test_an_offset_that_went_back_after_an_uncommitted_plan_stops_the_run() -> None:
    outside = group_of(KAFKA, 5, 3)
    left_unfinished(outside, "hand over", BEFORE)
    outside.kept[A] = 2, ""
    with pytest.raises(OffsetMoved):
        run(outside, [A, B])


def test_consumers_in_zookeeper_under_the_same_name_stop_the_run() -> None:
    outside = group_of(KAFKA, 5)
    outside.live_consumers = ("group_old-1",)
    with pytest.raises(Owned, match="registered in ZooKeeper: group_old-1"):
        run(outside, [A])
    assert not outside.plans


def test_another_mode_finishes_a_committed_plan_and_rejects_an_undecidable_one() -> None:
    claiming = settings_of()
    for step, when in (("hand over", BEFORE), ("hand over", AFTER)):
        outside = group_of(KAFKA, 5, 3)
        left_unfinished(outside, step, when)
        outside.group.members.clear()
        if when is BEFORE:
            with pytest.raises(
                SettingsError, match="the ledger has no result of its offset commit"
            ) as caught:
                ingest(FakeWorld(outside, claiming), claiming, new_report())
            assert caught.value.where["key"] == "group.mode"


def test_the_document_of_a_plan_contains_the_state_of_its_commit_and_its_id_does_not() -> None:
    outside = group_of(KAFKA, 5)
    left_behind_by = []
    run(
        outside,
        [A],
        at=once("hand over", BEFORE, lambda: left_behind_by.append(outside.newest_plan())),
    )
    (stored,), marked = left_behind_by, outside.newest_plan()
    assert stored is not None and marked is not None
    assert stored.commit.state is CommitState.IN_DOUBT
    assert stored.with_commit_state(CommitState.DONE) == marked


@pytest.mark.parametrize("instance_id", [None, "static"])
@pytest.mark.parametrize("step", ["hand over", "fetch"])
def test_a_dead_runs_membership_ends_by_the_next_run_and_a_static_one_only_in_doubt(
    step: str,
    instance_id: str | None,
) -> None:
    outside = group_of(KAFKA, 5, 3)
    with pytest.raises(Crash):
        run(
            outside,
            [A, B],
            at=crash_at(step, BEFORE),
            made=lambda member: setattr(member, "instance_id", instance_id),
        )
    dead = set(outside.group.members)
    run(outside, [A, B])
    assert len(dead) == 1 and outside.group.members == (
        dead if step == "fetch" and instance_id else set()
    )
    assert len(outside.rows()) == 8


def test_of_a_partial_commit_nothing_is_loaded_before_an_operator_skips_the_rest() -> None:
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, "hand over", AFTER)
    before = outside.newest_plan()
    assert before is not None
    outside.kept[B] = (
        before.expected_commits[B].offset or 0,
        before.expected_commits[B].metadata or "",
    )
    with pytest.raises(
        NeedsDecision, match="The offsets of plan 2 are committed except for this partition"
    ):
        run(outside, [A, B])
    assert len(outside.rows()) == 8
    part = with_id(
        plan_without_uncommitted(
            before, uncommitted_partitions(before, outside.committed()), "no right to it", now_ms=1
        )
    )
    outside.plans[2] = render_plan(part)
    report = run(outside, [A, B])
    assert outcomes(report)[0] is Outcome.PLAN_RESUMED and len(outside.rows()) == 16
    reject_broken(outside, others)


def test_a_plan_that_is_left_to_others_reads_nothing_and_the_next_one_names_what_they_read() -> (
    None
):
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, "hand over", BEFORE)
    others.own(A, B)
    for partition in (A, B):
        others.consume(partition, 4)
    outside.owners.clear()
    grow(outside, 1, 1)
    left = outside.newest_plan()
    assert left is not None
    part = with_id(plan_without_uncommitted(left, left.loaded_until, "they read it", now_ms=1))
    outside.plans[left.number] = render_plan(part)
    run(outside, [A, B])
    reject_broken(outside, others)
    assert newest(outside).losses.read_by_others == (
        ReadByOthers(A, 5, 9),
        ReadByOthers(B, 3, 7),
    )


def read_on_after_a_plan_without_result() -> Outside:
    outside = group_of(KAFKA, 5, 3)
    others = left_unfinished(outside, "record", BEFORE)
    others.own(A)
    grow(outside, 3, 3)
    others.consume(A, 2)
    outside.owners.clear()
    outside.logs[B].cut(4)
    return outside


@pytest.mark.parametrize(
    "command",
    [
        lambda outside: set_to(outside, SETTINGS, b=6),
        lambda outside: accept(outside, "clicks:1", settings=SETTINGS),
    ],
)
def test_no_command_is_decided_after_a_plan_without_a_recorded_result(
    command: Callable[[Outside], object],
) -> None:
    outside = read_on_after_a_plan_without_result()
    before = dict(outside.kept), dict(outside.plans)
    with pytest.raises(NeedsDecision, match="the ledger does not record that it is in the table"):
        command(outside)
    assert before == (outside.kept, outside.plans)
    with pytest.raises(NeedsDecision):
        run(outside, [A, B])
    plan = accept(outside, "clicks:1", settings=SETTINGS)
    assert plan.offsets_to_move == (B,) and plan.losses.read_by_others == (ReadByOthers(A, 9, 11),)


@pytest.mark.parametrize("is_gone", [True, False])
def test_what_a_plan_was_handed_over_that_went_with_the_ledger_is_not_taken_for_read_by_others(
    is_gone: bool,
) -> None:
    outside = group_of(KAFKA, 5, 3)
    others = Others(outside)
    run(outside, [A, B])
    older = dict(outside.plans), dict(outside.applied)
    grow(outside, 4, 4)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("fetch", BEFORE))
    outside.owners.clear()
    outside.plans, outside.applied = ({}, {}) if is_gone else older
    outside.uid = None if is_gone else outside.uid
    with pytest.raises(
        OffsetMoved,
        match="The offsets of plan 2 of this pipeline were committed, "
        "but neither ZooKeeper nor the table has the plan:",
    ):
        run(outside, [A, B])
    world = FakeWorld(outside, SETTINGS)
    seen = world.observe()
    in_force = plan_in_force(seen.ledger, seen.table)
    restore_from_commits(
        world, as_left_to_others(seen, in_force, SETTINGS), SETTINGS, "restored", "run-1"
    )
    run(outside, [A, B])
    run(outside, [A, B])
    reject_broken(outside, others)
    assert len(outside.rows()) == 16
