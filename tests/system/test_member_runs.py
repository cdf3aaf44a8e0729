"""Runs under `group.mode: join` on real servers: they own what the group gives them, and the
group's offsets move with the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import GroupPaths
from tests.command_result import run_etl
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark


def test_a_run_with_a_registered_consumer_reads_its_assignment_and_names_the_offsets_of_the_other(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(
        group={"mode": "join", "join": {"instance_id": "a", "leave_after": "commit"}}
    )
    pipeline.produce(80)
    paths = GroupPaths(pipeline.group)
    registration = (
        '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % pipeline.topic
    )
    with ZooKeeper(pipeline.cluster.zookeeper_connect) as other:
        other.client.create(
            f"{paths.consumer_ids}/{pipeline.group}_z",
            registration.encode(),
            ephemeral=True,
            makepath=True,
        )
        doctor = pipeline.door("doctor")
        assert (
            doctor.code == 0
            and f"a run shares the partitions with live consumers: {pipeline.group}_z" in doctor.out
        )
        result = pipeline.ran()
        assert result.outcomes == ["owned_by_others", "ingested"]
        assert pipeline.committed() == {0: 20, 1: 20} and {
            row[0] for row in pipeline.in_table()
        } == {0, 1}
        assert other.children(paths.consumer_ids) == [f"{pipeline.group}_z"] and not other.children(
            paths.owners_of(pipeline.topic)
        )
        membership = result.document["statistics"]["membership"]
        assert (membership["rebalances"], membership["lost"]) == (1, 0)
        pipeline.produce(80)
        for partition, offset in {2: 5, 3: 40}.items():
            other.client.create(
                f"{paths.offsets_of(pipeline.topic)}/{partition}", str(offset).encode()
            )
        other.client.set(f"{paths.offsets_of(pipeline.topic)}/0", b"25")
        rows = run_etl("offsets", "diff", str(pipeline.conf), "--json").document["rows"]
        assert [(r["difference"], r["next_run"]) for r in rows if r["partition"] == 0] == [
            (
                "read on by others",
                "continues at the committed offset if the partition is in its assignment, "
                "and reports what other members read",
            )
        ]
    assert pipeline.ran().outcomes == ["offsets_left_to_members", "ingested"]
    read = Counter(partition for partition, _, _ in pipeline.in_table())
    assert read == {0: 35, 1: 40, 2: 35} and pipeline.committed() == dict.fromkeys(range(4), 40)
