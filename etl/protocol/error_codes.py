"""The error codes of Kafka 0.8 and later: name, and whether asking again may help a range fetch.

Owns the table (Kafka protocol, error codes); who raises what for a code is said where the answer is
read. The codes of the 0.7 family have the same numbers and other meanings, and are not here.
"""

from __future__ import annotations

NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC = 3
NOT_ALLOWED = frozenset({29, 30, 31})
"""We are known, and may not."""

CODES: dict[int, tuple[str, bool]] = {
    -1: ("UNKNOWN_SERVER_ERROR", True),
    0: ("NONE", False),
    1: ("OFFSET_OUT_OF_RANGE", False),
    2: ("CORRUPT_MESSAGE", True),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", True),
    4: ("INVALID_FETCH_SIZE", False),
    5: ("LEADER_NOT_AVAILABLE", True),
    6: ("NOT_LEADER_OR_FOLLOWER", True),
    7: ("REQUEST_TIMED_OUT", True),
    8: ("BROKER_NOT_AVAILABLE", False),
    9: ("REPLICA_NOT_AVAILABLE", True),
    10: ("MESSAGE_TOO_LARGE", False),
    13: ("NETWORK_EXCEPTION", True),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", True),
    15: ("COORDINATOR_NOT_AVAILABLE", True),
    16: ("NOT_COORDINATOR", True),
    17: ("INVALID_TOPIC_EXCEPTION", False),
    29: ("TOPIC_AUTHORIZATION_FAILED", False),
    30: ("GROUP_AUTHORIZATION_FAILED", False),
    31: ("CLUSTER_AUTHORIZATION_FAILED", False),
    33: ("UNSUPPORTED_SASL_MECHANISM", False),
    34: ("ILLEGAL_SASL_STATE", False),
    35: ("UNSUPPORTED_VERSION", False),
    42: ("INVALID_REQUEST", False),
    43: ("UNSUPPORTED_FOR_MESSAGE_FORMAT", False),
    56: ("KAFKA_STORAGE_ERROR", True),
    58: ("SASL_AUTHENTICATION_FAILED", False),
    70: ("FETCH_SESSION_ID_NOT_FOUND", True),
    71: ("INVALID_FETCH_SESSION_EPOCH", True),
    72: ("LISTENER_NOT_FOUND", True),
    74: ("FENCED_LEADER_EPOCH", True),
    75: ("UNKNOWN_LEADER_EPOCH", True),
    76: ("UNSUPPORTED_COMPRESSION_TYPE", False),
    78: ("OFFSET_NOT_AVAILABLE", True),
    89: ("THROTTLING_QUOTA_EXCEEDED", True),
    100: ("UNKNOWN_TOPIC_ID", True),
    103: ("INCONSISTENT_TOPIC_ID", True),
    106: ("FETCH_SESSION_TOPIC_ID_ERROR", True),
    109: ("OFFSET_MOVED_TO_TIERED_STORAGE", False),
}
"""code -> (name, retriable). "Retriable" counts metadata refreshes; the one who retries bounds it."""


def name_of(code: int) -> str:
    """The name of `code`, or a text with its number for a code that is not in the table."""
    return CODES.get(code, (f"unknown error code {code}", False))[0]


def is_retriable(code: int) -> bool:
    """Whether asking again may help; a code that is not in the table fails."""
    return CODES.get(code, ("", False))[1]
