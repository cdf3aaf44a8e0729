"""`etl compact`: small files of the table become large ones, and nothing else; where there are
none, no Spark starts.

What was there before stays in the folder for as long as files do that no version needs (`etl
maintain` removes them), so it is a light command for a schedule of its own. It looks at the table
as `maintain` and a run do, first, and goes on where they would.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from etl.commands.backfills import refuse_without_backfills
from etl.commands.run import new_run_id
from etl.decide.reconcile import compare, naming_table, refuse_another_dialect, refuse_another_era
from etl.decide.table_changes import refuse_what_others_did
from etl.decide.table_storage import refuse_what_is_not_ours
from etl.io.delta.maintenance import Compacted
from etl.io.spark.session import translating_spark_errors
from etl.model.snapshot import ForeignCommit, Ledger, Table
from etl.report.run_state import Stopwatch
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext
from etl.run.shell import became, compaction_of, open_world, waiting, would_become
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Waiting:
    """What there is to put together."""

    table: str
    small_files: int
    small_bytes: int

    @property
    def says(self) -> tuple[str, ...]:
        """In a sentence."""
        return (would_become(self.table, self.small_files, self.small_bytes),)

    def as_json(self) -> dict[str, Any]:
        """The document of a dry run."""
        return {
            "dry_run": True,
            "table": self.table,
            "small_files": self.small_files,
            "small_bytes": self.small_bytes,
            "says": list(self.says),
        }


@dataclass(frozen=True, slots=True)
class Done:
    """What was put together."""

    table: str
    compacted: Compacted

    @property
    def says(self) -> tuple[str, ...]:
        """In a sentence."""
        return (became(self.table, self.compacted),)

    def as_json(self) -> dict[str, Any]:
        """The document."""
        c = self.compacted
        return {
            "dry_run": False,
            "table": self.table,
            "small_files": c.files_removed,
            "large_files": c.files_added,
            "bytes_before": c.bytes_removed,
            "bytes_after": c.bytes_added,
            "says": list(self.says),
        }


def compact(
    settings: Settings, run_context: RunContext = ALONE, *, dry_run: bool = False
) -> Waiting | Done:
    """Put small files together, or say what there is to put together.

    Raises LedgersDisagree where a run would stop, for what others did or for another table,
    NotOurTable for a table that this pipeline has not loaded, TableUnreachable, also where somebody
    changed the same files meanwhile.
    """
    watch, path = Stopwatch(), settings.table.path
    opened = open_world(settings, run_context, name=f"{new_run_id()}-compact", phases=watch)
    with run_context.progress(watch.doing), opened as world, translating_spark_errors():
        looked_at(world, settings)
        small, small_bytes = waiting(settings)
        if dry_run:
            return Waiting(path, small, small_bytes)
        return Done(path, compaction_of(world, settings))


def looked_at(world: LiveServices, settings: Settings) -> tuple[Table, Collection[ForeignCommit]]:
    """The table, once it is sure that a run would go on there, and what others removed from it that
    policy lets pass.
    """
    ledger = world.read_ledger()
    refuse_another_dialect(ledger.newest, settings)
    table = world.read_table(ledger)
    refuse_what_is_not_ours(table, settings.table.path)
    refuse_what_stops_a_run(ledger, table, settings)
    if table is None:
        raise LookupError("a table that was there is gone a moment later")
    with naming_table(settings):
        refuse_without_backfills(world.ledger, world.app_id, table, settings.table.path)
    return table, [one for one in table.foreign if not one.by]


def refuse_what_stops_a_run(ledger: Ledger, table: Table | None, settings: Settings) -> None:
    """Refuse what others did, and a table that is not the ledger's: of an older copy the newer
    files are needed by no version. Raises LedgersDisagree."""
    with naming_table(settings):
        refuse_another_era(ledger, table)
        refuse_what_others_did(table, ledger.acknowledged, settings.table.on_rows_removed)
        compare(ledger, table, settings.table.place)
