"""A table is named by its path or by a catalog's name, and the path from Spark is checked like one in
the conf: equal and different places, and invalid ones. The key `transform.record_batch`, and plans
that were stored with another transform.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.decide.plan import may_be_transformed, shape_of_rows
from etl.errors import SettingsError
from etl.settings.choices import check_place, lies_in, place_of
from etl.settings.load import parse_settings, placed_by_name
from etl.settings.schema import conf_schema
from etl.settings.sections import Settings
from etl.settings.table import store_of
from tests.builders import plain_plan, plain_settings


def conf_of(table: dict[str, Any]) -> dict[str, Any]:
    source = {"topics": "clicks"}
    zookeeper = {"connect": "h:2181"}
    return {"pipeline": "p", "group": "g", "zookeeper": zookeeper, "source": source, "table": table}


def settings_of(table: dict[str, Any], **more: Any) -> Settings:
    return parse_settings({**conf_of(table), **more})


@pytest.mark.parametrize("name", ["lake.clicks", "main.lake.clicks", "main.lake-1.Klicks_ü"])
def test_a_name_replaces_a_path_and_a_read_of_the_path_reports_that_it_is_not_resolved_yet(
    name: str,
) -> None:
    table = settings_of({"name": name}).table
    assert (table.called, table.is_placed) == (name, False)
    with pytest.raises(LookupError, match="not looked up yet"):
        assert table.path
    with pytest.raises(KeyError, match="TableSettings has no field path"):
        table.model_copy(update={"path": "/y"})


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


def test_the_schema_takes_either_and_none_of_both() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="`make setup` installs it")
    schema = jsonschema.Draft7Validator(conf_schema())
    assert schema.is_valid(conf_of({"path": "/x"}))
    assert schema.is_valid(conf_of({"name": "lake.clicks"}))
    assert not schema.is_valid(conf_of({"writer": "auto"}))


NAMES = st.sampled_from([None, "m:f", "m:g"])


def test_a_conf_has_one_transform_at_most() -> None:
    with pytest.raises(
        SettingsError, match="excludes transform.dataframe.*key transform.record_batch"
    ):
        plain_settings(transform={"dataframe": "m:f", "record_batch": "m:g"})
    both = plain_settings(transform={"dataframe": None, "record_batch": "m:g"})
    assert both.transform.function == "m:g"


@pytest.mark.parametrize("name", ["shaped", "m:", ":f", "m:f()", "a b:c", 7])
def test_a_name_of_another_form_is_refused_with_the_one_that_it_has(name: object) -> None:
    with pytest.raises(SettingsError, match="package.module:function") as raised:
        plain_settings(transform={"record_batch": name})
    assert raised.value.where["key"] == "transform.record_batch"


@given(NAMES, NAMES)
def test_rows_of_a_stored_plan_are_those_of_the_same_function_of_the_same_kind(
    transform: str | None, arrow: str | None
) -> None:
    if transform and arrow:
        return
    here = plain_settings(transform={"dataframe": transform, "record_batch": arrow})
    plan = plain_plan(shape=shape_of_rows(here))
    assert may_be_transformed(plan, here) is (here.transform.function is not None)
    for other in (
        plain_settings(),
        plain_settings(transform="m:f"),
        plain_settings(transform={"record_batch": "m:f"}),
    ):
        is_same = (other.transform.dataframe, other.transform.record_batch) == (transform, arrow)
        assert (shape_of_rows(other) == plan.shape) is is_same


def test_plans_stored_before_arrow_transforms_continue() -> None:
    """Their hash is in ZooKeeper."""
    assert [
        shape_of_rows(plain_settings(transform={"dataframe": name})) for name in (None, "m:f")
    ] == BEFORE


BEFORE = ["e185f091c68f8a68", "4acda0c7ebba8d6d"]


@pytest.mark.parametrize(
    "path",
    [
        "/warehouse/clicks/",
        "/warehouse//clicks",
        "/warehouse/old/../clicks",
        "file:///warehouse/clicks",
    ],
)
def test_a_folder_is_the_same_place_however_it_is_written(path: str) -> None:
    assert place_of(path) == place_of("/warehouse/clicks")


def test_an_object_stores_url_is_the_same_place_with_a_slash_at_its_end() -> None:
    assert place_of("s3://bucket/clicks/") == place_of("s3://bucket/clicks")
    assert place_of("s3://bucket/clicks") != place_of("s3://bucket/clicks2")


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("s3a://b/clicks", "s3://b/clicks"),
        ("s3://b/clicks/_delta_log", "s3a://b/clicks"),
        ("abfs://c@a/x", "abfss://c@a/x/"),
    ],
)
def test_a_place_in_a_store_lies_in_another_one_whichever_scheme_names_them(
    path: str, other: str
) -> None:
    assert lies_in(path, other) and not lies_in(path, other.replace("c", "d"))


@pytest.mark.parametrize(
    "path",
    [
        " s3://bucket/clicks",
        "s3://bucket/clicks ",
        "/a\0b",
        "~/clicks",
        "s3:/bucket/clicks",
        "dbfs:/clicks",
        "file:clicks",
        "file://host/clicks",
        "://clicks",
        "a b://clicks",
        "memory:///clicks",
        "/a\\b/clicks",
        "/a\tb",
        "/a\nb",
        "S3://bucket/clicks",
        "s3://bucket/a%20b",
        "s3://bucket/a?b",
        "s3://bucket/a#b",
        "s3://bucket/a\\b",
        "abfss://c@a.dfs.core.windows.net/a%b",
        "s3://bucket//clicks",
        "s3://key:word@bucket/a",
        "s3a://key@bucket/a",
        "abfss://c:word@a.dfs.core.windows.net/a",
        "s3://bucket/a/../b",
        "hdfs://host:9000/./a",
        "s3://bucket/a//b/",
    ],
)
def test_what_would_be_taken_for_another_place_than_was_meant_is_refused(path: str) -> None:
    with pytest.raises(ValueError):
        check_place(path)


@pytest.mark.parametrize(
    "path",
    [
        "clicks",
        "/a b",
        "a:b/c",
        "s3://bucket/clicks",
        "file:///clicks",
        "file:/clicks",
        "x/s3:/y",
        "50%",
        "s3://bucket",
        "s3://bucket/a b/c-d_e=f/",
        "s3://bucket/ü",
        "s3://bucket/a@b",
        "hdfs://host:9000/a",
        "abfss://c@a.dfs.core.windows.net/a",
    ],
)
def test_what_can_only_be_meant_in_one_way_is_taken(path: str) -> None:
    assert check_place(path) == path
