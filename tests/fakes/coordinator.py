"""A group coordinator on a real socket: a fake broker with groups of both protocols, and with
prepared errors.

Requests are decoded and responses encoded with kafka-python, and the state machine is Kafka's as
far as members observe it: a join waits for all members, a static member that returns causes no
rebalance, and in the consumer protocol a partition goes to its next owner after the last one
reported its release. Sessions do not expire by themselves: a test calls `forget`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from etl.kafka.kafka_python_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from etl.kafka.request_values import LEAVES
from tests.fakes.broker import GROUPS, FakeBroker

JOIN, HEARTBEAT, LEAVE, SYNC, CONSUMER = 11, 12, 13, 14, 68
WITH_GROUPS = {JOIN: (0, 9), HEARTBEAT: (0, 4), LEAVE: (0, 5), SYNC: (0, 5), CONSUMER: (0, 1)}
_NONE, _ILLEGAL_GENERATION, _UNKNOWN, _REBALANCE, _ID_REQUIRED, _FENCED, _STALE = (
    0,
    22,
    25,
    27,
    79,
    82,
    113,
)
_BEHIND_JOINING_TWICE = 4
_SKIPS_ASSIGNMENT = 9
"""The first version of JoinGroup that informs a returning static leader that it leads (KIP-814)."""
_EVERY_MS = 100
"""Between heartbeats of the consumer protocol, as the coordinator wants them."""


@dataclass
class Member:
    member_id: str
    instance_id: str | None
    rebalance_s: float
    protocols: dict[str, bytes]
    has_joined: bool = False
    assignment: bytes = b""


@dataclass
class ClassicGroup:
    members: dict[str, Member] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    generation: int = 0
    leader: str = ""
    strategy: str = ""
    is_rebalancing: bool = False
    is_synced: bool = True

    def rebalance(self) -> None:
        """Members of the last generation have to join again."""
        if not self.is_rebalancing:
            self.is_rebalancing = True
            for member in self.members.values():
                member.has_joined = False

    def begin_generation(self) -> None:
        """All that joined are in it, and static members that are away."""
        self.members = {
            name: member
            for name, member in self.members.items()
            if member.has_joined or member.instance_id
        }
        self.is_rebalancing, self.is_synced, self.generation = False, False, self.generation + 1
        if self.members:
            joined = [name for name, member in self.members.items() if member.has_joined]
            self.leader = self.leader if self.leader in joined or not joined else joined[0]
            common = set.intersection(*(set(member.protocols) for member in self.members.values()))
            self.strategy = next(
                name for name in self.members[self.leader].protocols if name in common
            )


@dataclass
class ConsumerMember:
    instance_id: str | None = None
    owned: set[tuple[str, int]] = field(default_factory=set)
    epoch: int = 0


class FakeCoordinator(FakeBroker):
    """`with FakeCoordinator() as broker:` is the coordinator of all groups.

    refusals           api key -> error codes of the next answers, one each
    decoded_requests   api key -> the decoded requests, in order
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "versions": {**WITH_GROUPS, **given.get("versions", {})}})
        self.world.coordinator = self.broker_id
        self.refusals: defaultdict[int, deque[int]] = defaultdict(deque)
        self.decoded_requests: defaultdict[int, list[Any]] = defaultdict(list)
        self.group = ClassicGroup()
        self.consumers: dict[str, ConsumerMember] = {}
        self.epoch = 0
        self._ids = 0
        self._changed = threading.Condition()

    def forget(self) -> None:
        """The sessions of all members are over."""
        with self._changed:
            self.group.members.clear()
            self.group.rebalance()
            self.consumers.clear()
            self.epoch += 1
            self._changed.notify_all()

    def call_for_a_rebalance(self) -> None:
        """As where another member joins."""
        with self._changed:
            self.group.rebalance()

    def _answer(self, key: int, version: int, request: bytes) -> bytes:
        if key not in _GROUP_ANSWERS:
            return super()._answer(key, version, request)
        kind, answer = _GROUP_ANSWERS[key]
        decoded = kind.decode(request, version=version, header=True)
        self.decoded_requests[key].append(decoded)
        code = self.refusals[key].popleft() if self.refusals[key] else _NONE
        response = answer(self, decoded, version, code)
        response.API_VERSION = version
        response.with_header(int.from_bytes(request[4:8], "big"))
        return bytes(response.encode(header=True, framed=True))

    def _fences(self, request: Any) -> int:
        """A group with members takes commits of its generation or epoch alone."""
        with self._changed:
            group, name, epoch = (
                self.group,
                request.member_id,
                request.generation_id_or_member_epoch,
            )
            if name in self.consumers:
                return _NONE if epoch == self.consumers[name].epoch else _STALE
            if name in group.members:
                if epoch != group.generation:
                    return _ILLEGAL_GENERATION
                if group.is_synced:
                    return _NONE
                return _REBALANCE
            return _UNKNOWN if group.members or self.consumers else super()._fences(request)

    # The classic protocol

    def _join(self, request: Any, version: int, code: int) -> Any:
        with self._changed:
            group, member_id = self.group, request.member_id
            instance_id = getattr(request, "group_instance_id", None)
            reported = {each.name: bytes(each.metadata) for each in request.protocols}
            code = code or self._admitted(member_id)
            same = next(
                (
                    each
                    for each in group.members.values()
                    if instance_id and each.instance_id == instance_id
                ),
                None,
            )
            if not code and not member_id:
                self._ids += 1
                if instance_id is None:
                    member_id = f"member-{self._ids}"
                else:
                    member_id = f"{instance_id}-{UUID(int=self._ids)}"
                if version >= _BEHIND_JOINING_TWICE and instance_id is None:
                    group.pending.add(member_id)
                    code = _ID_REQUIRED
                elif same is not None:
                    return self._returned(same, member_id, reported, version)
            if code:
                return self._join_answer(code, member_id)
            wait_s = getattr(request, "rebalance_timeout_ms", request.session_timeout_ms) / 1000
            if self._is_known_follower(member_id, reported):
                return self._join_answer(_NONE, member_id)
            group.pending.discard(member_id)
            member = group.members.setdefault(
                member_id, Member(member_id, instance_id, wait_s, reported)
            )
            group.rebalance()
            member.protocols, member.has_joined = reported, True
            self._wait_for_all(member)
            return self._join_answer(_NONE if member_id in group.members else _UNKNOWN, member_id)

    def _admitted(self, member_id: str) -> int:
        if member_id in self.group.fenced:
            return _FENCED
        if not member_id or member_id in self.group.members or member_id in self.group.pending:
            return _NONE
        return _UNKNOWN

    def _is_known_follower(self, member_id: str, reported: dict[str, bytes]) -> bool:
        """True if a join changes nothing: a stable group, and no request of its leader."""
        group = self.group
        is_stable = group.is_synced and not group.is_rebalancing
        known = group.members.get(member_id)
        return (
            is_stable
            and known is not None
            and group.leader != member_id
            and known.protocols == reported
        )

    def _returned(
        self, before: Member, member_id: str, reported: dict[str, bytes], version: int
    ) -> Any:
        """A static member that returns, with a new subscription: the generation stays."""
        group = self.group
        old_id, leader = before.member_id, group.leader
        group.fenced.add(old_id)
        group.members = {
            (member_id if name == old_id else name): member
            for name, member in group.members.items()
        }
        before.member_id, before.protocols = member_id, reported
        is_leader = leader == old_id
        if is_leader:
            group.leader = member_id
        skips = is_leader and version >= _SKIPS_ASSIGNMENT
        answer = self._join_answer(_NONE, member_id, skips=skips)
        if is_leader and not skips:
            answer.leader, answer.members = leader, []
        return answer

    def _wait_for_all(self, member: Member) -> None:
        group, generation = self.group, self.group.generation
        deadline = time.monotonic() + max(each.rebalance_s for each in group.members.values())
        while group.generation == generation and not self.closing.is_set():
            if (
                all(each.has_joined for each in group.members.values())
                or time.monotonic() > deadline
            ):
                group.begin_generation()
                self._changed.notify_all()
                return
            self._changed.notify_all()
            self._changed.wait(0.05)

    def _join_answer(self, code: int, member_id: str, *, skips: bool = False) -> Any:
        group, kind = self.group, JoinGroupResponse.JoinGroupResponseMember
        reported = group.members.values() if not code and group.leader == member_id else ()
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=code,
            generation_id=-1 if code else group.generation,
            protocol_type="consumer",
            protocol_name="" if code else group.strategy,
            leader="" if code else group.leader,
            skip_assignment=skips,
            member_id=member_id,
            members=[
                kind(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    metadata=each.protocols[group.strategy],
                )
                for each in reported
            ],
        )

    def _describe(self, request: Any, version: int, code: int) -> Any:
        with self._changed:
            group, kind = self.group, DescribeGroupsResponse.DescribedGroup
            if not group.members:
                return self._groups(request, version)
            is_stable = group.is_synced and not group.is_rebalancing
            return DescribeGroupsResponse(
                throttle_time_ms=0,
                groups=[
                    kind(
                        error_code=code,
                        group_id=request.groups[0],
                        group_state="Stable" if is_stable else "PreparingRebalance",
                        protocol_type="consumer",
                        protocol_data=group.strategy,
                        members=[
                            kind.DescribedGroupMember(
                                member_id=each.member_id,
                                group_instance_id=each.instance_id,
                                client_id="c",
                                client_host="/127.0.0.1",
                                member_metadata=b"",
                                member_assignment=each.assignment,
                            )
                            for each in group.members.values()
                        ],
                    )
                ],
            )

    def _sync(self, request: Any, version: int, code: int) -> Any:
        with self._changed:
            group = self.group
            if code == _UNKNOWN:
                group.members.pop(request.member_id, None)
            code = code or self._known(request)
            if not code and request.assignments:
                for each in request.assignments:
                    group.members[each.member_id].assignment = bytes(each.assignment)
                group.is_synced = True
                self._changed.notify_all()
            while not code and not group.is_synced and not self.closing.is_set():
                self._changed.wait(0.05)
                code = self._known(request)
            given = b"" if code else group.members[request.member_id].assignment
            return SyncGroupResponse(
                throttle_time_ms=0,
                error_code=code,
                protocol_type="consumer",
                protocol_name=group.strategy,
                assignment=given,
            )

    def _known(self, request: Any) -> int:
        group = self.group
        if request.member_id in group.fenced:
            return _FENCED
        if request.member_id not in group.members:
            return _UNKNOWN
        if request.generation_id != group.generation:
            return _ILLEGAL_GENERATION
        return _REBALANCE if group.is_rebalancing else _NONE

    def _heartbeat(self, request: Any, version: int, code: int) -> Any:
        with self._changed:
            return HeartbeatResponse(throttle_time_ms=0, error_code=code or self._known(request))

    def _leave(self, request: Any, version: int, code: int) -> Any:
        with self._changed:
            if version >= 3:
                names = [each.member_id for each in request.members]
            else:
                names = [request.member_id]
            for name in names:
                self.group.members.pop(name, None)
            self.group.rebalance()
            self._changed.notify_all()
            kind = LeaveGroupResponse.MemberResponse
            return LeaveGroupResponse(
                throttle_time_ms=0,
                error_code=code,
                members=[
                    kind(member_id=name, group_instance_id=None, error_code=_NONE) for name in names
                ],
            )

    # The consumer protocol

    def _consumer(self, request: Any, version: int, code: int) -> Any:
        with self._changed:
            name = request.member_id or f"made-{len(self.decoded_requests[CONSUMER])}"
            if not code and request.member_epoch > 0 and name not in self.consumers:
                code = _UNKNOWN
            if code:
                return self._consumer_answer(code, name, 0, None)
            if request.member_epoch < 0:
                if request.member_epoch == LEAVES:
                    self.consumers.pop(name, None)
                    self.epoch += 1
                return self._consumer_answer(_NONE, name, request.member_epoch, None)
            if request.member_epoch == 0:
                self._admit(name, request.instance_id)
            member = self.consumers[name]
            if request.topic_partitions is not None:
                member.owned = {
                    (self.world.name_of(each.topic_id) or "", number)
                    for each in request.topic_partitions
                    for number in each.partitions
                }
            target = self._target(name)
            free = target - {
                partition
                for other, each in self.consumers.items()
                if other != name
                for partition in each.owned
            }
            if member.owned <= target:
                member.owned |= free
                member.epoch = self.epoch
            return self._consumer_answer(_NONE, name, member.epoch, member.owned & target)

    def _admit(self, name: str, instance_id: str | None) -> None:
        """A static member that returns takes its own place; else the group rebalances."""
        before = next(
            (
                other
                for other, each in self.consumers.items()
                if instance_id and each.instance_id == instance_id
            ),
            None,
        )
        if before is None:
            self.consumers[name] = ConsumerMember(instance_id)
            self.epoch += 1
        else:
            self.consumers = {
                (name if other == before else other): each for other, each in self.consumers.items()
            }

    def _target(self, name: str) -> set[tuple[str, int]]:
        members, partitions = list(self.consumers), sorted(self.world.logs)
        return {
            partition
            for at, partition in enumerate(partitions)
            if members[at % len(members)] == name
        }

    def _consumer_answer(
        self, code: int, name: str, epoch: int, partitions: set[tuple[str, int]] | None
    ) -> Any:
        kind = ConsumerGroupHeartbeatResponse.Assignment
        by_topic: defaultdict[UUID, list[int]] = defaultdict(list)
        for topic, number in sorted(partitions or ()):
            by_topic[self.world.topic_ids[topic]].append(number)
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=code,
            error_message="as the test wants it" if code else None,
            member_id=name,
            member_epoch=epoch,
            heartbeat_interval_ms=_EVERY_MS,
            assignment=None
            if partitions is None
            else kind(
                topic_partitions=[
                    kind.TopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in by_topic.items()
                ]
            ),
        )


_GROUP_ANSWERS: dict[int, tuple[Any, Callable[[FakeCoordinator, Any, int, int], Any]]] = {
    JOIN: (JoinGroupRequest, FakeCoordinator._join),
    SYNC: (SyncGroupRequest, FakeCoordinator._sync),
    HEARTBEAT: (HeartbeatRequest, FakeCoordinator._heartbeat),
    LEAVE: (LeaveGroupRequest, FakeCoordinator._leave),
    CONSUMER: (ConsumerGroupHeartbeatRequest, FakeCoordinator._consumer),
    GROUPS: (DescribeGroupsRequest, FakeCoordinator._describe),
}


@contextlib.contextmanager
def coordinator_of_clicks(partitions: int) -> Iterator[FakeCoordinator]:
    """One with the topic clicks, empty and with an id, as the consumer protocol needs it."""
    with FakeCoordinator() as broker:
        for number in range(partitions):
            broker.log("clicks", number)
        broker.world.topic_ids["clicks"] = UUID(int=1)
        yield broker
