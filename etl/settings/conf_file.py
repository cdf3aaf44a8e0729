"""What does a conf file contain, after defaults and references are resolved?

Lives here: reading YAML with limits on size and depth, without aliases and without duplicate
keys; `${env:NAME}` and `${file:PATH}`; the file that `defaults` names; which files of a directory
are confs (all but those that other confs name as defaults).

PyYAML has no such limits: nested aliases of one kilobyte expand to billions of values, nested
brackets take quadratic time, and of a duplicate key it silently keeps the last value.

Sections are merged key by key, any other value of the conf replaces the default. Relative paths
are relative to the file that holds them. Secret keys stay references: they are resolved where they
are used. What the keys mean is in etl/settings/sections.py.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from etl.errors import SettingsError
from etl.model.security import LocalFile, parse_reference
from etl.settings.choices import is_url
from etl.settings.secrets import FILE_KEYS, SECRET_KEYS, SECRET_MAX_BYTES, read_text

CONF_MAX_BYTES = 2**20
CONF_MAX_DEPTH = 50

NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
"""Exceptions of PyYAML; for tags such as `!!int ''` and numbers such as 59:59:...:59.0 plain ones.
"""

_MERGE = "tag:yaml.org,2002:merge"


def read_document(path: str | Path, called: str) -> Any:
    """The document in that file, which people call `called`. Raises SettingsError that names the
    file.
    """
    try:
        text = read_text(path, CONF_MAX_BYTES)
    except FileNotFoundError as error:
        raise SettingsError(
            f"{called} is not there", path=path, action="the path you gave"
        ) from error
    except IsADirectoryError as error:
        raise SettingsError(
            f"{called} is a folder",
            path=path,
            action="the path you gave; `etl run` alone takes a folder",
        ) from error
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: its bytes are not UTF-8, or its name is no name
        raise SettingsError(
            f"{called} cannot be read: {error}", path=path, action="its permissions and encoding"
        ) from error
    try:
        return document_of(text)
    except NOT_YAML as error:
        message = f"{called} cannot be read as YAML: {said_of(error)}"
        raise SettingsError(message, path=path, action="its syntax at that line") from error


def document_of(text: str) -> Any:
    """The one YAML document of `text`. Raises one of NOT_YAML."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _reject_repeated_keys(loader, node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _reject_repeated_keys(loader: _Loader, document: yaml.Node) -> None:
    """Raises MarkedYAMLError for the first duplicate key of a mapping. Merged mappings (`<<`) have
    keys of their own.
    """
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            _reject_repeated_key(loader, node)
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)


def _reject_repeated_key(loader: _Loader, mapping: yaml.MappingNode) -> None:
    first_lines: dict[Any, int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue  # PyYAML refuses it
        name = key.value if key.tag == _MERGE else loader.construct_object(key)
        if name in first_lines:
            message = f"the key {str(name)[:100]} stands twice, first in line {first_lines[name]}; write it once, with all that it holds"
            raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
        first_lines[name] = key.start_mark.line + 1


def said_of(error: Exception) -> str:
    """Describe one of NOT_YAML with its position, without the line, which may contain a password."""
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
        message = "an alias (*) is not taken here: write the value out, or put quotes around a text that begins with *"
        raise yaml.MarkedYAMLError(problem=message, problem_mark=self.get_mark())

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= CONF_MAX_DEPTH:
            raise ValueError(f"brackets lie more than {CONF_MAX_DEPTH} deep in each other")
        super().fetch_flow_collection_start(TokenClass)


_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def reference_at(document: Any, loc: Sequence[int | str]) -> str | None:
    """The text at that place of the file as it was written, when it holds a reference."""
    for part in loc:
        children = dict(enumerate(document)) if isinstance(document, list) else document
        if not isinstance(children, dict):
            break
        document = children.get(part)
    return document if isinstance(document, str) and _REFERENCE.search(document) else None


def resolve(value: Any, path: str | None, key: str = "") -> Any:
    """Replace `${env:NAME}` and `${file:/path}` in every text, but for those of `secrets`."""
    if isinstance(value, dict):
        return {k: resolve(v, path, f"{key}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve(v, path, f"{key}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    if key in SECRET_KEYS:
        return parse_reference(value, _folder(path)) or value
    meant = _REFERENCE.sub(lambda found: _referenced(found[1], found[2], path, key), value)
    return LocalFile(meant, _folder(path)) if key in FILE_KEYS and meant else meant


def _referenced(kind: str, name: str, path: str | None, key: str) -> str:
    try:
        return (
            os.environ[name]
            if kind == "env"
            else read_text(_beside(path, name), SECRET_MAX_BYTES).strip()
        )
    except (KeyError, OSError, ValueError) as error:
        message = f"the {'environment variable' if kind == 'env' else 'file'} {name} it refers to cannot be read"
        raise SettingsError(
            message, path=path, key=key, action="that it is set where this command runs"
        ) from error


def _beside(conf: str | None, name: str) -> str:
    return os.path.join(_folder(conf) or "", name)


def _folder(conf: str | None) -> str | None:
    return os.path.dirname(os.path.abspath(conf)) if conf else None


OF_ONE_PIPELINE = ("pipeline", "defaults")
"""Keys that such a file cannot have."""
_PATHS: Mapping[str, tuple[str, ...]] = {
    "table": ("path", "losses_path"),
    "report": ("path",),
    "metrics": ("path",),
}
SHORT_FORMS: Mapping[str, str] = {"group": "id", "transform": "dataframe"}
"""Sections that may be one text, and the key that it sets."""


def expand_short_forms(document: Any) -> Any:
    """Return the document with `group: NAME` and `transform: NAME` written as sections; null is
    the section without a name.
    """
    if not isinstance(document, dict):
        return document
    expanded = dict(document)
    for section, key in SHORT_FORMS.items():
        value = document.get(section)
        if isinstance(value, str) or (value is None and section in document):
            expanded[section] = {key: value}
    return expanded


@dataclass(frozen=True, slots=True)
class Defaults:
    """The keys of such a file."""

    path: str
    written: Mapping[str, Any]
    """Values as in the file, with references to secrets."""

    @property
    def meant(self) -> dict[str, Any]:
        """References replaced, places absolute. Raises SettingsError for a reference that leads
        nowhere.
        """
        return _placed(resolve(self.written, self.path), os.path.dirname(self.path))


def defaults_of(document: Any, conf: str) -> Defaults | None:
    """The file that this document of the conf names; None where it names none.

    Raises SettingsError for a file that is not there or holds no keys, or holds those that are one
    pipeline's.
    """
    named = document.get("defaults") if isinstance(document, dict) else None
    if not isinstance(named, str) or not named:
        return None  # another kind of value is refused with the other keys
    path = os.path.join(os.path.dirname(os.path.abspath(conf)), named)
    written = read_document(path, "the file of defaults")
    if not isinstance(written, dict):
        raise SettingsError(
            "a file of defaults is a mapping of keys, as a conf has them",
            path=path,
            action="its content",
        )
    for key in OF_ONE_PIPELINE:
        if key in written:
            action = (
                "the key: it stands in each conf"
                if key == "pipeline"
                else "the key: one file of defaults has no other below it"
            )
            raise SettingsError(
                f"a file of defaults cannot have the key {key}", path=path, key=key, action=action
            )
    return Defaults(path, expand_short_forms(written))


def over(defaults: Mapping[Any, Any], document: Mapping[Any, Any]) -> dict[Any, Any]:
    """The document, with the defaults where it has no key."""
    both = {
        key: over(value, document[key])
        for key, value in defaults.items()
        if isinstance(value, dict) and isinstance(document.get(key), dict)
    }
    return {**defaults, **document, **both}


def _placed(document: dict[str, Any], folder: str) -> dict[str, Any]:
    placed = dict(document)
    for section, paths in _PATHS.items():
        keys = document.get(section)
        if not isinstance(keys, dict):
            continue
        placed[section] = dict(keys)
        for key in paths:
            if isinstance(keys.get(key), str) and keys[key]:
                placed[section][key] = relative_path(folder, keys[key])
    return placed


def relative_path(folder: str, path: str) -> str:
    """`path` seen from that folder; an object store's URL is what it is."""
    return (
        path
        if is_url(path) or path.startswith(("file:", "~"))
        else os.path.normpath(os.path.join(folder, path))
    )


_ENDS = (".yaml", ".yml")


def confs_in(folder: Path) -> tuple[Path, ...]:
    """The confs right in the folder, by name; a file that one of them names as its defaults is
    none, unless it names a pipeline.

    Raises SettingsError.
    """
    files = sorted(
        file
        for file in folder.iterdir()
        if file.suffix in _ENDS and not file.name.startswith(".") and file.is_file()
    )
    documents = {file: _document(file) for file in files}
    places = ((file, document.get("defaults")) for file, document in documents.items())
    named = {
        os.path.realpath(file.parent / place)
        for file, place in places
        if isinstance(place, str) and "\0" not in place
    }
    named -= {
        os.path.realpath(file) for file, document in documents.items() if "pipeline" in document
    }
    confs = tuple(file for file in files if os.path.realpath(file) not in named)
    if not confs:
        raise SettingsError(
            "there is no conf in this folder",
            path=folder,
            action="its files: a conf's name ends in .yaml or .yml",
        )
    return confs


def _document(file: Path) -> Mapping[Any, Any]:
    with contextlib.suppress(SettingsError):  # told when the conf is run
        document = read_document(file, "the conf file")
        return document if isinstance(document, dict) else {}
    return {}
