"""The other members of a group in memory, and a driver that is a member with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from etl.errors import Owned
from etl.io.zookeeper.ledger import Check
from etl.io.zookeeper.owners import OUR_VERSION
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import (
    MemberAssignment,
    Membership,
    OffsetsStorage,
    RebalanceStatistics,
    TopicPartition,
)
from etl.run.service_interfaces import Member
from tests.fakes.outside import Outside
from tests.fakes.world import Crash, FakeWorld
from tests.fakes.znode_views import GROUP

OTHERS = "group_consumer-1-0"


@dataclass
class Others:
    """Other consumers: they own what ours do not own, and read as far as requested."""

    outside: Outside
    read: dict[TopicPartition, set[int]] = field(default_factory=dict)

    def own(self, *partitions: TopicPartition) -> None:
        self.outside.owners.update(dict.fromkeys(partitions, OTHERS))
        self.outside.group.join(OTHERS)

    def consume(self, partition: TopicPartition, count: int) -> None:
        """Read on from the group's offset, and commit."""
        in_kafka = self.outside.offsets_in is OffsetsStorage.KAFKA
        if in_kafka:
            start = self.outside.kept.get(partition, (0, ""))[0]
        else:
            start = self.outside.offsets.get(partition, (0, 0))[0]
        assert (
            self.outside.owners.get(partition) == OTHERS
            and start + count <= self.outside.logs[partition].end
        )
        self.read.setdefault(partition, set()).update(range(start, start + count))
        if in_kafka:
            self.outside.kept[partition] = start + count, ""
        else:
            self.outside.move_offset(partition, start + count)


class FakeMember:
    """A `Member`; `shares` of its rebalances in turn; None: the group does not settle."""

    def __init__(
        self, world: FakeWorld, shares: Collection[Collection[TopicPartition] | None]
    ) -> None:
        self._world, self._shares = world, list(shares)
        self._member_id: str | None = None
        self.instance_id: str | None = None
        self.calls: list[str] = []
        self.lost = 0
        self.overtaken = 0
        """How many of the next looks a rebalance overtakes."""

    def join(self) -> MemberAssignment:
        return self._settle("join")

    def rejoin(self) -> MemberAssignment:
        return self._settle("rejoin")

    @property
    def is_current(self) -> bool:
        self.overtaken -= 1
        return self.overtaken < 0

    def follow(self) -> None:
        self.calls.append("follow")

    def leave(self) -> None:
        self.calls.append("leave")
        if isinstance(sys.exception(), Crash):
            return  # a dead member sends nothing
        self._let_go()
        if self._member_id:
            self._world.outside.group.end(self._member_id)
        self._member_id = None

    def owner_checks(self, partitions: Collection[TopicPartition]) -> list[Check]:
        paths = GroupPaths(GROUP)
        return [Check(paths.owner(partition), OUR_VERSION) for partition in sorted(partitions)]

    @property
    def statistics(self) -> RebalanceStatistics:
        return RebalanceStatistics(lost=self.lost)

    def _settle(self, how: str) -> MemberAssignment:
        self.calls.append(how)
        self._let_go()
        partitions = self._shares.pop(0) if self._shares[1:] else self._shares[0]
        if partitions is None:
            raise Owned("the group does not settle")
        outside = self._world.outside
        outside.owners.update(dict.fromkeys(partitions, self._world.name))
        if outside.offsets_in is not OffsetsStorage.KAFKA:
            return MemberAssignment("m", Membership.ZOOKEEPER, "range", None, frozenset(partitions))
        if self._member_id is None:
            outside.group.made += 1
            self._member_id = f"ours-{outside.group.made}"
        generation = outside.group.join(self._member_id)
        return MemberAssignment(
            self._member_id,
            Membership.COORDINATOR,
            "range",
            generation,
            frozenset(partitions),
            self.instance_id,
        )

    def _let_go(self) -> None:
        owners = self._world.outside.owners
        for partition in [
            partition for partition, owner in owners.items() if owner == self._world.name
        ]:
            del owners[partition]


def member_with(
    *shares: Collection[TopicPartition] | None,
    made: Callable[[FakeMember], object] = lambda member: None,
) -> Callable[[FakeWorld], Member]:
    """What a `FakeWorld` makes its member of; `made` sees it."""

    def member(world: FakeWorld) -> Member:
        found = FakeMember(world, shares)
        made(found)
        return found

    return member
