"""`etl replay --into PATH`: the rows that a replay would make, in another table; the pipeline's own
table and ledger stay as they are.

The other table is a plain one: nobody keeps plans of it. One commit makes it, or replaces the rows
that it has of the same offsets, so saying it again, after a kill or with another transform, leaves
each row once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from etl.commands.replay import step_behind_left
from etl.commands.run import new_run_id
from etl.decide.loaded_intervals import spans_of
from etl.decide.replay import Wanted
from etl.decide.table_changes import name_of
from etl.decide.table_storage import settings_for
from etl.errors import SettingsError, VerifyFailed
from etl.io.delta.table import open_table
from etl.io.delta.table_state import other_pipelines
from etl.io.spark.session import translating_spark_errors
from etl.ledger.plan_document import with_id
from etl.model.plans import Plan
from etl.report.run_state import Stopwatch
from etl.run.loaded_rows import PutInto
from etl.run.replay import next_replay, zones_of_replaced
from etl.run.services import ALONE, RunContext
from etl.run.shell import open_world
from etl.settings.choices import check_place, lies_in, place_of
from etl.settings.sections import Settings
from etl.settings.table import StoreSettings, TablePath, kind_of

_MADE_BY = "offset-range-etl replay"
_FREE = "a path where nothing is, or a table that an earlier --into made"


@dataclass(frozen=True, slots=True)
class Copied:
    """What is in the other table."""

    table: str
    plan: Plan
    """What was read; it is stored nowhere."""
    counts: PutInto
    notes: tuple[str, ...] = ()
    """What else a person should know of the rows."""

    @property
    def says(self) -> str:
        """In one sentence."""
        took = f"; they took the place of {self.counts.stood:,}" if self.counts.stood else ""
        noted = "".join(f"; {note}" for note in self.notes)
        return f"{self.counts.there:,} rows are in {self.table}, each once{took}{noted}"

    def as_json(self) -> dict[str, Any]:
        """The document of the command."""
        return {
            "says": self.says,
            "table": self.table,
            "rows": self.counts.there,
            "rows_that_went": self.counts.stood,
            "records_read": self.counts.read,
            "replaces": _offsets(self.plan),
        }


def replay_into(
    settings: Settings, wanted: Wanted, path: str, run_context: RunContext = ALONE
) -> Copied:
    """Read the wanted offsets again and replace their rows in the table at `path`, which is made
    where there is none.

    Raises SettingsError for a table that a pipeline loads, VerifyFailed where not as many rows are
    there as were read, and as a replay.
    """
    path = _place(settings, path)
    refuse_foreign(path)
    into = settings.model_copy(
        update={"table": settings.table.model_copy(update={"written_path": path, "name": None})}
    )
    watch, run_id = Stopwatch(), new_run_id()
    both = settings.model_copy(
        update={"spark": {**settings_for(path, settings.spark), **settings.spark}}
    )  # one session writes there
    opened = open_world(both, run_context, name=f"{run_id}-into", phases=watch)
    with run_context.progress(watch.doing), opened as world, translating_spark_errors():
        step, _ = step_behind_left(world.observe(wanted.offsets_of), settings)
        plan = with_id(next_replay(world, step, settings, wanted, None))
        notes = zones_of_replaced(world, plan, step.snapshot)
        said = {
            "app": _MADE_BY,
            "pipeline": settings.pipeline,
            "group": settings.group,
            "run_id": run_id,
            "offsets": _offsets(plan),
        }
        counts = world.put_into(plan, step.snapshot, into, json.dumps(said))
    if settings.either_transform is None and counts.read not in (None, counts.there):
        what = f"{counts.read:,} records were read, and the table has {counts.there:,} rows of their offsets"
        raise VerifyFailed(
            what, path=path, check="who else writes to this table; then say it again"
        )
    return Copied(path, plan, counts, notes)


def _place(settings: Settings, path: str) -> str:
    """The same place, whole; a folder is seen from where the command runs. Raises SettingsError for
    one in the folder of another table.
    """
    try:
        place = place_of(check_place(path))
    except ValueError as error:
        raise SettingsError(
            f"this names no place: {error}", key="--into", path=path, check=_FREE
        ) from error
    if place == settings.table.place:
        raise SettingsError(
            "this is the pipeline's own table",
            key="--into",
            check="the same without --into replaces its rows by a plan",
        )
    for other, whose in (
        (settings.table.path, "the table"),
        (settings.table.losses_at, "the losses table"),
    ):
        if lies_in(place, other) or lies_in(other, place):
            what = f"this and the folder of {whose} lie one inside the other: VACUUM takes a table in another one for rubbish"
            raise SettingsError(what, key="--into", path=place, check=_FREE)
    # another store than the table's goes by each engine's own chain
    return TablePath(
        place,
        settings.table.store if kind_of(place) is kind_of(settings.table.path) else StoreSettings(),
    )


def refuse_foreign(path: str) -> None:
    """Rows may be replaced in a table of ours alone, and nobody who keeps a ledger of one may find
    rows in it that it does not know.

    Raises SettingsError.
    """
    loaders = other_pipelines(path, "")
    if loaders:
        what = f"pipeline {name_of(loaders[0].app_id)} loads into this table, and would find rows that it does not know"
        raise SettingsError(what, key="--into", path=path, check=_FREE)
    table = open_table(path)
    if table is not None and not any(
        _MADE_BY in str(commit.get("userMetadata")) for commit in table.history()
    ):
        what = "there is a table that no earlier --into made, and its rows of these offsets would be replaced"
        raise SettingsError(what, key="--into", path=path, check=_FREE)


def _offsets(plan: Plan) -> list[dict[str, Any]]:
    return [
        {**span.log.place, "from": span.from_offset, "until": span.until_offset}
        for span in spans_of(plan)
    ]
