"""Which arguments do `etl replay` and `etl backfills` take?

A command that removes rows shows what it would do and asks first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from etl.cli.common_options import (
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
    ask,
    confirm,
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
    from etl.run.services import RunContext
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
        typer.Option("--from", metavar="POSITION", help="Start.", show_default=False),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="POSITION", help="End.", show_default=False),
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
    from etl.commands.backfill import parse_asked, run_backfill

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    if from_ is None and until is None:
        _reject_without_interval(partition, only_unloaded, only_retained, dry_run)
        report = run_backfill(settings, name, None, context, conf=str(conf))
        _show_run(report, as_json=as_json)
        return
    if from_ is None or until is None:
        missing = "--from" if from_ is None else "--until"
        raise SettingsError(
            f"a backfill begins with an interval, and {missing} is missing",
            key=missing,
            action="both of --from and --until; neither, to continue one that has begun",
        )
    asked = parse_asked(
        from_,
        until,
        tuple(partition or ()),
        only_retained=only_retained,
        only_missing=only_unloaded,
    )
    is_asked = not yes and is_attended(as_json=as_json)
    if (dry_run or is_asked) and not _confirm_backfill(
        settings, name, asked, context, dry_run=dry_run, as_json=as_json
    ):
        return
    _show_run(run_backfill(settings, name, asked, context, conf=str(conf)), as_json=as_json)


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
                f"{option} belongs to the interval of a new backfill",
                key=option,
                action="--from and --until; to continue a backfill, its name alone",
            )


@backfills.command("list")
def backfills_list(conf: Conf, as_json: AsJson = False) -> None:
    """List backfills and their state."""
    from etl.cli.screens import show_backfills
    from etl.commands.backfill import list_backfills

    rows = list_backfills(table_settings_of(conf))
    show(as_json, rows, lambda: show_backfills(rows))


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
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Delete a backfill; loaded rows stay. Offsets that it has not loaded, or whose rows are gone,
    are free for others.
    """
    from etl.cli.screens import show_sentence
    from etl.commands.backfill import abandon_backfill, show_backfill

    settings = table_settings_of(conf)
    found = show_backfill(settings, name)
    confirm(
        [
            f"backfill {name} ({found['request']}): {found['loaded']:,} offsets of {found['offsets']:,} are loaded and stay, "
            f"{found['left']:,} are given back" + _once_more(found)
        ],
        yes=yes,
        as_json=as_json,
    )
    report, says = abandon_backfill(
        settings, name, reason, run_context(quiet=quiet, as_json=as_json)
    )
    show(as_json, {**report.as_json(), "message": says}, lambda: show_sentence(says), is_done=True)


def _once_more(found: dict[str, Any]) -> str:
    """Return what a second deletion gives back, for a backfill that loads no more."""
    if found["state"] in ("whole", "given up"):
        return ", and those that the table has no row of"
    return ""


def _confirm_backfill(
    settings: Settings,
    name: str,
    asked: BackfillRequest,
    context: RunContext,
    *,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Show what it would load, and ask, unless it is a dry run or needs no confirmation; return
    whether to continue.
    """
    from etl.cli.screens import show_backfill_preview, show_backfills
    from etl.commands.backfill import preview_backfill, show_backfill

    preview = preview_backfill(settings, name, asked, context)
    if preview is None:
        document = show_backfill(settings, name)
        if dry_run:
            show(as_json, document, lambda: show_backfills([document]))
        return not dry_run
    show(as_json, preview.as_json(), lambda: show_backfill_preview(preview))
    if dry_run:
        return False
    if preview.beginning.claim.stretches:
        ask("load them?")
    return True


def _show_run(report: Report, *, as_json: bool) -> None:
    from etl.cli.screens import show_report

    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)


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
    wanted = parse_wanted(tuple(partition), from_, until, only_retained=only_retained)
    if dry_run and into is not None:
        message = "--into takes no row out of the pipeline's table: there is nothing to show before"
        raise SettingsError(message, key="--dry-run", action="--into without it")
    if not (dry_run or yes or into):
        _reject_unattended(as_json)
    shown = None
    if dry_run or not (yes or into):
        shown = _confirm_replay(settings, wanted, context, dry_run=dry_run, as_json=as_json)
    if dry_run:
        return
    if into is not None:
        _into(settings, wanted, into, context, as_json=as_json)
        return
    from etl.commands.replay import replay_rows

    report = replay_rows(settings, wanted, context, reason=reason, shown=shown, conf=str(conf))
    _show_run(report, as_json=as_json)


def _reject_unattended(as_json: bool) -> None:
    """Raises SettingsError without a terminal."""
    if not is_attended(as_json=as_json):
        action = "--dry-run shows what would go and come; --yes replaces it without asking"
        raise SettingsError(
            "a replay takes rows out of the table, and there is no terminal on which to ask",
            key="--yes",
            action=action,
        )


def _confirm_replay(
    settings: Settings, wanted: ReplayRequest, context: RunContext, *, dry_run: bool, as_json: bool
) -> Plan:
    """Show the replay, and ask unless it is a dry run."""
    from etl.cli.screens import show_replay
    from etl.commands.replay import preview_replay

    preview = preview_replay(settings, wanted, context)
    show(as_json, preview.as_json(), lambda: show_replay(preview))
    if not dry_run:
        ask("replace them?")
    return preview.plan


def _into(
    settings: Settings, wanted: ReplayRequest, path: str, context: RunContext, *, as_json: bool
) -> None:
    from etl.cli.screens import show_sentence
    from etl.commands.replay import replay_into

    copied = replay_into(settings, wanted, path, context)
    show(as_json, copied.as_json(), lambda: show_sentence(copied.says), is_done=True)
