"""What is asked of brokers about the offsets that they keep for a group, and what they answer, in
words of no generation. No I/O.

See `messages` for everything else that they are asked. What a stored offset means to a pipeline is
decided in `offsets_storage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etl.errors import Refusal
from etl.model.partitions import BrokerPartition


@dataclass(frozen=True, slots=True)
class GroupMember:
    """As whom somebody asks for a group's offsets, or stores them: what the group's coordinator
    fences by.
    """

    member_id: str
    generation: int
    """Of the classic protocol the group's generation, of the consumer protocol (KIP-848) the
    member's epoch.
    """
    instance_id: str | None = None
    """The name of a static member (Kafka 2.3 and later)."""


@dataclass(frozen=True, slots=True)
class OffsetsCommit:
    """What a group is to store: next offsets, and beside each of them the same word."""

    group: str
    offsets: Mapping[BrokerPartition, int]
    metadata: str = ""
    member: GroupMember | None = None
    """None: from outside of any membership, which is taken while the group has no members."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Of the records before the offsets, where they are known; kept from Kafka 2.1 on."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Of all the topics, else they go by their names alone. Named so, one that was made again is
    refused (Kafka 4.1 and later).
    """


@dataclass(frozen=True, slots=True)
class OffsetsQuestion:
    """Which of a group's offsets somebody asks for."""

    group: str
    logs: tuple[BrokerPartition, ...]
    member: GroupMember | None = None
    """Told to brokers of 4.0 and later alone, which then refuse an epoch of the past."""
    is_stable: bool = False
    """An offset that an open transaction is about to replace is refused instead of told (Kafka 2.5
    and later; others tell it).
    """
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """As in `OffsetsCommit`."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset that a group stored for one log; None: none was ever stored, or it was
    forgotten.
    """

    refusal: Refusal | None
    offset: int | None
    metadata: str = ""
    """What whoever stored it wrote beside it."""
    leader_epoch: int | None = None
    """Of the record before it, where whoever stored it said so."""


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """What a group's coordinator told of its offsets."""

    refusal: Refusal | None
    """Of the whole request."""
    offsets: Mapping[BrokerPartition, CommittedOffset]
