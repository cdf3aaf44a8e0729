"""The requests of Kafka 0.8 to 4.x about consumer groups: members and committed offsets.

Not here: the bytes (group_messages.py, many_partition_messages.py), the other requests
(kafka_broker_type.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from etl.errors import BrokerRefusal
from etl.kafka import group_messages, kafka_python_messages, many_partition_messages, versions
from etl.kafka.broker_type_interface import GroupRequests, Request
from etl.kafka.request_values import (
    CommittedOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    CoordinatorResponse,
    Joined,
    JoinRequest,
    MemberIdentity,
    MembersResponse,
    OffsetsCommit,
    OffsetsQuery,
    SupportedMembership,
    Synced,
)
from etl.kafka.versions import Api, ApiVersions
from etl.model.partitions import TopicPartition

Answer = TypeVar("Answer")


class KafkaRequests(Protocol):
    """What the requests of one broker need of it."""

    api_versions: ApiVersions
    address: str

    @property
    def release(self) -> str:
        """The release of the broker."""

    def introduction(self) -> str:
        """Return a description of the broker for users."""

    def request(
        self,
        api: Api,
        fields: Mapping[str, Any],
        parse: Callable[[Any], Answer],
        *,
        least: int = 0,
        most: int | None = None,
    ) -> Request[Answer]:
        """Return a request in a version between these bounds."""


class KafkaGroupRequests(GroupRequests):
    """Requests to one broker, in the versions that it supports."""

    def __init__(self, kafka: KafkaRequests) -> None:
        super().__init__(kafka.introduction)
        self._kafka = kafka

    @property
    def keeps_groups(self) -> bool:
        return Api.DESCRIBE_GROUPS.key in self._kafka.api_versions

    @property
    def membership(self) -> SupportedMembership:
        join = versions.newest_of(Api.JOIN_GROUP, self._kafka.api_versions)
        heartbeat = versions.newest_of(Api.CONSUMER_GROUP_HEARTBEAT, self._kafka.api_versions)
        return SupportedMembership(
            is_classic=join >= 0,
            has_rebalance_timeout=join >= 1,
            is_static=join >= group_messages.FIRST_STATIC_JOIN,
            # Version 0 is the preview of 3.7 to 3.9, which rejects it unless it is enabled.
            is_consumer=heartbeat >= 1,
            release=self._kafka.release,
        )

    @property
    def keeps_offsets(self) -> bool:
        return self._kafka.api_versions.get(Api.OFFSET_COMMIT.key, (0, 0))[1] >= 1

    def coordinator(self, group: str) -> Request[CoordinatorResponse]:
        return self._kafka.request(
            Api.FIND_COORDINATOR,
            many_partition_messages.coordinator_fields(group),
            many_partition_messages.parse_coordinator,
        )

    def members_of(self, group: str) -> Request[MembersResponse]:
        return self._kafka.request(
            Api.DESCRIBE_GROUPS,
            kafka_python_messages.describe_groups_fields(group),
            lambda response: kafka_python_messages.parse_describe_groups(
                response, group, broker=self._kafka.address
            ),
        )

    @property
    def keeps_consumer_groups(self) -> bool:
        return versions.is_supported(Api.CONSUMER_GROUP_DESCRIBE, self._kafka.api_versions)

    def consumer_group_members(self, group: str) -> Request[MembersResponse]:
        return self._kafka.request(
            Api.CONSUMER_GROUP_DESCRIBE,
            group_messages.consumer_group_fields(group),
            lambda response: group_messages.parse_consumer_group(
                response, group, broker=self._kafka.address
            ),
        )

    def join_group(self, wanted: JoinRequest) -> Request[Joined]:
        least = 0
        if wanted.instance_id is not None:
            least = group_messages.FIRST_STATIC_JOIN
        return self._kafka.request(
            Api.JOIN_GROUP,
            group_messages.join_fields(wanted),
            partial(
                group_messages.parse_join,
                instance_id=wanted.instance_id,
                broker=self._kafka.address,
                group=wanted.group,
            ),
            least=least,
        )

    def sync_group(
        self,
        identity: MemberIdentity,
        strategy: str,
        assigned: Mapping[str, Iterable[TopicPartition]],
    ) -> Request[Synced]:
        fields = group_messages.sync_fields(identity, strategy, assigned)
        return self._kafka.request(
            Api.SYNC_GROUP,
            fields,
            partial(group_messages.parse_sync, broker=self._kafka.address, group=identity.group),
            least=_oldest_version_for(identity),
        )

    def heartbeat(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        return self._kafka.request(
            Api.HEARTBEAT,
            group_messages.heartbeat_fields(identity),
            group_messages.parse_heartbeat,
            least=_oldest_version_for(identity),
        )

    def leave_group(self, identity: MemberIdentity) -> Request[BrokerRefusal | None]:
        return self._kafka.request(
            Api.LEAVE_GROUP, group_messages.leave_fields(identity), group_messages.parse_leave
        )

    def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> Request[ConsumerHeartbeatAnswer]:
        return self._kafka.request(
            Api.CONSUMER_GROUP_HEARTBEAT,
            group_messages.consumer_heartbeat_fields(beat),
            partial(
                group_messages.parse_consumer_heartbeat,
                broker=self._kafka.address,
                group=beat.group,
            ),
        )

    def commit_offsets(
        self, commit: OffsetsCommit, *, in_zookeeper: bool = False
    ) -> Request[dict[TopicPartition, BrokerRefusal | None]]:
        bounds = _version_bounds(in_zookeeper, commit.offsets, commit.topic_ids)
        if commit.member and commit.member.instance_id is not None:
            bounds["least"] = many_partition_messages.FIRST_STATIC
        return self._kafka.request(
            Api.OFFSET_COMMIT,
            many_partition_messages.commit_fields(commit),
            lambda response: many_partition_messages.parse_commit(response, commit),
            **bounds,
        )

    def committed_offsets(
        self, question: OffsetsQuery, *, in_zookeeper: bool = False
    ) -> Request[CommittedOffsets]:
        return self._kafka.request(
            Api.OFFSET_FETCH,
            many_partition_messages.offset_fetch_fields(question),
            lambda response: many_partition_messages.parse_offset_fetch(
                response, in_zookeeper=in_zookeeper, question=question
            ),
            **_version_bounds(in_zookeeper, question.partitions, question.topic_ids),
        )


def _oldest_version_for(identity: MemberIdentity) -> int:
    """Return the oldest version of a request that can identify this member."""
    return 0 if identity.instance_id is None else group_messages.FIRST_STATIC


def _version_bounds(
    in_zookeeper: bool, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str]
) -> dict[str, int]:
    """Return the bounds of the versions of OffsetCommit and OffsetFetch.

    The version decides whether a broker stores the offsets in ZooKeeper (0), or the coordinator
    stores them in Kafka, and whether topics are identified by name or id.
    """
    if in_zookeeper:
        return {"most": 0}
    topics = {partition.topic for partition in partitions}
    if topics <= topic_ids.keys():
        return {"least": 1}
    return {"least": 1, "most": many_partition_messages.FIRST_BY_ID - 1}
