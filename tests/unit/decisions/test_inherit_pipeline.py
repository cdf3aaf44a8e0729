"""A successor begins where its predecessor ended in the same table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from etl.decide.inherit_pipeline import (
    Loaded,
    plan_inheritance,
    predecessor_of,
    reject_unloaded_gap,
    retirement_of_predecessor,
    state_of_itself,
    state_of_own_ledger,
)
from etl.decide.plan_replacement import replacement_plan
from etl.decide.reconcile import where_we_stand
from etl.decide.table_changes import reject_topics_of_other_pipelines
from etl.errors import LedgersDisagree, NeedsDecision, OffsetMoved, SettingsError
from etl.ledger.plan_document import parse_plan, render_plan, with_id
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import Plan, PlanKind, Predecessor
from etl.model.snapshot import (
    CommitMetadata,
    FirstRun,
    ForeignCommit,
    OtherPipeline,
    PipelineState,
    Resume,
    Retirement,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)
from etl.report.run_progress import Outcome
from tests.builders import changed, kafka_named, with_facts
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import APP_ID, CLUSTER, Outside
from tests.fakes.stories import (
    ENDED,
    LOGS,
    OLD,
    SETTINGS,
    crash_at,
    grow,
    loaded_by_another,
    old_pipeline,
    outcomes,
    outside_of,
    run,
    snapshot_of,
)
from tests.fakes.world import Crash, When


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, Retirement("taken over by new/clicks: renamed", 9, "new/clicks")),
        (
            Retirement("stop", 1),
            Retirement("taken over by new/clicks: renamed (retired before: stop)", 9, "new/clicks"),
        ),
        (Retirement("taken over by third/clicks: moved", 1, "third/clicks"), None),
        (Retirement("taken over by new/clicks: renamed", 1, "new/clicks"), None),
    ],
    ids=["in service", "retired by hand", "inherited by a third one", "inherited already"],
)
def test_an_inherited_pipeline_is_retired_with_the_name_of_its_successor(
    before: Retirement | None, after: Retirement | None
) -> None:
    names = {"successor": "new/clicks", "reason": "renamed"}
    assert retirement_of_predecessor(before, **names, at_ms=9) == after


def inherited(
    other: OtherPipeline,
    state: PipelineState | None,
    snapshot: Snapshot,
    rows: Mapping[TopicPartition, tuple[int, int]] | None = None,
    **changes: Any,
) -> Plan:
    """The plan that takes over, with an id; `rows`: incarnation and end of the table's rows."""
    taken = predecessor_of(other, rows or {}, snapshot, SETTINGS)
    wanted: dict[str, Any] = {"uid": "uid1", "now_ms": 1, "reason": "renamed", **changes}
    return with_id(plan_inheritance(taken, state, snapshot, SETTINGS, **wanted))


def inherited_plan(outside: Outside) -> Plan:
    return inherited(outside.others[0], FirstRun(), snapshot_of(outside))


def ruled(outside: Outside) -> Outside:
    plan = inherited_plan(outside)
    outside.uid, outside.plans = plan.origin.pipeline_id, {plan.number: render_plan(plan)}
    return outside


def reject_doubled(outside: Outside) -> None:
    """Each record after the predecessor's offsets is loaded once, none before them."""
    there = {
        (partition, offset)
        for partition, found in outside.logs.items()
        for offset in range(ENDED[partition], found.end)
    }
    assert outside.rows() == dict.fromkeys(there, 1)
    assert {partition: offset for partition, (offset, _) in outside.offsets.items()} == {
        partition: found.end for partition, found in outside.logs.items()
    }


def test_a_start_that_the_other_decided_and_could_not_read_is_taken_over() -> None:
    late = TopicPartition("clicks-late", 0)
    outside = loaded_by_another(
        6, 6, 6, other=old_pipeline(pending_starts={late: 1_700_000_000_000})
    )
    outside.logs[late] = FakeLog(4, later={3: 1_700_000_000_000})
    run(ruled(outside))
    assert [offset for partition, offset in outside.rows() if partition == late] == [3]


# -- a topic that another pipeline has loaded


def test_a_first_run_into_a_table_that_another_pipeline_loaded_stops_and_names_it() -> None:
    outside = loaded_by_another(6, 6, 6)
    with pytest.raises(LedgersDisagree) as caught:
        run(outside)
    other = f"pipeline clicks of group old-group on cluster {CLUSTER}"
    assert caught.value.message == f"{other} has loaded this topic into this table"
    assert "etl pipelines inherit CONF --predecessor old-group/clicks" in caught.value.action
    assert (caught.value.where["topic"], caught.value.exit_code) == ("clicks", 5)
    assert not outside.plans


@pytest.mark.parametrize(
    "app_id",
    ["offset-range-etl/another-cluster/group/clicks", "offset-range-etl/cluster-1/group/renamed"],
)
def test_neither_another_cluster_nor_another_name_makes_a_topic_another_one(app_id: str) -> None:
    with pytest.raises(LedgersDisagree, match="has loaded this topic"):
        run(loaded_by_another(6, 6, 6, other=replace(old_pipeline(), app_id=app_id)))


def test_a_topic_added_later_is_requested_too_and_known_ones_are_not() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.others = (old_pipeline(),)
    grow(outside, 1, 1, 1)
    assert outcomes(run(outside)) == [Outcome.INGESTED]
    late = TopicPartition("clicks-late", 0)
    outside.others = (old_pipeline({late: 2}),)
    outside.logs[late] = replace(outside.logs[LOGS[0]])
    with pytest.raises(LedgersDisagree, match="has loaded this topic"):
        run(outside)


def test_if_the_others_loaded_offsets_are_unknown_the_tables_rows_decide() -> None:
    forgotten = OtherPipeline(OLD, 4)
    snapshot = snapshot_of(loaded_by_another(6, 6, 6, other=forgotten))
    assert snapshot.table is not None
    assert where_we_stand(snapshot, SETTINGS) == FirstRun()
    held = replace(snapshot, table=replace(snapshot.table, topics_with_rows=frozenset({"clicks"})))
    with pytest.raises(LedgersDisagree, match="may have loaded this topic"):
        where_we_stand(held, SETTINGS)


def test_an_inherited_pipeline_stops_and_no_accepted_change_lets_it_continue() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    successor = Predecessor(f"offset-range-etl/{CLUSTER}/new/clicks", 1)
    outside.foreign = (ForeignCommit(2, "WRITE", "took over topic clicks", successor),)
    message = "Since our last commit pipeline clicks of group new .* took over topic clicks"
    with pytest.raises(LedgersDisagree, match=message) as caught:
        run(outside)
    assert "acknowledge" not in caught.value.action
    assert "run that one, and this one never again" in caught.value.action
    assert not outside.removals


# -- taking over


def test_a_successor_begins_at_the_others_offsets_and_the_next_run_continues_from_there() -> None:
    outside = ruled(loaded_by_another(6, 6, 6))
    plan = outside.newest_plan()
    assert plan is not None
    assert (plan.kind, plan.ranges, plan.loaded_until, plan.inherits) == (
        PlanKind.TAKE_OVER,
        (),
        ENDED,
        Predecessor(OLD, 4),
    )
    assert (plan.topic_ids, plan.incarnations) == ({"clicks": "id-1"}, {LOGS[0]: 1})
    report = run(outside)
    assert outcomes(report) == [Outcome.PLAN_RESUMED, Outcome.INHERITED, Outcome.INGESTED]
    ended = f"continues where pipeline clicks of group old-group on cluster {CLUSTER} ended"
    assert ended in report.outcomes[1][1]
    reject_doubled(outside)


@pytest.mark.parametrize("step", ["open table", "append", "record", "commit from 0", "store plan"])
@pytest.mark.parametrize("when", When)
def test_a_crash_while_a_pipeline_is_taken_over_loses_and_doubles_nothing(
    step: str, when: When
) -> None:
    outside = ruled(loaded_by_another(6, 6, 6))
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    grow(outside, 2, 1, 3)
    run(outside)
    reject_doubled(outside)


@pytest.mark.parametrize(
    ("further", "incarnation", "is_taken_back", "is_rejected"),
    [
        (2, 0, False, True),
        (0, 0, False, True),
        (-1, 0, False, False),
        (0, 0, True, False),
        (2, 0, True, True),
        (2, -1, True, False),
    ],
    ids=[
        "the successor loaded more",
        "the successor loaded nothing yet",
        "loaded here since",
        "inherited back",
        "inherited back, and by the successor again",
        "inherited back, and recreated",
    ],
)
def test_a_topic_that_a_successor_inherited_is_not_read_again_by_its_predecessor(
    further: int, incarnation: int, is_taken_back: bool, is_rejected: bool
) -> None:
    outside = outside_of(4, 4, 4)
    run(outside)
    ours = outside.newest_plan()
    assert ours is not None
    until = {partition: offset + further for partition, offset in ours.loaded_until.items()}
    theirs = changed(ours, loaded_until=until, predecessors=(Predecessor(APP_ID, ours.number),))
    if is_taken_back:
        taken = changed(ours, predecessors=(Predecessor(OLD, 1),))
        taken = changed(taken, incarnations=dict.fromkeys(LOGS, -incarnation))
        ours = with_id(taken)
    snapshot = snapshot_of(outside)
    assert snapshot.table is not None and snapshot.ledger.applied is not None
    others = (OtherPipeline(OLD, 3, 9, with_id(theirs)),)
    snapshot = replace(snapshot, table=replace(snapshot.table, others=others))
    state = UpToDate(ours, {})
    if not is_rejected:
        reject_topics_of_other_pipelines(state, snapshot, SETTINGS)
        return
    with pytest.raises(LedgersDisagree, match="has inherited this topic") as caught:
        reject_topics_of_other_pipelines(state, snapshot, SETTINGS)
    assert "Remove the topic from source.topics" in caught.value.action


def state_alone(snapshot: Snapshot) -> PipelineState:
    """The state of the ledger if the other pipeline is not observed."""
    assert snapshot.table is not None
    return where_we_stand(replace(snapshot, table=replace(snapshot.table, others=())), SETTINGS)


def of_another_era(outside: Outside, number: int) -> Snapshot:
    """A snapshot in which another ledger of the same name wrote the table up to plan `number`."""
    snapshot, us = snapshot_of(outside), f"offset-range-etl/{CLUSTER}/group/clicks"
    return replace(
        snapshot,
        table=Table("t9", 12, number, CommitMetadata(12, us, "another uid", number, "its id")),
    )


@pytest.mark.parametrize("number", [1, 7])
def test_a_successor_of_an_earlier_ledger_continues_after_both_under_the_tables_next_number(
    number: int,
) -> None:
    outside = outside_of(4, 4, 4)
    run(outside)
    snapshot = of_another_era(outside, number)
    us = OtherPipeline(f"offset-range-etl/{CLUSTER}/group/clicks", number)
    with pytest.raises(LedgersDisagree, match="another pipeline of the same name"):
        where_we_stand(snapshot, SETTINGS)
    rows = {LOGS[0]: (0, 6), LOGS[1]: (0, 2)}
    plan = inherited(us, state_of_own_ledger(snapshot), snapshot, rows)
    until = {LOGS[0]: 6, LOGS[1]: 4, LOGS[2]: 4}
    assert (plan.number, plan.loaded_until) == (max(1, number) + 1, until)
    after = replace(snapshot, ledger=replace(snapshot.ledger, newest=plan, applied=None))
    assert where_we_stand(after, SETTINGS) == Resume(plan)


def test_a_plan_stored_for_another_table_has_loaded_nothing_into_one_of_another_era() -> None:
    outside = outside_of(4, 4, 4)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    snapshot = of_another_era(outside, 0)
    state = state_of_own_ledger(snapshot)
    assert isinstance(state, Resume)
    us = OtherPipeline(f"offset-range-etl/{CLUSTER}/group/clicks", 0)
    plan = inherited(us, state, snapshot, {LOGS[0]: (0, 2)})
    assert (plan.number, plan.origin.supersedes) == (1, state.plan.id)
    assert (plan.loaded_until[LOGS[0]], plan.loaded_until[LOGS[1]]) == (2, 0)
    with pytest.raises(NeedsDecision, match="it is unknown whether its own table has it"):
        state_of_own_ledger(of_another_era(outside, 3))


def test_the_others_facts_of_a_topic_recreated_before_we_continued_are_of_the_past() -> None:
    outside = loaded_by_another(9, 9, 9)
    snapshot = snapshot_of(outside)
    recreated = changed(
        inherited(outside.others[0], FirstRun(), snapshot),
        number=3,
        topic_ids={"clicks": "id-2"},
        loaded_until=dict.fromkeys(LOGS[:2], 2),
        expected_commits=dict.fromkeys(LOGS[:2], Committed()),
        incarnations=dict.fromkeys(LOGS[:2], 2),
        log_starts={},
        leader_epochs={},
        record_epochs={},
    )
    ours = with_id(recreated)
    again = inherited(outside.others[0], UpToDate(ours, ours.loaded_until), snapshot)
    assert again.topic_ids == ours.topic_ids
    assert (again.loaded_until, again.incarnations) == (ours.loaded_until, ours.incarnations)


def test_topics_that_the_conf_does_not_name_stay_with_the_other_pipeline() -> None:
    orders = TopicPartition("orders", 0)
    snapshot = snapshot_of(loaded_by_another(6, 6, 6))
    other = old_pipeline({**ENDED, orders: 7})
    assert predecessor_of(other, {}, snapshot, SETTINGS).positions == ENDED
    with pytest.raises(SettingsError, match="has loaded no topic that this conf names"):
        predecessor_of(old_pipeline({orders: 7}), {}, snapshot, SETTINGS)


def test_without_the_others_plan_in_the_log_its_rows_show_its_end() -> None:
    snapshot = snapshot_of(loaded_by_another(6, 6, 6))
    taken = predecessor_of(
        OtherPipeline(OLD, 4), {LOGS[0]: (2, 7), LOGS[1]: (0, 9)}, snapshot, SETTINGS
    )
    assert (taken.positions, taken.incarnations) == ({LOGS[0]: 7, LOGS[1]: 9}, {LOGS[0]: 2})


@pytest.mark.parametrize("topic_id", ["id-2", None])
def test_the_offsets_of_another_cluster_are_not_taken_over(topic_id: str | None) -> None:
    other = old_pipeline(cluster=kafka_named("another"))
    snapshot = with_facts(
        snapshot_of(loaded_by_another(6, 6, 6)), topic_ids={"clicks": topic_id} if topic_id else {}
    )
    with pytest.raises(NeedsDecision, match="of cluster another, and this one is cluster-1"):
        predecessor_of(other, {}, snapshot, SETTINGS)
    same = with_facts(snapshot, topic_ids={"clicks": "id-1"})
    assert predecessor_of(other, {}, same, SETTINGS).positions == ENDED, (
        "the cluster has another name, and it is the same topic"
    )


def test_records_between_the_tables_rows_and_a_larger_committed_offset_are_not_skipped() -> None:
    outside = loaded_by_another(9, 9, 9)
    outside.move_offset(LOGS[1], 7)
    with pytest.raises(
        OffsetMoved, match="The committed offset is 7, and the rows in the table end at 3"
    ):
        inherited_plan(outside)


def test_a_plan_in_the_place_of_one_that_takes_over_takes_over_too() -> None:
    outside = ruled(loaded_by_another(6, 6, 6))
    plan = outside.newest_plan()
    assert plan is not None
    instead = replacement_plan(
        Supersede(plan, "another conf"), snapshot_of(outside), SETTINGS, now_ms=2
    )
    assert instead.inherits == plan.inherits
    assert [(r.from_offset, r.until_offset) for r in instead.ranges] == [(5, 6), (3, 6), (4, 6)]


# -- taking over more than one

OLDEST = f"offset-range-etl/{CLUSTER}/oldest-group/clicks"


def test_a_successor_inherits_the_predecessors_of_its_predecessor() -> None:
    middle = old_pipeline(predecessors=(Predecessor(OLDEST, 3),))
    outside = ruled(loaded_by_another(6, 6, 6, other=middle))
    outside.others = (middle, replace(old_pipeline({LOGS[0]: 2}), app_id=OLDEST, number=3))
    plan = outside.newest_plan()
    assert plan is not None and plan.predecessors == (Predecessor(OLD, 4), Predecessor(OLDEST, 3))
    assert outcomes(run(outside)) == [Outcome.PLAN_RESUMED, Outcome.INHERITED, Outcome.INGESTED]
    reject_doubled(outside)
    last = outside.newest_plan()
    assert last is not None and (last.inherits, last.predecessors) == (None, plan.predecessors), (
        "every later plan knows it"
    )


def test_two_pipelines_are_merged_into_one_that_has_begun_no_run_between() -> None:
    orders = TopicPartition("clicks-orders", 0)
    second = replace(old_pipeline({orders: 2}), app_id=OLDEST, number=7)
    outside = ruled(loaded_by_another(6, 6, 6))
    outside.logs[orders] = replace(outside.logs[LOGS[0]], end=6)
    outside.others = (old_pipeline(), second)
    snapshot = snapshot_of(outside)
    plan = inherited(second, state_alone(snapshot), snapshot)
    assert (plan.number, plan.loaded_until) == (1, {**ENDED, orders: 2})
    assert plan.predecessors == (Predecessor(OLD, 4), Predecessor(OLDEST, 7))
    outside.plans[1] = render_plan(plan)
    run(outside)
    there = {
        (partition, offset)
        for partition, start in plan.loaded_until.items()
        for offset in range(start, 6)
    }
    assert outside.rows() == dict.fromkeys(there, 1)


def merging(ours: Loaded, theirs: Loaded) -> None:
    outside = outside_of(4, 4, 4)
    run(outside)
    outside.others = (old_pipeline(),)
    snapshot = snapshot_of(outside)
    state = replace_lives(where_we_stand(snapshot, SETTINGS))
    reject_unloaded_gap(
        predecessor_of(outside.others[0], {}, snapshot, SETTINGS), state, snapshot, ours, theirs
    )


def replace_lives(state: PipelineState) -> PipelineState:
    assert isinstance(state, UpToDate)
    return replace(state, last=changed(state.last, incarnations={LOGS[0]: 1}))


def test_offsets_between_two_pipelines_that_neither_has_loaded_are_not_passed_over() -> None:
    whole = {partition: [(int(partition == LOGS[0]), 0, 5)] for partition in LOGS}
    merging(whole, whole)
    with pytest.raises(
        NeedsDecision,
        match="offsets 4 to 5 between their loaded-until offsets were loaded by neither",
    ):
        merging(whole, {**whole, LOGS[0]: [(1, 0, 3), (0, 0, 9)]})
    with pytest.raises(NeedsDecision, match="offsets 3 to 4"):
        merging({**whole, LOGS[1]: []}, whole)


# -- taking over from oneself


def test_a_stored_plan_is_superseded_by_an_inheritance_of_itself_and_skips_no_offset() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    grow(outside, 1, 1, 1)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    snapshot, stored = snapshot_of(outside), outside.newest_plan()
    assert stored is not None
    last = parse_plan(outside.plans[1], path="plans/1")
    itself = OtherPipeline(APP_ID, 1, 1, last)
    plan = inherited(itself, state_of_itself(snapshot, SETTINGS), snapshot)
    assert (plan.number, plan.origin.supersedes) == (2, stored.id)
    assert (plan.loaded_until, plan.predecessors) == (last.loaded_until, ())


def test_a_pipeline_does_not_inherit_itself_if_the_table_is_older_than_its_ledger() -> None:
    outside = outside_of(5, 3, 4)
    for _ in range(2):
        run(outside)
        grow(outside, 1, 1, 1)
    outside.table = (outside.table or [])[:1]
    with pytest.raises(LedgersDisagree, match="Plan 2 was in the table"):
        state_of_itself(snapshot_of(outside), SETTINGS)


def from_an_old_copy(topic_id: str = "id-1", *lives: int) -> tuple[Plan, Plan]:
    """A stored plan of an old copy of ZooKeeper, and the plan after its rows."""
    outside = outside_of(5, 3, 4)
    outside.topic_ids = {"clicks": "id-1"}
    run(outside)
    grow(outside, 9, 1, 1)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    stored = outside.newest_plan()
    assert stored is not None
    outside.topic_ids = {"clicks": topic_id}
    seen = snapshot_of(outside)
    assert seen.table
    snapshot = replace(seen, table=replace(seen.table, transaction_version=5, metadata=None))
    until = {partition: (life, 7) for partition, life in zip(LOGS, lives or (0, 0, 0))}
    state = state_of_itself(snapshot, SETTINGS)
    assert state is None
    return stored, inherited(OtherPipeline(APP_ID, 5), state, snapshot, until, sets_back=True)


def test_after_rows_a_plan_counts_only_if_its_execution_is_known() -> None:
    stored, plan = from_an_old_copy()
    assert stored.loaded_until[LOGS[0]] == 14
    assert (plan.number, plan.loaded_until) == (6, dict.fromkeys(LOGS, 7))


def test_the_old_id_of_a_recreated_topic_is_kept_after_rows_so_that_the_next_run_stops() -> None:
    assert from_an_old_copy("id-2")[1].topic_ids == {"clicks": "id-1"}
    assert from_an_old_copy("id-2", 0, 1, 0)[1].topic_ids == {"clicks": "id-2"}


def test_a_stored_plan_is_not_replayed_into_a_table_loaded_by_another_pipeline_meanwhile() -> None:
    outside = outside_of(5, 3, 4)
    outside.table = []
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    outside.others = (old_pipeline(),)
    with pytest.raises(LedgersDisagree, match="has loaded this topic"):
        run(outside)
