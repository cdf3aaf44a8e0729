"""Runs under `group.mode: join` on real servers, as members in ZooKeeper and of Kafka's coordinator
together with other consumers; runs that a coordinator rejects; and the contract of members on a
real coordinator. `long`: the laws of static members among others, which wait for sessions.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.group_offsets import FencedOffsetCommit
from etl.io.brokers.member_state import MemberTerms
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import MemberAssignment
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.conftest import TopicFactory
from tests.fakes.member_contract import PARTITIONS, MemberContract, Stage, new_group
from tests.system.driving import Pipeline
from tests.system.other_members import MEMBER, OtherMember, another_member, at_first
from tests.traffic.modern import grow_topic

pytestmark = pytest.mark.without_spark


def test_a_run_with_a_registered_consumer_reads_its_assignment_and_reports_the_others_offsets(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(
        group={"mode": "join", "join": {"instance_id": "a", "leave_after": "commit"}}
    )
    pipeline.produce(80)
    paths = GroupPaths(pipeline.group)
    topics = '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}'
    registration = (topics % pipeline.topic).encode()
    with ZooKeeper(pipeline.cluster.zookeeper_connect) as other:
        path = f"{paths.consumer_ids}/{pipeline.group}_z"
        other.client.create(path, registration, ephemeral=True, makepath=True)
        doctor = pipeline.door("doctor")
        shares = "a run shares the partitions with live consumers: "
        assert doctor.code == 0 and f"{shares}{pipeline.group}_z" in doctor.out
        result = pipeline.ran()
        assert result.outcomes == ["owned_by_others", "ingested"]
        assert pipeline.committed() == {0: 20, 1: 20}
        assert {partition for partition, _, _ in pipeline.in_table()} == {0, 1}
        assert other.children(paths.consumer_ids) == [f"{pipeline.group}_z"]
        assert not other.children(paths.owners_of(pipeline.topic))
        membership = result.document["statistics"]["membership"]
        assert (membership["rebalances"], membership["lost"]) == (1, 0)
        pipeline.produce(80)
        offsets = paths.offsets_of(pipeline.topic)
        other.client.create(f"{offsets}/2", b"5")
        other.client.create(f"{offsets}/3", b"40")
        other.client.set(f"{offsets}/0", b"25")
        rows = pipeline.door("offsets", "diff").document["rows"]
        [row] = [row for row in rows if row["partition"] == 0]
        assert row["difference"] == "read on by others"
        assert row["next_run"] == (
            "continues at the committed offset if the partition is in its assignment, and reports "
            "what other members read"
        )
    assert pipeline.ran().outcomes == ["offsets_left_to_members", "ingested"]
    read = Counter(partition for partition, _, _ in pipeline.in_table())
    assert read == {0: 35, 1: 40, 2: 35} and pipeline.committed() == dict.fromkeys(range(4), 40)


@pytest.mark.usefixtures("spark")
def test_with_a_foreign_consumer_each_record_is_read_by_one_member_also_after_a_rejected_commit(
    make_pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = make_pipeline()
    member.everywhere = MEMBER
    member.produce(80)
    assert member.ran().outcomes == ["ingested"], "alone it reads every partition"
    shares = list[MemberAssignment]()

    def joined(share: MemberAssignment) -> None:
        shares.append(share)
        member.produce(40)

    with contextlib.ExitStack() as others:
        other = others.enter_context(another_member(member))
        other.owns(4)
        member.produce(40)
        other.has_read(40)
        doctor = member.door("doctor")
        assert doctor.code == 0
        assert "a run shares the partitions with live consumers: rdkafka-" in doctor.out
        at_first(CoordinatedMember, "join", monkeypatch, joined, before=False)
        result = member.ran()
        assert result.outcomes == ["owned_by_others", "offsets_left_to_members", "ingested"]
        assert len(shares[0].partitions) == 2
        assert result.document["statistics"]["membership"]["lost"] == 0
        late = list[OtherMember]()

        def comes(_: Any) -> None:
            late.append(others.enter_context(another_member(member)))
            late[0].owns(1)

        at_first(CoordinatedMember, "join", monkeypatch, joined, before=False)
        at_first(FencedOffsetCommit, "hand_over", monkeypatch, comes, before=True)
        assert "rebalanced" in member.ran().outcomes
    member.produce(40)
    assert member.ran().outcomes[-1] == "ingested"
    union = member.in_table() + other.read + late[0].read
    assert union == member.in_topic() and max(union.values()) == 1
    verified = member.door("verify")
    assert verified.code == 0 and "read by other members of the group" in verified.out


@pytest.fixture
def stage(cluster: EmbeddedCluster, topic: TopicFactory) -> Stage:
    name = topic(PARTITIONS)
    terms = MemberTerms(
        new_group(), (name,), session_timeout_s=6, rebalance_timeout_s=20, join_timeout_s=60
    )
    return Stage([(HOST, cluster.brokers[0].port)], name, terms, grow=partial(grow_topic, cluster))


class TestMembers:
    """The laws of members that come and go."""

    test_alone = MemberContract.test_alone_in_a_group_a_member_owns_every_log_and_so_does_the_next_one_after_its_leave
    test_two = (
        MemberContract.test_two_members_divide_the_logs_and_one_that_leaves_gives_all_to_the_other
    )
    test_a_static_one = (
        MemberContract.test_a_static_member_that_returns_has_its_logs_and_no_other_member_rebalances
    )


@pytest.mark.long
class TestStaticMembers(MemberContract):
    """All of them."""
