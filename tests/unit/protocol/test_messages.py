"""`Messages`, the records of an answer one by one: their offset and the next one, skipped records, and an
answer without a complete record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from etl.errors import CorruptData, MessageTooLarge, MisalignedOffset
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.records.decode import Messages
from tests.fakes.batches import Batch, Codec, Rec, answer, encode
from tests.fakes.jafka import entry, wrapped

HELLO, WORLD = entry(b"hello"), entry(b"world!")
GZIPPED = bytes.fromhex(
    "0000003a 01 01 0138c0e3 1f8b0800000000000 "
    "2ff636060e06664301358d696919a9393cfc0c0c0c3c810c5f9d6fcc98eb5cfa6b50300"
    "ebd9cf371f000000".replace(" ", "")
)
"""`hello` and the six bytes of U+4E2D U+6587 in one entry of 62 bytes, as a real broker took it and
Jafka's own classes read it.
"""


def physical(records: bytes, at: int = 0) -> FetchedPartition:
    return replace(
        answer(records),
        layout=EntryLayout.PHYSICAL,
        broker_id=3,
        asked_offset=at,
        high_watermark=None,
    )


def logical(batches: Sequence[Batch], at: int, **fields: object) -> FetchedPartition:
    found = answer(b"".join(map(encode, batches)), **fields)  # type: ignore[arg-type]
    return replace(found, asked_offset=at)


def places(fetched: FetchedPartition) -> list[tuple[int, int, int, bytes | None]]:
    return [
        (each.offset, each.message_index, each.next_offset, each.value)
        for each in Messages(fetched)
    ]


# Physical logs


def test_a_message_has_its_own_offset_and_the_next_one() -> None:
    assert places(physical(HELLO + WORLD, at=1000)) == [
        (1000, 0, 1015, b"hello"),
        (1015, 0, 1031, b"world!"),
    ]
    [first, _] = Messages(physical(HELLO + WORLD))
    assert first.key is None
    assert first.timestamp_ms is None
    assert first.is_append_time is None
    assert first.headers == ()
    assert first.broker_id == 3


def test_messages_in_a_compressed_entry_have_its_offset_and_the_last_one_the_next() -> None:
    chinese = "\u4e2d\u6587".encode()
    assert places(physical(GZIPPED + HELLO, at=1000)) == [
        (1000, 0, 1000, b"hello"),
        (1000, 1, 1062, chinese),
        (1062, 0, 1077, b"hello"),
    ]
    assert [next_offset for _, _, next_offset, _ in places(physical(HELLO + GZIPPED, at=1000))] == [
        1015,
        1015,
        1077,
    ]
    assert Messages(physical(HELLO + GZIPPED, at=1000)).next_offset == 1077


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


def test_an_offset_inside_a_message_is_named_and_nothing_is_skipped() -> None:
    for inside in range(1, len(HELLO)):
        with pytest.raises((MisalignedOffset, MessageTooLarge), match=f"offset {inside}"):
            list(Messages(physical((HELLO + WORLD * 100)[inside:], at=inside)))


def test_a_wrong_checksum_is_reported_with_its_offset() -> None:
    with pytest.raises(CorruptData, match="CRC.*partition 3.*offset 15"):
        list(Messages(physical(HELLO + WORLD[:-1] + b"?")))


# Logical logs


def test_records_of_a_record_batch_begin_at_the_requested_offset() -> None:
    records = [
        Rec(delta, b"%d" % delta, b"k", ((b"h", b"1"), (b"none", None)), timestamp_delta=delta)
        for delta in range(4)
    ]
    found = list(Messages(logical([Batch(10, records, Codec.GZIP)], 12)))
    assert [(each.offset, each.next_offset, each.value) for each in found] == [
        (12, 13, b"2"),
        (13, 14, b"3"),
    ]
    assert found[0].key == b"k"
    assert found[0].headers == (("h", b"1"), ("none", None))
    assert found[0].timestamp_ms == 1_700_000_000_002
    assert found[0].is_append_time is False


def test_a_timestamp_that_no_calendar_has_is_a_number_all_the_same() -> None:
    [record] = Messages(
        logical(
            [
                Batch(
                    0,
                    [Rec(0, b"v")],
                    base_timestamp=300_000_000_000_000,
                    max_timestamp=300_000_000_000_000,
                )
            ],
            0,
        )
    )
    assert record.timestamp_ms == 300_000_000_000_000
