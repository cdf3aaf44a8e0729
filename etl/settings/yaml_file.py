"""The text of a conf file and the YAML document in it, bounded by size and by depth, without
aliases, and with each key once.

PyYAML alone bounds nothing: a kilobyte of aliases of aliases unfolds to billions of values once
somebody walks over them, its merge keys do so while it reads, and brackets in brackets take it
quadratic time. No key of ours needs an alias. And of a key that stands twice in a mapping it takes
the last value without a word: a second `limits:` drops all that the first one says. What the keys
mean is in `sections`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from etl.errors import SettingsError

CONF_MAX_BYTES = 2**20
CONF_MAX_DEPTH = 50
SECRET_MAX_BYTES = 64 * 2**10
"""A file that a value refers to holds one value."""

NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
"""What PyYAML raises: for tags such as `!!int ''` and numbers such as 59:59:...:59.0 plain ones."""

_MERGE = "tag:yaml.org,2002:merge"


def read_text(path: str | Path, most: int) -> str:
    """A text file of at most that many bytes; what has no end (a device) is not read to it.

    Raises OSError, and ValueError for a larger one and for bytes that are not UTF-8.
    """
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return content.decode("utf-8")


def read_document(path: str | Path, called: str) -> Any:
    """The document in that file, which people call `called`. Raises SettingsError that names the
    file.
    """
    try:
        text = read_text(path, CONF_MAX_BYTES)
    except FileNotFoundError as error:
        raise SettingsError(
            f"{called} is not there", path=path, check="the path you gave"
        ) from error
    except IsADirectoryError as error:
        raise SettingsError(
            f"{called} is a folder",
            path=path,
            check="the path you gave; `etl run` alone takes a folder",
        ) from error
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: its bytes are not UTF-8, or its name is no name
        raise SettingsError(
            f"{called} cannot be read: {error}", path=path, check="its permissions and encoding"
        ) from error
    try:
        return document_of(text)
    except NOT_YAML as error:
        what = f"{called} cannot be read as YAML: {said_of(error)}"
        raise SettingsError(what, path=path, check="its syntax at that line") from error


def document_of(text: str) -> Any:
    """The one YAML document of `text`. Raises one of NOT_YAML."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(loader, node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_repeated_keys(loader: _Loader, document: yaml.Node) -> None:
    """Raises MarkedYAMLError for the first key that stands twice in one mapping.

    What `<<` merges has mappings of its own, whose keys may stand beside it.
    """
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated_key(loader, node)
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)


def _refuse_repeated_key(loader: _Loader, mapping: yaml.MappingNode) -> None:
    first_lines: dict[Any, int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue  # PyYAML refuses it
        name = key.value if key.tag == _MERGE else loader.construct_object(key)
        if name in first_lines:
            what = f"the key {str(name)[:100]} stands twice, first in line {first_lines[name]}; write it once, with all that it holds"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
        first_lines[name] = key.start_mark.line + 1


def said_of(error: Exception) -> str:
    """What one of NOT_YAML says, and where: without the line itself, for a password may stand in
    it.
    """
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    words, mark = (
        ", ".join(filter(None, (error.context, error.problem))),
        error.problem_mark or error.context_mark,
    )
    return f"{words}: line {mark.line + 1}, column {mark.column + 1}" if mark else words


class _Loader(yaml.SafeLoader):
    """PyYAML's, which alone would follow aliases, and brackets as deep as they go: each one costs
    it as much as all those around it.
    """

    def fetch_alias(self) -> None:
        what = "an alias (*) is not taken here: write the value out, or put quotes around a text that begins with *"
        raise yaml.MarkedYAMLError(problem=what, problem_mark=self.get_mark())

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= CONF_MAX_DEPTH:
            raise ValueError(f"brackets lie more than {CONF_MAX_DEPTH} deep in each other")
        super().fetch_flow_collection_start(TokenClass)
