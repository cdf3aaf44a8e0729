"""Runs under `ownership.mode: join` on real servers: they own what the group gives them, and the group's offsets move with the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from etl.edges.zookeeper.session import ZooKeeper
from etl.protocol.zookeeper.paths import GroupPaths
from tests.system.driving import Pipeline

WITHOUT_SPARK = {"table": {"writer": "auto"}, "limits": {"without_spark_below_bytes": 2**30}}


def test_a_run_beside_a_registered_consumer_reads_its_share_and_names_what_the_other_read(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline(ownership={"mode": "join", "member_id": "a", "backoff_s": 0.2, "stay": "share"})
    pipeline.everywhere = WITHOUT_SPARK
    pipeline.produce(80)
    paths = GroupPaths(pipeline.group)
    registration = '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % pipeline.topic
    with ZooKeeper(pipeline.cluster.zookeeper_connect) as other:
        other.client.create(f"{paths.consumer_ids}/{pipeline.group}_z", registration.encode(), ephemeral=True, makepath=True)
        doctor = pipeline.door("doctor")
        assert doctor.code == 0 and f"a run shares with live consumers: {pipeline.group}_z" in doctor.out
        said = pipeline.ran()
        assert said.outcomes == ["left to its owner", "ingested"]
        assert pipeline.committed() == {0: 20, 1: 20} and {row[0] for row in pipeline.in_table()} == {0, 1}
        assert other.children(paths.consumer_ids) == [f"{pipeline.group}_z"] and not other.children(paths.owners_of(pipeline.topic))
        membership = said.document["statistics"]["membership"]
        assert (membership["rebalances"], membership["lost"]) == (1, 0)
        pipeline.produce(80)
        for partition, offset in {2: 5, 3: 40}.items():
            other.client.create(f"{paths.offsets_of(pipeline.topic)}/{partition}", str(offset).encode())
        other.client.set(f"{paths.offsets_of(pipeline.topic)}/0", b"25")
    assert pipeline.ran().outcomes == ["read by others", "ingested"]
    read = Counter(partition for partition, _, _ in pipeline.in_table())
    assert read == {0: 35, 1: 40, 2: 35} and pipeline.committed() == dict.fromkeys(range(4), 40)
