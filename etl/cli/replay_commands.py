"""Which arguments do `etl replay` and `etl backfills` take?

A command that removes rows shows what it would do and waits for a confirmation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.common_options import (
    END,
    START,
    AsJson,
    Commands,
    Conf,
    DryRun,
    From,
    OnlyRetained,
    OptionalPartitions,
    PartitionOption,
    Quiet,
    Reason,
    Until,
    Yes,
    approve,
    ask,
    is_attended,
    run_context,
    show,
    table_settings_of,
)
from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.decide.backfill import BackfillRequest
    from etl.decide.replay import ReplayRequest
    from etl.model.plans import Plan
    from etl.report.run_report import Report
    from etl.run.run_context import RunContext
    from etl.settings.sections import Settings


backfills = Commands(rich_markup_mode=None, help="Load offsets that were never loaded.")
BackfillName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the backfill.", show_default=False),
]


@backfills.command("run")
def backfills_run(
    conf: Conf,
    name: BackfillName,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help=START, show_default=False),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="POSITION", help=END, show_default=False),
    ] = None,
    partition: OptionalPartitions = None,
    only_unloaded: Annotated[
        bool, typer.Option("--only-unloaded", help="Leave out loaded offsets.")
    ] = False,
    only_retained: OnlyRetained = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Load offsets that were never loaded. To continue, run it again without interval. Exit 8: the
    interval is not over.
    """
    from etl.commands.backfill import parse_backfill_request, run_backfill

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    if from_ is None and until is None:
        _reject_without_interval(partition, only_unloaded, only_retained, dry_run)
        report = run_backfill(settings, name, None, context, conf=str(conf))
        _show_run(report, as_json=as_json)
        return
    if from_ is None or until is None:
        missing = "--from" if from_ is None else "--until"
        raise SettingsError(
            f"A new backfill needs an interval, and {missing} is missing",
            key=missing,
            action="Pass both --from and --until; neither, to continue a backfill",
        )
    request = parse_backfill_request(
        from_,
        until,
        tuple(partition or ()),
        only_retained=only_retained,
        only_missing=only_unloaded,
    )
    if (dry_run or not yes) and not _confirm_backfill(
        settings, name, request, context, dry_run=dry_run, as_json=as_json
    ):
        return
    _show_run(run_backfill(settings, name, request, context, conf=str(conf)), as_json=as_json)


def _reject_without_interval(
    partition: list[str] | None, only_unloaded: bool, only_retained: bool, dry_run: bool
) -> None:
    """Reject options that belong to the interval of a new backfill. Raises SettingsError."""
    given = {
        "--partition": bool(partition),
        "--only-unloaded": only_unloaded,
        "--only-retained": only_retained,
        "--dry-run": dry_run,
    }
    for option, is_given in given.items():
        if is_given:
            raise SettingsError(
                f"{option} applies to the interval of a new backfill",
                key=option,
                action="Pass --from and --until, too; to continue a backfill, pass its name alone",
            )


@backfills.command("list")
def backfills_list(conf: Conf, as_json: AsJson = False) -> None:
    """List backfills and their state."""
    from etl.cli.screens import show_backfills
    from etl.commands.backfill import list_backfills

    rows = list_backfills(table_settings_of(conf))
    show(as_json, {"backfills": rows}, lambda: show_backfills(rows))


@backfills.command("show")
def backfills_show(conf: Conf, name: BackfillName, as_json: AsJson = False) -> None:
    """Show intervals, plans and what is left."""
    from etl.cli.screens import show_backfill_whole
    from etl.commands.backfill import show_backfill

    document = show_backfill(table_settings_of(conf), name)
    show(as_json, document, lambda: show_backfill_whole(document))


@backfills.command("delete")
def backfills_delete(
    conf: Conf,
    name: BackfillName,
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the request of a backfill. Loaded rows stay, and the name is free."""
    from etl.cli.screens import show_summary
    from etl.commands.backfill import delete_backfill, show_backfill

    settings = table_settings_of(conf)
    found = show_backfill(settings, name)
    effect = (
        f"Backfill {name} ({found['request']}): {found['loaded']:,} of {found['offsets']:,} "
        f"offsets are loaded and stay, {found['left']:,} are not loaded"
    )
    if not approve([effect], dry_run=dry_run, yes=yes, as_json=as_json):
        return
    deleted = delete_backfill(settings, name, reason)
    show(as_json, deleted.document, lambda: show_summary(deleted.summary), is_done=True)


def _confirm_backfill(
    settings: Settings,
    name: str,
    request: BackfillRequest,
    context: RunContext,
    *,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Show what a new backfill would load, and wait for a confirmation, unless it is a dry run.
    Return True if the backfill runs.

    Raises SettingsError for a new backfill without a terminal.
    """
    from etl.cli.screens import show_backfill_preview, show_backfills
    from etl.commands.backfill import preview_backfill, show_backfill

    preview = preview_backfill(settings, name, request, context)
    if preview is None:
        document = show_backfill(settings, name)
        if dry_run:
            shown = {"dry_run": True, **document}
            show(as_json, shown, lambda: show_backfills([document]))
        return not dry_run
    loads_anything = bool(preview.backfill.intervals)
    if not dry_run and not is_attended(as_json=as_json):
        if loads_anything:
            raise SettingsError(
                "A new backfill needs a confirmation, and there is no terminal for one. It would "
                f"do: {preview.summary}",
                key="--yes",
                action="Check with --dry-run what it would load, then pass --yes",
            )
        return True
    document = {"dry_run": True, **preview.as_json()}
    show(as_json, document, lambda: show_backfill_preview(preview))
    if dry_run:
        return False
    if loads_anything:
        ask("Load them?")
    return True


def _show_run(report: Report, *, as_json: bool) -> None:
    from etl.cli.screens import show_report
    from etl.report.report_json import report_as_json

    show(as_json, report_as_json(report), lambda: show_report(report), is_done=True)


def replay(
    conf: Conf,
    partition: PartitionOption,
    from_: From,
    until: Until,
    reason: Reason,
    into: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write to this table instead.")
    ] = None,
    only_retained: OnlyRetained = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read loaded records again and replace their rows."""
    from etl.commands.replay import parse_wanted

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    request = parse_wanted(tuple(partition), from_, until, only_retained=only_retained)
    if dry_run and into is not None:
        raise SettingsError(
            "--into removes no row of the pipeline's table, so --dry-run has nothing to show",
            key="--dry-run",
            action="Pass --into without --dry-run",
        )
    if not (dry_run or yes or into):
        _reject_unattended(as_json)
    shown = None
    if dry_run or not (yes or into):
        shown = _confirm_replay(settings, request, context, dry_run=dry_run, as_json=as_json)
    if dry_run:
        return
    if into is not None:
        _into(settings, request, into, context, as_json=as_json)
        return
    from etl.commands.replay import replay_rows

    report = replay_rows(settings, request, context, reason=reason, shown=shown, conf=str(conf))
    _show_run(report, as_json=as_json)


def _reject_unattended(as_json: bool) -> None:
    """Raise SettingsError without a terminal."""
    if not is_attended(as_json=as_json):
        raise SettingsError(
            "A replay removes rows of the table, and there is no terminal for a confirmation",
            key="--yes",
            action="Check with --dry-run which rows would be replaced, then pass --yes",
        )


def _confirm_replay(
    settings: Settings, request: ReplayRequest, context: RunContext, *, dry_run: bool, as_json: bool
) -> Plan:
    """Show the replay, and wait for a confirmation unless it is a dry run. Return its plan."""
    from etl.cli.screens import show_replay
    from etl.commands.replay import preview_replay

    preview = preview_replay(settings, request, context)
    show(as_json, {"dry_run": True, **preview.as_json()}, lambda: show_replay(preview))
    if not dry_run:
        ask("Replace them?")
    return preview.plan


def _into(
    settings: Settings, request: ReplayRequest, path: str, context: RunContext, *, as_json: bool
) -> None:
    from etl.cli.screens import show_summary
    from etl.commands.replay import replay_into

    copied = replay_into(settings, request, path, context)
    show(as_json, copied.as_json(), lambda: show_summary(copied.summary), is_done=True)
