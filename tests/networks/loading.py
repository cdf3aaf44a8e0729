"""What every way in must let a pipeline do."""

from __future__ import annotations

from etl import Consumer
from tests.system.driving import Pipeline


def loads(pipeline: Pipeline) -> None:
    """Two runs, and what proves them right."""
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    assert pipeline.is_whole()
    assert pipeline.door("verify").code == 0


def peeks(pipeline: Pipeline) -> None:
    """Three records, for a person."""
    result = pipeline.door("records", "show", after=["-p", f"{pipeline.topic}:0", "-n", "3"])
    assert result.code == 0 and len(result.document["records"]) == 3, result.err + result.out


def consume(consumer: Consumer, topic: str, records: int, *, partitions: int = 4) -> None:
    """Subscribed, it reads that many, and commits all of them."""
    consumer.subscribe([topic])
    found = 0
    for _ in range(200):
        found += sum(map(len, consumer.poll(1).values()))
        if found == records:
            break
    assert found == records
    consumer.commit()
    assert (
        sum(consumer.committed([(topic, partition) for partition in range(partitions)]).values())
        == records
    )
