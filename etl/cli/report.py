"""`etl report`: what a run did, as a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.arguments import AsJson, Conf, settings_of
from etl.cli.output import say, show


def report(
    conf: Conf,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="An earlier run, by its name as its report's file has it; the last one by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where the page goes; beside the run's report by default.",
            show_default=False,
        ),
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Show it in a browser, where there is a display.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The report of the last run as a page that stands alone, and where it is; nothing else is
    changed.
    """
    from etl.commands.report import has_display, open_in_browser, report_page

    page = report_page(settings_of(conf), run_id, out)
    show(as_json, page.as_json(), lambda: print(page.path), is_done=True)
    if is_opened and not (has_display() and open_in_browser(page.path)):
        say("there is no display here, or no browser: open the page where there is one")
