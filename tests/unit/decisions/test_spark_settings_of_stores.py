"""Spark settings for a table in a store, in addition to Delta's, and settings that are rejected."""

from __future__ import annotations

import pytest

from etl.decide.table_storage import (
    OURS,
    hadoop_defaults,
    hadoop_options,
    is_ours,
    packages,
    place_of_catalog,
    redacting,
    settings_for,
)
from etl.errors import SettingsError
from etl.io.spark.session import complete
from etl.ledger.topic_filters import java_pattern
from etl.model.security import SecretRef
from etl.settings.table import StoreSettings, store_of

S3, AZURE = "s3://lake/t", "abfss://lake@acme.dfs.core.windows.net/t"
STORES_OF = {
    S3: StoreSettings(access_key=SecretRef("env", "KEY"), secret_key=SecretRef("env", "SECRET")),
    AZURE: StoreSettings(account_key=SecretRef("env", "KEY")),
}


@pytest.mark.parametrize("path", ["/data/t", "file:///data/t", "hdfs://n:8020/t", "gs://lake/t"])
def test_elsewhere_nothing_is_added(path: str) -> None:
    assert settings_for(path, {}) == {} and packages({}) == []


def test_on_s3_ours_keeps_delta_s_log_by_either_scheme_and_brings_hadoops_client() -> None:
    for path in (S3, "s3a://lake/t"):
        found = settings_for(path, {"spark.master": "local"})
        assert found == {
            "spark.delta.logStore.s3.impl": OURS,
            "spark.delta.logStore.s3a.impl": OURS,
        }
        assert is_ours(found) and packages(found) == ["org.apache.hadoop:hadoop-aws:3.5.0"]


def test_a_configured_log_store_stays() -> None:
    chosen = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}
    assert settings_for(S3, chosen) == {} and not is_ours(chosen) and packages(chosen)


def test_a_log_store_for_s3_is_that_of_spark_under_s3a() -> None:
    chosen = {"spark.delta.logStore.s3.impl": "io.delta.storage.S3DynamoDBLogStore"}
    assert settings_for(S3, chosen) == {
        "spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"
    }


@pytest.mark.parametrize("path", [S3, AZURE])
def test_a_log_store_configured_for_another_scheme_does_not_apply_here(path: str) -> None:
    chosen = {"spark.delta.logStore.gs.impl": "io.delta.storage.GCSLogStore"}
    assert settings_for(path, chosen) == settings_for(path, {})


def test_a_log_store_configured_for_all_schemes_stays_alone() -> None:
    assert settings_for(S3, {"spark.delta.logStore.class": "mine"}) == {}


@pytest.mark.parametrize(
    ("submitted", "kept"),
    [
        ({"spark.delta.logStore.class": "theirs"}, None),
        ({"spark.delta.logStore.s3a.impl": "theirs"}, "theirs"),
        ({"spark.delta.logStore.s3.impl": "theirs"}, "theirs"),
        ({"spark.delta.logStore.gs.impl": "theirs"}, OURS),
        ({}, OURS),
    ],
)
def test_a_log_store_of_spark_submit_stays(submitted: dict[str, str], kept: str | None) -> None:
    found = {**submitted, **complete({"spark.app.name": "etl", **settings_for(S3, {})}, submitted)}
    assert found.get("spark.delta.logStore.s3a.impl") == kept and found["spark.app.name"] == "etl"
    assert (
        (OURS in found.values())
        is ("log_store.jar" in found.get("spark.jars", ""))
        is (kept == OURS)
    )


def test_a_store_that_throttles_is_retried_for_minutes_and_not_for_a_day() -> None:
    """S3A waits a tenth of a second, then twice as long each time."""
    [(key, tries)] = hadoop_defaults("s3a://lake/t").items()
    assert key == "fs.s3a.retry.throttle.limit" and 20 < 0.1 * 2 ** int(tries) < 60
    assert hadoop_defaults("/data/t") == {}


def test_a_jvm_with_an_unreachable_azure_ends_without_sending_metrics() -> None:
    assert hadoop_defaults(AZURE) == {"fs.azure.metrics.collection.enabled": "false"}


def test_azures_keys_are_redacted_where_spark_lists_hadoops_settings() -> None:
    found = settings_for(AZURE, {})
    assert (
        packages(found) == ["org.apache.hadoop:hadoop-azure:3.5.0"]
        and "account[.]key" in found["spark.redaction.regex"]
    )
    assert "spark.redaction.regex" not in settings_for(AZURE, {"spark.redaction.regex": "mine"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fs.s3a.performance.flags", "create"),
        ("fs.s3a.performance.flags", "mkdir, CREATE"),
        ("fs.s3a.performance.flags", "*"),
        ("fs.s3a.bucket.lake.performance.flags", "create"),
        ("fs.s3a.create.performance", "true"),
        ("fs.s3a.bucket.lake.create.performance", "true"),
        ("fs.s3a.bucket.lake.create.conditional.enabled", "FALSE "),
        ("fs.s3a.create.conditional.enabled", "false"),
    ],
)
def test_settings_by_which_commits_could_replace_one_another_are_refused(
    key: str, value: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_for(S3, {f"spark.hadoop.{key}": value})
    assert caught.value.exit_code == 2 and key in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fs.s3a.performance.flags", "mkdir, open"),
        ("fs.s3a.bucket.other.performance.flags", "create"),
        ("fs.s3a.create.conditional.enabled", "true"),
    ],
)
def test_others_do_no_harm(key: str, value: str) -> None:
    assert settings_for(S3, {f"spark.hadoop.{key}": value})


SPARKS_OWN = "(?i)secret|password|token|access[.]?key"


@pytest.mark.parametrize("path", [S3, AZURE])
@pytest.mark.parametrize(
    "pattern",
    [
        None,
        "",
        SPARKS_OWN,
        "(?i)mine|yours",
        "account[.]key",
        "(?-i)SECRET",
        "key&&[^y]",
        r"\Qmine",
        "a[b-z&&[^c]]c|k[e&&[f]]y",
    ],
)
def test_whatever_a_session_leaves_out_of_its_event_log_the_keys_of_a_store_are_left_out_too(
    path: str, pattern: str | None
) -> None:
    keys = sorted(
        key
        for key, value in hadoop_options(path, STORES_OF[path]).items()
        if isinstance(value, SecretRef)
    )
    widened = redacting(keys, pattern)
    shown = SPARKS_OWN if pattern is None else pattern
    if widened is None:
        assert keys and all(java_pattern(shown).search(key) for key in keys)
        return
    ours = widened.removesuffix(f"|{shown}")
    assert ours != widened and all(java_pattern(ours).search(key) for key in keys)
    if "&&[" not in shown:  # not translated
        assert redacting(keys, widened) is None


def test_without_secrets_for_hadoop_its_settings_stay() -> None:
    assert redacting([], "mine") is None


@pytest.mark.parametrize(
    ("warehouse", "store", "place", "has_keys"),
    [
        ("s3a://lake/warehouse", STORES_OF[S3], "s3a://lake/warehouse", True),
        (AZURE, STORES_OF[AZURE], AZURE, True),
        ("hdfs://n:8020/warehouse", STORES_OF[S3], "hdfs://n:8020/warehouse", False),
        (AZURE, STORES_OF[S3], AZURE, False),
        ("/data/warehouse", STORES_OF[S3], None, False),
        (None, STORES_OF[S3], None, False),
    ],
)
def test_a_session_with_a_catalog_reaches_the_store_of_its_warehouse_with_the_matching_keys(
    warehouse: str | None,
    store: StoreSettings,
    place: str | None,
    has_keys: bool,
) -> None:
    found = place_of_catalog({"spark.sql.warehouse.dir": warehouse} if warehouse else {}, store)
    assert found == place and (found is not None and store_of(found) == store) is has_keys


def test_hadoop_gets_the_scheme_s3_if_a_location_has_it() -> None:
    by_scheme = {
        path: hadoop_defaults(path).get("fs.s3.impl")
        for path in (S3, "s3a://lake/t", AZURE, "/data/t")
    }
    assert by_scheme == {
        S3: "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "s3a://lake/t": None,
        AZURE: None,
        "/data/t": None,
    }
