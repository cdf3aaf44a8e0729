"""Reasons that are empty, and tables in stores that are not tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.commands import run as running
from etl.errors import SettingsError
from tests.builders import plain_settings
from tests.command_result import refused, run_etl


@pytest.mark.parametrize(
    "words",
    [
        ("plans", "supersede", "CONF", "1"),
        ("pipelines", "inherit", "CONF", "--predecessor", "g/p"),
        ("table", "accept-changes", "CONF", "1"),
        ("topics", "accept-changes", "CONF", "clicks"),
        ("pipelines", "retire", "CONF"),
        ("pipelines", "resume", "CONF"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("reason", ["", " "])
def test_an_empty_reason_is_none(words: tuple[str, ...], reason: str) -> None:
    refused(run_etl(*words, "--reason", reason, "--json"), 2, "The reason is empty")


@pytest.mark.parametrize(("path", "message"), [("gs://lake/t", True), ("s3://lake/t", False)])
def test_a_run_to_an_untested_store_logs_it(
    path: str,
    message: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_services(*_: object, **__: object) -> None:
        raise SettingsError("there is no world in this test")

    monkeypatch.setattr(running, "open_services", no_services)
    with pytest.raises(SettingsError, match="no world"):
        running.run(plain_settings(table={"path": path}, report={"path": str(tmp_path)}))
    assert (
        "table.path: gs:// is supported but not tested; etl verify says whether each row is there"
        in caplog.text
    ) is message
