"""What must a DAG know of a pipeline and its environment, and is it there? Loads without Airflow.

What a DAG must know of a pipeline: a few keys of its conf file. The command that a task starts
reads and checks all of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily
from etl.settings.choices import folder_of, one_scheme, place_of
from etl.settings.conf_file import (
    CONF_MAX_BYTES,
    NOT_YAML,
    confs_in,
    defaults_of,
    document_of,
    over,
    resolve,
    said_of,
)
from etl.settings.secrets import read_text


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline, as its DAGs know it."""

    conf: str
    """Where its conf file is, absolute; the workers read it there, too."""
    name: str
    group: str
    table: str
    """As a URI, one for each table however the conf writes it: `file:///...`, or the object
    store's; `delta-table:///catalog.schema.table` where a catalog names it."""
    is_physical: bool
    """Offsets are byte positions, and messages have no times: Jafka, Kafka 0.7."""


def pipeline_of(conf: str | Path) -> Pipeline:
    """The pipeline of a conf file. Secrets in it are not looked up: what parses DAG files needs
    none.

    Raises SettingsError for a file that is not there or cannot be read, and for a key that is
    missing.
    """
    path = Path(conf).absolute()
    try:
        document = document_of(read_text(path, CONF_MAX_BYTES))
    except (OSError, ValueError, *NOT_YAML) as error:
        check = "the path, which the DAG file names"
        raise SettingsError(
            f"the conf file cannot be read: {said_of(error)}", path=path, check=check
        ) from error
    names_table = path  # a folder is seen from the file that names it
    if defaults := defaults_of(document, str(path)):
        if _find(document, "table.path") is None and _find(defaults.written, "table.path"):
            names_table = Path(defaults.path)
        document = over(defaults.written, document)
    return Pipeline(
        str(path),
        _text(document, "pipeline", path),
        _text(document, "group", path),
        _table_of(document, names_table),
        is_physical=_find(document, "source.dialect") == BrokerFamily.JAFKA.value,
    )


def _table_of(document: Any, path: Path) -> str:
    """The table's URI; `path` is the file that names it."""
    if _find(document, "table.name") is not None:
        return f"delta-table:///{_text(document, 'table.name', path)}"
    table = _text(document, "table.path", path)
    folder = folder_of(table)
    return (
        one_scheme(place_of(table))
        if folder is None
        else Path(os.path.normpath(path.parent / folder)).as_uri()
    )


def conf_files(folder: str | Path) -> list[Path]:
    """The conf files of a folder, in order. Raises SettingsError where it has none: DAGs that
    vanish are told, not missed.
    """
    try:
        return list(confs_in(Path(folder)))
    except (SettingsError, OSError) as error:
        what, check = (
            "no conf file is in the folder, so there is no DAG",
            "ETL_CONF, which names the folder",
        )
        raise SettingsError(what, path=folder, check=check) from error


def _text(document: Any, key: str, path: Path) -> str:
    found = resolve(_find(document, key), str(path), key)
    if not isinstance(found, str) or not found:
        raise SettingsError(
            "the conf file lacks a key that its DAGs need",
            key=key,
            path=path,
            check="`etl doctor CONF`",
        )
    return found


def _find(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document
