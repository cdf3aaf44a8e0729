"""`etl backfill`: what was never loaded is loaded beside the live pipeline. Without another word it
begins one, or goes on with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from etl.cli.arguments import (
    AsJson,
    Commands,
    Conf,
    From,
    Partitions,
    Quiet,
    Reason,
    Until,
    Yes,
    run_context,
    table_settings_of,
)
from etl.cli.output import ask, confirm, is_attended, show

if TYPE_CHECKING:
    from etl.decide.backfill import Asked
    from etl.report.run_report import Report
    from etl.run.services import RunContext
    from etl.settings.sections import Settings

DEFAULT = "begin"
"""The command that is meant where the first word is none."""


class BackfillGroup(TyperGroup):
    """`etl backfill CONF ...` is `etl backfill begin CONF ...`."""

    default_command = DEFAULT

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's, with the word that may be left out."""
        is_named = not args or args[0] in self.commands or args[0] in ("--help", "-h")
        return super().parse_args(ctx, args if is_named else [DEFAULT, *args])


backfill = Commands(
    cls=BackfillGroup,
    rich_markup_mode=None,
    help=(
        "Load what the pipeline never loaded, beside it, in bounded plans. `etl backfill CONF ...` is `etl backfill begin CONF ...`."
    ),
)
BackfillName = Annotated[
    str,
    typer.Option("--name", metavar="NAME", help="What the backfill is called.", show_default=False),
]


@backfill.command(DEFAULT)
def backfill_begin(
    conf: Conf,
    name: Annotated[
        str,
        typer.Option(
            help="Names this backfill: said again under it, it goes on where it ended.",
            show_default=False,
        ),
    ],
    from_: From,
    until: Until,
    topic: Annotated[
        str | None, typer.Option(help="One topic of the conf. Default: all.", show_default=False)
    ] = None,
    partition: Partitions = None,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Of the interval what nobody else has loaded or will load."),
    ] = False,
    only_retained: Annotated[
        bool, typer.Option("--only-retained", help="Where retention took a part, load the rest.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be loaded; nothing is stored.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Do it without asking; where there is no terminal nobody is asked."
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Load an interval that the pipeline never loaded; killed anywhere, the same command goes on.
    The pipeline's position does not move.
    """
    from etl.commands.backfill import parse_asked, run_backfill

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    asked = parse_asked(
        from_,
        until,
        topic,
        tuple(partition or ()),
        only_retained=only_retained,
        only_missing=missing,
    )
    is_asked = not yes and is_attended(as_json=as_json)
    if (dry_run or is_asked) and not _agreed(
        settings, name, asked, context, dry_run=dry_run, as_json=as_json
    ):
        return
    _tell(run_backfill(settings, name, asked, context, conf=str(conf)), as_json=as_json)


@backfill.command("resume")
def backfill_resume(
    conf: Conf, name: BackfillName, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Go on with a backfill where it ended; one that is whole already stays as it is."""
    from etl.commands.backfill import run_backfill

    settings = table_settings_of(conf)
    _tell(
        run_backfill(
            settings, name, None, run_context(quiet=quiet, as_json=as_json), conf=str(conf)
        ),
        as_json=as_json,
    )


@backfill.command("list")
def backfill_list(conf: Conf, as_json: AsJson = False) -> None:
    """The backfills of the pipeline: state, how much is loaded, and when it may be done."""
    from etl.commands.backfill import list_backfills
    from etl.console.backfills import show_backfills

    rows = list_backfills(table_settings_of(conf))
    show(as_json, rows, lambda: show_backfills(rows))


@backfill.command("show")
def backfill_show(conf: Conf, name: BackfillName, as_json: AsJson = False) -> None:
    """One backfill, with what it claims of each partition and its plans."""
    from etl.commands.backfill import show_backfill
    from etl.console.backfills import show_backfill_whole

    document = show_backfill(table_settings_of(conf), name)
    show(as_json, document, lambda: show_backfill_whole(document))


@backfill.command("abandon")
def backfill_abandon(
    conf: Conf,
    name: BackfillName,
    reason: Reason,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Give a backfill up: what it has loaded stays in the table, and the rest is free for others.
    One that has loaded all, or was given up before, gives back what the table has no row of: rows
    that somebody deleted."""
    from etl.commands.backfill import abandon_backfill, show_backfill
    from etl.console.text import show_sentence

    settings = table_settings_of(conf)
    found = show_backfill(settings, name)
    confirm(
        [
            f"backfill {name} ({found['asked']}): {found['loaded']:,} offsets of {found['offsets']:,} are loaded and stay, "
            f"{found['left']:,} are given back" + _once_more(found)
        ],
        yes=yes,
        as_json=as_json,
    )
    report, says = abandon_backfill(
        settings, name, reason, run_context(quiet=quiet, as_json=as_json)
    )
    show(as_json, {**report.as_json(), "says": says}, lambda: show_sentence(says), is_done=True)


def _once_more(found: dict[str, Any]) -> str:
    """What is meant of one that loads no more."""
    return (
        ", and those that the table has no row of"
        if found["state"] in ("whole", "given up")
        else ""
    )


def _agreed(
    settings: Settings,
    name: str,
    asked: Asked,
    context: RunContext,
    *,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Show what it would load, and ask, unless it is a dry run or nothing is to be agreed to;
    whether it goes on.
    """
    from etl.commands.backfill import preview_backfill, show_backfill
    from etl.console.backfills import show_backfill_preview, show_backfills

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


def _tell(report: Report, *, as_json: bool) -> None:
    from etl.console.text import show_report

    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)
