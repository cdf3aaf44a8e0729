"""The output of a command, errors in writing it, and the confirmation on a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from etl.cli import app, main
from etl.cli.common_options import confirm, output_session, print_note, show
from etl.decide.run_requests import DOCUMENT_FILE
from etl.errors import Stopped
from tests.command_result import Terminal

ETL = [sys.executable, "-m", "etl"]


class Full(io.StringIO):
    """A disk without free space, or a pipe that its reader has closed."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


NO_ROOM = OSError(28, "No space left on device")
CLOSED_PIPE = BrokenPipeError(32, "Broken pipe")


def test_the_real_command_leaves_no_trace_of_a_reader_that_is_gone() -> None:
    with subprocess.Popen([*ETL, "--help"], stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_an_error_is_reported_and_has_its_code_if_its_document_cannot_be_written(
    tmp_path: Path,
) -> None:
    words = [*ETL, "run", "--dry-run", str(tmp_path / "none"), "--json"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        ran = subprocess.run(words, stdout=full, stderr=PIPE, check=False)
    assert ran.returncode == 2
    assert b"The conf file does not exist" in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_lines_are_json_again_after_a_nested_command(capsys: pytest.CaptureFixture[str]) -> None:
    with output_session(json_lines=True):
        for _ in range(2):
            with output_session(json_lines=True):
                print_note("inner")
            print_note("outer")
    results = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert results == ["inner", "outer", "inner", "outer"]


@pytest.mark.parametrize("code", [0, None, 3])
def test_who_ends_the_process_in_the_middle_of_a_command_does_not_make_it_done(
    code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(**_: object) -> None:
        sys.exit(code)

    monkeypatch.setattr(app, "app", ends)
    assert main(["run"]) == 1
    assert f"sys.exit({code!r}) at {__file__}" in capsys.readouterr().err


def test_what_another_thread_prints_is_not_the_commands_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printing(**_: object) -> None:
        second = threading.Thread(target=lambda: print("TOKEN IS x"))
        second.start()
        second.join()
        show(True, {"a": 1}, lambda: None)

    monkeypatch.setattr(app, "app", printing)
    assert main(["run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": 1} and "TOKEN IS x" in err


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "document.json"
    monkeypatch.setenv(DOCUMENT_FILE, str(path))
    return path


def test_the_json_document_is_written_to_the_file_too_whether_it_is_printed_or_not(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "no/such.yaml", "--json"]) == 2
    assert json.loads(kept.read_text()) == json.loads(capsys.readouterr().out)
    assert [path.name for path in kept.parent.iterdir()] == ["document.json"]
    document = kept.read_text()
    kept.unlink()
    assert main(["run", "no/such.yaml"]) == 2 and kept.read_text() == document
    assert capsys.readouterr().out == ""


def test_an_unwritable_file_is_reported_and_changes_nothing_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DOCUMENT_FILE, str(tmp_path / "no" / "such.json"))
    assert main(["run", "no/such.yaml", "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exit_code"] == 2
    assert "cannot be written:" in printed.err and DOCUMENT_FILE in printed.err


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NO_ROOM, 2, "Standard output cannot be written: No space left on device"),
        (CLOSED_PIPE, 141, ""),
    ],
)
def test_a_document_that_cannot_be_written_fails_the_command_unless_its_work_is_done(
    error: OSError, code: int, message: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "app", lambda **_: show(True, {"a": 1}, lambda: None, is_done=is_done))
    stream = io.StringIO()
    with contextlib.redirect_stdout(Full(error)), contextlib.redirect_stderr(stream):
        assert main([]) == (0 if is_done else code)
    result = stream.getvalue()
    assert message in result and bool(message) == bool(result) and "report it" not in result


@pytest.mark.parametrize(
    ("answer", "goes_on"),
    [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("maybe\n", False)],
)
def test_on_a_terminal_the_operator_sees_the_consequences_and_anything_but_yes_changes_nothing(
    answer: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stdout", screen)
    stops = pytest.raises(Stopped, match="Nothing was changed")
    with contextlib.nullcontext() if goes_on else stops:
        confirm(["clicks:0 goes back"], yes=False, as_json=False)
    assert screen.getvalue() == "clicks:0 goes back\nContinue? [y/N] "
