"""A group in Kafka's coordinator, in memory: members, generations, fenced commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etl.decide.offsets import is_anothers
from etl.errors import OffsetMoved
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    MemberAssignment,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import Plan

if TYPE_CHECKING:
    from tests.fakes.outside import Outside


@dataclass
class FakeGroup:
    """One group. Every rebalance is another generation; a member stays until it is removed."""

    generation: int = 0
    members: set[str] = field(default_factory=set)
    made: int = 0
    """How many of ours there ever were."""

    def join(self, member_id: str) -> int:
        """A rebalance with this member in it: the generation."""
        self.members.add(member_id)
        self.generation += 1
        return self.generation

    def end(self, member_id: str) -> None:
        """A rebalance without it, where it was one."""
        if member_id in self.members:
            self.members.remove(member_id)
            self.generation += 1

    def fences(self, share: MemberAssignment) -> bool:
        return share.member_id not in self.members or share.generation != self.generation


def commit_fenced(out: Outside, plan: Plan) -> RejectedCommit | None:
    """One commit with the word of the plan, all of it or nothing."""
    assert plan.commit.member
    if out.group.fences(plan.commit.member):
        return RejectedCommit("the coordinator does not take us for its member any more")
    _keep(out, plan, plan.offsets_to_commit)
    return None


def commit_of_member(
    out: Outside, plan: Plan, partitions: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """The same after an append, by the membership of the plan: return the committed partitions."""
    assert plan.commit.member
    if out.group.fences(plan.commit.member):
        return []
    _keep(out, plan, partitions)
    return list(partitions)


def commit_as_owner(
    out: Outside, plan: Plan, partitions: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """By who owns these logs now: those that are as the plan saw them, or none."""
    kept = {partition: Committed(at, None, word) for partition, (at, word) in out.kept.items()}
    if any(
        kept.get(partition, NOTHING_COMMITTED) != plan.expected_commits[partition]
        for partition in partitions
    ):
        return []
    _keep(out, plan, partitions)
    return list(partitions)


def commit(out: Outside, plan: Plan, partitions: Sequence[TopicPartition]) -> None:
    """As `StoredOffsets.move` from outside the group: compared, then written."""
    after = {partition: plan.moved(partition).in_kafka for partition in partitions}
    now = {partition: Committed(at, None, word) for partition, (at, word) in out.kept.items()}
    for partition in partitions:
        found = now.get(partition, NOTHING_COMMITTED)
        if is_anothers(found, plan.expected_commits[partition].in_kafka, after[partition]):
            raise OffsetMoved("Another client moved the committed offset during the run")
    for partition in partitions:
        if now.get(partition, NOTHING_COMMITTED).offset != after[partition].offset:
            out.kept[partition] = after[partition].offset or 0, after[partition].metadata or ""


def _keep(out: Outside, plan: Plan, partitions: Sequence[TopicPartition]) -> None:
    for partition in partitions:
        out.kept[partition] = plan.loaded_until[partition], plan.commit_metadata
