"""`Messages`, the records of an answer one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.errors import CorruptData, MessageTooLarge
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.records.decode import Messages
from tests.fakes.batches import Batch, Rec, answer, encode
from tests.fakes.jafka import entry, wrapped

HELLO, WORLD = entry(b"hello"), entry(b"world!")


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
