"""`etl package`: what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.arguments import AsJson
from etl.cli.output import show


def package(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where it is put.")] = Path("dist"),
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Pack the whole Python environment besides, for workers that have no libraries.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make what brings this package to a cluster's workers, and say the command for spark-submit."""
    from etl.commands import package as packing
    from etl.console.several import show_package

    made = packing.package(out, with_environment=environment)
    show(as_json, made.as_json(), lambda: show_package(made), is_done=True)
