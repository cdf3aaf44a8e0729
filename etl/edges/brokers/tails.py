"""What physical logs hold right before an offset, asked of their brokers: by it a log is known
again.

A broker of this family copies bytes of its file from wherever it is asked: a few of them tell
whether the file is still the one that was. One MultiFetch per broker for many logs; no answer
crosses a segment, so logs whose bytes are in two are asked once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from etl.edges.brokers.brokers import Brokers
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import Meaning
from etl.kafka.messages import EARLIEST, FetchTarget
from etl.model.partitions import BrokerPartition, Leader, Tail

Places = Mapping[BrokerPartition, tuple[int, int]]
"""Of each log the offset where the bytes end, and how many they are."""
_LOGS_AT_A_TIME = 4096
_DIGEST_BYTES = 8


def read_tails(
    cluster: Brokers, places: Places, leaders: Mapping[BrokerPartition, Leader]
) -> dict[BrokerPartition, Tail]:
    """What these logs hold there now. A log that has let go of these bytes is left out; one that
    ends before them has fewer, or none.

    Raises BrokerUnreachable, and what a broker's refusal means.
    """

    def ask(
        consumer: SimpleConsumer, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, Tail]:
        wanted, found = sorted(logs), dict[BrokerPartition, Tail]()
        for at in range(0, len(wanted), _LOGS_AT_A_TIME):
            found |= _ask(consumer, wanted[at : at + _LOGS_AT_A_TIME], places)
        return found

    answers = cluster.of_each({log: leaders[log] for log in places if log in leaders}, ask)
    return {log: tail for answer in answers for log, tail in answer.items()}


def _ask(
    consumer: SimpleConsumer, logs: Sequence[BrokerPartition], places: Places
) -> dict[BrokerPartition, Tail]:
    found, outside = dict[BrokerPartition, bytes](), set[BrokerPartition]()
    asked = list(logs)
    while asked:
        begins = {log: places[log][0] - places[log][1] + len(found.get(log, b"")) for log in asked}
        more = _fetched(
            consumer, {log: (begin, places[log][0] - begin) for log, begin in begins.items()}
        )
        outside |= {log for log, content in more.items() if content is None and log not in found}
        found |= {
            log: found.get(log, b"") + content
            for log, content in more.items()
            if content is not None
        }
        asked = [
            log for log, content in more.items() if content and len(found[log]) < places[log][1]
        ]
    if outside:
        starts = consumer.list_offsets(dict.fromkeys(sorted(outside), EARLIEST))
        found |= {
            log: b""
            for log in outside
            if (starts[log].offset or 0) <= places[log][0] - places[log][1]
        }
    return {log: _tail(places[log], content) for log, content in found.items()}


def _fetched(
    consumer: SimpleConsumer, wanted: Mapping[BrokerPartition, tuple[int, int]]
) -> dict[BrokerPartition, bytes | None]:
    """What one answer has of these bytes, each from an offset on and so many at most; None where
    the log does not reach to there.
    """
    by_name, told = (
        {(log.topic, log.partition): log for log in wanted},
        dict[BrokerPartition, bytes | None](),
    )
    targets = [FetchTarget(log, offset, size) for log, (offset, size) in wanted.items()]
    answer = consumer.multifetch(targets, max_bytes=sum(target.max_bytes for target in targets))
    for part in answer.partitions:
        log = by_name[part.topic, part.partition]
        if part.refusal is not None and part.refusal.meaning is not Meaning.OUT_OF_RANGE:
            raise part.refusal.error(
                "read what lies before a position", **log.place, broker=consumer.address
            )
        told[log] = None if part.refusal else bytes(part.records)
    return told


def _tail(place: tuple[int, int], content: bytes) -> Tail:
    until, size = place
    return Tail(until, size, hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest())
