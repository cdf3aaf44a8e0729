"""What of the log becomes rows, and how damage in an answer is told: what the decoders of all
formats are given, and raise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from etl.errors import CorruptData, OffsetInsideMessage
from etl.kafka.messages import FetchedPartition
from etl.settings.choices import MAX_RECORD_BYTES

MAX_UNPACKED_BYTES = 128 << 20
"""What one record batch or wrapper may decompress to. Reserved once per thread; only what is used
becomes resident memory.
"""

_LOG = "the log on the broker (kafka-dump-log), its disks, and the network between"


@dataclass(slots=True)
class Counts:
    """Records that became no rows, of one walk through a range."""

    control_records: int = 0
    aborted_records: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What of the log becomes rows, and which columns they have."""

    from_offset: int
    until_offset: int
    columns: Collection[str]
    skips_aborted: bool
    log_epoch: int = 0
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES
    """What one record batch or wrapper may decompress to."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """What one record may have in the chosen columns."""


def place_of(fetched: FetchedPartition) -> dict[str, Any]:
    """Which log an error is about."""
    return {"topic": fetched.topic, "partition": fetched.partition, "broker_id": fetched.broker_id}


def corrupt(fetched: FetchedPartition, offset: int, what: str) -> CorruptData:
    return CorruptData(what, check=_LOG, **place_of(fetched), offset=offset)


def no_message_at(fetched: FetchedPartition, position: int, what: str) -> OffsetInsideMessage:
    """Of bytes that are no message, in a log whose offsets are byte positions: nobody may guess
    where the next one begins.
    """
    return OffsetInsideMessage(
        f"no message is at this byte position: {what}",
        check="whether another client moved the group's offset to a position inside a message, and the log on the broker for damage",
        **place_of(fetched),
        offset=position,
    )
