"""`table.store`: what fits which store, that no secret stands in a conf, and that a path carries
its store along.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from etl.errors import SettingsError
from etl.model.security import SecretRef
from etl.report.plan_json import write_settings
from etl.settings.secrets import resolve_secret
from etl.settings.sections import Settings
from etl.settings.table import TablePath, account_of, store_of, untried
from tests.builders import plain_settings

AZURE = "abfss://lake@acme.dfs.core.windows.net/clicks"
KEYS = {"access_key": "${env:KEY}", "secret_key": "${file:/run/secrets/s3}"}


def conf(path: str = "s3://lake/clicks", **store: Any) -> Settings:
    return plain_settings(table={"path": path, "store": store})


def test_a_conf_keeps_references_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    settings = conf(**KEYS)
    assert settings.table.store.access_key == SecretRef("env", "KEY")
    for reported in (
        repr(settings),
        str(settings.model_dump(warnings=False)),
        str(write_settings(settings)),
        repr(pickle.dumps(settings)),
    ):
        assert "hunter2" not in reported
    assert resolve_secret(SecretRef("env", "KEY"), "table.store.access_key") == "hunter2"


@pytest.mark.parametrize("value", ["hunter2", "x${env:KEY}", {"hunter2": 1}, 12345])
def test_a_secret_that_stands_in_the_conf_is_refused_and_not_repeated(value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        conf(**{**KEYS, "secret_key": value})
    assert caught.value.where["key"] == "table.store.secret_key" and caught.value.exit_code == 2
    assert "hunter2" not in str(caught.value) and "12345" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "store", "key"),
    [
        ("s3://lake/t", {"account": "acme"}, "account"),
        ("s3a://lake/t", {"account_key": "${env:K}"}, "account_key"),
        (AZURE, {"region": "eu"}, "region"),
        (AZURE, KEYS, "access_key"),
        ("hdfs://n:8020/t", {"endpoint": "https://h"}, "endpoint"),
        ("/data/t", {"region": "eu"}, "region"),
        ("gs://lake/t", {"endpoint": "https://h"}, "endpoint"),
        ("s3://lake/t", {"access_key": "${env:K}"}, "secret_key"),
        ("s3://lake/t", {"secret_key": "${env:K}"}, "access_key"),
        ("s3://lake/t", {"endpoint": "http://h:9000"}, "endpoint"),
        (AZURE, {"account": "other"}, "account"),
        ("s3://lake/t", {"endpoint": "h:9000"}, "endpoint"),
        ("s3://lake/t", {"endpoint": "https://me:pw@h"}, "endpoint"),
        ("s3://lake/t", {"allow_http": "yes"}, "allow_http"),
        ("s3://lake/t", {"allow_http": 1}, "allow_http"),
        ("s3://lake/t", {"region": True}, "region"),
    ],
)
def test_keys_that_the_store_does_not_take_are_refused_by_name(
    path: str, store: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        conf(path, **store)
    assert caught.value.where["key"] == f"table.store.{key}" and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("path", "is_untried"),
    [
        ("gs://lake/t", True),
        ("wasbs://lake@acme/t", True),
        ("/data/t", False),
        ("file:///data/t", False),
        ("s3a://lake/t", False),
        (AZURE, False),
        ("hdfs://n:8020/t", False),
    ],
)
def test_a_store_on_which_nothing_was_ever_tried_is_taken_with_a_warning(
    path: str, is_untried: bool
) -> None:
    found = untried(conf(path).table.path) or ""
    assert ("is supported but not tested" in found) == bool(found) == is_untried


def test_a_path_of_azure_names_its_account() -> None:
    assert account_of(AZURE) == "acme"
    assert conf(AZURE, account="acme", account_key="${env:K}").table.store.account == "acme"
    with pytest.raises(SettingsError) as caught:
        conf("abfss://acme.dfs.core.windows.net/t")
    assert caught.value.where["key"] == "table.path"


def test_both_tables_carry_the_store_and_are_their_paths_to_all_else() -> None:
    table = conf("s3://lake/t/", region="eu-central-1").table
    assert (table.path, table.losses_at) == ("s3://lake/t/", "s3://lake/t_losses")
    again = pickle.loads(pickle.dumps(table.path))
    regions = {store_of(path).region for path in (table.path, table.losses_at, again)}
    assert regions == {"eu-central-1"}
    assert type(f"{table.path}") is str and store_of(f"{table.path}").keys_set == ()
    assert isinstance(again, TablePath)
