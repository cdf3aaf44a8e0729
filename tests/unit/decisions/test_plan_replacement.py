"""Plans that supersede a stored plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.decide.offsets import starts_of
from etl.decide.plan import shape_of_rows
from etl.decide.plan_replacement import (
    closing_plan_of,
    needs_closing,
    next_closing_plan,
    plan_without,
    replacement_plan,
    resume_or_supersede,
)
from etl.errors import BrokerUnreachable, DataLoss, NeedsDecision, SettingsError
from etl.ledger.plan_document import with_id
from etl.model.partitions import Committed
from etl.model.plans import Loss, LossReason, OffsetRange, Plan, PlanKind, Predecessor
from etl.model.snapshot import OtherPipeline, Resume, Snapshot, Supersede, UpToDate
from etl.settings.sections import Settings
from tests.builders import changed, plain_plan, with_keys
from tests.fakes.planning import (
    CAPS,
    NOW_MS,
    OTHER,
    SETTINGS,
    A,
    B,
    last_plan,
    next_plan,
    offsets_of,
    onward,
    planned,
    settings_of,
    snapshot_of,
)


def stored_plan(**changes: object) -> Plan:
    """Plan 2, which reads offsets 100 to 200 of a log and is not in the table."""
    plan = changed(
        plain_plan(2),
        ranges=(OffsetRange(A, 100, 200),),
        loaded_until={A: 200},
        expected_commits={A: Committed(100, znode_version=3)},
        origin=replace(plain_plan(2).origin, previous="1" * 32),
        table=replace(plain_plan(2).table, id="table", transaction_version=1),
    )
    return with_id(changed(plan, **changes))


def test_a_closing_plan_reads_nothing_and_keeps_the_positions_before_the_stored_one() -> None:
    closing = with_id(closing_plan_of(stored_plan(), "retired", now_ms=5))
    assert (closing.number, closing.kind) == (2, PlanKind.SET)
    assert (closing.ranges, closing.loaded_until, closing.offsets_to_move) == ((), {A: 100}, ())
    assert (closing.origin.supersedes, closing.origin.previous) == (stored_plan().id, "1" * 32)
    assert closing.is_closing


@pytest.mark.parametrize(
    ("loss", "is_kept"),
    [(Loss(A, 90, 100, LossReason.EXPIRED), True), (Loss(A, 150, 160, LossReason.SKIPPED), False)],
)
def test_a_closing_plan_keeps_the_losses_that_no_later_plan_finds_again(
    loss: Loss, is_kept: bool
) -> None:
    closing = closing_plan_of(stored_plan(lost=(loss,)), "retired", now_ms=5)
    assert (loss in closing.losses.lost) is is_kept


def test_a_stored_take_over_is_executed_as_it_is() -> None:
    plan = stored_plan(kind=PlanKind.TAKE_OVER, ranges=(), inherits=Predecessor("a/b/c/d", 7))
    assert needs_closing(plan) and closing_plan_of(plan, "retired", now_ms=5) is plan


def test_a_plan_without_ranges_is_closed_only_if_it_superseded_one_a_driver_may_hold() -> None:
    assert needs_closing(stored_plan())
    assert not needs_closing(stored_plan(ranges=(), kind=PlanKind.SET))
    assert needs_closing(stored_plan(ranges=(), kind=PlanKind.SET, supersedes="2" * 32))


def test_the_number_after_the_tables_newest_plan_is_closed() -> None:
    last = stored_plan()
    closing = next_closing_plan(
        last, "taken over", table_id="table", table_version=9, number=2, now_ms=5
    )
    assert (closing.number, closing.loaded_until) == (3, {A: 200})
    assert (closing.origin.previous, closing.origin.supersedes) == (last.id, None)
    assert (closing.table.transaction_version, closing.table.version) == (2, 9)
    assert closing.expected_commits == {A: last.committed_after(A)}


@pytest.mark.parametrize(("number", "topics"), [(1, set()), (2, {"clicks"})])
def test_a_first_plan_that_was_closed_counts_for_no_topic(number: int, topics: set[str]) -> None:
    plan = stored_plan(number=number, previous=None if number == 1 else "1" * 32)
    closing = closing_plan_of(plan, "retired", now_ms=5)
    assert OtherPipeline("a/b/c/d", number, 1, closing).topics == frozenset(topics)


STORED = last_plan(
    {A: 10, B: 5, OTHER: 7},
    ranges=(OffsetRange(A, 3, 6), OffsetRange(A, 6, 10), OffsetRange(B, 0, 5)),
    previous="before",
    expected_commits={A: Committed(3, 1), B: Committed(), OTHER: Committed(7, 2)},
    lost=(Loss(A, 0, 3, LossReason.EXPIRED),),
)


def instead_of(snapshot: Snapshot, *skipped: Loss, settings: Settings = SETTINGS) -> Plan:
    return with_id(
        replacement_plan(Supersede(STORED, "why not", skipped), snapshot, settings, now_ms=NOW_MS)
    )


def test_a_plan_starts_where_its_first_range_of_a_log_does_and_elsewhere_at_its_position() -> None:
    assert starts_of(STORED) == {A: 3, B: 0, OTHER: 7}


def test_a_plan_in_the_place_of_another_reads_from_its_start_to_the_ends_of_now() -> None:
    plan = instead_of(snapshot_of({A: (0, 30), B: (0, 6)}, committed={A: Committed(99, 9)}))
    assert offsets_of(plan) == {A: [(3, 30)], B: [(0, 6)]}
    assert (plan.number, plan.origin.pipeline_id) == (4, "u")
    assert (plan.origin.supersedes, plan.origin.reason) == (STORED.id, "why not")
    assert plan.origin.previous == "before"
    assert plan.loaded_until == {A: 30, B: 6, OTHER: 7}
    assert plan.expected_commits[A] == Committed(3, 1), (
        "the old plan's observed offset stays the expected one, so a moved offset is reported"
    )
    assert plan.losses.lost == STORED.losses.lost


@pytest.mark.parametrize(
    ("skip", "left"),
    [((3, 4), [(4, 30)]), ((5, 7), [(3, 5), (7, 30)]), ((29, 30), [(3, 29)]), ((3, 30), None)],
)
def test_offsets_that_an_operator_skips_are_left_out_and_recorded(
    skip: tuple[int, int], left: list[tuple[int, int]] | None
) -> None:
    plan = instead_of(snapshot_of({A: (0, 30)}), Loss(A, *skip, LossReason.SKIPPED))
    assert offsets_of(plan).get(A) == left
    assert plan.loaded_until[A] == 30
    assert plan.losses.lost[-1] == Loss(A, *skip, LossReason.SKIPPED)


@pytest.mark.parametrize("skip", [(2, 4), (29, 31), (40, 41)])
def test_offsets_that_the_plan_does_not_read_cannot_be_skipped(skip: tuple[int, int]) -> None:
    with pytest.raises(SettingsError, match="not all in the plan's ranges"):
        instead_of(snapshot_of({A: (0, 30)}), Loss(A, *skip, LossReason.SKIPPED))


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_an_operator_may_skip_exactly_the_offsets_that_retention_took(policy: str) -> None:
    skip = Loss(A, 3, 8, LossReason.SKIPPED)
    gone = snapshot_of({A: (8, 30)})
    plan = instead_of(gone, skip, settings=settings_of(on_data_loss=policy))
    assert offsets_of(plan) == {A: [(8, 30)]}
    assert plan.losses.lost == (*STORED.losses.lost, skip)
    again_plan = with_id(
        replacement_plan(
            Supersede(plan, "again"), gone, settings_of(on_data_loss=policy), now_ms=NOW_MS
        )
    )
    assert again_plan.losses.lost == plan.losses.lost, "the decision lasts"
    more_is_gone = snapshot_of({A: (10, 30)})
    if policy == "fail":
        with pytest.raises(DataLoss, match="2 offsets are gone: wanted 8, the log starts at 10"):
            instead_of(more_is_gone, skip)
    else:
        plan = instead_of(more_is_gone, skip, settings=settings_of(on_data_loss=policy))
        assert plan.losses.lost[-2:] == (Loss(A, 8, 10, LossReason.EXPIRED), skip)


SKIPPING = settings_of(on_data_loss="skip")
SKIPPED = Loss(A, 5, 8, LossReason.SKIPPED)


def again(old: Plan, snapshot: Snapshot, *skipped: Loss, settings: Settings = SKIPPING) -> Plan:
    return with_id(
        replacement_plan(Supersede(old, "again", skipped), snapshot, settings, now_ms=NOW_MS)
    )


@pytest.mark.parametrize(
    ("log_start", "expired", "left"),
    [
        (0, [], [(3, 5), (8, 40)]),
        (4, [(3, 4)], [(4, 5), (8, 40)]),
        (5, [(3, 5)], [(8, 40)]),
        (7, [(3, 5)], [(8, 40)]),
        (8, [(3, 5)], [(8, 40)]),
        (12, [(3, 5), (8, 12)], [(12, 40)]),
        (40, [(3, 5), (8, 40)], None),
    ],
)
def test_what_an_operator_skipped_stays_skipped_when_the_plan_is_superseded_again(
    log_start: int, expired: list[tuple[int, int]], left: list[tuple[int, int]] | None
) -> None:
    plan = again(instead_of(snapshot_of({A: (0, 30)}), SKIPPED), snapshot_of({A: (log_start, 40)}))
    assert offsets_of(plan).get(A) == left
    assert plan.losses.lost == (
        *STORED.losses.lost,
        SKIPPED,
        *(Loss(A, *gap, LossReason.EXPIRED) for gap in expired),
    )


def test_offsets_that_were_missing_stay_let_go_when_the_plan_is_superseded_again() -> None:
    missing = Loss(A, 5, 8, LossReason.MISSING)
    once = with_id(plan_without(STORED, [missing], now_ms=NOW_MS))
    plan = again(once, snapshot_of({A: (4, 40)}))
    assert offsets_of(plan)[A] == [(4, 5), (8, 40)]
    assert plan.losses.lost == (*STORED.losses.lost, missing, Loss(A, 3, 4, LossReason.EXPIRED))


def test_an_operator_may_skip_more_and_not_the_same_twice() -> None:
    once = instead_of(snapshot_of({A: (0, 30)}), SKIPPED)
    twice = again(once, snapshot_of({A: (0, 40)}), more := Loss(A, 20, 21, LossReason.SKIPPED))
    assert offsets_of(twice)[A] == [(3, 5), (8, 20), (21, 40)]
    assert twice.losses.lost == (*STORED.losses.lost, SKIPPED, more)
    with pytest.raises(SettingsError, match="not all in the plan's ranges"):
        again(twice, snapshot_of({A: (0, 40)}), Loss(A, 7, 9, LossReason.SKIPPED))


def test_skipped_or_missing_offsets_are_losses_of_the_present_incarnation() -> None:
    former = Loss(A, 4, 5, LossReason.SKIPPED, 1)
    old = with_id(changed(STORED, incarnations={A: 2}, lost=(former,)))
    plan = again(old, snapshot_of({A: (0, 30)}), SKIPPED)
    assert offsets_of(plan)[A] == [(3, 5), (8, 30)]
    assert plan.losses.lost[-1] == replace(SKIPPED, incarnation=2)
    state = replace(onward({A: 4}, incarnations={A: 2}), positions={A: 7}, followed={A: 7})
    moved = planned(snapshot_of({A: (0, 9)}), state)
    assert moved.losses.lost == (Loss(A, 4, 7, LossReason.MOVED, 2),)


def test_a_skip_at_the_end_of_a_plan_is_kept_too_where_a_smaller_cap_would_end_before_it() -> None:
    once = instead_of(snapshot_of({A: (0, 10)}), skip := Loss(A, 8, 10, LossReason.SKIPPED))
    plan = again(once, snapshot_of({A: (0, 40)}), settings=settings_of({"max_records_per_plan": 2}))
    assert (offsets_of(plan)[A], plan.loaded_until[A]) == ([(3, 8)], 10)
    assert plan.losses.lost == (*STORED.losses.lost, skip)


AWAY = snapshot_of({B: (0, 5)}, leaderless=frozenset({A}))


def test_nothing_is_skipped_in_a_partition_while_it_has_no_leader() -> None:
    with pytest.raises(BrokerUnreachable, match="none of its offsets can be skipped now") as caught:
        again(STORED, AWAY, SKIPPED, settings=settings_of(on_no_leader="skip"))
    assert caught.value.retriable


def test_offsets_skipped_without_a_leader_are_reported_by_the_plan_that_reads_them() -> None:
    once = instead_of(snapshot_of({A: (0, 30)}), SKIPPED)
    plan = again(once, AWAY, settings=settings_of(on_no_leader="skip"))
    assert (offsets_of(plan), plan.loaded_until[A]) == ({B: [(0, 5)]}, 3)
    assert plan.losses.lost == STORED.losses.lost


def test_a_stored_plan_without_a_leader_is_superseded_by_one_that_leaves_the_partition() -> None:
    skip = settings_of(on_no_leader="skip")
    state = resume_or_supersede(Resume(replace(STORED, shape=shape_of_rows(skip))), AWAY, skip)
    assert isinstance(state, Supersede)
    assert state.reason == "clicks 0 has no leader: a later plan reads its offsets"
    plan = replacement_plan(state, AWAY, skip, now_ms=NOW_MS)
    assert (offsets_of(plan), plan.loaded_until) == ({B: [(0, 5)]}, {A: 3, B: 5, OTHER: 7})
    assert plan.losses.lost == STORED.losses.lost


def test_under_fail_a_plan_without_a_leader_reports_the_key_that_lets_others_continue() -> None:
    with pytest.raises(
        BrokerUnreachable, match="plan 4, which is stored and not in the table, reads it"
    ) as caught:
        resume_or_supersede(Resume(STORED), AWAY, SETTINGS)
    assert "source.on_no_leader: skip" in caught.value.action


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 40), st.integers(0, 40), st.integers(1, 8)),
        max_size=6,
    ),
    CAPS,
)
def test_superseding_plans_and_their_successors_have_every_offset_in_one_range_or_loss(
    deeds: list[tuple[int, int, int, int]], cap: int | None
) -> None:
    policy, start, end = settings_of({"max_records_per_plan": cap}, on_data_loss="skip"), 0, 20
    plan = with_id(planned(snapshot_of({A: (0, end)}), settings=policy))
    for forgotten, more, at, size in deeds:
        start, end = min(start + forgotten, end), end + more
        skip = Loss(A, at, at + size, LossReason.SKIPPED)
        try:
            plan = again(plan, snapshot_of({A: (start, end)}), skip, settings=policy)
        except SettingsError:
            plan = again(plan, snapshot_of({A: (start, end)}), settings=policy)
    plans = [plan]
    while following := next_plan(
        snapshot_of({A: (start, end)}), UpToDate(plan, plan.loaded_until), policy
    ):
        plans.append(plan := with_id(following))
    read = [(r.from_offset, r.until_offset) for one in plans for r in one.ranges]
    found = sorted(
        read + [(loss.from_offset, loss.until_offset) for one in plans for loss in one.losses.lost]
    )
    assert found[0][0] == 0 and found[-1][1] == end
    assert all(before[1] == after[0] for before, after in zip(found, found[1:])), found


def test_a_stored_plan_is_replayed_also_if_the_conf_no_longer_names_its_topic() -> None:
    stored = Resume(replace(STORED, shape=shape_of_rows(SETTINGS)))
    dropped = snapshot_of({}, missing_topics=frozenset({"orders"}))
    for snapshot in (snapshot_of({A: (3, 30), B: (0, 5)}), dropped):
        assert resume_or_supersede(stored, snapshot, SETTINGS) == stored


def test_a_stored_plan_of_a_topic_that_was_deleted_names_the_command_that_leads_out() -> None:
    stored = Resume(replace(STORED, shape=shape_of_rows(SETTINGS)))
    deleted = snapshot_of({}, missing_topics=frozenset({"clicks"}))
    with pytest.raises(NeedsDecision, match="the brokers do not know its topic any more") as caught:
        resume_or_supersede(stored, deleted, SETTINGS)
    assert f"etl plans supersede CONF {STORED.number} --reason" in caught.value.action
    assert not caught.value.retriable


def test_a_stored_plan_that_expired_is_superseded_under_skip_and_stops_the_run_under_fail() -> None:
    snapshot = snapshot_of({A: (4, 30), B: (0, 5)})
    found = resume_or_supersede(Resume(STORED), snapshot, settings_of(on_data_loss="skip"))
    assert found == Supersede(STORED, "clicks 0: its range starts at 3, and the log now at 4")
    with pytest.raises(DataLoss, match="1 offsets are gone: wanted 3"):
        resume_or_supersede(Resume(STORED), snapshot, SETTINGS)


@pytest.mark.parametrize(
    "changed",
    [
        settings_of(isolation_level="read_uncommitted"),
        settings_of(table={"partition_by": ["topic"]}),
        with_keys(SETTINGS, transform={"dataframe": "a:b"}),
    ],
)
def test_a_stored_plan_of_another_shape_is_not_replayed(changed: Settings) -> None:
    stored, snapshot = Resume(last_plan({}, shape=shape_of_rows(SETTINGS))), snapshot_of({})
    assert resume_or_supersede(stored, snapshot, SETTINGS) == stored
    with pytest.raises(NeedsDecision, match="the settings of its rows have changed") as caught:
        resume_or_supersede(stored, snapshot, changed)
    assert f"etl plans supersede CONF {stored.plan.number} " in caught.value.action
