"""The error codes of Kafka 0.8 and later: name, whether asking again may help, and which of our errors each one is.

Owns the table (Kafka protocol, error codes) and the one function that makes an error of a code, for everybody who reads an answer.
The codes of the 0.7 family have the same numbers and other meanings, and are not here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from etl.errors import BrokerError, CorruptData, EtlError, PermissionRefused, SettingsError, TopicMissing

NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
NOT_COORDINATOR = 16
NOT_ALLOWED = frozenset({29, 30, 31})
"""We are known, and may not."""


class Code(NamedTuple):
    """One row of the table."""

    name: str
    is_retriable: bool
    """Asking again may help, metadata refreshes counted; the one who asks again bounds it."""
    kind: type[EtlError]
    """Which error it is once nobody asks again."""
    check: str


_LEADER = "who leads the partition, and the brokers' logs around this time"
_OVERLOAD = "the broker's log around this time"
_BUG = "the broker's log; this version sent a request that this broker does not understand"
_LOGIN = "for a PLAINTEXT listener: this one wants a login"
_COORDINATOR = "the group's coordinator, and __consumer_offsets"

CODES: dict[int, Code] = {
    -1: Code("UNKNOWN_SERVER_ERROR", True, BrokerError, _OVERLOAD),
    0: Code("NONE", False, EtlError, "nothing: it is no error"),
    1: Code("OFFSET_OUT_OF_RANGE", False, BrokerError, "log start and end of the partition; a moved leader also answers so"),
    2: Code("CORRUPT_MESSAGE", True, CorruptData, "the broker's own log of that partition and its disks: it found a bad checksum"),
    3: Code("UNKNOWN_TOPIC_OR_PARTITION", True, TopicMissing, "the topic's name, and whether it was deleted"),
    4: Code("INVALID_FETCH_SIZE", False, EtlError, _BUG),
    5: Code("LEADER_NOT_AVAILABLE", True, BrokerError, _LEADER),
    6: Code("NOT_LEADER_OR_FOLLOWER", True, BrokerError, _LEADER),
    7: Code("REQUEST_TIMED_OUT", True, BrokerError, _OVERLOAD),
    8: Code("BROKER_NOT_AVAILABLE", False, BrokerError, _OVERLOAD),
    9: Code("REPLICA_NOT_AVAILABLE", True, BrokerError, _LEADER),
    10: Code("MESSAGE_TOO_LARGE", False, SettingsError, "max.message.bytes of the topic"),
    13: Code("NETWORK_EXCEPTION", True, BrokerError, _OVERLOAD),
    14: Code("COORDINATOR_LOAD_IN_PROGRESS", True, BrokerError, _COORDINATOR),
    15: Code("COORDINATOR_NOT_AVAILABLE", True, BrokerError, _COORDINATOR),
    16: Code("NOT_COORDINATOR", True, BrokerError, _COORDINATOR),
    17: Code("INVALID_TOPIC_EXCEPTION", False, TopicMissing, "the topic's name: the broker allows none like it"),
    19: Code("NOT_ENOUGH_REPLICAS", True, BrokerError, _LEADER),
    20: Code("NOT_ENOUGH_REPLICAS_AFTER_APPEND", True, BrokerError, _LEADER),
    22: Code("ILLEGAL_GENERATION", False, BrokerError, "the group's live consumers"),
    24: Code("INVALID_GROUP_ID", False, SettingsError, "the group's name"),
    25: Code("UNKNOWN_MEMBER_ID", False, BrokerError, "the group's live consumers: while it has some, nobody else commits its offsets"),
    27: Code("REBALANCE_IN_PROGRESS", True, BrokerError, "the group's live consumers"),
    29: Code("TOPIC_AUTHORIZATION_FAILED", False, PermissionRefused, "the broker's ACLs for this topic"),
    30: Code("GROUP_AUTHORIZATION_FAILED", False, PermissionRefused, "the broker's ACLs for this group"),
    31: Code("CLUSTER_AUTHORIZATION_FAILED", False, PermissionRefused, "the broker's ACLs for the cluster"),
    33: Code("UNSUPPORTED_SASL_MECHANISM", False, PermissionRefused, _LOGIN),
    34: Code("ILLEGAL_SASL_STATE", False, PermissionRefused, _LOGIN),
    35: Code("UNSUPPORTED_VERSION", False, SettingsError, "the broker's version, and message.downconversion.enable"),
    42: Code("INVALID_REQUEST", False, EtlError, _BUG),
    43: Code("UNSUPPORTED_FOR_MESSAGE_FORMAT", False, SettingsError, "the topic's message format: too old to search by time"),
    44: Code("POLICY_VIOLATION", False, PermissionRefused, "the broker's policies"),
    53: Code("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False, PermissionRefused, "the broker's ACLs for transactional ids"),
    56: Code("KAFKA_STORAGE_ERROR", True, BrokerError, "the broker's disks"),
    58: Code("SASL_AUTHENTICATION_FAILED", False, PermissionRefused, _LOGIN),
    70: Code("FETCH_SESSION_ID_NOT_FOUND", True, BrokerError, _OVERLOAD),
    71: Code("INVALID_FETCH_SESSION_EPOCH", True, BrokerError, _OVERLOAD),
    72: Code("LISTENER_NOT_FOUND", True, BrokerError, "the listeners of all brokers: one lacks the listener that we came by"),
    74: Code("FENCED_LEADER_EPOCH", True, BrokerError, _LEADER),
    75: Code("UNKNOWN_LEADER_EPOCH", True, BrokerError, _LEADER),
    76: Code("UNSUPPORTED_COMPRESSION_TYPE", False, SettingsError, "the broker's version: zstd is given out from Kafka 2.1 on"),
    78: Code("OFFSET_NOT_AVAILABLE", True, BrokerError, _LEADER),
    89: Code("THROTTLING_QUOTA_EXCEEDED", True, BrokerError, "the quotas of our client"),
    100: Code("UNKNOWN_TOPIC_ID", True, BrokerError, _LEADER),
    103: Code("INCONSISTENT_TOPIC_ID", True, BrokerError, _LEADER),
    106: Code("FETCH_SESSION_TOPIC_ID_ERROR", True, BrokerError, _OVERLOAD),
    109: Code("OFFSET_MOVED_TO_TIERED_STORAGE", False, EtlError, "the broker's log: only a follower is answered so"),
}


def name_of(code: int) -> str:
    """The name of `code`, or a text with its number for a code that is not in the table."""
    return _row(code).name


def is_retriable(code: int) -> bool:
    """Whether asking again may help; a code that is not in the table fails."""
    return _row(code).is_retriable


def failure_of(code: int, doing: str, **place: Any) -> EtlError:
    """The error for a code that the broker answered, for the caller to raise once nobody asks again."""
    row = _row(code)
    return row.kind(f"the broker refused to {doing}: {row.name} (code {code})", check=row.check, **place)


def _row(code: int) -> Code:
    return CODES.get(code) or Code(f"unknown error code {code}", False, EtlError, "the broker's version and log: this table is older")
