"""The environment with Spark on a worker that is lost: its spark-submit is the real one, and the
test kills it.
"""

from __future__ import annotations

import os
from pathlib import Path

_PYTHON = """#!/bin/sh
exec {python} "$@"
"""
_SPARK_SUBMIT = """#!/bin/bash
if [ -e {folder}/before ]; then
    mv {folder}/before {folder}/done
    setsid {spark_submit} "$@" >{folder}/left.log 2>&1 </dev/null &
    echo $! > {folder}/left.part && mv {folder}/left.part {folder}/left
    kill -KILL $$
fi
{spark_submit} "$@"
code=$?
if [ -e {folder}/after ]; then
    mv {folder}/after {folder}/done
    kill -KILL $$
fi
exit $code
"""


class LostWorkers:
    """`python` and `spark-submit` in a directory, which call those of the environment in
    ETL_REAL_PYTHON.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "bin").mkdir()
        self.python = folder / "bin" / "python"
        real = Path(os.environ["ETL_REAL_PYTHON"])
        for name, script in (("python", _PYTHON), ("spark-submit", _SPARK_SUBMIT)):
            path = folder / "bin" / name
            path.write_text(
                script.format(
                    python=real, spark_submit=real.with_name("spark-submit"), folder=folder
                )
            )
            path.chmod(0o755)

    def lose_the_next_one_after_its_commit(self) -> None:
        """The next spark-submit is killed when its driver has ended."""
        (self._folder / "after").touch()

    def lose_the_next_one_before_its_driver_ends(self) -> None:
        """The next spark-submit is killed when it has started its driver, which continues."""
        (self._folder / "before").touch()

    def remaining_driver(self) -> int:
        """The process of that driver."""
        return int((self._folder / "left").read_text())
