"""What several commands take on the command line, and what it stands for: settings, and what is
true of this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etl.cli.output import json_lines
from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.model.plans import Request
    from etl.run.services import RunContext
    from etl.settings.load import Change
    from etl.settings.sections import Settings


def _given(reason: str) -> str:
    if not reason.strip():
        raise SettingsError(
            "the reason is empty", check="--reason: why it is done, for whoever reads it later"
        )
    return reason


Conf = Annotated[
    Path,
    typer.Argument(
        metavar="CONF", help="The pipeline's file, e.g. conf/clicks.yaml.", show_default=False
    ),
]
ConfOrFolder = Annotated[
    Path,
    typer.Argument(
        metavar="CONF",
        help="The pipeline's file, e.g. conf/clicks.yaml; or a folder of such files: each is run.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Another pipeline of the same group; the conf's own by default.",
        show_default=False,
    ),
]
Reason = Annotated[
    str, typer.Option(callback=_given, help="Why, for whoever reads it later.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Do it without asking; needed where there is no terminal.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Say nothing on standard error while it goes on.")
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="OFFSET|TIME",
        help="The first offset, or the first record at a time.",
        show_default=False,
    ),
]
Until = Annotated[
    str,
    typer.Option(
        "--until",
        metavar="OFFSET|TIME",
        help="Up to this offset or time, without it.",
        show_default=False,
    ),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="PARTITION",
        help="One partition of it, 3 or (Jafka) 0-3; may be given again. Default: all.",
    ),
]

UntilTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default=False,
        help="Read up to the first record at or after this time: 2026-01-31T00:00:00Z, milliseconds since "
        "the epoch, -1h, or -10000 offsets before the end.",
    ),
]
FromTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default=False,
        help="Where the first run of all begins; later: refuse to run where anything before it is not "
        "loaded yet. As --until-time, or since-last-success.",
    ),
]
RunKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Names what is asked for: run again under it, nothing is loaded again.",
        show_default=False,
    ),
]


def request_of(
    settings: Settings, until_time: str | None, from_time: str | None, run_key: str | None
) -> Request | None:
    """What a run is asked for beside its conf. Raises SettingsError, and NotYetReadable for an
    interval that is not over.
    """
    from etl.run.services import now_ms
    from etl.settings import load

    return load.request_of(
        settings, run_key=run_key, from_time=from_time, until_time=until_time, now_ms=now_ms()
    )


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="A key of the conf for this time, its value as in YAML: limits.max_records_per_run=1000. May be said several times.",
    ),
]
_changes: ContextVar[tuple[Change, ...]] = ContextVar("changes", default=())


class Commands(typer.Typer):
    """Commands, of which each that takes a CONF takes `--set` besides."""

    def command(self, *words: Any, **given: Any) -> Callable[[Any], Any]:
        """As typer's."""
        register = super().command(*words, **given)

        def taken(function: Any) -> Any:
            register(
                _taking_changes(function)
                if "conf" in inspect.signature(function).parameters
                else function
            )
            return function

        return taken


def _taking_changes(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def command(changes: Sequence[str] | None = None, **given: Any) -> None:
        with _changing(changes or ()):
            function(**given)

    takes = inspect.signature(function, eval_str=True)
    said = inspect.Parameter(
        "changes", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Changes
    )
    command.__signature__ = takes.replace(parameters=[*takes.parameters.values(), said])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, "changes": Changes}
    return command


@contextlib.contextmanager
def _changing(words: Sequence[str]) -> Iterator[None]:
    """Inside, every conf that is read is read with these changes. Raises SettingsError for what is
    none.
    """
    before = _changes.set(_parsed(words) if words else ())
    try:
        yield
    finally:
        _changes.reset(before)


def _parsed(words: Sequence[str]) -> tuple[Change, ...]:
    from etl.settings.load import parse_change

    return tuple(map(parse_change, words))


def said_changes() -> tuple[Change, ...]:
    """What `--set` says of this command."""
    return _changes.get()


def settings_of(conf: Path) -> Settings:
    """The settings of the conf file, with what `--set` says of them. Raises SettingsError."""
    from etl.settings.load import load_settings

    settings, lines = load_settings(conf, said_changes()), json_lines()
    if lines:
        lines.pipeline = settings.pipeline
    return settings


def table_settings_of(conf: Path) -> Settings:
    """The same with the place of a table that a catalog names, as the ledger has it; else Spark is
    asked. For what looks at the table.
    """
    settings = settings_of(conf)
    if settings.table.is_placed:
        return settings
    from etl.commands.operator_decisions import with_table

    return with_table(settings, run_context(quiet=True))


def run_context(*, quiet: bool = False, as_json: bool = False) -> RunContext:
    """This machine's Java and Delta jars, unless spark-submit brought its own; and progress on
    standard error, unless `quiet`.

    spark-submit passes standard error on as standard output, where `--json` prints its one
    document: there is no progress there.
    """
    from etl.console.progress import showing
    from etl.decide.table_storage import is_ours, packages
    from etl.io.spark.session import is_submitted
    from etl.run.services import RunContext

    def spark_defaults(given: Mapping[str, str]) -> dict[str, str]:
        if is_submitted():
            return {}
        from etl.io.spark.log_store import jar_path
        from etl.io.spark.session import beside_file
        from etl.testkit.java import store_jars
        from etl.testkit.spark import jar_settings, set_spark_environment

        set_spark_environment()
        jars = [*store_jars(packages(given)), *([jar_path()] if is_ours(given) else [])]
        return beside_file(jar_settings(given.get("spark.master", "local[*]"), besides=jars))

    lines, is_quiet = json_lines(), quiet or as_json and is_submitted()
    context = RunContext(spark_defaults=spark_defaults, changes=said_changes())
    if lines:
        lines.is_quiet = is_quiet
        return dataclasses.replace(context, progress=lines.progress, of_run=lines.of_run)
    return context if is_quiet else dataclasses.replace(context, progress=showing)
