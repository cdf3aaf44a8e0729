"""The contract of our members with a coordinator, for the fake and for real brokers."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.model.partitions import GroupProtocol, MemberAssignment, TopicPartition

PARTITIONS = 4
_WITHIN_S = 60
_numbers = itertools.count(1)


@dataclass
class Stage:
    """Brokers with a topic, and as what members join."""

    bootstrap: Sequence[tuple[str, int]]
    topic: str
    terms: MemberTerms
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    static_session_s: float = 20
    """Longer than the time in which a static member is away, however slow the machine is."""
    grow: Callable[[str, int], None] = field(default=lambda topic, partitions: None)

    @property
    def logs(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self.topic, number) for number in range(PARTITIONS))

    def member(self, **changed: Any) -> CoordinatedMember:
        return CoordinatedMember(
            self.bootstrap, replace(self.terms, **changed), protocol=self.protocol
        )

    @contextlib.contextmanager
    def joined(self, **changed: Any) -> Iterator[tuple[CoordinatedMember, MemberAssignment]]:
        member = self.member(**changed)
        try:
            yield member, member.join()
        finally:
            member.leave()


def existing_partitions(topic: str, partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in range(partitions))


def new_group() -> str:
    return f"members-{next(_numbers)}-{time.time_ns()}"


def eventually(
    member: CoordinatedMember, is_so: Callable[[MemberAssignment], bool]
) -> MemberAssignment:
    """The assignment once it has this form: our member observes again after each event."""
    deadline = time.monotonic() + _WITHIN_S
    share = member.rejoin()
    while not is_so(share):
        assert time.monotonic() < deadline, share
        time.sleep(0.01)
        share = share if member.is_current else member.rejoin()
    return share


class MemberContract:
    """The laws of the contract. Each suite provides a fixture `stage`."""

    def test_alone_in_a_group_a_member_owns_every_log_and_so_does_the_next_one_after_its_leave(
        self, stage: Stage
    ) -> None:
        with stage.joined() as (member, share):
            assert (share.partitions, member.is_current) == (stage.logs, True)
            assert member.rejoin() == share, "nothing was wrong with it"
            statistics = member.statistics
            assert (statistics.rebalances, statistics.lost) == (
                1,
                0,
            ) and statistics.heartbeat_age_s is not None
        assert not member.is_current
        with stage.joined() as (_, share):
            assert share.partitions == stage.logs, "the group does not wait for a member that left"

    def test_two_members_divide_the_logs_and_one_that_leaves_gives_all_to_the_other(
        self, stage: Stage
    ) -> None:
        with stage.joined() as (first, alone):
            with stage.joined() as (second, _):
                theirs = eventually(second, lambda share: len(share.partitions) == PARTITIONS // 2)
                assert not first.is_current, "its last share is over"
                ours = eventually(first, lambda share: len(share.partitions) == PARTITIONS // 2)
                assert (
                    ours.partitions | theirs.partitions == stage.logs
                    and not ours.partitions & theirs.partitions
                )
                assert ours.generation != alone.generation and ours.member_id == alone.member_id
                first.follow()
            assert (
                eventually(first, lambda share: share.partitions == stage.logs).generation
                != ours.generation
            )
            assert first.statistics.rebalances >= 3

    def test_a_static_member_that_returns_has_its_logs_and_no_other_member_rebalances(
        self, stage: Stage
    ) -> None:
        with stage.joined() as (other, _), stage.joined(instance_id="static") as (static, _):
            before = eventually(static, lambda share: len(share.partitions) == PARTITIONS // 2)
            theirs = eventually(
                other, lambda share: share.partitions == stage.logs - before.partitions
            )
            static.leave()
            with stage.joined(instance_id="static") as (_, back):
                assert (back.partitions, back.instance_id) == (before.partitions, "static")
                assert other.rejoin().partitions == theirs.partitions
                assert (
                    stage.protocol is GroupProtocol.CONSUMER
                    or other.rejoin().generation == theirs.generation
                )

    @pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
    def test_a_static_member_alone_in_its_group_comes_back_to_partitions_that_were_added(
        self, stage: Stage, strategy: str
    ) -> None:
        terms: dict[str, Any] = {
            "instance_id": "static",
            "strategies": (strategy,),
            "session_timeout_s": stage.static_session_s,
        }
        with stage.joined(**terms) as (_, before):
            assert before.partitions == stage.logs
        stage.grow(stage.topic, PARTITIONS + 2)
        with stage.joined(**terms) as (_, back):
            assert back.partitions == existing_partitions(stage.topic, PARTITIONS + 2)
        with stage.joined(**terms) as (_, again):
            assert again.partitions == back.partitions
            assert again.generation == back.generation, "nothing changed, so there is no rebalance"

    @pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
    def test_a_static_leader_that_returns_among_others_assigns_the_added_partitions(
        self, stage: Stage, strategy: str
    ) -> None:
        terms: dict[str, Any] = {
            "strategies": (strategy,),
            "session_timeout_s": stage.static_session_s,
        }
        with (
            stage.joined(instance_id="static", **terms) as (leader, _),
            stage.joined(**terms) as (other, _),
        ):
            half = eventually(leader, lambda share: len(share.partitions) == PARTITIONS // 2)
            theirs = eventually(
                other, lambda share: share.partitions == stage.logs - half.partitions
            )
            leader.leave()
            with stage.joined(instance_id="static", **terms) as (same, back):
                assert back.partitions == half.partitions
                assert (
                    other.rejoin().generation == theirs.generation
                    or stage.protocol is GroupProtocol.CONSUMER
                )
                same.leave()
            stage.grow(stage.topic, PARTITIONS + 2)
            with stage.joined(instance_id="static", **terms) as (again, _):
                ours = eventually(again, lambda share: len(share.partitions) == PARTITIONS // 2 + 1)
                everything = existing_partitions(stage.topic, PARTITIONS + 2)
                eventually(other, lambda share: share.partitions == everything - ours.partitions)

    def test_a_static_leader_that_returns_assigns_partitions_added_later(
        self, stage: Stage
    ) -> None:
        with stage.joined(instance_id="static", session_timeout_s=stage.static_session_s):
            pass
        terms: dict[str, Any] = {
            "instance_id": "static",
            "session_timeout_s": stage.static_session_s,
            "topics_max_age_s": 0.05,
        }
        with stage.joined(**terms) as (member, back):
            assert back.partitions == stage.logs
            stage.grow(stage.topic, PARTITIONS + 2)
            eventually(
                member,
                lambda share: share.partitions == existing_partitions(stage.topic, PARTITIONS + 2),
            )

    @pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
    def test_a_static_member_that_comes_back_with_other_topics_gets_these_and_no_others(
        self, stage: Stage, is_leader: bool
    ) -> None:
        more = f"{stage.topic}-more"
        stage.grow(more, 2)
        with contextlib.ExitStack() as members:
            if not is_leader:
                members.enter_context(stage.joined(session_timeout_s=stage.static_session_s))
            for topics in ((stage.topic,), (stage.topic, more), (more,)):
                with stage.joined(
                    instance_id="static", session_timeout_s=stage.static_session_s, topics=topics
                ) as (member, _):
                    eventually(
                        member,
                        lambda share: (
                            {partition.topic for partition in share.partitions} == set(topics)
                        ),
                    )
