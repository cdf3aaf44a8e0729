"""The error codes of Jafka and Kafka 0.7: name, whether asking again may help, which of our errors
each one is, and what it means.

Owns the table (Jafka, `common.ErrorMapping`). From Kafka 0.8 on the same numbers mean something
else. Only fetches are answered with a code; any other request that the broker cannot serve makes it
close the connection.
"""

from __future__ import annotations

from etl.errors import BrokerError, CorruptData, EtlError, Meaning, PermissionRefused, Refusal

NONE = 0
OFFSET_OUT_OF_RANGE = 1
WRONG_PARTITION = 3

_LOG = "the broker's log around this time"

_TABLE = (
    Refusal(
        -1,
        "UNKNOWN",
        True,
        BrokerError,
        f"{_LOG}; it also answers so to a topic's name that it does not allow",
    ),
    Refusal(
        OFFSET_OUT_OF_RANGE,
        "OFFSET_OUT_OF_RANGE",
        False,
        BrokerError,
        "log start and flushed end of the log",
        Meaning.OUT_OF_RANGE,
    ),
    Refusal(
        2,
        "INVALID_MESSAGE",
        False,
        CorruptData,
        "the broker's own log and its disks: it found a bad checksum",
    ),
    Refusal(
        WRONG_PARTITION,
        "WRONG_PARTITION",
        False,
        BrokerError,
        "how many partitions the topic has on this broker (/brokers/topics/[topic]/[broker]): they are fewer",
    ),
    Refusal(4, "INVALID_FETCH_SIZE", False, EtlError, _LOG),
)
_ROWS: dict[int, Refusal] = {row.code: row for row in _TABLE}

WRONG_PASSWORD = Refusal(
    -1,
    "WRONG_PASSWORD",
    False,
    PermissionRefused,
    "the password of the broker's settings",
    Meaning.NOT_ALLOWED,
)
"""Of a delete request: a number where the answer says how many partitions were deleted."""


def refusal_of(code: int) -> Refusal | None:
    """What a code means that came with an answer; None where nothing was refused. A code that is
    not in the table is final.
    """
    unknown = Refusal(
        code,
        f"unknown error code {code}",
        False,
        EtlError,
        "the broker's version: this table does not know it",
    )
    return None if code == NONE else _ROWS.get(code, unknown)
