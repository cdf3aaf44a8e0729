"""Which columns rows and a table may have, and by which columns a table is partitioned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etl.decide.table_rules import (
    fits,
    reject_impossible_columns,
    reject_other_columns,
    reject_partitions,
)
from etl.errors import NotOurTable, SettingsError


def field(name: str, kind: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def columns(nullable: bool = True, **kinds: Any) -> dict[str, str]:
    """Columns as a table's shape has them."""
    return {name: json.dumps({"type": kind, "nullable": nullable}) for name, kind in kinds.items()}


def array(contains_null: bool) -> dict[str, Any]:
    return {"type": "array", "elementType": "integer", "containsNull": contains_null}


def mapping(contains_null: bool) -> dict[str, Any]:
    return {
        "type": "map",
        "keyType": "string",
        "valueType": array(contains_null),
        "valueContainsNull": contains_null,
    }


def struct(nullable: bool) -> dict[str, Any]:
    return struct_of(field("a", mapping(nullable), nullable))


def struct_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


@pytest.mark.parametrize("made", [array, mapping, struct])
def test_a_non_null_column_fits_a_nullable_one_and_not_the_reverse(made: Any) -> None:
    assert [
        fits(made(rows), made(table))
        for rows, table in ((False, True), (True, True), (False, False), (True, False))
    ] == [True, True, True, False]


def test_another_type_fits_nowhere_however_deep() -> None:
    assert not fits(array(False), {**array(True), "elementType": "long"})
    assert not fits("integer", array(True))
    assert not fits(struct(False), {"type": "struct", "fields": []})


def test_a_nullable_column_is_rejected_for_a_non_null_one_of_the_table() -> None:
    required, nullable = columns(nullable=False, source="string"), columns(source="string")
    reject_other_columns("/t", required, {**nullable, **columns(more="integer")})
    message = r"column source is string not null, expected string \(path"
    with pytest.raises(NotOurTable, match=message):
        reject_other_columns("/t", nullable, required)
    never_null = columns(nullable=False, topic="string", offset="long")
    reject_other_columns("/t", columns(topic="string", offset="long"), never_null)


def test_all_columns_that_a_table_lacks_are_named_with_the_statement_that_adds_them() -> None:
    nested: dict[str, Any] = {
        "many": array(True),
        "by": mapping(True),
        "of": struct_of(field("a", "timestamp_ntz")),
    }
    wanted = columns(key="binary", n="long", **nested, d="decimal(9,2)")
    with pytest.raises(NotOurTable, match="no column key") as refused:
        reject_other_columns("/t", wanted, columns(n="long"))
    assert (
        "ADD COLUMNS (`key` BINARY, `many` ARRAY<INT>, `by` MAP<STRING, ARRAY<INT>>, `of` "
        "STRUCT<`a`: TIMESTAMP_NTZ>, `d` DECIMAL(9,2))" in refused.value.action
    )


def test_binary_partition_columns_are_rejected_with_an_alternative() -> None:
    with pytest.raises(SettingsError, match="bytes come back as others") as caught:
        reject_partitions(columns(key="binary", value="binary"), ["key"])
    assert (caught.value.where["key"], caught.value.action) == (
        "table.partition_by",
        "Use a string column that the transform adds, e.g. F.hex('key')",
    )
    with pytest.raises(SettingsError) as caught:
        reject_partitions(columns(key="binary", value="binary"), ["key"], path="/t")
    assert "etl table accept-changes" in caught.value.action


@pytest.mark.parametrize("kind", [array(True), struct(True), mapping(True), "variant", "void"])
def test_what_delta_takes_no_partition_of_is_refused(kind: Any) -> None:
    with pytest.raises(SettingsError, match="partitioned by a"):
        reject_partitions(columns(a=kind, b="integer"), ["b", "a"])


def test_a_table_has_a_column_besides_its_partitions() -> None:
    reject_partitions(columns(a="integer", b="date"), ["a"])
    reject_partitions(columns(a="integer", b="date"), [])
    with pytest.raises(SettingsError, match="all of its columns"):
        reject_partitions(columns(a="integer", b="date"), ["b", "a"])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([field("a b", "integer")], "column 'a b'"),
        ([field("a\tb", "integer")], r"'a\\tb'"),
        ([field("a", struct_of(field("x,y", "integer")))], "'x,y'"),
        ([field("a", {**mapping(True), "valueType": struct_of(field("x=y", "integer"))})], "'x=y'"),
        ([field("key", "integer"), field("KEY", "integer")], "key and KEY more than once"),
        ([field("a", struct_of(field("x", "integer"), field("X", "integer")))], "x and X"),
        ([field("a", "interval year")], "interval year"),
        ([field("a", {**array(True), "elementType": "interval day"})], "interval day"),
        ([field("a", {**array(True), "elementType": "void"})], "array of nothing but null"),
        ([field("a", struct_of(field("x", "void")))], "a struct without anything"),
        ([field("a", "time(6)")], r"time\(6\)"),
    ],
)
def test_columns_that_no_delta_table_has_are_named(fields: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        reject_impossible_columns(fields)
    assert caught.value.where["key"] == "transform"


def test_with_column_mapping_a_name_may_have_blanks() -> None:
    reject_impossible_columns([field("a b", struct_of(field("x,y", "integer")))], with_mapping=True)


@pytest.mark.parametrize(
    "kind",
    [
        "void",
        "timestamp_ntz",
        "variant",
        "decimal(38,18)",
        mapping(True),
        struct(False),
        struct_of(field("x", "void"), field("y", "integer")),
    ],
)
def test_other_columns_are_deltas_affair(kind: Any) -> None:
    reject_impossible_columns([field("a.b-c`/%", kind), field("_change_type", "string")])
