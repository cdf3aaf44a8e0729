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
from etl.settings.secrets import FILE_KEYS, SECRET_KEYS, read_text, read_value

CONF_MAX_BYTES = 2**20
CONF_MAX_DEPTH = 50

NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
"""Exceptions of PyYAML; for tags such as `!!int ''` and numbers such as 59:59:...:59.0 plain ones.
"""

_MERGE = "tag:yaml.org,2002:merge"


def read_document(path: str | Path, kind: str) -> Any:
    """Read the YAML document of a file. `kind` names the file in messages: `the conf file`.

    Raises SettingsError with the path.
    """
    subject = kind[0].upper() + kind[1:]
    try:
        text = read_text(path, CONF_MAX_BYTES)
    except FileNotFoundError as error:
        raise SettingsError(
            f"{subject} does not exist", path=path, action="Check the path"
        ) from error
    except IsADirectoryError as error:
        raise SettingsError(
            f"{subject} is a directory",
            path=path,
            action="Pass a file; only `etl run` takes a directory",
        ) from error
    except (OSError, ValueError) as error:  # ValueError: invalid UTF-8, or a NUL in the name
        raise SettingsError(
            f"{subject} cannot be read: {error}",
            path=path,
            action="Check its permissions and its encoding, UTF-8",
        ) from error
    try:
        return document_of(text)
    except NOT_YAML as error:
        message = f"{subject} is not valid YAML: {said_of(error)}"
        raise SettingsError(message, path=path, action="Check its syntax at that line") from error


def document_of(text: str) -> Any:
    """Parse the one YAML document of `text`. Raises one of NOT_YAML."""
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
    """Raise MarkedYAMLError for the first duplicate key of a mapping. A key of a merged mapping
    (`<<`) is no duplicate.
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
            continue  # PyYAML rejects it
        name = key.value if key.tag == _MERGE else loader.construct_object(key)
        if name in first_lines:
            message = (
                f"duplicate key {str(name)[:100]}, first in line {first_lines[name]}; write it once"
            )
            raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
        first_lines[name] = key.start_mark.line + 1


def said_of(error: Exception) -> str:
    """Describe one of NOT_YAML with its position, without the line, which may contain a
    password.
    """
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    description = ", ".join(filter(None, (error.context, error.problem)))
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return description
    return f"{description}: line {mark.line + 1}, column {mark.column + 1}"


class _Loader(yaml.SafeLoader):
    """PyYAML's loader without aliases and with a limit on nested brackets: each level costs it as
    much as all outer levels together.
    """

    def fetch_alias(self) -> None:
        message = (
            "aliases (*) are not supported: write the value, or quote a string that begins with *"
        )
        raise yaml.MarkedYAMLError(problem=message, problem_mark=self.get_mark())

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= CONF_MAX_DEPTH:
            raise ValueError(f"more than {CONF_MAX_DEPTH} nested brackets")
        super().fetch_flow_collection_start(TokenClass)


_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_SPARK = "spark."


def reference_at(document: Any, loc: Sequence[int | str]) -> str | None:
    """Return the string at a place of the file as written, if it contains a reference; else
    None.
    """
    for part in loc:
        children = document
        if isinstance(document, list):
            children = dict(enumerate(document))
        if not isinstance(children, dict):
            break
        document = children.get(part)
    if isinstance(document, str) and _REFERENCE.search(document):
        return document
    return None


def resolve(value: Any, path: str | None, key: str = "") -> Any:
    """Replace `${env:NAME}` in every string, and `${file:/path}` in properties of Spark; secret keys
    keep their references. Raises SettingsError for a reference that cannot be read, and for a file
    in any other key: messages show the values of these keys.
    """
    if isinstance(value, dict):
        return {k: resolve(v, path, f"{key}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve(v, path, f"{key}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    if key in SECRET_KEYS:
        return parse_reference(value, _folder(path)) or value
    resolved = _REFERENCE.sub(lambda found: _referenced(found[1], found[2], path, key), value)
    if key in FILE_KEYS and resolved:
        return LocalFile(resolved, _folder(path))
    return resolved


def _referenced(kind: str, name: str, path: str | None, key: str) -> str:
    source = "environment variable" if kind == "env" else "file"
    if kind == "file" and not key.startswith(_SPARK):
        raise SettingsError(
            f"The value refers to the file {name}, and only secrets and Spark's properties may",
            path=path,
            key=key,
            action="Write the value, or refer to an environment variable: ${env:NAME}",
        )
    try:
        if kind == "env":
            return os.environ[name]
        return read_value(os.path.join(_folder(path) or "", name))
    except (KeyError, OSError, ValueError) as error:
        problem = "is not set" if isinstance(error, KeyError) else "cannot be read"
        raise SettingsError(
            f"The value refers to the {source} {name}, which {problem}",
            path=path,
            key=key,
            action=f"Check that this {source} exists where the command runs",
        ) from error


def _folder(conf: str | None) -> str | None:
    return os.path.dirname(os.path.abspath(conf)) if conf else None


OF_ONE_PIPELINE = ("pipeline", "defaults")
"""Keys that a file of defaults cannot have."""
_PATHS: Mapping[str, tuple[str, ...]] = {
    "table": ("path", "losses_path"),
    "report": ("path",),
    "metrics": ("path",),
}
SHORT_FORMS: Mapping[str, str] = {"group": "id", "transform": "dataframe"}
"""Sections that may be written as one string, and the key that it sets."""


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
    """The content of a file that the key `defaults` names."""

    path: str
    written: Mapping[str, Any]
    """Values as in the file, with references to secrets."""

    @property
    def resolved(self) -> dict[str, Any]:
        """Return the values with references replaced and absolute paths. Raises SettingsError for a
        reference that cannot be read.
        """
        return _with_absolute_paths(resolve(self.written, self.path), os.path.dirname(self.path))


def defaults_of(document: Any, conf: str) -> Defaults | None:
    """Read the file that the key `defaults` names; None if the conf has no such key.

    Raises SettingsError for a file that is missing, is not a mapping, or has keys that belong to
    one pipeline.
    """
    named = document.get("defaults") if isinstance(document, dict) else None
    if not isinstance(named, str) or not named:
        return None  # a value of another type is rejected with the other keys
    path = os.path.join(os.path.dirname(os.path.abspath(conf)), named)
    written = read_document(path, "the file of defaults")
    if not isinstance(written, dict):
        raise SettingsError(
            "The file of defaults is not a mapping of keys",
            path=path,
            action="Write it as a conf",
        )
    for key in OF_ONE_PIPELINE:
        if key in written:
            action = "Remove the key: a file of defaults cannot name another one"
            if key == "pipeline":
                action = "Move the key to each conf"
            raise SettingsError(
                f"A file of defaults cannot have the key {key}", path=path, key=key, action=action
            )
    return Defaults(path, expand_short_forms(written))


def over(defaults: Mapping[Any, Any], document: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the document with defaults for missing keys; sections are merged."""
    merged = {**defaults, **document}
    for key, value in defaults.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            merged[key] = over(value, document[key])
    return merged


def _with_absolute_paths(document: dict[str, Any], folder: str) -> dict[str, Any]:
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
    """Return the absolute path of a path relative to `folder`. URLs are returned as they are."""
    if is_url(path) or path.startswith(("file:", "~")):
        return path
    return os.path.normpath(os.path.join(folder, path))


_ENDS = (".yaml", ".yml")


def confs_in(folder: Path) -> tuple[Path, ...]:
    """Return the confs of a directory, sorted by name. A file of defaults is not a conf, unless it
    has the key `pipeline`.

    Raises SettingsError if there is none.
    """
    files = []
    for file in sorted(folder.iterdir()):
        if file.suffix in _ENDS and not file.name.startswith(".") and file.is_file():
            files.append(file)

    defaults_files = set()
    pipeline_files = set()
    for file in files:
        document = _document(file)
        place = document.get("defaults")
        if isinstance(place, str) and "\0" not in place:
            defaults_files.add(os.path.realpath(file.parent / place))
        if "pipeline" in document:
            pipeline_files.add(os.path.realpath(file))

    excluded = defaults_files - pipeline_files
    confs = tuple(file for file in files if os.path.realpath(file) not in excluded)
    if not confs:
        raise SettingsError(
            "The directory has no conf",
            path=folder,
            action="Check its files: the name of a conf ends in .yaml or .yml",
        )
    return confs


def _document(file: Path) -> Mapping[Any, Any]:
    with contextlib.suppress(SettingsError):  # reported when the conf is run
        document = read_document(file, "the conf file")
        return document if isinstance(document, dict) else {}
    return {}
