"""Commands on a pipeline as people run them: each in a process of its own, to its end."""

from __future__ import annotations

import subprocess

from tests.system.driving import Pipeline

_WITHIN_S = 400


def command(pipeline: Pipeline, *words: str, code: int = 0) -> str:
    """Return standard error and output of `etl` with these words."""
    return finished(pipeline, "etl", *words, str(pipeline.conf), code=code)


def command_with(pipeline: Pipeline, words: tuple[str, ...], *options: str, code: int = 0) -> str:
    """The same with options after the conf."""
    return finished(pipeline, "etl", *words, str(pipeline.conf), *options, code=code)


def finished(pipeline: Pipeline, *words: str, code: int) -> str:
    """Return the output of a module that runs with these words and ends with this code."""
    child: subprocess.Popen[str] = pipeline.start(*words)
    out, err = child.communicate(timeout=_WITHIN_S)
    assert child.returncode == code, (words, out, err)
    assert code == 0 or "Traceback" not in err, err
    return err + out
