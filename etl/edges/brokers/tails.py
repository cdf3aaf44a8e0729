"""What physical logs hold right before an offset, asked of their brokers: by it a log is known again.

A broker of this family copies bytes of its file from wherever it is asked: a few of them tell whether the file is still the one that was.
One MultiFetch per broker for many logs; no answer crosses a segment, so nobody asks for bytes of two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from etl.edges.brokers.brokers import Brokers
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.model.logs import BrokerPartition, Leader, Tail
from etl.protocol.messages import EARLIEST, FetchTarget
from etl.protocol.refusal import Meaning

Places = Mapping[BrokerPartition, tuple[int, int]]
"""Of each log the offset where the bytes end, and how many they are."""
_LOGS_AT_A_TIME = 4096
_DIGEST_BYTES = 8


def read_tails(cluster: Brokers, places: Places, leaders: Mapping[BrokerPartition, Leader]) -> dict[BrokerPartition, Tail]:
    """What these logs hold there now. A log that has let go of these bytes is left out; one that ends before them has fewer, or none.

    Raises BrokerUnreachable, and what a broker's refusal means.
    """
    def ask(consumer: SimpleConsumer, logs: Collection[BrokerPartition]) -> dict[BrokerPartition, Tail]:
        wanted, found = sorted(logs), dict[BrokerPartition, Tail]()
        for at in range(0, len(wanted), _LOGS_AT_A_TIME):
            found |= _ask(consumer, wanted[at:at + _LOGS_AT_A_TIME], places)
        return found

    answers = cluster.of_each({log: leaders[log] for log in places if log in leaders}, ask)
    return {log: tail for answer in answers for log, tail in answer.items()}


def _ask(consumer: SimpleConsumer, logs: Sequence[BrokerPartition], places: Places) -> dict[BrokerPartition, Tail]:
    by_name, found, outside = {(log.topic, log.partition): log for log in logs}, dict[BrokerPartition, Tail](), list[BrokerPartition]()
    targets = [FetchTarget(log, places[log][0] - places[log][1], places[log][1]) for log in logs]
    answer = consumer.multifetch(targets, max_bytes=sum(target.max_bytes for target in targets))
    for part in answer.partitions:
        log = by_name[part.topic, part.partition]
        if part.refusal is None:
            found[log] = _tail(places[log], bytes(part.records))
        elif part.refusal.meaning is Meaning.OUT_OF_RANGE:
            outside.append(log)
        else:
            raise part.refusal.error("read what lies before a position", **log.place, broker=consumer.address)
    if outside:
        starts = consumer.list_offsets(dict.fromkeys(outside, EARLIEST))
        is_gone = {log: (starts[log].offset or 0) > places[log][0] - places[log][1] for log in outside}
        found |= {log: _tail(places[log], b"") for log in outside if not is_gone[log]}
    return found


def _tail(place: tuple[int, int], content: bytes) -> Tail:
    until, size = place
    return Tail(until, size, hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest())
