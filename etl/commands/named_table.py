"""`etl table`: where the table is that the conf names as a catalog does, and that runs go by what the catalog says now."""

from __future__ import annotations

from typing import Any

from etl.commands.operator import Ruling
from etl.commands.run import new_run_id
from etl.decisions.named_tables import KEY
from etl.edges.zookeeper.named_table import read_named_table, write_named_table
from etl.errors import SettingsError
from etl.model.ledger import Ledger
from etl.model.named_table import NamedTable
from etl.report.phases import Stopwatch
from etl.report.words import at
from etl.run.context import ALONE, RunContext
from etl.run.named_table import ask
from etl.run.wiring import open_world, place_table
from etl.settings.places import place_of
from etl.settings.sections import Settings
from etl.settings.table_place import placed_by_name


def with_table(settings: Settings, run_context: RunContext = ALONE) -> Settings:
    """The settings with the place of a named table, for a look: nothing is kept, and a name that is not taken is refused."""
    return place_table(settings, run_context, name=f"{new_run_id()}-name").settings


def resolve(settings: Settings, run_context: RunContext = ALONE) -> Ruling:
    """Ask Spark where the table is, and keep that: runs go by it from now on. Whether it is the same table its id tells the next run.

    Raises SettingsError for a conf that names a path, and as `run.named_table.ask`.
    """
    if settings.table.name is None:
        raise SettingsError("the conf names the table by its path, so there is no name to resolve", key=KEY, check="`etl doctor CONF`")
    run_id = new_run_id()
    found = ask(settings, run_context, Stopwatch(), name=f"{run_id}-name")
    with open_world(placed_by_name(settings, found.path), run_context, name=run_id) as world, world.driving(run_id):
        before, ledger = read_named_table(world.ledger), world.ledger.read_ledger()
        write_named_table(world.ledger, found)
    says = told(before, found, ledger)
    return Ruling(says, {"says": says, "now": as_json(found), "before": as_json(before) if before else None,
                         "table_of_newest_plan": ledger.newest.table_id if ledger.newest else None})


def told(before: NamedTable | None, found: NamedTable, ledger: Ledger) -> str:
    """What was found, and what the next run makes of it, in a sentence."""
    says = f"the table {found.name} is at {found.path}"
    if before is not None and (before.name, place_of(before.path)) != (found.name, place_of(found.path)):
        says += f"; until now runs went by {before.name} at {before.path}, as it was at {at(before.at_ms)}"
    newest = ledger.newest
    if newest is not None and newest.table_id not in (None, found.table_id):
        was = f"than plan {newest.number} was made for ({newest.table_id})"
        return f"{says}. It is another table ({found.table_id}) {was}: the next run stops"
    return says


def as_json(found: NamedTable) -> dict[str, Any]:
    """As documents have it."""
    return {"name": found.name, "path": found.path, "table_id": found.table_id, "resolved_at": str(at(found.at_ms))}
