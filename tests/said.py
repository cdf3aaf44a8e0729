"""The command in this process, and what it left: an exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import json
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
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return Said(code, out.getvalue(), err.getvalue())


def refused(said: Said, code: int, *words: str) -> None:
    """The exit code, a message that says all of `words` and what to check, one document, and no traceback."""
    assert said.code == code, said.err + said.out
    assert "Traceback" not in said.err, said.err
    assert "check: " in said.err, said.err
    for word in words:
        assert word in said.err, said.err
    assert said.document["exit_code"] == code
