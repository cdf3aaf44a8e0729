"""Groups in Kafka: `group.offsets_storage: kafka`, `group.mirror_group`, live consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before
from tests.system.live_consumers import committed_by_another, consuming, offsets_of

pytestmark = pytest.mark.without_spark


def test_offsets_are_committed_in_kafka_with_our_metadata_and_a_crash_before_them_is_repaired(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(group={"offsets_storage": "kafka"})

    def offsets() -> set[int]:
        return {offset for offset, _ in offsets_of(pipeline, pipeline.group).values()}

    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    [metadata] = {metadata for _, metadata in offsets_of(pipeline, pipeline.group).values()}
    assert metadata.startswith("etl:clicks:1:")
    assert offsets() == {20} and pipeline.committed() == {}
    pipeline.produce(80)
    broken_off_before("commit", pipeline)
    assert offsets() == {20}
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["plan_completed", "ingested"]
    assert offsets() == {60} and pipeline.is_whole()
    shown = pipeline.door("offsets", "show").document["partitions"]
    assert {row["committed"] for row in shown} == {60}
    assert pipeline.door("doctor").code == 0 and pipeline.door("offsets", "diff").code == 0


def test_positions_are_mirrored_into_a_group_of_kafka_and_offsets_of_others_stay(
    pipeline: Pipeline,
) -> None:
    mirrored = f"{pipeline.group}-lag"
    pipeline.settings = {"group": {"mirror_group": mirrored}}
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    mark = f"etl:{pipeline.group}/clicks"
    assert offsets_of(pipeline, mirrored) == dict.fromkeys(range(4), (20, f"{mark}:1"))
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"], "a group without members is not alive"
    written = dict.fromkeys(range(4), (40, f"{mark}:2"))
    assert offsets_of(pipeline, mirrored) == written
    lines = {line["name"]: line for line in pipeline.door("doctor").document["checks"]}
    assert lines["mirror group"]["verdict"] == "ok" and mirrored in lines["mirror group"]["found"]

    other_group = replace(pipeline, group=f"{mirrored}-2")
    committed_by_another(other_group, {1: 7})
    pipeline.settings = {"group": {"mirror_group": other_group.group}}
    assert pipeline.ran().outcomes == ["up_to_date", "not_mirrored"]
    assert offsets_of(pipeline, other_group.group) == {**written, 1: (7, "mine")}

    pipeline.settings = {"group": {"mirror_group": mirrored}}
    with consuming(pipeline, mirrored, partitions=4):
        lines = {line["name"]: line for line in pipeline.door("doctor").document["checks"]}
        assert (
            lines["mirror group"]["verdict"] == "advice"
            and "1 live consumer" in lines["mirror group"]["found"]
        )
        pipeline.produce(80)
        result = pipeline.ran()
        assert result.outcomes == ["ingested", "not_mirrored"]
        assert "has live members in Kafka, and they alone commit its offsets" in result.out
    assert offsets_of(pipeline, mirrored) == written
    assert pipeline.committed() == {partition: 60 for partition in range(4)}


def test_a_live_consumer_of_the_group_stops_the_run_or_keeps_its_partitions(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(partitions=2)
    pipeline.produce(40, partitions=2)

    def group_lines() -> list[dict[str, str]]:
        checks = pipeline.door("doctor").document["checks"]
        return [line for line in checks if line["name"] == "group"]

    with consuming(pipeline, pipeline.group, partitions=2):
        pipeline.settings = {"group": {"on_active_members": "fail"}}
        refused(pipeline.run(), 4, "Live consumers are registered in the group: other-consumer-")
        line = group_lines()[0]
        assert line["verdict"] == "failed" and "other-consumer-" in line["found"]

        pipeline.settings = {"group": {"on_active_members": "skip"}}
        result = pipeline.ran()
        assert "owned_by_others" in result.outcomes and "other-consumer-" in result.out
        assert not pipeline.in_table()
        assert [line["verdict"] for line in group_lines()] == ["advice", "advice"]
    assert pipeline.door("run", after=["--dry-run"]).document["records_at_most"] == 40
