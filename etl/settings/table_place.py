"""Where a table that a catalog names is, once Spark has told it, put into the settings; and that no
two tables share a folder.
"""

from __future__ import annotations

from pathlib import Path

from etl.errors import SettingsError
from etl.settings.places import check_place, not_apart
from etl.settings.sections import Settings
from etl.settings.store import refuse_unfit_store


def placed_by_name(settings: Settings, path: str) -> Settings:
    """The settings of a named table, with the place that the catalog has for it.

    Raises SettingsError for a place that both engines would not take for the same, that
    `table.store` does not fit, or that is in the way of the losses table, reports or metrics.
    """
    table, key = settings.table, "table.name"
    try:
        placed = settings.model_copy(
            update={"table": table.placed(check_place(path), table.losses_path)}
        )
    except ValueError as error:
        check = "ALTER TABLE ... SET LOCATION, or another table"
        raise SettingsError(
            f"{table.name} is at a place that cannot be used: {error}",
            path=path,
            key=key,
            check=check,
        ) from error
    refuse_unfit_store(path, table.store, None)
    refuse_not_apart(placed, None)
    return placed


def refuse_not_apart(settings: Settings, conf: str | Path | None) -> None:
    """Raises SettingsError where reports, metrics or the losses table are in a folder of the
    table's, or it in theirs.
    """
    wrong = not_apart(
        settings.table.path, settings.table.losses_at, settings.report.path, settings.metrics_file
    )
    if wrong is not None:
        check = "a folder of its own for each table, and others for reports and metrics"
        raise SettingsError(wrong[1], key=wrong[0], path=conf, check=check)
