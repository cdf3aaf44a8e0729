"""Which arguments do the commands take that change the table?

backfill, replay, compact, maintain, table. A command that removes rows or files shows what it would
do and asks first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from etl.cli.common_options import (
    AsJson,
    Commands,
    Conf,
    From,
    Partitions,
    Quiet,
    Reason,
    Until,
    Yes,
    ask,
    confirm,
    is_attended,
    run_context,
    settings_of,
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


DEFAULT = "begin"
"""The command that is meant where the first word is none."""


class BackfillGroup(TyperGroup):
    """`etl backfill CONF ...` is `etl backfill begin CONF ...`."""

    default_command = DEFAULT

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's, with a default for the optional word."""
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
    if (dry_run or is_asked) and not _confirm_backfill(
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
    from etl.cli.screens import show_backfills
    from etl.commands.backfill import list_backfills

    rows = list_backfills(table_settings_of(conf))
    show(as_json, rows, lambda: show_backfills(rows))


@backfill.command("show")
def backfill_show(conf: Conf, name: BackfillName, as_json: AsJson = False) -> None:
    """One backfill, with what it claims of each partition and its plans."""
    from etl.cli.screens import show_backfill_whole
    from etl.commands.backfill import show_backfill

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
    from etl.cli.screens import show_sentence
    from etl.commands.backfill import abandon_backfill, show_backfill

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
    """Return the command to repeat for a backfill that loads no more."""
    return (
        ", and those that the table has no row of"
        if found["state"] in ("whole", "given up")
        else ""
    )


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


def _tell(report: Report, *, as_json: bool) -> None:
    from etl.cli.screens import show_report

    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)


def replay(
    conf: Conf,
    topic: Annotated[
        str, typer.Option(help="The topic whose rows are read again.", show_default=False)
    ],
    from_: From,
    until: Until,
    partition: Partitions = None,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Make the rows in another table; this one stays as it is."
        ),
    ] = None,
    only_retained: Annotated[
        bool,
        typer.Option(
            "--only-retained",
            help="Where retention took a part, replay the rest; rows of what is gone stay.",
        ),
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="Why, for whoever reads the plan later.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would go and come; nothing is stored or replaced."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read offsets again that are in the table, and replace exactly their rows, in one commit; the
    pipeline's position does not move.
    """
    from etl.commands.replay import parse_wanted

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    wanted = parse_wanted(topic, tuple(partition or ()), from_, until, only_retained=only_retained)
    if dry_run and into is not None:
        message = "--into takes no row out of the pipeline's table: there is nothing to show before"
        raise SettingsError(message, key="--dry-run", action="--into without it")
    if not (dry_run or yes or into):
        _reject_unattended(as_json)
    shown = (
        _confirm_replay(settings, wanted, context, dry_run=dry_run, as_json=as_json)
        if dry_run or not (yes or into)
        else None
    )
    if dry_run:
        return
    if into is not None:
        _into(settings, wanted, into, context, as_json=as_json)
        return
    from etl.cli.screens import show_report
    from etl.commands.replay import replay_rows

    report = replay_rows(settings, wanted, context, reason=reason, shown=shown, conf=str(conf))
    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)


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


def compact(
    conf: Conf,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; nothing is changed.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make large files of small ones; nothing is removed, and where there are none no Spark starts."""
    from etl.cli.screens import show_sentences
    from etl.commands import maintain as putting_together

    done = putting_together.compact(
        table_settings_of(conf), run_context(quiet=quiet, as_json=as_json), dry_run=dry_run
    )
    show(as_json, done.as_json(), lambda: show_sentences(done.says), is_done=not dry_run)


def maintain(
    conf: Conf,
    keep_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How long files stay that no version of the table needs; a week, or what the table's property says, by default.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; nothing is changed.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make large files of small ones, remove those that no version needs, write a checkpoint, fold
    old plans; no row is moved.
    """
    from etl.cli.screens import show_sentences
    from etl.commands import maintain as keeping_house

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    keep = None if keep_days is None else timedelta(days=keep_days)
    if dry_run or not yes:
        foreseen = keeping_house.foresee(settings, context, keep=keep)
        if dry_run:
            show(as_json, foreseen.as_json(), lambda: show_sentences(foreseen.says))
            return
        confirm(foreseen.says, yes=yes, as_json=as_json)
    done = keeping_house.maintain(settings, context, keep=keep)
    show(as_json, done.as_json(), lambda: show_sentences(done.says), is_done=True)


Make = Annotated[
    bool,
    typer.Option(
        "--make",
        help=(
            "Where the catalog has no such table, have it make an empty one. Rows of one that was dropped are not in it."
        ),
    ),
]

table = Commands(rich_markup_mode=None)


@table.command("resolve")
def table_resolve(conf: Conf, make: Make = False, as_json: AsJson = False) -> None:
    """Ask Spark where the table is that the conf names, and go by that from now on. Nothing of a
    table that is there is changed.
    """
    from etl.cli.screens import show_decision
    from etl.commands.operator_decisions import resolve

    ruling = resolve(settings_of(conf), run_context(quiet=True, as_json=as_json), is_made=make)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@table.callback()
def family() -> None:
    """The table that the conf names as a catalog of Spark's does (`table.name`)."""
