"""`etl maintain`: what it takes, and that a person sees what it comes to before it is done."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from etl.cli.arguments import AsJson, Conf, Quiet, Yes, run_context, table_settings_of
from etl.cli.output import confirm, show


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
    from etl.commands import maintain as keeping_house
    from etl.console.several import show_sentences

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
