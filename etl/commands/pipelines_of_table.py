"""Which pipelines have loaded into a table, and which of them a person names."""

from __future__ import annotations

from collections.abc import Sequence

from etl.errors import SettingsError
from etl.io.delta.table_state import other_pipelines
from etl.model.snapshot import OtherPipeline, Table
from etl.run.live import LiveServices
from etl.settings.sections import Settings


def pipelines_of(world: LiveServices, table: Table | None) -> list[OtherPipeline]:
    """All that have loaded into the table, this one among them."""
    if table is None:
        return []
    us = (
        [OtherPipeline(world.app_id, table.transaction_version)]
        if table.transaction_version
        else []
    )
    return [*other_pipelines(world.settings.table.path, world.app_id), *us]


def the_one(place: str, there: Sequence[OtherPipeline]) -> OtherPipeline:
    """The pipeline that is called so, `GROUP/PIPELINE` or `CLUSTER/GROUP/PIPELINE`. Raises
    SettingsError where that is not one.
    """
    found = [one for one in there if f"/{one.app_id}".endswith(f"/{place.strip('/')}")]
    if len(found) != 1:
        names = (
            ", ".join(sorted("/".join(one.app_id.split("/")[1:]) for one in found or there))
            or "none"
        )
        what = f"{'several pipelines of this name have' if found else 'no pipeline of this name has'} loaded into the table"
        raise SettingsError(
            what, key="--from", check=f"say CLUSTER/GROUP/PIPELINE, one of: {names}"
        )
    return found[0]


def is_us(app_id: str, settings: Settings) -> bool:
    """Whether it is this very pipeline, also under a name that the cluster had before."""
    return app_id.split("/")[-2:] == [settings.group, settings.pipeline]
