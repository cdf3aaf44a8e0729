"""The commands as typer has them: those that take a conf, positions, `etl records show`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from etl.cli import main
from etl.cli.app import app
from etl.cli.operator_commands import parse_position
from etl.commands import peek
from etl.commands.peek import PeekRequest
from etl.errors import SettingsError, Stopped
from etl.settings.choices import StartAt
from etl.settings.source import BeforeEnd, Timestamp
from tests.builders import conf_in
from tests.command_result import refused, run_etl


def commands(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(found, "commands"):
        for word, one in found.commands.items():
            yield from commands(one, f"{name} {word}".strip())
    else:
        yield name, found


COMMANDS = dict(commands(typer.main.get_command(app)))
OF_A_CONF = [name for name, one in COMMANDS.items() if any(p.name == "conf" for p in one.params)]


@pytest.mark.parametrize(
    "text", ["--set=nothing=1", "--set=limits.max_records_per_plan=no", "--set=group"]
)
def test_a_change_that_cannot_be_is_an_error_of_the_arguments(text: str, tmp_path: Path) -> None:
    key = text.removeprefix("--set=").partition("=")[0]
    refused(run_etl("run", "--dry-run", str(conf_in(tmp_path, 1)), text, "--json"), 2, key)
    result = run_etl("run", "--dry-run", "no/such.yaml", "--json")
    assert result.document["where"] == {"path": "no/such.yaml"}, "the next call is as before"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["demo", "--records", "0"], "--records"),
        (["demo", "--broker-type", "x"], "--broker-type"),
        (["run"], "CONF"),
    ],
)
def test_an_invalid_argument_is_named(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert named in capsys.readouterr().err


DECIDING = [name for name, one in COMMANDS.items() if any(p.name == "reason" for p in one.params)]


@pytest.mark.parametrize("name", DECIDING)
def test_a_command_that_stores_a_decision_asks_or_its_help_names_the_command_that_undoes_it(
    name: str,
) -> None:
    command = COMMANDS[name]
    if not any(parameter.name == "yes" for parameter in command.params):
        undoing = re.search(r"Asks for no confirmation: `etl (.*)` undoes it", command.help or "")
        assert undoing and undoing[1] in COMMANDS


NAMED = {"partition": "-clicks:0", "topic": "-clicks", "skip": "-clicks:0:1-2"}
OF_TOPICS = [name for name in OF_A_CONF if any(p.name in NAMED for p in COMMANDS[name].params)]


@pytest.mark.parametrize("name", OF_TOPICS)
def test_a_topic_that_begins_with_a_dash_can_be_named(name: str) -> None:
    words = name.split()
    for one in COMMANDS[name].params:
        if one.param_type_name == "argument":
            words.append("no/such.yaml" if one.name == "conf" else "1")
        elif one.name in NAMED or one.required:
            words += [one.opts[0], NAMED.get(one.name, "1")]
    assert run_etl(*words, "--json").document["where"] == {"path": "no/such.yaml"}


def test_a_position_counts_back_from_now_or_from_the_end_or_is_absolute() -> None:
    assert parse_position("-10000", "--to") == BeforeEnd(10000)
    assert parse_position("1200", "--to") == 1200
    assert parse_position("latest", "--to") is StartAt.LATEST
    before = time.time() * 1000 - 3_600_000
    found = parse_position("-1h", "--to")
    assert isinstance(found, Timestamp) and before - 1 <= found.ms <= time.time() * 1000 - 3_600_000


@pytest.mark.parametrize(
    "text", ["-1y", "-", "- 5", "-5x", "since-last-success", "2026-01-31T00:00:00"]
)
def test_an_invalid_position_is_rejected_by_the_options_name(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_position(text, "--to")
    assert refused.value.exit_code == 2


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[PeekRequest]:
    """The requests of commands, none of which is carried out."""
    made: list[PeekRequest] = []

    def open_peek(settings: Any, request: PeekRequest) -> Any:
        made.append(request)
        raise Stopped("not opened")

    monkeypatch.setattr(peek, "open_peek", open_peek)
    return made


@pytest.mark.parametrize(
    ("words", "request_of_it"),
    [
        ((), PeekRequest("clicks:0", StartAt.EARLIEST, 10, False, 10.0)),
        (("--timeout", "0s"), PeekRequest("clicks:0", StartAt.EARLIEST, 10, False, 0.0)),
        (("--timeout", "500ms", "--from", "7"), PeekRequest("clicks:0", 7, 10, False, 0.5)),
        (("--last", "3"), PeekRequest("clicks:0", BeforeEnd(3), 3, False, 10.0)),
        (("--last", "3", "-n", "2"), PeekRequest("clicks:0", BeforeEnd(3), 2, False, 10.0)),
        (("--follow",), PeekRequest("clicks:0", StartAt.EARLIEST, None, True, None)),
    ],
)
def test_options_are_a_request(
    words: tuple[str, ...], request_of_it: PeekRequest, requests: list[PeekRequest], tmp_path: Path
) -> None:
    run_etl("records", "show", str(conf_in(tmp_path, 1)), "-p", "clicks:0", *words)
    assert requests == [request_of_it]


def test_two_options_that_set_the_start_are_refused(
    requests: list[PeekRequest], tmp_path: Path
) -> None:
    conf = str(conf_in(tmp_path, 1))
    result = run_etl(
        "records", "show", conf, "-p", "clicks:0", "--from", "7", "--last", "3", "--json"
    )
    refused(result, 2, "--from and --last both set the start")
    assert not requests


def test_each_command_takes_a_log_format_once_and_changes_of_its_conf() -> None:
    assert {"run", "plans show", "offsets diff", "pipelines list", "records show"} <= set(OF_A_CONF)
    for name, command in COMMANDS.items():
        options = [option for param in command.params for option in param.opts]
        assert options.count("--log-format") == 1, name
        assert options.count("--set") == 1 or name not in OF_A_CONF, name
