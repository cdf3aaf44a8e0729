"""An operator sets offsets: skipped ones are lost, unloaded ones are read."""

from __future__ import annotations

import copy
import re

import pytest

from etl.decide.set_offsets import Move, describe_moves, reject_loaded
from etl.errors import BrokerUnreachable, NeedsDecision, NotYetReadable, SettingsError
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, PlanKind
from etl.report.run_progress import Outcome
from tests.fakes.fake_log import offset_of
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    PHYSICAL_LOGS,
    accept,
    outcomes,
    outside_of,
    physical_outside_of,
    run,
    set_to,
    settings_for,
    settings_of,
)

A, B, C = LOGS


def rows_of(outside: Outside, partition: TopicPartition = A) -> list[int]:
    return sorted(offset_of(place) for of, place in outside.rows().elements() if of == partition)


def loaded(*ends: int) -> Outside:
    outside = outside_of(*(ends or (15, 3, 4)))
    run(outside)
    return outside


def test_an_offset_set_forwards_skips_records_and_reports_it() -> None:
    outside, skipped = loaded(), Loss(A, 15, 20, LossReason.SKIPPED)
    outside.logs[A].end = 30
    plan = set_to(outside, a=20)
    assert plan and (plan.kind, plan.number, plan.ranges) == (PlanKind.SET, 2, ())
    assert plan.losses.lost == (skipped,)
    report = run(outside)
    assert outcomes(report) == [Outcome.RECORDS_LOST, Outcome.OFFSETS_SET, Outcome.INGESTED]
    assert rows_of(outside) == [*range(15), *range(20, 30)]
    assert [loss for _, loss in outside.losses] == [skipped]
    assert outside.offsets[A][0] == 30


@pytest.mark.parametrize("to", [0, 14])
def test_a_position_does_not_go_back_over_rows_and_replay_is_named(to: int) -> None:
    outside = loaded()
    before = dict(outside.plans)
    with pytest.raises(NeedsDecision, match="would double their rows") as refused:
        set_to(outside, a=to)
    replay = f"`etl replay CONF -p clicks:0 --from {to} --until 15 --reason ...`"
    assert replay in refused.value.action
    assert outside.plans == before


@pytest.mark.parametrize(
    ("loaded_until", "advice"), [(15, "--to 15"), (30, "^((?!--to ).)*$")], ids=["a part", "all"]
)
def test_a_loaded_offset_is_rejected_also_without_rows_and_the_next_free_one_is_named(
    loaded_until: int, advice: str
) -> None:
    message = f"Offsets before {loaded_until} were loaded into the table already"
    with pytest.raises(NeedsDecision, match=message) as refused:
        reject_loaded((Move(A, 30, 5),), {A: [(0, loaded_until)]}, {})
    assert re.search(advice, refused.value.action)


def test_offsets_that_were_never_loaded_may_be_set() -> None:
    reject_loaded((Move(A, 30, 5),), {A: [(0, 5), (30, 40)], B: [(0, 30)]}, {A: 0})


def test_the_error_advises_a_backfill_for_skipped_offsets_and_a_replay_for_loaded_ones() -> None:
    moves = (Move(A, 130, 100),)
    loaded = {A: [(0, 100), (110, 130)]}
    with pytest.raises(NeedsDecision) as refused:
        reject_loaded(moves, loaded, {A: 20})
    assert refused.value.action == (
        "Offsets 100 to 110 were never loaded, and a backfill loads them: `etl backfills run CONF "
        "NAME -p clicks:0 --from 100 --until 110`. Only a replay reads such offsets "
        "(clicks:0:110-130) again, for it replaces their rows: `etl replay CONF -p clicks:0 --from "
        "110 --until 130 --reason ...`; the position stays at 130"
    )
    with pytest.raises(NeedsDecision) as refused:
        reject_loaded(moves, loaded, {A: 20}, incarnations={A: 1})
    assert refused.value.action.startswith(
        "Offsets 100 to 110 were never loaded, and no backfill loads them, since the partition was "
        "truncated or recreated. Only a replay"
    )


@pytest.mark.parametrize("to", [31, 1])
def test_an_offset_that_the_log_does_not_have_is_refused(to: int) -> None:
    outside = loaded()
    outside.logs[A].end, outside.logs[A].log_start = 30, 2
    with pytest.raises(SettingsError, match="which has 2 to 30"):
        set_to(outside, a=to)


def test_nothing_is_stored_without_a_plan_or_for_a_position_that_is_there_already() -> None:
    with pytest.raises(SettingsError, match="no plan yet"):
        set_to(outside_of(15), a=3)
    outside = loaded()
    assert set_to(outside, a=15) is None and list(outside.plans) == [1]


def test_an_offset_after_an_open_transaction_is_rejected_until_its_end() -> None:
    outside = loaded()
    outside.logs[A].end, outside.logs[A].held_back = 30, 10
    with pytest.raises(NotYetReadable):
        set_to(outside, a=25)
    outside.logs[A].held_back = 0
    assert set_to(outside, a=25)


def test_a_partition_without_a_leader_and_one_that_was_never_begun_are_refused() -> None:
    outside = loaded(15, 3)
    outside.logs[C] = copy.copy(outside.logs[B])
    with pytest.raises(SettingsError, match="not begun"):
        set_to(outside, c=2)
    outside.logs[B].has_leader = False
    with pytest.raises(BrokerUnreachable):
        set_to(outside, b=3)


@pytest.mark.parametrize(
    ("first", "second", "lost"), [(20, 25, [(15, 25)]), (25, 20, [(15, 20)]), (25, 15, [])]
)
def test_an_offset_that_is_set_twice_before_a_run_reports_the_skipped_offsets_once(
    first: int, second: int, lost: list[tuple[int, int]]
) -> None:
    outside = loaded()
    outside.logs[A].end, outside.logs[B].end = 30, 9
    set_to(outside, a=first, b=5)
    plan = set_to(outside, a=second)
    assert plan and plan.number == 2 and plan.loaded_until[B] == 5
    run(outside)
    reported = [
        (loss.from_offset, loss.until_offset) for _, loss in outside.losses if loss.partition == A
    ]
    assert reported == lost and rows_of(outside, B) == [*range(3), *range(5, 9)]
    assert sorted(
        [*rows_of(outside), *(at for low, high in reported for at in range(low, high))]
    ) == list(range(30))


def test_an_offset_set_in_place_of_a_reset_is_not_set_again_before_a_run_executes_it() -> None:
    outside, skipped = loaded(), Loss(A, 5, 8, LossReason.SKIPPED, 1)
    outside.logs[A].cut(5)
    outside.logs[A].end = 30
    assert accept(outside, "clicks:0").loaded_until[A] == 5
    plan = set_to(outside, a=8)
    assert plan and (plan.incarnations, plan.losses.lost) == ({A: 1}, (skipped,))
    message = r"Plan 2 is stored .*the table's plan does not have the positions before that one\."
    with pytest.raises(NeedsDecision, match=message) as refused:
        set_to(outside, a=20)
    assert "etl run CONF" in refused.value.action and outside.newest_plan() == plan
    run(outside)
    assert [loss for _, loss in outside.losses] == [skipped]
    outside.logs[A].end = 40
    assert set_to(outside, a=35)


def test_a_set_offset_keeps_the_incarnation_and_drops_epochs_after_it() -> None:
    outside = loaded()
    outside.logs[A].cut(10)
    outside.logs[A].end = 30
    accept(outside, "clicks:0")
    run(outside)
    outside.logs[A].end = 40
    plan = set_to(outside, a=35)
    assert plan and plan.incarnations == {A: 1}
    assert plan.losses.lost == (Loss(A, 30, 35, LossReason.SKIPPED, 1),)
    assert A not in plan.record_epochs and plan.leader_epochs[A] == max(outside.logs[A].epochs)
    run(outside)
    outside.logs[A].cut(38)
    with pytest.raises(NeedsDecision, match="truncated at offset 38"):
        run(outside)


def test_byte_positions_are_set_where_a_message_begins_and_nowhere_else() -> None:
    outside = physical_outside_of(4, 2, 2)
    settings = settings_for(outside)
    run(outside)
    partition, end = PHYSICAL_LOGS[0], outside.logs[PHYSICAL_LOGS[0]].end
    outside.logs[partition].grow(3)
    with pytest.raises(SettingsError, match="No message begins"):
        set_to(outside, settings, a=end + 1)
    plan = set_to(outside, settings, a=outside.logs[partition].end)
    assert plan and plan.losses.lost == (
        Loss(partition, end, outside.logs[partition].end, LossReason.SKIPPED),
    )
    run(outside)
    assert outside.offsets[partition][0] == outside.logs[partition].end
    assert "bytes are skipped" in describe_moves([Move(partition, 0, 31)])[0]


def test_our_own_offset_is_set_where_another_client_moved_it_and_runs_would_follow() -> None:
    outside, follows = loaded(), settings_of(on_offset_changed="follow")
    outside.logs[A].end = 30
    outside.move_offset(A, 22)
    plan = set_to(outside, follows, a=15)
    assert plan and plan.offsets_to_move == (A,) and not plan.losses.lost
    run(outside, follows)
    assert rows_of(outside) == list(range(30))
    assert outside.offsets[A][0] == 30 and not outside.losses
