"""A conf as text: each key with its comment above it, in the order given, and first what tells an
editor which keys there are.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etl.settings.schema import SCHEMA_FILE

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Chosen:
    """One key of a conf (`source.topics.allow`), its value, and why it is so."""

    key: str
    value: Any
    why: str


def conf_text(chosen: Sequence[Chosen]) -> str:
    """The file. Keys of one section must follow one another."""
    return "\n".join(_lines(chosen)) + "\n"


def _lines(chosen: Sequence[Chosen]) -> Iterator[str]:
    yield f"# yaml-language-server: $schema={SCHEMA_FILE}"
    yield "# Written by `etl init`. `etl schema` says what other keys there are; `etl doctor CONF` looks at all that a run needs."
    above: list[str] = []
    for one in chosen:
        *sections, name = one.key.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                yield f"{'  ' * depth}{section}:"
        above, indent = sections, "  " * len(sections)
        yield from (f"{indent}# {line}" for line in textwrap.wrap(one.why, _WIDTH - len(indent)))
        yield f"{indent}{name}: {json.dumps(one.value, ensure_ascii=False)}"
