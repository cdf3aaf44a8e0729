"""The way in and out of a command: its signals, its exit code, and what is told of an error."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

import typer

from etl.cli.app import app
from etl.cli.log_format import wants_json_lines
from etl.cli.output import Output, Unshown, begun, json_lines, refuse_unshown, tell, unwritable
from etl.errors import EtlError, SettingsError, Stopped

_STOPPED = 130
_NOBODY_READS = 141
"""What a shell shows of a command that ended by SIGPIPE, as most tools do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are told in two lines, or as JSON where that
    was asked for.
    """
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
        refuse_unshown()  # help, or the version
        return 0
    except EtlError as error:
        return tell(error, wants_json)
    except typer.TyperException as error:
        return tell(SettingsError(str(error), check="etl --help"), wants_json)
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
        what = f"the process was ended in the middle of the command (sys.exit, with {error.code!r}, at {place.filename}:{place.lineno})"
        return tell(
            EtlError(
                what,
                check="who calls sys.exit there; nothing is lost, the next run goes on from what is stored",
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
                check="please report it with the lines above",
            ),
            wants_json,
        )


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does. What libraries log from now on of calls that were
    interrupted is no news.
    """
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt
