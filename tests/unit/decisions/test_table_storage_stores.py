"""Settings of Spark, Hadoop and delta-rs for a table in a store, and settings that are refused."""

from __future__ import annotations

from datetime import datetime

import pytest

from etl.decide.table_storage import (
    OURS,
    delta_rs_options,
    hadoop_defaults,
    hadoop_options,
    is_ours,
    is_probe_due,
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
from tests.builders import plain_plan

S3, AZURE = "s3://lake/t", "abfss://lake@acme.dfs.core.windows.net/t"
STORES_OF = {
    S3: StoreSettings(access_key=SecretRef("env", "KEY"), secret_key=SecretRef("env", "SECRET")),
    AZURE: StoreSettings(account_key=SecretRef("env", "KEY")),
}


@pytest.mark.parametrize("path", ["/data/t", "file:///data/t", "hdfs://n:8020/t", "gs://lake/t"])
def test_elsewhere_nothing_is_added(path: str) -> None:
    assert settings_for(path, {}) == {} and packages({}) == []


@pytest.mark.parametrize("path", [S3, "s3a://lake/t"])
def test_on_s3_ours_keeps_deltas_log_by_either_scheme_and_brings_hadoops_client(path: str) -> None:
    found = settings_for(path, {"spark.master": "local"})
    schemes = ("s3", "s3a")
    assert found == {f"spark.delta.logStore.{scheme}.impl": OURS for scheme in schemes}
    assert is_ours(found) and packages(found) == ["org.apache.hadoop:hadoop-aws:3.5.0"]


DYNAMO = "io.delta.storage.S3DynamoDBLogStore"


@pytest.mark.parametrize(
    ("scheme", "added"),
    [
        ("s3a.impl", {}),
        ("s3.impl", {"spark.delta.logStore.s3a.impl": DYNAMO}),
        ("class", {}),
        ("gs.impl", settings_for(S3, {})),
    ],
    ids=["for s3a", "for s3", "for all schemes", "for another scheme"],
)
def test_a_configured_log_store_stays(scheme: str, added: dict[str, str]) -> None:
    chosen = {f"spark.delta.logStore.{scheme}": DYNAMO}
    assert settings_for(S3, chosen) == added
    assert not is_ours(chosen)


def test_with_a_configured_log_store_hadoops_client_is_needed_too() -> None:
    assert packages({"spark.delta.logStore.s3a.impl": DYNAMO})


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
    assert (OURS in found.values()) is (kept == OURS)
    assert ("log_store.jar" in found.get("spark.jars", "")) is (kept == OURS)


def test_a_store_that_throttles_is_retried_for_minutes_and_not_for_a_day() -> None:
    """S3A waits a tenth of a second, then twice as long each time."""
    [(key, tries)] = hadoop_defaults("s3a://lake/t").items()
    assert key == "fs.s3a.retry.throttle.limit" and 20 < 0.1 * 2 ** int(tries) < 60
    assert hadoop_defaults("/data/t") == {}


def test_a_jvm_with_an_unreachable_azure_ends_without_sending_metrics() -> None:
    assert hadoop_defaults(AZURE) == {"fs.azure.metrics.collection.enabled": "false"}


def test_azures_keys_are_redacted_where_spark_lists_hadoops_settings() -> None:
    found = settings_for(AZURE, {})
    assert packages(found) == ["org.apache.hadoop:hadoop-azure:3.5.0"]
    assert "account[.]key" in found["spark.redaction.regex"]
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
    warehouse: str | None, store: StoreSettings, place: str | None, has_keys: bool
) -> None:
    found = place_of_catalog({"spark.sql.warehouse.dir": warehouse} if warehouse else {}, store)
    assert found == place and (found is not None and store_of(found) == store) is has_keys


@pytest.mark.parametrize(
    ("path", "implementation"),
    [(S3, "org.apache.hadoop.fs.s3a.S3AFileSystem"), ("s3a://lake/t", None), (AZURE, None)],
)
def test_hadoop_gets_the_scheme_s3_if_a_location_has_it(
    path: str, implementation: str | None
) -> None:
    assert hadoop_defaults(path).get("fs.s3.impl") == implementation


KEY, SECRET = SecretRef("env", "K"), SecretRef("file", "/run/s")


@pytest.mark.parametrize(
    "path", ["s3://lake/t", "s3a://lake/t", AZURE, "hdfs://n:8020/t", "gs://lake/t", "/data/t"]
)
def test_without_options_nothing_is_set(path: str) -> None:
    assert delta_rs_options(path, StoreSettings()) == hadoop_options(path, StoreSettings()) == {}


def test_both_engines_get_the_same_settings_of_s3() -> None:
    store = StoreSettings(
        endpoint="http://h:9000", allow_http=True, access_key=KEY, secret_key=SECRET
    )
    assert delta_rs_options("s3://lake/t", store) == {
        "AWS_ENDPOINT_URL": "http://h:9000",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    reported = hadoop_options("s3://lake/t", store)
    assert {key.removeprefix("fs.s3a.bucket.lake."): value for key, value in reported.items()} == {
        "endpoint": "http://h:9000",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": KEY,
        "secret.key": SECRET,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }


def test_for_amazon_itself_the_region_is_enough() -> None:
    store = StoreSettings(region="eu-central-1")
    assert delta_rs_options("s3://lake/t", store) == {"AWS_REGION": "eu-central-1"}
    assert hadoop_options("s3://lake/t", store) == {
        "fs.s3a.bucket.lake.endpoint.region": "eu-central-1"
    }


def test_both_engines_get_the_key_of_azures_account() -> None:
    store = StoreSettings(account_key=KEY)
    assert delta_rs_options(AZURE, store) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "acme",
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
    }
    assert hadoop_options(AZURE, store) == {"fs.azure.account.key.acme.dfs.core.windows.net": KEY}


def test_both_engines_get_the_endpoint_of_an_azure_compatible_store() -> None:
    store = StoreSettings(endpoint="http://127.0.0.1:10000/acme", allow_http=True, account_key=KEY)
    assert delta_rs_options(AZURE, store) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "acme",
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "allow_http": "true",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/acme",
    }
    reported = hadoop_options(AZURE, store)
    assert reported["fs.azure.abfs.endpoint.acme.dfs.core.windows.net"] == "127.0.0.1:10000"
    assert (
        reported["fs.azure.always.use.https"] == reported["fs.azure.account.hns.enabled"] == "false"
    )


@pytest.mark.parametrize(
    ("stored_at", "now", "is_due"),
    [
        ("2026-01-01T00:00:00", "2026-01-01T23:59:59", False),
        ("2026-01-01T23:59:59", "2026-01-02T00:00:00", True),
        ("2026-01-01T12:00:00", "2026-01-02T12:00:00", True),
        ("2026-01-02T00:00:01", "2026-01-01T23:59:59", True),
        (None, "2026-01-01T12:00:00", True),
    ],
)
def test_a_store_is_probed_unless_a_plan_of_the_same_day_is_stored(
    stored_at: str | None, now: str, is_due: bool
) -> None:
    stored = None if stored_at is None else plain_plan(created_at_ms=milliseconds_of(stored_at))
    assert is_probe_due(stored, milliseconds_of(now)) is is_due


def milliseconds_of(moment: str) -> int:
    return int(datetime.fromisoformat(f"{moment}+00:00").timestamp() * 1000)
