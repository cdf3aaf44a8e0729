"""How late logs are: their largest timestamp where the broker tells it (KIP-734), else that of what
lies right below their ends: one multifetch for many, and only what is larger is asked for alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import BrokerUnreachable, Meaning
from etl.kafka.messages import FetchAnswer, FetchedPartition, FetchTarget
from etl.model.partitions import BrokerPartition, Isolation
from etl.records.entries import largest_timestamp

_ROUNDS = ((64 * 1024, 256), (1024 * 1024, 16), (1024 * 1024, 1))
"""Bytes of each log, and logs in one request: what does not fit is asked for in the next round, and
alone it comes whole (KIP-74).
"""
_PATIENCE_S = 30.0
_NEVER = -1


def largest_times(
    consumer: SimpleConsumer, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, int | None]:
    """The largest timestamp, in milliseconds, of each of these logs, which this broker leads; one
    below all times where no record has any.

    Left out are logs of which the broker cannot tell: it is from before Kafka 3.0, or their
    messages are of a format without timestamps. Raises what a broker's refusal means.
    """
    found = dict[BrokerPartition, int | None]()
    for log, told in (consumer.largest_times(logs) or {}).items():
        if told.refusal is None:
            found[log] = _NEVER if told.timestamp_ms is None else told.timestamp_ms
        elif told.refusal.meaning is not Meaning.NO_SEARCH:
            raise told.refusal.error(
                "tell the largest timestamp", **log.place, broker=consumer.address
            )
    return found


def last_times(
    consumer: SimpleConsumer, ends: Mapping[BrokerPartition, int]
) -> dict[BrokerPartition, int | None]:
    """Of logs that this broker leads and their high watermarks, which are not 0: the largest
    timestamp, in milliseconds, of the record batch or message right below; None where it has none,
    or nothing is left there.

    A log that begins at its end by now is left out. Raises BrokerUnreachable, and what a broker's
    refusal means.
    """
    found: dict[BrokerPartition, int | None] = {}
    left = sorted(ends)
    for size, most in _ROUNDS:
        asked, left = left, []
        for at in range(0, len(asked), most):
            left += _ask(
                consumer,
                [FetchTarget(log, ends[log] - 1, size) for log in asked[at : at + most]],
                found,
            )
    return {**found, **dict.fromkeys(left)}


def _ask(
    consumer: SimpleConsumer,
    wanted: Sequence[FetchTarget],
    found: dict[BrokerPartition, int | None],
) -> Iterator[BrokerPartition]:
    """One request, into `found`; the logs of which nothing came."""
    logs = {(one.log.topic, one.log.partition): one.log for one in wanted}
    for part in _answer(consumer, wanted).partitions:
        log = logs[part.topic, part.partition]
        if part.refusal is None:
            yield from _told(log, part, found)
        elif part.refusal.meaning is not Meaning.OUT_OF_RANGE:
            raise part.refusal.error(
                "read what lies at the end", **log.place, broker=consumer.address
            )


def _told(
    log: BrokerPartition, part: FetchedPartition, found: dict[BrokerPartition, int | None]
) -> Iterator[BrokerPartition]:
    if part.records or part.proves_empty:
        found[log] = largest_timestamp(part.records)
    else:
        yield log


def _answer(consumer: SimpleConsumer, wanted: Sequence[FetchTarget]) -> FetchAnswer:
    """Asked again while the broker throttles us and names no partition."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (
        answer := consumer.multifetch(
            wanted,
            isolation=Isolation.READ_UNCOMMITTED,
            max_bytes=sum(one.max_bytes for one in wanted),
        )
    ).partitions:
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                "the broker throttles us and gives nothing",
                broker=consumer.address,
                check="the quota of our client",
            )
    return answer
