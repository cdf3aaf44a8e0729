"""Decisions on a catalog's entry of a table: values in, a path or an error out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.table_rules import (
    as_written,
    catalog_of,
    is_recorded_location,
    missing_files_error,
    not_created_error,
    place_in,
    reject_in_memory_catalog,
    reject_other_location,
    statement,
    unknown_name_error,
    with_table_name,
)
from etl.errors import NeedsDecision, NotOurTable, SettingsError
from etl.model.snapshot import CatalogEntry, NamedTable

NAME = "lake.clicks"


def entry(
    kind: str = "MANAGED",
    provider: str = "delta",
    location: str | None = "file:/wh/clicks",
    *properties: str,
) -> CatalogEntry:
    return CatalogEntry("spark_catalog", kind, provider, location, frozenset(properties))


@pytest.mark.parametrize(
    ("location", "written"),
    [
        ("file:/wh/clicks", "/wh/clicks"),
        ("file:///wh/cl icks", "/wh/cl icks"),
        ("s3a://bucket/clicks", "s3a://bucket/clicks"),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"),
        ("hdfs://name:8020/t", "hdfs://name:8020/t"),
    ],
)
def test_a_location_is_written_as_in_a_conf(location: str, written: str) -> None:
    assert as_written(location) == written == place_in(NAME, entry("EXTERNAL", location=location))


@pytest.mark.parametrize(
    ("name", "found", "text"),
    [
        (NAME, entry("VIEW", "", None), "is a view"),
        (NAME, entry(provider="parquet"), "no Delta table, but one of parquet"),
        (NAME, entry(provider="hive"), "no Delta table, but one of hive"),
        (NAME, entry(location=None), "no place"),
        (
            NAME,
            entry(
                "MANAGED", "delta", "s3://b/t", "delta.feature.catalogManaged", "fs.s3a.access.key"
            ),
            "managed by its catalog",
        ),
        (
            NAME,
            entry("MANAGED", "delta", "s3://b/t", "delta.feature.catalogOwned-preview"),
            "managed by its catalog",
        ),
        (
            NAME,
            entry("EXTERNAL", "delta", "s3://b/t", "fs.s3a.session.token"),
            "credentials that its catalog lends to Spark alone",
        ),
        (
            NAME,
            entry("EXTERNAL", "delta", "s3://b/t", "option.fs.s3a.access.key"),
            "credentials that its catalog lends to Spark alone",
        ),
        ("global_temp.clicks", entry(), "temporary view"),
    ],
)
def test_what_no_run_may_commit_to_by_a_path_is_refused_by_its_name(
    name: str, found: CatalogEntry, text: str
) -> None:
    with pytest.raises(NotOurTable) as refused:
        place_in(name, found)
    assert (
        refused.value.exit_code == 2
        and refused.value.where["key"] == "table.name"
        and refused.value.action
    )
    assert text in refused.value.message and name in refused.value.message


def test_a_name_that_leads_elsewhere_by_now_or_nowhere_is_for_a_person_to_decide() -> None:
    reject_other_location(NAME, "/wh/clicks", "/wh/clicks/")
    for now, value in (
        ("/wh/others", "at /wh/others now"),
        (None, "no table lake.clicks any more"),
    ):
        with pytest.raises(NeedsDecision, match="etl table refresh-path CONF") as refused:
            reject_other_location(NAME, "/wh/clicks", now)
        assert value in refused.value.message and "/wh/clicks" in refused.value.message


def test_a_lost_table_is_restored_first_or_recreated_by_the_command_of_both_messages() -> None:
    for refusal, code in (
        (missing_files_error(NAME, "/wh/clicks"), 5),
        (unknown_name_error(NAME), 2),
    ):
        assert refusal.exit_code == code
        assert refusal.action.index("nothing is lost") < refusal.action.index(
            "etl table refresh-path CONF --create-empty"
        )


COLUMNS = (("key", "binary"), ("a`b", "int"), ("event_date", "date"))


@pytest.mark.parametrize(
    ("condition", "text", "value"),
    [
        ("SCHEMA_NOT_FOUND", "", ("no schema to make it in", "CREATE SCHEMA lake")),
        ("INVALID_SCHEMA_OR_RELATION_NAME", "", ("takes no such name", "letters, digits and _")),
        (
            "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
            "Cannot create table ('`lake`.`clicks`'). The associated location "
            "('file:/wh/lake.db/clicks') is not empty and also not a Delta",
            (
                "/wh/lake.db/clicks",
                "CREATE TABLE lake.clicks USING delta LOCATION '/wh/lake.db/clicks'",
            ),
        ),
        (
            "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
            "of the caller",
            ("at the place that the catalog gives it", "LOCATION"),
        ),
        (
            "INSUFFICIENT_PERMISSIONS",
            "",
            (
                "INSUFFICIENT_PERMISSIONS",
                "CREATE TABLE lake.clicks (`key` binary, `a``b` int, `event_date` date) "
                "USING delta",
            ),
        ),
    ],
)
def test_an_error_for_a_table_that_its_catalog_does_not_create_contains_the_statement_that_does(
    condition: str, text: str, value: tuple[str, ...]
) -> None:
    refusal = not_created_error(NAME, condition, condition, text, statement(NAME, COLUMNS, ()))
    assert refusal.exit_code == 2 and refusal.where["key"] == "table.name"
    assert all(words in f"{refusal.message}; {refusal.action}" for words in value), refusal


def test_the_statement_that_makes_a_table_names_its_partitions() -> None:
    assert statement(NAME, COLUMNS, ("event_date",)).endswith(
        "USING delta PARTITIONED BY (`event_date`)"
    )


def test_the_action_for_a_named_table_has_its_name_and_the_lossless_way_first() -> None:
    check = with_table_name(
        "that table.path is the table; accept it: etl table accept-changes CONF 1", NAME
    )
    assert "table.path" not in check and "table.name" in check
    assert check.index("etl table refresh-path CONF") < check.index("etl table accept-changes")
    assert (
        with_table_name("the group", NAME) == "the group"
        and with_table_name("table.path", None) == "table.path"
    )


HIVE = {
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoop.hive.metastore.uris": "thrift://a:9083",
    "spark.executor.memory": "1g",
}


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ({"spark.hadoop.hive.metastore.uris": "thrift://b:9083"}, True),
        ({"spark.sql.defaultCatalog": "lake"}, True),
        ({"spark.sql.catalog.lake": "a.Catalog"}, True),
        ({"spark.sql.catalogImplementation": "in-memory"}, True),
        ({"spark.sql.catalog.lake.token": "first"}, False),
        ({"spark.executor.memory": "2g"}, False),
    ],
)
def test_a_kept_word_is_gone_by_as_long_as_the_name_means_the_same_catalog(
    change: dict[str, str], is_another: bool
) -> None:
    kept = NamedTable(NAME, "/wh/clicks", "id-1", 0, catalog_of(HIVE))
    assert is_recorded_location(kept, NAME, catalog_of({**HIVE, **change})) is not is_another
    assert not is_recorded_location(
        kept, "lake.visits", catalog_of(HIVE)
    ) and not is_recorded_location(None, NAME, catalog_of(HIVE))
    assert is_recorded_location(
        replace(kept, catalog=None), NAME, "of a version that did not keep it"
    )


def test_a_password_in_the_url_of_a_metastores_database_does_not_identify_the_metastore() -> None:
    urls = [
        "jdbc:mysql://u:one@db/hive?user=u&password=one",
        "jdbc:mysql://u:two@db/hive?user=u&password=two",
        "jdbc:mysql://db/other",
    ]
    one, two, other = (
        catalog_of({"spark.hadoop.javax.jdo.option.ConnectionURL": url}) for url in urls
    )
    assert one == two != other


@pytest.mark.parametrize(
    ("catalog", "implementation", "plugin", "is_refused"),
    [
        ("spark_catalog", "in-memory", "", True),
        ("spark_catalog", "in-memory", "org.apache.spark.sql.delta.catalog.DeltaCatalog", True),
        ("spark_catalog", "hive", "", False),
        ("spark_catalog", "in-memory", "io.unitycatalog.spark.UCSingleCatalog", False),
        ("lake", "in-memory", "", False),
    ],
)
def test_a_catalog_that_ends_with_its_session_is_given_no_table(
    catalog: str, implementation: str, plugin: str, is_refused: bool
) -> None:
    if not is_refused:
        reject_in_memory_catalog(NAME, catalog, implementation, plugin)
        return
    with pytest.raises(SettingsError, match="in memory") as refused:
        reject_in_memory_catalog(NAME, catalog, implementation, plugin)
    assert "spark.sql.catalogImplementation: hive" in refused.value.action
