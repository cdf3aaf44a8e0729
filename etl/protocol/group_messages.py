"""What members of a group ask its coordinator and are answered, in words of no generation. No I/O.

Kafka's classic protocol (0.9 to 4.x: join, sync, heartbeat, leave; one member, the leader, divides
the logs for all) and its consumer protocol (KIP-848, 4.0 on: one heartbeat for everything; the
coordinator divides). The wire's -1 and "" for "there is none" are None here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from etl.errors import Refusal
from etl.model.partitions import BrokerPartition


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member wants to read, as it tells the leader."""

    topics: tuple[str, ...]
    owned: frozenset[BrokerPartition] = frozenset()
    """What it reads until it is told to stop (KIP-429); nothing under a strategy that lets go of
    everything in each rebalance.
    """
    generation: int | None = None
    """Of which that is."""
    user_data: bytes = b""
    """What a strategy of others tells itself."""


@dataclass(frozen=True, slots=True)
class ToldMember:
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    """The name of a static member (KIP-345)."""
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """One member's wish to be in the next generation of a group."""

    group: str
    member_id: str | None
    """None: a new member."""
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long the coordinator waits for others to join again; before 0.10.1 that is the session
    timeout.
    """
    subscriptions: Mapping[str, Subscription]
    """By strategy, in order of preference."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a join came to."""

    refusal: Refusal | None
    member_id: str | None
    """Also told with a refusal that asks for it (KIP-394)."""
    generation: int
    strategy: str
    is_leader: bool
    members: tuple[ToldMember, ...]
    """All of them, of the leader; else nothing. Brokers before 3.2 do not list them to a static
    leader that comes back.
    """
    skips_assignment: bool = False
    """The leader is a static member that came back: the assignment stays as it is, and a SyncGroup
    with another one is ignored (KIP-814)."""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who speaks, after a join."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Synced:
    """What a member was assigned."""

    refusal: Refusal | None
    logs: frozenset[BrokerPartition]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The one request of the consumer protocol."""

    group: str
    member_id: str | None
    """None: one that the coordinator is to make, where it does (3.7 to 3.9)."""
    epoch: int
    """0: to join. Of one that leaves see `LEAVES` and `WILL_BE_BACK`."""
    instance_id: str | None
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions of all that the member still has, which acknowledges what it was told
    to let go; None: as told before.
    """


@dataclass(frozen=True, slots=True)
class SpokenMembership:
    """What members of groups a broker understands."""

    is_classic: bool = False
    has_rebalance_timeout: bool = False
    """Of each member, beside its session; older brokers take the session for both, and by default
    none of more than 30 s.
    """
    is_static: bool = False
    """Members with a name of their own."""
    is_consumer: bool = False
    """Those of the consumer protocol."""
    release: str = ""
    """The newest that the broker may be of, where it keeps groups."""


_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def is_of_instance(member_id: str, instance_id: str) -> bool:
    """True if a member id of a classic group is one of this static member: brokers make
    INSTANCE_ID-UUID at each return.
    """
    return re.fullmatch(f"{re.escape(instance_id)}-{_UUID}", member_id) is not None


LEAVES = -1
"""As the epoch: goes for good."""
WILL_BE_BACK = -2
"""As the epoch: a static member that goes, and keeps its logs for as long as a session lasts."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """What it came to."""

    refusal: Refusal | None
    said: str
    """The broker's own words about a refusal."""
    member_id: str | None
    epoch: int
    interval_ms: int
    """After which the next one is expected."""
    assigned: Mapping[str, frozenset[int]] | None
    """Topic id to partitions: all that the member is to have; None: as told before."""
