"""Errors that are marked in a text: each keeps its kind and its place in a traceback."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl import errors
from etl.errors import CorruptData, EtlError, SettingsError, mark, unmark

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EtlError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_marked_error_is_found_in_a_long_traceback(kind: type[EtlError]) -> None:
    error = kind(
        'a "quoted" \\ line\nand more é', action="this", topic="t", partition=0, offset=2**62
    )
    text = (
        f"Py4JJavaError: {'x' * 50_000}\n  at org.apache\nRuntimeError: {mark(error)}\n\tat "
        f"java.lang.Thread\n{'y' * 50_000}"
    )
    found = unmark(text)
    assert type(found) is kind
    assert (found.message, found.action, found.where) == (error.message, error.action, error.where)


def test_the_first_of_several_marked_errors_is_the_one() -> None:
    found = unmark(mark(CorruptData("first")) + mark(SettingsError("second")))
    assert isinstance(found, CorruptData)


def test_a_marker_in_other_text_does_not_hide_the_error_after_it() -> None:
    found = unmark('raise RuntimeError("etl-error:" + text)\n' + mark(CorruptData("here")))
    assert isinstance(found, CorruptData)


def test_a_kind_that_this_version_does_not_know_is_still_an_error() -> None:
    found = unmark(mark(CorruptData("what", topic="t")).replace("CorruptData", "FromTheFuture"))
    assert found is not None
    assert (type(found), found.message, found.where) == (EtlError, "what", {"topic": "t"})


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "etl-error:",
        "etl-error",
        "etl-error:{",
        "etl-error:5",
        "etl-error:null",
        'etl-error:"four"',
        "etl-error:[1,2,3,4]",
        "etl-error:[[],[],[],[]]",
        'etl-error:["EtlError","message","action","where"]',
        'etl-error:["EtlError","message","action",null]',
        'etl-error:{"a":1,"b":2,"c":3,"d":4}',
        'etl-error:["EtlError","message","action",{"message":1}]',
        "etl-error:" + "[" * 100_000,
    ],
)
def test_junk_holds_no_error(junk: str) -> None:
    assert unmark(junk) is None


@given(st.text().filter(lambda text: "etl-error:" not in text), st.text(), st.integers())
def test_text_around_an_error_hides_none(text: str, around: str, offset: int) -> None:
    assert unmark(text) is None
    found = unmark(
        around + mark(CorruptData(text, action=around, topic=text, offset=offset)) + text
    )
    assert type(found) is CorruptData
    assert (found.message, found.action) == (text, around)
    assert found.where == {"topic": text, "offset": offset}
