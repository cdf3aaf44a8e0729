"""How does `etl run DIRECTORY` run each conf?

Each conf runs in its own process: its JVM has its own settings, and what ends the process ends no
other run. Under spark-submit all confs run in this process, in the one session of the submitter.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from etl.cli.common_options import current_overrides, show
from etl.cli.screens import print_line, show_folder_run, show_one_run
from etl.commands.run import ConfRun, FolderRun, run_each
from etl.errors import DataLost, EtlError, ProcessLost, rebuild
from etl.io.spark.session import is_submitted

_STOPPED = 130
Main = Callable[[Sequence[str]], int]
"""The command `etl`: takes its arguments, returns its exit code."""
RunCommand = Callable[[Sequence[str]], tuple[int, str]]
"""Runs the command with these arguments; returns its exit code and its standard output."""


def run_folder(context: typer.Context, folder: Path, *, main: Main, as_json: bool) -> None:
    """Run each conf and show a summary. Raises the worst error of the runs."""
    arguments = arguments_for(context, folder)
    run_command: RunCommand = _run_in_process
    if is_submitted():
        run_command = functools.partial(_run_here, main)

    def start(conf: Path) -> ConfRun:
        if not as_json:
            print_line((f"{conf}:", "bold"))
        conf_arguments = [str(conf) if argument is None else argument for argument in arguments]
        try:
            code, output = run_command(["run", "--json", *conf_arguments])
        except ProcessLost as error:
            return ConfRun(str(conf), error=error)
        if code == _STOPPED:
            raise KeyboardInterrupt
        return result_of(conf, code, output)

    def show_run(run: ConfRun) -> None:
        if not as_json:
            show_one_run(run)

    runs: FolderRun = run_each(folder, start, show_run, current_overrides())
    show(as_json, runs.as_json(), lambda: show_folder_run(runs), is_done=True)
    if runs.worst:
        raise runs.worst


def arguments_for(context: typer.Context, folder: Path) -> list[str | None]:
    """Return the arguments after `run` without `--json`, with None in place of the directory."""
    options_with_value = set()
    for parameter in context.command.params:
        if not getattr(parameter, "is_flag", True):
            options_with_value.update(parameter.opts)

    words: list[str] = list(context.obj)[1:]
    arguments: list[str | None] = []
    is_replaced = False
    for number, word in enumerate(words):
        if word == "--json":
            continue
        is_value = number > 0 and words[number - 1] in options_with_value
        if not is_replaced and not is_value and Path(word) == folder:
            arguments.append(None)
            is_replaced = True
        else:
            arguments.append(word)
    return arguments


def result_of(conf: Path, code: int, output: str) -> ConfRun:
    """Return the result of a run by its exit code and document."""
    document: Any = None
    with contextlib.suppress(ValueError):
        document = json.loads(output)
    if code == 0:
        return ConfRun(str(conf), document)
    if isinstance(document, dict) and "retriable" in document:
        error = rebuild(
            document["error"], document["message"], document["action"], document["where"]
        )
        return ConfRun(str(conf), error=error)
    if code == DataLost.exit_code:
        lost = DataLost(
            "Records were lost, as the policy allows",
            action="Check the lost offsets that the run named",
        )
        return ConfRun(str(conf), document, lost)
    if code < 0:
        killed = ProcessLost(
            f"Signal {-code} ended the process of the run",
            action="Check what killed it, such as a lack of memory on this machine",
            path=conf,
        )
        return ConfRun(str(conf), error=killed)
    bug = EtlError(
        f"The run ended with exit code {code} and no document", action="Report it", path=conf
    )
    return ConfRun(str(conf), document, bug)


def _run_in_process(arguments: Sequence[str]) -> tuple[int, str]:
    """Run `etl` in a child process with this standard error. Raises ProcessLost if it does not
    start.

    A stop of this process (Ctrl-C, SIGTERM, SIGHUP) is passed on once and waited for. If this
    process is killed, the child finishes its run, and the driver lock keeps others away until then.
    """
    # With -P the child does not search the current directory for transforms, unless we do.
    options = []
    if sys.path[:1] not in ([""], [os.getcwd()]):
        options = ["-P"]
    try:
        child = subprocess.Popen(
            [sys.executable, *options, "-m", "etl", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise ProcessLost(
            f"The process of the run was not started: {error.strerror}",
            action="Check the memory of this machine and its limit of processes (ulimit -u)",
        ) from None
    try:
        output, _ = child.communicate()
    except BaseException:
        child.send_signal(signal.SIGTERM)
        try:
            child.communicate()
        finally:
            child.kill()  # a second Ctrl-C does not wait
        raise
    return child.returncode, output


def _run_here(main: Main, arguments: Sequence[str]) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main(list(arguments))
    return code, output.getvalue()
