"""What the leader of a group in Kafka's coordinator assigns to its members, as Kafka's own
assignors of the same names do. Pure functions.

    range                each topic by itself, its partitions by number cut into as many stretches as members read it
    roundrobin           all topics by name, each partition to the next member in turn that reads its topic
    sticky               as even as can be, and of what members had as much as can be
    cooperative-sticky   the same, but nothing is given to anybody while somebody else still has it: that follows in the next rebalance

The first two are written here: kafka-python 3.0.12 gives nothing to members without an instance id
that stand before one with it, and ends with KeyError where members read different topics. Members
with an instance id come first, by that id, the others behind them by member id. The sticky ones are
kafka-python's, whose executor asks nothing but the values that it is given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from etl.decisions.membership.java_order import java_order
from etl.errors import SettingsError
from etl.model.partitions import BrokerPartition

Assigned = dict[str, frozenset[BrokerPartition]]
"""By member id, every member of the group among them."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member as the leader is told of it when all have joined."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[BrokerPartition] = frozenset()
    """What it says that it has, for the sticky ones."""
    generation: int | None = None
    """Of which generation it has that; None where its metadata does not tell."""


def assign_as_leader(
    strategy: str, members: Collection[GroupMember], partitions: Mapping[str, int]
) -> Assigned:
    """What each member gets. `partitions`: how many each topic has, where it exists. Raises
    SettingsError for an unknown strategy.
    """
    chosen = _STRATEGIES.get(strategy)
    if chosen is None:
        raise SettingsError(
            "the group's leader is asked for an assignment that is unknown here",
            strategy=strategy,
            check=f"ownership.strategy: one of {', '.join(STRATEGIES)}",
        )
    ordered = sorted(
        members,
        key=lambda member: (
            member.instance_id is None,
            java_order(member.member_id if member.instance_id is None else member.instance_id),
        ),
    )
    return {member: frozenset(logs) for member, logs in chosen(ordered, partitions).items()}


def find_unassigned(
    partitions: Mapping[str, int], assigned: Collection[BrokerPartition]
) -> frozenset[BrokerPartition]:
    """Return the partitions that exist and that no member has. `partitions`: how many each topic
    has, where it exists.
    """
    there = (
        BrokerPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
    )
    return frozenset(there).difference(assigned)


_Lists = dict[str, list[BrokerPartition]]


def _range(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    found: _Lists = {member.member_id: [] for member in members}
    for topic, count in partitions.items():
        readers = [member for member in members if topic in member.topics]
        each, longer = divmod(count, len(readers)) if readers else (0, 0)
        for at, member in enumerate(readers):
            begins = each * at + min(at, longer)
            found[member.member_id].extend(
                BrokerPartition(topic, p) for p in range(begins, begins + each + (at < longer))
            )
    return found


def _round_robin(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    found: _Lists = {member.member_id: [] for member in members}
    next_at = 0
    for topic in sorted(partitions, key=java_order):
        readers = [at for at, member in enumerate(members) if topic in member.topics]
        for partition in range(partitions[topic] if readers else 0):
            at = readers[bisect_left(readers, next_at) % len(readers)]
            found[members[at].member_id].append(BrokerPartition(topic, partition))
            next_at = (at + 1) % len(members)
    return found


class _Topics:
    """What kafka-python's executor asks of a cluster."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


def _sticky(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor,
        StickyAssignorMemberMetadataV1,
    )
    from kafka.structs import TopicPartition

    if not members:
        return {}
    told = {
        member.member_id: StickyAssignorMemberMetadataV1(
            subscription=sorted(member.topics),
            generation=-1 if member.generation is None else member.generation,
            partitions=[
                TopicPartition(log.topic, log.partition)
                for log in sorted(_still_there(member, partitions))
            ],
        )
        for member in members
    }
    executor = StickyAssignmentExecutor(
        _Topics(
            {
                topic: count
                for topic, count in partitions.items()
                if any(topic in member.topics for member in members)
            }
        ),
        told,
    )
    executor.perform_initial_assignment()
    executor.balance()
    return {
        member.member_id: [
            BrokerPartition(topic, p)
            for topic, found in executor.get_final_assignment(member.member_id)
            for p in found
        ]
        for member in members
    }


def _still_there(member: GroupMember, partitions: Mapping[str, int]) -> list[BrokerPartition]:
    return [
        log
        for log in member.owned
        if log.topic in member.topics and log.partition < partitions.get(log.topic, 0)
    ]


def _cooperative_sticky(members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Lists:
    holders: dict[BrokerPartition, set[str]] = {}
    for member in members:
        for log in member.owned:
            holders.setdefault(log, set()).add(member.member_id)
    wanted = _sticky(members, partitions)
    return {
        member: [log for log in logs if not holders.get(log, set()) - {member}]
        for member, logs in wanted.items()
    }


_STRATEGIES: Mapping[str, Callable[[Sequence[GroupMember], Mapping[str, int]], _Lists]] = {
    "range": _range,
    "roundrobin": _round_robin,
    "sticky": _sticky,
    "cooperative-sticky": _cooperative_sticky,
}
STRATEGIES = tuple(_STRATEGIES)
