"""Which request types, versions and error codes does Kafka have?

Lives here: the supported versions of each request, the versions of each release, and the error
codes of Kafka 0.8 and later (Kafka protocol, "Error Codes"): name, retriable or not, error class,
meaning. Responses hold rows of that table (`errors.BrokerRefusal`).
Not here: the codes of Jafka and Kafka 0.7, which have other meanings (jafka_broker_type.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from etl.errors import (
    BrokerError,
    BrokerRefusal,
    CorruptData,
    EtlError,
    Meaning,
    MembershipLost,
    Owned,
    PermissionDenied,
    SettingsError,
    TopicMissing,
)

ApiVersions = Mapping[int, tuple[int, int]]
"""The versions that a broker supports: api key -> lowest and highest version."""
_FIRST_FETCH_WITH_ISOLATION = 4


class Api(Enum):
    """Kinds of requests: api key, lowest and highest version known here."""

    PRODUCE = (0, 0, 8)
    FETCH = (1, 0, 13)
    LIST_OFFSETS = (2, 0, 7)
    METADATA = (3, 0, 12)
    OFFSET_COMMIT = (8, 0, 10)
    OFFSET_FETCH = (9, 0, 10)
    FIND_COORDINATOR = (10, 0, 3)
    JOIN_GROUP = (11, 0, 9)
    HEARTBEAT = (12, 0, 4)
    LEAVE_GROUP = (13, 0, 5)
    SYNC_GROUP = (14, 0, 5)
    DESCRIBE_GROUPS = (15, 0, 4)
    SASL_HANDSHAKE = (17, 1, 1)
    API_VERSIONS = (18, 0, 0)
    OFFSET_FOR_LEADER_EPOCH = (23, 2, 4)
    DESCRIBE_CONFIGS = (32, 0, 3)
    DESCRIBE_LOG_DIRS = (35, 0, 4)
    SASL_AUTHENTICATE = (36, 0, 1)
    DESCRIBE_PRODUCERS = (61, 0, 0)
    DESCRIBE_TRANSACTIONS = (65, 0, 0)
    LIST_TRANSACTIONS = (66, 0, 1)
    CONSUMER_GROUP_HEARTBEAT = (68, 0, 1)
    CONSUMER_GROUP_DESCRIBE = (69, 0, 1)

    @property
    def key(self) -> int:
        return self.value[0]


_NOT_SENT_BY_READERS = frozenset(
    {
        Api.PRODUCE,
        Api.JOIN_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.SYNC_GROUP,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.CONSUMER_GROUP_DESCRIBE,
        Api.SASL_HANDSHAKE,
        Api.SASL_AUTHENTICATE,
    }
)
"""Requests that a reader does not send, or only by an explicit setting."""


def is_supported(api: Api, spoken: ApiVersions) -> bool:
    """True if the broker and this module share a version of this request."""
    key, lowest, highest = api.value
    return key in spoken and spoken[key][0] <= highest and spoken[key][1] >= lowest


def choose_version(
    api: Api, spoken: ApiVersions, *, least: int = 0, most: int | None = None, **place: Any
) -> int:
    """Return the highest version that the broker and this module support, within bounds.

    `least` and `most` are the bounds. Raises SettingsError if there is none: the broker is too old
    for the request, or no longer supports the versions known here.
    """
    key, lowest, highest = api.value
    lowest = max(lowest, least)
    if most is not None:
        highest = min(highest, most)
    broker_versions = spoken.get(key)
    if broker_versions is None:
        supported = "none"
    else:
        supported = f"{broker_versions[0]} to {broker_versions[1]}"
    if broker_versions is None or broker_versions[0] > highest or broker_versions[1] < lowest:
        raise SettingsError(
            f"The broker supports no version of {api.name} from {lowest} to {highest} "
            f"(it supports {supported})",
            action="Check the broker's version, and source.broker_version if it is set",
            **place,
        )
    return min(highest, broker_versions[1])


def newest_of(api: Api, spoken: ApiVersions) -> int:
    """Return the highest version of this request that the broker supports; -1: none."""
    return spoken.get(api.key, (0, -1))[1]


def unsupported_requests(wanted: ApiVersions, spoken: ApiVersions) -> tuple[str, ...]:
    """Return the requests of a reader for `wanted` that a broker with `spoken` does not support.

    Each has its version, such as "FETCH v13".
    """
    unsupported = []
    for api in Api:
        if api in _NOT_SENT_BY_READERS or not is_supported(api, wanted):
            continue
        version = choose_version(api, wanted)
        oldest, newest = spoken.get(api.key, (0, -1))
        if not oldest <= version <= newest:
            unsupported.append(f"{api.name} v{version}")
    return tuple(unsupported)


def has_isolation(spoken: ApiVersions) -> bool:
    """True if the broker can leave out uncommitted records (KIP-98, Kafka 0.11 and later)."""
    return spoken.get(Api.FETCH.key, (0, 0))[1] >= _FIRST_FETCH_WITH_ISOLATION


def release(spoken: ApiVersions) -> str:
    """Return the newest release with requests that the broker supports.

    Brokers do not report their release (KIP-35).
    """
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

    return ".".join(map(str, infer_broker_version_from_api_versions(dict(spoken))))


@cache
def releases() -> Mapping[str, ApiVersions]:
    """Return release -> supported versions, the oldest first, as listed in kafka-python.

    The releases are 0.8.0, 0.8.1, 0.8.2, 0.9, 0.10.0 and so on to 4.x. Plain 0.8 stands for its
    last release: a broker's exact one cannot be detected, and reading is the same on all.
    """
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

    known = {}
    for version, spoken in sorted(BROKER_API_VERSIONS.items()):
        known[".".join(map(str, version))] = spoken
    return {"0.8": known["0.8.2"], **known}


def release_of(version: str) -> str | None:
    """Return the release in `releases` of a version such as 0.9.0.1; None if it is unknown.

    For an incomplete version such as 0.10 it is the first release that begins with it.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version, re.ASCII):
        return None

    wanted = version.split(".")
    exact = []
    beginning = []
    for name in releases():
        parts = name.split(".")
        if wanted[: len(parts)] == parts:
            exact.append(name)
        if parts[: len(wanted)] == wanted:
            beginning.append(name)
    if exact:
        return max(exact, key=len)
    return next(iter(beginning), None)


NONE = 0
OFFSET_OUT_OF_RANGE = 1

_LEADER = "Check the leader of the partition, and the brokers' logs around this time"
_OVERLOAD = "Check the broker's log around this time"
_BUG = "Check the broker's log: it does not understand a request of this version of etl"
_LOGIN = "Check source.security against the login that this listener requires"
_MEMBERS = "Check the group's members: while it has some, only they can commit its offsets"
_COORDINATOR = "Check the group's coordinator, and __consumer_offsets"

_TABLE = (
    BrokerRefusal(-1, "UNKNOWN_SERVER_ERROR", True, BrokerError, _OVERLOAD, Meaning.UNSAID),
    BrokerRefusal(0, "NONE", False, EtlError, "No action is needed: this is no error"),
    BrokerRefusal(
        1,
        "OFFSET_OUT_OF_RANGE",
        False,
        BrokerError,
        "Check log start and end of the partition. A new leader can also return this code",
        Meaning.OUT_OF_RANGE,
    ),
    BrokerRefusal(
        2,
        "CORRUPT_MESSAGE",
        True,
        CorruptData,
        "Check the broker's log files of this partition and its disks: it found a wrong checksum",
    ),
    BrokerRefusal(
        3,
        "UNKNOWN_TOPIC_OR_PARTITION",
        True,
        TopicMissing,
        "Check the topic's name, and whether it was deleted",
        Meaning.UNKNOWN_TOPIC,
    ),
    BrokerRefusal(4, "INVALID_FETCH_SIZE", False, EtlError, _BUG),
    BrokerRefusal(5, "LEADER_NOT_AVAILABLE", True, BrokerError, _LEADER),
    BrokerRefusal(6, "NOT_LEADER_OR_FOLLOWER", True, BrokerError, _LEADER),
    BrokerRefusal(7, "REQUEST_TIMED_OUT", True, BrokerError, _OVERLOAD),
    BrokerRefusal(8, "BROKER_NOT_AVAILABLE", False, BrokerError, _OVERLOAD),
    BrokerRefusal(9, "REPLICA_NOT_AVAILABLE", True, BrokerError, _LEADER),
    BrokerRefusal(
        10, "MESSAGE_TOO_LARGE", False, SettingsError, "Check max.message.bytes of the topic"
    ),
    BrokerRefusal(
        12,
        "OFFSET_METADATA_TOO_LARGE",
        False,
        SettingsError,
        "Check offset.metadata.max.bytes of the brokers",
    ),
    BrokerRefusal(13, "NETWORK_EXCEPTION", True, BrokerError, _OVERLOAD),
    BrokerRefusal(
        14,
        "COORDINATOR_LOAD_IN_PROGRESS",
        True,
        BrokerError,
        _COORDINATOR,
        Meaning.NO_COORDINATOR_YET,
    ),
    BrokerRefusal(
        15, "COORDINATOR_NOT_AVAILABLE", True, BrokerError, _COORDINATOR, Meaning.NO_COORDINATOR_YET
    ),
    BrokerRefusal(16, "NOT_COORDINATOR", True, BrokerError, _COORDINATOR, Meaning.NOT_COORDINATOR),
    BrokerRefusal(
        17,
        "INVALID_TOPIC_EXCEPTION",
        False,
        TopicMissing,
        "Check the topic's name: the broker does not allow it",
        Meaning.UNKNOWN_TOPIC,  # a topic of that name cannot be there
    ),
    BrokerRefusal(19, "NOT_ENOUGH_REPLICAS", True, BrokerError, _LEADER),
    BrokerRefusal(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", True, BrokerError, _LEADER),
    BrokerRefusal(22, "ILLEGAL_GENERATION", False, BrokerError, _MEMBERS, Meaning.OLD_GENERATION),
    BrokerRefusal(
        23,
        "INCONSISTENT_GROUP_PROTOCOL",
        False,
        SettingsError,
        (
            "Check the assignment strategies of the group's other members: all members need one "
            "in common, and must be consumers"
        ),
        Meaning.NO_COMMON_STRATEGY,
    ),
    BrokerRefusal(24, "INVALID_GROUP_ID", False, SettingsError, "Check the group's name"),
    BrokerRefusal(25, "UNKNOWN_MEMBER_ID", False, BrokerError, _MEMBERS, Meaning.UNKNOWN_MEMBER),
    BrokerRefusal(
        26,
        "INVALID_SESSION_TIMEOUT",
        False,
        SettingsError,
        (
            "Check the session timeout and its bounds on the broker: group.min.session.timeout.ms "
            "and group.max.session.timeout.ms"
        ),
    ),
    BrokerRefusal(27, "REBALANCE_IN_PROGRESS", True, BrokerError, _MEMBERS, Meaning.REBALANCING),
    BrokerRefusal(
        28,
        "INVALID_COMMIT_OFFSET_SIZE",
        False,
        SettingsError,
        "Check message.max.bytes of the brokers, which store a commit as one record batch",
    ),
    BrokerRefusal(
        29,
        "TOPIC_AUTHORIZATION_FAILED",
        False,
        PermissionDenied,
        "Check the broker's ACLs for this topic",
        Meaning.NOT_ALLOWED,
    ),
    BrokerRefusal(
        30,
        "GROUP_AUTHORIZATION_FAILED",
        False,
        PermissionDenied,
        "Check the broker's ACLs for this group",
        Meaning.NOT_ALLOWED,
    ),
    BrokerRefusal(
        31,
        "CLUSTER_AUTHORIZATION_FAILED",
        False,
        PermissionDenied,
        "Check the broker's ACLs for the cluster",
        Meaning.NOT_ALLOWED,
    ),
    BrokerRefusal(33, "UNSUPPORTED_SASL_MECHANISM", False, SettingsError, _LOGIN),
    BrokerRefusal(34, "ILLEGAL_SASL_STATE", False, SettingsError, _LOGIN),
    BrokerRefusal(
        35,
        "UNSUPPORTED_VERSION",
        False,
        SettingsError,
        (
            "Check the broker's version, message.downconversion.enable, and for the consumer "
            "protocol its feature group.version"
        ),
        Meaning.SWITCHED_OFF,
    ),
    BrokerRefusal(42, "INVALID_REQUEST", False, EtlError, _BUG),
    BrokerRefusal(
        43,
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        False,
        SettingsError,
        "Check the topic's message format: it is too old for a search by time",
        Meaning.NO_SEARCH,
    ),
    BrokerRefusal(44, "POLICY_VIOLATION", False, PermissionDenied, "Check the broker's policies"),
    BrokerRefusal(
        53,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        False,
        PermissionDenied,
        "Check the broker's ACLs for transactional ids",
    ),
    BrokerRefusal(56, "KAFKA_STORAGE_ERROR", True, BrokerError, "Check the broker's disks"),
    BrokerRefusal(58, "SASL_AUTHENTICATION_FAILED", False, PermissionDenied, _LOGIN),
    BrokerRefusal(
        69,
        "GROUP_ID_NOT_FOUND",
        False,
        SettingsError,
        (
            "Check whether the group has members of the other protocol (classic, consumer), and "
            "group.consumer.migration.policy of the broker"
        ),
        Meaning.NO_SUCH_GROUP,
    ),
    BrokerRefusal(70, "FETCH_SESSION_ID_NOT_FOUND", True, BrokerError, _OVERLOAD),
    BrokerRefusal(71, "INVALID_FETCH_SESSION_EPOCH", True, BrokerError, _OVERLOAD),
    BrokerRefusal(
        72,
        "LISTENER_NOT_FOUND",
        True,
        BrokerError,
        "Check the listeners of all brokers: one lacks the listener of this connection",
        Meaning.NO_LISTENER,
    ),
    BrokerRefusal(74, "FENCED_LEADER_EPOCH", True, BrokerError, _LEADER),
    BrokerRefusal(75, "UNKNOWN_LEADER_EPOCH", True, BrokerError, _LEADER),
    BrokerRefusal(
        76,
        "UNSUPPORTED_COMPRESSION_TYPE",
        False,
        SettingsError,
        "Check the broker's version: brokers return zstd from Kafka 2.1 on",
    ),
    BrokerRefusal(78, "OFFSET_NOT_AVAILABLE", True, BrokerError, _LEADER),
    BrokerRefusal(79, "MEMBER_ID_REQUIRED", True, BrokerError, _MEMBERS, Meaning.ID_REQUIRED),
    BrokerRefusal(
        81,
        "GROUP_MAX_SIZE_REACHED",
        False,
        Owned,
        "Check group.max.size of the broker, and how many members the group has",
    ),
    BrokerRefusal(
        82,
        "FENCED_INSTANCE_ID",
        False,
        MembershipLost,
        "Check whether another process is a member under the same name (group.instance.id)",
        Meaning.FENCED,
    ),
    BrokerRefusal(
        88,
        "UNSTABLE_OFFSET_COMMIT",
        True,
        BrokerError,
        "Check which producer has an open transaction that commits offsets",
        Meaning.UNSTABLE,
    ),
    BrokerRefusal(
        89, "THROTTLING_QUOTA_EXCEEDED", True, BrokerError, "Check the client quotas on the brokers"
    ),
    BrokerRefusal(
        100,
        "UNKNOWN_TOPIC_ID",
        True,
        BrokerError,
        "Check whether the topic was deleted or recreated",
        Meaning.ANOTHER_TOPIC,
    ),
    BrokerRefusal(
        103,
        "INCONSISTENT_TOPIC_ID",
        True,
        BrokerError,
        "Check whether the topic was deleted or recreated",
        Meaning.ANOTHER_TOPIC,
    ),
    BrokerRefusal(106, "FETCH_SESSION_TOPIC_ID_ERROR", True, BrokerError, _OVERLOAD),
    BrokerRefusal(
        109,
        "OFFSET_MOVED_TO_TIERED_STORAGE",
        False,
        EtlError,
        "Check the broker's log: it returns this code to followers only",
    ),
    BrokerRefusal(110, "FENCED_MEMBER_EPOCH", False, BrokerError, _MEMBERS, Meaning.FENCED_EPOCH),
    BrokerRefusal(
        111,
        "UNRELEASED_INSTANCE_ID",
        True,
        Owned,
        "Check which process is a member under the same name (group.instance.id)",
    ),
    BrokerRefusal(
        112,
        "UNSUPPORTED_ASSIGNOR",
        False,
        SettingsError,
        "Check group.consumer.assignors of the broker",
    ),
    BrokerRefusal(113, "STALE_MEMBER_EPOCH", True, BrokerError, _MEMBERS, Meaning.STALE_EPOCH),
)
CODES: dict[int, BrokerRefusal] = {row.code: row for row in _TABLE}
UNKNOWN_SERVER_ERROR = CODES[-1]
UNKNOWN_TOPIC = CODES[3]


def error_of(code: int) -> BrokerRefusal | None:
    """Return the meaning of an error code; None for 0. Unknown codes are not retriable."""
    if code == NONE:
        return None
    if code in CODES:
        return CODES[code]
    return BrokerRefusal(
        code,
        f"unknown error code {code}",
        False,
        EtlError,
        "Check the broker's version and log: it is newer than the error codes known here",
    )
