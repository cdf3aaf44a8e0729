"""Which commands and programs do the project's pages show?

Lives here: the pages, the commands in their code blocks and between backticks, their Python
programs, and the text of one section.
Not here: whether a command exists (tests/unit/test_written_commands.py), and whether files, modules
and symbols do (tests/unit/test_written_names.py).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "airflow_dags").glob("*.md")),
)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4,}\S.*\n?)+", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_NOT_SHELL = ("python", "yaml", "json", "text")


@dataclass(frozen=True)
class CodeBlock:
    section: str
    language: str
    """As written after the fence; empty if there is none, or the block is indented."""
    text: str


def place(path: Path) -> str:
    """Return the path of a page relative to the repository."""
    return str(path.relative_to(ROOT))


def code_blocks(page: Path) -> Iterator[CodeBlock]:
    """Return the fenced and indented blocks of a page, in order."""
    text = page.read_text()
    fenced = [(found.start(), found[1], found[2]) for found in _FENCE.finditer(text)]
    blank = _FENCE.sub(lambda found: " " * len(found[0]), text)
    indented = [(found.start(), "", found[0]) for found in _INDENTED.finditer(blank)]
    headings = [(found.start(), found[1]) for found in _HEADING.finditer(blank)]
    for start, language, block in sorted(fenced + indented):
        above = [heading for at, heading in headings if at < start]
        section = above[-1] if above else ""
        yield CodeBlock(section, language, textwrap.dedent(block))


def command_lines(page: Path, section: str | None = None) -> list[str]:
    """Lines of shell blocks, continued ones joined; `section`: only below that heading."""
    lines = []
    for block in code_blocks(page):
        if block.language in _NOT_SHELL or section not in (None, block.section):
            continue
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
            command = re.split(r" {3,}|\s+#\s|^#\s", line.strip())[0]
            if command:
                lines.append(command)
    return lines


def programs(page: Path) -> list[str]:
    return [block.text for block in code_blocks(page) if block.language == "python"]
