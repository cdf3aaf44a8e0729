"""How does `etl run FOLDER` run each conf in a process of its own?

So each has a JVM with its own settings, and what ends one process ends no other run. Under
spark-submit there is one session of the submitter: there all run in this process.
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
from etl.cli.screens import screen, show_folder_run, show_one_run
from etl.commands.run import ConfRun, FolderRun, run_each
from etl.errors import DataLost, EtlError, ProcessLost, rebuild
from etl.io.spark.session import is_submitted

_STOPPED = 130
Main = Callable[[Sequence[str]], int]
"""The command `etl`: takes its arguments, returns its exit code."""
Started = Callable[[Sequence[str]], tuple[int, str]]
"""Runs the command with these words to its end: its exit code, and what it printed on standard
output.
"""


def run_folder(context: typer.Context, folder: Path, *, main: Main, as_json: bool) -> None:
    """Run each conf, show a summary, and end as the worst of them did."""
    words = words_for(context, folder)
    started = _in_a_process_of_its_own
    if is_submitted():
        started = functools.partial(_in_this_process, main)

    def start(conf: Path) -> ConfRun:
        if not as_json:
            screen.print(f"{conf}:", style="bold")
        code, printed = started(
            ["run", "--json", *(str(conf) if word is None else word for word in words)]
        )
        if code == _STOPPED:
            raise KeyboardInterrupt
        return ended(conf, code, printed)

    found: FolderRun = run_each(
        folder, start, lambda run: None if as_json else show_one_run(run), current_overrides()
    )
    show(as_json, found.as_json(), lambda: show_folder_run(found), is_done=True)
    if found.worst:
        raise found.worst


def words_for(context: typer.Context, folder: Path) -> list[str | None]:
    """Return the arguments after `run`, with None in place of the directory, without `--json`."""
    takes = {
        name
        for one in context.command.params
        if not getattr(one, "is_flag", True)
        for name in one.opts
    }
    said: list[str] = list(context.obj)[1:]
    places = [
        number
        for number, word in enumerate(said)
        if Path(word) == folder and (number == 0 or said[number - 1] not in takes)
    ]
    return [
        None if number == places[0] else word
        for number, word in enumerate(said)
        if word != "--json"
    ]


def ended(conf: Path, code: int, printed: str) -> ConfRun:
    """Return the result of a run, by exit code and document."""
    document: Any = None
    with contextlib.suppress(ValueError):
        document = json.loads(printed)
    if code == 0:
        return ConfRun(str(conf), document)
    if isinstance(document, dict) and "retriable" in document:
        error = rebuild(
            document["error"], document["message"], document["action"], document["where"]
        )
        return ConfRun(str(conf), error=error)
    if code == DataLost.exit_code:
        return ConfRun(
            str(conf),
            document,
            DataLost(
                "records were lost, and policy let them go", action="the gaps that the run named"
            ),
        )
    if code < 0:
        message, action = (
            f"the run's process was ended by signal {-code}",
            "what killed it: memory on this machine, perhaps",
        )
        return ConfRun(str(conf), error=ProcessLost(message, action=action, path=conf))
    return ConfRun(
        str(conf),
        document,
        EtlError(
            f"the run ended with {code} and said nothing", action="please report it", path=conf
        ),
    )


def _in_a_process_of_its_own(words: Sequence[str]) -> tuple[int, str]:
    """Standard error is this one's. A stop is handed on, once, and waited for."""
    as_here = (
        [] if sys.path[:1] in ([""], [os.getcwd()]) else ["-P"]
    )  # a transform is found, or not, as by this process
    child = subprocess.Popen(
        [sys.executable, *as_here, "-m", "etl", *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = child.communicate()
    except BaseException:
        child.send_signal(signal.SIGTERM)
        try:
            child.communicate()
        finally:
            child.kill()  # whoever asks twice does not wait
        raise
    return child.returncode, printed


def _in_this_process(main: Main, words: Sequence[str]) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return main(list(words)), printed.getvalue()
