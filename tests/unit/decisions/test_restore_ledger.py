"""What of a ledger is lost, and how the table and moved offsets restore it."""

from __future__ import annotations

import contextlib

import pytest

from etl.commands.restore_ledger import restore_from_commits
from etl.decide.inherit_pipeline import plan_inheritance, predecessor_of, state_of_itself
from etl.decide.next_step import repaired
from etl.decide.restore_ledger import (
    Lost,
    describe_ends_beyond_rows,
    describe_restored_rows,
    find_ends_beyond_rows,
    find_lost_part,
    is_forgotten,
    repair_from,
)
from etl.decide.set_offsets import Standing, plan_set
from etl.errors import LedgersDisagree, NeedsDecision, OffsetMoved, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import Committed
from etl.model.plans import Loss, LossReason, PlanKind
from etl.model.snapshot import Ledger, OtherPipeline, Table, UpToDate
from etl.run.ingest import finish_repair
from tests.builders import plain_snapshot
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    SETTINGS,
    crash_at,
    new_report,
    outside_of,
    reject_unfinished,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

A, B, _ = LOGS


def loaded() -> Outside:
    outside = outside_of(15, 3, 4)
    run(outside)
    return outside


def emptied(outside: Outside) -> Outside:
    outside.uid = None
    for kept in (outside.plans, outside.applied, outside.offsets):
        kept.clear()
    return outside


def restore(outside: Outside) -> Lost:
    """What `etl ledger restore` changes if the table's commits are readable."""
    world = FakeWorld(outside, SETTINGS)
    snapshot = world.observe()
    lost, plan = find_lost_part(snapshot, SETTINGS)
    if lost is Lost.NOTHING:
        return lost
    assert plan is not None
    restore_from_commits(world, snapshot, SETTINGS, "restored", "run-1")
    return lost


@pytest.mark.parametrize("offset", [9, 20])
def test_an_offset_that_another_client_moved_goes_back_to_the_position(offset: int) -> None:
    outside = loaded()
    outside.logs[A].end = 25
    outside.move_offset(A, offset)
    with pytest.raises(OffsetMoved, match=r"a committed offset") as refused:
        run(outside)
    assert "etl ledger restore CONF" in refused.value.action
    assert restore(outside) is Lost.OFFSETS
    plan = outside.newest_plan()
    assert plan and (plan.kind, plan.number) == (PlanKind.SET, 2)
    assert (plan.offsets_to_move, plan.losses.lost) == ((A,), ())
    run(outside)
    reject_unfinished(outside)


def test_a_plan_without_a_result_gets_it_before_offsets_go_back_and_reports_its_losses() -> None:
    outside, skips = loaded(), settings_of(on_data_loss="skip")
    outside.logs[A].end, outside.logs[A].log_start = 25, 20
    with pytest.raises(Crash):
        run(outside, skips, at=crash_at("append", When.AFTER))
    assert sorted(outside.applied) == [1] and not outside.losses
    outside.move_offset(A, 9)
    assert restore(outside) is Lost.OFFSETS
    assert sorted(outside.applied) == [1, 2] and len(outside.losses) == 1
    run(outside, skips)
    assert sorted(outside.applied) == sorted(outside.plans) == [1, 2, 3]
    assert [loss for _, loss in outside.losses] == [Loss(A, 15, 20, LossReason.EXPIRED)]
    assert outside.offsets[A][0] == 25


@pytest.mark.parametrize("offset", [None, 9, 30])
def test_a_lost_ledger_is_written_anew_and_offsets_that_another_client_set_since_go_back(
    offset: int | None,
) -> None:
    outside = emptied(loaded())
    outside.logs[A].end = 40
    if offset is not None:
        outside.move_offset(A, offset)
    assert restore(outside) is Lost.LEDGER
    assert outside.offsets[A][0] == 15 and sorted(outside.plans) == [1, 2]
    run(outside)
    reject_unfinished(outside)


@pytest.mark.parametrize("step", ["commit from 0", "store uid", "adopt 1", "record", "store plan"])
@pytest.mark.parametrize("when", When)
def test_a_crash_during_a_restore_is_finished_by_another_restore(step: str, when: When) -> None:
    outside = emptied(loaded())
    outside.logs[A].end = 40
    world = FakeWorld(outside, SETTINGS, crash_at(step, when))
    snapshot = world.observe()
    _, plan = find_lost_part(snapshot, SETTINGS)
    assert plan is not None
    repair = repair_from(plan, snapshot)
    stands = Standing(UpToDate(plan, plan.loaded_until), plan.loaded_until)
    after = plan_set(stands, (), repaired(snapshot, repair), SETTINGS, reason="r", now_ms=1)
    with contextlib.suppress(Crash):
        finish_repair(world, repair, new_report())
        world.store(with_id(after))
    restore(outside)
    run(outside)
    reject_unfinished(outside)


def test_a_stored_plan_is_left_to_the_next_run_unless_an_offset_was_moved_since() -> None:
    outside = loaded()
    outside.logs[A].end = 25
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    assert restore(outside) is Lost.NOTHING
    outside.move_offset(A, 20)
    with pytest.raises(NeedsDecision, match="moved the offset of clicks:0 since"):
        restore(outside)


def test_where_the_tables_log_was_cleaned_up_only_rows_are_left() -> None:
    outside = emptied(loaded())
    outside.forgotten_commits = True
    snapshot = FakeWorld(outside, SETTINGS).observe()
    assert find_lost_part(snapshot, SETTINGS) == (Lost.PLANS, None)
    with pytest.raises(LedgersDisagree) as refused:
        run(outside)
    assert "etl ledger restore CONF" in refused.value.action


@pytest.mark.parametrize(("is_recorded", "offset"), [(True, 15), (False, 0)])
def test_a_partition_without_rows_continues_where_the_ledger_has_loaded_it_for_certain(
    is_recorded: bool, offset: int
) -> None:
    outside = loaded()
    if not is_recorded:
        outside.applied.clear()
    ledger = FakeWorld(outside, SETTINGS).observe().ledger
    assert ledger.newest is not None and ledger.newest.loaded_until[A] == 15
    assert find_ends_beyond_rows(ledger, {B: (0, 1)})[A] == (0, offset)
    assert A not in find_ends_beyond_rows(ledger, {A: (0, offset)})
    assert find_ends_beyond_rows(Ledger(), {}) == {}
    [sentence] = describe_ends_beyond_rows({A: (0, offset)})
    assert sentence.startswith(f"clicks:0 continues at {offset}, ")


@pytest.mark.parametrize(("rows_end", "lost_until"), [(25, 20), (15, None)])
def test_losses_of_a_plan_of_unknown_outcome_are_recorded_if_rows_lie_behind_them(
    rows_end: int, lost_until: int | None
) -> None:
    """Else the partition continues before them, and the next run decides on them again."""
    outside = loaded()
    outside.logs[A].end = 25
    outside.logs[A].log_start = 20
    skips = settings_of(on_data_loss="skip")
    with pytest.raises(Crash):
        run(outside, skips, at=crash_at("append", When.AFTER))
    outside.forgotten_commits = True
    snapshot = FakeWorld(outside, skips).observe()
    itself = OtherPipeline("offset-range-etl/c/g/p", 2)
    predecessor = predecessor_of(itself, {A: (0, rows_end)}, snapshot, skips)
    plan = plan_inheritance(
        predecessor,
        state_of_itself(snapshot, skips),
        snapshot,
        skips,
        uid="uid1",
        now_ms=1,
        reason="r",
        sets_back=True,
    )
    assert [loss.until_offset for loss in plan.losses.lost] == [lost_until] * bool(lost_until)
    assert plan.loaded_until[A] == rows_end


def test_a_table_without_a_plan_of_ours_restores_nothing() -> None:
    with pytest.raises(SettingsError, match="nothing to restore"):
        restore(outside_of(15))
    assert not is_forgotten(plain_snapshot({}).ledger, Table("t", 3, None))


def test_the_consequences_of_a_restore_from_rows_are_reported() -> None:
    snapshot = plain_snapshot({A: (0, 30), B: (0, 5)}, committed={A: Committed(21, 0)})
    result = describe_restored_rows({A: (0, 20), B: (1, 9)}, snapshot, others=2)
    assert result[0] == (
        "clicks:0 continues at 20, one past its last row; the committed offset is 21, and the "
        "offsets between are read again, as the table has no rows of them"
    )
    assert result[1].endswith(
        "the partition ends at 5, so it was truncated or recreated, and the next run stops there"
    )
    assert "(2)" in result[-1]
    assert any("etl records show CONF -p clicks:0 --from 19" in sentence for sentence in result)
