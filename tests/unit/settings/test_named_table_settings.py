"""A table is named by its path or by a catalog's name, and the path from Spark is checked like one
in the conf.
"""

from __future__ import annotations

from typing import Any

import pytest

from etl.errors import SettingsError
from etl.settings.load import parse_settings, placed_by_name
from etl.settings.schema import conf_schema
from etl.settings.sections import Settings
from etl.settings.table import store_of


def conf_of(table: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "pipeline": "p",
        "group": "g",
        "zookeeper": {"connect": "h:2181"},
        "source": {"topics": "clicks"},
        "table": table,
        **more,
    }


def settings_of(table: dict[str, Any], **more: Any) -> Settings:
    return parse_settings(conf_of(table, **more))


@pytest.mark.parametrize("name", ["lake.clicks", "main.lake.clicks", "main.lake-1.Klicks_ü"])
def test_a_name_replaces_a_path_and_a_read_of_the_path_reports_that_it_is_not_resolved_yet(
    name: str,
) -> None:
    table = settings_of({"name": name}).table
    assert (table.called, table.is_placed) == (name, False)
    with pytest.raises(LookupError, match="not looked up yet"):
        assert table.path


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "table.path"),
        ({"name": None}, "table.path"),
        ({"name": "lake.clicks", "path": "/x"}, "table.path"),
        ({"name": "clicks"}, "table.name"),
        ({"name": "a.b.c.d"}, "table.name"),
        ({"name": "delta.`/x`"}, "table.name"),
        ({"name": "lake.cl icks"}, "table.name"),
    ],
)
def test_one_of_the_two_must_be_there_and_a_name_has_its_schema(
    table: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        settings_of(table)
    assert refused.value.where["key"] == key


def test_the_location_from_spark_keeps_the_stores_settings_and_names_the_losses_table() -> None:
    placed = placed_by_name(
        settings_of({"name": "lake.clicks", "store": {"region": "eu-1"}}), "s3a://bucket/clicks"
    )
    assert (placed.table.path, placed.table.called) == ("s3a://bucket/clicks", "lake.clicks")
    assert placed.table.losses_at == "s3a://bucket/clicks_losses"
    assert store_of(placed.table.path).region == store_of(placed.table.losses_at).region == "eu-1"


@pytest.mark.parametrize(
    ("place", "table", "more"),
    [
        ("/wh/clicks", {"store": {"region": "eu-1"}}, {}),
        ("/wh/clicks", {}, {"report": {"path": "/wh/clicks/reports"}}),
        ("dbfs:/wh/clicks", {}, {}),
        ("/wh/clicks", {"losses_path": "/wh"}, {}),
    ],
)
def test_a_place_that_the_conf_does_not_fit_is_refused_once_it_is_known(
    place: str, table: dict[str, Any], more: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError):
        placed_by_name(settings_of({"name": "lake.clicks", **table}, **more), place)


def test_a_copy_of_settings_with_a_key_that_is_no_field_is_refused_and_not_made_without_it() -> (
    None
):
    with pytest.raises(KeyError, match="TableSettings has no field path"):
        settings_of({"path": "/x"}).table.model_copy(update={"path": "/y"})


def test_the_schema_takes_either_and_none_of_both() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="`make setup` installs it")
    schema = jsonschema.Draft7Validator(conf_schema())
    assert schema.is_valid(conf_of({"path": "/x"})) and schema.is_valid(
        conf_of({"name": "lake.clicks"})
    )
    assert not schema.is_valid(conf_of({"writer": "auto"}))
