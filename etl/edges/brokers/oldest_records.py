"""The times of the first records from given offsets on, asked of the leaders of their logs.

No request tells the time of an offset, so its record is fetched. Since Fetch v3 (KIP-74) a record
batch that does not fit is not given at all, unless it is the first of an answer. So many logs are
asked for by one request, with little for each; where that does not fit they are asked for again,
together and with eight times as much. All of it is bounded for each broker: what does not fit into
that stays unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from etl.edges.brokers.brokers import Brokers
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import EtlError
from etl.kafka.messages import FetchedPartition, FetchTarget
from etl.model.partitions import BrokerPartition, Isolation, Leader, OldestRecord
from etl.settings.choices import MIB

Unread = Mapping[BrokerPartition, tuple[int, int]]
"""Of each log the offset of the oldest record that is not read, and its readable end."""
FIRST_BYTES = 32 << 10
"""Asked for of each log first: two record batches of a producer that nobody configured."""
LOOKED_AT_BYTES_MAX = 64 * MIB
"""Of all logs of one broker together."""
_ANSWER_BYTES_MAX = 16 * MIB
_GROWTH = 8

_NO_RECORD = OldestRecord(
    why="what is not read holds no record, only markers, aborted or compacted ones"
)
_NO_TIME = OldestRecord(why="the format of its messages has no time")
_SILENT = OldestRecord(why="the broker gave no record of it")
_TOO_LARGE = OldestRecord(why=f"its record batch is larger than {_ANSWER_BYTES_MAX // MIB} MiB")
_TOO_FAR = OldestRecord(why="it was not among what is looked at of one broker's logs together")


@dataclass(slots=True)
class _Look:
    """How far the search in one log is."""

    offset: int
    end_offset: int
    max_bytes: int = FIRST_BYTES


def read_oldest(
    cluster: Brokers,
    unread: Unread,
    leaders: Mapping[BrokerPartition, Leader],
    *,
    isolation: Isolation,
) -> dict[BrokerPartition, OldestRecord]:
    """The oldest unread record of each log that has a leader. Raises nothing of a broker: a log
    that it does not tell of says why.
    """

    def ask(
        consumer: SimpleConsumer, logs: Collection[BrokerPartition]
    ) -> dict[BrokerPartition, OldestRecord]:
        return _of_broker(
            consumer, {log: _Look(*unread[log]) for log in sorted(logs)}, leaders, isolation
        )

    answers = cluster.of_each({log: leaders[log] for log in unread if log in leaders}, ask)
    return {log: told for answer in answers for log, told in answer.items()}


def _of_broker(
    consumer: SimpleConsumer,
    waiting: dict[BrokerPartition, _Look],
    leaders: Mapping[BrokerPartition, Leader],
    isolation: Isolation,
) -> dict[BrokerPartition, OldestRecord]:
    found, left = dict[BrokerPartition, OldestRecord](), LOOKED_AT_BYTES_MAX
    while waiting and left > 0:
        asked = _fitting(waiting)
        targets = [
            FetchTarget(log, look.offset, look.max_bytes, leaders[log].epoch)
            for log, look in asked.items()
        ]
        try:
            answer = consumer.multifetch(
                targets, isolation=isolation, max_bytes=sum(each.max_bytes for each in targets)
            )
        except EtlError as error:
            found |= dict.fromkeys(waiting, OldestRecord(why=error.what))
            return found
        parts = {(each.topic, each.partition): each for each in answer.partitions}
        left -= sum(len(each.records) for each in answer.partitions)
        for log, look in asked.items():
            told = _told(log, parts.get((log.topic, log.partition)), look)
            if told is not None:
                found[log] = told
                del waiting[log]
    return found | dict.fromkeys(waiting, _TOO_FAR)


def _fitting(waiting: Mapping[BrokerPartition, _Look]) -> dict[BrokerPartition, _Look]:
    """As many of those that wait as one answer may hold; those that need least come first, so that
    most are told.
    """
    asked, size = dict[BrokerPartition, _Look](), 0
    for log, look in sorted(waiting.items(), key=lambda each: (each[1].max_bytes, each[0])):
        if asked and size + look.max_bytes > _ANSWER_BYTES_MAX:
            break
        asked[log] = look
        size += look.max_bytes
    return asked


def _told(
    log: BrokerPartition, fetched: FetchedPartition | None, look: _Look
) -> OldestRecord | None:
    """What this part of an answer tells; None: it is asked for again, further on or with more
    bytes, as `look` says then.
    """
    if fetched is not None and fetched.refusal is not None:
        return OldestRecord(why=fetched.refusal.error("fetch", **log.place).what)
    if fetched is None or not len(fetched.records):
        return _grown(look, _SILENT)
    try:
        # The compiled kernels load only where records are decoded.
        from etl.records.decode import Messages

        messages = Messages(fetched)
        if messages.needed_bytes:
            return _grown(look, _TOO_LARGE)
        record = next(iter(messages), None)
    except EtlError as error:
        return OldestRecord(why=f"its record cannot be read: {error.what}")
    if record is not None and record.offset < look.end_offset:
        return (
            _NO_TIME
            if record.timestamp_ms is None or record.timestamp_ms < 0
            else OldestRecord(record.timestamp_ms)
        )
    if record is not None or messages.next_offset >= look.end_offset:
        return _NO_RECORD
    look.offset = max(look.offset, messages.next_offset)
    return _grown(look, _SILENT)


def _grown(look: _Look, at_last: OldestRecord) -> OldestRecord | None:
    """Ask with more bytes; where that was done as far as it goes, what is said then."""
    if look.max_bytes >= _ANSWER_BYTES_MAX:
        return at_last
    look.max_bytes = min(_ANSWER_BYTES_MAX, look.max_bytes * _GROWTH)
    return None
