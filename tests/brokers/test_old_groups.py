"""Old high-level consumers, from the jars of their release, before and after our runs on the same
group: nothing lost, nothing double.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from etl.testkit.brokers import JAFKA
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.brokers.writing import ForeignPipeline, in_table, many, sent

pytestmark = pytest.mark.brokers
of_old_consumers = pytest.mark.parametrize(
    "stage", [JAFKA, "0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1"], indirect=True
)


@of_old_consumers
def test_an_old_consumer_continues_at_our_offset_and_we_at_its_offset(
    stage: KafkaStage | JafkaStage,
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    """They read the records that the group has not read yet; then the group has read to the end."""
    pipeline = make_pipeline(group={"on_offset_changed": "follow"})
    first = sent(pipeline, 60)
    by_them = joined(stage, pipeline, 25)
    pipeline.ran()
    ours = in_table(pipeline)
    assert by_them + ours == first
    second = sent(pipeline, 40)
    assert joined(stage, pipeline, 40) == second, "the old consumer begins where our run ended"
    assert pipeline.in_zookeeper() == stage.ends(pipeline.topic), "and nothing is left to read"
    third = sent(pipeline, 30)
    pipeline.ran()
    assert in_table(pipeline) - ours == third, "and our run where the old consumer ended"
    assert pipeline.door("verify").code == 0


@of_old_consumers
def test_a_wrapper_that_an_old_consumer_left_in_its_middle_is_read_by_the_rules_of_its_log(
    stage: KafkaStage | JafkaStage,
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    """On Kafka each message inside has an offset of its own. On Jafka it has none: who stops inside
    an entry begins it anew.
    """
    pipeline = make_pipeline()
    packed = next(write for name, write in stage.writers.items() if name.endswith("gzip"))
    records = many(30)
    packed(pipeline.topic, 0, records)
    written = Counter(value for _, value in records)
    by_them = joined(stage, pipeline, 12)
    pipeline.ran()
    assert in_table(pipeline) == (written if isinstance(stage, JafkaStage) else written - by_them)
    assert pipeline.in_zookeeper() == stage.ends(pipeline.topic)


def joined(
    stage: KafkaStage | JafkaStage, pipeline: ForeignPipeline, count: int
) -> Counter[bytes | None]:
    """What an old consumer of the pipeline's group reads before it commits and goes: so many
    messages, in the order it likes.
    """
    if isinstance(stage, JafkaStage):
        return Counter(stage.clients.join(pipeline.group, pipeline.topic, count))
    assert stage.scala is not None
    return Counter(seen.value for seen in stage.scala.join(pipeline.group, pipeline.topic, count))
