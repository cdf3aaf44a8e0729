"""`etl replay`: what it takes, and that a person agrees before rows are taken out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.arguments import (
    AsJson,
    Conf,
    From,
    Partitions,
    Quiet,
    Until,
    run_context,
    table_settings_of,
)
from etl.cli.output import ask, is_attended, show
from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.decide.replay import Wanted
    from etl.model.plans import Plan
    from etl.run.services import RunContext
    from etl.settings.sections import Settings


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
        what = "--into takes no row out of the pipeline's table: there is nothing to show before"
        raise SettingsError(what, key="--dry-run", check="--into without it")
    if not (dry_run or yes or into):
        _refuse_unattended(as_json)
    shown = (
        _agreed(settings, wanted, context, dry_run=dry_run, as_json=as_json)
        if dry_run or not (yes or into)
        else None
    )
    if dry_run:
        return
    if into is not None:
        _into(settings, wanted, into, context, as_json=as_json)
        return
    from etl.commands.replay import replay_rows
    from etl.console.text import show_report

    report = replay_rows(settings, wanted, context, reason=reason, shown=shown, conf=str(conf))
    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)


def _refuse_unattended(as_json: bool) -> None:
    """Raises SettingsError where nobody can be asked."""
    if not is_attended(as_json=as_json):
        check = "--dry-run shows what would go and come; --yes replaces it without asking"
        raise SettingsError(
            "a replay takes rows out of the table, and there is no terminal on which to ask",
            key="--yes",
            check=check,
        )


def _agreed(
    settings: Settings, wanted: Wanted, context: RunContext, *, dry_run: bool, as_json: bool
) -> Plan:
    """What is shown, and agreed to unless it is a dry run."""
    from etl.commands.replay import preview_replay
    from etl.console.text import show_replay

    preview = preview_replay(settings, wanted, context)
    show(as_json, preview.as_json(), lambda: show_replay(preview))
    if not dry_run:
        ask("replace them?")
    return preview.plan


def _into(
    settings: Settings, wanted: Wanted, path: str, context: RunContext, *, as_json: bool
) -> None:
    from etl.commands.replay import replay_into
    from etl.console.text import show_sentence

    copied = replay_into(settings, wanted, path, context)
    show(as_json, copied.as_json(), lambda: show_sentence(copied.says), is_done=True)
