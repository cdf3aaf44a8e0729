"""Documents of the ledger as bytes; anything else is rejected by name."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import LedgersDisagree, NeedsDecision
from etl.ledger.document_codec import Codec, Differs
from etl.ledger.documents import CODEC, DIFFERING, FORMAT, parse, render
from etl.model.partitions import TopicPartition
from etl.model.plans import CommitResult, RangeResult
from etl.model.snapshot import NamedTable
from tests.fakes.any_documents import GOLDEN, KINDS, SEEDS, any_document, text_of

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
PATH = "/the/znode"
OTHER_TYPES: tuple[Any, ...] = (1.5, [[[[]]]], {"": 0})
"""No member of a document has one of these."""


def stored(kind: type[Any], document: Any) -> bytes:
    """The document as this class is stored."""
    text = json.dumps(document).encode()
    if render(any_document(kind, 0)).startswith(b"{"):
        return text
    return zlib.compress(text)


def changed(value: Any, name: str, content: Any) -> Any:
    return {**json.loads(text_of(render(value))), name: content}


def error_of(kind: type[Any], payload: bytes) -> str:
    with pytest.raises(LedgersDisagree) as caught:
        parse(kind, payload, path=PATH)
    assert caught.value.where["znode"] == PATH
    return str(caught.value)


@EACH_KIND
def test_documents_have_the_bytes_that_were_recorded_before_the_codec(kind: type[Any]) -> None:
    """They were rendered by functions for each class, which the codec replaced."""
    recorded = json.loads(GOLDEN.read_text())[kind.__name__]
    for seed, text in zip(SEEDS, recorded, strict=True):
        value = any_document(kind, seed)
        payload = render(value)
        assert text_of(payload) == text
        assert parse(kind, payload, path=PATH) == value


@EACH_KIND
@given(seed=st.integers(0), is_latest=st.booleans())
def test_a_document_is_parsed_to_the_value_that_was_rendered(
    kind: type[Any], seed: int, is_latest: bool
) -> None:
    value = any_document(kind, seed, is_latest=is_latest)
    payload = render(value)
    assert parse(kind, payload, path=PATH) == value
    assert render(parse(kind, payload, path=PATH)) == payload


@EACH_KIND
def test_a_member_of_another_type_is_rejected(kind: type[Any]) -> None:
    value = any_document(kind, 1)
    document = json.loads(text_of(render(value)))
    assert parse(kind, stored(kind, {**document, "since": "then"}), path=PATH) == value
    for name in document.keys() - {"format"}:
        for wrong in OTHER_TYPES:
            error_of(kind, stored(kind, {**document, name: wrong}))
        without = {other: member for other, member in document.items() if other != name}
        if DIFFERING.get(kind, {}).get(name) is Differs.LEFT_OUT:
            parse(kind, stored(kind, without), path=PATH)
        else:
            assert f"KeyError: '{name}'" in error_of(kind, stored(kind, without))


@EACH_KIND
def test_a_truncated_or_newer_document_is_rejected(kind: type[Any]) -> None:
    value = any_document(kind, 2)
    payload = render(value)
    for wrong in (b"", payload[:-1], payload[: len(payload) // 2], payload + b"x", payload * 2):
        error_of(kind, wrong)
    error_of(kind, stored(kind, changed(value, "format", FORMAT - 1)))
    with pytest.raises(NeedsDecision, match=f"has format {FORMAT + 1}") as caught:
        parse(kind, stored(kind, changed(value, "format", FORMAT + 1)), path=PATH)
    assert not isinstance(caught.value, LedgersDisagree)


def test_a_named_table_without_a_path_is_rejected() -> None:
    table = NamedTable("lake.clicks", "/wh/clicks", None, 0)
    error_of(NamedTable, stored(NamedTable, changed(table, "path", "")))


def test_an_error_names_the_field_with_its_value_and_the_expected_type() -> None:
    result = CommitResult(1, "p", 2, "t", (RangeResult(5), RangeResult(6)))
    document = json.loads(text_of(render(result)))
    rows = {**document, "rows": [5, "six"]}
    assert "rows is 'six', not int or NoneType" in error_of(
        CommitResult, stored(CommitResult, rows)
    )
    number = {**document, "number": True}
    assert "number is True, not int" in error_of(CommitResult, stored(CommitResult, number))


def test_the_fields_that_differ_exist_and_are_stored_in_front_of_those_that_are_not() -> None:
    for kind, differing in DIFFERING.items():
        names = [field.name for field in dataclasses.fields(kind)]
        assert differing.keys() <= set(names)
        kept = [name for name in names if differing.get(name) is not Differs.NOT_STORED]
        assert names[: len(kept)] == kept


@dataclasses.dataclass(frozen=True)
class Point:
    log: TopicPartition
    weight: float
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Map:
    """A kind of document that no version stores."""

    points: tuple[Point, ...]
    best: Point | None
    names: Mapping[str, tuple[int, bool]]
    sizes: Mapping[TopicPartition, float]
    ages: Mapping[TopicPartition, tuple[int, ...]]


A, B = TopicPartition("a", 1), TopicPartition("b", 2, 0)


def test_another_kind_of_document_needs_a_dataclass_alone() -> None:
    value = Map(
        (Point(A, 0.5), Point(B, 1.0, "x")),
        None,
        {"n": (1, True)},
        {B: 1.5, A: 2.5},
        {A: (), B: (3,)},
    )
    document = CODEC.write(value)
    assert json.loads(json.dumps(document)) == {
        "format": FORMAT,
        "points": [["a", "1", 0.5, None], ["b", "0-2", 1.0, "x"]],
        "best": None,
        "names": {"n": [1, True]},
        "logs": {"a": ["1"], "b": ["0-2"]},
        "sizes": [2.5, 1.5],
        "ages": [[], [3]],
    }
    assert parse(Map, render(value), path=PATH) == value
    assert parse(Map, render(dataclasses.replace(value, best=Point(A, 0.5))), path=PATH).best


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("points", [["a", "1", 0.5], ["b", "2", 1.5, "x"]], "points has rows of 2 lengths"),
        ("points", [["a", "1", 0.5, None, 7]], "Point has 5 values instead of 4"),
        ("points", [["a", "1"]], "missing 1 required positional argument"),
        ("points", [["a", "01", 0.5]], "'01' is no partition key"),
        ("points", [[]], "Point has 0 values"),
        ("best", [], "Point has 0 values"),
        ("names", {"n": [1]}, "zip"),
        ("names", {"n": [1, 1]}, "names is 1, not bool"),
        ("logs", {"a": ["1"]}, "zip"),
        ("logs", {"a": ["1", "x"]}, "'x' is no partition key"),
        ("sizes", [1.5], "zip"),
        ("ages", None, "ages is None, not list"),
    ],
)
def test_rows_that_do_not_fit_are_rejected(name: str, content: Any, error: str) -> None:
    value = Map((Point(A, 0.5),), None, {"n": (1, True)}, {A: 1.5, B: 2.5}, {A: (), B: (3,)})
    document = {**CODEC.write(value), name: content}
    assert error in error_of(Map, zlib.compress(json.dumps(document).encode()))


def test_a_row_may_lack_its_last_values_if_those_fields_have_defaults() -> None:
    found = Codec({}).read_row(Point, ["a", "1", 0.5])
    assert found == Point(A, 0.5)
