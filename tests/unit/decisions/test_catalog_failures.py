"""Errors of a catalog that does not answer: Java's causes in, an error out that names a key and no
secret.
"""

from __future__ import annotations

import pytest

from etl.decide.table_rules import catalog_error, catalog_of_name, innermost, known_cause

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
        (
            (
                *OF_HIVE,
                "java.sql.SQLException: Another instance of Derby may have already booted "
                "the database /m",
            ),
            7,
            "another process",
        ),
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
    causes: tuple[str, ...],
    code: int,
    text: str,
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
    ("causes", "code"),
    [
        (
            [
                "java.lang.ClassNotFoundException: Class "
                "org.apache.hadoop.fs.s3a.S3AFileSystem not found"
            ],
            2,
        ),
        (["java.net.ConnectException: Connection refused"], 7),
    ],
)
def test_an_error_for_a_missing_table_contains_the_statement_that_creates_it_if_no_run_would(
    causes: list[str],
    code: int,
) -> None:
    refusal = catalog_error("make", "lake.clicks", causes, {}, instead="CREATE TABLE lake.clicks")
    assert refusal.exit_code == code and ("CREATE TABLE lake.clicks" in refusal.action) is (
        code == 2
    )


def test_a_name_with_a_schema_alone_is_looked_for_in_the_catalog_of_the_session() -> None:
    of_session = {"spark.sql.defaultCatalog": "lakes"}
    assert [catalog_of_name(name, of_session) for name in ("lake.clicks", "unity.lake.clicks")] == [
        "lakes",
        "unity",
    ]
    assert catalog_of_name("lake.clicks", {}) == ""
