"""Runs under `group.mode: join` on real servers: they own what the group gives them, and the
group's offsets move with the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import GroupPaths
from tests.command_result import CommandResult, refused, run_etl
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


def test_a_position_is_set_by_a_member_in_one_step_and_not_in_a_partition_of_another(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(
        group={"mode": "join", "join": {"instance_id": "a", "leave_after": "commit"}}
    )
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    pipeline.produce(80)
    paths = GroupPaths(pipeline.group)
    registration = (
        '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % pipeline.topic
    )

    def setting(log: str, to: str) -> CommandResult:
        return run_etl(
            "offsets",
            "set",
            str(pipeline.conf),
            "-p",
            f"{pipeline.topic}{log}",
            "--to",
            to,
            "--reason",
            "r",
            "--yes",
            "--json",
        )

    with ZooKeeper(pipeline.cluster.zookeeper_connect) as other:
        other.client.create(
            f"{paths.consumer_ids}/{pipeline.group}_z", registration.encode(), ephemeral=True
        )
        refused(setting(":3", "30"), 4, "The partition is owned by another member of the group")
        result = setting(":0", "30")
        assert result.code == 0 and result.document["plan"]["number"] == 2, result.err
        assert pipeline.committed() == {0: 30, 1: 20, 2: 20, 3: 20}, (
            "with the plan, before anybody executes it"
        )
        assert other.children(paths.consumer_ids) == [f"{pipeline.group}_z"] and not other.children(
            paths.owners_of(pipeline.topic)
        )
        refused(
            setting("", "latest"),
            5,
            "The offsets of plan 2 are committed, and the plan is not in the table",
        )
        retired = run_etl(
            "pipelines", "retire", str(pipeline.conf), "clicks", "--reason", "r", "--json"
        )
        refused(
            retired,
            5,
            "The offsets of plan 2 of clicks are committed",
            "no other member reads its ranges",
        )
    assert "ingested" in pipeline.ran().outcomes
    assert Counter(partition for partition, _, _ in pipeline.in_table()) == {
        0: 30,
        1: 40,
        2: 40,
        3: 40,
    }
    assert pipeline.committed() == dict.fromkeys(range(4), 40)
    with ZooKeeper(pipeline.cluster.zookeeper_connect) as other:
        other.client.set(f"{paths.offsets_of(pipeline.topic)}/1", b"7")
    refused(pipeline.run(), 5, "it is 7, ours is 40")
    restored = run_etl("ledger", "restore", str(pipeline.conf), "--reason", "r", "--yes", "--json")
    assert restored.code == 0 and pipeline.committed() == dict.fromkeys(range(4), 40), (
        "and so is an offset that is restored"
    )
    assert pipeline.ran().code == 0 and sum(pipeline.in_table().values()) == 150, (
        "and nothing comes twice"
    )


@pytest.mark.long
def test_a_pipeline_inherits_one_of_its_group_after_offsets_of_others_without_live_members(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(
        group={"mode": "join", "join": {"instance_id": "a", "leave_after": "commit"}}
    )
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    pipeline.produce(80)
    paths = GroupPaths(pipeline.group)
    registration = (
        '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % pipeline.topic
    )
    pipeline.settings["pipeline"] = "heir"

    def take_over() -> CommandResult:
        words = "--predecessor", f"{pipeline.group}/clicks", "--reason", "r", "--yes", "--json"
        return run_etl("pipelines", "inherit", str(pipeline.conf), *words)

    with ZooKeeper(pipeline.cluster.zookeeper_connect) as other:
        other.client.set(f"{paths.offsets_of(pipeline.topic)}/3", b"25")
        other.client.create(
            f"{paths.consumer_ids}/{pipeline.group}_z", registration.encode(), ephemeral=True
        )
        refused(take_over(), 4, "The partition is owned by another member of the group")
    result = take_over()
    assert result.code == 0 and pipeline.committed() == {0: 20, 1: 20, 2: 20, 3: 25}, result.err
    assert pipeline.ran().outcomes[-2:] == ["offsets_left_to_members", "ingested"]
    assert Counter(partition for partition, _, _ in pipeline.in_table()) == {
        0: 40,
        1: 40,
        2: 40,
        3: 35,
    }
    assert pipeline.door("verify").code == 0
