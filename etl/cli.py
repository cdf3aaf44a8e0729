"""The commands: `etl demo | doctor | plan | run | verify | offsets show | plans list, show, supersede, acknowledge, take-over, accept-log |
pipelines list, retire, resume`.

Each command loads the settings, calls one function of `commands`, and shows the value that comes back: with `--json` as one
document on standard output, else for a person (`console`). Everything heavy is imported inside the command that needs it. Exit codes:

    0 done, nothing to do, or already applied        4 owned by another driver or consumer (retry)
    1 a bug                                          5 a person must decide
    2 settings or arguments, or what they point at   6 ZooKeeper, a broker or Spark went away (retry)
    3 with --strict: records were lost               7 the table cannot be reached or written (retry)
    130 stopped by Ctrl-C or SIGTERM                 141 whoever read standard output is gone; nothing was changed
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from etl import __version__
from etl.errors import DataLost, EtlError, SettingsError, Stopped, VerifyFailed

if TYPE_CHECKING:
    from etl.run.context import RunContext
    from etl.settings.sections import Settings

app = typer.Typer(name="etl", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Exactly-once batches from Kafka into Delta Lake.", context_settings={"help_option_names": ["-h", "--help"]})
offsets = typer.Typer(rich_markup_mode=None, help="Look at the group's committed offsets.")
plans = typer.Typer(rich_markup_mode=None, help="Look at the numbered plans of a pipeline, and rule on them.")
app.add_typer(offsets, name="offsets")
app.add_typer(plans, name="plans")
pipelines = typer.Typer(rich_markup_mode=None, help="Look at the pipelines of a group, and take one out of service.")
app.add_typer(pipelines, name="pipelines")

_STOPPED = 130
_NOBODY_READS = 141
"""What a shell shows of a command that ended by SIGPIPE, as most tools do."""

Conf = Annotated[Path, typer.Argument(metavar="CONF", help="The pipeline's file, e.g. conf/clicks.yaml.", show_default=False)]
Name = Annotated[str | None, typer.Argument(
    metavar="NAME", help="Another pipeline of the same group; the conf's own by default.", show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, for whoever reads it later.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing on standard error while it goes on.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"offset-range-etl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which version this is.")] = False,
) -> None:
    """Exactly-once batches from Kafka into Delta Lake."""


@app.command()
def demo(
    as_json: AsJson = False,
    records: Annotated[int, typer.Option(min=8, help="How many click events to produce at first.")] = 1_000_000,
    folder: Annotated[Path | None, typer.Option(help="Where the table, its conf and logs go; a new temporary folder by default.")] = None,
) -> None:
    """Real ZooKeeper, Kafka, Spark and Delta on this machine: load a million records, kill a run, prove nothing is lost."""
    from etl.demo.story import run_demo

    told = run_demo(records=records, folder=folder, quiet=as_json)
    if as_json:
        _print_json(told)


@app.command()
def doctor(conf: Conf, as_json: AsJson = False) -> None:
    """Look at everything a run needs, a line each: ok, or what to do; nothing is changed."""
    from etl.console.text import show_doctor
    from etl.doctor.diagnose import diagnose

    diagnosis = diagnose(_settings(conf), spark_defaults=run_context().spark_defaults)
    _show(as_json, diagnosis.as_json(), lambda: show_doctor(diagnosis))
    if diagnosis.worst:
        raise diagnosis.worst


@app.command()
def plan(conf: Conf, as_json: AsJson = False) -> None:
    """Say what the next run would do, with numbers; nothing is stored or moved."""
    from etl.commands import preview as previewing
    from etl.console.text import show_preview

    preview = previewing.preview(_settings(conf))
    _show(as_json, preview.as_json(), lambda: show_preview(preview))


@app.command()
def run(
    conf: Conf,
    as_json: AsJson = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 when policy let records go.")] = False,
    quiet: Quiet = False,
) -> None:
    """Read what is new and append it to the table, exactly once."""
    from etl.commands.run import run
    from etl.console.text import show_report
    from etl.report.sentences import told_who_let_go

    report = run(_settings(conf), run_context(quiet=quiet, as_json=as_json), conf=str(conf), strict=strict)
    _show(as_json, report.as_json(), lambda: show_report(report), is_done=True)
    if strict and report.lost_records:
        who, look_at = told_who_let_go(report.why_lost)
        raise DataLost(f"records were lost, and {who} let them go", check=f"the gaps named above; {look_at}")


@app.command()
def verify(conf: Conf, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Prove from the table's rows and the ledger that every record of every applied plan is there once."""
    from etl.commands import verify as proving
    from etl.console.text import show_proof

    proof = proving.verify(_settings(conf), run_context(quiet=quiet, as_json=as_json))
    _show(as_json, proof.as_json(), lambda: show_proof(proof))
    if not proof.is_right:
        raise VerifyFailed(proof.first_finding, check=proof.check)


@offsets.command("show")
def offsets_show(conf: Conf, as_json: AsJson = False) -> None:
    """The committed offset of each partition beside the log and the pipeline's position."""
    from etl.commands.offsets import offsets
    from etl.console.text import show_offsets

    found = offsets(_settings(conf))
    _show(as_json, found.rows, lambda: show_offsets(found.rows))
    if found.refusal:
        raise found.refusal


@plans.command("list")
def plans_list(conf: Conf, as_json: AsJson = False) -> None:
    """The stored plans, newest last."""
    from etl.commands.plans import list_plans
    from etl.console.text import show_plans

    rows = list_plans(_settings(conf))
    _show(as_json, rows, lambda: show_plans(rows))


@plans.command("show")
def plans_show(
    conf: Conf,
    number: Annotated[int | None, typer.Argument(metavar="N", min=1, help="Number of the plan; the newest by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """One plan with its ranges, positions and receipts."""
    from etl.commands.plans import show_plan
    from etl.console import text

    document = show_plan(_settings(conf), number)
    _show(as_json, document, lambda: text.show_plan(document))


@plans.command("supersede")
def plans_supersede(
    conf: Conf,
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the plan that is stored and not in the table.")],
    reason: Reason,
    skip: Annotated[list[str] | None, typer.Option(
        metavar="TOPIC:PARTITION:FROM-UNTIL", help="Offsets that the new plan leaves out and records as lost.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give up a plan that cannot be finished: another one takes its number, and the next run executes it."""
    from etl.commands import operator
    from etl.console.text import show_ruling

    ruling = operator.supersede(_settings(conf), number, reason, tuple(skip or ()))
    _show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@plans.command("take-over")
def plans_take_over(
    conf: Conf,
    place: Annotated[str, typer.Option("--from", metavar="GROUP/PIPELINE", help="The pipeline that loaded into this table until now.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Take the place of another pipeline in this table (a group or pipeline renamed): go on where it ended, and load nothing twice."""
    from etl.commands import take_over
    from etl.console.text import show_ruling

    ruling = take_over.take_over(_settings(conf), place, reason, run_context())
    _show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@plans.command("acknowledge")
def plans_acknowledge(
    conf: Conf,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The table's version as you saw it, or none when it is gone.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Accept the table as it is, whatever others did to it, and go on from ZooKeeper's positions."""
    from etl.commands import operator
    from etl.console.text import show_ruling

    ruling = operator.acknowledge(_settings(conf), version, reason)
    _show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@plans.command("accept-log")
def plans_accept_log(
    conf: Conf,
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help="TOPIC or TOPIC:PARTITION, as the message names them.")],
    reason: Reason,
    at: Annotated[int | None, typer.Option(
        min=0, metavar="OFFSET", help="Where one cut partition goes on, if its brokers cannot tell where it was cut.")] = None,
    same_log: Annotated[bool, typer.Option(
        "--same-log", help="The topics are the same, and only ZooKeeper's content was copied to another ensemble.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with logs that were cut, or whose topics were made again; rows of records that are gone stay, and are named."""
    from etl.commands import operator
    from etl.console.text import show_ruling

    ruling = operator.accept_log(_settings(conf), tuple(logs), reason, at=at, is_same_log=same_log)
    _show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@pipelines.command("list")
def pipelines_list(conf: Conf, as_json: AsJson = False) -> None:
    """The pipelines of the conf's group, and the topics that each of them reads."""
    from etl.commands.pipelines import list_pipelines
    from etl.console.text import show_pipelines

    rows = list_pipelines(_settings(conf))
    _show(as_json, rows, lambda: show_pipelines(rows))


@pipelines.command("retire")
def pipelines_retire(conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False) -> None:
    """Take a pipeline out of service: it loads no more, and others may read its topics. Nothing is deleted."""
    from etl.commands.pipelines import retire
    from etl.console.text import show_ruling

    ruling = retire(_settings(conf), name, reason)
    _show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@pipelines.command("resume")
def pipelines_resume(conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False) -> None:
    """Take a retired pipeline into service again; it goes on from its own positions."""
    from etl.commands.pipelines import resume
    from etl.console.text import show_ruling

    ruling = resume(_settings(conf), name, reason)
    _show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are told in two lines, or as JSON where that was asked for."""
    output: Any = _Output(sys.stdout)
    with contextlib.redirect_stdout(output):
        return _door(arguments)


def _door(arguments: Sequence[str] | None) -> int:
    wants_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, _stop)
    _printed.clear()
    try:
        if app(args=None if arguments is None else list(arguments), standalone_mode=False) == _STOPPED:
            raise KeyboardInterrupt  # typer has caught one
        _refuse_unshown()  # help, or the version
        return 0
    except EtlError as error:
        return _tell(error, wants_json)
    except typer.TyperException as error:
        return _tell(SettingsError(str(error), check="etl --help"), wants_json)
    except (KeyboardInterrupt, typer.Abort, EOFError):
        return _tell(Stopped("stopped; nothing is lost, the next run goes on from what is stored"), wants_json)
    except _Unshown as error:
        is_closed = isinstance(error.refused, BrokenPipeError)
        return _NOBODY_READS if is_closed else _tell(_unwritable(error.refused), wants_json=False)
    except Exception as error:  # nobody above catches it: a bug of ours, with all that is needed to report it
        traceback.print_exc()
        return _tell(EtlError(f"a bug: {type(error).__name__}: {error}", check="please report it with the lines above"), wants_json)


def _settings(conf: Path) -> Settings:
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


def _show(as_json: bool, document: Any, screen: Callable[[], None], *, is_done: bool = False) -> None:
    """Print the result of a command. `is_done`: the command changed something, and that stays done where the result cannot be printed."""
    if as_json:
        _print_json(document)
    else:
        screen()
    try:
        _refuse_unshown()
    except _Unshown as error:
        if not is_done:
            raise
        if not isinstance(error.refused, BrokenPipeError):
            _tell(_unwritable(error.refused), wants_json=False)


def _refuse_unshown() -> None:
    """Once for each failure of standard output. Raises _Unshown."""
    sys.stdout.flush()
    output: Any = sys.stdout
    refused, output.refused = output.refused, None
    if refused:
        raise _Unshown(refused)


class _Unshown(Exception):
    """Standard output could not be written, so who asked has no answer."""

    def __init__(self, refused: OSError) -> None:
        super().__init__(refused)
        self.refused = refused


class _Output:
    """Standard output. Its first failure is kept, no library that prints sees it, and what is printed after it is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.refused: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of any stream."""
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
            with contextlib.suppress(OSError, ValueError):  # or Python would try once more at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _unwritable(refused: OSError) -> SettingsError:
    check = "the file or disk that it goes to; what the command did is done, and a run's report is in report.path"
    return SettingsError(f"standard output cannot be written: {refused.strerror}", check=check)


_printed: list[Any] = []
"""The document that was printed; there is never more than one."""


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, default=str))
    _printed.append(document)


def _tell(error: EtlError, wants_json: bool) -> int:
    if wants_json and not _printed:
        _print_json(error.as_json())
    places = ", ".join(f"{name} {value}" for name, value in error.where.items())
    first, *more = error.what.splitlines() or [""]
    with contextlib.suppress(OSError):  # nobody reads it any more: the exit code says it
        print(f"etl: {first}" + (f" ({places})" if places else ""), *(f"       {line}" for line in more), sep="\n", file=sys.stderr)
        if error.check:
            print(f"     check: {error.check}", file=sys.stderr)
        if error.retriable:
            print("     a retry may help", file=sys.stderr)
    return error.exit_code


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does. What libraries log from now on of calls that were interrupted is no news."""
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
