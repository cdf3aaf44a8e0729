"""The columns of the raw table, and that decoded records have them."""

from __future__ import annotations

import pytest

from etl.errors import SettingsError
from etl.model import columns
from tests.fakes.batches import Batch, Rec, answer, encode
from tests.fakes.logs import cursor_of

RAW = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp "
    "timestamp_ltz, timestampType int, headers array<struct<key:string,value:binary>>"
)


def test_the_raw_table_has_the_columns_of_sparks_kafka_source_and_the_incarnation() -> None:
    assert columns.spark_schema() == f"{RAW}, incarnation int"


def test_rows_of_jafka_have_the_broker_and_the_place_in_their_entry_too() -> None:
    schema = columns.spark_schema(physical=True)
    assert schema == f"{RAW}, broker_id int, message_index int, incarnation int"
    assert tuple(columns.arrow_schema(physical=True).names) == columns.raw_columns(physical=True)
    chosen = columns.raw_columns(["message_index", "topic", "broker_id"], physical=True)
    assert chosen == ("topic", "broker_id", "message_index")
    with pytest.raises(SettingsError, match="no column 'broker_id'"):
        columns.raw_columns(["broker_id"])


def test_chosen_columns_come_in_the_tables_order() -> None:
    assert columns.raw_columns(["offset", "key"]) == ("key", "offset")
    schema = columns.spark_schema(["headers", "value"])
    assert schema == "value binary, headers array<struct<key:string,value:binary>>"


@pytest.mark.parametrize("chosen", [None, ("offset", "headers", "key")])
def test_decoded_records_have_the_schema_of_the_frame(chosen: tuple[str, ...] | None) -> None:
    cursor = cursor_of(0, 1, columns=chosen) if chosen else cursor_of(0, 1)
    [arrow_batch] = cursor.feed(answer(encode(Batch(0, [Rec(0)]))))
    assert arrow_batch.schema == columns.arrow_schema(chosen)


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="no column 'vlaue'"):
        columns.raw_columns(["key", "vlaue"])


@pytest.mark.parametrize(
    ("physical", "changed", "why"),
    [
        (False, {}, None),
        (False, {"incarnation": None}, None),
        (False, {"incarnation": "smallint", "partition": "bigint"}, None),
        (False, {"value": "string"}, None),
        (False, {"offset": None}, "there is no column offset"),
        (False, {"topic": None}, "there is no column topic"),
        (False, {"partition": "string"}, "the column partition is string"),
        (False, {"offset": "double"}, "the column offset is double"),
        (False, {"topic": "binary"}, "the column topic is binary"),
        (False, {"incarnation": "string"}, "the column incarnation is string"),
        (True, {}, None),
        (True, {"incarnation": None}, None),
        (True, {"broker_id": "smallint"}, None),
        (True, {"broker_id": None}, "there is no column broker_id"),
        (True, {"message_index": None}, "there is no column message_index"),
        (True, {"message_index": "string"}, "the column message_index is string"),
        (True, {"offset": None}, "there is no column offset"),
    ],
)
def test_rows_can_be_proven_only_with_what_names_their_records(
    physical: bool, changed: dict[str, str | None], why: str | None
) -> None:
    types = {**(columns.PHYSICAL_TYPES if physical else columns.SPARK_TYPES), **changed}
    given = ((name, kind) for name, kind in types.items() if kind)
    assert columns.misfit(given, physical=physical) == why
