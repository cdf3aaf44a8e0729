"""Which files of a folder are confs: each is a pipeline, but for those that others name as their
defaults.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etl.errors import SettingsError
from etl.settings.yaml_file import read_document

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
            check="its files: a conf's name ends in .yaml or .yml",
        )
    return confs


def _document(file: Path) -> Mapping[Any, Any]:
    with contextlib.suppress(SettingsError):  # told when the conf is run
        document = read_document(file, "the conf file")
        return document if isinstance(document, dict) else {}
    return {}
