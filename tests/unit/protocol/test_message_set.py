"""Message sets of formats v0 and v1: decoded as kafka-python decodes them, and rejected ones."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import CorruptData, RecordTooLarge
from etl.records import codecs
from etl.records.entries import largest_timestamp
from tests.fakes import oracle
from tests.fakes.batches import Batch, Codec, Rec, compress, control, encode
from tests.fakes.logs import cursor_of, rows_between, rows_in
from tests.fakes.message_sets import (
    Msg,
    Wrapper,
    encode_logical,
    inside,
    message_bytes,
    with_wrong_checksum,
    wrapper_bytes,
)
from tests.fakes.old_logs import OLD_CODECS, OldEntry, encoded_old, last_offset, old_logs

# Computed apart from this project, from the format's description, and decoded by kafka-python with
# valid CRC.
V0_HELLO = bytes.fromhex("0000000000000064 00000013 87a77ab2 00 00 ffffffff 00000005 68656c6c6f")
ORACLE_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
each_magic = pytest.mark.parametrize("magic", [0, 1])
each_codec = pytest.mark.parametrize("codec", OLD_CODECS)


def damaged(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@settings(max_examples=60, deadline=None)
@given(old_logs())
def test_decoding_differs_in_nothing_from_kafka_python(partition: list[OldEntry]) -> None:
    records = encoded_old(partition)
    cursor = cursor_of(0, last_offset(partition[-1][1]) + 1, columns=ORACLE_COLUMNS)
    assert rows_in(cursor, records) == oracle.rows_of(records)
    assert cursor.done


@each_magic
@pytest.mark.parametrize("codec", [Codec.NONE, *OLD_CODECS])
def test_every_codec_has_values_of_several_blocks(magic: int, codec: Codec) -> None:
    messages = [Msg(5, b"v" * 70_000), Msg(6, None, b"k")]
    partition = [Wrapper(messages, codec)] if codec else messages
    records = encode_logical(partition, magic)
    found = rows_in(cursor_of(5, 7, columns=ORACLE_COLUMNS), records)
    assert found == oracle.rows_of(records) and [row["offset"] for row in found] == [5, 6]


@each_magic
def test_a_wrapper_with_the_offset_0_reaches_as_far_as_its_last_message(magic: int) -> None:
    partition: list[Msg | Wrapper] = [
        Wrapper([Msg(offset, b"%d" % offset) for offset in range(5)], offset=0),
        Msg(5, b"5"),
    ]
    cursor = cursor_of(0, 6)
    assert [row["offset"] for row in rows_in(cursor, encode_logical(partition, magic))] == list(
        range(6)
    )
    assert cursor.done and cursor.missing == [] and cursor.result.missing_offsets == 0


@each_magic
@pytest.mark.parametrize("frame", ["04224d18 6040 82", "04224d18 6070 73"])
def test_only_in_v0_an_lz4_header_may_have_any_checksum(frame: str, magic: int) -> None:
    content = inside([Msg(0, b"x" * 50)], magic, 0)
    right = bytes.fromhex(frame) + struct.pack("<I", len(content) | 1 << 31) + content + bytes(4)
    for payload in (right, with_wrong_checksum(right)):
        records = wrapper_bytes(Wrapper([Msg(0)], Codec.LZ4, payload=payload), magic)
        if payload == right or magic == 0:
            assert [row["value"] for row in rows_between(records, 0, 1)] == [b"x" * 50]
        else:
            with pytest.raises(CorruptData, match="is invalid lz4"):
                rows_between(records, 0, 1)


@pytest.mark.parametrize(
    "content", [b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x6d\x40\0\0", b"no lz4 at all"]
)
def test_bytes_without_an_lz4_header_stay_unchanged(content: bytes) -> None:
    assert codecs.with_lz4_checksum(np.frombuffer(content, dtype=np.uint8)).tobytes() == content


def test_aborted_transactions_are_known_across_messages_of_an_older_format() -> None:
    """Brokers never mix them so."""
    producer = 4000

    def batch(offset: int, value: bytes) -> bytes:
        return encode(Batch(offset, [Rec(0, value)], producer_id=producer, transactional=True))

    partition = (
        batch(0, b"no")
        + encode(control(1, producer, kind=0))
        + encode_logical([Msg(2, b"old")], 1)
        + batch(3, b"yes")
        + encode(control(4, producer, kind=1))
    )
    cursor = cursor_of(0, 5)
    assert [row["value"] for row in rows_in(cursor, partition, aborted=((producer, 0),))] == [
        b"old",
        b"yes",
    ]
    assert (cursor.result.aborted_records, cursor.result.control_records) == (1, 2)


def test_a_broker_fills_up_an_answer_that_it_converted_and_that_is_no_message() -> None:
    """Kafka 2.0 and later in an old version: offset -1, a length beyond the answer, zeros."""
    filling = struct.pack(">qi", -1, 100) + bytes(60)
    cursor = cursor_of(100, 200)
    assert [row["offset"] for row in rows_in(cursor, V0_HELLO + filling)] == [100]
    assert cursor.position == 101


@settings(max_examples=50, deadline=None)
@given(old_logs(most=1, magics=(0, 1)), st.data())
def test_a_flipped_bit_is_seen(partition: list[OldEntry], data: st.DataObject) -> None:
    """But for the offset, which no checksum covers."""
    records = bytearray(encoded_old(partition))
    at, bit = data.draw(st.integers(8, len(records) - 1)), data.draw(st.integers(0, 7))
    records[at] ^= 1 << bit
    until = last_offset(partition[0][1]) + 1
    try:
        assert rows_between(bytes(records), 0, until) == []
    except CorruptData:
        pass


@each_magic
@pytest.mark.parametrize("at", [12, 20, -1])
def test_a_wrong_crc_names_topic_partition_and_offset(magic: int, at: int) -> None:
    good, bad = message_bytes(Msg(100, b"hello"), magic), message_bytes(Msg(101, b"hello"), magic)
    with pytest.raises(CorruptData, match="CRC-32|key and value") as caught:
        rows_between(good + damaged(bad, at % len(bad)), 100, 102)
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 101}


@each_magic
@each_codec
def test_the_crc_of_a_wrapper_is_checked_first(magic: int, codec: Codec) -> None:
    records = damaged(wrapper_bytes(Wrapper([Msg(4, b"hello"), Msg(5, b"x")], codec), magic), 40)
    with pytest.raises(CorruptData, match="CRC-32 of a wrapper") as caught:
        rows_between(records, 4, 6)
    assert caught.value.where["offset"] == 5


@each_magic
def test_the_crc_of_every_message_in_a_wrapper_is_checked(magic: int) -> None:
    content = inside([Msg(4, b"hello"), Msg(5, b"hello"), Msg(6, b"hello")], magic, 4 * magic)
    at = 2 * len(content) // 3 - 1
    wrapper = Wrapper([Msg(6)], Codec.SNAPPY, payload=compress(damaged(content, at), Codec.SNAPPY))
    with pytest.raises(CorruptData, match="CRC-32 is not that of its bytes") as caught:
        rows_between(wrapper_bytes(wrapper, magic), 4, 7)
    assert caught.value.where["offset"] == 5


def sealed(offset: int, behind_magic: bytes, magic: int) -> bytes:
    """A message with a valid CRC and these bytes after the magic."""
    covered = bytes([magic]) + behind_magic
    return struct.pack(">qiI", offset, 4 + len(covered), zlib.crc32(covered)) + covered


NONE, LONG = struct.pack(">i", -1), struct.pack(">i", 2**31 - 1)


@each_magic
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(LONG + b"k" + NONE, id="key"),
        pytest.param(NONE + LONG + b"v", id="value"),
        pytest.param(NONE + struct.pack(">i", 2) + b"v", id="value by one"),
        pytest.param(NONE + struct.pack(">i", 1) + b"vx", id="a byte left"),
        pytest.param(NONE + NONE + b"x", id="a byte after null"),
        pytest.param(struct.pack(">i", 5) + b"k" + NONE, id="key over value"),
        pytest.param(struct.pack(">i", 4) + NONE, id="no room for the value's length"),
    ],
)
def test_a_length_that_points_outside_its_message_is_corrupt(magic: int, fields: bytes) -> None:
    records = message_bytes(Msg(6), magic) + sealed(7, b"\x00" + bytes(8 * magic) + fields, magic)
    with pytest.raises(
        CorruptData,
        match="key and value do not fit|length of 1[0-9] is impossible|length of 2[01] is "
        "impossible",
    ) as caught:
        rows_between(records + message_bytes(Msg(8), magic), 6, 9)
    assert caught.value.where["offset"] == 7


@pytest.mark.parametrize(("magic", "length"), [(0, -1), (0, 0), (0, 13), (1, 21), (1, -(2**31))])
def test_a_length_that_no_message_can_have_is_corrupt(magic: int, length: int) -> None:
    records = message_bytes(Msg(7, b"x" * 20), magic)
    with pytest.raises(
        CorruptData, match=f"message of format v{magic} with a length of {length} is impossible"
    ):
        rows_between(records[:8] + struct.pack(">i", length) + records[12:], 7, 8)


@each_magic
@pytest.mark.parametrize("codec", [4, 5, 7])
def test_a_codec_that_came_later_is_corrupt(magic: int, codec: int) -> None:
    with pytest.raises(
        CorruptData, match=f"compression codec {codec}, which that format does not have"
    ):
        rows_between(message_bytes(Msg(7, b"x"), magic, codec), 7, 8)


@each_magic
@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (None, "a value of -1 bytes"),
        (b"", "is invalid gzip"),
        (b"nothing of the kind", "is invalid gzip"),
        (gzip.compress(b"", mtime=0), "there is no message in it"),
        (gzip.compress(b"\0" * 5, mtime=0), "5 bytes in it are no message"),
    ],
)
def test_an_empty_wrapper_is_corrupt(magic: int, payload: bytes | None, what: str) -> None:
    records = message_bytes(Msg(7, payload), magic, Codec.GZIP)
    with pytest.raises(CorruptData, match=what) as caught:
        rows_between(records, 7, 8)
    assert caught.value.where["offset"] == 7


@each_magic
@pytest.mark.parametrize(
    "fields",
    [
        LONG + b"k" + NONE,
        struct.pack(">i", 5) + b"k" + NONE,
        NONE + LONG + b"v",
        NONE + bytes(3) + b"\1",
    ],
)
def test_a_length_that_points_outside_its_wrapper_is_corrupt(magic: int, fields: bytes) -> None:
    with pytest.raises(
        CorruptData, match="key is longer than the wrapper|a value of [0-9]+ bytes, where"
    ) as caught:
        rows_between(sealed(7, b"\x01" + bytes(8 * magic) + fields, magic), 6, 9)
    assert caught.value.where["offset"] == 7


@each_magic
@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda content, magic: content[:-1], "bytes in it are no message|has a length of"),
        (lambda content, magic: content[:11] + b"\xff" + content[12:], "has a length of 255"),
        (lambda content, magic: content[:8] + b"\xff" + content[9:], "has a length of -"),
        (lambda content, magic: content + message_bytes(Msg(9), 1 - magic), "has the magic"),
        (lambda content, magic: content + content, "which does not ascend"),
        (
            lambda content, magic: content + wrapper_bytes(Wrapper([Msg(9)]), magic),
            "is compressed again",
        ),
    ],
    ids=["cut off", "a length beyond", "a length below", "another magic", "twice", "nested"],
)
def test_what_no_wrapper_may_hold_is_corrupt(magic: int, wrong: Any, what: str) -> None:
    content = wrong(inside([Msg(4), Msg(5)], magic, 0), magic)
    with pytest.raises(CorruptData, match=what):
        rows_between(wrapper_bytes(Wrapper([Msg(9)], payload=gzip.compress(content)), magic), 0, 10)


@pytest.mark.parametrize(("magic", "offset", "last"), [(0, 9, 8), (0, 9, 10), (1, 9, 10)])
def test_an_impossible_last_offset_is_corrupt(magic: int, offset: int, last: int) -> None:
    """Rows of other offsets would be passed over in silence, or come twice."""
    wrapper = Wrapper([Msg(7), Msg(last)], offset=offset, base=0)
    with pytest.raises(CorruptData, match=f"has the offset {last}"):
        rows_between(wrapper_bytes(wrapper, magic), 0, 20)


@each_magic
def test_messages_with_offsets_that_do_not_rise_are_corrupt(magic: int) -> None:
    for second in (Msg(7), Msg(6), Wrapper([Msg(7), Msg(8)]), Wrapper([Msg(6)])):
        with pytest.raises(CorruptData, match="begins at or below offset 7|does not ascend"):
            rows_between(encode_logical([Msg(7), second], magic), 0, 20)
    for offset in (-1, -(2**63), 2**63 - 1):
        with pytest.raises(CorruptData):
            rows_between(message_bytes(Msg(offset), magic), 0, 20)


@each_magic
@each_codec
def test_a_wrapper_beyond_the_bound_is_refused(magic: int, codec: Codec) -> None:
    wrapper = Wrapper([Msg(5, bytes(2_000_000))], codec)
    for offset in (5, 0):
        partition = Wrapper([Msg(offset, bytes(2_000_000))], codec) if offset == 0 else wrapper
        with pytest.raises(RecordTooLarge, match="decompresses to more than 1048576") as caught:
            rows_in(cursor_of(0, 6, max_unpacked_bytes=1 << 20), wrapper_bytes(partition, magic))
        assert caught.value.where["offset"] == offset


@each_magic
def test_a_message_larger_than_its_bound_is_named_itself(magic: int) -> None:
    for partition in (
        [Msg(5, bytes(10)), Msg(7, bytes(2001))],
        [Wrapper([Msg(5, bytes(10)), Msg(7, bytes(2001))])],
    ):
        with pytest.raises(RecordTooLarge, match="more than 2000 bytes") as caught:
            rows_in(cursor_of(0, 8, max_record_bytes=2000), encode_logical(partition, magic))
        assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 7}


def test_damage_beyond_the_range_does_not_stop_it() -> None:
    partition = encode_logical([Msg(5, b"a"), Msg(6, b"b"), Msg(7, b"c")], 0)
    assert [
        row["offset"] for row in rows_between(damaged(partition, len(partition) - 1), 5, 7)
    ] == [5, 6]
    with pytest.raises(CorruptData):
        rows_between(damaged(partition, len(partition) - 1), 5, 8)


def test_a_message_beyond_the_range_that_vouches_for_its_end_must_be_whole() -> None:
    partition = encode_logical([Msg(5, b"a"), Msg(9, b"c")], 0)
    with pytest.raises(CorruptData):
        rows_between(damaged(partition, len(partition) - 1), 5, 8)


# The timestamp in the header of a record batch or message, without decoding it

AT = 1_750_000_000_000


@pytest.mark.parametrize(
    ("records", "reported"),
    [
        (encode(Batch(5, [Rec(0), Rec(1)], base_timestamp=AT, max_timestamp=AT + 9)), AT + 9),
        (encode(Batch(5, [Rec(0)], base_timestamp=-1, max_timestamp=-1)), None),
        (encode_logical([Msg(5, b"a", timestamp=AT)], 1), AT),
        (encode_logical([Msg(5, b"a")], 1), None),
        (
            encode_logical(
                [
                    Wrapper(
                        [Msg(5, b"a", timestamp=AT), Msg(6, b"b", timestamp=AT + 9)],
                        timestamp=AT + 9,
                    )
                ],
                1,
            ),
            AT + 9,
        ),
        (encode_logical([Msg(5, b"a")], 0), None),
        (b"", None),
    ],
    ids=[
        "batch",
        "batch without",
        "message v1",
        "message v1 without",
        "wrapper v1",
        "message v0",
        "nothing",
    ],
)
def test_a_header_has_the_largest_timestamp(records: bytes, reported: int | None) -> None:
    assert largest_timestamp(memoryview(records)) == reported
    if reported is not None:
        follows = encode(Batch(9, [Rec(0)], max_timestamp=AT * 2))
        assert largest_timestamp(memoryview(records + follows)) == reported


def test_a_truncated_header_has_no_timestamp() -> None:
    whole = encode(Batch(5, [Rec(0)], max_timestamp=AT))
    assert [largest_timestamp(memoryview(whole[:size])) for size in (16, 17, 42, 43)] == [
        None,
        None,
        None,
        AT,
    ]
