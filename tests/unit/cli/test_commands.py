"""The commands as typer has them: what each of them takes that takes a conf."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import etl.cli
from etl.cli import main
from etl.cli.app import app


def commands(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(found, "commands"):
        for word, one in found.commands.items():
            yield from commands(one, f"{name} {word}".strip())
    else:
        yield name, found


COMMANDS = dict(commands(typer.main.get_command(app)))
OF_A_CONF = sorted(
    name for name, one in COMMANDS.items() if any(param.name == "conf" for param in one.params)
)


def test_every_command_that_takes_a_conf_takes_changes_of_it() -> None:
    assert {"run", "plans show", "offsets diff", "pipelines list", "records show"} <= set(OF_A_CONF)
    assert [
        name
        for name in OF_A_CONF
        if not any("--set" in param.opts for param in COMMANDS[name].params)
    ] == []


def test_the_packages_list_of_commands_has_each_of_them() -> None:
    text = " ".join(str(etl.cli.__doc__).split())
    listed = text.split("`")[1].removeprefix("etl ").split("|")
    families = [part.partition(" ")[::2] for part in map(str.strip, listed)]
    assert sorted(COMMANDS) == sorted(
        f"{first} {one.strip()}".strip() for first, others in families for one in others.split(",")
    )


@pytest.mark.parametrize(
    "text", ["--set=nothing=1", "--set=limits.max_records_per_plan=no", "--set=group"]
)
def test_a_change_that_cannot_be_is_an_error_of_the_arguments(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "clicks.yaml"
    conf.write_text(
        "{pipeline: p, group: g, zookeeper: {connect: 'a:1'}, source: {topics: [t]}, table: "
        "{path: t}}"
    )
    assert main(["run", "--dry-run", str(conf), text, "--json"]) == 2
    assert text.removeprefix("--set=").partition("=")[0] in json.dumps(
        json.loads(capsys.readouterr().out)
    )
    assert main(["run", "--dry-run", "no/such.yaml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["where"] == {"path": "no/such.yaml"}, (
        "--json of one call leaves the next call as it is"
    )


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
