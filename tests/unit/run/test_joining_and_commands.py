"""Commands, lost ledgers and changes of the mode next to other members."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from etl.commands.backfill import _beginning
from etl.commands.operator_session import as_member
from etl.commands.restore_ledger import compare_sources, restore_from_commits
from etl.decide.backfill import BackfillRequest
from etl.decide.inherit_pipeline import plan_inheritance, predecessor_of
from etl.decide.member_offsets import as_left_to_others, reject_replacing
from etl.decide.partition_owners import (
    describe_rewound,
    ownership_after_inheritance,
    reject_active_members,
    reject_offsets_read_by_others,
    reject_retiring_unfinished,
    reject_rewinding_other_members,
    reject_unfinished_predecessor,
)
from etl.decide.reconcile import where_we_stand
from etl.decide.restore_ledger import differing_offsets
from etl.errors import DataLoss, NeedsDecision, OffsetMoved, Owned
from etl.kafka.kafka_broker_type import KafkaProtocol
from etl.kafka.request_values import SupportedMembership
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    Committed,
    GroupProtocol,
    MemberAssignment,
    Membership,
    OffsetsStorage,
)
from etl.model.plans import CommitState, Loss, LossReason, PlannedCommit, ReadByOthers
from etl.model.snapshot import Ledger
from etl.report.run_progress import Outcome
from etl.run.backfill import Beginning
from etl.run.ingest import ingest
from etl.run.member_of_run import session_of, unspoken
from etl.settings.choices import CommitWhen, OwnershipMode
from etl.settings.load import settings_of_backfill
from etl.settings.sections import GroupSettings, JoinSettings
from tests.builders import with_facts, with_keys
from tests.fakes.backfill_stories import backfill_request, filled
from tests.fakes.fake_log import FakeLog
from tests.fakes.joining_stories import (
    A,
    B,
    C,
    both_orders,
    left_unfinished,
    member_of,
    reject_broken,
    run,
    superseded,
)
from tests.fakes.members import Others, member_with
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    accept,
    crash_at,
    grow,
    new_report,
    old_pipeline,
    outside_of,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

SETTINGS = member_of()


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


def test_an_offset_of_others_in_the_newest_plan_is_not_restored_after_a_lost_ledger() -> None:
    outside, others = read_on_by_others()
    outside.plans, outside.applied, outside.uid = {}, {}, None
    run(outside, [A, B])
    reject_broken(outside, others)


def test_a_claiming_run_after_a_joined_one_moves_no_offset_of_others_back() -> None:
    outside, _ = read_on_by_others()
    before = dict(outside.offsets)
    with pytest.raises(OffsetMoved):
        ingest(FakeWorld(outside, settings_of()), settings_of(), new_report())
    assert outside.offsets == before


def test_a_set_offset_moves_with_the_plan_and_those_of_others_stay_and_are_named() -> None:
    outside, others = read_on_by_others()
    before = outside.offsets[A]
    grow(outside, 1, 1)
    plan = set_to(outside, SETTINGS, share=[A, B], b=8)
    assert plan and (plan.commit.state, plan.offsets_to_move, plan.offsets_to_commit) == (
        CommitState.DONE,
        (),
        (B,),
    )
    assert (
        plan.losses.read_by_others == (ReadByOthers(A, 5, 7),)
        and outside.offsets[A] == before
        and outside.offsets[B][0] == 8
    )
    assert outside.owners == {}, "the command has left the group"
    run(outside, [A, B])
    assert (
        outside.offsets[A][0] == 10
        and not {place for partition, place in outside.rows() if partition == A} & others.read[A]
    )


def test_what_a_position_passes_over_begins_where_others_ended() -> None:
    outside, others = read_on_by_others()
    plan = set_to(outside, SETTINGS, share=[A, B], a=9)
    assert (
        plan
        and plan.losses.lost == (Loss(A, 7, 9, LossReason.SKIPPED),)
        and plan.losses.read_by_others == (ReadByOthers(A, 5, 7),)
    )
    run(outside, [A, B])
    assert not {place for partition, place in outside.rows() if partition == A} & others.read[A]


def test_the_position_of_a_log_of_another_member_is_not_set() -> None:
    outside, others = read_on_by_others()
    before = outside.newest_plan(), dict(outside.offsets)
    others.own(A)
    with pytest.raises(Owned, match="The partition is owned by group_consumer-1-0"):
        set_to(outside, SETTINGS, share=[B], a=9)
    assert (outside.newest_plan(), dict(outside.offsets)) == before


def test_a_command_that_loses_its_log_before_it_stores_moves_nothing_and_reports_it() -> None:
    outside, others = read_on_by_others()
    grow(outside, 2, 2)
    before = outside.newest_plan(), dict(outside.offsets)

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == ("store plan", When.BEFORE):
            others.own(B)

    with pytest.raises(
        Owned, match="The group changed after the snapshot: clicks 1 is no longer owned by this run"
    ):
        set_to(outside, SETTINGS, meanwhile, [A, B], b=8)
    assert (outside.newest_plan(), dict(outside.offsets)) == before


def test_no_offset_goes_back_over_records_that_others_read() -> None:
    holes = [ReadByOthers(A, 5, 7)]
    reject_offsets_read_by_others({A: (7, 9), B: (0, 9)}, holes)
    with pytest.raises(
        NeedsDecision, match="Other members of the group read offsets 5 to 7:"
    ) as refused:
        reject_offsets_read_by_others({A: (6, 9)}, holes)
    assert refused.value.action and refused.value.action.startswith("Pass --to")


def test_a_log_accepted_as_another_moves_its_offset_with_the_plan_only_if_it_is_ours() -> None:
    outside = outside_of(5, 3)
    outside.topic_ids = {"clicks": "one"}
    run(outside, [A, B])
    outside.topic_ids = {"clicks": "another"}
    outside.logs = {
        partition: replace(outside.logs[partition].recreated(), end=end)
        for partition, end in ((A, 4), (B, 2))
    }
    with pytest.raises(Owned, match="assigned to no known member of the group"):
        accept(outside, "clicks", settings=SETTINGS, share=[B])
    plan = accept(outside, "clicks", settings=SETTINGS, share=[A, B])
    assert plan.commit.state is CommitState.DONE and [
        outside.offsets[partition][0] for partition in (A, B)
    ] == [0, 0]
    run(outside, [A, B])
    run(outside, [A, B])
    assert [outside.offsets[partition][0] for partition in (A, B)] == [4, 2] and len(
        outside.keys()
    ) == 5 + 3 + 4 + 2


def test_a_run_with_a_committed_plan_without_a_result_judges_no_offset_of_others() -> None:
    outside = outside_of(5, 3)
    run(outside, [A, B])
    grow(outside, 4, 4)
    with pytest.raises(Crash):
        run(outside, [A, B], at=crash_at("record", When.BEFORE))
    outside.owners.clear()
    Others(outside).own(A)
    outside.move_offset(A, 1)
    run(outside, [B])
    assert len(outside.rows()) == 16


def test_offsets_that_others_moved_on_are_restored_by_a_member_alone() -> None:
    outside, _ = read_on_by_others()
    newest, committed = outside.newest_plan(), outside.committed()
    reject_rewinding_other_members(newest, committed, SETTINGS)
    with pytest.raises(
        NeedsDecision, match="the committed offset of clicks:0 is 7, the loaded-until offset is 5"
    ) as refused:
        reject_rewinding_other_members(newest, committed, settings_of())
    assert refused.value.action and "group.mode: join" in refused.value.action


def test_restored_offsets_are_those_that_went_back_and_none_that_others_moved_on() -> None:
    outside, others = read_on_by_others()
    outside.move_offset(B, 1)
    with pytest.raises(OffsetMoved):
        run(outside, [A, B])
    world = FakeWorld(outside, SETTINGS, member=member_with([A, B]))
    with as_member(world, SETTINGS) as share:
        seen = with_facts(world.observe(), share=share)
        plan = restore_from_commits(
            world,
            as_left_to_others(seen, seen.ledger.newest, SETTINGS),
            SETTINGS,
            "restored",
            "run-1",
        )
    assert plan.offsets_to_commit == (B,) and outside.offsets[B][0] == 7
    run(outside, [A, B])
    run(outside, [A, B])
    reject_broken(outside, others)


def test_a_ledger_restored_before_the_group_changed_is_not_reported_as_untouched() -> None:
    outside, others = read_on_by_others()
    outside.move_offset(B, 1)
    outside.plans, outside.applied, outside.uid = {}, {}, None

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == ("store plan", When.BEFORE):
            others.own(B)

    world = FakeWorld(outside, SETTINGS, meanwhile, member=member_with([A, B]))
    with (
        as_member(world, SETTINGS) as share,
        pytest.raises(
            Owned,
            match="The group changed after the snapshot: clicks 1 is no longer owned by this run",
        ) as refused,
    ):
        restore_from_commits(
            world, with_facts(world.observe(), share=share), SETTINGS, "restored", "run-1"
        )
    assert (
        refused.value.action
        == "The ledger was restored, and no offset was committed. Run this command again"
        and outside.plans
    )


def differing(outside: Outside) -> list[tuple[int, str, str]]:
    """Partition, difference, and what the next run does about it; nothing may stop that one."""
    sides = compare_sources(FakeWorld(outside, SETTINGS).observe(), SETTINGS)
    assert sides.refusal is None, sides.refusal
    return [
        (row["partition"], row["difference"], row["next_run"]) for row in sides.document["rows"]
    ]


def test_offsets_that_others_read_on_from_are_no_moved_offsets_and_stop_no_run() -> None:
    outside, _ = read_on_by_others()
    goes_on = (
        "continues at the committed offset if the partition is in its assignment, "
        "and reports what other members read"
    )
    assert differing(outside) == [(0, "read on by others", goes_on)]
    outside = outside_of(5, 3)
    others = left_unfinished(outside, "fetch", When.BEFORE)
    grow(outside, 2, 0)
    others.own(A)
    others.consume(A, 2)
    outside.owners.clear()
    executes = "executes the plan"
    assert differing(outside) == [
        (0, "read on by others", executes),
        (1, "plan not appended", executes),
    ]
    run(outside, [A, B])
    assert not {place for partition, place in outside.rows() if partition == A} & others.read[A]


def test_a_backfill_of_missing_offsets_leaves_others_and_one_by_name_reports_them() -> None:
    outside, _ = read_on_by_others()
    run(outside, [A, B])
    own = settings_of_backfill(SETTINGS, "old")

    def ahead(request: BackfillRequest) -> Beginning:
        return _beginning(FakeWorld(outside, own), own, "old", request)

    assert not ahead(backfill_request(0, 9, "clicks:0", only_missing=True)).backfill.intervals
    found = ahead(backfill_request(5, 7, "clicks:0"))
    assert (found.backfill.intervals, found.read_by_others) == ({A: ((5, 7),)}, 2)
    report = new_report()
    filled(outside, backfill_request(5, 7, "clicks:0"), settings=SETTINGS, report=report)
    assert report.outcomes[0] == (
        Outcome.OFFSETS_LEFT_TO_MEMBERS,
        "2 offsets of these were read by other members of the group; the table gets them, too",
    )


def test_no_command_leaves_ranges_of_a_committed_plan_that_a_later_run_takes_for_others() -> None:
    outside = outside_of(5, 3)
    left_unfinished(outside, "fetch", When.BEFORE)
    stored = outside.newest_plan()
    with pytest.raises(
        NeedsDecision, match="offsets of plan . are committed, and the plan is not in the table"
    ):
        set_to(outside, SETTINGS, a=6)
    with pytest.raises(
        NeedsDecision, match="offsets of plan . are committed, and the plan is not in the table"
    ):
        accept(outside, "clicks:0", settings=SETTINGS)
    assert outside.newest_plan() == stored
    run(outside, [])
    assert len(outside.rows()) == 16


@both_orders
def test_a_truncated_log_is_left_out_of_a_stored_plan_and_accepted_after_it(
    commit_when: CommitWhen,
) -> None:
    outside, settings = outside_of(5, 3), member_of(commit_when=commit_when)
    left_unfinished(outside, "fetch", When.BEFORE, settings)
    outside.logs[A].cut(6)
    with pytest.raises(NeedsDecision):
        run(outside, [], settings=settings)
    superseded(outside, Loss(A, 5, 9, LossReason.SKIPPED), settings=settings)
    run(outside, [], settings=settings)
    assert {place for partition, place in outside.rows() if partition == B} == set(range(7))


@both_orders
@pytest.mark.parametrize("ends", [(4, 2), (20, 20)], ids=["shorter", "longer"])
def test_a_recreated_topic_leaves_nothing_of_a_stored_plan_and_the_message_has_the_command(
    ends: Sequence[int], commit_when: CommitWhen
) -> None:
    outside, settings = outside_of(5, 3), member_of(commit_when=commit_when)
    outside.topic_ids = {"clicks": "one"}
    left_unfinished(outside, "fetch", When.BEFORE, settings)
    outside.topic_ids = {"clicks": "another"}
    for partition, end in zip((A, B), ends, strict=True):
        outside.logs[partition] = replace(outside.logs[partition].recreated(), end=end)
    with pytest.raises(NeedsDecision, match="recreated|stored and is not in the table") as refused:
        run(outside, [A, B], settings=settings)
    first, then = (
        "etl plans supersede CONF 2 --reason",
        "etl topics accept-changes CONF -p clicks --reason",
    )
    action = refused.value.action or ""
    assert action.index(first) < action.index(then)
    superseded(outside, settings=settings)
    with contextlib.suppress(NeedsDecision):
        run(outside, [], settings=settings)
    accept(outside, "clicks", settings=settings, share=[A, B])
    for _ in range(2):
        run(outside, [A, B], settings=settings)
    assert {
        (loss.partition, loss.from_offset, loss.until_offset) for _, loss in outside.losses
    } == {
        (A, 5, 9),
        (B, 3, 7),
    }
    assert len(outside.keys()) == 5 + 3 + sum(ends)


def test_what_expired_of_a_plan_that_was_handed_over_may_be_skipped_by_hand() -> None:
    outside = outside_of(5, 3)
    left_unfinished(outside, "fetch", When.BEFORE)
    outside.logs[A].log_start = 7
    with pytest.raises(DataLoss):
        superseded(outside, Loss(A, 5, 6, LossReason.SKIPPED), settings=SETTINGS)
    superseded(outside, Loss(A, 5, 7, LossReason.SKIPPED), settings=SETTINGS)
    run(outside, [])
    assert {place for partition, place in outside.rows() if partition == A} == {*range(5), 7, 8}
    assert {place for partition, place in outside.rows() if partition == B} == set(range(7))


def test_a_command_that_moves_offsets_of_a_kafka_group_waits_until_the_group_is_empty() -> None:
    in_kafka = with_keys(SETTINGS, group={"offsets_storage": OffsetsStorage.KAFKA})
    outside = outside_of(5, 3)
    seen = FakeWorld(outside, SETTINGS).observe()
    reject_active_members(seen, in_kafka)
    live = with_facts(seen, live_consumers=("consumer-1 at 10.0.0.7",))
    with pytest.raises(
        Owned,
        match="The group has members: consumer-1 at .* commits its offsets only when a run "
        "executes it",
    ):
        reject_active_members(live, in_kafka)
    reject_active_members(live, SETTINGS)


def test_taking_over_moves_no_offset_back_that_others_moved_on_in_logs_that_were_ours_before() -> (
    None
):
    outside, others = read_on_by_others()
    outside.logs[C] = FakeLog(6)
    world = FakeWorld(outside, SETTINGS, member=member_with(LOGS))
    with as_member(world, SETTINGS) as share:
        seen = with_facts(world.observe(), share=share)
        taken = predecessor_of(old_pipeline({C: 4}), {}, seen, SETTINGS)
        state = where_we_stand(seen, SETTINGS)
        plan = plan_inheritance(
            taken, state, seen, SETTINGS, uid=outside.uid or "", now_ms=1, reason="renamed"
        )
        assert world.store(with_id(ownership_after_inheritance(plan, seen, SETTINGS))) is None
    assert [outside.offsets[partition][0] for partition in LOGS] == [7, 7, 4]
    run(outside, LOGS)
    run(outside, LOGS)
    rows = outside.rows()
    assert not {place for partition, place in rows if partition == A} & others.read[A] and set(
        rows.values()
    ) == {1}
    assert [outside.offsets[partition][0] for partition in LOGS] == [9, 7, 6]


def test_a_pipeline_with_a_possibly_committed_plan_outside_the_table_is_not_inherited() -> None:
    other = old_pipeline()
    assert other.plan
    commit = PlannedCommit(CommitState.IN_DOUBT)
    left = replace(other.plan, number=other.number + 1, commit=commit)
    for handed_over in (left, replace(left, commit=PlannedCommit(CommitState.DONE))):
        with pytest.raises(NeedsDecision, match="no other member reads its ranges"):
            reject_unfinished_predecessor(other, handed_over, {})
    for is_none in (
        None,
        replace(left, commit=PlannedCommit(CommitState.REJECTED)),
        replace(left, commit=PlannedCommit()),
        replace(left, number=other.number),
    ):
        reject_unfinished_predecessor(other, is_none, {})


def test_a_pipeline_with_a_void_plan_and_its_commit_metadata_is_not_inherited_either() -> None:
    """Its run, not a hand that sets an offset back, finds that out."""
    other = old_pipeline()
    assert other.plan
    share = MemberAssignment("m", Membership.COORDINATOR, "range", 1, frozenset([A]))
    void = replace(
        other.plan,
        number=other.number + 1,
        commit=PlannedCommit(CommitState.REJECTED, OffsetsStorage.KAFKA, share),
    )
    seen = {A: Committed(void.loaded_until[A], None, void.commit_metadata)}
    with pytest.raises(
        NeedsDecision,
        match="are committed, and the plan is not in the table: no other member reads its ranges",
    ):
        reject_unfinished_predecessor(other, void, seen)
    reject_unfinished_predecessor(other, void, {A: replace(seen[A], metadata="")})
    with pytest.raises(
        NeedsDecision,
        match="are committed, and the ledger does not record that the plan is in the table",
    ):
        reject_retiring_unfinished("clicks", Ledger(newest=void), lambda _: seen)
    reject_retiring_unfinished(
        "clicks", Ledger(newest=void), lambda _: {A: replace(seen[A], metadata="")}
    )


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (CommitState.REJECTED, "its offset commit was rejected"),
        (CommitState.IN_DOUBT, "its offset commit is in doubt. .* which resolves the commit"),
    ],
)
def test_a_command_reports_the_known_state_of_a_stored_plans_commit(
    state: CommitState, why: str
) -> None:
    outside = outside_of(5, 3)
    left_unfinished(outside, "fetch", When.BEFORE)
    plan = outside.newest_plan()
    assert plan
    with pytest.raises(NeedsDecision, match=why):
        reject_replacing(plan.with_commit_state(state))


def test_a_log_truncated_below_others_reads_is_not_read_by_both_at_any_group_offset() -> None:
    outside, _ = read_on_by_others()
    outside.logs[A].cut(6)
    with pytest.raises(OffsetMoved) as refused:
        run(outside, [A, B])
    assert refused.value.action and "set the group's offset to 6 with" in refused.value.action
    seen, newest = FakeWorld(outside, SETTINGS).observe(), outside.newest_plan()
    assert newest
    moves = differing_offsets(newest, as_left_to_others(seen, newest, SETTINGS))
    assert moves == {A: (7, 5)}
    (result,) = describe_rewound(moves, seen, SETTINGS)
    assert (
        "If the partition was truncated below what other members had read" in result
        and describe_rewound(moves, seen, settings_of()) == []
    )
    outside.move_offset(A, 6)
    grow(outside, 1, 0)
    run(outside, [A, B])
    stored = outside.newest_plan()
    assert stored and stored.losses.read_by_others == (ReadByOthers(A, 5, 6),)
    assert {place for partition, place in outside.rows() if partition == A} == {*range(5), 6}


@pytest.mark.parametrize(
    "nobody_leads",
    [True, False],
    ids=["without a leader", "of a topic that the conf names no more"],
)
def test_an_offset_that_others_moved_is_not_restored_in_a_log_with_an_unknown_end(
    nobody_leads: bool,
) -> None:
    outside, _ = read_on_by_others()
    seen, newest = FakeWorld(outside, SETTINGS).observe(), outside.newest_plan()
    assert newest and differing_offsets(newest, seen) == {A: (7, 5)}
    left = {partition: offsets for partition, offsets in seen.readable.items() if partition != A}
    seen = with_facts(
        seen, extents=left, leaderless=frozenset([A]) if nobody_leads else frozenset()
    )
    assert differing_offsets(newest, as_left_to_others(seen, newest, SETTINGS)) == {}
    if nobody_leads:
        with pytest.raises(OffsetMoved) as refused:
            where_we_stand(seen, SETTINGS)
        assert refused.value.action and "restore" not in refused.value.action


def spoken_by(release: str) -> SupportedMembership:
    return KafkaProtocol.of_release(release, "us", "here:9092").groups.membership


@pytest.mark.parametrize(
    ("release", "spoken"),
    [
        ("0.8.2", (False, False, False, False)),
        ("0.9", (True, False, False, False)),
        ("0.10.1", (True, True, False, False)),
        ("2.2", (True, True, False, False)),
        ("2.3", (True, True, True, False)),
        ("3.9", (True, True, True, False)),
        ("4.0", (True, True, True, True)),
    ],
)
def test_what_members_of_groups_a_release_understands(
    release: str, spoken: tuple[bool, ...]
) -> None:
    found = spoken_by(release)
    assert (
        found.is_classic,
        found.has_rebalance_timeout,
        found.is_static,
        found.is_consumer,
    ) == spoken and found.release == release


@pytest.mark.parametrize(
    ("release", "keys", "key"),
    [
        ("0.8.2", {}, "group.offsets_storage"),
        ("0.9", {}, None),
        ("3.9", {"join": {"protocol": GroupProtocol.CONSUMER}}, "group.join.protocol"),
        ("4.0", {"join": {"protocol": GroupProtocol.CONSUMER}}, None),
        ("2.2", {"join": {"instance_id": "us"}}, "group.join.instance_id"),
        ("2.3", {"join": {"instance_id": "us"}}, None),
    ],
)
def test_a_key_that_the_brokers_are_too_old_for_is_refused_with_their_release(
    release: str, keys: dict[str, Any], key: str | None
) -> None:
    settings = settings_of()
    joining = {
        "mode": OwnershipMode.JOIN,
        **keys,
        "offsets_storage": OffsetsStorage.KAFKA,
    }
    refusal = unspoken(with_keys(settings, group=joining), spoken_by(release))
    assert (refusal and refusal.where["key"]) == key
    assert (
        refusal is None
        or f"the brokers are Kafka {release}" in refusal.message
        and refusal.exit_code == 2
    )


def test_of_members_in_zookeeper_no_broker_needs_to_know() -> None:
    settings = settings_of()
    assert unspoken(settings, SupportedMembership()) is None
    assert "these brokers have no groups" in str(
        unspoken(
            with_keys(
                settings,
                group={"mode": OwnershipMode.JOIN, "offsets_storage": OffsetsStorage.KAFKA},
            ),
            SupportedMembership(),
        )
    )


def test_a_default_session_timeout_is_within_the_limit_of_the_brokers_release() -> None:
    assert (
        session_of(GroupSettings(id="g"), spoken_by("0.10.0")) == 30
        and session_of(GroupSettings(id="g"), spoken_by("0.10.1")) == 45
    )
    patient = GroupSettings(id="g", join=JoinSettings(session_timeout_s=44))
    assert session_of(patient, spoken_by("0.9")) == 44
