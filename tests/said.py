"""The command in this process, and what it left: an exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Sequence
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


def run_etl(*words: str) -> Said:
    """`etl` with these words."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = entered(words)
    return Said(code, out.getvalue(), err.getvalue())


def entered(words: Sequence[str]) -> int:
    """The exit code of the command. Ctrl-C silences what a process logs to its end, and this one
    goes on.
    """
    disabled = logging.root.manager.disable
    try:
        return main(list(words))
    finally:
        logging.disable(disabled)


def refused(said: Said, code: int, *words: str) -> None:
    """The exit code, a message that says all of `words` and what to check, one document, and no
    traceback.
    """
    assert said.code == code, said.err + said.out
    assert "Traceback" not in said.err, said.err
    assert "check: " in said.err, said.err
    for word in words:
        assert word in said.err, said.err
    assert said.document["exit_code"] == code
