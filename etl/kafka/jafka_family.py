"""Which request does each question become on Jafka and Kafka 0.7?

A broker of this family knows only its own partitions; broker ids, topics and other brokers are in
ZooKeeper. It has no groups, transactions, leader epochs or timestamps, and reports no version.

Error codes are those of Jafka's `common.ErrorMapping`; the same numbers mean something else from
Kafka 0.8 on. Only fetches are answered with a code: any other request that fails closes the
connection.

Fetch and MultiFetch copy bytes of the log file from the requested offset on. A response may end
inside an entry, at the end of a segment although more follows, and at the last flushed byte. The
broker never waits for more data, limits each partition and not the response, and answers for an
unknown topic with no bytes and no error.

The offsets request returns where a partition starts, its flushed end and the starts of its
segments. Offsets are byte positions, so ranges may begin and end only there. Of a partition that
does not exist Kafka 0.7 reports 0 and 0, Jafka reports nothing; both are read alike. Only
ZooKeeper knows whether the topic exists.

Produce requests (for the demo and for tests) are never answered. An offsets request follows each
on the same connection: a broker that accepted the messages answers it, any other closes the
connection. The offsets of the messages are unknown.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from etl.errors import (
    BrokerError,
    BrokerRefusal,
    CorruptData,
    EtlError,
    Meaning,
    PermissionDenied,
    SettingsError,
)
from etl.kafka.messages import (
    EARLIEST,
    LATEST,
    ClusterMetadata,
    EntryLayout,
    Fetch,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    ListedOffset,
)
from etl.kafka.primitives import Reader, Writer
from etl.kafka.protocol import BrokerProtocol, Generation, Greeting, Reply, Request
from etl.model.partitions import BrokerPartition, Isolation

NONE = 0
OFFSET_OUT_OF_RANGE = 1
WRONG_PARTITION = 3

_LOG = "Check the broker's log around this time"

_TABLE = (
    BrokerRefusal(
        -1,
        "UNKNOWN",
        True,
        BrokerError,
        f"{_LOG}; it also answers so to a topic's name that it does not allow",
    ),
    BrokerRefusal(
        OFFSET_OUT_OF_RANGE,
        "OFFSET_OUT_OF_RANGE",
        False,
        BrokerError,
        "Check log start and flushed end of the log",
        Meaning.OUT_OF_RANGE,
    ),
    BrokerRefusal(
        2,
        "INVALID_MESSAGE",
        False,
        CorruptData,
        "Check the broker's own log and its disks: it found a bad checksum",
    ),
    BrokerRefusal(
        WRONG_PARTITION,
        "WRONG_PARTITION",
        False,
        BrokerError,
        "Check how many partitions the topic has on this broker (/brokers/topics/[topic]/[broker]): they are fewer",
    ),
    BrokerRefusal(4, "INVALID_FETCH_SIZE", False, EtlError, _LOG),
)
_ROWS: dict[int, BrokerRefusal] = {row.code: row for row in _TABLE}

WRONG_PASSWORD = BrokerRefusal(
    -1,
    "WRONG_PASSWORD",
    False,
    PermissionDenied,
    "Check the password of the broker's settings",
    Meaning.NOT_ALLOWED,
)
"""Response to a delete request, in place of the number of deleted partitions."""


def error_of(code: int) -> BrokerRefusal | None:
    """Return the meaning of an error code; None without an error. Unknown codes are not retriable."""
    unknown = BrokerRefusal(
        code,
        f"unknown error code {code}",
        False,
        EtlError,
        "Check the broker's version: this table does not know it",
    )
    return None if code == NONE else _ROWS.get(code, unknown)


FETCH, MULTIFETCH = 1, 2
_MOST_LOGS = 0x7FFF


def within(max_bytes: int, wanted: Sequence[FetchTarget]) -> tuple[FetchTarget, ...]:
    """Return the first of `wanted` whose parts fit `max_bytes`; the first one always. The broker
    does not limit the whole response. Others must be requested first next time.
    """
    left, found = max_bytes, list[FetchTarget]()
    for each in wanted[:_MOST_LOGS]:
        if found and each.max_bytes > left:
            continue
        found.append(each)
        left -= each.max_bytes
    return tuple(found)


def encode_fetch(wanted: FetchTarget) -> bytes:
    """One framed request for one log."""
    return _write_target(Writer().int16(FETCH), wanted).framed()


def encode_multifetch(wanted: Sequence[FetchTarget]) -> bytes:
    """One framed request for several logs; for none it is a greeting, which every broker answers
    with nothing.
    """
    out = Writer().int16(MULTIFETCH).int16(len(wanted))
    for each in wanted:
        _write_target(out, each)
    return out.framed()


def _write_target(out: Writer, wanted: FetchTarget) -> Writer:
    # A negative size is not refused by the broker: its answer would have a negative size itself,
    # and no end.
    if wanted.max_bytes < 0:
        raise ValueError(f"a fetch of {wanted.max_bytes} bytes cannot be asked for")
    return (
        out.string16(wanted.log.topic)
        .int32(wanted.log.partition)
        .int64(wanted.offset)
        .int32(wanted.max_bytes)
    )


def parse_fetch(wanted: FetchTarget, answer: memoryview, **place: Any) -> FetchAnswer:
    """Parse the response to `encode_fetch`, after its size. Raises CorruptData."""
    return FetchAnswer(0, None, (_read_part(Reader(answer, **place, **wanted.log.place), wanted),))


def parse_multifetch(
    wanted: Sequence[FetchTarget], answer: memoryview, **place: Any
) -> FetchAnswer:
    """Parse the response to `encode_multifetch`, after its size: a part for each partition, in
    order, without names. Raises CorruptData with topic and partition for impossible lengths and
    truncated bytes.
    """
    reader = Reader(answer, **place)
    refusal, partitions = error_of(reader.int16()), list[FetchedPartition]()
    for each in wanted if refusal is None else ():
        reader.place = {**place, **each.log.place}
        part = reader.span(reader.int32(), "a part of the answer")
        partitions.append(_read_part(Reader(part, **reader.place), each))
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return FetchAnswer(0, refusal, tuple(partitions))


def not_asked(wanted: FetchTarget) -> FetchedPartition:
    """Return an empty answer for a partition that did not fit the request."""
    return _fetched(wanted, code=0, records=memoryview(b""), proves_empty=False)


def _read_part(reader: Reader, wanted: FetchTarget) -> FetchedPartition:
    code = reader.int16()
    if reader.left > wanted.max_bytes:
        raise reader.corrupt(
            f"{reader.left} bytes are answered where {wanted.max_bytes} were asked for"
        )
    return _fetched(
        wanted,
        code=code,
        records=reader.span(reader.left, "the message set"),
        proves_empty=code == 0 and wanted.max_bytes > 0,
    )


def _fetched(
    wanted: FetchTarget, *, code: int, records: memoryview, proves_empty: bool
) -> FetchedPartition:
    return FetchedPartition(
        topic=wanted.log.topic,
        partition=wanted.log.partition,
        refusal=error_of(code),
        high_watermark=None,
        last_stable_offset=None,
        log_start_offset=None,
        aborted=(),
        records=records,
        proves_empty=proves_empty,
        layout=EntryLayout.PHYSICAL,
        broker_id=wanted.log.broker_id,
    )


OFFSETS = 4
ALL = 0x7FFFFFFF
"""More than a log has segments: the broker answers with as many as there are, and takes no memory
for the number.
"""


def encode_offsets(log: BrokerPartition, time: int, *, most: int = ALL) -> bytes:
    """One framed request. `time` is LATEST (the flushed end, then the segments' starts) or EARLIEST
    (the start of the oldest segment).

    Raises SettingsError for a moment: Jafka's search by time steps one entry too far.
    """
    if time not in (LATEST, EARLIEST):
        raise SettingsError(
            "A Jafka broker cannot be asked for offsets by time: its search is off by one and names a segment too old, or none",
            action="Check that the first or the last offset is asked for; records of this generation have no timestamps",
            **log.place,
        )
    if most < 1:
        raise ValueError(
            f"{most} offsets cannot be asked for: an answer without any is that of a log that is not there"
        )
    return (
        Writer()
        .int16(OFFSETS)
        .string16(log.topic)
        .int32(log.partition)
        .int64(time)
        .int32(most)
        .framed()
    )


def parse_offsets(
    log: BrokerPartition, answer: memoryview, **place: Any
) -> tuple[int, ...] | BrokerRefusal:
    """Parse the response to one request, after its size: at least one offset, newest first. Raises
    CorruptData.
    """
    reader = Reader(answer, **place, **log.place)
    refusal = error_of(reader.int16())
    if refusal is not None:
        return refusal
    found = [reader.int64() for _ in range(reader.count("the array of offsets", item_bytes=8))]
    if any(offset < 0 for offset in found) or found != sorted(found, reverse=True):
        raise reader.corrupt(f"the offsets {found[:5]} are not those of a log, newest first")
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    # The start of a last segment without a flushed byte is also the end: it is told twice.
    return tuple(dict.fromkeys(found)) or (0,)


def read_listed(log: BrokerPartition, time: int, answer: memoryview, **place: Any) -> ListedOffset:
    """Return the same independent of the broker type."""
    found = parse_offsets(log, answer, **place)
    if isinstance(found, BrokerRefusal):
        return ListedOffset(log, found, None, None, None)
    return ListedOffset(
        log, None, found[0], None, None, tuple(reversed(found)) if time == LATEST else None
    )


PRODUCE, CREATE, DELETE = 0, 5, 6
_MESSAGE = struct.Struct(">ibbI")
_MAGIC = 1


def encode_messages(records: Iterable[tuple[bytes | None, bytes | None]]) -> bytes:
    """An uncompressed message set of key and value pairs, of which the format has the values only.

    Raises ValueError for a key, for a value that is None, and where there is no record.
    """
    messages = b"".join(_encode_message(key, value) for key, value in records)
    if not messages:
        raise ValueError("there is no record to send")
    return messages


def _encode_message(key: bytes | None, value: bytes | None) -> bytes:
    if key is not None:
        raise ValueError(f"messages of this generation have no key, and here is one: {key[:40]!r}")
    if value is None:
        raise ValueError(
            "messages of this generation have a payload always, if an empty one: None cannot be sent"
        )
    return _MESSAGE.pack(_MESSAGE.size - 4 + len(value), _MAGIC, 0, zlib.crc32(value)) + value


def encode_produce(log: BrokerPartition, messages: bytes) -> bytes:
    """Encode one framed request, which is not answered."""
    return (
        Writer()
        .int16(PRODUCE)
        .string16(log.topic)
        .int32(log.partition)
        .int32(len(messages))
        .raw(messages)
        .framed()
    )


def encode_create(topic: str, partitions: int, *, enlarges: bool = True) -> bytes:
    """One framed request: as many partitions at least, on this broker; the logs themselves are made
    by the first message.

    enlarges    without it a broker up to 3.0.6 does nothing, since it counts every topic as having
    num.partitions already
    """
    if partitions < 1:
        raise ValueError(f"a topic cannot have {partitions} partitions")
    return Writer().int16(CREATE).string16(topic).int32(partitions).int8(enlarges).framed()


def encode_delete(topic: str, password: str) -> bytes:
    """One framed request: the topic's logs on this broker. Any password will do where the broker
    has none.
    """
    return Writer().int16(DELETE).string16(topic).string16(password).framed()


def parse_count(answer: memoryview, **place: Any) -> int | BrokerRefusal:
    """Parse the number in a response to a create or delete request, after its size: partitions
    created or deleted. Raises CorruptData.
    """
    reader = Reader(answer, **place)
    refusal = error_of(reader.int16())
    if refusal is not None:
        return refusal
    if reader.count("the array of numbers", item_bytes=4) != 1:
        raise reader.corrupt("the answer does not hold one number")
    number = reader.int32()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return WRONG_PASSWORD if number == -1 else number


_NOTHING = b"\0\0"
_HANGS_UP = (
    "Check the topic's name, the number of its partitions on this broker, and the broker's log: such "
    "a broker closes the connection if it cannot serve a request"
)


class Jafka(Generation):
    """The handshake is an empty MultiFetch, with an empty response."""

    names = ("jafka",)
    is_told = True

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        return Greeting(
            "MultiFetch",
            encode_multifetch(()),
            lambda start: bytes(start) == _NOTHING,
            lambda answer: JafkaProtocol(address),
            least_answer_bytes=2,
            check_if_truncated="Check that a Jafka or Kafka 0.7 broker listens there: Kafka from 0.8 on, and a TLS listener, close the connection like this",
        )


class JafkaProtocol(BrokerProtocol):
    """Requests of this broker type; it has one version."""

    least_answer_bytes = 2
    check_if_truncated = _HANGS_UP

    def __init__(self, address: str) -> None:
        self._address = address

    def introduction(self) -> str:
        return "Jafka, or Kafka 0.7"

    def number_of(self, start: memoryview) -> int | None:
        return None

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        self._cannot("tell of brokers and topics: what there is stands in ZooKeeper")

    def list_offsets(
        self,
        times: Mapping[BrokerPartition, int],
        isolation: Isolation,
        epochs: Mapping[BrokerPartition, int | None],
    ) -> Request[dict[BrokerPartition, ListedOffset]]:
        requested = dict(times)
        frames = b"".join(encode_offsets(log, time) for log, time in requested.items())

        def read(answer: memoryview) -> Reply[dict[BrokerPartition, ListedOffset]]:
            if len(requested) == 1:
                return Reply(
                    {
                        log: read_listed(log, time, answer, broker=self._address)
                        for log, time in requested.items()
                    }
                )
            reader = Reader(answer, broker=self._address)
            return Reply(
                {
                    log: read_listed(
                        log, time, reader.span(reader.int32(), "an answer"), broker=self._address
                    )
                    for log, time in requested.items()
                }
            )

        return Request(
            lambda number: frames, read, answers=len(requested), check_if_truncated=_HANGS_UP
        )

    def offsets_before(
        self, log: BrokerPartition, time_ms: int, most: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        frame = encode_offsets(log, time_ms, most=most)

        def read(answer: memoryview) -> Reply[tuple[int, ...] | BrokerRefusal]:
            return Reply(parse_offsets(log, answer, broker=self._address))

        return Request(lambda number: frame, read, check_if_truncated=_HANGS_UP)

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        requested = within(fetch.max_bytes, fetch.wanted)

        def read(answer: memoryview) -> Reply[FetchAnswer]:
            if len(requested) == 1:
                found = parse_fetch(requested[0], answer, broker=self._address)
            else:
                found = parse_multifetch(requested, answer, broker=self._address)
            if found.refusal is not None:
                return Reply(found)
            told = {(each.topic, each.partition): each for each in found.partitions}
            return Reply(
                FetchAnswer(
                    0,
                    None,
                    tuple(
                        told.get((each.log.topic, each.log.partition)) or not_asked(each)
                        for each in fetch.wanted
                    ),
                )
            )

        frame = encode_fetch(requested[0]) if len(requested) == 1 else encode_multifetch(requested)
        return Request(lambda number: frame, read)

    def append(
        self,
        log: BrokerPartition,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int,
        timeout_ms: int,
    ) -> Request[int | BrokerRefusal | None]:
        messages = records if isinstance(records, bytes) else encode_messages(records)
        frames = encode_produce(log, messages) + encode_offsets(log, LATEST, most=1)

        def read(answer: memoryview) -> Reply[int | BrokerRefusal | None]:
            return Reply(read_listed(log, LATEST, answer, broker=self._address).refusal)

        return Request(
            lambda number: frames,
            read,
            check_if_truncated=f"Check that a message is not larger than max.message.size. {_HANGS_UP}",
        )

    def create_topic(self, topic: str, partitions: int) -> Request[int | BrokerRefusal]:
        return self._count(encode_create(topic, partitions))

    def delete_topic(self, topic: str, password: str) -> Request[int | BrokerRefusal]:
        return self._count(encode_delete(topic, password))

    def _count(self, frame: bytes) -> Request[int | BrokerRefusal]:
        def read(answer: memoryview) -> Reply[int | BrokerRefusal]:
            return Reply(parse_count(answer, broker=self._address))

        return Request(lambda number: frame, read, check_if_truncated=_HANGS_UP)
