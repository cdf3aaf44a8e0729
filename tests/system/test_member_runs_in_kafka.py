"""Runs that are members of a Kafka group together with another consumer: each record is read by one
of them, and once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etl.commands.run import run
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.group_offsets import FencedOffsetCommit
from etl.model.partitions import MemberAssignment
from etl.run import live_services
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import BrokenOff, Pipeline, break_off, broken_off_before
from tests.system.live_consumers import committed_by_another, offsets_of
from tests.system.other_members import MEMBER, OtherMember, another_member, at_first
from tests.traffic.modern import grow_topic

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
    member: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
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
            and len(shares[0].logs) == 2
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


def static(member: Pipeline, strategy: str = "range", session_timeout_s: int = 25) -> None:
    """Make the pipeline's runs a static member."""
    join = {
        "instance_id": "driver",
        "session_timeout_s": session_timeout_s,
        "assignment_strategy": strategy,
    }
    member.settings = {"group": {**MEMBER["group"], "join": join}}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_static_run_that_comes_back_loads_partitions_that_were_added_between_the_runs(
    make_pipeline: Callable[..., Pipeline],
    strategy: str,
) -> None:
    pipeline = make_pipeline(partitions=1)
    pipeline.everywhere = MEMBER
    static(pipeline, strategy)
    pipeline.produce(20, partitions=1)
    assert pipeline.ran().outcomes == ["ingested"]
    grow_topic(pipeline.cluster, pipeline.topic, 3)
    pipeline.produce(60, partitions=3)
    result = pipeline.ran()
    assert (result.outcomes, "left to" in result.err + result.out) == (["ingested"], False)
    assert pipeline.is_whole() and pipeline.door("verify").code == 0


def test_a_static_run_that_comes_back_loads_a_topic_that_was_made_between_the_runs(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline(partitions=1)
    pipeline.everywhere = MEMBER
    static(pipeline)
    pipeline.settings["source"] = {"topics": [f"{pipeline.topic}.*"]}
    pipeline.produce(20, partitions=1)
    assert pipeline.ran().outcomes == ["ingested"]
    pipeline.cluster.create_topic(f"{pipeline.topic}-more", 1)
    later = replace(pipeline, topic=f"{pipeline.topic}-more", produced=0)
    later.produce(10, partitions=1)
    assert pipeline.ran().outcomes == ["ingested"]
    pipeline.settings["source"] = {"topics": [f"{pipeline.topic}-more"]}
    later.produce(10, partitions=1)
    assert pipeline.ran().outcomes == ["ingested"], "a conf with fewer topics, within the session"
    assert pipeline.in_table().total() == 40


def test_a_run_that_dies_before_its_commit_is_recognized_by_the_offsets(member: Pipeline) -> None:
    member.produce(80)
    broken_off_before("hand_over", member)
    assert {at for at, _ in offsets_of(member, member.group).values()} == {20}
    assert member.ran().outcomes == ["plan_superseded", "ingested"], (
        "it is known to be void before the run plans"
    )
    assert member.is_whole() and member.door("verify").code == 0


@pytest.mark.long
@pytest.mark.parametrize("step", ["hand_over", "claiming", "append"])
def test_no_run_waits_for_the_session_of_a_killed_run(member: Pipeline, step: str) -> None:
    """The next run ends its membership; its session is longer than a run's wait for partitions."""
    member.settings = {
        "group": {**MEMBER["group"], "join": {"session_timeout_s": 120, "join_timeout_s": 60}}
    }
    member.produce(80)
    assert member.killed_before(step) == -signal.SIGKILL
    at = {number for number, _ in offsets_of(member, member.group).values()}
    assert at == ({20} if step == "hand_over" else {40})
    with another_member(member) as other:
        assert (
            "plan_superseded" if step == "hand_over" else "plan_resumed"
        ) in member.ran().outcomes
        member.produce(80)
        other.has_read(1)
    member.ran()
    union = member.in_table() + other.read
    assert (
        union == member.in_topic() and max(union.values()) == 1 and member.door("verify").code == 0
    )


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="they read it", marks=pytest.mark.long),
        pytest.param(["--assume-offsets-committed"], id="not"),
    ],
)
def test_in_doubt_an_operator_decides_which_reader_has_the_offsets_of_a_dead_runs_plan(
    member: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    member.produce(80)
    with monkeypatch.context() as patched, pytest.raises(BrokenOff):
        patched.setattr(live_services, "write_mark", lambda *given: break_off())
        run(load_settings(member.conf))
    member.produce(80)
    committed_by_another(member, {partition: 50 for partition in range(4)})
    refused(
        member.run(),
        5,
        "The result of the offset commit of plan 2 is unknown",
        "--assume-offsets-committed",
    )
    assert (
        member.door("plans", "supersede", after=["2", "--reason", "looked", "--yes", *words]).code
        == 0
    )
    assert member.ran().outcomes == [
        "plan_resumed",
        "ingested" if words else "offsets_stored",
        "offsets_left_to_members",
        "ingested",
    ]
    assert member.in_table().total() == (40 * 4 if words else 20 * 4) + 10 * 4
    assert member.door("verify").code == 0
    refused(
        member.door(
            "plans",
            "supersede",
            after=["3", "--reason", "looked", "--yes", "--assume-offsets-committed"],
        ),
        5,
        "Plan 3 is in the table",
    )


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
