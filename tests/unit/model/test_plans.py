"""Which offsets a plan commits, and when."""

from __future__ import annotations

from dataclasses import replace

from etl.ledger.plan_document import parse_plan, render_plan, with_id
from etl.model.partitions import Committed, MemberAssignment, Membership, TopicPartition
from etl.model.plans import CommitState, PlannedCommit
from tests.builders import changed, plain_plan
from tests.fakes.ledgers import COMPLETE, A, B, C, plan_of


def test_a_plan_moves_the_offsets_that_are_not_at_its_positions_and_no_others() -> None:
    assert plan_of(1).offsets_to_move == (A, B), "C was at its position when the plan was made"


def test_an_offset_moved_by_the_plan_has_its_end_and_the_next_znode_version() -> None:
    for partition in (A, B):
        assert plan_of(1).moved(partition) == COMPLETE[partition]


def test_offsets_are_moved_in_the_order_of_their_logs() -> None:
    last = TopicPartition("clicks", 9)
    plan = plan_of(1)
    plan = changed(
        plan,
        loaded_until={last: 1, **plan.loaded_until},
        expected_commits={last: Committed(), **plan.expected_commits},
    )
    assert plan.offsets_to_move == (A, B, last) and C not in plan.offsets_to_move


SHARE = MemberAssignment("host-1", Membership.ZOOKEEPER, "range", None, frozenset([A]))


def test_a_plan_is_the_same_before_and_after_its_hand_over_and_another_one_without() -> None:
    commit = PlannedCommit(CommitState.IN_DOUBT, member=SHARE)
    plan = with_id(plain_plan(loaded_until={A: 9}, commit=commit))
    done = plan.with_commit_state(CommitState.DONE)
    after_append = replace(plan, commit=commit.after_append)
    assert with_id(done).id == plan.id != with_id(after_append).id
    assert [parse_plan(render_plan(one), path="") for one in (plan, done)] == [plan, done]


def test_a_handed_over_plan_moves_the_offsets_of_its_share_only_when_it_is_stored() -> None:
    plan = plain_plan(
        loaded_until={A: 9, B: 7},
        expected_commits={A: Committed(4, 1), B: Committed(3, 1)},
        commit=PlannedCommit(CommitState.AFTER_APPEND_AS_MEMBER, member=SHARE),
    )
    assert (plan.offsets_to_commit, plan.offsets_to_move) == ((), (A,))
    for state in (CommitState.IN_DOUBT, CommitState.DONE):
        handed = plan.with_commit_state(state)
        assert (handed.offsets_to_commit, handed.offsets_to_move) == ((A,), ())
