"""The cursor through one range of record batches or of old messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import (
    BrokerError,
    CorruptData,
    EtlError,
    ExpiredOffsets,
    MessageTooLarge,
    PermissionDenied,
    RanOutBeforeUntil,
)
from etl.model.partitions import Cleanup, Isolation
from etl.model.plans import RangeResult
from etl.reader.cursor import EMPTY_RESPONSES_THAT_PROVE, MISSING_MAX, Cursor
from etl.records import arrow_buffers
from tests.fakes.batches import Batch, Rec, answer, encode
from tests.fakes.logs import account_is_whole, cursor_of, encoded, logs, rows_in
from tests.fakes.message_sets import Msg, encode_logical
from tests.fakes.old_logs import OldEntry, encoded_old, last_offset, old_logs

TEN = Batch(100, [Rec(delta, b"%d" % delta) for delta in range(10)])
COMPACTED = Cleanup(True)
BIG = Batch(100, [Rec(0, b"x" * 5000)])
each_magic = pytest.mark.parametrize("magic", [0, 1])


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def feed(cursor: Cursor, records: bytes = b"", **fields: Any) -> list[int]:
    return offsets(rows_in(cursor, records, **fields))


def read_in_parts(
    data: st.DataObject, first: int, end: int, offsets: list[int], rest: Callable[[int], bytes]
) -> None:
    """Read a part of [first, end) by answers of any length. A broker begins each one with the entry
    that contains the requested offset, or with the next.
    """
    from_offset = data.draw(st.integers(first, end))
    until_offset = data.draw(st.integers(from_offset, end))
    most = data.draw(st.integers(1, 400))
    cursor = cursor_of(from_offset, until_offset, fetch_max_bytes=most, columns=("offset",))
    rows: list[int] = []
    fetched = 0
    while not cursor.done:
        size = data.draw(st.integers(cursor.max_bytes, 2 * cursor.max_bytes))
        part = rest(cursor.position)[:size]
        fetched += len(part)
        rows += feed(cursor, part)
    assert rows == [offset for offset in offsets if from_offset <= offset < until_offset]
    account_is_whole(cursor, rows, from_offset, until_offset, fetched=fetched)


@settings(max_examples=50, deadline=None)
@given(logs(), st.data())
def test_rows_do_not_depend_on_the_answers(batches: list[Batch], data: st.DataObject) -> None:
    def rest(position: int) -> bytes:
        return encoded([batch for batch in batches if batch.last_offset >= position])

    there = [batch.base_offset + record.delta for batch in batches for record in batch.records]
    read_in_parts(data, batches[0].base_offset, batches[-1].last_offset + 1, there, rest)


def test_records_below_the_position_and_from_until_on_are_dropped() -> None:
    cursor = cursor_of(103, 107)
    assert feed(cursor, encode(TEN) + b"\xff" * 80) == [103, 104, 105, 106], (
        "damage beyond the range does not stop it"
    )
    assert cursor.done and cursor.position == 107
    assert cursor.result == RangeResult(
        rows=4, fetched_bytes=len(encode(TEN)) + 80, last_epoch=7, epochs=((7, 103),)
    )
    empty = cursor_of(5, 5)
    assert empty.done and empty.result == RangeResult(fetched_bytes=0), "no request is needed"


@pytest.mark.parametrize(("until", "epoch"), [(105, 7), (110, 7), (112, None), (116, 8), (120, 8)])
def test_a_range_has_the_epoch_of_its_last_offset(until: int, epoch: int | None) -> None:
    cursor = cursor_of(103, until)
    later = Batch(115, [Rec(delta) for delta in range(10)], leader_epoch=8)
    feed(cursor, encode(TEN) + encode(later))
    assert cursor.done and cursor.result.last_epoch == epoch
    assert cursor.result.epochs == ((7, 103), (8, 115))[: 1 + (until > 115)]


def test_the_position_moves_when_the_answer_is_fed_and_before_its_rows_are_read() -> None:
    cursor = cursor_of(100, 200)
    arrow_batches = cursor.feed(answer(encode(TEN)))
    assert cursor.position == 110
    assert sum(arrow_batch.num_rows for arrow_batch in arrow_batches) == 10


def test_rows_that_were_not_read_to_their_end_are_not_passed_over() -> None:
    cursor = cursor_of(100, 200)
    cursor.feed(answer(encode(TEN)))
    with pytest.raises(EtlError, match="not read to their end"):
        cursor.feed(answer(b""))
    with pytest.raises(EtlError, match="not read to their end"):
        _ = cursor.result


def test_a_log_that_continues_beyond_until_completes_a_range_with_a_compacted_tail() -> None:
    cursor = cursor_of(100, 150)
    feed(cursor, encode(TEN))
    assert not cursor.done
    assert feed(cursor, encode(Batch(160, [Rec(0)]))) == []
    assert cursor.done and cursor.result.gaps == ((110, 150),)


def test_a_damaged_record_batch_does_not_prove_that_the_tail_is_gone() -> None:
    witness = bytearray(encode(Batch(160, [Rec(0, b"value")])))
    witness[-2] ^= 1
    cursor = cursor_of(100, 150)
    with pytest.raises(CorruptData, match="CRC-32C"):
        feed(cursor, encode(TEN) + witness)


def test_a_truncated_record_batch_after_a_whole_one_is_requested_again() -> None:
    cursor = cursor_of(100, 120)
    assert len(feed(cursor, encode(TEN) + encode(Batch(110, [Rec(9)]))[:40])) == 10
    assert (cursor.position, cursor.max_bytes) == (110, 1 << 20)


def test_the_fetch_size_grows_to_what_a_cut_off_record_batch_needs() -> None:
    cursor = cursor_of(100, 101, fetch_max_bytes=1000, max_batch_bytes=8000)
    assert feed(cursor, encode(BIG)[:1000]) == []
    assert (cursor.position, cursor.max_bytes) == (100, len(encode(BIG)))
    assert feed(cursor, encode(BIG)[: cursor.max_bytes]) == [100]
    assert cursor.done and cursor.result.fetched_bytes == 1000 + len(encode(BIG))


def test_the_fetch_size_doubles_where_not_even_a_header_came() -> None:
    cursor = cursor_of(100, 101, fetch_max_bytes=10, max_batch_bytes=15)
    feed(cursor, encode(BIG)[:10])
    assert cursor.max_bytes == 15
    with pytest.raises(MessageTooLarge, match="largest fetch, 15 bytes"):
        feed(cursor, encode(BIG)[:15])
    moved_nothing = cursor_of(150, 160, fetch_max_bytes=500)
    moved_nothing.feed(answer(encode(TEN) + encode(Batch(150, [Rec(0)]))[:30]))
    assert (moved_nothing.position, moved_nothing.max_bytes) == (150, 1000)
    assert feed(moved_nothing, encode(Batch(150, [Rec(0)]))) == [150], "it had no rows to read"


def test_a_record_batch_larger_than_the_limit_is_named_with_its_size_and_place() -> None:
    cursor = cursor_of(100, 101, fetch_max_bytes=1000, max_batch_bytes=4000)
    with pytest.raises(MessageTooLarge, match=f"it has {len(encode(BIG))}") as caught:
        feed(cursor, encode(BIG)[:1000])
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 100}


def test_a_record_batch_that_comes_whole_is_read_however_large_it_is() -> None:
    """From Fetch 3 on the first one comes whole even beyond both limits (KIP-74)."""
    assert feed(cursor_of(100, 101, fetch_max_bytes=1000, max_batch_bytes=1000), encode(BIG)) == [
        100
    ]


def test_an_empty_answer_below_the_readable_end_is_waited_for() -> None:
    cursor = cursor_of(100, 110)
    for _ in range(EMPTY_RESPONSES_THAT_PROVE + 1):
        assert feed(cursor, high_watermark=200, last_stable_offset=105, proves_empty=True) == []
        assert cursor.starved and not cursor.done
    for _ in range(10 * EMPTY_RESPONSES_THAT_PROVE):
        feed(cursor)
        assert not cursor.done and not cursor.starved, "a throttled answer proves nothing"
    assert len(feed(cursor, encode(TEN))) == 10
    assert cursor.done and not cursor.starved
    uncommitted = cursor_of(100, 110, isolation=Isolation.READ_UNCOMMITTED)
    feed(uncommitted, high_watermark=110, last_stable_offset=100)
    assert not uncommitted.starved, "it waits for the high watermark only"
    old = cursor_of(100, 110)
    feed(old, high_watermark=109, last_stable_offset=None)
    assert old.starved


def test_several_empty_answers_in_a_row_that_prove_it_complete_the_range() -> None:
    cursor = cursor_of(100, 120, cleanup=COMPACTED)
    for _ in range(EMPTY_RESPONSES_THAT_PROVE - 1):
        feed(cursor, proves_empty=True)
    feed(cursor, encode(TEN))
    for _ in range(EMPTY_RESPONSES_THAT_PROVE):
        assert not cursor.done
        feed(cursor, high_watermark=120, last_stable_offset=120, proves_empty=True)
    assert cursor.done and cursor.result.gaps == ((110, 120),)


@pytest.mark.parametrize(
    "cleanup",
    [Cleanup(), Cleanup(False), Cleanup(False, is_tiered=True), Cleanup(True, is_tiered=True)],
)
def test_only_compaction_leaves_nothing_at_the_end_of_a_log(cleanup: Cleanup) -> None:
    """Kafka 3.9 answers so when its remote storage is too slow."""
    cursor = cursor_of(100, 120, cleanup=cleanup)
    for _ in range(10 * EMPTY_RESPONSES_THAT_PROVE):
        feed(cursor, high_watermark=120, last_stable_offset=120, proves_empty=True)
        assert cursor.silent and not cursor.starved and not cursor.done
    assert len(feed(cursor, encode(TEN))) == 10
    assert not cursor.silent


def test_offsets_between_record_batches_are_missing_where_no_compaction_explains_them() -> None:
    answered = (
        encode(TEN) + encode(Batch(115, [Rec(0)], last_delta=2)) + encode(Batch(130, [Rec(0)]))
    )
    for cleanup, missing in (
        (Cleanup(), [(90, 100), (110, 115), (118, 125)]),
        (Cleanup(False), [(90, 100), (110, 115), (118, 125)]),
        (COMPACTED, []),
    ):
        cursor = cursor_of(90, 125, cleanup=cleanup)
        feed(cursor, answered)
        assert (cursor.done, cursor.missing, cursor.missing_count) == (True, missing, len(missing))


def test_offsets_missing_inside_a_record_batch_are_always_compactions() -> None:
    """A producer writes none with gaps, and only the cleaner writes one again."""
    cursor = cursor_of(100, 150)
    assert feed(cursor, encode(Batch(100, [Rec(0), Rec(7)], last_delta=40))) == [100, 107]
    assert cursor.position == 141, "it follows the batch and not its last record"
    assert feed(cursor, encode(Batch(141, [Rec(0)], last_delta=8))) == [141]
    assert cursor.missing == [] and cursor.result.missing_offsets == 47


def test_of_very_many_holes_the_first_are_kept_and_all_are_counted() -> None:
    cursor = cursor_of(0, 1000)
    feed(cursor, b"".join(encode(Batch(4 * number, [Rec(0)])) for number in range(250)))
    assert (len(cursor.missing), cursor.missing_count) == (MISSING_MAX, 249)
    assert cursor.missing[-1] == (397, 400)


def test_an_answer_that_stays_below_the_position_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="all below the requested offset"):
        feed(cursor_of(150, 160), encode(TEN))


@pytest.mark.parametrize(
    "code, log_start, kind, what",
    [
        (74, None, BrokerError, "FENCED_LEADER_EPOCH"),
        (1, 101, ExpiredOffsets, "deleted by retention"),
        (1, 100, RanOutBeforeUntil, "The partition ends at or below 100,"),
        (1, None, BrokerError, "does not report on which side"),
        (2, None, CorruptData, "CORRUPT_MESSAGE"),
        (6, None, BrokerError, "NOT_LEADER_OR_FOLLOWER"),
        (-1, None, BrokerError, "UNKNOWN_SERVER_ERROR"),
        (29, None, PermissionDenied, "TOPIC_AUTHORIZATION_FAILED"),
        (4, None, EtlError, "INVALID_FETCH_SIZE"),
        (109, None, EtlError, "OFFSET_MOVED_TO_TIERED_STORAGE"),
        (999, None, EtlError, "unknown error code 999"),
    ],
)
def test_each_error_code_has_its_error_with_topic_partition_and_offset(
    code: int, log_start: int | None, kind: type[EtlError], what: str
) -> None:
    with pytest.raises(EtlError, match=what) as caught:
        feed(cursor_of(100, 110), error_code=code, log_start_offset=log_start, high_watermark=-1)
    assert type(caught.value) is kind
    assert caught.value.retriable == (kind is BrokerError), "only what may pass"
    assert {"topic": "clicks", "partition": 3, "offset": 100}.items() <= caught.value.where.items()


def test_large_answers_come_as_several_arrow_batches() -> None:
    records = [Rec(delta, bytes(100)) for delta in range(9)]

    def sizes(batches: int) -> list[int]:
        response = b"".join(encode(Batch(9 * number, records)) for number in range(batches))
        found = cursor_of(0, 9 * batches).feed(answer(response))
        return [arrow_batch.num_rows for arrow_batch in found]

    with mock.patch.object(arrow_buffers, "GROUP_BYTES", 2700):
        assert sizes(2) == [18]
        assert sizes(6) == [27, 27]


# Messages of formats v0 and v1


def offsets_of(partition: list[OldEntry]) -> list[int]:
    found: list[int] = []
    for _, entry in partition:
        if isinstance(entry, Batch):
            found += [entry.base_offset + record.delta for record in entry.records]
        elif isinstance(entry, Msg):
            found.append(entry.offset)
        else:
            found += [message.offset for message in entry.messages]
    return found


@settings(max_examples=50, deadline=None)
@given(old_logs(), st.data())
def test_rows_of_messages_do_not_depend_on_the_answers(
    partition: list[OldEntry], data: st.DataObject
) -> None:
    def rest(position: int) -> bytes:
        return encoded_old([each for each in partition if last_offset(each[1]) >= position])

    there, end = offsets_of(partition), last_offset(partition[-1][1]) + 1
    read_in_parts(data, max(0, there[0] - 2), end, there, rest)


@settings(max_examples=50, deadline=None)
@given(old_logs(), st.data())
def test_missing_offsets_lie_between(partition: list[OldEntry], data: st.DataObject) -> None:
    """Offsets inside or after the last of a batch do not count as missing."""
    end, first = last_offset(partition[-1][1]) + 1, offsets_of(partition[:1])[0]
    from_offset = data.draw(st.integers(max(0, first - 9), end))
    until_offset = data.draw(st.integers(from_offset, end))
    cursor, known = (
        cursor_of(from_offset, until_offset, fetch_max_bytes=300),
        cursor_of(from_offset, until_offset, cleanup=COMPACTED),
    )
    while not cursor.done:
        left = [each for each in partition if last_offset(each[1]) >= cursor.position]
        rows_in(cursor, encoded_old(left[: data.draw(st.integers(1, len(left)))]))
    missing, expected = [], from_offset
    for each in partition:
        begins = each[1].base_offset if isinstance(each[1], Batch) else offsets_of([each])[0]
        if expected < min(begins, until_offset):
            missing.append((expected, min(begins, until_offset)))
        expected = max(expected, last_offset(each[1]) + 1)
    assert cursor.missing == missing and cursor.missing_count == len(missing)
    rows_in(known, encoded_old([each for each in partition if last_offset(each[1]) >= from_offset]))
    assert known.missing == [] and known.missing_count == 0


@each_magic
def test_leader_epochs_are_those_of_the_record_batches_alone(magic: int) -> None:
    partition = encode_logical([Msg(4), Msg(5)], magic) + encode(
        Batch(6, [Rec(0), Rec(1)], leader_epoch=3)
    )
    cursor = cursor_of(4, 8)
    rows_in(cursor, partition)
    assert (cursor.result.epochs, cursor.result.last_epoch) == (((3, 6),), 3)
    cursor = cursor_of(4, 6)
    rows_in(cursor, partition)
    assert (cursor.result.epochs, cursor.result.last_epoch) == ((), None)
