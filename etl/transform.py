"""The transform of a pipeline: somebody else's function, found by its name and tried with care.

Whatever it raises is about the transform, and is told with the line where it failed.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from etl.edges.delta import whole_text
from etl.errors import EtlError, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply_transform(name: str, rows: DataFrame) -> DataFrame:
    """What the transform of this name makes of `rows`. Raises SettingsError with the line where it failed."""
    from pyspark.sql import DataFrame

    function = load_transform(name)
    check = "the function, on rows of spark.read.format('offset_ranges')"
    try:
        transformed = function(rows)
    except Exception as error:  # it is somebody else's code: whatever it raises is about the transform
        said = str(error).strip().split("\n", 1)[0]
        line = next((f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[1:]), None)
        raise SettingsError(f"the transform failed: {type(error).__name__}: {said}", key="transform", line=line, check=check) from error
    if not isinstance(transformed, DataFrame):
        raise SettingsError(f"the transform gave {type(transformed).__name__}, no DataFrame", key="transform", check=check)
    return transformed


@contextlib.contextmanager
def making_rows(name: str | None) -> Iterator[None]:
    """What a function or an expression of the transform raises on a row inside is told as the transform's. Raises SettingsError."""
    try:
        yield
    except EtlError:
        raise
    except Exception as error:
        told = of_a_row(whole_text(error)) if name else None
        if told is None:
            raise
        said, line = told
        check = (
            "the function, and that the workers have its module; the stored plan is executed again by the next run, with the function "
            "as it is then; or give the plan up: etl plans supersede CONF N --reason ...")
        raise SettingsError(f"the transform failed on a row: {said}", key="transform", line=line, check=check) from error


def of_a_row(text: str) -> tuple[str, str | None] | None:
    """What was raised while a task made rows, and at which line of Python if it was one; None for a failure of another kind."""
    raised = _PYTHON.search(text)
    if raised:
        places = _PLACE.findall(raised[0])
        return raised[1].strip(), ":".join(places[-1]) if places else None
    errors = [found for found in _SPARK.findall(text) if not found.startswith("[TASK_WRITE_FAILED]")]
    return (errors[-1].strip(), None) if "[TASK_WRITE_FAILED]" in text and errors else None


_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_SPARK = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
"""An error condition of Spark, with what it says."""


def load_transform(name: str) -> Callable[[DataFrame], DataFrame]:
    """The function `package.module:function`, from the Python path or the current folder. Raises SettingsError."""
    module, _, function = name.partition(":")
    sys.path[:] = sys.path if "" in sys.path else [*sys.path, ""]
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # importing runs the module: whatever it raises is about the transform
        what = f"the transform cannot be imported: {type(error).__name__}: {error}"
        raise SettingsError(what, key="transform", check="its spelling, and that its module is installed or in this folder") from error
    if not callable(found):
        raise SettingsError(f"{name} is no function", key="transform", check="package.module:function")
    transform: Callable[[DataFrame], DataFrame] = found
    return transform
