"""The commands on the project's pages, each as it stands there: lines of their own, and those
between backticks in a sentence.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from etl.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "airflow_dags" / "README.md",
]
_PROGRAMS = (
    r"(?:etl(?= )|make(?= )|python[\d.]*(?= )|pip(?= )|pytest(?= )|airflow(?= )|mkdir(?= "
    r")|systemctl(?= )|systemd-analyze(?= )|docker(?= )"
    r"|docker-image-tool\.sh(?= )|spark-submit(?= )|kafka-consumer-groups\.sh(?= "
    r")|[A-Z_]+=\S+ |/opt/\S+/bin/\w+(?= )|\.venv/bin/\w+(?= ))"
)
COMMAND: Any = typer.main.get_command(app)


@dataclass(frozen=True)
class Written:
    """One command, and where it is written."""

    page: str
    section: str
    """The nearest heading above it."""
    text: str
    """Return the command in one line, without the other text of the page."""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines(page: Path) -> Iterator[Written]:
    """Return the commands in lines of their own; Python programs are none."""
    for section, block in _blocks(page):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if text := re.split(r" {3,}|\s+#\s", line.strip())[0]:
                yield Written(place(page), section, text)


def programs(page: Path) -> list[str]:
    """Those in Python, as they stand there."""
    return re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)


def sentences(page: Path) -> Iterator[Written]:
    """What a sentence names between backticks and begins with a program; also a mere name, such as
    `etl topics accept-changes`.
    """
    section = ""
    for part in re.split(r"^(#+ .*)$", _without_blocks(page.read_text()), flags=re.MULTILINE):
        section = part.lstrip("# ") if part.startswith("#") else section
        for found in re.finditer(rf"`((?:{_PROGRAMS})[^`]*)`", re.sub(r"\s+", " ", part)):
            yield Written(place(page), section, found[1].replace("\\|", "|").strip())


def is_command(text: str) -> bool:
    """Whether a line is one; else it is a path, an expression or part of a picture."""
    return re.match(_PROGRAMS, f"{text} ") is not None


def is_whole(text: str) -> bool:
    """Whether it can be typed once its words in capital letters are filled in; `etl offsets set
    ...` and `etl verify` are names.
    """
    words = shlex.split(text)
    if words[0] != "etl":
        return "..." not in words
    if re.search(r"(?<!--reason)(?<!--skip) \.\.\.", text):
        return False
    found, words = _found(words[1:])
    if found is None:
        return False
    options = {
        flag: one
        for one in found.params
        if one.param_type_name == "option"
        for flag in (*one.opts, *one.secondary_opts)
    }
    given, result = 0, set[str]()
    while words:
        word = words.pop(0)
        if word in options:
            result.add(options[word].name)
            words = words if options[word].is_flag else words[1:]
        else:
            given += 1
    arguments = [one for one in found.params if one.param_type_name == "argument" and one.required]
    return given >= len(arguments) and all(
        one.name in result for one in options.values() if one.required
    )


def meant_by(text: str) -> str:
    """The same for two commands that ask for the same of the same world: reasons, and what the conf
    and its folder are called, aside.
    """
    if text.startswith("python -m tests.bench "):  # the page of its results names their options
        return "python -m tests.bench"
    text = re.sub(r"--reason (\"[^\"]*\"|\.\.\.)", "--reason ...", text)
    return (
        re.sub(r"\bconf/clicks\.yaml\b", "CONF", text)
        .replace("etl run conf", "etl run FOLDER")
        .replace("CONF [NAME]", "CONF NAME")
    )


def family(text: str) -> str:
    """The name of a command of ours: `topics accept-changes`."""
    words, found = shlex.split(text)[1:], COMMAND
    named = list[str]()
    while words and hasattr(found, "commands") and words[0] in found.commands:
        found = found.commands[words[0]]
        named.append(words.pop(0))
    return " ".join(named)


def _found(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, and the words after its name."""
    found = COMMAND
    while hasattr(found, "commands"):
        if words and words[0] in found.commands:
            found, words = found.commands[words[0]], words[1:]
        elif words and hasattr(found, "default_command"):
            found = found.commands[found.default_command]
        else:
            return None, words
    return found, words


def _without_blocks(text: str) -> str:
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4,}\S.*$", "", text, flags=re.MULTILINE)


def _blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(Section, indented lines or a fence that are not Python)."""
    section, block = "", list[str]()
    text = re.sub(
        r"^ *```(python|yaml)\n.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    fenced = False
    for line in [*text.splitlines(), ""]:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or re.match(r" {4,}\S", line):
            block.append(line)
        else:
            if block:
                yield section, "\n".join(block)
                block = []
            if line.startswith("#"):
                section = line.lstrip("# ")
