"""What commands, lost ledgers and a change of the mode do among other members of the group: no offset of theirs goes back."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from etl.commands.offsets_restore import from_commits
from etl.decisions.handing_over import as_left_to_others
from etl.decisions.next_step import plan_superseding, repair_of, repaired
from etl.decisions.reconcile import where_we_stand
from etl.decisions.replaying import plan_replay
from etl.errors import NeedsDecision, OffsetMoved
from etl.model.logs import BrokerPartition
from etl.model.losses import Loss, LossReason, ReadByOthers
from etl.model.snapshot import Supersede, UpToDate
from etl.run.ingest import ingest
from etl.settings.policies import OwnershipMode
from etl.settings.sections import Settings
from tests.fakes.members import Others, member_with
from tests.fakes.outside import Outside
from tests.fakes.stories import LOGS, At, accept, crash_at, grow, new_report, outside_of, set_to, settings_of
from tests.fakes.world import Crash, FakeWorld, When

A, B, _ = LOGS


def member_of(settings: Settings) -> Settings:
    return settings.model_copy(update={"ownership": settings.ownership.model_copy(update={"mode": OwnershipMode.JOIN})})


SETTINGS = member_of(settings_of())


def run(outside: Outside, share: Collection[BrokerPartition], at: At = lambda step, when: None) -> None:
    ingest(FakeWorld(outside, SETTINGS, at, member=member_with(share)), SETTINGS, new_report())


def read_on_by_others() -> tuple[Outside, Others]:
    """The newest plan saw an offset of another member's log beyond our position."""
    outside = outside_of(5, 3)
    others = Others(outside)
    run(outside, [A, B])
    grow(outside, 4, 4)
    others.own(A)
    others.consume(A, 2)
    run(outside, [B])
    del outside.owners[A]
    return outside, others


def refuse_read_by_both(outside: Outside, others: Others) -> None:
    rows = outside.rows()
    assert set(rows.values()) <= {1}
    for log in outside.logs:
        ours, theirs = {place for one, place in rows if one == log}, others.read.get(log, set())
        assert not ours & theirs and ours | theirs == set(range(outside.offsets[log][0])), log


def test_an_offset_of_others_that_the_newest_plan_saw_is_no_offset_that_it_forgot_to_move_when_the_ledger_is_lost() -> None:
    outside, others = read_on_by_others()
    outside.plans, outside.applied, outside.uid = {}, {}, None
    run(outside, [A, B])
    refuse_read_by_both(outside, others)


def test_a_run_that_claims_behind_one_that_joined_moves_no_offset_of_others_back() -> None:
    outside, _ = read_on_by_others()
    before = dict(outside.offsets)
    with pytest.raises(OffsetMoved):
        ingest(FakeWorld(outside, settings_of()), settings_of(), new_report())
    assert outside.offsets == before


def test_a_position_that_is_set_leaves_offsets_of_others_and_names_what_they_read() -> None:
    outside, others = read_on_by_others()
    before = outside.offsets[A]
    grow(outside, 1, 1)
    plan = set_to(outside, SETTINGS, b=8)
    assert plan and (plan.handed_over, plan.share, plan.offsets_to_move) == (None, None, (B,))
    assert plan.read_by_others == (ReadByOthers(A, 5, 7),) and outside.offsets[A] == before
    run(outside, [A, B])
    assert outside.offsets[A][0] == 10 and not {place for log, place in outside.rows() if log == A} & others.read[A]


def test_a_replay_moves_no_offset_of_others() -> None:
    outside, _ = read_on_by_others()
    world = FakeWorld(outside, SETTINGS)
    snapshot = world.observe()
    state = where_we_stand(snapshot, SETTINGS)
    assert isinstance(state, UpToDate)
    plan = plan_replay(state, {B: (0, 3)}, repaired(snapshot, repair_of(state, snapshot)), SETTINGS, reason="r", now_ms=1)
    assert (plan.handed_over, plan.offsets_to_move, plan.read_by_others) == (None, (), ())


def test_restored_offsets_are_those_that_went_back_and_none_that_others_moved_on() -> None:
    outside, others = read_on_by_others()
    outside.move_offset(B, 1)
    with pytest.raises(OffsetMoved):
        run(outside, [A, B])
    world = FakeWorld(outside, SETTINGS)
    seen = world.observe()
    from_commits(world, as_left_to_others(seen, seen.ledger.newest, SETTINGS), SETTINGS, "restored", "run-1")
    run(outside, [A, B])
    run(outside, [A, B])
    refuse_read_by_both(outside, others)


def handed_over_and_left() -> Outside:
    outside = outside_of(5, 3)
    run(outside, [A, B])
    grow(outside, 4, 4)
    with pytest.raises(Crash):
        run(outside, [A, B], crash_at("fetch", When.BEFORE))
    outside.owners.clear()
    return outside


def test_no_command_leaves_the_ranges_of_a_plan_that_was_handed_over_to_a_later_run_which_would_hold_them_for_read_by_others() -> None:
    outside = handed_over_and_left()
    stored = outside.newest_plan()
    with pytest.raises(NeedsDecision, match="was handed over and is not in the table"):
        set_to(outside, SETTINGS, a=6)
    with pytest.raises(NeedsDecision, match="was handed over and is not in the table"):
        accept(outside, "clicks:0", settings=SETTINGS)
    assert outside.newest_plan() == stored
    run(outside, [])
    assert len(outside.rows()) == 16


def test_a_log_that_was_cut_is_left_out_of_a_plan_that_was_handed_over_and_accepted_behind_it() -> None:
    outside = handed_over_and_left()
    stored = outside.newest_plan()
    assert stored
    outside.logs[A].cut(6)
    with pytest.raises(NeedsDecision):
        run(outside, [])
    world = FakeWorld(outside, SETTINGS)
    snapshot = world.observe()
    skip = Loss(A, 5, 9, LossReason.SKIPPED)
    world.supersede(plan_superseding(Supersede(stored, "cut", (skip,)), snapshot, SETTINGS, now_ms=1), snapshot.ledger)
    run(outside, [])
    assert {place for log, place in outside.rows() if log == B} == set(range(7))
