"""Positions mirrored into a group of Kafka's own, on a real broker, as another client's
administration tool sees them.
"""

from __future__ import annotations

import contextlib

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.system.driving import Pipeline
from tests.system.live_consumers import consuming, offsets_of

pytestmark = pytest.mark.without_spark


def test_positions_are_seen_in_a_group_of_kafkas_own_and_those_of_others_stay(
    pipeline: Pipeline,
) -> None:
    mirrored = f"{pipeline.group}-lag"
    pipeline.settings = {"group": {"mirror_group": mirrored}}
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    assert offsets_of(pipeline, mirrored) == {
        partition: (20, f"etl:{pipeline.group}/clicks:1") for partition in range(4)
    }
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"], (
        "a group with offsets and no members is not alive"
    )
    assert offsets_of(pipeline, mirrored) == {
        partition: (40, f"etl:{pipeline.group}/clicks:2") for partition in range(4)
    }
    lines = {line["name"]: line for line in pipeline.door("doctor").document["checks"]}
    assert lines["mirror group"]["verdict"] == "ok" and mirrored in lines["mirror group"]["found"]

    consumer = KafkaConsumer(
        bootstrap_servers=pipeline.cluster.bootstrap,
        group_id=f"{mirrored}-2",
        enable_auto_commit=False,
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(pipeline.topic, 1)])
        consumer.commit({TopicPartition(pipeline.topic, 1): OffsetAndMetadata(7, "mine", -1)})
    pipeline.settings = {"group": {"mirror_group": f"{mirrored}-2"}}
    assert pipeline.ran().outcomes == ["up_to_date", "not_mirrored"]
    written = {partition: (40, f"etl:{pipeline.group}/clicks:2") for partition in range(4)}
    assert offsets_of(pipeline, f"{mirrored}-2") == {**written, 1: (7, "mine")}

    pipeline.settings = {"group": {"mirror_group": mirrored}}
    with consuming(pipeline, mirrored, partitions=4):
        lines = {line["name"]: line for line in pipeline.door("doctor").document["checks"]}
        assert (
            lines["mirror group"]["verdict"] == "advice"
            and "1 live consumer" in lines["mirror group"]["found"]
        )
        pipeline.produce(80)
        result = pipeline.ran()
        assert result.outcomes == [
            "ingested",
            "not_mirrored",
        ] and "has live members in Kafka, and they alone commit its offsets" in str(
            result.document["outcomes"]
        )
    assert offsets_of(pipeline, mirrored) == written
    assert pipeline.committed() == {partition: 60 for partition in range(4)}
