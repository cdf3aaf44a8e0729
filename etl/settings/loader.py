"""A conf file to settings: read, what the command line changes put into it, defaults put below it,
references replaced, everything that is wrong told at once, paths made absolute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etl.errors import SettingsError
from etl.settings.changes import Change, changed
from etl.settings.defaults import Defaults, defaults_of, over, seen_from
from etl.settings.mistakes import conf_mistake
from etl.settings.physical import refuse_unfit
from etl.settings.policies import WriterName
from etl.settings.references import reference_at, resolve
from etl.settings.sections import Settings
from etl.settings.store import refuse_unfit_store
from etl.settings.table_place import refuse_not_apart
from etl.settings.yaml_file import read_document

_NEEDED = ("version", "pipeline", "group", "zookeeper.connect", "source.topics.allow", "table.path")


def load_settings(path: str | Path, changes: Sequence[Change] = ()) -> Settings:
    """Read one conf file; what it says of places on this machine is meant from its own folder, and
    comes back absolute.

    `changes` are put into it first. Raises SettingsError naming the file, the defaults below it,
    and all keys that are wrong.
    """
    document = changed(read_document(path, "the conf file"), changes)
    defaults = _defaults_of(document, path)
    try:
        settings = _placed(
            parse_settings(document, path=str(path), defaults=defaults),
            str(Path(path).absolute().parent),
        )
        if settings.table.is_placed:
            refuse_not_apart(settings, path)
    except SettingsError as error:
        raise _from_where(error, defaults, changes) from error.__cause__
    return settings


def _defaults_of(document: Any, path: str | Path) -> Defaults | None:
    try:
        return defaults_of(document, str(path))
    except SettingsError as error:
        error.where |= {"conf": str(path)}
        raise


def _from_where(
    error: SettingsError, defaults: Defaults | None, changes: Sequence[Change]
) -> SettingsError:
    """The same error, which also names what else the settings came from."""
    error.where |= {
        name: value
        for name, value in (
            ("defaults", defaults and defaults.path),
            ("set", ", ".join(change.key for change in changes)),
        )
        if value
    }
    return error


def parse_settings(
    document: Any, *, path: str | None = None, defaults: Defaults | None = None
) -> Settings:
    """A parsed YAML document to settings. Raises SettingsError that tells all wrong keys; its `key`
    is the path of the first one.
    """
    if not isinstance(document, dict):
        raise SettingsError(
            "a conf file is a mapping of keys", path=path, check=f"it needs {', '.join(_NEEDED)}"
        )
    try:
        written, meant = document, resolve(document, path)
        if defaults is not None:
            written, meant = over(defaults.written, written), over(defaults.meant, meant)
        settings = Settings.model_validate(meant)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise conf_mistake(found, path, lambda loc: reference_at(written, loc)) from error
    except RecursionError as error:
        raise SettingsError(
            "its values lie too deep in each other", path=path, check="its indentation"
        ) from error
    refuse_unfit(settings, path)
    if settings.table.is_placed:
        refuse_unfit_store(settings.table.path, settings.table.store, path)
    if settings.limits.without_spark_below_bytes and settings.table.writer is WriterName.SPARK:
        key = "limits.without_spark_below_bytes"
        raise SettingsError(
            f"{key} has no effect under table.writer: spark",
            key=key,
            path=path,
            check="table.writer: auto, or arrow; or leave the key out",
        )
    return settings


def _placed(settings: Settings, folder: str) -> Settings:
    """The same settings with absolute paths: another working directory must not be another table."""
    table, report = settings.table, settings.report
    losses = table.losses_path and seen_from(folder, table.losses_path)
    return settings.model_copy(
        update={
            "table": table.placed(
                seen_from(folder, table.path) if table.is_placed else None, losses
            ),
            "report": report.model_copy(update={"path": seen_from(folder, report.path)}),
            "metrics_path": settings.metrics_path and seen_from(folder, settings.metrics_path),
        }
    )
