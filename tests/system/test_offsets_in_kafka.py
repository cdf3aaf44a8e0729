"""`group.offsets_storage: kafka` and `dual` on real servers: committed offsets at the coordinator,
compared before they change.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.driving import Pipeline, broken_off_before
from tests.system.live_consumers import offsets_of

pytestmark = pytest.mark.without_spark

PARTITIONS = range(4)


@pytest.fixture
def kept(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with offsets in Kafka that has loaded 20 records of each partition."""
    pipeline = make_pipeline(group={"offsets_storage": "kafka"})
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    return pipeline


def offsets(pipeline: Pipeline) -> dict[int, int]:
    return {
        partition: offset for partition, (offset, _) in offsets_of(pipeline, pipeline.group).items()
    }


def all_at(offset: int) -> dict[int, int]:
    return dict.fromkeys(PARTITIONS, offset)


def test_offsets_are_committed_in_kafka_only_with_our_metadata_and_a_crash_before_them_is_repaired(
    kept: Pipeline,
) -> None:
    words = {word for _, word in offsets_of(kept, kept.group).values()}
    assert (
        len(words) == 1
        and words.pop().startswith("etl:clicks:1:")
        and offsets(kept) == all_at(20)
        and kept.committed() == {}
    )
    kept.produce(80)
    broken_off_before("commit", kept)
    assert offsets(kept) == all_at(20)
    kept.produce(80)
    assert kept.ran().outcomes == ["plan_completed", "ingested"]
    assert offsets(kept) == all_at(60) and kept.is_whole()
    assert {row["committed"] for row in kept.door("offsets", "show").document["partitions"]} == {60}
    assert kept.door("doctor").code == 0 and kept.door("offsets", "diff").code == 0
