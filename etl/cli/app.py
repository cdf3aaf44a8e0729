"""Which commands exist, and how does a command begin and end?

Lives here: the commands of daily use, the groups of all others, signals, exit codes. Not here:
arguments of the other commands (`replay_commands`, `operator_commands`, `record_commands`,
`file_commands`), options that several commands share (`common_options`).
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from etl import __version__
from etl.cli.common_options import (
    AsJson,
    CommandGroup,
    Commands,
    Conf,
    ConfOrFolder,
    DryRun,
    Output,
    OutputFailed,
    Quiet,
    RunKey,
    UntilTime,
    json_lines,
    output_error,
    output_session,
    print_error,
    printable,
    raise_output_failure,
    request_of,
    run_context,
    settings_of,
    show,
    table_settings_of,
    wants_json_lines,
)
from etl.cli.file_commands import conf, init, package, report
from etl.cli.operator_commands import ledger, offsets, pipelines, plans, table, topics
from etl.cli.record_commands import records
from etl.cli.replay_commands import backfills, replay
from etl.errors import (
    DataLost,
    EtlError,
    SettingsError,
    Stopped,
    VerificationFailed,
    follows_interrupt,
)
from etl.io.process import collect_garbage_rarely
from etl.model.partitions import BrokerFamily

app = Commands(
    name="etl",
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Load Kafka topics into Delta tables in batches, exactly once.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(backfills, name="backfills")
app.add_typer(records, name="records")
app.add_typer(offsets, name="offsets")
app.add_typer(plans, name="plans")
app.add_typer(topics, name="topics")
app.add_typer(table, name="table")
app.add_typer(ledger, name="ledger")
app.add_typer(pipelines, name="pipelines")
app.add_typer(conf, name="conf")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"offset-range-etl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Load Kafka topics into Delta tables in batches, exactly once."""


@app.command()
def demo(
    records: Annotated[
        int, typer.Option(min=8, metavar="N", help="Number of records to load at first.")
    ] = 1_000_000,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For the table, its conf and logs. Default: temporary.",
            show_default=False,
        ),
    ] = None,
    broker_type: Annotated[
        BrokerFamily, typer.Option(help="kafka: one broker of 3.9.1; jafka: two of 3.0.6.")
    ] = BrokerFamily.KAFKA,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep ZooKeeper and broker running until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run servers and a pipeline here, kill it, and verify."""
    from etl.demo.story import run_demo

    run_demo(
        records=records,
        folder=folder,
        quiet=quiet or as_json,
        broker_type=broker_type,
        keep=keep,
        show=lambda figures: show(as_json, figures, lambda: None),
    )


app.command()(init)


@app.command()
def doctor(
    conf: Conf,
    spark: Annotated[bool, typer.Option("--spark", help="Start a Spark session, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything that a run needs."""
    from etl.cli.screens import show_doctor
    from etl.commands.doctor import CHECKS, SPARK_SESSION, diagnose

    checks = CHECKS
    if spark:
        checks = (*CHECKS, SPARK_SESSION)
    diagnosis = diagnose(settings_of(conf), checks, spark_defaults=run_context().spark_defaults)
    show(as_json, diagnosis.as_json(), lambda: show_doctor(diagnosis))
    if diagnosis.worst:
        raise diagnosis.worst


@app.command()
def run(
    context: typer.Context,
    conf: ConfOrFolder,
    until: UntilTime = None,
    run_key: RunKey = None,
    dry_run: DryRun = False,
    fail_on_loss: Annotated[
        bool, typer.Option("--fail-on-loss", help="Exit 3 if records were lost.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Load new records into the table.

    Finishes a stored plan, then makes one new plan; with a key as many as its end needs. Exit 8:
    the --until of a key is in the future.
    """
    if dry_run:
        return _show_next_run(conf, until, run_key, as_json=as_json)
    if conf.is_dir():
        from etl.cli.run_folder import run_folder

        return run_folder(context, conf, main=main, as_json=as_json)
    from etl.cli.screens import show_report
    from etl.commands.run import run
    from etl.report.describe import describe_who_skipped
    from etl.report.report_json import report_as_json

    settings = settings_of(conf)
    report = run(
        settings,
        run_context(quiet=quiet, as_json=as_json),
        conf=str(conf),
        strict=fail_on_loss,
        request=request_of(settings, until, run_key),
    )
    show(as_json, report_as_json(report), lambda: show_report(report), is_done=True)
    if fail_on_loss and report.lost_records:
        policy, check = describe_who_skipped(report.why_lost)
        raise DataLost(
            f"Records were lost, as allowed by {policy}",
            action=f"Check the lost offsets that are named above. {check}",
        )


def _show_next_run(conf: Path, until: str | None, run_key: str | None, *, as_json: bool) -> None:
    """Show what the next run would do; nothing is stored or committed."""
    from etl.cli.screens import show_preview
    from etl.commands import plans as plans_command

    if conf.is_dir():
        raise SettingsError(
            "--dry-run takes one conf, not a directory",
            path=conf,
            key="--dry-run",
            action="Run the command for each conf of the directory",
        )
    settings = table_settings_of(conf)
    preview = plans_command.preview(settings, request_of(settings, until, run_key))
    show(as_json, {"dry_run": True, **preview.as_json()}, lambda: show_preview(preview))


app.command()(replay)


@app.command()
def verify(conf: Conf, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Prove that each planned record is in the table once.

    Exit 9: rows are missing or duplicated.
    """
    from etl.cli.screens import show_proof
    from etl.commands import verify as verify_command

    proof = verify_command.verify(
        table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    )
    show(as_json, proof.as_json(), lambda: show_proof(proof))
    if not proof.is_right:
        raise VerificationFailed(proof.first_finding, action=proof.action)


@app.command()
def lag(conf: Conf, as_json: AsJson = False) -> None:
    """Show how far the table is behind the topics."""
    from etl.cli.screens import show_lag
    from etl.commands import lag as lag_command

    found = lag_command.lag(table_settings_of(conf))
    show(as_json, found.as_json(), lambda: show_lag(found))
    if found.refusal:
        raise found.refusal


app.command()(report)
app.command()(package)


_STOPPED = 130
_OUTPUT_CLOSED = 141
"""Exit code of a command that SIGPIPE ended, as of most tools."""
_NOTHING_LOST = "Nothing is lost; the next run continues from what is stored"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are two lines, or JSON if requested."""
    collect_garbage_rarely()
    output: Any = Output(sys.stdout)
    with contextlib.redirect_stdout(output):
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, _stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, _stop)
        words = list(sys.argv[1:] if arguments is None else arguments)
        with output_session(json_lines=wants_json_lines(words)):
            return _exit_code(words, wants_json="--json" in words)


def _exit_code(words: list[str], *, wants_json: bool) -> int:
    try:
        if app(args=words, obj=words, standalone_mode=False) == _STOPPED:
            raise KeyboardInterrupt  # typer caught one
        raise_output_failure()  # of help, or the version
        return 0
    except EtlError as error:
        return print_error(error, wants_json)
    except typer.TyperException as error:
        # typer has its own copy of click: its errors are no `click.ClickException`.
        message = error.format_message().removesuffix(".")  # names the option
        action = f"Check the arguments with `{_command_of(error)} --help`"
        settings_error = SettingsError(message, action=action)
        return print_error(settings_error, wants_json)
    except (KeyboardInterrupt, typer.Abort, EOFError):
        return print_error(Stopped(f"Stopped. {_NOTHING_LOST}"), wants_json)
    except OutputFailed as error:
        if isinstance(error.reason, BrokenPipeError):
            return _OUTPUT_CLOSED
        return print_error(output_error(error.reason), wants_json=False)
    except SystemExit as error:
        # A user's function or a library ended the process: that must not look like success.
        return print_error(_exit_error(error), wants_json)
    except Exception as error:
        if follows_interrupt(error):
            message = f"Stopped ({type(error).__name__}: {error}). {_NOTHING_LOST}"
            return print_error(Stopped(message), wants_json)
        # A bug: print what a report needs.
        lines = json_lines()
        if lines:
            lines.write("error", "bug", traceback=traceback.format_exc())
        else:
            for line in traceback.format_exc().splitlines():
                print(printable(line), file=sys.stderr)
        message = f"Bug: {type(error).__name__}: {error}"
        return print_error(EtlError(message, action="Report it with the lines above"), wants_json)


def _command_of(error: typer.TyperException) -> str:
    """Return the command whose arguments are wrong: `etl`, or for example `etl plans show`."""
    names: list[str] = []
    context = getattr(error, "ctx", None)  # a usage error has one
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(["etl", *names])


def _exit_error(error: SystemExit) -> EtlError:
    """Return the error for a call of sys.exit inside a command."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return EtlError(
        f"The command was ended by sys.exit({error.code!r}) at {place.filename}:{place.lineno}",
        action=f"Check the code that calls sys.exit there. {_NOTHING_LOST}",
    )


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """End the command as Ctrl-C does. Logging is disabled, because libraries log every call that
    was interrupted.
    """
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt
