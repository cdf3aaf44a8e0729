"""`etl table`: a table that the conf names as a catalog does."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import AsJson, Commands, Conf, run_context, settings_of
from etl.cli.output import show

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
    from etl.commands.operator_decisions import resolve
    from etl.console.text import show_ruling

    ruling = resolve(settings_of(conf), run_context(quiet=True, as_json=as_json), is_made=make)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@table.callback()
def family() -> None:
    """The table that the conf names as a catalog of Spark's does (`table.name`)."""
