"""Which bytes of a physical log are kept, by which it is known again."""

from __future__ import annotations

from etl.decide.recreated_or_truncated import TAIL_BYTES, end_places
from etl.model.partitions import BrokerPartition, PartitionOffsets

ONE, LOGICAL = BrokerPartition("clicks", 0, 1), BrokerPartition("clicks", 0)


def test_the_last_bytes_are_compared_also_where_the_newest_segment_holds_one_message_only() -> None:
    assert end_places({ONE: PartitionOffsets(0, 5010, boundaries=(0, 2500, 5000, 5010))}) == {
        ONE: (5010, TAIL_BYTES)
    }


def test_of_a_log_that_holds_fewer_bytes_all_are_compared_and_of_an_empty_one_none() -> None:
    assert end_places({ONE: PartitionOffsets(4800, 5010, boundaries=(4800, 5000, 5010))}) == {
        ONE: (5010, 210)
    }
    assert (
        end_places(
            {ONE: PartitionOffsets(5010, 5010, boundaries=(5010,)), LOGICAL: PartitionOffsets(0, 9)}
        )
        == {}
    )
