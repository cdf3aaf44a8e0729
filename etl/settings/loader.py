"""A conf file to settings: read, references replaced, everything that is wrong told at once, paths made absolute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etl.errors import SettingsError
from etl.settings.mistakes import conf_mistake
from etl.settings.physical import refuse_unfit
from etl.settings.places import is_url, not_apart
from etl.settings.references import reference_at, resolve
from etl.settings.sections import Settings
from etl.settings.yaml_file import CONF_MAX_BYTES, NOT_YAML, document_of, read_text

_NEEDED = ("version", "pipeline", "group", "zookeeper.connect", "source.topics.allow", "table.path")


def load_settings(path: str | Path) -> Settings:
    """Read one conf file; what it says of places on this machine is meant from its own folder, and comes back absolute.

    Raises SettingsError naming the file and all keys that are wrong.
    """
    try:
        text = read_text(path, CONF_MAX_BYTES)
    except FileNotFoundError as error:
        raise SettingsError("the conf file is not there", path=path, check="the path you gave") from error
    except (OSError, ValueError) as error:  # ValueError: its bytes are not UTF-8, or its name is no name
        raise SettingsError(f"the conf file cannot be read: {error}", path=path, check="its permissions and encoding") from error
    try:
        document = document_of(text)
    except NOT_YAML as error:
        what = f"the conf file cannot be read as YAML: {_one_line(error)}"
        raise SettingsError(what, path=path, check="its syntax at that line") from error
    settings = _placed(parse_settings(document, path=str(path)), Path(path).absolute().parent)
    wrong = not_apart(settings.table.path, settings.table.losses_at, settings.report.path)
    if wrong is not None:
        raise SettingsError(wrong[1], key=wrong[0], path=path, check="a folder of its own for each table, and one for the reports")
    return settings


def parse_settings(document: Any, *, path: str | None = None) -> Settings:
    """A parsed YAML document to settings. Raises SettingsError that tells all wrong keys; its `key` is the path of the first one."""
    if not isinstance(document, dict):
        raise SettingsError("a conf file is a mapping of keys", path=path, check=f"it needs {', '.join(_NEEDED)}")
    try:
        settings = Settings.model_validate(resolve(document, path))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise conf_mistake(found, path, lambda loc: reference_at(document, loc)) from error
    except RecursionError as error:
        raise SettingsError("its values lie too deep in each other", path=path, check="its indentation") from error
    refuse_unfit(settings, path)
    return settings


def _placed(settings: Settings, folder: Path) -> Settings:
    """The same settings with absolute paths: another working directory must not be another table."""
    table, report = settings.table, settings.report
    return settings.model_copy(update={
        "table": table.model_copy(update={
            "path": _from(folder, table.path), "losses_path": _from(folder, table.losses_path) if table.losses_path else None}),
        "report": report.model_copy(update={"path": _from(folder, report.path)})})


def _from(folder: Path, path: str) -> str:
    """`path` seen from that folder; an object store's URL is what it is."""
    return path if is_url(path) or path.startswith("file:") else os.path.normpath(folder / path)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
