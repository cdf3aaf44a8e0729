"""Record batches v2: decoded, skipped and rejected ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from etl.errors import CorruptData, RecordTooLarge
from etl.model.partitions import Isolation
from tests.fakes import oracle
from tests.fakes.batches import Batch, Codec, Rec, compress, control, encode, record_bytes
from tests.fakes.logs import cursor_of, encoded, logs, rows_between, rows_in

# Computed apart from this project, from the format's description, and decoded by kafka-python with
# valid CRC.
TWO_RECORDS = bytes.fromhex("""
    0000000000000064 0000004f 00000007 02 d2d8a9d9 0000 00000004
    0000018bcfe56800 0000018bcfe56805 ffffffffffffffff ffff ffffffff 00000002
    16 00 00 00 01 0a 68656c6c6f 00
    22 00 0a 04 02 6b 0c e4b8ade69687 02 02 68 02 01""")
PRODUCER = 4000
ORACLE_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def transactional(base_offset: int, count: int, producer_id: int = PRODUCER) -> Batch:
    return Batch(
        base_offset,
        [Rec(delta, b"x") for delta in range(count)],
        producer_id=producer_id,
        transactional=True,
    )


def test_the_golden_record_batch_gives_its_two_rows() -> None:
    assert rows_between(TWO_RECORDS, 100, 105) == [
        {
            "key": None,
            "value": b"hello",
            "topic": "clicks",
            "partition": 3,
            "offset": 100,
            "timestamp": 1_700_000_000_000_000,
            "timestampType": 0,
            "headers": None,
            "incarnation": 0,
        },
        {
            "key": b"k",
            "value": "\u4e2d\u6587".encode(),
            "topic": "clicks",
            "partition": 3,
            "offset": 102,
            "timestamp": 1_700_000_000_005_000,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"\x01"}],
            "incarnation": 0,
        },
    ]


@settings(max_examples=50, deadline=None)
@given(logs())
def test_decoding_differs_in_nothing_from_kafka_python(batches: list[Batch]) -> None:
    records = encoded(batches)
    cursor = cursor_of(0, batches[-1].last_offset + 1, columns=ORACLE_COLUMNS)
    assert rows_in(cursor, records) == oracle.rows_of(records)
    assert cursor.done


@pytest.mark.parametrize("codec", Codec)
def test_a_value_of_several_compressed_blocks_is_decoded_with_every_codec(codec: Codec) -> None:
    records = encode(Batch(0, [Rec(0, b"v" * 70_000), Rec(1, None, b"k")], codec=codec))
    assert rows_in(cursor_of(0, 2, columns=ORACLE_COLUMNS), records) == oracle.rows_of(records)


@pytest.mark.parametrize("codec", Codec)
def test_the_crc_is_checked_before_anything_is_decompressed(codec: Codec) -> None:
    records = bytearray(encode(Batch(5, [Rec(0, b"hello")], codec=codec)))
    records[-1] ^= 0xFF
    with pytest.raises(CorruptData, match="CRC-32C") as caught:
        rows_between(bytes(records), 5, 6)
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 5}


@pytest.mark.parametrize(
    ("at", "wrong", "what"),
    [
        *(
            (8, n.to_bytes(4, "big", signed=True), f"length of {n} is")
            for n in (-1, 0, 48, -(2**31))
        ),
        (8, (2**31 - 1).to_bytes(4, "big"), "claims 2147483659 bytes"),
        (16, b"\x03", "Magic 3 is no message format"),
        (22, b"\x05", "codec 5 does not exist"),
    ],
)
def test_an_impossible_header_is_corrupt_with_its_place(at: int, wrong: bytes, what: str) -> None:
    records = TWO_RECORDS[:at] + wrong + TWO_RECORDS[at + len(wrong) :]
    with pytest.raises(CorruptData, match=what) as caught:
        rows_between(records, 100, 105)
    assert caught.value.where["offset"] == 100


@pytest.mark.parametrize(
    "batch, what",
    [
        (Batch(9, [Rec(0)], count=-1), "claims -1 records"),
        (Batch(9, [Rec(0)], count=2, last_delta=0), "of 1 offsets claims 2 records"),
        (Batch(9, [Rec(0)], count=2**31 - 1, last_delta=2**31 - 2), "records in 7 bytes"),
        (Batch(9, [Rec(0)], count=1000, last_delta=999, codec=Codec.ZSTD), "records in 7 bytes"),
        (Batch(9, [Rec(0), Rec(1)], count=1), "Bytes follow the last record"),
        (Batch(9, [Rec(0, b"x" * 9)], count=2, last_delta=1), "record's length"),
        (Batch(9, [Rec(0)], last_delta=-1), "from offset 9 to 8"),
        (Batch(2**63 - 1, [Rec(0)], last_delta=0), "reaches from offset"),
        (
            Batch(9, [Rec(0)], last_delta=0, base_timestamp=0, payload=record_bytes(Rec(5))),
            "is outside its record batch",
        ),
        (
            Batch(9, [Rec(0), Rec(1)], payload=record_bytes(Rec(1)) + record_bytes(Rec(1))),
            "does not ascend",
        ),
        (Batch(9, [Rec(0)], codec=Codec.GZIP, payload=b"no gzip at all"), "is invalid gzip"),
        (
            Batch(
                9,
                [Rec(0)],
                codec=Codec.SNAPPY,
                payload=bytes.fromhex("82534e41505059000000000100000001 00000100 00"),
            ),
            "is invalid snappy",
        ),
        (
            Batch(
                9,
                [Rec(0)],
                codec=Codec.ZSTD,
                payload=compress(record_bytes(Rec(0)), Codec.ZSTD)[:-2],
            ),
            "is invalid zstd",
        ),
    ],
)
def test_fields_that_cannot_be_are_corrupt_with_their_place(batch: Batch, what: str) -> None:
    with pytest.raises(CorruptData, match=what) as caught:
        rows_between(encode(batch), 0, 2**62)
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": batch.base_offset}


def test_record_batches_that_overlap_are_corrupt() -> None:
    with pytest.raises(CorruptData, match="at or below offset 12"):
        rows_between(encoded([Batch(10, [Rec(0), Rec(2)]), Batch(12, [Rec(0)])]), 10, 20)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_decompression_bomb_is_refused_by_name(codec: Codec) -> None:
    bomb = encode(Batch(9, [Rec(0, bytes(3 << 20))], codec=codec))
    cursor = cursor_of(9, 10, max_unpacked_bytes=1 << 20)
    with pytest.raises(RecordTooLarge, match="decompresses to more than 1048576") as caught:
        rows_in(cursor, bomb)
    assert caught.value.where["offset"] == 9


def test_batches_of_aborted_transactions_are_left_out_and_counted() -> None:
    records = encoded(
        [
            transactional(0, 2),
            transactional(2, 3, producer_id=5),
            control(5, PRODUCER, kind=0),
            control(6, 5, kind=1),
            transactional(7, 1),
        ]
    )
    cursor = cursor_of(0, 8)
    assert offsets(rows_in(cursor, records, aborted=((PRODUCER, 0),))) == [2, 3, 4, 7]
    result = cursor.result
    assert result.rows == 4
    assert result.aborted_records == 2
    assert result.control_records == 2
    assert result.missing_offsets == 0
    assert result.gaps == ((0, 2), (5, 7))


def test_a_transaction_aborted_before_the_answer_begins_is_known_from_the_list() -> None:
    cursor = cursor_of(50, 54)
    assert offsets(
        rows_in(
            cursor,
            encoded([transactional(50, 2), control(52, PRODUCER, kind=0), transactional(53, 1)]),
            aborted=((PRODUCER, 7),),
        )
    ) == [53]


def test_a_producer_that_aborts_twice_in_one_answer_is_skipped_twice() -> None:
    records = encoded(
        [
            transactional(0, 1),
            control(1, PRODUCER, kind=0),
            transactional(2, 1),
            control(3, PRODUCER, kind=1),
            transactional(4, 1),
            control(5, PRODUCER, kind=0),
            Batch(6, [Rec(0)], producer_id=PRODUCER),
        ]
    )
    assert offsets(rows_between(records, 0, 7, aborted=((PRODUCER, 4), (PRODUCER, 0)))) == [2, 6]


def test_an_abort_marker_below_the_position_still_ends_the_transaction() -> None:
    records = encoded([transactional(0, 1), control(1, PRODUCER, kind=0), transactional(2, 1)])
    assert offsets(rows_between(records, 2, 3, aborted=((PRODUCER, 0),))) == [2]


def test_read_uncommitted_keeps_aborted_records_and_drops_control_batches() -> None:
    cursor = cursor_of(0, 3, isolation=Isolation.READ_UNCOMMITTED)
    assert offsets(
        rows_in(
            cursor,
            encoded([transactional(0, 2), control(2, PRODUCER, kind=0)]),
            aborted=((PRODUCER, 0),),
        )
    ) == [0, 1]
    assert cursor.result.control_records == 1


@pytest.mark.parametrize("codec", Codec)
def test_of_an_aborted_batch_only_the_records_inside_the_range_are_counted(codec: Codec) -> None:
    batch = replace(transactional(10, 6), codec=codec)
    cursor = cursor_of(12, 15)
    assert rows_in(cursor, encode(batch), aborted=((PRODUCER, 10),)) == []
    assert cursor.result.aborted_records == 3


def test_a_marker_of_an_unknown_type_is_dropped_like_any_control_batch() -> None:
    assert offsets(
        rows_between(encoded([control(0, PRODUCER, kind=5), transactional(1, 1)]), 0, 2)
    ) == [1]


def test_a_control_batch_without_a_control_record_is_corrupt() -> None:
    broken = Batch(0, [Rec(0, key=b"\x00")], producer_id=PRODUCER, control=True, transactional=True)
    with pytest.raises(CorruptData, match="no control record"):
        rows_between(encode(broken), 0, 1, aborted=((PRODUCER, 0),))


@pytest.mark.parametrize(
    "base_ms, delta",
    [
        (-1, 0),
        (2, -3),
        (2**63 - 1, 0),
        (2**63 - 1, 5),
        (-(2**63), -5),
        (1_700_000_000_000_000_000, 0),
        ((2**63 - 1) // 1000, 1),
    ],
)
def test_a_timestamp_that_is_none_or_fits_no_microseconds_is_null(base_ms: int, delta: int) -> None:
    rows = rows_between(
        encode(Batch(0, [Rec(0, timestamp_delta=delta), Rec(1)], base_timestamp=base_ms)), 0, 2
    )
    assert rows[0]["timestamp"] is None


def test_header_keys_that_are_no_utf_8_get_replacement_characters() -> None:
    rows = rows_between(
        encode(Batch(0, [Rec(0, headers=((b"\xff\xfe", b"1"), ("\u4e2d".encode(), None)))])), 0, 1
    )
    assert rows[0]["headers"] == [
        {"key": "\ufffd\ufffd", "value": b"1"},
        {"key": "\u4e2d", "value": None},
    ]
