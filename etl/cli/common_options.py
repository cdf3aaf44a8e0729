"""What do all commands accept, and how do they print their result?

Shared options and what they resolve to; one JSON document or a screen on standard output, errors on
standard error; `--log-format` text or json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from etl.decide.run_requests import DOCUMENT_FILE
from etl.errors import EtlError, SettingsError, Stopped

if TYPE_CHECKING:
    from etl.cli.progress import JsonLines
    from etl.model.plans import Request
    from etl.run.services import RunContext
    from etl.settings.load import Change
    from etl.settings.sections import Settings


_printed: list[Any] = []
"""The document that was printed; there is never more than one."""
_lines: list[JsonLines] = []
"""Writer of standard error as JSON; of nested commands (`etl run FOLDER` in one process) the last.
"""


@contextlib.contextmanager
def begun(*, json_lines: bool) -> Iterator[None]:
    """Context manager: reset output state; standard error is JSON inside, if requested."""
    _printed.clear()
    if not json_lines:
        yield
        return
    from etl.cli.progress import written

    with written() as lines:
        _lines.append(lines)
        try:
            yield
        finally:
            _lines.remove(lines)


def json_lines() -> JsonLines | None:
    """Return the writer of standard error as JSON; None for text."""
    return _lines[-1] if _lines else None


def say(text: str) -> None:
    """One line on standard error, which no program needs."""
    lines = json_lines()
    if lines:
        lines.say("info", text)
    else:
        print(f"etl: {text}", file=sys.stderr)


def show(
    as_json: bool, document: Any, screen: Callable[[], None], *, is_done: bool = False
) -> None:
    """Print the result of a command. `is_done`: the command changed something, and that stays done
    where the result cannot be printed.
    """
    if as_json:
        print_json(document)
    else:
        screen()
    try:
        raise_output_failure()
    except Unshown as error:
        if not is_done:
            raise
        if not isinstance(error.refused, BrokenPipeError):
            tell(unwritable(error.refused), wants_json=False)


def confirm(says: Sequence[str], *, yes: bool, as_json: bool) -> None:
    """Show what would be done, and continue if a person confirms, or has before. Raises Stopped for
    any other answer, SettingsError without a terminal.
    """
    if yes:
        return
    if not is_attended(as_json=as_json):
        message = (
            "nothing was changed: there is no terminal to ask at. It would come to this: "
            + "; ".join(says)
        )
        raise SettingsError(message, key="--yes", action="what it says, then the same with --yes")
    print(*says, sep="\n")
    ask("do it?")


def is_attended(*, as_json: bool) -> bool:
    """True if a person can be asked."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str) -> None:
    """Continue if a person says yes. Raises Stopped for any other answer."""
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Stopped("nothing was changed")


def raise_output_failure() -> None:
    """Once for each failure of standard output. Raises Unshown."""
    sys.stdout.flush()
    output: Any = sys.stdout
    refused, output.refused = output.refused, None
    if refused:
        raise Unshown(refused)


class Unshown(Exception):
    """Standard output could not be written."""

    def __init__(self, refused: OSError) -> None:
        super().__init__(refused)
        self.refused = refused


class Output:
    """Standard output. Its first failure is kept, libraries that print do not see it, and later
    output is dropped. Output of a user's threads goes to standard error, since programs read
    `--json`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.current_thread()
        self.refused: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of any stream."""
        if threading.current_thread() is not self._thread:
            return sys.stderr.write(text)
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """As of any stream."""
        self._try(self._stream.flush)

    def _try(self, output: Callable[[], object]) -> None:
        if self.refused:
            return
        try:
            output()
        except OSError as error:
            self.refused = error
            with contextlib.suppress(
                OSError, ValueError
            ):  # or Python would try once more at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def unwritable(refused: OSError) -> SettingsError:
    action = "the file or disk that it goes to; what the command did is done, and a run's report is in report.path"
    return SettingsError(f"standard output cannot be written: {refused.strerror}", action=action)


def print_json(document: Any) -> None:
    text = json.dumps(document, indent=2, default=str)
    if os.environ.get(DOCUMENT_FILE):
        _keep(text, os.environ[DOCUMENT_FILE])
    print(text)
    _printed.append(document)


def _keep(text: str, path: str) -> None:
    """Write a file whole or not at all, since a reader may look at any time."""
    try:
        with open(f"{path}.part", "w") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    except OSError as error:
        print(
            f"etl: the document cannot be written to {path} ({DOCUMENT_FILE}): {error.strerror}",
            file=sys.stderr,
        )


def begun_document() -> None:
    """The one document is being printed: whatever ends it ends in it."""
    _printed.append(None)


def tell(error: EtlError, wants_json: bool) -> int:
    if wants_json and not _printed:
        print_json(error.as_json())
    lines = json_lines()
    if lines:
        lines.error(error)
        return error.exit_code
    places = ", ".join(f"{name} {value}" for name, value in error.where.items())
    first, *more = error.message.splitlines() or [""]
    with contextlib.suppress(OSError):  # nobody reads it any more: the exit code says it
        print(
            f"etl: {first}" + (f" ({places})" if places else ""),
            *(f"       {line}" for line in more),
            sep="\n",
            file=sys.stderr,
        )
        if error.action:
            print(f"     {error.action}", file=sys.stderr)
        if error.retriable:
            print("     A retry may help", file=sys.stderr)
    return error.exit_code


def _given(reason: str) -> str:
    if not reason.strip():
        raise SettingsError(
            "the reason is empty", action="--reason: why it is done, for whoever reads it later"
        )
    return reason


Conf = Annotated[
    Path,
    typer.Argument(metavar="CONF", help="A YAML file.", show_default=False),
]
ConfOrFolder = Annotated[
    Path,
    typer.Argument(metavar="CONF", help="A YAML file, or a directory of them.", show_default=False),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="Pipeline of the group. Default: the conf's.", show_default=False
    ),
]
Reason = Annotated[
    str, typer.Option(callback=_given, help="Why; stored with the decision.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
OnlyRetained = Annotated[
    bool, typer.Option("--only-retained", help="Leave out records that retention deleted.")
]
From = Annotated[str, typer.Option("--from", metavar="POSITION", help="Start.", show_default=False)]
Until = Annotated[str, typer.Option("--until", metavar="POSITION", help="End.", show_default=False)]
UntilRequired = Annotated[
    str, typer.Option("--until", metavar="TIME", help="End.", show_default=False)
]
PartitionOption = Annotated[
    list[str],
    typer.Option(
        "--partition",
        "-p",
        metavar="PARTITION",
        help="clicks:3, on Jafka clicks:1-3; clicks: all its partitions. Repeatable.",
        show_default=False,
    ),
]
OptionalPartitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="PARTITION",
        help="Only these; repeatable. Default: all of the conf.",
        show_default=False,
    ),
]
UntilTime = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        show_default=False,
        help="Stop before the first record at or after this time: 2026-01-31T13:00Z, -1h.",
    ),
]
RunKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Idempotency key: load nothing if this key is done.",
        show_default=False,
    ),
]


def single(partitions: Sequence[str]) -> str:
    """Return the one partition of a command that takes one only. Raises SettingsError."""
    if len(partitions) != 1:
        raise SettingsError(
            f"{len(partitions)} partitions are named, and this command takes one",
            key="--partition",
            action="the command once for each of them",
        )
    return partitions[0]


def request_of(settings: Settings, until: str | None, run_key: str | None) -> Request | None:
    """Return the request of a run. Raises SettingsError, and NotReady for an end in the
    future.
    """
    from etl.run.services import now_ms
    from etl.settings import load

    return load.request_of(settings, run_key=run_key, until=until, now_ms=now_ms())


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Set a conf key for this command; repeatable. VALUE is YAML.",
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
    """Context manager: each conf is loaded with these changes. Raises SettingsError for an invalid
    one.
    """
    before = _changes.set(_parsed(words) if words else ())
    try:
        yield
    finally:
        _changes.reset(before)


def _parsed(words: Sequence[str]) -> tuple[Change, ...]:
    from etl.settings.load import parse_change

    return tuple(map(parse_change, words))


def current_overrides() -> tuple[Change, ...]:
    """Return the command's `--set` changes."""
    return _changes.get()


def settings_of(conf: Path) -> Settings:
    """Return the settings of the conf with `--set` applied. Raises SettingsError."""
    from etl.settings.load import load_settings

    settings, lines = load_settings(conf, current_overrides()), json_lines()
    if lines:
        lines.pipeline = settings.pipeline
    return settings


def table_settings_of(conf: Path) -> Settings:
    """Return the same with a named table's location, from the ledger or from Spark, for commands
    that read the table.
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
    from etl.cli.progress import showing
    from etl.decide.table_storage import is_ours, packages
    from etl.io.spark.session import is_submitted
    from etl.run.services import RunContext

    def spark_defaults(given: Mapping[str, str]) -> dict[str, str]:
        if is_submitted():
            return {}
        from etl.io.spark.log_store import jar_path
        from etl.io.spark.session import without_file_options
        from etl.testkit.java import store_jars
        from etl.testkit.spark import jar_settings, set_spark_environment

        set_spark_environment()
        jars = [*store_jars(packages(given)), *([jar_path()] if is_ours(given) else [])]
        return without_file_options(
            jar_settings(given.get("spark.master", "local[*]"), besides=jars)
        )

    lines, is_quiet = json_lines(), quiet or as_json and is_submitted()
    context = RunContext(spark_defaults=spark_defaults, changes=current_overrides())
    if lines:
        lines.is_quiet = is_quiet
        return dataclasses.replace(context, progress=lines.progress, of_run=lines.of_run)
    return context if is_quiet else dataclasses.replace(context, progress=showing)


_FLAG = "--log-format"
_HELP = "Format of standard error."


class LogFormat(str, Enum):
    """Format of standard error."""

    TEXT = "text"
    JSON = "json"


SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": ("demo", "init", "doctor"),
    "Load": ("run", "replay", "backfills"),
    "Check": ("verify", "lag", "report", "records"),
    "Manage": ("offsets", "plans", "topics", "table", "ledger", "pipelines"),
    "Set up": ("conf", "package"),
}
"""The commands as `etl --help` lists them."""
_EXAMPLES = """
  Load Kafka topics into Delta tables in batches, exactly once.

    etl demo                        servers, a pipeline, a crash and a proof
    etl init --zookeeper zk1:2181 --topic clicks --table lake/clicks
    etl doctor conf/clicks.yaml     then: etl run conf/clicks.yaml
"""
_HELP_WIDTH, _NAME_WIDTH = 79, 12


class CommandGroup(TyperGroup):
    """The commands; each of them, and of their groups, takes the option."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write the help of `etl` by sections, on one screen."""
        formatter.write(f"Usage: etl COMMAND [ARGS]...\n{_EXAMPLES}\n")
        for section, names in SECTIONS.items():
            formatter.write(f"{section}\n")
            for name in names:
                formatter.write(_help_lines(name, self.commands[name]))
        formatter.write("\n  --version   Show the version.\n")
        formatter.write("  -h, --help  Show help; also after a command.\n")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        option = _option()
        for command in _leaves(self):
            command.params.append(option)


def _help_lines(name: str, command: Any) -> str:
    """Return what a command does; of a group its commands, too."""
    summary = str(command.help).partition("\n")[0]
    inner = getattr(command, "commands", None)
    if inner:
        summary = f"{summary.rstrip('.')}: {', '.join(inner)}"
    indent = " " * (_NAME_WIDTH + 2)
    lines = textwrap.wrap(
        summary, _HELP_WIDTH, initial_indent=f"  {name:<{_NAME_WIDTH}}", subsequent_indent=indent
    )
    return "\n".join(lines) + "\n"


def _option() -> Any:
    """Return the option. No command gets its value, which is read before any command begins."""
    made = typer.Typer(add_completion=False)

    @made.command()
    def takes(
        log_format: Annotated[LogFormat, typer.Option(_FLAG, help=_HELP)] = LogFormat.TEXT,
    ) -> None:
        """Nothing but that."""

    option: Any = typer.main.get_command(made).params[0]
    option.expose_value = False
    return option


def _leaves(command: Any) -> Iterator[Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield command
    for one in (inner or {}).values():
        yield from _leaves(one)


def wants_json_lines(arguments: Sequence[str]) -> bool:
    """True if these arguments ask for JSON, since errors in them must be JSON, too."""
    pairs = zip(arguments, arguments[1:], strict=False)
    return (_FLAG, LogFormat.JSON.value) in pairs or f"{_FLAG}={LogFormat.JSON.value}" in arguments
