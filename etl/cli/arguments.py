"""What several commands take on the command line, and what it stands for: settings, and what is true of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.run.context import RunContext
    from etl.settings.sections import Settings


def _given(reason: str) -> str:
    if not reason.strip():
        raise SettingsError("the reason is empty", check="--reason: why it is done, for whoever reads it later")
    return reason


Conf = Annotated[Path, typer.Argument(metavar="CONF", help="The pipeline's file, e.g. conf/clicks.yaml.", show_default=False)]
Name = Annotated[str | None, typer.Argument(
    metavar="NAME", help="Another pipeline of the same group; the conf's own by default.", show_default=False)]
Reason = Annotated[str, typer.Option(callback=_given, help="Why, for whoever reads it later.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing on standard error while it goes on.")]


def settings_of(conf: Path) -> Settings:
    """The settings of the conf file. Raises SettingsError."""
    from etl.settings.loader import load_settings

    return load_settings(conf)


def run_context(*, quiet: bool = False, as_json: bool = False) -> RunContext:
    """This machine's Java and Delta jars, unless spark-submit brought its own; and progress on standard error, unless `quiet`.

    spark-submit passes standard error on as standard output, where `--json` prints its one document: there is no progress there.
    """
    from etl.console.progress import showing
    from etl.edges.spark.session import is_submitted
    from etl.run.context import RunContext

    def spark_defaults(given: Mapping[str, str]) -> dict[str, str]:
        if is_submitted():
            return {}
        from etl.embedded.spark import jar_settings, set_spark_environment

        set_spark_environment()
        return jar_settings(given.get("spark.master", "local[*]"))

    is_quiet = quiet or as_json and is_submitted()
    return RunContext(spark_defaults=spark_defaults) if is_quiet else RunContext(showing, spark_defaults)
