"""A run looks at its group from outside on a broker that has groups of both protocols: whoever is alive in it is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etl.model.membership import GroupProtocol
from tests.brokers.groups import Group, with_consumer_protocol
from tests.brokers.stage import KafkaStage
from tests.brokers.writing import ForeignPipeline, sent
from tests.said import refused


@pytest.mark.groups
@pytest.mark.parametrize("stage", ["4.1.0"], indirect=True)
@pytest.mark.parametrize("protocol", GroupProtocol)
@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_a_run_stops_for_a_live_member_of_either_protocol_and_goes_on_once_it_has_left(
    stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline], protocol: GroupProtocol, storage: str,
) -> None:
    with_consumer_protocol(stage.cluster)
    pipeline = make_pipeline(offsets={"storage": storage}, ownership={"wait_for_driver_s": 0})
    sent(pipeline, 8)
    group = Group(stage, pipeline.topic, protocol, "range", pipeline.group)
    with group.joined() as (_, share):
        refused(pipeline.run(), 4, f"live consumers are registered in the group: {share.member_id} at ")
        assert not pipeline.table.exists()
    assert "ingested" in pipeline.ran().outcomes
