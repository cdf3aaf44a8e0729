"""Which request types, versions and error codes does Kafka have?

Lives here: the versions of each request that are supported, the versions of each release, and the
error codes of Kafka 0.8 and later (Kafka protocol, "Error Codes"): name, retriable or not, the
error class, and what it means. Answers carry rows of that table (`errors.BrokerRefusal`). The
codes of Jafka and Kafka 0.7 have other meanings (etl/kafka/jafka_family.py).
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
"""What a broker supports: api key -> lowest and highest version."""
_FIRST_FETCH_WITH_ISOLATION = 4


class Api(Enum):
    """Kind of request: api key, and the lowest and highest version known here."""

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


_NEVER_READS = frozenset(
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
"""Errors that readers never get, or only if they ask for them."""


def is_spoken(api: Api, spoken: ApiVersions) -> bool:
    """True if the broker and this module share a version of this request."""
    key, lowest, highest = api.value
    return key in spoken and spoken[key][0] <= highest and spoken[key][1] >= lowest


def choose_version(
    api: Api, spoken: ApiVersions, *, least: int = 0, most: int | None = None, **place: Any
) -> int:
    """The highest version that the broker and this module both speak, within bounds that the
    question sets.

    Raises SettingsError when there is none: a broker too old for the question, or one that dropped
    what we know.
    """
    key, lowest, highest = api.value
    lowest, highest = max(lowest, least), highest if most is None else min(highest, most)
    theirs = spoken.get(key)
    if theirs is None or theirs[0] > highest or theirs[1] < lowest:
        supported = "none" if theirs is None else f"{theirs[0]} to {theirs[1]}"
        raise SettingsError(
            f"The broker speaks no version of {api.name} from {lowest} to {highest} (it speaks {supported})",
            action="Check the broker's version, and broker_version where it is given",
            **place,
        )
    return min(highest, theirs[1])


def newest_of(api: Api, spoken: ApiVersions) -> int:
    """The highest version of this request that the broker speaks; -1: none."""
    return spoken.get(api.key, (0, -1))[1]


def not_spoken(wanted: ApiVersions, spoken: ApiVersions) -> tuple[str, ...]:
    """The requests, each with its version, that a reader sends to who speaks `wanted`, and that who
    speaks `spoken` does not know.
    """
    sent = {
        api: choose_version(api, wanted)
        for api in Api
        if api not in _NEVER_READS and is_spoken(api, wanted)
    }
    known = {api: spoken.get(api.key, (0, -1)) for api in sent}
    return tuple(
        f"{api.name} v{version}"
        for api, version in sent.items()
        if not known[api][0] <= version <= known[api][1]
    )


def keeps_isolation(spoken: ApiVersions) -> bool:
    """True if uncommitted records can be left out; brokers before 0.11 have no transactions
    (KIP-98).
    """
    return spoken.get(Api.FETCH.key, (0, 0))[1] >= _FIRST_FETCH_WITH_ISOLATION


def release(spoken: ApiVersions) -> str:
    """Return the newest release whose requests the broker supports; brokers report no release
    (KIP-35).
    """
    from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

    return ".".join(map(str, infer_broker_version_from_api_versions(dict(spoken))))


@cache
def releases() -> Mapping[str, ApiVersions]:
    """Release -> what its brokers speak, the oldest first, as kafka-python knows it: 0.8.0, 0.8.1,
    0.8.2, 0.9, 0.10.0 and so on to 4.x.

    0.8 alone is what its last release speaks: which of them a broker is cannot be found out, and reading is the same on all.
    """
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

    known = {
        ".".join(map(str, version)): spoken
        for version, spoken in sorted(BROKER_API_VERSIONS.items())
    }
    return {"0.8": known["0.8.2"], **known}


def release_of(version: str) -> str | None:
    """The release in `releases` of a version such as 0.9.0.1, the first one of a version given in
    part, such as 0.10; None: not known.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", version, re.ASCII):
        return None
    wanted = version.split(".")
    exact = [name for name in releases() if wanted[: len(name.split("."))] == name.split(".")]
    first = [name for name in releases() if name.split(".")[: len(wanted)] == wanted]
    return max(exact, key=len) if exact else next(iter(first), None)


NONE = 0
OFFSET_OUT_OF_RANGE = 1

_LEADER = "Check who leads the partition, and the brokers' logs around this time"
_OVERLOAD = "Check the broker's log around this time"
_BUG = "Check the broker's log; this version sent a request that this broker does not understand"
_LOGIN = "Check source.security: the login that this listener wants"
_MEMBERS = "Check the group's members: while it has some, nobody else commits its offsets"
_COORDINATOR = "Check the group's coordinator, and __consumer_offsets"

_TABLE = (
    BrokerRefusal(-1, "UNKNOWN_SERVER_ERROR", True, BrokerError, _OVERLOAD, Meaning.UNSAID),
    BrokerRefusal(0, "NONE", False, EtlError, "It is no error"),
    BrokerRefusal(
        1,
        "OFFSET_OUT_OF_RANGE",
        False,
        BrokerError,
        "Check log start and end of the partition; a moved leader also answers so",
        Meaning.OUT_OF_RANGE,
    ),
    BrokerRefusal(
        2,
        "CORRUPT_MESSAGE",
        True,
        CorruptData,
        "Check the broker's own log of that partition and its disks: it found a bad checksum",
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
        "Check the topic's name: the broker allows none like it",
    ),
    BrokerRefusal(19, "NOT_ENOUGH_REPLICAS", True, BrokerError, _LEADER),
    BrokerRefusal(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", True, BrokerError, _LEADER),
    BrokerRefusal(22, "ILLEGAL_GENERATION", False, BrokerError, _MEMBERS, Meaning.OLD_GENERATION),
    BrokerRefusal(
        23,
        "INCONSISTENT_GROUP_PROTOCOL",
        False,
        SettingsError,
        "Check by which strategies the group's other members divide it: all need one in common, and to be consumers",
        Meaning.NO_COMMON_STRATEGY,
    ),
    BrokerRefusal(24, "INVALID_GROUP_ID", False, SettingsError, "Check the group's name"),
    BrokerRefusal(25, "UNKNOWN_MEMBER_ID", False, BrokerError, _MEMBERS, Meaning.UNKNOWN_MEMBER),
    BrokerRefusal(
        26,
        "INVALID_SESSION_TIMEOUT",
        False,
        SettingsError,
        "Check the session time-out, and the broker's bounds: group.min.session.timeout.ms and group.max.session.timeout.ms",
    ),
    BrokerRefusal(27, "REBALANCE_IN_PROGRESS", True, BrokerError, _MEMBERS, Meaning.REBALANCING),
    BrokerRefusal(
        28,
        "INVALID_COMMIT_OFFSET_SIZE",
        False,
        SettingsError,
        "Check message.max.bytes of the brokers: one commit is one batch of theirs",
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
        "Check the broker's version, message.downconversion.enable, and for the consumer protocol its feature group.version",
        Meaning.SWITCHED_OFF,
    ),
    BrokerRefusal(42, "INVALID_REQUEST", False, EtlError, _BUG),
    BrokerRefusal(
        43,
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        False,
        SettingsError,
        "Check the topic's message format: too old to search by time",
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
        "Check whether the group has members of the other protocol (classic, consumer), and group.consumer.migration.policy of the broker",
        Meaning.NO_SUCH_GROUP,
    ),
    BrokerRefusal(70, "FETCH_SESSION_ID_NOT_FOUND", True, BrokerError, _OVERLOAD),
    BrokerRefusal(71, "INVALID_FETCH_SESSION_EPOCH", True, BrokerError, _OVERLOAD),
    BrokerRefusal(
        72,
        "LISTENER_NOT_FOUND",
        True,
        BrokerError,
        "Check the listeners of all brokers: one lacks the listener that we came by",
        Meaning.NO_LISTENER,
    ),
    BrokerRefusal(74, "FENCED_LEADER_EPOCH", True, BrokerError, _LEADER),
    BrokerRefusal(75, "UNKNOWN_LEADER_EPOCH", True, BrokerError, _LEADER),
    BrokerRefusal(
        76,
        "UNSUPPORTED_COMPRESSION_TYPE",
        False,
        SettingsError,
        "Check the broker's version: zstd is given out from Kafka 2.1 on",
    ),
    BrokerRefusal(78, "OFFSET_NOT_AVAILABLE", True, BrokerError, _LEADER),
    BrokerRefusal(79, "MEMBER_ID_REQUIRED", True, BrokerError, _MEMBERS, Meaning.ID_REQUIRED),
    BrokerRefusal(
        81,
        "GROUP_MAX_SIZE_REACHED",
        True,
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
        "Check who left a transaction open that commits offsets",
        Meaning.UNSTABLE,
    ),
    BrokerRefusal(
        89, "THROTTLING_QUOTA_EXCEEDED", True, BrokerError, "Check the quotas of our client"
    ),
    BrokerRefusal(
        100,
        "UNKNOWN_TOPIC_ID",
        True,
        BrokerError,
        "Check whether the topic was deleted, or made again",
        Meaning.ANOTHER_TOPIC,
    ),
    BrokerRefusal(
        103,
        "INCONSISTENT_TOPIC_ID",
        True,
        BrokerError,
        "Check whether the topic was deleted, or made again",
        Meaning.ANOTHER_TOPIC,
    ),
    BrokerRefusal(106, "FETCH_SESSION_TOPIC_ID_ERROR", True, BrokerError, _OVERLOAD),
    BrokerRefusal(
        109,
        "OFFSET_MOVED_TO_TIERED_STORAGE",
        False,
        EtlError,
        "Check the broker's log: only a follower is answered so",
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
    """Return the meaning of an error code; None without an error. Unknown codes are not retriable."""
    return None if code == NONE else _row(code)


def _row(code: int) -> BrokerRefusal:
    unknown = "Check the broker's version and log: this table is older"
    return CODES.get(code) or BrokerRefusal(
        code, f"unknown error code {code}", False, EtlError, unknown
    )
