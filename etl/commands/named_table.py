"""`etl table`: where the table is that the conf names as a catalog does, and that runs go by what
the catalog says now.
"""

from __future__ import annotations

from typing import Any

from etl.commands.operator import Ruling
from etl.commands.run import new_run_id
from etl.decide.table_changes import app_id_of, is_recorded
from etl.decide.table_rules import KEY
from etl.errors import SettingsError
from etl.io.delta.table import open_table
from etl.io.zookeeper.ledger_records import read_named_table, write_named_table
from etl.model.snapshot import Ledger, NamedTable
from etl.report.describe import at
from etl.report.run_state import Stopwatch
from etl.run.services import ALONE, RunContext
from etl.run.shell import open_world, place_table
from etl.run.spark import ask
from etl.settings.choices import place_of
from etl.settings.sections import Settings


def with_table(settings: Settings, run_context: RunContext = ALONE) -> Settings:
    """The settings with the place of a named table, for a look: nothing is kept, and a name that is
    not taken is refused.
    """
    return place_table(settings, run_context, name=f"{new_run_id()}-name").settings


def resolve(
    settings: Settings, run_context: RunContext = ALONE, *, is_made: bool = False
) -> Ruling:
    """Ask Spark where the table is, and keep that: runs go by it from now on. Whether it is the
    same table its id tells the next run.

    `is_made`: where the catalog knows no such table it makes an empty one first, as for a first
    run; rows of a dropped one stay gone. Raises SettingsError for a conf that names a path, and as
    `run.spark.ask`.
    """
    if settings.table.name is None:
        raise SettingsError(
            "the conf names the table by its path, so there is no name to resolve",
            key=KEY,
            check="`etl doctor CONF`",
        )
    run_id = new_run_id()
    with open_world(settings, run_context, name=run_id) as world, world.driving(run_id):
        found = ask(
            settings,
            run_context,
            Stopwatch(),
            name=f"{run_id}-name",
            making=(lambda at: None) if is_made else None,
        )
        before, ledger = read_named_table(world.ledger), world.ledger.read_ledger()
        write_named_table(world.ledger, found)
    says = told(before, found, ledger, _in_table(settings, found, ledger))
    return Ruling(
        says,
        {
            "says": says,
            "now": as_json(found),
            "before": as_json(before) if before else None,
            "table_of_newest_plan": ledger.newest.table_id if ledger.newest else None,
        },
    )


def _in_table(settings: Settings, found: NamedTable, ledger: Ledger) -> int | None:
    """The number of the plan that the table holds last, of this pipeline; its columns may be any."""
    table = open_table(found.path)
    if table is None or ledger.newest is None:
        return None
    return table.transaction_version(
        app_id_of(ledger.newest.cluster, settings.group, settings.pipeline)
    )


def told(before: NamedTable | None, found: NamedTable, ledger: Ledger, in_table: int | None) -> str:
    """What was found, and what the next run makes of it, in a sentence. `in_table`: the number of
    the plan that it holds last.
    """
    says = f"the table {found.name} is at {found.path}"
    is_elsewhere = before is not None and place_of(before.path) != place_of(found.path)
    if before is not None and (is_elsewhere or before.name != found.name):
        says += f"; until now runs went by {before.name} at {before.path}, as it was at {at(before.at_ms)}"
    newest = ledger.newest
    if newest is not None and newest.table_id not in (None, found.table_id):
        was = f"than plan {newest.number} was made for ({newest.table_id})"
        return (
            f"{says}. It is another table ({found.table_id}) {was}: the next run stops, until "
            "`etl plans acknowledge CONF VERSION --reason ...` accepts it, and what it lacks of the plans until now is given up by that"
        )
    if newest is None or not is_recorded(ledger, newest) or (in_table or 0) >= newest.number:
        return says
    back = (
        f"ALTER TABLE {found.name} SET LOCATION '{before.path}' and this command again lead back, "
        if before and is_elsewhere
        else ""
    )
    return (
        f"{says}. It lacks plan {newest.number}, which the table has had: the next run stops. Nothing is lost where the copy is found "
        f"that has it: {back}or it is copied here again"
    )


def as_json(found: NamedTable) -> dict[str, Any]:
    """As documents have it."""
    return {
        "name": found.name,
        "path": found.path,
        "table_id": found.table_id,
        "resolved_at": str(at(found.at_ms)),
    }
