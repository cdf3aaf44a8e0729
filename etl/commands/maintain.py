"""How is a table compacted and cleaned up?

`etl table maintain` compacts small files, vacuums, writes a checkpoint and prunes old plans;
`etl table compact` only compacts. Neither changes rows or offsets.

The table is observed as by a run first. Changes by other writers that stop a run stop these
commands, too, since the files might be needed to undo them. Permitted changes are recorded before
the table's log forgets them. Another driver may be active: Delta resolves conflicts. Spark starts
only if there are files to compact or remove.

Not here: the operations on the table (etl/io/delta/maintenance.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from etl.commands.run import new_run_id
from etl.decide.reconcile import (
    compare,
    naming_table,
    reject_changed_table,
    reject_other_broker_type,
    reject_other_ledger,
)
from etl.decide.table_storage import kept_for, reject_table_without_our_commits
from etl.errors import Owned
from etl.io.delta import maintenance
from etl.io.delta.maintenance import Compacted
from etl.io.delta.table_shape import open_table
from etl.io.spark.session import translating_spark_errors
from etl.model.snapshot import ForeignCommit, Ledger, Table
from etl.report.describe import counted
from etl.report.run_progress import Stopwatch
from etl.run.after_commit import became, compaction_of, waiting, would_become
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.run_context import ALONE, RunContext
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Waiting:
    """Small files of a table, for `etl table compact --dry-run`."""

    table: str
    small_files: int
    small_bytes: int

    @property
    def summary(self) -> tuple[str, ...]:
        """Summarize it, a sentence each."""
        return (would_become(self.table, self.small_files, self.small_bytes),)

    def as_json(self) -> dict[str, Any]:
        """Return the document of a dry run."""
        return {
            "dry_run": True,
            "table": self.table,
            "small_files": self.small_files,
            "small_bytes": self.small_bytes,
            "message": list(self.summary),
        }


@dataclass(frozen=True, slots=True)
class Done:
    """The result of `etl table compact`."""

    table: str
    compacted: Compacted

    @property
    def summary(self) -> tuple[str, ...]:
        """Summarize it, a sentence each."""
        return (became(self.table, self.compacted),)

    def as_json(self) -> dict[str, Any]:
        """Return the document of the command."""
        c = self.compacted
        return {
            "dry_run": False,
            "table": self.table,
            "small_files": c.files_removed,
            "large_files": c.files_added,
            "bytes_before": c.bytes_removed,
            "bytes_after": c.bytes_added,
            "message": list(self.summary),
        }


def compact(
    settings: Settings, run_context: RunContext = ALONE, *, dry_run: bool = False
) -> Waiting | Done:
    """Compact small files, or return what there is to compact.

    Raises LedgersDisagree if a run would stop, NotOurTable for a table that this pipeline has not
    loaded, TableUnreachable, also if others changed the same files meanwhile.
    """
    watch = Stopwatch()
    path = settings.table.path
    opened = open_services(settings, run_context, name=f"{new_run_id()}-compact", phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        observe_for_maintenance(services, settings)
        small, small_bytes = waiting(settings)
        if dry_run:
            return Waiting(path, small, small_bytes)
        return Done(path, compaction_of(services, settings))


def observe_for_maintenance(
    services: LiveServices, settings: Settings
) -> tuple[Table, Collection[ForeignCommit]]:
    """Return the table and permitted changes by others. Raises the errors that would stop a run."""
    ledger = services.read_ledger()
    reject_other_broker_type(ledger.newest, settings)
    table = services.read_table(ledger)
    reject_table_without_our_commits(table, settings.table.path)
    reject_table_that_stops_a_run(ledger, table, settings)
    if table is None:
        raise LookupError("a table that was there is gone a moment later")
    return table, [one for one in table.foreign if not one.by]


def reject_table_that_stops_a_run(ledger: Ledger, table: Table | None, settings: Settings) -> None:
    """Reject changes by others, and a table that is not the ledger's. Raises LedgersDisagree.

    In an older copy of a table no version needs the newer files, so VACUUM would delete them.
    """
    with naming_table(settings):
        reject_other_ledger(ledger, table)
        reject_changed_table(
            ledger, table, settings.table.on_rows_removed, place=settings.table.place
        )
        compare(ledger, table, settings.table.place)


@dataclass(frozen=True, slots=True)
class MaintenancePreview:
    """What `etl table maintain` would do."""

    table: str
    version: int
    small_files: int
    small_bytes: int
    unneeded_files: int
    kept: timedelta

    @property
    def summary(self) -> tuple[str, ...]:
        """Summarize it, a sentence per operation."""
        return (
            would_become(self.table, self.small_files, self.small_bytes),
            f"{counted(self.unneeded_files, 'file')} that no version of the last "
            f"{self.kept.days} days needs would be removed (VACUUM)",
            "the table's log would get a checkpoint, and old plans would be merged into loaded "
            "intervals",
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of a dry run."""
        return {
            "dry_run": True,
            "table": self.table,
            "table_version": self.version,
            "small_files": self.small_files,
            "small_bytes": self.small_bytes,
            "unneeded_files": self.unneeded_files,
            "keep_hours": self.kept.total_seconds() / 3600,
            "message": list(self.summary),
        }


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result of `etl table maintain`."""

    table: str
    compacted: Compacted
    removed_files: int
    kept: timedelta
    checkpoint: int
    """The table version of the checkpoint."""
    plans_folded: int
    notes: tuple[str, ...] = field(default=())

    @property
    def summary(self) -> tuple[str, ...]:
        """Summarize it, a sentence per operation."""
        return (
            became(self.table, self.compacted),
            f"{counted(self.removed_files, 'file')} that no version of the last "
            f"{self.kept.days} days needs were removed",
            f"the table's log has a checkpoint of version {self.checkpoint}",
            f"{counted(self.plans_folded, 'plan')} merged into loaded intervals",
            *self.notes,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of the command."""
        c = self.compacted
        return {
            "dry_run": False,
            "table": self.table,
            "small_files": c.files_removed,
            "large_files": c.files_added,
            "bytes_before": c.bytes_removed,
            "bytes_after": c.bytes_added,
            "removed_files": self.removed_files,
            "keep_hours": self.kept.total_seconds() / 3600,
            "checkpoint": self.checkpoint,
            "plans_folded": self.plans_folded,
            "message": list(self.summary),
        }


def preview_maintenance(
    settings: Settings, run_context: RunContext = ALONE, *, keep: timedelta | None = None
) -> MaintenancePreview:
    """Return what `maintain` would do. Changes nothing and does not start Spark.

    Raises as `maintain`.
    """
    watch = Stopwatch()
    opened = open_services(settings, run_context, name=f"{new_run_id()}-maintain", phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        version, kept = _looked_at(services, settings, keep, notes=False)
        small, small_bytes = waiting(settings)
        unneeded = maintenance.unneeded(settings.table.path, kept)
    return MaintenancePreview(settings.table.path, version, small, small_bytes, unneeded, kept)


def maintain(
    settings: Settings, run_context: RunContext = ALONE, *, keep: timedelta | None = None
) -> MaintenanceResult:
    """Compact small files, delete unneeded ones, write a checkpoint and prune plans.

    `keep`: how long unneeded files stay, at least a week; None: the table's property, or a week.
    Raises LedgersDisagree if a run would stop because of other writers or another table,
    SettingsError for too short a time, NotOurTable for a table that this pipeline has not loaded,
    TableUnreachable.
    """
    watch = Stopwatch()
    name = f"{new_run_id()}-maintain"
    opened = open_services(settings, run_context, name=name, phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        _, kept = _looked_at(services, settings, keep, notes=True)
        path = settings.table.path
        compacted = compaction_of(services, settings)
        removed = 0
        if maintenance.unneeded(path, kept):
            removed = maintenance.vacuum(services.spark(), path, kept)
        checkpoint = maintenance.write_checkpoint(path, services.spark)
        folded, notes = _folded(services, name)
    return MaintenanceResult(path, compacted, removed, kept, checkpoint, folded, tuple(notes))


def _looked_at(
    services: LiveServices, settings: Settings, keep: timedelta | None, *, notes: bool
) -> tuple[int, timedelta]:
    """Return the table's version and how long unneeded files stay.

    Raises the errors that would stop a run. `notes`: record permitted changes by others.
    """
    table, removals = observe_for_maintenance(services, settings)
    found = open_table(settings.table.path)
    if found is None:
        raise LookupError("a table that was there is gone a moment later")
    if notes:
        services.note_removals(removals)
    return table.version, kept_for(found.metadata().configuration, keep)


def _folded(services: LiveServices, name: str) -> tuple[int, Sequence[str]]:
    """Prune plans; return their number and notes. An active driver prunes them itself."""
    before = len(services.ledger.plan_numbers())
    try:
        with services.driving(name):
            services.tidy()
    except Owned as error:
        return 0, (f"old plans were left to the driver that is at work: {error.message}",)
    return before - len(services.ledger.plan_numbers()), ()
