"""Offsets that other group members read are excused gaps: a row that is missing there is no error,
an existing row is unexpected.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.audit.causes_of_missing_rows import Gaps, PartitionProof, gaps_of
from etl.audit.compare_rows import AuditedPartition, Bucket, Expected, audit_partition
from etl.decide.loaded_intervals import fold, merged_holes
from etl.ledger.plan_document import parse_plan, plan_id, render_plan, with_id
from etl.model.partitions import Committed, MemberAssignment, Membership, TopicPartition
from etl.model.plans import (
    CommitResult,
    CommitState,
    Loss,
    LossReason,
    OffsetRange,
    Plan,
    PlannedCommit,
    RangeResult,
    ReadByOthers,
)
from etl.model.snapshot import LoadedIntervals
from tests.builders import plain_plan

A = TopicPartition("clicks", 0)
B = TopicPartition("clicks", 1)
OURS = (
    (OffsetRange(A, 0, 10), RangeResult(10, 100)),
    (OffsetRange(A, 20, 30), RangeResult(10, 100)),
)
SHARE = MemberAssignment("host-1", Membership.ZOOKEEPER, "range", None, frozenset([A]))


def rows_of(*offsets: int) -> list[Bucket]:
    bits = sum(1 << offset for offset in offsets)
    return [Bucket(0, len(offsets), bits.to_bytes(4096, "little"))]


def proof_of(expected: Expected, rows: list[Bucket], *losses: Loss) -> PartitionProof:
    return PartitionProof(
        audit_partition(AuditedPartition(A), expected, rows), gaps_of(expected, losses)
    )


def test_a_hole_that_a_plan_names_is_right_and_reported_and_a_row_in_it_is_one_too_many() -> None:
    expected = Expected(OURS, read_by_others=((10, 20),))
    proof = proof_of(expected, rows_of(*range(10), *range(20, 30)))
    assert proof.is_right
    assert proof.gaps.summary == "10 read by other members of the group"
    proof = proof_of(expected, rows_of(*range(10), 15, *range(20, 30)))
    assert (proof.is_right, proof.findings.unexpected_first) == (False, (15,))


@pytest.mark.parametrize(
    ("named", "unnamed"), [((10, 15), (15, 20)), ((12, 20), (10, 12)), ((30, 40), (10, 20))]
)
def test_among_members_a_hole_without_a_name_is_wrong(
    named: tuple[int, int], unnamed: tuple[int, int]
) -> None:
    proof = proof_of(Expected(OURS, read_by_others=(named,)), rows_of(*range(10), *range(20, 30)))
    assert (proof.is_right, proof.gaps.unnamed) == (False, (unnamed,))
    lost = Loss(A, *unnamed, LossReason.EXPIRED)
    assert not gaps_of(Expected(OURS, read_by_others=(named,)), (lost,)).unnamed, "a loss is a name"
    assert gaps_of(Expected(OURS), ()) == Gaps(), "without other readers no hole needs one"


def test_holes_outlive_their_plans_and_those_that_touch_are_one() -> None:
    ranges, held = (OffsetRange(A, 15, 20),), (ReadByOthers(A, 5, 15),)
    first = with_id(plain_plan(1, loaded_until={A: 20}, ranges=ranges, read_by_others=held))
    more = (ReadByOthers(A, 3, 5), ReadByOthers(B, 0, 9))
    second = with_id(plain_plan(2, loaded_until={A: 20, B: 9}, read_by_others=more))
    covered = fold(fold(LoadedIntervals(), first, applied_of(first)), second, applied_of(second))
    assert covered.read_by_others == (ReadByOthers(A, 3, 15), ReadByOthers(B, 0, 9))

    assert len(merged_holes((ReadByOthers(A, 0, 5), ReadByOthers(A, 5, 9, 1)))) == 2, "of two lives"


def applied_of(plan: Plan) -> CommitResult:
    return CommitResult(
        plan.number, plan.id, plan.number, "t", tuple(RangeResult(r.size, 1) for r in plan.ranges)
    )


def test_a_plan_is_the_same_before_and_after_its_hand_over_and_another_one_without() -> None:
    commit = PlannedCommit(CommitState.IN_DOUBT, member=SHARE)
    plan = with_id(plain_plan(loaded_until={A: 9}, commit=commit))
    done = plan.with_commit_state(CommitState.DONE)
    assert plan_id(done) == plan.id != plan_id(replace(plan, commit=commit.after_append))
    assert [parse_plan(render_plan(one), path="") for one in (plan, done)] == [plan, done]


def test_a_handed_over_plan_moves_the_offsets_of_its_share_when_it_is_stored_and_none_later() -> (
    None
):
    plan = plain_plan(
        loaded_until={A: 9, B: 7},
        expected_commits={A: Committed(4, 1), B: Committed(3, 1)},
        commit=PlannedCommit(CommitState.AFTER_APPEND_AS_MEMBER, member=SHARE),
    )
    assert (plan.offsets_to_commit, plan.offsets_to_move) == ((), (A,))
    for state in (CommitState.IN_DOUBT, CommitState.DONE):
        handed = plan.with_commit_state(state)
        assert (handed.offsets_to_commit, handed.offsets_to_move) == ((A,), ())
