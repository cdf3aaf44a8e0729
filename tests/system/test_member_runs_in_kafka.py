"""Runs that are members of a Kafka group together with another consumer: each record is read by one
of them, and once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.group_offsets import FencedOffsetCommit
from etl.model.partitions import MemberAssignment
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before
from tests.system.other_members import MEMBER, OtherMember, another_member, at_first

pytestmark = pytest.mark.without_spark


@pytest.fixture
def member(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline that is a member of Kafka's own group, and has loaded 20 records of each of four
    partitions while it was alone.
    """
    pipeline = make_pipeline()
    pipeline.everywhere = MEMBER
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    return pipeline


def test_with_a_foreign_consumer_each_record_is_read_by_one_of_us_and_a_void_plan_by_no_member(
    member: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert (
            doctor.code == 0
            and "a run shares the partitions with live consumers: rdkafka-" in doctor.out
        )
        at_first(CoordinatedMember, "join", monkeypatch, joined, before=False)
        result = member.ran()
        assert (
            result.outcomes == ["owned_by_others", "offsets_left_to_members", "ingested"]
            and len(shares[0].partitions) == 2
        )
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


def test_brokers_by_name_are_joined_too_and_keys_of_newer_releases_are_rejected(
    member: Pipeline,
) -> None:
    member.settings = {"source": {"bootstrap_servers": [member.cluster.bootstrap]}}
    member.produce(80)
    assert member.ran().outcomes == ["ingested"] and member.is_whole()
    member.settings = {"group": {"join": {"protocol": "consumer"}}}
    refused(
        member.run(),
        2,
        "protocol: consumer needs brokers of 4.0 or later; the brokers are Kafka 3.9",
    )


def test_an_offset_that_a_run_did_not_commit_after_its_append_is_committed_by_the_next_run(
    member: Pipeline,
) -> None:
    member.settings = {"group": {**MEMBER["group"], "join": {"commit_when": "after_append"}}}
    member.produce(80)
    broken_off_before("commit", member)
    assert "plan_completed" in member.ran().outcomes and member.is_whole()
