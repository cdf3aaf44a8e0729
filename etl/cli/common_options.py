"""What do all commands accept, and how do they print their result?

Lives here: options that several commands share, and the settings that they resolve to; the result
on standard output (a screen or one JSON document); errors on standard error (text or JSON lines).
Not here: what a screen shows (`screens`, `record_screens`, `progress`).
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
from contextlib import AbstractContextManager
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
    from etl.report.run_report import Report
    from etl.run.run_context import RunContext
    from etl.settings.load import Change
    from etl.settings.sections import Settings


_printed: list[Any] = []
"""The document that was printed. There is at most one."""
_place: dict[str, str] = {}
"""The command, the pipeline of its conf and the id of its run: the first keys of the document."""
_lines: list[JsonLines] = []
"""Writers of standard error as JSON. Commands nest (`etl run FOLDER` in one process); the last
counts.
"""


@contextlib.contextmanager
def output_session(*, json_lines: bool) -> Iterator[None]:
    """Context manager: reset the output state; inside, standard error is JSON if requested."""
    _printed.clear()
    outer = dict(_place)
    _place.clear()
    try:
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
    finally:
        _place.clear()
        _place.update(outer)


def json_lines() -> JsonLines | None:
    """Return the writer of standard error as JSON; None for text."""
    return _lines[-1] if _lines else None


def print_note(text: str) -> None:
    """Print a line for people on standard error."""
    lines = json_lines()
    if lines:
        lines.write("info", text)
    else:
        print(f"etl: {printable(text)}", file=sys.stderr)


def printable(text: str) -> str:
    """Return the text with control characters, line ends included, escaped: texts of others must
    neither control the terminal nor look like lines of ours.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def show(
    as_json: bool, document: Mapping[str, Any], screen: Callable[[], None], *, is_done: bool = False
) -> None:
    """Print the result of a command. `is_done`: the command changed something, so output that fails
    is not the command's failure.
    """
    if as_json:
        print_json(document)
    else:
        write_document(document)
        screen()
    try:
        raise_output_failure()
    except OutputFailed as error:
        if not is_done:
            raise
        if not isinstance(error.reason, BrokenPipeError):
            print_error(output_error(error.reason), wants_json=False)


def confirm(effects: Sequence[str], *, yes: bool, dry_run: bool = False, as_json: bool) -> None:
    """Print what would be done and wait for a confirmation, unless `yes` or a dry run.

    Raises Stopped for any other answer, SettingsError without a terminal.
    """
    if yes or dry_run:
        return
    if not is_attended(as_json=as_json):
        raise SettingsError(
            "Nothing was changed, because there is no terminal for a confirmation. It would do: "
            + "; ".join(effects),
            key="--yes",
            action="Check that, then run the command with --yes",
        )
    _print_effects(effects)
    ask("Continue?")


def _print_effects(effects: Sequence[str]) -> None:
    for effect in effects:
        print(printable(effect))


def approve(
    effects: Sequence[str],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    details: Mapping[str, Any] | None = None,
) -> bool:
    """Print what would be done, and return True if it is to be done: with `yes`, or if a person
    confirms.

    A dry run prints it, with `details` in its document, and returns False. Raises as `confirm`.
    """
    if dry_run:
        document = {"dry_run": True, "message": list(effects), **(details or {})}
        show(as_json, document, lambda: _print_effects(effects))
        return False
    confirm(effects, yes=yes, as_json=as_json)
    return True


def is_attended(*, as_json: bool) -> bool:
    """Return True if a person at a terminal can confirm."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str) -> None:
    """Wait for a confirmation on the terminal. Raises Stopped for any answer but yes."""
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Stopped("Nothing was changed")


def raise_output_failure() -> None:
    """Raise OutputFailed if standard output failed since the last call."""
    sys.stdout.flush()
    output: Any = sys.stdout
    failure, output.failure = output.failure, None
    if failure:
        raise OutputFailed(failure)


class OutputFailed(Exception):
    """Standard output could not be written."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


class Output:
    """Standard output that never raises.

    Its first failure is kept, and later output is dropped. Output of other threads (a user's
    function) goes to standard error, since programs read `--json`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.current_thread()
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write to the stream, or to standard error from another thread."""
        if threading.current_thread() is not self._thread:
            return sys.stderr.write(text)
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._try(self._stream.flush)

    def _try(self, output: Callable[[], object]) -> None:
        if self.failure:
            return
        try:
            output()
        except OSError as error:
            self.failure = error
            # Python flushes the descriptor once more at exit, which would fail again.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def output_error(reason: OSError) -> SettingsError:
    """Return the error for a standard output that cannot be written."""
    return SettingsError(
        f"Standard output cannot be written: {reason.strerror}",
        action="Check the file or disk of standard output. What the command did is done; the "
        "report "
        "of a run is in report.path",
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Print the document of the command, and write it as `write_document` does."""
    write_document(document)
    print(_text_of(document))
    _printed.append(document)


def write_document(document: Mapping[str, Any]) -> None:
    """Write the document of the command, with or without `--json`, to the file that
    ETL_DOCUMENT_FILE names.
    """
    file = os.environ.get(DOCUMENT_FILE)
    if file:
        _write_document(_text_of(document), file)
        _printed.append(document)


def _text_of(document: Mapping[str, Any]) -> str:
    return json.dumps({**_place, **document}, indent=2, default=str)


def _write_document(text: str, path: str) -> None:
    from etl.io.report_files import replacing

    try:
        with replacing(Path(path)) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        print(
            f"etl: {DOCUMENT_FILE}: {path} cannot be written: {error.strerror}",
            file=sys.stderr,
        )


def document_head() -> dict[str, str]:
    """Return the first keys of a document that is printed in parts: command and pipeline."""
    return dict(_place)


def begin_document() -> None:
    """Note that the document is being printed: an error is printed inside it, not as another
    one.
    """
    _printed.append(None)


def print_error(error: EtlError, wants_json: bool) -> int:
    """Print an error and return its exit code."""
    if not _printed:
        if wants_json:
            print_json(error.as_json())
        else:
            write_document(error.as_json())
    lines = json_lines()
    if lines:
        lines.error(error)
        return error.exit_code
    with contextlib.suppress(OSError):  # standard error is closed: the exit code remains
        print(*_error_lines(error), sep="\n", file=sys.stderr)
    return error.exit_code


def _error_lines(error: EtlError) -> list[str]:
    first, *more = error.message.splitlines() or [""]
    if error.where:
        places = ", ".join(f"{name} {value}" for name, value in error.where.items())
        first += f" ({places})"
    lines = [f"etl: {first}"]
    lines += [f"       {line}" for line in more]
    if error.action:
        lines.append(f"     {error.action}")
    if error.retriable and not isinstance(error, Stopped):
        lines.append("     A retry may help")
    return [printable(line) for line in lines]


def _non_empty(reason: str) -> str:
    if not reason.strip():
        raise SettingsError("The reason is empty", action="State with --reason why it is done")
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
    str,
    typer.Option(
        metavar="TEXT",
        callback=_non_empty,
        help="Why; stored with the decision.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
OnlyRetained = Annotated[
    bool, typer.Option("--only-retained", help="Leave out records that retention deleted.")
]
_TIME = "a time: 2026-01-31T13:00Z, or -1h (before now)"
POSITION = f"an offset, earliest, latest, or {_TIME}"
"""Help of an offset, a time or an end of the log."""
START = f"Start, inclusive: an offset, or {_TIME}."
END = "End, exclusive; as --from."
From = Annotated[str, typer.Option("--from", metavar="POSITION", help=START, show_default=False)]
Until = Annotated[str, typer.Option("--until", metavar="POSITION", help=END, show_default=False)]
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
            f"The command takes one partition, not {len(partitions)}",
            key="--partition",
            action="Run the command once for each of them",
        )
    return partitions[0]


def request_of(settings: Settings, until: str | None, run_key: str | None) -> Request | None:
    """Return the request of a run. Raises SettingsError, and NotReady for an end in the
    future.
    """
    from etl.run.service_interfaces import now_ms
    from etl.settings import until_and_run_key

    return until_and_run_key.request_of(settings, run_key=run_key, until=until, now_ms=now_ms())


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
    """A group of commands. Each command that takes a CONF also takes `--set`."""

    def command(self, *names: Any, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that registers a command, as typer does."""
        register = super().command(*names, **options)

        def decorate(function: Any) -> Any:
            takes_conf = "conf" in inspect.signature(function).parameters
            register(_with_set_option(function) if takes_conf else function)
            return function

        return decorate


def _with_set_option(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def command(changes: Sequence[str] | None = None, **arguments: Any) -> None:
        with _overrides(changes or ()):
            function(**arguments)

    signature = inspect.signature(function, eval_str=True)
    set_option = inspect.Parameter(
        "changes", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Changes
    )
    parameters = [*signature.parameters.values(), set_option]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, "changes": Changes}
    return command


@contextlib.contextmanager
def _overrides(texts: Sequence[str]) -> Iterator[None]:
    """Context manager: each conf is loaded with these `--set` changes. Raises SettingsError for an
    invalid one.
    """
    changes: tuple[Change, ...] = ()
    if texts:
        from etl.settings.load import parse_change

        changes = tuple(parse_change(text) for text in texts)
    token = _changes.set(changes)
    try:
        yield
    finally:
        _changes.reset(token)


def current_overrides() -> tuple[Change, ...]:
    """Return the command's `--set` changes."""
    return _changes.get()


def settings_of(conf: Path) -> Settings:
    """Return the settings of the conf with `--set` applied. Raises SettingsError."""
    from etl.settings.load import load_settings

    settings, lines = load_settings(conf, current_overrides()), json_lines()
    _place["pipeline"] = settings.pipeline
    if lines:
        lines.pipeline = settings.pipeline
    return settings


def table_settings_of(conf: Path) -> Settings:
    """Return the settings with the path of a table that the conf names (`table.name`), from the
    ledger or from Spark. For commands that read the table.
    """
    settings = settings_of(conf)
    if settings.table.is_placed:
        return settings
    from etl.commands.operator_decisions import with_table

    return with_table(settings, run_context(quiet=True))


def run_context(*, quiet: bool = False, as_json: bool = False) -> RunContext:
    """Return the context of a run: Spark defaults of this machine, and progress on standard error.

    Under spark-submit the session and its jars are the submitter's. There is no progress with
    `--json` under spark-submit, because it copies standard error to standard output.
    """
    from etl.cli.progress import showing
    from etl.decide.table_storage import is_ours, packages
    from etl.io.spark.session import is_submitted
    from etl.run.run_context import RunContext

    def spark_defaults(properties: Mapping[str, str]) -> dict[str, str]:
        if is_submitted():
            return {}
        from etl.io.spark.log_store import jar_path
        from etl.io.spark.session import without_file_options
        from etl.testkit.java_and_jars import store_jars
        from etl.testkit.spark_launch import jar_settings, set_spark_environment

        set_spark_environment()
        jars = list(store_jars(packages(properties)))
        if is_ours(properties):
            jars.append(jar_path())
        master = properties.get("spark.master", "local[*]")
        return without_file_options(jar_settings(master, besides=jars))

    lines = json_lines()
    is_quiet = quiet or (as_json and is_submitted())

    def of_run(report: Report) -> AbstractContextManager[None]:
        _place["run_id"] = report.run_id  # of the document of an error, too
        return lines.of_run(report) if lines else contextlib.nullcontext()

    context = RunContext(of_run=of_run, spark_defaults=spark_defaults, changes=current_overrides())
    if lines:
        lines.is_quiet = is_quiet
        return dataclasses.replace(context, progress=lines.progress)
    if is_quiet:
        return context
    return dataclasses.replace(context, progress=showing)


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
    """The commands of `etl`. Each command, also of a group, takes `--log-format` and `--quiet`."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write the help of `etl` by sections, on one screen."""
        formatter.write(f"Usage: etl COMMAND [ARGS]...\n{_EXAMPLES}\n")
        for section, names in SECTIONS.items():
            formatter.write(f"{section}\n")
            for name in names:
                formatter.write(_help_lines(name, self.commands[name]))
        formatter.write("\n  --version   Show the version.\n")
        formatter.write("  -h, --help  Show help; also after a command.\n")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        quiet, log_format = _common_options()
        for name, command in _commands_below(self):
            command.callback = _naming(name, command.callback)
            if all(parameter.name != quiet.name for parameter in command.params):
                command.params.append(quiet)
            command.params.append(log_format)


def _help_lines(name: str, command: Any) -> str:
    """Return the help of a command; of a group with the names of its commands."""
    summary = str(command.help).partition("\n")[0]
    inner = getattr(command, "commands", None)
    if inner:
        summary = f"{summary.rstrip('.')}: {', '.join(inner)}"
    indent = " " * (_NAME_WIDTH + 2)
    lines = textwrap.wrap(
        summary,
        _HELP_WIDTH,
        initial_indent=f"  {name:<{_NAME_WIDTH}}",
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"


def _common_options() -> tuple[Any, Any]:
    """Return `--quiet`, for commands without progress, and `--log-format`.

    No command receives their values: `wants_json_lines` reads the format earlier.
    """
    holder = typer.Typer(add_completion=False)

    @holder.command()
    def command(
        quiet: Quiet = False,
        log_format: Annotated[LogFormat, typer.Option(_FLAG, help=_HELP)] = LogFormat.TEXT,
    ) -> None:
        """Take the options, nothing else."""

    options: Any = typer.main.get_command(holder).params[:2]
    for option in options:
        option.expose_value = False
    return options[0], options[1]


def _commands_below(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield each command with its name, such as `plans list`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands_below(command, *names, name)
        else:
            yield " ".join((*names, name)), command


def _naming(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command so that its document begins with the command's name."""

    @functools.wraps(function)
    def command(*args: Any, **arguments: Any) -> Any:
        _place["command"] = name
        return function(*args, **arguments)

    return command


def wants_json_lines(arguments: Sequence[str]) -> bool:
    """Return True if these arguments ask for JSON. Their own errors must be JSON, too."""
    pairs = zip(arguments, arguments[1:], strict=False)
    return (_FLAG, LogFormat.JSON.value) in pairs or f"{_FLAG}={LogFormat.JSON.value}" in arguments
