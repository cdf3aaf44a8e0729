"""Where the pipeline stands: one test per row of the table in `etl.reconcile`, and laws over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import LedgersDisagree, NeedsDecision, OffsetMoved
from etl.model import (
    Applied, BrokerPartition, Committed, Dialect, FirstRun, Foreign, Ledger, Onward, Plan, PlanKind, Replay, Stamp, Standing, Table,
)
from etl.reconcile import reconcile, refuse_what_others_did
from etl.settings import OnMoved

A, B, C = (BrokerPartition("clicks", p) for p in range(3))
UID, APP_ID = "feedbeef", "app"
SEEN = {A: Committed(3, 1), B: Committed(), C: Committed(9, 4)}
POSITIONS = {A: 5, B: 2, C: 9}
COMPLETE = {A: Committed(5, 2), B: Committed(2, 0), C: Committed(9, 4)}


def plan_of(number: int, **changes: Any) -> Plan:
    plan = Plan(
        number=number, uid=UID, kind=PlanKind.INGEST, created_at_ms=1, dialect=Dialect.KAFKA, cluster="c", shape="s", ranges=(),
        positions=POSITIONS, seen=SEEN, table_id="t1" if number > 1 else None, id=f"plan-{number}")
    return replace(plan, **changes)


def ledger_of(number: int | None, *, applied: bool = True, **changes: Any) -> Ledger:
    if number is None:
        return Ledger(changes.get("uid"))
    plan = plan_of(number, **changes)
    return Ledger(UID, plan, Applied(number, plan.id, 7, "t1", ()) if applied else None)


def table_of(bit: int | None, **changes: Any) -> Table:
    stamp = Stamp(7, APP_ID, UID, bit, f"plan-{bit}") if bit else None
    return replace(Table("t1", 7, bit, stamp), **changes)


def stand(
    ledger: Ledger, table: Table | None, committed: Mapping[BrokerPartition, Committed] = COMPLETE, on_moved: OnMoved = OnMoved.FAIL,
) -> Standing:
    return reconcile(ledger, table, committed, on_moved)


def disagreement(ledger: Ledger, table: Table | None, says: str) -> LedgersDisagree:
    with pytest.raises(LedgersDisagree, match=says) as caught:
        stand(ledger, table)
    assert caught.value.check
    assert caught.value.exit_code == 5
    return caught.value


# -- none | no table, or D none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [None, table_of(None), table_of(None, id="somebody's")])
@pytest.mark.parametrize("uid", [None, UID])
@pytest.mark.parametrize("committed", [{}, COMPLETE])
def test_without_a_plan_and_without_a_commit_of_ours_it_is_the_first_run(
    table: Table | None, uid: str | None, committed: Mapping[BrokerPartition, Committed],
) -> None:
    assert stand(Ledger(uid), table, committed) == FirstRun()


# -- N | N - 1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 7])
def test_a_plan_that_the_table_does_not_hold_yet_is_replayed_word_for_word(number: int) -> None:
    ledger = ledger_of(number, applied=False)
    assert stand(ledger, table_of(number - 1), SEEN) == Replay(plan_of(number))


@pytest.mark.parametrize("recorded", [None, "t1"])
def test_the_first_plan_is_replayed_while_there_is_no_table(recorded: str | None) -> None:
    assert stand(ledger_of(1, applied=False, table_id=recorded), None, {}) == Replay(plan_of(1, table_id=recorded))


def test_the_first_plan_is_replayed_into_the_very_table_it_was_made_for() -> None:
    assert stand(ledger_of(1, applied=False, table_id="t1"), table_of(None), {}) == Replay(plan_of(1, table_id="t1"))


def test_the_first_plan_is_not_replayed_into_another_table() -> None:
    disagreement(ledger_of(1, applied=False, table_id="t0"), table_of(None), "has id t1, plan 1 went to t0")


def test_the_first_plan_is_not_replayed_into_a_table_that_came_later() -> None:
    disagreement(ledger_of(1, applied=False), table_of(None), "there was no table")


def test_a_replay_does_not_ask_what_became_of_the_offsets() -> None:
    assert stand(ledger_of(2, applied=False), table_of(1), {A: Committed(99, 99)}) == Replay(plan_of(2))


# -- N | N, by the offsets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("applied", [True, False])
def test_a_plan_in_the_table_with_its_offsets_committed_is_complete(number: int, applied: bool) -> None:
    ledger = ledger_of(number, applied=applied)
    assert stand(ledger, table_of(number)) == Onward(plan_of(number), POSITIONS)


def test_an_offset_at_its_position_is_complete_whoever_wrote_it() -> None:
    committed = {**COMPLETE, A: Committed(5, 77)}
    assert stand(ledger_of(2), table_of(2), committed) == Onward(plan_of(2), POSITIONS)


def test_offsets_that_are_still_as_the_plan_saw_them_are_to_be_committed() -> None:
    assert stand(ledger_of(2), table_of(2), {A: SEEN[A], C: SEEN[C]}) == Onward(plan_of(2), POSITIONS, (A, B))


def test_some_offsets_committed_and_some_not_leaves_those_that_are_not() -> None:
    assert stand(ledger_of(2), table_of(2), {**COMPLETE, A: SEEN[A]}) == Onward(plan_of(2), POSITIONS, (A,))


@pytest.mark.parametrize(("log", "found"), [
    (A, Committed(3, 2)),   # the value that the plan saw, written again: the version tells
    (A, Committed(4, 2)), (A, Committed(6, 2)), (B, Committed(1, 0)), (B, Committed(None, 0)), (A, Committed()),
])
def test_an_offset_that_is_neither_was_moved_by_somebody_else(log: BrokerPartition, found: Committed) -> None:
    with pytest.raises(OffsetMoved) as caught:
        stand(ledger_of(2), table_of(2), {**COMPLETE, log: found})
    assert caught.value.exit_code == 5
    assert caught.value.where["partition"] == log.partition
    assert caught.value.where.get("offset") == found.offset


def test_a_moved_offset_hides_behind_no_uncommitted_one() -> None:
    with pytest.raises(OffsetMoved):
        stand(ledger_of(2), table_of(2), {A: SEEN[A], B: Committed(1, 0), C: SEEN[C]})


def test_the_refusal_of_several_moved_offsets_tells_how_many() -> None:
    with pytest.raises(OffsetMoved, match="and 1 more"):
        stand(ledger_of(2), table_of(2), {A: Committed(4, 9), B: Committed(1, 0), C: SEEN[C]})


def test_moved_offsets_are_followed_under_follow_and_the_others_still_committed() -> None:
    found = stand(ledger_of(2), table_of(2), {A: Committed(50, 9), C: Committed(9, 4)}, OnMoved.FOLLOW)
    assert found == Onward(plan_of(2), {A: 50, B: 2, C: 9}, (B,), {A: 50})


def test_an_offset_moved_back_is_followed_too() -> None:
    found = stand(ledger_of(2), table_of(2), {**COMPLETE, A: Committed(1, 9)}, OnMoved.FOLLOW)
    assert found == Onward(plan_of(2), {A: 1, B: 2, C: 9}, (), {A: 1})


@pytest.mark.parametrize("on_moved", OnMoved)
def test_an_offset_that_was_removed_is_never_followed(on_moved: OnMoved) -> None:
    with pytest.raises(OffsetMoved, match="removed"):
        stand(ledger_of(2), table_of(2), {B: Committed(2, 0), C: Committed(9, 4)}, on_moved)


def test_a_plan_that_moves_no_offsets_does_not_ask_for_them() -> None:
    found = stand(ledger_of(2, moves_offsets=False), table_of(2), {A: Committed(99, 9)})
    assert found == Onward(plan_of(2, moves_offsets=False), POSITIONS)


# -- N | N under another id --------------------------------------------------------------------------------------------


def test_another_plan_under_our_number_in_the_table_is_refused() -> None:
    error = disagreement(ledger_of(2), table_of(2, stamp=Stamp(7, APP_ID, UID, 2, "another")), "the table holds another under that number")
    assert error.where["table_version"] == 7


def test_a_table_whose_log_forgot_our_commit_is_believed_by_its_commit_bit() -> None:
    assert stand(ledger_of(2), table_of(2, stamp=None)) == Onward(plan_of(2), POSITIONS)


# -- N or none | D > N -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "bit"), [(None, 1), (None, 9), (1, 2), (4, 9)])
def test_a_table_that_holds_more_than_the_ledger_knows_is_refused(number: int | None, bit: int) -> None:
    error = disagreement(ledger_of(number), table_of(bit), f"holds plan {bit} of this pipeline")
    assert "zookeeper.connect" in error.check


# -- N > 1 | D < N - 1, D none, no table -------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [None, table_of(None), table_of(1), table_of(5)])
def test_a_table_that_holds_less_than_the_plan_before_is_refused(table: Table | None) -> None:
    error = disagreement(ledger_of(7, applied=False), table, "ZooKeeper holds plan 7")
    assert "table.path" in error.check


@pytest.mark.parametrize("table", [None, table_of(None)])
def test_the_second_plan_is_not_replayed_into_a_table_without_the_first(table: Table | None) -> None:
    disagreement(ledger_of(2, applied=False), table, "ZooKeeper holds plan 2")


# -- N | D < N, but its outcome is known -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_a_plan_that_was_in_the_table_is_not_replayed_when_the_table_is_gone(number: int) -> None:
    disagreement(ledger_of(number), None, f"plan {number} was in the table as version 7, now there is no table")


@pytest.mark.parametrize(("number", "bit"), [(1, None), (2, 1)])
def test_a_plan_that_was_in_the_table_is_not_replayed_into_an_old_copy_of_it(number: int, bit: int | None) -> None:
    disagreement(ledger_of(number), table_of(bit), "the table does not hold it")


# -- any | another uid, another table id -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [None, 1, 2, 3])
def test_a_commit_of_another_pipeline_of_our_name_is_refused(number: int | None) -> None:
    ledger = replace(ledger_of(number, applied=False), uid=UID)
    disagreement(ledger, table_of(2, stamp=Stamp(7, APP_ID, "deadbeef", 2, "plan-2")), "its uid is deadbeef, ours feedbeef")


@pytest.mark.parametrize(("number", "bit"), [(2, 1), (2, 2)])
def test_another_table_than_the_last_plans_is_refused(number: int, bit: int) -> None:
    disagreement(ledger_of(number, applied=False), table_of(bit, id="t2"), "has id t2")


def test_another_table_than_the_first_plan_went_to_is_refused() -> None:
    disagreement(ledger_of(1), table_of(1, id="t2"), "has id t2, plan 1 went to t1")


# -- any | what others did ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger", [ledger_of(None), ledger_of(2), ledger_of(3, applied=False)])
@pytest.mark.parametrize("why", ["removed rows", "redefined the table"])
def test_a_table_that_somebody_else_changed_is_refused_with_the_version(ledger: Ledger, why: str) -> None:
    table = table_of(2, foreign=(Foreign(8, "RESTORE", why), Foreign(9, "DELETE", "removed rows")))
    error = disagreement(ledger, table, f"RESTORE {why}")
    assert error.where["table_version"] == 8


def test_the_read_back_refuses_the_same() -> None:
    refuse_what_others_did(None)
    refuse_what_others_did(table_of(2))
    with pytest.raises(LedgersDisagree):
        refuse_what_others_did(table_of(2, foreign=(Foreign(8, "DELETE", "removed rows"),)))


# -- laws --------------------------------------------------------------------------------------------------------------

COMMITTED = st.dictionaries(
    st.sampled_from([A, B, C]), st.sampled_from([*SEEN.values(), *COMPLETE.values(), Committed(1, 1), Committed(50, 9)]))
LEDGERS = st.builds(
    lambda number, applied, table_id: ledger_of(number, applied=applied, table_id=table_id),
    st.none() | st.integers(1, 4), st.booleans(), st.none() | st.sampled_from(["t1", "t2"]))
TABLES = st.none() | st.builds(
    lambda bit, id, stamp: table_of(bit, id=id, stamp=Stamp(7, APP_ID, UID, bit, stamp) if bit and stamp else None),
    st.none() | st.integers(1, 5), st.sampled_from(["t1", "t2"]), st.none() | st.sampled_from(["plan-1", "plan-2", "plan-3", "x"]))


@given(LEDGERS, TABLES, COMMITTED, st.sampled_from(OnMoved))
def test_every_case_is_a_standing_or_a_decision_for_a_person(
    ledger: Ledger, table: Table | None, committed: Mapping[BrokerPartition, Committed], on_moved: OnMoved,
) -> None:
    try:
        standing = stand(ledger, table, committed, on_moved)
    except NeedsDecision:
        return
    bit = table.transaction_version or 0 if table else 0
    number = ledger.newest.number if ledger.newest else 0
    if isinstance(standing, FirstRun):
        assert number == bit == 0
    elif isinstance(standing, Replay):
        assert standing.plan == ledger.newest and bit == number - 1 and ledger.applied is None
    else:
        assert standing.last == ledger.newest and bit == number
        assert table is not None and (table.stamp is None or table.stamp.number != number or table.stamp.plan_id == standing.last.id)
        for log, position in POSITIONS.items():
            assert standing.positions[log] >= position or log in standing.followed
            found = committed.get(log, Committed())
            assert found.offset == standing.positions[log] or (log in standing.uncommitted and found == SEEN[log])


@given(LEDGERS, TABLES, COMMITTED)
def test_failing_on_moved_offsets_never_follows(
    ledger: Ledger, table: Table | None, committed: Mapping[BrokerPartition, Committed],
) -> None:
    try:
        standing = stand(ledger, table, committed)
    except NeedsDecision:
        return
    assert not isinstance(standing, Onward) or (not standing.followed and standing.positions == POSITIONS)
