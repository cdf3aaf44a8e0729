"""What an executor's Python lacks, told from what Spark says of it: this package, a library, the
Python itself, or its version.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from etl.errors import SettingsError

_NEEDED = frozenset(
    (
        "cramjam",
        "etl",
        "google_crc32c",
        "kafka",
        "kazoo",
        "llvmlite",
        "numba",
        "numpy",
        "packaging",
        "pandas",
        "pyarrow",
        "pydantic",
        "pyroaring",
        "yaml",
    )
)
"""What a task of ours imports, by the modules' names: any other one is a transform's."""
_HOW = (
    "`etl package` makes what brings it, and says the whole command: a zip for spark-submit --py-files where the workers have the "
    "libraries, an archive of the environment (--environment) where they have not"
)
_PYTHON = (
    "PYSPARK_PYTHON, or spark.pyspark.python: on each host, the driver's too, a Python of the driver's minor version with the libraries; "
    "`etl package --environment` packs one"
)


def _of_module(found: re.Match[str]) -> SettingsError | None:
    name = found[1] or found[2]
    if name.partition(".")[0].lower() not in _NEEDED:
        return None
    return SettingsError(f"the workers' Python does not have the module {name}", check=_HOW)


_SIGNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], SettingsError | None]], ...] = (
    (
        re.compile(
            r"ModuleNotFoundError: No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+)"
        ),
        _of_module,
    ),
    (
        re.compile(r"ImportError: (Numba needs [^\n]+)"),
        lambda found: SettingsError(
            f"the workers' Python has libraries that do not fit one another: {found[1]}", check=_HOW
        ),
    ),
    (
        re.compile(r'Cannot run program "([^"]*python[^"]*)"'),
        lambda found: SettingsError(
            "the workers' Python is not there", path=found[1], check=_PYTHON
        ),
    ),
    (
        re.compile(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)"),
        lambda found: SettingsError(
            f"the workers' Python is of another version: {found[1]}", check=_PYTHON
        ),
    ),
)


def lacking(told: str) -> SettingsError | None:
    """What to tell where Spark, in this text of an exception, says that a worker could not begin;
    None for anything else.
    """
    return next(
        (error for sign, make in _SIGNS if (found := sign.search(told)) and (error := make(found))),
        None,
    )
