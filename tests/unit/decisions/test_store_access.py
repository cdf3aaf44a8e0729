"""Options of delta-rs and Hadoop for a store: the same values under two names, and nothing without
settings.
"""

from __future__ import annotations

from datetime import datetime

import pytest

from etl.decide.table_storage import delta_rs_options, hadoop_options, is_probe_due
from etl.model.security import SecretRef
from etl.settings.table import StoreSettings
from tests.builders import plain_plan

KEY, SECRET = SecretRef("env", "K"), SecretRef("file", "/run/s")
AZURE = "abfss://lake@acme.dfs.core.windows.net/clicks"


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
    stored = None if stored_at is None else plain_plan(created_at_ms=_ms(stored_at))
    assert is_probe_due(stored, _ms(now)) is is_due


def _ms(moment: str) -> int:
    return int(datetime.fromisoformat(f"{moment}+00:00").timestamp() * 1000)
