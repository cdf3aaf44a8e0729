"""`etl maintain`: small files of the table become large ones, files that no version needs go, its log gets a checkpoint, old plans fold.

It looks at the table as a run does, first: what others did to it stops a run and this alike, or what is needed to put it right would be
gone; and what policy lets pass is noted, before the table's log may forget it. No row is moved, and no offset: a run, `verify` and a replay
find what they would have found. Another driver may be at work meanwhile: whom Delta lets pass of two that change the same files, passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from etl.commands.backfills import refuse_without_backfills
from etl.commands.run import new_run_id
from etl.decisions.foreign_commits import refuse_what_others_did
from etl.decisions.maintenance import kept_for, refuse_what_is_not_ours, small_files
from etl.decisions.reconcile import compare, naming_table, refuse_another_era
from etl.decisions.refusals import refuse_another_dialect
from etl.edges.delta import housekeeping
from etl.edges.delta.housekeeping import Compacted
from etl.edges.delta.path import open_table
from etl.edges.spark.failures import translating_spark_errors
from etl.errors import Owned
from etl.model.ledger import Ledger
from etl.model.table import Table
from etl.report.phases import Stopwatch
from etl.report.progress import size_in_words
from etl.report.words import counted
from etl.run.context import ALONE, RunContext
from etl.run.live_world import LiveWorld
from etl.run.wiring import open_world
from etl.settings.sections import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 1000
"""Up to how many files Spark's dry run of VACUUM names."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What there is to do."""

    table: str
    version: int
    small_files: int
    small_bytes: int
    unneeded_files: int
    kept: timedelta

    @property
    def says(self) -> tuple[str, ...]:
        """A sentence for each."""
        small, more = counted(self.small_files, "small file"), " or more" if self.unneeded_files >= MANY else ""
        unneeded = f"{counted(self.unneeded_files, 'file')}{more} that no version of the last {self.kept.days} days needs"
        return (
            f"{small} of {self.table}, {size_in_words(self.small_bytes)}, would become large ones (OPTIMIZE)",
            f"{unneeded} would be removed (VACUUM)",
            "the table's log would get a checkpoint, and plans beyond those that are kept would be folded into one interval for each log")

    def as_json(self) -> dict[str, Any]:
        """The document of a dry run."""
        return {
            "dry_run": True, "table": self.table, "table_version": self.version, "small_files": self.small_files,
            "small_bytes": self.small_bytes, "unneeded_files": self.unneeded_files,
            "unneeded_files_are_all": self.unneeded_files < MANY, "keep_hours": self.kept.total_seconds() / 3600, "says": list(self.says)}


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done."""

    table: str
    compacted: Compacted
    removed_files: int
    kept: timedelta
    checkpoint: int
    """The version of the table that it is of."""
    plans_folded: int
    notes: tuple[str, ...] = field(default=())

    @property
    def says(self) -> tuple[str, ...]:
        """A sentence for each."""
        c = self.compacted
        return (
            f"{counted(c.files_removed, 'small file')} of {self.table} became {counted(c.files_added, 'file')}: "
            f"{size_in_words(c.bytes_removed)} became {size_in_words(c.bytes_added)}",
            f"{counted(self.removed_files, 'file')} that no version of the last {self.kept.days} days needs were removed",
            f"the table's log has a checkpoint of version {self.checkpoint}",
            f"{counted(self.plans_folded, 'plan')} folded into the coverage", *self.notes)

    def as_json(self) -> dict[str, Any]:
        """The document."""
        c = self.compacted
        return {
            "dry_run": False, "table": self.table, "small_files": c.files_removed, "large_files": c.files_added,
            "bytes_before": c.bytes_removed, "bytes_after": c.bytes_added, "removed_files": self.removed_files,
            "keep_hours": self.kept.total_seconds() / 3600, "checkpoint": self.checkpoint, "plans_folded": self.plans_folded,
            "says": list(self.says)}


def foresee(settings: Settings, run_context: RunContext = ALONE, *, keep: timedelta | None = None) -> Foreseen:
    """What `maintain` would do; nothing is changed. Starts Spark. Raises as it does."""
    watch = Stopwatch()
    opened = open_world(settings, run_context, name=f"{new_run_id()}-maintain", phases=watch)
    with run_context.progress(watch.doing), opened as world, translating_spark_errors():
        version, kept = _looked_at(world, settings, keep, notes=False)
        small, small_bytes = small_files(housekeeping.data_files(settings.table.path))
        unneeded = housekeeping.unneeded(world.spark(), settings.table.path, kept)
    return Foreseen(settings.table.path, version, small, small_bytes, unneeded, kept)


def maintain(settings: Settings, run_context: RunContext = ALONE, *, keep: timedelta | None = None) -> Maintained:
    """Do it. `keep`: how long files stay that no version needs, at least a week; None for the table's property, or a week.

    Raises LedgersDisagree where a run would stop, for what others did or for another table, SettingsError for too short a time,
    NotOurTable for a table that this pipeline has not loaded, TableUnreachable.
    """
    watch, name = Stopwatch(), f"{new_run_id()}-maintain"
    opened = open_world(settings, run_context, name=name, phases=watch)
    with run_context.progress(watch.doing), opened as world, translating_spark_errors():
        _, kept = _looked_at(world, settings, keep, notes=True)
        done = _kept_house(world.spark(), settings.table.path, kept)
        folded, notes = _folded(world, name)
    return Maintained(settings.table.path, *done, plans_folded=folded, notes=tuple(notes))


def _looked_at(world: LiveWorld, settings: Settings, keep: timedelta | None, *, notes: bool) -> tuple[int, timedelta]:
    """The table's version, and how long its files stay, once it is sure that a run would go on there."""
    ledger = world.read_ledger()
    refuse_another_dialect(ledger.newest, settings)
    table, found = world.read_table(ledger), open_table(settings.table.path)
    refuse_what_is_not_ours(table, settings.table.path)
    refuse_what_stops_a_run(ledger, table, settings)
    if table is None or found is None:
        raise LookupError("a table that was there is gone a moment later")
    with naming_table(settings):
        refuse_without_backfills(world.ledger, world.app_id, table, settings.table.path)
    if notes:
        world.note_removals([one for one in table.foreign if not one.by])
    return table.version, kept_for(found.metadata().configuration, keep)


def refuse_what_stops_a_run(ledger: Ledger, table: Table | None, settings: Settings) -> None:
    """Refuse what others did, and a table that is not the ledger's: of an older copy the newer files are needed by no version. Raises
    LedgersDisagree."""
    with naming_table(settings):
        refuse_another_era(ledger, table)
        refuse_what_others_did(table, ledger.acknowledged, settings.table.on_rows_removed)
        compare(ledger, table, settings.table.place)


def _kept_house(spark: SparkSession, path: str, kept: timedelta) -> tuple[Compacted, int, timedelta, int]:
    compacted = housekeeping.compact(spark, path)
    removed = housekeeping.vacuum(spark, path, kept) if housekeeping.unneeded(spark, path, kept) else 0
    return compacted, removed, kept, housekeeping.write_checkpoint(spark, path)


def _folded(world: LiveWorld, name: str) -> tuple[int, Sequence[str]]:
    """How many plans were folded; none where a driver is at work, which does it itself."""
    before = len(world.ledger.plan_numbers())
    try:
        with world.driving(name):
            world.tidy()
    except Owned as error:
        return 0, (f"old plans were left to the driver that is at work: {error.what}",)
    return before - len(world.ledger.plan_numbers()), ()
