"""The JSON document of a command, written to a file as well as to standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etl.cli import main
from etl.decide.run_requests import DOCUMENT_FILE


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "document.json"
    monkeypatch.setenv(DOCUMENT_FILE, str(path))
    return path


def test_the_printed_json_document_is_written_to_the_file_too_and_nothing_else(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "no/such.yaml", "--json"]) == 2
    assert json.loads(kept.read_text()) == json.loads(capsys.readouterr().out)
    assert [path.name for path in kept.parent.iterdir()] == ["document.json"]
    kept.unlink()
    assert main(["run", "no/such.yaml"]) == 2 and not kept.exists()


def test_an_unwritable_file_is_reported_and_changes_nothing_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DOCUMENT_FILE, str(tmp_path / "no" / "such.json"))
    assert main(["run", "no/such.yaml", "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exit_code"] == 2
    assert "cannot be written:" in printed.err and DOCUMENT_FILE in printed.err
