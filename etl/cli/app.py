"""Which commands are there, and how does one begin and end?

Commands of daily use, the groups of all others, signals and exit codes.
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
    Quiet,
    RunKey,
    Unshown,
    UntilTime,
    begun,
    json_lines,
    print_json,
    raise_output_failure,
    request_of,
    run_context,
    settings_of,
    show,
    table_settings_of,
    tell,
    unwritable,
    wants_json_lines,
)
from etl.cli.load_commands import backfills, replay
from etl.cli.operator_commands import ledger, offsets, pipelines, plans, table, topics
from etl.cli.record_commands import records
from etl.cli.setup_commands import conf, init, package, report
from etl.errors import DataLost, EtlError, SettingsError, Stopped, VerificationFailed
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
        int, typer.Option(min=8, help="Number of records to load at first.")
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
    as_json: AsJson = False,
) -> None:
    """Run servers and a pipeline here, kill it, and verify."""
    from etl.demo.story import run_demo

    document = run_demo(records=records, folder=folder, quiet=as_json, dialect=broker_type)
    if as_json:
        print_json(document)


app.command()(init)


@app.command()
def doctor(conf: Conf, as_json: AsJson = False) -> None:
    """Check everything that a run needs."""
    from etl.cli.screens import show_doctor
    from etl.commands.doctor import diagnose

    diagnosis = diagnose(settings_of(conf), spark_defaults=run_context().spark_defaults)
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
    --until is in the future.
    """
    if dry_run:
        return _show_next_run(conf, until, run_key, as_json=as_json)
    if conf.is_dir():
        from etl.cli.run_folder import run_folder

        return run_folder(context, conf, main=main, as_json=as_json)
    from etl.cli.screens import show_report
    from etl.commands.run import run
    from etl.report.describe import describe_who_skipped

    settings = settings_of(conf)
    report = run(
        settings,
        run_context(quiet=quiet, as_json=as_json),
        conf=str(conf),
        strict=fail_on_loss,
        request=request_of(settings, until, run_key),
    )
    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)
    if fail_on_loss and report.lost_records:
        who, look_at = describe_who_skipped(report.why_lost)
        raise DataLost(
            f"records were lost, and {who} let them go", action=f"the gaps named above; {look_at}"
        )


def _show_next_run(conf: Path, until: str | None, run_key: str | None, *, as_json: bool) -> None:
    """Show what the next run would do; nothing is stored or committed."""
    from etl.cli.screens import show_preview
    from etl.commands import plans as previewing

    if conf.is_dir():
        raise SettingsError(
            "--dry-run takes one conf, and this is a directory",
            path=conf,
            key="--dry-run",
            action="the same with each of its confs",
        )
    settings = table_settings_of(conf)
    preview = previewing.preview(settings, request_of(settings, until, run_key))
    show(as_json, preview.as_json(), lambda: show_preview(preview))


app.command()(replay)


@app.command()
def verify(conf: Conf, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Prove that each planned record is in the table once. Exit 9: rows are missing or duplicated."""
    from etl.cli.screens import show_proof
    from etl.commands import verify as proving

    proof = proving.verify(table_settings_of(conf), run_context(quiet=quiet, as_json=as_json))
    show(as_json, proof.as_json(), lambda: show_proof(proof))
    if not proof.is_right:
        raise VerificationFailed(proof.first_finding, action=proof.action)


@app.command()
def lag(conf: Conf, as_json: AsJson = False) -> None:
    """Show how far the table is behind the topics."""
    from etl.cli.screens import show_lag
    from etl.commands import lag as looking

    found = looking.lag(table_settings_of(conf))
    show(as_json, found.as_json(), lambda: show_lag(found))
    if found.refusal:
        raise found.refusal


app.command()(report)
app.command()(package)


_STOPPED = 130
_NOBODY_READS = 141
"""The exit code of a command that ended by SIGPIPE, as of most tools."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are two lines, or JSON if requested."""
    output: Any = Output(sys.stdout)
    with contextlib.redirect_stdout(output):
        return _door(arguments)


def _door(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, _stop)
    with begun(json_lines=wants_json_lines(words)):
        return _exit_code(words, wants_json="--json" in words)


def _exit_code(words: list[str], *, wants_json: bool) -> int:
    try:
        if app(args=words, obj=words, standalone_mode=False) == _STOPPED:
            raise KeyboardInterrupt  # typer has caught one
        raise_output_failure()  # help, or the version
        return 0
    except EtlError as error:
        return tell(error, wants_json)
    except typer.TyperException as error:
        return tell(SettingsError(str(error), action="etl --help"), wants_json)
    except (KeyboardInterrupt, typer.Abort, EOFError):
        return tell(
            Stopped("stopped; nothing is lost, the next run goes on from what is stored"),
            wants_json,
        )
    except Unshown as error:
        is_closed = isinstance(error.refused, BrokenPipeError)
        return _NOBODY_READS if is_closed else tell(unwritable(error.refused), wants_json=False)
    except SystemExit as error:  # none of ours: what ends the process in the middle of a command must not look like one that is done
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"the process was ended in the middle of the command (sys.exit, with {error.code!r}, at {place.filename}:{place.lineno})"
        return tell(
            EtlError(
                message,
                action="who calls sys.exit there; nothing is lost, the next run goes on from what is stored",
            ),
            wants_json,
        )
    except (
        Exception
    ) as error:  # nobody above catches it: a bug of ours, with all that is needed to report it
        lines = json_lines()
        if lines:
            lines.say("error", "a bug", traceback=traceback.format_exc())
        else:
            traceback.print_exc()
        return tell(
            EtlError(
                f"a bug: {type(error).__name__}: {error}",
                action="please report it with the lines above",
            ),
            wants_json,
        )


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does. What libraries log from now on of calls that were
    interrupted is no news.
    """
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt
