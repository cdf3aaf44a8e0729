"""The offset of a time on brokers that report a partition's largest timestamp (KIP-734)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from etl.errors import SettingsError
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import TopicPartition
from tests.brokers.stage import KafkaStage
from tests.fakes.batches import Batch, Rec, encode

NOON = 1_750_000_000_000
NONE, LATE, EARLY = -1, NOON + 5, NOON - 9
SEGMENT = {"segment.bytes": str(1024 * 1024), "retention.ms": "-1"}
LARGE = 700_000
"""Two such batches are two segments."""


@pytest.mark.parametrize("stage", ["3.9.1", "4.1.0"], indirect=True)
@pytest.mark.parametrize(
    ("times", "found"),
    [
        ((NONE, NONE, LATE, EARLY), None),
        ((NONE, NONE, EARLY, LATE), None),
        ((EARLY, NONE, NONE), 3),
        ((NONE, NONE), 2),
    ],
    ids=["one is as late", "the last one is", "the last ones have none", "none has any"],
)
def test_an_answer_that_no_record_is_as_late_is_compared_with_the_largest_timestamp(
    stage: KafkaStage,
    times: Sequence[int],
    found: int | None,
) -> None:
    """It uses the file's modification time for a segment without timestamps."""
    partition = TopicPartition(f"largest-{abs(hash(tuple(times)))}", 0)
    stage.cluster.create_topic(partition.topic, config=SEGMENT)
    broker = stage.cluster.brokers[0]
    with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        for time_ms in times:
            consumer.produce(
                partition.topic,
                0,
                encode(
                    Batch(0, [Rec(0, b"x" * LARGE)], base_timestamp=time_ms, max_timestamp=time_ms)
                ),
            )
        reported = consumer.max_timestamps([partition])
        assert reported and reported[partition].timestamp_ms == (
            max(times) if max(times) > NONE else None
        )
    with Cluster([("127.0.0.1", broker.port)]) as cluster:
        if found is not None:
            assert (cluster.offsets_at({partition: NOON}), cluster.first_at({partition: NOON})) == (
                {partition: found},
                {partition: None},
            )
            return
        for ask in (cluster.offsets_at, cluster.first_at):
            with pytest.raises(SettingsError, match="the partition does not confirm it"):
                ask({partition: NOON})
