"""`etl table`: a table that the conf names as a catalog does."""

from __future__ import annotations

from etl.cli.arguments import AsJson, Commands, Conf, run_context, settings_of
from etl.cli.output import show

table = Commands(rich_markup_mode=None)


@table.command("resolve")
def table_resolve(conf: Conf, as_json: AsJson = False) -> None:
    """Ask Spark where the table is that the conf names, and go by that from now on. Nothing of the table is changed."""
    from etl.commands.named_table import resolve
    from etl.console.text import show_ruling

    ruling = resolve(settings_of(conf), run_context(quiet=True, as_json=as_json))
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@table.callback()
def family() -> None:
    """The table that the conf names as a catalog of Spark's does (`table.name`)."""
