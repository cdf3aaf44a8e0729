"""Which offsets a plan commits."""

from __future__ import annotations

from etl.model.partitions import Committed, TopicPartition
from tests.builders import changed
from tests.fakes.ledgers import COMPLETE, A, B, C, plan_of


def test_a_plan_moves_the_offsets_that_are_not_at_its_positions_and_no_others() -> None:
    assert plan_of(1).offsets_to_move == (A, B), "C was at its position when the plan was made"


def test_an_offset_moved_by_the_plan_has_its_end_and_the_next_znode_version() -> None:
    assert {partition: plan_of(1).moved(partition) for partition in (A, B)} == {
        partition: COMPLETE[partition] for partition in (A, B)
    }


def test_offsets_are_moved_in_the_order_of_their_logs() -> None:
    last = TopicPartition("clicks", 9)
    plan = plan_of(1)
    plan = changed(
        plan,
        loaded_until={last: 1, **plan.loaded_until},
        expected_commits={last: Committed(), **plan.expected_commits},
    )
    assert plan.offsets_to_move == (A, B, last) and C not in plan.offsets_to_move
