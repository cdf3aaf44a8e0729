"""Bytes to values and back, without sockets; and the one value that the answers of both dialects are parsed into.

What a request or response looks like belongs to `kafka` (and later `jafka`), what the records field holds to
`record_batches`, turning it into columns to `columns`, what an error code means to `error_codes`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What one Fetch answer says of one Kafka partition. The wire's -1 is None here.

    `records` is a view of the receive buffer, not a copy: it is only good until the next answer is received into
    that buffer, so what `Cursor.feed` returns must be read to its end before.
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int | None
    """None: the version of the answer has no such field."""
    log_start_offset: int | None
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the aborted transactions that overlap this answer (KIP-98)."""
    records: memoryview
    """Record batches or message sets; the last one may be cut off. Empty where the wire says null."""
    proves_empty: bool = False
    """True: if `records` is empty, then there is nothing to read at the asked offset.

    A broker also answers empty when it throttles, and when the partitions before this one in the same answer used
    up the bytes (KIP-74). So this may be said only of a partition whose answer was not throttled and before which
    no other partition of the answer had records.
    """
