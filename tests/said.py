"""The command in this process, and what it left: an exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from dataclasses import dataclass
from typing import Any

from etl.cli import main


@dataclass
class Said:
    """What a door left: its exit code and what it printed."""

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


def said_by(*words: str) -> Said:
    """`etl` with these words."""
    out, err, disabled = io.StringIO(), io.StringIO(), logging.root.manager.disable
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(words))
    finally:
        logging.disable(disabled)  # Ctrl-C silences what a process logs to its end, and this one goes on
    return Said(code, out.getvalue(), err.getvalue())


def refused(said: Said, code: int, *words: str) -> None:
    """The exit code, a message that says all of `words` and what to check, one document, and no traceback."""
    assert said.code == code, said.err + said.out
    assert "Traceback" not in said.err, said.err
    assert "check: " in said.err, said.err
    for word in words:
        assert word in said.err, said.err
    assert said.document["exit_code"] == code
