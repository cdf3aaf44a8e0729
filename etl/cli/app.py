"""Which commands are there, and how does one begin and end?

The commands of a pipeline's every day, and the families of the others. Everything heavy is
imported inside the command that needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl import __version__
from etl.cli.arguments import (
    AsJson,
    Commands,
    Conf,
    ConfOrFolder,
    FromTime,
    Quiet,
    RunKey,
    UntilTime,
    request_of,
    run_context,
    settings_of,
    table_settings_of,
)
from etl.cli.backfill import backfill
from etl.cli.compact import compact
from etl.cli.init import init, schema
from etl.cli.intervals import complete, intervals
from etl.cli.log_format import CommandGroup
from etl.cli.maintain import maintain
from etl.cli.offsets import offsets
from etl.cli.output import print_json, show
from etl.cli.package import package
from etl.cli.peek import peek
from etl.cli.pipelines import pipelines
from etl.cli.plans import plans
from etl.cli.replay import replay
from etl.cli.report import report
from etl.cli.table import table
from etl.cli.tail import tail
from etl.errors import DataLost, VerifyFailed
from etl.model.partitions import BrokerFamily

app = Commands(
    name="etl",
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Exactly-once batches from Kafka into Delta Lake.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(offsets, name="offsets")
app.add_typer(plans, name="plans")
app.add_typer(pipelines, name="pipelines")
app.add_typer(backfill, name="backfill")
app.add_typer(table, name="table")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"offset-range-etl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
) -> None:
    """Exactly-once batches from Kafka into Delta Lake."""


@app.command()
def demo(
    as_json: AsJson = False,
    records: Annotated[
        int, typer.Option(min=8, help="How many click events to produce at first.")
    ] = 1_000_000,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where the table, its conf and logs go; a new temporary folder by default."
        ),
    ] = None,
    dialect: Annotated[
        BrokerFamily, typer.Option(help="Whose brokers: kafka, one of 3.9.1; jafka, two of 3.0.6.")
    ] = BrokerFamily.KAFKA,
) -> None:
    """Real ZooKeeper, Kafka or Jafka, Spark and Delta on this machine: load a million records, kill
    a run, prove nothing is lost.
    """
    from etl.demo.story import run_demo

    told = run_demo(records=records, folder=folder, quiet=as_json, dialect=dialect)
    if as_json:
        print_json(told)


@app.command()
def doctor(conf: Conf, as_json: AsJson = False) -> None:
    """Look at everything a run needs, a line each: ok, or what to do; nothing is changed."""
    from etl.commands.doctor import diagnose
    from etl.console.text import show_doctor

    diagnosis = diagnose(settings_of(conf), spark_defaults=run_context().spark_defaults)
    show(as_json, diagnosis.as_json(), lambda: show_doctor(diagnosis))
    if diagnosis.worst:
        raise diagnosis.worst


app.command()(init)


@app.command()
def lag(conf: Conf, as_json: AsJson = False) -> None:
    """How far the table is behind: records, bytes, time, and how long until retention takes what is
    not read; nothing is changed.
    """
    from etl.commands import lag as looking
    from etl.console.offsets import show_lag

    found = looking.lag(table_settings_of(conf))
    show(as_json, found.as_json(), lambda: show_lag(found))
    if found.refusal:
        raise found.refusal


app.command()(compact)
app.command()(maintain)
app.command()(package)
app.command()(peek)
app.command()(complete)
app.command()(intervals)
app.command()(schema)
app.command()(replay)
app.command()(tail)


@app.command()
def plan(
    conf: Conf,
    as_json: AsJson = False,
    until_time: UntilTime = None,
    from_time: FromTime = None,
    run_key: RunKey = None,
) -> None:
    """Say what the next run would do, with numbers; nothing is stored or moved."""
    from etl.commands import plans as previewing
    from etl.console.text import show_preview

    settings = table_settings_of(conf)
    preview = previewing.preview(settings, request_of(settings, until_time, from_time, run_key))
    show(as_json, preview.as_json(), lambda: show_preview(preview))


app.command()(report)


@app.command()
def run(
    context: typer.Context,
    conf: ConfOrFolder,
    as_json: AsJson = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when policy let records go.")
    ] = False,
    quiet: Quiet = False,
    until_time: UntilTime = None,
    from_time: FromTime = None,
    run_key: RunKey = None,
) -> None:
    """Read what is new and append it to the table, exactly once."""
    if conf.is_dir():
        from etl.cli.door import main
        from etl.cli.folder import run_folder

        return run_folder(context, conf, main=main, as_json=as_json)
    from etl.commands.run import run
    from etl.console.text import show_report
    from etl.report.describe import told_who_let_go

    settings = settings_of(conf)
    request = request_of(settings, until_time, from_time, run_key)
    report = run(
        settings,
        run_context(quiet=quiet, as_json=as_json),
        conf=str(conf),
        strict=strict,
        request=request,
    )
    show(as_json, report.as_json(), lambda: show_report(report), is_done=True)
    if strict and report.lost_records:
        who, look_at = told_who_let_go(report.why_lost)
        raise DataLost(
            f"records were lost, and {who} let them go", check=f"the gaps named above; {look_at}"
        )


@app.command()
def verify(conf: Conf, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Prove from the table's rows and the ledger that every record of every applied plan is there
    once.
    """
    from etl.commands import verify as proving
    from etl.console.text import show_proof

    proof = proving.verify(table_settings_of(conf), run_context(quiet=quiet, as_json=as_json))
    show(as_json, proof.as_json(), lambda: show_proof(proof))
    if not proof.is_right:
        raise VerifyFailed(proof.first_finding, check=proof.check)
