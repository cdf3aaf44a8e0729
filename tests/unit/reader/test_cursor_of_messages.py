"""Reading a range of messages of formats v0 and v1: wrappers that begin before the range, and
missing offsets.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import CorruptData, MessageTooLarge
from etl.model.partitions import Cleanup
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.logs import account_is_whole, cursor_of, rows_in
from tests.fakes.message_sets import Msg, Wrapper, encode_logical, message_bytes
from tests.fakes.old_logs import OldEntry, encoded_old, last_offset, old_logs

COMPACTED = Cleanup(True)
each_magic = pytest.mark.parametrize("magic", [0, 1])


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
def test_rows_do_not_depend_on_the_answers(partition: list[OldEntry], data: st.DataObject) -> None:
    """A broker begins an answer with the entry that contains the requested offset, or the next."""
    end, offsets = last_offset(partition[-1][1]) + 1, offsets_of(partition)
    from_offset = data.draw(st.integers(max(0, offsets[0] - 2), end))
    until_offset = data.draw(st.integers(from_offset, end))
    cursor = cursor_of(
        from_offset,
        until_offset,
        fetch_max_bytes=data.draw(st.integers(1, 400)),
        columns=("offset",),
    )
    rows: list[int] = []
    fetched = 0
    while not cursor.done:
        rest = encoded_old([each for each in partition if last_offset(each[1]) >= cursor.position])
        part = rest[: data.draw(st.integers(cursor.max_bytes, 2 * cursor.max_bytes))]
        fetched += len(part)
        rows += [row["offset"] for row in rows_in(cursor, part)]
    assert rows == [offset for offset in offsets if from_offset <= offset < until_offset]
    account_is_whole(cursor, rows, from_offset, until_offset, fetched=fetched)


@settings(max_examples=50, deadline=None)
@given(old_logs(), st.data())
def test_missing_offsets_lie_between(partition: list[OldEntry], data: st.DataObject) -> None:
    """Offsets inside a wrapper or a record batch, or after the last of them, do not count as
    missing.
    """
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
def test_records_of_a_wrapper_below_the_position_and_from_until_on_are_dropped(magic: int) -> None:
    wrapper = Wrapper([Msg(100 + delta, b"%d" % delta) for delta in range(10)])
    cursor = cursor_of(103, 107)
    rows = rows_in(cursor, encode_logical([wrapper], magic))
    assert [row["offset"] for row in rows] == [103, 104, 105, 106]
    assert cursor.done and cursor.position == 107 and cursor.missing == []
    result = cursor.result
    assert (result.missing_offsets, result.epochs, result.last_epoch) == (0, (), None)


@each_magic
def test_a_wrapper_beyond_until_shows_the_missing_offsets_below(magic: int) -> None:
    for beyond in (Wrapper([Msg(8), Msg(12)]), Msg(8)):
        partition = encode_logical([Msg(4), beyond], magic)
        for until, rows, missing in ((9, [4, 8], (5, 8)), (7, [4], (5, 7))):
            cursor = cursor_of(4, until)
            assert [row["offset"] for row in rows_in(cursor, partition)] == rows
            assert cursor.done and cursor.missing == [missing]


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


@each_magic
@pytest.mark.parametrize("size", [1, 11, 12, 16, 17, 25, 26, 100])
def test_a_large_message_is_requested_with_more_bytes(magic: int, size: int) -> None:
    """Brokers before 0.10.1 cut even the first message off."""
    record = message_bytes(Msg(7, bytes(300)), magic)
    cursor = cursor_of(7, 8, fetch_max_bytes=size)
    request = 0
    while not cursor.done:
        rows_in(cursor, record[: cursor.max_bytes])
        request += 1
    assert cursor.result.rows == 1 and request <= 7


@each_magic
def test_a_message_larger_than_any_fetch_may_be_is_named_with_its_size(magic: int) -> None:
    record = message_bytes(Msg(7, bytes(5000)), magic)
    with pytest.raises(MessageTooLarge, match=f"it has {len(record)}"):
        rows_in(cursor_of(7, 8, fetch_max_bytes=100, max_batch_bytes=2000), record[:100])


@each_magic
def test_an_answer_with_messages_below_the_position_only_is_corrupt(magic: int) -> None:
    with pytest.raises(CorruptData, match="up to offset 6 only"):
        rows_in(cursor_of(7, 9), encode_logical([Msg(5), Msg(6)], magic))
