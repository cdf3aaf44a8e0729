"""`etl compact`: what it takes. It removes nothing, so it asks nobody."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import AsJson, Conf, Quiet, run_context, table_settings_of
from etl.cli.output import show


def compact(
    conf: Conf,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; nothing is changed.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make large files of small ones; nothing is removed, and where there are none no Spark starts."""
    from etl.commands import maintain as putting_together
    from etl.console.several import show_sentences

    done = putting_together.compact(
        table_settings_of(conf), run_context(quiet=quiet, as_json=as_json), dry_run=dry_run
    )
    show(as_json, done.as_json(), lambda: show_sentences(done.says), is_done=not dry_run)
