"""Does each command that a page, a message or a docstring names exist, with its options?"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from etl.cli.app import app
from tests.pages import PAGES, ROOT, command_lines, place

MODULES = sorted((ROOT / "etl").rglob("*.py"))
COMMAND: Any = typer.main.get_command(app)
FIRST_WORDS = "|".join(COMMAND.commands)
CONFS = ("CONF", "conf/clicks.yaml")
_REASON = re.compile(rf"(?<![`.\w/-])etl ((?:{FIRST_WORDS}) [^`;]*?--reason \.\.\.)")


def named_in(text: str) -> Iterator[str]:
    """The words after `etl` of commands between backticks."""
    one_line = re.sub(r"\s+", " ", text)
    yield from re.findall(r"`etl ([a-z][^`|\\]*)", one_line)
    yield from _REASON.findall(one_line)


def on_page(page: Path) -> Iterator[str]:
    """Return the words after `etl` of each command on a page."""
    for line in command_lines(page):
        found = re.match(r"(?:\.venv/bin/)?etl ([^|>&]*)", line)
        if found:
            yield found[1]
    yield from named_in(page.read_text())


@functools.cache
def messages(path: Path) -> tuple[str, ...]:
    """Return the texts in a module; a placeholder becomes `1`, which is valid for any argument."""
    nodes = tuple(ast.walk(ast.parse(path.read_text())))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    texts = []
    for text in joined:
        values = [part.value if isinstance(part, ast.Constant) else 1 for part in text.values]
        texts.append("".join(map(str, values)))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            texts.append(node.value)
    return tuple(texts)


def named_in_code() -> set[tuple[str, str]]:
    """Return (module, words after `etl`) of all messages and docstrings."""
    named = set()
    for module in MODULES:
        for text in messages(module):
            named |= {(place(module), command) for command in named_in(text)}
    return named


def fault_of(command: str) -> str | None:
    """Return what is wrong with the words after `etl`; None if nothing is.

    `...` stands for further words. With a conf as first argument all required arguments and options
    must be there, unless the words contain `...`.
    """
    text = re.sub(r"\b1--", "--", command)  # an optional part may precede an option
    text = re.sub(r"(--\w+) \.\.\.", r"\1 something", text)
    words = shlex.split(text)
    is_abridged = "..." in words
    words = [word for word in words if word not in ("...", "--help")]

    found = COMMAND
    while words and hasattr(found, "commands"):
        name = words.pop(0)
        if name not in found.commands:
            return f"there is no {name}"
        found = found.commands[name]

    options, arguments = _parameters(found)
    values = []
    given = set()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            values.append(word)
            continue
        if word not in options:
            return f"it has no {word}"
        given.add(options[word].name)
        if options[word].is_flag:
            continue
        if not words or re.match(r"--?[A-Za-z]", words.pop(0)):  # `-1h` is a value
            return f"{word} needs a value"

    if len(values) > len(arguments):
        return f"{values[len(arguments) :]} is more than it takes"
    if is_abridged or not values or values[0] not in CONFS:
        return None
    missing = [argument.name for argument in arguments[len(values) :] if argument.required]
    missing += [
        option.name for option in options.values() if option.required and option.name not in given
    ]
    return f"it lacks {missing}" if missing else None


def _parameters(command: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the options by flag, and the arguments."""
    options = {}
    arguments = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            arguments.append(parameter)
        else:
            for flag in (*parameter.opts, *parameter.secondary_opts):
                options[flag] = parameter
    return options, arguments


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_each_command_on_a_page_exists(page: Path) -> None:
    faults = {command: fault_of(command) for command in on_page(page)}
    assert {command: fault for command, fault in faults.items() if fault} == {}


def test_each_command_in_a_message_or_docstring_exists() -> None:
    named = named_in_code()
    faults = {(module, command): fault_of(command) for module, command in named}
    assert named
    assert {one: fault for one, fault in faults.items() if fault} == {}


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("plans forget CONF", "there is no forget"),
        ("verify CONF --fail-on-loss", "it has no --fail-on-loss"),
        ("verify CONF 3", "is more than it takes"),
        ("table accept-changes CONF 3", "it lacks ['reason']"),
        ("plans supersede CONF --reason ...", "it lacks ['number']"),
        ("records show CONF -p clicks:3 --from", "--from needs a value"),
    ],
)
def test_an_unknown_command_is_found(command: str, fault: str) -> None:
    assert fault in (fault_of(command) or "")


def test_commands_are_found_on_pages_and_in_messages() -> None:
    on_pages = {command for page in PAGES for command in on_page(page)}
    in_messages = {command for _, command in named_in_code()}
    assert "doctor conf/clicks.yaml" in on_pages
    assert "plans supersede CONF 1 --reason ..." in in_messages


@pytest.mark.parametrize("name", ["crontab", "etl-run", "etl@.service"])
def test_each_command_of_a_file_for_deployment_exists(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text()
    commands = re.findall(rf"\betl ((?:{FIRST_WORDS})\b[^`>&\n]*)", text)
    assert commands
    assert [command for command in commands if fault_of(command)] == []


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_each_target_of_make_and_module_that_a_page_runs_exists(page: Path) -> None:
    lines = "\n".join(command_lines(page))
    text = page.read_text()
    named = re.findall(r"^make ([a-z][a-z-]*)", lines, re.MULTILINE)
    named += re.findall(r"`make ([a-z][a-z-]*)", text)
    assert sorted(set(named) - targets_of_make()) == []
    for name in re.findall(r"python -m ((?:etl|tests)[\w.]*\w)", text):
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name
