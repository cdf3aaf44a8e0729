"""`etl run` with a directory of confs."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
import yaml

from etl.cli.app import app
from etl.cli.run_folder import arguments_for, result_of
from etl.commands.run import ConfRun, FolderRun, run_each
from etl.errors import (
    DataLost,
    EtlError,
    LedgersDisagree,
    Owned,
    ProcessLost,
    SettingsError,
    Stopped,
    TableUnreachable,
    Unreachable,
)
from etl.settings.conf_file import confs_in
from etl.settings.load import parse_change
from tests.command_result import refused, run_etl

RUN = cast(Any, typer.main.get_command(app)).commands["run"]


def conf(folder: Path, name: str, **keys: Any) -> Path:
    document = {
        "pipeline": name,
        "group": "g",
        "zookeeper": {"connect": "127.0.0.1:1", "session_timeout_s": 1},
        "source": {"topics": ["t"]},
        "table": {"path": name},
        **keys,
    }
    given = {key: value for key, value in document.items() if value is not None}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def run(
    folder: Path, came: dict[str, EtlError | None], *words: str
) -> tuple[FolderRun, list[str], list[str]]:
    """The overall result, the started confs, and the reported confs."""
    started, reported = list[str](), list[str]()

    def start(path: Path) -> ConfRun:
        started.append(path.stem)
        error = came.get(path.stem)
        if isinstance(error, Stopped):
            raise KeyboardInterrupt
        return ConfRun(str(path), None if error else {"outcomes": []}, error)

    found = run_each(
        folder,
        start,
        lambda one: reported.append(Path(one.conf).stem),
        [parse_change(word) for word in words],
    )
    return found, started, reported


def test_each_conf_is_run_by_name_and_what_fails_stops_none_of_the_others(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        conf(tmp_path, name)
    found, started, reported = run(tmp_path, {"a": SettingsError("wrong", action="this", key="k")})
    assert started == reported == ["a", "b", "c"]
    assert [one["exit_code"] for one in found.as_json()["runs"]] == [2, 0, 0]
    assert found.worst is not None
    assert "1 of 3 pipelines failed" in found.worst.message
    assert "a.yaml: wrong" in found.worst.message
    assert (found.worst.action, found.worst.where) == ("this", {"key": "k"})
    assert run(tmp_path, {})[0].worst is None


@pytest.mark.parametrize(
    ("came", "code"),
    [
        ((Unreachable("x"), SettingsError("x"), LedgersDisagree("x")), 5),
        ((Unreachable("x"), DataLost("x"), Owned("x")), 3),
        ((Owned("x"), TableUnreachable("x"), Unreachable("x")), 7),
        ((Owned("x"), None, None), 4),
        ((EtlError("x"), SettingsError("x"), None), 1),
    ],
)
def test_what_no_retry_mends_is_worse_than_what_one_may(
    tmp_path: Path, came: tuple[EtlError | None, ...], code: int
) -> None:
    for name in "abc":
        conf(tmp_path, name)
    found = run(tmp_path, dict(zip("abc", came, strict=True)))[0]
    assert found.as_json()["exit_code"] == code
    assert found.worst is not None
    assert found.worst.retriable == all(error is None or error.retriable for error in came)


def test_a_stop_ends_all_runs_and_lists_those_not_begun(tmp_path: Path) -> None:
    for name in "abc":
        conf(tmp_path, name)
    found, started, reported = run(
        tmp_path, {"a": SettingsError("wrong"), "b": Stopped("by a signal")}
    )
    assert (started, reported) == (["a", "b"], ["a", "b"])
    assert [one.exit_code for one in found.runs] == [2, 130, 130]
    assert found.as_json()["exit_code"] == 130
    assert found.runs[2].error is not None and "Not started:" in found.runs[2].error.message


def test_every_file_of_yaml_is_a_conf_but_one_that_another_names_as_its_defaults(
    tmp_path: Path,
) -> None:
    conf(tmp_path, "a", defaults="common.yaml", group=None)
    conf(tmp_path, "b")
    (tmp_path / "c.yaml").write_text("pipeline: c\ndefaults: b.yaml\n")
    (tmp_path / "common.yaml").write_text("group: shared")
    (tmp_path / "broken.yml").write_text("a: [")
    for name in ("notes.txt", ".hidden.yaml", "pipeline.schema.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "folder.yaml").mkdir()
    names = [path.name for path in confs_in(tmp_path)]
    assert names == ["a.yaml", "b.yaml", "broken.yml", "c.yaml"], (
        "a whole conf is run, whoever names it as defaults by mistake"
    )


def test_copies_of_one_pipeline_are_refused_by_name_and_the_others_run(tmp_path: Path) -> None:
    conf(tmp_path, "a")
    conf(tmp_path, "copy", pipeline="a")
    conf(tmp_path, "other", zookeeper={"connect": "127.0.0.1:2"}, pipeline="a")
    found, started, _ = run(tmp_path, {})
    assert started == ["other"]
    assert [one.exit_code for one in found.runs] == [2, 2, 0]
    assert found.worst is not None
    assert "copy.yaml" in found.worst.message
    assert "g/a" in found.worst.message
    assert run(tmp_path, {}, "pipeline=same", "zookeeper.connect=127.0.0.1:3")[1] == []


DISAGREE = LedgersDisagree("w", action="c").as_json()


@pytest.mark.parametrize(
    ("code", "printed", "kind"),
    [
        (5, json.dumps(DISAGREE), LedgersDisagree),
        (3, '{"run_id": "r"}', DataLost),
        (-9, "", ProcessLost),
        (1, "", EtlError),
        (139, "{}", EtlError),
    ],
)
def test_what_a_run_in_its_own_process_came_to_is_known_by_its_code_and_document(
    code: int, printed: str, kind: type[EtlError]
) -> None:
    found = result_of(Path("a.yaml"), code, printed)
    assert type(found.error) is kind and found.exit_code == kind.exit_code


def test_the_command_runs_a_folder_with_the_given_options_and_names_each_conf(
    tmp_path: Path,
) -> None:
    conf(tmp_path, "a")
    (tmp_path / "b.yaml").write_text("pipeline: b")
    words = ("--set", "zookeeper.session_timeout_s=1", str(tmp_path), "--quiet", "--fail-on-loss")
    result = run_etl("run", *words, "--json")
    refused(result, 2, "2 of 2 pipelines failed", "b.yaml")
    first, second = result.document["runs"]
    assert (Path(first["conf"]).name, first["exit_code"]) == ("a.yaml", 6)
    assert (Path(second["conf"]).name, second["exit_code"]) == ("b.yaml", 2)
    where = second["error"]["where"]
    assert where["path"] == str(tmp_path / "b.yaml")
    assert where["set"] == "zookeeper.session_timeout_s"
    (tmp_path / "a.yaml").unlink()
    shown = run_etl("run", str(tmp_path), "--quiet")
    assert shown.code == 2 and "b.yaml" in shown.out and "exit code" in shown.out


def test_a_folder_without_a_conf_is_refused_and_other_commands_take_no_folder(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path)
    refused(run_etl("run", folder, "--json"), 2, "The directory has no conf (path", folder)
    refused(run_etl("run", folder, "--dry-run", "--json"), 2, "takes one conf", folder)


def test_a_process_that_does_not_start_is_an_error_of_its_conf_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    conf(tmp_path, "a")
    conf(tmp_path, "b")
    monkeypatch.setattr(subprocess, "Popen", start)
    result = run_etl("run", str(tmp_path), "--json")
    refused(result, 6, "2 of 2 pipelines failed", "Cannot allocate memory")


def test_a_hang_up_ends_the_runs_of_a_folder(tmp_path: Path) -> None:
    """The process of a run has a session of its own, so the terminal does not signal it."""
    # The server accepts connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect = f"127.0.0.1:{silent.getsockname()[1]}"
        conf(tmp_path, "a", zookeeper={"connect": connect, "session_timeout_s": 60})
        command = [sys.executable, "-m", "etl", "run", str(tmp_path), "--json", "--quiet"]
        # Under nohup the tests inherit that the signal is ignored.
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        ) as parent:
            silent.accept()
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            parent.send_signal(signal.SIGHUP)
            document = json.loads(parent.communicate(timeout=60)[0])
    assert (parent.returncode, document["exit_code"]) == (130, 130)
    assert len(children) == 1 and not Path(f"/proc/{children[0]}").exists()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("--quiet pipeline=x", 1),
        ("--set pipeline=x pipeline=x --fail-on-loss", 2),
        ("-- pipeline=x", 1),
        ("pipeline=x --", 0),
    ],
)
def test_the_folder_is_found_among_words_that_look_like_it(text: str, place: int) -> None:
    context = SimpleNamespace(command=RUN, obj=["run", *text.split(), "--json"])
    words = arguments_for(cast(typer.Context, context), Path("pipeline=x"))
    assert words.count(None) == 1 and words.index(None) == place
    assert [word or "pipeline=x" for word in words] == text.split()
