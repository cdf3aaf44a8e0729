"""Fetch and MultiFetch: records of one log, or of several in one request. Records stay slices of
the caller's buffer.

A broker copies bytes of its log file from the offset on, as many as were asked for, and looks at
nothing. So an answer ends in the middle of an entry, at the end of a segment though there is more
behind it, and at the last flushed byte. It never waits for more, it bounds each log's part and not
the whole, and a topic that is not there looks like a log at its end: no code and no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etl.protocol.generations.jafka.errors import refusal_of
from etl.protocol.messages import EntryLayout, FetchAnswer, FetchedPartition, FetchTarget
from etl.protocol.primitives import Reader, Writer

FETCH, MULTIFETCH = 1, 2
_MOST_LOGS = 0x7FFF


def within(max_bytes: int, wanted: Sequence[FetchTarget]) -> tuple[FetchTarget, ...]:
    """Those of `wanted`, in their order, of which the parts of the answer are together no larger
    than `max_bytes`; the first one always.

    The broker knows no bound of the whole. A log that finds no room is not asked for: who waits for
    it asks for it first, next time.
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
    """The answer to `encode_fetch`, from the bytes behind its size. Raises CorruptData."""
    return FetchAnswer(0, None, (_read_part(Reader(answer, **place, **wanted.log.place), wanted),))


def parse_multifetch(
    wanted: Sequence[FetchTarget], answer: memoryview, **place: Any
) -> FetchAnswer:
    """The answer to `encode_multifetch`, from the bytes behind its size: a part for each log, in
    the order asked for, which names none.

    Raises CorruptData naming topic and partition where a length is absurd or the bytes end early.
    """
    reader = Reader(answer, **place)
    refusal, partitions = refusal_of(reader.int16()), list[FetchedPartition]()
    for each in wanted if refusal is None else ():
        reader.place = {**place, **each.log.place}
        part = reader.span(reader.int32(), "a part of the answer")
        partitions.append(_read_part(Reader(part, **reader.place), each))
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")
    return FetchAnswer(0, refusal, tuple(partitions))


def not_asked(wanted: FetchTarget) -> FetchedPartition:
    """What is answered of a log that found no room in the request: nothing, and nothing follows
    from that.
    """
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
        refusal=refusal_of(code),
        high_watermark=None,
        last_stable_offset=None,
        log_start_offset=None,
        aborted=(),
        records=records,
        proves_empty=proves_empty,
        layout=EntryLayout.PHYSICAL,
        broker_id=wanted.log.broker_id,
    )
