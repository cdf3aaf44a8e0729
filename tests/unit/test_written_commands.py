"""Every command that a page or a message names is one of ours, with the options that it has, and
whole where it names its conf.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from etl.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "etl").rglob("*.py"))
COMMAND: Any = typer.main.get_command(app)
DOORS = "|".join(COMMAND.commands)
CONFS = ("CONF", "conf/clicks.yaml")


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def named_in(text: str) -> Iterator[str]:
    """Commands between backticks, in lines of their own, and in a sentence up to the reason that
    each ends with.
    """
    one_line = re.sub(r"\s+", " ", text)
    yield from re.findall(r"`etl ([a-z][^`|\\]*)", one_line)
    yield from re.findall(rf"^ {{4}}etl ((?:{DOORS})\b[^`]*?)(?: {{3,}}.*)?$", text, re.MULTILINE)
    yield from re.findall(rf"(?<![`.\w/-])etl ((?:{DOORS}) [^`;]*?--reason \.\.\.)", one_line)


@functools.cache
def messages(path: Path) -> tuple[str, ...]:
    """The texts in a module; placeholders are replaced by `1`, which is valid for any argument."""
    return tuple(_texts(tuple(ast.walk(ast.parse(path.read_text())))))


def _texts(nodes: Sequence[ast.AST]) -> Iterator[str]:
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.value


def is_option(word: str) -> bool:
    """`-1h` and `-10000` are values."""
    return re.match(r"--?[A-Za-z]", word) is not None


def wrong_with(command: str) -> str | None:
    """Return why the words after `etl` are not a command; None if they are one."""
    whole = re.sub(
        r"(--\w+) \.\.\.", r"\1 something", re.sub(r"\b1--", "--", command)
    )  # an optional part may precede an option
    words = shlex.split(whole.replace("LOG...", "LOG"))
    found, is_cut = COMMAND, "..." in words
    while words and hasattr(found, "commands"):
        if words[0] not in found.commands and hasattr(found, "default_command"):
            found = found.commands[found.default_command]
            break
        name = words.pop(0)
        if name not in found.commands:
            return None if name == "..." else f"there is no {name}"
        found = found.commands[name]
    options = {
        flag: one
        for one in found.params
        if one.param_type_name == "option"
        for flag in (*one.opts, *one.secondary_opts)
    }
    takes = [one for one in found.params if one.param_type_name == "argument"]
    given, result = list[str](), set[str]()
    words = [word for word in words if word not in ("...", "--help")]
    while words:
        word = words.pop(0)
        if word.startswith("-"):
            if word not in options:
                return f"it has no {word}"
            result.add(options[word].name)
            if not options[word].is_flag and (not words or is_option(words.pop(0))):
                return f"{word} takes something"
        else:
            given.append(word)
    if len(given) > len(takes) and all(one.nargs == 1 for one in takes):
        return f"{given[len(takes) :]} is more than it takes"
    if given[:1] and given[0] in CONFS and not is_cut:
        needed = [one.name for one in takes[len(given) :] if one.required] + [
            one.name for one in options.values() if one.required and one.name not in result
        ]
        return f"it lacks {needed}" if needed else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_command_that_a_page_names_is_one_of_ours(page: Path) -> None:
    found = {
        command: wrong for command in named_in(page.read_text()) if (wrong := wrong_with(command))
    }
    assert found == {}


def test_a_command_that_a_message_or_a_docstring_names_is_one_of_ours() -> None:
    named = {
        (place(module), command)
        for module in MODULES
        for text in messages(module)
        for command in named_in(text)
    }
    assert named and {one: wrong for one in named if (wrong := wrong_with(one[1]))} == {}


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("plans forget CONF", "there is no forget"),
        ("verify CONF --fail-on-loss", "it has no --fail-on-loss"),
        ("verify CONF 3", "is more than it takes"),
        ("table accept-changes CONF 3", "it lacks ['reason']"),
        ("plans supersede CONF --reason ...", "it lacks ['number']"),
        ("records show CONF -p clicks:3 --from", "--from takes something"),
    ],
)
def test_an_unknown_command_would_be_found(command: str, wrong: str) -> None:
    assert wrong in (wrong_with(command) or "")


def test_commands_are_found_on_pages_and_in_messages() -> None:
    on_pages = {command for page in PAGES for command in named_in(page.read_text())}
    in_messages = {
        command for module in MODULES for text in messages(module) for command in named_in(text)
    }
    assert {
        "pipelines inherit CONF --predecessor GROUP/PIPELINE --reason ...",
        "offsets show CONF --json",
    } <= in_messages | on_pages
    assert (
        "table accept-changes CONF VERSION --reason ..." in on_pages
        and "plans supersede CONF 1 --reason ..." in in_messages
    )
