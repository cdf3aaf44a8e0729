"""Message sets of Kafka 0.7 and Jafka: decoded ones, and offsets at which no message begins."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import CorruptData, MessageTooLarge, MisalignedOffset, RecordTooLarge
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.plans import RangeResult
from etl.records.decode import Messages
from etl.records.message_sets import MAX_NESTING
from tests.fakes.batches import Batch, Codec, Rec, answer, compress, encode
from tests.fakes.jafka import entry, wrapped
from tests.fakes.message_sets import Entry, encode_physical, entry_bytes, physical_rows
from tests.fakes.old_logs import (
    entry_lists,
    physical_cursor,
    physical_rows_between,
    physical_rows_in,
)

# Computed apart from this project, from the format's description. A running Jafka 3.0.6 had the
# first two in its log file and its answers, its own classes decoded the third; the snappy stream is
# snappy-java's.
HELLO = bytes.fromhex("0000000b 01 00 3610a686 68656c6c6f")
NIHAO = bytes.fromhex("0000000c 01 00 5a09ed37 e4b8ade69687")
HELLO_OF_MAGIC_0 = bytes.fromhex("0000000a 00 3610a686 68656c6c6f")
BOTH_IN_GZIP = bytes.fromhex("""
    0000003a 01 01 0138c0e3
    1f8b08000000000002ff636060e06664301358d696919a9393cfc0c0c0c3c810c5f9d6fcc98eb5cfa6b50300ebd9cf371f000000""")
HELLO_IN_SNAPPY = bytes.fromhex("""
    0000002b 01 02 bfb064de 82534e4150505900 00000001 00000001 00000011 0f38 0000000b01003610a68668656c6c6f""")
PLACE = {"topic": "demo", "partition": 0, "broker_id": 3}


def triples(
    records: bytes, from_offset: int, until_offset: int | None = None
) -> list[tuple[int, int, bytes]]:
    until = from_offset + len(records) if until_offset is None else until_offset
    rows = physical_rows_between(records, from_offset, until)
    return [(row["offset"], row["message_index"], row["value"]) for row in rows]


def nested(depth: int, payload: bytes = b"deep") -> Entry:
    entry = Entry(payload)
    for _ in range(depth):
        entry = Entry(inside=[entry])
    return entry


def test_a_message_has_the_columns_of_any_and_its_place_in_the_log_of_its_broker() -> None:
    assert physical_rows_between(HELLO, 1000, 1015, incarnation=2) == [
        {
            "key": None,
            "value": b"hello",
            "topic": "demo",
            "partition": 0,
            "offset": 1000,
            "timestamp": None,
            "timestampType": None,
            "headers": None,
            "broker_id": 3,
            "message_index": 0,
            "incarnation": 2,
        }
    ]


def test_magic_0_and_snappy_are_read_as_kafka_0_7_writes_them() -> None:
    assert triples(HELLO_OF_MAGIC_0 + HELLO_IN_SNAPPY, 0) == [(0, 0, b"hello"), (14, 0, b"hello")]


@settings(max_examples=60, deadline=None)
@given(entry_lists, st.integers(0, 2**62))
def test_nested_rows_are_those_of_a_plain_loop(entries: list[Entry], position: int) -> None:
    assert triples(encode_physical(entries), position) == physical_rows(entries, position)


@settings(max_examples=50, deadline=None)
@given(entry_lists.filter(len), st.data())
def test_each_message_is_a_row_once(entries: list[Entry], data: st.DataObject) -> None:
    """An answer may end anywhere, a range where an entry begins."""
    partition, start = encode_physical(entries), data.draw(st.integers(0, 2**40))
    ends = [start + len(encode_physical(entries[:count])) for count in range(len(entries) + 1)]
    cuts = sorted({start, ends[-1], *data.draw(st.lists(st.sampled_from(ends), max_size=3))})
    rows = []
    for first, until in zip(cuts, cuts[1:]):
        cursor = physical_cursor(first, until, fetch_max_bytes=data.draw(st.integers(1, 50)))
        while not cursor.done:
            part = partition[cursor.position - start :][
                : data.draw(st.integers(cursor.max_bytes, 2 * cursor.max_bytes))
            ]
            rows += [
                (row["offset"], row["message_index"], row["value"])
                for row in physical_rows_in(cursor, part)
            ]
        assert cursor.position == until and cursor.missing == []
    assert rows == physical_rows(entries, start)


def test_a_range_result_counts_rows_and_bytes_and_no_gaps_of_offsets() -> None:
    cursor = physical_cursor(1000, 1092)
    physical_rows_in(cursor, HELLO + BOTH_IN_GZIP + HELLO)
    assert cursor.done and cursor.result == RangeResult(rows=4, fetched_bytes=92)
    assert cursor.read_so_far == (92, 4, 92)


@pytest.mark.parametrize("there", [NIHAO[:1], NIHAO[:3], NIHAO[:9]])
def test_a_message_that_stays_truncated_although_the_log_continues_is_none(there: bytes) -> None:
    """Its segment ends there. Once it may be a broker's slip."""
    cursor = physical_cursor(1000, 2000)
    assert physical_rows_in(cursor, there) == [] and cursor.starved
    with pytest.raises(
        MisalignedOffset, match=f"No message is at this .*its segment has {len(there)} bytes from"
    ) as caught:
        physical_rows_in(cursor, there)
    assert caught.value.where == {**PLACE, "offset": 1000}


def test_a_message_that_is_cut_off_once_or_grows_is_waited_for() -> None:
    cursor = physical_cursor(1000, 1016)
    for size in (3, 7, 9):
        assert physical_rows_in(cursor, NIHAO[:size]) == [] and cursor.starved
    assert len(physical_rows_in(cursor, NIHAO)) == 1 and cursor.done and not cursor.starved


def test_an_empty_answer_below_the_end_of_a_range_is_waited_for() -> None:
    cursor = physical_cursor(1000, 1015)
    assert physical_rows_in(cursor, b"") == [] and cursor.starved and not cursor.done


def test_a_position_inside_a_message_is_an_error_that_names_it_and_gives_no_row() -> None:
    entries = [
        Entry(b"hello" * 5),
        Entry(inside=[Entry(b"x%d" % i) for i in range(20)]),
        Entry(b"\0" * 40),
        Entry(b"\1" * 40),
    ]
    partition, boundaries = (
        encode_physical(entries),
        {len(encode_physical(entries[:count])) for count in range(5)},
    )
    for position in set(range(len(partition))) - boundaries:
        with pytest.raises(MisalignedOffset) as caught:
            physical_rows_between(partition[position:], position, len(partition))
        assert caught.value.where == {**PLACE, "offset": position}


@pytest.mark.parametrize(
    "records",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)) + HELLO,
        struct.pack(">i", 0),
        struct.pack(">i", 4) + b"\0\0\0\0",
        struct.pack(">i", 5) + b"\1\0\0\0\0",
        struct.pack(">i", 11) + b"\2\0",
        struct.pack(">i", 11) + b"\1\3",
        b"GET / HTTP",
    ],
)
def test_bytes_that_begin_no_message_are_reported_at_once(records: bytes) -> None:
    for before in (b"", HELLO):
        with pytest.raises(
            MisalignedOffset, match="No message is at this byte position:"
        ) as caught:
            physical_rows_between(before + records, 1000, 2000)
        assert caught.value.where == {**PLACE, "offset": 1000 + len(before)}


@pytest.mark.parametrize("until", [1001, 1014, 1016, 1020, 1030])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_range_may_not_end_inside_a_message(until: int, compressed: bool) -> None:
    second = BOTH_IN_GZIP if compressed else NIHAO
    with pytest.raises(MisalignedOffset, match=f"(beyond|bytes before) {until},") as caught:
        physical_rows_between(HELLO + second, 1000, until)
    assert caught.value.where["offset"] == (1000 if until < 1015 else 1015)


def test_an_entry_that_would_exceed_the_range_is_reported_before_its_bytes_arrive() -> None:
    """Otherwise an offset inside a message would be fetched with more and more bytes."""
    with pytest.raises(MisalignedOffset, match="it would reach to 1000005, beyond 1031"):
        physical_rows_between(struct.pack(">i", 999_001) + b"\1", 1000, 1031)


def test_bytes_at_the_end_of_a_range_are_not_parsed() -> None:
    assert len(physical_rows_between(HELLO + b"\xff" * 50, 1000, 1015)) == 1


@pytest.mark.parametrize("at", [10, 12, 14])
@pytest.mark.parametrize("good", [HELLO, HELLO_OF_MAGIC_0, BOTH_IN_GZIP, HELLO_IN_SNAPPY])
def test_damage_of_a_payload_is_seen_and_names_the_position(good: bytes, at: int) -> None:
    damaged = good[: at - 1] + bytes([good[at - 1] ^ 0x10]) + good[at:]
    with pytest.raises(MisalignedOffset, match="CRC-32") as caught:
        physical_rows_between(HELLO + damaged, 1000, 1015 + len(good))
    assert caught.value.where == {**PLACE, "offset": 1015}


def packed(content: bytes, codec: Codec = Codec.GZIP) -> bytes:
    """A compressed message, with a valid CRC, around anything."""
    return entry_bytes(Entry(compress(content, codec), attributes=int(codec)))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (HELLO + NIHAO[:-1], "has a length of 12, where 11 bytes are left"),
        (HELLO + NIHAO[:3], "3 bytes in it are no message"),
        (HELLO[:-1] + b"x", "CRC-32 is not that of its bytes"),
        (HELLO + b"\0\0\0\x0b\2" + bytes(10), "a message in it has the magic 2"),
        (HELLO + b"\0\0\0\x0b\1\3" + bytes(9), "compression codec 3, which does not exist"),
        (struct.pack(">i", -1) + bytes(20), "has a length of -1"),
        (HELLO + packed(HELLO)[:-1] + b"x", "CRC-32 of a message in it"),
        (HELLO + packed(HELLO[:-1]), "10 bytes are left|has a length of 11"),
        (entry_bytes(Entry(b"no gzip", attributes=1)), "is invalid gzip"),
    ],
    ids=[
        "cut off",
        "cut in the length",
        "payload",
        "magic",
        "codec",
        "length",
        "nested CRC",
        "nested cut",
        "nested codec",
    ],
)
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_damage_names_the_outer_message(content: bytes, what: str, codec: Codec) -> None:
    partition = HELLO + packed(content, codec)
    with pytest.raises(CorruptData, match=what) as caught:
        physical_rows_between(partition, 1000, 1000 + len(partition))
    assert type(caught.value) is CorruptData
    assert caught.value.where == {**PLACE, "offset": 1015}


@pytest.mark.parametrize(
    "payload", [b"", b"nothing of the kind", gzip.compress(b"x" * 100, mtime=0)[:-9]]
)
def test_a_payload_that_is_not_of_its_codec_is_corrupt(payload: bytes) -> None:
    for codec, name in ((1, "gzip"), (2, "snappy")):
        with pytest.raises(CorruptData, match=f"is invalid {name}"):
            physical_rows_between(
                entry_bytes(Entry(payload, attributes=codec)), 0, len(payload) + 10
            )


def test_messages_are_read_as_deep_as_a_bound_and_no_deeper() -> None:
    assert triples(entry_bytes(nested(MAX_NESTING)), 5) == [(5, 0, b"deep")]
    with pytest.raises(CorruptData, match=f"more than {MAX_NESTING} times"):
        triples(entry_bytes(nested(MAX_NESTING + 1)), 5)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(inside=[Entry(bytes(2_000_000))]),
        Entry(inside=[Entry(bytes(2_000_000))], codec=Codec.SNAPPY),
        Entry(inside=[Entry(inside=[Entry(bytes(400_000))]) for _ in range(3)]),
        Entry(inside=[Entry(inside=[Entry(inside=[Entry(bytes(1_048_000))])])]),
    ],
    ids=["gzip", "snappy", "in sum", "deep"],
)
def test_the_bound_counts_all_depths(entry: Entry) -> None:
    partition = HELLO + entry_bytes(entry)
    with pytest.raises(RecordTooLarge, match="decompresses to more than 1048576") as caught:
        physical_rows_between(partition, 1000, 1000 + len(partition), max_unpacked_bytes=1 << 20)
    assert caught.value.where == {**PLACE, "offset": 1015}


def test_a_message_larger_than_its_bound_is_named_by_the_outer_one() -> None:
    partition = HELLO + entry_bytes(Entry(inside=[Entry(b"x"), Entry(bytes(2001))]))
    with pytest.raises(RecordTooLarge, match="more than 2000 bytes") as caught:
        physical_rows_between(partition, 1000, 1000 + len(partition), max_record_bytes=2000)
    assert caught.value.where == {**PLACE, "offset": 1015}


WORLD = entry(b"world!")


def physical(records: bytes, at: int = 0) -> FetchedPartition:
    return replace(
        answer(records),
        layout=EntryLayout.PHYSICAL,
        broker_id=3,
        asked_offset=at,
        high_watermark=None,
    )


def test_an_entry_that_holds_nothing_moves_the_position_alone() -> None:
    messages = Messages(physical(wrapped() + HELLO, at=7))
    assert [each.offset for each in messages] == [7 + len(wrapped())]
    assert Messages(physical(wrapped(), at=7)).next_offset == 7 + len(wrapped())


def test_whatever_is_cut_off_at_the_end_is_left_for_the_next_fetch() -> None:
    for size in range(len(HELLO), len(HELLO + WORLD)):
        messages = Messages(physical((HELLO + WORLD)[:size], at=100))
        assert [each.value for each in messages] == [b"hello"]
        assert (messages.next_offset, messages.needed_bytes) == (115, 0)


def test_a_response_without_a_whole_message_has_the_required_number_of_bytes() -> None:
    assert list(Messages(physical(b""))) == []
    for size in range(1, len(HELLO)):
        messages = Messages(physical(HELLO[:size], at=100))
        assert (messages.needed_bytes, messages.next_offset) == (15 if size >= 4 else 1, 100)
        reported = (
            f"does not fit into a fetch of {size} bytes.*offset 100.*If a larger fetch does not "
            f"help, no message begins at this offset"
        )
        with pytest.raises(MessageTooLarge, match=reported):
            list(messages)


def test_a_wrong_checksum_is_reported_with_its_offset() -> None:
    with pytest.raises(CorruptData, match="CRC.*partition 3.*offset 15"):
        list(Messages(physical(HELLO + WORLD[:-1] + b"?")))


def test_a_timestamp_that_no_calendar_has_is_a_number_all_the_same() -> None:
    late = 300_000_000_000_000
    records = encode(Batch(0, [Rec(0, b"v")], base_timestamp=late, max_timestamp=late))
    [record] = Messages(replace(answer(records), asked_offset=0))
    assert record.timestamp_ms == late
