"""Which files of a folder are confs: each is a pipeline, but for those that others name as their defaults."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from etl.errors import SettingsError
from etl.settings.yaml_file import read_document

_ENDS = (".yaml", ".yml")


def confs_in(folder: Path) -> tuple[Path, ...]:
    """The confs right in the folder, by name; a file that one of them names as its defaults is none. Raises SettingsError."""
    files = sorted(file for file in folder.iterdir() if file.suffix in _ENDS and not file.name.startswith(".") and file.is_file())
    named = {place for file in files if (place := _defaults(file))}
    confs = tuple(file for file in files if os.path.realpath(file) not in named)
    if not confs:
        raise SettingsError("there is no conf in this folder", path=folder, check="its files: a conf's name ends in .yaml or .yml")
    return confs


def _defaults(file: Path) -> str | None:
    with contextlib.suppress(SettingsError):  # told when the conf is run
        document = read_document(file, "the conf file")
        named = document.get("defaults") if isinstance(document, dict) else None
        return os.path.realpath(file.parent / named) if isinstance(named, str) else None
    return None
