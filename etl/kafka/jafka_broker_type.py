"""Which request does each question become on Jafka and Kafka 0.7?

Lives here: requests, responses and error codes of these brokers.
Not here: their record format (etl/records/message_sets.py), their topics and brokers in ZooKeeper.

A broker of this type knows only its own partitions; broker ids, topics and other brokers are in
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
from etl.kafka.broker_type_interface import BrokerProtocol, BrokerType, Greeting, Reply, Request
from etl.kafka.primitives import Reader, Writer
from etl.kafka.request_values import (
    EARLIEST,
    INSTEAD_OF_A_TIME,
    LATEST,
    ClusterMetadata,
    EntryLayout,
    Fetch,
    FetchAnswer,
    FetchedPartition,
    FetchTarget,
    ListedOffset,
)
from etl.model.partitions import Isolation, TopicPartition

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
        f"{_LOG}. The broker also returns this code for a topic name that it does not allow",
    ),
    BrokerRefusal(
        OFFSET_OUT_OF_RANGE,
        "OFFSET_OUT_OF_RANGE",
        False,
        BrokerError,
        "Check log start and flushed end of the partition",
        Meaning.OUT_OF_RANGE,
    ),
    BrokerRefusal(
        2,
        "INVALID_MESSAGE",
        False,
        CorruptData,
        "Check the broker's log and its disks: it found a wrong checksum",
    ),
    BrokerRefusal(
        WRONG_PARTITION,
        "WRONG_PARTITION",
        False,
        BrokerError,
        (
            "Check how many partitions the topic has on this broker: "
            "/brokers/topics/[topic]/[broker] in ZooKeeper. The requested one does not exist"
        ),
    ),
    BrokerRefusal(4, "INVALID_FETCH_SIZE", False, EtlError, _LOG),
)
_ROWS: dict[int, BrokerRefusal] = {row.code: row for row in _TABLE}

WRONG_PASSWORD = BrokerRefusal(
    -1,
    "WRONG_PASSWORD",
    False,
    PermissionDenied,
    "Check the password in the settings of the broker",
    Meaning.NOT_ALLOWED,
)
"""Response to a delete request, in place of the number of deleted partitions."""


def error_of(code: int) -> BrokerRefusal | None:
    """Return the meaning of an error code; None for 0. Unknown codes are not retriable."""
    if code == NONE:
        return None
    if code in _ROWS:
        return _ROWS[code]
    return BrokerRefusal(
        code,
        f"unknown error code {code}",
        False,
        EtlError,
        "Check the version of the broker: this error code is not known here",
    )


FETCH = 1
MULTIFETCH = 2
_MAX_PARTITIONS = 0x7FFF


def fitting_targets(max_bytes: int, wanted: Sequence[FetchTarget]) -> tuple[FetchTarget, ...]:
    """Return the partitions of one request: the first, and others that fit `max_bytes` with it.

    The broker does not limit the whole response. The next request must begin with a partition that
    is left out here.
    """
    left = max_bytes
    fitting: list[FetchTarget] = []
    for target in wanted[:_MAX_PARTITIONS]:
        if fitting and target.max_bytes > left:
            continue
        fitting.append(target)
        left -= target.max_bytes
    return tuple(fitting)


def encode_fetch(wanted: FetchTarget) -> bytes:
    """Encode one framed request for one partition."""
    return _write_target(Writer().int16(FETCH), wanted).framed()


def encode_multifetch(wanted: Sequence[FetchTarget]) -> bytes:
    """Encode one framed request for several partitions.

    Without partitions it is the handshake, to which every broker returns an empty response.
    """
    out = Writer().int16(MULTIFETCH).int16(len(wanted))
    for target in wanted:
        _write_target(out, target)
    return out.framed()


def _write_target(out: Writer, wanted: FetchTarget) -> Writer:
    # The broker does not reject a negative size: its response would have a negative size, too, and
    # no end.
    if wanted.max_bytes < 0:
        raise ValueError(f"A fetch of {wanted.max_bytes} bytes cannot be requested")
    return (
        out.string16(wanted.partition.topic)
        .int32(wanted.partition.partition)
        .int64(wanted.offset)
        .int32(wanted.max_bytes)
    )


def parse_fetch(wanted: FetchTarget, answer: memoryview, **place: Any) -> FetchAnswer:
    """Parse the response to `encode_fetch`, after its size. Raises CorruptData."""
    return FetchAnswer(
        0, None, (_read_part(Reader(answer, **place, **wanted.partition.place), wanted),)
    )


def parse_multifetch(
    wanted: Sequence[FetchTarget], answer: memoryview, **place: Any
) -> FetchAnswer:
    """Parse the response to `encode_multifetch`, after its size.

    It holds a part for each partition, in the order of the request, without names. Raises
    CorruptData with topic and partition for impossible lengths and truncated bytes.
    """
    reader = Reader(answer, **place)
    refusal = error_of(reader.int16())
    partitions: list[FetchedPartition] = []
    if refusal is None:
        for target in wanted:
            reader.place = {**place, **target.partition.place}
            part = reader.span(reader.int32(), "a part of the answer")
            partitions.append(_read_part(Reader(part, **reader.place), target))
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return FetchAnswer(0, refusal, tuple(partitions))


def empty_part(wanted: FetchTarget) -> FetchedPartition:
    """Return an empty result for a partition that did not fit the request."""
    return _fetched(wanted, code=0, records=memoryview(b""), proves_empty=False)


def _read_part(reader: Reader, wanted: FetchTarget) -> FetchedPartition:
    code = reader.int16()
    if reader.left > wanted.max_bytes:
        raise reader.corrupt(
            f"{reader.left} bytes are returned where {wanted.max_bytes} were requested"
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
        topic=wanted.partition.topic,
        partition=wanted.partition.partition,
        refusal=error_of(code),
        high_watermark=None,
        last_stable_offset=None,
        log_start_offset=None,
        aborted=(),
        records=records,
        proves_empty=proves_empty,
        layout=EntryLayout.PHYSICAL,
        broker_id=wanted.partition.broker_id,
    )


OFFSETS = 4
ALL = 0x7FFFFFFF
"""More than a partition has segments: the broker returns all.

It allocates no memory by this number.
"""


def encode_offsets(partition: TopicPartition, time: int, *, most: int = ALL) -> bytes:
    """Encode one framed request.

    `time` is LATEST (the flushed end, then the starts of the segments) or EARLIEST (the start of
    the oldest segment). Raises SettingsError for other times: Jafka's search by time is off by one.
    """
    if time not in (LATEST, EARLIEST):
        raise SettingsError(
            "A Jafka broker cannot find offsets by time: its search is off by one and returns "
            "a segment too old, or none",
            action=f"{INSTEAD_OF_A_TIME}. Records of Jafka and Kafka 0.7 have no timestamps",
            **partition.place,
        )
    if most < 1:
        raise ValueError(
            f"{most} offsets cannot be requested: an empty response means that the partition does "
            "not exist"
        )
    return (
        Writer()
        .int16(OFFSETS)
        .string16(partition.topic)
        .int32(partition.partition)
        .int64(time)
        .int32(most)
        .framed()
    )


def parse_offsets(
    partition: TopicPartition, answer: memoryview, **place: Any
) -> tuple[int, ...] | BrokerRefusal:
    """Parse the response to one request, after its size.

    Returns at least one offset, newest first. Raises CorruptData.
    """
    reader = Reader(answer, **place, **partition.place)
    refusal = error_of(reader.int16())
    if refusal is not None:
        return refusal
    count = reader.count("the array of offsets", item_bytes=8)
    found = [reader.int64() for _ in range(count)]
    if any(offset < 0 for offset in found) or found != sorted(found, reverse=True):
        raise reader.corrupt(f"The offsets {found[:5]} are not descending offsets of a partition")
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    # The start of a last segment without a flushed byte is also the end: it is in the list twice.
    return tuple(dict.fromkeys(found)) or (0,)


def read_listed(
    partition: TopicPartition, time: int, answer: memoryview, **place: Any
) -> ListedOffset:
    """Parse the same response into the value of all broker types."""
    found = parse_offsets(partition, answer, **place)
    if isinstance(found, BrokerRefusal):
        return ListedOffset(partition, found, None, None, None)

    boundaries = None
    if time == LATEST:
        boundaries = tuple(reversed(found))
    return ListedOffset(partition, None, found[0], None, None, boundaries)


PRODUCE = 0
CREATE = 5
DELETE = 6
_MESSAGE = struct.Struct(">ibbI")
_MAGIC = 1


def encode_messages(records: Iterable[tuple[bytes | None, bytes | None]]) -> bytes:
    """Encode an uncompressed message set of key and value pairs.

    The format has no keys. Raises ValueError for a key, for a value that is None, and without
    records.
    """
    messages = b"".join(_encode_message(key, value) for key, value in records)
    if not messages:
        raise ValueError("There is no record to send")
    return messages


def _encode_message(key: bytes | None, value: bytes | None) -> bytes:
    if key is not None:
        raise ValueError(f"Messages of this broker type have no key: {key[:40]!r}")
    if value is None:
        raise ValueError(
            "Messages of this broker type always have a value, which can be empty: "
            "None cannot be sent"
        )
    return _MESSAGE.pack(_MESSAGE.size - 4 + len(value), _MAGIC, 0, zlib.crc32(value)) + value


def encode_produce(partition: TopicPartition, messages: bytes) -> bytes:
    """Encode one framed request, which has no response."""
    return (
        Writer()
        .int16(PRODUCE)
        .string16(partition.topic)
        .int32(partition.partition)
        .int32(len(messages))
        .raw(messages)
        .framed()
    )


def encode_create(topic: str, partitions: int, *, enlarges: bool = True) -> bytes:
    """Encode one framed request for at least so many partitions on this broker.

    The first message creates the log files. Without `enlarges` a broker up to Jafka 3.0.6 does
    nothing, because it assumes that every topic already has num.partitions partitions.
    """
    if partitions < 1:
        raise ValueError(f"A topic cannot have {partitions} partitions")
    return Writer().int16(CREATE).string16(topic).int32(partitions).int8(enlarges).framed()


def encode_delete(topic: str, password: str) -> bytes:
    """Encode one framed request to delete the partitions of a topic on this broker.

    A broker without a password accepts any.
    """
    return Writer().int16(DELETE).string16(topic).string16(password).framed()


def parse_count(answer: memoryview, **place: Any) -> int | BrokerRefusal:
    """Parse the number of partitions in a response to a create or delete request, after its size.

    Raises CorruptData.
    """
    reader = Reader(answer, **place)
    refusal = error_of(reader.int16())
    if refusal is not None:
        return refusal
    if reader.count("the array of numbers", item_bytes=4) != 1:
        raise reader.corrupt("The response does not hold one number")
    number = reader.int32()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return WRONG_PASSWORD if number == -1 else number


_EMPTY_RESPONSE = b"\0\0"
_CHECK_IF_CLOSED = (
    "Check the topic's name, the number of its partitions on this broker, and the broker's log: "
    "such a broker closes the connection if it cannot serve a request"
)


class Jafka(BrokerType):
    """Jafka and Kafka 0.7. The handshake is an empty MultiFetch, with an empty response."""

    names = ("jafka",)
    is_told = True

    def greeting(self, client_id: str, address: str, name: str | None = None) -> Greeting:
        return Greeting(
            "MultiFetch",
            encode_multifetch(()),
            lambda start: bytes(start) == _EMPTY_RESPONSE,
            lambda answer: JafkaProtocol(address),
            least_answer_bytes=2,
            check_if_truncated=(
                "Check that a Jafka or Kafka 0.7 broker listens there: Kafka from 0.8 on, and a "
                "TLS listener, close the connection like this"
            ),
        )


class JafkaProtocol(BrokerProtocol):
    """Requests of this broker type, which has one version."""

    least_answer_bytes = 2
    check_if_truncated = _CHECK_IF_CLOSED

    def __init__(self, address: str) -> None:
        self._address = address

    def introduction(self) -> str:
        return "Jafka, or Kafka 0.7"

    def number_of(self, start: memoryview) -> int | None:
        return None

    def metadata(self, topics: Collection[str] | None) -> Request[ClusterMetadata]:
        self._cannot("report brokers and topics, which are in ZooKeeper")

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        isolation: Isolation,
        epochs: Mapping[TopicPartition, int | None],
    ) -> Request[dict[TopicPartition, ListedOffset]]:
        requested = dict(times)
        frames = b"".join(encode_offsets(partition, time) for partition, time in requested.items())

        def read(answer: memoryview) -> Reply[dict[TopicPartition, ListedOffset]]:
            reader = Reader(answer, broker=self._address)
            listed: dict[TopicPartition, ListedOffset] = {}
            for partition, time in requested.items():
                # With one response its size is already consumed.
                part = answer
                if len(requested) > 1:
                    part = reader.span(reader.int32(), "an answer")
                listed[partition] = read_listed(partition, time, part, broker=self._address)
            return Reply(listed)

        return Request(
            lambda number: frames,
            read,
            answers=len(requested),
            check_if_truncated=_CHECK_IF_CLOSED,
        )

    def offsets_before(
        self, partition: TopicPartition, time_ms: int, most: int
    ) -> Request[tuple[int, ...] | BrokerRefusal]:
        frame = encode_offsets(partition, time_ms, most=most)

        def read(answer: memoryview) -> Reply[tuple[int, ...] | BrokerRefusal]:
            return Reply(parse_offsets(partition, answer, broker=self._address))

        return Request(lambda number: frame, read, check_if_truncated=_CHECK_IF_CLOSED)

    def fetch(self, fetch: Fetch) -> Request[FetchAnswer]:
        requested = fitting_targets(fetch.max_bytes, fetch.wanted)

        def read(answer: memoryview) -> Reply[FetchAnswer]:
            if len(requested) == 1:
                found = parse_fetch(requested[0], answer, broker=self._address)
            else:
                found = parse_multifetch(requested, answer, broker=self._address)
            if found.refusal is not None:
                return Reply(found)

            fetched = {(each.topic, each.partition): each for each in found.partitions}
            parts = []
            for target in fetch.wanted:
                part = fetched.get((target.partition.topic, target.partition.partition))
                parts.append(part or empty_part(target))
            return Reply(FetchAnswer(0, None, tuple(parts)))

        if len(requested) == 1:
            frame = encode_fetch(requested[0])
        else:
            frame = encode_multifetch(requested)
        return Request(lambda number: frame, read)

    def append(
        self,
        partition: TopicPartition,
        records: bytes | Sequence[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int,
        timeout_ms: int,
    ) -> Request[int | BrokerRefusal | None]:
        if isinstance(records, bytes):
            messages = records
        else:
            messages = encode_messages(records)
        frames = encode_produce(partition, messages) + encode_offsets(partition, LATEST, most=1)

        def read(answer: memoryview) -> Reply[int | BrokerRefusal | None]:
            return Reply(read_listed(partition, LATEST, answer, broker=self._address).refusal)

        return Request(
            lambda number: frames,
            read,
            check_if_truncated=(
                f"Check that no message is larger than max.message.size. {_CHECK_IF_CLOSED}"
            ),
        )

    def create_topic(self, topic: str, partitions: int) -> Request[int | BrokerRefusal]:
        return self._count(encode_create(topic, partitions))

    def delete_topic(self, topic: str, password: str) -> Request[int | BrokerRefusal]:
        return self._count(encode_delete(topic, password))

    def _count(self, frame: bytes) -> Request[int | BrokerRefusal]:
        def read(answer: memoryview) -> Reply[int | BrokerRefusal]:
            return Reply(parse_count(answer, broker=self._address))

        return Request(lambda number: frame, read, check_if_truncated=_CHECK_IF_CLOSED)
