"""Runs `etl` commands in this process, and checks their exit codes and output."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etl.cli import main


@dataclass
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def outcomes(self) -> list[str]:
        return [one["outcome"] for one in self.document["outcomes"]]


def run_etl(*words: str) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = entered(words)
    return CommandResult(code, out.getvalue(), err.getvalue())


def entered(words: Sequence[str]) -> int:
    """Return the exit code of the command; its output is not captured."""
    with restored_logging():
        return main(list(words))


@contextlib.contextmanager
def restored_logging() -> Iterator[None]:
    """Restore logging at the end: an interrupted command disables it for its process."""
    disabled = logging.root.manager.disable
    try:
        yield
    finally:
        logging.disable(disabled)


def refused(result: CommandResult, code: int, *words: str) -> None:
    """Check exit code, a message with all `words`, an advice, one document, no traceback."""
    assert result.code == code, result.err + result.out
    assert "Traceback" not in result.err, result.err
    assert "\n     " in result.err, result.err
    for word in words:
        assert word in result.err, result.err
    assert result.document["exit_code"] == code


class Terminal(io.StringIO):
    """Standard input or output that is a terminal."""

    def isatty(self) -> bool:
        return True
