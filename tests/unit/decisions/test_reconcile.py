"""Where the pipeline stands: the rows of the table in `etl.decide.reconcile`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.decide.offsets import RESTORE, Ends
from etl.decide.reconcile import reconcile
from etl.decide.table_changes import error_of, is_told, reject_changes_by_others
from etl.errors import LedgersDisagree, NeedsDecision, OffsetMoved
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import CommitResult, Plan, PlanKind, Predecessor, RangeResult, StaleRows
from etl.model.snapshot import (
    CommitMetadata,
    FirstRun,
    ForeignCommit,
    Ledger,
    PipelineState,
    RebuildFromTable,
    Resume,
    StoredBackfill,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.choices import OnOffsetChanged, OnRowsRemoved
from tests.fakes.ledgers import (
    APP_ID,
    COMPLETE,
    PLACE,
    POSITIONS,
    SEEN,
    UID,
    A,
    B,
    C,
    acknowledgement_of,
    ledger_of,
    plan_of,
    stamp_of,
    table_of,
)

ENDS: Ends = {A: 100, B: 100, C: 100}
AHEAD = {A: Committed(50, 9), C: Committed(9, 4)}
"""Another client moved the offset of A; that of B is not committed yet."""


def stand(
    ledger: Ledger,
    table: Table | None,
    committed: Mapping[TopicPartition, Committed] = COMPLETE,
    on_offset_changed: OnOffsetChanged = OnOffsetChanged.FAIL,
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL,
    ends: Ends = ENDS,
) -> PipelineState:
    return reconcile(
        ledger, table, committed, on_offset_changed, on_rows_removed, place=PLACE, ends=ends
    )


def disagreement(ledger: Ledger, table: Table | None, message: str) -> LedgersDisagree:
    with pytest.raises(LedgersDisagree, match=message) as caught:
        stand(ledger, table)
    assert caught.value.action
    assert caught.value.exit_code == 5
    return caught.value


AWAITED = table_of(None, is_of_others_alone=True)
OF_ANOTHER_UID = table_of(2, metadata=stamp_of(plan_of(2, uid="deadbeef")))
DELETED = ForeignCommit(1, "DELETE", "removed rows")
REPLACED = table_of(
    2, id="t2", version=8, foreign=(ForeignCommit(8, "REPLACE TABLE", "redefined the table"),)
)
LESS = "ZooKeeper knows plan"
WITHOUT_PLAN = "the table holds plan 3, ZooKeeper knows .*, and the table's log no"


def stored(number: int, **changes: Any) -> Ledger:
    """A ledger whose newest plan has no result."""
    return ledger_of(number, applied=False, **changes)


@pytest.mark.parametrize(
    ("ledger", "table", "message", "action"),
    [
        # plan 1 is stored, for another table than this one
        (stored(1, table_id="t1"), None, "was made for a table, now there is none", ""),
        (stored(1, table_id="t0"), table_of(None), "has id t1, plan 1 went to t0", ""),
        # the table is of other pipelines alone, and our plan is not one that awaited it
        (stored(1, table_id="t0"), AWAITED, "has id t1, plan 1 went to t0", ""),
        (stored(8, table_id=None), AWAITED, "no plan of ours, ZooKeeper knows plan 8", ""),
        (ledger_of(1), AWAITED, "Plan 1 was in the table as version 7, now the table does not", ""),
        (stored(1, kind=PlanKind.RESET), AWAITED, "there was no table", ""),
        # the table holds less than the plan before the newest one
        (stored(7), None, f"{LESS} 7", "table.path.*table accept-changes"),
        (stored(7), table_of(None), f"{LESS} 7", "table.path.*table accept-changes"),
        (stored(7), table_of(1), f"{LESS} 7", "table.path.*table accept-changes"),
        (stored(7), table_of(5), f"{LESS} 7", "table.path.*table accept-changes"),
        (stored(2), None, f"{LESS} 2", ""),
        (stored(2), table_of(None), f"{LESS} 2", ""),
        # the newest plan was in the table
        (ledger_of(1), None, "Plan 1 was in the table as version 7, now there is no table", ""),
        (ledger_of(2), None, "Plan 2 was in the table as version 7, now there is no table", ""),
        (ledger_of(1), table_of(None), "the table does not hold it", ""),
        (ledger_of(2), table_of(1), "the table does not hold it", ""),
        # the table holds more, and nobody has the plan
        (ledger_of(None), table_of(3, metadata=None), WITHOUT_PLAN, "zookeeper.connect"),
        (ledger_of(1), table_of(3, metadata=None), WITHOUT_PLAN, "zookeeper.connect"),
        (
            ledger_of(1),
            table_of(3, metadata=CommitMetadata(7, APP_ID, UID, 3, "plan-3")),
            WITHOUT_PLAN,
            "zookeeper.connect",
        ),
        # its commit has another plan, or a damaged one
        *(
            (ledger_of(1), table_of(3, metadata=metadata), message, "")
            for metadata, message in (
                (replace(stamp_of(plan_of(3)), number=2), "was not made for it"),
                (replace(stamp_of(plan_of(3)), plan_id="x"), "was not made for it"),
                (stamp_of(plan_of(3, table_id="t9")), "was not made for it"),
                (replace(stamp_of(plan_of(3)), document=b"x"), "A stored document is invalid"),
            )
        ),
        # another uid
        *(
            (
                replace(ledger_of(number, applied=False), uid=UID),
                OF_ANOTHER_UID,
                "its uid is deadbeef, ours feedbeef",
                "etl pipelines inherit CONF --predecessor",
            )
            for number in (None, 2, 3)
        ),
        # another table
        (stored(2), table_of(1, id="t2"), "has id t2", ""),
        (stored(2), table_of(2, id="t2"), "has id t2", ""),
        (ledger_of(1), table_of(1, id="t2"), "has id t2, plan 1 went to t1", ""),
        (
            stored(4),
            table_of(2, id="earlier", version=2, foreign=(DELETED,)),
            "has id earlier, plan 4 went to t1",
            "",
        ),
        # a table that was replaced in its own log
        (ledger_of(2), REPLACED, "the REPLACE TABLE of another writer redefined the table", ""),
        (stored(3), REPLACED, "the REPLACE TABLE of another writer redefined the table", ""),
    ],
)
def test_a_disagreement_that_needs_a_person_names_what_disagrees_and_what_to_do(
    ledger: Ledger, table: Table | None, message: str, action: str
) -> None:
    assert re.search(action, disagreement(ledger, table, message).action)


def test_for_a_plan_that_may_be_in_no_table_the_action_is_to_search_and_not_to_abandon() -> None:
    action = disagreement(stored(1), table_of(None), "there was no table").action
    assert "searched in it: if it has some of them, the plan counts as done" in action
    assert "given up" not in action


# -- none | no table, or D none


@pytest.mark.parametrize("table", [None, table_of(None), table_of(None, id="foreign")])
@pytest.mark.parametrize("uid", [None, UID])
def test_without_a_plan_and_without_a_commit_of_ours_it_is_the_first_run(
    table: Table | None, uid: str | None
) -> None:
    assert stand(Ledger(uid), table, {}) == stand(Ledger(uid), table, COMPLETE) == FirstRun()


# -- N | D as it was when plan N was made


@pytest.mark.parametrize(
    ("ledger", "table", "committed"),
    [
        (stored(2), table_of(1), SEEN),
        (stored(7), table_of(6), SEEN),
        (stored(2), table_of(1), {A: Committed(99, 99)}),
        (stored(1), None, {}),
        (stored(1, table_id="t1"), table_of(None), {}),
        (stored(8, table_transaction_version=0), table_of(None), SEEN),
    ],
    ids=[
        "the second plan",
        "a later one",
        "whatever became of the offsets",
        "the first one, without a table",
        "the first one, made for this table",
        "one after an accepted table without our commits",
    ],
)
def test_a_plan_that_the_table_does_not_hold_yet_is_replayed_word_for_word(
    ledger: Ledger, table: Table | None, committed: Mapping[TopicPartition, Committed]
) -> None:
    assert ledger.newest
    assert stand(ledger, table, committed) == Resume(ledger.newest)


@pytest.mark.parametrize("table_id", ["t1", None])
def test_a_missing_table_is_reported_as_missing_and_not_as_one_without_a_plan(
    table_id: str | None,
) -> None:
    error = disagreement(stored(3, table_id=table_id), None, "There is no table at this path, and")
    assert "accept it: etl table accept-changes CONF none --reason ..." in error.action


@pytest.mark.parametrize(
    "ledger",
    [
        stored(1),
        stored(1, kind=PlanKind.START),
        stored(8, table_transaction_version=0, table_id=None),
    ],
)
def test_a_plan_made_without_a_table_is_superseded_in_a_table_that_other_pipelines_created(
    ledger: Ledger,
) -> None:
    state = stand(ledger, AWAITED, SEEN)
    assert isinstance(state, Supersede) and state.plan == ledger.newest
    assert "made since" in state.reason


# -- N | N, by the offsets


@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    ("committed", "uncommitted"),
    [
        (COMPLETE, ()),
        ({**COMPLETE, A: Committed(5, 77)}, ()),
        ({A: SEEN[A], C: SEEN[C]}, (A, B)),
        ({**COMPLETE, A: SEEN[A]}, (A,)),
    ],
    ids=["all are there", "another client left one there", "none is there", "some are there"],
)
def test_of_a_plan_in_the_table_the_offsets_that_are_as_it_saw_them_are_to_be_committed(
    number: int,
    applied: bool,
    committed: Mapping[TopicPartition, Committed],
    uncommitted: tuple[TopicPartition, ...],
) -> None:
    ledger = ledger_of(number, applied=applied)
    found = stand(ledger, table_of(number), committed)
    assert found == UpToDate(plan_of(number), POSITIONS, uncommitted)


@pytest.mark.parametrize(
    ("partition", "found"),
    [
        # the offset that the plan observed, written again: only the version differs
        (A, Committed(3, 2)),
        (A, Committed(4, 2)),
        (A, Committed(6, 2)),
        (B, Committed(1, 0)),
        (B, Committed(None, 0)),
        (A, Committed()),
    ],
)
def test_an_unexpected_offset_was_moved_by_another_client(
    partition: TopicPartition, found: Committed
) -> None:
    with pytest.raises(OffsetMoved) as caught:
        stand(ledger_of(2), table_of(2), {**COMPLETE, partition: found})
    assert caught.value.exit_code == 5
    assert caught.value.where["partition"] == partition.partition
    assert caught.value.where.get("offset") == found.offset


def test_the_error_for_several_moved_offsets_contains_their_number() -> None:
    with pytest.raises(OffsetMoved, match="and 1 more"):
        stand(ledger_of(2), table_of(2), {A: Committed(4, 9), B: Committed(1, 0), C: SEEN[C]})


@pytest.mark.parametrize("end", [100, 50], ids=["below the end", "at the end"])
def test_moved_offsets_are_followed_under_follow_and_the_others_still_committed(end: int) -> None:
    ends = {**ENDS, A: end}
    found = stand(ledger_of(2), table_of(2), AHEAD, OnOffsetChanged.FOLLOW, ends=ends)
    assert found == UpToDate(plan_of(2), {A: 50, B: 2, C: 9}, (B,), {A: 50})


@pytest.mark.parametrize("policy", OnOffsetChanged)
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (49, "the log ends at 49"),
        (None, "the partition has no leader, so the end of its log is unknown"),
    ],
)
def test_an_offset_is_not_followed_to_where_the_log_is_not_known_to_reach(
    policy: OnOffsetChanged, end: int | None, message: str
) -> None:
    with pytest.raises(OffsetMoved, match=f"it is 50, ours is 5, and {message}") as caught:
        stand(ledger_of(2), table_of(2), AHEAD, policy, ends={A: end})
    assert caught.value.action.endswith(f"set it back to 5: {RESTORE}")


def test_an_offset_of_a_log_without_an_observed_end_is_neither_followed_nor_moved() -> None:
    committed, ends = {**COMPLETE, A: Committed(50, 9), B: Committed(3, 1)}, {B: 100, C: 100}
    found = stand(ledger_of(2), table_of(2), committed, OnOffsetChanged.FOLLOW, ends=ends)
    assert found == UpToDate(plan_of(2), {A: 5, B: 3, C: 9}, (), {B: 3}, {A: 50})
    with pytest.raises(OffsetMoved, match="it is 50, ours is 5"):
        stand(ledger_of(2), table_of(2), committed, ends=ends)


@pytest.mark.parametrize("other", [Committed(2, 0), Committed(70, 9)])
def test_an_offset_moved_back_is_never_followed_because_its_rows_would_come_twice(
    other: Committed,
) -> None:
    committed = {**COMPLETE, A: Committed(1, 9), B: other}
    with pytest.raises(OffsetMoved, match="it is 1, ours is 5") as caught:
        stand(ledger_of(2), table_of(2), committed, OnOffsetChanged.FOLLOW)
    assert "load rows twice" in caught.value.action


@pytest.mark.parametrize("policy", OnOffsetChanged)
def test_an_offset_that_was_removed_is_never_followed(policy: OnOffsetChanged) -> None:
    with pytest.raises(OffsetMoved, match="removed"):
        stand(ledger_of(2), table_of(2), {B: Committed(2, 0), C: Committed(9, 4)}, policy)


def test_a_stored_plan_of_a_backfill_need_not_be_finished_and_its_offsets_are_compared() -> None:
    changes: dict[str, Any] = {"kind": PlanKind.BACKFILL, "backfill": "old"}
    plan = plan_of(3, **changes)
    ledger, table = replace(ledger_of(3, **changes), applied=None), table_of(2)
    assert stand(ledger, table, COMPLETE) == StoredBackfill(plan, UpToDate(plan, plan.loaded_until))
    with pytest.raises(OffsetMoved):
        stand(ledger, table, {**COMPLETE, A: Committed(99, 9)})


# -- N | N under another id


@pytest.mark.parametrize("applied", [True, False])
def test_another_plan_under_our_number_in_the_table_is_adopted_with_its_positions(
    applied: bool,
) -> None:
    other = plan_of(2, loaded_until={A: 4, B: 2, C: 9}, reason="superseded too late")
    found = stand(
        ledger_of(2, applied=applied),
        table_of(2, metadata=stamp_of(other)),
        {**SEEN, A: Committed(3, 1), B: Committed(2, 5)},
    )
    assert found == RebuildFromTable(other, UpToDate(other, other.loaded_until, (A,)))


def test_a_table_with_a_log_without_our_commit_counts_by_its_transaction_version() -> None:
    assert stand(ledger_of(2), table_of(2, metadata=None)) == UpToDate(plan_of(2), POSITIONS)


# -- N or none | D > N


@pytest.mark.parametrize(("number", "bit"), [(None, 1), (None, 9), (1, 2), (4, 9)])
@pytest.mark.parametrize("applied", [True, False])
def test_a_table_that_holds_more_than_the_ledger_knows_is_right(
    number: int | None, bit: int, applied: bool
) -> None:
    committed = {A: Committed(1, 8), B: Committed(2, 0)}
    found = stand(ledger_of(number, applied=applied), table_of(bit), committed)
    assert isinstance(found, RebuildFromTable) and found.plan == plan_of(bit)
    assert (found.state.positions, found.state.uncommitted) == (POSITIONS, (A, C))
    # they are moved from where they are now
    assert found.state.last.expected_commits == {A: Committed(1, 8), B: SEEN[B], C: Committed()}
    assert found.state.last.id == found.plan.id


def test_an_offset_above_a_restored_one_was_moved_by_another_client() -> None:
    committed = {**COMPLETE, A: Committed(50, 0)}
    with pytest.raises(OffsetMoved):
        stand(ledger_of(None), table_of(3), committed)
    found = stand(ledger_of(None), table_of(3), committed, OnOffsetChanged.FOLLOW)
    assert isinstance(found, RebuildFromTable) and found.state.followed == {A: 50}


# -- any | another uid, another table id


def test_a_table_of_another_ledger_of_this_name_is_ours_once_a_plan_takes_its_place() -> None:
    theirs = table_of(5, metadata=stamp_of(plan_of(5, uid="deadbeef")))
    taking = plan_of(6, table_id="t1", kind=PlanKind.TAKE_OVER, inherits=Predecessor(APP_ID, 5))
    assert stand(Ledger(UID, taking), theirs) == Resume(taking)
    of_another = replace(taking, inherits=Predecessor(APP_ID, 4))
    disagreement(Ledger(UID, of_another), theirs, "its uid is deadbeef")


def test_a_restore_after_the_removal_of_rows_is_reported_and_needs_no_decision() -> None:
    done = (ForeignCommit(8, "DELETE", "removed rows"), ForeignCommit(9, "RESTORE", "removed rows"))
    message = "DELETE of another writer removed rows, and a RESTORE came .*, at version 9"
    error = disagreement(ledger_of(2), table_of(2, version=9, foreign=done), message)
    assert "then accept the table as it is now: etl table accept-changes CONF 9" in error.action
    assert "RESTORE the table" not in error.action


@pytest.mark.parametrize(
    ("newest", "restores"), [(8, True), (9, False)], ids=["nothing later", "a later commit"]
)
def test_a_restore_is_advised_only_where_it_takes_back_nothing_else(
    newest: int, restores: bool
) -> None:
    removed = (ForeignCommit(8, "DELETE", "removed rows"),)
    error = disagreement(ledger_of(2), table_of(2, version=newest, foreign=removed), "DELETE")
    assert ("RESTORE the table to version 7" in error.action) is restores
    assert ("A RESTORE would take back the later commits" in error.action) is not restores
    assert ("`etl replay CONF" in error.action) is not restores
    assert f"etl table accept-changes CONF {newest}" in error.action


def test_a_restore_is_advised_with_what_it_takes_back_and_never_to_undo_another_pipeline() -> None:
    strangers = (
        ForeignCommit(8, "DELETE", "removed rows"),
        ForeignCommit(9, "MERGE", "removed rows"),
    )
    action = error_of(strangers, 9).action
    assert (
        "RESTORE the table to version 7, which takes back versions 8 to 9 (DELETE and MERGE)"
        in action
    )
    loaded = ForeignCommit(9, "WRITE", "loaded topic clicks", Predecessor(APP_ID, 5))
    unread = ForeignCommit(8, "WRITE", "removed rows", unread=Predecessor(APP_ID, 5))
    for changes, newest in (((strangers[0], loaded), 9), (strangers, None), ((unread,), 8)):
        assert "RESTORE the table" not in error_of(changes, newest).action
    assert error_of((unread,), 8).action.startswith("Upgrade offset-range-etl here"), (
        "which gives up nothing"
    )


@pytest.mark.parametrize(
    ("table_id", "message"),
    [
        ("t1", "Plan 3 was in the table as version 7, now the table does not hold it"),
        ("earlier", "The table at this path has id earlier, plan 3 went to t1"),
    ],
    ids=["an older copy", "another table"],
)
@pytest.mark.parametrize(
    ("rows", "given_up"),
    [
        (7, "rows that it lacks of plan 3 (at most 7) and of the plans before are then given up"),
        (None, "rows that it lacks of plan 3 and of the plans before are then given up"),
    ],
)
@pytest.mark.parametrize("policy", OnRowsRemoved)
def test_a_table_without_the_recorded_plan_is_reported_before_changes_that_were_accepted_long_ago(
    table_id: str, message: str, rows: int | None, given_up: str, policy: OnRowsRemoved
) -> None:
    recorded = ledger_of(3)
    assert recorded.newest and recorded.applied
    results = (RangeResult(rows, 0, 0), RangeResult(0, 0, 0))
    ledger = replace(
        recorded,
        applied=replace(recorded.applied, results=results),
        acknowledged=acknowledgement_of(3, table_id=None, delta_version=None),
    )
    table = table_of(2, id=table_id, version=2, foreign=(DELETED,))
    with pytest.raises(LedgersDisagree) as caught:
        stand(ledger, table, on_rows_removed=policy)
    assert caught.value.message == message
    assert caught.value.action == (
        "Check that table.path is the table that this pipeline wrote, and that it was not dropped, "
        "cloned or replaced. If it is right as it is, accept it: etl table accept-changes CONF 2 "
        f"--reason ...; {given_up}, and loading continues after them, in clicks 0 from offset 5 "
        "(and 2 more). To load what is given up, as far as the brokers still have it, run after "
        "that `etl backfills run CONF NAME -p TOPIC:PARTITION --from OFFSET --until OFFSET "
        "--only-unloaded`"
    )


# -- any | what others did


@pytest.mark.parametrize("ledger", [ledger_of(None), ledger_of(2), stored(3)])
@pytest.mark.parametrize("why", ["removed rows", "redefined the table"])
def test_a_table_that_another_writer_changed_is_rejected_with_the_version(
    ledger: Ledger, why: str
) -> None:
    done = (ForeignCommit(8, "RESTORE", why), ForeignCommit(9, "DELETE", "removed rows"))
    error = disagreement(ledger, table_of(2, foreign=done), f"RESTORE of another writer {why}")
    assert error.where["table_version"] == 8


def test_the_read_back_refuses_the_same() -> None:
    reject_changes_by_others(None)
    reject_changes_by_others(table_of(2))
    with pytest.raises(LedgersDisagree):
        reject_changes_by_others(table_of(2, foreign=(ForeignCommit(8, "DELETE", "removed rows"),)))


@pytest.mark.parametrize("ledger", [ledger_of(2), stored(3)])
def test_a_delete_passes_under_record_and_nothing_else_does(ledger: Ledger) -> None:
    def recording(*operations: str) -> PipelineState:
        done = tuple(ForeignCommit(8, operation, "removed rows") for operation in operations)
        table = table_of(2, foreign=done)
        return stand(ledger, table, on_rows_removed=OnRowsRemoved.RECORD)

    assert recording("DELETE") == stand(ledger, table_of(2))
    for operation in ("RESTORE", "WRITE", "TRUNCATE", "MERGE", "UPDATE", "REPLACE TABLE"):
        with pytest.raises(LedgersDisagree, match=operation):
            recording("DELETE", operation)


# -- the same, acknowledged


NO_TABLE: dict[str, Any] = {"table_id": None, "delta_version": None}
CHANGED = table_of(
    2,
    version=9,
    foreign=(
        ForeignCommit(8, "RESTORE", "removed rows"),
        ForeignCommit(9, "WRITE", "removed rows"),
    ),
    commit_in_log="of now",
)


@pytest.mark.parametrize(
    ("accepted", "is_covered"),
    [
        pytest.param({"delta_version": 9}, True, id="this version"),
        pytest.param({"delta_version": 9, "commit": "of now"}, True, id="this very commit"),
        pytest.param({"delta_version": 9, "commit": "of then"}, False, id="another commit"),
        pytest.param({"delta_version": 8}, False, id="an earlier version"),
        pytest.param({"delta_version": 99, "table_id": "t0"}, False, id="another table"),
        pytest.param({"table_id": None}, False, id="no table"),
    ],
)
def test_changes_of_others_up_to_an_accepted_version_stop_nothing_and_any_other_stops(
    accepted: dict[str, Any], is_covered: bool
) -> None:
    word = acknowledgement_of(2, **accepted)
    loaded, left = (replace(one, acknowledged=word) for one in (ledger_of(2), stored(3)))
    if is_covered:
        assert stand(loaded, CHANGED) == UpToDate(plan_of(2), POSITIONS)
        assert stand(left, CHANGED) == Resume(plan_of(3))
    else:
        disagreement(loaded, CHANGED, "(RESTORE|WRITE) of another writer removed rows")


@pytest.mark.parametrize(
    "table", [table_of(None), table_of(None, id="clone"), table_of(1, id="old copy"), None]
)
def test_an_accepted_table_is_continued_at_the_positions_of_zookeeper(
    table: Table | None,
) -> None:
    seen = {"table_id": table.id, "delta_version": table.version} if table else NO_TABLE
    word = acknowledgement_of(2, **seen)
    ledger = ledger_of(2)
    assert stand(replace(ledger, acknowledged=word), table) == UpToDate(plan_of(2), POSITIONS)
    disagreement(replace(ledger, acknowledged=replace(word, number=1)), table, ".")


@pytest.mark.parametrize(
    ("acknowledgement", "table", "is_covered"),
    [
        # an older copy than the accepted one, and a copy from then
        ({"transaction_version": 2, "was_recorded": True}, table_of(1, version=0), False),
        ({"transaction_version": 1, "delta_version": 6}, table_of(1, version=6), False),
        # dropped again, another plan of the number, another place
        ({**NO_TABLE, "transaction_version": 0}, None, False),
        ({**NO_TABLE, "plan_id": "of another plan 2"}, None, False),
        ({**NO_TABLE, "place": "/warehouse/old"}, None, False),
        ({**NO_TABLE, "place": PLACE}, None, True),
        # another commit of the version, or one that the log no longer has
        ({"commit": "of then"}, table_of(1, commit_in_log="of now"), False),
        ({"commit": "of then"}, table_of(1), False),
        ({"commit": "of then"}, table_of(1, commit_in_log="of then"), True),
        # a plan that was recorded later
        ({"transaction_version": 2}, table_of(2), True),
    ],
)
def test_a_decision_covers_the_table_that_was_seen_and_none_with_fewer_rows(
    acknowledgement: dict[str, Any], table: Table | None, is_covered: bool
) -> None:
    facts = {"plan_id": plan_of(2).id, **acknowledgement}
    if "transaction_version" in facts:
        facts.setdefault("was_recorded", False)
    ledger = replace(ledger_of(2), acknowledged=acknowledgement_of(2, **facts))
    if is_covered:
        assert stand(ledger, table) == UpToDate(plan_of(2), POSITIONS)
    else:
        disagreement(ledger, table, "Plan 2 was in the table as version 7,")


def test_a_plan_of_a_lost_and_accepted_table_is_superseded() -> None:
    acknowledgement = acknowledgement_of(3, table_id=None, delta_version=None)
    found = stand(replace(stored(3), acknowledged=acknowledgement), None)
    assert found == Supersede(plan_of(3), "the table is gone, and that was accepted: it was me")


def test_a_plan_that_another_table_may_hold_needs_more_than_an_accepted_change() -> None:
    result = replace(stored(3), acknowledged=acknowledgement_of(3, table_id="clone"))
    disagreement(result, table_of(None, id="clone"), "It is unknown whether plan 3")


def test_a_plan_without_a_row_in_the_accepted_table_is_superseded_for_that_table() -> None:
    acknowledgement = acknowledgement_of(1, table_id="by DDL", delta_version=0, lacks_plan=True)
    made = table_of(None, id="by DDL", version=0)
    first = replace(stored(1), acknowledged=acknowledgement)
    assert not is_told(first, made)
    assert stand(first, made) == Supersede(
        plan_of(1),
        "the table is another one, without a row of this plan, and that was accepted: it was me",
    )
    instead = replace(ledger_of(1, applied=False, table_id="by DDL"), acknowledged=acknowledgement)
    assert stand(instead, made) == Resume(plan_of(1, table_id="by DDL"))


@pytest.mark.parametrize(
    ("ledger", "table"),
    [
        (ledger_of(2), table_of(1)),
        (stored(2), table_of(2)),
        (stored(2), table_of(1)),
        (stored(1), None),
        (Ledger(), table_of(None)),
    ],
)
def test_with_ledgers_that_record_the_newest_plans_result_no_row_is_searched(
    ledger: Ledger, table: Table | None
) -> None:
    assert is_told(ledger, table)


# -- a ledger that is older than a reset

RESET = plan_of(
    3,
    kind=PlanKind.RESET,
    table_id="t1",
    loaded_until={**POSITIONS, A: 0},
    incarnations={A: 1},
    vanished=(StaleRows(A, 0, 5),),
    expected_commits=COMPLETE,
)
"""Continues with a recreated topic. Partition A of the deleted topic was read up to 5."""


@pytest.mark.parametrize(
    "adopted",
    [RESET, plan_of(4, table_id="t1", loaded_until={**POSITIONS, A: 1}, incarnations={A: 1})],
)
@pytest.mark.parametrize("known", [ledger_of(2), Ledger()])
@pytest.mark.parametrize("policy", OnOffsetChanged)
def test_an_offset_that_may_be_from_before_a_reset_is_never_followed_by_an_older_ledger(
    adopted: Plan, known: Ledger, policy: OnOffsetChanged
) -> None:
    table = table_of(adopted.number, metadata=stamp_of(adopted))
    message = "The ledger is older than the table.*the committed offset is 4, ours is"
    with pytest.raises(OffsetMoved, match=message) as caught:
        stand(known, table, {**COMPLETE, A: Committed(4, 7)}, policy)
    assert "follow" in caught.value.action and "Set it back to" in caught.value.action
    assert "on_offset_changed" not in caught.value.action


@pytest.mark.parametrize("offset", [3, 5])
@pytest.mark.parametrize("policy", OnOffsetChanged)
def test_the_offsets_that_the_copied_ledger_itself_saw_or_left_are_moved_again(
    offset: int, policy: OnOffsetChanged
) -> None:
    table = table_of(3, metadata=stamp_of(RESET))
    found = stand(ledger_of(2), table, {**COMPLETE, A: Committed(offset, 7)}, policy)
    assert isinstance(found, RebuildFromTable)
    assert found.state.positions == RESET.loaded_until
    assert A in found.state.uncommitted and not found.state.followed


def test_an_offset_above_a_resets_is_not_followed_before_a_plan_has_read_there() -> None:
    ledger = Ledger(UID, RESET, CommitResult(3, RESET.id, 7, "t1", ()))
    table = table_of(3, metadata=stamp_of(RESET))
    above = {**COMPLETE, A: Committed(4, 9)}
    with pytest.raises(OffsetMoved, match="since the log was truncated or recreated") as caught:
        stand(ledger, table, above, OnOffsetChanged.FOLLOW)
    assert "on_offset_changed" not in caught.value.action
    elsewhere = {**COMPLETE, A: Committed(0, 9), C: Committed(12, 9)}
    found = stand(ledger, table, elsewhere, OnOffsetChanged.FOLLOW)
    assert isinstance(found, UpToDate) and found.followed == {C: 12}


# -- laws

COMMITTED = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.sampled_from([*SEEN.values(), *COMPLETE.values(), Committed(1, 1), Committed(50, 9)]),
)
LEDGERS = st.builds(
    lambda number, applied, table_id: ledger_of(number, applied=applied, table_id=table_id),
    st.none() | st.integers(1, 4),
    st.booleans(),
    st.none() | st.sampled_from(["t1", "t2"]),
)
TABLES = st.none() | st.builds(
    lambda bit, id, change: table_of(
        bit,
        id=id,
        metadata=stamp_of(plan_of(bit, **change)) if bit and change is not None else None,
    ),
    st.none() | st.integers(1, 5),
    st.sampled_from(["t1", "t2"]),
    st.none() | st.sampled_from([{}, {"reason": "x"}, {"table_id": None}]),
)


@given(
    LEDGERS,
    TABLES,
    COMMITTED,
    st.sampled_from(OnOffsetChanged),
    st.sampled_from([ENDS, {B: 100, C: 100}]),
)
def test_every_case_is_a_standing_or_a_decision_for_a_person(
    ledger: Ledger,
    table: Table | None,
    committed: Mapping[TopicPartition, Committed],
    on_offset_changed: OnOffsetChanged,
    ends: Ends,
) -> None:
    try:
        state = stand(ledger, table, committed, on_offset_changed, ends=ends)
    except NeedsDecision:
        return
    bit = table.transaction_version or 0 if table else 0
    number = ledger.newest.number if ledger.newest else 0
    if on_offset_changed is OnOffsetChanged.FAIL and isinstance(state, UpToDate):
        assert not state.followed and state.positions == POSITIONS
    if isinstance(state, FirstRun):
        assert number == bit == 0
    elif isinstance(state, Resume):
        assert state.plan == ledger.newest and bit == number - 1 and ledger.applied is None
    elif isinstance(state, RebuildFromTable):
        assert (
            table is not None
            and table.metadata is not None
            and state.plan.id == table.metadata.plan_id
        )
        assert bit > number or (
            bit == number and ledger.newest is not None and state.plan.id != ledger.newest.id
        )
        assert all(
            state.state.positions[partition] >= position
            for partition, position in POSITIONS.items()
        )
    else:
        assert isinstance(state, UpToDate)
        assert state.last == ledger.newest and bit == number
        assert table is not None and (
            table.metadata is None
            or table.metadata.number != number
            or table.metadata.plan_id == state.last.id
        )
        for partition, position in POSITIONS.items():
            assert state.positions[partition] >= position or partition in state.followed
            found = committed.get(partition, Committed())
            assert (
                found.offset == state.positions[partition]
                or (partition in state.uncommitted and found == SEEN[partition])
                or partition in state.not_followed
            )
