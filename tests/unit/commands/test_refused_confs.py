"""An invalid conf is rejected before any request: exit code, error, place in the conf, action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.commands import run as running
from etl.errors import SettingsError
from tests.builders import plain_settings
from tests.command_result import refused, run_etl

LEAST: dict[str, Any] = {
    "pipeline": "clicks",
    "group": {"id": "group"},
    "zookeeper": {"connect": "127.0.0.1:1"},
    "source": {"topics": ["clicks"]},
    "table": {"path": "clicks"},
}


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        ("source", {"strat": "latest"}, ("unknown key", "source.strat")),
        ("limits", {"max_records_per_plan": "many"}, ("limits.max_records_per_plan", "many")),
        (
            "source",
            {"starting_offsets": "yesterday"},
            ("source.starting_offsets", "earliest, latest"),
        ),
        (
            "source",
            {"starting_offsets": "2026-01-31T00:00:00"},
            ("source.starting_offsets", "UTC offset"),
        ),
        ("group", {"mode": "share"}, ("group.mode", "claim")),
    ],
)
def test_a_wrong_key_is_named_with_its_path(
    tmp_path: Path, section: str, keys: dict[str, Any], words: tuple[str, ...]
) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(yaml.safe_dump({**LEAST, section: {**LEAST.get(section, {}), **keys}}))
    refused(run_etl("run", str(path), "--json"), 2, "conf.yaml", *words)


def test_a_conf_file_that_is_not_there_is_named() -> None:
    result = run_etl("run", "no/such.yaml")
    assert result.code == 2
    assert "The conf file does not exist (path no/such.yaml)" in result.err


@pytest.mark.parametrize(
    "content",
    [b"", b"- a\n- list\n", b"version: 1\n  group: [\n", b"\xff\xfe\x00", None],
    ids=["empty", "a list", "no YAML", "no text", "a folder"],
)
def test_a_file_that_is_no_conf_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "odd.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    refused(run_etl("run", str(path), "--json"), 2, "odd.yaml")


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
