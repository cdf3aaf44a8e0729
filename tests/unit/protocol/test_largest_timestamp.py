"""The timestamp in the header of a record batch or message, without decoding it."""

from __future__ import annotations

import pytest

from etl.records.entries import largest_timestamp
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.message_sets import Msg, Wrapper, encode_logical

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
def test_the_header_of_the_first_batch_has_the_largest_timestamp(
    records: bytes, reported: int | None
) -> None:
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
