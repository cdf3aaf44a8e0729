"""A catalog's entry of a table, and errors of a catalog that does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.table_rules import (
    as_written,
    catalog_error,
    catalog_of,
    catalog_of_name,
    innermost,
    is_recorded_location,
    known_cause,
    missing_files_error,
    not_created_error,
    place_in,
    reject_in_memory_catalog,
    reject_other_location,
    statement,
    unknown_name_error,
    with_table_name,
)
from etl.errors import EtlError, NeedsDecision, NotOurTable, SettingsError
from etl.model.snapshot import CatalogEntry, NamedTable

NAME = "lake.clicks"


def entry(
    kind: str = "MANAGED",
    provider: str = "delta",
    location: str | None = "file:/wh/clicks",
    *properties: str,
) -> CatalogEntry:
    return CatalogEntry("spark_catalog", kind, provider, location, frozenset(properties))


def on_s3(*properties: str) -> CatalogEntry:
    return entry("EXTERNAL", "delta", "s3://b/t", *properties)


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
            on_s3("delta.feature.catalogManaged", "fs.s3a.access.key"),
            "managed by its catalog",
        ),
        (NAME, on_s3("delta.feature.catalogOwned-preview"), "managed by its catalog"),
        (NAME, on_s3("fs.s3a.session.token"), "credentials that its catalog lends to Spark alone"),
        (NAME, on_s3("option.fs.s3a.access.key"), "credentials that its catalog lends to Spark"),
        ("global_temp.clicks", entry(), "temporary view"),
    ],
)
def test_a_named_table_that_no_run_may_commit_to_by_its_path_is_refused(
    name: str, found: CatalogEntry, text: str
) -> None:
    with pytest.raises(NotOurTable) as refused:
        place_in(name, found)
    assert (refused.value.exit_code, refused.value.where["key"]) == (2, "table.name")
    assert text in refused.value.message and name in refused.value.message and refused.value.action


@pytest.mark.parametrize(
    ("now", "message"),
    [("/wh/others", "at /wh/others now"), (None, "no table lake.clicks any more")],
)
def test_a_name_that_leads_elsewhere_by_now_or_nowhere_is_for_a_person_to_decide(
    now: str | None, message: str
) -> None:
    reject_other_location(NAME, "/wh/clicks", "/wh/clicks/")
    with pytest.raises(NeedsDecision, match="etl table refresh-path CONF") as refused:
        reject_other_location(NAME, "/wh/clicks", now)
    assert message in refused.value.message and "/wh/clicks" in refused.value.message


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(missing_files_error(NAME, "/wh/clicks"), 5), (unknown_name_error(NAME), 2)],
)
def test_a_lost_table_is_restored_first_or_recreated_by_the_command_of_both_messages(
    refusal: EtlError, code: int
) -> None:
    assert refusal.exit_code == code
    recreate = refusal.action.index("etl table refresh-path CONF --create-empty")
    assert refusal.action.index("nothing is lost") < recreate


NON_EMPTY = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
COLUMNS = (("key", "binary"), ("a`b", "int"), ("event_date", "date"))


@pytest.mark.parametrize(
    ("condition", "text", "value"),
    [
        ("SCHEMA_NOT_FOUND", "", ("no schema to make it in", "CREATE SCHEMA lake")),
        ("INVALID_SCHEMA_OR_RELATION_NAME", "", ("takes no such name", "letters, digits and _")),
        (
            NON_EMPTY,
            "Cannot create table ('`lake`.`clicks`'). The associated location "
            "('file:/wh/lake.db/clicks') is not empty and also not a Delta",
            (
                "/wh/lake.db/clicks",
                "CREATE TABLE lake.clicks USING delta LOCATION '/wh/lake.db/clicks'",
            ),
        ),
        (NON_EMPTY, "of the caller", ("at the place that the catalog gives it", "LOCATION")),
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
    by_path = "that table.path is the table; accept it: etl table accept-changes CONF 1"
    check = with_table_name(by_path, NAME)
    assert "table.path" not in check and "table.name" in check
    assert check.index("etl table refresh-path CONF") < check.index("etl table accept-changes")
    assert with_table_name("the group", NAME) == "the group"
    assert with_table_name("table.path", None) == "table.path"


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
def test_a_recorded_location_counts_as_long_as_the_name_means_the_same_catalog(
    change: dict[str, str], is_another: bool
) -> None:
    catalog = catalog_of(HIVE)
    kept = NamedTable(NAME, "/wh/clicks", "id-1", 0, catalog)
    assert is_recorded_location(kept, NAME, catalog_of({**HIVE, **change})) is not is_another
    assert not is_recorded_location(kept, "lake.visits", catalog)
    assert not is_recorded_location(None, NAME, catalog)
    of_earlier_version = replace(kept, catalog=None)
    assert is_recorded_location(of_earlier_version, NAME, "any catalog")


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


# -- errors of a catalog

URIS = "spark.hadoop.hive.metastore.uris"
OF_HIVE = (
    "org.apache.spark.sql.AnalysisException: "
    "org.apache.hadoop.hive.ql.metadata.HiveException: java.lang.RuntimeException: Unable to "
    "instantiate org.apache.hadoop.hive.ql.metadata.SessionHiveMetaStoreClient",
    "java.lang.RuntimeException: Unable to instantiate "
    "org.apache.hadoop.hive.ql.metadata.SessionHiveMetaStoreClient",
    "java.lang.reflect.InvocationTargetException",
)


def meta(message: str) -> tuple[str, ...]:
    return (*OF_HIVE, f"MetaException(message:{message})")


def unconnected(message: str) -> tuple[str, ...]:
    return meta(
        "Could not connect to meta store using any of the URIs provided. Most recent failure: "
        f"org.apache.thrift.transport.TTransportException: {message}\n\tat "
        f"org.apache.thrift.transport.TSocket.open(TSocket.java:255)"
    )


@pytest.mark.parametrize(
    ("causes", "code", "text"),
    [
        (unconnected("java.net.ConnectException: Connection refused"), 7, "connection refused"),
        (unconnected("java.net.UnknownHostException: metastore"), 7, "there is no such host"),
        (unconnected("java.net.SocketTimeoutException: Read timed out"), 7, "no answer in time"),
        (unconnected("GSS initiate failed"), 2, "the login was refused"),
        (
            meta("No suitable driver found for jdbc:mysql://db/hive?user=u&password=hunter2"),
            2,
            "no JDBC driver",
        ),
        (
            meta("java.sql.SQLException: Access denied for user 'u'@'h' (using password: hunter2)"),
            2,
            "the login was refused",
        ),
        (
            meta(
                "Got exception: org.apache.hadoop.security.AccessControlException Permission "
                "denied: user=etl"
            ),
            2,
            "permission was refused",
        ),
        ((*OF_HIVE, "Another instance of Derby may have already booted /m"), 7, "another process"),
        (
            (
                "org.apache.spark.SparkException: x",
                "java.lang.ClassNotFoundException: Class "
                "org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            ),
            2,
            "the class org.apache.hadoop.fs.s3a.S3AFileSystem",
        ),
        (("java.lang.NoClassDefFoundError: io/delta/Odd",), 2, "the class io/delta/Odd"),
        (
            (
                *OF_HIVE,
                "javax.jdo.JDODataStoreException: hunter2",
                "java.sql.SQLTransientException: hunter2",
            ),
            7,
            "SQLTransientException",
        ),
        ((), 7, "no known cause"),
    ],
)
def test_the_first_known_cause_is_reported_in_our_words_with_the_key_of_the_catalog(
    causes: tuple[str, ...], code: int, text: str
) -> None:
    refusal = catalog_error(
        "be asked for", "lake.clicks", causes, {URIS: "thrift://u:hunter2@a:9083,thrift://b:9083"}
    )
    assert (refusal.exit_code, refusal.where["key"]) == (code, URIS) and refusal.retriable is (
        code == 7
    )
    assert text in refusal.message and "thrift://a:9083,thrift://b:9083" in refusal.message
    assert refusal.action and "hunter2" not in f"{refusal.message}{refusal.action}{refusal.where}"


@pytest.mark.parametrize(
    ("name", "spark", "key", "place"),
    [
        ("lake.clicks", {}, "table.name", None),
        (
            "lake.clicks",
            {"hive.metastore.uris": "thrift://a:9083"},
            "hive.metastore.uris",
            "thrift://a:9083",
        ),
        (
            "spark_catalog.lake.clicks",
            {
                "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:mysql://db/hive?password=hunter2"
            },
            "spark.hadoop.javax.jdo.option.ConnectionURL",
            None,
        ),
        (
            "unity.lake.clicks",
            {
                "spark.sql.catalog.unity": "a.Catalog",
                "spark.sql.catalog.unity.uri": "https://u:1/api?x=hunter2",
                URIS: "thrift://a",
            },
            "spark.sql.catalog.unity.uri",
            "https://u:1",
        ),
        (
            "lake.clicks",
            {"spark.sql.defaultCatalog": "unity", "spark.sql.catalog.unity": "a.Catalog"},
            "spark.sql.catalog.unity",
            None,
        ),
    ],
)
def test_the_key_is_that_of_the_catalog_which_the_name_means(
    name: str, spark: dict[str, str], key: str, place: str | None
) -> None:
    refusal = catalog_error("make", name, ["java.net.ConnectException: Connection refused"], spark)
    assert refusal.where["key"] == key and "hunter2" not in refusal.message
    assert refusal.message.endswith(f"connection refused{f', {place}' if place else ''}")


def test_of_nested_exceptions_the_innermost_is_reported_if_no_cause_is_known() -> None:
    assert known_cause(OF_HIVE) is None and innermost(OF_HIVE) == "InvocationTargetException"


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("java.lang.ClassNotFoundException: Class org.apache.Odd not found", 2),
        ("java.net.ConnectException: Connection refused", 7),
    ],
)
def test_an_error_for_a_missing_table_contains_the_statement_that_creates_it_if_no_run_would(
    cause: str, code: int
) -> None:
    refusal = catalog_error("make", "lake.clicks", [cause], {}, instead="CREATE TABLE lake.clicks")
    assert refusal.exit_code == code
    assert ("CREATE TABLE lake.clicks" in refusal.action) is (code == 2)


def test_a_name_with_a_schema_alone_is_looked_for_in_the_catalog_of_the_session() -> None:
    of_session = {"spark.sql.defaultCatalog": "lakes"}
    assert [catalog_of_name(name, of_session) for name in ("lake.clicks", "unity.lake.clicks")] == [
        "lakes",
        "unity",
    ]
    assert catalog_of_name("lake.clicks", {}) == ""
