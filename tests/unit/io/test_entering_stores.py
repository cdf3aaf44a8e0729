"""Access of a session to a store, and the way of the secrets."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from etl.io.spark.catalog import enter_store
from etl.settings.table import TablePath
from tests.builders import plain_settings


def test_a_secret_is_in_no_line_of_py4js_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STORE_KEY", "aHVudGVyMg==")
    reported = dict[str, str]()

    def set_in_jvm(key: str, value: str) -> None:
        logging.getLogger("py4j.clientserver").debug(
            "Command to send: %s %s", key, value
        )  # as py4j does with any call
        reported[key] = value

    hadoop: Any = SimpleNamespace(
        set=set_in_jvm, get=lambda key: None, getPropertySources=lambda key: None
    )
    own: Any = SimpleNamespace(contains=lambda key: False, set=lambda key, value: None)
    context = SimpleNamespace(
        hadoopConfiguration=lambda: hadoop, sc=lambda: SimpleNamespace(conf=lambda: own)
    )
    session = cast(SparkSession, SimpleNamespace(_jvm=None, _jsc=context))
    store = {
        "endpoint": "http://127.0.0.1:1/acme",
        "allow_http": True,
        "account_key": "${env:STORE_KEY}",
    }
    settings = plain_settings(
        table={"path": "abfss://lake@acme.dfs.core.windows.net/t", "store": store}
    )
    assert isinstance(settings.table.path, TablePath)
    with caplog.at_level(logging.DEBUG):
        enter_store(session, settings.table.path)
    assert (
        "aHVudGVyMg==" in reported.values()
        and "aHVudGVyMg==" not in caplog.text
        and "endpoint" in caplog.text
    )
    assert not logging.getLogger("py4j.clientserver").disabled
